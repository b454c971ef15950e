"""The admin page of subscriptions: one's own, or all of them."""

import json

import pytest
from django.contrib.auth.models import User
from django.core import mail

from catalogue.models import HistoryEntry
from executions.models import Subscription
from identity.tokens import create_token
from tests.admin.pages import add_url, list_url, page_url
from tests.connectors.scripted import replies
from tests.engines.hostile_servers import hostile
from tests.executions.engines import in_turn
from tests.factories import make_workflow

pytestmark = [pytest.mark.django_db, pytest.mark.databases("executions.admin.subscriptions")]
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
MAILED = {"name": "mine", "kinds": ["lost"], "medium": "email", "frequency": "immediate", "enabled": "on"}


@pytest.fixture(autouse=True)
def mail_server(settings):
    settings.EMAIL_HOST = "127.0.0.1"


@pytest.fixture
def curator(staff_with):
    client = staff_with("view_workflow")
    User.objects.filter(username="member").update(email="member@example.com")
    return client


def submit(client, url, **values):
    """Returns the errors by field; none once it was saved."""
    page = client.post(url, MAILED | values)
    return {} if page.status_code == 302 else page.context["adminform"].form.errors


def test_anyone_who_may_see_something_subscribes_by_mail_to_what_they_may_see(curator):
    form = curator.get(add_url(Subscription)).context["adminform"].form
    assert [key for key, _ in form.fields["kinds"].choices] == ["lost", "new", "changed", "flagged"]
    assert [key for key, _ in form.fields["medium"].choices] == ["email"]
    assert submit(curator, add_url(Subscription), kinds=["lost", "new"]) == {}
    subscription = Subscription.objects.get()
    assert (subscription.owner.username, subscription.kinds) == ("member", ["lost", "new"])
    assert submit(curator, page_url(subscription), kinds=["source"]).keys() == {"kinds"}
    assert submit(curator, page_url(subscription), medium="slack").keys() == {"medium"}


def test_people_see_and_change_their_own_subscriptions_alone(curator, admin_client):
    theirs = Subscription.objects.create(name="theirs", owner=User.objects.get(username="admin"))
    assert theirs not in curator.get(list_url(Subscription)).context["cl"].result_list
    assert curator.get(page_url(theirs)).status_code == 302
    assert submit(curator, page_url(theirs), name="taken") == {}
    for button in ("send_example", "delete"):
        curator.post(page_url(theirs).replace("change", button), {"post": "yes"})
    theirs.refresh_from_db()
    assert theirs.name == "theirs"
    own = Subscription.objects.create(name="own", owner=User.objects.get(username="member"))
    assert set(admin_client.get(list_url(Subscription)).context["cl"].result_list) == {own, theirs}


def test_users_without_permissions_have_no_subscriptions(staff_with):
    client = staff_with("view_approval")
    assert client.get(list_url(Subscription)).status_code == 403
    assert client.get(add_url(Subscription)).status_code == 403
    assert 'id="subscriptions"' not in client.get("/admin/").content.decode()


def test_a_webhook_needs_an_address_that_may_be_reached_and_a_secret(admin_client):
    url = add_url(Subscription)
    assert submit(admin_client, url, medium="webhook").keys() == {"address", "secret"}
    assert submit(admin_client, url, medium="slack").keys() == {"address"}
    for address in ("ftp://example.com", "http://169.254.169.254/latest", "http://user:pw@example.com"):
        assert submit(admin_client, url, medium="slack", address=address).keys() == {"address"}, address
    good = {"medium": "webhook", "address": "https://hooks.example.com/x?sig=planted"}
    assert submit(admin_client, url, **good, secret="whsec_short").keys() == {"secret"}
    assert submit(admin_client, url, **good, secret=SECRET) == {}
    subscription = Subscription.objects.get()
    assert subscription.target == {"address": good["address"], "secret": SECRET}
    page = admin_client.get(page_url(subscription)).content.decode()
    assert "planted" not in page and SECRET not in page
    assert submit(admin_client, page_url(subscription), medium="webhook", name="renamed") == {}
    subscription.refresh_from_db()
    assert (subscription.name, subscription.target["secret"]) == ("renamed", SECRET)
    recorded = str([entry.changes for entry in HistoryEntry.objects.all()])
    assert "renamed" in recorded and "planted" not in recorded


def test_who_changes_a_webhook_becomes_its_owner(admin_client, staff_with):
    staff_with("manage_subscription")
    other = User.objects.get(username="member")
    hook = Subscription(name="hook", owner=other, medium="slack")
    hook.target = {"address": "https://hooks.example.com/x"}
    hook.save()
    assert submit(admin_client, page_url(hook), medium="slack", address="https://evil.example/x") == {}
    hook.refresh_from_db()
    assert hook.owner.username == "admin"


def test_mail_needs_a_server_and_an_address(admin_client, settings):
    assert submit(admin_client, add_url(Subscription)).keys() == {"medium"}, "no address"
    User.objects.update(email="admin@example.com")
    settings.EMAIL_HOST = ""
    assert submit(admin_client, add_url(Subscription)).keys() == {"medium"}, "no server"


def test_an_example_is_sent_at_once_and_a_failure_is_told(curator, admin_client):
    own = Subscription.objects.create(name="own", owner=User.objects.get(username="member"), kinds=["lost"])
    press = page_url(own).replace("change", "send_example")
    curator.post(press)
    assert [letter.bcc for letter in mail.outbox] == [["member@example.com"]]
    own.medium = "slack"
    with hostile(in_turn(replies(200), replies(404))) as server:
        own.target = {"address": server.base_url}
        own.save()
        told = [str(next(iter(admin_client.post(press, follow=True).context["messages"]))) for _ in range(2)]
        assert json.loads(server.received[0].body)["blocks"]
    assert "404" in told[1] and "404" not in told[0]


def test_runs_are_chosen_by_workflows_and_by_tokens_that_the_user_may_see(staff_with, admin_client):
    client, member = staff_with("view_execution", "view_workflow"), User.objects.get(username="member")
    User.objects.update(email="member@example.com")
    own, other = (create_token(name=name)[0] for name in ("own", "other"))
    type(own).objects.filter(pk=own.pk).update(owner=member)
    keys = [f"token:{own.pk}", f"token:{other.pk}"]
    form = client.get(add_url(Subscription)).context["adminform"].form
    assert "ended" in dict(form.fields["kinds"].choices)
    assert list(form.fields["callers"].choices) == [(keys[0], "own")]
    workflow = make_workflow()
    chosen = {"kinds": ["ended"], "workflows": [workflow.pk], "only_failed": "on"}
    assert submit(client, add_url(Subscription), **chosen, callers=keys[1:]).keys() == {"callers"}
    assert submit(client, add_url(Subscription), **chosen, callers=keys[:1]) == {}
    subscription = Subscription.objects.get()
    assert (subscription.callers, subscription.only_failed) == (keys[:1], True)
    assert [*subscription.workflows.all()] == [workflow] and subscription.chooses_workflows
    assert submit(admin_client, page_url(subscription), **chosen, callers=keys) == {}
    subscription.refresh_from_db()
    assert subscription.callers == keys
    assert submit(client, page_url(subscription), kinds=["ended"], callers=keys) == {}, (
        "what was chosen stays"
    )
    subscription.refresh_from_db()
    assert (subscription.callers, subscription.only_failed) == (keys, False)
    assert not subscription.chooses_workflows


@pytest.mark.django_db(transaction=True)
def test_a_subscription_is_made_from_the_overview_in_a_browser(window):
    User.objects.update(email="admin@example.com")
    window.open("/admin/")
    window.click_through("#subscriptions")
    window.click_through(f"a[href^='{add_url(Subscription)}']")
    shown = "return getComputedStyle(document.querySelector('.field-address')).display != 'none'"
    window.browser.wait_for(f"!(() => {{ {shown} }})()")
    window.run(
        "const medium = document.querySelector('#id_medium'); medium.value = 'slack';"
        "for (const kind of ['input', 'change']) medium.dispatchEvent(new Event(kind, {bubbles: true}))"
    )
    window.browser.wait_for(f"(() => {{ {shown} }})()")
    for field, text in (("name", "ops"), ("address", "https://hooks.example.com/x")):
        window.click(f"#id_{field}")
        window.browser.press(*text)
    window.click("#id_kinds input[value=lost]")
    window.click_through("[name=_save]")
    subscription = Subscription.objects.get()
    assert (subscription.kinds, subscription.medium) == (["lost"], "slack")
    mine = Subscription.objects.create(name="mine", owner=User.objects.get(), kinds=["lost"])
    window.open(page_url(mine))
    window.click_through("form[action$='send_example/'] button")
    assert [letter.bcc for letter in mail.outbox] == [["admin@example.com"]]
