"""Notices of approvals, by e-mail and webhook."""

from collections.abc import Iterable
from threading import Lock
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model

from connectors.formats.json import readable_json
from executions import notices
from executions.approvals import PERMISSION, moment, page_of
from executions.models import Approval, ApprovalNotice, Execution

SHOWN_ARGUMENTS = 4_000
MAX_APPROVERS = 200
_turn = Lock()


def send_due(*, seconds: float) -> int:
    """Returns how many were sent; begins none after so many seconds."""
    return notices.send_all(_destinations, seconds=seconds, turn=_turn)


def _destinations() -> Iterable[notices.Destination]:
    by_channel = {ApprovalNotice.Channel.EMAIL: send_mail, ApprovalNotice.Channel.WEBHOOK: send_webhook}
    for channel, send in by_channel.items():
        yield notices.Destination(channel, ApprovalNotice.objects.filter(channel=channel), send)


def _approval_of(notice: ApprovalNotice) -> Approval:
    return Approval.objects.select_related("execution__payload", "asked_by").get(pk=notice.approval_id)


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
            "arguments": execution.payload.sent_input,
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


def send_webhook(notice: ApprovalNotice) -> None:
    if address := settings.CATALOGUE.approval_webhook_url:
        notices.post(
            address,
            describe(notice, _approval_of(notice)),
            message_id=notice.message_id,
            secret=settings.CATALOGUE.approval_webhook_secret.get_secret_value(),
            correct="CATALOGUE_APPROVAL_WEBHOOK_URL",
        )


def send_mail(notice: ApprovalNotice) -> None:
    approval = _approval_of(notice)
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
    text = _letter(approval, execution)
    notices.mail(addresses, subject=subject, text=text, message_id=notice.message_id)


def approvers_of(approval: Approval) -> Iterable[Any]:
    """Active people who may decide it."""
    people = get_user_model().objects.with_perm(
        PERMISSION, backend="django.contrib.auth.backends.ModelBackend"
    )
    if approval.asked_by_id is not None and not settings.CATALOGUE.approve_own_calls:
        people = people.exclude(pk=approval.asked_by_id)
    return people.filter(is_staff=True).exclude(email="").order_by("pk")[:MAX_APPROVERS]


def _letter(approval: Approval, execution: Execution) -> str:
    arguments = readable_json(execution.payload.sent_input)
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
