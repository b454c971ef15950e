"""What web pages of other origins may read (CORS): all of them the metadata; those that the operator lists
MCP and the authorization server. No answer depends on a cookie, and browsers may not send any."""

from functools import lru_cache

from django.conf import settings
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

METADATA = (
    "/.well-known/oauth-protected-resource",
    "/.well-known/oauth-authorization-server",
    "/.well-known/openid-configuration",
)
ENDPOINTS = ("/mcp", "/oauth/token", "/oauth/register", "/oauth/revoke")
READABLE = ("WWW-Authenticate", "Mcp-Session-Id", "Retry-After")  # Besides those that pages always see


@lru_cache(maxsize=4)
def _origins(listed: str) -> frozenset[str]:
    return frozenset(one.strip().rstrip("/").lower() for one in listed.split(",") if one.strip())


def allowed_origins() -> frozenset[str]:
    return _origins(settings.CATALOGUE["allowed_origins"])


class CrossOrigin:
    """Middleware; answers preflight requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._for_all = CORSMiddleware(app, allow_origins=["*"], allow_headers=["*"])
        self._for_listed = CORSMiddleware(
            app,
            allow_origins=sorted(allowed_origins()),
            allow_methods=["GET", "POST", "DELETE"],  # Of MCP; what an endpoint has not, it refuses itself
            allow_headers=["*"],
            expose_headers=READABLE,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._rules_for(scope)(scope, receive, send)

    def _rules_for(self, scope: Scope) -> ASGIApp:
        path = scope.get("path", "")
        if path.startswith(METADATA):
            return self._for_all
        is_endpoint = path in ENDPOINTS or path.startswith("/mcp/")
        return self._for_listed if is_endpoint and allowed_origins() else self._app
