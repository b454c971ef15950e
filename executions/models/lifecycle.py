"""The verbs that move an execution from state to state.

PENDING -> STARTING -> RUNNING -> COMPLETED | FAILED | CANCELLED | TIMED_OUT
              \\-> UNCONFIRMED <-/
UNAPPROVED <-> PENDING
UNAPPROVED -> FAILED | CANCELLED | TIMED_OUT

UNAPPROVED: a person must approve it. PENDING: no engine has it yet. STARTING: one may have it, until its
answer is recorded. States are never assigned: each verb is one compare-and-set UPDATE, and False means that
another process was faster.
"""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.db import models
from django.db.models.expressions import RawSQL
from django.utils import timezone
from loguru import logger

from access.callers import Caller
from audit.models import origin
from catalogue.models import Workflow
from connectors.network.redaction import printable
from connectors.protocol import RunSnapshot, Started
from executions.models.execution import (
    ACTIVE,
    ASKED_BY,
    DOORS,
    EVENT_COLUMNS,
    SAID_BY,
    ErrorKind,
    ExecutionEvent,
    ExecutionPayload,
    ExecutionQuerySet,
    FailureEffect,
    InputRequest,
    State,
    parts_of_call,
    prove,
    prove_end,
    size_of,
)
from executions.models.statements import adapt_time, carry_out, insertion, insertion_of
from executions.models.subscription import RunNotice
from executions.models.transitions import (
    MESSAGE_CHARACTERS,
    NO_LEASE,
    ONE_POLL,
    Event,
    Transitions,
    engine_times,
    progress_message,
)
from executions.models.usage import end_of, usage_insertion
from telemetry import traces

LONG_PAST = timedelta(seconds=30)  # The longest time between reading the clock and the statement that uses it
KEPT_CHARACTERS = 100  # Of a client's description of itself


class Execution(Transitions):
    objects: ClassVar[models.Manager["Execution"]] = ExecutionQuerySet["Execution"].as_manager()

    class Meta(Transitions.Meta):
        abstract = False

    @property
    def aftermath(self) -> FailureEffect | None:
        known = self.events.filter(kind__in=FailureEffect.values).values_list("kind", flat=True).last()
        return None if known is None else FailureEffect(known)

    def hold(self, *, holder: str, until: datetime) -> bool:
        """Take or renew the lease: only its `holder` contacts the engine. Not for queued executions."""
        now = timezone.now()
        free = models.Q(lease_expires_at=None) | models.Q(lease_expires_at__lt=now)
        free |= models.Q(lease_holder=holder)
        queued = models.Q(state=State.PENDING, admitted_at=None)
        return self._transition(ACTIVE, when=free & ~queued, lease_holder=holder, lease_expires_at=until)

    def release_lease(self, *, holder: str) -> bool:
        """Release the lease; a worker continues at `next_attempt_at`."""
        return self._transition(ACTIVE, when=models.Q(lease_holder=holder), **NO_LEASE)

    def begin_start(self, *, when: models.Q | None = None) -> bool:
        """Succeeds only for the lease holder, who alone may contact the engine."""
        ours = models.Q(lease_holder=self.lease_holder, cancel_requested_at=None)
        return self._transition([State.PENDING], when=ours & (when or models.Q()), state=State.STARTING)

    def postpone_start(
        self,
        *,
        next_attempt_at: datetime,
        why: str,
        answer: dict[str, Any] | None = None,
        unsure: bool = False,
    ) -> bool:
        """Back to PENDING: the engine has certainly not started it. `unsure`: still STARTING, because it may
        have been started; sending it again will show."""
        return self._transition(
            [State.STARTING],
            ("start_unknown" if unsure else "start_postponed", why),
            ours=True,
            payload={"start_answer": answer} if answer else None,
            state=State.STARTING if unsure else State.PENDING,
            next_attempt_at=next_attempt_at,
            attempts=self.attempts + 1,
        )

    def schedule_run_lookup(
        self,
        *,
        next_attempt_at: datetime,
        why: str,
        found_nothing: bool = False,
        answer: dict[str, Any] | None = None,
    ) -> bool:
        """Still STARTING: the engine is asked again for a run with the execution's key."""
        first = self.looked_up_since is None
        return self._transition(
            [State.STARTING],
            *([("looked_up", why)] if first or found_nothing else []),
            ours=True,
            payload={"start_answer": answer} if answer else None,
            looked_up_since=timezone.now() if first else self.looked_up_since,
            next_attempt_at=next_attempt_at,
            attempts=0 if first else self.attempts + 1,
            not_found=self.not_found + 1 if found_nothing else 0,
        )

    def conclude_not_started(self, why: str) -> bool:
        ended = State.FAILED if self.cancel_requested_at is None else State.CANCELLED
        return self._finish(ended, kind=ErrorKind.EXECUTION, why=why, allowed=[State.STARTING])

    def mark_running(self, started: Started, *, next_attempt_at: datetime) -> bool:
        now = timezone.now()
        moved = self._transition(
            [State.STARTING],
            ("started", f"The engine runs it as {started.run_id}."),
            payload={"start_answer": started.raw},
            state=State.RUNNING,
            run_id=started.run_id,
            correlation_id=started.correlation_id,
            started_at=now,
            # Immediately if an end was reported that may be this run's.
            next_attempt_at=RawSQL("COALESCE(end_reported_at, %s)", [adapt_time(next_attempt_at)]),
            attempts=0,
            not_found=0,
            input_request=None,  # Of a process that died during the start
        )
        if moved:
            self.next_attempt_at = next_attempt_at
        return moved

    def finish_start(
        self, started: Started, snapshot: RunSnapshot, *, sent_at: datetime | None = None
    ) -> bool:
        """The engine ran it between `sent_at` and its answer; without it, only the end is known."""
        # Most engines send it once, with the start.
        answers = {"status_answer": snapshot.raw} if snapshot.raw not in ({}, started.raw) else {}
        now = timezone.now()
        return self._finish_as_reported(
            [State.STARTING],
            snapshot,
            ("started", f"The engine runs it as {started.run_id}."),
            payload={"start_answer": started.raw, **answers},
            now=now,
            run_id=started.run_id,
            correlation_id=started.correlation_id,
            started_at=sent_at or now,
        )

    def confirm_started(
        self, run_id: str, *, by: str, next_attempt_at: datetime, started: Started | None = None
    ) -> bool:
        """An unconfirmed start did happen; a timeout that has passed restarts. `started`: a late answer."""
        now = timezone.now()
        restarted = now + timedelta(seconds=self.timeout_seconds)
        return self._transition(
            [State.UNCONFIRMED],
            ("confirmed", f"{by}: the engine runs it as {run_id}."),
            payload=None if started is None else {"start_answer": started.raw},
            state=State.RUNNING,
            run_id=run_id,
            correlation_id="" if started is None else started.correlation_id,
            started_at=now,
            deadline_at=self.deadline_at if self.deadline_at > now else restarted,
            overdue_since=None,
            next_attempt_at=next_attempt_at,
            attempts=0,
            not_found=0,
            error_kind="",
            error="",
        )

    def confirm_ran(self, output: Any, *, by: str) -> bool:
        """An administrator found that an unconfirmed start ran to its end. `output` None: not known."""
        event = f"{by}: it ran. Its output is not known."
        words = [
            f"{by} confirmed that {self.tool_name} ran, but its output is not known. "
            "Calling it again would run it a second time."
        ]
        if output is not None:
            event = f"{by}: it ran. {by} reported its output."
            written = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
            words = [f"{by} confirmed that {self.tool_name} ran, and reported this output:", written]
        content = [{"type": "text", "text": text} for text in words]  # As MCP has it
        said = self.payload.metadata | {SAID_BY: by}
        return self._transition(
            [State.UNCONFIRMED],
            (State.COMPLETED.value, event),
            payload={"output": output, "content": content, "metadata": said},
            state=State.COMPLETED,
            finished_at=timezone.now(),
            error_kind="",
            error="",
        )

    def confirm_not_started(self, *, by: str) -> bool:
        why = f"{by}: the engine did not start it."
        return self._transition(
            [State.UNCONFIRMED],
            (State.FAILED.value, why),
            state=State.FAILED,
            error_kind=ErrorKind.EXECUTION,
            finished_at=timezone.now(),
            error=printable(why),
        )

    def mark_unconfirmed(self, why: str, *, answer: dict[str, Any] | None = None) -> bool:
        return self._transition(
            [State.STARTING],
            ("unconfirmed", why),
            payload={"start_answer": answer} if answer else None,
            state=State.UNCONFIRMED,
            error_kind=ErrorKind.EXECUTION,
            error=printable(why),
            **self._answer(timezone.now()),
            **NO_LEASE,
        )

    def lose_run(self, why: str, *, kind: ErrorKind = ErrorKind.CONFIGURATION, polled: bool = False) -> bool:
        """The run may continue at the engine, which can no longer be asked about it."""
        return self._transition(
            [State.RUNNING],
            ("unconfirmed", why),
            ours=True,
            state=State.UNCONFIRMED,
            error_kind=kind,
            error=printable(why),
            **(ONE_POLL if polled else {}),
            **self._answer(timezone.now()),
            **NO_LEASE,
        )

    def record_poll(self, snapshot: RunSnapshot, *, next_attempt_at: datetime, release: bool = False) -> bool:
        """A poll found it running. `release` also releases the lease."""
        now = timezone.now()
        news = self.news_in(snapshot, now)
        noted: dict[str, Any] = {"progress_noted_at": now} if news else {}
        moved = self._plan(
            next_attempt_at,
            *([("progress", news)] if news else []),
            release=release,
            attempts=0,
            not_found=0,
            poll_failure="",
            polled_at=now,
            **ONE_POLL,
            **noted,
            **self.shown_by(snapshot),
        )
        if moved and news:
            log_progress(self, news)
        return moved

    def record_start_progress(self, snapshot: RunSnapshot) -> bool:
        now = timezone.now()
        news = self.news_in(snapshot, now)
        noted: dict[str, Any] = {"progress_noted_at": now} if news else {}
        moved = self._transition(
            [State.STARTING],
            *([("progress", news)] if news else []),
            ours=True,
            polled_at=now,
            **noted,
            **self.shown_by(snapshot),
        )
        if moved and news:
            log_progress(self, news)
        return moved

    def ask_caller(self, asked: InputRequest, message: str) -> bool:
        """It waits for input. Its result depends on the caller's answers, and so answers no other call."""
        return self._transition(
            [State.STARTING],
            ("asked", message),
            ours=True,
            input_request=asked.pk,
            progress_message=printable(message)[:MESSAGE_CHARACTERS],
            cache_key="",
        )

    def stop_asking(self, *events: Event) -> bool:
        """The run has its answers or no longer needs them."""
        return self._transition([State.STARTING], *events, input_request=None, progress_message="")

    def ask_people(
        self, asked: int | None, *events: Event, answered_at: datetime | None, **changes: Any
    ) -> bool:
        """What the run waits for changed, or people answered; under a lock on its row. Its result depends on
        the answers, and so answers no other call."""
        changes |= {"input_request": asked, "question_answered_at": answered_at, "cache_key": ""}
        return self._transition([State.RUNNING], *events, **changes)

    def shown_by(self, snapshot: RunSnapshot) -> dict[str, Any]:
        progress = {"progress": snapshot.progress, "progress_message": progress_message(snapshot)}
        return progress | {"is_held": snapshot.is_paused} | engine_times(self, snapshot)

    def news_in(self, snapshot: RunSnapshot, now: datetime) -> str:
        """A line for the timeline, or empty: the timeline grows with the logarithm of the run's age."""
        spacing = (now - (self.started_at or self.created_at)) / 20
        if self.progress_noted_at is not None and timedelta() <= now - self.progress_noted_at < spacing:
            return ""
        message = progress_message(snapshot)
        if (snapshot.progress, message) == (self.progress, self.progress_message):
            return ""
        percent = "" if snapshot.progress is None else f"{snapshot.progress:g} %"
        return " ".join(part for part in (percent, message) if part)

    def record_failed_poll(
        self, why: str, *, next_attempt_at: datetime, not_found: bool = False, release: bool = False
    ) -> bool:
        """A poll failed; the run goes on. `not_found`: the engine knows no such run, reports none, or has
        completed it without its result so far."""
        is_news = self.attempts == 0 or (not_found and self.not_found == 0)
        return self._plan(
            next_attempt_at,
            *([("poll_failed", why)] if is_news else []),
            release=release,
            attempts=self.attempts + 1,
            unless_reported=False,  # An engine may have said when to ask again
            not_found=self.not_found + 1 if not_found else 0,
            poll_failure=printable(why),
            polled_at=timezone.now(),
            **ONE_POLL,
        )

    def wait_for_next_poll(self, *, next_attempt_at: datetime, release: bool = False) -> bool:
        return self._plan(next_attempt_at, release=release)

    def bring_poll_forward(self, *, unless_since: datetime) -> bool:
        """Poll now, unless the engine was asked since then or is failing."""
        now = timezone.now()
        is_old = models.Q(polled_at__lte=unless_since) | models.Q(
            polled_at=None, started_at__lte=unless_since
        )
        free = models.Q(lease_expires_at=None) | models.Q(lease_expires_at__lt=now)
        planned = models.Q(next_attempt_at__gt=now, attempts=0)
        return self._transition([State.RUNNING], when=is_old & free & planned, next_attempt_at=now)

    def report_end(self) -> bool:
        """The engine's webhook reported its end: poll now, or once the start is recorded. False: it
        is not running, or an earlier report has not led to a poll yet.

        A failing engine is polled at its next attempt anyway.
        """
        now, running = timezone.now(), [State.STARTING, State.RUNNING]
        is_new = models.Q(end_reported_at=None) | models.Q(polled_at__gte=models.F("end_reported_at"))
        is_planned = models.Q(state=State.RUNNING, attempts=0, next_attempt_at__gt=now)
        due = models.Case(models.When(is_planned, then=now), default=models.F("next_attempt_at"))
        is_first = self.end_reported_at is None and self.state == State.RUNNING
        events = [("end_reported", "The engine's webhook reported its end.")] if is_first else []
        return self._transition(running, *events, when=is_new, end_reported_at=now, next_attempt_at=due)

    def _plan(
        self,
        next_attempt_at: datetime,
        *events: Event,
        release: bool,
        unless_reported: bool = True,
        **changes: Any,
    ) -> bool:
        """Schedule the next step of a running execution: now if, since the row was read, a cancellation was
        requested or, with `unless_reported`, its end was reported, which the poll may have preceded."""
        planned, parameters = "%s", [adapt_time(next_attempt_at)]
        if unless_reported:
            planned = "CASE WHEN end_reported_at > %s THEN end_reported_at ELSE %s END"
            parameters.insert(0, adapt_time(self.end_reported_at or self.created_at))
        if self.input_request is not None and self.question_answered_at is None:
            planned = f"COALESCE(question_answered_at, {planned})"
        if self.terminate_requested_at is None:
            planned = f"COALESCE(terminate_requested_at, {planned})"
        if self.cancel_requested_at is None:
            planned = f"COALESCE(cancel_requested_at, {planned})"
        if release:
            changes |= NO_LEASE
        due = RawSQL(planned, parameters)  # noqa: S611 - of constants
        moved = self._transition([State.RUNNING], *events, ours=True, next_attempt_at=due, **changes)
        if moved:
            self.next_attempt_at = next_attempt_at
        return moved

    def record_internal_error(self, why: str, *, next_attempt_at: datetime) -> bool:
        return self._transition(
            ACTIVE,
            *([("internal_error", why)] if self.attempts == 0 else []),
            ours=True,
            next_attempt_at=next_attempt_at,
            attempts=self.attempts + 1,
        )

    def fail(
        self,
        why: str,
        *,
        kind: ErrorKind = ErrorKind.EXECUTION,
        snapshot: RunSnapshot | None = None,
        polled: bool = False,
    ) -> bool:
        return self._finish(State.FAILED, snapshot=snapshot, kind=kind, why=why, polled=polled)

    def refuse_start(
        self, why: str, *, kind: ErrorKind, answer: dict[str, Any], aftermath: FailureEffect | None
    ) -> bool:
        """`answer`: the engine's raw one, or empty."""
        payload = {"start_answer": answer} if answer else {}
        return self._finish(State.FAILED, kind=kind, why=why, payload=payload, aftermath=aftermath)

    def cancel(self, why: str, *, polled: bool = False) -> bool:
        return self._finish(State.CANCELLED, kind=ErrorKind.EXECUTION, why=why, polled=polled)

    def time_out(self, why: str, *, snapshot: RunSnapshot | None = None) -> bool:
        # An execution that has no run id has no run to poll.
        kind, polled = ErrorKind.TIMEOUT, bool(self.run_id)
        return self._finish(State.TIMED_OUT, snapshot=snapshot, kind=kind, why=why, polled=polled)

    def finish_as_reported(self, snapshot: RunSnapshot) -> bool:
        return self._finish_as_reported(
            ACTIVE,
            snapshot,
            payload={"status_answer": snapshot.raw},
            poll_failure="",
            polled_at=timezone.now(),
            **ONE_POLL,
        )

    def request_cancel(self, by: str) -> bool:
        """Record the request; the lease holder cancels at the engine."""
        now = timezone.now()
        return self._transition(
            ACTIVE,
            ("cancel_requested", f"{by} asked for it."),
            when=models.Q(cancel_requested_at=None),
            cancel_requested_at=now,
            cancel_requested_by=by[:255],
            next_attempt_at=now,
        )

    def request_terminate(self, by: str) -> bool:
        """The same, of its end at once; also after a cancellation or an earlier request."""
        now = timezone.now()
        return self._transition(
            ACTIVE,
            ("terminate_requested", f"{by} asked for it."),
            cancel_requested_at=self.cancel_requested_at or now,
            cancel_requested_by=by[:255],
            cancel_refusal="",
            terminate_requested_at=now,
            terminate_sent_at=None,
            next_attempt_at=now,
        )

    def cancel_queued(self, by: str) -> bool:
        why = f"{by} cancelled it in the queue."
        return self._transition(
            [State.PENDING],
            (State.CANCELLED.value, why),
            when=models.Q(admitted_at=None),
            cancel_requested_at=timezone.now(),
            cancel_requested_by=by[:255],
            **self._end(State.CANCELLED, kind=ErrorKind.EXECUTION, why=why, snapshot=None),
        )

    def admit(self) -> bool:
        """Admit a queued execution: it is due now, and its timeout starts."""
        now = timezone.now()
        # An approved one also waited for its approval.
        waited = "" if self.approval_hash else f" after {(now - self.created_at).total_seconds():.1f} s"
        return self._transition(
            [State.PENDING],
            ("admitted", f"Admitted{waited} in the queue."),
            when=models.Q(admitted_at=None),
            admitted_at=now,
            next_attempt_at=now,
            deadline_at=now + timedelta(seconds=self.timeout_seconds),
        )

    def give_up_queued(self, why: str, *, kind: ErrorKind) -> bool:
        state = State.TIMED_OUT if kind == ErrorKind.TIMEOUT else State.FAILED
        return self._transition(
            [State.PENDING],
            (state.value, why),
            when=models.Q(admitted_at=None),
            **self._end(state, kind=kind, why=why, snapshot=None),
        )

    def hold_for_approval(self, why: str, *, approval_hash: str) -> bool:
        """Takes it out of the queue. Its result is not cached."""
        out = {"state": State.UNAPPROVED, "admitted_at": None, "cache_key": "", **NO_LEASE}
        return self._transition(
            [State.PENDING], ("unapproved", why), ours=True, approval_hash=approval_hash, **out
        )

    def change_input(self, changed: Any, why: str, *, by: str, approval_hash: str) -> bool:
        """While it waits for approval, which must bind what is sent then."""
        payload = {"changed_input": changed, "changed_by": by[:150]}
        return self._transition(
            [State.UNAPPROVED], ("input_changed", why), payload=payload, approval_hash=approval_hash
        )

    def approve(self, why: str) -> bool:
        """Into the queue; its timeout starts again when it is admitted."""
        now = timezone.now()
        return self._transition(
            [State.UNAPPROVED],
            ("approved", why),
            state=State.PENDING,
            next_attempt_at=now,
            deadline_at=now + timedelta(seconds=self.timeout_seconds),
        )

    def end_unapproved(self, state: State, why: str, *, kind: ErrorKind, cancelled_by: str = "") -> bool:
        asked: dict[str, Any] = {}
        if cancelled_by:
            asked = {"cancel_requested_at": timezone.now(), "cancel_requested_by": cancelled_by[:255]}
        ended = self._end(state, kind=kind, why=why, snapshot=None)
        return self._transition([State.UNAPPROVED], (state.value, why), **asked, **ended)

    def mark_overdue(self) -> bool:
        """Its timeout passed while it runs: it is cancelled next, with a grace period."""
        return self._transition(
            [State.RUNNING],
            ("overdue", f"Its timeout of {self.timeout_seconds} s has passed; it will be cancelled."),
            when=models.Q(overdue_since=None),
            ours=True,
            overdue_since=timezone.now(),
        )

    def mark_cancel_sent(self) -> bool:
        return self._transition(
            [State.RUNNING],
            ("cancel_sent", "The engine was asked to cancel the run."),
            cancel_sent_at=timezone.now(),
            cancel_refusal="",
        )

    def mark_terminate_sent(self, outcome: str, *, refusal: str = "") -> bool:
        """`refusal`: the engine's, of a request by somebody, which a cancellation then follows."""
        now = timezone.now()
        changes: dict[str, Any] = {"cancel_refusal": printable(refusal)}
        if not refusal:
            changes = {"cancel_sent_at": self.cancel_sent_at or now}
        return self._transition(
            [State.RUNNING], ("terminate_sent", outcome), terminate_sent_at=now, **changes
        )

    def mark_cancel_refused(self, why: str) -> bool:
        """The engine refused; it is not asked again."""
        return self._transition(
            [State.RUNNING],
            ("cancel_refused", why),
            cancel_sent_at=timezone.now(),
            cancel_refusal=printable(why),
        )

    def mark_not_cancellable(self, why: str) -> bool:
        """Nothing was sent: the engine cannot cancel runs, or its settings are unusable."""
        return self._transition(
            ACTIVE,
            ("not_cancelled", why),
            when=models.Q(cancel_refusal=""),
            cancel_refusal=printable(why),
        )

    def reattach(self, *, until: datetime) -> bool:
        """Take over an execution whose caller left without its result; not one cancelled before it ended."""
        abandoned = models.Q(awaited_until__lt=timezone.now())
        wanted = models.Q(cancel_requested_at=None) | ~models.Q(state__in=ACTIVE)
        return self._transition(
            [state for state in State if state != State.CANCELLED],
            ("reattached", "The caller repeated the call, which takes over this execution."),
            when=abandoned & wanted,
            awaited_until=until,
        )

    def mark_answered(self) -> bool:
        return self._transition(State, when=models.Q(awaited_until__isnull=False), awaited_until=None)

    def mark_unanswered(self, why: str = "") -> bool:
        """The waiting caller left without an answer; `why` goes into the timeline."""
        gone = [("caller_gone", why)] if why else []
        # So early that neither the end of the run nor a concurrent renewal counts it as awaited.
        return self._transition(State, *gone, awaited_until=timezone.now() - LONG_PAST)


def log_progress(execution: Execution, news: str) -> None:
    """Logs at DEBUG: the timeline has it too, and a hundred runs would hide all else in the log."""
    logger.bind(execution=execution.pk, tool=execution.tool_name).debug("Progress: {}", printable(news))


@dataclass(frozen=True, kw_only=True, slots=True)
class StartRequest:
    tool_name: str
    arguments: dict[str, Any]
    caller: Caller
    door: Execution.Door
    idempotency_key: str = ""  # Requests of one caller with the same key are one request; empty: none
    may_reattach: bool = False  # Whether it may be a retry after a lost connection
    fresh: bool = False  # Whether a cached result may not answer
    may_be_hidden: bool = False  # Whether a workflow may run that is hidden from agents
    by_card: bool = False  # Whether a workflow may run that is only for apps
    in_any_toolset: bool = False  # Whether one may run that only toolsets of the caller show
    retry_of: Execution | None = None
    from_failed_step: bool = False  # Of that one's run, which the engine then continues
    client: dict[str, Any] = field(default_factory=dict)  # The client's description of itself
    notices: Sequence[RunNotice] = ()  # Unsaved; see `executions.run_notices`
    id: uuid.UUID = field(default_factory=uuid.uuid4)  # Of the execution, unless it repeats another


def new_execution(
    request: StartRequest, workflow: Workflow, *, digest: str, now: datetime, **fields: Any
) -> Execution:
    timeout = workflow.effective_timeout_seconds
    if (failed := request.retry_of) is not None:
        fields |= {"retry_of_id": failed.pk, "retries": failed.retries + 1}
        if request.from_failed_step:
            fields |= {"retried_run_id": failed.last_run.run_id, "retried_key": failed.last_run.key}
    return Execution(
        id=request.id,
        workflow=workflow,
        tool_name=workflow.tool_name,
        workflow_name=workflow.name,
        upstream_id=workflow.upstream_id,
        source_name=workflow.source.name,
        caller=request.caller.key,
        caller_name=request.caller.name,
        door=request.door,
        toolset=request.caller.toolset or "",
        input_characters=size_of(request.arguments),
        had_card=bool(request.client.get("cards")),
        arguments_hash=digest,
        request_id=traces.request_id.get() or None,
        traceparent=traces.current_traceparent(),
        idempotency_key=request.idempotency_key,
        timeout_seconds=timeout,
        created_at=now,
        next_attempt_at=now,
        deadline_at=now + timedelta(seconds=timeout),
        **fields,
    )


def insert_execution(
    execution: Execution, request: StartRequest, workflow: Workflow, *events: Event, **payload: Any
) -> None:
    """The row with its payload, its first events and, if it has ended, its line in the statistics."""
    metadata: dict[str, Any] = {"version": workflow.version, "content_hash": workflow.content_hash}
    if request.caller.user_id is not None:
        metadata[ASKED_BY] = request.caller.user_id
    if request.client:
        metadata["client"] = request.client
    elif (here := origin.get()) is not None:
        metadata["client"] = {"address": here.address, "user_agent": here.client[:KEPT_CHARACTERS]}
    stored = ExecutionPayload(execution=execution, input=request.arguments, metadata=metadata, **payload)
    stored.began_proof = prove(parts_of_call(vars(execution), metadata), request.arguments)
    if execution.is_final:
        stored.ended_proof = prove_end(vars(execution), payload)["ended_proof"]
    by_alias = f" by its former name {request.tool_name}" if request.tool_name != workflow.tool_name else ""
    called = ("created", f"{request.caller.name} called {workflow.tool_name}{by_alias}.")
    for notice in request.notices:
        notice.execution_id = execution.pk
    lines = [(execution.pk, execution.created_at, kind, message) for kind, message in (called, *events)]
    if (failed := request.retry_of) is not None:
        how = "its failed steps again" if request.from_failed_step else "it again"
        told = f"{request.caller.name} ran {how} through {DOORS[request.door]}, as execution {execution.pk}."
        lines.append((failed.pk, execution.created_at, "retried", told))
    carry_out(
        insertion_of(execution),
        insertion_of(stored),
        *map(insertion_of, request.notices),
        insertion(ExecutionEvent, EVENT_COLUMNS, lines),
        *([usage_insertion([end_of(execution, {})])] if execution.is_final and execution.is_counted else []),
    )
    execution._state.adding = stored._state.adding = False
