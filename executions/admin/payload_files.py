"""A payload as a file: all of it, where the page shows the beginning."""

import uuid

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse

from executions.models import Execution, ExecutionPayload

MAY_LOOK = ("executions.view_execution", "executions.change_execution")
NAMES = frozenset({"input", "output", "content", "start_answer", "status_answer"})


def send_payload(request: HttpRequest, key: uuid.UUID, name: str) -> HttpResponse:
    """As JSON that a browser stores and never shows: engines say in it whatever they like."""
    if not any(map(request.user.has_perm, MAY_LOOK)):
        raise PermissionDenied
    payload = get_object_or_404(ExecutionPayload, pk=key)
    value = getattr(payload, name) if name in NAMES else None
    if value is None:
        raise Http404(f"There is no {name} of this execution.")
    response = JsonResponse(value, safe=False, json_dumps_params={"indent": 2})
    response["Content-Disposition"] = f'attachment; filename="{key}-{name}.json"'
    response["X-Content-Type-Options"] = "nosniff"
    return response


def payload_address(execution: Execution, name: str) -> str:
    return reverse("admin:executions_execution_payload", args=[execution.pk, name])
