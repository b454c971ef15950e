"""A run, from its request to its outcome."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

JsonObject = dict[str, Any]


class RunStatus(StrEnum):
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True)
class StartRequest:
    """Holds the input, on whose behalf, and the key that makes asking twice harmless."""

    input: JsonObject
    source: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    run_id: str
    correlation_id: str
    workflow_id: str
    idempotency_key: str | None
    source: str | None
    status: RunStatus
    input: JsonObject
    output: JsonObject | None
    error: str | None
    progress: float | None
    progress_message: str | None
    create_time: int
    start_time: int
    update_time: int
    end_time: int | None


@dataclass(frozen=True, slots=True)
class Outcome:
    status: RunStatus
    output: JsonObject | None = None
    error: str | None = None
