import asyncio
import math
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
from django.conf import settings
from django.db import models
from django.utils import timezone
from mcp import MCPError
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp_types import (
    INVALID_PARAMS,
    CancelledNotificationParams,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
    RequestId,
)

from catalogue.database import run_in_database
from catalogue.exposure import current_catalogue, find_by_alias, find_named, present_catalogue
from catalogue.models import Workflow
from connectors.protocol import LogMessage, Progress, covers_level
from executions.change_feed import watch_until_settled
from executions.control import Action, prepare_retry
from executions.models import Execution, RunNotice, State
from executions.models.lifecycle import StartRequest
from executions.reading import UnknownExecution, find_execution
from executions.refusals import InvalidArguments, StartRefused, UnknownTool
from executions.run_callers import ANSWERS, CARDS, Requests, RunListener, answer, listening
from executions.run_notices import read_notices
from executions.starting import find_continued
from executions.waiting import GRACE_SECONDS, inline_wait, start_and_wait, while_people_decide
from identity.tokens import Access, digest_of
from mcp_bridge.cards import CARD_WAIT_SECONDS, has_our_card
from mcp_bridge.cards.relay import relay_result
from mcp_bridge.elicitation import (
    APPROVAL,
    ELICIT,
    ROUND,
    UNKNOWN_STATE,
    Ask,
    ask_for_run,
    ask_while_waiting,
    error_for_client,
    input_required,
    question_about,
    requests_of,
    take_response,
)
from mcp_bridge.models import ClientLogLevel
from mcp_bridge.portability import find_portable_view, portable_view
from mcp_bridge.request_meta import RENAMED_TO, SESSION_HEADER, Context, as_sent, is_modern
from mcp_bridge.results import ToolAnswer, execution_result, text_result
from mcp_bridge.tasks import describe_task

ECHO_SECONDS = 3.0  # In which the record repeats the progress that was passed on
MAX_RENDERED_AT_ONCE = 10_000  # Characters of a result; rendering more would block other requests
Report = Callable[[float, float | None, str | None], Awaitable[None]]  # Value, total, message


LAST_SECONDS = 1.0  # For news that are unsent when the call is answered
KEPT = timedelta(days=7)  # A level, for clients that do not come back
MAX_LEVELS_OF_CALLER = 20  # The latest levels of the clients of one caller
CALLERS_PART = 16  # Characters of a client's key that are the same for all clients of a caller


@dataclass(frozen=True, slots=True)
class ClientLog:
    """Sends to the client of one request, on the stream that answers it."""

    context: Context
    level: str | None  # None: the one that the client has set in an earlier request
    client: str = ""  # See `client_key`

    async def find_level(self) -> str:
        return await run_in_database(find_level, self.client) if self.level is None else self.level

    async def send(self, message: LogMessage) -> None:
        params = LoggingMessageNotificationParams.model_validate(
            {"level": message.level, "data": message.data, "logger": message.logger or None}
        )
        await self.context.session.send_notification(
            LoggingMessageNotification(params=params), related_request_id=self.context.request_id
        )


@asynccontextmanager
async def passing_on(
    execution_id: uuid.UUID, log: ClientLog | None, report: Callable[[Progress], Awaitable[None]] | None
) -> AsyncIterator[None]:
    """`log`, `report`: None if the client wants none."""
    listener = RunListener(None if log is None else log.find_level)

    async def send(news: LogMessage | Progress) -> None:
        if isinstance(news, Progress):
            if report is not None:
                await report(news)
        elif log is not None and covers_level(await listener.level(), news.level):
            await log.send(news)

    sending = asyncio.create_task(listener.send_each(send))
    try:
        with listening(execution_id, listener):
            yield
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                await listener.drain()
    finally:
        sending.cancel()


def client_key(context: Context, access: Access) -> str:
    """Identifies the client by its session, if it has one, and its address, user agent and caller."""
    request: Any = context.request
    address = request.client.host if request.client else ""
    named = (request.headers.get(name, "") for name in (SESSION_HEADER, "user-agent"))
    client = digest_of("\0".join((access.caller.key, address, *named)))
    return digest_of(access.caller.key)[:CALLERS_PART] + client[CALLERS_PART:]


def keep_level(client: str, level: str) -> None:
    now = timezone.now()
    ClientLogLevel.objects.update_or_create(client=client, defaults={"level": level, "set_at": now})
    of_caller = ClientLogLevel.objects.filter(client__startswith=client[:CALLERS_PART]).order_by("-set_at")
    outdated = models.Q(pk__in=list(of_caller.values_list("pk", flat=True)[MAX_LEVELS_OF_CALLER:]))
    ClientLogLevel.objects.filter(outdated | models.Q(set_at__lt=now - KEPT)).delete()


def find_level(client: str) -> str:
    """Empty if it requested none."""
    return ClientLogLevel.objects.filter(client=client).values_list("level", flat=True).first() or ""


class ProgressNotifications:
    """Values that always increase, as MCP requires. Every poll sends one, so that clients keep waiting."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.last: float | None = None
        self._passed_on_at = -math.inf

    async def tell(self, execution: Execution) -> None:
        if time.monotonic() - self._passed_on_at < ECHO_SECONDS:
            return
        percent = 100.0 if execution.succeeded else execution.progress
        await self._send(percent, percent is not None, execution.progress_message or execution.state_label)

    async def pass_on(self, progress: Progress) -> None:
        """Sends what a server says of the run, when it says it."""
        self._passed_on_at = time.monotonic()
        value, is_percent = progress.value, bool(progress.total and progress.total > 0)
        if is_percent and progress.total:
            value = min(max(100.0 * value / progress.total, 0.0), 100.0)
        await self._send(value, is_percent, progress.message or None)

    async def _send(self, value: float | None, is_percent: bool, message: str | None) -> None:
        step = 0.001 if is_percent else 1.0
        least = -math.inf if self.last is None else self.last + step
        self.last = max(step if value is None else value, least)
        await self._report(self.last, 100.0 if is_percent and self.last <= 100.0 else None, message)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    access: Access
    protocol_version: str
    door: Execution.Door = Execution.Door.MCP
    idempotency_key: str = ""
    fresh: bool = False
    notify: Any = None  # See `read_notices`; unchecked
    by_own_tool: bool = True  # False: by `execute_workflow`, which has no output schema
    client: dict[str, Any] = field(default_factory=dict)  # See `describe_client`
    takes_tasks: bool = False
    progress: ProgressNotifications | None = None  # None: the client asked for none
    stays_for_progress: bool = False  # Whether progress keeps the client waiting for as long as a run takes
    set_wait: int | None = None  # See `wait_set_for`; `run_workflow` looks it up
    log: ClientLog | None = None  # None: the client gets no log messages
    elicits: Callable[[], frozenset[str]] = frozenset  # See `elicitation_modes`; few calls need to know
    ask: Ask | None = None  # With a handshake; without one, the answer to the call asks
    continues: str = ""  # The state of the answer that asked for input; empty: a call of its own
    responses: Mapping[str, Any] = field(default_factory=dict)  # And the answers to its questions
    shows_cards: bool = False  # The client, in this toolset; `run_workflow`: our card shows the run
    shows_apps: bool = False  # The client, in this toolset

    @property
    def longest_wait(self) -> float | None:
        """The same as `set_wait`, unless a card shows the rest of the run."""
        if not self.shows_cards:
            return self.set_wait
        usual = settings.CATALOGUE.inline_wait if self.set_wait is None else self.set_wait
        return min(CARD_WAIT_SECONDS, float(usual))


def in_words(error: Exception, door: Execution.Door) -> str:
    """Returns the refusal, and what lists the tools or executions for callers of this door."""
    if isinstance(error, UnknownExecution):
        return f"{error} list_executions shows yours."
    if not isinstance(error, UnknownTool):
        return str(error)
    shows = "list_tools" if door == Execution.Door.COMMAND else "list_workflows"
    return f"{error} {shows} shows those that can be called."


async def run_workflow(call: ToolCall, tool_name: str, arguments: dict[str, Any]) -> ToolAnswer:
    """Runs it and waits. Raises UnknownTool; the result reports everything else that goes wrong."""
    execution_id = uuid.uuid4()
    if call.continues:
        with suppress(ValueError):
            execution_id = uuid.UUID(call.continues.partition(ROUND)[0])
    return await _passing_news(call, execution_id, _run(call, execution_id, tool_name, arguments))


async def retry_run(call: ToolCall, execution_id: str, action: Action) -> ToolAnswer:
    """Retries it, and answers as a call does. Raises UnknownExecution, InteractionRefused or StartRefused."""
    request = await prepare_retry(execution_id, action, caller=call.access.caller, door=call.door)
    call = await _with_wait_and_card(replace(call, by_own_tool=False), request.tool_name)
    request = replace(request, client=call.client)
    return await _passing_news(call, request.id, _start(call, request))


async def _passing_news(
    call: ToolCall, execution_id: uuid.UUID, answering: Awaitable[ToolAnswer]
) -> ToolAnswer:
    if call.log is None and call.progress is None:
        return await answering
    async with passing_on(execution_id, call.log, call.progress.pass_on if call.progress else None):
        return await answering


async def _run(
    call: ToolCall, execution_id: uuid.UUID, tool_name: str, arguments: dict[str, Any]
) -> ToolAnswer:
    portable = None if call.access.caller.toolset is None else await find_portable_view(call.access)
    name = tool_name if portable is None else portable.meant_name(tool_name)
    schema = None if portable is None else portable.schema_of(name)
    if call.shows_apps and call.by_own_tool:
        name = await _name_for_app(call, name)
    call = await _with_wait_and_card(call, name)
    try:
        request = StartRequest(
            tool_name=name,
            arguments=arguments if portable is None else portable.read(tool_name, schema, arguments),
            caller=call.access.caller,
            door=call.door,
            idempotency_key=call.idempotency_key,
            may_reattach=call.door == Execution.Door.MCP,
            fresh=call.fresh,
            # Models see `execute_workflow`, but not the tools that are only for apps.
            by_card=call.shows_apps and call.by_own_tool,
            client=call.client,
            notices=await _notices_for(call),
            id=execution_id,
        )
        return await _start(call, request)
    except UnknownTool:
        if portable is None:
            raise
        raise portable.tell_unknown(tool_name) from None
    except StartRefused as error:
        if isinstance(error, InvalidArguments) and portable is not None and schema is not None:
            error = portable.tell_invalid(tool_name, schema, error)
        return text_result(str(error), is_error=True)


async def _start(call: ToolCall, request: StartRequest) -> ToolAnswer:
    """Raises StartRefused."""
    began = time.monotonic()
    if call.continues:
        return await continue_call(call, request)
    execution = await start_and_wait(
        request,
        patient=call.stays_for_progress,
        set_wait=call.longest_wait,
        on_progress=call.progress.tell if call.progress else None,
    )
    if execution.is_unapproved or execution.is_asking:
        # Of calls with one key, the first is the one that counts.
        is_ours = execution.pk == request.id or not request.idempotency_key
        by_policy = while_people_decide(execution, caller=call.access.caller)
        async with by_policy if is_ours else nullcontext():
            execution = await _wait_for_people(execution, call, began)
    return await _finish(execution, call, request.tool_name)


async def _notices_for(call: ToolCall) -> list[RunNotice]:
    if call.notify is None or call.continues:
        return []
    return await run_in_database(read_notices, call.notify, call.access.caller)


async def _name_for_app(call: ToolCall, called: str) -> str:
    """Returns the name of the tool that an app calls: it only knows its server's own names."""
    catalogue, bounds = await present_catalogue(), call.access.bounds
    if find_named(catalogue.for_cards.seen_within(bounds), called) is None:
        workflow = catalogue.find_for_app(bounds, called)
        return called if workflow is None else workflow.tool_name
    return called


async def _with_wait_and_card(call: ToolCall, name: str) -> ToolCall:
    """Notes the set wait, and in the client's description that our card shows the run, unless its tool has an
    app of its own. The client then gets a handle instead of a task, with which its card would begin too late.
    """
    if (set_wait := await wait_set_for(call.access)) is not None:
        call = replace(call, set_wait=set_wait)
    if not call.shows_cards:
        return call
    workflow = find_named((await present_catalogue()).for_cards.seen_within(call.access.bounds), name)
    if call.by_own_tool and workflow is not None and not has_our_card(workflow):
        return replace(call, shows_cards=False)
    return replace(call, client=call.client | {CARDS: True}, takes_tasks=False)


async def _finish(execution: Execution, call: ToolCall, name: str) -> ToolAnswer:
    if execution.raised is not None:
        answers, version = call.client.get(ANSWERS, {}), call.protocol_version
        told = error_for_client(
            execution.raised, execution.error, execution.source_name, answers=answers, version=version
        )
        if told is not None:
            raise told
    if call.progress is not None and call.progress.last is None:
        await call.progress.tell(execution)
    is_at_hand = (  # Rendering takes no query and little time
        execution.state == State.COMPLETED
        and execution.workflow is not None
        and execution.workflow.tool_name == name
        and "payload" in execution._state.fields_cache
        and execution.output_characters <= MAX_RENDERED_AT_ONCE
        and not (call.shows_apps and execution.workflow.presentation)
    )
    if is_at_hand:
        return _render(execution, call, name)
    return await run_in_database(_render, execution, call, name)


async def continue_call(call: ToolCall, request: StartRequest) -> ToolAnswer:
    """Continues a call after its user was asked; starts nothing. Raises OtherCall."""
    execution_id, _, question = call.continues.partition(ROUND)
    try:
        execution = await run_in_database(find_continued, request, execution_id)
    except UnknownExecution:
        raise MCPError(INVALID_PARAMS, UNKNOWN_STATE) from None
    if not question.isdecimal():
        raise MCPError(INVALID_PARAMS, UNKNOWN_STATE)
    if execution.is_unapproved:
        await take_response(execution, call.responses.get(APPROVAL), call.access)
    elif question == str(execution.input_request):
        await run_in_database(answer, execution, as_sent(call.responses))
    if not execution.is_asking:
        async with while_people_decide(execution, caller=call.access.caller):
            execution = await _watch(execution, call, reports=False)
    return await run_in_database(_render, execution, call, request.tool_name)


async def _wait_for_people(execution: Execution, call: ToolCall, began: float) -> Execution:
    if call.ask is not None and execution.is_unapproved and not call.shows_cards:
        question = await run_in_database(question_about, execution, call.elicits())
        if question is not None:
            wait = partial(_watch, execution, call)
            await ask_while_waiting(execution, question, call.access, ask=call.ask, wait=wait)
            execution = await run_in_database(find_execution, str(execution.pk), caller=call.access.caller)
    return await _ask_for_run(execution, call, began) if execution.is_asking else execution


async def _ask_for_run(execution: Execution, call: ToolCall, began: float) -> Execution:
    """Asks one question after the other until it is settled or the time of the call is up; clients without a
    handshake may have sent answers with the call."""
    asked = None
    # The client's own question stays open for as long as without a card.
    waits_longer = replace(call, shows_cards=False)
    if call.ask is None and call.responses:
        await run_in_database(answer, execution, as_sent(call.responses))
        return execution if execution.is_asking else await _watch(execution, call, began=began)
    while call.ask is not None and execution.is_asking and execution.input_request != asked:
        asked = execution.input_request
        requests = await run_in_database(_asked_of_client, execution, call)
        if not requests and call.shows_cards and not call.elicits():
            break
        waiting = partial(_watch, execution, waits_longer, began=began)
        execution = await ask_for_run(execution, requests, ask=call.ask, wait=waiting)
    return execution


def _asked_of_client(execution: Execution, call: ToolCall) -> Requests:
    """Returns the questions without those of the card: about an approval, and of a run to a person whom the
    client itself cannot ask."""
    modes = call.elicits()
    if not call.shows_cards:
        # A call that continues has already asked for the approval.
        return requests_of(execution, modes, approval=not call.continues)
    requests = requests_of(execution, modes, approval=False)
    return {key: one for key, one in requests.items() if modes or one["method"] != ELICIT}


async def _watch(
    execution: Execution, call: ToolCall, *, began: float | None = None, reports: bool = True
) -> Execution:
    """Waits for as long as a call does; `began`: when its time started, if it has."""
    seconds = inline_wait(execution, patient=call.stays_for_progress, set_wait=call.longest_wait)
    if seconds is None:
        seconds = execution.timeout_seconds + GRACE_SECONDS
    return await watch_until_settled(
        str(execution.pk),
        caller=call.access.caller,
        seconds=seconds - (0 if began is None else time.monotonic() - began),
        on_progress=call.progress.tell if call.progress and reports else None,
        unless_asks=True,
    )


async def wait_set_for(access: Access) -> int | None:
    """Returns the inline wait in seconds of the caller's token, else of its toolset, else None."""
    if access.inline_wait_seconds is not None or access.caller.toolset is None:
        return access.inline_wait_seconds
    entry = (await present_catalogue()).toolset_within(access.bounds)
    return None if entry is None else entry.toolset.inline_wait_seconds


def _render(execution: Execution, call: ToolCall, called: str) -> ToolAnswer:
    """A run that continues is a task for clients that support tasks: better for them than a long wait."""
    is_settled = execution.is_settled
    if call.ask is None and not call.takes_tasks and (execution.is_unapproved or execution.is_asking):
        asked = _asked_of_client(execution, call)
        if asked:
            return input_required(execution, asked)
    workflow = execution.workflow
    is_present = workflow is not None and workflow.tool_name == called
    present = "" if is_present else _name_instead_of(called, call.access)
    if (
        call.takes_tasks
        and not is_settled
        and (
            execution.state == State.UNAPPROVED
            or execution.is_paused
            or workflow is None
            or workflow.effective_execution_type != Workflow.ExecutionType.SYNC
        )
    ):
        task = {"resultType": "task", **describe_task(execution, protocol_version=call.protocol_version)}
        return task | {"_meta": {RENAMED_TO: present}} if present else task
    result = execution_result(
        execution,
        protocol_version=call.protocol_version,
        may_be_large=call.door == Execution.Door.COMMAND,  # A terminal
        set_wait=call.set_wait,
        by_own_tool=call.by_own_tool,
        note=f"{called} is now called {present}; the former name will stop working." if present else "",
    )
    if present:
        result.meta = {**(result.meta or {}), RENAMED_TO: present}
    if call.shows_apps:
        relay_result(result, execution, by_own_tool=call.by_own_tool)
    return result


def _name_instead_of(called: str, access: Access) -> str:
    """Returns the present name of a tool that was called by an alias; else an empty text."""
    catalogue = current_catalogue()
    shown = catalogue.seen_within(access.bounds)
    if called in shown or (workflow := find_by_alias(shown, called)) is None:
        return ""
    portable = portable_view(catalogue, access.bounds)
    return workflow.tool_name if portable is None else portable.shown_name(workflow.tool_name)


class OpenCalls:
    def __init__(self) -> None:
        self._calls: defaultdict[tuple[str, RequestId], list[anyio.CancelScope]] = defaultdict(list)
        self._ambiguous: set[tuple[str, RequestId]] = set()  # Ids of several calls, until all have ended

    @contextmanager
    def interruptible(self, context: Context, access: Access) -> Iterator[None]:
        """Raises the answer by which the SDK ends a request's stream when the client cancels the call."""
        # Clients of 2026-07-28 close the connection instead of naming the call that they cancel.
        if context.request is None or context.request_id is None or is_modern(context):
            yield
            return
        key, scope = (client_key(context, access), context.request_id), anyio.CancelScope()
        with scope:
            self._calls[key].append(scope)
            if len(self._calls[key]) > 1:
                self._ambiguous.add(key)
            try:
                yield
            finally:
                self._calls[key].remove(scope)
                if not self._calls[key]:
                    del self._calls[key]
                    self._ambiguous.discard(key)
        if scope.cancelled_caught:
            raise MCPError(REQUEST_CANCELLED, "Request cancelled")

    def interrupt(self, context: Context, params: CancelledNotificationParams, access: Access) -> None:
        """Ends the call of that id; none if it may be one of several."""
        if context.request is None or params.request_id is None:
            return
        # Request ids are small numbers, which two clients with one token both use.
        key = client_key(context, access), params.request_id
        if key in self._calls and key not in self._ambiguous:
            self._calls[key][0].cancel()
