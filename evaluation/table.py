"""The instructions as docs/evaluation.md shows them."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from evaluation.instructions import Instruction


def write_table(instructions: Iterable[Instruction]) -> str:
    """Markdown, one row for each instruction."""
    rows = ["| id | instruction | tool | arguments |", "|---|---|---|---|", *map(_row, instructions)]
    return "\n".join(rows) + "\n"


def _row(instruction: Instruction) -> str:
    tool = f"`{instruction.tool}`" if instruction.tool else "none"
    return f"| {instruction.id} | {_cell(instruction.say)} | {tool} | {' '.join(_arguments(instruction))} |"


def _arguments(instruction: Instruction) -> Iterator[str]:
    if instruction.tool is None:
        return
    yield " or ".join(f"`{_cell(_compact(answer))}`" for answer in instruction.right_answers)
    if instruction.free:
        yield f"({', '.join(sorted(instruction.free))}: any)"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cell(text: str) -> str:
    """What Markdown and HTML would take for their own is escaped."""
    return text.replace("|", "\\|").replace("<", "&lt;")
