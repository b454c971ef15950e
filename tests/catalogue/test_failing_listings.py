"""A listing that fails changes nothing but what is known of the source's health."""

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from loguru import logger

from catalogue.actions.sources import change_source, check_source
from catalogue.discovery import FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS, refresh_source
from catalogue.models import DiscoveryRun, Revision, Source
from config.logging import as_json, as_text
from connectors.registry import forget_connectors
from tests.catalogue.engine import definition, definitions
from tests.factories import NOWHERE, make_source, make_workflow
from tests.packages import declare_package

SECRET = "key-that-nobody-may-see-42"


def next_wait(source: Source, run: DiscoveryRun) -> float:
    """Seconds from the end of the run to the next listing."""
    source.refresh_from_db()
    assert source.next_refresh_at is not None and run.finished_at is not None
    return (source.next_refresh_at - run.finished_at) / timedelta(seconds=1)


def everything(source: Source) -> list[dict[str, object]]:
    return list(source.workflows.order_by("pk").values())


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, '{"error": "invalid API key"}', "401 Unauthorized: invalid API key"),
        (403, "{}", "rejected the credentials (403 Forbidden)"),
        (404, "<h1>Not here</h1>", "404 Not Found: Not here"),
        (500, '{"message": "database is down"}', "500 Internal Server Error: database is down"),
        (200, "<html><body>Please log in</body></html>", "Please log in"),
        (200, '[{"id": "wf-1", "na', "not valid JSON"),
        (200, '{"error": null}', "The listing has no array under workflows, items, data, results"),
        (200, "[" * 5000 + "]" * 5000, "nested more than 250 levels deep"),
        (200, '["report", 7]', "can be read. The first: expected an object, got str."),
        (302, "", "which is not followed"),
        (204, "", "expected JSON"),
    ],
)
def test_a_failing_listing_changes_nothing_and_records_the_engines_own_words(
    engine, source, status, body, words
):
    """A1.4, A5.1"""
    engine.workflows = definitions(2)
    refresh_source(source)
    before, revision = everything(source), Revision.current()
    engine.fails_with(status, body, content_type="text/html" if body.startswith("<") else "application/json")

    run = refresh_source(source)

    assert run.outcome == DiscoveryRun.Outcome.FAILED and words in run.error
    assert everything(source) == before and Revision.current() == revision
    source.refresh_from_db()
    assert source.health_state == Source.HealthState.FAILING
    assert source.health_message == run.error


def test_an_engine_that_refuses_connections_is_named_with_the_reason(db):
    """A1.4"""
    run = refresh_source(make_source(base_url=NOWHERE))

    assert run.outcome == DiscoveryRun.Outcome.FAILED
    assert "Could not connect to 127.0.0.1:9: connection refused" in run.error


def test_an_engine_that_does_not_answer_is_given_up_after_the_sources_timeout(db, engine):
    """A1.4"""
    source = make_source(base_url=engine.base_url, config={"request_timeout_seconds": 0.15})
    with engine.paused():
        run = refresh_source(source)

    assert run.outcome == DiscoveryRun.Outcome.FAILED and "within 0.15 s" in run.error


def test_a_listing_that_breaks_on_a_later_page_changes_nothing(engine, source):
    """A1.4: half a list must not hide the other half."""
    engine.workflows = definitions(3)
    refresh_source(source)
    before = everything(source)
    engine.workflows = {"workflows": [definition(1)], "next": "https://elsewhere.example/page2"}  # type: ignore[assignment]

    run = refresh_source(source)

    assert run.outcome == DiscoveryRun.Outcome.FAILED and "elsewhere.example" in run.error
    assert everything(source) == before


def test_settings_that_cannot_work_are_a_failure_that_names_them(db):
    """A5.1, B5"""
    run = refresh_source(make_source("bad", config={"list_path": "no-slash"}))

    assert run.outcome == DiscoveryRun.Outcome.FAILED
    assert "The settings of source bad cannot be used: list_path" in run.error


def test_a_kind_that_is_no_longer_installed_is_a_failure_that_names_those_that_are(db):
    run = refresh_source(make_source(kind="gone"))

    assert "Unknown kind of source 'gone'; known kinds: " in run.error


@pytest.mark.parametrize(("attempts", "soon"), [(3, 3), (0, 0), (10, 5)])
def test_the_wait_doubles_with_each_failure_in_a_row_and_is_the_interval_once_the_retries_are_used_up(
    engine, source, settings, attempts, soon
):
    """A5.4, B4: three retries where nobody says otherwise; up to an hour."""
    assert settings.CATALOGUE.retry_attempts == 3
    settings.CATALOGUE = settings.CATALOGUE | {"retry_attempts": attempts}
    engine.fails_with(500)

    waits = [round(next_wait(source, refresh_source(source))) for _ in range(10)]

    backoffs = [min(FIRST_RETRY_SECONDS * 2**failures, MAX_RETRY_SECONDS) for failures in range(10)]
    interval = source.effective_refresh_interval
    assert waits == backoffs[:attempts] + [max(backoff, interval) for backoff in backoffs[attempts:]]
    assert len([wait for wait in waits if wait < interval]) == soon
    assert waits[-1] == MAX_RETRY_SECONDS


@pytest.mark.parametrize(("asked", "expected"), [("120", 120), ("2", FIRST_RETRY_SECONDS), ("999999", 3600)])
def test_an_engine_that_says_when_to_come_back_is_not_asked_earlier(engine, source, asked, expected):
    """A5.4"""
    engine.fails_with(429, "{}", retry_after=asked)

    assert round(next_wait(source, refresh_source(source))) == expected


def test_health_remembers_the_first_failure_and_forgets_it_on_recovery(engine, source):
    """A5.4"""
    engine.fails_with(500)
    refresh_source(source)
    source.refresh_from_db()
    since = source.failing_since
    refresh_source(source)
    source.refresh_from_db()
    assert since is not None and source.failing_since == since and source.failures == 2

    engine.recovers()
    refresh_source(source)

    source.refresh_from_db()
    assert source.health_state == Source.HealthState.OK and source.health_message == "Workflows listed: 0."
    assert source.failing_since is None and source.failures == 0
    assert source.refresh_lease_expires_at is None


def test_a_source_that_is_refreshed_by_hand_is_not_tried_again_by_itself(engine, source):
    """A4.1, A5.4"""
    Source.objects.update(refresh_interval=0)
    engine.fails_with(500)

    refresh_source(source)

    source.refresh_from_db()
    assert source.next_refresh_at is None and source.health_state == Source.HealthState.FAILING


def test_new_settings_are_tried_at_once_however_often_the_old_ones_failed(engine, source):
    """A4.4, A5.4"""
    engine.fails_with(401)
    for _ in range(9):
        refresh_source(source)

    change_source(source, credentials={"api_key": "another-key"})
    run = refresh_source(source)

    assert round(next_wait(source, run)) == FIRST_RETRY_SECONDS


def test_a_failure_is_logged_as_a_warning_with_the_source_and_without_the_key(db, engine, logged):
    """A1.4, A5.1, E6"""
    source = make_source("erp", base_url=engine.base_url, api_key=SECRET)
    engine.fails_with(401, f'{{"error": "no such key: {SECRET}"}}')

    run = refresh_source(source)

    (line,) = logged
    assert line.startswith("WARNING Discovery failed") and "'source': 'erp'" in line and "in 15 s" in line
    source.refresh_from_db()
    for told in (line, run.error, source.health_message):
        assert "no such key: ***" in told and SECRET not in told


@pytest.fixture
def faulty_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A kind of source whose connector has a bug, installed as another package would be."""
    declare_package(tmp_path, "faulty-engine", faulty="tests.catalogue.faulty:FaultyConnector")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "faulty"
    forget_connectors()


def test_a_bug_in_a_connector_is_logged_whole_and_recorded_without_stopping_other_sources(
    source, faulty_kind, logged
):
    """A5.1, B6: with the error's type, without which a KeyError is only a quoted key."""
    faulty = make_source("aaa-faulty", kind=faulty_kind, api_key=SECRET)
    known = make_workflow(faulty)

    with pytest.raises(CommandError, match=r"^Failed: aaa-faulty$"):
        call_command("refresh_sources", stdout=StringIO(), stderr=StringIO())

    assert any("Traceback" in line and "in discover" in line for line in logged)
    assert list(faulty.workflows.filter(missing_since=None)) == [known]
    faulty.refresh_from_db()
    source.refresh_from_db()
    why = "An internal error, not one of the engine: KeyError: 'answer for ***'. The log has the details."
    assert faulty.health_message == check_source(faulty).message == why
    assert faulty.health_state == Source.HealthState.FAILING and faulty.refresh_lease_expires_at is None
    assert source.health_state == Source.HealthState.OK


def test_a_connector_that_exits_does_not_stop_other_sources(source, faulty_kind):
    """B6: SystemExit ends an event loop, on which the listings of all sources wait."""
    faulty = make_source("aaa-faulty", kind=faulty_kind, config={"mistake": "exits"})

    with pytest.raises(CommandError, match=r"^Failed: aaa-faulty$"):
        call_command("refresh_sources", stdout=StringIO(), stderr=StringIO())

    faulty.refresh_from_db()
    source.refresh_from_db()
    why = "RuntimeError: The connector raised SystemExit: no licence."
    assert why in faulty.health_message and why in check_source(faulty).message
    assert source.health_state == Source.HealthState.OK


@pytest.mark.django_db
def test_a_check_without_a_result_says_so(faulty_kind):
    """B6: otherwise, the admin and REST show a failure without a reason."""
    health = check_source(make_source("aaa-faulty", kind=faulty_kind, config={"mistake": "no health"}))
    assert not health.ok and "TypeError: check() returned NoneType instead of Health." in health.message


@pytest.mark.django_db
def test_a_listing_of_what_are_no_definitions_says_how_to_make_them(faulty_kind):
    """B6: the author of a first connector yields the engine's own objects."""
    faulty = make_source("aaa-faulty", kind=faulty_kind, config={"mistake": "yields dicts"})
    refresh_source(faulty)
    faulty.refresh_from_db()
    assert "TypeError: discover() yielded dict; parse_definition makes" in faulty.health_message


@pytest.mark.django_db
@pytest.mark.parametrize("line_of", [as_text, as_json])
def test_the_traceback_of_a_connectors_bug_shows_no_credential(faulty_kind, line_of):
    """E6: the connector's author may quote it, and nobody has masked that error before it is logged."""
    faulty, lines = make_source("aaa-faulty", kind=faulty_kind, api_key=SECRET), list[str]()
    sink = logger.add(lines.append, format=line_of, backtrace=False, diagnose=False)
    with contextlib.ExitStack() as stack:
        stack.callback(logger.remove, sink)
        refresh_source(faulty)
    (told,) = [line for line in lines if "because of an internal error" in line]
    assert "KeyError: 'answer for ***'" in told and "in discover" in told and SECRET not in told
