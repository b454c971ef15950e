"""Approval of calls by people: which calls need it, who decides, and what a decision applies to.

Each way in which an approval ends is one transaction. It locks the approval's row, then moves the execution
by compare-and-set, so that of concurrent ones the first to lock wins, and the others get an error:

- two approvals at once: each counts once; the one that completes the number starts the call;
- approval against refusal, cancellation or expiry: the first wins; the second raises AlreadyDecided, or
  finds nothing to cancel or to expire;
- approval after the expiry, before the sweep: it is refused, and the call expires immediately;
- approval or start against a change of the workflow or of the rules: the last step before the start reads
  both anew, and takes effect only at the revision that it read (`begin_if_approved`);
- approval against a change of the arguments: an approval is of the binding that its person has seen, so that
  nobody approves what another has changed meanwhile;
- a process killed in between: all or nothing is committed. Then the call is queued, and any worker starts it;
  messages only speed this up.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.db.models import BooleanField, Q, QuerySet
from django.db.models.expressions import RawSQL
from django.urls import reverse
from django.utils import timezone
from loguru import logger

from access.callers import Caller
from audit.models import Kind, record
from catalogue.approval_rules import reason_for_approval
from catalogue.argument_overrides import constants_of, settle_arguments
from catalogue.database import after_commit
from catalogue.exposure import memberships_of
from catalogue.models import Review, Revision, Toolset, Workflow
from catalogue.naming import counted
from connectors.formats.json import as_object
from executions.models import (
    Approval,
    ApprovalDecision,
    ApprovalNotice,
    ErrorKind,
    Execution,
    StandingApproval,
    State,
)
from executions.models.execution import ASKED_BY
from executions.refusals import Busy
from executions.wakeups import request_poll, wake

PERMISSION = "executions.decide_approval"
MAX_MINUTES = 30 * 24 * 60
OWN_CALL = "You cannot approve your own call here; another person must decide."
MAX_MESSAGE_LENGTH = 2_000
SWEPT_AT_ONCE = 100
RETRY_SECONDS = 60
Verdict = ApprovalDecision.Verdict
Standing = StandingApproval | None


class NotDecided(Exception):
    """The decision was not taken; the message says why."""


class UnknownApproval(NotDecided):
    def __init__(self) -> None:
        super().__init__("There is no such approval.")


class NotAllowed(NotDecided):
    pass


class AlreadyDecided(NotDecided):
    pass


class UnfitChange(NotDecided):
    """The arguments that an approver wants are not valid."""


@dataclass(frozen=True, slots=True)
class Need:
    reasons: list[str]
    approvers: int


@dataclass(frozen=True, slots=True)
class Binding:
    """Identifies the content of a decision; nothing else runs on it."""

    content: str
    digest: str


def find_need(workflow: Workflow, arguments: Mapping[str, Any]) -> Need | None:
    """Returns whether the call with these settled arguments needs approval."""
    reasons = [f"Each call of {workflow.tool_name} needs approval."] if workflow.approval_required else []
    toolsets: Iterable[Toolset] = workflow.approving_toolsets
    reasons += [f"Each call of the toolset {toolset.slug} needs approval." for toolset in toolsets]
    ruled = [reason_for_approval(rule, arguments) for rule in workflow.approval_rules]
    reasons += [f"By a rule: {why}." for why in ruled if why]
    # Its argument may have another name now, while a default or the agent still sends the old one.
    misfits = workflow.approval_rule_problems if workflow.approval_rules else []
    reasons += [f"A rule no longer fits the engine's schema. {problem}" for problem in misfits]
    if not reasons:
        return None
    wanted = [workflow.approvers_needed, *(toolset.approvers_needed for toolset in toolsets)]
    return Need(reasons, max(number or 1 for number in wanted))


def approving_toolsets(workflow: Workflow) -> tuple[Toolset, ...]:
    """Looks up the toolsets of a workflow that was read outside the exposed catalogue: three queries."""
    showing = (toolset for toolset, _ in memberships_of(workflow))
    return tuple(toolset for toolset in showing if toolset.enabled and toolset.approval_required)


def bind(workflow: Workflow, arguments: Mapping[str, Any], caller: str) -> Binding:
    content = content_of(workflow)
    return Binding(content, _hash([content, arguments, caller]))


def content_of(workflow: Workflow) -> str:
    """A hash of everything that determines what a start does at the engine, changes under review included."""
    held = Review.objects.filter(pk=workflow.pk, kind=Review.Kind.CHANGED)
    offered = held.values_list("offer_hash", flat=True).first()
    source = workflow.source
    parts = [workflow.pk, source.pk, source.kind, source.configured_at.isoformat(), workflow.upstream_id]
    parts += [workflow.name, workflow.content_hash, offered or "", workflow.metadata]
    return _hash([*parts, workflow.argument_overrides])


def _hash(parts: Any) -> str:
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def find_standing(binding: Binding, need: Need) -> StandingApproval | None:
    """One that as many people gave as are needed now."""
    valid = StandingApproval.objects.filter(StandingApproval.valid_now(), binding=binding.digest)
    given = valid.filter(approvers__gte=need.approvers).order_by("-until")
    return next((one for one in given if one.is_proven and not one.was_revoked), None)


def find_waiting(binding: Binding, caller: Caller) -> Execution | None:
    """An identical call of the caller that waits, without an idempotency key of its own."""
    waiting = Approval.objects.waiting().filter(
        binding=binding.digest,
        expires_at__gt=timezone.now(),
        execution__in=Execution.objects.filter(caller.own, idempotency_key=""),
    )
    found = waiting.select_related("execution__workflow__source").order_by("requested_at").first()
    return None if found is None else found.execution


def check_room(caller: Caller) -> None:
    """Raises Busy if the caller has too many calls waiting for approval."""
    most = settings.CATALOGUE.max_unapproved_per_caller
    # By the index of executions that are not admitted.
    theirs = Execution.objects.filter(
        admitted_at=None, finished_at=None, state="unapproved", caller=caller.key
    ).order_by()
    if theirs[:most].count() >= most:
        waiting = counted(most, "of your calls is", "of your calls are")
        raise Busy(f"{waiting} already waiting for approval.", retry_after=RETRY_SECONDS)


def request_approval(
    execution: Execution, need: Need, binding: Binding, user: int | None, standing: Standing = None
) -> None:
    """Runs in the transaction that records the execution or takes it out of the queue; with `standing` it is
    approved already. Decisions that were taken before count."""
    now = timezone.now()
    approval = Approval(
        execution=execution,
        reason="\n".join(need.reasons),
        approvers_needed=need.approvers,
        binding=binding.digest,
        content=binding.content,
        asked_by_id=user,
        requested_at=now,
        expires_at=now + timedelta(hours=settings.CATALOGUE.approval_hours),
        standing=standing,
    )
    if standing is not None:
        approval.state, approval.decided_at = Approval.State.APPROVED, now
        approval.outcome = describe_standing(standing)
    approval.save()
    if standing is None:
        _announce(approval, execution, ApprovalNotice.Kind.REQUESTED)


def describe_standing(standing: StandingApproval) -> str:
    return f"{standing.granted_by} approved this call, and identical calls until {moment(standing.until)}."


def moment(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC"


def decide(
    key: UUID | str,
    *,
    user: Any,
    verdict: str,
    words: str = "",
    minutes: int | None = None,
    seen: str = "",
) -> Approval:
    """One person's answer. `minutes`: how long identical calls need no new approval. `seen`: the binding that
    the person has read; needed to approve arguments that somebody has changed. Raises NotDecided."""
    if not _is_approver(user):
        raise NotAllowed(f"This needs the permission {PERMISSION}; an administrator can grant it.")
    words = words.strip()
    if len(words) > MAX_MESSAGE_LENGTH:
        raise NotDecided(
            f"Nothing was decided: the text must be at most {MAX_MESSAGE_LENGTH:,} characters long."
        )
    if verdict == Verdict.REFUSE and not words:
        raise NotDecided("Nothing was decided: give a reason for the refusal; the caller sees it.")
    if minutes is not None and not 1 <= minutes <= MAX_MINUTES:
        raise NotDecided(f"Nothing was decided: the period must be from 1 to {MAX_MINUTES:,} minutes.")
    with transaction.atomic():
        approval, execution = _lock(key)
        if approval.is_waiting and _refresh_workflow(execution) is not None:
            need = find_need(execution.known_workflow, execution.payload.sent_input)
            approval.save_proven(approvers_needed=1 if need is None else need.approvers)
        refusal = _why_not_now(approval, execution, user, verdict)
        refusal = refusal or _why_not_as_changed(approval, execution, verdict, seen, minutes)
        if refusal is None:
            _take(approval, execution, user, verdict, words, minutes)
    # After the commit, which records the end of a call that is too late.
    if refusal is not None:
        raise refusal
    return approval


def _why_not_as_changed(
    approval: Approval, execution: Execution, verdict: str, seen: str, minutes: int | None
) -> NotDecided | None:
    by = execution.payload.changed_by
    if verdict == Verdict.REFUSE:
        return None
    if seen != approval.binding and (seen or by):
        return AlreadyDecided(f"Nothing was decided: {by} has changed the arguments. Read them again.")
    if by and minutes is not None:
        return NotDecided("Nothing was decided: changed arguments can be approved for this call only.")
    return None


def change_arguments(key: UUID | str, *, user: Any, arguments: Any, seen: str) -> Approval:
    """An approver's change of what the engine gets. Approvals that were given before no longer count.
    `seen`: the binding that the person has read. Raises NotDecided."""
    if not _is_approver(user):
        raise NotAllowed(f"This needs the permission {PERMISSION}; an administrator can grant it.")
    with transaction.atomic():
        approval, execution = _lock(key)
        refusal = _why_not_now(approval, execution, None, Verdict.APPROVE)
        if refusal is None and not may_approve(approval, execution, user):
            refusal = NotAllowed(OWN_CALL)
        if refusal is None and seen != approval.binding:
            refusal = AlreadyDecided("Nothing was changed: the arguments are others by now. Read them again.")
        if refusal is None:
            _change(approval, execution, user, arguments)
    if refusal is not None:
        raise refusal
    return approval


def _change(approval: Approval, execution: Execution, user: Any, arguments: Any) -> None:
    if execution.from_failed_step:
        raise UnfitChange("Nothing was changed: the run that it continues has these arguments.")
    workflow, before, name = execution.known_workflow, execution.payload.sent_input, user.get_username()
    settled = _settle(workflow, arguments)
    if not (changed := changed_names(before, settled)):
        raise NotDecided("Nothing was changed: these are the arguments that it has.")
    binding = bind(workflow, settled, execution.caller)
    names = ", ".join(changed)
    reset = [decision.user_name for decision in approval.decisions.all()]
    why = f"{name} changed the arguments: {names}."
    why += f" The approval by {', '.join(reset)} no longer counts." if reset else ""
    if not execution.change_input(settled, why, by=name, approval_hash=binding.digest):
        raise AlreadyDecided("It has already ended.")
    approval.decisions.all().delete()
    _refresh_workflow(execution)
    need = find_need(execution.known_workflow, settled)
    reason = approval.reason if need is None else "\n".join(need.reasons)
    needed = 1 if need is None else need.approvers
    approval.save_proven(binding=binding.digest, reason=reason, approvers_needed=needed)
    who = {"actor": f"user:{user.pk}", "actor_name": name}
    digests = {"before_sha256": _hash(before), "after_sha256": _hash(settled)}
    _note(execution, "changed", **who, arguments=names[:MAX_MESSAGE_LENGTH], reset=reset, **digests)
    transaction.on_commit(partial(wake, execution.pk))


def _settle(workflow: Workflow, arguments: Any) -> dict[str, Any]:
    if not isinstance(arguments, dict):
        raise UnfitChange("Nothing was changed: the arguments must be a JSON object.")
    overrides = workflow.argument_overrides
    constants = constants_of(overrides)
    free = {name: value for name, value in arguments.items() if constants.get(name, ...) != value}
    try:
        size = len(json.dumps(free, allow_nan=False))
    except ValueError:
        raise UnfitChange("Nothing was changed: JSON has no infinite numbers and no NaN.") from None
    if size > (limit := settings.CATALOGUE.max_payload_bytes):
        raise UnfitChange(f"Nothing was changed: {size:,} bytes exceed the limit of {limit:,}.")
    settled = settle_arguments(workflow.input_schema, overrides, free)
    if settled.problems:
        raise UnfitChange(f"Nothing was changed: {'; '.join(map(str, settled.problems))}.")
    return settled.arguments


def changed_names(before: Any, after: Any) -> list[str]:
    """The arguments that differ."""
    # By what is sent: for Python, 1 and True are equal.
    old, new = ({name: _hash(value) for name, value in as_object(one).items()} for one in (before, after))
    return [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]


def _lock(key: Any) -> tuple[Approval, Execution]:
    """Raises UnknownApproval."""
    approval = Approval.objects.select_for_update(of=("self",)).filter(pk=key).first()
    if approval is None:
        raise UnknownApproval
    execution = Execution.objects.select_related("workflow__source").get(pk=approval.pk)
    return approval, execution


def _why_not_now(approval: Approval, execution: Execution, user: Any, verdict: str) -> NotDecided | None:
    """Ends what has expired or changed."""
    if not approval.is_waiting:
        return AlreadyDecided(f"This approval has already been decided: {approval.outcome}")
    if approval.expires_at <= timezone.now():
        _expire(approval, execution)
        return AlreadyDecided(approval.outcome)
    if verdict == Verdict.APPROVE:
        if user is not None and not may_approve(approval, execution, user):
            return NotAllowed(OWN_CALL)
        if _outdate(approval, execution):
            return AlreadyDecided(approval.outcome)
    if user is not None and approval.decisions.filter(user=user).exists():
        missing = approval.approvers_needed - len(_given(approval, execution))
        # Fewer may be needed now than when it was given.
        if missing > 0 or verdict == Verdict.REFUSE:
            return AlreadyDecided(f"You have already approved it. Approvals still needed: {missing}.")
    return None


def _is_approver(user: Any) -> bool:
    return user is not None and user.is_active and bool(user.has_perm(PERMISSION))


def _given(approval: Approval, execution: Execution) -> list[ApprovalDecision]:
    """Its approvals by people who may approve it now, one of each."""
    decisions = approval.decisions.filter(verdict=Verdict.APPROVE).select_related("user")
    given = {one.user_id: one for one in decisions if one.is_proven}.values()
    return [one for one in given if _is_approver(one.user) and may_approve(approval, execution, one.user)]


def may_approve(approval: Approval, execution: Execution, user: Any) -> bool:
    return bool(settings.CATALOGUE.approve_own_calls) or not is_own_call(approval, execution, user)


def is_own_call(approval: Approval, execution: Execution, user: Any) -> bool:
    return approval.asked_by_id == user.pk or execution.caller == f"user:{user.pk}"


def _take(
    approval: Approval, execution: Execution, user: Any, verdict: str, words: str, minutes: int | None
) -> None:
    name = user.get_username()
    limit = minutes if verdict == Verdict.APPROVE else None
    said = {"user_name": name, "verdict": verdict, "words": words, "minutes": limit}
    ApprovalDecision.objects.get_or_create(said, approval=approval, user=user)
    answer = {"words": words, "minutes": minutes}
    named = {"actor": f"user:{user.pk}", "actor_name": name}
    _note(execution, "answered", "refused" if verdict == Verdict.REFUSE else "approved", **named, **answer)
    if verdict == Verdict.REFUSE:
        why = f"{name} refused it: {words}{'' if words.endswith(('.', '!', '?')) else '.'}"
        _end(approval, execution, Approval.State.REFUSED, State.FAILED, f"{why} Nothing was started.")
        return
    given = _given(approval, execution)
    assert execution.workflow is not None, "approval of a call without its workflow is refused before"
    if (missing := approval.approvers_needed - len(given)) > 0:
        execution.note("approval", f"{name} approved it. Approvals still needed: {missing}.")
        return
    names = ", ".join(decision.user_name for decision in given)
    by = execution.payload.changed_by
    outcome = f"{names} approved it, with arguments that {by} changed." if by else f"{names} approved it."
    limits = [decision.minutes for decision in given]
    if None not in limits:
        until = timezone.now() + timedelta(minutes=min(limit for limit in limits if limit is not None))
        StandingApproval.objects.create(
            binding=approval.binding,
            workflow=execution.workflow,
            tool_name=execution.tool_name,
            caller=execution.caller,
            caller_name=execution.caller_name,
            granted_by=names,
            approvers=len(given),
            until=until,
        )
        outcome = f"{names} approved it, and identical calls until {moment(until)}."
    if not execution.approve(outcome):
        raise AlreadyDecided("It has already ended.")
    _close(approval, execution, Approval.State.APPROVED, outcome)
    request_poll()


def _end(
    approval: Approval,
    execution: Execution,
    how: Approval.State,
    state: State,
    why: str,
    *,
    kind: ErrorKind = ErrorKind.EXECUTION,
    cancelled_by: str = "",
) -> bool:
    if not execution.end_unapproved(state, why, kind=kind, cancelled_by=cancelled_by):
        return False
    _close(approval, execution, how, why)
    return True


def _expire(approval: Approval, execution: Execution) -> bool:
    why = f"It was not approved by {moment(approval.expires_at)}. Nothing was started."
    return _end(approval, execution, Approval.State.EXPIRED, State.TIMED_OUT, why, kind=ErrorKind.TIMEOUT)


def _outdate(approval: Approval, execution: Execution) -> bool:
    """False if the workflow is as it was at the call."""
    if execution.workflow is None:
        change = "its workflow was deleted"
    elif content_of(execution.workflow) != approval.content:
        change = "the workflow or its source has changed since the call"
    else:
        return False
    advice = "Nothing was started; call the tool again for a new approval."
    why = f"It can no longer be approved: {change}. {advice}"
    kind = ErrorKind.CONFIGURATION
    return _end(approval, execution, Approval.State.OUTDATED, State.FAILED, why, kind=kind)


def _close(approval: Approval, execution: Execution, how: Approval.State, outcome: str) -> None:
    approval.save_proven(state=how, outcome=outcome, decided_at=timezone.now())
    _announce(approval, execution, ApprovalNotice.Kind.DECIDED)


def _announce(approval: Approval, execution: Execution, kind: ApprovalNotice.Kind) -> None:
    """Called in the transaction of every request for approval and of every end."""
    now = timezone.now()
    ApprovalNotice.objects.bulk_create(
        ApprovalNotice(approval=approval, kind=kind, channel=channel, created_at=now, next_attempt_at=now)
        for channel in notice_channels(kind)
    )
    transaction.on_commit(partial(wake, execution.pk))
    if kind == ApprovalNotice.Kind.REQUESTED:
        asker = {"actor": execution.caller, "actor_name": execution.caller_name}
        _note(execution, "requested", why=approval.reason, **asker)
    else:
        _note(execution, "ended", approval.state, why=approval.outcome)
    bound = logger.bind(execution=execution.pk, tool=execution.tool_name, caller=execution.caller)
    told = approval.outcome or approval.reason
    # Not the method itself: the line names the module of its caller.
    after_commit(lambda: bound.info("Approval {}: {}", approval.get_state_display(), told))


def _note(execution: Execution, what: str, outcome: str = "", **details: Any) -> None:
    subject = {"subject": f"execution:{execution.pk}", "subject_name": execution.tool_name}
    record(Kind.APPROVAL, f"approval.{what}", outcome=outcome, **subject, **details)


def notice_channels(kind: str) -> list[str]:
    wanted = settings.CATALOGUE.approval_mail
    has_mail = settings.EMAIL_HOST and (
        wanted == "outcomes" or (wanted == "requests" and kind == ApprovalNotice.Kind.REQUESTED)
    )
    channels = [ApprovalNotice.Channel.EMAIL.value] if has_mail else []
    has_webhook = settings.CATALOGUE.approval_webhook_url
    return channels + ([ApprovalNotice.Channel.WEBHOOK.value] if has_webhook else [])


def cancel_unapproved(execution: Execution, *, by: str) -> bool:
    """False if it has been decided in the meantime."""
    with transaction.atomic():
        approval, fresh = _lock(execution.pk)
        why = f"{by} cancelled it before it was approved."
        return approval.is_waiting and _end(
            approval, fresh, Approval.State.CANCELLED, State.CANCELLED, why, cancelled_by=by
        )


def end_expired() -> int:
    """Returns how many were ended."""
    due = Approval.objects.waiting().filter(expires_at__lte=timezone.now())
    return _sweep(due.order_by("expires_at"), _expire)


def end_outdated() -> int:
    """Ends those whose workflow has changed: each is compared once more under its lock."""
    waiting = Approval.objects.waiting().order_by()
    pairs = set(waiting.values_list("execution__workflow", "content"))
    known = Workflow.objects.select_related("source").in_bulk([key for key, _ in pairs if key])
    contents = {key: content_of(workflow) for key, workflow in known.items()}
    outdated = {(key, content) for key, content in pairs if contents.get(key) != content}
    return sum(
        _sweep(waiting.filter(execution__workflow=key, content=content), _outdate)
        for key, content in outdated
    )


def _sweep(due: QuerySet[Approval], end: Callable[[Approval, Execution], bool]) -> int:
    ended = 0
    for key in list(due.values_list("pk", flat=True)[:SWEPT_AT_ONCE]):
        with transaction.atomic():
            # The next sweep checks one that is being decided at this moment.
            locked = Approval.objects.select_for_update(skip_locked=True, of=("self",)).filter(pk=key).first()
            if locked is not None and locked.is_waiting:
                execution = Execution.objects.select_related("workflow__source").get(pk=key)
                ended += end(locked, execution)
    return ended


def revoke_standing(key: int, *, by: str) -> bool:
    """The next call needs a new approval. False if it was already revoked or has expired."""
    valid = StandingApproval.objects.filter(StandingApproval.valid_now(), pk=key)
    with transaction.atomic():
        marks = [standing.mark for standing in valid]
        if not valid.update(revoked_at=timezone.now(), revoked_by=by[:150]):
            return False
        told = {"subject": f"executions.standingapproval:{key}", "outcome": "revoked"}
        record(Kind.APPROVAL, "approval.revoked", actor_name=by, **told, of=marks)
    return True


def begin_if_approved(execution: Execution) -> bool:
    """Let it start if the rules of this moment do. If not, it fails, or waits for approval again. False also
    if another process was faster, or it was cancelled."""
    while (revision := _refresh_workflow(execution)) is not None:
        workflow = execution.known_workflow
        fault = _find_fault(execution, workflow)
        if isinstance(fault, Need):
            _ask_again(execution, workflow, fault)
        elif fault:
            execution.fail(fault, kind=ErrorKind.CONFIGURATION)
        if fault:
            return False
        unchanged = RawSQL(UNCHANGED, [revision], output_field=BooleanField())  # noqa: S611 - a constant
        if execution.begin_start(when=Q(unchanged)):
            return True
        if Revision.current() == revision:
            return False
    return False


def lacks_approval(execution: Execution) -> bool:
    """Returns whether a start that may have been sent must not be repeated."""
    return _refresh_workflow(execution) is None or bool(_find_fault(execution, execution.known_workflow))


RULES = """
    SELECT row_version, COALESCE((SELECT number FROM catalogue_revision), 0),
        EXISTS (SELECT 1 FROM catalogue_toolset WHERE enabled AND approval_required)
    FROM catalogue_workflow WHERE id = %s
"""
UNCHANGED = "NOT EXISTS (SELECT 1 FROM catalogue_revision WHERE number > %s)"


def _refresh_workflow(execution: Execution) -> int | None:
    """Have its workflow as of now, with the toolsets that require approval. Returns the revision at which
    that holds; None if the workflow is gone. Most starts need one small statement."""
    with connection.cursor() as cursor:
        cursor.execute(RULES, [execution.workflow_id])
        row = cursor.fetchone()
    if row is None:
        return None
    version, revision, is_in_question = row
    if execution.approval_hash or execution.known_workflow.row_version != version:
        execution.workflow = Workflow.objects.select_related("source").filter(executions=execution.pk).first()
    if (workflow := execution.workflow) is None:
        return None
    if is_in_question or workflow.approving_toolsets:
        # Other executions of the same claim share it.
        execution.workflow = workflow = copy(workflow)
        workflow.approving_toolsets = approving_toolsets(workflow) if is_in_question else ()
    return int(revision)


def _find_fault(execution: Execution, workflow: Workflow) -> str | Need | None:
    """Returns why it can never start, or the need that its approvals do not meet."""
    if not (execution.approval_hash or workflow.may_need_approval):
        return None
    approval = Approval.objects.select_related("standing").filter(pk=execution.pk).first()
    if execution.approval_hash:
        if approval is None or approval.state != Approval.State.APPROVED:
            return "It was not started: it has no approval."
        if not approval.is_proven:
            return "It was not started: nobody gave its approval. Call the tool again for a new one."
        binding = bind(workflow, execution.payload.sent_input, execution.caller)
        if not binding.digest == approval.binding == execution.approval_hash:
            is_same = binding.content == approval.content
            what = "its arguments are not" if is_same else "the workflow is no longer"
            return f"It was not started: {what} what was approved. Call the tool again for a new approval."
    need = find_need(workflow, execution.payload.sent_input)
    if need is None or approval is None:
        return need
    standing = approval.standing
    by_standing = 0
    if standing is not None and standing.is_proven and not (standing.revoked_at or standing.was_revoked):
        by_standing = standing.approvers
    return need if max(by_standing, len(_given(approval, execution))) < need.approvers else None


@transaction.atomic
def _ask_again(execution: Execution, workflow: Workflow, need: Need) -> None:
    binding = bind(workflow, execution.payload.sent_input, execution.caller)
    if execution.hold_for_approval(" ".join(need.reasons), approval_hash=binding.digest):
        user = get_user_model().objects.filter(pk=execution.payload.metadata.get(ASKED_BY)).first()
        request_approval(execution, need, binding, None if user is None else user.pk)


def describe_wait(execution: Execution) -> str:
    """A sentence for the caller of an execution that waits for approval."""
    approval = execution.approval
    missing = approval.approvers_needed - approval.decisions.count()
    people = "a person must approve it" if missing == 1 else f"{missing} people must approve it"
    reasons = " ".join(approval.reason.splitlines())
    return (
        f"It waits for approval until {moment(approval.expires_at)}. Approval was requested at "
        f"{moment(approval.requested_at)}, and {people}. {reasons}"
    )


def page_of(approval: Approval) -> str:
    """Returns the URL at which people decide it."""
    return f"{settings.PUBLIC_URL}{reverse('admin:executions_approval_change', args=[approval.pk])}"


PAST_RUNS, SHOWN_RUNS = 100, 5


@dataclass(frozen=True, slots=True)
class Past:
    """Summarizes what the tool did before, for the person who decides."""

    last: list[Execution]  # The newest first, without those that never started
    runs: int  # Its last, at most PAST_RUNS, of which the following numbers are
    ended: int
    succeeded: int
    by_caller: int

    @property
    def success_rate(self) -> float | None:
        return self.succeeded / self.ended if self.ended else None


def read_past(execution: Execution) -> Past:
    runs = Execution.objects.filter(tool_name=execution.tool_name, admitted_at__isnull=False)
    latest = list(runs.exclude(pk=execution.pk).order_by("-created_at")[:PAST_RUNS])
    ended = [run for run in latest if run.is_final]
    return Past(
        last=latest[:SHOWN_RUNS],
        runs=len(latest),
        ended=len(ended),
        succeeded=sum(run.succeeded for run in ended),
        by_caller=sum(run.caller == execution.caller for run in latest),
    )
