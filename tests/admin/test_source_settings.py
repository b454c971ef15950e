"""The form of a source, made from the settings of its connector, and trying them before they are saved."""

import html
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.staticfiles import finders
from django.test import Client

from catalogue.models import HistoryEntry, Source
from connectors.registry import forget_connectors, usable_connectors
from tests.admin.pages import add_url, form_at, form_values, list_url, page_url, press, text_of, told
from tests.admin.test_sources import KEY, LEDGER, NEW, SETTINGS, errors_of
from tests.factories import make_source
from tests.packages import declare_package
from tests.processes import ExampleEngine

pytestmark = pytest.mark.django_db

SEAL = "-----BEGIN SEAL-----\nc2VjcmV0\n-----END SEAL-----"
LOST = "The secrets that you entered have expired. Enter them again."
FILLED_IN = NEW | SETTINGS
BY_SCRIPT = {"hx-request": "true"}


def ledger_form(client: Client) -> Any:
    return client.get(add_url(Source), {"kind": "ledger"})


def row_of(page: str, field: str) -> str:
    """The HTML of a field from its label to the next one."""
    return page.partition(f'for="id_{field}"')[2].partition("<label")[0]


# How settings are asked for


def test_every_kind_that_is_installed_has_a_form(admin_client):
    """B10: what is not given is not stored, and each required setting is asked for."""
    for kind, connector in usable_connectors().items():
        page = admin_client.get(add_url(Source), {"kind": kind})
        fields = page.context["adminform"].form.fields
        assert {f"setting_{name}" for name in connector.Config.model_fields} <= set(fields), kind
        assert connector.label in text_of(page)


def test_a_default_is_a_placeholder_and_is_not_stored(admin_client, ledger_kind):
    """B4: so that better defaults reach old sources."""
    page = ledger_form(admin_client).content.decode()
    assert 'placeholder="EUR"' in row_of(page, "setting_currency")
    assert 'placeholder="3"' in row_of(page, "setting_retries")
    assert 'placeholder="30"' in row_of(page, "setting_seal_seconds")
    admin_client.post(add_url(Source), LEDGER | {"setting_retries": "", "setting_currency": ""})
    assert Source.objects.get().config == {"address": "https://ledger.example.com/"}


def test_a_default_stands_in_the_field_where_emptiness_means_something_else(admin_client, ledger_kind):
    """B4: an empty prefix is no prefix, not the usual one."""
    shown = form_values(ledger_form(admin_client))
    assert shown["setting_prefix"] == "bk-"
    admin_client.post(add_url(Source), LEDGER | {"setting_prefix": ""})
    assert Source.objects.get().config["prefix"] == ""


@pytest.mark.parametrize(
    ("config", "credentials"),
    [({"extra_key_1_name": "DD-APP"}, {}), ({}, {"extra_key_1": "key-1"}), ({}, {})],
    ids=["a key without its value", "a value without its name", "nothing"],
)
def test_a_group_of_settings_is_open_if_one_of_them_is_filled_in(admin_client, config, credentials):
    """B4: also the first of two, so that what is missing is in sight."""
    source = make_source(kind="http", config=config)
    source.credentials = credentials
    source.save()
    fieldsets = admin_client.get(page_url(source)).context["adminform"]
    closed = {fieldset.name for fieldset in fieldsets if fieldset.is_collapsible}
    assert ("Extra keys and headers" in closed) == (not config and not credentials)


def test_the_bounds_of_a_number_are_told(admin_client, ledger_kind):
    """B4: before somebody gets them wrong."""
    page = ledger_form(admin_client).content.decode()
    assert "From 0 to 5." in row_of(page, "setting_retries")
    assert "Above 0 to 86,400." in row_of(page, "setting_seal_seconds")
    assert "Above 0." in row_of(page, "setting_patience")


@pytest.mark.parametrize(("chosen", "stored"), [("True", True), ("False", False), ("", None)])
def test_a_question_may_be_left_open(admin_client, ledger_kind, chosen, stored):
    """B4: yes, no, and whatever the connector makes of neither."""
    response = admin_client.post(add_url(Source), LEDGER | {"setting_audited": chosen})
    assert response.status_code == 302, errors_of(response)
    assert Source.objects.get().config.get("audited") is stored


def test_a_text_of_several_lines_is_kept_as_it_was_written(admin_client, ledger_kind):
    """E1: YAML keeps its lines and its indentation, and an unchanged page changes nothing."""
    admin_client.post(add_url(Source), LEDGER | {"setting_rules": "a:\r\n  - b\r\n"})
    source = Source.objects.get()
    assert source.config["rules"] == "a:\n  - b"
    before = source.settings_fingerprint
    given = form_at(admin_client, page_url(source)) | {"setting_rules": "a:\r\n  - b"}
    admin_client.post(page_url(source), given)
    source.refresh_from_db()
    assert source.settings_fingerprint == before


def test_a_secret_of_several_lines_is_kept_and_never_shown(admin_client, ledger_kind):
    """B8, E6: also on a page that comes back because of an error."""
    given = LEDGER | {"setting_seal": SEAL.replace("\n", "\r\n")}
    refused = admin_client.post(add_url(Source), given | {"setting_retries": "9"})
    admin_client.post(add_url(Source), given)
    source = Source.objects.get()
    assert source.credentials["seal"] == SEAL
    for page in (refused, admin_client.get(page_url(source))):
        assert "c2VjcmV0" not in page.content.decode()


def test_a_line_that_is_no_pair_is_refused(admin_client, ledger_kind):
    """B4: what is told names the line."""
    for wrong in ("x-team", "=books", "a=1\na=2"):
        response = admin_client.post(add_url(Source), LEDGER | {"setting_headers": wrong})
        assert "setting_headers" in errors_of(response)


# What stands where


def test_settings_in_groups_stand_in_folds_of_their_own(admin_client, ledger_kind):
    """B10: what everybody has to look at comes first."""
    fieldsets = {fieldset.name: fieldset for fieldset in ledger_form(admin_client).context["adminform"]}
    first, fold = fieldsets["Ledger"], fieldsets["Sealing"]
    assert not first.is_collapsible
    assert fold.is_collapsible
    assert fold.fields == ["setting_seal", "setting_seal_seconds"]


def test_a_fold_with_an_error_is_open(admin_client, ledger_kind):
    """B4: nobody has to look for what is wrong."""
    response = admin_client.post(add_url(Source), LEDGER | {"setting_seal_seconds": "-1"})
    fold = next(each for each in response.context["adminform"] if each.name == "Sealing")
    assert not fold.is_collapsible


def test_a_field_says_when_it_matters_to_people_and_to_the_pages_script(admin_client, ledger_kind):
    """B10: without the script everything is shown, with words."""
    page = ledger_form(admin_client).content.decode()
    row = row_of(page, "setting_place")
    assert 'data-only-if="{&quot;setting_storage&quot;: [&quot;there&quot;]}"' in row
    assert "Only if Storage is there." in row
    for file in ("source_form.js", "source_form.css"):
        assert f"catalogue/admin/{file}" in page
        assert finders.find(f"catalogue/admin/{file}")


def test_what_does_not_matter_is_neither_checked_nor_stored(admin_client, ledger_kind):
    """B4: a choice may be taken back without emptying every field of it first."""
    given = LEDGER | {"setting_place": "somewhere", "setting_place_key": "key-of-the-place"}
    admin_client.post(add_url(Source), given | {"setting_storage": "there"})
    source = Source.objects.get()
    assert (source.config["place"], source.credentials["place_key"]) == ("somewhere", "key-of-the-place")
    back = form_at(admin_client, page_url(source)) | {"setting_storage": "here"}
    response = admin_client.post(page_url(source), back | {"setting_password": "long-password"})
    assert response.status_code == 302, errors_of(response)
    source.refresh_from_db()
    assert "place" not in source.config
    assert set(source.credentials) == {"password"}


def test_an_error_about_several_settings_can_name_the_field_to_look_at(admin_client, ledger_kind):
    """B4"""
    response = admin_client.post(add_url(Source), LEDGER | {"setting_storage": "there"})
    assert errors_of(response)["setting_place"] == ["There has to be a place."]


def test_a_sources_name_is_written_as_it_is(admin_client):
    """B8: names are case-sensitive, also in the line at the top of a page."""
    heading = text_of(admin_client.get(page_url(make_source("erp"))))
    assert "Sources chevron_right erp" in heading


# Trying settings before they are saved


@pytest.fixture
def good(example_engine: ExampleEngine) -> dict[str, str]:
    """What to fill in for the example engine."""
    return NEW | {
        "setting_base_url": example_engine.base_url,
        "setting_api_key": example_engine.api_key,
        "setting_verify_tls": "on",
        "_test": "1",
    }


def tried(client: Client, url: str, given: dict[str, Any]) -> dict[str, Any]:
    """As the page's script does it."""
    page: Any = client.post(url, given, headers=BY_SCRIPT)
    assert "</form>" not in page.content.decode()
    answer: dict[str, Any] = page.context_data
    assert html.escape(answer["told"][0]) in page.content.decode()
    return answer


def test_new_settings_are_tried_without_being_saved(admin_client, good):
    """B9: with the engine's latency or its own words of refusal."""
    outcome = tried(admin_client, add_url(Source), good)
    assert outcome["ok"]
    assert outcome["told"][0].startswith("The engine answered; workflows listed: ")
    wrong = tried(admin_client, add_url(Source), good | {"setting_api_key": "wrong-key-wrong-key"})
    assert not wrong["ok"]
    assert "401" in wrong["told"][0]
    assert not Source.objects.exists()


def test_settings_can_be_tried_before_the_source_has_a_name(admin_client, good):
    """B9: what is ours has nothing to do with the engine."""
    assert tried(admin_client, add_url(Source), good | {"name": ""})["ok"]


def test_settings_that_cannot_be_tried_are_explained(admin_client, good):
    """B4: by the field's title."""
    outcome = tried(admin_client, add_url(Source), good | {"setting_base_url": "ftp://engine"})
    assert not outcome["ok"]
    assert outcome["told"] == ["Base URL: The URL must start with http:// or https://."]


def test_a_stored_secret_is_used_for_the_address_that_it_was_entered_for(admin_client, good):
    """B9: a changed timeout can be tried without the key at hand, and changes nothing."""
    source = make_source("orders", base_url=good["setting_base_url"], api_key=good["setting_api_key"])
    before = source.settings_fingerprint
    given = form_at(admin_client, page_url(source)) | {"_test": "1", "name": "renamed"}
    assert tried(admin_client, page_url(source), given | {"setting_request_timeout_seconds": "5"})["ok"]
    source.refresh_from_db()
    assert (source.settings_fingerprint, source.name) == (before, "orders")


def test_a_stored_secret_is_not_tried_at_another_address(admin_client, good):
    """B8: whoever may change a source cannot have its key sent to a server of their own."""
    source = make_source(base_url="http://127.0.0.1:9", api_key=KEY)
    given = form_at(admin_client, page_url(source)) | {"_test": "1"}
    outcome = tried(admin_client, page_url(source), given | {"setting_base_url": good["setting_base_url"]})
    assert outcome["told"] == ["API key: The engine's address changes: enter its secrets again."]


def test_without_the_script_the_page_comes_back_and_tells(admin_client, good):
    """B9: filled in as before, except for the secrets."""
    page = admin_client.post(add_url(Source), good)
    assert page.status_code == 200
    assert "The engine answered" in told(page)
    assert "Please correct" not in text_of(page)
    assert form_values(page)["setting_base_url"] == good["setting_base_url"]
    assert good["setting_api_key"] not in page.content.decode()
    assert not Source.objects.exists()


@pytest.mark.parametrize("failure", ["raises", "cannot be made"])
def test_a_connector_with_a_bug_is_told_and_does_not_break_the_page(
    admin_client, ledger_kind, monkeypatch, failure
):
    """B6, B8: the connector is somebody else's code; what it says may quote a secret."""
    method = "check" if failure == "raises" else "__init__"

    def break_down(self: Any, *given: Any) -> None:
        raise ZeroDivisionError("with long-password")

    monkeypatch.setattr(usable_connectors()["ledger"], method, break_down)
    outcome = tried(admin_client, add_url(Source), LEDGER | {"_test": "1"})
    assert not outcome["ok"]
    assert outcome["told"][0]
    assert "long-password" not in outcome["told"][0]


def test_only_who_may_change_or_add_a_source_may_try_settings(staff_with, good):
    """B8: Django's permissions hold for trying as for saving."""
    source = make_source()
    client = staff_with("view_source", "add_source")
    assert client.post(page_url(source), good, headers=BY_SCRIPT).status_code == 403
    assert tried(client, add_url(Source), good)["ok"]


# Connectors that cannot be used


@pytest.fixture
def broken_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package whose connector cannot be imported."""
    declare_package(tmp_path, "broken-engine", broken="nowhere_to_be_found:Connector")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "broken"
    forget_connectors()


def test_a_kind_that_cannot_be_used_is_told_where_a_kind_is_chosen(admin_client, broken_kind):
    """B5, B6: with the package to blame, beside the kinds that work."""
    page = admin_client.get(add_url(Source))
    assert "broken-engine 1.0 (nowhere_to_be_found:Connector)" in text_of(page)
    assert "?kind=simplified" in page.content.decode()
    assert "?kind=broken" not in page.content.decode()
    assert "What kind of engine?" in text_of(admin_client.get(add_url(Source), {"kind": "broken"}))


def test_sources_whose_connector_broke_stay_readable_and_tell_why(admin_client, broken_kind):
    """B6: an update of a package costs its own sources, and no page."""
    source = make_source(kind=broken_kind, api_key=KEY)
    make_source("erp", kind="simplified")
    page = text_of(admin_client.get(page_url(source)))
    assert "No module named 'nowhere_to_be_found'" in page
    message = told(press(admin_client, source, "refresh_now"))
    assert "No module named" in message
    listed = text_of(admin_client.get(list_url(Source)))
    assert "No module named" in listed and "erp" in listed
    source.refresh_from_db()
    assert source.credentials == {"api_key": KEY}


# Secrets in a form that is refused


def test_a_key_typed_into_a_form_that_is_refused_is_stored_once_the_form_is_mended(admin_client):
    """B4, B8: the page does not show the key, and the next Save does not lose it."""
    refused = admin_client.post(add_url(Source), FILLED_IN | {"name": "two words"})
    assert refused.status_code == 200
    assert KEY not in refused.content.decode()
    assert "entered; leave empty to keep" in refused.content.decode()
    mended = form_values(refused) | {"name": "orders"}
    assert "setting_api_key" not in mended
    assert admin_client.post(add_url(Source), mended).status_code == 302
    assert Source.objects.get().credentials == {"api_key": KEY}


def test_a_new_key_typed_into_a_refused_change_replaces_the_stored_one(admin_client):
    """B4, B8."""
    source = make_source("orders", base_url="http://engine.example.com", api_key="the-old-key-0123456789")
    page = form_at(admin_client, page_url(source))
    refused = admin_client.post(
        page_url(source), page | {"name": "two words", "setting_api_key": "the-new-key-0123456789"}
    )
    again = admin_client.post(page_url(source), form_values(refused))
    assert again.status_code == 200, "refused a second time, it still has the key"
    assert admin_client.post(page_url(source), form_values(again) | {"name": "orders"}).status_code == 302
    source.refresh_from_db()
    assert source.credentials == {"api_key": "the-new-key-0123456789"}
    assert "API key" in HistoryEntry.objects.get().message


def test_a_key_kept_in_a_refused_form_opens_in_no_other_form(admin_client, staff_with):
    """B8: not for another source, nor for another person; and that it is lost does not go unnoticed."""
    source = make_source("orders", api_key="")
    refused = admin_client.post(add_url(Source), FILLED_IN | {"name": "two words"})
    kept = {"kept_entries": form_values(refused)["kept_entries"]}
    page = form_at(admin_client, page_url(source))
    assert LOST in text_of(admin_client.post(page_url(source), page | kept))
    member = staff_with("add_source", "view_source")
    assert LOST in text_of(member.post(add_url(Source), form_values(refused) | {"name": "mine"}))
    assert [one.credentials for one in Source.objects.all()] == [{}]


def test_a_key_kept_in_a_refused_form_is_forgotten_after_an_hour(admin_client, monkeypatch):
    """B8: a page that was left open is no store of keys."""
    refused = admin_client.post(add_url(Source), FILLED_IN | {"name": "two words"})
    later = time.time() + 3601
    monkeypatch.setattr(time, "time", lambda: later)
    late = admin_client.post(add_url(Source), form_values(refused) | {"name": "orders"})
    assert LOST in text_of(late)
    assert admin_client.post(add_url(Source), form_values(late)).status_code == 302
    assert Source.objects.get().credentials == {}
