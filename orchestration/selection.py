"""The second stage: the model proposes a call; the guard approves it or sends it back once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
from orchestration import guard, retrieval
from orchestration.model.client import MeteredModel
from orchestration.models import Failure, StageFailed
from orchestration.prompts import repair_prompt, selection_prompt, shortlist_prompt

LONGEST_OBJECTION = 4_000
PROMPT_TOKENS = 2_500  # The length of our own prompts, the repair of a first proposal included
LONGEST_SHORTLIST = 10_000  # Characters
LEFT_OUT_SHOWN = 20
SHORTLIST_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"words": {"type": "string"}, "tools": {"type": "array", "items": {"type": "string"}}},
    "required": ["words", "tools"],
}


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
    """Raises StageFailed. `model` adds up the costs, also of failures."""
    # Hundreds of tools take most of a second, which would block the event loop.
    unknown: list[str] = []
    context = await run_in_database(
        retrieval.describe_all, list(tools.values()), tokens=_room_for_tools(instructions)
    )
    if context is None:
        context, unknown = await _describe_wanted(instructions, tools, model)
    has_endpoints = any(map(is_http_tool, tools.values()))
    asked = selection_prompt(instructions, context.text, has_endpoints=has_endpoints)
    schema = guard.proposal_schema(list(context.described), has_endpoints=has_endpoints)
    reply = await model.ask(asked, schema=schema)
    first = _judge(reply.text, tools)
    if isinstance(first, guard.Approved):
        return Selection(approved=first, rounds=1, warnings=_warnings(unknown))
    logger.info("The proposal is sent back: {}", first.failure.label)
    asked = repair_prompt(asked, reply.text, shorten(first.message, LONGEST_OBJECTION))
    try:
        reply = await model.ask(asked, schema=schema)
        second = _judge(reply.text, tools)
    except StageFailed as error:
        raise error.preceded_by(_before_that(first)) from error
    if isinstance(second, _Objection):
        raise StageFailed(_refused_twice(first, second), failure=second.failure)
    return Selection(approved=second, rounds=2, warnings=_warnings(unknown))


async def _describe_wanted(
    instructions: str, tools: Mapping[str, Workflow], model: MeteredModel
) -> tuple[retrieval.ToolContext, list[str]]:
    """The likeliest tools by what the model looks for, and those that it has not heard of at all."""
    room = _room_for_tools(instructions)

    def rank(wanted: retrieval.Wanted) -> list[Workflow]:
        return retrieval.rank_tools(list(tools.values()), instructions, current_catalogue(), wanted)

    named = retrieval.name_tools(await run_in_database(rank, retrieval.Wanted()), tokens=room)
    asked = shortlist_prompt(instructions, "\n".join(named.values()))
    reply = await model.ask(asked, schema=SHORTLIST_SCHEMA)
    ranked = await run_in_database(rank, _read_wanted(reply.text))
    context = await run_in_database(partial(retrieval.describe_likeliest, ranked, tokens=room))
    return context, [name for name in tools if name not in named and name not in context.described]


def _read_wanted(text: str) -> retrieval.Wanted:
    """Nothing where the answer cannot be read: the instructions alone rank the tools as well as they can."""
    answers = [
        found for found in guard.objects_in(text[:LONGEST_SHORTLIST]) if "words" in found or "tools" in found
    ]
    if not answers:
        logger.info("The model did not say which tools to describe; the instructions decide")
        return retrieval.Wanted()
    words, tools = answers[0].get("words"), answers[0].get("tools")
    return retrieval.Wanted(
        words=words if isinstance(words, str) else "",
        tools=[name for name in tools if isinstance(name, str)] if isinstance(tools, list) else [],
    )


def approve_anew(approved: guard.Approved, *, caller: Caller) -> guard.Approved:
    """By the tool's definition as it is now: the model may have thought for a minute. Raises StageFailed."""
    name = approved.workflow.tool_name
    current = current_catalogue().seen_within(caller.bounds).get(name)
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


def _warnings(unknown: Sequence[str]) -> list[str]:
    if not unknown:
        return []
    named = ", ".join(unknown[:LEFT_OUT_SHOWN])
    more = len(unknown) - LEFT_OUT_SHOWN
    return [
        f"The model was not told of all tools, as there are too many for its context: {named}"
        f"{f' and {more} more' if more > 0 else ''}. Name fewer tools to have all of them considered."
    ]


def _room_for_tools(instructions: str) -> int:
    """In tokens."""
    limit: int = settings.CATALOGUE["model_context_tokens"]
    return max(limit // 4, limit - estimate_tokens(instructions) - PROMPT_TOKENS)
