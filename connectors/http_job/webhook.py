"""Verifying the deliveries of an engine's webhook, and reading which run has ended."""

import base64
import hmac
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs

from connectors.errors import InvalidAnswer, NotGenuine
from connectors.formats.json import UnreadableJSON, parse_json
from connectors.formats.lists import split_list
from connectors.http_job.declaration import Signature, Webhook, find
from connectors.http_job.template import PART
from connectors.network.headers import STANDARD_PREFIX, signing_key
from connectors.network.redaction import shorten
from connectors.protocol import Delivery, ReportedEnd
from connectors.simplified import identifier, shape_of

FORM = "application/x-www-form-urlencoded"
MOST_SIGNATURES = 10  # Per delivery; there are two during a key rotation
TIMESTAMP = re.compile(r"[0-9]{1,12}")


def read_report(webhook: Webhook, delivery: Delivery, *, secret: str) -> ReportedEnd | None:
    """None for a genuine delivery that reports no end. Raises NotGenuine, InvalidAnswer."""
    if webhook.signature is not None:
        _check_signature(webhook.signature, delivery, secret)
    if webhook.secret is not None:
        expected = (webhook.secret.prefix + secret).encode()
        if not hmac.compare_digest(_header(delivery, webhook.secret.header).encode(), expected):
            raise NotGenuine(f"The secret in {webhook.secret.header} does not match.")
    return find_end(webhook, _read_body(delivery, form=webhook.form))


def find_end(webhook: Webhook, report: Any) -> ReportedEnd | None:
    """`report`: the JSON of a delivery. Raises InvalidAnswer."""
    if webhook.ended is not None and not find(webhook.ended, report):
        return None
    run_id = identifier(find(webhook.run_id, report))
    if not run_id:
        place = shorten(webhook.run_id, 100)
        raise InvalidAnswer(f"The body has no run id at {place}; it is {shape_of(report)}.")
    if webhook.workflow_id is None:
        return ReportedEnd(run_id=run_id)
    workflow_id = identifier(find(webhook.workflow_id, report))
    if not workflow_id:
        raise InvalidAnswer(f"The body has no workflow id at {shorten(webhook.workflow_id, 100)}.")
    return ReportedEnd(run_id=run_id, workflow_id=workflow_id)


def _header(delivery: Delivery, name: str) -> str:
    value = delivery.headers.get(name.lower(), "")
    if not value:
        raise NotGenuine(f"The request has no header {name}.")
    return value


def _check_signature(declared: Signature, delivery: Delivery, secret: str) -> None:
    parts = _header(delivery, declared.header)
    listed = split_list(parts) if declared.timestamp_prefix else parts.split()
    timestamp = ""
    if declared.timestamp is not None:
        timestamp = _header(delivery, declared.timestamp)
    elif declared.timestamp_prefix is not None:
        timestamp = next(_after(declared.timestamp_prefix, listed), "")
    names = {"body": delivery.body, "timestamp": timestamp.encode()}
    if declared.id is not None:
        names["id"] = _header(delivery, declared.id).encode()
    signed = _fill(declared.signs, names)
    expected = [_encoded(hmac.digest(key, signed, "sha256"), declared.encoding) for key in _keys_of(secret)]
    given = [one.encode() for one in _after(declared.prefix, listed)][:MOST_SIGNATURES]
    if declared.encoding == "hex":
        given = [one.lower() for one in given]
    # All are compared, so that the time does not reveal which one matches.
    if not sum(hmac.compare_digest(one, other) for one in given for other in expected):
        raise NotGenuine(f"The signature in {declared.header} does not match the body and the secret.")
    if declared.timestamp is not None or declared.timestamp_prefix is not None:
        _check_age(timestamp, delivery.received_at, declared.tolerance_seconds)


def _after(prefix: str, listed: list[str]) -> Iterator[str]:
    return (part.removeprefix(prefix) for part in listed if part.startswith(prefix))


def _fill(template: str, names: Mapping[str, bytes]) -> bytes:
    """Inserts the raw body, whose contents are neither decoded nor filled in."""
    filled, end = [], 0
    for found in PART.finditer(template):
        filled += [
            template[end : found.start()].encode(),
            found[1][:1].encode() if found[1] else names[found[2]],
        ]
        end = found.end()
    return b"".join([*filled, template[end:].encode()])


def _keys_of(secret: str) -> Iterator[bytes]:
    yield secret.encode()
    if secret.startswith(STANDARD_PREFIX):
        with suppress(ValueError):
            yield signing_key(secret)


def _encoded(digest: bytes, encoding: str) -> bytes:
    return base64.b64encode(digest) if encoding == "base64" else digest.hex().encode()


def _check_age(timestamp: str, received_at: datetime, tolerance: int) -> None:
    if not TIMESTAMP.fullmatch(timestamp):
        raise NotGenuine("The timestamp is not in seconds since 1970.")
    apart = received_at.timestamp() - int(timestamp)
    if abs(apart) > tolerance:
        when = "old" if apart > 0 else "ahead of this server's clock"
        raise NotGenuine(f"The timestamp is {abs(apart):,.0f} s {when}; {tolerance:,} s are allowed.")


def _read_body(delivery: Delivery, *, form: str | None) -> Any:
    content_type = delivery.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = delivery.body
    if content_type == FORM and form is not None:
        try:
            fields = parse_qs(body.decode("ascii"), max_num_fields=100)
        except ValueError:
            raise InvalidAnswer("The body is not a valid form.") from None
        body = fields.get(form, [""])[-1].encode("utf-8", "replace")
    elif content_type != "application/json" and not content_type.endswith("+json"):
        raise InvalidAnswer(
            f"The body must be application/json; it is {shorten(content_type, 50) or 'of no type'}."
        )
    try:
        return parse_json(body)
    except UnreadableJSON as error:
        raise InvalidAnswer(f"The body cannot be read: {error}") from None
