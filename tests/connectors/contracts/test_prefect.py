"""The contract for Prefect, and what is Prefect's own, against a real server and real flows."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from connectors.definitions import WorkflowDefinition
from connectors.errors import NotFound, Rejected
from connectors.prefect import PrefectConnector
from connectors.protocol import Connector, RunFilter, RunRef, RunSnapshot, RunState, WorkflowRef
from connectors.testing import (
    Asked,
    ConnectorContract,
    EngineHarness,
    Sample,
    closing,
    eventually,
    http_answer,
    start,
)
from tests.connectors.calling import goes_on_from_its_third_step, has_ended, steps_taken, until
from tests.engines.prefect.server import AUTH, PrefectServer, prefect

__all__ = ["prefect"]

# A server's start alone may take a minute on a busy machine.
pytestmark = pytest.mark.timeout(300)

PATIENCE_SECONDS = 120.0
WRONG_AUTH = "tester:wrong-password-9876543210"
NAMES = {
    "shop": "place-order/shop",
    "resting": "greet/resting",
    "always": "fail/always",
    "long": "last/long",
    "hard": "crash/hard",
    "asking": "ask/asking",
    "steps": "take-steps/steps",
}
ORDER_SCHEMA = {
    "title": "Parameters",
    "type": "object",
    "properties": {
        "order_id": {"type": "string", "description": "What the customer calls it."},
        "amount": {"type": "number", "description": "How much of it.", "default": 1.5},
        "priority": {"type": "string", "enum": ["low", "normal", "high"], "default": "normal"},
        "address": {"anyOf": [{"$ref": "#/$defs/Address"}, {"type": "null"}], "default": None},
    },
    "required": ["order_id"],
    "$defs": {
        "Address": {
            "type": "object",
            "description": "Where an order goes.",
            "properties": {
                "street": {"type": "string"},
                "postcode": {
                    "type": "string",
                    "default": "0000",
                    "description": "As it is written on letters.",
                },
            },
            "required": ["street"],
        }
    },
    "additionalProperties": False,
}


class PrefectHarness(EngineHarness):
    output = {"order_id": "A17", "amount": 1.5, "priority": "high", "street": None}
    failure = "The tea went cold."
    unknown_workflow = WorkflowRef(id=str(uuid4()), name="no/such-deployment")
    deadline_seconds = PATIENCE_SECONDS
    consent = {"approve": True, "reason": "{{ 6 * 7 }}"}
    unfit = {"approve": "perhaps"}
    secrets = frozenset({AUTH.partition(":")[2], WRONG_AUTH.partition(":")[2]})

    def __init__(self, server: PrefectServer) -> None:
        self.server = server
        self._ids = server.deployments()
        self.completing = self.sample("shop", {"order_id": "A17", "priority": "high"})
        self.failing = self.sample("always", {"words": self.failure})
        self.lasting = self.sample("long", {})
        self.crashing = self.sample("hard", {})
        self.paused = self.sample("resting", {})
        self.asking = self.sample("asking", {})

    def sample(self, deployment: str, arguments: dict[str, Any]) -> Sample:
        return Sample(WorkflowRef(id=self._ids[deployment], name=NAMES[deployment]), arguments)

    def connector(self) -> PrefectConnector:
        return self.server.connector()

    def connector_with_wrong_credentials(self) -> Connector:
        return self.server.connector(auth_string=WRONG_AUTH)

    def connector_at(self, port: int) -> Connector:
        return self.server.connector(base_url=f"http://127.0.0.1:{port}/api")

    def garbled(self, asked: Asked, garbage: bytes) -> bytes:
        """Once: of a list that never ends, each of 10,000 entries would be asked for."""
        is_first = not asked.body or not json.loads(asked.body).get("offset")
        return garbage if is_first else http_answer(b"[]")

    def runs_started_with(self, key: UUID) -> int:
        wanted = {"flow_runs": {"idempotency_key": {"any_": [str(key)]}}}
        return int(self.server.ask("/flow_runs/count", wanted))

    async def ended(self, connector: Connector, sample: Sample) -> tuple[RunRef, RunSnapshot]:
        """Each flow run takes a process of its own and some seconds, so the first test starts them all."""
        known = self.server.ended_runs
        if not known:
            for one in (self.completing, self.failing, self.crashing, self.paused):
                known[one.workflow.id] = (await start(connector, one))[1]
        run = known[sample.workflow.id]
        return run, await until(connector, run, has_ended)


@pytest.fixture
def harness(prefect: PrefectServer) -> Iterator[PrefectHarness]:
    yield PrefectHarness(prefect)
    prefect.cancel_everything()


@pytest.fixture
async def connector(harness: PrefectHarness) -> AsyncIterator[PrefectConnector]:
    async with closing(harness.connector()) as made:
        yield made


class TestPrefect(ConnectorContract):
    """What is asked of every connector."""

    @pytest.fixture
    def harness(self, harness: PrefectHarness) -> PrefectHarness:
        return harness

    async def test_cancel_ends_a_run_or_is_unsupported(self, connector, harness):
        """A7.3, A7.5, A8.5: a run tells how far it is and what it logged last, and is cancelled then."""
        _, run = await start(connector, harness.lasting)
        seen = await until(connector, run, lambda seen: seen.progress_message == "Step 1 of 2.")
        assert seen.progress == 0.0
        assert seen.started_at
        await connector.cancel(run)
        ended = await until(connector, run, has_ended)
        assert ended.state is RunState.CANCELLED
        assert "cancelled" in ended.error


async def discovered(connector: Connector) -> dict[str, WorkflowDefinition]:
    items = [item async for item in connector.discover()]
    return {item.name: item for item in items if isinstance(item, WorkflowDefinition)}


async def test_a_deployment_becomes_a_workflow_with_its_words_and_parameters(connector):
    """A1.1, A6.1: the flow's docstring, tags and version, and a schema without Prefect's extras."""
    found = (await discovered(connector))["place-order/shop"]
    assert found.description.startswith("Take an order and say what became of it.")
    assert sorted(found.tags) == ["orders", "tea"]
    assert found.version == "2.1"
    assert found.input_schema == ORDER_SCHEMA
    assert found.metadata["prefect_checks_parameters"] is True


async def test_a_deployment_without_words_is_described_by_its_name(connector):
    """A3.3: Prefect stores the word None where nobody wrote a description."""
    found = (await discovered(connector))["greet/plain"]
    assert found.description == "Runs the Prefect deployment greet/plain, which does not say what it does."


async def test_parameters_that_a_deployment_sets_are_the_defaults(connector):
    """A6.1: what the deployment brings along nobody has to give."""
    found = (await discovered(connector))["greet/somebody"]
    assert found.input_schema["properties"]["name"]["default"] == "somebody"


async def test_only_deployments_with_one_of_the_tags_are_listed(harness):
    """A1.3: a source may be narrowed to what its tags allow, and its health tells the same number."""
    async with closing(harness.server.connector(include_tags=["tea", "coffee"])) as connector:
        assert set(await discovered(connector)) == {"place-order/shop"}
        assert re.fullmatch(r"Prefect 3\.\S+ answered; deployments: 1\.", (await connector.check()).message)


async def test_the_result_is_what_the_newest_artifact_says(connector, harness):
    """A2.3: JSON in the artifact, also as a block of code, is the output; its logs are kept in order."""
    _, snapshot = await harness.ended(connector, harness.completing)
    assert snapshot.output == {"order_id": "A17", "amount": 1.5, "priority": "high", "street": None}
    times = [line["time"] for line in snapshot.raw["logs"]]
    assert times and times == sorted(times)


async def test_a_paused_deployment_runs_and_its_states_message_is_the_result(connector, harness):
    """A2.3: pausing stops schedules only, so the deployment is listed and can be called."""
    assert "greet/resting" in await discovered(connector)
    _, snapshot = await harness.ended(connector, harness.paused)
    assert snapshot.output == "Hello nobody!"


async def test_a_failure_tells_the_exception_and_the_last_logged_error(connector, harness):
    """A2.4: both, and nothing of where Prefect keeps the pickled exception."""
    _, snapshot = await harness.ended(connector, harness.failing)
    assert snapshot.error.splitlines() == [
        "Flow run encountered an exception: ValueError: The tea went cold.",
        "The last logged error: The kettle is empty.",
    ]
    assert "storage_key" not in repr(snapshot.raw)


async def test_a_run_whose_process_is_killed_has_failed(connector, harness):
    """A7.4: a crash is a failure, with what Prefect knows of it."""
    _, snapshot = await harness.ended(connector, harness.crashing)
    assert snapshot.state is RunState.FAILED
    assert snapshot.error.startswith("The flow run crashed. Process exited with status code: -9.")


async def test_a_run_without_a_worker_says_since_when_it_waits_and_is_cancelled_at_once(connector, harness):
    """A7.3, A7.5: nobody waits in silence, and what has not begun needs nobody to end it."""
    lonely = Sample(WorkflowRef(id=harness.server.deploy_without_worker(), name="greet/nobody"), {})
    started, run = await start(connector, lonely)
    assert started.snapshot and started.snapshot.state is RunState.RUNNING
    seen = await until(connector, run, lambda seen: seen.raw["state_name"] == "Late")
    assert seen.state is RunState.RUNNING
    assert seen.progress_message.startswith("Waiting for a worker since 20")
    await connector.cancel(run)
    ended = await connector.poll(run)
    assert ended.state is RunState.CANCELLED
    assert ended.finished_at


async def test_arguments_that_do_not_fit_are_rejected_in_prefects_words(connector, harness):
    """A2.4: a server that checks parameters says what is wrong with them."""
    with pytest.raises(Rejected, match="'order_id' is a required property"):
        await start(connector, Sample(harness.completing.workflow, {"amount": 2}))


@pytest.mark.parametrize(
    "told", [{"__prefect_kind": "jinja", "template": "{{ 6 * 7 }}"}, {"deep": [{"__prefect_kind": "x"}]}]
)
async def test_arguments_that_prefect_would_evaluate_are_not_sent(connector, harness, told):
    """E6: a caller must not read the workspace's variables through a template."""
    key = uuid4()
    with pytest.raises(Rejected, match="__prefect_kind"):
        await start(connector, Sample(harness.completing.workflow, {"order_id": told}), key)
    assert harness.runs_started_with(key) == 0


async def test_prefects_own_runs_are_listed_by_workflow_state_and_time(connector, harness):
    """E10: whoever started them; ours are known by their key."""
    run, ended = await harness.ended(connector, harness.failing)
    before = datetime.now(UTC) - timedelta(days=1)
    wanted = RunFilter(
        workflow="fail/always", states=frozenset({RunState.FAILED}), started_after=before, run=run.run_id
    )
    page = await connector.list_runs(wanted, page_size=10)
    (listed,) = page.runs
    assert (listed.run_id, listed.key, listed.workflow) == (run.run_id, run.key, "fail/always")
    assert (listed.state, listed.told_state) == (RunState.FAILED, "Failed")
    assert listed.started_at == ended.started_at
    assert page.next_cursor == ""
    by_a_part = RunFilter(workflow="ail", run=run.run_id)
    assert (await connector.list_runs(by_a_part, page_size=10)).runs == [listed]
    for nothing in (
        RunFilter(workflow=harness.lasting.workflow.id, run=run.run_id),
        RunFilter(started_before=before),
        RunFilter(engine_query='{"tags": {"all_": ["nobody has this tag"]}}'),
    ):
        assert not (await connector.list_runs(nothing, page_size=10)).runs


async def test_prefects_runs_come_in_pages_and_bad_conditions_are_rejected(connector, harness):
    """E10: page after page without gaps, in the words of the engine where it refuses."""
    for sample in (harness.completing, harness.failing, harness.crashing, harness.paused):
        await harness.ended(connector, sample)
    keys = {str(run.key) for run in harness.server.ended_runs.values()}
    ours = RunFilter(engine_query=json.dumps({"idempotency_key": {"any_": sorted(keys)}}))
    seen: list[str] = []
    cursor = ""
    while not seen or cursor:
        page = await connector.list_runs(ours, page_size=1, cursor=cursor)
        seen += [str(run.key) for run in page.runs]
        cursor = page.next_cursor
    assert len(seen) == len(keys)
    assert set(seen) == keys
    bad_query, bad_json, beginning = (
        RunFilter(engine_query='{"tags": 7}'),
        RunFilter(engine_query="tags = x"),
        RunFilter(run="ab"),
    )
    for bad in (bad_query, bad_json, beginning):
        with pytest.raises(Rejected):
            await connector.list_runs(bad, page_size=10)
    with pytest.raises(Rejected):
        await connector.list_runs(ours, page_size=10, cursor="the next one")


async def test_a_pause_for_input_asks_with_its_words_and_takes_the_answer_as_it_is(connector, harness):
    """A8.2, E6: Prefect evaluates templates and variables in an answer; nobody's answer is one."""
    _, run = await start(connector, harness.asking)
    asked = await until(connector, run, lambda seen: seen.questions)
    (question,) = asked.questions
    assert question.message == "Is the  tea good?\n**Say so.**"
    assert question.schema["properties"] == {
        "approve": {"type": "boolean"},
        "reason": {"type": "string", "default": "", "description": "Why."},
    }
    assert question.schema["required"] == ["approve"]
    assert question.until and question.until > datetime.now(UTC)
    marked = {"approve": True, "reason": {"__prefect_kind": "jinja", "template": "{{ 6 * 7 }}"}}
    with pytest.raises(Rejected, match="is not of type 'string'"):
        await connector.answer(run, question.id, marked)
    told = {"approve": False, "reason": '{{ 6 * 7 }} "__prefect_kind"\n\u202e{% raw %}'}
    await connector.answer(run, question.id, told)
    assert (await until(connector, run, has_ended)).output == told
    with pytest.raises(NotFound, match="no longer in this pause"):
        await connector.answer(run, question.id, told)


async def test_a_pause_without_input_wants_consent_and_ends_by_itself(connector, harness):
    """A8.2: it takes an answer without fields; one that comes after its end is not taken."""
    _, run = await start(connector, harness.sample("asking", {"asked": "consent"}))
    _, late = await start(connector, harness.sample("asking", {"asked": "consent", "timeout": 4}))
    (question,) = (await until(connector, run, lambda seen: seen.questions)).questions
    assert question.schema == {"type": "object", "properties": {}}
    (missed,) = (await until(connector, late, lambda seen: seen.questions)).questions
    await connector.answer(run, question.id, {})
    assert (await until(connector, run, has_ended)).output == "resumed"
    ended = await until(connector, late, has_ended)
    assert (ended.state, ended.questions) == (RunState.FAILED, ())
    with pytest.raises(NotFound):
        await connector.answer(late, missed.id, {})


async def test_a_suspended_run_is_begun_again_with_the_answer(connector, harness):
    """A8.2: no process waits for it meanwhile."""
    _, run = await start(connector, harness.sample("asking", {"asked": "suspended"}))
    seen = await until(connector, run, lambda seen: seen.questions)
    assert seen.raw["state_name"] == "Suspended"
    await connector.answer(run, seen.questions[0].id, {"approve": True})
    ended = await until(connector, run, has_ended)
    assert (ended.state, ended.output) == (RunState.COMPLETED, {"approve": True})


async def test_a_retry_runs_the_failed_task_again_and_takes_the_results_of_the_others(
    connector, harness, tmp_path
):
    """A7.2, B3: what Prefect has persisted; the flow run goes on under its id, and its states say which retry
    it was."""
    steps = harness.sample("steps", {"folder": str(tmp_path)})
    runs = await goes_on_from_its_third_step(connector, steps.workflow, steps.arguments, tmp_path)
    assert len({run.run_id for run in runs}) == 1
    assert (await connector.poll(runs[-1])).output == "three steps"
    assert await connector.find_retry(runs[0], key=uuid4()) is None


async def test_tasks_whose_results_are_not_persisted_are_not_run_again_unasked(connector, harness, tmp_path):
    """A7.2: Prefect would begin the whole flow anew."""
    steps = harness.sample("steps", {"folder": str(tmp_path), "persist": False})
    _, run = await start(connector, steps)
    await until(connector, run, has_ended)
    succeeded = {
        "flow_runs": {"id": {"any_": [run.run_id]}},
        "task_runs": {"state": {"name": {"any_": ["Completed"]}}},
    }

    async def are_recorded() -> bool:
        return len(await asyncio.to_thread(harness.server.ask, "/task_runs/filter", succeeded)) == 2

    await eventually(are_recorded, seconds=PATIENCE_SECONDS)
    with pytest.raises(Rejected, match=r"not persisted their results: step-.*, step-.*persist_result"):
        await connector.retry(run, key=uuid4())
    assert steps_taken(tmp_path) == {"one": 1, "two": 1, "three": 1}
