"""A source of kind `mcp`: the workflows that a server lists, its tools, or both (B10)."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Unpack
from uuid import UUID

from mcp_types import INTERNAL_ERROR
from mcp_types import version as versions
from pydantic import BaseModel

from connectors.definitions import RejectedDefinition, WorkflowDefinition, parse_definition
from connectors.errors import (
    ConnectorError,
    InvalidAnswer,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unreachable,
    Unsupported,
)
from connectors.formats.json import LISTING_DEPTH, UnreadableJSON, as_object, parse_json, parse_listing
from connectors.network.redaction import Redactor, printable, shorten, words_in
from connectors.network.transport import WORDS_LIMIT
from connectors.protocol import (
    Capabilities,
    Health,
    Progress,
    ReportProgress,
    RunCaller,
    RunRef,
    RunSnapshot,
    RunState,
    Started,
    WorkflowRef,
    health_of,
    ignore_progress,
)
from connectors.simplified import (
    SimplifiedConnector,
    read_listing,
    read_snapshot,
    read_started,
    run_id_of,
    walk_listing,
)
from connectors.upstream_mcp.config import McpConfig
from connectors.upstream_mcp.conversation import Era, RequestOptions, TransportFailures
from connectors.upstream_mcp.features import ServerFeatures
from connectors.upstream_mcp.http_transport import LimitedTransport, StreamNews, open_http
from connectors.upstream_mcp.messages import UnusableAnswer
from connectors.upstream_mcp.run_callers import Questions
from connectors.upstream_mcp.session import McpSession, OpenTransport
from connectors.upstream_mcp.stdio_transport import ProgramExit, command_line, open_stdio
from connectors.upstream_mcp.tools import (
    METADATA_KEY,
    ServerTasks,
    created_task,
    prepare_call,
    read_result,
    read_task,
    read_tool,
)

Found = AsyncGenerator[WorkflowDefinition | RejectedDefinition]
MOST_ROUNDS = 20  # Of questions in one call
PAUSE_SECONDS = 1.0  # Before a round without questions
PREFIX = "workflow:"  # Of listed workflows' ids; tools' ids are their names, which contain no colon
LONGEST_ID = 255
LISTED = {"offered_as": "workflow"}
UNKNOWN = {"not_found", "notfound", "404"}  # Lower-case error codes for an unknown workflow or run


TOOLS = Capabilities(can_cancel=True, cancellable_start=True, reports_listing_changes=True, asks_caller=True)


class McpConnector(ServerFeatures):
    """Tools, prompts and resources of another MCP server, and the workflows that it lists.

    A call of a tool is a run, its result the run's output.
    """

    kind: ClassVar[str] = "mcp"
    label: ClassVar[str] = "MCP server"
    Config: ClassVar[type[BaseModel]] = McpConfig

    def __init__(self, config: McpConfig) -> None:
        self._config = config
        self._redactor = Redactor(config.secrets)
        self._listeners: list[Callable[[], None]] = []
        self._questions = Questions(config.questions)
        self._opened: list[McpSession | LimitedTransport] = []
        self._session = self._make_session()
        self._with_handshake: McpSession | None = None
        self._tools_with_handshake: frozenset[Any] | None = None
        self._tasks = ServerTasks(self._session)
        self._listed = ListedWorkflows(config, self._call_tool) if config.lists_workflows else None

    def __repr__(self) -> str:
        return f"McpConnector({self._config.url or self._config.command})"

    @property
    def capabilities(self) -> Capabilities:
        """Of both kinds: what either can do, and what both guarantee."""
        if self._listed is None:
            return replace(TOOLS, has_features=True)
        listed = self._listed.capabilities
        return Capabilities(
            idempotent_start=TOOLS.idempotent_start and listed.idempotent_start,
            can_find_runs=TOOLS.can_find_runs and listed.can_find_runs,
            can_cancel=TOOLS.can_cancel or listed.can_cancel,
            min_poll_seconds=max(TOOLS.min_poll_seconds, listed.min_poll_seconds),
            reports_listing_changes=TOOLS.reports_listing_changes,
            differ_by_workflow=True,
            has_features=True,
        )

    def capabilities_for(self, workflow: WorkflowRef) -> Capabilities:
        listed = self._lister_of(workflow)
        return TOOLS if listed is None else listed.capabilities

    def _lister_of(self, workflow: WorkflowRef) -> "ListedWorkflows | None":
        """None for a tool."""
        is_listed = workflow.metadata.get(METADATA_KEY) == LISTED and workflow.id.startswith(PREFIX)
        return self._listed if is_listed else None

    async def check(self) -> Health:
        return await health_of(self._greet())

    async def _greet(self) -> str:
        era = await self._session.era()
        answered = f"{era.server or 'The server'} answered and speaks MCP {era.version}"
        if not _may_have_tools(era):
            return f"{answered}; it has no tools."
        tools, _ = await self._session.page("tools/list", "tools")
        return f"{answered}; tools on the first page of its list: {len(tools)}."

    async def discover(self) -> AsyncIterator[WorkflowDefinition | RejectedDefinition]:
        found = self._discover_tools() if self._listed is None else self._discover_both(self._listed)
        async with aclosing(found):
            async for item in found:
                yield item

    async def _discover_both(self, listed: "ListedWorkflows") -> Found:
        others = [] if self._config.offer == "workflows" else [item async for item in self._discover_tools()]
        if self._config.offer == "workflows" or self._config.list_tool in {item.id for item in others}:
            async for item in listed.discover():
                yield item
            others = [item for item in others if item.id not in listed.tools]
        for item in others:
            yield item

    async def _discover_tools(self) -> Found:
        era = await self._session.era()
        if not _may_have_tools(era):
            return
        async with aclosing(self._walk_tools(self._session)) as tools:
            async for position, tool in tools:
                yield read_tool(tool, position=position, needs_headers=era.is_modern)

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
        caller: RunCaller | None = None,
    ) -> Started:
        if (listed := self._lister_of(workflow)) is not None:
            return await listed.start(workflow, arguments, key=key)

        def on_progress(progress: float, total: float | None, message: str | None) -> None:
            percent = min(max(100.0 * progress / total, 0.0), 100.0) if total and total > 0 else None
            words = message or ("" if percent is not None else f"{progress:g}")
            shown = shorten(printable(self._redactor.text(words)), WORDS_LIMIT)
            report(RunSnapshot(state=RunState.RUNNING, progress=percent, progress_message=shown))
            if caller is not None:
                caller.progress(Progress(progress, total, shown if message else ""))

        session = await self._session_for(workflow, caller)
        params, headers = prepare_call(workflow, arguments, await session.era())
        began = datetime.now(UTC)
        try:
            answer = await self._call_and_answer(
                params, session, headers=headers, on_progress=on_progress, caller=caller, repeatable=False
            )
        except UnusableAnswer as error:
            if "task" in params:
                raise OutcomeUnknown(error.message) from None  # It may go on
            failed = RunSnapshot(state=RunState.FAILED, error=f"The tool has ended. {error.message}")
            return Started(run_id=str(key), snapshot=failed)
        if (task := created_task(answer)) is not None:
            return Started(run_id=task["taskId"], snapshot=read_task(task), raw=answer)
        ended = replace(read_result(answer), started_at=began, finished_at=datetime.now(UTC))
        return Started(run_id=str(key), snapshot=ended)

    async def _call_and_answer(
        self, params: dict[str, Any], session: McpSession, **options: Unpack[RequestOptions]
    ) -> dict[str, Any]:
        """A call with all its rounds of questions."""
        given: dict[str, Any] = {}
        for _ in range(MOST_ROUNDS):
            answer = await self._call(params | given, session, **options)
            if answer.get("resultType") != "input_required":
                return answer
            responses = await self._questions.answer_all(answer.get("inputRequests") or {}, options["caller"])
            given = {"inputResponses": responses}
            if not responses:
                # The server requests another call later, with its state only.
                given = {}
                await asyncio.sleep(PAUSE_SECONDS)
            if isinstance(state := answer.get("requestState"), str):
                given["requestState"] = state
        raise InvalidAnswer(f"The tool asked for input {MOST_ROUNDS} times and did not finish.")

    async def _call_tool(self, name: str, arguments: dict[str, Any], *, repeatable: bool) -> dict[str, Any]:
        """The result as received: content, structuredContent, isError. With `repeatable=False`, an error
        after which the server may have acted is OutcomeUnknown."""
        try:
            params = {"name": name, "arguments": arguments}
            answer = await self._call(params, self._session, repeatable=repeatable)
        except UnusableAnswer as error:
            raise error if repeatable else OutcomeUnknown(error.message) from None
        if answer.get("resultType", "complete") != "complete" or created_task(answer) is not None:
            kind = InvalidAnswer if repeatable else OutcomeUnknown
            raise kind(f"The tool {name} did not return a result.")
        return answer

    async def poll(self, run: RunRef) -> RunSnapshot:
        if (listed := self._lister_of(run.workflow)) is not None:
            return await listed.poll(run)
        if run.run_id == str(run.key):
            raise NotFound("The answer to this tool call was its result, which the server does not keep.")
        return await self._tasks.poll(run.run_id)

    async def cancel(self, run: RunRef) -> None:
        if (listed := self._lister_of(run.workflow)) is not None:
            await listed.cancel(run)
        elif run.run_id == str(run.key):
            raise Rejected("The tool call has already ended.")
        else:
            await self._tasks.cancel(run.run_id)

    def on_listing_changed(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)
        self._session.watch()

    async def aclose(self) -> None:
        if self._listed is not None:
            await self._listed.aclose()
        for opened in reversed(self._opened):
            await opened.aclose()

    async def _call(
        self, params: dict[str, Any], session: McpSession, **options: Unpack[RequestOptions]
    ) -> dict[str, Any]:
        config, options["name"] = self._config, params["name"]
        seconds = config.request_timeout_seconds if options["repeatable"] else config.call_timeout_seconds
        try:
            return await session.request("tools/call", params, silence=seconds, **options)
        except Rejected as error:
            is_internal = error.details.get("code") == INTERNAL_ERROR
            if session is self._with_handshake and self._tools_with_handshake and is_internal:
                # Its result may ask in the form of the newest version, in which it is called from now on.
                self._tools_with_handshake -= {params["name"]}
            await self._questions.open_pages(error, options.get("caller"))
            return {"resultType": "input_required"}  # By another call

    def _make_session(self, first_era: Era | None = None) -> McpSession:
        config, redactor, program_exit = self._config, self._redactor, ProgramExit()
        failures = TransportFailures()
        if config.transport == "http":
            http = LimitedTransport(
                config,
                redactor=redactor,
                failures=failures,
                stream_news=lambda news: self._note_stream(session, news),
            )
            self._opened.append(http)
            open_transport: OpenTransport = partial(open_http, config, http)
        else:
            command_line(config)
            open_transport = partial(
                open_stdio, config, redactor=redactor, failures=failures, program_exit=program_exit
            )
        session = McpSession(
            open_transport,
            failures=failures,
            redactor=redactor,
            questions=Questions(config.questions),
            request_seconds=config.request_timeout_seconds,
            holds_back=config.transport == "stdio",
            explain=lambda: str(program_exit),
            on_listing_changed=self._tell_listeners,
            first_era=first_era,
        )
        self._opened.append(session)
        return session

    async def _session_for(self, workflow: WorkflowRef, caller: RunCaller | None) -> McpSession:
        """A server of both eras is spoken to in the caller's, so that its tools can ask and the caller can
        answer as they would without us. Over stdio, that would take another program, with its own state."""
        if caller is None or caller.protocol_version not in versions.HANDSHAKE_PROTOCOL_VERSIONS:
            return self._session
        is_task = as_object(workflow.metadata.get(METADATA_KEY)).get("task") is True
        if self._config.transport == "stdio" or is_task or not self._questions.capabilities_of(caller):
            return self._session
        if not (await self._session.era()).is_modern:
            return self._session
        session = self._with_handshake = self._with_handshake or self._make_session(
            Era(versions.LATEST_HANDSHAKE_VERSION)
        )
        if self._tools_with_handshake is None:
            try:
                tools = [as_object(tool) async for _, tool in self._walk_tools(session)]
            except Unreachable:
                return self._session
            except ConnectorError:
                tools = []
            self._tools_with_handshake = frozenset(tool.get("name") for tool in tools)
        return session if workflow.id in self._tools_with_handshake else self._session

    def _walk_tools(self, session: McpSession) -> AsyncGenerator[tuple[int, Any]]:
        return walk_listing(
            lambda page, _: session.page("tools/list", "tools", page),
            listing="The server's list of tools",
            of="tools",
        )

    def _note_stream(self, session: McpSession, news: StreamNews) -> None:
        if news is StreamNews.SESSION_GONE:
            session.retire()
        elif news is StreamNews.SESSION_DOUBTFUL:
            session.doubt()
        else:
            self._tell_listeners()

    def _tell_listeners(self) -> None:
        self._tools_with_handshake = None
        for listener in self._listeners:
            listener()


def _may_have_tools(era: Era) -> bool:
    """A server that declares no capabilities may still have tools."""
    return "tools" in era.capabilities or not {"prompts", "resources"} & era.capabilities.keys()


CallTool = Callable[..., Awaitable[dict[str, Any]]]  # See `McpConnector._call_tool`


class ListedWorkflows:
    def __init__(self, config: McpConfig, call: CallTool) -> None:
        self._config = config
        self._call = call
        api = config.runs_api
        self._runner = RunsByTools(config, call) if api is None else SimplifiedConnector(api)

    @property
    def capabilities(self) -> Capabilities:
        return self._runner.capabilities

    @property
    def tools(self) -> frozenset[str]:
        """The tools that list and run workflows; they are not workflows themselves."""
        config = self._config
        return frozenset({config.list_tool, config.start_tool, config.status_tool, config.cancel_tool})

    async def discover(self) -> AsyncGenerator[WorkflowDefinition | RejectedDefinition]:
        items = walk_listing(self._page, listing="The list of workflows", of="workflows")
        async with aclosing(items):
            async for position, item in items:
                theirs = parse_definition(item, position=position)
                if isinstance(theirs, RejectedDefinition):
                    yield theirs
                elif len(ours := PREFIX + theirs.id) > LONGEST_ID:
                    reason = f"id: longer than {LONGEST_ID - len(PREFIX)} characters"
                    yield RejectedDefinition(position=position, id=theirs.id, name=theirs.name, reason=reason)
                else:
                    metadata = theirs.metadata | {METADATA_KEY: LISTED}
                    yield theirs.model_copy(update={"id": ours, "metadata": metadata})

    async def start(self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID) -> Started:
        return await self._runner.start(_as_theirs(workflow), arguments, key=key)

    async def poll(self, run: RunRef) -> RunSnapshot:
        return await self._runner.poll(replace(run, workflow=_as_theirs(run.workflow)))

    async def cancel(self, run: RunRef) -> None:
        await self._runner.cancel(replace(run, workflow=_as_theirs(run.workflow)))

    async def aclose(self) -> None:
        await self._runner.aclose()

    async def _page(self, cursor: str, before: int) -> tuple[list[Any], str]:
        tool = self._config.list_tool
        result = await self._call(tool, {"cursor": cursor} if cursor else {}, repeatable=True)
        keys = ["workflows", "items", "data", "results", "result"]
        return read_listing(read_answer(result, tool=tool), keys, before)


def _as_theirs(workflow: WorkflowRef) -> WorkflowRef:
    return replace(workflow, id=workflow.id.removeprefix(PREFIX))


class RunsByTools:
    """The simplified workflow API, through tool calls."""

    def __init__(self, config: McpConfig, call: CallTool) -> None:
        self._config = config
        self._call = call

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            idempotent_start=self._config.idempotent_starts,
            can_cancel=bool(self._config.cancel_tool),
            min_poll_seconds=self._config.min_poll_seconds,
        )

    async def start(self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID) -> Started:
        tool, wanted = self._config.start_tool, {"workflow_id": workflow.id, "input": arguments}
        if self._config.idempotent_starts:
            wanted["idempotency_key"] = str(key)
        result = await self._call(tool, wanted, repeatable=False)
        try:
            answer = read_answer(result, tool=tool)
        except InvalidAnswer as error:
            raise OutcomeUnknown(error.message) from None
        if not isinstance(answer, dict):
            return read_started(answer)
        # If a tool names the run `run_id`, `workflow_id` is the workflow's own id.
        named = answer | {"workflow_id": run_id_of(answer, workflow.id)}
        return replace(read_started(named), raw=answer)

    async def poll(self, run: RunRef) -> RunSnapshot:
        tool = self._config.status_tool
        return read_snapshot(read_answer(await self._call(tool, _named(run), repeatable=True), tool=tool))

    async def cancel(self, run: RunRef) -> None:
        if not self._config.cancel_tool:
            raise Unsupported("This server cannot cancel a run.")
        result = await self._call(self._config.cancel_tool, _named(run), repeatable=True)
        if result.get("isError"):
            read_answer(result, tool=self._config.cancel_tool)

    async def aclose(self) -> None:
        """The session belongs to the connector."""


def _named(run: RunRef) -> dict[str, Any]:
    return {"workflow_id": run.workflow.id, "run_id": run.run_id}


def read_answer(result: dict[str, Any], *, tool: str) -> Any:
    """A result's data. Raises Rejected or NotFound for an error, InvalidAnswer for a result without data."""
    if result.get("isError"):
        texts = _texts(result)
        said: Any = result.get("structuredContent")
        if said is None and len(texts) == 1:
            with suppress(UnreadableJSON):
                said = parse_json(texts[0].encode("utf-8", "replace"))
        words = words_in(said) or printable(" ".join(texts)) or "it gave no reason"
        refused = NotFound if _is_unknown(said) else Rejected
        raise refused(f"The tool {tool} answered with an error: {shorten(words, WORDS_LIMIT)}")
    if (structured := result.get("structuredContent")) is not None:
        # Some SDKs wrap a function's return value in `result`.
        is_wrapped = isinstance(structured, dict) and list(structured) == ["result"]
        return structured["result"] if is_wrapped else structured
    texts = _texts(result)
    try:
        # Some SDKs put each item of a list into a separate block.
        answers = [parse_listing(text.encode("utf-8", "replace"), max_depth=LISTING_DEPTH) for text in texts]
    except UnreadableJSON as error:
        raise InvalidAnswer(f"The tool {tool} answered with text that is not JSON: {error}") from None
    if not answers:
        raise InvalidAnswer(f"The tool {tool} answered with neither structured content nor text.")
    return answers[0] if len(answers) == 1 else answers


def _is_unknown(said: Any) -> bool:
    """By `code` or `status`, in the answer or its `error`."""
    if not isinstance(said, dict):
        return False
    codes = (said.get(key) for key in ("code", "status"))
    return any(str(code).lower() in UNKNOWN for code in codes) or _is_unknown(said.get("error"))


def _texts(result: dict[str, Any]) -> list[str]:
    blocks = result.get("content") or []
    texts = (block.get("text") for block in blocks if isinstance(block, dict) and block.get("type") == "text")
    return [text for text in texts if isinstance(text, str)]
