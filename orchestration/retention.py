"""Requests in words are kept as long as executions, and what is in them as long as payloads (E6)."""

from datetime import datetime
from typing import Any

from django.db import models, transaction
from django.utils import timezone

from executions.retention import KeptAlike, kept_alike, take_batch
from orchestration.models import WorkflowRequest

EMPTIED: dict[str, Any] = {
    "instructions": "",
    "format_instructions": "",
    "reason": "",
    "arguments": None,
    "http_spec": None,
    "formatted_response": "",
}


@transaction.atomic
def _prune_records(ended_before: datetime) -> int:
    if keys := take_batch(_ended(ended_before)):
        WorkflowRequest.objects.filter(pk__in=keys).delete()
    return len(keys)


@transaction.atomic
def _prune_payloads(ended_before: datetime) -> int:
    """The row stays: who asked, which tool was chosen, what it cost, and how it ended."""
    if keys := take_batch(_ended(ended_before).filter(payload_pruned_at=None)):
        emptied = EMPTIED | {"payload_pruned_at": timezone.now()}
        WorkflowRequest.objects.filter(pk__in=keys).update(**emptied)
    return len(keys)


def _ended(before: datetime) -> models.QuerySet[WorkflowRequest]:
    return WorkflowRequest.objects.filter(finished_at__lt=before)


kept_alike.append(
    KeptAlike(
        name="requests in words",
        prune_records=_prune_records,
        payloads="texts of requests",
        prune_payloads=_prune_payloads,
    )
)
