"""A conversation with an MCP server: version, requests, notifications."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypedDict
from uuid import uuid4

import mcp_types
from anyio.abc import TaskStatus
from loguru import logger
from mcp.shared import inbound
from mcp.shared.dispatcher import CallOptions, DispatchContext
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from mcp_types import version as versions

from connectors.errors import (
    ConnectorError,
    InvalidAnswer,
    Misconfigured,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unreachable,
    Unsupported,
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
        """Whether the protocol is stateless, so that each request identifies its client."""
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
            params["_meta"] = dict(params.get("_meta") or {}) | _envelope(self.era.version, offered)
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
        return self._refusal(method, error)

    def _refusal(self, method: str, error: MCPError) -> ConnectorError:
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
        """With secrets masked."""
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
        """Whether it was a log message. Handled at once, since the call's answer may follow directly."""
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
        params = {"_meta": _envelope(versions.LATEST_MODERN_VERSION)}
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


def _envelope(version: str, offered: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """`offered`: capabilities of the caller, besides ours."""
    return {
        f"{ENVELOPE}protocolVersion": version,
        f"{ENVELOPE}clientInfo": CLIENT_INFO,
        f"{ENVELOPE}clientCapabilities": {"extensions": {TASKS_EXTENSION: {}}, **(offered or {})},
    }


def _name_of(info: Any) -> str:
    parts = [as_object(info).get("name"), as_object(info).get("version")]
    return shorten(printable(" ".join(part for part in parts if isinstance(part, str))), 100)
