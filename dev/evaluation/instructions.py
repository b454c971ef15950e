"""What the model is asked, and what would be right; as docs/evaluation.md shows it, too."""

import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from connectors.http_tools.tool import ToolConfig

FOLDER = Path(__file__).parent


class Instruction(BaseModel):
    """One instruction with the answers that are right."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    about: str
    """What is hard about it."""
    say: str
    tool: str | None
    """None: no tool can be called."""
    arguments: dict[str, Any] = {}
    others: list[dict[str, Any]] = Field(default=[], alias="or")
    free: frozenset[str] = frozenset()
    """Arguments that may be anything."""

    @property
    def right_answers(self) -> list[dict[str, Any]]:
        return [self.arguments, *self.others]


@cache
def read_tools() -> tuple[ToolConfig, ...]:
    """As whoever runs the product would submit them."""
    return TypeAdapter(tuple[ToolConfig, ...]).validate_python(_read("tools.yaml"))


@cache
def input_schemas() -> dict[str, dict[str, Any]]:
    """By tool name."""
    return {tool.name: tool.input_schema for tool in read_tools()}


@cache
def read_instructions() -> tuple[Instruction, ...]:
    """In the order of the file; `plain-1` is the first of those that are plain."""
    return tuple(
        Instruction(id=f"{about.replace(' ', '-')}-{number}", about=about, **written)
        for about, group in _read("instructions.yaml").items()
        for number, written in enumerate(group, start=1)
    )


def _read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def write_table(instructions: Iterable[Instruction]) -> str:
    """Markdown, one row for each instruction."""
    rows = ["| id | instruction | tool | arguments |", "|---|---|---|---|", *map(_table_row, instructions)]
    return "\n".join(rows) + "\n"


def _table_row(instruction: Instruction) -> str:
    tool = f"`{instruction.tool}`" if instruction.tool else "none"
    arguments = " ".join(_right_arguments(instruction))
    return f"| {instruction.id} | {_cell(instruction.say)} | {tool} | {arguments} |"


def _right_arguments(instruction: Instruction) -> Iterator[str]:
    if instruction.tool is None:
        return
    yield " or ".join(f"`{_cell(_as_json(answer))}`" for answer in instruction.right_answers)
    if instruction.free:
        yield f"({', '.join(sorted(instruction.free))}: any)"


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cell(text: str) -> str:
    """What Markdown and HTML would take for their own is escaped."""
    return text.replace("|", "\\|").replace("<", "&lt;")
