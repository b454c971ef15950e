"""Sources in the admin: connecting an engine, testing and refreshing it, and keeping its secrets."""

import pytest
from django.utils import timezone

from catalogue.discovery import due_sources, refresh_source
from catalogue.models import DiscoveryRun, Revision, Source, Workflow
from catalogue.tasks import refresh_one_source
from executions.models import State
from tests.admin.pages import (
    add_url,
    form_at,
    form_values,
    list_url,
    page_url,
    press,
    run_action,
    text_of,
    told,
)
from tests.factories import (
    make_discovery_run,
    make_execution,
    make_source,
    make_workflow,
    make_workflows,
)

pytestmark = pytest.mark.django_db

KEY = "a-key-that-nobody-may-read"
NEW = {
    "kind": "simplified",
    "name": "orders",
    "enabled": "on",
    "new_workflows": "hidden",
    "change_policy": "careful",
    "vanishing_share_percent": "20",
}
DEFAULTS = {
    "setting_authorization_scheme": "Api-Key",
    "setting_list_path": "/api/v1/service/workflows",
    "setting_start_path": "/api/v1/service/workflows/{workflow_id}/start",
    "setting_status_path": "/api/v1/service/workflows/{workflow_id}/runs/{run_id}/status",
    "setting_cancel_path": "/api/v1/service/workflows/{workflow_id}/runs/{run_id}/cancel",
    "setting_list_keys": "workflows\nitems\ndata\nresults",
    "setting_cursor_parameter": "cursor",
    "setting_source": "application",
    "setting_verify_tls": "on",
}
SETTINGS = DEFAULTS | {"setting_base_url": "http://engine.example.com", "setting_api_key": KEY}
LEDGER = {
    "kind": "ledger",
    "name": "books",
    "enabled": "on",
    "new_workflows": "hidden",
    "change_policy": "careful",
    "vanishing_share_percent": "20",
    "setting_address": "https://ledger.example.com/",
    "setting_password": "long-password",
    "setting_protocol": "v2",
    "setting_region": "north",
    "setting_retries": "3",
    "setting_strict": "on",
    "setting_headers": "",
}


def errors_of(response: object) -> dict[str, list[str]]:
    return dict(response.context["adminform"].form.errors)  # type: ignore[attr-defined]


# Adding and changing


def test_a_source_is_added_with_the_settings_that_differ_from_the_defaults(admin_client):
    """A1.1, B4: the connector's own settings make the form; an added source is due for its first listing."""
    response = admin_client.post(add_url(Source), NEW | SETTINGS | {"setting_min_poll_seconds": "2.5"})
    assert response.status_code == 302, errors_of(response)
    source = Source.objects.get()
    assert source.config == {"base_url": "http://engine.example.com", "min_poll_seconds": 2.5}
    assert source.credentials == {"api_key": KEY}
    assert Source.objects.due(timezone.now()).get() == source


def test_an_added_source_says_where_its_workflows_are_enabled(admin_client):
    """B10: hidden ones look as if none had been found; where they are exposed there is nothing to do."""
    told = text_of(admin_client.post(add_url(Source), NEW | SETTINGS, follow=True))
    assert "Its workflows will be listed within seconds. They are hidden until you enable them." in told
    exposed = NEW | SETTINGS | {"name": "exposed", "new_workflows": "exposed"}
    assert "hidden until" not in text_of(admin_client.post(add_url(Source), exposed, follow=True))


def test_the_list_of_sources_is_loaded_again_after_the_first_listing_of_an_added_source(
    admin_client, example_engine
):
    """A4.3: an added source is listed within seconds, and nobody has to reload the list to see it."""
    script = {"HX-Request": "true"}
    source = make_source(
        base_url=example_engine.base_url, api_key=example_engine.api_key, next_refresh_at=timezone.now()
    )
    assert 'id="awaited"' in admin_client.get(list_url(Source)).content.decode()
    waiting = admin_client.get(list_url(Source), headers=script)
    assert (waiting.status_code, waiting.headers.get("HX-Refresh")) == (204, None)
    refresh_source(source)
    assert admin_client.get(list_url(Source), headers=script).headers["HX-Refresh"] == "true"
    assert 'id="awaited"' not in admin_client.get(list_url(Source)).content.decode()


def test_an_imported_source_says_that_its_engine_was_not_asked(admin_client):
    """A5.1: beside a discovery run that succeeded, because it only read a file."""
    source = make_source()
    not_asked = "the engine itself has not been asked yet"
    assert not_asked not in text_of(admin_client.get(page_url(source)))
    make_discovery_run(source)
    assert not_asked in text_of(admin_client.get(page_url(source)))


def test_the_form_explains_each_setting_of_the_kind(admin_client):
    """B10: in the connector's own words."""
    shown = text_of(admin_client.get(add_url(Source), {"kind": "simplified"}))
    assert "Simplified workflow API (HTTP)" in shown
    assert "The address of the engine, such as https://engine.example.com" in shown
    assert "Minimum polling interval (s)" in shown


def test_with_several_kinds_the_kind_is_chosen_first(admin_client, ledger_kind):
    """B10: each kind brings the fields of its own settings."""
    choice = admin_client.get(add_url(Source))
    assert "?kind=ledger" in choice.content.decode()
    assert "Keeps the books" in text_of(choice)
    form = admin_client.get(add_url(Source), {"kind": ledger_kind}).context["adminform"].form
    assert {"setting_address", "setting_labels"} <= set(form.fields)
    assert "setting_base_url" not in form.fields


def test_every_type_of_setting_has_a_field_that_keeps_its_type(admin_client, ledger_kind):
    """B4: what is stored is what pydantic will read again."""
    changed = {
        "setting_protocol": "v1",
        "setting_region": "south",
        "setting_retries": "5",
        "setting_patience": "1.5",
        "setting_strict": "",
        "setting_labels": "red\n\n blue ",
        "setting_headers": "x-team = books\r\nx-key=a=b",
    }
    response = admin_client.post(add_url(Source), LEDGER | changed)
    assert response.status_code == 302, errors_of(response)
    assert Source.objects.get().config == {
        "address": "https://ledger.example.com/",
        "protocol": "v1",
        "region": "south",
        "retries": 5,
        "patience": 1.5,
        "strict": False,
        "labels": ["red", "blue"],
        "headers": {"x-team": "books", "x-key": "a=b"},
    }


def test_a_connectors_help_is_text_and_no_markup(admin_client, ledger_kind):
    """B8: another package's words are escaped."""
    page = admin_client.get(add_url(Source), {"kind": ledger_kind}).content.decode()
    assert "&lt;b&gt;https://ledger.example.com" in page


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({"setting_base_url": ""}, "setting_base_url", "required"),
        ({"setting_base_url": "ftp://engine"}, "setting_base_url", "must start with http://"),
        ({"setting_start_path": "/start"}, "setting_start_path", "must contain {workflow_id}"),
        ({"setting_min_poll_seconds": "0.1"}, "setting_min_poll_seconds", "greater than or equal to 1"),
        ({"setting_max_response_bytes": "many"}, "setting_max_response_bytes", "whole number"),
        ({"name": "two words"}, "name", "1 to 64 letters"),
    ],
)
def test_an_invalid_setting_is_explained_at_its_field(admin_client, given, field, message):
    """B4: all settings are validated, with clear errors; nothing is saved."""
    response = admin_client.post(add_url(Source), NEW | SETTINGS | given)
    assert message in " ".join(errors_of(response)[field])
    assert not Source.objects.exists()


def test_an_error_about_several_settings_stands_above_the_form(admin_client, ledger_kind):
    """B4: no error is lost because it has no field."""
    given = LEDGER | {"setting_retries": "0", "setting_patience": "3"}
    assert "patience needs retries" in text_of(admin_client.post(add_url(Source), given))


def test_settings_that_no_connector_can_be_made_from_are_refused(admin_client):
    """B4, B5: a certificate file that is not there is a configuration error, not a crash later."""
    given = NEW | SETTINGS | {"setting_base_url": "https://e.example.com", "setting_ca_file": "/nowhere.pem"}
    response = admin_client.post(add_url(Source), given)
    assert "nowhere.pem" in text_of(response)
    assert not Source.objects.exists()


def test_changed_settings_are_stored_and_make_a_listing_due(admin_client):
    """A4.4: configuration changes apply without a restart."""
    source = make_source(next_refresh_at=None)
    given = form_at(admin_client, page_url(source)) | {"setting_source": "billing"}
    assert admin_client.post(page_url(source), given).status_code == 302
    source.refresh_from_db()
    assert source.config["source"] == "billing"
    assert source.next_refresh_at is not None


def test_saving_an_unchanged_form_changes_nothing(admin_client):
    """A4.4: opening and saving a page neither lists the engine again nor reconnects to it."""
    source = make_source(next_refresh_at=None, config={"min_poll_seconds": 3.0, "list_keys": ["flows"]})
    before, revision = source.settings_fingerprint, Revision.current()
    given = form_at(admin_client, page_url(source))
    assert admin_client.post(page_url(source), given).status_code == 302
    source.refresh_from_db()
    assert (source.settings_fingerprint, source.next_refresh_at) == (before, None)
    assert Revision.current() == revision


def test_a_source_is_limited(admin_client):
    """B4, B7: without a restart, and without listing the engine again."""
    source = make_source(next_refresh_at=None)
    revision = Revision.current()
    given = form_at(admin_client, page_url(source)) | {"max_concurrent": "4"}
    assert admin_client.post(page_url(source), given).status_code == 302
    source.refresh_from_db()
    assert (source.max_concurrent, source.next_refresh_at) == (4, None)
    assert Revision.current() > revision
    given = form_at(admin_client, page_url(source)) | {"max_concurrent": "0"}
    assert admin_client.post(page_url(source), given).context["adminform"].form.errors["max_concurrent"]


# Secrets


def test_a_stored_secret_is_never_shown_again(admin_client):
    """E6: not in the form, not after an error, not in the list."""
    source = make_source(api_key=KEY)
    bad = form_at(admin_client, page_url(source)) | {"setting_base_url": "x"}
    pages = [
        admin_client.get(page_url(source)),
        admin_client.post(page_url(source), bad | {"setting_api_key": KEY}),
        admin_client.get(list_url(Source)),
    ]
    assert not any(KEY in page.content.decode() for page in pages)
    assert "stored; leave empty to keep" in pages[0].content.decode()


def test_a_secret_can_be_replaced_and_be_forgotten(admin_client):
    """B4: the two ways in which a stored key changes."""
    source = make_source(api_key=KEY)
    given = form_at(admin_client, page_url(source))
    admin_client.post(page_url(source), given | {"setting_api_key": "another-key-entirely"})
    source.refresh_from_db()
    assert source.credentials == {"api_key": "another-key-entirely"}
    admin_client.post(page_url(source), given | {"forget_api_key": "on"})
    source.refresh_from_db()
    assert source.credentials == {}


def test_a_required_secret_is_asked_for_once(admin_client, ledger_kind):
    """B4: required when a source is added, and kept like any other afterwards."""
    response = admin_client.post(add_url(Source), LEDGER | {"setting_password": ""})
    assert "required" in " ".join(errors_of(response)["setting_password"])
    admin_client.post(add_url(Source), LEDGER)
    source = Source.objects.get()
    given = form_at(admin_client, page_url(source)) | {"setting_retries": "1"}
    assert admin_client.post(page_url(source), given).status_code == 302
    source.refresh_from_db()
    assert (source.config["retries"], source.credentials) == (1, {"password": "long-password"})


def test_unreadable_secrets_can_be_entered_again(admin_client):
    """B5: after a change of SECRET_KEY the page still opens and repairs the source."""
    source = make_source()
    Source.objects.filter(pk=source.pk).update(encrypted_credentials="written with another key")
    given = form_at(admin_client, page_url(source)) | {"setting_api_key": "entered-again"}
    assert admin_client.post(page_url(source), given).status_code == 302
    source.refresh_from_db()
    assert source.credentials == {"api_key": "entered-again"}


def test_a_source_of_an_unknown_kind_can_be_opened_and_switched_off(admin_client):
    """B6: an uninstalled connector leaves its sources readable."""
    source = make_source(kind="uninstalled")
    page = admin_client.get(page_url(source))
    assert "Unknown kind of source 'uninstalled'; known kinds: " in text_of(page)
    given = form_values(page) | {"enabled": ""}
    assert admin_client.post(page_url(source), given).status_code == 302
    source.refresh_from_db()
    assert not source.enabled


# Buttons and actions


def test_refreshing_by_hand_discovers_and_shows_the_counts(admin_client, example_engine):
    """A4.3: a refresh can be triggered at any time, and says what it did."""
    source = make_source(base_url=example_engine.base_url, api_key=example_engine.api_key)
    message = told(press(admin_client, source, "refresh_now"))
    count = Workflow.objects.filter(source=source).count()
    assert count >= 6
    assert f"{count} workflows found: {count} added" in message
    assert f"/discoveryrun/{DiscoveryRun.objects.get().pk}/change/" in message
    assert f"0 / {count}" in text_of(admin_client.get(list_url(Source)))


def test_a_failing_refresh_shows_the_engines_answer_and_keeps_the_last_good_list(
    admin_client, example_engine
):
    """A1.4, A5.1: a wrong key costs no workflow, and the admin reads why."""
    source = make_source(base_url=example_engine.base_url, api_key=example_engine.api_key)
    refresh_source(source)
    count = Workflow.objects.present().count()
    given = form_at(admin_client, page_url(source))
    admin_client.post(page_url(source), given | {"setting_api_key": "wrong-key-wrong-key"})
    message = told(press(admin_client, source, "refresh_now"))
    assert "401" in message
    assert "The last good list is kept." in message
    assert Workflow.objects.present().count() == count
    page = text_of(admin_client.get(page_url(source)))
    assert "failing" in page
    assert "Failing since" in page


def test_several_sources_are_left_to_the_worker_and_one_dead_engine_costs_the_others_nothing(
    admin_client, example_engine
):
    """A4.3, B6: those that are never listed by themselves too."""
    dead, off = make_source("dead"), make_source("off", enabled=False)
    good = make_source(
        "good",
        base_url=example_engine.base_url,
        api_key=example_engine.api_key,
        refresh_interval=0,
        next_refresh_at=None,
    )
    message = told(run_action(admin_client, "refresh_selected", dead, off, good))
    assert "2 listings start within seconds" in message
    assert set(due_sources()) == {dead.pk, good.pk}
    for source_id in (dead.pk, good.pk):
        refresh_one_source(source_id, "manual")
    assert Workflow.objects.filter(source=good).exists()


def test_sources_are_switched_off_and_on_in_bulk(admin_client):
    """A4.1: discovery is switched per source; agents notice, and what is switched on is listed at once."""
    sources = [make_source(next_refresh_at=None) for _ in range(3)]
    revision = Revision.current()
    assert "Disabled: 3" in told(run_action(admin_client, "disable_selected", *sources))
    assert not Source.objects.filter(enabled=True).exists()
    assert Revision.current() == revision + 1
    assert "Enabled: 3" in told(run_action(admin_client, "enable_selected", *sources))
    assert Source.objects.filter(enabled=True).exclude(next_refresh_at=None).count() == 3


def test_a_button_does_nothing_without_a_post(admin_client):
    """B8: a link in somebody's mail must not refresh anything."""
    source = make_source()
    response = admin_client.get(page_url(source).replace("/change/", "/refresh_now/"))
    assert response.status_code == 302
    assert not DiscoveryRun.objects.exists()


def test_deleting_a_source_takes_its_workflows_and_says_how_many(admin_client):
    """A1.3: counts, not thousands of names; agents notice."""
    source = make_source()
    make_workflows(3, source)
    make_discovery_run(source)
    question = text_of(admin_client.get(page_url(source).replace("/change/", "/delete/")))
    assert "Workflows: 3" in question
    revision = Revision.current()
    admin_client.post(page_url(source).replace("/change/", "/delete/"), {"post": "yes"})
    assert not Workflow.objects.exists()
    assert Revision.current() > revision


def test_a_name_does_not_turn_what_is_said_about_deleting_its_source(admin_client):
    source = make_source("finance \u202eengine")
    page = page_url(source).replace("/change/", "/delete/")
    for question in (admin_client.get(page), run_action(admin_client, "delete_selected", source)):
        assert r"Source: finance \u202eengine" in text_of(question)
        assert "\u202e" not in question.content.decode()
    done = admin_client.post(page, {"post": "yes"})
    assert told(done) == r"The source “finance \u202eengine” was deleted successfully."


@pytest.mark.parametrize("selected", [False, True])
def test_before_a_source_is_deleted_the_executions_under_way_are_told(admin_client, selected):
    """A1.3: nobody follows them any more, though their engine goes on."""
    workflow = make_workflow()
    for state in (State.RUNNING, State.PENDING, State.COMPLETED):
        make_execution(workflow, state=state)
    make_execution(state=State.RUNNING)
    source = workflow.source
    if selected:
        question = run_action(admin_client, "delete_selected", source)
    else:
        question = admin_client.get(page_url(source).replace("/change/", "/delete/"))
    told_there = text_of(question)
    assert "2 executions are running and will no longer be followed; 1 remains on record." in told_there


# Looking


def test_a_sources_page_shows_its_recent_discovery_runs(admin_client):
    """A5.1, A5.3: the last five, newest first, with what each did."""
    source = make_source()
    for number in range(7):
        make_discovery_run(source, added=100 + number)
    shown = text_of(admin_client.get(page_url(source)))
    assert "106 workflows found" in shown
    assert "101 workflows found" not in shown


def test_people_who_may_only_look_see_the_settings_without_secrets_and_can_press_nothing(staff_with):
    """E6, B8: Django's permissions hold for buttons and actions too."""
    source = make_source(api_key=KEY)
    client = staff_with("view_source")
    page = client.get(page_url(source))
    shown = text_of(page)
    assert "http://127.0.0.1:9" in shown
    assert "API key : stored" in shown
    assert KEY not in page.content.decode()
    assert "Refresh now" not in shown
    assert press(client, source, "refresh_now").status_code == 403
    assert client.post(page_url(source), {"_test": "1"}).status_code == 403
    assert client.post(add_url(Source), {"_test": "1", "kind": "simplified"}).status_code == 403
    run_action(client, "disable_selected", source)
    assert Source.objects.get().enabled
    assert not DiscoveryRun.objects.exists()


def test_what_an_engine_says_is_shown_as_text(admin_client):
    """B8: an engine's error is hostile text."""
    source = make_source(health_state="failing", health_message="<script>alert(1)</script>")
    make_discovery_run(source, outcome="failed", error="<script>alert(2)</script>")
    for url in (list_url(Source), page_url(source), "/admin/"):
        page = admin_client.get(url).content.decode()
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert" in page


def test_a_stored_key_is_never_sent_to_another_address_than_it_was_entered_for(admin_client):
    """B8: whoever may change a source cannot read its key by pointing it at a server of their own."""
    source = make_source(base_url="http://127.0.0.1:9", api_key="the-companys-key-1234")
    given = form_at(admin_client, page_url(source))
    elsewhere = given | {"setting_base_url": "http://127.0.0.1:10"}
    refused = admin_client.post(page_url(source), elsewhere)
    assert "enter its secrets again" in text_of(refused)
    source.refresh_from_db()
    assert source.config["base_url"] == "http://127.0.0.1:9"
    admin_client.post(page_url(source), elsewhere | {"setting_api_key": "the-companys-key-1234"})
    source.refresh_from_db()
    assert source.config["base_url"] == "http://127.0.0.1:10"


def test_a_refused_save_leaves_what_holds_on_the_page(admin_client):
    """B8: the form has what was typed; everything else tells of the source as it is."""
    source = make_source("orders", next_refresh_at=timezone.now())
    given = form_at(admin_client, page_url(source)) | {"name": "bills", "refresh_interval": "-1"}
    given.pop("enabled")
    page = admin_client.post(page_url(source), given)
    assert errors_of(page)
    assert "none while disabled" not in text_of(page)
    assert "orders" in page.context["subtitle"]
    assert "Sources chevron_right orders" in text_of(page)
    assert 'value="bills"' in page.content.decode()


def test_the_help_of_a_stored_secret_does_not_say_that_empty_means_none(admin_client):
    """B4: left empty, the field keeps what is stored."""
    without = "Leave empty to omit the header."
    assert without in text_of(admin_client.get(add_url(Source), {"kind": "simplified"}))
    shown = text_of(admin_client.get(page_url(make_source(api_key=KEY))))
    assert without not in shown
    assert "Sent with every request in the Authorization header." in shown
    assert without in text_of(admin_client.get(page_url(make_source(api_key=""))))


def test_people_are_led_to_no_discovery_runs_that_they_may_not_see(admin_client, staff_with):
    """B8."""
    source = make_source()
    make_discovery_run(source)
    address = list_url(DiscoveryRun)
    assert f'href="{address}' in admin_client.get(page_url(source)).content.decode()
    assert f'href="{address}' not in staff_with("view_source").get(page_url(source)).content.decode()
