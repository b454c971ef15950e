"""What a test of a connector needs of its engine: `EngineHarness`, and steps that tests share."""

import asyncio
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from unittest.mock import ANY
from uuid import UUID, uuid4

import pytest

from connectors.errors import ConnectorError, Unsupported
from connectors.protocol import (
    Capabilities,
    Connector,
    RunRef,
    RunSnapshot,
    RunState,
    Started,
    WorkflowRef,
    capabilities_for,
)
from connectors.testing.bad_engines import GARBAGE, Asked, answering_engines, free_port, silent_engines

DEADLINE_SECONDS = 10.0
POLL_SECONDS = 0.02

Answered = TypeVar("Answered")


@dataclass(frozen=True)
class Sample:
    """A workflow of the engine, with arguments that it accepts."""

    workflow: WorkflowRef
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Interaction:
    """A query or a signal that a run of `lasting` accepts."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    answer: Any = None
    """What a run that has only just begun answers to the query; a signal has no answer."""


class EngineHarness(ABC):
    """A real engine, and connectors to it and to worse ones.

    What has a value here may be left as it is by a connector to an engine with one port, credentials and
    answers in JSON over HTTP.
    """

    completing: Sample
    """Ends soon, with an output."""
    output: Any = ANY
    """What it ends with. State it: only then a connector fails that returns something else."""
    failing: Sample
    """Ends soon, with a reason that contains `failure`."""
    failure: str
    lasting: Sample
    """Runs longer than any test."""
    unknown_workflow = WorkflowRef(id="no-such-workflow", name="no such workflow")
    """Not at the engine, though its id has the form that the engine's ids have."""
    deadline_seconds = DEADLINE_SECONDS
    """The longest that the engine takes to end a run, or to list it."""

    has_credentials = True
    """False: the engine lets everyone in, so that there are neither wrong credentials nor secrets."""
    secrets: frozenset[str] = frozenset()
    """Every credential that the connectors made here carry."""

    ports = 1
    """On how many the engine listens. With more than one, override `connector_at_ports`."""
    garbage: Mapping[str, bytes] = GARBAGE
    """HTTP answers that the engine never gives, by what a failed test calls them.

    Add answers that are almost right, leave out what the engine may well mean. Empty: no engine that answers
    with garbage can be made, and those tests do not apply.
    """

    query: Interaction | None = None
    """Needed where runs can be queried."""
    signal: Interaction | None = None
    """Needed where runs can be signalled, as is `has_heard_signal`."""

    @abstractmethod
    def connector(self) -> Connector:
        """A connector to the real engine."""

    def connector_with_wrong_credentials(self) -> Connector:
        """Needed where `has_credentials`."""
        raise NotImplementedError

    def connector_at(self, port: int) -> Connector:
        """A connector to another engine on this machine, patient for a fraction of a second."""
        raise NotImplementedError

    def connector_at_ports(self, ports: Sequence[int]) -> Connector:
        """The same for an engine that listens on as many `ports` as are given."""
        (port,) = ports
        return self.connector_at(port)

    def connector_to_nothing(self) -> Connector:
        """A connector to an engine that is down."""
        return self.connector_at_ports([free_port() for _ in range(self.ports)])

    @asynccontextmanager
    async def connector_without_answers(self) -> AsyncIterator[Connector]:
        """A connector whose start reaches an engine that never answers it, nor anything else."""
        async with silent_engines(self.ports) as ports, closing(self.connector_at_ports(ports)) as connector:
            yield connector

    async def connectors_with_garbage(self) -> AsyncGenerator[tuple[str, Connector]]:
        """For each piece of `garbage` its name, and a connector whose engine answers with it until the next.

        Override this for an engine that does not speak HTTP; the names decide what tests expect.
        """
        answers = [b""]

        def answer(asked: Asked) -> bytes:
            return self.garbled(asked, answers[0])

        async with (
            answering_engines(answer, self.ports) as ports,
            closing(self.connector_at_ports(ports)) as connector,
        ):
            for name, answers[0] in self.garbage.items():
                yield name, connector

    def garbled(self, asked: Asked, garbage: bytes) -> bytes:
        """The whole HTTP answer to this request. A right one for what has to come before others, such as a
        login or a handshake, lets the start itself reach the garbage."""
        return garbage

    @abstractmethod
    def runs_started_with(self, key: UUID) -> int:
        """How many runs the engine itself says it started for this key."""

    def unknown_run_id(self) -> str:
        """One that no run has, in the form that the engine's ids have."""
        return str(uuid4())

    def another_workflow(self) -> WorkflowRef | None:
        """One that is not `completing`'s. None: the engine has no other, so that none can be confused."""
        others = (self.failing.workflow, self.lasting.workflow)
        return next((other for other in others if other.id != self.completing.workflow.id), None)

    async def ended(self, connector: Connector, sample: Sample) -> tuple[RunRef, RunSnapshot]:
        """A run that has come to its end; where each costs seconds, one that earlier tests have seen."""
        started, run = await start(connector, sample)
        return run, await outcome(connector, started, run, seconds=self.deadline_seconds)

    def starts_last(self, connector: Connector) -> bool:
        """Whether the answer to a start of `lasting` is the result, so that there is no run to ask about."""
        return capabilities_of(connector, self.lasting).starts_can_be_broken_off

    async def lasting_has_begun(self, told: asyncio.Event) -> None:
        """Until the engine has a start of `lasting`. `told` is set when the connector tells how far it is; an
        engine that says nothing of that has to be asked."""
        await told.wait()

    def starts_broken_off(self) -> int:
        """How many starts the engine itself says were broken off. Needed only where starts last."""
        raise NotImplementedError

    async def has_heard_signal(self, connector: Connector, run: RunRef) -> bool:
        """Whether the run has heard `signal`, by the engine's own word."""
        raise NotImplementedError


@asynccontextmanager
async def closing(connector: Connector) -> AsyncIterator[Connector]:
    try:
        yield connector
    finally:
        await connector.aclose()


def capabilities_of(connector: Connector, sample: Sample) -> Capabilities:
    return capabilities_for(connector, sample.workflow)


async def start(connector: Connector, sample: Sample, key: UUID | None = None) -> tuple[Started, RunRef]:
    key = key or uuid4()
    started = await connector.start(sample.workflow, sample.arguments, key=key)
    return started, RunRef(workflow=sample.workflow, run_id=started.run_id, key=key)


async def until_ended(connector: Connector, run: RunRef, *, seconds: float = DEADLINE_SECONDS) -> RunSnapshot:
    async with asyncio.timeout(seconds):
        while True:
            if (snapshot := await connector.poll(run)).state is not RunState.RUNNING:
                return snapshot
            await asyncio.sleep(POLL_SECONDS)


async def outcome(
    connector: Connector, started: Started, run: RunRef, *, seconds: float = DEADLINE_SECONDS
) -> RunSnapshot:
    """How the run ended: as the answer to its start tells where that is the result, otherwise by polling."""
    told = started.snapshot
    capabilities = capabilities_for(connector, run.workflow)
    is_result = capabilities.starts_can_be_broken_off or not capabilities.keeps_runs
    if is_result and told is not None and told.state is not RunState.RUNNING:
        return told
    return await until_ended(connector, run, seconds=seconds)


async def eventually(ask: Callable[[], Awaitable[Answered]], *, seconds: float) -> Answered:
    """The first answer that is not empty or false; engines note some things a little late."""
    async with asyncio.timeout(seconds):
        while not (answer := await ask()):  # noqa: ASYNC110 - the engine tells only who asks
            await asyncio.sleep(POLL_SECONDS)
        return answer


def unknown_run(harness: EngineHarness, sample: Sample) -> RunRef:
    return RunRef(workflow=sample.workflow, run_id=harness.unknown_run_id(), key=uuid4())


async def is_unsupported(connector: Connector, method: str, *given: Any, **named: Any) -> None:
    """An optional method is left out, or says that the engine cannot do that."""
    if hasattr(connector, method):
        with pytest.raises(Unsupported):
            await getattr(connector, method)(*given, **named)


async def answer_or_error(asked: Awaitable[Answered], *, to: str) -> Answered | ConnectorError:
    """What a method returns, or the error that it may raise. `to` names the call where it raises another."""
    try:
        return await asked
    except ConnectorError as error:
        return error
    except Exception as error:
        raise AssertionError(f"{to}: it raised {type(error).__name__}, no ConnectorError") from error


def everything_told_by(error: BaseException) -> str:
    """All that a log or an admin page could show of an error and of what led to it."""
    told = "".join(traceback.format_exception(error))
    link: BaseException | None = error
    while link is not None:
        told += f"{link} {link!r} {vars(link)}"
        link = link.__cause__ or link.__context__
    return told
