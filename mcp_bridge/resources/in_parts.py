"""Results as resources: parts of large ones, and blocks that are no text."""

import base64
from collections.abc import Callable, Iterator
from typing import Any

from django.conf import settings
from mcp_types import BlobResourceContents, TextResourceContents

from executions.models import Execution, State
from mcp_bridge.answers.content import Block, blocks_of, content_address
from mcp_bridge.answers.outputs import NoSuchPart, Part, take_part, why_no_output, write_output
from mcp_bridge.answers.showing import Room
from mcp_bridge.resources.resource import JSON, TEXT, Contents, Found, Reading, UnknownResource

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
