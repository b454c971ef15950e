"""What a card in a chat reads and sends: the state of a run, answers to its questions, and the form for
arguments that are missing."""

from dataclasses import replace
from datetime import timedelta
from threading import Lock
from typing import Any

from cachetools import TTLCache, cached
from django.conf import settings
from django.contrib.auth import get_user_model
from django.urls import reverse
from django.utils import timezone
from mcp_types import CallToolResult, ContentBlock

from access.callers import Scope
from catalogue.database import run_in_database
from catalogue.exposure import current_catalogue, find_named, present_catalogue
from catalogue.schemas import ArgumentProblem
from connectors.formats.json import as_object
from connectors.formats.json_schema import pointer_of
from executions.approvals import changed_names, page_of, read_past
from executions.interacting import NotNow, why_not_cancellable
from executions.models import Approval, Execution, ExecutionPayload
from executions.models.execution import ExecutionEvent
from executions.models.statements import adapt_key, find_row
from executions.models.usage import Outcome
from executions.questions import check_content, describe_pause
from executions.reading import find_execution, glance_at, without_hidden
from executions.refusals import InvalidArguments
from executions.run_callers import answer
from executions.statistics import figures_by, usage_since
from executions.wakeups import request_poll_if_stale
from identity.tokens import Access
from mcp_bridge import content
from mcp_bridge.calls import ToolCall
from mcp_bridge.elicitation import ELICIT, ROUND, questions_of
from mcp_bridge.portability import portable_view
from mcp_bridge.results import advise, document_result, result_text, text_result

PART_CHARACTERS = 400_000  # Of a result, or of all arguments
SHOWN_EVENTS, EVENT_CHARACTERS = 8, 500
# Django takes three times as long to build it, for each question of each card.
EVENTS = "SELECT * FROM executions_executionevent WHERE execution_id = %s ORDER BY id DESC LIMIT %s"
RECENT = timedelta(days=7)
REMEMBERED, REMEMBERED_SECONDS = 1_000, 60.0  # Of what changes little, while cards ask every few seconds
NOTHING_ASKED = "It asks nothing at present, so there is nothing to answer."


async def show_execution(call: ToolCall, arguments: dict[str, Any]) -> CallToolResult:
    """Raises UnknownExecution, and NoSuchPart for an offset past the end."""
    offset = int(arguments.get("output_offset", 0))
    execution, document, blocks = await run_in_database(_read, call, arguments["execution_id"], offset)
    result = document_result(document | {"can_cancel": await _can_cancel(execution, call.access)})
    result.content += blocks
    return result


def _read(
    call: ToolCall, execution_id: str, offset: int
) -> tuple[Execution, dict[str, Any], list[ContentBlock]]:
    at_hand = current_catalogue().runnable
    execution = glance_at(execution_id, caller=call.access.caller, workflows=at_hand)
    request_poll_if_stale(execution)
    document = _describe(execution) | {"url": _page_for(call.access, execution)}
    if call.access.caller.owns(execution):
        document["questions"] = {key: asked for key, (_, asked) in _open_questions(execution).items()}
    if paused := describe_pause(execution):
        document["message"] = paused["waits_for"]
    if execution.is_unapproved:
        document["approval"] = _describe_approval(execution)
    blocks: list[ContentBlock] = []
    if execution.succeeded:
        why_none, cut = content.why_no_output(execution), content.what_was_cut(execution)
        document["problems"] += [*filter(None, [why_none or cut]), *content.notes_of(execution)]
        document["result"] = None if why_none else _part_of_result(execution, offset)
        if not offset:
            binary = [block for block in content.blocks_of(execution) if block.size]
            room, version = content.SizeBudget.usual(), call.protocol_version
            blocks = content.show_blocks(execution, binary, protocol_version=version, room=room)
    return execution, document, blocks


def _describe(execution: Execution) -> dict[str, Any]:
    events = ExecutionEvent.objects.raw(EVENTS, [adapt_key(execution.pk), SHOWN_EVENTS])
    is_failure = execution.is_settled and not execution.succeeded
    workflow = execution.workflow
    return {
        "execution_id": str(execution.pk),
        "tool": execution.tool_name,
        "title": execution.workflow_name if workflow is None else workflow.title,
        "source": execution.source_name,
        "state": execution.state,
        "state_label": execution.state_label,
        "is_over": execution.is_settled,
        "succeeded": execution.succeeded,
        "progress": execution.progress_percent,
        "message": execution.progress_message or None,
        "problems": execution.problems,
        "created_at": execution.created_at.isoformat(),
        "started_at": execution.started_at and execution.started_at.isoformat(),
        "ended_at": execution.ended_at and execution.ended_at.isoformat(),
        "now": timezone.now().isoformat(),
        "usual_seconds": find_usual_seconds(execution.workflow_id),
        "timeline": [
            {"at": one.at.isoformat(), "text": (one.message or one.kind.replace("_", " "))[:EVENT_CHARACTERS]}
            for one in reversed(list(events))
        ],
        "cancel_requested": execution.cancel_requested_at is not None,
        "questions": {},
        "approval": None,
        "error": execution.error or None,
        "advice": advise(execution) if is_failure else None,
        "result": None,
    }


def _part_of_result(execution: Execution, offset: int) -> dict[str, Any]:
    """Raises NoSuchPart."""
    text, media_type = result_text(execution)
    part = content.take_part(text, offset=offset, most=PART_CHARACTERS)
    return {
        "media_type": media_type,
        "characters": part.total,
        "offset": part.offset,
        "part": part.text,
        "next_offset": part.next_offset,
    }


def _describe_approval(execution: Execution) -> dict[str, Any]:
    """`changed`: the arguments that an approver has changed."""
    approval, payload = find_row(Approval, execution.pk), find_row(ExecutionPayload, execution.pk)
    sent = {} if execution.workflow is None else without_hidden(execution.workflow, payload.sent_input)
    changed = changed_names(payload.input, payload.sent_input) if payload.changed_by else []
    return {
        "asked_by": execution.caller_name or execution.caller,
        "tool": execution.tool_name,
        "version": payload.metadata.get("version", ""),
        "arguments": _within_bounds(sent),
        "changed": {"by": payload.changed_by, "names": [one for one in changed if one in sent]},
        "reason": approval.reason,
        "requested_at": approval.requested_at.isoformat(),
        "expires_at": approval.expires_at.isoformat(),
        "needed": approval.approvers_needed,
        "agreed": approval.decisions.count(),
        "before": summarise_past(execution),
        "url": page_of(approval),
    }


def _within_bounds(arguments: dict[str, Any]) -> dict[str, Any]:
    """With a note instead of each that is too large for a card."""
    shown, room = dict(arguments), PART_CHARACTERS
    for name, value in arguments.items():
        if (characters := len(content.write_output(value))) > room:
            shown[name] = f"({characters:,} characters, which the page of the approval shows.)"
        else:
            room -= characters
    return shown


@cached(TTLCache(REMEMBERED, REMEMBERED_SECONDS), key=lambda execution: execution.tool_name, lock=Lock())
def summarise_past(execution: Execution) -> dict[str, Any]:
    """For an execution that has not been admitted, and so is not among those before."""
    past = read_past(execution)
    last_at = past.last[0].created_at.isoformat() if past.last else None
    return {"runs": past.runs, "succeeded": past.succeeded, "last_at": last_at}


@cached(TTLCache(REMEMBERED, REMEMBERED_SECONDS), lock=Lock())
def find_usual_seconds(workflow: int | None) -> float | None:
    """The median of its recent successful runs; None without any."""
    ended = usage_since(timezone.now() - RECENT).filter(workflow=workflow, outcome=Outcome.COMPLETED)
    found = None if workflow is None else figures_by(ended).get(())
    milliseconds = None if found is None else found.p50_ms
    return None if milliseconds is None else milliseconds / 1000


def _page_for(access: Access, execution: Execution) -> str | None:
    """None if the caller acts for a user without pages. Scopes already require the permission to see runs."""
    user_id = access.caller.user_id
    if user_id is not None and not has_pages(user_id):
        return None
    return f"{settings.PUBLIC_URL}{reverse('admin:executions_execution_change', args=[execution.pk])}"


@cached(TTLCache(REMEMBERED, REMEMBERED_SECONDS), lock=Lock())
def has_pages(user_id: int) -> bool:
    return bool(get_user_model().objects.filter(pk=user_id, is_staff=True).exists())


async def _can_cancel(execution: Execution, access: Access) -> bool:
    is_requested = execution.cancel_requested_at is not None and not execution.cancel_refusal
    if execution.is_settled or is_requested or not access.allows(Scope.RUN):
        return False
    return execution.is_unapproved or execution.is_queued or not await why_not_cancellable(execution)


def _open_questions(execution: Execution) -> dict[str, tuple[str, dict[str, Any]]]:
    """The run's keys and what the card shows, by keys that no later question of the run has."""
    questions = {}
    for key, request in questions_of(execution).items():
        if request["method"] == ELICIT:
            asked = request["params"]
            is_page = asked.get("mode") == "url"
            what = (
                {"url": asked.get("url")} if is_page else {"schema": as_object(asked.get("requestedSchema"))}
            )
            questions[f"{execution.input_request}{ROUND}{key}"] = key, {"message": asked["message"], **what}
    return questions


async def answer_execution(call: ToolCall, arguments: dict[str, Any]) -> CallToolResult:
    """Raises UnknownExecution, NotNow and InvalidArguments."""
    await run_in_database(_answer, call, arguments)
    return await show_execution(call, {"execution_id": arguments["execution_id"]})


def _answer(call: ToolCall, arguments: dict[str, Any]) -> None:
    # An administrator may not answer for another caller.
    caller = replace(call.access.caller, sees_everything=False)
    execution = find_execution(arguments["execution_id"], caller=caller)
    if not (asked := _open_questions(execution)):
        raise NotNow(NOTHING_ASKED)
    problems: list[ArgumentProblem] = []
    results: dict[str, Any] = {}
    for name, said in arguments["answers"].items():
        place = pointer_of(["answers", name])
        if name not in asked:
            problems.append(ArgumentProblem(place, "no open question; show_execution shows those"))
            continue
        key, question = asked[name]
        results[key] = {"action": said["action"]}
        if said["action"] == "accept" and "schema" in question:
            filled_in, wrong = check_content(question["schema"], said.get("content", {}))
            results[key]["content"] = filled_in
            problems += [replace(one, path=f"{place}/content{one.path}") for one in wrong]
    if problems:
        raise InvalidArguments("answer_execution", problems, starts=False)
    if refusals := answer(execution, results):
        raise NotNow(" ".join(refusals))


async def find_form(call: ToolCall, name: str, given: dict[str, Any]) -> CallToolResult | None:
    """None if no argument is missing, and for an unknown tool, which the call itself refuses. Raises
    InvalidArguments."""
    catalogue = await present_catalogue()
    workflow = find_named(catalogue.seen_within(call.access.bounds), name)
    if workflow is None:
        return None
    schema, portable = workflow.served_input_schema, portable_view(catalogue, call.access.bounds)
    known = given if portable is None else portable.read(name, schema, given)
    if known.keys() >= set(schema.get("required", ())):
        return None
    form = {
        "name": name,  # Possibly a former one: the card shows a form only if the call was for its tool
        "title": workflow.title,
        "description": workflow.shown_description,
        "schema": schema,
        "given": known,
    }
    told = (
        f"{workflow.tool_name} has not been started: the person fills in the missing arguments in a form in "
        "the chat, which then starts the run, so do not call it again."
    )
    return text_result(told, structured={"form": form})
