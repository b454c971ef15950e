"""How much of a result's content blocks one answer carries, and what stands for the rest."""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from mcp_types import ContentBlock, ResourceLink, TextContent
from mcp_types.version import is_version_at_least

from executions.models import Execution
from mcp_bridge.content import BEGINNING, FIRST_VERSIONS, Block

MOST_BLOCKS = 500
MOST_STAND_INS = 20
"""Blocks that are too large and are told of one by one."""


@dataclass
class Room:
    """What an answer still has room for."""

    characters: int
    bytes: int
    blocks: int = MOST_BLOCKS
    stand_ins: int = MOST_STAND_INS

    @classmethod
    def usual(cls) -> "Room":
        bounds = settings.CATALOGUE
        return cls(characters=bounds["inline_result_characters"], bytes=bounds["inline_content_bytes"])

    @classmethod
    def boundless(cls) -> "Room":
        """For terminals, and the files behind them."""
        return cls(sys.maxsize, sys.maxsize, sys.maxsize, sys.maxsize)

    def share_out(self, blocks: Iterable[Block]) -> Iterator[tuple[Block, bool]]:
        """The blocks in their order, each with whether there is room for all of it.

        It ends before the blocks do where there is none left even to tell of them.
        """
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
    execution: Execution, blocks: list[Block], *, protocol_version: str, room: Room
) -> list[ContentBlock]:
    """The blocks as they came. Those that are too large, or that this version's clients do not know, are told
    of in words, with where they are."""
    shown: list[ContentBlock] = []
    told = 0
    for block, fits in room.share_out(blocks):
        told += 1
        if block.model is None or not block.is_known_to(protocol_version):
            shown.append(TextContent(text=block.words))
        elif fits:
            shown.append(block.model)
        else:
            shown += _stand_in(execution, block, protocol_version)
    if told < len(blocks):
        shown.append(TextContent(text=_left_out(execution, blocks[told:])))
    return shown


def outline_blocks(execution: Execution, blocks: list[Block]) -> dict[str, Any]:
    """The same for documents: texts as far as there is room, of other blocks what they are and where."""
    room = Room.usual()
    room.bytes = sys.maxsize
    outlines = [_outline(execution, block, fits) for block, fits in room.share_out(blocks)]
    described: dict[str, Any] = {"content": outlines}
    if left := blocks[len(outlines) :]:
        described["content_left_out"] = _left_out(execution, left)
    return described


def rest_of_block(execution: Execution, number: int, offset: int = 0) -> dict[str, Any]:
    """The arguments of `get_execution_status` for a block, or its text from `offset` on."""
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


def _stand_in(execution: Execution, block: Block, protocol_version: str) -> Iterator[ContentBlock]:
    """For a block that is too large: how much it is, how it begins and where it is."""
    if block.text is None:
        yield TextContent(text=f"Too large to be shown here: {block.words}")
    else:
        rest = json.dumps(rest_of_block(execution, block.number, BEGINNING))
        yield TextContent(
            text=f"This part of the result has {len(block.text):,} characters, too many to show at once; its "
            f"first {BEGINNING:,} follow. For the rest call get_execution_status with {rest}, or read the "
            f"resource {block.address}.\n\n{block.text[:BEGINNING]}"
        )
    if is_version_at_least(protocol_version, FIRST_VERSIONS["resource_link"]):
        yield ResourceLink(
            uri=block.address,
            name=f"{execution.tool_name}_content_{block.number}",
            title=f"Part {block.number} of the result of {execution.tool_name}",
            description="The whole of it. Large ones are read in parts; each tells the address of the next.",
            mime_type=block.mime_type or None,
            size=block.size or len((block.text or "").encode()),
        )


def _left_out(execution: Execution, left: list[Block]) -> str:
    asking = json.dumps(rest_of_block(execution, left[0].number))
    return (
        f"The result goes on with {len(left):,} content blocks more, numbered {left[0].number} to "
        f"{left[-1].number}. Call get_execution_status with {asking} for the first of them, and so on."
    )
