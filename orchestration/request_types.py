"""Input, outcome and refusals of natural-language requests.

RequestRefused
├── IdempotencyConflict   its key belongs to another request
├── NotReplayable         it names no successful dry run of its caller
└── StillRunning          the first request with its key still runs
"""

import uuid
from dataclasses import dataclass, field
from typing import Any

from executions.callers import Caller
from orchestration.models import WorkflowRequest

LONGEST_INSTRUCTIONS = 20_000
LONGEST_FORMAT_INSTRUCTIONS = 5_000  # Characters
MOST_TOOLS = 200  # In one request


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestInput:
    user_instructions: str
    tool_ids: list[str]
    caller: Caller
    format_response: bool = False
    response_format_instructions: str = ""
    dry_run: bool = False
    idempotency_key: str = ""  # One request per caller and key; empty: no key. See `read_idempotency_key`.
    fresh: bool = False  # Bypasses the result cache
    replayed_dry_run: uuid.UUID | None = None  # The dry run whose call is made instead of asking the model
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    """Of the record and the execution, unless the key belongs to an existing request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestOutcome:
    request: WorkflowRequest
    raw_response: dict[str, Any] | None
    """An HTTPResponseSpec of HTTP tools; of others `{"execution_id", "state", "output", "error"}`."""
    retry_after: int | None = None  # Seconds; None if a retry is of no use

    @property
    def goes_on(self) -> bool:
        return self.request.awaits_run

    @property
    def warnings(self) -> list[str]:
        return [*self.request.warnings, *([self._how_to_read_the_rest()] if self.goes_on else [])]

    def _how_to_read_the_rest(self) -> str:
        execution = self.request.execution
        state = "" if execution is None else f" ({execution.state_label})"
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
    """Nothing was recorded or started; the message says what to do instead."""

    def __init__(self, message: str, request: WorkflowRequest) -> None:
        super().__init__(message)
        self.request = request  # The existing one


class IdempotencyConflict(RequestRefused):
    def __init__(self, request: WorkflowRequest) -> None:
        super().__init__(
            f"This idempotency key belongs to the request {request.pk}, which asks for something else. Use a "
            "new key for a new request; nothing was started.",
            request,
        )


class NotReplayable(RequestRefused):
    def __init__(self, request: WorkflowRequest) -> None:
        super().__init__(
            "Only your own dry run that succeeded, and whose arguments are kept, can be sent. Ask anew; "
            "nothing was started.",
            request,
        )


class StillRunning(RequestRefused):
    def __init__(self, request: WorkflowRequest) -> None:
        super().__init__(
            f"The request {request.pk}, which this idempotency key stands for, is still going on. Ask again "
            "later with the same key; nothing was started twice.",
            request,
        )
