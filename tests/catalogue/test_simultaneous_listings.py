"""One listing of a source at a time, and what happens to it when the world changes meanwhile."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from datetime import datetime, timedelta
from functools import partial
from io import StringIO
from itertools import islice
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from catalogue import discovery
from catalogue.actions.sources import change_source, switch_sources
from catalogue.actions.workflows import enable_workflows
from catalogue.discovery import RefreshRefused, refresh_source
from catalogue.models import DiscoveryRun, Revision, Source, Workflow
from catalogue.tasks import refresh_one_source
from tests.catalogue.engine import PATIENCE, Engine, Pause, definition, definitions
from tests.executions.engines import wait_until
from tests.factories import make_discovery_run, make_source, make_workflow

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("catalogue.discovery", "catalogue.reconciliation"),
]
Outcome = DiscoveryRun.Outcome


class Helper:
    """Another process's part: work in a thread with a database connection of its own."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(4)

    def start(self, act: Callable[..., Any], *args: Any) -> "Future[Any]":
        def with_own_connection() -> Any:
            try:
                return act(*args)
            finally:
                connection.close()

        return self._threads.submit(with_own_connection)

    def close(self) -> None:
        self._threads.shutdown()


@pytest.fixture
def helper() -> Iterator[Helper]:
    helper = Helper()
    yield helper
    helper.close()


@pytest.fixture
def paused(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pause]:
    """The engine holds its answer back until it is released."""
    monkeypatch.setattr(discovery, "LOOK_AGAIN_SECONDS", 0.05)
    with engine.paused() as pause:
        yield pause


@pytest.fixture
def source(transactional_db: None, engine: Engine) -> Source:
    return make_source("erp", base_url=engine.base_url)


def test_a_second_refresh_is_refused_while_one_runs(engine, source, helper, paused):
    """B6, B7"""
    engine.workflows = definitions(2)
    first = helper.start(refresh_source, source)
    paused.wait_until_asked()

    with pytest.raises(RefreshRefused, match="erp is already being refreshed"):
        refresh_source(source)
    assert not Source.objects.due(timezone.now()).exists()
    paused.release()

    assert first.result(PATIENCE).added == 2
    assert engine.asked == 1 and DiscoveryRun.objects.count() == 1
    assert refresh_source(source).unchanged == 2


def test_the_command_waits_for_the_listing_under_way_and_makes_its_own(engine, source, helper, paused):
    """B6: as after add_source. The listing under way may be older than what is asked for."""
    engine.workflows = definitions(1)
    first = helper.start(refresh_source, source)
    paused.wait_until_asked()

    out, err = StringIO(), StringIO()
    commanded = helper.start(
        partial(call_command, "refresh_sources", "erp", stdout=out, stderr=err, no_color=True)
    )
    wait_until(lambda: "erp is already being refreshed. Refreshing it again" in err.getvalue(), "it says so")
    engine.workflows = definitions(3)
    paused.release()

    assert first.result(PATIENCE).outcome == Outcome.SUCCEEDED
    commanded.result(PATIENCE)
    assert out.getvalue().startswith("erp: 3 found")


def test_the_command_ends_where_the_source_is_switched_off_while_it_waits(engine, source, helper, paused):
    first = helper.start(refresh_source, source)
    paused.wait_until_asked()
    err = StringIO()
    commanded = helper.start(partial(call_command, "refresh_sources", "erp", stderr=err, no_color=True))
    wait_until(lambda: "Refreshing it again" in err.getvalue(), "it waits")
    Source.objects.update(enabled=False)
    with pytest.raises(CommandError, match="Failed: erp"):
        commanded.result(PATIENCE)
    assert "erp is disabled" in err.getvalue()
    paused.release()
    first.result(PATIENCE)


def test_of_many_refreshes_at_once_one_does_the_work(engine, source, helper, paused):
    """B6"""
    together = threading.Barrier(4)

    def refresh() -> bool:
        together.wait(PATIENCE)
        try:
            return bool(refresh_source(source))
        except RefreshRefused:
            return False

    attempts = [helper.start(refresh) for _ in range(4)]
    paused.wait_until_asked()
    refused = islice(as_completed(attempts, timeout=PATIENCE), 3)
    assert [attempt.result() for attempt in refused] == [False] * 3
    paused.release()

    assert sum(attempt.result(PATIENCE) for attempt in attempts) == 1


def test_the_lease_of_a_process_that_died_is_taken_over_once_it_has_expired(engine, source):
    """A5.4: and the run that it left behind does not go on for ever."""
    left_behind = make_discovery_run(source, outcome=Outcome.RUNNING, finished_at=None)
    Source.objects.update(refresh_lease_expires_at=timezone.now() + timedelta(seconds=60))
    with pytest.raises(RefreshRefused):
        refresh_source(source)

    Source.objects.update(refresh_lease_expires_at=timezone.now() - timedelta(seconds=1))
    assert refresh_source(source).outcome == Outcome.SUCCEEDED

    left_behind.refresh_from_db()
    assert left_behind.outcome == Outcome.FAILED and left_behind.finished_at is not None
    assert left_behind.error == "It was abandoned before it ended."


def test_a_listing_renews_a_lease_that_a_killed_process_would_leave_for_a_minute_at_most(
    source, helper, paused, monkeypatch
):
    monkeypatch.setattr(discovery, "RENEWAL_SECONDS", 0.05)
    listing = helper.start(refresh_source, source)
    paused.wait_until_asked()

    def expires_at() -> datetime:
        return Source.objects.values_list("refresh_lease_expires_at", flat=True).get(pk=source.pk)

    first = expires_at()
    wait_until(lambda: expires_at() > first, "it is renewed")
    wait_until(lambda: expires_at() > first + timedelta(seconds=0.1), "and once more")
    assert expires_at() <= timezone.now() + timedelta(minutes=1)

    paused.release()
    assert listing.result(PATIENCE).outcome == Outcome.SUCCEEDED


def test_a_process_that_wakes_up_after_its_lease_was_taken_over_changes_nothing(
    engine, source, helper, paused
):
    """A laptop that slept, a machine that swapped: what it listed is old by now."""
    engine.workflows = definitions(1)
    sleeper = helper.start(refresh_source, source)
    paused.wait_until_asked()
    Source.objects.update(refresh_lease_expires_at=timezone.now() - timedelta(seconds=1))
    with Engine() as same_engine_later:
        same_engine_later.workflows = definitions(3)
        engine_then = source.config
        Source.objects.update(config={"base_url": same_engine_later.base_url})
        later = refresh_source(source)
        Source.objects.update(config=engine_then)

    paused.release()
    slept: DiscoveryRun = sleeper.result(PATIENCE)

    assert slept.outcome == Outcome.FAILED and slept.error == "A later listing of the source has started."
    slept.refresh_from_db()
    assert slept.error == "It was abandoned before it ended."
    assert later.added == 3 and Workflow.objects.filter(missing_since=None).count() == 3
    source.refresh_from_db()
    assert source.health_state == Source.HealthState.OK


def test_the_lease_of_another_is_not_given_back(source, helper, paused):
    sleeper = helper.start(refresh_source, source)
    paused.wait_until_asked()
    others = timezone.now() + timedelta(seconds=100)
    Source.objects.update(refresh_lease_expires_at=others)

    paused.release()
    sleeper.result(PATIENCE)

    source.refresh_from_db()
    assert source.refresh_lease_expires_at == others


def test_settings_changed_during_a_listing_make_it_count_for_nothing(engine, source, helper, paused):
    """A4.4: workflows of the engine that was configured before must not appear."""
    engine.workflows = definitions(2)
    listing = helper.start(refresh_source, source)
    paused.wait_until_asked()
    with Engine() as new_engine:
        new_engine.workflows = [definition(7)]
        change_source(Source.objects.get(), config={"base_url": new_engine.base_url}, credentials={})
        due_since = Source.objects.get().next_refresh_at
        paused.release()

        run = listing.result(PATIENCE)

        assert run.outcome == Outcome.FAILED and "settings were changed during the listing" in run.error
        assert not Workflow.objects.exists()
        source.refresh_from_db()
        assert source.health_state == Source.HealthState.UNKNOWN and source.failures == 0
        assert source.next_refresh_at == due_since and source in Source.objects.due(timezone.now())
        assert refresh_source(source).added == 1


def test_new_settings_can_be_listed_with_while_the_old_address_still_hangs(source, helper, paused):
    """A4.3, A4.4: whoever mends a source at night does not want to hear "already being refreshed"."""
    old = helper.start(refresh_source, source)
    paused.wait_until_asked()
    with Engine() as new_engine:
        new_engine.workflows = definitions(2)
        change_source(Source.objects.get(), config={"base_url": new_engine.base_url}, credentials={})

        assert refresh_source(source).added == 2

    paused.release()
    assert old.result(PATIENCE).outcome == Outcome.FAILED
    assert Workflow.objects.filter(missing_since=None).count() == 2


def test_a_failure_with_old_settings_says_nothing_of_the_new_ones(engine, source, helper, paused):
    """A5.4: the next listing stays due at once."""
    engine.fails_with(401)
    listing = helper.start(refresh_source, source)
    paused.wait_until_asked()
    change_source(Source.objects.get(), credentials={"api_key": "the right key"})
    paused.release()

    assert "401" in listing.result(PATIENCE).error
    source.refresh_from_db()
    assert source.health_state == Source.HealthState.UNKNOWN
    assert source in Source.objects.due(timezone.now())


def test_a_source_deleted_during_its_listing_stays_deleted(engine, source, helper, paused):
    """A4.4"""
    engine.workflows = definitions(2)
    listing = helper.start(refresh_source, source)
    paused.wait_until_asked()
    Source.objects.get().delete()
    paused.release()

    assert listing.result(PATIENCE).error == "The source was deleted during the listing."
    assert not Workflow.objects.exists() and not DiscoveryRun.objects.exists()


def test_a_source_deleted_during_a_listing_that_fails_stays_deleted(engine, source, helper, paused):
    engine.fails_with(500)
    listing = helper.start(refresh_source, source)
    paused.wait_until_asked()
    Source.objects.get().delete()
    paused.release()

    assert listing.result(PATIENCE).outcome == Outcome.FAILED
    assert not Source.objects.exists() and not DiscoveryRun.objects.exists()


def test_a_curators_decisions_during_a_listing_are_kept(engine, source, helper, paused):
    """A4.2: the listing writes upstream's part of the rows only."""
    Source.objects.update(change_policy=Source.ChangePolicy.FOLLOW)
    workflow = make_workflow(source, upstream_id="wf-1", name="report_1", enabled=False)
    engine.workflows = [definition(1, description="Changed upstream.")]
    listing = helper.start(refresh_source, source)
    paused.wait_until_asked()
    enable_workflows(Workflow.objects.all())
    switch_sources(Source.objects.all(), enabled=False)
    paused.release()

    assert listing.result(PATIENCE).updated == 1
    workflow.refresh_from_db()
    assert workflow.enabled and workflow.description == "Changed upstream."
    assert not Source.objects.get().enabled


def test_two_sources_that_want_the_same_tool_names_at_the_same_moment_both_get_theirs(
    engine, source, helper, paused
):
    """A6.4, B6"""
    engine.workflows = definitions(50)
    with Engine() as second, second.paused() as second_paused:
        second.workflows = definitions(50)
        other = make_source("crm", base_url=second.base_url)
        listings = [helper.start(refresh_source, listed) for listed in (source, other)]
        paused.wait_until_asked()
        second_paused.wait_until_asked()
        paused.release()
        second_paused.release()
        runs = [listing.result(PATIENCE) for listing in listings]

    assert [(run.outcome, run.added) for run in runs] == [(Outcome.SUCCEEDED, 50)] * 2
    assert Workflow.objects.values("tool_name").distinct().count() == 100


def test_curators_and_listings_do_not_lock_each_other_out(engine, source, helper):
    """B6: both change the same rows, in different order, again and again."""
    Source.objects.update(change_policy=Source.ChangePolicy.FOLLOW)
    engine.workflows = definitions(40)
    refresh_source(source)
    rounds = 5

    def list_changes() -> list[str]:
        outcomes = []
        for number in range(rounds):
            engine.workflows = list(reversed(definitions(40, description=f"Version {number}.")))
            outcomes.append(str(refresh_source(source).outcome))
        return outcomes

    def curate() -> None:
        for number in range(rounds * 4):
            for workflow in Workflow.objects.order_by("pk" if number % 2 else "-pk")[:5]:
                workflow.title_override = f"Title {number}"
                workflow.save(update_fields=["title_override"])
            Workflow.objects.filter(enabled=True).exists()
            enable_workflows(Workflow.objects.order_by("-pk"))

    before = Revision.current()
    listing, curating = helper.start(list_changes), helper.start(curate)

    curating.result(PATIENCE)
    assert listing.result(PATIENCE) == ["succeeded"] * rounds
    assert Revision.current() == before + rounds + rounds * 4 * 5 + 1


def test_messages_that_ticks_left_while_no_worker_ran_cause_one_listing(engine, source):
    """A5.4: more of them would count as failures in a row, and delay the next try."""
    engine.workflows = definitions(1)
    Source.objects.update(next_refresh_at=timezone.now())

    for _ in range(3):
        refresh_one_source(source.pk, DiscoveryRun.Trigger.SCHEDULE)

    assert source.discovery_runs.count() == 1
