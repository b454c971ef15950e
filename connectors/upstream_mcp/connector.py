"""A source of kind `mcp`: the workflows that a server lists, its tools, or both (B10)."""

import asyncio
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Unpack
from uuid import UUID

from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate
from mcp_types import INTERNAL_ERROR
from mcp_types import version as versions
from pydantic import BaseModel, ValidationError

from connectors.definitions import (
    ADDRESS,
    MAX_ADDRESS_LENGTH,
    MAX_HTML_LENGTH,
    METADATA_KEY,
    TOO_DEEP,
    FeatureDefinition,
    FeatureKind,
    RejectedDefinition,
    WorkflowDefinition,
    address_problem,
    explain,
    not_an_object,
    parse_definition,
    readable,
    runs_as_script,
)
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
from connectors.formats.mcp_apps import (
    MIME_TYPES,
    app_address,
    is_app_address,
    read_app_meta,
    read_tool_meta,
    refused_origins,
)
from connectors.network.redaction import Redactor, extract_error_message, printable, shorten
from connectors.network.transport import WORDS_LIMIT
from connectors.protocol import (
    Capabilities,
    Completion,
    GivenInput,
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
from connectors.upstream_mcp.http_transport import LimitedTransport, StreamNews, open_http
from connectors.upstream_mcp.messages import CUT, UnusableAnswer
from connectors.upstream_mcp.run_callers import Questions
from connectors.upstream_mcp.session import Era, McpSession, OpenTransport, RequestOptions, TransportFailures
from connectors.upstream_mcp.stdio_transport import ProgramExit, command_line, open_stdio
from connectors.upstream_mcp.tools import (
    ServerTasks,
    created_task,
    prepare_call,
    read_result,
    read_task,
    read_tool,
)

MAX_FEATURES = 1_000  # Of each kind
MAX_APPS, MAX_HTML_TOGETHER = 100, 20_000_000  # Characters
LISTS = {  # The capability, the method, the key of its answer, and that of an entry's identifier
    FeatureKind.PROMPT: ("prompts", "prompts/list", "prompts", "name"),
    FeatureKind.RESOURCE: ("resources", "resources/list", "resources", "uri"),
    FeatureKind.TEMPLATE: ("resources", "resources/templates/list", "resourceTemplates", "uriTemplate"),
}
RESOURCE_NOT_FOUND = -32002  # Of handshake versions; later ones use -32602


async def _refuse_all(requests: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """A stateless server asks in its answer, never by requests during the call."""
    return {key: {"error": {}} for key in requests}


def _parse(raw: Any, kind: FeatureKind, *, position: int) -> FeatureDefinition | RejectedDefinition:
    """Reads one entry of a server's list. Optional fields that are null count as absent."""
    if not isinstance(raw, dict):
        return not_an_object(raw, position=position)
    given = {key: value for key, value in raw.items() if value is not None}
    identifier, name = given.get(LISTS[kind][3]), given.get("name")
    if CUT in raw:
        reason = TOO_DEEP
    else:
        known = ("name", "title", "description") + (("arguments",) if kind is FeatureKind.PROMPT else ())
        fields = {key: given[key] for key in known if key in given}
        fields |= {"kind": kind, "id": identifier, "mime_type": given.get("mimeType", "")}
        fields |= {"icons": given.get("icons"), "size": given.get("size")}
        try:
            definition = FeatureDefinition.model_validate(fields)
        except ValidationError as error:
            reason = explain(error)
        else:
            reason = problem_of(definition)
            if not reason:
                return definition
    return RejectedDefinition(
        position=position, id=readable(identifier), name=readable(name), reason=f"{kind}: {reason}"
    )


def problem_of(definition: FeatureDefinition) -> str:
    """Returns why it cannot be served; empty if it can."""
    texts = [definition.id, *(argument.name for argument in definition.arguments)]
    if not all(text.isprintable() for text in texts):
        return "its name, its address or an argument's name has unprintable characters"
    names = [argument.name for argument in definition.arguments]
    if len(set(names)) < len(names):
        return "two of its arguments have the same name"
    match definition.kind:
        case FeatureKind.RESOURCE:
            return address_problem(definition.id)
        case FeatureKind.TEMPLATE:
            # A template that begins with a variable would match the addresses of everything else.
            if not ADDRESS.fullmatch(definition.id):
                return "its template does not begin with a scheme, or has characters that a URI cannot have"
            try:
                parsed = UriTemplate.parse(definition.id, max_length=MAX_ADDRESS_LENGTH)
            except InvalidUriTemplate as error:
                return f"its template cannot be used: {error}"[:1000]
            if runs_as_script(definition.id):
                return "its addresses are scripts"
            return "" if parsed.variable_names else "its template has no variable"
    return ""


def read_app(
    answer: dict[str, Any], address: str, entry: dict[str, Any]
) -> tuple[FeatureDefinition, list[str]]:
    """Reads an app from the answer to `resources/read` and its entry in the list. Returns also which origins
    of its CSP are left out. Raises InvalidAnswer."""
    contents = answer.get("contents")
    items = [as_object(one) for one in contents] if isinstance(contents, list) else []
    found = next((one for one in items if one.get("uri") == address), {})
    html, mime_type = found.get("text"), found.get("mimeType") or entry.get("mimeType")
    if isinstance(blob := found.get("blob"), str):
        with suppress(ValueError):
            html = b64decode(blob, validate=True).decode()
    if not isinstance(html, str) or not html.strip():
        raise InvalidAnswer("its answer to resources/read has no HTML of this address")
    if mime_type not in MIME_TYPES:
        raise InvalidAnswer(f"its MIME type is neither {' nor '.join(MIME_TYPES)}")
    if "\0" in html or html.encode(errors="replace").decode() != html:
        raise InvalidAnswer("its HTML has characters that cannot be stored")
    # The content's own metadata counts, that of the list is for servers that have it only there.
    ui = as_object(found.get("_meta")).get("ui") or as_object(entry.get("_meta")).get("ui")
    definition = _parse(entry | {"uri": address, "mimeType": mime_type}, FeatureKind.RESOURCE, position=0)
    if isinstance(definition, RejectedDefinition):
        raise InvalidAnswer(definition.reason)
    if len(html) > MAX_HTML_LENGTH:
        raise InvalidAnswer(f"its HTML has more than {MAX_HTML_LENGTH:,} characters")
    return definition.model_copy(update={"html": html, "ui": read_app_meta(ui)}), refused_origins(ui)


def _skipped_app(position: int, address: str, reason: str) -> RejectedDefinition:
    return RejectedDefinition(position=position, id=address, name=address, reason=f"app: {reason}"[:1000])


Found = AsyncGenerator[WorkflowDefinition | RejectedDefinition]
MAX_ROUNDS = 20  # Of questions in one call
PAUSE_SECONDS = 1.0  # Before a round without questions
PREFIX = "workflow:"  # Of listed workflows' ids; tools' ids are their names, which contain no colon
MAX_ID = 255
LISTED = {"offered_as": "workflow"}
UNKNOWN = {"not_found", "notfound", "404"}  # Lower-case error codes for an unknown workflow or run


TOOLS = Capabilities(can_cancel=True, cancellable_start=True, reports_listing_changes=True, asks_caller=True)


class McpConnector:
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
        self._questions = Questions(config.questions, apps=config.apps)
        self._opened: list[McpSession | LimitedTransport] = []
        self._session = self._make_session()
        self._with_handshake: McpSession | None = None
        self._tools_with_handshake: frozenset[Any] | None = None
        self._tasks = ServerTasks(self._session)
        self._runner: SimplifiedConnector | RunsByTools | None = None
        if config.lists_workflows:
            api = config.runs_api
            self._runner = RunsByTools(config, self._call_tool) if api is None else SimplifiedConnector(api)

    def __repr__(self) -> str:
        return f"McpConnector({self._config.url or self._config.command})"

    @property
    def capabilities(self) -> Capabilities:
        """Joins both kinds: what either can do, and what both guarantee."""
        if self._runner is None:
            return replace(TOOLS, has_features=True)
        listed = self._runner.capabilities
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
        runner = self._runner_of(workflow)
        return TOOLS if runner is None else runner.capabilities

    def _runner_of(self, workflow: WorkflowRef) -> "SimplifiedConnector | RunsByTools | None":
        """None for a tool."""
        is_listed = workflow.metadata.get(METADATA_KEY) == LISTED and workflow.id.startswith(PREFIX)
        return self._runner if is_listed else None

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
        config, tools = self._config, list[WorkflowDefinition | RejectedDefinition]()
        if config.offer != "workflows":
            tools = [item async for item in self._discover_tools()]
        if self._runner is not None and (
            config.offer == "workflows" or config.list_tool in {item.id for item in tools}
        ):
            async with aclosing(self._discover_listed()) as listed:
                async for item in listed:
                    yield item
            of_listed = {config.list_tool, config.start_tool, config.status_tool, config.cancel_tool}
            tools = [item for item in tools if item.id not in of_listed]
        for item in tools:
            yield item

    async def _discover_listed(self) -> Found:
        items = walk_listing(self._listed_page, listing="The list of workflows", of="workflows")
        async with aclosing(items):
            async for position, item in items:
                theirs = parse_definition(item, position=position)
                if isinstance(theirs, RejectedDefinition):
                    yield theirs
                elif len(ours := PREFIX + theirs.id) > MAX_ID:
                    reason = f"id: longer than {MAX_ID - len(PREFIX)} characters"
                    yield RejectedDefinition(position=position, id=theirs.id, name=theirs.name, reason=reason)
                else:
                    metadata = theirs.metadata | {METADATA_KEY: LISTED}
                    yield theirs.model_copy(update={"id": ours, "metadata": metadata})

    async def _listed_page(self, cursor: str, before: int) -> tuple[list[Any], str]:
        tool = self._config.list_tool
        result = await self._call_tool(tool, {"cursor": cursor} if cursor else {}, repeatable=True)
        keys = ["workflows", "items", "data", "results", "result"]
        return read_listing(read_answer(result, tool=tool), keys, before)

    async def _discover_tools(self) -> Found:
        era = await self._session.era()
        if not _may_have_tools(era):
            return
        async with aclosing(self._walk_tools(self._session)) as tools:
            async for position, tool in tools:
                yield read_tool(tool, position=position, needs_headers=era.is_modern, apps=self._config.apps)

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
        caller: RunCaller | None = None,
    ) -> Started:
        if (runner := self._runner_of(workflow)) is not None:
            return await runner.start(_as_theirs(workflow), arguments, key=key)

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
        for _ in range(MAX_ROUNDS):
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
        raise InvalidAnswer(f"The tool asked for input {MAX_ROUNDS} times and did not finish.")

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
        if (runner := self._runner_of(run.workflow)) is not None:
            return await runner.poll(replace(run, workflow=_as_theirs(run.workflow)))
        if run.run_id == str(run.key):
            raise NotFound("The answer to this tool call was its result, which the server does not keep.")
        return await self._tasks.poll(run.run_id)

    async def cancel(self, run: RunRef) -> None:
        if (runner := self._runner_of(run.workflow)) is not None:
            await runner.cancel(replace(run, workflow=_as_theirs(run.workflow)))
        elif run.run_id == str(run.key):
            raise Rejected("The tool call has already ended.")
        else:
            await self._tasks.cancel(run.run_id)

    def on_listing_changed(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)
        self._session.watch()

    async def aclose(self) -> None:
        if self._runner is not None:
            await self._runner.aclose()
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
            questions=Questions(config.questions, apps=config.apps),
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

    # Prompts and resources

    async def list_features(self) -> AsyncGenerator[FeatureDefinition | RejectedDefinition]:
        """The first MAX_FEATURES of each kind; a rejected entry reports that there are more."""
        era, apps = await self._session.era(), dict[str, dict[str, Any]]()
        if self._config.apps and _may_have_tools(era):
            tools = [as_object(tool) async for _, tool in self._walk_tools(self._session)]
            named = (app_address(read_tool_meta(tool.get("_meta"))) for tool in tools)
            apps = {address: {"name": address} for address in named if address}
        for kind in LISTS:
            if LISTS[kind][0] in era.capabilities:
                # A server with resources need not know of templates.
                with suppress(Unsupported):
                    async for item in self._list_kind(kind, apps):
                        yield item
        async with aclosing(self._read_apps(apps)) as found:
            async for item in found:
                yield item

    async def _read_apps(
        self, listed: Mapping[str, dict[str, Any]]
    ) -> AsyncGenerator[FeatureDefinition | RejectedDefinition]:
        """Reads the apps' HTML, which is reviewed with the rest. `listed`: the entries by address."""
        room = MAX_HTML_TOGETHER
        for position, (address, entry) in enumerate(listed.items()):
            try:
                if position >= MAX_APPS:
                    raise InvalidAnswer(f"the first {MAX_APPS} apps are kept, the others left out")
                answer = await self._read("resources/read", {"uri": address}, name=address, given=None)
                definition, refused = read_app(answer, address, entry)
                room -= len(definition.html)
                if room < 0:
                    raise InvalidAnswer(f"the apps have more than {MAX_HTML_TOGETHER:,} characters together")
            except (Rejected, NotFound, Unsupported, InvalidAnswer) as error:
                yield _skipped_app(position, address, error.message)
                continue
            yield definition
            if refused:
                shown = shorten(printable(", ".join(refused)), WORDS_LIMIT)
                yield _skipped_app(position, address, f"is shown without these origins of its CSP: {shown}")

    async def _list_kind(
        self, kind: FeatureKind, apps: dict[str, dict[str, Any]]
    ) -> AsyncGenerator[FeatureDefinition | RejectedDefinition]:
        """Adds the entries of apps to `apps` instead, if there may be some."""
        _, method, key, _ = LISTS[kind]
        listed = walk_listing(
            lambda page, _: self._session.page(method, key, page),
            listing=f"The server's answer to {method}",
            of=key,
        )
        async with aclosing(listed):
            async for position, raw in listed:
                if position == MAX_FEATURES:
                    reason = f"{method} has more than {MAX_FEATURES:,} entries; the others are left out"
                    yield RejectedDefinition(position=position, id="", name="", reason=reason)
                    return
                entry = as_object(raw)
                address, is_app = str(entry.get("uri")), entry.get("mimeType") in MIME_TYPES
                if self._config.apps and is_app_address(address) and (is_app or address in apps):
                    apps[address] = entry
                else:
                    yield _parse(raw, kind, position=position)

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str], *, given: GivenInput | None = None
    ) -> dict[str, Any]:
        params = {"name": name, "arguments": dict(arguments)}
        return await self._read("prompts/get", params, name=name, given=given)

    async def read_resource(self, uri: str, *, given: GivenInput | None = None) -> dict[str, Any]:
        try:
            return await self._read("resources/read", {"uri": uri}, name=uri, given=given)
        except Rejected as error:
            if error.details.get("code") == RESOURCE_NOT_FOUND:
                raise NotFound(error.message, details=error.details) from None
            raise

    async def complete(
        self, kind: FeatureKind, identifier: str, argument: str, typed: str, given: Mapping[str, str]
    ) -> Completion:
        """Empty if the server does not support completion."""
        if "completions" not in (await self._session.era()).capabilities:
            return Completion()
        reference = {"type": "ref/resource", "uri": identifier}
        if kind is FeatureKind.PROMPT:
            reference = {"type": "ref/prompt", "name": identifier}
        params: dict[str, Any] = {"ref": reference, "argument": {"name": argument, "value": typed}}
        if given:
            params["context"] = {"arguments": dict(given)}
        answer = await self._session.request("completion/complete", params)
        found = as_object(answer.get("completion"))
        values, total = found.get("values"), found.get("total")
        if not isinstance(values, list):
            raise InvalidAnswer("The server's answer to completion/complete has no array of values.")
        return Completion(
            values=[value for value in values if isinstance(value, str)],
            total=total if isinstance(total, int) and total >= 0 else None,
            has_more=found.get("hasMore") is True,
        )

    async def _read(
        self, method: str, params: dict[str, Any], *, name: str, given: GivenInput | None
    ) -> dict[str, Any]:
        """A server of the handshake era asks during the request, and learns that no user saw the question."""
        caller = None
        if given is not None and (await self._session.era()).is_modern:
            caller = RunCaller(capabilities=given.capabilities, ask=_refuse_all, key=given.caller)
            params |= {"inputResponses": dict(given.responses)} if given.responses else {}
            params |= {"requestState": given.state} if given.state is not None else {}
        try:
            answer = await self._session.request(method, params, name=name, caller=caller)
        except Rejected as error:
            if not (asked := self._questions.pages_to_open(error, given)):
                raise
            answer = {}
        else:
            kind = answer.get("resultType", "complete")
            if kind == "complete":
                return answer
            if kind != "input_required" or caller is None:
                reason = f"The server asks for input before it answers {method}"
                raise Unsupported(f"{reason}, which this client cannot provide.")
            asked = self._questions.admissible(answer.get("inputRequests") or {}, caller)
        state = answer.get("requestState") if isinstance(answer.get("requestState"), str) else None
        return {"resultType": "input_required", "inputRequests": asked, "requestState": state}


def _may_have_tools(era: Era) -> bool:
    """A server that declares no capabilities may still have tools."""
    return "tools" in era.capabilities or not {"prompts", "resources"} & era.capabilities.keys()


def _as_theirs(workflow: WorkflowRef) -> WorkflowRef:
    return replace(workflow, id=workflow.id.removeprefix(PREFIX))


class RunsByTools:
    """The simplified workflow API, through tool calls."""

    def __init__(self, config: McpConfig, call: Callable[..., Awaitable[dict[str, Any]]]) -> None:
        """`call`: see `McpConnector._call_tool`."""
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
        words = extract_error_message(said) or printable(" ".join(texts)) or "it gave no reason"
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
    """Looks at `code` or `status`, in the answer or its `error`."""
    if not isinstance(said, dict):
        return False
    codes = (said.get(key) for key in ("code", "status"))
    return any(str(code).lower() in UNKNOWN for code in codes) or _is_unknown(said.get("error"))


def _texts(result: dict[str, Any]) -> list[str]:
    blocks = result.get("content") or []
    texts = (block.get("text") for block in blocks if isinstance(block, dict) and block.get("type") == "text")
    return [text for text in texts if isinstance(text, str)]
