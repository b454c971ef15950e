"""Holds the session with one server, shared by all calls: its conversations, requests and notifications.
A conversation is opened when needed, and again after it is lost."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypedDict, Unpack
from uuid import uuid4

import anyio
import mcp_types
from anyio.abc import TaskStatus
from loguru import logger
from mcp.client import Transport
from mcp.shared import inbound
from mcp.shared.dispatcher import CallOptions, DispatchContext
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from mcp_types import version as versions

from connectors.definitions import RejectedDefinition
from connectors.errors import (
    ConnectorError,
    InvalidAnswer,
    Misconfigured,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unreachable,
    Unsupported,
    backoff_seconds,
)
from connectors.formats.json import as_object
from connectors.network.client import USER_AGENT
from connectors.network.redaction import Redactor, printable, shorten
from connectors.protocol import LOG_LEVELS, RunCaller, covers_level
from connectors.upstream_mcp.run_callers import (
    CALL_PREFIX,
    CAPABILITY_OF,
    FOR_CALLERS,
    LOG_MESSAGE,
    CallLogs,
    Questions,
    read_error,
)
from telemetry.traces import create_detached_task

ENVELOPE = "io.modelcontextprotocol/"
TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
CLIENT_INFO = {"name": USER_AGENT, "version": "1"}
LOGGED_CHARACTERS = 1_000
CLOSED = "Connection closed"
LIST_CHANGED = frozenset(f"notifications/{name}/list_changed" for name in ("tools", "prompts", "resources"))
OnProgress = Callable[[float, float | None, str | None], None]


class TransportFailure(Protocol):
    def error(self, *, repeatable: bool) -> ConnectorError:
        """`repeatable`: the request changes nothing at the server."""
        ...

    @property
    def session_is_gone(self) -> bool: ...


class TransportFailures:
    """Passes failures below JSON-RPC to the request that they affect. The SDK's transports know only JSON-RPC
    errors, and any other failure ends the conversation. So a failure is sent as a JSON-RPC error with a key
    as its data, which a server cannot guess."""

    def __init__(self) -> None:
        self._passed: dict[str, TransportFailure] = {}

    def write(self, failure: TransportFailure, *, request_id: int | str | None = None) -> dict[str, Any]:
        key = uuid4().hex
        self._passed[key] = failure
        if len(self._passed) > 1_000:  # Callers have left without reading theirs
            del self._passed[next(iter(self._passed))]
        error = {"code": mcp_types.INTERNAL_ERROR, "message": "failure", "data": key}
        return {"jsonrpc": "2.0", "id": request_id, "error": error}

    def read(self, data: Any) -> TransportFailure | None:
        return self._passed.pop(data, None) if isinstance(data, str) else None


@dataclass(frozen=True, slots=True)
class Era:
    version: str
    capabilities: dict[str, Any] = field(default_factory=dict)
    server: str = ""

    @property
    def is_modern(self) -> bool:
        """Returns True if the protocol is stateless, so that each request identifies its client."""
        return self.version in versions.MODERN_PROTOCOL_VERSIONS


class RequestOptions(TypedDict, total=False):
    """See `Conversation.request`."""

    repeatable: bool
    name: str
    headers: Mapping[str, str] | None
    on_progress: OnProgress | None
    caller: RunCaller | None


class SessionLost(Exception):
    """The server forgot the session, so it did not act on the request."""


class Conversation:
    def __init__(
        self,
        dispatcher: JSONRPCDispatcher,
        *,
        failures: TransportFailures,
        redactor: Redactor,
        questions: Questions,
        on_listing_changed: Callable[[], None],
    ) -> None:
        self.era = Era("")
        self.ended = asyncio.Event()
        self._dispatcher = dispatcher
        self._failures = failures
        self._redactor = redactor
        self._questions = questions
        self._on_listing_changed = on_listing_changed
        self._logs = CallLogs()
        self._level, self._leveling = "", asyncio.Lock()  # Of log messages in this conversation

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Dispatch the server's messages until it ends the conversation."""
        try:
            await self._dispatcher.run(
                self._on_request,
                self._on_notify,
                on_notify_intercept=self._on_log_message,
                task_status=task_status,
            )
        finally:
            self.ended.set()

    async def agree(self, remembered: Era | None, *, seconds: float) -> Era:
        """Agree on a protocol version, the newest first."""
        modern = None
        if remembered is None or remembered.is_modern:
            modern = await self._discover(min(seconds, 10.0))
        self.era = modern or await self._initialize(seconds)
        return self.era

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        silence: float | None,
        repeatable: bool = True,
        name: str = "",
        headers: Mapping[str, str] | None = None,
        on_progress: OnProgress | None = None,
        caller: RunCaller | None = None,
    ) -> dict[str, Any]:
        """The server's result with secrets masked. Raises ConnectorError and SessionLost. `silence`: seconds
        without an answer or progress before the request fails. `name`, `headers`: headers for stateless
        servers. `caller`: answers what the server asks meanwhile, and gets its log messages."""
        params = dict(params or {})
        sent_headers = {inbound.MCP_PROTOCOL_VERSION_HEADER: self.era.version}
        options: CallOptions = {"headers": sent_headers}
        if self.era.is_modern:
            offered = self._questions.capabilities_of(caller)
            params["_meta"] = dict(params.get("_meta") or {}) | self._envelope(self.era.version, offered)
            sent_headers |= {inbound.MCP_METHOD_HEADER: method} | dict(headers or {})
            if caller is not None and caller.log_level:
                params["_meta"][f"{ENVELOPE}logLevel"] = caller.log_level
            if name:
                sent_headers[inbound.MCP_NAME_HEADER] = inbound.encode_header_value(name)
        elif caller is not None and caller.log_level:
            await self._want_level(caller.log_level)
        if silence is None:  # A subscription, which is not a call
            return await self._send(method, params, options, silence=None, repeatable=repeatable)
        call_id = f"{CALL_PREFIX}{uuid4().hex}" if method in FOR_CALLERS else ""
        if call_id:
            options["request_id"] = call_id
        with self._questions.during(method, call_id, caller), self._logs.during(method, call_id, caller):
            return await self._send(
                method, params, options, silence=silence, repeatable=repeatable, on_progress=on_progress
            )

    async def listen(self) -> None:
        """Wait until the conversation or the subscription to a stateless server's changes ends. Raises
        what `request` raises."""
        announced = {
            f"{name}ListChanged": True
            for name in ("tools", "prompts", "resources")
            if as_object(self.era.capabilities.get(name)).get("listChanged") is True
        }
        if self.era.is_modern and announced:
            await self.request("subscriptions/listen", {"notifications": announced}, silence=None)
        else:
            await self.ended.wait()

    async def _send(
        self,
        method: str,
        params: Mapping[str, Any],
        options: CallOptions,
        *,
        silence: float | None,
        repeatable: bool = True,
        on_progress: OnProgress | None = None,
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(silence) as patience:

                async def report(progress: float, total: float | None, message: str | None) -> None:
                    if silence is not None and not patience.expired():
                        patience.reschedule(asyncio.get_running_loop().time() + silence)
                    if on_progress is not None:
                        on_progress(progress, total, message)

                if on_progress is not None:
                    options["on_progress"] = report
                answer = await self._dispatcher.send_raw_request(method, params, options)
        except TimeoutError:
            raise self._unanswered(f"{method}: no response within {silence:g} s.", repeatable) from None
        except MCPError as error:
            failure = self._meaning(method, error, repeatable=repeatable)
            # Raised below, so that the library's error, which may quote anything, is not its context.
        else:
            return self._masked(answer)
        raise failure

    def _meaning(self, method: str, error: MCPError, *, repeatable: bool) -> Exception:
        if (failure := self._failures.read(error.data)) is not None:
            return SessionLost() if failure.session_is_gone else failure.error(repeatable=repeatable)
        lost = (CLOSED, "SSE stream", "read stream")
        if error.code == mcp_types.CONNECTION_CLOSED and error.message.startswith(lost):
            if error.message == CLOSED:
                # Later requests need another conversation.
                self.ended.set()
            return self._unanswered(f"{method}: the connection broke before the answer.", repeatable)
        if error.code == mcp_types.UNSUPPORTED_PROTOCOL_VERSION and self.era.version:
            return SessionLost()
        words, pages = read_error(error.code, error.message, error.data, self._redactor.text)
        reason = f"The server refused {method}: {words} ({error.code})"
        details: dict[str, Any] = {"code": error.code, "answer": words}
        if pages and "elicitation" in self._questions.declared:
            details["elicitations"] = pages
        if error.code == mcp_types.MISSING_REQUIRED_CLIENT_CAPABILITY:
            required = as_object(as_object(error.data).get("requiredCapabilities"))
            details["required"] = {name: {} for name in CAPABILITY_OF.values() if name in required}
        if error.code == mcp_types.METHOD_NOT_FOUND:
            return Unsupported(reason, details=details)
        refused = Rejected(reason, details=details)
        refused.depends_on_arguments = error.code != mcp_types.URL_ELICITATION_REQUIRED
        return refused

    def _unanswered(self, reason: str, repeatable: bool) -> ConnectorError:
        if repeatable:
            return Unreachable(reason)
        return OutcomeUnknown(f"{reason} The server may have carried it out.")

    def _masked(self, message: Mapping[str, Any]) -> dict[str, Any]:
        return as_object(self._redactor.answer(message, json.dumps(message, ensure_ascii=False).encode()))

    async def _on_request(
        self, context: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        if method == "ping":
            return {}
        if method not in CAPABILITY_OF:
            raise MCPError(code=mcp_types.METHOD_NOT_FOUND, message=f"{method[:100]} is not supported.")
        return await self._questions.answer(method, self._masked(params or {}))

    def _on_log_message(self, method: str, params: Mapping[str, Any] | None) -> bool:
        """Returns True for a log message, and handles it at once: the call's answer may follow directly."""
        if method != LOG_MESSAGE:
            return False
        if params is None or not self._logs.pass_on(params, self._masked):
            text = printable(self._redactor.text(str(params)[: 2 * LOGGED_CHARACTERS]))
            logger.debug("An MCP server says: {}", shorten(text, LOGGED_CHARACTERS))
        return True

    async def _want_level(self, level: str) -> None:
        """Set the most verbose level that a caller has requested; other callers get fewer messages."""
        async with self._leveling:
            is_covered = level not in LOG_LEVELS or covers_level(self._level, level)
            if "logging" not in self.era.capabilities or is_covered:
                return
            self._level = level  # Also if the server refuses, so that it is not asked at each call
            headers = {inbound.MCP_PROTOCOL_VERSION_HEADER: self.era.version}
            # The call begins anyway.
            with contextlib.suppress(ConnectorError):
                await self._send("logging/setLevel", {"level": level}, {"headers": headers}, silence=5.0)

    async def _on_notify(
        self, context: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None
    ) -> None:
        if method in LIST_CHANGED:
            self._on_listing_changed()

    async def _discover(self, seconds: float) -> Era | None:
        """None: a server of the handshake era. Raises ConnectorError if that is unknown."""
        params = {"_meta": self._envelope(versions.LATEST_MODERN_VERSION)}
        headers = {
            inbound.MCP_PROTOCOL_VERSION_HEADER: versions.LATEST_MODERN_VERSION,
            inbound.MCP_METHOD_HEADER: "server/discover",
        }
        options: CallOptions = {"headers": headers, "cancel_on_abandon": False}
        try:
            answer = await self._send("server/discover", params, options, silence=seconds)
        except (Rejected, Unsupported, NotFound, InvalidAnswer, Misconfigured, SessionLost) as error:
            # Servers of both eras refuse credentials so.
            if isinstance(error, Rejected) and error.details.get("status") in (401, 403):
                raise
            return None
        except Unreachable as error:
            # A server of the handshake era may ignore the unknown method.
            if error.details or "Could not connect" in error.message:
                raise
            return None
        offered = answer.get("supportedVersions")
        offered = offered if isinstance(offered, list) else []
        common = [version for version in versions.MODERN_PROTOCOL_VERSIONS if version in offered]
        if not common:
            return None
        info = as_object(answer.get("_meta")).get(f"{ENVELOPE}serverInfo")
        return Era(common[-1], as_object(answer.get("capabilities")), _name_of(info))

    async def _initialize(self, seconds: float) -> Era:
        answer = await self._send(
            "initialize",
            {
                "protocolVersion": versions.LATEST_HANDSHAKE_VERSION,
                "capabilities": self._questions.declared,
                "clientInfo": CLIENT_INFO,
            },
            {"cancel_on_abandon": False},
            silence=seconds,
        )
        version = answer.get("protocolVersion")
        if version not in versions.HANDSHAKE_PROTOCOL_VERSIONS:
            shown = shorten(printable(str(version)), 50)
            raise InvalidAnswer(f"The server speaks MCP {shown}, which is not supported.")
        headers = {inbound.MCP_PROTOCOL_VERSION_HEADER: str(version)}
        await self._dispatcher.notify("notifications/initialized", None, {"headers": headers})
        return Era(str(version), as_object(answer.get("capabilities")), _name_of(answer.get("serverInfo")))

    def _envelope(self, version: str, offered: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """`offered`: capabilities of the caller, besides ours."""
        extensions = {TASKS_EXTENSION: {}, **self._questions.extensions}
        return {
            f"{ENVELOPE}protocolVersion": version,
            f"{ENVELOPE}clientInfo": CLIENT_INFO,
            f"{ENVELOPE}clientCapabilities": {"extensions": extensions, **(offered or {})},
        }


def _name_of(info: Any) -> str:
    parts = [as_object(info).get("name"), as_object(info).get("version")]
    return shorten(printable(" ".join(part for part in parts if isinstance(part, str))), 100)


OpenTransport = Callable[[], Transport]
FIRST_PAUSE_SECONDS = 1.0
FREE_ATTEMPTS = 2


class McpSession:
    """Raises only ConnectorError. Make one per connector."""

    def __init__(
        self,
        open_transport: OpenTransport,
        *,
        failures: TransportFailures,
        redactor: Redactor,
        questions: Questions,
        request_seconds: float,
        holds_back: bool,
        explain: Callable[[], str] = str,
        on_listing_changed: Callable[[], None] = lambda: None,
        first_era: Era | None = None,
    ) -> None:
        """`first_era`: of a server that speaks it; else the newest that it speaks."""
        self._open_transport = open_transport
        self._failures = failures
        self._redactor = redactor
        self._questions = questions
        self._request_seconds = request_seconds
        self._on_listing_changed = on_listing_changed
        self._explain = explain
        self._holds_back = holds_back
        self._ended_early = 0  # Times in a row
        self._not_before = 0.0
        self._first_era = self._era = first_era
        self._current: _Owned | None = None
        self._retired: set[_Owned] = set()
        self._watching: asyncio.Task[None] | None = None
        self._closed = False

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        silence: float | None = None,
        **options: Unpack[RequestOptions],
    ) -> dict[str, Any]:
        """Works like `Conversation.request`, repeated in a new conversation if the server lost the
        session."""
        silence = silence or self._request_seconds
        for is_last in (False, True):
            async with self._conversation() as owned:
                try:
                    return await owned.conversation.request(method, params, silence=silence, **options)
                except (Unreachable, OutcomeUnknown) as error:
                    if owned.task is not None and owned.conversation.ended.is_set():
                        await asyncio.wait({owned.task}, timeout=1.0)
                        error.message += self._explain()
                    raise
                except SessionLost:
                    self._era = self._first_era
                    self._retire(owned)
                    if is_last:
                        raise Unreachable(f"{method}: the server loses each session immediately.") from None
        raise AssertionError("the loop returns or raises")

    async def page(self, method: str, key: str, page: str = "") -> tuple[list[Any], str]:
        """The items of a page of a list, and the next page: its cursor, which may be empty, after an "=";
        empty on the last page."""
        answer = await self.request(method, {"cursor": page[1:]} if page else {})
        items, following = answer.get(key), answer.get("nextCursor")
        if not isinstance(items, list):
            raise InvalidAnswer(f"The server's answer to {method} has no array of {key}.")
        if following is not None and not isinstance(following, str):
            raise InvalidAnswer(f"The cursor in the server's answer to {method} is not a string.")
        if page == "=" and following == "":
            # Servers without pages that mean the end by it return the same page again.
            reason = f'{method} returns the cursor "" for the cursor "": only the page before is used'
            return [RejectedDefinition(position=0, id="", name="", reason=reason)], ""
        return items, "" if following is None else f"={following}"

    async def era(self) -> Era:
        async with self._conversation() as owned:
            return owned.conversation.era

    def watch(self) -> None:
        """Keep a conversation open from now on, for notifications of changes."""
        if self._watching is None:
            self._watching = create_detached_task(self._watch())

    async def aclose(self) -> None:
        self._closed = True
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        self.retire()
        for owned in list(self._retired):
            await owned.close()

    async def _watch(self) -> None:
        """Reports a change after each reconnection, since notifications may have been missed."""
        in_a_row, has_listened = 0, False
        while True:
            try:
                async with self._conversation() as owned:
                    if has_listened:
                        self._on_listing_changed()
                    has_listened, in_a_row = True, 0
                    await _first_of(owned.conversation.listen(), owned.retired.wait())
            except (Rejected, Unsupported, NotFound, InvalidAnswer, Misconfigured) as error:
                logger.debug("An MCP server does not announce changes: {}", error.message)
                in_a_row = 100  # Leads to the longest pause
            except (ConnectorError, SessionLost):
                in_a_row += 1
            pause = backoff_seconds(in_a_row, first=FIRST_PAUSE_SECONDS, longest=300.0)
            await asyncio.sleep(pause)

    @asynccontextmanager
    async def _conversation(self) -> AsyncGenerator["_Owned"]:
        """Raises Unreachable during a backoff."""
        owned = self._current
        if owned is not None and owned.is_doubtful and owned.ready.done() and not owned.is_over:
            if not await self._is_known(owned):
                self._retire(owned)
            owned = self._current
        if owned is None or owned.is_over:
            if self._closed:
                raise Unreachable("The connection to the MCP server was closed.")
            if (left := self._not_before - time.monotonic()) > 0:
                raise Unreachable(
                    f"The MCP server ended {self._ended_early} times in a row; it is started again in "
                    f"{left:.1f} s.",
                    retry_after=left,
                )
            owned = self._current = _Owned()
            owned.task = asyncio.create_task(self._own(owned))
        owned.users += 1
        try:
            await asyncio.shield(owned.ready)
            yield owned
        finally:
            owned.users -= 1
            if owned in self._retired and not owned.users:
                owned.end.set()

    async def _is_known(self, owned: "_Owned") -> bool:
        """Asks whether the server knows the session, after a refusal that does not say so."""
        try:
            await owned.conversation.request("ping", silence=min(5.0, self._request_seconds))
        except Unsupported:
            pass  # An answer nevertheless
        except (ConnectorError, SessionLost):
            return False
        owned.is_doubtful = False
        return True

    def doubt(self) -> None:
        """Before the next request, look whether the server still knows the session."""
        if self._current is not None:
            self._current.is_doubtful = True

    def retire(self) -> None:
        """Use another conversation for later requests; pending ones still get their answers."""
        if self._current is not None:
            self._retire(self._current)

    def _retire(self, owned: "_Owned") -> None:
        if self._current is owned:
            self._current = None
        owned.retired.set()
        if not owned.is_over:
            self._retired.add(owned)
            if not owned.users:
                owned.end.set()

    async def _own(self, owned: "_Owned") -> None:
        """Open and close the transport in one task, as the SDK requires."""
        began = time.monotonic()
        try:
            async with self._open_transport() as (read_stream, write_stream):
                conversation = Conversation(
                    JSONRPCDispatcher(read_stream, write_stream),
                    failures=self._failures,
                    redactor=self._redactor,
                    questions=self._questions,
                    on_listing_changed=self._on_listing_changed,
                )
                async with anyio.create_task_group() as group:
                    await group.start(conversation.run)
                    self._era = await conversation.agree(self._era, seconds=self._request_seconds)
                    owned.open(conversation)
                    await _first_of(owned.end.wait(), conversation.ended.wait())
                    group.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - waiting callers get the error, whatever it is
            self._era = self._first_era
            owned.fail(self._reason(error))
        finally:
            owned.fail(Unreachable("The connection to the MCP server was closed."))
            self._retired.discard(owned)
            is_early = self._holds_back and time.monotonic() - began <= 30.0
            self._ended_early = self._ended_early + 1 if is_early else 0
            if self._ended_early > FREE_ATTEMPTS:
                repeated = self._ended_early - FREE_ATTEMPTS - 1
                pause = backoff_seconds(repeated, first=0.5, longest=60.0)
                self._not_before = time.monotonic() + pause

    def _reason(self, error: Exception) -> ConnectorError:
        """The first ConnectorError of an exception group, or Unreachable."""
        causes = list(_leaves(error))
        for cause in causes:
            if isinstance(cause, ConnectorError):
                cause.message += self._explain()
                cause.args = (cause.message,)
                return cause
        if any(isinstance(cause, SessionLost) for cause in causes):
            return Unreachable("The MCP server refuses new sessions.")
        kinds = ", ".join(dict.fromkeys(type(cause).__name__ for cause in causes))
        reasons = "; ".join(f"{type(cause).__name__}: {cause}" for cause in causes)
        logger.debug("The connection to an MCP server failed: {}", self._redactor.text(reasons))
        return Unreachable(f"The connection to the MCP server failed ({kinds}).")


class _Owned:
    """A conversation and the task that opens and closes it."""

    def __init__(self) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        self.end = asyncio.Event()
        self.retired = asyncio.Event()  # No further request goes there
        self.is_doubtful = False  # Whether the server may have lost the session
        self.users = 0
        self.task: asyncio.Task[None] | None = None
        self._conversation: Conversation | None = None

    @property
    def conversation(self) -> Conversation:
        assert self._conversation is not None, "used once it is ready"
        return self._conversation

    @property
    def is_over(self) -> bool:
        if self._conversation is not None and self._conversation.ended.is_set():
            return True
        return self.end.is_set() or (self.task is not None and self.task.done())

    def open(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self.ready.set_result(None)

    def fail(self, error: ConnectorError) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)

    async def close(self) -> None:
        self.end.set()
        if self.task is not None:
            await asyncio.wait({self.task}, timeout=10.0)
            self.task.cancel()


def _leaves(error: Exception) -> Iterator[Exception]:
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


async def _first_of(*awaited: Coroutine[Any, Any, Any]) -> None:
    tasks = [asyncio.create_task(one) for one in awaited]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    for task in ended:
        task.result()
