"""Requests in words among the numbers of the admin's first page."""

from django.db.models import Count
from django.utils import timezone

from executions.dashboard import WINDOW, Card, address, further_cards
from orchestration.admin.page import STATUS_BADGES
from orchestration.models import WorkflowRequest

REQUESTS = "admin:orchestration_workflowrequest_changelist"
LAST_DAY = {"created": "in the last 24 hours"}


def _requests() -> Card:
    recent = WorkflowRequest.objects.filter(created_at__gte=timezone.now() - WINDOW)
    counts = dict(recent.values_list("status").annotate(Count("pk")).order_by())
    return Card(
        title="Natural-language requests in the last 24 hours",
        number=sum(counts.values()),
        url=address(REQUESTS, **LAST_DAY),
        badges=[
            (
                f"{counts[status]} {status.label}",
                kind,
                address(REQUESTS, **LAST_DAY, status__exact=status.value),
            )
            for status, kind in STATUS_BADGES.items()
            if status in counts
        ],
    )


further_cards["orchestration.view_workflowrequest"] = (_requests,)
