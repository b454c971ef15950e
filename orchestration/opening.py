"""The record of a request, at its first stage, before anything is done for it, and requests that come again.

An idempotency key belongs to the whole request: the model may choose differently the second time, so that a
key of the execution alone would not keep it from running twice.
"""

import hashlib
import json
from datetime import timedelta

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from orchestration.asked import Asked
from orchestration.models import WorkflowRequest
from orchestration.refusals import IdempotencyConflict
from orchestration.stages import Stage, begun

OPENING_SECONDS = 60
"""For its first stage, which takes no time, and until the second begins."""


def open_request(asked: Asked) -> WorkflowRequest:
    """A new record, or the one that the caller's key stands for; its id tells which.

    Raises IdempotencyConflict.
    """
    digest = _hash_of(asked)
    if (known := _find_by_key(asked, digest)) is not None:
        return known
    try:
        with transaction.atomic():
            return _insert(asked, digest)
    except IntegrityError:
        if (known := _find_by_key(asked, digest)) is not None:
            return known
        raise


def _insert(asked: Asked, digest: str) -> WorkflowRequest:
    now = timezone.now()
    request = WorkflowRequest(
        id=asked.id,
        caller=asked.caller.key,
        caller_name=asked.caller.name,
        idempotency_key=asked.idempotency_key,
        request_hash=digest,
        created_at=now,
        deadline_at=now + timedelta(seconds=OPENING_SECONDS),
        instructions=asked.user_instructions,
        tool_ids=asked.tool_ids,
        format_response=asked.format_response,
        format_instructions=asked.response_format_instructions,
        dry_run=asked.dry_run,
        stages=[begun(Stage.TOOL_RETRIEVAL, now)],
    )
    request.save(force_insert=True)
    return request


def _find_by_key(asked: Asked, digest: str) -> WorkflowRequest | None:
    if not asked.idempotency_key:
        return None
    mine = WorkflowRequest.objects.filter(caller=asked.caller.key, idempotency_key=asked.idempotency_key)
    if (known := mine.first()) is None:
        return None
    expired = timezone.now() - timedelta(hours=settings.CATALOGUE["idempotency_hours"])
    if known.created_at < expired:
        mine.filter(created_at__lt=expired).update(idempotency_key="")
        return None
    if known.request_hash != digest:
        raise IdempotencyConflict(known)
    return known


def _hash_of(asked: Asked) -> str:
    """The order of the tools does not count."""
    meant = [
        asked.user_instructions,
        sorted(set(asked.tool_ids)),
        asked.format_response,
        asked.response_format_instructions,
        asked.dry_run,
    ]
    return hashlib.sha256(json.dumps(meant).encode()).hexdigest()
