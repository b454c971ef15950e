"""Executions as JSON and as results of tool calls, within the limits of a model's context."""

import json
import sys
from datetime import datetime
from typing import Any

from mcp_types import CallToolResult, ContentBlock, ResourceLink, TextContent
from mcp_types.version import MODERN_PROTOCOL_VERSIONS, is_version_at_least

from catalogue.schemas import ArgumentProblem, find_argument_problems
from connectors.protocol import ASIDE
from executions.models import ErrorKind, Execution, FailureEffect, State
from executions.models.execution import SAID_BY
from executions.reading import describe_changed_input, describe_execution
from executions.refusals import HELD_CHANGE
from mcp_bridge import content
from mcp_bridge.request_meta import CACHED_AT, EXECUTION_ID, NOTE, REATTACHED


def describe_within_bounds(execution: Execution) -> dict[str, Any]:
    """Extends `describe_execution` by content blocks; replaces a large output by its beginning, size and
    address, and a large input by its size."""
    described = describe_execution(execution)
    if "input" in described and not content.fits_inline(given := content.write_output(described["input"])):
        del described["input"]
        described["input_characters"] = len(given)
    if execution.is_settled and execution.state != State.COMPLETED:
        described["note"] = advise(execution)
    if execution.state not in (State.COMPLETED, State.FAILED) and "output" not in described:
        return described
    notes = content.notes_of(execution) + content.notes_of(execution, ASIDE)
    if said := [*notes, *filter(None, [content.what_was_cut(execution)])]:
        described["note"] = " ".join([*filter(None, [described.get("note")]), *said])
    blocks = content.blocks_of(execution)
    if blocks and not _says_the_same(blocks, execution.payload.output):
        described |= content.outline_blocks(execution, blocks)
        if not content.has_structure(execution):
            described.pop("output", None)
    if "output" not in described or content.fits_inline(text := content.write_output(described["output"])):
        return described
    shape = content.shape_of_output(described.pop("output"))
    described |= {"output_beginning": text[: content.BEGINNING], "output_characters": len(text)}
    described |= {} if shape is None else {"output_shape": shape}
    # Only the result of a completed run can be read in parts.
    return described | ({"output_resource": content.result_address(execution)} if execution.succeeded else {})


def result_text(execution: Execution) -> tuple[str, str]:
    """Returns a completed run's output, or its content blocks as text, and the media type."""
    if not content.has_structure(execution):
        return "\n\n".join(block.words for block in content.blocks_of(execution)), "text/plain"
    output = execution.payload.output
    return content.write_output(output), content.media_type(output)


def _says_the_same(blocks: list[content.Block], output: Any) -> bool:
    """Returns whether the only block is the output as text, as MCP advises servers to send it."""
    if output is None or len(blocks) != 1 or blocks[0].text is None:
        return False
    if blocks[0].text == output:
        return True
    try:
        return bool(json.loads(blocks[0].text) == output)
    except ValueError:
        return False


ToolAnswer = CallToolResult | dict[str, Any]  # A result or a task
PROPOSED_WAIT_SECONDS = 25  # The least patient of the common clients wait for 30 s


def text_result(text: str, *, structured: Any = None, is_error: bool = False) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=structured, is_error=is_error
    )


def document_result(document: dict[str, Any]) -> CallToolResult:
    return text_result(content.write_output(document), structured=document)


def execution_result(
    execution: Execution,
    *,
    protocol_version: str,
    may_be_large: bool = False,
    set_wait: int | None = None,
    by_own_tool: bool = True,
    note: str = "",
) -> CallToolResult:
    """Returns the output, the error with advice, or the handle of an unfinished run.

    `set_wait`: see `next_step`. `by_own_tool`: the client may know the workflow's output schema. `note`: one
    more for the model.
    """
    workflow = execution.workflow
    has_schema = by_own_tool and workflow is not None and content.needs_structure(workflow)
    if execution.state == State.COMPLETED:
        result = _output_result(execution, protocol_version, may_be_large, has_schema)
    elif execution.is_settled:
        result = _failure_result(execution, protocol_version, may_be_large, has_schema)
    else:
        result = _handle_result(execution, set_wait)
    result.meta = {EXECUTION_ID: str(execution.pk)}
    origin = ""  # Of a result that is not from a run of this call
    if execution.is_reattached:
        result.meta[REATTACHED] = execution.created_at.isoformat()
        ended = f" It ended at {_moment(execution.ended_at)}." if execution.ended_at else ""
        origin = (
            f"An identical call at {_moment(execution.created_at)}, which got no response, started "
            f"this run. It was not started again.{ended}"
        )
    if execution.cached_at is not None:
        result.meta[CACHED_AT] = execution.cached_at.isoformat()
        origin = f"From the result cache: the workflow ran earlier, until {_moment(execution.cached_at)}."
    changed = describe_changed_input(execution) if execution.is_settled else ""
    notes = [words for words in (*content.notes_of(execution), origin, changed, note) if words]
    if not may_be_large:  # A terminal shows both
        _have_all_read(result, execution, notes, has_schema)
    notes += content.notes_of(execution, ASIDE)
    result.content += [TextContent(text=f"({words})", _meta={NOTE: True}) for words in notes]
    return result


def _have_all_read(result: CallToolResult, execution: Execution, notes: list[str], has_schema: bool) -> None:
    """Claude Code and Codex show a model no text beside structured content. The product's own therefore holds
    the notes too. An engine's becomes a text like the others, unless the client may need it or every text is
    the engine's."""
    structured = result.structured_content
    if structured is None:
        return
    if not _is_of_engine(execution):
        if notes:
            structured["note"] = " ".join(filter(None, [structured.get("note"), *notes]))
        return
    blocks, text = content.blocks_of(execution), content.write_output(execution.payload.output)
    said = [block.model for block in blocks] or [TextContent(text=text)]
    is_read = not notes and all(block in said for block in result.content)
    if is_read or (has_schema and not _violations(execution)):
        return
    result.structured_content = None
    if content.has_blocks(execution) and not _says_the_same(blocks, execution.payload.output):
        if not content.fits_inline(text):
            text = f"The output has {len(text):,} characters. It begins so:\n\n{text[: content.BEGINNING]}"
        result.content.append(TextContent(text=text))


def _is_of_engine(execution: Execution) -> bool:
    """Returns whether the structured content of its result is; else it is the product's own document."""
    if execution.state == State.FAILED:
        return bool(execution.payload.content) and execution.payload.output is not None
    return execution.state == State.COMPLETED


def _moment(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def _output_result(
    execution: Execution, protocol_version: str, may_be_large: bool, has_schema: bool
) -> CallToolResult:
    if problem := content.why_no_output(execution):
        return text_result(f"{problem} {_reference(execution)}", is_error=True)
    text = content.write_output(execution.payload.output)
    fits = may_be_large or content.fits_inline(text)
    # Clients may require structured content if the tool has an output schema, however large.
    shows = fits or has_schema
    shown: list[ContentBlock] = []
    if content.has_blocks(execution):
        shown = _engine_blocks(execution, protocol_version, may_be_large)
        is_in_blocks = _says_the_same(content.blocks_of(execution), execution.payload.output)
        is_said = shows or is_in_blocks or not content.has_structure(execution)
    elif is_said := fits:
        shown = [TextContent(text=text)]
    if not is_said:
        rest = {"execution_id": str(execution.pk), "output_offset": content.BEGINNING}
        address = content.result_address(execution)
        shape = content.shape_of_output(execution.payload.output)
        beginning = content.beginning_of("The output", text, rest=rest, address=address, shape=shape)
        shown += [TextContent(text=beginning), *_links(execution, text, protocol_version)]
    if missing := execution.error or content.what_was_cut(execution):
        shown.append(TextContent(text=f"{missing} {_reference(execution)}"))
    if words := _broken_promise(execution):
        first, *others = shown or [TextContent(text="")]
        if content.has_blocks(execution) or not isinstance(first, TextContent):
            # A block of its own before those of an engine, which stay unchanged.
            return CallToolResult(content=[TextContent(text=words), *shown], is_error=True)
        return CallToolResult(content=[TextContent(text=f"{words}\n\n{first.text}"), *others], is_error=True)
    structured = _structured(execution, protocol_version) if shows else None
    return CallToolResult(content=shown, structured_content=structured)


def _engine_blocks(execution: Execution, protocol_version: str, may_be_large: bool) -> list[ContentBlock]:
    room = content.SizeBudget(*[sys.maxsize] * 4) if may_be_large else content.SizeBudget.usual()
    return content.show_blocks(
        execution, content.blocks_of(execution), protocol_version=protocol_version, room=room
    )


def _broken_promise(execution: Execution) -> str:
    """Returns how the output violates its schema; empty if it does not."""
    if not (problems := _violations(execution)):
        return ""
    if execution.error or content.what_was_cut(execution):
        return "The run completed, but not all of its output is here."
    if SAID_BY in execution.payload.metadata:
        return "The run completed, but the output that its schema promises is unknown."
    broken = "\n".join(f"- {problem.of('(output)')}" for problem in problems)
    return f"The run completed, but its output violates the engine's own output schema:\n{broken}"


def _violations(execution: Execution) -> list[ArgumentProblem]:
    """Returns violations of the output schema that the engine promises."""
    promised = execution.workflow.promised_output_schema if execution.workflow else None
    return [] if promised is None else find_argument_problems(promised, execution.payload.output)


def _links(execution: Execution, text: str, protocol_version: str) -> list[ResourceLink]:
    """Empty for older clients, which would refuse the whole result."""
    if not is_version_at_least(protocol_version, content.FIRST_VERSIONS["resource_link"]):
        return []
    return [
        ResourceLink(
            uri=content.result_address(execution),
            name=f"{execution.tool_name}_result",
            title=f"Result of {execution.tool_name}",
            description="The full output. Large output is read in parts; each part has the address of the "
            "next.",
            mime_type=content.media_type(execution.payload.output),
            size=len(text.encode()),
        )
    ]


def _structured(execution: Execution, protocol_version: str) -> Any:
    output = execution.payload.output
    if not content.has_structure(execution):
        return None
    # Handshake versions allow only an object as structured content.
    fits = isinstance(output, dict) or protocol_version in MODERN_PROTOCOL_VERSIONS
    return output if fits else {"result": output}


def _failure_result(
    execution: Execution, protocol_version: str, may_be_large: bool, has_schema: bool
) -> CallToolResult:
    """Omits the product's own document as structured content if `has_schema`: the TypeScript SDK validates
    that of errors too."""
    described = describe_within_bounds(execution)
    if execution.state != State.FAILED or not execution.payload.content:
        result = text_result(_failure_text(execution, execution.error), is_error=True)
        if has_schema:
            result.content.append(TextContent(text=content.write_output(described)))
        else:
            result.structured_content = described
        return result
    shown = _engine_blocks(execution, protocol_version, may_be_large)
    if missing := content.what_was_cut(execution):
        shown.append(TextContent(text=f"{missing} {_reference(execution)}"))
    has_words = any(block.text for block in content.blocks_of(execution))
    ours = f" {HELD_CHANGE}" if execution.error.endswith(HELD_CHANGE) else ""
    text = _failure_text(execution, f"see above.{ours}" if has_words else execution.error)
    structured = None if has_schema else described
    if _is_of_engine(execution):
        structured = _structured(execution, protocol_version)
    return CallToolResult(
        content=[*shown, TextContent(text=text)], structured_content=structured, is_error=True
    )


def _failure_text(execution: Execution, why: str) -> str:
    last = ""
    if execution.state == State.TIMED_OUT and execution.progress_message:
        last = f" Its last message: {_closed(execution.progress_message)}"
    return (
        f"{execution.tool_name} {execution.get_state_display()}: {why}{last}\n"
        f"{advise(execution)} {_reference(execution)}"
    )


def advise(execution: Execution) -> str:
    if execution.approval_hash and execution.admitted_at is None:
        return "Each new call needs approval again. Do not repeat a refused call unchanged."
    if execution.state == State.FAILED:
        return _advice_on_failure(execution)
    return {
        State.CANCELLED: "Call the tool again if the result is still needed.",
        State.TIMED_OUT: "Try again with less work, or ask an administrator for a longer timeout.",
        State.UNCONFIRMED: "Do not call it again: it may be running. An administrator must find out.",
    }[State(execution.state)]


def _advice_on_failure(execution: Execution) -> str:
    aftermath = execution.aftermath
    if aftermath == FailureEffect.MAY_HAVE_EFFECT:
        return (
            "It may have taken effect: do not simply call it again. First find out what "
            "happened, or tell the person who runs the workflow."
        )
    if execution.error_kind == ErrorKind.CONFIGURATION:
        return "Other arguments do not help: tell the person who runs this product."
    if aftermath == FailureEffect.NOTHING_DONE:
        return "Nothing was done. Try again later, or tell the person who runs the workflow."
    if aftermath == FailureEffect.NO_OTHER_ARGUMENTS:
        return "Other arguments do not help: tell the person who runs the workflow."
    return (
        "If the arguments are the reason, try again with others; "
        "if not, tell the person who runs the workflow."
    )


PEOPLE_DECIDE = (
    "People may take hours to decide. If it still waits, tell the person you work for, and ask again when "
    "they want to know, not all the time."
)


def _handle_result(execution: Execution, set_wait: int | None) -> CallToolResult:
    document = describe_execution(execution) | next_step(execution, set_wait=set_wait)
    ask = f"Call get_execution_status with {json.dumps(document['next']['arguments'])}:"
    if "approval" in document:
        document["note"] = f"Once approved, it runs automatically: do not call it again. {PEOPLE_DECIDE}"
        text = (
            f"{execution.tool_name} has not been started. {document['approval']} {document['note']} "
            f"{ask} it answers as soon as the run has ended, or reports that it still waits."
        )
        return text_result(text, structured=document)
    document["note"] = "It goes on and its result is kept: do not start it again."
    if execution.is_paused:
        document["note"] += f" {document['waits_for']} {PEOPLE_DECIDE}"
    progress = "" if execution.progress_percent is None else f", {execution.progress_percent:g} % done"
    problem = "".join(f"{_closed(one)} " for one in execution.problems)
    message = f": {execution.progress_message}" if execution.progress_message else ""
    text = (
        f"{_closed(f'{execution.tool_name} is still {execution.state_label}{progress}{message}')} {problem}"
        f"{document['note']} {ask} it answers as soon as the run has ended, or reports how far it is."
    )
    return text_result(text, structured=document)


def _closed(words: str) -> str:
    """Adds a full stop, unless they end with punctuation."""
    return words if words.endswith((".", "!", "?", "…")) else f"{words}."


def next_step(execution: Execution, *, set_wait: int | None) -> dict[str, Any]:
    """Returns the next call to make; `set_wait`: the inline wait of the caller's token or toolset."""
    seconds = PROPOSED_WAIT_SECONDS if set_wait is None else min(PROPOSED_WAIT_SECONDS, set_wait)
    arguments = {"execution_id": str(execution.pk), "wait_seconds": seconds}
    return {"next": {"tool": "get_execution_status", "arguments": arguments}}


def _reference(execution: Execution) -> str:
    return f"(execution {execution.pk})"
