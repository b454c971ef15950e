"""A run as a document: how it does and what came of it, within bounds."""

import json
from typing import Any

from executions.models import Execution, State
from executions.reading import describe_execution
from mcp_bridge.answers.content import Block, blocks_of
from mcp_bridge.answers.outputs import (
    BEGINNING,
    fits_inline,
    has_structure,
    media_type,
    result_address,
    what_was_cut,
    write_output,
)
from mcp_bridge.answers.showing import outline_blocks


def describe_within_bounds(execution: Execution) -> dict[str, Any]:
    """As `describe_execution` does, with the content blocks of engines that answer with such.

    Of a large output only the beginning, the size and where the rest is.
    """
    described = describe_execution(execution)
    if execution.state not in (State.COMPLETED, State.FAILED):
        return described
    if missing := what_was_cut(execution):
        described["note"] = missing
    blocks = blocks_of(execution)
    if blocks and not _says_the_same(blocks, execution.payload.output):
        described |= outline_blocks(execution, blocks)
        if not has_structure(execution):
            described.pop("output", None)
    if "output" not in described or fits_inline(text := write_output(described["output"])):
        return described
    del described["output"]
    return described | {
        "output_beginning": text[:BEGINNING],
        "output_characters": len(text),
        "output_resource": result_address(execution),
    }


def result_text(execution: Execution) -> tuple[str, str]:
    """All that is text of a completed run's result, and its media type.

    That is the output, and for engines that gave nothing but content blocks these in words.
    """
    if not has_structure(execution):
        return "\n\n".join(block.words for block in blocks_of(execution)), "text/plain"
    output = execution.payload.output
    return write_output(output), media_type(output)


def _says_the_same(blocks: list[Block], output: Any) -> bool:
    """Whether the blocks are nothing but the output as text, as servers are advised to send it."""
    if output is None or len(blocks) != 1 or blocks[0].text is None:
        return False
    if blocks[0].text == output:
        return True
    try:
        return bool(json.loads(blocks[0].text) == output)
    except ValueError:
        return False
