"""From a call to a durable record: who may run what, with which arguments, and what was asked before.

Arguments are the same if they are the same JSON: the order of names and white space do not count, while `1`
and `1.0` differ, since an engine may tell them apart.
"""

import hashlib
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone
from loguru import logger

from catalogue.argument_overrides import complete_arguments, settle_arguments
from catalogue.database import in_turn
from catalogue.exposure import current_catalogue, find_named
from catalogue.models import Workflow
from catalogue.naming import find_similar_names
from catalogue.schemas import ArgumentProblem
from executions.admission import admit
from executions.callers import Caller
from executions.creating import StartRequest, insert_execution, new_execution
from executions.models import ACTIVE, Execution, State
from executions.models.execution import LONG_PAST
from executions.querysets import has_abandoned
from executions.refusals import (
    LONGEST_KEY,
    IdempotencyConflict,
    InvalidArguments,
    InvalidIdempotencyKey,
    UnknownTool,
)
from executions.result_cache import answer_from_cache, count_run, mark_for_cache
from executions.runner.lease import LEASE


def read_idempotency_key(sent: Any) -> str:
    """The key that a client sent. Raises InvalidIdempotencyKey, also for an empty one.

    Whoever sends a key relies on it, so that one which cannot be used is not just left out.
    """
    if not isinstance(sent, str) or not 0 < len(sent) <= LONGEST_KEY:
        raise InvalidIdempotencyKey
    if not (sent.isascii() and sent.isprintable() and sent.strip()):
        raise InvalidIdempotencyKey
    return sent


def exposed_workflow(tool_name: str, *, caller: Caller) -> Workflow:
    """The workflow behind a tool name. Raises UnknownTool, also for one outside the caller's toolset."""
    shown = current_catalogue().seen_through(caller.toolset)
    if (workflow := find_named(shown, tool_name)) is None:
        renamed = [name for name, other in shown.items() if tool_name in other.former_tool_names]
        raise UnknownTool(tool_name, renamed=renamed, similar=find_similar_names(tool_name, shown))
    return workflow


def _find_workflow(request: StartRequest) -> Workflow:
    """Raises UnknownTool."""
    if request.may_be_hidden:
        at_hand = Workflow.objects.select_related("source").filter(source__enabled=True)
        if (workflow := at_hand.filter(tool_name=request.tool_name).first()) is not None:
            return workflow
    return exposed_workflow(request.tool_name, caller=request.caller)


def create_execution(request: StartRequest, *, holder: str = "") -> Execution:
    """Commit the record of a run that is about to be started, or find the one that the request belongs to.

    What a cached result answers is completed as it is created.
    With a `holder`, a request that waits: where the limits have room, a new record is STARTING under its
    lease, and the holder goes on at once with `advancing.launch`. Without one a worker will.
    Raises the subclasses of StartRefused.
    """
    written = request
    if (asked_before := _find_by_key(written)) is not None:
        return asked_before
    workflow = _find_workflow(request)
    # A request that comes again is known by the arguments as they were written, with what a curator has set.
    digest = _hash_of(written, workflow)
    settled = settle_arguments(workflow.input_schema, workflow.argument_overrides, request.arguments)
    if settled.problems:
        raise InvalidArguments(request.tool_name, settled.problems)
    request = replace(request, arguments=settled.arguments)
    if holder and (abandoned := _reattach(request, workflow, digest)) is not None:
        return abandoned
    try:
        if (answered := answer_from_cache(request, workflow, digest=digest)) is not None:
            return answered
        execution = _record(request, workflow, digest, holder)
    except IntegrityError:
        if (asked_before := _find_by_key(written)) is not None:
            return asked_before
        # Deleted in the moment for which the catalogue is remembered.
        raise UnknownTool(request.tool_name) from None
    logger.bind(
        execution=execution.pk, tool=request.tool_name, caller=request.caller.key, door=request.door.value
    ).info("Execution created" if execution.admitted_at else "Execution queued")
    return execution


def _hash_of(request: StartRequest, workflow: Workflow | None) -> str:
    """Of the arguments that the workflow gets for those of the request. Raises InvalidArguments."""
    overrides = {} if workflow is None else workflow.argument_overrides
    arguments = complete_arguments(overrides, request.arguments)
    try:
        canonical = json.dumps(arguments, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError:
        problem = ArgumentProblem("", "JSON has no numbers that are infinite or none at all (NaN)")
        raise InvalidArguments(request.tool_name, [problem]) from None
    # Not cut like what an engine answers: it is what a start that has to be repeated will send.
    if (size := len(canonical)) > (limit := settings.CATALOGUE["max_payload_bytes"]):
        problem = ArgumentProblem("", f"{size} bytes are over the limit of {limit}")
        raise InvalidArguments(request.tool_name, [problem])
    return hashlib.sha256(canonical.encode()).hexdigest()


def _find_by_key(request: StartRequest) -> Execution | None:
    """The execution that the caller's key stands for. Raises InvalidIdempotencyKey or IdempotencyConflict."""
    if not request.idempotency_key:
        return None
    key = read_idempotency_key(request.idempotency_key)
    mine = Execution.objects.filter(caller=request.caller.key, idempotency_key=key)
    known = mine.select_related("workflow__source").first()
    if known is None:
        return None
    expired = timezone.now() - timedelta(hours=settings.CATALOGUE["idempotency_hours"])
    if known.created_at < expired:
        mine.filter(created_at__lt=expired).update(idempotency_key="")
        return None
    is_same = request.tool_name in _names_of(known) and known.arguments_hash == _hash_of(
        request, known.workflow
    )
    if not is_same:
        raise IdempotencyConflict(known, tool_name=request.tool_name)
    return known


def _names_of(execution: Execution) -> set[str]:
    """What the workflow of an execution is or was called."""
    workflow = execution.workflow
    names = [] if workflow is None else [workflow.tool_name, *workflow.former_tool_names]
    return {execution.tool_name, *names}


def _reattach(request: StartRequest, workflow: Workflow, digest: str) -> Execution | None:
    """An execution of the same call whose caller went away without an answer, now this request's.

    A result is given to what may be a client's retry, soon after the caller went away or the run ended: later
    calls may want to know how things are now.
    """
    seconds = settings.CATALOGUE["reattach_seconds"]
    if request.idempotency_key or not (request.may_reattach and workflow.reattach and seconds):
        return None
    now = timezone.now()
    # Hardly ever is there one, and building a query for whole rows takes twenty times as long.
    if not has_abandoned(caller=request.caller.key, arguments_hash=digest, now=now):
        return None
    abandoned = Execution.objects.filter(
        caller=request.caller.key,
        arguments_hash=digest,
        # Not by the workflow: SQLite would then go through all that it ever ran instead of this index.
        tool_name__in=[workflow.tool_name, *workflow.former_tool_names],
        door=request.door,
        # Who has a key comes back with it.
        idempotency_key="",
        awaited_until__lt=now,
        awaited_until__gt=now - timedelta(seconds=seconds) - LONG_PAST,
    )
    recent = now - timedelta(seconds=settings.CATALOGUE["reattach_result_seconds"])
    abandoned = abandoned.filter(
        Q(finished_at=None) | Q(finished_at__gt=recent) | Q(awaited_until__gt=recent - LONG_PAST)
    )
    if request.fresh:
        # What ended before is no fresh run, though nobody got its result.
        abandoned = abandoned.filter(state__in=ACTIVE)
    for known in abandoned.order_by("created_at").values_list("pk", flat=True):
        execution = workflow.executions.select_related("workflow__source").filter(pk=known).first()
        # Of two identical calls that come again, each gets one.
        if execution is not None and execution.reattach(until=now + LEASE):
            logger.bind(execution=execution.pk, tool=request.tool_name).info("Caller came back")
            return execution
    return None


@in_turn
@transaction.atomic
def _record(request: StartRequest, workflow: Workflow, digest: str, holder: str) -> Execution:
    now = timezone.now()
    admitted = admit(workflow, request.caller)
    starts_at_once = admitted and bool(holder)
    execution = new_execution(
        request,
        workflow,
        digest=digest,
        now=now,
        awaited_until=now + LEASE if holder else None,
        state=State.STARTING if starts_at_once else State.PENDING,
        admitted_at=now if admitted else None,
        lease_holder=holder if starts_at_once else "",
        lease_expires_at=now + LEASE if starts_at_once else None,
        **mark_for_cache(workflow, digest=digest),
    )
    queued = [] if admitted else [("queued", "The limits have no room for it yet.")]
    insert_execution(execution, request, workflow, *queued)
    count_run(execution, fresh=request.fresh)
    return execution
