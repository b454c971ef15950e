"""The row of an execution with its states, payload and timeline, shared queries, and the rows that upkeep
reads."""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self, TypeVar

from django.conf import settings
from django.core.validators import MaxValueValidator
from django.db import connection, models
from django.db.models import Q
from django.utils import timezone
from django.utils.text import format_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from access.callers import Caller
from audit.models import ProofField, is_proof, make_proof
from catalogue import long_lists
from catalogue.fields import JSONTextField
from catalogue.models import Recorded, Workflow
from connectors.network.redaction import printable
from connectors.protocol import RunRef

ASKED_BY = "user_id"  # The key in `metadata` of the user that the caller acts for
SAID_BY = "said_by"  # The name in `metadata` of the administrator who resolved the run by hand


class State(models.TextChoices):
    UNAPPROVED = "unapproved", _("waiting for approval")
    PENDING = "pending", _("waiting to be started")
    STARTING = "starting", _("being started")
    RUNNING = "running", _("running")
    COMPLETED = "completed", _("completed")
    FAILED = "failed", _("failed")
    CANCELLED = "cancelled", _("cancelled")
    TIMED_OUT = "timed_out", _("timed out")
    UNCONFIRMED = "unconfirmed", _("unconfirmed")


ACTIVE = (State.PENDING, State.STARTING, State.RUNNING)
OPEN = (State.UNAPPROVED, *ACTIVE)  # Unapproved ones have no worker, lease or limit
FINAL = (State.COMPLETED, State.FAILED, State.CANCELLED, State.TIMED_OUT)


class CancelProgress(models.TextChoices):
    REQUESTED = "requested", _("requested; not sent to the engine yet")
    SENT = "sent", _("sent to the engine; not confirmed yet")
    CONFIRMED = "confirmed", _("cancelled")
    REFUSED = "refused", _("the engine refused")
    TOO_LATE = "too_late", _("it ended before it could be cancelled")


class FailureEffect(models.TextChoices):
    """What a failure left behind, which decides what may be done next. A line of the timeline, so English."""

    MAY_HAVE_EFFECT = "may_have_effect", "The action may have taken effect all the same."
    NO_OTHER_ARGUMENTS = "no_other_arguments", "Other arguments would not help."
    NOTHING_DONE = (
        "nothing_done",
        "The engine was not reached, or asks to be called later. Nothing was done.",
    )


class ErrorKind(models.TextChoices):
    """The five kinds of B5."""

    DISCOVERY = "discovery", _("discovery")
    VALIDATION = "validation", _("validation")
    EXECUTION = "execution", _("execution")
    TIMEOUT = "timeout", _("timeout")
    CONFIGURATION = "configuration", _("configuration")


class ExecutionEvent(models.Model):
    execution = models.ForeignKey("executions.Execution", on_delete=models.CASCADE, related_name="events")
    at = models.DateTimeField(default=timezone.now)
    kind = models.CharField(max_length=30)
    message = models.TextField(blank=True)

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


EVENT_COLUMNS = ("execution_id", "at", "kind", "message")
DOORS = {"mcp": "MCP", "rest": "REST", "admin": "the admin", "test": "the admin", "command": "a command"}
"""As records, which are English, name them."""


class ExecutionRecord(models.Model):
    class Door(models.TextChoices):
        MCP = "mcp", _("MCP")
        REST = "rest", _("REST")
        ADMIN = "admin", _("admin")
        TEST = "test", _("test run")  # By a curator in the admin; the statistics do not count it
        COMMAND = "command", _("command line")
        WORKFLOW = "workflow", _("natural-language request")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    # No index of its own: execution_by_workflow begins with it.
    workflow = models.ForeignKey(
        Workflow, null=True, on_delete=models.SET_NULL, related_name="executions", db_index=False
    )
    # Copied, so that the record is readable after its workflow is deleted.
    tool_name = models.CharField(max_length=64)
    workflow_name = models.CharField(max_length=255)
    upstream_id = models.CharField(_("engine's workflow id"), max_length=255)
    source_name = models.CharField(_("source"), max_length=64)
    caller = models.CharField(max_length=100, help_text="Who started it, e.g. token:7 or user:1.")
    caller_name = models.CharField(max_length=255, blank=True)
    door = models.CharField(max_length=10, choices=Door.choices)
    toolset = models.CharField(
        max_length=64,
        blank=True,
        help_text="The toolset whose address was called. Empty: the address for all tools.",
    )
    input_characters = models.PositiveBigIntegerField(default=0, help_text="Length of the arguments as JSON.")
    output_characters = models.PositiveBigIntegerField(default=0, help_text="Length of the result as JSON.")

    arguments_hash = models.CharField(max_length=64, editable=False, help_text="SHA-256 of the input.")
    approval_hash = models.CharField(
        max_length=64,
        blank=True,
        editable=False,
        help_text="SHA-256 of the workflow's content, the input and the caller, which must match those that "
        "were approved. Empty: it needed no approval.",
    )
    idempotency_key = models.CharField(
        max_length=255, blank=True, help_text="The key that the caller gave this request."
    )
    cached_from = models.ForeignKey(
        "executions.Execution",
        null=True,
        on_delete=models.SET_NULL,
        related_name="answered_from_cache",
        db_index=False,
        editable=False,
        help_text="The run whose cached result answered it; empty also once that run is removed.",
    )
    cached_at = models.DateTimeField(
        null=True, help_text="When the run ended whose cached result answered it. Empty: it ran itself."
    )
    cache_key = models.CharField(
        max_length=64, blank=True, editable=False, help_text="The key under which its result is cached."
    )
    cache_clearings = models.PositiveBigIntegerField(
        default=0,
        editable=False,
        help_text="How often its workflow's cached results had been cleared when it began.",
    )
    retry_of = models.ForeignKey(
        "executions.Execution",
        null=True,
        on_delete=models.SET_NULL,
        related_name="retried_as",
        db_index=False,
        editable=False,
        help_text="The failed execution that it repeats; empty also once that one is removed.",
    )
    retries = models.PositiveIntegerField(
        default=0, db_default=0, editable=False, help_text="How many attempts came before it."
    )
    retried_run_id = models.CharField(
        max_length=255,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="The engine's run whose failed steps it runs again. Empty: it has a run of its own.",
    )
    retried_key = models.UUIDField(
        null=True, editable=False, help_text="The key that this run was started with."
    )
    awaited_until = models.DateTimeField(
        null=True,
        help_text="In the future: a request waits for it. In the past: its caller left without an answer.",
    )

    state = models.CharField(max_length=12, choices=State.choices, default=State.PENDING)
    # Null, so that older code, without these columns, can write rows during a rolling upgrade.
    request_id = models.CharField(  # noqa: DJ001
        max_length=64,
        null=True,
        editable=False,
        help_text="Id of the request that created it, as in the logs.",
    )
    traceparent = models.CharField(  # noqa: DJ001
        max_length=55, null=True, editable=False, help_text="The W3C trace context that steps continue."
    )
    had_card = models.BooleanField(
        null=True, editable=False, help_text="Whether a card showed it in a chat. Null: no."
    )
    input_request = models.BigIntegerField(
        null=True, editable=False, help_text="The questions to people that are not answered yet."
    )
    question_answered_at = models.DateTimeField(
        null=True,
        editable=False,
        help_text="When a person last answered what it asks. Empty: no answer is on its way to the engine.",
    )
    run_id = models.CharField(_("engine's run id"), max_length=255, blank=True)
    correlation_id = models.CharField(max_length=255, blank=True)
    progress = models.FloatField(null=True, help_text="Percent, as the engine reports it.")
    progress_message = models.CharField(max_length=500, blank=True)
    is_held = models.BooleanField(
        default=False, db_default=False, help_text="Whether the last poll found the run paused at the engine."
    )
    error_kind = models.CharField(max_length=15, choices=ErrorKind.choices, blank=True)
    error = models.TextField(blank=True)

    created_at = models.DateTimeField(default=timezone.now, db_index=True)
    payload_pruned_at = models.DateTimeField(
        null=True, help_text="When the retention policy removed its input, output and raw responses."
    )
    events_pruned_at = models.DateTimeField(
        null=True, help_text="When the retention policy removed its timeline."
    )

    admitted_at = models.DateTimeField(
        null=True, help_text="When the limits allowed it. Empty: it waits in the queue."
    )
    started_at = models.DateTimeField(null=True, help_text="When the engine accepted it.")
    finished_at = models.DateTimeField(null=True)
    engine_created_at = models.DateTimeField(null=True)
    engine_started_at = models.DateTimeField(null=True)
    engine_updated_at = models.DateTimeField(null=True)
    engine_finished_at = models.DateTimeField(null=True)

    timeout_seconds = models.PositiveIntegerField()
    deadline_at = models.DateTimeField(help_text="When it times out and is cancelled.")
    next_attempt_at = models.DateTimeField(default=timezone.now, help_text="When the engine is next polled.")
    attempts = models.PositiveIntegerField(
        default=0, help_text="Failed attempts in a row to reach the engine."
    )
    not_found = models.PositiveIntegerField(default=0, help_text="Consecutive polls that found no such run.")
    poll_failure = models.TextField(blank=True, help_text="Why the last poll failed. Empty: it succeeded.")
    looked_up_since = models.DateTimeField(
        null=True,
        help_text="Since when a run with the execution's key is looked up at the engine; its answer "
        "was lost.",
    )
    end_reported_at = models.DateTimeField(
        null=True, help_text="When the engine's webhook last reported that it has ended."
    )
    polls = models.PositiveIntegerField(default=0)
    progress_noted_at = models.DateTimeField(
        null=True, help_text="When progress was last added to the timeline."
    )
    polled_at = models.DateTimeField(null=True, help_text="When the engine was last asked for the status.")
    lease_holder = models.CharField(max_length=64, blank=True)
    lease_expires_at = models.DateTimeField(null=True)
    cancel_requested_at = models.DateTimeField(null=True)
    cancel_requested_by = models.CharField(max_length=255, blank=True)
    overdue_since = models.DateTimeField(
        null=True, help_text="When its timeout was found to have passed, so that its cancellation is due."
    )
    cancel_sent_at = models.DateTimeField(null=True, help_text="When the engine was asked to cancel it.")
    terminate_requested_at = models.DateTimeField(
        null=True, help_text="When somebody asked to end it at once."
    )
    terminate_sent_at = models.DateTimeField(
        null=True,
        help_text="When the engine was asked to terminate it: by somebody, or as it had not stopped after "
        "the cancellation.",
    )
    cancel_refusal = models.TextField(blank=True, help_text="Why the engine refused to cancel it.")

    # Not stored.
    is_reattached = False  # An earlier, identical call that ended without an answer began it
    is_new = False  # This process has just recorded it as STARTING, and sends its start next
    is_repeated = False  # A request repeats the one that recorded it
    awaited_here = False  # A request of this process waits for it and answers with its new state
    raised: Exception | None = None  # Why its start failed, as the connector raised it in this process

    class Meta:
        abstract = True
        ordering = ("-created_at", "-id")
        indexes = [
            models.Index(
                fields=["next_attempt_at"],
                name="execution_due",
                condition=models.Q(state__in=["pending", "starting", "running"]),
            ),
            # Conditions phrased so that SQLite recognises them in queries, unlike lists; the state makes it
            # prefer these indexes.
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
            models.Index(
                fields=["retry_of"], name="execution_retry_of", condition=models.Q(retry_of__isnull=False)
            ),
            # For the retention: each index holds only what may be due.
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
            # For the filters of lists, newest first. Not `db_index`, which creates two on PostgreSQL.
            models.Index(fields=["tool_name", "-created_at"], name="execution_by_tool"),
            models.Index(fields=["source_name", "-created_at"], name="execution_by_source"),
            models.Index(fields=["caller", "-created_at"], name="execution_by_caller"),
            models.Index(fields=["toolset", "-created_at"], name="execution_by_toolset"),
            models.Index(fields=["door", "-created_at"], name="execution_by_door"),
            models.Index(
                fields=["-created_at"], name="execution_cached", condition=models.Q(cached_at__isnull=False)
            ),
            models.Index(fields=["run_id"], name="execution_by_run"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["caller", "idempotency_key"],
                name="one_execution_per_key",
                condition=~models.Q(idempotency_key=""),
            )
        ]

    def note(self, kind: str, message: str) -> None:
        ExecutionEvent.objects.create(execution_id=self.pk, kind=kind, message=printable(message))

    def __str__(self) -> str:
        return f"{self.tool_name} {self.id}"

    @property
    def known_workflow(self) -> Workflow:
        """Returns it to steps of `advance`, which ends executions whose workflow was deleted."""
        assert self.workflow is not None, "advance() ends executions without a workflow"
        return self.workflow

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    @property
    def is_settled(self) -> bool:
        return self.state not in OPEN

    @property
    def is_queued(self) -> bool:
        return self.state == State.PENDING and self.admitted_at is None

    @property
    def is_asking(self) -> bool:
        """Returns whether it waits for input from people. A start whose process died asks nothing."""
        return self.input_request is not None and self.state in (State.STARTING, State.RUNNING)

    @property
    def is_paused(self) -> bool:
        """Returns whether a run that the engine follows by itself waits for a person's answer."""
        return self.input_request is not None and self.state == State.RUNNING

    @property
    def is_held_now(self) -> bool:
        return self.state == State.RUNNING and self.is_held

    @property
    def from_failed_step(self) -> bool:
        """Returns whether it runs the failed steps of another execution's run again."""
        return self.retried_run_id != ""

    @property
    def is_unapproved(self) -> bool:
        return self.state == State.UNAPPROVED

    @property
    def is_awaited(self) -> bool:
        return self.awaited_until is not None and self.awaited_until >= timezone.now()

    @property
    def is_unanswered(self) -> bool:
        return self.awaited_until is not None and self.awaited_until < timezone.now()

    @property
    def cancel_progress(self) -> CancelProgress | None:
        """None if no cancellation was requested."""
        if self.state == State.CANCELLED and self.cancel_requested_at is not None:
            return CancelProgress.CONFIRMED
        if self.cancel_refusal:
            return CancelProgress.REFUSED
        if self.cancel_requested_at is None:
            return None
        if self.is_final:
            return CancelProgress.TOO_LATE
        return CancelProgress.REQUESTED if self.cancel_sent_at is None else CancelProgress.SENT

    @property
    def state_label(self) -> str:
        if self.is_queued:
            return gettext("waiting in the queue")
        if self.state == State.RUNNING and self.overdue_since is not None:
            return gettext("being ended, as its timeout has passed")
        if self.is_paused:
            return gettext("waiting for a person's answer")
        if self.is_held_now:
            return gettext("paused at the engine")
        return self.get_state_display()

    @property
    def poll_problem(self) -> str:
        """A sentence if the last poll did not return the run's state; else empty."""
        if self.state != State.RUNNING or not self.poll_failure:
            return ""
        return f"The last poll did not return the run's state: {self.poll_failure}"

    @property
    def problems(self) -> list[str]:
        """Sentences about a run that goes on: why its last poll or its cancellation failed."""
        found = [self.poll_problem] if self.poll_problem else []
        if self.cancel_refusal and not self.is_settled:
            found.append(f"The engine did not cancel the run: {self.cancel_refusal}")
        return found

    @property
    def progress_percent(self) -> float | None:
        return 100.0 if self.state == State.COMPLETED else self.progress

    @property
    def is_counted(self) -> bool:
        """Whether the statistics count its end."""
        return self.door != self.Door.TEST

    @property
    def succeeded(self) -> bool:
        return self.state == State.COMPLETED

    @property
    def ended_at(self) -> datetime | None:
        """Returns the engine's time if it lies between the start and `finished_at`, else `finished_at`: when
        the end was recorded, which is later if no process polled. Queries for new rows go by it."""
        told, recorded = self.engine_finished_at, self.finished_at
        if told is None or recorded is None:
            return recorded
        return told if (self.started_at or self.created_at) <= told < recorded else recorded

    @property
    def duration_ms(self) -> int | None:
        """Uses the engine's clock if it reports both times, else the product's. None if it has not ended, or
        ended while it waited for its turn or for approval."""
        if self.finished_at is None and not (self.engine_started_at and self.engine_finished_at):
            return None
        return milliseconds_between(
            # A cached answer takes no turn.
            admitted_at=self.created_at if self.cached_at else self.admitted_at,
            started_at=self.started_at,
            finished_at=self.finished_at,
            engine_started_at=self.engine_started_at,
            engine_finished_at=self.engine_finished_at,
        )

    @property
    def run(self) -> RunRef:
        if self.workflow is None:
            raise ValueError("The workflow of this execution was deleted.")
        workflow = replace(self.workflow.ref, timeout_seconds=self.timeout_seconds)
        key: uuid.UUID = self.id
        if self.retried_key is not None and self.run_id == self.retried_run_id:
            key = self.retried_key  # The engine continues the same run
        return RunRef(workflow=workflow, run_id=self.run_id, key=key)

    @property
    def retried_run(self) -> RunRef:
        """The run whose failed steps it runs again."""
        return replace(self.run, run_id=self.retried_run_id, key=self.retried_key or self.id)

    @property
    def last_run(self) -> RunRef:
        """Its run; if the engine has not accepted it, the one whose failed steps it was to run again. Without
        an id if there is neither."""
        return self.run if self.run_id else self.retried_run


def milliseconds_between(
    *,
    admitted_at: datetime | None,
    started_at: datetime | None,
    finished_at: datetime | None,
    engine_started_at: datetime | None,
    engine_finished_at: datetime | None,
) -> int | None:
    """Needs both of the engine's times or `finished_at`. None for what was never admitted."""
    begun = engine_started_at or started_at or admitted_at
    if begun is None:
        return None
    ended = engine_finished_at if engine_started_at and engine_finished_at else finished_at
    if ended is None:
        raise ValueError("It has not ended.")
    return max(0, round((ended - begun).total_seconds() * 1000))


RUNS_HIDDEN = (ExecutionRecord.Door.ADMIN, ExecutionRecord.Door.TEST)  # Also what agents do not see
# Steps through the index from name to name: many rows, few names.
SOURCE_NAMES = (
    "WITH RECURSIVE known(name) AS ("
    " SELECT MIN(source_name) FROM executions_execution"
    " UNION ALL"
    " SELECT (SELECT MIN(source_name) FROM executions_execution WHERE source_name > known.name)"
    " FROM known WHERE known.name IS NOT NULL"
    ") SELECT name FROM known WHERE name IS NOT NULL LIMIT %s"
)
TEXTS = (
    "tool_name", "workflow_name", "upstream_id", "source_name", "caller", "caller_name", "error",
    "progress_message", "run_id", "correlation_id", "idempotency_key",
)  # fmt: skip
RecordT = TypeVar("RecordT", bound=ExecutionRecord)


class _IsActive(models.Func):
    """The condition of the index on due executions, spelled out.

    SQLite uses a partial index only if the statement repeats its condition without parameters; without the
    hint it sorts all active rows instead.
    """

    template = "%(expressions)s IN ('pending', 'starting', 'running')"
    output_field = models.BooleanField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template=f"likely({self.template})", **context)


class ExecutionQuerySet(models.QuerySet[RecordT]):
    def active(self) -> Self:
        return self.filter(state__in=["pending", "starting", "running"])

    def due(self, now: datetime) -> Self:
        free = Q(lease_expires_at=None) | Q(lease_expires_at__lt=now)
        queued = Q(state="pending", admitted_at=None)
        due = self.filter(_IsActive("state"), free, ~queued, next_attempt_at__lte=now)
        return due.order_by("next_attempt_at")

    def queued(self) -> Self:
        """Recorded but not admitted, the oldest first."""
        # Uses the index of executions that are not admitted, which also contains unapproved ones.
        queued = self.filter(state="pending", admitted_at=None, finished_at=None)
        return queued.order_by("created_at", "pk")

    def admitted(self) -> Self:
        """Active and counted by the limits."""
        return self.active().filter(admitted_at__isnull=False, finished_at=None)

    def under_way(self) -> Self:
        """Finds those of `admitted` from an index alone: with the states, SQLite would read each row."""
        unended = self.filter(admitted_at__isnull=False, finished_at=None)
        return unended.exclude(state="unconfirmed")

    def paused(self) -> Self:
        """Those that wait for a person's answer."""
        return self.under_way().filter(state="running", input_request__isnull=False)

    def matching(self, *texts: str) -> Self:
        """Queries immediately: the newest with each text in a name, id or error; all with that id or tool."""
        found = long_lists.search_newest(self, texts, TEXTS, by="created_at")
        if len(texts) == 1:
            (text,) = texts
            newest = self.order_by("-created_at").values_list("pk", flat=True)
            wholly = [newest.filter(run_id=text), newest.filter(tool_name=text)]
            with contextlib.suppress(ValueError):
                wholly.append(newest.filter(pk=uuid.UUID(text)))
            found |= {key for keys in wholly for key in keys[: long_lists.MAX_FOUND]}
        return long_lists.with_keys(self, found)

    def visible_to(self, caller: Caller) -> Self:
        return self.all() if caller.sees_everything else self.filter(caller.own)


def recorded_source_names(*, limit: int) -> list[str]:
    """Returns at most `limit` in alphabetical order, deleted sources included."""
    with connection.cursor() as cursor:
        cursor.execute(SOURCE_NAMES, [limit])
        return [name for (name,) in cursor.fetchall()]


MAX_DAYS = 36_500
SHORTEST = timedelta(minutes=5)  # The minimum, also for 0 days: a waiting caller must get its result


def _days(
    default: int, verbose_name: str, help_text: Any
) -> models.PositiveIntegerField[int | None, int | None]:
    return models.PositiveIntegerField(
        verbose_name,
        default=default,
        null=True,
        blank=True,
        validators=[MaxValueValidator(MAX_DAYS)],
        help_text=format_lazy(
            "{} {}", help_text, _("In days; 0 = not kept: removed within 15 minutes; empty = kept for ever.")
        ),
    )


class Retention(Recorded):
    """Sets how long finished records are kept; unfinished and unconfirmed ones are never removed."""

    ONLY = 1
    id = models.PositiveSmallIntegerField(primary_key=True, default=ONLY, editable=False)
    keep_records_days = _days(
        90,
        "keep executions for",
        _(
            "After this time, an execution that has ended is removed with all its data: who ran what, "
            "when, how it ended, and the engine's error message. Natural-language requests are "
            "removed at the "
            "same age."
        ),
    )
    keep_payloads_days = _days(
        30,
        "keep payloads for",
        _(
            "After this time, the input, the output and the engine's raw responses are removed, "
            "and the texts of "
            "natural-language requests; the record remains and says so."
        ),
    )
    keep_events_days = _days(
        30,
        "keep timelines for",
        _("After this time, the timeline is removed; the execution remains and says so."),
    )
    keep_discovery_runs_days = _days(
        30,
        "keep discovery runs for",
        _("After this time, the record of a source's discovery run is removed."),
    )
    keep_statistics_days = _days(
        730,
        "keep statistics for",
        _(
            "After this time, the hourly sums behind charts, usage and REST's statistics are "
            "removed. They are "
            "small, contain no arguments, results or errors, and outlast the executions."
        ),
    )

    class Meta:
        verbose_name_plural = _("retention")
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="one_retention")]

    def __str__(self) -> str:
        return "Retention"

    def keeps_for(self, kind: str) -> timedelta | None:
        """Takes "records", "payloads", "events", "discovery_runs" or "statistics". Returns None for ever."""
        days: int | None = getattr(self, f"keep_{kind}_days")
        return None if days is None else max(timedelta(days=days), SHORTEST)

    @property
    def keeps_results_for(self) -> timedelta | None:
        """The shorter of payloads and records."""
        limits = (self.keeps_for("payloads"), self.keeps_for("records"))
        return min((limit for limit in limits if limit is not None), default=None)

    @classmethod
    def current(cls) -> Retention:
        """Returns the defaults before the first change."""
        return cls.objects.filter(pk=cls.ONLY).first() or cls()


class WorkerPresence(models.Model):
    """One row, renewed by workers at each tick, or by the one process that stands in for them."""

    ONLY = 1
    NEVER = datetime(1970, 1, 1, tzinfo=UTC)  # In `seen_at`: a worker is alive, and no tick has reached one
    id = models.PositiveSmallIntegerField(primary_key=True, default=ONLY, editable=False)
    seen_at = models.DateTimeField(default=timezone.now, help_text="When the due work was last done.")
    worker_at = models.DateTimeField(
        null=True, help_text="When a worker was last alive, with or without work to do."
    )
    process = models.CharField(
        max_length=64, blank=True, help_text="The process that stands in for the workers. Empty: a worker."
    )

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="one_worker_presence")]

    def __str__(self) -> str:
        return f"{self.process or 'a worker'} at {self.seen_at}"


class ExecutionPayload(models.Model):
    """Separate from the row, which lists and counters read."""

    execution = models.OneToOneField(
        "executions.Execution", on_delete=models.CASCADE, primary_key=True, related_name="payload"
    )
    input = JSONTextField(
        default=dict, null=True, help_text="Empty once the retention policy has removed it."
    )
    changed_input = JSONTextField(
        null=True, help_text="What an approver changed it to, which the approval binds. Null: nobody has."
    )
    changed_by = models.CharField(
        max_length=150, blank=True, default="", db_default="", help_text="That approver."
    )
    output = JSONTextField(null=True)
    content = JSONTextField(
        null=True, help_text="The output as MCP content blocks, if the engine returns them."
    )
    start_answer = JSONTextField(null=True, help_text="The engine's raw response to the start.")
    status_answer = JSONTextField(null=True, help_text="The engine's last raw status.")
    metadata = JSONTextField(
        default=dict, help_text="The version of the workflow that ran, and the client that called it."
    )
    cut = JSONTextField(default=list, help_text="Which of them were too large to keep whole.")
    shares_output = models.BooleanField(
        default=False,
        help_text="The output is large and from the result cache: it is stored with the original run.",
    )
    began_proof = ProofField(help_text="SHA-256 of the input, then a proof of the call.")
    ended_proof = ProofField(help_text="SHA-256 of output and content, then a proof of the end.")

    def __str__(self) -> str:
        return f"payload of {self.pk}"

    @property
    def sent_input(self) -> Any:
        """What the engine gets."""
        return self.input if self.changed_input is None else self.changed_input

    def make_proof(self, name: str) -> str | None:
        row = vars(self.execution)
        if name == "began_proof":
            return prove(parts_of_call(row, self.metadata), self.input)
        return prove_end(row, vars(self)).get(name)

    @classmethod
    def from_db(cls, *args: Any, **options: Any) -> ExecutionPayload:
        """Fetches an output that is stored with another run."""
        payload = super().from_db(*args, **options)
        if {"output", "content", "shares_output"} <= payload.__dict__.keys() and payload.shares_output:
            origin = cls.objects.filter(execution__answered_from_cache=payload.pk)
            kept = origin.values_list("output", "content").first()
            payload.output, payload.content = kept or (None, None)
        return payload

    @classmethod
    def leave_out_too_large(
        cls, execution: ExecutionRecord, sizes: Mapping[str, int], values: dict[str, Any]
    ) -> tuple[dict[str, Any], list[tuple[str, str]]]:
        """Returns the values to store, without those that are too large, and lines for the timeline."""
        limit = settings.CATALOGUE.max_payload_bytes
        too_large = {name: size for name, size in sizes.items() if size > limit}
        cut = [{"payload": name, "bytes": size} for name, size in too_large.items()]
        known = cls.objects.values_list("cut", flat=True).get(pk=execution.pk)
        lines = [
            ("cut", f"The {name} of {size} bytes exceeds the limit of {limit}.")
            for name, size in too_large.items()
        ]
        return values | dict.fromkeys(too_large) | {"cut": known + cut}, lines


DIGEST = 64  # Characters at the beginning of a proof of a payload
OF_CALL = (
    "id", "tool_name", "source_name", "upstream_id", "caller", "caller_name", "door", "toolset",
    "input_characters", "arguments_hash", "created_at",
)  # fmt: skip
OF_END = ("id", "state", "run_id", "error_kind", "output_characters", "cached_at", "finished_at")


def parts_of_call(row: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[Any]:
    return ["call", *map(row.__getitem__, OF_CALL), {**metadata, SAID_BY: ""}]


def parts_of_end(row: Mapping[str, Any]) -> list[Any]:
    return ["end", *map(row.__getitem__, OF_END)]


def prove(parts: list[Any], *payload: Any) -> str:
    digest = digest_of_values(*payload)
    return digest + make_proof([*parts, digest])


def prove_end(row: Mapping[str, Any], payload: Mapping[str, Any]) -> dict[str, str]:
    """Returns the column of the payload; none before the end."""
    values = payload.get("output"), payload.get("content")
    return {"ended_proof": prove(parts_of_end(row), *values)} if row["state"] in FINAL else {}


def is_proven(proof: str | None, parts: list[Any]) -> bool:
    digest, proof = (proof or "")[:DIGEST], (proof or "")[DIGEST:]
    return is_proof(proof, [*parts, digest])


def digest_of_values(*values: Any) -> str:
    return hashlib.sha256("\n".join(map(_encode, values)).encode()).hexdigest()


class InputRequest(models.Model):
    """What a run asks people: during its start its caller, later whoever may answer. Removed once the run has
    the answers, or has ended."""

    execution = models.OneToOneField(
        "executions.Execution", on_delete=models.CASCADE, related_name="asked_input"
    )
    requests = JSONTextField(help_text="MCP's requests to a client, by key.")
    responses = JSONTextField(default=dict, help_text="Their results so far, by key.")
    # Null, so that older code, without these columns, can write rows during a rolling upgrade.
    questions = JSONTextField(
        null=True, help_text="What polls report, by the engine's ids; see executions.questions."
    )
    answers = JSONTextField(null=True, help_text="What the engine is to get, by the same ids.")

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"input for {self.execution_id}"

    @property
    def is_answered(self) -> bool:
        return set(self.requests) <= set(self.responses)


def size_of(value: Any) -> int:
    """Returns the size as JSON in bytes. Raises ValueError for NaN and infinity, which JSON does not have."""
    return len(_encode(value))


# `json.dumps` would make an encoder for each value.
_encode = json.JSONEncoder(allow_nan=False).encode
