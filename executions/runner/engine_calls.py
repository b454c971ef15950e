import asyncio
import threading
import time
import uuid
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from types import UnionType
from typing import Any, TypeVar

from loguru import logger

from catalogue.connections import connector_for
from catalogue.naming import counted
from connectors.errors import (
    ConnectorError,
    NotFound,
    OutcomeUnknown,
    Unreachable,
    error_name,
)
from connectors.protocol import Capabilities, Connector, capabilities_for
from executions.models import Execution
from executions.models.execution import State
from executions.runner.schedule import MAX_INTERVAL_SECONDS

Answer = TypeVar("Answer")
START_SECONDS = 60.0  # The longest start, whatever the connector allows
READ_SECONDS = 30.0  # The longest poll or cancel
AGAIN_SECONDS = 300.0  # Between two lines that polls of a source begin to fail for the same reason
FORGOTTEN_SECONDS = 600.0  # Runs that failed last may have ended otherwise: so long after, it is a new outage


def connector_of(execution: Execution) -> AbstractAsyncContextManager[Connector]:
    """Entering it raises Misconfigured."""
    return connector_for(execution.known_workflow.source)


def capabilities_of(connector: Connector, execution: Execution) -> Capabilities:
    """Returns those for this run: a connector may differ between workflows, and between a start and a retry
    from the failed step."""
    known = capabilities_for(connector, execution.run.workflow)
    if not execution.from_failed_step:
        return known
    return replace(
        known,
        idempotent_start=known.idempotent_retry,
        can_find_runs=known.can_find_retries,
        cancellable_start=False,
    )


async def read_capabilities(execution: Execution) -> Capabilities:
    """Raises ConnectorError."""

    async def read() -> Capabilities:
        async with connector_of(execution) as connector:
            return capabilities_of(connector, execution)

    return await ask(read(), seconds=READ_SECONDS, otherwise=Unreachable)


async def ask(
    call: Awaitable[Answer],
    *,
    seconds: float,
    otherwise: type[OutcomeUnknown | Unreachable],
    returns: type | UnionType = object,
) -> Answer:
    """Returns the engine's answer. A timeout, an unexpected error or an answer of another type raises
    `otherwise`."""
    try:
        async with asyncio.timeout(seconds):
            answer = await call
    except ConnectorError:
        raise
    except TimeoutError:
        raise otherwise(f"The engine did not answer within {seconds:g} s.") from None
    except (Exception, SystemExit) as error:
        logger.exception("A connector failed unexpectedly")
        raise otherwise("The connector failed; the log has the details.") from error
    if isinstance(answer, returns):
        return answer
    method = getattr(call, "__qualname__", "A connector")
    problem = f"{method} returned {type(answer).__name__} instead of {getattr(returns, '__name__', returns)}."
    logger.error("{}", problem)
    raise otherwise(f"The connector failed: {problem}")


@dataclass(slots=True)
class _Outage:
    began_at: float = field(default_factory=time.monotonic)
    failed_at: float = 0.0
    kinds: set[str] = field(default_factory=set)  # Of errors that were logged
    executions: set[uuid.UUID] = field(default_factory=set)


class PollOutages:
    """Logs one line when polls of a source's runs begin to fail, and one when a poll of such a run succeeds;
    the failures in between at DEBUG. Another outage soon after is logged only if it lasts, because a single
    run that fails now and then begins many. Knows those of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_source: dict[str, _Outage] = {}
        self._logged_at: dict[tuple[str, str], float] = {}  # By source and kind of error

    def note(self, execution: Execution, error: ConnectorError) -> None:
        log_of(execution).debug("Poll failed; the run continues: {}", error.message)
        if isinstance(error, NotFound):
            # It concerns one run, which soon ends with an entry of its own.
            return
        source, kind, now = execution.source_name, error_name(error), time.monotonic()
        with self._lock:
            outage = self._by_source.get(source)
            if outage is None or now - outage.failed_at > FORGOTTEN_SECONDS:
                outage = self._by_source[source] = _Outage()
            # An engine that is back may refuse the credentials.
            logged_at = self._logged_at.get((source, kind), float("-inf"))
            is_news = kind not in outage.kinds and now - logged_at >= AGAIN_SECONDS
            if is_news:
                outage.kinds.add(kind)
                self._logged_at[source, kind] = now
            outage.failed_at = now
            outage.executions.add(execution.pk)
        if is_news:
            running = Execution.objects.filter(workflow__source__name=source, state=State.RUNNING).count()
            text = "Polls of {} at source {} fail. The runs go on; each is polled again within {:.0f} s: {}"
            logger.bind(source=source).warning(
                text, counted(running, "run"), source, MAX_INTERVAL_SECONDS, error.message
            )

    def end(self, execution: Execution) -> bool:
        """A poll succeeded. Returns whether that ends an outage."""
        source = execution.source_name
        if not execution.poll_failure or source not in self._by_source:
            return False
        with self._lock:
            outage = self._by_source.pop(source, None)
        if outage is not None and outage.kinds:
            text = "Polls at source {} work again after {:.0f} s; they failed for {}"
            seconds, runs = time.monotonic() - outage.began_at, counted(len(outage.executions), "run")
            logger.bind(source=source).warning(text, source, seconds, runs)
        return outage is not None


poll_outages = PollOutages()


def log_of(execution: Execution) -> Any:
    return logger.bind(
        execution=execution.pk,
        tool=execution.tool_name,
        caller=execution.caller,
        door=str(execution.door),
    )
