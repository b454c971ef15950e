"""The result of a tool call as the end of a run."""

import json
from collections import Counter
from typing import Any

from connectors.network.redaction import shorten_error
from connectors.protocol import RunSnapshot, RunState

NO_REASON = "The tool failed and the server gave no reason."


def read_result(answer: dict[str, Any]) -> RunSnapshot:
    """A tool's result, as the server sent it: failed where it says so, or where nobody could read it."""
    blocks = answer.get("content", [])
    if problem := _problem_of(blocks):
        return RunSnapshot(
            state=RunState.FAILED,
            error=f"The tool ended, but the server's answer cannot be used: {problem}.",
            raw=answer,
        )
    text = _text_of(blocks)
    has_structure = "structuredContent" in answer
    output = answer["structuredContent"] if has_structure else text or _described(blocks)
    failed = answer.get("isError") is True
    return RunSnapshot(
        state=RunState.FAILED if failed else RunState.COMPLETED,
        output=output if has_structure or not failed else None,
        error=(shorten_error(text) or NO_REASON) if failed else "",
        # Without structure the blocks are the result, and the output only repeats their text.
        content=blocks if failed or not has_structure or _say_more_than(output, blocks) else None,
        # The rest stands in the output and the content.
        raw={key: value for key, value in answer.items() if key not in ("content", "structuredContent")}
        | {"contentTypes": [block["type"] for block in blocks]},
    )


def _problem_of(blocks: Any) -> str:
    """Empty where each block at least says what it is."""
    if not isinstance(blocks, list):
        return "its content is no list"
    for block in blocks:
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            return "its content has a part without a type"
        if block["type"] == "text" and not isinstance(block.get("text"), str):
            return "its content has a text without a text"
    return ""


def _text_of(blocks: list[dict[str, Any]]) -> str:
    return "\n".join(block["text"] for block in blocks if block["type"] == "text")


def _described(blocks: list[dict[str, Any]]) -> str:
    """`2 image, 1 audio`; empty where there is nothing."""
    counted = Counter(block["type"] for block in blocks)
    return ", ".join(f"{count} {kind}" for kind, count in counted.items())


def _say_more_than(output: Any, blocks: list[dict[str, Any]]) -> bool:
    """Whether the blocks differ from what is made of the output alone: one text, or its JSON."""
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return blocks != [{"type": "text", "text": text}]


def percent_of(progress: float, total: float | None) -> tuple[float | None, str]:
    """Percent, and in words what is none."""
    if total is not None and total > 0:
        return min(max(100.0 * progress / total, 0.0), 100.0), ""
    return None, f"{progress:g}"
