import asyncio
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from types import UnionType
from typing import Any, TypeVar

from django.utils import timezone
from loguru import logger

from catalogue.connections import connector_for
from connectors.errors import ConnectorError, OutcomeUnknown, Unreachable, backoff_seconds
from connectors.protocol import Capabilities, Connector, capabilities_for
from executions.models import Execution

Answer = TypeVar("Answer")
START_SECONDS = 60.0  # The longest start, whatever the connector allows
READ_SECONDS = 30.0  # The longest poll or cancel
LONGEST_INTERVAL_SECONDS = 60.0


def connector_of(execution: Execution) -> AbstractAsyncContextManager[Connector]:
    """Entering it raises Misconfigured."""
    assert execution.workflow is not None, "advance() ends executions without a workflow"
    return connector_for(execution.workflow.source)


def capabilities_of(connector: Connector, execution: Execution) -> Capabilities:
    """For this run: a connector may differ between workflows."""
    return capabilities_for(connector, execution.run.workflow)


async def ask(
    call: Awaitable[Answer],
    *,
    seconds: float,
    otherwise: type[OutcomeUnknown | Unreachable],
    returns: type | UnionType = object,
) -> Answer:
    """The engine's answer. A timeout, an unexpected error or an answer of another type raises `otherwise`."""
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


def next_try_after(
    execution: Execution,
    error: ConnectorError | None = None,
    *,
    failures: int | None = None,
    by: datetime | None = None,
) -> datetime:
    """Doubles from 1 s with each failure; at least the engine's delay, at most until `by` or the deadline."""
    asked = error.retry_after if isinstance(error, Unreachable) else None
    in_a_row = execution.attempts if failures is None else failures
    backoff = backoff_seconds(in_a_row, first=1, longest=LONGEST_INTERVAL_SECONDS)
    now = timezone.now()
    latest = execution.deadline_at if by is None else by
    return max(now, min(now + timedelta(seconds=max(backoff, asked or 0.0)), latest))


def log_of(execution: Execution) -> Any:
    return logger.bind(execution=execution.pk, tool=execution.tool_name)
