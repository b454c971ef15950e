"""What goes into a natural-language request, what comes out of it, and why one is refused.

RequestRefused
├── IdempotencyConflict   its key belongs to another request
├── NotReplayable         it names no successful dry run of its caller
└── StillRunning          it was repeated while the first request with its key runs
"""

import uuid
from dataclasses import dataclass, field
from typing import Any

from executions.callers import Caller
from orchestration.models import WorkflowRequest

LONGEST_INSTRUCTIONS = 20_000
LONGEST_FORMAT_INSTRUCTIONS = 5_000
"""Characters."""
MOST_TOOLS = 200
"""That one request may name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestInput:
    """A natural-language request, as REST or the admin received it."""

    user_instructions: str
    tool_ids: list[str]
    caller: Caller
    format_response: bool = False
    response_format_instructions: str = ""
    dry_run: bool = False
    idempotency_key: str = ""
    """Requests of one caller with one key are one request; empty: none. See `read_idempotency_key`."""
    fresh: bool = False
    """Whether the tool has to run though a cached result could answer."""
    replayed_dry_run: uuid.UUID | None = None
    """The dry run whose call is made, letter by letter, in place of one that the model chooses."""
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    """The record's, and that of the execution, unless the key stands for a request that exists. A caller
    who chooses it can read the record while the request runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestOutcome:
    request: WorkflowRequest
    """As it was recorded."""
    raw_response: dict[str, Any] | None
    """An HTTPResponseSpec of HTTP tools; of others `{"execution_id", "state", "output", "error"}`."""
    retry_after: int | None = None
    """In seconds, where trying again is worth it."""

    @property
    def goes_on(self) -> bool:
        """The run is not over: the answer tells how to ask for the rest."""
        return self.request.awaits_run

    @property
    def warnings(self) -> list[str]:
        return [*self.request.warnings, *([self._how_to_go_on()] if self.goes_on else [])]

    def _how_to_go_on(self) -> str:
        execution = self.request.execution
        state = "" if execution is None else f" ({execution.told_state})"
        return (
            f"The run goes on{state}, and the request ends as it does: GET "
            f"/api/workflow-requests/{self.request.pk}/ has the answer then, and GET "
            f"/api/executions/{self.request.execution_id}/ how the run is."
        )

    @property
    def invalid_tool_ids(self) -> list[str]:
        invalid: list[str] = self.request.invalid_tool_ids
        return invalid


class RequestRefused(Exception):
    """Nothing was recorded and nothing was started; the message says what to do instead."""

    def __init__(self, message: str, request: WorkflowRequest) -> None:
        super().__init__(message)
        self.request = request
        """The one that the key belongs to."""


class IdempotencyConflict(RequestRefused):
    """The caller used this key before, for something else."""

    def __init__(self, request: WorkflowRequest) -> None:
        super().__init__(
            f"This idempotency key belongs to the request {request.pk}, which asks for something else. Use a "
            "new key for a new request; nothing was started.",
            request,
        )


class NotReplayable(RequestRefused):
    """Only the caller of a dry run can replay it."""

    def __init__(self, request: WorkflowRequest) -> None:
        super().__init__(
            "Only your own dry run that succeeded, and whose arguments are kept, can be sent. Ask anew; "
            "nothing was started.",
            request,
        )


class StillRunning(RequestRefused):
    """The request that the key stands for has no answer yet."""

    def __init__(self, request: WorkflowRequest) -> None:
        super().__init__(
            f"The request {request.pk}, which this idempotency key stands for, is still going on. Ask again "
            "later with the same key; nothing was started twice.",
            request,
        )
