"""Resources about executions: how far one is, and what came of it."""

import uuid
from collections.abc import Iterable
from functools import partial

from mcp.shared.uri_template import UriTemplate

from catalogue.scopes import Scope
from executions.listing import list_own_executions
from executions.models import Execution, State
from executions.reading import UnknownExecution, find_execution
from executions.watching import find_fresh_execution
from mcp_bridge.access import Access
from mcp_bridge.answers.documents import describe_within_bounds, result_text
from mcp_bridge.answers.outputs import NoSuchPart, result_address, take_part, why_no_output, write_output
from mcp_bridge.resources.in_parts import binary_contents, read_block, read_offset, tell_part
from mcp_bridge.resources.resource import Contents, Found, Reading, ResourceKind, UnknownResource

SUGGESTED = 200
"""Of a caller's executions, the newest that completion knows."""


def _read_execution(reading: Reading) -> Found:
    try:
        execution = find_fresh_execution(_id(reading), caller=reading.access.caller)
    except UnknownExecution as error:
        raise UnknownResource(str(error)) from None
    found = reading.holds(write_output(describe_within_bounds(execution)))
    return Found(found.contents, changes=not execution.is_settled)


def _read_result(reading: Reading) -> Found:
    """The whole output, or a part of it and where the next one is; with the first, what is no text."""
    execution = _find_execution(reading)
    _check_has_result(execution)
    text, mime_type = result_text(execution)
    offset = read_offset(reading)
    try:
        part = take_part(text, offset=offset)
    except NoSuchPart as error:
        raise UnknownResource(str(error)) from None
    if part.is_whole:
        contents: list[Contents] = list(reading.holds(part.text, mime_type=mime_type).contents)
    else:
        contents = [*tell_part(reading, part, address=partial(result_address, execution))]
    return Found(contents if offset else [*contents, *binary_contents(execution)])


def _find_execution(reading: Reading) -> Execution:
    try:
        return find_execution(_id(reading), caller=reading.access.caller)
    except UnknownExecution as error:
        raise UnknownResource(str(error)) from None


def _check_has_result(execution: Execution) -> None:
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


def _read_block(reading: Reading) -> Found:
    """Also of a run that failed: engines may say in blocks why."""
    return read_block(reading, _find_execution(reading))


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
    ResourceKind(
        template=UriTemplate.parse("execution://{id}/result/content/{number}{?offset}"),
        name="execution_content",
        title="A content block of a result",
        description=(
            "A picture, a sound, a file or a text of a result that consists of such, counted from 0. Large "
            "ones come in parts: `offset` is the byte to begin at, of texts the character."
        ),
        mime_type=None,
        scopes=frozenset({Scope.READ, Scope.RUN}),
        read=_read_block,
        suggestions={"id": _suggest_completed},
    ),
)
