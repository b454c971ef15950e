"""Security headers of every response of Django's."""

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase

PAGES = "; ".join(
    (
        "default-src 'self'",
        # Alpine, which the admin's pages are made with, compiles what stands in their attributes.
        "script-src 'self' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
"""Scripts come from our own files only: what engines, agents and clients sent is never run."""
DOCUMENTS = "default-src 'none'; frame-ancestors 'none'"
PRIVATE = ("/api", "/tools", "/workflow")
"""REST's addresses. Its answers are for their callers alone, and for no cache on the way."""


class SecurityHeaders:
    """Middleware, in front of all others."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self._get_response(request)
        if _is_debug_page(response):
            return response
        is_page = response.get("Content-Type", "").startswith("text/html")
        response.setdefault("Content-Security-Policy", PAGES if is_page else DOCUMENTS)
        if request.path.startswith(PRIVATE):
            response.setdefault("Cache-Control", "no-store")
        return response


def _is_debug_page(response: HttpResponseBase) -> bool:
    """Django's own have scripts in them."""
    return settings.DEBUG and response.status_code >= 400
