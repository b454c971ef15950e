"""Resources about executions: how far one is, and what came of it."""

import uuid
from collections.abc import Iterable
from typing import Any

from mcp.shared.uri_template import UriTemplate
from mcp_types import TextResourceContents

from catalogue.scopes import Scope
from executions.listing import list_own_executions
from executions.models import Execution, State
from executions.reading import UnknownExecution, find_execution
from executions.watching import find_fresh_execution
from mcp_bridge.access import Access
from mcp_bridge.outputs import (
    NoSuchPart,
    Part,
    describe_within_bounds,
    media_type,
    result_address,
    take_part,
    why_no_output,
    write_output,
)
from mcp_bridge.resources.resource import TEXT, Found, Reading, ResourceKind, UnknownResource

META = "workflow-catalogue/"
SUGGESTED = 200
"""Of a caller's executions, the newest that completion knows."""
LONGEST_OFFSET = 15
"""Digits."""


def _read_execution(reading: Reading) -> Found:
    try:
        execution = find_fresh_execution(_id(reading), caller=reading.access.caller)
    except UnknownExecution as error:
        raise UnknownResource(str(error)) from None
    found = reading.holds(write_output(describe_within_bounds(execution)))
    return Found(found.contents, changes=not execution.is_settled)


def _read_result(reading: Reading) -> Found:
    """The whole output, or a part of it and where the next one is."""
    output = _output(execution := _find_execution(reading))
    try:
        part = take_part(write_output(output), offset=_offset(reading))
    except NoSuchPart as error:
        raise UnknownResource(str(error)) from None
    if part.is_whole:
        return reading.holds(part.text, mime_type=media_type(output))
    return Found(list(_contents(reading, execution, part)))


def _contents(reading: Reading, execution: Execution, part: Part) -> Iterable[TextResourceContents]:
    told: dict[str, Any] = {f"{META}offset": part.offset, f"{META}characters": part.total}
    if part.next_offset is None:
        yield TextResourceContents(uri=reading.uri, mime_type=TEXT, text=part.text, _meta=told)
        return
    following = result_address(execution, offset=part.next_offset)
    told[f"{META}next"] = following
    yield TextResourceContents(uri=reading.uri, mime_type=TEXT, text=part.text, _meta=told)
    # Models do not get to see `_meta`.
    note = f"Characters {part.offset + 1:,} to {part.end:,} of {part.total:,}. The next part is {following}"
    yield TextResourceContents(uri=following, mime_type=TEXT, text=note)


def _find_execution(reading: Reading) -> Execution:
    try:
        return find_execution(_id(reading), caller=reading.access.caller)
    except UnknownExecution as error:
        raise UnknownResource(str(error)) from None


def _output(execution: Execution) -> object:
    """Raises UnknownResource, saying how the run is."""
    address = f"execution://{execution.pk}"
    if not execution.is_settled:
        raise UnknownResource(
            f"{execution.tool_name} is still {execution.told_state}, so it has no result yet. "
            f"{address} tells how far it is."
        )
    if execution.state != State.COMPLETED:
        raise UnknownResource(
            f"{execution.tool_name} {execution.get_state_display()}, so it has no result. {address} says why."
        )
    if problem := why_no_output(execution):
        raise UnknownResource(problem)
    return execution.payload.output


def _id(reading: Reading) -> str:
    """Raises UnknownExecution for what is not written as ids are."""
    text = reading.variables["id"]
    try:
        is_ours = str(uuid.UUID(text)) == text.lower()
    except ValueError:
        is_ours = False
    if not is_ours:
        raise UnknownExecution(text)
    return text


def _offset(reading: Reading) -> int:
    text = reading.variables.get("offset") or "0"
    if not (text.isascii() and text.isdigit() and len(text) <= LONGEST_OFFSET):
        raise UnknownResource("offset has to be a whole number of characters, 0 or more.")
    return int(text)


def _suggest_executions(access: Access, typed: str) -> Iterable[str]:
    return _newest(access)


def _suggest_completed(access: Access, typed: str) -> Iterable[str]:
    return _newest(access, state=State.COMPLETED)


def _newest(access: Access, *, state: str = "") -> Iterable[str]:
    page = list_own_executions(access.caller, state=state, limit=SUGGESTED)
    return [str(execution.pk) for execution in page.executions]


EXECUTION_RESOURCES = (
    ResourceKind(
        template=UriTemplate.parse("execution://{id}"),
        name="execution",
        title="An execution",
        description="How far a run is that you started; in the end also its output, unless that is large.",
        scopes=frozenset({Scope.READ, Scope.RUN}),
        read=_read_execution,
        suggestions={"id": _suggest_executions},
    ),
    ResourceKind(
        template=UriTemplate.parse("execution://{id}/result{?offset}"),
        name="execution_result",
        title="The result of an execution",
        description=(
            "The output of a completed run. A large one comes in parts: `offset` is the character to begin "
            "at, and each part tells the address of the next."
        ),
        mime_type=None,
        # Also for whoever may only run: a call's own large result is found here.
        scopes=frozenset({Scope.READ, Scope.RUN}),
        read=_read_result,
        suggestions={"id": _suggest_completed},
    ),
)
