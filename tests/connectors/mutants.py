"""A connector that keeps every promise of the contract, and mutants of it that break one each.

`test_contract_against_mutants.py` has pytest collect this module by itself.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar
from urllib.parse import quote
from uuid import UUID, uuid4

import pytest
from loguru import logger
from pydantic import BaseModel, SecretStr

from connectors.definitions import RejectedDefinition, WorkflowDefinition, parse_definition
from connectors.errors import (
    ConnectorError,
    InvalidAnswer,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unreachable,
)
from connectors.network.client import EngineClient, fill_path
from connectors.network.transport import HttpLimits
from connectors.protocol import (
    Capabilities,
    Connector,
    Health,
    ListedRun,
    Question,
    ReportProgress,
    RunFilter,
    RunPage,
    RunRef,
    RunSnapshot,
    RunState,
    Started,
    WorkflowRef,
    health_of,
    ignore_progress,
)
from connectors.testing import ConnectorContract, EngineHarness, Interaction, Sample
from tests.connectors.lathe import WRONG_TOKEN, Lathe, LatheHarness, running_lathe

STATES = {"turning": RunState.RUNNING, "done": RunState.COMPLETED}
STATES |= {"failed": RunState.FAILED, "stopped": RunState.CANCELLED}


class LatheConfig(BaseModel):
    base_url: str
    starts_url: str
    token: SecretStr
    seconds: float


CAPABILITIES = Capabilities(
    idempotent_start=True,
    can_cancel=True,
    can_find_runs=True,
    can_wait=True,
    terminates_after_seconds=1.0,
    can_query=True,
    can_signal=True,
    can_list_runs=True,
    asks_people=True,
    can_retry=True,
    idempotent_retry=True,
    can_find_retries=True,
    can_pause=True,
    can_terminate=True,
)


class LatheConnector:
    """All that a Lathe server can do."""

    kind = "lathe"
    label = "Lathe"
    Config = LatheConfig

    def __init__(self, config: LatheConfig) -> None:
        self._config = config
        self._client = self._client_to(config.base_url)
        self._starts = self._client_to(config.starts_url)

    def _client_to(self, url: str) -> EngineClient:
        token, seconds = self._config.token.get_secret_value(), self._config.seconds
        return EngineClient(
            base_url=url,
            headers={"authorization": f"Bearer {token}"},
            secrets=[token],
            limits=HttpLimits(read_seconds=seconds, total_seconds=seconds),
        )

    async def check(self) -> Health:
        return await health_of(self._greet())

    async def _greet(self) -> str:
        return f"Lathe answered; jobs: {len(await self._jobs())}."

    async def _jobs(self) -> list[Any]:
        answer = await self._client.request_json("GET", "/jobs")
        if not isinstance(answer, list):
            raise InvalidAnswer("Lathe's list of jobs is not a list.")
        return answer

    async def discover(self) -> AsyncIterator[WorkflowDefinition | RejectedDefinition]:
        for position, job in enumerate(await self._jobs()):
            yield parse_definition(job, position=position)

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Started:
        path = fill_path("/jobs/{name}/runs", name=workflow.id)
        answer = await self._starts.request_json(
            "POST", path, body=arguments, headers={"idempotency-key": str(key)}, repeatable=False
        )
        return self._read_started(answer)

    def _read_started(self, answer: Any) -> Started:
        if not isinstance(answer, dict) or not isinstance(answer.get("id"), str):
            raise OutcomeUnknown("Lathe took the start and named no run.")
        return Started(run_id=answer["id"], raw=answer)

    async def poll(self, run: RunRef) -> RunSnapshot:
        return await self._snapshot(run, "/runs/{id}")

    async def wait(self, run: RunRef, *, seconds: float) -> RunSnapshot:
        return await self._snapshot(run, f"/runs/{{id}}?wait={seconds}")

    async def _snapshot(self, run: RunRef, path: str) -> RunSnapshot:
        answer = await self._client.request_json("GET", fill_path(path, id=run.run_id))
        seen = self._read_run(answer)
        return replace(seen, output=await self._output(run)) if seen.state is RunState.COMPLETED else seen

    def _read_run(self, answer: Any) -> RunSnapshot:
        try:
            return RunSnapshot(
                state=STATES[answer["state"]],
                error=str(answer.get("reason") or ""),
                started_at=moment(answer.get("started")),
                finished_at=moment(answer.get("ended")),
                is_paused=answer.get("held") is True,
                questions=(self._read_question(answer["asks"]),) if "asks" in answer else (),
                raw=answer,
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            raise InvalidAnswer("Lathe's answer is not a run.") from None

    def _read_question(self, asked: Any) -> Question:
        return Question(id=asked["id"], message=asked["text"], schema={"type": "object"})

    async def answer(self, run: RunRef, question_id: str, content: dict[str, Any]) -> None:
        path = fill_path("/runs/{id}/answers/{question}", id=run.run_id, question=question_id)
        fits = quote(str(content.get("fits")))
        await self._client.request_json("POST", f"{path}?fits={fits}", repeatable=False)

    async def _output(self, run: RunRef) -> Any:
        return await self._client.request_json("GET", fill_path("/runs/{id}/result", id=run.run_id))

    async def cancel(self, run: RunRef) -> None:
        await self._client.request("DELETE", fill_path("/runs/{id}", id=run.run_id))

    async def terminate(self, run: RunRef) -> None:
        await self._client.request("DELETE", fill_path("/runs/{id}/process", id=run.run_id))

    async def retry(self, run: RunRef, *, key: UUID) -> Started:
        path = fill_path("/runs/{id}/retries?key={key}", id=run.run_id, key=str(key))
        return self._read_started(await self._client.request_json("POST", path, repeatable=False))

    async def find_retry(self, run: RunRef, *, key: UUID) -> Started | None:
        return await self.find_run(run.workflow, {}, key=key)

    async def pause(self, run: RunRef) -> None:
        await self._client.request("POST", fill_path("/runs/{id}/hold", id=run.run_id))

    async def resume(self, run: RunRef) -> None:
        await self._client.request("POST", fill_path("/runs/{id}/release", id=run.run_id))

    async def find_run(
        self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID
    ) -> Started | None:
        runs, _ = await self._runs(f"?job={workflow.id}&key={key}")
        return self._read_started(runs[0]) if runs else None

    async def _runs(self, query: str) -> tuple[list[Any], str]:
        answer = await self._client.request_json("GET", f"/runs{query}")
        runs = answer.get("runs") if isinstance(answer, dict) else None
        if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
            raise InvalidAnswer("Lathe's list of runs is none.")
        return runs, str(answer.get("next") or "")

    async def query(self, run: RunRef, name: str, arguments: dict[str, Any]) -> Any:
        path = fill_path("/runs/{id}/queries/{name}", id=run.run_id, name=name)
        answer = await self._client.request_json("GET", path)
        if not isinstance(answer, dict) or "answer" not in answer:
            raise InvalidAnswer("Lathe's answer to the query is none.")
        return answer["answer"]

    async def signal(self, run: RunRef, name: str, arguments: dict[str, Any]) -> None:
        path = fill_path("/runs/{id}/signals/{name}", id=run.run_id, name=name)
        await self._client.request_json("POST", path, body=arguments, repeatable=False)

    async def list_runs(self, wanted: RunFilter, *, page_size: int, cursor: str = "") -> RunPage:
        states = ",".join(state for state, ours in STATES.items() if ours in wanted.states)
        conditions = f"?job={wanted.workflow}&run={wanted.run}&state={states}"
        runs, following = await self._runs(f"{conditions}&size={page_size}&begin={cursor or 0}")
        return RunPage(runs=[self._read_listed(run) for run in runs], next_cursor=following)

    def _read_listed(self, run: dict[str, Any]) -> ListedRun:
        seen = self._read_run(run)
        try:
            return ListedRun(
                run_id=run["id"],
                workflow=run["job"],
                state=seen.state,
                told_state=run["state"],
                key=UUID(run["key"]),
                started_at=seen.started_at,
                finished_at=seen.finished_at,
            )
        except (KeyError, TypeError, ValueError):
            raise InvalidAnswer("Lathe lists a run that names neither itself nor its key.") from None

    async def aclose(self) -> None:
        await self._client.aclose()
        await self._starts.aclose()


class FaultlessConnector(LatheConnector):
    capabilities = CAPABILITIES


def moment(text: Any) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


class WholeLatheHarness(LatheHarness):
    query = Interaction("speed", answer=1200)
    signal = Interaction("faster")
    asking = Sample(WorkflowRef(id="measure", name="measure"), {})
    consent: ClassVar = {"fits": "yes"}
    unfit: ClassVar = {"fits": "perhaps"}

    def connector(self) -> Connector:
        return self._connector(self.lathe.port, self.lathe.second_port, Lathe.token, 10.0)

    def connector_with_wrong_credentials(self) -> Connector:
        return self._connector(self.lathe.port, self.lathe.second_port, WRONG_TOKEN, 10.0)

    def connector_at(self, port: int) -> Connector:
        return self._connector(port, port, Lathe.token, 0.2)

    async def has_heard_signal(self, connector: Connector, run: RunRef) -> bool:
        return self.lathe.runs[run.run_id].speed == 1300

    def _connector(self, port: int, starts_port: int, token: str, seconds: float) -> Connector:
        base_url, starts_url = (f"http://127.0.0.1:{each}" for each in (port, starts_port))
        settings = {"base_url": base_url, "starts_url": starts_url, "token": token, "seconds": seconds}
        return self.kind(LatheConfig.model_validate(settings))


class OpenLatheHarness(WholeLatheHarness):
    """A server that lets everyone in, and whose answers are all of them right."""

    has_credentials = False
    secrets = frozenset()
    garbage = {}

    def connector_with_wrong_credentials(self) -> Connector:
        raise AssertionError("there are none")


class HastyLatheHarness(WholeLatheHarness):
    """For mutants: what does not come soon never comes."""

    deadline_seconds = 0.3


@pytest.fixture(scope="module")
def lathe() -> Iterator[Lathe]:
    with running_lathe() as running:
        yield running


@pytest.fixture(scope="module")
def open_lathe() -> Iterator[Lathe]:
    with running_lathe(is_open=True) as running:
        yield running


class TestFaultless(ConnectorContract):
    @pytest.fixture
    def harness(self, lathe: Lathe) -> EngineHarness:
        return WholeLatheHarness(FaultlessConnector, lathe)


class TestFaultlessWithoutCredentials(ConnectorContract):
    @pytest.fixture
    def harness(self, open_lathe: Lathe) -> EngineHarness:
        return OpenLatheHarness(FaultlessConnector, open_lathe)


@dataclass(frozen=True)
class Mutant:
    kind: type[Any]
    broken: str
    """The test of the contract that it fails."""


MUTANTS: dict[str, Mutant] = {}


def breaks(test: str, *kinds: type[Any]) -> Any:
    """Notes that these classes, or the decorated one, fail the test."""

    def note(kind: type[Any]) -> type[Any]:
        assert inspect.iscoroutinefunction(getattr(ConnectorContract, test)), test
        assert kind.__name__ not in MUTANTS
        MUTANTS[kind.__name__] = Mutant(kind, test)
        return kind

    for kind in kinds:
        note(kind)
    return note


def having(name: str, **members: Any) -> type[Any]:
    return type(name, (FaultlessConnector,), members)


def telling(name: str, method: str, change: Callable[[Any], Any]) -> type[Any]:
    """A connector whose method returns something else."""
    ours = getattr(FaultlessConnector, method)

    async def later(self: Any, *given: Any, **named: Any) -> Any:
        return change(await ours(self, *given, **named))

    def now(self: Any, *given: Any, **named: Any) -> Any:
        return change(ours(self, *given, **named))

    return having(name, **{method: later if inspect.iscoroutinefunction(ours) else now})


def taking(name: str, method: str, error: type[ConnectorError], instead: Any = None) -> type[Any]:
    """A connector whose method raises or returns something else than this error."""
    ours = getattr(FaultlessConnector, method)

    async def changed(self: Any, *given: Any, **named: Any) -> Any:
        try:
            return await ours(self, *given, **named)
        except error as caught:
            if isinstance(instead, type):
                raise instead(caught.message) from None
        return instead

    def read(self: Any, *given: Any) -> Any:
        try:
            return ours(self, *given)
        except error:
            return instead

    return having(name, **{method: changed if inspect.iscoroutinefunction(ours) else read})


class TestMutants(ConnectorContract):
    """Each runs the test that it is to fail, and no other."""

    # Starts do not last as long as their runs here.
    test_a_start_that_lasts_tells_how_far_it_is_and_ends_at_the_engine_when_it_is_broken_off = None

    @pytest.fixture
    def harness(self, mutant: str, lathe: Lathe) -> EngineHarness:
        return HastyLatheHarness(MUTANTS[mutant].kind, lathe)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "mutant" in metafunc.fixturenames:
        names = [name for name, mutant in MUTANTS.items() if mutant.broken == metafunc.function.__name__]
        metafunc.parametrize("mutant", names)


RUNNING = RunSnapshot(state=RunState.RUNNING)


async def nothing(self: Any, *given: Any) -> None: ...


async def only_look(self: Any, run: RunRef, *given: Any) -> None:
    await self.poll(run)


# The class.


@breaks("test_a_source_can_have_this_class_as_its_connector")
class CapabilitiesOnlyOnInstances(LatheConnector):
    def __init__(self, config: LatheConfig) -> None:
        super().__init__(config)
        self.capabilities = CAPABILITIES


class ReadableConfig(LatheConfig):
    token: Any


@breaks("test_a_source_can_have_this_class_as_its_connector")
class StartThatTakesNoReport(FaultlessConnector):
    async def start(self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID) -> Started:
        return await super().start(workflow, arguments, key=key)


breaks(
    "test_credentials_are_settings_that_are_stored_encrypted",
    having("TokenStoredAsItIs", Config=ReadableConfig),
)
breaks(
    "test_what_the_capabilities_promise_has_its_method", having("QueriesPromisedWithoutMethod", query=None)
)

# The listing.

breaks(
    "test_check_of_a_good_engine_is_ok_and_timed",
    telling("UntimedCheck", "check", lambda health: replace(health, latency_seconds=None)),
)
breaks(
    "test_discovery_finds_the_engines_workflows",
    telling("LastWorkflowLeftOut", "_jobs", lambda jobs: jobs[:-1]),
)


@breaks("test_a_listing_that_is_garbage_is_no_empty_listing")
class KeyErrorOnListing(FaultlessConnector):
    async def discover(self) -> AsyncIterator[WorkflowDefinition | RejectedDefinition]:
        for job in await self._jobs():
            yield WorkflowDefinition(id=job["id"], name=job["name"], description="A job.")


@breaks("test_a_listing_that_is_garbage_is_no_empty_listing")
class JobsInAnObjectTaken(FaultlessConnector):
    async def _jobs(self) -> list[Any]:
        answer = await self._client.request_json("GET", "/jobs")
        if isinstance(answer, dict) and isinstance(answer.get("jobs"), list):
            return [{"id": job["name"], "name": job["name"]} for job in answer["jobs"]]
        return await super()._jobs()


breaks(
    "test_a_listing_that_is_garbage_is_no_empty_listing",
    taking("EveryListingTaken", "_jobs", InvalidAnswer, []),
)


@breaks("test_check_of_an_engine_that_answers_with_garbage_never_raises")
class CheckThatRaises(FaultlessConnector):
    async def check(self) -> Health:
        return Health(ok=True, message=await self._greet(), latency_seconds=0.1)


@breaks("test_check_of_an_engine_that_answers_with_garbage_never_raises")
class CheckOfTheStatusAlone(FaultlessConnector):
    async def _greet(self) -> str:
        await self._client.request("GET", "/jobs")
        return "Lathe answered."


# Starts and their keys.


@breaks("test_one_key_starts_one_run_or_nothing_is_promised")
class KeyNotSent(FaultlessConnector):
    async def start(self, workflow: WorkflowRef, arguments: Any, *, key: UUID, **named: Any) -> Started:
        return await super().start(workflow, arguments, key=uuid4(), **named)


@breaks("test_simultaneous_starts_with_one_key_keep_the_promise_too")
class KeysRememberedHere(KeyNotSent):
    """As good as the engine's promise, until two starts race."""

    def __init__(self, config: LatheConfig) -> None:
        super().__init__(config)
        self._known: dict[UUID, Started] = {}

    async def start(self, workflow: WorkflowRef, arguments: Any, *, key: UUID, **named: Any) -> Started:
        if key not in self._known:
            self._known[key] = await super().start(workflow, arguments, key=key, **named)
        return self._known[key]


@breaks("test_different_keys_start_different_runs")
class OneKeyForAll(FaultlessConnector):
    async def start(self, workflow: WorkflowRef, arguments: Any, *, key: UUID, **named: Any) -> Started:
        return await super().start(workflow, arguments, key=UUID(int=7), **named)


@breaks("test_a_start_whose_answer_is_garbage_has_an_unknown_outcome")
class KeyErrorOnStart(FaultlessConnector):
    def _read_started(self, answer: Any) -> Started:
        return Started(run_id=answer["id"], raw=answer)


breaks(
    "test_an_unknown_workflow_cannot_be_started",
    taking("RefusedStartTaken", "start", NotFound, Started(run_id="none")),
)
breaks(
    "test_a_start_whose_answer_is_garbage_has_an_unknown_outcome",
    taking("UnreadableStartIsAnInvalidAnswer", "start", OutcomeUnknown, InvalidAnswer),
)
breaks(
    "test_a_start_without_an_answer_has_an_unknown_outcome",
    taking("UnansweredStartIsUnreachable", "start", OutcomeUnknown, Unreachable),
)
breaks(
    "test_an_engine_that_is_down_is_unreachable_and_nothing_was_started",
    taking("UnreachableStartIsOfUnknownOutcome", "start", Unreachable, OutcomeUnknown),
)


@breaks("test_a_run_is_found_by_its_key_or_looking_it_up_is_unsupported")
class AnyRunIsFound(FaultlessConnector):
    async def find_run(self, workflow: WorkflowRef, *given: Any, **named: Any) -> Started | None:
        runs, _ = await self._runs(f"?job={workflow.id}")
        return self._read_started(runs[0]) if runs else None


@breaks("test_the_key_of_another_workflows_run_finds_nothing")
class LookupThatIgnoresTheWorkflow(FaultlessConnector):
    async def find_run(self, workflow: WorkflowRef, *given: Any, **named: Any) -> Started | None:
        return await super().find_run(WorkflowRef(id="", name=""), *given, **named)


breaks(
    "test_a_run_is_found_by_its_key_or_looking_it_up_is_unsupported",
    telling("NothingIsEverFound", "find_run", lambda found: None),
)
breaks(
    "test_a_lookup_without_an_answer_never_says_that_there_is_no_run",
    taking("UnansweredLookupFindsNothing", "find_run", Unreachable),
)
breaks(
    "test_a_lookup_whose_answer_is_garbage_finds_no_run_and_denies_none",
    taking("UnreadableLookupFindsNothing", "find_run", InvalidAnswer),
)

# Following a run.

breaks(
    "test_poll_accepts_what_start_returned_and_reaches_the_result",
    telling("WholeAnswerAsOutput", "_output", lambda output: {"result": output}),
)
breaks(
    "test_all_that_is_recorded_of_a_run_is_json",
    telling("ObjectInTheRawAnswer", "_read_run", lambda seen: replace(seen, raw={"answer": object()})),
    telling("ListAsTheRawAnswerToAStart", "start", lambda started: replace(started, raw=[started.raw])),
)


@breaks("test_a_failed_run_is_failed_with_the_engines_reason")
class StatusOfTheOutputIgnored(FaultlessConnector):
    async def poll(self, run: RunRef) -> RunSnapshot:
        path = fill_path("/runs/{id}/result", id=run.run_id)
        answer = await self._client.exchange("GET", path, repeatable=True)
        return RunSnapshot(state=RunState.COMPLETED, output=answer.body.decode())


breaks(
    "test_a_failed_run_is_failed_with_the_engines_reason",
    telling("FailureWithoutReason", "_read_run", lambda seen: replace(seen, error="")),
)
breaks(
    "test_a_completed_run_says_when_it_ran",
    telling("NoMomentOfTheStart", "_read_run", lambda seen: replace(seen, started_at=None)),
)
breaks(
    "test_a_run_that_goes_on_is_running",
    telling("RunningRunHasEnded", "_read_run", lambda seen: replace(seen, finished_at=datetime.now(UTC))),
)


@breaks("test_waiting_ends_with_the_run_or_when_the_time_is_up")
class WaitThatOnlyLooks(FaultlessConnector):
    async def wait(self, run: RunRef, *, seconds: float) -> RunSnapshot:
        """As if the look always came before the end: on a slow machine it may not."""
        looked = await self.poll(run)
        return RUNNING if looked.state is RunState.COMPLETED else looked


@breaks("test_a_poll_without_an_answer_is_unreachable")
class UnansweredPollTimesOut(FaultlessConnector):
    async def poll(self, run: RunRef) -> RunSnapshot:
        async with asyncio.timeout(0.01):
            return await super().poll(run)


@breaks("test_a_status_that_is_garbage_is_an_invalid_answer")
class TypeErrorOnStatus(FaultlessConnector):
    def _read_run(self, answer: Any) -> RunSnapshot:
        return RunSnapshot(state=STATES[answer["state"]], started_at=moment(answer.get("started")))


breaks("test_an_unknown_run_is_not_found", taking("UnknownRunGoesOn", "poll", NotFound, RUNNING))
breaks(
    "test_a_status_that_is_garbage_is_an_invalid_answer",
    taking("UnknownStateGoesOn", "_read_run", InvalidAnswer, RUNNING),
)

# Ending a run.

breaks(
    "test_cancel_ends_a_run_or_is_unsupported",
    having("CancelDoesNothing", cancel=only_look),
    having(
        "UnpromisedCancelDoesNothing", cancel=only_look, capabilities=replace(CAPABILITIES, can_cancel=False)
    ),
)
breaks("test_a_run_that_has_ended_cannot_be_cancelled", taking("CancelTooLateIgnored", "cancel", Rejected))
breaks("test_an_unknown_run_cannot_be_cancelled", taking("CancelOfUnknownRunIgnored", "cancel", NotFound))
breaks(
    "test_terminate_ends_a_run_or_is_unsupported",
    having("TerminateDoesNothing", terminate=only_look),
    taking("TerminateTooLateIgnored", "terminate", Rejected),
    having(
        "UnpromisedTerminateDoesNothing",
        terminate=nothing,
        capabilities=replace(CAPABILITIES, terminates_after_seconds=None, can_terminate=False),
    ),
)


@breaks("test_garbage_in_answer_to_a_command_is_no_error_of_pythons")
class KeyErrorOnCancel(FaultlessConnector):
    async def cancel(self, run: RunRef) -> None:
        answer = await self._client.request_json("DELETE", fill_path("/runs/{id}", id=run.run_id))
        answer["id"]


breaks(
    "test_garbage_in_answer_to_a_command_is_no_error_of_pythons",
    taking("UnreadableSignalIsUnreachable", "signal", OutcomeUnknown, Unreachable),
)

# Going on.

RETRY = "test_a_failed_run_goes_on_with_a_retry_or_retries_are_unsupported"


@breaks(RETRY)
class OldRunInsteadOfTheRetry(FaultlessConnector):
    async def retry(self, run: RunRef, *, key: UUID) -> Started:
        return replace(await super().retry(run, key=key), run_id=run.run_id)


@breaks(RETRY)
class AnyRetryIsFound(FaultlessConnector):
    async def find_retry(self, run: RunRef, *, key: UUID) -> Started | None:
        runs, _ = await self._runs(f"?job={run.workflow.id}")
        return self._read_started(runs[0]) if runs else None


@breaks(RETRY)
class KeyOfTheRetryNotSent(FaultlessConnector):
    async def retry(self, run: RunRef, *, key: UUID) -> Started:
        return await super().retry(run, key=uuid4())


breaks(
    RETRY,
    taking("CompletedRunRetried", "retry", Rejected, Started(run_id="none")),
    telling("NoRetryIsEverFound", "find_retry", lambda found: None),
    having(
        "UnpromisedRetryDoesNothing",
        retry=FaultlessConnector.find_retry,
        capabilities=replace(CAPABILITIES, can_retry=False),
    ),
)
breaks(
    "test_a_retry_without_a_readable_answer_is_none",
    taking("UnreadableRetryTaken", "retry", OutcomeUnknown, Started(run_id="none")),
    taking("UnansweredLookupFindsNoRetry", "find_retry", Unreachable),
)
breaks(
    "test_a_run_is_held_until_it_is_resumed_or_pausing_is_unsupported",
    having("PauseDoesNothing", pause=only_look),
    taking("PauseTooLateIgnored", "pause", Rejected),
    taking("UnknownRunResumed", "resume", NotFound),
    telling("NeverPaused", "_read_run", lambda seen: replace(seen, is_paused=False)),
    having("UnpromisedPauseDoesNothing", pause=nothing, capabilities=replace(CAPABILITIES, can_pause=False)),
)

# Queries, signals, lists.


@breaks("test_a_run_answers_a_query_or_queries_are_unsupported")
class UnknownQueryAnswered(FaultlessConnector):
    async def query(self, run: RunRef, name: str, arguments: dict[str, Any]) -> Any:
        return await super().query(run, "speed", arguments)


@breaks("test_runs_are_listed_as_the_filter_wants_or_listing_is_unsupported")
class FilterIgnored(FaultlessConnector):
    async def list_runs(self, wanted: RunFilter, **named: Any) -> RunPage:
        return await super().list_runs(RunFilter(run=wanted.run), **named)


@breaks("test_runs_are_listed_in_pages_the_latest_first")
class CursorIgnored(FaultlessConnector):
    async def list_runs(self, wanted: RunFilter, *, page_size: int, cursor: str = "") -> RunPage:
        return await super().list_runs(wanted, page_size=page_size)


@breaks("test_a_list_of_runs_that_is_garbage_is_no_empty_list")
class KeyErrorOnListOfRuns(FaultlessConnector):
    async def _runs(self, query: str) -> tuple[list[Any], str]:
        answer = await self._client.request_json("GET", f"/runs{query}")
        return answer["runs"], answer["next"]


breaks(
    "test_a_run_answers_a_query_or_queries_are_unsupported",
    telling("QueryWithoutAnswer", "query", lambda answer: None),
)
breaks(
    "test_a_run_hears_a_signal_or_signals_are_unsupported",
    having("SignalNotSent", signal=only_look),
    taking("SignalTooLateIgnored", "signal", Rejected),
)
breaks(
    "test_a_run_that_asks_goes_on_with_the_answer_or_answers_are_unsupported",
    having("AnswerNotSent", answer=only_look),
    taking("UnaskedQuestionAnswered", "answer", NotFound),
    taking("RefusedAnswerTaken", "answer", Rejected),
    telling("AnotherQuestionWithEachPoll", "_read_question", lambda asked: replace(asked, id=uuid4().hex)),
)
breaks(
    "test_runs_are_listed_as_the_filter_wants_or_listing_is_unsupported",
    telling("ListedUnderAnotherKey", "_read_listed", lambda run: replace(run, key=uuid4())),
)
breaks(
    "test_runs_are_listed_in_pages_the_latest_first",
    telling("EldestFirst", "list_runs", lambda page: replace(page, runs=page.runs[::-1])),
)

# Credentials.


@breaks("test_no_secret_shows_in_errors_logs_or_reprs")
class SecretInRepr(FaultlessConnector):
    def __repr__(self) -> str:
        return f"Lathe({self._config.token.get_secret_value()})"


@breaks("test_no_secret_shows_in_errors_logs_or_reprs")
class SecretInLog(FaultlessConnector):
    async def poll(self, run: RunRef) -> RunSnapshot:
        logger.debug("Asked with {}", self._config.token.get_secret_value())
        return await super().poll(run)


@breaks("test_no_secret_shows_in_errors_logs_or_reprs")
class SecretInContextOfErrors(FaultlessConnector):
    async def start(self, *given: Any, **named: Any) -> Started:
        try:
            return await super().start(*given, **named)
        except ConnectorError as error:
            raise error from RuntimeError(f"sent: {self._config.token.get_secret_value()}")


breaks(
    "test_check_with_wrong_credentials_says_so_instead_of_raising",
    telling("HealthyWhateverItSays", "check", lambda health: replace(health, ok=True)),
)
breaks(
    "test_wrong_credentials_are_rejected_by_every_call",
    taking("RefusedCredentialsAreUnreachable", "poll", Rejected, Unreachable),
)
