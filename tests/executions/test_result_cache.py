"""The same call again, answered by what it came to before."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from catalogue.actions.sources import change_source
from catalogue.actions.workflows import override_workflow
from catalogue.exposure import forget_catalogue
from catalogue.models import Workflow
from connectors.background import run_in_background_loop
from executions.models import CachedOutput, CachedResult, CachePolicy, CacheUse, ExecutionPayload, State
from executions.reading import describe_execution
from executions.refusals import Busy, IdempotencyConflict, InvalidArguments, UnknownTool
from executions.result_cache import answer_from_cache, cache_figures
from executions.starting import create_execution, exposed_workflow
from tests.connectors.scripted import replies, sends_and_hangs_up
from tests.executions.caching import (
    at_once,
    cache_for,
    counts,
    let_results_age,
    numbered,
    output_of,
    set_policy,
    totals_agree,
    use_of,
)
from tests.executions.engines import WireEngine, completed, in_thread, receipt, status, until
from tests.executions.steps import (
    ALICE,
    BOB,
    advance_due_executions,
    call,
    in_database,
    let_pass,
    payload_of,
    read,
    request_for,
    timeline,
    told,
    wrapping_statements,
)
from tests.factories import make_workflow

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("executions.result_cache", "executions.models.result_cache"),
]

FRESH = {"fresh": True}


@pytest.fixture
def cached(engine: WireEngine, workflow: Workflow) -> Workflow:
    """`report`, whose results are cached; each run's result tells which run it is of."""
    numbered(engine)
    return cache_for(workflow)


async def test_the_same_call_is_answered_without_the_engine(engine, cached):
    """E4, E9."""
    first = await call("report", {"text": "To be"})
    again = await call("report", {"text": "To be"})

    assert first.pk != again.pk and again.succeeded
    assert [await in_database(output_of, run) for run in (first, again)] == [{"run": 1}, {"run": 1}]
    assert engine.count("start") == 1
    assert await in_database(counts, cached) == {"entries": 1, "hits": 1, "misses": 1, "stored": 1}
    assert (await in_database(CachedResult.objects.get)).hits == 1


async def test_a_hit_is_recorded_like_a_run_and_says_where_its_result_is_from(engine, cached):
    """B3: who called what with which arguments, and that no engine was asked."""
    first = await call("report", {"text": "To be"})
    again = await call("report", {"text": "To be"}, request={"caller": BOB, "client": {"name": "desk"}})

    record = await in_database(read, again)
    assert (record.state, record.caller, record.cached_from_id) == (State.COMPLETED, BOB.key, first.pk)
    assert record.cached_at == (await in_database(read, first)).finished_at
    assert record.duration_ms == 0 and record.started_at is None and record.awaited_until is None
    assert record.payload.input == {"text": "To be"} and record.payload.metadata["client"] == {"name": "desk"}
    assert await in_database(timeline, again) == ["created", "cached"]
    (said,) = await in_database(told, again, "cached")
    assert f"{record.cached_at:%Y-%m-%d %H:%M:%S} UTC" in said and str(first.pk) in said
    assert (await in_database(read, first)).cached_at is None


@pytest.mark.parametrize(
    ("minutes", "is_taken"), [(30, True), (90, False), (-30, False)], ids=["within", "before", "ahead"]
)
async def test_a_run_that_ended_while_nobody_looked_is_as_old_as_its_engine_says(
    engine, cached, minutes, is_taken
):
    """E4: after the product was down, results of hours ago were answered as fresh. Clocks may be wrong."""
    engine.on_start = replies(200, receipt())
    begun = await call("report", seconds=0)
    await until(lambda: read(begun).run_id and not read(begun).lease_holder, "it has been started")
    await in_database(let_pass, begun, 3600)
    ended_at = timezone.now().replace(microsecond=0) - timedelta(minutes=minutes)
    engine.on_status = replies(200, completed(end_time=int(ended_at.timestamp() * 1000)))
    await in_thread(advance_due_executions)

    record = await in_database(read, begun)
    shown_at = ended_at if is_taken else record.finished_at
    assert record.succeeded and record.finished_at > timezone.now() - timedelta(minutes=1)
    assert (await in_database(CachedResult.objects.get)).created_at == shown_at
    assert describe_execution(record)["finished_at"] == shown_at.isoformat()
    assert ((await call("report", seconds=0)).cached_at is None) is is_taken


@pytest.mark.parametrize(
    ("arguments", "runs"),
    [
        ({"b": [1, {"d": 1, "c": 2}], "a": "é"}, 1),
        ({"a": "é", "b": [1, {"c": 2, "d": 1}], "extra": None}, 2),
        ({"a": "é", "b": [{"c": 2, "d": 1}, 1]}, 2),
        ({"a": "é", "b": [1.0, {"c": 2, "d": 1}]}, 2),
        ({"a": "e\u0301", "b": [1, {"c": 2, "d": 1}]}, 2),
    ],
    ids=["other order of names", "one more", "other order of items", "float for integer", "other characters"],
)
async def test_only_the_same_arguments_are_the_same_call(engine, cached, arguments, runs):
    """E4."""
    await call("report", {"a": "é", "b": [1, {"c": 2, "d": 1}]})
    await call("report", arguments)
    assert engine.count("start") == runs


def test_a_workflow_without_caching_costs_no_query_more(engine, workflow):
    """E7: neither the call nor its end asks for the cache where it is not used."""
    asked: list[str] = []

    def listen(execute: Any, sql: str, *rest: Any) -> Any:
        asked.append(sql)
        return execute(sql, *rest)

    numbered(engine)
    with wrapping_statements(listen):
        assert run_in_background_loop(call("report")).succeeded

    tables = [model._meta.db_table for model in (CachedResult, CachedOutput, CachePolicy, CacheUse)]
    assert asked and not [sql for sql in asked for table in tables if f'"{table}"' in sql]


async def test_the_result_of_one_workflow_is_not_that_of_another(engine, cached):
    """E4: of the same engine, with the same arguments."""
    await in_database(make_workflow, cached.source, upstream_id="2725", name="other", cache_seconds=60)
    await call("report")
    await call("other")
    assert engine.count("start") == 2


# What is stored


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (replies(200, status("FAILED", error="no paper") | receipt()), State.FAILED),
        (replies(200, status("CANCELLED") | receipt()), State.CANCELLED),
        (replies(400, {"error": "no"}), State.FAILED),
        (sends_and_hangs_up(), State.UNCONFIRMED),
    ],
    ids=["failed", "cancelled", "refused", "unconfirmed"],
)
async def test_only_what_completed_is_cached(engine, cached, answer, state):
    """E4: an error may be over by the next call."""
    engine.on_start = answer
    assert (await call("report")).state == state
    assert await in_database(counts, cached) == {"misses": 1}


async def test_a_run_that_a_worker_follows_to_its_end_is_cached_too(engine, workflow):
    """E4: whoever hears of the end."""
    on = await in_database(cache_for, workflow)
    running = await call("report", seconds=0)
    await until(lambda: not read(running).lease_holder, "the request lets go")
    engine.on_status = replies(200, completed({"late": True}))
    await in_database(let_pass, running, 10)
    await in_thread(advance_due_executions)

    again = await call("report")

    assert await in_database(output_of, again) == {"late": True}
    assert again.cached_from_id == running.pk and engine.count("start") == 1
    assert await in_database(totals_agree) and (await in_database(use_of, on)).hits == 1


async def test_a_result_that_breaks_the_promised_schema_is_not_cached(engine, cached):
    """E5: what would be told as an error is no answer to keep."""
    cached.output_schema = {"type": "object", "required": ["sum"]}
    await in_database(cached.save)
    await in_thread(forget_catalogue)
    await call("report")
    assert await in_database(counts, cached) == {"misses": 1}
    engine.on_start = at_once({"sum": 3})
    await call("report")
    assert await in_database(counts, cached) == {"entries": 1, "misses": 2, "stored": 1}


async def test_a_result_that_was_too_large_to_keep_whole_is_not_cached(engine, cached, configured):
    """B7."""
    configured(max_payload_bytes=1000)
    engine.on_start = at_once({"text": "x" * 2000})
    await call("report")
    assert await in_database(counts, cached) == {"misses": 1}


async def test_a_run_without_an_output_is_not_cached(engine, cached):
    """There is nothing to answer with, and what the engine has not told yet it may tell the next time."""
    engine.on_start = replies(200, status("COMPLETED", output=None) | receipt())
    assert (await call("report")).succeeded
    assert await in_database(counts, cached) == {"misses": 1}


async def test_a_result_larger_than_a_tenth_of_the_limit_is_counted_and_not_cached(engine, cached):
    """E4, E9: one large result does not take the place of all the others."""
    await in_database(set_policy, max_bytes=10_240)
    engine.on_start = at_once({"text": "x" * 1100})
    await call("report")
    assert await in_database(counts, cached) == {"misses": 1, "oversized": 1}
    engine.on_start = at_once({"text": "x" * 900})
    await call("report")
    assert await in_database(counts, cached) == {"misses": 2, "oversized": 1, "entries": 1, "stored": 1}


# How long it answers


async def test_a_result_answers_until_its_time_is_over(engine, cached):
    """E4: the workflow's own time to live."""
    await call("report")
    await in_database(let_results_age, 595)
    assert (await call("report")).cached_at is not None
    await in_database(let_results_age, 5)
    again = await call("report")
    assert again.cached_at is None and await in_database(output_of, again) == {"run": 2}


@pytest.mark.parametrize(("seconds", "over_after"), [(600, 600), (60, 60), (6000, 600)])
def test_the_time_is_over_at_the_very_moment(seconds, over_after):
    """E4: from the end of the run on, not including the moment at which it is over."""
    ended_at = timezone.now()
    result = CachedResult(created_at=ended_at, expires_at=ended_at + timedelta(seconds=600))
    over_at = ended_at + timedelta(seconds=over_after)
    assert not result.answers(over_at, seconds=seconds)
    assert result.answers(over_at - timedelta(microseconds=1), seconds=seconds)


@pytest.mark.parametrize("seconds", [None, 60])
async def test_what_is_cached_answers_no_longer_than_the_curator_allows_now(engine, cached, seconds):
    """E4: a shorter time, or none, holds for what is there already."""
    await call("report")
    await in_database(let_results_age, 61)
    await in_database(cache_for, cached, seconds)
    assert (await call("report")).cached_at is None
    assert engine.count("start") == 2


async def test_a_longer_time_does_not_revive_what_is_over(engine, cached):
    """E4: it was cached for the time that held then."""
    await call("report")
    await in_database(let_results_age, 601)
    await in_database(cache_for, cached, 6000)
    assert (await call("report")).cached_at is None


@pytest.mark.parametrize("change", ["content", "engine", "credentials"])
async def test_a_workflow_or_an_engine_that_changed_does_not_answer_with_old_results(engine, cached, change):
    """E4: what is upstream now may come to something else."""
    await call("report")

    def alter() -> None:
        source = cached.source
        match change:
            case "content":
                cached.content_hash = "f" * 64
                cached.save()
            case "engine":
                change_source(source, config=source.config | {"min_poll_seconds": 3})
            case "credentials":
                change_source(source, config=source.config, credentials={"api_key": "another-key-0123"})

    await in_database(alter)
    await in_thread(forget_catalogue)
    assert (await call("report")).cached_at is None
    assert engine.count("start") == 2


async def test_an_administrator_switches_the_cache_off_and_on_for_all(engine, cached):
    """E4: while the product runs; what was cached before answers again."""
    await call("report")
    await in_database(set_policy, enabled=False)
    assert (await call("report")).cached_at is None
    assert (await call("report", {"other": 1})).cached_at is None
    assert await in_database(counts, cached) == {"entries": 1, "misses": 1, "stored": 1}
    await in_database(set_policy, enabled=True)
    assert await in_database(output_of, await call("report")) == {"run": 1}
    assert (await in_database(cache_figures)).enabled


# Fresh runs


async def test_a_caller_can_have_it_run_anew_and_the_new_result_answers_from_then_on(engine, cached):
    """E4."""
    await call("report")
    fresh = await call("report", request=FRESH)
    again = await call("report")

    assert fresh.cached_at is None
    assert [await in_database(output_of, run) for run in (fresh, again)] == [{"run": 2}, {"run": 2}]
    assert again.cached_from_id == fresh.pk
    assert await in_database(counts, cached) == {
        "entries": 1, "hits": 1, "misses": 1, "refreshes": 1, "stored": 2,
    }  # fmt: skip
    assert await in_database(totals_agree)


# What comes before the cache


async def test_a_call_that_is_refused_is_refused_though_a_result_is_cached(engine, cached):
    """A2.5, A7.5, D5: names, schemas and idempotency keys come first."""
    await call("report", {"text": "To be"})
    await call("report", {"text": "Other"}, request={"idempotency_key": "order-1"})
    with pytest.raises(IdempotencyConflict):
        await call("report", {"text": "To be"}, request={"idempotency_key": "order-1"})
    cached.input_schema = {"type": "object", "properties": {"text": {"type": "integer"}}}
    await in_database(cached.save)
    await in_thread(forget_catalogue)
    with pytest.raises(InvalidArguments):
        await call("report", {"text": "To be"})
    await in_database(override_workflow, cached, tool_name="renamed")
    await in_thread(forget_catalogue)
    with pytest.raises(UnknownTool):
        await call("report", {"text": "To be"})


async def test_an_idempotency_key_stands_for_the_hit_that_it_got(engine, cached):
    """A7.5: also when the cached result is gone."""
    await call("report")
    hit = await call("report", request={"idempotency_key": "order-1"})
    await in_database(CachedResult.objects.all().delete)
    again = await call("report", request={"idempotency_key": "order-1"})
    assert (again.pk, hit.cached_at is not None) == (hit.pk, True)
    assert engine.count("start") == 1


async def test_a_hit_needs_no_place_within_the_limits(engine, cached, configured):
    """B7, E4: it takes nothing of the engine."""
    await call("report")
    configured(max_concurrent_executions=1, max_queued_executions=0)
    engine.on_start = replies(200, receipt())
    await call("report", {"long": True}, seconds=0)
    with pytest.raises(Busy):
        await call("report", {"another": True})
    hit = await call("report")
    assert hit.cached_at is not None and hit.admitted_at is None


# Large outputs


LARGE = {"text": "x" * 100_000}


async def test_a_large_output_is_kept_once_and_shown_with_every_hit(engine, cached):
    """E4: a hit's record refers to the run's, so that hits on megabytes do not fill the database."""
    engine.on_start = at_once(LARGE)
    first = await call("report")
    hit = await call("report")

    assert hit.payload.output == LARGE
    assert (await in_database(payload_of, hit)).output == LARGE
    stored = ExecutionPayload.objects.filter(pk=hit.pk).values_list("output", "shares_output")
    assert await in_database(stored.get) == (None, True)
    assert hit.cached_from_id == first.pk


# One hop, few statements


def test_a_hit_costs_few_statements(engine, cached, django_assert_num_queries):
    """E7: look, then record: BEGIN, row, payload, timeline, statistics, two counters, COMMIT.

    From the row to the statistics it is one on PostgreSQL.
    """
    create_execution(request_for("report"))
    advance_due_executions()
    request = request_for("report")
    exposed = exposed_workflow("report", caller=ALICE)
    with django_assert_num_queries(6 if connection.vendor == "postgresql" else 9):
        hit = create_execution(request)
    assert hit.cached_at is not None
    assert answer_from_cache(request_for("report", **FRESH), exposed, digest=hit.arguments_hash) is None
