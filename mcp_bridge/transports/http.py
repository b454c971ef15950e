import re
import secrets
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.db import Error as DatabaseProblem
from django.http.request import split_domain_port, validate_host
from loguru import logger
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import RequestBodyLimitMiddleware, TransportSecuritySettings
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, RequestId, jsonrpc_message_adapter
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from catalogue.database import run_in_database
from catalogue.exposure import ExposedCatalogue, current_catalogue, fresh_catalogue
from catalogue.models.toolset import SLUG_FORM
from catalogue.scopes import Scope as AccessScope
from mcp_bridge.authentication import TooManyFailures, client_address, note_wrong_token
from mcp_bridge.builtin_tools import describe_missing_scope, missing_scope
from mcp_bridge.declarations import SESSION_HEADER, UNNAMED_SESSION, introduces_unnamed
from mcp_bridge.models import AccessToken
from mcp_bridge.notifications.change_stream import ChangeStreams
from mcp_bridge.server import CatalogueServer
from mcp_bridge.tokens import Access, OtherToolset, digest_of, look_up, metadata_url, recognise, resource_url
from mcp_bridge.transports.direct_answers import UNCACHED, DirectAnswers

NO_DATABASE = "The catalogue's database cannot be asked at present: try again in some seconds."
NOT_ONE_MESSAGE = "The body has to be one JSON-RPC request or notification; batches are not supported."
SHOWN_SLUG = 64
# No process keeps anything of a session, so that there is nothing to end with DELETE.
METHOD_NOT_ALLOWED = Response(status_code=405, headers={"Allow": "GET, POST"})
ONCE = frozenset({b"host", b"origin", b"authorization", b"content-type", b"content-encoding"})
"""Headers that may not be repeated: a proxy may read the first one, and this server the last."""
LOCAL_ORIGIN = re.compile(r"http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?")
LONGEST_HOST = 300
SHOWN_CHARACTERS = 100
NOT_OUR_HOST = (
    "The Host header names no address of this server. Its operator lists them in CATALOGUE_ALLOWED_HOSTS."
)
NOT_OUR_PAGE = "Web pages of other origins may not use this server."
NOT_JSON = "Send the message as Content-Type: application/json."
ENCODED = "Send the body as it is: Content-Encoding is not supported."


class McpEndpoint:
    """The ASGI application behind `/mcp` and `/mcp/<slug>`. Its session manager's `run()` is entered once."""

    def __init__(self) -> None:
        largest_body = settings.CATALOGUE["max_request_bytes"]
        self._server = CatalogueServer()
        self.direct_answers = DirectAnswers(self._server.tool_lists)
        # `check_headers` checks hosts and origins before the token.
        security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        self.session_manager = StreamableHTTPSessionManager(
            self._server, stateless=True, security_settings=security, max_request_body_size=largest_body
        )
        self._methods: dict[str, ASGIApp] = {
            "POST": RequestBodyLimitMiddleware(self._answer_message, largest_body),
            "GET": ChangeStreams(self._server.streams, self._server.snapshots),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Not every server strips values (RFC 9110).
        stripped = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        scope = {**scope, "headers": stripped}
        try:
            access = await self._admit(scope)
            if isinstance(access, Response):
                answer: ASGIApp = access
            else:
                scope = {**scope, "state": {**scope.get("state", {}), "access": access}}
                answer = self._methods.get(scope["method"], METHOD_NOT_ALLOWED)
            await answer(scope, receive, _uncached(send))
        except DatabaseProblem as problem:
            logger.error("A request cannot be answered without the database: {}", problem)
            await refusal(503, NO_DATABASE, code=INTERNAL_ERROR, headers={"Retry-After": "5"})(
                scope, receive, _uncached(send)
            )

    async def _admit(self, scope: Scope) -> Access | Response:
        if (refused := check_headers(scope)) is not None:
            return refused
        slug, headers = _slug_of(scope), Headers(scope=scope)
        token = None
        if text := _bearer_token(headers):
            digest = digest_of(text)
            token = recognise(digest) or await run_in_database(_look_up_with_catalogue, digest)
        if token is None:
            return await _refuse_token(scope, headers, slug)
        try:
            access = Access.by_token(token, toolset=slug)
        except OtherToolset:
            return _unknown_toolset(slug)
        if slug is not None and slug not in (await _catalogue()).toolsets:
            return _unknown_toolset(slug)
        return access

    async def _answer_message(self, scope: Scope, receive: Receive, send: Send) -> None:
        received: list[Message] = [await receive()]  # In one piece, because of the limit.
        if received[0]["type"] != "http.request" or received[0].get("more_body"):
            return  # The client has hung up in the middle of it.
        body = received[0].get("body", b"")
        try:
            message = from_json(body)
        except ValueError:
            message = {}  # The SDK refuses in clean words what is no JSON at all.
        else:
            if (answer := await self._own_answer(scope, body, message)) is not None:
                await answer(scope, receive, send)
                return
        if introduces_unnamed(message):
            send = _opening_session(send)

        async def replay() -> Message:
            return received.pop() if received else await receive()

        await self.session_manager.handle_request(scope, replay, send)

    async def _own_answer(self, scope: Scope, body: bytes, message: Any) -> ASGIApp | None:
        """None for what the SDK has to answer; to what is no message, it would recite its validator."""
        if _is_malformed(message):
            return refusal(400, NOT_ONE_MESSAGE)
        access = scope["state"]["access"]
        if "id" in message and message.get("method") == "tools/call":
            return _missing_scope(message, access, scope)
        request = self.direct_answers.read(scope, body, message)
        return None if request is None else await self.direct_answers.answer(request, access)


async def protected_resource_metadata(scope: Scope, receive: Receive, send: Send) -> None:
    """RFC 9728."""
    slug = _slug_of(scope)
    if not _can_be_named(slug):
        await _unknown_toolset(slug)(scope, receive, send)
        return
    document = {
        "resource": resource_url(slug),
        "resource_name": "Workflow Catalogue",
        "bearer_methods_supported": ["header"],
        "scopes_supported": AccessScope.values,
    }
    await JSONResponse(document)(scope, receive, send)


async def _refuse_token(scope: Scope, headers: Headers, slug: str | None) -> Response:
    if text := _bearer_token(headers):
        peer = (scope.get("client") or (None,))[0]
        address = client_address(peer, headers.get("x-forwarded-for", ""))
        try:
            await run_in_database(note_wrong_token, text, address=address)
        except TooManyFailures as problem:
            return refusal(429, str(problem), headers={"Retry-After": str(problem.seconds)})
    return _unauthorized(slug, has_sent_one="authorization" in headers)


def _bearer_token(headers: Headers) -> str:
    scheme, _, text = headers.get("authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def _look_up_with_catalogue(digest: str) -> AccessToken | None:
    """One thread hop for both: the catalogue is read next."""
    token = look_up(digest)
    if token is not None:
        current_catalogue()
    return token


async def _catalogue() -> ExposedCatalogue:
    known = fresh_catalogue()
    return await run_in_database(current_catalogue) if known is None else known


def _is_malformed(message: Any) -> bool:
    """The SDK would take a request with an invalid id for a notification, and not answer it."""
    try:
        jsonrpc_message_adapter.validate_python(message, by_name=False)
    except ValidationError:
        return True
    return "id" in message and "method" in message and type(message["id"]) not in (int, str)


def _missing_scope(message: dict[str, Any], access: Access, scope: Scope) -> Response | None:
    """The refusal of a call that the token's scopes do not allow (RFC 6750)."""
    params = message.get("params")
    name = params.get("name") if isinstance(params, dict) else None
    if not isinstance(name, str) or (needed := missing_scope(name, access.scopes)) is None:
        return None
    return refusal(
        403,
        describe_missing_scope(name, needed),
        code=INVALID_PARAMS,
        request_id=message["id"],
        headers={"WWW-Authenticate": _challenge(_slug_of(scope), "insufficient_scope", scope=needed.value)},
    )


def _unauthorized(slug: str | None, *, has_sent_one: bool) -> Response:
    """RFC 6750: no error code for a request without credentials."""
    slug = slug if _can_be_named(slug) else None
    return JSONResponse(
        {
            "error": "invalid_token",
            "error_description": "Send a valid access token as Authorization: Bearer <token>.",
        },
        status_code=401,
        headers={"WWW-Authenticate": _challenge(slug, "invalid_token" if has_sent_one else "")},
    )


def _challenge(slug: str | None, error: str, **others: str) -> str:
    parameters = {"error": error, **others, "resource_metadata": metadata_url(slug)}
    return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in parameters.items() if value)


def _unknown_toolset(slug: str | None) -> Response:
    """The same for missing, disabled and forbidden ones."""
    named = (slug or "")[:SHOWN_SLUG]
    message = f"There is no toolset {named!r} for this token: check the end of the address, /mcp/<toolset>."
    return refusal(404, message)


def _slug_of(scope: Scope) -> str | None:
    slug: str | None = scope.get("path_params", {}).get("slug")
    return slug


def _can_be_named(slug: str | None) -> bool:
    """Invalid slugs are not repeated in headers and documents."""
    return slug is None or re.match(SLUG_FORM, slug) is not None


def _uncached(send: Send) -> Send:
    async def send_uncached(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).setdefault(*UNCACHED)
        await send(message)

    return send_uncached


def _opening_session(send: Send) -> Send:
    """The client sends the id with each further request: all that these tell of a client with a handshake."""

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 200:
            MutableHeaders(scope=message)[SESSION_HEADER] = UNNAMED_SESSION + secrets.token_urlsafe(16)
        await send(message)

    return send_with_id


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
    """A refusal, if any. Hosts and origins are checked against DNS rebinding."""
    present = [header for header in scope["headers"] if header[0] in ONCE]
    if len(present) > len(headers := dict(present)):
        names = [name for name, _ in present]
        repeated = next(name.decode() for name in names if names.count(name) > 1)
        return refusal(400, f"The header {repeated} may be sent only once.")
    host = headers.get(b"host", b"").decode("latin-1")
    origin = headers.get(b"origin", b"").decode("latin-1")
    if len(host) > LONGEST_HOST or not _is_one_of(tuple(settings.ALLOWED_HOSTS), host):
        logger.warning(
            "Refused a request for the host {!r}, which is not one of ours.", host[:SHOWN_CHARACTERS]
        )
        return refusal(421, NOT_OUR_HOST)
    public: Any = urlsplit(settings.PUBLIC_URL)
    ours = f"{public.scheme}://{public.netloc}".lower()
    if origin and origin != ours and not LOCAL_ORIGIN.fullmatch(origin):
        logger.warning("Refused a request from a page of {!r}.", origin[:SHOWN_CHARACTERS])
        return refusal(403, NOT_OUR_PAGE)
    return _check_body_type(headers) if scope["method"] == "POST" else None


def _check_body_type(headers: dict[bytes, bytes]) -> Response | None:
    media_type = headers.get(b"content-type", b"").partition(b";")[0]
    if media_type.strip().lower() != b"application/json":
        return refusal(415, NOT_JSON)
    if headers.get(b"content-encoding", b"").strip().lower() not in (b"", b"identity"):
        return refusal(415, ENCODED)
    return None


@lru_cache(maxsize=64)
def _is_one_of(served: tuple[str, ...], host: str) -> bool:
    domain, _ = split_domain_port(host)
    return bool(domain) and validate_host(domain, served)
