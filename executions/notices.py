"""Sends notices by e-mail and webhook, from their rows, at least once.

A signed webhook follows Standard Webhooks: `webhook-id` stays the same for each attempt; `webhook-signature`
is `v1,` and the Base64 of an HMAC-SHA256 over id, timestamp and body. A receiver's library for it takes the
characters of a secret as Base64, so ours may be `whsec_` and Base64.
"""

import base64
import hmac
import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from smtplib import SMTPException
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from loguru import logger

from catalogue.database import run_without_connection
from connectors.background import CLOCKS_APART, WorkTime
from connectors.errors import ConnectorError, backoff_seconds
from connectors.network.client import REDIRECTS, EngineClient
from connectors.network.headers import signing_key
from connectors.network.policy import ENGINE_ADDRESSES, AddressPolicy
from connectors.network.redaction import MIN_IN_VALUES_LENGTH, printable, shorten
from connectors.network.transport import HttpLimits

FIRST_SECONDS, MAX_SECONDS = 5, 3600  # Between two attempts
GIVE_UP_AFTER = timedelta(days=3)
CLAIMED = timedelta(seconds=60)  # Longer than one attempt takes
WEBHOOK_SECONDS = 15.0
AT_ONCE = 100
MAX_ERROR = 500
GONE = 410  # By Standard Webhooks, the receiver wants no more messages.
MIN_KEY = 24  # Bytes of a secret, likewise


class NotSent(Exception):
    """The message gives the reason; sending is retried."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Destination:
    name: str
    notices: QuerySet[Any]  # One server gets them all, so that one failure ends a pass.
    send: Callable[[Any], None]  # Raises NotSent


def send_all(find: Callable[[], Iterable[Destination]], *, seconds: float, turn: Lock) -> int:
    """Returns how many were sent; begins none after so many seconds, which the destinations share. One thread
    of a process has the `turn` at a time, because a receiver that does not respond would otherwise occupy all
    threads of a worker."""
    if not turn.acquire(blocking=False):
        return 0
    try:
        found, work_time, sent = list(find()), WorkTime(seconds), 0
        for destination in found:
            # Those that are left wait for the next pass, when what hung is not due.
            sent += 0 if work_time.is_over else _send_to(destination, seconds / len(found))
        return sent
    finally:
        turn.release()


def _send_to(destination: Destination, seconds: float) -> int:
    """Ends with the first failure: the server would probably fail for the next notice too."""
    work_time, sent = WorkTime(seconds), 0
    due = _due(destination.notices, timezone.now()).order_by("next_attempt_at")
    for key in list(due.values_list("pk", flat=True)[:AT_ONCE]):
        if work_time.is_over:
            break
        if (notice := _claim(destination, key)) is not None:
            if not _send(destination, notice):
                break
            sent += 1
    return sent


def _due(notices: QuerySet[Any], now: datetime) -> QuerySet[Any]:
    is_due = Q(next_attempt_at__lte=now)
    # No right clock plans so far ahead.
    is_due |= Q(next_attempt_at__gt=now + timedelta(seconds=MAX_SECONDS) + CLOCKS_APART)
    return notices.filter(is_due, sent_at=None, given_up_at=None)


def _claim(destination: Destination, key: int) -> Any:
    """No other worker sends it in the meantime; if this one is killed, it is due again."""
    now = timezone.now()
    with transaction.atomic():
        free = _due(destination.notices, now).select_for_update(skip_locked=True, of=("self",))
        notice = free.filter(pk=key).first()
        if notice is not None:
            notice.claim(until=now + CLAIMED)
    return notice


def _send(destination: Destination, notice: Any) -> bool:
    try:
        destination.send(notice)
    except NotSent as why:
        now = timezone.now()
        pause = backoff_seconds(notice.attempts - 1, first=FIRST_SECONDS, longest=MAX_SECONDS)
        notice.next_attempt_at = now + timedelta(seconds=pause)
        notice.error = shorten(printable(str(why)), MAX_ERROR)
        is_over = why.status == GONE or notice.next_attempt_at > notice.created_at + GIVE_UP_AFTER
        notice.save(update_fields=["next_attempt_at", "error"])
        if is_over:
            notice.give_up()
        text = "{} was not sent, and is given up: {}" if is_over else "{} was not sent, and is repeated: {}"
        _log_of(destination, notice, f"{is_over} {notice.error}").warning(text, notice, notice.error)
        return False
    attempts = notice.attempts
    notice.mark_sent()
    if attempts > 1:
        _log_of(destination, notice, "sent").warning("{} was sent at attempt {:,}", notice, attempts)
        # The server works again. Not those that another worker may be sending.
        now = timezone.now()
        unsent = destination.notices.filter(sent_at=None, given_up_at=None)
        unsent.filter(next_attempt_at__gt=now + CLAIMED).update(next_attempt_at=now)
    return True


def _log_of(destination: Destination, notice: Any, problem: str) -> Any:
    return logger.bind(**notice.logged, recurring=f"Notices by {destination.name}: {problem}")


def sign(secret: str, *, message_id: str, timestamp: int, body: bytes) -> str:
    signed = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.digest(signing_key(secret), signed, "sha256")
    return f"v1,{base64.b64encode(digest).decode()}"


def is_key(secret: str) -> bool:
    with suppress(ValueError):
        return len(signing_key(secret)) >= MIN_KEY
    return False


def post(
    address: str,
    content: dict[str, Any],
    *,
    message_id: str,
    secret: str = "",
    correct: str,
    policy: AddressPolicy = ENGINE_ADDRESSES,
) -> None:
    """Signs it if there is a secret. `correct`: what to correct if the address redirects."""
    body = json.dumps(content, ensure_ascii=False).encode()
    headers, timestamp = {"content-type": "application/json"}, int(time.time())
    if secret:
        headers |= {
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": sign(secret, message_id=message_id, timestamp=timestamp, body=body),
        }
    try:
        status = run_without_connection(_post(address, headers, body, policy))
    except ConnectorError as error:
        raise NotSent(error.message) from None
    if not 200 <= status < 300:
        redirect = f", a redirect, which is not followed. Correct {correct}" if status in REDIRECTS else ""
        raise NotSent(f"The webhook answered with {status}{redirect}.", status=status)


async def _post(address: str, headers: dict[str, str], body: bytes, policy: AddressPolicy) -> int:
    limits = HttpLimits(connect_seconds=5.0, read_seconds=WEBHOOK_SECONDS, total_seconds=WEBHOOK_SECONDS)
    parts = urlsplit(address)
    # Of many services, whoever knows the path or the query may send.
    values = [value for _, value in parse_qsl(parts.query) if len(value) >= MIN_IN_VALUES_LENGTH]
    secrets = [parts.path.rstrip("/"), parts.query, *values]
    origin = f"{parts.scheme}://{parts.netloc}"
    client = EngineClient(base_url=origin, limits=limits, secrets=secrets, policy=policy)
    try:
        # The whole address, as a base URL has neither a query nor a slash at its end.
        return await client.send("POST", address, content=body, headers=headers)
    finally:
        await client.aclose()


def mail(addresses: list[str], *, subject: str, text: str, message_id: str) -> None:
    message = EmailMessage(
        # One line, in case a name contains a line break.
        subject=" ".join(subject.split()),
        body=text,
        to=[settings.DEFAULT_FROM_EMAIL],
        bcc=addresses,
        headers={"Message-ID": f"<{message_id}@workflow-catalogue>"},
    )
    try:
        message.send()
    except (SMTPException, OSError) as error:
        raise NotSent(f"The mail server did not accept it: {error}") from None
