import contextlib
from collections.abc import Iterator, Sequence
from typing import ClassVar

from access.callers import Rate
from catalogue.naming import counted
from catalogue.schemas import ArgumentProblem
from executions.models import Execution
from telemetry import metrics

MAX_KEY_LENGTH = 255
MAX_LISTING = 20_000
# Added if an engine refuses arguments by a schema that differs from the exposed one.
HELD_CHANGE = (
    "The engine has changed this workflow since a curator accepted it, which may be the cause. A curator "
    "must review the change."
)


class StartRefused(Exception):
    """Nothing was recorded or started; the message says what to do instead."""

    reason: ClassVar[str]
    """For metrics."""


@contextlib.contextmanager
def counting_refusals() -> Iterator[None]:
    try:
        yield
    except StartRefused as refused:
        metrics.calls_refused.labels(refused.reason).inc()
        raise


class UnknownTool(StartRefused):
    """`renamed`: tools that formerly had the name; `similar`: tools with similar names. Each interface adds
    where its callers find others."""

    reason = "unknown_tool"

    def __init__(self, tool_name: str, *, renamed: Sequence[str] = (), similar: Sequence[str] = ()) -> None:
        meant = f" Did you mean {' or '.join(similar)}?" if similar else ""
        if renamed:
            meant = f" It was renamed: call {' or '.join(renamed)} instead."
        super().__init__(f"Unknown or disabled tool: {tool_name[:200]}.{meant}")


class InvalidArguments(StartRefused):
    """`starts=False`: of a tool that starts nothing."""

    reason = "invalid_arguments"

    def __init__(self, tool_name: str, problems: list[ArgumentProblem], *, starts: bool = True) -> None:
        listed = "\n".join(_as_many_as_fit(problems))
        outcome = "; nothing was started" if starts else ""
        super().__init__(f"Invalid arguments for {tool_name}{outcome}:\n{listed}")
        self.problems = problems


def _as_many_as_fit(problems: list[ArgumentProblem]) -> Iterator[str]:
    """One line each, the first in full; each may list all allowed values."""
    room = MAX_LISTING
    for number, problem in enumerate(problems):
        line = f"- {problem}"
        room -= len(line)
        if number and room < 0:
            yield f"- and {counted(len(problems) - number, 'more problem')}"
            return
        yield line


class InvalidIdempotencyKey(StartRefused):
    reason = "invalid_idempotency_key"

    def __init__(self) -> None:
        super().__init__(
            f"An idempotency key must consist of 1 to {MAX_KEY_LENGTH} printable ASCII characters, such as a "
            "UUID. Nothing was started."
        )


class IdempotencyConflict(StartRefused):
    reason = "idempotency_conflict"

    def __init__(self, execution: Execution, *, tool_name: str) -> None:
        other = "with other arguments" if execution.tool_name == tool_name else f"not of {tool_name[:200]}"
        super().__init__(
            f"This idempotency key belongs to execution {execution.pk}, a call of {execution.tool_name}, "
            f"{other}. Use a new key for a new call; nothing was started."
        )
        self.execution = execution


class KeyOfOtherToolset(StartRefused):
    reason = "idempotency_conflict"

    def __init__(self) -> None:
        super().__init__(
            "This idempotency key belongs to a call outside of this toolset. Use a new key for a new call; "
            "nothing was started."
        )


class UnusableNotice(StartRefused):
    reason = "unusable_notice"

    def __init__(self, why: str) -> None:
        super().__init__(f"Nobody could be notified: {why} Nothing was started.")


class AlreadyRetried(StartRefused):
    reason = "already_retried"

    def __init__(self, attempt: object) -> None:
        super().__init__(
            f"Nothing was started: it was run again already, as execution {attempt}. If that one has failed, "
            "retry that one."
        )


class OtherCall(StartRefused):
    reason = "other_call"

    def __init__(self, tool_name: str) -> None:
        super().__init__(
            f"The request state does not belong to this call of {tool_name[:200]}, or belongs to a call with "
            "other arguments. Nothing was started; call the tool again without it."
        )


class Busy(StartRefused):
    reason = "busy"

    def __init__(self, why: str, *, retry_after: int) -> None:
        super().__init__(f"Busy: {why} Nothing was started; try again in {retry_after} s.")
        self.retry_after = retry_after  # Seconds


class TooManyCalls(Busy):
    reason = "rate"

    def __init__(self, rate: Rate, *, retry_after: int) -> None:
        at_once = f" and {rate.at_once} at once" if rate.at_once != rate.per_minute else ""
        StartRefused.__init__(
            self,
            f"Too many calls: {rate.whose} is limited to {rate.per_minute} a minute{at_once}. Nothing was "
            f"started; try again in {retry_after} s.",
        )
        self.retry_after = retry_after
