"""Resources about executions: how far one is, and what came of it."""

import base64
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from django.conf import settings
from mcp.shared.uri_template import UriTemplate
from mcp_types import BlobResourceContents, TextResourceContents

from catalogue.scopes import Scope
from executions.change_feed import find_fresh_execution
from executions.models import Execution, State
from executions.reading import UnknownExecution, find_execution, list_own_executions
from mcp_bridge.content import (
    Block,
    NoSuchPart,
    Part,
    Room,
    blocks_of,
    content_address,
    result_address,
    take_part,
    why_no_output,
    write_output,
)
from mcp_bridge.resources.resource import JSON, TEXT, Contents, Found, Reading, ResourceKind, UnknownResource
from mcp_bridge.results import describe_within_bounds, result_text
from mcp_bridge.tokens import Access

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


META = "workflow-catalogue/"
BINARY = "application/octet-stream"
LONGEST_NUMBER = 15
"""Digits."""


def read_block(reading: Reading, execution: Execution) -> Found:
    """One content block of a result. Raises UnknownResource."""
    block, offset = _find_block(reading, execution), read_offset(reading)

    def address(*, offset: int) -> str:
        return content_address(execution, block.number, offset=offset)

    if block.data is not None:
        return Found([*_tell_bytes(reading, block.data, offset, block.mime_type or BINARY, address)])
    text, mime_type = block.text, block.mime_type or TEXT
    if text is None:
        text, mime_type = write_output(block.raw), JSON
    try:
        part = take_part(text, offset=offset)
    except NoSuchPart as error:
        raise UnknownResource(str(error)) from None
    if part.is_whole:
        return reading.holds(part.text, mime_type=mime_type)
    return Found([*tell_part(reading, part, address=address)])


def binary_contents(execution: Execution) -> Iterator[Contents]:
    """What of a result is no text, as much as one answer carries; of the rest, where it is."""
    without_text = [block for block in blocks_of(execution) if block.data]
    for block, fits in Room.usual().share_out(without_text):
        if fits and block.data is not None:
            yield _blob(block.address, block.data, block.mime_type or BINARY)
        else:
            yield TextResourceContents(uri=block.address, mime_type=TEXT, text=block.words)


def tell_part(reading: Reading, part: Part, *, address: Callable[..., str]) -> Iterator[TextResourceContents]:
    """Some of a text, and where the next part is; `address` knows that by its offset."""
    told: dict[str, Any] = {f"{META}offset": part.offset, f"{META}characters": part.total}
    following = None if part.next_offset is None else address(offset=part.next_offset)
    if following is not None:
        told[f"{META}next"] = following
    yield TextResourceContents(uri=reading.uri, mime_type=TEXT, text=part.text, _meta=told)
    if following is not None:
        # Models do not get to see `_meta`.
        note = (
            f"Characters {part.offset + 1:,} to {part.end:,} of {part.total:,}. The next part is {following}"
        )
        yield TextResourceContents(uri=following, mime_type=TEXT, text=note)


def read_offset(reading: Reading) -> int:
    """Raises UnknownResource."""
    return _number(reading.variables.get("offset") or "0", "offset")


def _tell_bytes(
    reading: Reading, data: bytes, offset: int, mime_type: str, address: Callable[..., str]
) -> Iterator[Contents]:
    if offset and offset >= len(data):
        raise UnknownResource(f"There is nothing at {offset:,}: the block has {len(data):,} bytes.")
    end = min(offset + settings.CATALOGUE["inline_content_bytes"], len(data))
    if offset == 0 and end == len(data):
        yield _blob(reading.uri, data, mime_type)
        return
    told: dict[str, Any] = {f"{META}offset": offset, f"{META}bytes": len(data)}
    following = address(offset=end) if end < len(data) else None
    if following is not None:
        told[f"{META}next"] = following
    # A part alone is no picture.
    yield _blob(reading.uri, data[offset:end], BINARY, meta=told)
    if following is not None:
        note = f"Bytes {offset + 1:,} to {end:,} of {len(data):,}. The next part is {following}"
        yield TextResourceContents(uri=following, mime_type=TEXT, text=note)


def _blob(
    uri: str, data: bytes, mime_type: str, *, meta: dict[str, Any] | None = None
) -> BlobResourceContents:
    return BlobResourceContents(
        uri=uri, mime_type=mime_type, blob=base64.b64encode(data).decode(), _meta=meta
    )


def _find_block(reading: Reading, execution: Execution) -> Block:
    number, blocks = _number(reading.variables["number"], "The number of a block"), blocks_of(execution)
    if number < len(blocks):
        return blocks[number]
    if execution.state == State.COMPLETED and (problem := why_no_output(execution)):
        raise UnknownResource(problem)
    raise UnknownResource(
        f"There is no block {number}: the result has {len(blocks)} of them, counted from 0. "
        f"execution://{execution.pk} tells how the run is."
    )


def _number(text: str, what: str) -> int:
    """Raises UnknownResource."""
    if not (text.isascii() and text.isdigit() and len(text) <= LONGEST_NUMBER):
        raise UnknownResource(f"{what} has to be a whole number, 0 or more.")
    return int(text)
