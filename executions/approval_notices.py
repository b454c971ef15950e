"""Notices of approvals, by e-mail and webhook: the worker sends them from their rows, at least once.

A webhook follows Standard Webhooks: `webhook-id` stays the same for each attempt; `webhook-signature` is
`v1,` and the Base64 of an HMAC-SHA256 over id, timestamp and body. A receiver's library for it takes the
characters of a secret as Base64, so ours may be `whsec_` and Base64.
"""

import base64
import hmac
import json
import threading
import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from smtplib import SMTPException
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.mail import EmailMessage
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from loguru import logger

from catalogue.database import run_without_connection
from connectors.background import CLOCKS_APART, WorkTime
from connectors.errors import ConnectorError, backoff_seconds
from connectors.formats.json import readable_json
from connectors.network.client import REDIRECTS, EngineClient
from connectors.network.headers import signing_key
from connectors.network.redaction import MIN_IN_VALUES_LENGTH, printable, shorten
from connectors.network.transport import HttpLimits
from executions.approvals import PERMISSION, moment, page_of
from executions.models import Approval, ApprovalNotice, Execution

FIRST_SECONDS, MAX_SECONDS = 5, 3600  # Between two attempts
GIVE_UP_AFTER = timedelta(days=3)
CLAIMED = timedelta(seconds=60)  # Longer than one attempt takes
WEBHOOK_SECONDS = 15.0
AT_ONCE = 100
SHOWN_ARGUMENTS = 4_000
MAX_APPROVERS = 200
MAX_ERROR = 500


class NotSent(Exception):
    """The message gives the reason; sending is retried."""


_sending = threading.Lock()


def send_due(*, seconds: float) -> int:
    """Returns how many were sent; begins none after so many seconds. One thread of a process does it at a
    time, because a receiver that does not respond would otherwise occupy all threads of a worker."""
    if not _sending.acquire(blocking=False):
        return 0
    try:
        return sum(_send_through(channel, seconds / 2) for channel in ApprovalNotice.Channel)
    finally:
        _sending.release()


def _send_through(channel: ApprovalNotice.Channel, seconds: float) -> int:
    """Ends with the first failure: the server would probably fail for the next notice too."""
    work_time, sent = WorkTime(seconds), 0
    due = _due(timezone.now()).filter(channel=channel).order_by("next_attempt_at")
    for key in list(due.values_list("pk", flat=True)[:AT_ONCE]):
        if work_time.is_over:
            break
        if (notice := _claim(key)) is not None:
            if not _send(notice):
                break
            sent += 1
    return sent


def _due(now: datetime) -> QuerySet[ApprovalNotice]:
    is_due = Q(next_attempt_at__lte=now)
    # No right clock plans so far ahead.
    is_due |= Q(next_attempt_at__gt=now + timedelta(seconds=MAX_SECONDS) + CLOCKS_APART)
    return ApprovalNotice.objects.filter(is_due, sent_at=None, given_up_at=None)


def _claim(key: int) -> ApprovalNotice | None:
    """No other worker sends it in the meantime; if this one is killed, it is due again."""
    now = timezone.now()
    with transaction.atomic():
        notice = _due(now).select_for_update(skip_locked=True, of=("self",)).filter(pk=key).first()
        if notice is not None:
            notice.next_attempt_at, notice.attempts = now + CLAIMED, notice.attempts + 1
            notice.save(update_fields=["next_attempt_at", "attempts"])
    return notice


def _send(notice: ApprovalNotice) -> bool:
    approval = Approval.objects.select_related("execution__payload", "asked_by").get(pk=notice.approval_id)
    send = send_mail if notice.channel == ApprovalNotice.Channel.EMAIL else send_webhook
    try:
        send(notice, approval)
    except NotSent as why:
        now = timezone.now()
        pause = backoff_seconds(notice.attempts - 1, first=FIRST_SECONDS, longest=MAX_SECONDS)
        notice.next_attempt_at = now + timedelta(seconds=pause)
        notice.error = shorten(printable(str(why)), MAX_ERROR)
        is_over = notice.next_attempt_at > notice.created_at + GIVE_UP_AFTER
        notice.given_up_at = now if is_over else None
        notice.save(update_fields=["next_attempt_at", "error", "given_up_at"])
        text = "{} was not sent, and is given up: {}" if is_over else "{} was not sent, and is repeated: {}"
        _log_of(notice, f"{is_over} {notice.error}").warning(text, notice, notice.error)
        return False
    notice.sent_at, notice.error = timezone.now(), ""
    notice.save(update_fields=["sent_at", "error"])
    if notice.attempts > 1:
        _log_of(notice, "sent").warning("{} was sent at attempt {:,}", notice, notice.attempts)
        # The server works again. Not those that another worker may be sending.
        now = timezone.now()
        unsent = ApprovalNotice.objects.filter(channel=notice.channel, sent_at=None, given_up_at=None)
        unsent.filter(next_attempt_at__gt=now + CLAIMED).update(next_attempt_at=now)
    return True


def _log_of(notice: ApprovalNotice, problem: str) -> Any:
    return logger.bind(execution=notice.approval_id, recurring=f"Notices by {notice.channel}: {problem}")


def describe(notice: ApprovalNotice, approval: Approval) -> dict[str, Any]:
    """Returns the body of a webhook."""
    execution = approval.execution
    return {
        "type": f"approval.{notice.kind}",
        "timestamp": notice.created_at.isoformat(),
        "data": {
            "execution_id": str(execution.pk),
            "tool": execution.tool_name,
            "source": execution.source_name,
            "caller": execution.caller_name or execution.caller,
            "door": execution.door,
            "client": execution.payload.metadata.get("client"),
            "arguments": execution.payload.input,
            "reason": approval.reason,
            "state": approval.state,
            "outcome": approval.outcome,
            "approvers_needed": approval.approvers_needed,
            "requested_at": approval.requested_at.isoformat(),
            "expires_at": approval.expires_at.isoformat(),
            "decided_at": approval.decided_at and approval.decided_at.isoformat(),
            "url": page_of(approval),
        },
    }


def sign(secret: str, *, message_id: str, timestamp: int, body: bytes) -> str:
    signed = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.digest(signing_key(secret), signed, "sha256")
    return f"v1,{base64.b64encode(digest).decode()}"


def send_webhook(notice: ApprovalNotice, approval: Approval) -> None:
    address = settings.CATALOGUE.approval_webhook_url
    secret = settings.CATALOGUE.approval_webhook_secret.get_secret_value()
    if not address:
        return
    body = json.dumps(describe(notice, approval), ensure_ascii=False).encode()
    message_id, timestamp = f"approval-notice-{notice.pk}", int(time.time())
    headers = {
        "content-type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(secret, message_id=message_id, timestamp=timestamp, body=body),
    }
    try:
        status = run_without_connection(_post(address, headers, body))
    except ConnectorError as error:
        raise NotSent(error.message) from None
    if not 200 <= status < 300:
        redirect = ", a redirect, which is not followed. Correct CATALOGUE_APPROVAL_WEBHOOK_URL"
        raise NotSent(f"The webhook answered with {status}{redirect if status in REDIRECTS else ''}.")


async def _post(address: str, headers: dict[str, str], body: bytes) -> int:
    limits = HttpLimits(connect_seconds=5.0, read_seconds=WEBHOOK_SECONDS, total_seconds=WEBHOOK_SECONDS)
    parts = urlsplit(address)
    # Of many services, whoever knows the path or the query may send.
    values = [value for _, value in parse_qsl(parts.query) if len(value) >= MIN_IN_VALUES_LENGTH]
    secrets = [parts.path.rstrip("/"), parts.query, *values]
    client = EngineClient(base_url=f"{parts.scheme}://{parts.netloc}", limits=limits, secrets=secrets)
    try:
        # The whole address, as a base URL has neither a query nor a slash at its end.
        return await client.send("POST", address, content=body, headers=headers)
    finally:
        await client.aclose()


def send_mail(notice: ApprovalNotice, approval: Approval) -> None:
    is_request = notice.kind == ApprovalNotice.Kind.REQUESTED
    if is_request and not approval.is_waiting:
        # Decided before it was sent.
        return
    people = approvers_of(approval) if is_request else [approval.asked_by]
    addresses = sorted({person.email for person in people if person is not None and person.email})
    if not addresses:
        return
    execution = approval.execution
    subject = (
        f"Approval needed: {execution.tool_name}"
        if is_request
        else f"{execution.tool_name}: {approval.state}"
    )
    message = EmailMessage(
        # One line, in case a name contains a line break.
        subject=" ".join(subject.split()),
        body=_letter(approval, execution),
        to=[settings.DEFAULT_FROM_EMAIL],
        bcc=addresses,
        headers={"Message-ID": f"<approval-notice-{notice.pk}@workflow-catalogue>"},
    )
    try:
        message.send()
    except (SMTPException, OSError) as error:
        raise NotSent(f"The mail server did not accept it: {error}") from None


def approvers_of(approval: Approval) -> Iterable[Any]:
    """Active people who may decide it."""
    people = get_user_model().objects.with_perm(
        PERMISSION, backend="django.contrib.auth.backends.ModelBackend"
    )
    if approval.asked_by_id is not None and not settings.CATALOGUE.approve_own_calls:
        people = people.exclude(pk=approval.asked_by_id)
    return people.filter(is_staff=True).exclude(email="").order_by("pk")[:MAX_APPROVERS]


def _letter(approval: Approval, execution: Execution) -> str:
    arguments = readable_json(execution.payload.input)
    if len(arguments) > SHOWN_ARGUMENTS:
        arguments = f"{arguments[:SHOWN_ARGUMENTS]}\n... The page shows all of them."
    lines = [
        f"{execution.caller_name or execution.caller} calls {execution.tool_name}, {execution.source_name}.",
        approval.reason,
        approval.outcome or f"It waits until {moment(approval.expires_at)}.",
        page_of(approval),
        f"Arguments:\n{arguments}",
    ]
    return "\n\n".join(lines)
