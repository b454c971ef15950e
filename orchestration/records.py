"""Natural-language requests, and their records: idempotency, ends with runs, interrupted ones, pruning.

RequestRefused
├── IdempotencyConflict   its key belongs to another request
├── NotReplayable         it names no successful dry run of its caller
└── StillRunning          the first request with its key still runs
"""

import asyncio
import hashlib
import json
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.conf import settings
from django.db import IntegrityError, models, transaction
from django.utils import timezone, translation
from loguru import logger

from access.callers import Caller
from catalogue.database import run_in_database
from executions.models import OPEN, Execution, State
from executions.retention import KeptAlike, kept_alike, take_batch
from executions.starting import first_unless_expired
from orchestration.models import Failure, Stage, StageState, WorkflowRequest, started_stage

OPENING_SECONDS = 60  # For the first stage
LOOK_AGAIN_SECONDS = 0.5
WITH_RUN = ("execution__payload", "execution__cached_from__payload")  # Relations that `raw_response_of` reads
BATCH = 100
FORMATTED_WITHIN = timedelta(minutes=15)  # After the run's end, however many processes end while they do it
UNREAD = (
    "instructions", "format_instructions", "tool_ids", "reason", "arguments", "http_spec",
    "formatted_response", "error", "stages",
)  # fmt: skip
"""Deferred; ending a request reads its stages."""
NOT_IN_WORDS = "The model did not put the response into words in time."
RUN_GONE = "The record of its run was removed before the request ended."
FAILURES = {State.TIMED_OUT: Failure.RUN_TIMED_OUT, State.UNCONFIRMED: Failure.UNCONFIRMED}
"""Failures of runs other than RUN_FAILED."""
DO_NOT_REPEAT = (
    "It may have run: a repeated request may run it twice. An administrator must find out whether it ran "
    "and record it."
)
EMPTIED: dict[str, Any] = {
    "instructions": "",
    "format_instructions": "",
    "reason": "",
    "arguments": None,
    "http_spec": None,
    "formatted_response": "",
}
MAX_INSTRUCTIONS_LENGTH = 20_000
MAX_FORMAT_INSTRUCTIONS = 5_000  # Characters
MAX_TOOLS = 200  # In one request


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestInput:
    user_instructions: str
    tool_ids: list[str]
    caller: Caller
    format_response: bool = False
    response_format_instructions: str = ""
    dry_run: bool = False
    idempotency_key: str = ""  # One request per caller and key; empty: no key. See `read_idempotency_key`.
    fresh: bool = False  # Bypasses the result cache
    replayed_dry_run: uuid.UUID | None = None  # The dry run whose call is made instead of asking the model
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    """Of the record and the execution, unless the key belongs to an existing request."""


class RequestRefused(Exception):
    """Nothing was recorded or started; the message says what to do instead."""

    message: ClassVar[str]

    def __init__(self, request: WorkflowRequest) -> None:
        super().__init__(self.message.format(request.pk))
        self.request = request  # The existing one


class IdempotencyConflict(RequestRefused):
    message = (
        "This idempotency key belongs to a different request, {}. Use a new key for a new request; nothing "
        "was started."
    )


class NotReplayable(RequestRefused):
    message = (
        "Only your own successful dry runs can be sent, while their arguments are kept. Make a new request; "
        "nothing was started."
    )


class StillRunning(RequestRefused):
    message = (
        "The request {} with this idempotency key is still in progress. Repeat it later with the same key; "
        "nothing was started twice."
    )


def open_request(asked: RequestInput) -> WorkflowRequest:
    """Returns a new record, or the existing one of the key, with another id. Raises IdempotencyConflict.

    The key belongs to the whole request: the model may choose another tool for the same words.
    """
    meant = [
        asked.user_instructions,
        sorted(set(asked.tool_ids)),
        asked.format_response,
        asked.response_format_instructions,
        asked.dry_run,
    ]
    digest = hashlib.sha256(json.dumps(meant).encode()).hexdigest()
    if (known := _find_by_key(asked, digest)) is not None:
        return known
    now = timezone.now()
    request = WorkflowRequest(
        id=asked.id,
        caller=asked.caller.key,
        caller_name=asked.caller.name,
        toolset=asked.caller.toolset or "",
        idempotency_key=asked.idempotency_key,
        request_hash=digest,
        created_at=now,
        deadline_at=now + timedelta(seconds=OPENING_SECONDS),
        instructions=asked.user_instructions,
        tool_ids=asked.tool_ids,
        format_response=asked.format_response,
        format_instructions=asked.response_format_instructions,
        dry_run=asked.dry_run,
        stages=[started_stage(Stage.TOOL_RETRIEVAL, now)],
    )
    try:
        with transaction.atomic():
            request.save(force_insert=True)
    except IntegrityError:
        if (known := _find_by_key(asked, digest)) is not None:
            return known
        raise
    return request


def _find_by_key(asked: RequestInput, digest: str) -> WorkflowRequest | None:
    if not asked.idempotency_key:
        return None
    mine = WorkflowRequest.objects.filter(caller=asked.caller.key, idempotency_key=asked.idempotency_key)
    if (known := first_unless_expired(mine)) is None:
        return None
    if known.request_hash != digest or not asked.caller.owns(known):
        raise IdempotencyConflict(known)
    return known


async def wait_for_original(request: WorkflowRequest) -> None:
    """Waits at most `inline_wait` seconds. Raises StillRunning unless only the run continues."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + settings.CATALOGUE.inline_wait
    while request.is_running:
        if loop.time() >= give_up_at:
            if request.awaits_run:
                return
            raise StillRunning(request)
        await asyncio.sleep(LOOK_AGAIN_SECONDS)
        request = await run_in_database(_look_again, request.pk)


def _look_again(request_id: uuid.UUID) -> WorkflowRequest:
    reap_overdue()
    settle_with_runs()
    return WorkflowRequest.objects.get(pk=request_id)


def read_settled(request_id: uuid.UUID) -> WorkflowRequest:
    request = WorkflowRequest.objects.select_related(*WITH_RUN).get(pk=request_id)
    settle_with_run(request)
    return request


def warnings_of(request: WorkflowRequest) -> list[str]:
    if not request.awaits_run:
        return [*request.warnings]
    execution = request.execution
    state = "" if execution is None else f" ({execution.state_label})"
    how_to_read_the_rest = (
        f"The run continues{state}, and the request ends when the run does: GET "
        f"/api/workflow-requests/{request.pk}/ then has the answer"
        f"{', with formatted_response' if request.format_response else ''}, and GET "
        f"/api/executions/{request.execution_id}/ the state of the run."
    )
    return [*request.warnings, how_to_read_the_rest]


def settle_with_runs() -> int:
    """Ends answered requests whose run has ended or is gone, one batch at most. Returns their number."""
    answered = WorkflowRequest.objects.filter(finished_at=None, deadline_at=None)
    waiting = answered.exclude(execution__state__in=OPEN).exclude(pk__in=unformatted().values("pk"))
    waiting = waiting.select_related("execution").order_by()
    return sum(settle_with_run(request) for request in waiting.defer(*UNREAD)[:BATCH])


def unformatted() -> models.QuerySet[WorkflowRequest]:
    """Requests that no process works on, though their run has completed and they are to be formatted: they
    were answered before that, or their process ended."""
    now = timezone.now()
    # Not joined: SQLite would begin with the completed runs, of which there are far more than open requests.
    completed = Execution.objects.filter(
        pk=models.OuterRef("execution_id"), state=State.COMPLETED, finished_at__gt=now - FORMATTED_WITHIN
    )
    return WorkflowRequest.objects.filter(
        models.Q(deadline_at=None) | models.Q(deadline_at__lt=now),
        models.Exists(completed),
        finished_at=None,
        format_response=True,
    )


@translation.override(None)  # The record is English, whoever reads it first
def settle_with_run(request: WorkflowRequest) -> bool:
    """Ends it as its run ended. Returns False if the run continues, the response is to be formatted or the
    request has ended."""
    execution = request.execution
    if not request.awaits_run or (execution is not None and not execution.is_settled):
        return False
    if execution is None:
        return request.fail(RUN_GONE, failure=Failure.INTERRUPTED)
    if execution.succeeded:
        if request.format_response and unformatted().filter(pk=request.pk).exists():
            return False
        lacks = [NOT_IN_WORDS] if request.format_response else []
        return request.succeed(
            message=execution.state_label,
            at=execution.finished_at,
            warnings=[*request.warnings, *lacks],
        )
    message, failure = describe_failure(execution)
    ended = request.fail(message, failure=failure, at=execution.finished_at, execution_id=execution.pk)
    if ended:
        bound = logger.bind(request=request.pk, caller=request.caller, stage=request.error_stage)
        bound.bind(tool=request.selected_tool, execution=execution.pk).warning(
            "A natural-language request failed after it was answered: {}", message
        )
    return ended


def reap_overdue() -> int:
    """Ends requests past their deadline, one batch at most; their runs continue. Returns their number."""
    ended = 0
    overdue = WorkflowRequest.objects.filter(finished_at=None, deadline_at__lt=timezone.now())
    for request in overdue.exclude(pk__in=unformatted().values("pk"))[:BATCH]:
        if request.stage == Stage.RESPONSE_FORMATTING:
            warnings = [*request.warnings, NOT_IN_WORDS]
            ended += request.succeed(message=NOT_IN_WORDS, state=StageState.FAILED, warnings=warnings)
            continue
        # An execution has its request's id.
        execution = Execution.objects.filter(pk=request.pk).values_list("pk", flat=True).first()
        why = "The process that worked on it ended. Nothing was started; send the request again."
        if execution is not None:
            why = f"The process that worked on it ended; the run continues as execution {request.pk}."
        elif request.stage == Stage.API_EXECUTION:
            why = "The process that worked on it ended; there is no sign that the tool was started."
        if request.fail(why, failure=Failure.INTERRUPTED, execution_id=execution):
            ended += 1
            logger.bind(request=request.pk, stage=request.error_stage).error("A request was interrupted")
    return ended


def describe_failure(execution: Execution) -> tuple[str, Failure]:
    failure = FAILURES.get(State(execution.state), Failure.RUN_FAILED)
    why = execution.error or "No reason was given."
    advice = f" {DO_NOT_REPEAT}" if failure == Failure.UNCONFIRMED else ""
    return f"{execution.tool_name}: {execution.state_label}. {why}{advice}", failure


def raw_response_of(execution: Execution, *, of_http_tool: bool) -> dict[str, Any]:
    """Returns the HTTPResponseSpec of an HTTP tool's answer, also of a cached one; else the outcome."""
    ran = execution if execution.cached_at is None else execution.cached_from
    if of_http_tool and ran is not None:
        for answer in (ran.payload.status_answer, ran.payload.start_answer):
            if isinstance(answer, dict) and isinstance(answer.get("response"), dict):
                response: dict[str, Any] = answer["response"]
                return response
    return {
        "execution_id": str(execution.pk),
        "state": execution.state,
        "output": execution.payload.output,
        "error": execution.error,
    }


@transaction.atomic
def _prune_records(ended_before: datetime) -> int:
    if keys := take_batch(_ended(ended_before)):
        WorkflowRequest.objects.filter(pk__in=keys).delete()
    return len(keys)


@transaction.atomic
def _prune_payloads(ended_before: datetime) -> int:
    """Keeps caller, tool, costs and outcome."""
    if keys := take_batch(_ended(ended_before).filter(payload_pruned_at=None)):
        emptied = EMPTIED | {"payload_pruned_at": timezone.now()}
        WorkflowRequest.objects.filter(pk__in=keys).update(**emptied)
    return len(keys)


def _ended(before: datetime) -> models.QuerySet[WorkflowRequest]:
    return WorkflowRequest.objects.filter(finished_at__lt=before)


kept_alike.append(
    KeptAlike(
        name="natural-language requests",
        prune_records=_prune_records,
        payloads="texts of requests",
        prune_payloads=_prune_payloads,
    )
)
