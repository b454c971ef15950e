"""Whether a request's headers say who sends it, before its body is read."""

from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.http import parse_cookie
from starlette.datastructures import Headers

from catalogue.database import run_in_database
from mcp_bridge.tokens import authenticate


async def is_known(scope: dict[str, Any]) -> bool:
    """Whether it brings a good token, or the cookie of somebody who has signed in."""
    headers = Headers(scope=scope)
    scheme, _, token = headers.get("authorization", "").partition(" ")
    session = parse_cookie(headers.get("cookie", "")).get(settings.SESSION_COOKIE_NAME, "")
    if scheme.lower() == "bearer":
        return await run_in_database(authenticate, token.strip()) is not None
    return bool(session) and await run_in_database(_has_signed_in, session)


def _has_signed_in(session_key: str) -> bool:
    store = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    return SESSION_KEY in store
