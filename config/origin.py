from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase

from audit.recording import Origin, origin
from mcp_bridge.addresses import client_address


class OriginMiddleware:
    """Notes for the audit where a request comes from."""

    def __init__(self, answer: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._answer = answer

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        peer, forwarded = request.META.get("REMOTE_ADDR"), request.headers.get("X-Forwarded-For", "")
        noted = origin.set(Origin(client_address(peer, forwarded), request.headers.get("User-Agent", "")))
        try:
            return self._answer(request)
        finally:
            origin.reset(noted)
