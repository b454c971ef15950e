"""MCP over Streamable HTTP: who is let in, then the SDK."""

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import (
    RequestBodyLimitMiddleware,
    TransportSecurityMiddleware,
    TransportSecuritySettings,
)
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, jsonrpc_message_adapter
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from catalogue.database import run_in_database
from catalogue.exposure import ExposedCatalogue, current_catalogue, fresh_catalogue
from catalogue.scopes import Scope as AccessScope
from mcp_bridge.access import Access, OtherToolset
from mcp_bridge.builtin_tools import describe_missing_scope, scope_of_tool
from mcp_bridge.direct_answers import answer_directly
from mcp_bridge.models import AccessToken
from mcp_bridge.server import CatalogueServer
from mcp_bridge.tokens import authenticate, metadata_url, recognise, resource_url

NOT_ONE_MESSAGE = "The body has to be one JSON-RPC request or notification; batches are not supported."


class McpEndpoint:
    """The ASGI application behind `/mcp` and `/mcp/<slug>`. Its session manager's `run()` is entered once."""

    def __init__(self) -> None:
        largest_body = settings.CATALOGUE["max_request_bytes"]
        self._server = CatalogueServer()
        security = _transport_security()
        self._security = TransportSecurityMiddleware(security)
        self.session_manager = StreamableHTTPSessionManager(
            self._server, stateless=True, security_settings=security, max_request_body_size=largest_body
        )
        self._answer_within_limit = RequestBodyLimitMiddleware(self._answer_message, largest_body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        access = await self._admit(scope)
        if isinstance(access, Response):
            answer = access
        elif scope["method"] != "POST":
            # Without sessions there is no stream to open and none to end.
            answer = Response(status_code=405, headers={"Allow": "POST"})
        else:
            scope = {**scope, "state": {**scope.get("state", {}), "access": access}}
            await self._answer_within_limit(scope, receive, send)
            return
        await answer(scope, receive, send)

    async def _admit(self, scope: Scope) -> Access | Response:
        """Who comes, or why not: hosts and origins first, then the token, then the toolset."""
        request = Request(scope)
        refusal = await self._security.validate_request(request, is_post=scope["method"] == "POST")
        if refusal is not None:
            return refusal
        slug = scope.get("path_params", {}).get("slug")
        if (token := await _find_token(request.headers)) is None:
            return _unauthorized(slug, has_sent_one="authorization" in request.headers)
        try:
            access = Access.by_token(token, toolset=slug)
        except OtherToolset:
            return _unknown_toolset(slug)
        if slug is not None and slug not in (await _catalogue()).toolsets:
            return _unknown_toolset(slug)
        return access

    async def _answer_message(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse what is no message before the SDK does, which would recite its validator."""
        received: list[Message] = [await receive()]  # The limit has put the body into one piece.
        try:
            message = from_json(received[0].get("body", b""))
        except ValueError:
            message = None  # The SDK refuses in clean words what is no JSON at all.
        else:
            if _is_malformed(message):
                await _malformed()(scope, receive, send)
                return
        if isinstance(message, dict):
            request, access = Request(scope), scope["state"]["access"]
            if (refusal := _missing_scope(message, access)) is not None:
                await refusal(scope, receive, send)
                return
            body = await answer_directly(request, message, access, self._server.tool_lists)
            if body is not None:
                await Response(body, media_type="application/json")(scope, receive, send)
                return

        async def replay() -> Message:
            return received.pop() if received else await receive()

        await self.session_manager.handle_request(scope, replay, send)


async def protected_resource_metadata(scope: Scope, receive: Receive, send: Send) -> None:
    """RFC 9728: which resource this is and how tokens are presented."""
    document = {
        "resource": resource_url(scope.get("path_params", {}).get("slug")),
        "resource_name": "Workflow Catalogue",
        "bearer_methods_supported": ["header"],
        "scopes_supported": AccessScope.values,
    }
    await JSONResponse(document)(scope, receive, send)


async def _find_token(headers: Headers) -> AccessToken | None:
    scheme, _, text = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not (text := text.strip()):
        return None
    return recognise(text) or await run_in_database(_authenticate_and_look, text)


def _authenticate_and_look(text: str) -> AccessToken | None:
    """One hop for both: whoever is let in looks at the catalogue next."""
    token = authenticate(text)
    if token is not None:
        current_catalogue()
    return token


async def _catalogue() -> ExposedCatalogue:
    known = fresh_catalogue()
    return await run_in_database(current_catalogue) if known is None else known


def _is_malformed(message: Any) -> bool:
    """Whether it is no JSON-RPC message."""
    try:
        jsonrpc_message_adapter.validate_python(message, by_name=False)
    except ValidationError:
        return True
    return False


def _malformed() -> Response:
    error = {"code": INVALID_REQUEST, "message": NOT_ONE_MESSAGE}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, status_code=400)


def _missing_scope(message: dict[str, Any], access: Access) -> Response | None:
    """The refusal of a call that the token's scopes do not allow (RFC 6750)."""
    params = message.get("params")
    if message.get("method") != "tools/call" or "id" not in message or not isinstance(params, dict):
        return None
    name = params.get("name")
    if not isinstance(name, str) or access.allows(needed := scope_of_tool(name)):
        return None
    error = {"code": INVALID_PARAMS, "message": describe_missing_scope(name, needed)}
    return JSONResponse(
        {"jsonrpc": "2.0", "id": message["id"], "error": error},
        status_code=403,
        headers={"WWW-Authenticate": _challenge(access.toolset, "insufficient_scope", scope=needed.value)},
    )


def _unauthorized(slug: str | None, *, has_sent_one: bool) -> Response:
    """RFC 6750: a request without any credentials is told of no error, only where to get them."""
    return JSONResponse(
        {
            "error": "invalid_token",
            "error_description": "Send a valid access token as Authorization: Bearer <token>.",
        },
        status_code=401,
        headers={"WWW-Authenticate": _challenge(slug, "invalid_token" if has_sent_one else "")},
    )


def _challenge(slug: str | None, error: str, **others: str) -> str:
    told = {"error": error, **others, "resource_metadata": metadata_url(slug)}
    return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in told.items() if value)


def _unknown_toolset(slug: str | None) -> Response:
    """The same for one that there is not and one that is not for this token."""
    error = {"code": INVALID_REQUEST, "message": f"There is no toolset {slug!r} for this token."}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, status_code=404)


def _transport_security() -> TransportSecuritySettings:
    """The same hosts that Django serves; browsers only from our own pages (DNS rebinding)."""
    hosts: list[str] = settings.ALLOWED_HOSTS
    public: Any = urlsplit(settings.PUBLIC_URL)
    origins = [f"http://{host}" for host in ("localhost", "127.0.0.1", "[::1]")]
    return TransportSecuritySettings(
        allowed_hosts=[*hosts, *(f"{host}:*" for host in hosts)],
        allowed_origins=[
            f"{public.scheme}://{public.netloc}",
            *origins,
            *(f"{origin}:*" for origin in origins),
        ],
    )
