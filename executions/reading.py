import base64
import binascii
import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet

from catalogue.interactions import name_interactions
from executions.callers import Caller
from executions.models import Execution, State


class UnknownExecution(Exception):
    """No execution with this id, or none that the caller may see; the two look the same."""

    def __init__(self, execution_id: str) -> None:
        super().__init__(f"Unknown execution: {str(execution_id)[:100]}.")


def find_execution(execution_id: str, *, caller: Caller) -> Execution:
    """With its workflow and source. Raises UnknownExecution."""
    try:
        key = uuid.UUID(str(execution_id))
        return Execution.objects.visible_to(caller).select_related("workflow__source").get(pk=key)
    except (ValueError, Execution.DoesNotExist):
        raise UnknownExecution(execution_id) from None


def describe_execution(execution: Execution) -> dict[str, Any]:
    """State, progress, times and output as JSON values; of a running one also its interactions."""
    described = summarise_execution(execution)
    if execution.state == State.RUNNING and execution.workflow is not None:
        described |= name_interactions(execution.workflow)
    if execution.state == State.COMPLETED:
        described["output"] = execution.payload.output
        if execution.payload_pruned_at is not None:
            described["output_removed_at"] = execution.payload_pruned_at.isoformat()
    return described


def summarise_execution(execution: Execution) -> dict[str, Any]:
    """Without the output: only what the row has. `cached_at` is when the cached result's run ended."""
    described: dict[str, Any] = {
        "execution_id": str(execution.pk),
        "tool": execution.tool_name,
        "state": execution.state,
        "progress": execution.progress_percent,
        "progress_message": execution.progress_message
        or (execution.state_label if execution.is_queued else None),
        "created_at": execution.created_at.isoformat(),
        "started_at": execution.started_at and execution.started_at.isoformat(),
        "finished_at": execution.finished_at and execution.finished_at.isoformat(),
        "duration_ms": execution.duration_ms,
        "cancel_requested": execution.cancel_requested_at is not None,
    }
    if execution.cached_at is not None:
        described |= {
            "cached_from": execution.cached_from_id and str(execution.cached_from_id),
            "cached_at": execution.cached_at.isoformat(),
        }
    if execution.poll_problem:
        described["status_problem"] = execution.poll_problem
    if execution.error:
        described |= {"error": execution.error, "error_kind": execution.error_kind}
    return described


MOST_AT_A_TIME = 50


class UnknownCursor(Exception):
    def __init__(self) -> None:
        super().__init__(
            "Unknown cursor: begin again without one, or use next_cursor as the last page had it."
        )


@dataclass(frozen=True, slots=True)
class Page:
    executions: list[Execution]
    next_cursor: str | None


def list_own_executions(
    caller: Caller, *, state: str = "", tool_name: str = "", limit: int = MOST_AT_A_TIME, cursor: str = ""
) -> Page:
    """One query, without payloads; administrators too get only their own. Raises UnknownCursor."""
    wanted = Execution.objects.filter(caller=caller.key)
    if state:
        wanted = wanted.filter(state=state)
    if tool_name:
        wanted = wanted.filter(tool_name=tool_name)
    return page_of(wanted, limit=limit, cursor=cursor)


def page_of(executions: QuerySet[Execution], *, limit: int, cursor: str = "") -> Page:
    """The newest first; the last page is as quick as the first. Raises UnknownCursor."""
    wanted = executions.order_by("-created_at", "-pk")
    if cursor:
        created_at, key = _read_cursor(cursor)
        wanted = wanted.filter(Q(created_at__lt=created_at) | Q(created_at=created_at, pk__lt=key))
    found = list(wanted[: limit + 1])
    more = len(found) > limit
    return Page(found[:limit], _make_cursor(found[limit - 1]) if more else None)


def all_of(executions: QuerySet[Execution], *, at_a_time: int) -> Iterator[list[Execution]]:
    """Page by page, without an open cursor in the database."""
    cursor: str | None = ""
    while cursor is not None:
        page = page_of(executions, limit=at_a_time, cursor=cursor)
        yield page.executions
        cursor = page.next_cursor


def _make_cursor(last: Execution) -> str:
    return base64.urlsafe_b64encode(f"{last.created_at.isoformat()} {last.pk}".encode()).decode()


def _read_cursor(cursor: str) -> tuple[datetime, uuid.UUID]:
    try:
        created_at, _, key = base64.urlsafe_b64decode(cursor.encode()).decode().partition(" ")
        begins = datetime.fromisoformat(created_at)
        if begins.tzinfo is None:
            raise UnknownCursor
        return begins, uuid.UUID(key)
    except ValueError:
        raise UnknownCursor from None


def decode_base64(encoded: str) -> bytes | None:
    """Tolerates line breaks and missing padding, as clients do. Returns None for invalid base64."""
    with contextlib.suppress(binascii.Error, ValueError):
        return base64.b64decode(encoded, validate=True)
    try:
        compact = "".join(encoded.split()).rstrip("=")
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
