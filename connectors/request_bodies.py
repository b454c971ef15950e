"""Bodies of requests."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from connectors.errors import Rejected


def written(body: Any, form: Mapping[str, str] | None) -> tuple[dict[str, str], bytes | None]:
    """What is sent, and the header that says what it is."""
    if form is not None:
        return {"content-type": "application/x-www-form-urlencoded"}, urlencode(form).encode()
    return ({}, None) if body is None else ({"content-type": "application/json"}, _json_bytes(body))


def _json_bytes(body: Any) -> bytes:
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError):
        raise Rejected("The arguments cannot be written as JSON, so they were not sent.") from None
