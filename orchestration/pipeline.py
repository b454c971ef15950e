"""A natural-language request from its tools to its answer: the model proposes a call, which the guard
approves or sends back once; the call runs; the model puts the response into words (C6)."""

import asyncio
import html
import json
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

from django.conf import settings
from loguru import logger

from access.callers import Caller
from catalogue.database import run_in_database
from catalogue.descriptions import CHARACTERS_PER_TOKEN, tokens_for
from catalogue.exposure import current_catalogue
from catalogue.http_tools import is_http_tool
from catalogue.models import Workflow
from catalogue.naming import counted, listed
from connectors.background import start_in_background_loop
from connectors.network.redaction import printable, shorten
from executions.advancing import begin
from executions.models import Execution
from executions.models.lifecycle import StartRequest
from executions.refusals import Busy, StartRefused, TooManyCalls
from executions.waiting import start_and_wait
from orchestration import records
from orchestration.guard import (
    Approved,
    Proposal,
    ProposalRefused,
    UnreadableProposal,
    check_proposal,
    objects_in,
    proposal_schema,
    read_proposal,
)
from orchestration.language_model import Message, MeteredModel, Reply, TokenUsage
from orchestration.models import Failure, Stage, StageFailed, StageState, WorkflowRequest
from orchestration.prompts import formatting_prompt, repair_prompt, selection_prompt, shortlist_prompt
from orchestration.records import NotReplayable, RequestInput, RequestRefused
from orchestration.retrieval import (
    ToolContext,
    Wanted,
    describe_all,
    describe_likeliest,
    find_tools,
    name_tools,
    rank_tools,
)

OURS = "Internal error, not caused by the request; the server's log has the details."
GIVEN_UP = "The request was abandoned because it exceeded its time limit."
NOT_FORMATTED = "response_format_instructions had no effect because format_response is not true."
GRACE = timedelta(seconds=60)  # Added to a stage's own limits; after that the request counts as interrupted
NEW_DRY_RUN = "Nothing was sent; make a new dry run."
MAX_OBJECTION = 4_000
PROMPT_TOKENS = 2_500  # The length of our own prompts, the repair of a first proposal included
MAX_SHORTLIST = 10_000  # Characters
LEFT_OUT_SHOWN = 20
SHORTLIST_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"words": {"type": "string"}, "tools": {"type": "array", "items": {"type": "string"}}},
    "required": ["words", "tools"],
}
FORMATTED_AT_ONCE = 10
MAX_TEXT = 50_000  # Characters
MIN_TOKENS = 250  # Minimum of the response that the model sees, however long the prompt is
SHARE_OF_BEGINNING = 0.8  # Of a cut response; the rest is its end, where totals are


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    approved: Approved
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
    context = await run_in_database(describe_all, list(tools.values()), tokens=_room_for_tools(instructions))
    if context is None:
        context, unknown = await _describe_wanted(instructions, tools, model)
    has_endpoints = any(map(is_http_tool, tools.values()))
    asked = selection_prompt(instructions, context.text, has_endpoints=has_endpoints)
    schema = proposal_schema(list(context.described), has_endpoints=has_endpoints)
    reply = await model.ask(asked, schema=schema)
    first = _judge(reply.text, tools)
    if isinstance(first, Approved):
        return Selection(approved=first, rounds=1, warnings=_warnings(unknown))
    logger.info("The proposal is sent back: {}", first.failure.label)
    asked = repair_prompt(asked, reply.text, shorten(first.message, MAX_OBJECTION))
    try:
        reply = await model.ask(asked, schema=schema)
        second = _judge(reply.text, tools)
    except StageFailed as error:
        raise error.preceded_by(_before_that(first)) from error
    if isinstance(second, _Objection):
        is_readable = second.failure == Failure.PROPOSAL_REFUSED
        what = "The model's proposal was refused" if is_readable else "The model returned no usable answer"
        again = "again " if first.failure == second.failure else ""
        message = f"{what}, {again}after a second request. Nothing was sent. {_words_of(second)}"
        before = "" if first.message == second.message else f" {_before_that(first)}"
        raise StageFailed(f"{message}{before}", failure=second.failure)
    return Selection(approved=second, rounds=2, warnings=_warnings(unknown))


async def _describe_wanted(
    instructions: str, tools: Mapping[str, Workflow], model: MeteredModel
) -> tuple[ToolContext, list[str]]:
    """Returns the likeliest tools by what the model looks for, and the tools that it was not shown at all."""
    room = _room_for_tools(instructions)

    def rank(wanted: Wanted) -> list[Workflow]:
        return rank_tools(list(tools.values()), instructions, current_catalogue(), wanted)

    named = name_tools(await run_in_database(rank, Wanted()), tokens=room)
    asked = shortlist_prompt(instructions, "\n".join(named.values()))
    reply = await model.ask(asked, schema=SHORTLIST_SCHEMA)
    ranked = await run_in_database(rank, _read_wanted(reply.text))
    context = await run_in_database(describe_likeliest, ranked, tokens=room)
    return context, [name for name in tools if name not in named and name not in context.described]


def _read_wanted(text: str) -> Wanted:
    """Empty if the answer is unreadable: the instructions alone then rank the tools."""
    answers = [found for found in objects_in(text[:MAX_SHORTLIST]) if "words" in found or "tools" in found]
    if not answers:
        logger.info("The model did not say which tools to describe; the instructions are used instead")
        return Wanted()
    words, tools = answers[0].get("words"), answers[0].get("tools")
    return Wanted(
        words=words if isinstance(words, str) else "",
        tools=[name for name in tools if isinstance(name, str)] if isinstance(tools, list) else [],
    )


def approve_anew(approved: Approved, *, caller: Caller) -> Approved:
    """Checks the tool's present definition, which may have changed meanwhile. Raises StageFailed."""
    name = approved.workflow.tool_name
    current = current_catalogue().seen_within(caller.bounds).get(name)
    if current is None or current is approved.workflow:
        # Starting a missing tool has its own error.
        return approved
    proposal = Proposal(tool=name, reason=approved.reason, arguments=approved.arguments)
    try:
        return check_proposal(proposal, {name: current})
    except ProposalRefused as error:
        message = f"{name} was changed while the model chose. Nothing was sent; ask again. {error}"
        raise StageFailed(message, failure=Failure.PROPOSAL_REFUSED) from error


def _judge(text: str, tools: Mapping[str, Workflow]) -> Approved | _Objection:
    """Raises StageFailed if the model says that no tool fits, which needs no repair."""
    try:
        proposal = read_proposal(text)
        if proposal.tool is None:
            reason = f": {printable(proposal.reason)}" if proposal.reason else "."
            raise StageFailed(f"The model says that no tool fits{reason}", failure=Failure.NO_TOOL_FITS)
        return check_proposal(proposal, tools)
    except UnreadableProposal as error:
        return _Objection(str(error), Failure.MODEL_ANSWER)
    except ProposalRefused as error:
        return _Objection(str(error), Failure.PROPOSAL_REFUSED)


def _before_that(first: _Objection) -> str:
    is_readable = first.failure == Failure.PROPOSAL_REFUSED
    what = "its first proposal was refused" if is_readable else "its first answer was not usable"
    return f"Before that, {what}: {_words_of(first)}"


def _words_of(objection: _Objection) -> str:
    return shorten(printable(objection.message), MAX_OBJECTION)


def _warnings(unknown: Sequence[str]) -> list[str]:
    if not unknown:
        return []
    return [
        "The model did not see all tools because they exceed its context: "
        f"{listed(unknown, LEFT_OUT_SHOWN)}. Name fewer tools to have all of them considered."
    ]


def _room_for_tools(instructions: str) -> int:
    """Returns tokens."""
    limit: int = settings.CATALOGUE.model_context_tokens
    return max(limit // 4, limit - tokens_for(len(instructions)) - PROMPT_TOKENS)


class Pipeline:
    """`run` does not raise: failures are in the record or in `refusal`."""

    request: WorkflowRequest

    def __init__(self, asked: RequestInput) -> None:
        self._asked = asked
        self._model = MeteredModel()
        ignored = asked.response_format_instructions.strip() and not asked.format_response
        self._warnings: list[str] = [NOT_FORMATTED] if ignored else []
        self._tool = ""
        self.refusal: RequestRefused | None = None
        self.retry_after: int | None = None
        self.has_succeeded = False

    @classmethod
    def of_record(cls, request: WorkflowRequest) -> "Pipeline":
        caller = Caller(key=request.caller, name=request.caller_name, toolset=request.toolset or None)
        asked = RequestInput(user_instructions=request.instructions, tool_ids=request.tool_ids, caller=caller)
        pipeline = cls(asked)
        pipeline.request, pipeline._tool = request, request.selected_tool
        pipeline._warnings = list(request.warnings)
        used = TokenUsage(prompt=request.prompt_tokens, completion=request.completion_tokens)
        pipeline._model = MeteredModel(used, request.model)
        return pipeline

    async def run(self) -> None:
        if not await self._open():
            return
        async with self._recorded_failures():
            tools = await run_in_database(self._find_tools)
            if self._asked.replayed_dry_run is None:
                selection = await choose_call(self._asked.user_instructions, tools, model=self._model)
            else:
                approved = await run_in_database(replay_dry_run, self._asked.replayed_dry_run, tools)
                selection = Selection(approved=approved, rounds=0)
            approved = await run_in_database(self._approve, selection)
            if not self._asked.dry_run:
                execution = await run_call(
                    approved, caller=self._asked.caller, key=self._asked.id, fresh=self._asked.fresh
                )
                await self._answer_with(execution)

    async def _open(self) -> bool:
        """Returns whether the request is a new one."""
        try:
            self.request = await run_in_database(records.open_request, self._asked)
            if self.request.pk != self._asked.id:
                await records.wait_for_original(self.request)
                return False
        except RequestRefused as refusal:
            self.refusal = refusal
            return False
        return True

    @asynccontextmanager
    async def _recorded_failures(self) -> AsyncIterator[None]:
        try:
            yield
        except StageFailed as error:
            self._log(error)
            await self._fail(error)
        except Exception as error:  # noqa: BLE001 - logged in the next line
            self._log(error)
            await self._fail(StageFailed(OURS, failure=Failure.INTERNAL))

    def _find_tools(self) -> dict[str, Workflow]:
        tools = find_tools(self._asked.tool_ids, caller=self._asked.caller)
        self._begin(Stage.LLM_SELECTION, questions=3, message=counted(len(tools), "tool"))
        return tools

    def _approve(self, selection: Selection) -> Approved:
        """Uses the tool's present definition; ends a dry run."""
        approved = selection.approved
        if selection.rounds:
            approved = approve_anew(approved, caller=self._asked.caller)
        self._warnings += selection.warnings
        self._tool = approved.workflow.tool_name
        how = {0: ", as the dry run showed it", 1: ""}.get(
            selection.rounds, ", once its first proposal was sent back"
        )
        message, spec = f"{self._tool}{how}", approved.http_spec
        found: dict[str, Any] = {
            "selected_tool": self._tool,
            "reason": approved.reason,
            "arguments": approved.arguments,
            "http_spec": None if spec is None else spec.model_dump(mode="json"),
        }
        if self._asked.dry_run:
            self._succeed(message, **found)
        else:
            self._begin(Stage.API_EXECUTION, seconds=longest_wait(approved), message=message, **found)
        return approved

    async def _answer_with(self, execution: Execution) -> None:
        if not execution.is_settled:
            await run_in_database(self.request.await_run, execution.pk, **self._costs())
            self._bound().info("A natural-language request is answered while its run continues")
        elif not execution.succeeded:
            message, failure = records.describe_failure(execution)
            raise StageFailed(message, failure=failure, execution_id=execution.pk) from execution.raised
        elif self._asked.format_response:
            await self._put_into_words(await run_in_database(self._begin_formatting, execution))
        else:
            await run_in_database(self._succeed, execution.state_label, execution=execution)

    async def format_late(self) -> None:
        """Formats a run that has completed since its request was answered, unless another process does it."""
        assert self.request.execution is not None, "only a completed run is formatted"
        with suppress(StageFailed):
            raw = await run_in_database(self._begin_formatting, self.request.execution)
            async with self._recorded_failures():
                await self._put_into_words(raw, may_wait=True)

    async def _put_into_words(self, raw: dict[str, Any], *, may_wait: bool = False) -> None:
        """A failure here does not fail the request (C8.4). `may_wait`: for the model's next free place."""
        state, text, message = StageState.DONE, "", ""
        wanted, phrased = self.request.instructions, self.request.format_instructions
        try:
            reply = await format_response(
                raw, instructions=wanted, format_instructions=phrased, ask=self._model.ask
            )
            text, removed = remove_foreign_addresses(reply.text, given=(raw, wanted, phrased))
            if removed:
                what = "An address was" if removed == 1 else f"{removed} addresses were"
                self._warnings.append(
                    f"{what} removed from formatted_response because the response does not contain it."
                )
        except StageFailed as error:
            if may_wait and error.failure == Failure.BUSY:
                await run_in_database(self.request.await_run, self.request.pk)
                return
            self._log(error)
            state, message = StageState.FAILED, error.message
            self._warnings.append(f"The response could not be put into words: {error.message}")
        await run_in_database(self._succeed, message, state=state, formatted_response=text)

    def _begin_formatting(self, execution: Execution) -> dict[str, Any]:
        """Returns the response to format."""
        message = execution.state_label
        self._begin(Stage.RESPONSE_FORMATTING, questions=1, message=message, execution=execution)
        return records.raw_response_of(execution, of_http_tool=self.request.http_spec is not None)

    def _begin(
        self, stage: Stage, *, questions: int = 0, seconds: float = 0.0, message: str = "", **found: Any
    ) -> None:
        """Raises StageFailed if the record has been ended as interrupted."""
        within = timedelta(seconds=seconds + questions * settings.CATALOGUE.model_timeout) + GRACE
        if not self.request.begin_stage(stage, within=within, message=message, **self._costs(), **found):
            raise StageFailed(GIVEN_UP, failure=Failure.INTERRUPTED)

    def _succeed(self, message: str, *, state: StageState = StageState.DONE, **found: Any) -> None:
        ended = self.request.succeed(message=message, state=state, **self._costs(), **found)
        if ended:
            self.has_succeeded = True
        self._bound().info("A natural-language request succeeded" if ended else GIVEN_UP)

    async def _fail(self, error: StageFailed) -> None:
        self.retry_after = error.retry_after
        found = {"invalid_tool_ids": error.invalid_tool_ids, **self._costs()}
        if error.execution_id is not None:
            found["execution_id"] = error.execution_id
        await run_in_database(self.request.fail, error.message, failure=error.failure, **found)

    def _costs(self) -> dict[str, Any]:
        usage = self._model.usage
        return {
            "model": self._model.model,
            "prompt_tokens": usage.prompt,
            "completion_tokens": usage.completion,
            "warnings": self._warnings,
        }

    def _bound(self) -> Any:
        request = self.request
        return logger.bind(
            request=request.pk, caller=request.caller, stage=request.stage.value, tool=self._tool
        )

    def _log(self, error: Exception) -> None:
        """The instructions are only in the record, not in the log (C8.5)."""
        expected = isinstance(error, StageFailed) and error.failure != Failure.INTERRUPTED
        level = "WARNING" if expected else "ERROR"
        self._bound().opt(exception=error).log(level, "A natural-language request failed: {}", error)


async def answer_request(asked: RequestInput) -> WorkflowRequest:
    """Returns the record of the request, also of one that failed. Raises RequestRefused.

    Cancellation ends only the wait: the request runs to its end, and a repetition gets its answer.
    """
    pipeline = Pipeline(asked)
    await asyncio.shield(begin(pipeline.run()))
    if pipeline.refusal is not None:
        raise pipeline.refusal
    if pipeline.has_succeeded:
        return pipeline.request
    answered: WorkflowRequest = await run_in_database(records.read_settled, pipeline.request.pk)
    answered.retry_after = pipeline.retry_after
    return answered


def settle_requests() -> None:
    """Ends requests whose run has ended, and begins to format the responses of some. Called by the schedule
    and before each read, so that a status is not behind its run."""
    records.settle_with_runs()
    # In the order of the index, because SQLite would read all requests for another order.
    unformatted = records.unformatted().order_by("deadline_at")
    # By key first: a list, which calls this, must not read the long texts of records.
    for key in unformatted.values_list("pk", flat=True)[:FORMATTED_AT_ONCE]:
        for request in unformatted.select_related(*records.WITH_RUN).filter(pk=key):
            start_in_background_loop(_begin_late(request))


async def _begin_late(request: WorkflowRequest) -> None:
    begin(Pipeline.of_record(request).format_late())


def longest_wait(approved: Approved) -> float:
    """Seconds that the answer waits for the run, which continues after that."""
    seconds = approved.workflow.inline_wait_seconds
    return float(settings.CATALOGUE.inline_wait if seconds is None else seconds)


async def run_call(approved: Approved, *, caller: Caller, key: uuid.UUID, fresh: bool) -> Execution:
    """Returns the execution with the id `key`, ended or not. Raises StageFailed if nothing was started."""
    request = StartRequest(
        tool_name=approved.workflow.tool_name,
        arguments=approved.arguments,
        caller=caller,
        door=Execution.Door.WORKFLOW,
        fresh=fresh,
        id=key,
    )
    try:
        return await start_and_wait(request, seconds=longest_wait(approved))
    except Busy as error:
        failure = Failure.TOO_MANY_CALLS if isinstance(error, TooManyCalls) else Failure.BUSY
        raise StageFailed(str(error), failure=failure, retry_after=error.retry_after) from error
    except StartRefused as error:
        raise StageFailed(str(error), failure=Failure.RUN_FAILED) from error


def can_be_replayed(record: WorkflowRequest, *, caller: Caller) -> bool:
    """Returns True only for its caller, while its arguments are kept."""
    succeeded = record.dry_run and record.status == WorkflowRequest.Status.SUCCESS
    return succeeded and record.arguments is not None and caller.owns(record)


def input_of_dry_run(dry_run: WorkflowRequest, *, caller: Caller, key: uuid.UUID) -> RequestInput:
    """A new request; only one for each dry run, by its idempotency key. Raises NotReplayable."""
    if not can_be_replayed(dry_run, caller=caller):
        raise NotReplayable(dry_run)
    return RequestInput(
        id=key,
        user_instructions=dry_run.instructions,
        tool_ids=[dry_run.selected_tool],
        format_response=dry_run.format_response,
        response_format_instructions=dry_run.format_instructions,
        caller=caller,
        idempotency_key=f"dry-run:{dry_run.pk}",
        replayed_dry_run=dry_run.pk,
    )


def replay_dry_run(dry_run_id: uuid.UUID, tools: Mapping[str, Workflow]) -> Approved:
    """Returns the call of the dry run. Raises StageFailed if the tool would send another request by now."""
    shown = WorkflowRequest.objects.get(pk=dry_run_id)
    proposal = Proposal(tool=shown.selected_tool, reason=shown.reason, arguments=shown.arguments)
    try:
        approved = check_proposal(proposal, tools)
    except ProposalRefused as error:
        raise _changed(str(error)) from error
    spec = approved.http_spec
    if (None if spec is None else spec.model_dump(mode="json")) != shown.http_spec:
        raise _changed(f"{shown.selected_tool} would now send a different request.")
    return approved


def _changed(how: str) -> StageFailed:
    return StageFailed(
        f"The tool has changed since the dry run: {how} {NEW_DRY_RUN}", failure=Failure.PROPOSAL_REFUSED
    )


async def format_response(
    raw: Any,
    *,
    instructions: str,
    format_instructions: str,
    ask: Callable[[Sequence[Message]], Awaitable[Reply]],
) -> Reply:
    """`raw`: a JSON value or text, which is cut to fit. Raises what `ask` raises."""
    prompt_about = partial(
        formatting_prompt, instructions=instructions, format_instructions=format_instructions
    )
    system, user = prompt_about("")
    taken = tokens_for(len(system["content"])) + tokens_for(len(user["content"]))
    left = max(settings.CATALOGUE.model_context_tokens - taken, MIN_TOKENS)
    text = raw if isinstance(raw, str) else json.dumps(raw, ensure_ascii=False, separators=(",", ":"))
    reply = await ask(prompt_about(cut_to_tokens(text, left)))
    return replace(reply, text=shorten(reply.text, MAX_TEXT))


def cut_to_tokens(text: str, tokens: int) -> str:
    """Cuts the middle, with a note in its place."""
    most = tokens * CHARACTERS_PER_TOKEN
    if len(text) <= most:
        return text
    note = f"\n[The response was cut here: {len(text):,} characters, of which about {most:,} are shown.]\n"
    kept = max(most - len(note), 0)
    beginning = round(kept * SHARE_OF_BEGINNING)
    return text[:beginning] + note + text[len(text) - (kept - beginning) :]


REMOVED = "[address removed]"
REST = r"""[^\s<>"'`)\]}]+"""
SCHEMES = "https?|ftp|file|wss?|data|blob|javascript|vbscript|mailto|tel|sms"
ADDRESS = re.compile(
    # Browsers accept backslashes for slashes, and these schemes without slashes.
    rf"\b[a-z][a-z0-9+.-]{{1,30}}:[/\\]{{2}}{REST}|\b(?:{SCHEMES}):{REST}|\bwww\.{REST}",
    re.IGNORECASE,
)
DESTINATION = re.compile(r"(\]\(\s*<?|^ {0,3}\[[^\]\n]+\]:\s*<?)([^)\s>]+)", re.MULTILINE)
"""Targets of Markdown links, inline and in reference definitions."""
IMAGE = re.compile(r"!(?=\[)")
PLAIN_TAGS = (
    "b|blockquote|br|caption|code|dd|div|dl|dt|em|h[1-6]|hr|i|li|ol|p|pre|s|small|span|strong|sub|sup|table|"
    "tbody|td|tfoot|th|thead|tr|u|ul"
)
TAG = re.compile(rf"<(?!/?(?:{PLAIN_TAGS})\s*/?>)(?=[a-z/!?])", re.IGNORECASE)
"""The start of any other tag, or of one with attributes."""
PUNCTUATION = ".,;:!?"


def remove_foreign_addresses(text: str, *, given: Iterable[Any]) -> tuple[str, int]:
    """Returns the text without addresses that no value in `given` (JSON) has, and the number removed.

    A response may make the model write an address that leaks data. Images become links and all but plain
    tags become text, so that displaying the text fetches and runs nothing.
    """
    known, removed = frozenset(_addresses_in(given)), 0

    def keep_or_remove(address: str) -> str:
        nonlocal removed
        if _bare(address) in known:
            return address
        removed += 1
        return REMOVED + address[len(address.rstrip(PUNCTUATION)) :]

    text = DESTINATION.sub(lambda found: found[1] + keep_or_remove(found[2]), text)
    text = ADDRESS.sub(lambda found: keep_or_remove(found[0]), text)
    return TAG.sub("< ", IMAGE.sub("", text)), removed


def _addresses_in(value: Any) -> Iterator[str]:
    """Searches all strings of a JSON value, including keys."""
    left = [value]
    while left:
        match left.pop():
            case str(text):
                for address in ADDRESS.findall(text):
                    yield _bare(address)
                for _, address in DESTINATION.findall(text):
                    yield _bare(address)
            case dict(members):
                left += [*members.keys(), *members.values()]
            case list(items) | tuple(items):
                left += items


def _bare(address: str) -> str:
    """Removes the punctuation of the surrounding sentence."""
    return html.unescape(address).rstrip(PUNCTUATION)
