import json
import zlib
from collections.abc import Sequence
from typing import Any

from loguru import logger
from mcp import MCPError
from mcp_types import CallToolResult

from catalogue.access import Scope
from catalogue.database import run_in_database
from catalogue.describing import Mode, describe_workflow, summarise_workflow, unavailable_sources
from catalogue.exposure import current_catalogue
from catalogue.models import Workflow
from catalogue.schemas import ArgumentProblem
from catalogue.search import WorkflowQuery, select_workflows
from executions.refusals import InvalidArguments
from executions.starting import exposed_workflow
from mcp_bridge.builtin_tools.tool import Arguments, BuiltInTool, answer_with
from mcp_bridge.calls import ToolCall, run_workflow
from mcp_bridge.declarations import page_bounds, read_cursor
from mcp_bridge.portability import portable_view
from mcp_bridge.results import text_result

LIST_NAME = "list_workflows"
USUAL_LIMIT = 200
MOST_AT_A_TIME = 500
RANKED = "?"  # Prefix of positions in ranked lists, which no tool name has
DEPRECATED = (
    "list_workflows was called with the argument `detailed`, which is deprecated and goes in 1.0.0: use "
    '`mode`, "detailed" for true and "standard" for false (docs/MIGRATION.md).'
)


async def _list_workflows(call: ToolCall, arguments: Arguments) -> CallToolResult:
    bound = logger.bind(caller=call.access.caller.key, client=call.client)
    if "detailed" in arguments:
        bound.warning(DEPRECATED)
    document = await run_in_database(list_for, call, arguments)
    # White space costs models tokens.
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    workflows = len(document["workflows"])
    bound.bind(mode=_mode(arguments).value, workflows=workflows, characters=len(text)).info(
        "Listed workflows"
    )
    return text_result(text, structured=document)


def list_for(call: ToolCall, arguments: Arguments) -> dict[str, Any]:
    catalogue, bounds = current_catalogue(), call.access.bounds
    wish = WorkflowQuery(
        tags=arguments.get("tags", []),
        source=arguments.get("source", ""),
        query=arguments.get("query", ""),
    )
    selection = select_workflows(catalogue, wish, bounds)
    begin, end, following = _page(selection.workflows, wish, arguments)
    mode = _mode(arguments)
    entries = [summarise_workflow(workflow, mode) for workflow in selection.workflows[begin:end]]
    if (portable := portable_view(catalogue, bounds)) is not None:
        entries = [entry | {"name": portable.shown_name(entry["name"])} for entry in entries]
    document = {
        "workflows": entries,
        "total": len(selection.workflows),
        "next_cursor": following,
        "hint": selection.hint,
        "known_tags": list(selection.known_tags),
        "known_sources": list(selection.known_sources),
        "unavailable_sources": unavailable_sources(catalogue, bounds),
    }
    # Empty values cost tokens.
    return {name: value for name, value in document.items() if value or name in ("workflows", "total")}


def _mode(arguments: Arguments) -> Mode:
    """`detailed` wins: `mode` may be a default that the client fills in."""
    if "detailed" in arguments:
        return Mode.DETAILED if arguments["detailed"] else Mode.STANDARD
    return Mode(arguments.get("mode", Mode.COMPACT))


def _page(
    found: Sequence[Workflow], wish: WorkflowQuery, arguments: Arguments
) -> tuple[int, int, str | None]:
    """Begin, end and next cursor. Raises InvalidArguments for a cursor of another list."""
    cursor, limit = arguments.get("cursor"), int(arguments.get("limit", USUAL_LIMIT))
    ranking = json.dumps([wish.query, sorted(wish.tags), wish.source])
    ranked_by = f"{RANKED}{zlib.crc32(ranking.encode()):08x}"
    # Sorted positions for cursors: names, or ranks in search results.
    places = [workflow.tool_name for workflow in found]
    if wish.query:
        places = [f"{ranked_by}{rank:06}" for rank in range(len(found))]
    try:
        if cursor is not None:
            place = read_cursor(cursor)
            if not (place.startswith(ranked_by) if wish.query else not place.startswith(RANKED)):
                raise _unknown_cursor()
        return page_bounds(places, cursor, limit)
    except MCPError:
        raise _unknown_cursor() from None


def _unknown_cursor() -> InvalidArguments:
    problem = "unknown: begin again without one, or repeat the last call with its next_cursor"
    return InvalidArguments(LIST_NAME, [ArgumentProblem("/cursor", problem)], starts=False)


LIST_WORKFLOWS = BuiltInTool(
    name=LIST_NAME,
    title="List workflows",
    description=(
        "List the workflows that can be run, with what each is for and takes. get_workflow_info tells all "
        "about one. next_cursor is there if there are more, unavailable_sources if an engine cannot be "
        "listed at present: its workflows are those of its last good list. The argument detailed is "
        "deprecated: use mode."
    ),
    scope=Scope.READ,
    properties={
        "query": {
            "type": "string",
            "description": (
                "Keywords for the action and the thing, such as merge pull request, found in names, titles, "
                "tags and descriptions; a sentence finds less. Best matches come first."
            ),
        },
        "tags": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Only workflows that carry every one of these tags.",
        },
        "source": {"type": "string", "description": "Only workflows of this source."},
        "mode": {
            "type": "string",
            "enum": list(Mode),
            "default": Mode.COMPACT,
            "description": (
                "compact: short description and a line on the inputs. standard: whole description. "
                "detailed: also version, author, every input and output."
            ),
        },
        "limit": {"type": "integer", "minimum": 1, "maximum": MOST_AT_A_TIME, "default": USUAL_LIMIT},
        "cursor": {
            "type": "string",
            "description": "next_cursor of the page before, with the same other arguments.",
        },
        "detailed": {
            "type": "boolean",
            "deprecated": True,
            "description": "true: mode detailed, false: standard.",
        },
    },
    call=_list_workflows,
)


NAME = {
    "type": "string",
    "minLength": 1,
    "description": "The workflow's tool name, as list_workflows shows it.",
}


def _get_workflow_info(call: ToolCall, arguments: Arguments) -> dict[str, Any]:
    described = describe_workflow(exposed_workflow(arguments["name"], caller=call.access.caller))
    portable = portable_view(current_catalogue(), call.access.bounds)
    return described if portable is None else described | {"name": portable.shown_name(described["name"])}


WORKFLOW_TOOLS = (
    LIST_WORKFLOWS,
    BuiltInTool(
        name="get_workflow_info",
        title="Get everything about a workflow",
        description=(
            "Show one workflow in full: description, arguments and result as JSON Schema, timeout, for how "
            "long results are cached, hints, and whether its engine cannot be listed at present."
        ),
        scope=Scope.READ,
        properties={"name": NAME},
        required=("name",),
        names_workflow="name",
        call=answer_with(_get_workflow_info),
    ),
    BuiltInTool(
        name="execute_workflow",
        title="Execute a workflow",
        description=(
            "Run a workflow by name and return its result. A run that takes long returns an execution_id "
            "instead; ask get_execution_status for its result later."
        ),
        scope=Scope.RUN,
        properties={
            "name": NAME,
            "arguments": {
                "type": "object",
                "description": "The workflow's arguments, by its input schema.",
            },
        },
        required=("name",),
        names_workflow="name",
        read_only=False,
        starts=True,
        call=lambda call, arguments: run_workflow(call, arguments["name"], arguments.get("arguments", {})),
    ),
)
