"""Access tokens at the REST door."""

from typing import Any

from django.contrib.auth.models import AnonymousUser
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed, Throttled
from rest_framework.request import Request

from mcp_bridge.models import AccessToken
from mcp_bridge.throttling import TooManyFailures, client_address, note_wrong_token
from mcp_bridge.tokens import authenticate

REFUSED = "The access token is unknown, expired or revoked; an administrator can make a new one."


class AccessTokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer <token>`. The token is `request.auth`; there is no Django user behind it."""

    def authenticate(self, request: Request) -> tuple[AnonymousUser, AccessToken] | None:
        scheme, _, text = _authorization(request).partition(" ")
        if scheme.lower() != "bearer":
            return None
        token = authenticate(text.strip())
        if token is None:
            _note_wrong_token(request, text.strip())
            raise AuthenticationFailed(REFUSED)
        return AnonymousUser(), token

    def authenticate_header(self, request: Request) -> str:
        """RFC 6750: no error code for a request that brought no token."""
        return 'Bearer error="invalid_token"' if _authorization(request) else "Bearer"


class AccessTokenDescription(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """How the API's description tells it."""

    target_class = AccessTokenAuthentication
    name = "accessToken"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "An access token, made in the admin or with `manage.py create_mcp_token`.",
        }


def _note_wrong_token(request: Request, text: str) -> None:
    address = client_address(request.META.get("REMOTE_ADDR"), request.META.get("HTTP_X_FORWARDED_FOR", ""))
    try:
        note_wrong_token(text, address=address)
    except TooManyFailures as problem:
        throttled = Throttled(detail=str(problem))
        # For `Retry-After`; given at once, REST framework would say it in the text a second time.
        throttled.wait = problem.seconds  # type: ignore[attr-defined]
        raise throttled from None


def _authorization(request: Request) -> str:
    return get_authorization_header(request).decode("iso-8859-1")
