"""Settings that are changed while the product runs (A4.4), through REST and in what they do."""

import math
from datetime import timedelta
from typing import Any

import pytest
import yaml
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from loguru import logger

from catalogue.configuration import CatalogueFile, export_catalogue
from catalogue.discovery import due_sources
from catalogue.history import Actor
from catalogue.imports.configuration import CatalogueImportRequest, import_catalogue
from catalogue.imports.pipeline import ImportRefused
from catalogue.models import HistoryEntry, ProductSettings, Source
from catalogue.product_settings import MAX_AGE_SECONDS, keep_settings, live_settings
from executions.models import Retention
from tests.api.clients import administrator, problem_paths, staff_session
from tests.factories import make_source, make_workflow

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("catalogue.product_settings", "catalogue.models.installation"),
]
URL = "/api/settings/"


def change(**values: Any) -> Any:
    return administrator().patch(URL, values)


def told(name: str) -> dict[str, Any]:
    shown = {entry["name"]: entry for entry in administrator().get(URL).json()["settings"]}
    return dict(shown[name])


def test_a_change_takes_effect_without_a_restart_and_can_be_taken_back(settings):
    """A4.1, A4.4"""
    source = make_source(next_refresh_at=timezone.now())
    workflow = make_workflow(source)
    assert due_sources() == [source.pk]

    response = change(discovery_enabled=False, execution_timeout=7)

    assert response.status_code == 200
    assert due_sources() == [] and workflow.effective_timeout_seconds == 7
    assert told("execution_timeout") == {
        "name": "execution_timeout",
        "value": 7,
        "origin": "changed here",
        "default": 300,
        "variable": "CATALOGUE_EXECUTION_TIMEOUT",
        "description": "Seconds after which a run is cancelled, unless its workflow sets a timeout.",
    }
    change(discovery_enabled=None, execution_timeout=None)
    assert due_sources() == [source.pk] and workflow.effective_timeout_seconds == 300
    assert told("execution_timeout")["origin"] == "default"


def test_the_documents_live_settings_can_be_changed():
    """A4.4: discovery on and off, its interval, timeouts, limits, retries."""
    assert live_settings().keys() >= {
        "discovery_enabled",
        "discovery_interval",
        "execution_timeout",
        "inline_wait",
        "max_concurrent_executions",
        "max_queued_executions",
        "retry_attempts",
        "status_check_interval",
    }


def test_a_new_interval_plans_the_listings_of_sources_without_one_of_their_own():
    """A1.1, A4.4: one that was to be listed in a week does not wait that long."""
    week = timezone.now() + timedelta(days=7)
    following, own = make_source("following"), make_source("own", refresh_interval=604_800)
    Source.objects.update(next_refresh_at=week)

    change(discovery_interval=60)
    following.refresh_from_db()
    own.refresh_from_db()
    assert following.next_refresh_at is not None
    assert following.next_refresh_at <= timezone.now() + timedelta(seconds=60)
    assert own.next_refresh_at == week

    change(discovery_interval=0)
    following.refresh_from_db()
    assert following.next_refresh_at is None and following.effective_refresh_interval == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("execution_timeout", 0),
        ("execution_timeout", 1.5),
        ("execution_timeout", 2_592_001),
        ("discovery_enabled", 3),
        ("inline_wait", "soon"),
        ("inline_wait", -1),
        ("model_timeout", 0),
        ("page_size", 10),
        ("secret_key", "x"),
    ],
)
def test_what_cannot_be_set_is_refused_at_its_place_and_changes_nothing(name, value):
    """A4.4, B4"""
    response = change(**{"retry_attempts": 1, name: value})

    assert (response.status_code, problem_paths(response)) == (400, [f"/{name}"])
    assert not ProductSettings.objects.filter(overrides__contains="retry").exists()
    assert told("retry_attempts")["origin"] == "default"


def test_another_process_notices_within_seconds_and_asks_no_more_than_once_in_that_time(settings):
    """A4.4: the row is changed as another process would."""
    ProductSettings.objects.create(overrides={"execution_timeout": 11, "gone": 1, "inline_wait": -4})
    keep_settings({}, seconds=-MAX_AGE_SECONDS)

    with CaptureQueriesContext(connection) as queries:
        read = [settings.CATALOGUE.execution_timeout for _ in range(1_000)]

    assert (set(read), len(queries)) == ({11}, 1)
    # What another version of the product stored, or allowed, does not count.
    assert settings.CATALOGUE.inline_wait == 50


async def test_on_an_event_loop_what_was_read_last_holds(settings):
    """A4.4: no call waits there for the database."""
    keep_settings({"execution_timeout": 12}, seconds=-10 * MAX_AGE_SECONDS)

    assert settings.CATALOGUE.execution_timeout == 12


def test_a_database_that_is_away_leaves_what_was_read_last(settings, monkeypatch):
    keep_settings({"execution_timeout": 13}, seconds=-10 * MAX_AGE_SECONDS)
    ProductSettings.objects.first()  # Django keeps the columns of the first query, with their table's name
    monkeypatch.setattr(ProductSettings._meta, "db_table", "no_such_table")

    assert settings.CATALOGUE.execution_timeout == 13


def test_the_environment_gives_the_defaults(settings):
    settings.CATALOGUE = settings.CATALOGUE | {"execution_timeout": 20}
    given = settings.LIVE_SETTINGS["execution_timeout"] | {"is_given": True}
    settings.LIVE_SETTINGS = settings.LIVE_SETTINGS | {"execution_timeout": given}
    keep_settings({}, seconds=-math.inf)

    assert (told("execution_timeout")["value"], told("execution_timeout")["origin"]) == (20, "environment")
    change(execution_timeout=21)
    assert settings.CATALOGUE.execution_timeout == 21
    assert told("execution_timeout")["default"] == 20


def test_who_changed_what_is_logged():
    lines: list[str] = []
    sink = logger.add(lambda line: lines.append(str(line)), level="INFO", format="{message} {extra}")
    client = administrator()
    client.patch(URL, {"execution_timeout": 7})
    client.patch(URL, {"execution_timeout": 7})
    logger.remove(sink)

    (line,) = [line for line in lines if "Settings changed" in line]
    assert "execution_timeout from 300 (environment) to 7" in line and client.token.name in line
    assert ProductSettings.objects.get().changed_by == f"token {client.token.name}"


# Retention


def test_an_administrator_reads_and_changes_how_long_data_is_kept():
    """E6, B7: only what is named changes, and the history says by whom."""
    client = administrator()
    assert client.get(URL).json()["retention"]["keep_records_days"] == 90

    changed = client.patch(URL, {"retention": {"keep_records_days": None, "keep_events_days": 0}})

    assert changed.status_code == 200
    kept = Retention.current()
    assert (kept.keep_records_days, kept.keep_events_days, kept.keep_payloads_days) == (None, 0, 30)
    assert changed.json()["retention"] == client.get(URL).json()["retention"]
    rows = client.get("/api/history/").json()["results"]
    assert "keep_records_days" in str(rows[0])


@pytest.mark.parametrize(("name", "value"), [
    ("keep_records_days", -1), ("keep_events_days", 36_501), ("keep_payloads_days", "long"),
    ("keep_it_days", 1),
])  # fmt: skip
def test_a_retention_that_cannot_be_is_refused_at_its_place_and_changes_nothing(name, value):
    """E6, B4: not even the settings beside it."""
    response = administrator().patch(
        URL, {"retry_attempts": 1, "retention": {"keep_statistics_days": 1, name: value}}
    )

    assert (response.status_code, problem_paths(response)) == (400, [f"/retention/{name}"])
    assert not Retention.objects.exists() and told("retry_attempts")["origin"] == "default"


def test_staff_need_a_permission_of_their_own_for_the_retention():
    """E6"""
    client = staff_session("view_productsettings", "change_productsettings")

    assert "retention" not in client.get(URL).json()
    assert client.patch(URL, {"retention": {"keep_records_days": 1}}).status_code == 403
    assert client.patch(URL, {"retry_attempts": 1}).status_code == 200
    assert not Retention.objects.exists()


def test_the_configuration_file_has_the_retention():
    """E6: what differs from the defaults; a file that has the section describes all of it."""
    Retention.objects.create(keep_records_days=None, keep_events_days=7)
    exported = export_catalogue(["retention"])
    assert yaml.safe_load(exported)["retention"] == {"keep_records_days": None, "keep_events_days": 7}
    Retention.objects.update(keep_records_days=5, keep_payloads_days=6)

    plan = import_catalogue(request_of(exported))

    kept = Retention.current()
    assert (kept.keep_records_days, kept.keep_events_days, kept.keep_payloads_days) == (None, 7, 30)
    assert [(change.kind, len(change.fields)) for change in plan.changes] == [("retention", 2)]
    assert not import_catalogue(request_of(exported))


@pytest.mark.parametrize("line", ["keep_records_days: soon", "keep_records_days: -1", "keep_it_days: 1"])
def test_a_retention_that_cannot_be_is_refused_with_its_line(line):
    """E6"""
    with pytest.raises(ImportRefused) as refused:
        import_catalogue(request_of(f"version: 1\nretention:\n  {line}\n"))

    assert "line 3" in str(refused.value) and line.partition(":")[0] in str(refused.value)
    assert not Retention.objects.exists()


ACTOR = Actor(key="user:1", name="Ada", door=HistoryEntry.Door.COMMAND)


def request_of(content: str) -> CatalogueImportRequest:
    return CatalogueImportRequest(file=CatalogueFile.read(content.encode()), by=ACTOR)
