"""The contract for Restate, and what is Restate's own, against a real server and real services."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar
from unittest.mock import ANY
from uuid import UUID, uuid4

import pytest

from connectors.definitions import RejectedDefinition
from connectors.errors import NotFound, OutcomeUnknown, Rejected, Unsupported
from connectors.protocol import Connector, RunFilter, RunRef, RunSnapshot, RunState, WorkflowRef
from connectors.restate import RestateConnector
from connectors.testing import (
    Asked,
    ConnectorContract,
    EngineHarness,
    Interaction,
    Sample,
    closing,
    http_answer,
    start,
    until_ended,
)
from tests.connectors.scripted import ScriptedEngine, replies
from tests.engines.restate.server import ADMIN_TOKEN, TOKEN, RestateServer, restate

__all__ = ["restate"]

LOOK_SECONDS = 0.02
WRONG = "wrong-token-9876543210fedcba"


def reference(target: str, kind: str, takes: str, **more: Any) -> WorkflowRef:
    return WorkflowRef(id=target, name=target, metadata={"type": kind, "takes": takes, **more})


class RestateHarness(EngineHarness):
    """Of services; the others are below."""

    secrets = frozenset({TOKEN, ADMIN_TOKEN, WRONG})
    unknown_workflow = reference("Orders/nobody", "Service", "nothing")
    completing = Sample(reference("Orders/place", "Service", "fields"), {"order_id": "A17", "amount": 2})
    output: ClassVar[Any] = {"order_id": "A17", "amount": 2.0}
    failing = Sample(reference("Orders/fail", "Service", "value"), {"input": "The tea went cold."})
    failure = "The tea went cold."
    lasting = Sample(reference("Orders/last", "Service", "value"), {"input": 600})
    asking = Sample(reference("Ask/ask_run", "Workflow", "fields", answering="take"), {"order_id": "A17"})
    consent: ClassVar = {"approve": True}
    unfit: ClassVar = {"approve": "perhaps"}

    def __init__(self, server: RestateServer, refusing: int) -> None:
        self.server = server
        self._refusing = refusing

    def connector(self) -> RestateConnector:
        return self.server.connector()

    def connector_with_wrong_credentials(self) -> Connector:
        """At a gateway, as the open-source server takes everybody."""
        url = f"http://127.0.0.1:{self._refusing}"
        return self.server.connector(ingress_url=url, admin_url=url, token=WRONG, admin_token="")

    def connector_at(self, port: int) -> Connector:
        url = f"http://127.0.0.1:{port}"
        return self.server.connector(ingress_url=url, admin_url=url)

    def unknown_run_id(self) -> str:
        return "inv_13oDHNYpFDfh1xd3tQW9kWf8zr5dWV2wPR"

    def runs_started_with(self, key: UUID) -> int:
        return len(self.server.rows(f"idempotency_key = '{key}' or target_service_key = '{key}'"))


class ObjectHarness(RestateHarness):
    unknown_workflow = reference("Kettle/nobody", "VirtualObject", "nothing")
    completing = Sample(reference("Kettle/boil", "VirtualObject", "value"), {"key": "a/b ü%", "input": 0})
    output: ClassVar[Any] = {"kettle": "a/b ü%", "times": ANY}
    failing = Sample(reference("Kettle/explode", "VirtualObject", "nothing"), {"key": "red"})
    failure = "The kettle exploded."

    @property
    def lasting(self) -> Sample:  # type: ignore[override]
        """Another object each time, as one object's runs wait for one another."""
        return Sample(reference("Kettle/boil", "VirtualObject", "value"), {"key": uuid4().hex, "input": 10.0})


class WorkflowHarness(RestateHarness):
    shared: ClassVar[dict[str, str]] = {"decide": "value", "note": "value", "stage": "nothing"}
    approval = reference("Approval/run", "Workflow", "fields", shared=shared)
    unknown_workflow = reference("Approval/nobody", "Workflow", "nothing")
    completing = Sample(approval, {"order_id": "A17", "amount": 0})
    output: ClassVar[Any] = {"order": "A17", "decision": "not needed"}
    failing = Sample(approval, {"order_id": "A17", "amount": -1})
    failure = "less than nothing"
    lasting = Sample(approval, {"order_id": "A17"})
    query = Interaction("stage", {}, "waiting")
    signal = Interaction("decide", {"input": "yes"})

    def garbled(self, asked: Asked, garbage: bytes) -> bytes:
        """What is asked before a signal has a right answer, so that the signal reaches the garbage."""
        is_before = b"select target_service_key" in asked.body
        running = {"rows": [{"target_service_key": "one", "status": "running"}]}
        return http_answer(json.dumps(running).encode()) if is_before else garbage

    def another_workflow(self) -> WorkflowRef:
        return RestateHarness.lasting.workflow

    async def has_heard_signal(self, connector: Connector, run: RunRef) -> bool:
        seen = await until_ended(connector, run)
        return bool(seen.output == {"order": "A17", "decision": "yes"})


@pytest.fixture
async def refusing() -> AsyncIterator[int]:
    async with ScriptedEngine(replies(401, {"message": "Unauthorized"})) as gateway:
        yield gateway.port


@pytest.fixture
def harness(restate: RestateServer, refusing: int) -> RestateHarness:
    return RestateHarness(restate, refusing)


@pytest.fixture
async def connector(harness: RestateHarness) -> AsyncIterator[RestateConnector]:
    async with closing(harness.connector()) as made:
        yield made


class TestRestate(ConnectorContract):
    """What is asked of every connector, by handlers of services, of objects and of workflows."""

    @pytest.fixture(
        params=(RestateHarness, ObjectHarness, WorkflowHarness), ids=("service", "object", "workflow")
    )
    def harness(self, request: pytest.FixtureRequest, restate: RestateServer, refusing: int) -> EngineHarness:
        harness: EngineHarness = request.param(restate, refusing)
        return harness


async def seen(connector: Connector, run: RunRef, done: Callable[[RunSnapshot], Any]) -> RunSnapshot:
    """The first snapshot that it is true of."""
    async with asyncio.timeout(20.0):
        while True:
            if done(snapshot := await connector.poll(run)):
                return snapshot
            await asyncio.sleep(LOOK_SECONDS)


async def discovered(connector: Connector) -> dict[str, Any]:
    return {item.name: item async for item in connector.discover()}


async def test_a_handler_becomes_a_workflow_with_its_words_and_fields(connector):
    """A1.1, A6.1: the handler's docstring and schema; its service's words where it has none."""
    found = await discovered(connector)
    place = found["Orders/place"]
    assert place.description == "Take an order and say what became of it."
    assert place.input_schema["required"] == ["order_id"]
    assert place.input_schema["properties"]["order_id"]["description"] == "What the customer calls it."
    assert place.output_schema["properties"].keys() == {"order_id", "amount"}
    assert place.metadata["labels"] == {"team": "tea", "speed": "quick"}
    assert found["Orders/last"].description == "Takes orders."
    assert found["Approval/run"].timeout_seconds == 86_400


async def test_only_handlers_that_can_be_called_and_asked_for_their_result_are_listed(connector):
    """A3.1: private ones are left out, and what cannot work is rejected with the reason."""
    found = await discovered(connector)
    assert not {"Hidden/work", "Orders/audit", "Approval/decide"} & found.keys()
    rejected = {name: item.reason for name, item in found.items() if isinstance(item, RejectedDefinition)}
    assert rejected.keys() == {"Forgetful/forget", "Orders/press"}
    assert "keeps its results for only 0 s (idempotency_retention)" in rejected["Forgetful/forget"]
    assert "application/octet-stream" in rejected["Orders/press"]


async def test_an_object_is_named_by_an_argument_beside_those_of_its_handler(connector):
    """A6.1: `key` always, and what is no object as `input`."""
    found = await discovered(connector)
    boil, rename, times = (found[f"Kettle/{name}"].input_schema for name in ("boil", "rename", "times"))
    assert boil["required"] == ["key", "input"]
    assert boil["properties"]["input"]["type"] == "number"
    assert rename["required"] == ["key", "order_id"]
    assert rename["properties"]["address"]["anyOf"][0]["$ref"].removeprefix("#/$defs/") in rename["$defs"]
    assert times["properties"].keys() == {"key"}
    named = Sample(reference("Kettle/rename", "VirtualObject", "fields"), {"key": "blue", "order_id": "A17"})
    _, run = await start(connector, named)
    assert (await until_ended(connector, run)).output == "blue is A17"


async def test_a_workflows_shared_handlers_are_its_queries_and_signals(connector):
    """A8.2: one that takes nothing and answers, or says so, is a query; all else may change something."""
    workflow = (await discovered(connector))["Approval/run"]
    assert sorted(query.name for query in workflow.queries) == ["note", "stage"]
    (decide,) = workflow.signals
    assert decide.name == "decide"
    assert decide.description == "Decide about the order."
    assert decide.input_schema["properties"]["input"]["type"] == "string"
    assert workflow.metadata["shared"] == WorkflowHarness.shared


async def test_a_handler_of_a_workflow_that_refuses_is_not_taken_for_an_engine_that_fails(connector):
    """A8.2: it answers 500, as a broken engine would; what was refused was not done."""
    _, run = await start(connector, WorkflowHarness.lasting)
    with pytest.raises(Rejected, match="A decision has words"):
        await connector.signal(run, "decide", {"input": ""})
    assert await connector.query(run, "note", {"input": "Tea."}) == "Tea."
    with pytest.raises(NotFound, match="no shared handler 'run'"):
        await connector.signal(run, "run", {"order_id": "A18"})
    await connector.terminate(run)


async def test_text_and_nothing_are_results_too(connector):
    """A2.3: not every handler answers with JSON."""
    for target, takes, arguments, output in (
        ("Orders/say", "value", {"input": "Tea for two."}, "Tea for two."),
        ("Orders/nothing", "nothing", {}, None),
    ):
        _, run = await start(connector, Sample(reference(target, "Service", takes), arguments))
        ended = await until_ended(connector, run)
        assert (ended.state, ended.output) == (RunState.COMPLETED, output)


async def test_an_invocation_that_waits_or_stumbles_says_why(connector):
    """A7.3: the next attempt with the last failure, an operator's turn, another invocation of the object."""
    _, paused = await start(connector, Sample(reference("Orders/stumble", "Service", "nothing"), {}))
    _, repeated = await start(connector, Sample(reference("Orders/stagger", "Service", "nothing"), {}))
    boil = reference("Kettle/boil", "VirtualObject", "value")
    (_, ahead), (_, behind) = [await start(connector, Sample(boil, {"key": "one", "input": 9})) for _ in "12"]
    told = (await seen(connector, paused, lambda at: at.progress_message)).progress_message
    assert told.startswith("Paused until it is resumed: RuntimeError(")
    assert "The kettle is empty." in told
    told = (await seen(connector, repeated, lambda at: at.progress_message)).progress_message
    assert told.startswith("An attempt failed and is retried at ")
    assert "The kettle leaks." in told
    at = await seen(connector, behind, lambda at: at.progress_message)
    assert at.progress_message == "Waiting: another invocation has the same key."
    assert at.started_at is None
    for run in (behind, ahead, repeated, paused):
        await connector.terminate(run)
    assert (await connector.poll(paused)).state is RunState.CANCELLED


async def test_an_invocation_that_ignores_its_cancellation_is_killed(connector):
    """A7.5: it goes on until it is terminated, and both records say how it ended."""
    _, run = await start(connector, Sample(reference("Orders/stubborn", "Service", "nothing"), {}))
    await connector.cancel(run)
    assert (await connector.wait(run, seconds=0.5)).state is RunState.RUNNING
    await connector.terminate(run)
    ended = await until_ended(connector, run)
    assert (ended.state, ended.error) == (RunState.CANCELLED, "The invocation was killed.")


@pytest.mark.parametrize("run_id", ["inv_1", "inv_" + "0" * 34, "inv_x' or '1' = '1", "../services", ""])
async def test_what_is_no_id_is_no_invocation(connector, run_id):
    """A8.1, E6: neither an error of the engine nor a part of a query."""
    run = RunRef(workflow=RestateHarness.completing.workflow, run_id=run_id, key=uuid4())
    for ask in (connector.poll, connector.cancel, connector.terminate):
        with pytest.raises((NotFound, Rejected)):
            await ask(run)


async def test_runs_are_listed_with_their_keys_and_filters_are_quoted(connector):
    """E10, E6: a quote in a filter ends no text of the query."""
    for harness in (RestateHarness, WorkflowHarness):
        _, run = await start(connector, harness.completing)
        ended = await until_ended(connector, run)
        wanted = RunFilter(workflow=run.workflow.id, run=run.run_id, started_after=ended.created_at)
        (listed,) = (await connector.list_runs(wanted, page_size=10)).runs
        assert (listed.key, listed.workflow) == (run.key, run.workflow.id)
    for bad in ("Orders' or '1' = '1", "Orders/place' --"):
        assert not (await connector.list_runs(RunFilter(workflow=bad), page_size=10)).runs
    for refused in (RunFilter(run="inv_%'"), RunFilter(engine_query="1 = 1")):
        with pytest.raises(Rejected):
            await connector.list_runs(refused, page_size=10)


async def test_a_lost_start_of_each_kind_is_found_by_its_key(connector):
    """B3: while it runs, too."""
    for sample in (RestateHarness.lasting, WorkflowHarness.lasting):
        key = uuid4()
        started, run = await start(connector, sample, key)
        found = await connector.find_run(sample.workflow, sample.arguments, key=key)
        assert found is not None and found.run_id == started.run_id
        await connector.terminate(run)


async def test_a_workflow_asks_by_its_state_and_a_handler_takes_the_answer_as_it_is(connector):
    """A8.2, E6: the handler that says so is no signal; its refusals are told in its words."""
    found = (await discovered(connector))["Ask/ask_run"]
    assert (found.metadata["answering"], found.signals, found.metadata["shared"]) == ("take", [], {})
    _, run = await start(connector, RestateHarness.asking)
    (question,) = (await seen(connector, run, lambda at: at.questions)).questions
    assert (question.id, question.message) == ("good", "Is the  tea good?")
    assert question.schema["properties"] == {"approve": {"type": "boolean"}}
    with pytest.raises(Rejected, match="approve must be  true or false"):
        await connector.answer(run, question.id, {"approve": 1})
    told = {"approve": False, "why": "{{ 6 * 7 }} \u202e' or '1' = '1"}
    # At once: two doors, or an answer that is sent again. A later one finds that nothing is asked.
    results = await asyncio.gather(
        *(connector.answer(run, question.id, told) for _ in range(3)), return_exceptions=True
    )
    assert None in results and {type(one) for one in results} <= {type(None), NotFound}
    assert (await until_ended(connector, run)).output == {"told": told}


async def test_a_question_of_a_run_that_ended_by_itself_takes_no_answer(connector):
    """A8.2: though Restate's handler would."""
    workflow = RestateHarness.asking.workflow
    _, run = await start(connector, Sample(workflow, {"order_id": "A17", "amount": 0.5}))
    (question,) = (await seen(connector, run, lambda at: at.questions)).questions
    assert (await until_ended(connector, run)).output == {"told": None}
    with pytest.raises(NotFound, match="has ended"):
        await connector.answer(run, question.id, {"approve": True})
    with pytest.raises(Unsupported):
        await connector.answer(
            RunRef(workflow=WorkflowHarness.approval, run_id=run.run_id, key=run.key), "a", {}
        )


async def test_a_service_that_is_down_leaves_the_outcome_of_an_answer_unknown(restate):
    """A8.2: Restate keeps the answer until its service is back, and takes it once though it is sent again."""
    async with closing(restate.connector(request_timeout_seconds=1.0)) as connector:
        _, run = await start(connector, RestateHarness.asking)
        (question,) = (await seen(connector, run, lambda at: at.questions)).questions
        restate.stop_handlers()
        try:
            for _ in range(2):
                assert list((await connector.poll(run)).questions) == [question]
                with pytest.raises(OutcomeUnknown):
                    await connector.answer(run, question.id, {"approve": True})
        finally:
            restate.serve_handlers()
        ended = await until_ended(connector, run, seconds=60.0)
        assert ended.output == {"told": {"approve": True}}
    taken = restate.rows(f"target_service_name = 'Ask' and target_service_key = '{run.key}'")
    assert sorted(row["target_handler_name"] for row in taken) == ["ask_run", "take"]
