import json
import re
import secrets
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import anyio
from django.conf import settings
from django.db import Error as DatabaseProblem
from django.http.request import split_domain_port, validate_host
from loguru import logger
from mcp import MCPError
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import RequestBodyLimitMiddleware, TransportSecuritySettings
from mcp.shared.inbound import (
    MCP_PROTOCOL_VERSION_HEADER,
    InboundModernRoute,
    classify_inbound_request,
    find_duplicated_routing_header,
)
from mcp.shared.subscriptions import ServerEvent, event_to_notification
from mcp_types import (
    DEFAULT_NEGOTIATED_VERSION,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    RequestId,
    jsonrpc_message_adapter,
)
from mcp_types.methods import validate_client_request
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from access.callers import Scope as AccessScope
from access.callers import describe_lack
from catalogue.database import run_in_database
from catalogue.database_problems import describe_outage, log_outage
from catalogue.exposure import present_catalogue
from catalogue.models.toolset import SLUG_FORM
from connectors.formats.json import find_repetition, mend
from executions.run_callers import CARDS
from identity.authentication import TooManyFailures, challenge, note_wrong_token
from identity.bearers import AuthenticationUnavailable, find_bearer, sent_token
from identity.doorkeeper import Throttled, address_in, allowed_origins, doorkeeper
from identity.external_tokens import named_outside
from identity.tokens import (
    METADATA_PATH,
    Access,
    Origin,
    OtherToolset,
    arriving,
    asked_origin,
    authorization_server,
    metadata_url,
    own_origins,
)
from mcp_bridge import notifications
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS
from mcp_bridge.elicitation import Question, is_answer, take_answer
from mcp_bridge.request_meta import (
    ELICITATION_MODES,
    OTHER_ANSWERS,
    SESSION_HEADER,
    id_in,
    marks_of_handshake,
    sender_shows_cards,
    session_marks,
    usable_id,
)
from mcp_bridge.server import CatalogueServer
from telemetry.metrics import REFUSED, mcp_requests

NOT_ONE_MESSAGE = "The body must be one JSON-RPC request or notification. Batches are not supported."
SHOWN_SLUG = 64
USUAL = (AccessScope.READ, AccessScope.RUN)  # Scopes that a client should ask for
# No process stores sessions, so DELETE has nothing to end.
METHOD_NOT_ALLOWED = Response(status_code=405, headers={"Allow": "GET, POST"})
ONCE = frozenset({b"host", b"origin", b"authorization", b"content-type", b"content-encoding"})
"""Headers that may not be repeated: a proxy may read the first one, and this server the last."""
UNREACHABLE_ORIGIN = re.compile(
    r"https?://(([a-z0-9-]+\.)*localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?"
    r"|(?!(https?|ftp|ip[fn]s|file|content):)[a-z][a-z0-9+.-]*://[^/@]+"
)
"""Of this machine, or with an application's own scheme: no name in the DNS gives it to a page."""
MAX_HOST_CHARACTERS = 300
SHOWN_CHARACTERS = 100
NOT_OUR_HOST = (
    "The Host header does not match an address of this server. Its operator lists the "
    "addresses in CATALOGUE_ALLOWED_HOSTS."
)
NOT_OUR_PAGE = "The origin {!r} may not use this server unless CATALOGUE_ALLOWED_ORIGINS lists it."
JSON, EVENT_STREAM = "application/json", "text/event-stream"
BOTH = f"{JSON}, {EVENT_STREAM}"
ANSWER = re.compile(rb'^data: (\{"jsonrpc":"2.0","id":.+)$', re.MULTILINE)  # No notification has an id
REFUSED_RANGE = re.compile(r";\s*q\s*=\s*0(\.0*)?\s*(;|$)")
NOT_ACCEPTED = f"Every form of this answer is refused by the request. Send Accept: {BOTH}."
NOT_JSON = "Send the message as Content-Type: application/json."
ENCODED = "Content-Encoding is not supported. Send the body without it."
RECONNECT_MILLISECONDS = 3000  # Clients wait as long when the server has ended the stream, as at a restart
RETRY_SECONDS = 60
LISTED = mcp_requests.labels("tools/list", "ok")
MAX_ID = 2**63
PING_SECONDS = 15.0  # As the SDK: after so long without an event a proxy might end the stream
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
]


class McpEndpoint:
    """The ASGI application behind `/mcp` and `/mcp/<slug>`. Its session manager's `run()` is entered once."""

    def __init__(self) -> None:
        largest = settings.CATALOGUE.max_request_bytes
        self._server = CatalogueServer()
        # `check_headers` checks hosts and origins before the token.
        security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        self.session_manager = StreamableHTTPSessionManager(
            self._server, stateless=True, security_settings=security, max_request_body_size=largest
        )
        self._messages = RequestBodyLimitMiddleware(self._answer_message, largest)
        self._streams = ChangeStreams(self._server.streams, self._server.snapshots)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Not every server strips values (RFC 9110).
        stripped = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        scope, send = {**scope, "headers": stripped}, _uncached(send)
        headers = MutableHeaders(scope=scope)
        form = _sole_form(headers) if scope["method"] == "POST" else None
        if form is not None:
            headers["accept"] = BOTH  # To all that follows, which answers in either form
            if form == JSON:
                # The other marks allow questions, which come on event streams.
                is_to_stay = CARDS in session_marks(headers)
                del headers[SESSION_HEADER]
                if is_to_stay:
                    headers[SESSION_HEADER] = f"{CARDS}-"
            send = _OneForm(form, send).send
        try:
            access = await self._admit(scope)
            answer: ASGIApp = METHOD_NOT_ALLOWED
            if isinstance(access, Response):
                answer = access
            elif form == "":
                answer = refusal(406, NOT_ACCEPTED)
            elif scope["method"] in ("GET", "POST"):
                scope["state"] = {**scope.get("state", {}), "access": access}
                answer = self._streams if scope["method"] == "GET" else self._messages
            await answer(scope, receive, send)
        except DatabaseProblem as problem:
            told = _explain(problem)
            refused = refusal(503, told, code=INTERNAL_ERROR, headers={"Retry-After": "5"})
            await refused(scope, receive, send)

    async def _admit(self, scope: Scope) -> Access | Response:
        if (refused := check_headers(scope)) is not None:
            return refused
        slug = scope["path_params"].get("slug")
        try:
            known = await _access_or_refusal(scope)
        except AuthenticationUnavailable as problem:
            wait = {"Retry-After": str(problem.seconds)}
            return refusal(503, str(problem), code=INTERNAL_ERROR, headers=wait)
        if isinstance(known, Response) or slug is None:
            return known
        try:
            access = known.at(slug)
        except OtherToolset:
            return _unknown_toolset(slug)
        is_shown = (await present_catalogue()).toolset_within(access.bounds) is not None
        return access if is_shown else _unknown_toolset(slug)

    async def _answer_message(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a POST. The first message that it receives has the whole body."""
        received = await receive()
        if received["type"] != "http.request" or received.get("more_body"):
            return  # The client has hung up in the middle of it.
        message, access = _read(received), scope["state"]["access"]
        if isinstance(message, Response):
            await message(scope, receive, send)
        elif is_answer(message):
            await take_answer(message, access)
            await Response(status_code=202)(scope, receive, send)
        elif (refused := _missing_scope(message, access, scope)) is not None:
            await refused(scope, receive, send)
        elif message.get("method") != "tools/list" or not await self._list_tools(
            message, access, scope, send
        ):
            await self._pass_on(message, received, scope, receive, send)

    async def _pass_on(
        self, message: dict[str, Any], received: Message, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Has the SDK answer."""
        if message.get("method") == "initialize" and (marks := marks_of_handshake(message)):
            send = _opening_session(send, marks)
        elif not session_marks(Headers(scope=scope)).isdisjoint((*ELICITATION_MODES, *OTHER_ANSWERS)):
            scope["state"]["questions"] = questions = Questions(send)
            send = questions.send
        again = [received]

        async def receive_again() -> Message:
            return again.pop() if again else await receive()

        await self.session_manager.handle_request(scope, receive_again, send)

    async def _list_tools(self, message: dict[str, Any], access: Access, scope: Scope, send: Send) -> bool:
        """Answers `tools/list` with bytes from memory: the SDK takes 30 ms to validate and write 1,000 tools.
        Returns False for a request that the SDK refuses."""
        if (version := _valid_version(message, scope)) is None:
            return False
        cursor = (message.get("params") or {}).get("cursor")
        has_cards = sender_shows_cards(message, Headers(scope=scope), version)
        try:
            page_json = await self._server.tool_lists.page_json(
                access, version, cursor, shows_cards=has_cards
            )
        except MCPError:
            return False
        LISTED.inc()
        begin = b'{"jsonrpc":"2.0","id":%b,"result":' % json.dumps(message["id"]).encode()
        length = str(len(begin) + len(page_json)).encode()
        headers = [(b"content-type", JSON.encode()), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        # In two parts: joining them would copy a megabyte.
        await send({"type": "http.response.body", "body": begin, "more_body": True})
        await send({"type": "http.response.body", "body": page_json, "more_body": False})
        return True


def _valid_version(message: dict[str, Any], scope: Scope) -> str | None:
    """Returns the protocol version of a request that passes the SDK's checks."""
    headers, request_id = Headers(scope=scope), message.get("id")
    # Python writes no integer of more than 4,300 digits.
    if request_id is None or (isinstance(request_id, int) and abs(request_id) > MAX_ID):
        return None
    version: str | None = headers.get(MCP_PROTOCOL_VERSION_HEADER, DEFAULT_NEGOTIATED_VERSION)
    if version not in HANDSHAKE_PROTOCOL_VERSIONS:
        if find_duplicated_routing_header(headers.items()) is not None:
            return None
        route = classify_inbound_request(message, headers=dict(headers))
        version = route.protocol_version if isinstance(route, InboundModernRoute) else None
    if version is None:
        return None
    try:
        validate_client_request(message["method"], version, message.get("params"))
    except ValidationError:
        return None
    return version


def _explain(problem: DatabaseProblem) -> str:
    """Logs the problem and returns its description for the caller."""
    log_outage("MCP requests and probes", problem)
    return describe_outage(problem, method="GET")


async def admit_reader(scope: Scope) -> Response | None:
    """Returns the refusal of a request whose token may not read what administrators see; None: admitted."""
    try:
        known = await _access_or_refusal(scope)
    except AuthenticationUnavailable as problem:
        wait = {"Retry-After": str(problem.seconds)}
        return JSONResponse({"detail": str(problem)}, status_code=503, headers=wait)
    except DatabaseProblem as problem:
        return JSONResponse({"detail": _explain(problem)}, status_code=503, headers={"Retry-After": "5"})
    if isinstance(known, Response):
        return known
    if known.allows(AccessScope.VIEW) and known.toolset is None:
        return None
    lack = f"This requires a token with the scope {AccessScope.VIEW}."
    return JSONResponse({"detail": lack}, status_code=403)


async def protected_resource_metadata(scope: Scope, receive: Receive, send: Send) -> None:
    """RFC 9728."""
    slug, path = scope["path_params"].get("slug"), scope["path"].removeprefix(METADATA_PATH)
    if not _can_be_named(slug):
        await _unknown_toolset(slug)(scope, receive, send)
        return
    document = {
        "resource": asked_origin(Headers(scope=scope).get("host", "")) + path,
        "resource_name": "Workflow Catalogue",
        "bearer_methods_supported": ["header"],
        # Only what MCP needs: many clients request every scope in this list.
        "scopes_supported": list(map(named_outside, USUAL)),
    }
    if (server := authorization_server()) is not None:
        document["authorization_servers"] = [server]
    await JSONResponse(document)(scope, receive, send)


async def _access_or_refusal(scope: Scope) -> Access | Response:
    """Raises AuthenticationUnavailable."""
    headers = Headers(scope=scope)
    if text := sent_token(headers.get("authorization", "")):
        peer = (scope.get("client") or ("",))[0]
        arriving.set(Origin(peer, headers.get("x-forwarded-for", ""), headers.get("user-agent", "")))
        if (known := await find_bearer(text)) is not None:
            return known
        if not await doorkeeper.delay(scope):
            crowd = TooManyFailures(Throttled.seconds)
            return refusal(429, str(crowd), headers={"Retry-After": str(crowd.seconds)})
        try:
            await run_in_database(note_wrong_token, text, address=address_in(scope))
        except TooManyFailures as problem:
            return refusal(429, str(problem), headers={"Retry-After": str(problem.seconds)})
    error = "invalid_token" if "authorization" in headers else ""
    return JSONResponse(
        {
            "error": "invalid_token",
            "error_description": "Send a valid access token as Authorization: Bearer <token>.",
        },
        status_code=401,
        headers={"WWW-Authenticate": challenge(_metadata_of(scope), error, USUAL)},
    )


def _read(received: Message) -> Any:
    """Returns the JSON-RPC message in a body, or the refusal of another one. The SDK would answer with the
    output of its validator. Replaces half surrogates in the body."""
    try:
        message = from_json(received["body"])
    except ValueError:
        received["body"] = mend(received["body"], "\ufffd")
        try:
            message = from_json(received["body"])
        except ValueError as problem:
            told, request_id = f"Parse error: {problem}", id_in(received["body"])
            return refusal(400, told, code=PARSE_ERROR, request_id=request_id)
    # Readers differ in which of two they take, such as those that log or limit calls on the way here.
    fault, request_id = find_repetition(received["body"]), usable_id(message)
    is_call = isinstance(message, dict) and "method" in message
    if not fault and is_call and "id" in message and request_id is None:
        # The SDK would take it for a notification, and not answer it.
        fault = "The id of a request must be an integer or a string."
    try:
        jsonrpc_message_adapter.validate_python(message, by_name=False)
    except ValidationError:
        has_odd_params = is_call and not isinstance(message.get("params"), dict | None)
        fault = fault or ("The params of a message must be an object." if has_odd_params else NOT_ONE_MESSAGE)
    return refusal(400, fault, request_id=request_id) if fault else message


def _missing_scope(message: dict[str, Any], access: Access, scope: Scope) -> Response | None:
    """Returns the refusal of a call that the token's scopes do not allow (RFC 6750)."""
    if message.get("method") != "tools/call" or "id" not in message:
        return None
    name = (message.get("params") or {}).get("name")
    if not isinstance(name, str):
        return None
    # Unknown names are treated as those of workflows.
    tool, needed = BUILT_IN_TOOLS.get(name), AccessScope.RUN
    if needed in access.scopes if tool is None else tool.is_open_to(access.scopes):
        return None
    needed = needed if tool is None else tool.scope
    told = challenge(_metadata_of(scope), "insufficient_scope", {*access.scopes, needed})
    return refusal(
        403,
        f"This token may not call {name}: {describe_lack(needed)}",
        code=INVALID_PARAMS,
        request_id=message["id"],
        headers={"WWW-Authenticate": told},
    )


def _metadata_of(scope: Scope) -> str:
    """Returns the address of the description of the resource that is asked for."""
    is_named = scope["path"].startswith("/mcp") and _can_be_named(scope["path_params"].get("slug"))
    return metadata_url(Headers(scope=scope).get("host", ""), scope["path"] if is_named else "/mcp")


def _unknown_toolset(slug: str | None) -> Response:
    """Returns the same refusal for missing, disabled and forbidden ones."""
    named = (slug or "")[:SHOWN_SLUG]
    message = (
        f"There is no toolset {named!r} for this token. Check the last part of the address, /mcp/<toolset>."
    )
    return refusal(404, message)


def _can_be_named(slug: str | None) -> bool:
    """Invalid slugs are not repeated in headers and documents."""
    return slug is None or re.match(SLUG_FORM, slug) is not None


def _uncached(send: Send) -> Send:
    async def send_uncached(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).setdefault("cache-control", "no-store")
        await send(message)

    return send_uncached


def _opening_session(send: Send, marks: list[str]) -> Send:
    """The client sends the id with each further request; nothing else in them identifies a client
    with a handshake."""

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 200:
            MutableHeaders(scope=message)[SESSION_HEADER] = "-".join([*marks, secrets.token_hex(16)])
        await send(message)

    return send_with_id


class Questions:
    """Our requests to the client, on the event stream that answers a call: the SDK sends none without
    sessions."""

    def __init__(self, send: Send) -> None:
        self._send, self._begun = send, anyio.Event()

    async def send(self, message: Message) -> None:
        await self._send(message)
        if message["type"] == "http.response.start":
            self._begun.set()

    async def ask(self, request_id: str, method: str, question: Question) -> None:
        """The answer comes as a request of its own, perhaps to another process."""
        await self._begun.wait()
        asked = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": question}
        event = _event_of(json.dumps(asked).encode())
        await self._send({"type": "http.response.body", "body": event, "more_body": True})


def _event_of(message: bytes) -> bytes:
    """One message of an event stream."""
    return b"event: message\r\ndata: %b\r\n\r\n" % message


def refusal(
    status: int,
    message: str,
    *,
    code: int = INVALID_REQUEST,
    request_id: RequestId | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    document = {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}
    return JSONResponse(document, status_code=status, headers=headers)


def check_headers(scope: Scope) -> Response | None:
    """Returns a refusal, if any. Hosts and origins are checked against DNS rebinding."""
    present = [header for header in scope["headers"] if header[0] in ONCE]
    if len(present) > len(headers := dict(present)):
        names = [name for name, _ in present]
        repeated = next(name.decode() for name in names if names.count(name) > 1)
        return refusal(400, f"The header {repeated} must be sent only once.")
    host = headers.get(b"host", b"").decode("latin-1")
    origin = headers.get(b"origin", b"").decode("latin-1")
    if len(host) > MAX_HOST_CHARACTERS or not validate_host(
        split_domain_port(host)[0], settings.ALLOWED_HOSTS
    ):
        logger.bind(recurring=REFUSED).warning(
            "Refused a request for the host {!r}, which is not an address of this server.",
            host[:SHOWN_CHARACTERS],
        )
        return refusal(421, NOT_OUR_HOST)
    if (
        origin
        and not UNREACHABLE_ORIGIN.fullmatch(origin)
        and origin not in {*own_origins(), *allowed_origins()}
    ):
        text = "Refused a request from a web page of {!r}."
        logger.bind(recurring=REFUSED).warning(text, origin[:SHOWN_CHARACTERS])
        return refusal(403, NOT_OUR_PAGE.format(origin[:SHOWN_CHARACTERS]))
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if scope["method"] == "POST" and media_type != b"application/json":
        return refusal(415, NOT_JSON)
    encoding = headers.get(b"content-encoding", b"").strip().lower()
    if scope["method"] == "POST" and encoding not in (b"", b"identity"):
        return refusal(415, ENCODED)
    return None


def _sole_form(headers: Headers) -> str | None:
    """Returns the form of the answers to a client that does not name both, as the protocol demands: JSON
    unless it names event streams. Empty if it accepts neither."""
    accept = ",".join(headers.getlist("accept"))
    if (takes_json := _accepts(accept, JSON)) and _accepts(accept, EVENT_STREAM, by_name=True):
        return None
    if takes_json and headers.get("mcp-method") != "subscriptions/listen":
        return JSON
    return EVENT_STREAM if _accepts(accept, EVENT_STREAM) else ""


@lru_cache(maxsize=100)
def _accepts(header: str, media_type: str, *, by_name: bool = False) -> bool:
    """RFC 9110, 12.5.1: the most specific range counts. `by_name`: not by `*/*`, or without a header."""
    ranges = (header.strip() or "*/*").lower().split(",")
    accepted = {one.partition(";")[0].strip(): not REFUSED_RANGE.search(one) for one in ranges}
    fitting = (media_type, f"{media_type.partition('/')[0]}/*", media_type if by_name else "*/*")
    return next((accepted[one] for one in fitting if one in accepted), False)


class _OneForm:
    """Sends an event stream as the document in its last event, and a document as an event stream."""

    def __init__(self, form: str, send: Send) -> None:
        self._form, self._send, self._body = form, send, b""
        self._start: Message | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            form = Headers(raw=message["headers"]).get("content-type")
            if message["status"] == 200 and form in (JSON, EVENT_STREAM) and form != self._form:
                self._start = message
                return
        elif self._start is not None:
            piece = message.get("body", b"")
            if self._form == EVENT_STREAM:
                self._body += piece
            elif answer := ANSWER.search(piece):
                self._body = answer[1].strip()
            if message.get("more_body"):
                return
            body = _event_of(self._body) if self._form == EVENT_STREAM else self._body
            headers = MutableHeaders(scope=self._start)
            headers["content-type"], headers["content-length"] = self._form, str(len(body))
            # Without an answer, the server is stopping.
            await self._send(self._start if body else {**self._start, "status": 503})
            message = {"type": "http.response.body", "body": body}
        await self._send(message)


@dataclass(frozen=True)
class ChangeStreams:
    """The ASGI application for authenticated GET requests."""

    streams: notifications.OpenStreams
    snapshots: notifications.ListSnapshots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, access = Headers(scope=scope), scope["state"]["access"]
        version = headers.get(MCP_PROTOCOL_VERSION_HEADER, DEFAULT_NEGOTIATED_VERSION)
        interests = notifications.Interests(events=notifications.admissible_lists(access))
        if version not in HANDSHAKE_PROTOCOL_VERSIONS or not interests.events:
            await Response(status_code=405, headers={"Allow": "POST"})(scope, receive, send)
        elif not _accepts(headers.get("accept", ""), EVENT_STREAM, by_name=True):
            refused = refusal(406, f"GET opens a stream of notifications: send Accept: {EVENT_STREAM}.")
            await refused(scope, receive, send)
        else:
            try:
                with self.streams.opened(access) as stream:
                    changes = notifications.Notifier(
                        stream=stream,
                        interests=interests,
                        version=version,
                        shows_cards=CARDS in session_marks(headers),
                        snapshots=self.snapshots,
                    )
                    await _EventStream(receive, send).carry(changes)
            except notifications.TooManyStreams as error:
                refused = refusal(429, str(error), headers={"Retry-After": str(RETRY_SECONDS)})
                await refused(scope, receive, send)


@dataclass(frozen=True)
class _EventStream:
    receive: Receive
    send: Send

    async def carry(self, changes: notifications.Notifier) -> None:
        """Sends changes until the client disconnects or nothing more can come."""
        async with anyio.create_task_group() as together:

            async def begin() -> None:
                await self.send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
                await self._write(b"retry: %d\r\n\r\n" % RECONNECT_MILLISECONDS)
                together.start_soon(self._keep_alive)

            together.start_soon(self._cancel_at_disconnect, together.cancel_scope)
            await changes.run(self._notify, begin=begin)
            together.cancel_scope.cancel()
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _notify(self, news: ServerEvent | notifications.TaskChanged) -> None:
        # Tasks cannot be subscribed to here.
        if not isinstance(news, notifications.TaskChanged):
            notification = event_to_notification(news, {})
            message = notification.model_dump(by_alias=True, mode="json", exclude_none=True)
            await self._write(_event_of(json.dumps({"jsonrpc": "2.0", **message}).encode()))

    async def _keep_alive(self) -> None:
        while True:
            await anyio.sleep(PING_SECONDS)
            await self._write(b": ping\r\n\r\n")

    async def _write(self, event: bytes) -> None:
        await self.send({"type": "http.response.body", "body": event, "more_body": True})

    async def _cancel_at_disconnect(self, scope: anyio.CancelScope) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        scope.cancel()
