"""The contract for the declarations of Airflow and Dagster, and what is their own, against real servers."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar
from unittest.mock import ANY
from uuid import UUID, uuid4

import pytest

from connectors.definitions import WorkflowDefinition
from connectors.errors import NotFound, OutcomeUnknown, Rejected, Unreachable
from connectors.protocol import Connector, RunRef, RunSnapshot, RunState, WorkflowRef
from connectors.testing import ConnectorContract, EngineHarness, Sample, accepted, closing, start
from tests.connectors.calling import goes_on_from_its_third_step, has_ended, until
from tests.connectors.contracts.test_http_job import WRONG, AirflowHarness, DagsterHarness, JobEngineHarness
from tests.engines.job_engines.servers import (
    AirflowServer,
    JobEngineServer,
    Servers,
    job_engines,
)

__all__ = ["job_engines"]

# A server's start alone may take a minute on a busy machine.
pytestmark = pytest.mark.timeout(400)

PATIENCE_SECONDS = 180.0
LOOK_SECONDS = 0.25


class RealEngineHarness(JobEngineHarness):
    deadline_seconds = PATIENCE_SECONDS
    server: JobEngineServer

    def _connector(self, port: int, **settings: Any) -> Connector:
        return self.server.connector(base_url=f"http://127.0.0.1:{port}", **settings)

    def connector(self) -> Connector:
        return self.server.connector()

    def connector_with_wrong_credentials(self) -> Connector:
        return self.server.connector(**{self.secret: WRONG})

    def runs_started_with(self, key: UUID) -> int:
        return self.server.runs_started_with(key)

    async def ended(self, connector: Connector, sample: Sample) -> tuple[RunRef, RunSnapshot]:
        """Each run takes processes of its own and some seconds, so the first test starts both."""
        known = self.server.ended_runs
        if not known:
            for one in (self.completing, self.failing):
                known[one.workflow.id] = (await start(connector, one))[1]
        run = known[sample.workflow.id]
        return run, await until(connector, run, has_ended)


class RealAirflow(RealEngineHarness, AirflowHarness):
    output: ClassVar = {"order_id": "A17", "cups": 2, "milk": None, "water": "hot"}
    consent: ClassVar = {"_options": "Approve"}
    unfit: ClassVar = {"_options": "Perhaps"}
    secrets = frozenset({AirflowServer.password, WRONG})

    def __init__(self, server: JobEngineServer) -> None:
        self.server = server
        self.completing = Sample(self.workflow("place_order"), {"order_id": "A17"})
        self.failing = Sample(self.workflow("fail"), {"words": self.failure})
        self.lasting = Sample(self.workflow("last"), {})
        self.asking = Sample(self.workflow("ask"), {})


class RealDagster(RealEngineHarness, DagsterHarness):
    has_credentials = False
    secrets = frozenset()
    assets: ClassVar = [{"label": "sort", "text": "Assam"}, {"label": "cups", "intValue": 3}]
    output: ClassVar = {"steps": ["brew"], "assets": [{"asset": "kitchen/tea", "metadata": assets}]}

    def __init__(self, server: JobEngineServer) -> None:
        self.server = server
        cups = {"ops": {"brew": {"config": {"cups": 3}}}}
        self.completing = Sample(self.workflow("brew_tea"), cups)
        self.failing = Sample(
            self.workflow("spill_tea"), {"ops": {"complain": {"config": {"words": self.failure}}}}
        )
        self.lasting = Sample(self.workflow("steep_tea"), {})
        self.unknown_workflow = self.workflow("no_such_job")

    def workflow(self, job: str) -> WorkflowRef:
        place = {"location": "dagster_jobs.py", "repository": "__repository__"}
        return WorkflowRef(id="/".join([*place.values(), job]), name=job, metadata={"kept": place})


HARNESSES = {"airflow": RealAirflow, "dagster": RealDagster}


def fail_everything(servers: Servers) -> None:
    airflow = servers["airflow"]
    assert isinstance(airflow, AirflowServer)
    airflow.fail_everything()


class TestRealJobEngines(ConnectorContract):
    @pytest.fixture(params=HARNESSES)
    def harness(self, request: pytest.FixtureRequest, job_engines: Servers) -> Iterator[EngineHarness]:
        yield HARNESSES[request.param](job_engines[request.param])
        if request.param == "airflow":
            fail_everything(job_engines)

    async def test_simultaneous_starts_with_one_key_keep_the_promise_too(self, connector, harness):
        """B3: on SQLite Airflow answers some of them with 500, as its database is locked. As such a start may
        have happened, the product repeats it with its key."""
        if not connector.capabilities.idempotent_start:
            return
        key = uuid4()

        async def start_once() -> str:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    try:
                        return (await start(connector, harness.completing, key))[0].run_id
                    except OutcomeUnknown:
                        continue

        assert len(set(await asyncio.gather(*(start_once() for _ in range(2))))) == 1
        assert harness.runs_started_with(key) == 1

    async def test_terminate_ends_a_run_or_is_unsupported(self, connector, harness):
        """A7.5: Dagster says CANCELED at once, and CANCELING for a moment more while the process ends."""
        if isinstance(harness, RealAirflow):
            assert connector.capabilities.terminates_after_seconds is None
            return
        _, run = await start(connector, harness.lasting)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    await connector.terminate(run)
                except Unreachable:
                    await asyncio.sleep(LOOK_SECONDS)
                except Rejected:
                    break
        assert (await until(connector, run, has_ended)).state is RunState.CANCELLED
        with pytest.raises(NotFound):
            await connector.terminate(replace(run, run_id=harness.unknown_run_id()))


@pytest.fixture
def airflow(job_engines: Servers) -> Iterator[RealAirflow]:
    yield RealAirflow(job_engines["airflow"])
    fail_everything(job_engines)


@pytest.fixture
async def to_airflow(airflow: RealAirflow) -> AsyncIterator[Connector]:
    async with closing(airflow.connector()) as made:
        yield made


async def test_the_params_of_a_dag_are_its_inputs(to_airflow):
    """A1.1, A6.1: with types, limits and defaults; one without a default has to be given. A paused DAG is
    not listed."""
    found = {one.name: one async for one in to_airflow.discover() if isinstance(one, WorkflowDefinition)}
    assert found.keys() == {"place_order", "fail", "last", "ask", "ask_much", "take_steps"}
    order = found["place_order"]
    assert order.description == "Take an order and say what became of it."
    assert sorted(order.tags) == ["orders", "tea"]
    assert order.input_schema == {
        "type": "object",
        "properties": {
            "order_id": {"type": "string", "minLength": 1, "description": "What the customer calls it."},
            "cups": {"type": "integer", "minimum": 1, "description": "How many.", "default": 2},
            "milk": {"type": ["null", "string"]},
        },
        "required": ["order_id"],
    }
    assert found["fail"].description == "Fails with the words that it is given."


async def test_arguments_that_do_not_fit_a_dag_are_rejected_in_airflows_words(airflow, to_airflow):
    """A2.4: Airflow holds a run's configuration to the params."""
    key = uuid4()
    with pytest.raises(Rejected, match="Invalid input for param order_id"):
        await start(to_airflow, Sample(airflow.completing.workflow, {"order_id": ""}), key)
    assert airflow.runs_started_with(key) == 0


async def test_a_run_says_how_many_of_its_tasks_are_done_and_which_go_on(airflow, to_airflow):
    """A7.3: of Airflow, whose runs say nothing of their progress themselves."""
    _, run = await start(to_airflow, airflow.lasting)
    seen = await until(to_airflow, run, lambda seen: seen.progress_message == "wait")
    assert (seen.state, seen.progress) == (RunState.RUNNING, 0.0)


async def test_a_run_that_airflows_scheduler_begins_while_it_is_cancelled_is_cancelled(airflow, to_airflow):
    """A8.5: the scheduler then overwrites the state of the run, whose tasks are all skipped, with success."""
    _, run = await start(to_airflow, airflow.lasting)
    await accepted(lambda: to_airflow.cancel(run), seconds=PATIENCE_SECONDS)
    place = f"/api/v2/dags/{run.workflow.id}/dagRuns/{run.run_id}"
    await asyncio.to_thread(airflow.server.ask, "PATCH", place, {"state": "success"})
    ended = await until(to_airflow, run, has_ended)
    assert ended.raw["state"] == "success"
    assert ended.state is RunState.CANCELLED


async def test_a_run_of_dagster_says_how_many_of_its_steps_are_done(job_engines):
    """A7.3, A8.5: and its record keeps what it logged last."""
    harness = RealDagster(job_engines["dagster"])
    async with closing(harness.connector()) as connector:
        _, run = await start(connector, harness.lasting)
        seen = await until(connector, run, lambda seen: seen.progress_message == "wait")
        assert (seen.state, seen.progress) == (RunState.RUNNING, 0.0)
        await connector.cancel(run)
        ended = await until(connector, run, has_ended)
        assert ended.state is RunState.CANCELLED
        assert {"time": ANY, "level": "DEBUG", "message": ANY} in ended.raw["logs"]


async def test_tasks_of_airflow_that_ask_at_once_are_answered_one_by_one(job_engines):
    """A8.2: each of a mapped task by itself, with the choices and inputs that it names; an answer given in
    Airflow's own pages in the meantime is found, and a second one is not taken."""
    airflow = job_engines["airflow"]
    harness = RealAirflow(airflow)
    async with closing(harness.connector()) as connector:
        _, run = await start(connector, Sample(harness.workflow("ask_much"), {}))
        asked = await until(connector, run, lambda seen: len(seen.questions) == 2)
        mine, yours = sorted(asked.questions, key=lambda question: question.message)
        assert (mine.message, yours.message) == ("Which for me?", "Which for you?")
        assert mine.schema["properties"] == {
            "_options": {
                "title": "Choices",
                "type": "array",
                "minItems": 1,
                "uniqueItems": True,
                "items": {"type": "string", "enum": ["Assam", "Mint"]},
            },
            "cups": {"type": "integer", "minimum": 1, "description": "How many.", "default": 2},
        }
        own = f"/api/v2/dags/ask_much/dagRuns/{run.run_id}/taskInstances/choose/0/hitlDetails"
        airflow.ask("PATCH", own, {"chosen_options": ["Mint"], "params_input": {"cups": 1}})
        with pytest.raises(NotFound, match="does not ask this any more"):
            await connector.answer(run, mine.id, {"_options": ["Assam"], "cups": 1})
        await connector.answer(run, yours.id, {"_options": ["Assam", "Mint"], "cups": 3})
        told = airflow.ask("GET", own.replace("/0/", "/1/"))
        assert (told["chosen_options"], told["params_input"]) == (["Assam", "Mint"], {"cups": 3})
        name = {"_options": "OK", "name": '{{ 6 * 7 }} \u202e"\\', "milk": True}
        cups = {"_options": ["Mint"], "cups": 1}
        answers = {"Your name?": name, "Which for me?": cups, "Which for you?": cups}
        # On a busy machine Airflow loses a task and tries it again, which then asks anew.
        while not has_ended(asked := await until(connector, run, lambda at: at.questions or has_ended(at))):
            for entry in asked.questions:
                with suppress(NotFound):
                    await connector.answer(run, entry.id, answers[entry.message])
        assert asked.state is RunState.COMPLETED
        assert asked.output["params_input"] == {"name": name["name"], "milk": True}
        with pytest.raises(NotFound, match="has ended"):
            await connector.answer(run, entry.id, name)


async def test_airflow_clears_the_failed_task_and_keeps_what_the_others_have_done(
    airflow, to_airflow, tmp_path
):
    """A7.2, B3: the run goes on under its id, and its note says which retry it was."""
    folder = {"folder": str(tmp_path)}
    runs = await goes_on_from_its_third_step(to_airflow, airflow.workflow("take_steps"), folder, tmp_path)
    assert len({run.run_id for run in runs}) == 1
    assert (await to_airflow.poll(runs[-1])).output == "three"
    assert await to_airflow.find_retry(runs[0], key=runs[1].key) is None


async def test_dagster_executes_the_failed_step_in_another_run(job_engines, tmp_path):
    """A7.2, B3: each has a key of its own, by which it is found."""
    harness = RealDagster(job_engines["dagster"])
    config = {"config": {"folder": str(tmp_path)}}
    arguments = {"ops": dict.fromkeys(("one", "two", "three"), config)}
    async with closing(harness.connector()) as connector:
        workflow = harness.workflow("take_three_steps")
        runs = await goes_on_from_its_third_step(connector, workflow, arguments, tmp_path)
        assert len({run.run_id for run in runs}) == 3
        for run in runs:
            found = await connector.find_run(run.workflow, {}, key=run.key)
            assert found is not None and found.run_id == run.run_id
