"""The instructions that the model gets, and the correct answers."""

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
