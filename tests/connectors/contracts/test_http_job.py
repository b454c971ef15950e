"""The contract for each engine whose declaration ships, against its published API at the wire."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar
from unittest.mock import ANY
from uuid import UUID, uuid4

import pytest

from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.errors import NotFound, OutcomeUnknown, Rejected, Unreachable
from connectors.http_job.connector import HttpJobConnector
from connectors.http_job.engine import HttpJobConfig
from connectors.protocol import Connector, Question, RunRef, RunState, WorkflowRef
from connectors.testing import (
    Asked,
    ConnectorContract,
    EngineHarness,
    Sample,
    closing,
    eventually,
    http_answer,
    start,
    until_ended,
)
from tests.connectors.job_engines import (
    ASKING,
    REASON,
    SECONDS,
    Airflow,
    Argo,
    Awx,
    Buildbot,
    Conductor,
    Dagster,
    GitHub,
    Jenkins,
    JobEngine,
    N8n,
    serving,
)
from tests.connectors.scripted import Received, ScriptedEngine, replies, stays_silent_after

WRONG = "wrong-secret-fedcba9876543210"


class JobEngineHarness(EngineHarness):
    preset: ClassVar[str]
    engine_class: ClassVar[type[JobEngine]]
    prefix: ClassVar[str] = ""
    login: ClassVar[dict[str, str]] = {}
    secret: ClassVar[str] = "token"
    failure = REASON
    secrets = frozenset({JobEngine.secret, WRONG})

    def __init__(self, engine: JobEngine) -> None:
        self.engine = engine
        self.completing = Sample(self.workflow("complete"), self.arguments)
        self.failing = Sample(self.workflow("fail"), {})
        self.lasting = Sample(self.workflow("last"), {})
        if self.consent:
            self.asking = Sample(self.workflow(ASKING), {})

    arguments: ClassVar[dict[str, Any]] = {"cups": 2}

    def workflow(self, job: str) -> WorkflowRef:
        return WorkflowRef(id=job, name=job)

    def connector(self) -> Connector:
        return self._connector(self.engine.port)

    def connector_with_wrong_credentials(self) -> Connector:
        return self._connector(self.engine.port, **{self.secret: WRONG})

    def connector_at(self, port: int) -> Connector:
        return self._connector(port)

    def runs_started_with(self, key: UUID) -> int:
        return sum(run.key == str(key) for run in self.engine.runs.values())

    def _connector(self, port: int, **settings: Any) -> Connector:
        usual = {"preset": self.preset, "base_url": f"http://127.0.0.1:{port}{self.prefix}"}
        usual |= {self.secret: JobEngine.secret, **self.login}
        return HttpJobConnector(HttpJobConfig.model_validate(usual | settings))


class LoggedInHarness(JobEngineHarness):
    """With a login that answers with a token."""

    login: ClassVar = {"username": "admin"}
    secret = "password"
    login_path: ClassVar[str]
    login_answer: ClassVar[dict[str, str]]

    @asynccontextmanager
    async def connector_without_answers(self) -> AsyncIterator[Connector]:
        """Its login is answered, so that the start gets as far as the silence."""
        stay_silent, log_in = stays_silent_after(seconds=60), replies(200, self.login_answer)

        async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
            await (log_in if request.target == self.login_path else stay_silent)(request, writer)

        async with (
            ScriptedEngine(behave) as engine,
            closing(self._connector(engine.port)) as connector,
        ):
            yield connector

    def garbled(self, asked: Asked, garbage: bytes) -> bytes:
        is_login = asked.target == self.login_path
        return http_answer(json.dumps(self.login_answer).encode()) if is_login else garbage


class AirflowHarness(LoggedInHarness):
    preset = "airflow"
    engine_class = Airflow
    login_path = "/auth/token"
    login_answer: ClassVar = {"access_token": "token-of-nobody"}
    output: ClassVar = {"cups": 2}
    consent: ClassVar = {"_options": ["Yes"], "cups": 3}
    unfit: ClassVar = {"_options": ["Perhaps"], "cups": 3}


class ConductorHarness(LoggedInHarness):
    preset = "conductor"
    engine_class = Conductor
    login_path = "/api/token"
    login_answer: ClassVar = {"token": "token-of-nobody"}
    consent: ClassVar = {"good": True}
    output: ClassVar = {"brewed": {"cups": 2}}
    unknown_workflow = WorkflowRef(
        id="no-such-workflow", name="no such workflow", metadata={"kept": {"version": 1}}
    )

    def workflow(self, job: str) -> WorkflowRef:
        return WorkflowRef(id=job, name=job, metadata={"kept": {"version": 2}})


class DagsterHarness(JobEngineHarness):
    preset = "dagster"
    engine_class = Dagster
    arguments: ClassVar = {"ops": {"brew": {"config": {"cups": 2}}}}
    assets: ClassVar = [{"label": "sort", "text": "Assam"}]
    output: ClassVar = {"steps": ["brew"], "assets": [{"asset": "kitchen/tea", "metadata": assets}]}
    unknown_workflow = WorkflowRef(
        id="tea/__repository__/pour",
        name="pour",
        metadata={"kept": {"location": "tea", "repository": "__repository__"}},
    )

    def workflow(self, job: str) -> WorkflowRef:
        kept = {"location": "tea", "repository": "__repository__"}
        return WorkflowRef(id=f"tea/__repository__/{job}", name=job, metadata={"kept": kept})


class GitHubHarness(JobEngineHarness):
    preset = "github_actions"
    engine_class = GitHub
    prefix = "/repos/octo/tea"
    output: ClassVar = {"conclusion": "success", "url": ANY, "attempt": 1, "commit": ANY}
    consent: ClassVar = {"state": "approved", "comment": "It is good."}
    unfit: ClassVar = {"state": "approved", "comment": ""}
    unknown_workflow = WorkflowRef(id="999", name="no such workflow")

    def workflow(self, job: str) -> WorkflowRef:
        kept = {"file": f".github/workflows/{job}.yml"}
        return WorkflowRef(id=str(GitHub.ids[job]), name=job, metadata={"kept": kept})

    def unknown_run_id(self) -> str:
        return "1"


class N8nHarness(JobEngineHarness):
    preset = "n8n"
    engine_class = N8n
    output: ClassVar = [{"brewed": {"cups": 2}}]
    consent: ClassVar = {"field-0": "yes", "field-1": 3, "field-2": ["Mint"]}

    def workflow(self, job: str) -> WorkflowRef:
        return WorkflowRef(id=N8n.ids.get(job, job), name=job, metadata={"kept": {"webhook": job}})

    def unknown_run_id(self) -> str:
        return "999999"


class JenkinsHarness(JobEngineHarness):
    preset = "jenkins"
    engine_class = Jenkins
    login: ClassVar = {"username": "tea"}
    secret = "password"
    output: ClassVar = {"result": "SUCCESS", "number": ANY, "url": ANY}
    consent: ClassVar = {"good": True, "sort": "Mint"}

    def workflow(self, job: str) -> WorkflowRef:
        verb = "buildWithParameters" if job == "complete" else "build"
        return WorkflowRef(id=job, name=job, metadata={"kept": {"verb": verb}})

    def unknown_run_id(self) -> str:
        return "9999"


class AwxHarness(JobEngineHarness):
    preset = "awx"
    engine_class = Awx
    output: ClassVar = {"brewed": {"cups": 2}}
    unknown_workflow = WorkflowRef(id="999", name="no such template")

    def workflow(self, job: str) -> WorkflowRef:
        return WorkflowRef(id=str(Awx.ids[job]), name=job)

    def unknown_run_id(self) -> str:
        return "9999"


class BuildbotHarness(JobEngineHarness):
    preset = "buildbot"
    engine_class = Buildbot
    output: ClassVar = {
        "result": "build successful",
        "build": 7,
        "properties": {"cups": [2, "Force Build Form"]},
    }
    unknown_workflow = WorkflowRef(id="999", name="no such builder", metadata={"kept": {"scheduler": "gone"}})

    def workflow(self, job: str) -> WorkflowRef:
        return WorkflowRef(id=str(Buildbot.ids[job]), name=job, metadata={"kept": {"scheduler": "force"}})

    def unknown_run_id(self) -> str:
        return "9999"


class ArgoHarness(JobEngineHarness):
    preset = "argo"
    engine_class = Argo
    output: ClassVar = {"parameters": [{"name": "cups", "value": "2"}]}
    consent: ClassVar = {"good": "yes", "note": "{{ 6 * 7 }}"}
    unfit: ClassVar = {"better": "yes"}


HARNESSES = (
    AirflowHarness,
    ArgoHarness,
    AwxHarness,
    BuildbotHarness,
    ConductorHarness,
    DagsterHarness,
    GitHubHarness,
    JenkinsHarness,
    N8nHarness,
)
assert set(SECONDS) == {"complete", "fail", "last"}


class TestJobEngines(ConnectorContract):
    @pytest.fixture(params=HARNESSES, ids=[harness.preset for harness in HARNESSES])
    def harness(self, request: pytest.FixtureRequest) -> Iterator[EngineHarness]:
        with serving(request.param.engine_class()) as engine:
            yield request.param(engine)

    async def test_an_unknown_workflow_cannot_be_started(self, connector, harness):
        """A2.4: Buildbot fails with an internal error instead, and the lookup tells that there is no run."""
        if not isinstance(harness, BuildbotHarness):
            await super().test_an_unknown_workflow_cannot_be_started(connector, harness)
            return
        key = uuid4()
        with pytest.raises(OutcomeUnknown, match="has no attribute 'force'"):
            await connector.start(harness.unknown_workflow, {}, key=key)
        assert await connector.find_run(harness.unknown_workflow, {}, key=key) is None

    async def test_runs_have_the_time_that_the_engine_gives_them(self, connector):
        """A7.4: the product's own limit of five minutes would cancel most of what these engines run."""
        found = [one async for one in connector.discover() if isinstance(one, WorkflowDefinition)]
        assert min(one.timeout_seconds or 0 for one in found) >= 3600


@pytest.fixture
async def to_buildbot() -> AsyncIterator[Connector]:
    with serving(Buildbot()) as engine:
        async with closing(BuildbotHarness(engine).connector()) as connector:
            yield connector


async def test_builders_of_buildbot_are_listed_with_the_fields_that_a_caller_can_fill_in(to_buildbot):
    """A1.1, A6.1: those of groups too, and not the reason, which is the key. A builder that nothing but other
    builders start is skipped."""
    complete, *_, triggered = [one async for one in to_buildbot.discover()]
    assert isinstance(complete, WorkflowDefinition) and isinstance(triggered, RejectedDefinition)
    assert (complete.name, complete.description, complete.tags) == ("complete", "Lets it complete.", ["tea"])
    assert complete.input_schema == {
        "type": "object",
        "properties": {
            "cups": {"type": "integer", "description": "How many.", "default": 2},
            "sort": {"type": "string", "description": "Sort", "enum": ["Assam", "Darjeeling"]},
            "milk": {"type": "boolean", "description": "Milk", "default": False},
            "branch": {"type": "string", "description": "Branch:"},
        },
        "required": ["sort"],
    }
    assert "No force scheduler starts this builder." in triggered.reason


async def test_buildbot_says_of_each_field_what_is_wrong_with_it(to_buildbot):
    """A2.4: in an object, which the agent reads as a sentence."""
    workflow = WorkflowRef(id="1", name="complete", metadata={"kept": {"scheduler": "force"}})
    with pytest.raises(Rejected, match="400 Bad Request: cups: Cups: none"):
        await to_buildbot.start(workflow, {"cups": 0}, key=uuid4())


async def test_what_buildbot_logs_is_kept_without_its_workers_environment(to_buildbot):
    """E6, A8.5: where secrets often are."""
    workflow = WorkflowRef(id="2", name="fail", metadata={"kept": {"scheduler": "force"}})
    _, run = await start(to_buildbot, Sample(workflow, {}))
    seen = await until_ended(to_buildbot, run)
    assert seen.raw["logs"][-3:] == [REASON, "program finished with exit code 3", "elapsedTime=0.01"]
    assert "HOME" not in str(seen.raw["logs"])


@pytest.fixture
def conductor() -> Iterator[Conductor]:
    with serving(Conductor()) as engine:
        assert isinstance(engine, Conductor)
        yield engine


async def test_conductors_workflows_are_listed_in_their_latest_version_with_what_they_take(conductor):
    """A1.1, A6.1: by their JSON Schema, or else by the names of their inputs."""
    async with closing(ConductorHarness(conductor).connector()) as connector:
        found = {item.name: item async for item in connector.discover()}
    complete, fail = found["complete"], found["fail"]
    assert isinstance(complete, WorkflowDefinition) and isinstance(fail, WorkflowDefinition)
    assert (complete.version, complete.description) == ("2", "Lets it complete.")
    assert complete.input_schema["required"] == ["cups"]
    assert fail.input_schema["properties"].keys() == {"cups", "sort"}


async def test_open_source_conductor_is_asked_without_a_login_and_runs_the_reviewed_version():
    """A5.1, B3: it promises nothing about keys, so that a lost start is looked up."""
    with serving(Conductor(is_open=True)) as engine:
        harness = ConductorHarness(engine)
        settings = {"preset": "conductor", "base_url": f"http://127.0.0.1:{engine.port}"}
        async with closing(HttpJobConnector(HttpJobConfig.model_validate(settings))) as connector:
            started, run = await start(connector, harness.lasting)
            found = await connector.find_run(run.workflow, {}, key=run.key)
            seen = await connector.poll(run)
            assert not connector.capabilities.idempotent_start
    assert found is not None and found.run_id == started.run_id
    assert seen.progress_message == "brew_ref"
    assert not [asked for asked in engine.asked if "x-authorization" in asked.headers]
    sent = next(asked.body for asked in engine.asked if asked.method == "POST")
    assert (sent["version"], sent["correlationId"]) == (2, str(run.key))


async def test_a_token_of_orkes_that_has_expired_is_renewed(conductor):
    """A5.1: without the caller's notice."""
    async with closing(ConductorHarness(conductor).connector()) as connector:
        assert (await connector.check()).ok
        conductor.tokens.clear()
        assert (await connector.check()).ok
    assert sum(asked.path == "/api/token" for asked in conductor.asked) == 2


async def test_a_run_of_dagster_that_is_still_starting_is_not_marked_as_cancelled_and_left_to_run():
    """A7.5: Dagster would say that it is cancelled, and its process start all the same."""
    with serving(Dagster()) as engine:
        assert isinstance(engine, Dagster)
        harness = DagsterHarness(engine)
        async with closing(harness.connector()) as connector:
            _, run = await start(connector, harness.lasting)
            engine.starting.add(run.run_id)
            with pytest.raises(Unreachable, match="cannot do that yet"):
                await connector.terminate(run)
            engine.starting.clear()
            await connector.terminate(run)
            assert (await connector.poll(run)).state is RunState.CANCELLED


async def asked_of(connector: Connector, harness: JobEngineHarness) -> tuple[RunRef, Question]:
    assert harness.asking is not None
    _, run = await start(connector, harness.asking)
    (question,) = (await connector.poll(run)).questions
    return run, question


async def test_airflow_asks_for_choices_and_inputs_and_gets_them_apart():
    """A8.2: of a mapped task, while it waits and not once it has failed; refused for who is not assigned."""
    with serving(Airflow()) as engine:
        harness = AirflowHarness(engine)
        async with closing(harness.connector()) as connector:
            run, question = await asked_of(connector, harness)
            assert question.message == "Is it good?\n\nTaste  it."
            assert question.schema["required"] == ["_options", "cups"]
            choices = question.schema["properties"]["_options"]
            assert (choices["type"], choices["items"]["enum"]) == ("array", ["Yes", "No"])
            cups = {"type": "integer", "description": "How many.", "default": 2}
            assert question.schema["properties"]["cups"] == cups
            with pytest.raises(Rejected, match="is not a respondent") as refusal:
                await connector.answer(run, question.id, {"_options": ["No"], "cups": 3})
            assert not refusal.value.needs_operator
            await connector.answer(run, question.id, harness.consent)
            assert engine.runs[run.run_id].answer == {"chosen_options": ["Yes"], "params_input": {"cups": 3}}
            assert [one.path for one in engine.asked].count(harness_path(run, "hitlDetails")) == 3
            _, quiet = await start(connector, harness.lasting)
            await connector.poll(quiet)
            assert harness_path(quiet, "hitlDetails") not in {one.path for one in engine.asked}


def harness_path(run: RunRef, of_it: str) -> str:
    return f"/api/v2/dags/{run.workflow.id}/dagRuns/{run.run_id}/{of_it}"


async def test_a_deployment_that_somebody_else_reviewed_first_is_not_asked_any_more():
    """A8.2: GitHub answers 422 then; the token's owner is asked for their own environments only."""
    with serving(GitHub()) as engine:
        harness = GitHubHarness(engine)
        async with closing(harness.connector()) as connector:
            run, question = await asked_of(connector, harness)
            assert (question.id, question.url) == ("161088068", "https://github.com/octo/tea/staging")
            gone = {"status": 422, "body": {"message": "No pending deployment requests"}}
        at_work = {"status": "waiting", "conclusion": None}
        pending = [{"environment": {"id": 161088068}, "current_user_can_approve": True}]

        async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
            if request.method == "POST":
                await replies(gone["status"], gone["body"])(request, writer)
            else:
                is_list = request.target.endswith("pending_deployments")
                await replies(200, pending if is_list else at_work)(request, writer)

        async with ScriptedEngine(behave) as racing, closing(harness.connector_at(racing.port)) as connector:
            with pytest.raises(NotFound, match="does not ask this any more: No pending"):
                await connector.answer(run, question.id, harness.consent)


async def test_conductors_tasks_for_people_say_what_they_want_in_their_inputs(conductor):
    """A8.2: the answer is the task's output."""
    harness = ConductorHarness(conductor)
    async with closing(harness.connector()) as connector:
        run, question = await asked_of(connector, harness)
        assert question.message == "Is it good?"
        assert question.schema == {"type": "object", "properties": {"good": {"type": "boolean"}}}
        await connector.answer(run, question.id, {"good": True})
        assert conductor.runs[run.run_id].answer["outputData"] == {"good": True}


async def test_a_form_of_n8n_is_sent_as_its_page_sends_it_and_a_webhook_takes_any_json():
    """A8.2: the fields by number, what is no text as JSON; n8n 2.x wants the execution's token back."""
    with serving(N8n()) as engine:
        assert isinstance(engine, N8n)
        harness = N8nHarness(engine)
        async with closing(harness.connector()) as connector:
            run, question = await asked_of(connector, harness)
            assert question.message == "Is it good?"
            assert question.schema == {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "field-0": {"type": "string", "enum": ["yes", "no"], "description": "Good"},
                    "field-1": {"type": "number", "description": "Cups"},
                    "field-2": {
                        "type": "array",
                        "items": {"type": "string", "enum": ["Assam", "Mint"]},
                        "description": "Sorts",
                    },
                },
                "required": ["field-0"],
            }
            await connector.answer(run, question.id, harness.consent | {"field-3": None})
            told = {"field-0": "yes", "field-1": "3", "field-2": '["Mint"]'}
            assert engine.runs[run.run_id].answer == told
            engine.waits = {"resume": "webhook", "httpMethod": "POST", "formTitle": "={{ $json.secret }}"}
            run, question = await asked_of(connector, harness)
            assert (question.message, question.schema["additionalProperties"]) == ("Brew", True)
            await connector.answer(run, question.id, {"good": True, "why": {"cups": 3}})
            assert engine.runs[run.run_id].answer == {"good": True, "why": {"cups": 3}}
            for quiet in ({"resume": "timeInterval"}, {"resume": "webhook"}):
                engine.waits = quiet
                _, run = await start(connector, Sample(harness.workflow(ASKING), {}))
                assert (await connector.poll(run)).questions == []


async def test_a_pipeline_of_jenkins_asks_and_a_freestyle_job_is_not_asked():
    """A8.2: its answer has the parameters of the input step."""
    with serving(Jenkins()) as engine:
        harness = JenkinsHarness(engine)
        async with closing(harness.connector()) as connector:
            _, run = await start(connector, Sample(harness.workflow(ASKING), {}))
            (question,) = await eventually(lambda: asked_now(connector, run), seconds=10)
            assert question.schema["properties"]["sort"] == {"type": "string", "enum": ["Assam", "Mint"]}
            await connector.answer(run, question.id, harness.consent)
            assert engine.runs[run.run_id].answer == [
                {"name": "good", "value": True},
                {"name": "sort", "value": "Mint"},
            ]
            _, quiet = await start(connector, harness.lasting)
            await connector.poll(quiet)
    assert not [asked for asked in engine.asked if "/last/" in asked.path and "wfapi" in asked.path]


async def asked_now(connector: Connector, run: RunRef) -> Any:
    return (await connector.poll(run)).questions


async def test_a_suspended_node_of_argo_asks_for_the_outputs_that_it_lacks():
    """A8.2: with the choices of its input."""
    with serving(Argo()) as engine:
        harness = ArgoHarness(engine)
        async with closing(harness.connector()) as connector:
            run, question = await asked_of(connector, harness)
            assert question.message == "approve"
            assert question.schema["properties"] == {
                "good": {"type": "string", "enum": ["yes", "no"], "description": "Is it good?"},
                "note": {"type": "string"},
            }
            await connector.answer(run, question.id, harness.consent)
            assert engine.runs[run.run_id].answer == harness.consent
            assert isinstance(engine, Argo)
            engine.supplied = ()
            run, question = await asked_of(connector, harness)
            assert question.schema["properties"] == {}
            await connector.answer(run, question.id, {})
            assert engine.runs[run.run_id].answer == "resumed"
