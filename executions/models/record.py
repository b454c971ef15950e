"""What is kept of an execution, apart from its payloads and its timeline."""

import asyncio
import uuid
from dataclasses import replace
from datetime import datetime

from django.db import models
from django.utils import timezone

from catalogue.models import Workflow
from connectors.network.redaction import printable
from connectors.protocol import RunRef
from executions.models.event import ExecutionEvent
from executions.models.states import ACTIVE, FINAL, CancelProgress, ErrorKind, State


class ExecutionRecord(models.Model):
    """One run of a workflow on behalf of a caller. Payloads live in `ExecutionPayload`."""

    class Door(models.TextChoices):
        MCP = "mcp", "MCP"
        REST = "rest", "REST"
        ADMIN = "admin", "admin"
        COMMAND = "command", "command line"
        WORKFLOW = "workflow", "natural-language request"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    # Without an index of its own: execution_by_workflow begins with it.
    workflow = models.ForeignKey(
        Workflow, null=True, on_delete=models.SET_NULL, related_name="executions", db_index=False
    )
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
    toolset = models.CharField(
        max_length=64, blank=True, help_text="Whose address it was called at; empty: at that of all tools."
    )
    input_characters = models.PositiveBigIntegerField(default=0, help_text="Of the arguments, as JSON.")
    output_characters = models.PositiveBigIntegerField(default=0, help_text="Of the result, as JSON.")

    arguments_hash = models.CharField(max_length=64, editable=False, help_text="SHA-256 of the input.")
    idempotency_key = models.CharField(
        max_length=255, blank=True, help_text="The caller's own name for this request."
    )
    cached_from = models.ForeignKey(
        "executions.Execution",
        null=True,
        on_delete=models.SET_NULL,
        related_name="answered_from_cache",
        db_index=False,
        editable=False,
        help_text="The run whose cached result answered it; empty also once that is removed.",
    )
    cached_at = models.DateTimeField(
        null=True, help_text="When the run ended whose cached result answered it. Empty: it ran itself."
    )
    cache_key = models.CharField(
        max_length=64, blank=True, editable=False, help_text="What its result is to be cached under."
    )
    cache_clearings = models.PositiveBigIntegerField(
        default=0,
        editable=False,
        help_text="How often its workflow's cached results had been cleared when it began.",
    )
    awaited_until = models.DateTimeField(
        null=True,
        help_text="In the future: a request waits for it. In the past: its caller is gone without an answer.",
    )

    state = models.CharField(max_length=12, choices=State.choices, default=State.PENDING)
    run_id = models.CharField("engine's run id", max_length=255, blank=True, db_index=True)
    correlation_id = models.CharField(max_length=255, blank=True)
    progress = models.FloatField(null=True, help_text="Percent, as the engine reports it.")
    progress_message = models.CharField(max_length=500, blank=True)
    error_kind = models.CharField(max_length=15, choices=ErrorKind.choices, blank=True)
    error = models.TextField(blank=True)

    created_at = models.DateTimeField(default=timezone.now, db_index=True)
    payload_pruned_at = models.DateTimeField(
        null=True, help_text="When the retention removed its input, output and raw answers."
    )
    events_pruned_at = models.DateTimeField(null=True, help_text="When the retention removed its timeline.")

    admitted_at = models.DateTimeField(
        null=True, help_text="When the limits had room for it. Empty: it waits in the queue."
    )
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
        default=0,
        help_text="Polls in a row to which the engine said that it knows no such run, or tells of none.",
    )
    poll_failure = models.TextField(
        blank=True, help_text="Why the last poll did not tell how the run is. Empty: it did."
    )
    looked_up_since = models.DateTimeField(
        null=True,
        help_text="Since when the engine is asked whether it has a run for our key; the answer is lost.",
    )
    polls = models.PositiveIntegerField(default=0)
    progress_noted_at = models.DateTimeField(null=True, help_text="When the timeline last told of progress.")
    polled_at = models.DateTimeField(null=True, help_text="When the engine was last asked for the status.")
    lease_holder = models.CharField(max_length=64, blank=True)
    lease_expires_at = models.DateTimeField(null=True)
    cancel_requested_at = models.DateTimeField(null=True)
    cancel_requested_by = models.CharField(max_length=255, blank=True)
    overdue_since = models.DateTimeField(
        null=True, help_text="When its timeout was seen to have passed, and its cancellation to be due."
    )
    cancel_sent_at = models.DateTimeField(null=True, help_text="When the engine was told.")
    terminate_sent_at = models.DateTimeField(
        null=True, help_text="When the engine was told to end it, as it had not followed the cancellation."
    )
    cancel_refusal = models.TextField(blank=True, help_text="The engine's words where it refused to cancel.")

    is_reattached = False
    """Not stored: an earlier, identical call began it, and its caller went away without an answer."""
    in_hand = False
    """Not stored: a request of this process waits for it, and answers with what it becomes."""
    news: asyncio.Event | None = None
    """Not stored: set whenever that request has something to tell."""
    raised: Exception | None = None
    """Not stored: why its start failed, as the connector raised it in this process."""

    class Meta:
        abstract = True
        ordering = ("-created_at", "-id")
        indexes = [
            models.Index(
                fields=["next_attempt_at"],
                name="execution_due",
                condition=models.Q(state__in=["pending", "starting", "running"]),
            ),
            # Who takes up room within the limits, and who waits for it. The conditions are in words that
            # SQLite recognises in a query, unlike lists; the state makes it prefer these indexes.
            models.Index(
                fields=["workflow", "state", "caller"],
                name="execution_room_workflow",
                condition=models.Q(admitted_at__isnull=False, finished_at=None),
            ),
            models.Index(
                fields=["caller", "state"],
                name="execution_room_caller",
                condition=models.Q(admitted_at__isnull=False, finished_at=None),
            ),
            models.Index(
                fields=["created_at"],
                name="execution_queued",
                condition=models.Q(admitted_at=None, finished_at=None),
            ),
            models.Index(
                fields=["admitted_at"],
                name="execution_was_queued",
                condition=models.Q(admitted_at__gt=models.F("created_at")),
            ),
            models.Index(
                fields=["caller", "arguments_hash"],
                name="execution_awaited",
                condition=models.Q(awaited_until__isnull=False),
            ),
            models.Index(
                fields=["cached_from"],
                name="execution_cached_from",
                condition=models.Q(cached_from__isnull=False),
            ),
            # What the retention walks: each index holds only what it may still have to remove.
            models.Index(
                fields=["finished_at"],
                name="execution_finished",
                condition=models.Q(finished_at__isnull=False),
            ),
            models.Index(
                fields=["finished_at"],
                name="execution_payload_kept",
                condition=models.Q(finished_at__isnull=False, payload_pruned_at=None),
            ),
            models.Index(
                fields=["finished_at"],
                name="execution_events_kept",
                condition=models.Q(finished_at__isnull=False, events_pruned_at=None),
            ),
            models.Index(fields=["workflow", "-created_at"], name="execution_by_workflow"),
            models.Index(fields=["state", "-created_at"], name="execution_by_state"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["caller", "idempotency_key"],
                name="one_execution_per_key",
                condition=~models.Q(idempotency_key=""),
            ),
        ]

    def note(self, kind: str, message: str) -> None:
        """Add a line to the timeline that changes no state."""
        ExecutionEvent.objects.create(execution_id=self.pk, kind=kind, message=printable(message))

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
    def is_queued(self) -> bool:
        return self.state == State.PENDING and self.admitted_at is None

    @property
    def is_awaited(self) -> bool:
        """A request waits for it at present."""
        return self.awaited_until is not None and self.awaited_until >= timezone.now()

    @property
    def is_unanswered(self) -> bool:
        """Its caller is gone without an answer, and has not come back for one."""
        return self.awaited_until is not None and self.awaited_until < timezone.now()

    @property
    def cancel_progress(self) -> CancelProgress | None:
        """What came of somebody's wish to cancel it; None where nobody had it."""
        if self.cancel_requested_at is None:
            return None
        if self.state == State.CANCELLED:
            return CancelProgress.CONFIRMED
        if self.cancel_refusal:
            return CancelProgress.REFUSED
        if self.is_final:
            return CancelProgress.TOO_LATE
        return CancelProgress.REQUESTED if self.cancel_sent_at is None else CancelProgress.SENT

    @property
    def told_state(self) -> str:
        """In words, for people and models."""
        if self.is_queued:
            return "waiting in the queue"
        if self.state == State.RUNNING and self.overdue_since is not None:
            return "being ended, as its timeout has passed"
        return self.get_state_display()

    @property
    def doubt(self) -> str:
        """A sentence where the engine did not tell how the run is when it was last asked; else empty."""
        if self.state != State.RUNNING or not self.poll_failure:
            return ""
        return f"When it was last asked, the engine did not tell how the run is: {self.poll_failure}"

    @property
    def told_progress(self) -> float | None:
        """Percent. Engines seldom say of a run that has completed how far it is."""
        return 100.0 if self.state == State.COMPLETED else self.progress

    @property
    def succeeded(self) -> bool:
        return self.state == State.COMPLETED

    @property
    def duration_ms(self) -> int | None:
        """By the engine's clock where it tells both times, else by ours."""
        if self.finished_at is None and not (self.engine_started_at and self.engine_finished_at):
            return None
        return milliseconds_between(
            created_at=self.created_at,
            started_at=self.started_at,
            finished_at=self.finished_at,
            engine_started_at=self.engine_started_at,
            engine_finished_at=self.engine_finished_at,
        )

    @property
    def run(self) -> RunRef:
        """Raises ValueError for an execution whose workflow has been deleted."""
        if self.workflow is None:
            raise ValueError("The workflow of this execution was deleted.")
        workflow = replace(self.workflow.ref, timeout_seconds=self.timeout_seconds)
        return RunRef(workflow=workflow, run_id=self.run_id, key=self.id)


def milliseconds_between(
    *,
    created_at: datetime,
    started_at: datetime | None,
    finished_at: datetime | None,
    engine_started_at: datetime | None,
    engine_finished_at: datetime | None,
) -> int:
    """How long it took. The engine has to tell both of its times, or our own end has to be known."""
    begun = engine_started_at or started_at or created_at
    ended = engine_finished_at if engine_started_at and engine_finished_at else finished_at
    if ended is None:
        raise ValueError("It has not ended.")
    return max(0, round((ended - begun).total_seconds() * 1000))
