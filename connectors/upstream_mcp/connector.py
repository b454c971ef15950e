"""A source of kind `mcp`: the workflows that a server lists, its tools, or both (B10)."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

from pydantic import BaseModel

from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.errors import InvalidAnswer, NotFound, OutcomeUnknown, Rejected, Unsupported
from connectors.network.redaction import Redactor, printable, shorten
from connectors.protocol import (
    Capabilities,
    Health,
    ReportProgress,
    RunRef,
    RunSnapshot,
    RunState,
    Started,
    WorkflowRef,
    health_of,
    ignore_progress,
)
from connectors.simplified.answers import walk_listing
from connectors.upstream_mcp.config import McpConfig, McpSourceConfig
from connectors.upstream_mcp.conversation import OnProgress, TransportFailures
from connectors.upstream_mcp.http_transport import LimitedTransport, StreamNews, open_http
from connectors.upstream_mcp.listed_workflows import ListedWorkflows, is_listed
from connectors.upstream_mcp.session import McpSession, OpenTransport
from connectors.upstream_mcp.stdio_transport import ProgramExit, command_line, open_stdio
from connectors.upstream_mcp.tools import (
    ServerTasks,
    argument_headers,
    created_task,
    read_result,
    read_task,
    read_tool,
    task_parameters,
)

Found = AsyncGenerator[WorkflowDefinition | RejectedDefinition]
PROGRESS_CHARACTERS = 500


class McpConnector:
    """A server's tools as workflows: a call is a run, its result the run's output."""

    kind: ClassVar[str] = "mcp"
    label: ClassVar[str] = "MCP server"
    Config: ClassVar[type[BaseModel]] = McpConfig

    def __init__(self, config: McpConfig) -> None:
        self._config = config
        self._redactor = Redactor(config.secrets)
        self._listeners: list[Callable[[], None]] = []
        self._http: LimitedTransport | None = None
        self._session = self._make_session(TransportFailures())
        self._tasks = ServerTasks(self._session)

    def __repr__(self) -> str:
        return f"McpConnector({self._config.url or self._config.command})"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(can_cancel=True, cancellable_start=True, reports_listing_changes=True)

    async def check(self) -> Health:
        return await health_of(self._greet())

    async def _greet(self) -> str:
        era = await self._session.era()
        tools, _ = await self._page("")
        answered = f"{era.server or 'The server'} answered and speaks MCP {era.version}"
        return f"{answered}; tools on the first page of its list: {len(tools)}."

    async def discover(self) -> AsyncGenerator[WorkflowDefinition | RejectedDefinition]:
        needs_headers = (await self._session.era()).is_modern
        tools = walk_listing(self._page, listing="The server's list of tools", of="tools")
        async with aclosing(tools):
            async for position, tool in tools:
                yield read_tool(tool, position=position, needs_headers=needs_headers)

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Started:
        def tell(progress: float, total: float | None, message: str | None) -> None:
            percent = min(max(100.0 * progress / total, 0.0), 100.0) if total and total > 0 else None
            words = message or ("" if percent is not None else f"{progress:g}")
            shown = shorten(printable(self._redactor.text(words)), PROGRESS_CHARACTERS)
            report(RunSnapshot(state=RunState.RUNNING, progress=percent, progress_message=shown))

        as_task = task_parameters(workflow, await self._session.era())
        began = datetime.now(UTC)
        answer = await self._call(
            {"name": workflow.id, "arguments": arguments} | as_task,
            headers=argument_headers(workflow, arguments),
            on_progress=tell,
        )
        if (task := created_task(answer)) is not None:
            return Started(run_id=task["taskId"], snapshot=read_task(task), raw=answer)
        if answer.get("resultType") == "input_required":
            raise Unsupported("The tool asks for input during the call, which this client cannot provide.")
        ended = replace(read_result(answer), started_at=began, finished_at=datetime.now(UTC))
        return Started(run_id=str(key), snapshot=ended)

    async def call_tool(self, name: str, arguments: dict[str, Any], *, repeatable: bool) -> dict[str, Any]:
        """With `repeatable=False`, an error after which the server may have acted is OutcomeUnknown."""
        answer = await self._call({"name": name, "arguments": arguments}, repeatable=repeatable)
        if answer.get("resultType", "complete") != "complete" or created_task(answer) is not None:
            kind = InvalidAnswer if repeatable else OutcomeUnknown
            raise kind(f"The tool {name} answered with something else than a result.")
        return answer

    async def poll(self, run: RunRef) -> RunSnapshot:
        if run.run_id == str(run.key):
            raise NotFound(
                "The answer to this call of a tool was its result; the server keeps nothing of it."
            )
        return await self._tasks.poll(run.run_id)

    async def cancel(self, run: RunRef) -> None:
        if run.run_id == str(run.key):
            raise Rejected("The call of the tool has already ended.")
        await self._tasks.cancel(run.run_id)

    async def find_run(
        self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID
    ) -> Started | None:
        raise Unsupported("An MCP server cannot look a run up by the key of its start.")

    def on_listing_changed(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)
        self._session.watch()

    async def aclose(self) -> None:
        await self._session.aclose()
        if self._http is not None:
            await self._http.aclose()

    async def _call(
        self,
        params: dict[str, Any],
        *,
        repeatable: bool = False,
        headers: dict[str, str] | None = None,
        on_progress: OnProgress | None = None,
    ) -> dict[str, Any]:
        config = self._config
        return await self._session.request(
            "tools/call",
            params,
            silence=config.request_timeout_seconds if repeatable else config.call_timeout_seconds,
            repeatable=repeatable,
            name=params["name"],
            headers=headers,
            on_progress=on_progress,
        )

    def _make_session(self, failures: TransportFailures) -> McpSession:
        config, redactor, program_exit = self._config, self._redactor, ProgramExit()
        if config.transport == "http":
            http = self._http = LimitedTransport(
                config, redactor=redactor, failures=failures, stream_news=self._note_stream
            )
            open_transport: OpenTransport = partial(open_http, config, http)
        else:
            command_line(config)
            open_transport = partial(
                open_stdio, config, redactor=redactor, failures=failures, program_exit=program_exit
            )
        return McpSession(
            open_transport,
            failures=failures,
            redactor=redactor,
            request_seconds=config.request_timeout_seconds,
            holds_back=config.transport == "stdio",
            explain=lambda: str(program_exit),
            on_listing_changed=self._tell_listeners,
        )

    def _note_stream(self, news: StreamNews) -> None:
        if news is StreamNews.SESSION_GONE:
            self._session.retire()
        else:
            self._tell_listeners()

    def _tell_listeners(self) -> None:
        for listener in self._listeners:
            listener()

    async def _page(self, cursor: str) -> tuple[list[Any], str]:
        answer = await self._session.request("tools/list", {"cursor": cursor} if cursor else {})
        tools, following = answer.get("tools"), answer.get("nextCursor")
        if not isinstance(tools, list):
            raise InvalidAnswer("The server's list of tools has no array of tools.")
        if following is not None and not isinstance(following, str):
            raise InvalidAnswer("The cursor of the server's list of tools is no text.")
        return tools, following or ""


class McpSourceConnector:
    """A server's tools, and the workflows that it lists."""

    kind: ClassVar[str] = McpConnector.kind
    label: ClassVar[str] = McpConnector.label
    Config: ClassVar[type[BaseModel]] = McpSourceConfig

    def __init__(self, config: McpSourceConfig) -> None:
        self._config = config
        self._tools = McpConnector(config)
        self._listed = ListedWorkflows(config, self._tools.call_tool) if config.lists_workflows else None

    def __repr__(self) -> str:
        return repr(self._tools)

    @property
    def capabilities(self) -> Capabilities:
        """Of both kinds: what either can do, and what both guarantee."""
        tools = self._tools.capabilities
        if self._listed is None:
            return tools
        listed = self._listed.capabilities
        return Capabilities(
            idempotent_start=tools.idempotent_start and listed.idempotent_start,
            can_find_runs=tools.can_find_runs and listed.can_find_runs,
            can_cancel=tools.can_cancel or listed.can_cancel,
            min_poll_seconds=max(tools.min_poll_seconds, listed.min_poll_seconds),
            reports_listing_changes=tools.reports_listing_changes,
            differ_by_workflow=True,
        )

    def capabilities_for(self, workflow: WorkflowRef) -> Capabilities:
        return self._way_of(workflow).capabilities

    async def check(self) -> Health:
        return await self._tools.check()

    async def discover(self) -> AsyncIterator[WorkflowDefinition | RejectedDefinition]:
        found = self._tools.discover() if self._listed is None else self._discover(self._listed)
        async with aclosing(found):
            async for item in found:
                yield item

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Started:
        return await self._way_of(workflow).start(workflow, arguments, key=key, report=report)

    async def poll(self, run: RunRef) -> RunSnapshot:
        return await self._way_of(run.workflow).poll(run)

    async def cancel(self, run: RunRef) -> None:
        await self._way_of(run.workflow).cancel(run)

    async def find_run(
        self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID
    ) -> Started | None:
        return await self._way_of(workflow).find_run(workflow, arguments, key=key)

    def on_listing_changed(self, listener: Callable[[], None]) -> None:
        self._tools.on_listing_changed(listener)

    async def aclose(self) -> None:
        if self._listed is not None:
            await self._listed.aclose()
        await self._tools.aclose()

    def _way_of(self, workflow: WorkflowRef) -> McpConnector | ListedWorkflows:
        return self._listed if self._listed is not None and is_listed(workflow) else self._tools

    async def _discover(self, listed: ListedWorkflows) -> Found:
        """The listed workflows, then the other tools."""
        others = [] if self._config.offer == "workflows" else [item async for item in self._tools.discover()]
        if self._config.offer == "workflows" or self._config.list_tool in {item.id for item in others}:
            async for item in listed.discover():
                yield item
            others = [item for item in others if item.id not in listed.tools]
        for item in others:
            yield item
