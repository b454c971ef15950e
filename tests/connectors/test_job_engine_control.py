"""What a declared engine is sent to retry, pause and resume runs, and what its answers mean."""

import asyncio
import json
from typing import Any
from uuid import uuid4

import pytest

from connectors.errors import OutcomeUnknown, Rejected
from connectors.testing import advance_clock
from tests.connectors.scripted import Behaviour, Received, ScriptedEngine, response
from tests.connectors.test_job_engine_declarations import SMALLEST, declared, run_of

FAILED, GOING, HELD = {"state": "broken", "until": 1}, {"state": "going"}, {"state": "held"}
STATUSES = SMALLEST.replace("{going: running,", "{going: running, held: paused, stopped: cancelled,")
STATUSES = STATUSES.replace("  state: state\n", "  state: state\n  finished_at: until\n")
RETRY = "retry: {post: '/runs/{run_id}/retry', json: {mark: '{key}'}"
HOLD = "pause: {put: '/runs/{run_id}/pause'}\nresume: {delete: '/runs/{run_id}/pause'}\n"


def telling(*statuses: Any, told: bytes = b"") -> Behaviour:
    """Answers requests for the status with one after another, the last again and again; others with `told`,
    or with silence that the clock runs through."""
    following = iter(statuses)
    latest: Any = None

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        nonlocal latest
        if request.method == "GET":
            latest = next(following, latest)
            writer.write(response(200, json.dumps(latest)))
        elif told:
            writer.write(told)
        else:
            await asyncio.sleep(0.02)
            advance_clock(60.0)

    return behave


def sent_by(engine: ScriptedEngine) -> list[str]:
    return [f"{one.method} {one.target}" for one in engine.received if one.method != "GET"]


async def test_a_run_that_goes_on_under_its_id_is_not_returned_with_the_failure_before_the_retry():
    """A7.2: also if it has failed once more when it is looked at."""
    failed_anew, key = FAILED | {"until": 2}, uuid4()
    for seen in ([GOING], [FAILED, failed_anew], [{"state": "unheard of"}, failed_anew]):
        async with declared(STATUSES + RETRY + "}", telling(FAILED, *seen, told=response(202))) as (
            connector,
            engine,
        ):
            assert (await connector.retry(run_of("7"), key=key)).run_id == "7"
            polled = await connector.poll(run_of("7"))
        assert polled.raw == seen[-1]
        (sent,) = [one for one in engine.received if one.method == "POST"]
        assert (sent.target, sent.json) == ("/runs/7/retry", {"mark": str(key)})


async def test_a_retry_that_the_status_never_shows_or_that_names_no_run_is_of_unknown_outcome():
    """A7.2: the engine has accepted it."""

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(response(200, json.dumps(FAILED)))
        if request.method == "POST":
            asyncio.get_running_loop().call_later(0.05, advance_clock, 60.0)

    async with declared(STATUSES + RETRY + "}", behave) as (connector, _):
        with pytest.raises(OutcomeUnknown, match="still reports the failure"):
            await connector.retry(run_of("7"), key=uuid4())
    named = telling(FAILED, told=response(200, json.dumps({"id": None})))
    async with declared(STATUSES + RETRY + ", run_id: id}", named) as (connector, _):
        with pytest.raises(OutcomeUnknown, match="has no run id"):
            await connector.retry(run_of("7"), key=uuid4())


@pytest.mark.parametrize("further", ["", ", run_id: id"])
async def test_a_retry_without_an_answer_is_sent_once(further):
    """A7.2: it may have arrived."""
    async with declared(STATUSES + RETRY + further + "}", telling(FAILED)) as (connector, engine):
        with pytest.raises(OutcomeUnknown):
            await connector.retry(run_of("7"), key=uuid4())
    assert sent_by(engine) == ["POST /runs/7/retry"]


@pytest.mark.parametrize("state", ["going", "held", "done", "stopped"])
async def test_only_a_failed_run_is_retried(state):
    """A7.2: some engines would run a completed one again."""
    async with declared(STATUSES + RETRY + "}", telling({"state": state})) as (connector, engine):
        with pytest.raises(Rejected, match="Only a failed run"):
            await connector.retry(run_of("7"), key=uuid4())
    assert sent_by(engine) == []


async def test_an_engine_that_does_not_know_the_request_for_a_retry_refuses_it():
    """A2.4: the run is there, as its status shows."""
    async with declared(STATUSES + RETRY + "}", telling(FAILED, told=response(404, "{}"))) as (connector, _):
        with pytest.raises(Rejected, match="cannot run the failed steps again"):
            await connector.retry(run_of("7"), key=uuid4())


async def test_a_retry_is_found_by_its_key_alone():
    """B3: its lookup is the engine's, and a run without that mark is none."""
    one = "one: {of: 'id && [@]', where: mark, equals: '{key}'}"
    lookup = f", find: {{get: '/runs/{{run_id}}', run_id: id, {one}}}}}"
    key = uuid4()
    async with declared(STATUSES + RETRY + lookup, telling({"id": 7, "mark": str(key)})) as (connector, _):
        found = await connector.find_retry(run_of("7"), key=key)
        assert found is not None and found.run_id == "7"
        assert await connector.find_retry(run_of("7"), key=uuid4()) is None


async def test_a_run_is_paused_and_resumed_only_if_it_is_not_so_already():
    """A7.5: an engine may refuse the second request."""
    done = response(200)
    for status, wanted in ((GOING, ["PUT /runs/7/pause"]), (HELD, ["DELETE /runs/7/pause"])):
        async with declared(STATUSES + HOLD, telling(status, told=done)) as (connector, engine):
            assert (await connector.poll(run_of("7"))).is_paused is (status is HELD)
            await connector.pause(run_of("7"))
            await connector.resume(run_of("7"))
        assert sent_by(engine) == wanted
