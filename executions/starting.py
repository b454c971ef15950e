"""Turns a call into a durable record: permission, arguments, and earlier identical calls.

Arguments are identical as JSON: the order of names and white space do not count, but `1` and `1.0` differ,
since an engine may distinguish them.
"""

import contextlib
import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from django.conf import settings
from django.db import IntegrityError, connection, transaction
from django.db.models import Count, F, Model, Q, QuerySet
from django.utils import timezone

from access.callers import Caller
from catalogue.argument_overrides import complete_arguments, settle_arguments
from catalogue.database import after_commit
from catalogue.exposure import (
    ExposedCatalogue,
    confirmed_catalogue,
    current_catalogue,
    find_named,
    memberships_of,
)
from catalogue.models import Workflow
from catalogue.naming import find_similar_names
from catalogue.schemas import ArgumentProblem
from connectors.background import CLOCKS_APART
from executions import approvals, queue, rates, refusals
from executions.models import OPEN, Execution, RunNotice, StandingApproval, State
from executions.models.lifecycle import LONG_PAST, StartRequest, insert_execution, new_execution
from executions.reading import find_execution
from executions.result_cache import answer_from_cache, count_run, mark_for_cache
from executions.runner.engine_calls import log_of
from executions.runner.lease import LEASE

RowT = TypeVar("RowT", bound=Model)
MAX_AGE_SECONDS = 0.2  # How long a process relies on its last count of all processes' admissions
RESERVE = 100
MINUTE = timedelta(seconds=60)
ABANDONED = (
    "SELECT 1 FROM executions_execution"
    " WHERE caller = %s AND arguments_hash = %s AND awaited_until < %s LIMIT 1"
)


def admit(tight: queue.Limits, limits: queue.Limits, caller: Caller) -> bool:
    """Runs in the transaction that records it. True: admitted, False: queued. Raises Busy."""
    queue.lock_admissions()
    has_room = queue.has_room(tight)
    if has_room and Execution.objects.queued().exists():
        # They get a slot that has just become free before this one.
        _, is_more = queue.admit_batch()
        has_room = not is_more and queue.has_room(tight)
    if has_room:
        remembered.take(limits)
        return True
    _check_queue(caller)
    queue.may_be_queued.set()
    return False


class _AdmissionCounts:
    """Holds the admissions at the last count, and this process's own since then.

    Far from every limit a call costs neither a query nor a lock. That is safe as long as all processes
    together cannot fill, between a count and the commit of a record, the margin left of each limit: the
    larger of RESERVE and half the limit, i.e. 500 starts a second by one caller. Nearer than that, and always
    for limits of 100 or less, processes take turns under a lock and count again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        self._occupancy = queue.Occupancy()
        self._read_at = -math.inf

    def take_unless_tight(self, limits: queue.Limits) -> queue.Limits:
        """Returns the limits too near to rely on memory; if there are none, the slot is taken."""
        if not any(limits.values()):
            return {}
        if (read_at := time.monotonic()) - self._read_at > MAX_AGE_SECONDS:
            # Several threads may count at the same time: a lock during the queries would stop them all.
            occupancy = queue.read_occupancy()
            with self._lock:
                if read_at > self._read_at:
                    self._occupancy, self._read_at = occupancy, read_at
            if Execution.objects.queued().exists():
                queue.may_be_queued.set()
        with self._lock:
            tight = {
                limit: most
                for limit, most in limits.items()
                if most and most - self._occupancy[limit] <= max(RESERVE, most // 2)
            }
            if not tight:
                self._occupancy.update(limits.keys())
        return tight

    def take(self, limits: queue.Limits) -> None:
        with self._lock:
            self._occupancy.update(limits.keys())


remembered = _AdmissionCounts()


def forget_admissions() -> None:
    remembered.forget()
    queue.may_be_queued.clear()


def _check_queue(caller: Caller) -> None:
    """Raises Busy if the queue is full for this caller, whose first call may wait unless a bound is 0."""
    most = settings.CATALOGUE.max_queued_executions
    most_of_one = settings.CATALOGUE.max_queued_per_caller
    queued = Execution.objects.queued().order_by()
    number = queued.aggregate(all=Count("pk"), own=Count("pk", filter=Q(caller=caller.key)))
    if not most or not most_of_one:
        raise refusals.Busy(
            "a limit on concurrent runs is reached, and queueing is disabled.", retry_after=_pause()
        )
    if number["own"] >= most_of_one:
        full = f"your share of the queue is full, with {number['own']} waiting."
        why = f"a limit on concurrent runs is reached, and {full}"
        raise refusals.Busy(why, retry_after=_pause(caller=caller.key))
    if number["own"] and number["all"] >= most:
        why = f"a limit on concurrent runs is reached, and the queue is full, with {number['all']} waiting."
        raise refusals.Busy(why, retry_after=_pause())


def _pause(**whose: str) -> int:
    came_through = Execution.objects.filter(admitted_at__gt=F("created_at"), **whose)
    now = timezone.now()
    lately = came_through.filter(admitted_at__range=(now - MINUTE, now + CLOCKS_APART)).count()
    return math.ceil(MINUTE.total_seconds() / max(lately, 1))


def read_idempotency_key(sent: Any) -> str:
    """A valid key. Raises InvalidIdempotencyKey, also for an empty one: the client relies on it."""
    if not isinstance(sent, str) or not 0 < len(sent) <= refusals.MAX_KEY_LENGTH:
        raise refusals.InvalidIdempotencyKey
    if not (sent.isascii() and sent.isprintable() and sent.strip()):
        raise refusals.InvalidIdempotencyKey
    return sent


def first_unless_expired(with_key: QuerySet[RowT]) -> RowT | None:
    """Returns the row of an idempotency key. An expired one gives its key up, for the next call."""
    expired = timezone.now() - timedelta(hours=settings.CATALOGUE.idempotency_hours)
    known: Any = with_key.first()
    if known is not None and known.created_at < expired:
        with_key.filter(created_at__lt=expired).update(idempotency_key="")
        return None
    row: RowT | None = known
    return row


def exposed_workflow(tool_name: str, *, caller: Caller, by_card: bool = False) -> Workflow:
    """Raises UnknownTool, also for a tool outside the caller's toolset, and unless `by_card` for one that is
    only for apps."""
    shown = current_catalogue()
    workflow = find_named((shown.for_cards if by_card else shown).seen_within(caller.bounds), tool_name)
    if workflow is None:
        # Another process may have exposed it a moment ago.
        shown = confirmed_catalogue()
        return workflow_named((shown.for_cards if by_card else shown).seen_within(caller.bounds), tool_name)
    return workflow


def workflow_named(shown: Mapping[str, Workflow], tool_name: str) -> Workflow:
    """Raises UnknownTool."""
    if (workflow := find_named(shown, tool_name)) is None:
        renamed = [name for name, other in shown.items() if tool_name in other.former_tool_names]
        raise refusals.UnknownTool(tool_name, renamed=renamed, similar=find_similar_names(tool_name, shown))
    return workflow


def create_execution(request: StartRequest) -> Execution:
    """Commits the record of a run that a worker is about to start, or finds the one that the request repeats.

    A cached result completes the record at once. Raises the subclasses of StartRefused. Each call that is
    recorded counts towards the rates, an answer from the cache too; a repeated one does not.
    """
    return prepare_execution(request)()


def prepare_execution(request: StartRequest, holder: str = "") -> Callable[[], Execution]:
    """Does the part of `create_execution` that must not run in a transaction, which would keep the rows of
    rates from other processes. The function that it returns is the rest.

    `holder`: of a request that waits. If the limits allow, the record is then STARTING under the holder's
    lease, and the holder continues with `advance` in place of a worker.
    """
    record = _prepare(request, holder)
    return partial(_notify_too, request, record) if request.notices else record


def _notify_too(request: StartRequest, record: Callable[[], Execution]) -> Execution:
    execution = record()
    if execution.pk != request.id:
        # It repeats or takes over a call, which may have asked for the same.
        for notice in request.notices:
            notice.execution_id = execution.pk
        RunNotice.objects.bulk_create(request.notices, ignore_conflicts=True)
    return execution


@refusals.counting_refusals()
def _prepare(request: StartRequest, holder: str) -> Callable[[], Execution]:
    written = request
    if written.idempotency_key and (asked_before := _find_by_key(written)) is not None:
        return lambda: asked_before
    workflow = _find_hidden(request) if request.may_be_hidden else None
    if workflow is None and request.in_any_toolset:
        workflow = _find_in_toolsets(request, current_catalogue())
        # Another process may have exposed it a moment ago.
        workflow = workflow or _find_in_toolsets(request, confirmed_catalogue())
    workflow = workflow or exposed_workflow(request.tool_name, caller=request.caller, by_card=request.by_card)
    # Repeated requests are identified by the arguments as written, plus the curator's overrides.
    digest = _hash_of(written, workflow)
    settled = settle_arguments(workflow.input_schema, workflow.argument_overrides, request.arguments)
    if settled.problems:
        raise refusals.InvalidArguments(request.tool_name, settled.problems)
    request = replace(request, arguments=settled.arguments)
    if holder and (abandoned := _reattach(request, workflow, digest)) is not None:
        return lambda: abandoned
    rates.take_call(workflow, request.caller)
    return partial(_answer_or_record, request, workflow, digest, holder, written)


@refusals.counting_refusals()
def _answer_or_record(
    request: StartRequest, workflow: Workflow, digest: str, holder: str, written: StartRequest
) -> Execution:
    need = approvals.find_need(workflow, request.arguments) if workflow.may_need_approval else None
    # What a run gives that was taken up again half-way, answers no other call.
    is_cached = workflow.effective_cache_seconds is not None and not request.from_failed_step
    try:
        if need is not None:
            return _record_with_approval(request, workflow, digest, holder, need)
        if is_cached and (answered := answer_from_cache(request, workflow, digest=digest)) is not None:
            return answered
        execution = _record(request, workflow, digest, holder, is_cached=is_cached)
    except IntegrityError:
        if (asked_before := _find_by_key(written)) is not None:
            return asked_before
        if request.retry_of is not None and Execution.objects.filter(pk=request.id).exists():
            raise refusals.AlreadyRetried(request.id) from None
        # Deleted since the catalogue was cached.
        raise refusals.UnknownTool(request.tool_name) from None
    # Of others, the log tells once the engine has answered: one line is enough of a run that is over by then.
    if execution.is_queued:
        after_commit(lambda: log_of(execution).info("Execution queued"))
    return execution


def _find_hidden(request: StartRequest) -> Workflow | None:
    """A workflow that filters or a toolset may hide, unless it is reserved for other callers."""
    enabled = Workflow.objects.select_related("source").filter(source__enabled=True)
    if (workflow := enabled.filter(tool_name=request.tool_name).first()) is None:
        return None
    workflow.approving_toolsets = approvals.approving_toolsets(workflow)
    shown, caller = current_catalogue(), request.caller
    if workflow.tool_name in shown.outside:
        return workflow if workflow.tool_name in shown.seen_within(caller.bounds) else None
    return None if _is_reserved_for_others(workflow, caller) else workflow


def _find_in_toolsets(request: StartRequest, shown: ExposedCatalogue) -> Workflow | None:
    """A workflow that one of the toolsets shows that the caller may use."""
    for slug in shown.toolsets:
        seen = shown.seen_within(replace(request.caller.bounds, toolset=slug))
        if (workflow := seen.get(request.tool_name)) is not None:
            return workflow
    return None


def _is_reserved_for_others(workflow: Workflow, caller: Caller) -> bool:
    """Checks, as for exposed workflows, its source, and its toolsets unless the caller can use one."""
    person, source = caller.person, workflow.source
    if person is not None and source.reserved_for and person.isdisjoint(source.admitted):
        return True
    barred = current_catalogue().reservations.exclusions_for(person).toolsets
    if not barred:
        return False
    toolsets = [toolset for toolset, _ in memberships_of(workflow)]
    counting = {toolset.slug for toolset in toolsets if toolset.enabled or toolset.reserved_for}
    return bool(counting) and counting <= barred


def _hash_of(request: StartRequest, workflow: Workflow | None) -> str:
    """Hashes the arguments that the workflow gets. Raises InvalidArguments."""
    overrides = {} if workflow is None else workflow.argument_overrides
    arguments = complete_arguments(overrides, request.arguments)
    try:
        canonical = json.dumps(arguments, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError:
        problem = ArgumentProblem("", "JSON has no infinite numbers and no NaN")
        raise refusals.InvalidArguments(request.tool_name, [problem]) from None
    # Not truncated like an engine's answer: a repeated start sends it again.
    if (size := len(canonical)) > (limit := settings.CATALOGUE.max_payload_bytes):
        problem = ArgumentProblem("", f"{size} bytes exceed the limit of {limit}")
        raise refusals.InvalidArguments(request.tool_name, [problem])
    return hashlib.sha256(canonical.encode()).hexdigest()


def find_continued(request: StartRequest, execution_id: str) -> Execution:
    """Returns the execution that a client continues with the identical call. Raises UnknownExecution or
    OtherCall."""
    known = find_execution(execution_id, caller=replace(request.caller, sees_everything=False))
    if not _is_same_call(known, request):
        raise refusals.OtherCall(request.tool_name)
    return known


def _is_same_call(known: Execution, request: StartRequest) -> bool:
    workflow = known.workflow
    names = [] if workflow is None else [workflow.tool_name, *workflow.former_tool_names]
    is_same_tool = request.tool_name in {known.tool_name, *names}
    return is_same_tool and known.arguments_hash == _hash_of(request, workflow)


def _find_by_key(request: StartRequest) -> Execution | None:
    """Returns the execution of the caller's key. Raises InvalidIdempotencyKey, KeyOfOtherToolset or
    IdempotencyConflict."""
    if not request.idempotency_key:
        return None
    key = read_idempotency_key(request.idempotency_key)
    mine = Execution.objects.filter(caller=request.caller.key, idempotency_key=key)
    known = first_unless_expired(mine.select_related("workflow__source"))
    if known is None:
        return None
    if not request.caller.owns(known):
        raise refusals.KeyOfOtherToolset
    if not _is_same_call(known, request):
        raise refusals.IdempotencyConflict(known, tool_name=request.tool_name)
    known.is_repeated = True
    return known


def _reattach(request: StartRequest, workflow: Workflow, digest: str) -> Execution | None:
    """An abandoned execution of the same call, which this request takes over.

    A result only soon after the disconnect or the end of the run: later calls may want fresh data.
    """
    if request.idempotency_key or not (request.may_reattach and workflow.reattach):
        return None
    if not (seconds := settings.CATALOGUE.reattach_seconds):
        return None
    now = timezone.now()
    # Rarely true, and building the query below takes twenty times as long.
    with connection.cursor() as cursor:
        moment = connection.ops.adapt_datetimefield_value(now)
        cursor.execute(ABANDONED, [request.caller.key, digest, moment])
        if cursor.fetchone() is None:
            return None
    abandoned = Execution.objects.filter(
        request.caller.own,
        arguments_hash=digest,
        # Not by the workflow: SQLite would walk all its executions instead of this index.
        tool_name__in=[workflow.tool_name, *workflow.former_tool_names],
        door=request.door,
        # A client with a key sends it again.
        idempotency_key="",
        awaited_until__lt=now,
        awaited_until__gt=now - timedelta(seconds=seconds) - LONG_PAST,
    )
    recent = now - timedelta(seconds=settings.CATALOGUE.reattach_result_seconds)
    # A time ahead is from before the clock was set back.
    ended_recently = Q(finished_at__gt=recent, finished_at__lte=now + CLOCKS_APART)
    abandoned = abandoned.filter(
        Q(finished_at=None) | ended_recently | Q(awaited_until__gt=recent - LONG_PAST)
    )
    if request.fresh:
        # A result that ended before is not a fresh run.
        abandoned = abandoned.filter(state__in=OPEN)
    for known in abandoned.order_by("created_at").values_list("pk", flat=True):
        execution = workflow.executions.select_related("workflow__source").filter(pk=known).first()
        # Of two identical calls, each gets one.
        if execution is not None and execution.reattach(until=now + LEASE):
            log_of(execution).info("Caller came back")
            return execution
    return None


def _record_with_approval(
    request: StartRequest, workflow: Workflow, digest: str, holder: str, need: approvals.Need
) -> Execution:
    """The execution waits for approval, joins an identical call that waits, or has an approval for a
    period. No cached result answers it, and its result is not cached."""
    binding = approvals.bind(workflow, request.arguments, request.caller.key)
    if (standing := approvals.find_standing(binding, need)) is not None:
        approved = (need, binding, standing)
        return _record(request, workflow, digest, holder, is_cached=False, approval=approved)
    joins = request.may_reattach and workflow.reattach and not request.idempotency_key
    if joins and (waiting := approvals.find_waiting(binding, request.caller)) is not None:
        return waiting
    with transaction.atomic():
        approvals.check_room(request.caller)
        execution = new_execution(
            request,
            workflow,
            digest=digest,
            now=timezone.now(),
            state=State.UNAPPROVED,
            approval_hash=binding.digest,
        )
        insert_execution(execution, request, workflow, ("unapproved", " ".join(need.reasons)))
        approvals.request_approval(execution, need, binding, request.caller.user_id)
    return execution


def _record(
    request: StartRequest,
    workflow: Workflow,
    digest: str,
    holder: str,
    *,
    is_cached: bool,
    approval: tuple[approvals.Need, approvals.Binding, StandingApproval] | None = None,
) -> Execution:
    now, limits = timezone.now(), queue.limits_on(workflow, request.caller.key)
    tight = remembered.take_unless_tight(limits)
    with transaction.atomic() if tight or is_cached or approval else contextlib.nullcontext():
        admitted = not tight or admit(tight, limits, request.caller)
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
            **(mark_for_cache(workflow, digest=digest) if is_cached else {}),
        )
        execution.is_new = starts_at_once
        events = [] if admitted else [("queued", "A limit on concurrent runs is reached.")]
        if approval is None:
            insert_execution(execution, request, workflow, *events)
        else:
            need, binding, standing = approval
            execution.approval_hash = binding.digest
            events.append(("approved", approvals.describe_standing(standing)))
            insert_execution(execution, request, workflow, *events)
            approvals.request_approval(execution, need, binding, request.caller.user_id, standing)
        if is_cached:
            count_run(execution, fresh=request.fresh)
    return execution
