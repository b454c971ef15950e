"""Events, and who is told of them: once, within their permissions, in the format of the receiver."""

import base64
import json
from collections.abc import Iterator
from datetime import timedelta
from functools import partial

import pytest
from django.contrib.auth.models import Permission, User
from django.core import mail
from django.db.models import F
from django.utils import timezone

from catalogue.models import Source, Workflow
from executions import notices, subscriptions
from executions.models import Event, EventKind, EventNotice, Execution, State, Subscription
from executions.starting import create_execution
from tests.connectors.scripted import replies
from tests.engines.hostile_servers import hostile
from tests.executions.engines import in_turn
from tests.executions.steps import ALICE, BOB, request_for
from tests.factories import make_execution, make_source, make_workflow
from tests.threads import together

pytestmark = [pytest.mark.django_db, pytest.mark.databases("executions.subscriptions")]
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
HOSTILE = "<!channel> *now* [click](https://evil.example) & <https://evil.example|here>\x1b[31m\u202e"
report = partial(subscriptions.report_events, seconds=10)


@pytest.fixture
def letters(settings):
    settings.EMAIL_HOST = "127.0.0.1"
    mail.outbox.clear()
    return mail.outbox


@pytest.fixture
def ada() -> User:
    user = User.objects.create_user("ada", "ada@example.com", is_staff=True)
    user.user_permissions.set(
        Permission.objects.filter(codename__in=["view_workflow", "manage_subscription"])
    )
    return user


@pytest.fixture
def receiver() -> Iterator[list]:
    with hostile(in_turn(replies(200))) as server:
        yield server


def subscribe(owner, *kinds, **values):
    wanted = kinds or tuple(EventKind)
    target = values.pop("target", {})
    subscription = Subscription(name="ops", owner=owner, kinds=[*wanted], **values)
    subscription.target = target
    subscription.save()
    subscriptions.find_events()
    return subscription


def lose(name="gone", **values):
    return make_workflow(name=name, missing_since=timezone.now(), **values)


def end(**condition):
    Workflow.objects.filter(**condition).update(missing_since=None)
    subscriptions.find_events()


def test_an_event_is_told_once_and_what_was_before_the_subscription_is_none(ada, letters):
    lose("before")
    subscribe(ada)
    assert report() == 0
    lose("gone")
    assert [report(), report()] == [1, 0]
    (letter,) = letters
    assert letter.bcc == ["ada@example.com"]
    assert "gone" in letter.body and "before" not in letter.body
    assert "/admin/catalogue/workflow/?inbox=lost" in letter.body


def test_what_ends_and_soon_comes_about_again_is_told_once(ada, letters):
    subscribe(ada)
    lose()
    assert report() == 1
    end()
    Workflow.objects.update(missing_since=timezone.now())
    assert report() == 0
    end()
    Event.objects.update(ended_at=timezone.now() - timedelta(hours=2))
    Workflow.objects.update(missing_since=timezone.now())
    assert report() == 1


def test_only_the_kinds_that_a_subscription_names_are_told(ada, letters):
    subscribe(ada, EventKind.NEW)
    lose()
    assert report() == 0
    make_workflow(name="recent", enabled=False)
    assert report() == 1
    assert "recent" in letters[0].body and "gone" not in letters[0].body


def test_a_letter_contains_what_its_reader_may_see_when_it_is_sent(ada, letters):
    subscribe(ada)
    lose()
    make_source("secret-engine", health_state="failing", failing_since=timezone.now())
    assert report() == 1
    assert "secret-engine" not in letters[0].body + letters[0].subject
    lose("another")
    subscriptions.find_events()
    ada.user_permissions.clear()
    assert report() == 1 and len(letters) == 1, "nothing is left to say"
    lose("third")
    subscriptions.find_events()
    User.objects.update(is_superuser=True, is_active=False)
    assert report() == 1 and len(letters) == 1


def test_a_channel_of_a_user_who_may_no_longer_use_webhooks_is_silent(ada, receiver):
    subscribe(ada, medium="slack", target={"address": receiver.base_url})
    ada.user_permissions.remove(Permission.objects.get(codename="manage_subscription"))
    lose()
    report()
    assert receiver.received == []


def test_a_digest_collects_a_day_also_of_what_is_over(ada, letters):
    subscribe(ada, frequency="daily")
    lose("one")
    assert report() == 0
    end()
    lose("two")
    assert report() == 0
    Subscription.objects.update(digest_at=timezone.now())
    assert [report(), report()] == [1, 0]
    (letter,) = letters
    assert "one" in letter.body and ", over" in letter.body and "two" in letter.body


def test_a_subscription_that_was_switched_off_is_not_told_what_it_missed(ada, letters):
    subscribe(ada)
    Subscription.objects.update(enabled=False)
    lose("missed")
    assert report() == 0
    Subscription.objects.update(enabled=True)
    assert report() == 0
    lose("noticed")
    assert report() == 1
    assert "missed" not in letters[0].body


@pytest.mark.django_db(transaction=True)
def test_two_workers_write_one_notice(ada, letters):
    subscribe(ada)
    lose()
    together(*[subscriptions.find_events] * 3)
    assert EventNotice.objects.count() == 1


def test_a_webhook_is_signed_and_lists_the_events(ada, receiver):
    subscribe(ada, medium="webhook", target={"address": receiver.base_url + "/hook?x=1", "secret": SECRET})
    lose(tool_name="gone_tool")
    assert report() == 1
    (request,) = receiver.received
    headers, body = request.headers, json.loads(request.body)
    signed = notices.sign(
        SECRET,
        message_id=headers["webhook-id"],
        timestamp=int(headers["webhook-timestamp"]),
        body=request.body,
    )
    assert headers["webhook-signature"] == signed and base64.b64decode(signed[3:])
    assert body["type"] == "events.reported"
    (event,) = body["data"]["events"]
    assert (event["kind"], event["topic"], event["name"]) == ("lost", "lost", "gone_tool")
    assert event["url"].endswith("/admin/catalogue/workflow/?inbox=lost")


def test_a_receiver_that_is_gone_ends_the_subscription(ada):
    with hostile(in_turn(replies(410))) as server:
        subscribe(ada, medium="slack", target={"address": server.base_url})
        lose()
        report()
    assert not Subscription.objects.get().enabled


def test_a_receiver_that_fails_does_not_hold_up_the_others(ada, receiver):
    with hostile(in_turn(replies(500))) as broken:
        subscribe(ada, medium="slack", target={"address": broken.base_url})
        subscribe(ada, medium="teams", target={"address": receiver.base_url})
        lose()
        assert report() == 1
    assert len(receiver.received) == 1
    assert "500" in EventNotice.objects.get(sent_at=None).error


def test_texts_of_engines_neither_link_nor_mention_anyone_in_slack():
    message = subscriptions.for_slack(subscriptions.parts_of([Event(topic="lost", name=HOSTILE)]))
    text, link = (block.get("text", block.get("elements")) for block in message["blocks"])
    assert (text["type"], text["emoji"]) == ("plain_text", False)
    for shown in (text["text"], message["text"]):
        assert not set("<>\x1b\u202e") & set(shown)
    assert "&lt;!channel&gt;" in text["text"] and " &amp; " in text["text"]
    assert [element["text"].count("<") for element in link] == [1] and HOSTILE not in link[0]["text"]


def test_texts_of_engines_are_no_markdown_in_teams():
    message = subscriptions.for_teams(subscriptions.parts_of([Event(topic="lost", name=HOSTILE)]))
    (attachment,) = message["attachments"]
    assert attachment["content"]["version"] == "1.4"
    for block in attachment["content"]["body"]:
        assert block["type"] == "RichTextBlock"
        assert all(run["type"] == "TextRun" for run in block["inlines"])
    assert "[click]" in json.dumps(attachment["content"]["body"][1])


def test_a_message_shows_the_first_events_and_how_many_more(ada, letters):
    subscribe(ada)
    for number in range(12):
        lose(f"gone_{number}")
    report()
    assert letters[0].body.count("- gone_") == 10 and "and 2 more" in letters[0].body
    assert letters[0].subject.endswith(": 12")


def test_without_subscriptions_nothing_is_kept(ada, letters):
    subscribe(ada)
    assert Source.objects.count() == 0
    lose()
    report()
    Subscription.objects.all().delete()
    report()
    assert not Event.objects.exists() and not EventNotice.objects.exists()


def test_targets_survive_another_secret_key(ada, settings):
    subscription = subscribe(ada, medium="slack", target={"address": "https://hooks.example.com/x"})
    settings.SECRET_KEY_FALLBACKS, settings.SECRET_KEY = [settings.SECRET_KEY], "n" * 60
    subscriptions.reencrypt_targets()
    settings.SECRET_KEY_FALLBACKS = []
    subscription.refresh_from_db()
    assert subscription.target == {"address": "https://hooks.example.com/x"}


# Runs that ended


@pytest.fixture
def eve(ada) -> User:
    """May see executions, and everything that has no key in the test."""
    ada.user_permissions.add(*Permission.objects.filter(codename__in=["view_execution", "decide_approval"]))
    return User.objects.get(pk=ada.pk)


def follow(owner, *, workflows=(), **values):
    subscription = subscribe(owner, EventKind.ENDED, chooses_workflows=bool(workflows), **values)
    subscription.workflows.set(workflows)
    let_time_pass()
    return subscription


def let_time_pass(minutes=10):
    """As if the runs that are there, and the look at them, had been so much earlier."""
    ago = timedelta(minutes=minutes)
    Subscription.objects.update(runs_until=F("runs_until") - ago, digest_at=F("digest_at") - ago)
    Execution.objects.update(finished_at=F("finished_at") - ago)


def run(workflow, **values):
    at = timezone.now() - subscriptions.SETTLED - timedelta(seconds=1)
    return make_execution(workflow, created_at=at, finished_at=at, **values)


def test_runs_that_end_after_the_subscription_are_told_once(eve, letters):
    before = make_workflow(name="before")
    run(before)
    follow(eve)
    assert report() == 0, "what was before is not told"
    let_time_pass()
    run(make_workflow(name="after"))
    assert [report(), report()] == [1, 0]
    assert "after" in letters[0].body and "before" not in letters[0].body


def test_an_end_that_a_slow_process_has_just_recorded_is_not_missed(eve, letters):
    follow(eve)
    late = make_execution(make_workflow(name="late"), finished_at=timezone.now())
    assert report() == 0, "others may still be written with an earlier time"
    let_time_pass(1.1)
    assert report() == 1 and late.tool_name in letters[0].body


def test_a_subscription_tells_of_the_runs_that_it_chooses(eve, letters):
    wanted, other = make_workflow(name="wanted"), make_workflow(name="other")
    follow(eve, workflows=[wanted], callers=["token:7"], only_failed=True)
    for state in (State.COMPLETED, State.CANCELLED):
        run(wanted, caller="token:7", state=state)
    for workflow, caller, door in (
        (other, "token:7", "mcp"),
        (wanted, "token:8", "mcp"),
        (wanted, "token:7", "test"),
    ):
        run(workflow, caller=caller, door=door, state=State.FAILED)
    assert report() == 0
    let_time_pass()
    for state in (State.FAILED, State.TIMED_OUT):
        run(wanted, caller="token:7", state=state, error="Boom.")
    assert report() == 1
    assert letters[0].subject.endswith(": 2") and letters[0].body.count("wanted: ") == 2


def test_a_workflow_that_is_deleted_does_not_open_its_subscription(eve, letters):
    wanted = make_workflow(name="wanted")
    follow(eve, workflows=[wanted])
    wanted.delete()
    run(make_workflow(name="other"))
    assert report() == 0


def test_runs_are_told_only_to_who_may_see_them_when_it_is_sent(eve, letters):
    follow(eve)
    run(make_workflow(name="secret"))
    subscriptions.find_events()
    eve.user_permissions.remove(Permission.objects.get(codename="view_execution"))
    assert report() == 1 and letters == []


def test_a_webhook_has_what_a_program_needs_of_each_run(eve, receiver):
    follow(eve, medium="webhook", target={"address": receiver.base_url, "secret": SECRET})
    failed = run(make_workflow(name="a"), state=State.FAILED, error="Boom.", error_kind="execution")
    assert report() == 1
    (event,) = json.loads(receiver.received[0].body)["data"]["events"]
    assert (event["kind"], event["topic"], event["execution_id"]) == ("ended", "ended", str(failed.pk))
    assert (event["state"], event["error"], event["error_kind"]) == ("failed", "Boom.", "execution")
    assert event["url"].endswith(f"/executions/execution/{failed.pk}/change/")


def test_a_digest_tells_the_runs_of_its_day(eve, letters):
    follow(eve, frequency="daily")
    run(make_workflow(name="first"))
    assert report() == 0
    Subscription.objects.update(digest_at=timezone.now())
    assert [report(), report()] == [1, 0]
    assert "first" in letters[0].body


def test_runs_are_not_told_of_the_time_in_which_they_were_not_wanted(eve, letters):
    subscription = follow(eve)
    Subscription.objects.update(enabled=False)
    run(make_workflow(name="missed"))
    report()
    Subscription.objects.update(enabled=True, kinds=["lost"])
    report()
    Subscription.objects.update(kinds=subscription.kinds)
    assert [report(), report()] == [0, 0]


def test_a_clock_that_was_ahead_does_not_silence_a_subscription(eve, letters):
    follow(eve)
    Subscription.objects.update(runs_until=timezone.now() + timedelta(days=400))
    report()
    let_time_pass()
    run(make_workflow(name="again"))
    assert report() == 1


def test_approvals_are_chosen_by_workflow_and_caller_too(eve, letters):
    wanted, other = (make_workflow(name=name, approval_required=True) for name in ("wanted", "other"))
    subscription = subscribe(eve, EventKind.APPROVAL, chooses_workflows=True, callers=[ALICE.key])
    subscription.workflows.set([wanted])
    for workflow, caller in ((other, ALICE), (wanted, BOB)):
        create_execution(request_for(workflow.tool_name, caller=caller))
    assert report() == 1 and letters == []
    create_execution(request_for("wanted", caller=ALICE))
    assert report() == 1
    assert letters[0].body.count("wanted") == 1 and "other" not in letters[0].body
