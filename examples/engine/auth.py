"""Lets in only clients that know the engine's API key."""

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from examples.engine.responses import json_error

SCHEME = "Api-Key"
PUBLIC_PATHS = {"/healthz"}


class ApiKeyGate:
    """ASGI middleware that answers 401 unless `Authorization: Api-Key <key>` carries the right key."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._api_key = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PUBLIC_PATHS:
            await self._app(scope, receive, send)
        elif objection := self._objection(Headers(scope=scope).get("authorization")):
            refusal = json_error(401, objection, headers={"WWW-Authenticate": SCHEME})
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _objection(self, authorization: str | None) -> str | None:
        if authorization is None:
            return f"Send the header 'Authorization: {SCHEME} <key>'."
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != SCHEME.lower():
            return f"The Authorization header must use the scheme {SCHEME}, as in '{SCHEME} <key>'."
        if not hmac.compare_digest(key.strip().encode(), self._api_key):
            return "The API key is not the one this engine was started with."
        return None
