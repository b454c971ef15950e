"""What a built-in tool consists of, and how it is called."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from mcp_types import Tool, ToolAnnotations

from catalogue.interactions import InteractionKind
from catalogue.schemas import find_argument_problems
from catalogue.scopes import Scope
from executions.interacting import InteractionRefused
from executions.listing import UnknownCursor
from executions.reading import UnknownExecution
from executions.refusals import InvalidArguments, StartRefused
from mcp_bridge.answers.outputs import NoSuchPart
from mcp_bridge.answers.results import ToolAnswer, text_result
from mcp_bridge.calls import ToolCall

Arguments = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltInTool:
    """A tool of ours; it is seen and called with its scope only."""

    name: str
    title: str
    description: str
    scope: Scope
    properties: dict[str, Any]
    required: tuple[str, ...] = ()
    read_only: bool = True
    hints: ToolAnnotations | None = None
    """Where they differ from what `read_only` stands for."""
    takes_part_in: InteractionKind | None = None
    """Listed only for callers who see a workflow that declares such; can be called at any time."""
    call: Callable[[ToolCall, Arguments], Awaitable[ToolAnswer]]

    @property
    def input_schema(self) -> dict[str, Any]:
        schema = {"type": "object", "properties": self.properties, "additionalProperties": False}
        return schema | ({"required": list(self.required)} if self.required else {})

    @property
    def tool(self) -> Tool:
        usual = ToolAnnotations(read_only_hint=self.read_only, open_world_hint=not self.read_only)
        return Tool(
            name=self.name,
            title=self.title,
            description=self.description,
            input_schema=self.input_schema,
            annotations=self.hints or usual,
        )


async def call_built_in(tool: BuiltInTool, call: ToolCall, arguments: Arguments) -> ToolAnswer:
    """Check the arguments, call it, and tell refusals in-band, where the model can correct itself."""
    if problems := find_argument_problems(tool.input_schema, arguments):
        return text_result(str(InvalidArguments(tool.name, problems)), is_error=True)
    try:
        return await tool.call(call, arguments)
    except (StartRefused, InteractionRefused, UnknownExecution, UnknownCursor, NoSuchPart) as error:
        return text_result(str(error), is_error=True)
