from collections.abc import Iterator, Sequence

from catalogue.schemas import ArgumentProblem
from executions.models import Execution

LONGEST_KEY = 255
LONGEST_LISTING = 20_000
# Added where an engine refuses arguments by a schema that differs from the exposed one.
HELD_CHANGE = (
    "The engine has changed this workflow since a curator accepted it, which may be why: a curator has to "
    "review the change."
)


class StartRefused(Exception):
    """Nothing was recorded or started; the message says what to do instead."""


class UnknownTool(StartRefused):
    """`renamed` are tools that formerly had the name, `similar` ones with a like name."""

    def __init__(self, tool_name: str, *, renamed: Sequence[str] = (), similar: Sequence[str] = ()) -> None:
        meant = f"Did you mean {' or '.join(similar)}? " if similar else ""
        if renamed:
            meant = f"It was renamed: call {' or '.join(renamed)} instead. "
        super().__init__(
            f"Unknown or disabled tool: {tool_name[:200]}. {meant}"
            "list_workflows shows those that can be called."
        )


class InvalidArguments(StartRefused):
    """`starts=False`: of a tool that starts nothing."""

    def __init__(self, tool_name: str, problems: list[ArgumentProblem], *, starts: bool = True) -> None:
        listed = "\n".join(_as_many_as_fit(problems))
        outcome = "; nothing was started" if starts else ""
        super().__init__(f"Invalid arguments for {tool_name}{outcome}:\n{listed}")
        self.problems = problems


def _as_many_as_fit(problems: list[ArgumentProblem]) -> Iterator[str]:
    """One line each, the first in full; each may list all allowed values."""
    room = LONGEST_LISTING
    for number, problem in enumerate(problems):
        line = f"- {problem}"
        room -= len(line)
        if number and room < 0:
            yield f"- and {len(problems) - number} problems more"
            return
        yield line


class InvalidIdempotencyKey(StartRefused):
    def __init__(self) -> None:
        super().__init__(
            f"An idempotency key is a text of 1 to {LONGEST_KEY} printable ASCII characters, such as a UUID. "
            "Nothing was started."
        )


class IdempotencyConflict(StartRefused):
    def __init__(self, execution: Execution, *, tool_name: str) -> None:
        other = "with other arguments" if execution.tool_name == tool_name else f"not of {tool_name[:200]}"
        super().__init__(
            f"This idempotency key belongs to execution {execution.pk}, a call of {execution.tool_name}, "
            f"{other}. Use a new key for a new call; nothing was started."
        )
        self.execution = execution


class Busy(StartRefused):
    def __init__(self, why: str, *, retry_after: int) -> None:
        super().__init__(f"Busy: {why} Nothing was started; try again in {retry_after} s.")
        self.retry_after = retry_after  # Seconds
