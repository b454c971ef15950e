from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

from mcp_types import Tool, ToolAnnotations

from catalogue.access import Scope
from catalogue.database import run_in_database
from catalogue.interactions import InteractionKind
from catalogue.long_lists import UnknownCursor
from catalogue.schemas import check_arguments
from executions.interacting import InteractionRefused
from executions.reading import UnknownExecution
from executions.refusals import InvalidArguments, StartRefused
from mcp_bridge.calls import ToolCall
from mcp_bridge.content import NoSuchPart
from mcp_bridge.portability import find_portable_view
from mcp_bridge.results import ToolAnswer, document_result, text_result

Arguments = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltInTool:
    name: str
    title: str
    description: str
    scope: Scope
    other_scope: Scope | None = None
    properties: dict[str, Any]
    required: tuple[str, ...] = ()
    read_only: bool = True
    starts: bool = False
    hints: ToolAnnotations | None = None  # Default: from `read_only`
    takes_part_in: InteractionKind | None = None  # Listed only where a workflow declares some
    names_workflow: str = ""
    call: Callable[[ToolCall, Arguments], Awaitable[ToolAnswer]]

    def is_open_to(self, scopes: Collection[str]) -> bool:
        return self.scope in scopes or self.other_scope in scopes

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


def answer_with(
    document: Callable[[ToolCall, Arguments], dict[str, Any]],
) -> Callable[[ToolCall, Arguments], Awaitable[ToolAnswer]]:
    """A tool's `call` from a synchronous function, which may query the database."""

    async def answer(call: ToolCall, arguments: Arguments) -> ToolAnswer:
        return document_result(await run_in_database(document, call, arguments))

    return answer


async def call_built_in(tool: BuiltInTool, call: ToolCall, arguments: Arguments) -> ToolAnswer:
    """Returns refusals as results, so that the model can correct itself."""
    try:
        return await tool.call(call, await _read_arguments(tool, call, arguments))
    except (StartRefused, InteractionRefused, UnknownExecution, UnknownCursor, NoSuchPart) as error:
        return text_result(str(error), is_error=True)


async def _read_arguments(tool: BuiltInTool, call: ToolCall, arguments: Arguments) -> Arguments:
    """Raises InvalidArguments."""
    portable = await find_portable_view(call.access)
    if portable is not None:
        arguments = portable.read(tool.name, tool.input_schema, arguments)
    # Some clients make every argument required, and models then write "" for optional ones.
    given = {name: value for name, value in arguments.items() if value != "" or name in tool.required}
    checked = check_arguments(tool.input_schema, given)
    if checked.problems:
        raise InvalidArguments(tool.name, checked.problems, starts=tool.starts)
    if portable is None or tool.names_workflow not in checked.arguments:
        return checked.arguments
    named = checked.arguments[tool.names_workflow]
    return checked.arguments | {tool.names_workflow: portable.meant_name(named)}
