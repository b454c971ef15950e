"""MCP over Streamable HTTP: who is let in, then the SDK."""

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import RequestBodyLimitMiddleware, TransportSecuritySettings
from mcp_types import INVALID_REQUEST, jsonrpc_message_adapter
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from catalogue.database import run_in_database
from catalogue.exposure import current_catalogue, fresh_catalogue
from catalogue.scopes import Scope as AccessScope
from mcp_bridge.access import Access
from mcp_bridge.models import AccessToken
from mcp_bridge.server import build_server
from mcp_bridge.tokens import authenticate, recognise, resource_url

METADATA_PATH = "/.well-known/oauth-protected-resource/mcp"
NOT_ONE_MESSAGE = "The body has to be one JSON-RPC request or notification; batches are not supported."


class McpEndpoint:
    """The ASGI application behind `/mcp`. Its session manager's `run()` has to be entered once."""

    def __init__(self) -> None:
        largest_body = settings.CATALOGUE["max_request_bytes"]
        self.session_manager = StreamableHTTPSessionManager(
            build_server(),
            stateless=True,
            security_settings=_transport_security(),
            max_request_body_size=largest_body,
        )
        self._answer_within_limit = RequestBodyLimitMiddleware(self._answer_message, largest_body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = await _admit(Headers(scope=scope))
        if token is None:
            answer = _unauthorized()
        elif scope["method"] != "POST":
            # Without sessions there is no stream to open and none to end.
            answer = Response(status_code=405, headers={"Allow": "POST"})
        else:
            scope = {**scope, "state": {**scope.get("state", {}), "access": Access.by_token(token)}}
            await self._answer_within_limit(scope, receive, send)
            return
        await answer(scope, receive, send)

    async def _answer_message(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse what is no message before the SDK does, which would recite its validator."""
        received: list[Message] = [await receive()]  # The limit has put the body into one piece.
        if _is_malformed(received[0].get("body", b"")):
            await _malformed()(scope, receive, send)
            return

        async def replay() -> Message:
            return received.pop() if received else await receive()

        await self.session_manager.handle_request(scope, replay, send)


async def protected_resource_metadata(scope: Scope, receive: Receive, send: Send) -> None:
    """RFC 9728: which resource this is and how tokens are presented."""
    document = {
        "resource": resource_url(),
        "resource_name": "Workflow Catalogue",
        "bearer_methods_supported": ["header"],
        "scopes_supported": AccessScope.values,
    }
    await JSONResponse(document)(scope, receive, send)


async def _admit(headers: Headers) -> AccessToken | None:
    scheme, _, text = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not (text := text.strip()):
        return None
    if (token := recognise(text)) is not None and fresh_catalogue() is not None:
        return token
    return await run_in_database(_authenticate_and_look, text)


def _authenticate_and_look(text: str) -> AccessToken | None:
    """One hop for both: whoever is let in looks at the catalogue next."""
    token = authenticate(text)
    if token is not None:
        current_catalogue()
    return token


def _is_malformed(body: bytes) -> bool:
    """Whether it is JSON but no message; what is no JSON at all, the SDK refuses in clean words."""
    try:
        jsonrpc_message_adapter.validate_python(from_json(body), by_name=False)
    except ValidationError:
        return True
    except ValueError:
        return False
    return False


def _malformed() -> Response:
    error = {"code": INVALID_REQUEST, "message": NOT_ONE_MESSAGE}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, status_code=400)


def _unauthorized() -> Response:
    metadata = f"{settings.PUBLIC_URL}{METADATA_PATH}"
    return JSONResponse(
        {
            "error": "invalid_token",
            "error_description": "Send a valid access token as Authorization: Bearer <token>.",
        },
        status_code=401,
        headers={"WWW-Authenticate": f'Bearer error="invalid_token", resource_metadata="{metadata}"'},
    )


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
