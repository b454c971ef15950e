import json
import zlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.conf import settings
from loguru import logger
from mcp import MCPError
from mcp_types import CallToolResult, Tool, ToolAnnotations

from access.callers import Scope
from catalogue.database import run_in_database
from catalogue.descriptions import (
    InteractionKind,
    Mode,
    describe_part,
    describe_workflow,
    summarise_workflow,
    unavailable_sources,
)
from catalogue.exposure import current_catalogue
from catalogue.long_lists import UnknownCursor
from catalogue.models import Workflow
from catalogue.naming import counted
from catalogue.reduced_schemas import UnknownPart
from catalogue.schemas import ArgumentProblem, check_arguments
from catalogue.search import WorkflowQuery, select_workflows
from executions import problem_reports
from executions.asking import NotAnswered, ask_result
from executions.change_feed import watch_until_settled
from executions.control import Action, control_run
from executions.interacting import InteractionRefused, cancel_execution, query_execution, signal_execution
from executions.models import Execution, State
from executions.preflight import MAX_CALLS, PlannedCall, check_calls
from executions.reading import MAX_AT_A_TIME, UnknownExecution, list_own_executions, summarise_execution
from executions.refusals import InvalidArguments, StartRefused, UnknownTool
from executions.rerunning import find_retry
from executions.result_cache import clear_results
from executions.starting import exposed_workflow
from mcp_bridge import content
from mcp_bridge.calls import ToolCall, in_words, retry_run, run_workflow, wait_set_for
from mcp_bridge.card_tools import answer_execution, find_form, show_execution
from mcp_bridge.cards import APP_ONLY, SHOWS_CARD
from mcp_bridge.cards.relay import disarm
from mcp_bridge.content import NoSuchPart
from mcp_bridge.portability import PortableView, find_portable_view, portable_view
from mcp_bridge.request_meta import page_bounds, read_cursor
from mcp_bridge.results import (
    PEOPLE_DECIDE,
    ToolAnswer,
    describe_within_bounds,
    document_result,
    next_step,
    result_text,
    text_result,
)
from telemetry import metrics

Arguments = dict[str, Any]
LIST_NAME = "list_workflows"
DEFAULT_LIMIT = 200
MAX_LISTED = 500
RANKED = "?"  # Prefix of positions in ranked lists, which no tool name has
DEPRECATED = (
    "list_workflows was called with the argument `detailed`, which is deprecated and will be "
    'removed in 2.0.0, not before 2027-02-23: use `mode`, "detailed" for true and "standard" for false '
    "(docs/migration.md)."
)
MAX_WAIT_SECONDS = 50  # Common clients give up after 60 s
DEFAULT_PAGE_SIZE = 10
ANY = "any"  # A state, for models that fill in every argument
EXECUTION_ID = {"type": "string", "minLength": 1, "description": "The execution_id that the call returned."}
REFUSED = (StartRefused, InteractionRefused, UnknownExecution, UnknownCursor, NoSuchPart, NotAnswered)
OTHER_SPELLINGS = {"clear_cache": "ClearCache"}  # Of built-in tools, where no workflow has that name


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
    takes_part_in: InteractionKind | None = None  # Listed only if a workflow declares some
    names_workflow: str = ""
    shows_card: bool = False
    switch: str = ""  # The live setting without which it is neither listed nor called
    app_only: bool = False  # For cards: listed only to clients that show them, who hide it from models
    call: Callable[[ToolCall, Arguments], Awaitable[ToolAnswer]]

    def is_open_to(self, scopes: Collection[str]) -> bool:
        return self.scope in scopes or self.other_scope in scopes

    @property
    def is_on(self) -> bool:
        return not self.switch or getattr(settings.CATALOGUE, self.switch)

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

    @property
    def tool_with_card(self) -> Tool:
        """The tool as clients that show cards get it."""
        meta = APP_ONLY if self.app_only else SHOWS_CARD if self.shows_card else None
        return self.tool.model_copy(update={"meta": meta})


def answer_with(
    document: Callable[[ToolCall, Arguments], dict[str, Any]],
) -> Callable[[ToolCall, Arguments], Awaitable[ToolAnswer]]:
    """A tool's `call` from a synchronous function, which may query the database."""

    async def answer(call: ToolCall, arguments: Arguments) -> ToolAnswer:
        return document_result(await run_in_database(document, call, arguments))

    return answer


async def call_built_in(tool: BuiltInTool, call: ToolCall, arguments: Arguments) -> ToolAnswer:
    """Returns refusals as results, so that the model can correct itself. Raises UnknownTool if it is off."""
    if tool.switch and not await run_in_database(getattr, tool, "is_on"):
        raise UnknownTool(tool.name)
    try:
        answer = await tool.call(call, await _read_arguments(tool, call, arguments))
        if call.shows_apps and not tool.starts and isinstance(answer, CallToolResult):
            answer.content = [*map(disarm, answer.content)]
        return answer
    except REFUSED as error:
        return text_result(in_words(error, call.door), is_error=True)


async def _read_arguments(tool: BuiltInTool, call: ToolCall, arguments: Arguments) -> Arguments:
    """Raises InvalidArguments."""
    portable = None if tool.app_only else await find_portable_view(call.access)
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


async def _list_workflows(call: ToolCall, arguments: Arguments) -> CallToolResult:
    bound = logger.bind(caller=call.access.caller.key, client=call.client)
    if "detailed" in arguments:
        bound.warning(DEPRECATED)
    document = await run_in_database(list_for, call, arguments)
    # White space costs models tokens.
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    workflows, mode = len(document["workflows"]), _mode(arguments).value
    chosen_by = next((name for name in ("detailed", "mode") if name in arguments), "none")
    metrics.lists_of_workflows.labels(mode, chosen_by).inc()
    bound.bind(mode=mode, workflows=workflows, characters=len(text)).info("Listed workflows")
    return text_result(text, structured=document)


def list_for(call: ToolCall, arguments: Arguments) -> dict[str, Any]:
    catalogue, bounds = current_catalogue(), call.access.bounds
    wish = WorkflowQuery(
        tags=arguments.get("tags", []), source=arguments.get("source", ""), query=arguments.get("query", "")
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
    cursor, limit = arguments.get("cursor"), int(arguments.get("limit", DEFAULT_LIMIT))
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
    problem = "unknown: start again without a cursor, or repeat the last call with its next_cursor"
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
        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LISTED, "default": DEFAULT_LIMIT},
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
    workflow = exposed_workflow(arguments["name"], caller=call.access.caller)
    try:
        part = arguments.get("part")
        described = describe_part(workflow, part) if part else describe_workflow(workflow)
    except UnknownPart as error:
        problem = ArgumentProblem("/part", str(error))
        raise InvalidArguments("get_workflow_info", [problem], starts=False) from None
    portable = portable_view(current_catalogue(), call.access.bounds)
    return described if portable is None else described | {"name": portable.shown_name(described["name"])}


async def _execute_workflow(call: ToolCall, arguments: Arguments) -> ToolAnswer:
    name, given = arguments["name"], arguments.get("arguments", {})
    if call.shows_cards and (form := await find_form(call, name, given)) is not None:
        return form
    return await run_workflow(replace(call, by_own_tool=False), name, given)


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
        properties={
            "name": NAME,
            "part": {
                "type": "string",
                "description": (
                    "Only this part of a large schema, as the schema says where it is left out, such as "
                    "/$defs/Address: with everything that it refers to."
                ),
            },
        },
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
            "arguments": {"type": "object", "description": "The workflow's arguments, by its input schema."},
        },
        required=("name",),
        names_workflow="name",
        read_only=False,
        starts=True,
        shows_card=True,
        call=_execute_workflow,
    ),
)


def _preflight(call: ToolCall, arguments: Arguments) -> dict[str, Any]:
    portable = portable_view(current_catalogue(), call.access.bounds)
    planned = [PlannedCall(**one) for one in arguments["calls"]]
    if portable is not None:
        planned = [_read_portable(portable, one) for one in planned]
    verdicts = check_calls(planned, call.access.caller)
    return {"calls": [verdict.document for verdict in verdicts]}


def _read_portable(portable: PortableView, planned: PlannedCall) -> PlannedCall:
    """Raises InvalidArguments for texts that are not JSON."""
    name = portable.meant_name(planned.tool)
    if planned.arguments is None:
        return replace(planned, tool=name)
    read = portable.read(planned.tool, portable.schema_of(name), planned.arguments)
    return replace(planned, tool=name, arguments=read)


PREFLIGHT = BuiltInTool(
    name="preflight",
    title="Check calls",
    description="Tell which calls would run now, and why others would not; runs nothing.",
    scope=Scope.RUN,
    properties={
        "calls": {
            "type": "array",
            "maxItems": MAX_CALLS,
            "items": {
                "type": "object",
                "properties": {
                    "tool": {"type": "string"},
                    "arguments": {"type": "object"},
                    "schema_hash": {"type": "string"},
                },
                "required": ["tool"],
                "additionalProperties": False,
            },
        }
    },
    required=("calls",),
    hints=ToolAnnotations(read_only_hint=True),
    call=answer_with(_preflight),
)


async def _get_execution_status(call: ToolCall, arguments: Arguments) -> CallToolResult:
    asked, set_wait = arguments.get("wait_seconds", 0), await wait_set_for(call.access)
    execution = await watch_until_settled(
        arguments["execution_id"],
        caller=call.access.caller,
        seconds=asked if set_wait is None else min(asked, set_wait),
        on_progress=call.progress.tell if call.progress else None,
        unless_asks=True,
    )
    if (query := arguments.get("query")) and execution.state == State.COMPLETED:
        block = arguments.get("content_block")
        found = await ask_result(execution, query, block=None if block is None else int(block))
        return document_result({"execution_id": str(execution.pk)} | found)
    return await run_in_database(_status, execution, arguments, call.protocol_version, set_wait)


def _status(
    execution: Execution, arguments: Arguments, protocol_version: str, set_wait: int | None
) -> CallToolResult:
    """Returns the document, then the binary blocks of the result. Raises NoSuchPart."""
    blocks: list[content.Block] = []
    if execution.state in (State.COMPLETED, State.FAILED):
        blocks = content.blocks_of(execution)
    if blocks and (number := arguments.get("content_block")) is not None:
        if number >= len(blocks):
            raise NoSuchPart(f"The result has {counted(len(blocks), 'content block')}, numbered from 0.")
        blocks = [blocks[int(number)]]
        part = content.take_part(blocks[0].words, offset=int(arguments.get("output_offset", 0)))
        document = _describe_part(execution, part, content_block=blocks[0].number)
    elif execution.state == State.COMPLETED and (offset := arguments.get("output_offset")) is not None:
        blocks, document = [], _part_of_output(execution, int(offset))
    else:
        document = _describe_execution(execution, set_wait)
    result = document_result(document)
    if without_text := [block for block in blocks if block.size]:
        # Codex shows a model nothing beside structured content.
        result.structured_content = None
        result.content += content.show_blocks(
            execution, without_text, protocol_version=protocol_version, room=content.SizeBudget.usual()
        )
    return result


def _describe_execution(execution: Execution, set_wait: int | None) -> dict[str, Any]:
    described = describe_within_bounds(execution)
    if "output_resource" in described:
        ask = {"execution_id": str(execution.pk)} | content.example_query(described["output_beginning"])
        described["ask"] = {"tool": "get_execution_status", "arguments": ask}
        return described | _rest(execution, content.BEGINNING)
    if execution.is_unapproved:
        described["note"] = PEOPLE_DECIDE
    if execution.is_settled and not execution.succeeded and (retry := find_retry(execution)) is not None:
        described["retried_as"] = str(retry.pk)
    return described if execution.is_settled else described | next_step(execution, set_wait=set_wait)


def _part_of_output(execution: Execution, offset: int) -> dict[str, Any]:
    """Raises NoSuchPart."""
    if problem := content.why_no_output(execution):
        raise NoSuchPart(problem)
    text, _ = result_text(execution)
    return _describe_part(execution, content.take_part(text, offset=offset))


def _describe_part(execution: Execution, part: content.Part, **block: int) -> dict[str, Any]:
    """`block`: the number of a content block, as `content_block`."""
    document = {
        "execution_id": str(execution.pk),
        "state": execution.state,
        "output_part": part.text,
        "output_offset": part.offset,
        "output_characters": part.total,
        **block,
    }
    return document if part.next_offset is None else document | _rest(execution, part.next_offset, **block)


def _rest(execution: Execution, offset: int, **block: int) -> dict[str, Any]:
    arguments = {"execution_id": str(execution.pk), **block, "output_offset": offset}
    # Programs follow `next` until a run has ended, so this has another name.
    return {"rest": {"tool": "get_execution_status", "arguments": arguments}}


def _list_executions(call: ToolCall, arguments: Arguments) -> dict[str, Any]:
    state = arguments.get("state", ANY)
    page = list_own_executions(
        call.access.caller,
        state="" if state == ANY else state,
        tool_name=arguments.get("tool", ""),
        limit=int(arguments.get("limit", DEFAULT_PAGE_SIZE)),
        cursor=arguments.get("cursor", ""),
    )
    return {
        "executions": [summarise_execution(execution) for execution in page.rows],
        "next_cursor": page.next_cursor,
    }


async def _cancel_execution(call: ToolCall, arguments: Arguments) -> CallToolResult:
    cancellation = await cancel_execution(arguments["execution_id"], caller=call.access.caller)
    described = await run_in_database(describe_within_bounds, cancellation.execution)
    return document_result(
        {"outcome": cancellation.outcome, "message": cancellation.message, "execution": described}
    )


async def _control_execution(call: ToolCall, arguments: Arguments) -> ToolAnswer:
    key, action = arguments["execution_id"], Action(arguments["action"])
    if action.starts:
        return await retry_run(call, key, action)
    execution, message = await control_run(key, action, caller=call.access.caller, door=call.door)
    return document_result({"execution_id": str(execution.pk), "action": action, "message": message})


EXECUTION_TOOLS = (
    BuiltInTool(
        name="get_execution_status",
        title="Get an execution's status",
        description=(
            "Show how far a run that you started is; once it has completed, its output. With wait_seconds "
            "it answers as soon as the run has ended, so that you need not ask again and again."
        ),
        scope=Scope.READ,
        other_scope=Scope.RUN,
        properties={
            "execution_id": EXECUTION_ID,
            "wait_seconds": {
                "type": "number",
                "minimum": 0,
                "maximum": MAX_WAIT_SECONDS,
                "default": 0,
                "description": "The longest to wait for the run's end before answering how far it is.",
            },
            "output_offset": {
                "type": "integer",
                "minimum": 0,
                "description": "Of a large output the part that begins there, as `rest` of an answer has it.",
            },
            "content_block": {
                "type": "integer",
                "minimum": 0,
                "description": "Of a result of several blocks (pictures, files, ...) the one wanted, from 0.",
            },
            "query": {
                "type": "string",
                "description": "JMESPath: show only this of the output. A text is {lines: [{number, text}]}.",
            },
        },
        required=("execution_id",),
        shows_card=True,
        call=_get_execution_status,
    ),
    BuiltInTool(
        name="list_executions",
        title="List your executions",
        description=(
            "List the runs that you started, the newest first, without their outputs: for when an "
            "execution_id was lost. get_execution_status shows one with its output."
        ),
        scope=Scope.READ,
        properties={
            "state": {
                "type": "string",
                "enum": [ANY, *State.values],
                "default": ANY,
                "description": "Only runs in this state.",
            },
            "tool": {"type": "string", "description": "Only runs of this workflow's tool."},
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_AT_A_TIME,
                "default": DEFAULT_PAGE_SIZE,
                "description": "How many to list.",
            },
            "cursor": {
                "type": "string",
                "description": "next_cursor of the page before, for the page after it.",
            },
        },
        names_workflow="tool",
        call=answer_with(_list_executions),
    ),
    BuiltInTool(
        name="cancel_execution",
        title="Cancel an execution",
        description="Ask the engine to cancel a run that you started, and say what came of it.",
        scope=Scope.RUN,
        properties={"execution_id": EXECUTION_ID},
        required=("execution_id",),
        read_only=False,
        call=_cancel_execution,
    ),
    BuiltInTool(
        name="control_execution",
        title="Control an execution",
        description=(
            "Retry a failed run that you started, whole or from its failed step, if its engine can; pause, "
            "resume or terminate a running one."
        ),
        scope=Scope.RUN,
        properties={
            "execution_id": {"type": "string"},
            "action": {"type": "string", "enum": list(Action)},
        },
        required=("execution_id", "action"),
        read_only=False,
        starts=True,
        hints=ToolAnnotations(destructive_hint=True),
        shows_card=True,
        call=_control_execution,
    ),
)


async def _query_execution(call: ToolCall, arguments: Arguments) -> CallToolResult:
    answer = await query_execution(
        arguments["execution_id"],
        arguments["name"],
        arguments.get("arguments", {}),
        caller=call.access.caller,
    )
    described = {"execution_id": str(answer.execution.pk), "query": answer.query}
    if content.fits_inline(text := content.write_output(answer.value)):
        return document_result(described | {"answer": answer.value})
    return document_result(
        described | {"answer_beginning": text[: content.BEGINNING], "answer_characters": len(text)}
    )


async def _signal_execution(call: ToolCall, arguments: Arguments) -> CallToolResult:
    name = arguments["name"]
    execution = await signal_execution(
        arguments["execution_id"], name, arguments.get("arguments", {}), caller=call.access.caller
    )
    message = "The run got the signal; its status shows the effect."
    return document_result({"execution_id": str(execution.pk), "signal": name, "message": message})


def _properties(kind: InteractionKind) -> dict[str, Any]:
    return {
        "execution_id": EXECUTION_ID,
        "name": {"type": "string", "minLength": 1, "description": f"The {kind}'s name."},
        "arguments": {"type": "object", "description": f"By the {kind}'s inputSchema."},
    }


INTERACTION_TOOLS = (
    BuiltInTool(
        name="query_execution",
        title="Ask a run",
        description=(
            "Ask a run that you started one of the queries of its workflow, which get_workflow_info shows."
        ),
        scope=Scope.READ,
        properties=_properties(InteractionKind.QUERY),
        required=("execution_id", "name"),
        takes_part_in=InteractionKind.QUERY,
        call=_query_execution,
    ),
    BuiltInTool(
        name="signal_execution",
        title="Tell a run",
        description=(
            "Send a run that you started one of the signals of its workflow, which get_workflow_info shows."
        ),
        scope=Scope.RUN,
        properties=_properties(InteractionKind.SIGNAL),
        required=("execution_id", "name"),
        read_only=False,
        takes_part_in=InteractionKind.SIGNAL,
        call=_signal_execution,
    ),
)


def _clear_cache(call: ToolCall, arguments: Arguments) -> dict[str, Any]:
    if name := arguments.get("workflowName", ""):
        cleared = clear_results({exposed_workflow(name, caller=call.access.caller).pk})
    else:
        visible = current_catalogue().seen_within(call.access.bounds).values()
        cleared = clear_results({workflow.pk for workflow in visible})
    return {"success": True, "entriesCleared": cleared, "workflow": name}


CACHING_TOOLS = (
    BuiltInTool(
        name="ClearCache",
        title="Clear the result cache",
        description=(
            "Forget the cached results of one workflow, or of all that you can call, so that the next calls "
            "run. For when what they tell is known to be out of date."
        ),
        # Callers who may run a workflow may also bypass its cached results.
        scope=Scope.RUN,
        properties={
            "workflowName": {
                "type": "string",
                "description": "The workflow's tool name. Left out: all workflows.",
            }
        },
        names_workflow="workflowName",
        read_only=False,
        hints=ToolAnnotations(
            read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False
        ),
        call=answer_with(_clear_cache),
    ),
)


def _report_problem(call: ToolCall, arguments: Arguments) -> dict[str, Any]:
    texts = {name: arguments.get(name, "") for name in ("tool", "tried", "missing")}
    problem_reports.report_problem(call.access.caller, **texts)
    # The same for any tool, whether or not it exists, and however many have reported the same.
    return {"message": "Recorded. People read it later; nobody answers here, so go on without it."}


REPORT_PROBLEM = BuiltInTool(
    name=problem_reports.NAME,
    title="Report a problem",
    description="Tell the people in charge what a tool lacks, or that no tool does what you need.",
    scope=Scope.RUN,
    properties={
        "tool": {"type": "string", "description": "Empty: there is none."},
        "tried": {"type": "string"},
        "missing": {"type": "string"},
    },
    required=("tried", "missing"),
    names_workflow="tool",
    switch="problem_reports",
    read_only=False,
    hints=ToolAnnotations(
        read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    ),
    call=answer_with(_report_problem),
)

CARD_TOOLS = (
    BuiltInTool(
        name="show_execution",
        title="Show a run in its card",
        description="For the card of a run: everything that it shows.",
        scope=Scope.READ,
        other_scope=Scope.RUN,
        properties={
            "execution_id": EXECUTION_ID,
            "output_offset": {
                "type": "integer",
                "minimum": 0,
                "description": "Of a large result the part that begins there: a next_offset.",
            },
        },
        required=("execution_id",),
        app_only=True,
        call=show_execution,
    ),
    BuiltInTool(
        name="answer_execution",
        title="Answer a run's questions",
        description="For the card of a run that you started: what a person answers to the run's questions.",
        scope=Scope.RUN,
        properties={
            "execution_id": EXECUTION_ID,
            "answers": {
                "type": "object",
                "minProperties": 1,
                "description": "By the keys of the questions that show_execution shows.",
                "additionalProperties": {
                    "type": "object",
                    "properties": {
                        "action": {"type": "string", "enum": ["accept", "decline", "cancel"]},
                        "content": {"type": "object", "description": "By the question's schema."},
                    },
                    "required": ["action"],
                    "additionalProperties": False,
                },
            },
        },
        required=("execution_id", "answers"),
        read_only=False,
        app_only=True,
        call=answer_execution,
    ),
)

BUILT_IN_TOOLS = {
    tool.name: tool
    for tool in (
        *WORKFLOW_TOOLS,
        PREFLIGHT,
        *EXECUTION_TOOLS,
        *CACHING_TOOLS,
        REPORT_PROBLEM,
        *INTERACTION_TOOLS,
        *CARD_TOOLS,
    )
}


def call_tool(call: ToolCall, name: str, arguments: dict[str, Any]) -> Awaitable[ToolAnswer]:
    """Awaiting it raises UnknownTool."""
    if (built_in := BUILT_IN_TOOLS.get(name)) is not None:
        return call_built_in(built_in, call, arguments)
    if name in OTHER_SPELLINGS:
        return _call_by_other_spelling(call, name, arguments)
    return run_workflow(call, name, arguments)


async def _call_by_other_spelling(call: ToolCall, name: str, arguments: dict[str, Any]) -> ToolAnswer:
    try:
        return await run_workflow(call, name, arguments)
    except UnknownTool:
        if await run_in_database(Workflow.objects.filter(tool_name=name).exists):
            raise
    return await call_built_in(BUILT_IN_TOOLS[OTHER_SPELLINGS[name]], call, arguments)
