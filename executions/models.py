"""What ran: one durable record for every execution, and the verbs that move it.

PENDING -> STARTING -> RUNNING -> COMPLETED | FAILED | CANCELLED | TIMED_OUT
              \\-> UNCONFIRMED

PENDING means that no engine can have it yet; STARTING, that one may, as long as its answer is not recorded.
Nobody assigns a state. Each verb is one compare-and-set UPDATE; it returns False when another process was
faster, and then the caller looks again instead of insisting.
"""

import contextlib
import json
import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import Any, ClassVar

from django.conf import settings
from django.db import models, transaction
from django.db.models.functions import Coalesce
from django.utils import timezone

from catalogue.fields import JSONTextField
from catalogue.models import Workflow
from connectors.protocol import RunRef, RunSnapshot, RunState, Started
from connectors.redaction import printable
from executions.querysets import ExecutionQuerySet


class State(models.TextChoices):
    PENDING = "pending", "waiting to be started"
    STARTING = "starting", "being started"
    RUNNING = "running", "running"
    COMPLETED = "completed", "completed"
    FAILED = "failed", "failed"
    CANCELLED = "cancelled", "cancelled"
    TIMED_OUT = "timed_out", "timed out"
    UNCONFIRMED = "unconfirmed", "unconfirmed"


ACTIVE = (State.PENDING, State.STARTING, State.RUNNING)
FINAL = (State.COMPLETED, State.FAILED, State.CANCELLED, State.TIMED_OUT)


class ErrorKind(models.TextChoices):
    """The five kinds of B5."""

    DISCOVERY = "discovery", "discovery"
    VALIDATION = "validation", "validation"
    EXECUTION = "execution", "execution"
    TIMEOUT = "timeout", "timeout"
    CONFIGURATION = "configuration", "configuration"


class Execution(models.Model):
    """One run of a workflow on behalf of a caller. Payloads live in `ExecutionPayload`."""

    class Door(models.TextChoices):
        MCP = "mcp", "MCP"
        REST = "rest", "REST"
        ADMIN = "admin", "admin"
        COMMAND = "command", "command line"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    workflow = models.ForeignKey(Workflow, null=True, on_delete=models.SET_NULL, related_name="executions")
    # The names at the time: a record has to be readable after its workflow is gone.
    tool_name = models.CharField(max_length=64)
    workflow_name = models.CharField(max_length=255)
    upstream_id = models.CharField("engine's workflow id", max_length=255)
    source_name = models.CharField("source", max_length=64, db_index=True)
    caller = models.CharField(
        max_length=100, db_index=True, help_text="Who started it, e.g. token:7 or user:1."
    )
    caller_name = models.CharField(max_length=255, blank=True)
    door = models.CharField(max_length=10, choices=Door.choices)

    state = models.CharField(max_length=12, choices=State.choices, default=State.PENDING)
    run_id = models.CharField("engine's run id", max_length=255, blank=True, db_index=True)
    correlation_id = models.CharField(max_length=255, blank=True)
    progress = models.FloatField(null=True, help_text="Percent, as the engine reports it.")
    progress_message = models.CharField(max_length=500, blank=True)
    error_kind = models.CharField(max_length=15, choices=ErrorKind.choices, blank=True)
    error = models.TextField(blank=True)

    created_at = models.DateTimeField(default=timezone.now, db_index=True)
    started_at = models.DateTimeField(null=True, help_text="When the engine took it.")
    finished_at = models.DateTimeField(null=True)
    engine_created_at = models.DateTimeField(null=True)
    engine_started_at = models.DateTimeField(null=True)
    engine_updated_at = models.DateTimeField(null=True)
    engine_finished_at = models.DateTimeField(null=True)

    timeout_seconds = models.PositiveIntegerField()
    deadline_at = models.DateTimeField(help_text="When it is given up and cancelled.")
    next_attempt_at = models.DateTimeField(
        default=timezone.now, help_text="When somebody should next ask the engine."
    )
    attempts = models.PositiveIntegerField(
        default=0, help_text="Failed attempts in a row to reach the engine."
    )
    not_found = models.PositiveIntegerField(
        default=0, help_text="Polls in a row to which the engine said that it knows no such run."
    )
    polls = models.PositiveIntegerField(default=0)
    polled_at = models.DateTimeField(null=True, help_text="When the engine was last asked for the status.")
    lease_holder = models.CharField(max_length=64, blank=True)
    lease_expires_at = models.DateTimeField(null=True)
    cancel_requested_at = models.DateTimeField(null=True)
    cancel_requested_by = models.CharField(max_length=255, blank=True)
    cancel_sent_at = models.DateTimeField(null=True, help_text="When the engine was told.")

    objects: ClassVar[models.Manager["Execution"]] = ExecutionQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at", "-id")
        indexes = [
            models.Index(
                fields=["next_attempt_at"],
                name="execution_due",
                condition=models.Q(state__in=["pending", "starting", "running"]),
            ),
            models.Index(fields=["workflow", "-created_at"]),
            models.Index(fields=["state", "-created_at"]),
        ]

    def __str__(self) -> str:
        return f"{self.tool_name} {self.id}"

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    @property
    def is_settled(self) -> bool:
        """Nothing will change by itself any more."""
        return self.state not in ACTIVE

    @property
    def succeeded(self) -> bool:
        return self.state == State.COMPLETED

    @property
    def duration_ms(self) -> int | None:
        """By the engine's clock where it tells both times, else by ours."""
        begun = self.engine_started_at or self.started_at or self.created_at
        ended = (
            self.engine_finished_at
            if self.engine_started_at and self.engine_finished_at
            else self.finished_at
        )
        return None if ended is None else max(0, round((ended - begun).total_seconds() * 1000))

    @property
    def run(self) -> RunRef:
        """Raises ValueError for an execution whose workflow has been deleted."""
        if self.workflow is None:
            raise ValueError("The workflow of this execution was deleted.")
        return RunRef(workflow=self.workflow.ref, run_id=self.run_id, key=self.id)

    # Verbs

    def hold(self, *, holder: str, until: datetime) -> bool:
        """Take or renew the lease: from now on only `holder` talks to the engine."""
        now = timezone.now()
        free = (
            models.Q(lease_expires_at=None)
            | models.Q(lease_expires_at__lt=now)
            | models.Q(lease_holder=holder)
        )
        return self._move(ACTIVE, when=free, lease_holder=holder, lease_expires_at=until)

    def let_go(self, *, holder: str) -> bool:
        """Give the lease back; at `next_attempt_at` whoever polls goes on."""
        return self._move(ACTIVE, when=models.Q(lease_holder=holder), **_no_lease())

    def begin_start(self, *, until: datetime) -> bool:
        """Only for the holder, whose lease goes on to `until`: whoever lost it may not contact the engine."""
        ours = models.Q(lease_holder=self.lease_holder, cancel_requested_at=None)
        return self._move([State.PENDING], when=ours, state=State.STARTING, lease_expires_at=until)

    def postpone_start(self, *, next_attempt_at: datetime, why: str) -> bool:
        """Back to PENDING: the engine has surely not been started."""
        return self._move(
            [State.STARTING],
            "start_postponed",
            why,
            state=State.PENDING,
            next_attempt_at=next_attempt_at,
            attempts=self.attempts + 1,
        )

    def postpone_start_again(self, *, next_attempt_at: datetime, why: str) -> bool:
        """Still STARTING: the engine may have been started, and starting it again will tell."""
        return self._move(
            [State.STARTING],
            "start_unknown",
            why,
            next_attempt_at=next_attempt_at,
            attempts=self.attempts + 1,
        )

    def mark_running(self, started: Started, *, next_attempt_at: datetime) -> bool:
        now = timezone.now()
        return self._move(
            [State.STARTING],
            "started",
            f"The engine runs it as {started.run_id}.",
            payload={"start_answer": started.raw},
            state=State.RUNNING,
            run_id=started.run_id,
            correlation_id=started.correlation_id,
            started_at=now,
            next_attempt_at=next_attempt_at,
            attempts=0,
        )

    def mark_unconfirmed(self, why: str) -> bool:
        return self._move(
            [State.STARTING],
            "unconfirmed",
            why,
            state=State.UNCONFIRMED,
            error_kind=ErrorKind.EXECUTION,
            error=printable(why),
            **_no_lease(),
        )

    def record_poll(self, snapshot: RunSnapshot, *, next_attempt_at: datetime) -> bool:
        """A poll that ended just now found it still running."""
        news = self._progress_news(snapshot)
        return self._plan(
            next_attempt_at,
            "progress" if news else "",
            news,
            progress=snapshot.progress,
            progress_message=_progress_message(snapshot),
            attempts=0,
            not_found=0,
            polled_at=timezone.now(),
            polls=models.F("polls") + 1,
            **_engine_times(snapshot),
        )

    def _progress_news(self, snapshot: RunSnapshot) -> str:
        """What the timeline should say; empty when the engine told nothing new."""
        message = _progress_message(snapshot)
        if (snapshot.progress, message) == (self.progress, self.progress_message):
            return ""
        told = "" if snapshot.progress is None else f"{snapshot.progress:g} %"
        return " ".join(part for part in (told, message) if part)

    def record_failed_poll(self, why: str, *, next_attempt_at: datetime, not_found: bool = False) -> bool:
        """The engine did not say how the run is; it goes on without us."""
        return self._plan(
            next_attempt_at,
            "poll_failed" if self.attempts == 0 else "",
            why,
            attempts=self.attempts + 1,
            not_found=self.not_found + 1 if not_found else 0,
            polled_at=timezone.now(),
            polls=models.F("polls") + 1,
        )

    def wait_for_next_poll(self, *, next_attempt_at: datetime) -> bool:
        """It is too early to ask the engine again."""
        return self._plan(next_attempt_at)

    def _plan(self, next_attempt_at: datetime, event: str = "", message: str = "", **changes: Any) -> bool:
        """Plan the next step of a running one; at once if a cancel was asked for since the row was read."""
        planned: Any = next_attempt_at
        if self.cancel_requested_at is None:
            planned = Coalesce("cancel_requested_at", models.Value(next_attempt_at))
        moved = self._move([State.RUNNING], event, message, next_attempt_at=planned, **changes)
        if moved:
            self.next_attempt_at = next_attempt_at
        return moved

    def record_internal_error(self, why: str, *, next_attempt_at: datetime) -> bool:
        """A step of ours broke off; the next one starts from what the row says."""
        return self._move(
            ACTIVE,
            "internal_error" if self.attempts == 0 else "",
            why,
            next_attempt_at=next_attempt_at,
            attempts=self.attempts + 1,
        )

    def complete(self, snapshot: RunSnapshot) -> bool:
        return self._finish(State.COMPLETED, snapshot=snapshot)

    def fail(
        self, why: str, *, kind: ErrorKind = ErrorKind.EXECUTION, snapshot: RunSnapshot | None = None
    ) -> bool:
        return self._finish(State.FAILED, snapshot=snapshot, kind=kind, why=why)

    def cancel(self, why: str, *, snapshot: RunSnapshot | None = None) -> bool:
        return self._finish(State.CANCELLED, snapshot=snapshot, kind=ErrorKind.EXECUTION, why=why)

    def time_out(self, why: str, *, snapshot: RunSnapshot | None = None) -> bool:
        return self._finish(State.TIMED_OUT, snapshot=snapshot, kind=ErrorKind.TIMEOUT, why=why)

    def finish_as_reported(self, snapshot: RunSnapshot) -> bool:
        """The engine says that the run has ended."""
        if snapshot.state == RunState.COMPLETED:
            return self.complete(snapshot)
        if snapshot.state == RunState.CANCELLED:
            return self.cancel(snapshot.error or "The run was cancelled at the engine.", snapshot=snapshot)
        return self.fail(snapshot.error or "The engine gave no reason.", snapshot=snapshot)

    def request_cancel(self, by: str) -> bool:
        """Note that somebody wants it cancelled; whoever holds the lease tells the engine."""
        now = timezone.now()
        return self._move(
            ACTIVE,
            "cancel_requested",
            f"{by} asked for it.",
            when=models.Q(cancel_requested_at=None),
            cancel_requested_at=now,
            cancel_requested_by=by[:255],
            next_attempt_at=now,
        )

    def mark_cancel_sent(self) -> bool:
        return self._move(
            [State.RUNNING],
            "cancel_sent",
            "The engine was asked to cancel the run.",
            cancel_sent_at=timezone.now(),
        )

    def mark_cancel_refused(self, why: str) -> bool:
        """The engine was told and said no; it is not asked again."""
        return self._move([State.RUNNING], "cancel_refused", why, cancel_sent_at=timezone.now())

    def note(self, kind: str, message: str) -> None:
        """Add a line to the timeline that changes no state."""
        ExecutionEvent.objects.create(execution=self, kind=kind, message=printable(message))

    def _finish(
        self,
        state: State,
        *,
        snapshot: RunSnapshot | None = None,
        kind: ErrorKind | None = None,
        why: str = "",
    ) -> bool:
        payload = {} if snapshot is None else {"output": snapshot.output, "status_answer": snapshot.raw}
        changes: dict[str, Any] = {} if snapshot is None else _engine_times(snapshot)
        if snapshot is not None and snapshot.progress is not None:
            changes |= {"progress": snapshot.progress, "progress_message": _progress_message(snapshot)}
        return self._move(
            ACTIVE,
            state.value,
            why,
            payload=payload,
            state=state,
            finished_at=timezone.now(),
            error_kind=kind or "",
            error=printable(why),
            **changes,
            **_no_lease(),
        )

    def _move(
        self,
        allowed: Iterable[str],
        event: str = "",
        message: str = "",
        *,
        when: models.Q | None = None,
        payload: dict[str, Any] | None = None,
        **changes: Any,
    ) -> bool:
        """Apply `changes` if the row is still in one of the `allowed` states; True if it was.

        The event and the payload go into the same transaction. Afterwards the instance shows the changes.
        """
        matching = Execution.objects.filter(when or models.Q(), pk=self.pk, state__in=list(allowed))
        # One UPDATE is a transaction already, and within another one a savepoint would only cost time.
        several = transaction.atomic(savepoint=False) if event or payload else contextlib.nullcontext()
        with several:
            if matching.update(**changes) != 1:
                return False
            if payload:
                ExecutionPayload.record(self, **payload)
            if event:
                self.note(event, message)
        # The state last: a waiting request may read the instance while this thread writes it.
        for name, value in sorted(changes.items(), key=lambda change: change[0] == "state"):
            if not isinstance(value, models.expressions.Combinable):
                setattr(self, name, value)
        return True


def _no_lease() -> dict[str, Any]:
    return {"lease_holder": "", "lease_expires_at": None}


def _progress_message(snapshot: RunSnapshot) -> str:
    return printable(snapshot.progress_message)[:500]


def _engine_times(snapshot: RunSnapshot) -> dict[str, Any]:
    return {
        "engine_created_at": snapshot.created_at,
        "engine_started_at": snapshot.started_at,
        "engine_updated_at": snapshot.updated_at,
        "engine_finished_at": snapshot.finished_at,
    }


class ExecutionPayload(models.Model):
    """What went in and what came out, apart from the row that lists and counters read."""

    execution = models.OneToOneField(
        Execution, on_delete=models.CASCADE, primary_key=True, related_name="payload"
    )
    input = JSONTextField(default=dict)
    output = JSONTextField(null=True)
    start_answer = JSONTextField(null=True, help_text="The engine's raw answer to the start.")
    status_answer = JSONTextField(null=True, help_text="The engine's last raw status.")
    cut = JSONTextField(default=list, help_text="Which of them were too large to keep whole.")

    def __str__(self) -> str:
        return f"payload of {self.pk}"

    @classmethod
    def record(cls, execution: Execution, **values: Any) -> None:
        """Keep the values; one that is too large is left out, and `cut` and the timeline say so."""
        limit = settings.CATALOGUE["max_payload_bytes"]
        sizes = {name: len(json.dumps(value)) for name, value in values.items()}
        if too_large := {name: size for name, size in sizes.items() if size > limit}:
            for name, size in too_large.items():
                execution.note("cut", f"The {name} of {size} bytes is over the limit of {limit}.")
            values |= dict.fromkeys(too_large)
            cut = [{"payload": name, "bytes": size} for name, size in too_large.items()]
            values["cut"] = cls.objects.values_list("cut", flat=True).get(pk=execution.pk) + cut
        cls.objects.filter(pk=execution.pk).update(**values)
        # Whoever read the payload before would go on seeing it as it was.
        if (known := execution._state.fields_cache.get("payload")) is not None:
            for name, value in values.items():
                setattr(known, name, value)


class ExecutionEvent(models.Model):
    """One line of an execution's timeline."""

    execution = models.ForeignKey(Execution, on_delete=models.CASCADE, related_name="events")
    at = models.DateTimeField(default=timezone.now)
    kind = models.CharField(max_length=30)
    message = models.TextField(blank=True)

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"
