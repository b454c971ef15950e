"""A run's output as text and content blocks, within the limits of a model's context."""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mcp_types as types
from django.conf import settings
from mcp_types.version import is_version_at_least
from pydantic import TypeAdapter, ValidationError

from catalogue.models import Workflow
from catalogue.naming import counted
from connectors.definitions import runs_as_script
from connectors.protocol import ABOUT_OUTPUT, ASIDE
from executions.models import Execution
from executions.reading import decode_base64, describe_cut
from executions.result_reader import shape_of
from mcp_bridge.request_meta import NOTE

BEGINNING = 2_000
SHAPE_BYTES = 1_000
MAX_NOTE = 15_000
Pictured = types.ImageContent | types.AudioContent
# Protocol versions that introduced a type of block; clients of older ones refuse the whole result.
FIRST_VERSIONS = {"audio": "2025-03-26", "resource_link": "2025-06-18"}
OLDEST_VERSION = "2024-11-05"
DISPENSABLE = ("annotations", "_meta")  # A block is shown without them if they are invalid
SHOWN_NAME = 200
BLOCKS: TypeAdapter[types.ContentBlock] = TypeAdapter(types.ContentBlock)
MAX_BLOCKS = 500
MAX_STAND_INS = 20  # Blocks that are too large, each replaced by its beginning or address


class NoSuchPart(Exception):
    """The offset is past the end of the output."""


@dataclass(frozen=True, slots=True)
class Part:
    """Offsets and sizes are in characters."""

    text: str
    offset: int
    total: int

    @property
    def end(self) -> int:
        return self.offset + len(self.text)

    @property
    def next_offset(self) -> int | None:
        return self.end if self.end < self.total else None

    @property
    def is_whole(self) -> bool:
        return len(self.text) == self.total


def write_output(output: Any) -> str:
    # Indentation costs models tokens, and takes seconds for large outputs.
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)


def fits_inline(text: str) -> bool:
    return len(text) <= settings.CATALOGUE.inline_result_characters


def take_part(text: str, *, offset: int, most: int | None = None) -> Part:
    """Returns `most` characters, or as many as fit inline. Raises NoSuchPart."""
    if offset and offset >= len(text):
        raise NoSuchPart(f"The offset {offset:,} is past the end: the output has {len(text):,} characters.")
    end = offset + (most or settings.CATALOGUE.inline_result_characters)
    return Part(text[offset:end], offset, len(text))


def media_type(output: Any) -> str:
    return "text/plain" if isinstance(output, str) else "application/json"


def result_address(execution: Execution, *, offset: int = 0) -> str:
    return f"execution://{execution.pk}/result" + (f"?offset={offset}" if offset else "")


def promises_output(workflow: Workflow, *, to_the_end: bool = True) -> bool:
    """Returns whether its tool has an output schema: not if it may answer with a handle, which would break
    it. Many clients then show their model an error instead of the handle. `to_the_end`: the client waits for
    the run's end."""
    return to_the_end and needs_structure(workflow) and not workflow.may_need_approval


def needs_structure(workflow: Workflow) -> bool:
    """Returns whether a result has to have its structured content: also for a client that keeps an output
    schema from before approval was required."""
    is_synchronous = workflow.effective_execution_type == Workflow.ExecutionType.SYNC
    return is_synchronous and workflow.promised_output_schema is not None


def has_structure(execution: Execution) -> bool:
    """Returns whether the output is data, not a copy of the content blocks; text only with an output
    schema."""
    output, workflow = execution.payload.output, execution.workflow
    if not has_blocks(execution) or (output is not None and not isinstance(output, str)):
        return True
    return output is not None and workflow is not None and workflow.output_schema is not None


def why_no_output(execution: Execution) -> str:
    """Returns why a completed run has no output to show; empty if it has one."""
    if execution.payload_pruned_at is not None:
        return (
            "The run completed, but its output is no longer stored: the retention removed it "
            f"on {execution.payload_pruned_at:%Y-%m-%d}. Call the tool again if the result is "
            "still needed."
        )
    is_nothing_left = execution.payload.output is None and execution.payload.content is None
    if is_nothing_left and execution.succeeded and execution.error:
        return execution.error
    if is_nothing_left and what_was_cut(execution):
        return "The run completed, but its output was too large to store."
    return ""


def what_was_cut(execution: Execution) -> str:
    return describe_cut(execution.payload.cut)


@dataclass(eq=False)
class Block:
    raw: dict[str, Any]
    number: int
    address: str

    @property
    def kind(self) -> str:
        return str(self.raw.get("type"))[:SHOWN_NAME]

    @property
    def model(self) -> types.ContentBlock | None:
        """None if it is not valid MCP."""
        return self._read[0]

    @property
    def data(self) -> bytes | None:
        return self._read[1]

    @cached_property
    def _read(self) -> tuple[types.ContentBlock | None, bytes | None]:
        without = {name: value for name, value in self.raw.items() if name not in DISPENSABLE}
        for raw in (self.raw, without):
            try:
                model = BLOCKS.validate_python(raw, by_name=False)
            except ValidationError:
                continue
            held = getattr(model, "resource", model)
            if runs_as_script(str(getattr(held, "uri", ""))):
                return None, None
            if (encoded := encoded_data(model)) is None:
                return model, None
            data = decode_base64(encoded)
            return (None, None) if data is None else (model, data)
        return None, None

    @property
    def text(self) -> str | None:
        return None if self.model is None else text_of(self.model)

    @property
    def size(self) -> int:
        return len(self.data or b"")

    @cached_property
    def characters(self) -> int:
        """Counts its JSON without its data, at least its text."""
        text = self.text or ""
        if self.raw.keys() == {"type", "text"}:
            return len(text)
        shown = self.raw
        if self.data is not None:
            held = shown.get("resource")
            inner = held if isinstance(held, dict) else shown
            kept = {name: value for name, value in inner.items() if name not in ("blob", "data")}
            shown = shown | {"resource": kept} if isinstance(held, dict) else kept
        return max(len(json.dumps(shown)), len(text))

    @property
    def mime_type(self) -> str:
        held = self.model.resource if isinstance(self.model, types.EmbeddedResource) else self.model
        return (getattr(held, "mime_type", None) or "")[:SHOWN_NAME]

    @property
    def words(self) -> str:
        """Its text, or a description with its address."""
        if self.text is not None:
            return self.text
        if self.model is None:
            return f"[Content of the type {self.kind!r}, which clients cannot show: {self.address}]"
        return f"[{describe(self.model)}: {self.address}]" if self.size else f"[{describe(self.model)}]"


def blocks_of(execution: Execution) -> list[Block]:
    """Returns the blocks without notes; empty for engines that answer with JSON."""
    raws: Iterable[dict[str, Any]] = execution.payload.content or ()
    return [
        Block(raw, number=number, address=content_address(execution, number))
        for number, raw in enumerate(raws)
        if raw.get("_meta") not in (ABOUT_OUTPUT, ASIDE)
    ]


def notes_of(execution: Execution, kind: dict[str, Any] = ABOUT_OUTPUT) -> list[str]:
    """Returns what the connector says about the output."""
    raws: Iterable[dict[str, Any]] = execution.payload.content or ()
    return [str(raw.get("text"))[:MAX_NOTE] for raw in raws if raw.get("_meta") == kind]


def has_blocks(execution: Execution) -> bool:
    """Returns whether the engine answered with content blocks, perhaps with an empty list."""
    return execution.payload.content == [] or bool(blocks_of(execution))


def content_address(execution: Execution, number: int, *, offset: int = 0) -> str:
    return f"{result_address(execution)}/content/{number}" + (f"?offset={offset}" if offset else "")


def text_of(block: types.ContentBlock) -> str | None:
    if isinstance(block, types.EmbeddedResource):
        return block.resource.text if isinstance(block.resource, types.TextResourceContents) else None
    return block.text if isinstance(block, types.TextContent) else None


def is_note(block: types.ContentBlock) -> bool:
    return bool((block.meta or {}).get(NOTE))


def encoded_data(block: types.ContentBlock) -> str | None:
    """Base64."""
    if isinstance(block, types.EmbeddedResource):
        return block.resource.blob if isinstance(block.resource, types.BlobResourceContents) else None
    return block.data if isinstance(block, Pictured) else None


def describe(block: types.ContentBlock) -> str:
    if isinstance(block, types.ResourceLink):
        return f"Link to {(block.title or block.name)[:SHOWN_NAME]}: {block.uri[:SHOWN_NAME]}"
    held = block.resource if isinstance(block, types.EmbeddedResource) else block
    kind = (getattr(held, "mime_type", None) or block.type)[:SHOWN_NAME]
    return f"{kind}, {len(decode_base64(encoded_data(block) or '') or b''):,} bytes"


@dataclass
class SizeBudget:
    characters: int
    bytes: int
    blocks: int = MAX_BLOCKS
    stand_ins: int = MAX_STAND_INS

    @classmethod
    def usual(cls) -> "SizeBudget":
        bounds = settings.CATALOGUE
        return cls(characters=bounds.inline_result_characters, bytes=bounds.inline_content_bytes)

    def share_out(self, blocks: Iterable[Block]) -> Iterator[tuple[Block, bool]]:
        """Yields the blocks, each with whether it fits; ends early if not even a stand-in fits."""
        for block in blocks:
            fits = block.characters <= self.characters and block.size <= self.bytes
            if not self.blocks or not (fits or self.stand_ins):
                return
            self.blocks -= 1
            if fits:
                self.characters -= block.characters
                self.bytes -= block.size
            else:
                self.stand_ins -= 1
            yield block, fits


def show_blocks(
    execution: Execution, blocks: list[Block], *, protocol_version: str, room: SizeBudget
) -> list[types.ContentBlock]:
    """Unchanged; too large ones, and those unknown to this version, as text with their address."""
    shown: list[types.ContentBlock] = []
    count = 0
    for block, fits in room.share_out(blocks):
        count += 1
        first = FIRST_VERSIONS.get(block.kind, OLDEST_VERSION)
        if block.model is None or not is_version_at_least(protocol_version, first):
            shown.append(types.TextContent(text=block.words))
        elif fits:
            shown.append(block.model)
        else:
            shown += _stand_in(execution, block, protocol_version)
    if count < len(blocks):
        shown.append(types.TextContent(text=_left_out(execution, blocks[count:])))
    return shown


def outline_blocks(execution: Execution, blocks: list[Block]) -> dict[str, Any]:
    """Describes blocks in JSON: text as far as it fits, type and address of other blocks."""
    room = SizeBudget.usual()
    room.bytes = sys.maxsize
    outlines = [_outline(execution, block, fits) for block, fits in room.share_out(blocks)]
    described: dict[str, Any] = {"content": outlines}
    if left := blocks[len(outlines) :]:
        described["content_left_out"] = _left_out(execution, left)
    return described


def rest_of_block(execution: Execution, number: int, offset: int = 0) -> dict[str, Any]:
    """Arguments of `get_execution_status`."""
    arguments = {"execution_id": str(execution.pk), "content_block": number}
    return arguments | {"output_offset": offset} if offset else arguments


def _outline(execution: Execution, block: Block, fits: bool) -> dict[str, Any]:
    outline: dict[str, Any] = {"type": block.kind}
    if fits and block.size == 0 and block.model is not None:
        return block.model.model_dump(mode="json", by_alias=True, exclude_none=True)
    if block.mime_type:
        outline["mimeType"] = block.mime_type
    if block.text is None:
        return outline | {"bytes": block.size, "resource": block.address}
    return outline | {
        "text_beginning": block.text[:BEGINNING],
        "text_characters": len(block.text),
        "resource": block.address,
        "rest": {
            "tool": "get_execution_status",
            "arguments": rest_of_block(execution, block.number, BEGINNING),
        },
    }


def beginning_of(what: str, text: str, *, rest: dict[str, Any], address: str, shape: Any = None) -> str:
    """`shape`: of a value, None of a text."""
    ask = {name: value for name, value in rest.items() if name != "output_offset"} | example_query(text)
    shaped = "" if shape is None else f" Its shape: {write_output(shape)}"
    return (
        f"{what} has {len(text):,} characters, too many to show at once; its first {BEGINNING:,} follow. To "
        f"find something in it call get_execution_status with a JMESPath query, such as {json.dumps(ask)}; "
        f"for the rest with {json.dumps(rest)}, or read the resource {address}.{shaped}\n\n{text[:BEGINNING]}"
    )


def example_query(text: str) -> dict[str, str]:
    """An argument of `get_execution_status`."""
    return {"query": {"{": "keys(@)", "[": "[:3]"}.get(text[:1_000].lstrip()[:1], "lines[:20]")}


def shape_of_output(output: Any) -> Any:
    """Returns None for a text."""
    return None if isinstance(output, str) else shape_of(output, most=SHAPE_BYTES)


def _stand_in(execution: Execution, block: Block, protocol_version: str) -> Iterator[types.ContentBlock]:
    if block.text is None:
        yield types.TextContent(text=f"Too large to show here: {block.words}")
    else:
        rest = rest_of_block(execution, block.number, BEGINNING)
        text = beginning_of("This part of the result", block.text, rest=rest, address=block.address)
        yield types.TextContent(text=text)
    if is_version_at_least(protocol_version, FIRST_VERSIONS["resource_link"]):
        yield types.ResourceLink(
            uri=block.address,
            name=f"{execution.tool_name}_content_{block.number}",
            title=f"Part {block.number} of the result of {execution.tool_name}",
            description="The full content. Large content is read in parts; each part has the address of "
            "the next.",
            mime_type=block.mime_type or None,
            size=block.size or len((block.text or "").encode()),
        )


def _left_out(execution: Execution, left: list[Block]) -> str:
    asking = json.dumps(rest_of_block(execution, left[0].number))
    return (
        f"The result has {counted(len(left), 'more content block')}, numbered {left[0].number} to "
        f"{left[-1].number}. Call get_execution_status with {asking} for the first of them, and "
        "so on."
    )
