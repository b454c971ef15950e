"""What workflows take and give: JSON in Temporal's payloads. What is no JSON is told in words."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from temporalio.api.common.v1 import Payload, Payloads

from connectors.errors import Rejected
from connectors.formats.json import UnreadableJSON, parse_json

ENCODING = "encoding"
JSON_ENCODINGS = ("json/plain", "json/protobuf")
NOTHING = "binary/null"


def payload_of(value: Any) -> Payload:
    """Raises Rejected for what cannot be written as JSON."""
    try:
        written = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError):
        raise Rejected("The arguments cannot be written as JSON, so they were not sent.") from None
    return Payload(metadata={ENCODING: JSON_ENCODINGS[0].encode()}, data=written)


def payloads_of(values: Iterable[Any]) -> Payloads:
    return Payloads(payloads=[payload_of(value) for value in values])


def value_of(payload: Payload, *, limit: int, bytes_in_all: int | None = None) -> Any:
    """A JSON value. Of what cannot be one, or is larger than so many bytes, an object that says so."""
    encoding = payload.metadata.get(ENCODING, b"").decode("ascii", "replace") or "none"
    if encoding == NOTHING:
        return None
    if (bytes_in_all or len(payload.data)) > limit:
        return _told(payload, encoding, f"is larger than the {limit:,} bytes that are taken over")
    if encoding not in JSON_ENCODINGS:
        return _told(payload, encoding, "is no JSON and cannot be shown")
    try:
        return parse_json(payload.data)
    except UnreadableJSON as error:
        return _told(payload, encoding, f"cannot be read: {error}")


def values_of(payloads: Sequence[Payload], *, limit: int) -> Any:
    """Of several, as some SDKs can give, a list; of none, None."""
    total = sum(len(payload.data) for payload in payloads)
    values = [value_of(payload, limit=limit, bytes_in_all=total) for payload in payloads]
    return values[0] if len(values) == 1 else values or None


def is_readable(payload: Payload) -> bool:
    return payload.metadata.get(ENCODING, b"").decode("ascii", "replace") in JSON_ENCODINGS


def _told(payload: Payload, encoding: str, why: str) -> dict[str, Any]:
    return {
        "unreadable": f"What Temporal holds here {why}.",
        ENCODING: encoding,
        "bytes": len(payload.data),
    }
