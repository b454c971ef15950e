"""What the headers of a request have to be before anybody asks who sends it."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.http.request import split_domain_port, validate_host
from loguru import logger
from mcp_types import INVALID_REQUEST, RequestId
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

Headers = list[tuple[bytes, bytes]]
ONCE = frozenset({b"host", b"origin", b"authorization", b"content-type", b"content-encoding"})
"""Whoever stands before us may have read the first of several, and we the last."""
LOCAL_ORIGIN = re.compile(r"http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?")
LONGEST_HOST = 300
SHOWN_CHARACTERS = 100

NOT_OUR_HOST = (
    "The Host header names no address of this server. Its operator lists them in CATALOGUE_ALLOWED_HOSTS."
)
NOT_OUR_PAGE = "Web pages of other origins may not use this server."
NOT_JSON = "Send the message as Content-Type: application/json."
ENCODED = "Send the body as it is: Content-Encoding is not supported."


def refusal(
    status: int,
    message: str,
    *,
    code: int = INVALID_REQUEST,
    request_id: RequestId | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """An HTTP answer of this status, and in it a JSON-RPC error for whoever reads that instead."""
    document = {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}
    return JSONResponse(document, status_code=status, headers=headers)


def without_padding(headers: Headers) -> Headers:
    """Blanks around a header's value are no part of it (RFC 9110), and not every server takes them off."""
    return [(name, value.strip(b" \t")) for name, value in headers]


def check_headers(scope: Scope) -> Response | None:
    """The refusal; None where nothing is wrong. Hosts and origins are looked at against DNS rebinding."""
    present = [header for header in scope["headers"] if header[0] in ONCE]
    if len(present) > len(headers := dict(present)):
        return refusal(400, f"The header {_first_repeated(present)} may be sent only once.")
    host, origin = _text(headers.get(b"host")), _text(headers.get(b"origin"))
    if len(host) > LONGEST_HOST or not _is_one_of(tuple(settings.ALLOWED_HOSTS), host):
        logger.warning(
            "Refused a request for the host {!r}, which is not one of ours.", host[:SHOWN_CHARACTERS]
        )
        return refusal(421, NOT_OUR_HOST)
    if origin and not _is_our_origin(origin):
        logger.warning("Refused a request from a page of {!r}.", origin[:SHOWN_CHARACTERS])
        return refusal(403, NOT_OUR_PAGE)
    return _check_body_type(headers) if scope["method"] == "POST" else None


def _check_body_type(headers: dict[bytes, bytes]) -> Response | None:
    media_type = _text(headers.get(b"content-type")).partition(";")[0]
    if media_type.strip().lower() != "application/json":
        return refusal(415, NOT_JSON)
    if _text(headers.get(b"content-encoding")).strip().lower() not in ("", "identity"):
        return refusal(415, ENCODED)
    return None


@lru_cache(maxsize=64)
def _is_one_of(served: tuple[str, ...], host: str) -> bool:
    """By Django's own look at it."""
    domain, _ = split_domain_port(host)
    return bool(domain) and validate_host(domain, served)


def _is_our_origin(origin: str) -> bool:
    public: Any = urlsplit(settings.PUBLIC_URL)
    return origin == f"{public.scheme}://{public.netloc}".lower() or bool(LOCAL_ORIGIN.fullmatch(origin))


def _first_repeated(headers: Sequence[tuple[bytes, bytes]]) -> str:
    names = [name for name, _ in headers]
    return next(name.decode() for name in names if names.count(name) > 1)


def _text(value: bytes | None) -> str:
    return (value or b"").decode("latin-1")
