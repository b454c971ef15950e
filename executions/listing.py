"""A caller's own executions, the newest first, a page at a time."""

import base64
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, QuerySet

from executions.callers import Caller
from executions.models import Execution

MOST_AT_A_TIME = 50


class UnknownCursor(Exception):
    """Nobody gave this cursor out."""

    def __init__(self) -> None:
        super().__init__(
            "Unknown cursor: begin again without one, or use next_cursor as the last page had it."
        )


@dataclass(frozen=True, slots=True)
class Page:
    executions: list[Execution]
    next_cursor: str | None
    """Where the next page begins; None on the last one."""


def list_own_executions(
    caller: Caller, *, state: str = "", tool_name: str = "", limit: int = MOST_AT_A_TIME, cursor: str = ""
) -> Page:
    """One query, without payloads. Also an administrator gets only what it started itself.

    Raises UnknownCursor.
    """
    wanted = Execution.objects.filter(caller=caller.key)
    if state:
        wanted = wanted.filter(state=state)
    if tool_name:
        wanted = wanted.filter(tool_name=tool_name)
    return page_of(wanted, limit=limit, cursor=cursor)


def page_of(executions: QuerySet[Execution], *, limit: int, cursor: str = "") -> Page:
    """A page of those executions, the newest first, as quickly for the last page as for the first.

    Raises UnknownCursor.
    """
    wanted = executions.order_by("-created_at", "-pk")
    if cursor:
        created_at, key = _read_cursor(cursor)
        wanted = wanted.filter(Q(created_at__lt=created_at) | Q(created_at=created_at, pk__lt=key))
    found = list(wanted[: limit + 1])
    more = len(found) > limit
    return Page(found[:limit], _make_cursor(found[limit - 1]) if more else None)


def all_of(executions: QuerySet[Execution], *, at_a_time: int) -> Iterator[list[Execution]]:
    """Page by page; the database keeps nothing open in between."""
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
