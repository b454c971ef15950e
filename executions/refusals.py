"""Why a request to run something came to nothing.

StartRefused
├── UnknownTool              no exposed workflow has this name
├── InvalidArguments         they do not fit its input schema
├── InvalidIdempotencyKey    it is no usable key
├── IdempotencyConflict      it was used for something else
└── Busy                     the limits have no room, and the queue has none either
"""

from collections.abc import Sequence

from catalogue.schemas import ArgumentProblem
from executions.models import Execution

LONGEST_KEY = 255


class StartRefused(Exception):
    """Nothing was recorded and nothing was started; the message says what to do instead."""


class UnknownTool(StartRefused):
    """No exposed workflow has this name; `similar` ones, which the caller may call, perhaps are meant."""

    def __init__(self, tool_name: str, *, similar: Sequence[str] = ()) -> None:
        meant = f"Did you mean {' or '.join(similar)}? " if similar else ""
        super().__init__(
            f"Unknown or disabled tool: {tool_name[:200]}. {meant}"
            "list_workflows shows those that can be called."
        )


class InvalidArguments(StartRefused):
    """The arguments do not fit the workflow's input schema."""

    def __init__(self, tool_name: str, problems: list[ArgumentProblem]) -> None:
        listed = "\n".join(f"- {problem}" for problem in problems)
        super().__init__(f"Invalid arguments for {tool_name}; nothing was started:\n{listed}")
        self.problems = problems


class InvalidIdempotencyKey(StartRefused):
    """Not a text of 1 to 255 printable ASCII characters."""

    def __init__(self) -> None:
        super().__init__(
            f"An idempotency key is a text of 1 to {LONGEST_KEY} printable ASCII characters, such as a UUID. "
            "Nothing was started."
        )


class IdempotencyConflict(StartRefused):
    """The caller used this key before, for something else."""

    def __init__(self, execution: Execution, *, tool_name: str) -> None:
        other = "with other arguments" if execution.tool_name == tool_name else f"not of {tool_name[:200]}"
        super().__init__(
            f"This idempotency key belongs to execution {execution.pk}, a call of {execution.tool_name}, "
            f"{other}. Use a new key for a new call; nothing was started."
        )
        self.execution = execution


class Busy(StartRefused):
    """Too much is running and waiting already."""

    def __init__(self, why: str, *, retry_after: int) -> None:
        super().__init__(f"Busy: {why} Nothing was started; try again in {retry_after} s.")
        self.retry_after = retry_after
        """Seconds."""
