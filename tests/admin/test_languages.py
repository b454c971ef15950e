"""German pages for people; English for programs, in records and in files."""

import ast
import gettext
import re
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client
from django.urls import reverse
from django.utils import timezone, translation

from catalogue.database import run_without_connection
from catalogue.models import HistoryEntry, WorkflowFilter
from executions.models import Execution, State
from orchestration.models import Stage, StageState
from orchestration.records import settle_with_run
from tests.admin.pages import form_at, list_url, page_url, run_action, text_of
from tests.factories import (
    make_execution,
    make_filter,
    make_source,
    make_workflow,
    make_workflow_request,
    stage_entry,
)

GERMAN = {"HTTP_ACCEPT_LANGUAGE": "de-AT,de;q=0.9,en;q=0.5"}
CATALOGUES = sorted(Path(settings.LOCALE_PATHS[0]).glob("*/LC_MESSAGES/*.po"))
Texts = dict[tuple[str, str], list[str]]


def read_po(path: Path) -> Texts:
    """Translations by text and its plural; `msgfmt` is not needed to run the tests."""
    texts: Texts = {}
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        said: dict[str, str] = {}
        key = ""
        for line in block.splitlines():
            if found := re.match(r'(msg\w+(?:\[\d])?) (".*")', line):
                key, quoted = found.groups()
                said[key] = ast.literal_eval(quoted)
            elif line.startswith('"'):
                said[key] += ast.literal_eval(line)
        if said.get("msgid"):
            forms = [text for name, text in said.items() if name.startswith("msgstr")]
            texts[said["msgid"], said.get("msgid_plural", "")] = forms
    return texts


def placeholders(text: str) -> list[str]:
    named = re.findall(r"%\(\w+\)[sd]|%[sd]", text)
    if not named and re.search(r"{[\w:%-]*}", text):
        named = re.findall(r"{[\w:%-]*}", text)
    return sorted(named)


@pytest.mark.parametrize("path", CATALOGUES, ids=lambda path: path.parts[-3])
def test_every_text_is_translated_with_the_same_placeholders(path: Path):
    texts = read_po(path)
    assert texts and "fuzzy" not in path.read_text(encoding="utf-8")
    for (text, plural), forms in texts.items():
        assert len(forms) == (2 if plural else 1) and all(forms), text
        for form in forms:
            # Of one, a text may name the number, or the thing instead.
            assert placeholders(form) in (placeholders(text), placeholders(plural)), text


@pytest.mark.parametrize("path", CATALOGUES, ids=lambda path: path.parts[-3])
def test_what_is_served_was_compiled_from_the_texts(path: Path):
    """`make generate` compiles them, so that an installation needs no program for it."""
    with path.with_suffix(".mo").open("rb") as file:
        served = gettext.GNUTranslations(file)
    for (text, plural), forms in read_po(path).items():
        found = (
            [served.ngettext(text, plural, number) for number in (1, 2)] if plural else [served.gettext(text)]
        )
        assert found == forms, text


def test_pages_follow_the_browser_and_a_choice_in_the_menu_goes_before(admin_client: Client):
    page = admin_client.get(reverse("admin:index"), **GERMAN)
    assert page["Content-Language"] == "de" and "Accept-Language" in page["Vary"]
    assert '<html lang="de"' in page.content.decode() and "Überblick" in text_of(page)
    assert "Überblick" not in text_of(admin_client.get(reverse("admin:index")))
    chosen = admin_client.post(reverse("set_language"), {"language": "en", "next": "/admin/"}, **GERMAN)
    assert chosen["Location"] == "/admin/"
    assert admin_client.get(reverse("admin:index"), **GERMAN)["Content-Language"] == "en"


def test_an_unknown_language_gets_english(admin_client: Client):
    assert admin_client.get(reverse("admin:index"), HTTP_ACCEPT_LANGUAGE="tlh")["Content-Language"] == "en"


@pytest.mark.django_db
def test_signing_in_is_in_the_language_of_the_browser():
    assert "Benutzername" in Client().get(reverse("admin:login"), **GERMAN).content.decode()


def test_rest_answers_in_english(admin_client: Client):
    source = make_source("orders")
    for method, address, body in (
        ("post", "/api/filters", {"pattern": ""}),
        ("patch", f"/api/sources/{source.name}", {"max_concurrent": "many"}),
        ("get", "/api/workflows?enabled=perhaps", None),
        ("get", "/api/schema", None),
    ):
        answers = [
            getattr(admin_client, method)(address, body, content_type="application/json", **headers)
            for headers in ({}, GERMAN)
        ]
        assert answers[0].content == answers[1].content
        assert "Content-Language" not in answers[1]


def test_files_are_in_english(admin_client: Client):
    make_workflow(make_source("orders"))
    address = f"{list_url(HistoryEntry)}csv/"
    files = [b"".join(admin_client.get(address, **headers)) for headers in ({}, GERMAN)]
    assert files[0] == files[1]


def test_what_german_speakers_change_is_recorded_in_english(admin_client: Client):
    source = make_source("orders")
    workflow = make_workflow(source, enabled=False)
    rule = make_filter("b*")
    admin_client.defaults |= GERMAN
    run_action(admin_client, "enable_selected", workflow)
    page = form_at(admin_client, page_url(source))
    changed = page | {"name": "purchases", "setting_api_key": "new"}
    assert admin_client.post(page_url(source), changed).status_code == 302
    admin_client.post(
        list_url(WorkflowFilter), {"action": "delete_selected", "_selected_action": [rule.pk], "post": "yes"}
    )
    told = {(entry.object_name, entry.message) for entry in HistoryEntry.objects.all()}
    assert told == {
        (str(workflow), "Enabled."),
        ("purchases", "Changed Name and API key."),
        ("include name b*", "Deleted."),
    }


@pytest.mark.django_db(transaction=True)
def test_what_is_stored_while_a_page_is_german_is_in_english():
    async def state_of(execution: Execution) -> str:
        return execution.state_label

    execution = make_execution(state=State.FAILED, finished_at=timezone.now())
    reached = stage_entry(Stage.API_EXECUTION, StageState.RUNNING, started_at=timezone.now())
    request = make_workflow_request(execution=execution, status="running", stages=[reached], deadline_at=None)
    with translation.override("de"):
        assert execution.state_label == "fehlgeschlagen"
        assert run_without_connection(state_of(execution)) == "failed"
        assert settle_with_run(request)
    assert "failed" in request.error and "fehlgeschlagen" not in request.error
