"""What runs of a real Temporal server look like through its connector: ends, failures, progress."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from connectors.protocol import RunRef, RunSnapshot, RunState
from connectors.temporal.connector import TemporalConnector
from connectors.testing import Sample, start, until_ended
from tests.engines.temporal.definitions import connector_to, workflow_ref
from tests.engines.temporal.proxy import gateway_to
from tests.engines.temporal.server import TemporalServer, running_worker

PATIENCE_SECONDS = 15.0


@pytest.fixture
async def connector(temporal_server: TemporalServer) -> AsyncIterator[TemporalConnector]:
    async with connector_to(temporal_server.address) as connector:
        yield connector


async def run_of(
    connector: TemporalConnector, name: str, arguments: dict[str, Any] | None = None, **settings: Any
) -> RunRef:
    _, run = await start(connector, Sample(workflow_ref(name, **settings), arguments or {}))
    return run


async def end_of(
    connector: TemporalConnector, name: str, arguments: dict[str, Any] | None = None, **settings: Any
) -> RunSnapshot:
    return await until_ended(connector, await run_of(connector, name, arguments, **settings))


async def until(
    connector: TemporalConnector, run: RunRef, seen: Callable[[RunSnapshot], object]
) -> RunSnapshot:
    """The run as soon as it looks like that."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if seen(snapshot := await connector.poll(run)):
                return snapshot
            await asyncio.sleep(0.05)


async def test_a_failure_tells_its_whole_cause_chain_with_types_and_details_but_no_stack_trace(connector):
    """A2.4, A7.4: the activity, the error's type, its details and what it was caused by are in the words."""
    snapshot = await end_of(connector, "Fail", {"tea": "green"})
    assert snapshot.state is RunState.FAILED
    assert snapshot.error == (
        'activity brew failed: OutOfTea: The kettle cannot help. (details: {"cups": 0, "tea": "green"}), '
        "caused by ValueError: No green tea is left."
    )
    assert "Traceback" not in snapshot.error
    assert "File" not in snapshot.error
    failure = snapshot.raw["failure"]
    assert failure["cause"]["application_failure_info"]["details"] == {"tea": "green", "cups": 0}
    assert "in brew" in failure["cause"]["stack_trace"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("FailAlone", 'Boom: There is no more. (details: [{"code": 7}, "second detail"])'),
        ("FailInChild", 'child workflow FailAlone failed: Boom: There is no more. (details: [{"code": 7}, '),
        ("SlowActivity", "activity heartbeat failed in all attempts: it took longer than its timeout"),
    ],
)
async def test_failures_of_the_workflow_of_its_children_and_by_time_are_told(connector, name, words):
    """A7.4: whatever failed is named."""
    snapshot = await end_of(connector, name)
    assert snapshot.state is RunState.FAILED
    assert snapshot.error.startswith(words)


async def test_a_run_that_temporal_ends_by_its_timeout_has_failed_and_says_so(connector):
    """A7.2: a timeout of the engine's own is no cancellation."""
    snapshot = await end_of(connector, "Lasting", execution_timeout=1)
    assert snapshot.state is RunState.FAILED
    assert snapshot.error == "Temporal ended the workflow: it took longer than its timeout of 1 s."


async def test_a_run_that_continued_as_new_is_followed_to_its_end(connector):
    """A8.4: the result is that of the last run, and waiting does not end with the first one."""
    run = await run_of(connector, "Rounds", {"rounds": 2, "seconds": 0.1})
    snapshot = await connector.wait(run, seconds=PATIENCE_SECONDS)
    assert snapshot.state is RunState.COMPLETED
    assert snapshot.output == {"rounds_left": 0}
    assert snapshot.raw["first_run_id"] != snapshot.raw["run_id"]
    assert run.run_id.endswith(snapshot.raw["first_run_id"])


async def test_a_run_that_continued_as_new_is_told_apart_from_the_next_one_with_its_workflow_id(connector):
    """A8.1: a recipe of arguments lets another call have the workflow id later on."""
    recipe = {"workflow_id": f"rounds-{uuid4()}-{{name}}"}
    first = await run_of(connector, "Rounds", {"rounds": 1, "name": "a"}, **recipe)
    await until_ended(connector, first)
    second = await run_of(connector, "Rounds", {"rounds": 0, "seconds": 600, "name": "a"}, **recipe)
    assert (await connector.poll(second)).state is RunState.RUNNING
    assert (await connector.poll(first)).output == {"rounds_left": 0}
    assert (await connector.wait(first, seconds=5)).output == {"rounds_left": 0}


async def test_a_run_that_ignores_its_cancellation_is_ended_by_terminating_it(connector):
    """A7.5: terminating helps where cancelling does not, and the record says which it was."""
    run = await run_of(connector, "Stubborn")
    await connector.cancel(run)
    assert (await connector.wait(run, seconds=0.3)).state is RunState.RUNNING
    await connector.terminate(run)
    snapshot = await until_ended(connector, run)
    assert snapshot.state is RunState.CANCELLED
    assert "terminated" in snapshot.error
    assert "in the workflow catalogue" in snapshot.error
    with pytest.raises(Exception, match="has ended, so it cannot be terminated"):
        await connector.terminate(run)


@pytest.mark.parametrize(("seconds", "told"), [(0, None), (3.5, 3.5)])
async def test_the_grace_before_terminating_is_the_sources_and_0_means_never(seconds, told):
    """A7.5: how patient we are with a run that is to end is up to the admin."""
    async with connector_to("127.0.0.1:1", cancel_grace_seconds=seconds) as connector:
        assert connector.capabilities.terminates_after_seconds == told


async def test_a_result_that_is_no_json_is_told_in_words(connector):
    """A8.4: bytes and encrypted payloads do not break the record."""
    snapshot = await end_of(connector, "Binary")
    assert snapshot.state is RunState.COMPLETED
    assert snapshot.output == {
        "unreadable": "This value in Temporal is not JSON.",
        "encoding": "binary/plain",
        "bytes": 5,
    }


async def test_a_result_beyond_the_limit_is_not_taken_over(temporal_server):
    """B3: one huge result fills neither memory nor the database."""
    async with connector_to(temporal_server.address, max_output_bytes=1_000) as connector:
        snapshot = await end_of(connector, "Large", {"characters": 5_000})
    assert snapshot.state is RunState.COMPLETED
    assert snapshot.output["bytes"] == 5_002
    assert "larger than the limit of 1,000 bytes" in snapshot.output["unreadable"]


@pytest.mark.parametrize(
    ("step", "percent", "message"),
    [
        ({"progress": 40, "message": "kneading"}, 40.0, "kneading"),
        (55.5, 55.5, ""),
        ("in the oven", None, "in the oven"),
        ({"completed": 3, "total": 12}, 25.0, ""),
        ({"progress": 250}, 100.0, ""),
    ],
)
async def test_what_heartbeats_carry_is_the_progress(connector, step, percent, message):
    """A8.2: an activity that says how far it is needs nothing else."""
    run = await run_of(connector, "Heartbeating", {"steps": [step]})
    snapshot = await until(connector, run, lambda seen: seen.progress_message or seen.progress is not None)
    assert (snapshot.progress, snapshot.progress_message) == (percent, message)


async def test_a_query_that_the_definition_names_tells_the_progress(connector):
    """A8.2: workflows without heartbeats can answer how far they are."""
    run = await run_of(connector, "Lasting", progress_query="progress")
    snapshot = await until(connector, run, lambda seen: seen.progress is not None)
    assert (snapshot.progress, snapshot.progress_message) == (10.0, "waiting for the signal")


async def test_a_progress_query_that_is_refused_says_so_and_harms_nothing(connector):
    """A8.2: a mistake in the definition shows where somebody looks."""
    run = await run_of(connector, "Lasting", progress_query="no-such-query")
    snapshot = await until(connector, run, lambda seen: seen.progress_message)
    assert snapshot.state is RunState.RUNNING
    assert "no-such-query" in snapshot.progress_message


async def test_an_activity_that_is_tried_again_is_told_with_its_last_failure(connector):
    """A8.2: nobody wonders in silence why a run takes so long."""
    run = await run_of(connector, "Retrying")
    snapshot = await until(connector, run, lambda seen: "attempt" in seen.progress_message)
    assert "fail_often" in snapshot.progress_message
    assert "The oven is cold." in snapshot.progress_message


async def test_a_workflow_that_its_worker_cannot_carry_on_with_is_told(connector):
    """A8.2: a mistake in a workflow's code keeps it running for ever, but not in silence."""
    run = await run_of(connector, "Stuck")
    snapshot = await until(connector, run, lambda seen: seen.progress_message)
    assert snapshot.state is RunState.RUNNING
    assert "failed to continue it" in snapshot.progress_message


async def test_a_task_queue_that_no_worker_listens_on_is_told_until_one_does(temporal_server):
    """A8.2, B9: a run that waits for a worker says what it waits for, and the source's check as well."""
    queue = f"deserted-{uuid4()}"
    async with connector_to(temporal_server.address, default_task_queue=queue) as connector:
        run = await run_of(connector, "Echo", {"hello": "you"}, task_queue="")
        snapshot = await connector.poll(run)
        assert snapshot.state is RunState.RUNNING
        assert snapshot.progress_message == f"No worker is listening on the task queue {queue}."
        with running_worker(temporal_server, task_queue=queue):
            assert (await until_ended(connector, run)).output == {"hello": "you"}


async def test_whether_a_worker_listens_is_asked_seldom(temporal_server):
    """A8.2: many runs that wait for the same worker are no burden to the service."""
    with gateway_to(temporal_server.address) as gateway:
        async with connector_to(gateway.address) as connector:
            runs = [await run_of(connector, "Echo", task_queue="never-served") for _ in range(5)]
            told = {(await connector.poll(run)).progress_message for run in runs * 2}
    assert told == {"No worker is listening on the task queue never-served."}
    assert gateway.seen["DescribeTaskQueue"] == 1


async def test_a_check_names_the_task_queues_without_workers(temporal_server):
    """B9: what is missing is seen before somebody starts something."""
    declared = "workflows: {Tidy: {purpose: Tidies., taskQueue: attic}, Echo: {purpose: E., taskQueue: tea}}"
    async with connector_to(temporal_server.address, definitions=declared) as connector:
        health = await connector.check()
    assert health.ok
    assert "No worker is listening on: attic." in health.message


async def test_a_check_says_that_nothing_is_declared_yet(temporal_server):
    """B4, E1: Temporal cannot be asked what it could run."""
    async with connector_to(temporal_server.address, definitions="") as connector:
        health = await connector.check()
    assert health.ok
    assert "There are no definitions: " in health.message and "import_temporal" in health.message


async def test_whoever_waits_hears_of_the_end_as_it_happens(connector):
    """A7.1: by the service's long poll; how fast exactly, the benchmarks tell."""

    async def delay() -> float:
        run = await run_of(connector, "Later", {"seconds": 0.3})
        snapshot = await connector.wait(run, seconds=PATIENCE_SECONDS)
        assert snapshot.finished_at is not None
        return (datetime.now(UTC) - snapshot.finished_at).total_seconds()

    delays = await asyncio.gather(*(delay() for _ in range(5)))
    assert sorted(delays)[2] < 0.5
