"""The second stage: the model proposes a call; the guard approves it or sends it back once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from loguru import logger

from catalogue.database import run_in_database
from catalogue.describing import estimate_tokens
from catalogue.exposure import current_catalogue
from catalogue.http_tools import is_http_tool
from catalogue.models import Workflow
from connectors.network.redaction import printable, shorten
from executions.callers import Caller
from orchestration import guard
from orchestration.model.client import MeteredModel
from orchestration.model.replies import Message
from orchestration.models import Failure, StageFailed
from orchestration.prompts import repair_prompt, selection_prompt
from orchestration.retrieval import ToolContext, describe_tools

LONGEST_OBJECTION = 4_000
PROMPT_TOKENS = 2_500
"""Of our own prompts, including a repair."""
LEFT_OUT_SHOWN = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    approved: guard.Approved
    rounds: int
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _Objection:
    message: str
    failure: Failure


async def choose_call(instructions: str, tools: Mapping[str, Workflow], *, model: MeteredModel) -> Selection:
    """Raises StageFailed."""
    # Describing hundreds of tools would block the event loop for most of a second.
    context = await run_in_database(_describe, list(tools.values()), instructions)
    asked, schema = _question(instructions, context, tools)
    reply = await model.ask(asked, schema=schema)
    if context.named and (known_by_name := _chosen_by_name(reply.text, context)):
        context = await run_in_database(_describe, list(tools.values()), instructions, known_by_name)
        asked, schema = _question(instructions, context, tools)
        reply = await model.ask(asked, schema=schema)
    first = _judge(reply.text, tools)
    if isinstance(first, guard.Approved):
        return Selection(approved=first, rounds=1, warnings=_warnings(context))
    logger.info("The proposal is sent back: {}", first.failure.label)
    asked = repair_prompt(asked, reply.text, shorten(first.message, LONGEST_OBJECTION))
    try:
        reply = await model.ask(asked, schema=schema)
        second = _judge(reply.text, tools)
    except StageFailed as error:
        raise error.preceded_by(_before_that(first)) from error
    if isinstance(second, _Objection):
        raise StageFailed(_refused_twice(first, second), failure=second.failure)
    return Selection(approved=second, rounds=2, warnings=_warnings(context))


def _describe(tools: Sequence[Workflow], instructions: str, first: str = "") -> ToolContext:
    limit: int = settings.CATALOGUE["model_context_tokens"]
    room = max(limit // 4, limit - estimate_tokens(instructions) - PROMPT_TOKENS)
    return describe_tools(
        tools, instructions=instructions, tokens=room, catalogue=current_catalogue(), first=first
    )


def _question(
    instructions: str, context: ToolContext, tools: Mapping[str, Workflow]
) -> tuple[list[Message], dict[str, Any]]:
    has_endpoints = any(map(is_http_tool, tools.values()))
    schema = guard.proposal_schema([*context.described, *context.named], has_endpoints=has_endpoints)
    prompt = selection_prompt(
        instructions, context.text, has_endpoints=has_endpoints, has_names_only=bool(context.named)
    )
    return prompt, schema


def _chosen_by_name(text: str, context: ToolContext) -> str:
    """The tool, if the model chose one without a description; else empty."""
    try:
        chosen = guard.read_proposal(text).tool
    except guard.UnreadableProposal:
        return ""
    return chosen if chosen and chosen in context.named else ""


def approve_anew(approved: guard.Approved, *, caller: Caller) -> guard.Approved:
    """By the tool's present definition, which may have changed meanwhile. Raises StageFailed."""
    name = approved.workflow.tool_name
    current = current_catalogue().seen_through(caller.toolset).get(name)
    if current is None or current is approved.workflow:
        # Starting a missing tool has its own error.
        return approved
    proposal = guard.Proposal(tool=name, reason=approved.reason, arguments=approved.arguments)
    try:
        return guard.check_proposal(proposal, {name: current})
    except guard.ProposalRefused as error:
        message = f"{name} was changed while the model chose. Nothing was sent; ask again. {error}"
        raise StageFailed(message, failure=Failure.PROPOSAL_REFUSED) from error


def _judge(text: str, tools: Mapping[str, Workflow]) -> guard.Approved | _Objection:
    """Raises StageFailed if the model says that no tool fits, which needs no repair."""
    try:
        proposal = guard.read_proposal(text)
        if proposal.tool is None:
            reason = f": {printable(proposal.reason)}" if proposal.reason else "."
            raise StageFailed(f"None of the tools fits, says the model{reason}", failure=Failure.NO_TOOL_FITS)
        return guard.check_proposal(proposal, tools)
    except guard.UnreadableProposal as error:
        return _Objection(str(error), Failure.MODEL_ANSWER)
    except guard.ProposalRefused as error:
        return _Objection(str(error), Failure.PROPOSAL_REFUSED)


def _refused_twice(first: _Objection, second: _Objection) -> str:
    is_readable = second.failure == Failure.PROPOSAL_REFUSED
    what = "The model's proposal was refused" if is_readable else "The model gave no usable answer"
    when = "also when it was asked again" if first.failure == second.failure else "when it was asked again"
    message = f"{what}, {when}. Nothing was sent. {_words_of(second)}"
    return message if first.message == second.message else f"{message} {_before_that(first)}"


def _before_that(first: _Objection) -> str:
    is_readable = first.failure == Failure.PROPOSAL_REFUSED
    what = "its first proposal was refused" if is_readable else "its first answer was of no use"
    return f"Before that, {what}: {_words_of(first)}"


def _words_of(objection: _Objection) -> str:
    return shorten(printable(objection.message), LONGEST_OBJECTION)


def _warnings(context: ToolContext) -> list[str]:
    if not context.left_out:
        return []
    named = ", ".join(context.left_out[:LEFT_OUT_SHOWN])
    more = len(context.left_out) - LEFT_OUT_SHOWN
    return [
        f"The model was not told of all tools, as their descriptions are too long together: {named}"
        f"{f' and {more} more' if more > 0 else ''}. Name fewer tools to have all of them considered."
    ]
