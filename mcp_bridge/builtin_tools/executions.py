from typing import Any

from mcp_types import CallToolResult, ToolAnnotations

from catalogue.access import Scope
from catalogue.database import run_in_database
from catalogue.exposure import current_catalogue
from catalogue.interactions import InteractionKind
from executions.cancelling import cancel_execution
from executions.change_feed import watch_until_settled
from executions.interacting import query_execution, signal_execution
from executions.models import Execution, State
from executions.reading import MOST_AT_A_TIME, describe_execution, list_own_executions, summarise_execution
from executions.result_cache import clear_results
from executions.starting import exposed_workflow
from mcp_bridge import content
from mcp_bridge.builtin_tools.tool import Arguments, BuiltInTool, answer_with
from mcp_bridge.calls import UNNAMED_WAIT_SECONDS, ProgressNotifications, ToolCall, known_patience
from mcp_bridge.results import describe_within_bounds, document_result, next_step, result_text

LONGEST_WAIT_SECONDS = 50  # Common clients give up after 60 s
USUAL_PAGE = 10
ANY = "any"  # A state, for models that fill in every argument
EXECUTION_ID = {"type": "string", "minLength": 1, "description": "The execution_id that the call returned."}


async def _get_execution_status(call: ToolCall, arguments: Arguments) -> CallToolResult:
    asked, patience = arguments.get("wait_seconds", 0), await known_patience(call.access)
    execution = await watch_until_settled(
        arguments["execution_id"],
        caller=call.access.caller,
        seconds=asked if patience is None else min(asked, patience),
        on_progress=ProgressNotifications(call.report).tell if call.report else None,
    )
    if patience is None and call.may_give_up_soon:
        # A client that reads the answer has survived the wait that it asked for.
        patience = max(asked, UNNAMED_WAIT_SECONDS)
    return await run_in_database(_status, execution, arguments, call.protocol_version, patience)


def _status(
    execution: Execution, arguments: Arguments, protocol_version: str, patience: float | None
) -> CallToolResult:
    """The document, then the binary blocks of the result."""
    blocks: list[content.Block] = []
    if execution.state in (State.COMPLETED, State.FAILED):
        blocks = content.blocks_of(execution)
    if blocks and (number := arguments.get("content_block")) is not None:
        if number >= len(blocks):
            raise content.NoSuchPart(f"The result has {len(blocks)} content blocks, numbered from 0.")
        blocks = [blocks[int(number)]]
        document = _describe_block(execution, blocks[0], int(arguments.get("output_offset", 0)))
    elif execution.state == State.COMPLETED and (offset := arguments.get("output_offset")) is not None:
        blocks, document = [], _part_of_output(execution, int(offset))
    else:
        document = _describe_execution(execution, patience)
    result = document_result(document)
    without_text = [block for block in blocks if block.size]
    result.content += content.show_blocks(
        execution, without_text, protocol_version=protocol_version, room=content.Room.usual()
    )
    return result


def _describe_execution(execution: Execution, patience: float | None) -> dict[str, Any]:
    described = describe_within_bounds(execution)
    if "output_beginning" in described:
        return described | _rest(execution, content.BEGINNING)
    if execution.state == State.UNCONFIRMED:
        described["note"] = (
            "It may be running at the engine; an administrator has to find out. Do not start it again."
        )
    return described if execution.is_settled else described | next_step(execution, patience=patience)


def _describe_block(execution: Execution, block: content.Block, offset: int) -> dict[str, Any]:
    """Raises NoSuchPart."""
    part = content.take_part(block.words, offset=offset)
    document = _describe_part(execution, part) | {"content_block": block.number}
    if part.next_offset is None:
        return document
    return document | _asking_for(content.rest_of_block(execution, block.number, part.next_offset))


def _part_of_output(execution: Execution, offset: int) -> dict[str, Any]:
    """Raises NoSuchPart."""
    if problem := content.why_no_output(execution):
        raise content.NoSuchPart(problem)
    text, _ = result_text(execution)
    part = content.take_part(text, offset=offset)
    document = _describe_part(execution, part)
    return document if part.next_offset is None else document | _rest(execution, part.next_offset)


def _describe_part(execution: Execution, part: content.Part) -> dict[str, Any]:
    return {
        "execution_id": str(execution.pk),
        "state": execution.state,
        "output_part": part.text,
        "output_offset": part.offset,
        "output_characters": part.total,
    }


def _rest(execution: Execution, offset: int) -> dict[str, Any]:
    return _asking_for({"execution_id": str(execution.pk), "output_offset": offset})


def _asking_for(arguments: dict[str, Any]) -> dict[str, Any]:
    # Programs follow `next` until a run has ended, so this has another name.
    return {"rest": {"tool": "get_execution_status", "arguments": arguments}}


def _list_executions(call: ToolCall, arguments: Arguments) -> dict[str, Any]:
    state = arguments.get("state", ANY)
    page = list_own_executions(
        call.access.caller,
        state="" if state == ANY else state,
        tool_name=arguments.get("tool", ""),
        limit=int(arguments.get("limit", USUAL_PAGE)),
        cursor=arguments.get("cursor", ""),
    )
    return {
        "executions": [summarise_execution(execution) for execution in page.rows],
        "next_cursor": page.next_cursor,
    }


async def _cancel_execution(call: ToolCall, arguments: Arguments) -> CallToolResult:
    cancellation = await cancel_execution(arguments["execution_id"], caller=call.access.caller)
    described = await run_in_database(describe_execution, cancellation.execution)
    return document_result(
        {"outcome": cancellation.outcome, "message": cancellation.message, "execution": described}
    )


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
                "maximum": LONGEST_WAIT_SECONDS,
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
        },
        required=("execution_id",),
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
                "maximum": MOST_AT_A_TIME,
                "default": USUAL_PAGE,
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
