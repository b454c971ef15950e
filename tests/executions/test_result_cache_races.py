"""What may happen at the same time as a hit, or as a run whose result is about to be cached."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from catalogue.exposure import forget_catalogue
from catalogue.models import Workflow
from connectors.background import run_in_background_loop
from connectors.protocol import RunSnapshot, RunState
from executions.models import CachedResult, CacheUse, Execution, State
from executions.models.result_cache import FIND, cache_key, evict_excess, remove_results
from executions.result_cache import clean, clear_results
from executions.starting import create_execution
from tests.executions.caching import (
    at_once,
    cache_for,
    cached_outputs,
    counts,
    finish_run,
    let_results_age,
    numbered,
    output_of,
    set_policy,
    totals_agree,
)
from tests.executions.engines import PATIENCE_SECONDS, Gate, WireEngine, in_thread, until
from tests.executions.steps import call, in_database, request_for, wrapping_statements
from tests.factories import make_workflow

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases(
        "executions.result_cache", "executions.models.result_cache", "executions.models.result_cache"
    ),
]


@pytest.fixture
def cached(engine: WireEngine, workflow: Workflow) -> Workflow:
    numbered(engine)
    return cache_for(workflow)


class Interruption:
    """Does something on another connection, once a statement has been executed; the first time only."""

    def __init__(self, act: Callable[[], Any], *, after: str) -> None:
        self._act, self._after = act, after
        self.happened = threading.Event()

    def __call__(self, execute: Any, sql: str, *rest: Any) -> Any:
        found = execute(sql, *rest)
        if self._after in sql and not self.happened.is_set():
            self.happened.set()
            with ThreadPoolExecutor(1) as other:
                other.submit(self._act_and_close).result()
        return found

    def _act_and_close(self) -> None:
        try:
            self._act()
        finally:
            connection.close()


LOOK = FIND.strip().partition("\n")[0]


def clear() -> None:
    assert clear_results() == 1


def evict() -> None:
    set_policy(max_bytes=1)
    assert evict_excess() == 1


def expire() -> None:
    let_results_age(1000)
    assert clean() == 1


def replace() -> None:
    """A fresh run of somebody else's ends."""
    finish_run(Workflow.objects.get(), digest=Execution.objects.get().arguments_hash, output={"run": "fresh"})


@pytest.mark.parametrize("removal", [clear, evict, expire, replace])
def test_a_result_that_is_removed_while_a_call_takes_it_does_not_answer_it(engine, cached, removal):
    """E4: found, but gone before the hit is recorded; the call runs, and there is no trace of the hit."""
    run_in_background_loop(call("report"))
    interruption = Interruption(removal, after=LOOK)
    with wrapping_statements(interruption):
        again = run_in_background_loop(call("report"))

    assert interruption.happened.is_set()
    assert again.cached_at is None and engine.count("start") == 2
    assert not Execution.objects.exclude(cached_at=None).exists()
    assert "hits" not in counts(cached) and totals_agree()


WAITING_FOR_US = (
    "SELECT count(*) FROM pg_locks WHERE NOT granted AND transactionid = pg_current_xact_id()::xid"
)


@pytest.mark.skipif("connection.vendor == 'sqlite'", reason="SQLite has one writer: no row is locked")
def test_a_hit_that_waits_for_a_removal_holds_nothing_that_the_removal_needs(workflow):
    """E4, E7: both lock the workflow's row before its results, so that they never end in a deadlock."""
    finish_run(cache_for(workflow), output={"run": 1})
    result = CachedResult.objects.get()

    def hit() -> bool:
        try:
            with transaction.atomic():
                return result.use(timezone.now())
        finally:
            connection.close()

    def is_the_hit_waiting() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(WAITING_FOR_US)
            return bool(cursor.fetchone()[0])

    with ThreadPoolExecutor(1) as other:
        with transaction.atomic():
            CacheUse.lock([workflow.pk])
            hitting = other.submit(hit)
            while not is_the_hit_waiting():
                assert not hitting.done()
            assert remove_results([result.pk], counted_as="cleared") == 1
        assert hitting.result() is False
    assert cached_outputs() == []


async def test_of_two_calls_that_miss_at_the_same_time_both_run_and_the_last_result_stays(engine, cached):
    """E4: neither finds its place taken."""
    first, second = Gate(at_once({"run": "first"})), Gate(at_once({"run": "second"}))
    engine.on_start = first
    calls = [asyncio.create_task(call("report"))]
    await first.request()
    engine.on_start = second
    calls.append(asyncio.create_task(call("report")))
    await second.request()
    second.open()
    assert (await calls[1]).succeeded
    first.open()
    assert (await calls[0]).succeeded

    assert await in_database(cached_outputs) == [{"run": "first"}]
    assert await in_database(counts, cached) == {"entries": 1, "misses": 2, "stored": 2}
    assert await in_database(totals_agree)


async def test_a_run_that_began_before_the_cache_was_cleared_is_not_cached(engine, cached):
    """E4: otherwise what was cleared would come back."""
    engine.on_start = gate = Gate(at_once({"run": "old"}))
    old = await gate.keep(call("report"))
    assert await in_database(clear_results, {cached.pk}) == 0
    numbered(engine)
    new = await call("report")
    gate.open()
    assert (await old).succeeded

    assert await in_database(output_of, new) == {"run": 2}
    assert await in_database(cached_outputs) == [{"run": 2}]


async def test_clearing_one_workflow_leaves_the_runs_of_others_their_place(engine, cached):
    """E4."""
    other = await in_database(make_workflow, cache_seconds=60)
    engine.on_start = gate = Gate(at_once({"run": 1}))
    running = await gate.keep(call("report"))
    await in_database(clear_results, {other.pk})
    gate.open()
    await running
    assert await in_database(cached_outputs) == [{"run": 1}]


@pytest.mark.parametrize("change", ["switched off", "content", "policy", "deleted"])
async def test_what_changes_while_it_runs_is_not_answered_by_its_result(engine, cached, change):
    """E4: the curator's and the engine's word at the moment of the result counts."""
    engine.on_start = gate = Gate(at_once())
    running = await gate.keep(call("report"))

    def alter() -> None:
        match change:
            case "switched off":
                cache_for(cached, None)
            case "content":
                Workflow.objects.update(content_hash="f" * 64)
            case "policy":
                set_policy(enabled=False)
            case "deleted":
                cached.delete()

    await in_database(alter)
    gate.open()
    assert (await running).succeeded
    assert await in_database(cached_outputs) == []


async def test_a_run_that_began_without_caching_is_not_cached(engine, workflow):
    """E4: nobody noted then when the cache had been cleared."""
    engine.on_start = gate = Gate(at_once())
    running = await gate.keep(call("report"))
    await in_database(cache_for, workflow)
    gate.open()
    assert (await running).succeeded
    assert await in_database(cached_outputs) == []


def test_a_cache_that_fails_does_not_cost_a_result(engine, cached):
    """A7.1, E4: the run has completed, whatever becomes of its copy."""

    def fail(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.startswith('INSERT INTO "executions_cachedresult"'):
            raise OperationalError("no room on the disk")
        return execute(sql, *rest)

    with wrapping_statements(fail):
        ended = run_in_background_loop(call("report"))

    assert ended.succeeded and output_of(ended) == {"run": 1}
    assert counts(cached) == {"misses": 1} and cached_outputs() == []


def test_what_was_not_used_for_longest_makes_room(workflow):
    """E4: the size of all results together stays within the limit, of whichever workflow they are."""
    set_policy(max_bytes=10_000)
    other = make_workflow(cache_seconds=60)
    cache_for(workflow)

    def keep(owner: Workflow, name: str) -> None:
        finish_run(owner, digest=name, output={name: "x" * 980})

    for name in "abcdefghij":
        keep(workflow, name)
    assert [next(iter(output)) for output in cached_outputs()] == [*"abcdefghij"]
    used = CachedResult.objects.get(key=cache_key(workflow, "a"))
    used.use(timezone.now())
    for name in "kl":
        keep(other, name)

    assert [next(iter(output)) for output in cached_outputs()] == [*"defghijakl"]
    assert counts(workflow)["evictions"] == 2 and "evictions" not in counts(other)
    assert sum(CachedResult.objects.values_list("size", flat=True)) <= 10_000 and totals_agree()


def test_a_lower_limit_holds_with_the_next_cleanup(workflow):
    """E4: an administrator lowers it while the product runs; also what a killed process left undone."""
    cache_for(workflow)
    for number in range(5):
        finish_run(workflow, digest=str(number), output={"n": "x" * 500})
    set_policy(max_bytes=1200)
    assert clean() == 3
    assert counts(workflow)["evictions"] == 3 and totals_agree()


def test_the_cleanup_removes_what_cannot_answer_any_more(workflow):
    """E4: expired, or older than the curator allows by now."""
    cache_for(workflow, 600)
    others = {seconds: make_workflow(cache_seconds=seconds) for seconds in (300, 900)}
    for owner in (workflow, *others.values()):
        finish_run(owner, output={"of": owner.pk})
    assert clean() == 0
    let_results_age(400)
    assert clean() == 1
    assert cached_outputs() == [{"of": workflow.pk}, {"of": others[900].pk}]
    cache_for(workflow, 60)
    cache_for(others[900], None)
    assert clean() == 2
    assert counts(workflow) == {"misses": 1, "stored": 1, "expired": 1} and totals_agree()


def test_everything_at_once_neither_fails_nor_loses_count(workflow):
    """E4, E7: hits, ends of runs, evictions, clearings and cleanups, as several processes do them."""
    set_policy(max_bytes=6_000)
    workflows = [cache_for(workflow), make_workflow(cache_seconds=600)]
    forget_catalogue()

    def repeat(act: Callable[[int], Any], times: int) -> None:
        try:
            for number in range(times):
                act(number)
        finally:
            connection.close()

    def run(number: int) -> None:
        owner, text = workflows[number % 2], f"{number % 9}"
        # As the digest of {"n": text} is made when it is called.
        execution = create_execution(request_for(owner.tool_name, {"n": text}))
        if execution.cached_at is None:
            Execution.objects.filter(pk=execution.pk).update(state=State.RUNNING)
            execution.finish_as_reported(RunSnapshot(state=RunState.COMPLETED, output={text: "x" * 590}))

    acts: list[tuple[Callable[[int], Any], int]] = [
        *[(run, 40)] * 4,
        (lambda _: clear_results(), 8),
        (lambda number: clear_results({workflows[number % 2].pk}), 8),
        (lambda _: evict_excess(), 10),
        (lambda _: clean(), 10),
    ]
    with ThreadPoolExecutor(len(acts)) as threads:
        for future in [threads.submit(repeat, act, times) for act, times in acts]:
            future.result()

    evict_excess()
    assert totals_agree() and sum(CachedResult.objects.values_list("size", flat=True)) <= 6_000
    made, hits = Execution.objects.count(), Execution.objects.exclude(cached_at=None).count()
    assert made == 160
    assert sum(counts(owner).get("hits", 0) for owner in workflows) == hits
    assert sum(counts(owner).get("misses", 0) for owner in workflows) == made - hits


def test_a_caller_that_goes_away_from_a_hit_leaves_nothing_behind(engine, cached):
    """A7.5: there is no run to come back to, so that the same call takes the cached result again, or runs."""
    run_in_background_loop(call("report"))
    looked, gone = threading.Event(), threading.Event()

    def delay(execute: Any, sql: str, *rest: Any) -> Any:
        found = execute(sql, *rest)
        if LOOK in sql:
            looked.set()
            assert gone.wait(PATIENCE_SECONDS)
        return found

    async def go_away() -> None:
        waiting = asyncio.create_task(call("report", request={"may_reattach": True}))
        await asyncio.to_thread(looked.wait, PATIENCE_SECONDS)
        waiting.cancel()
        asyncio.get_running_loop().call_later(0.05, gone.set)
        await asyncio.wait({waiting})
        await until(lambda: Execution.objects.exclude(cached_at=None).exists(), "the hit is recorded")

    with wrapping_statements(delay):
        run_in_background_loop(go_away())

    assert Execution.objects.exclude(cached_at=None).get().awaited_until is None
    let_results_age(601)
    again = run_in_background_loop(call("report", request={"may_reattach": True}))
    assert again.cached_at is None and output_of(again) == {"run": 2}


async def test_a_run_whose_caller_was_lost_is_still_given_to_the_same_call(engine, cached):
    """A7.5: re-attaching comes first; a fresh run is never one that has ended before."""
    lost = await call("report", request={"may_reattach": True})

    def lose() -> None:
        past = timezone.now() - timedelta(seconds=1)
        Execution.objects.filter(pk=lost.pk).update(awaited_until=past)

    await in_database(lose)
    fresh = await call("report", request={"may_reattach": True, "fresh": True})
    assert fresh.pk != lost.pk and fresh.cached_at is None
    again = await call("report", request={"may_reattach": True})
    assert again.pk == lost.pk
    assert (await call("report", request={"may_reattach": True})).cached_at is not None
    assert await in_thread(only_runs) == 2


def only_runs() -> int:
    return Execution.objects.filter(cached_at=None).count()
