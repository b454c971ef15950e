import uuid
from datetime import datetime, timedelta
from typing import Any, ClassVar, Self

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from access.callers import Caller
from catalogue.fields import JSONTextField
from connectors.network.redaction import printable
from executions.models import Execution


class Stage(models.TextChoices):
    TOOL_RETRIEVAL = "tool_retrieval", _("finding the tools")
    LLM_SELECTION = "llm_selection", _("choosing tool and arguments")
    API_EXECUTION = "api_execution", _("running the tool")
    RESPONSE_FORMATTING = "response_formatting", _("putting the answer into words")


class StageState(models.TextChoices):
    RUNNING = "running", _("in progress")
    DONE = "done", _("done")
    FAILED = "failed", _("failed")
    SKIPPED = "skipped", _("skipped")


def started_stage(stage: Stage, at: datetime) -> dict[str, Any]:
    entry = {"stage": stage.value, "state": StageState.RUNNING.value, "started_at": at.isoformat()}
    return {**entry, "seconds": None, "message": ""}


class Failure(models.TextChoices):
    UNKNOWN_TOOLS = "unknown_tools", _("unknown tools")
    NO_TOOL_FITS = "no_tool_fits", _("no tool fits")
    PROPOSAL_REFUSED = "proposal_refused", _("the proposal was refused")
    MODEL_ANSWER = "model_answer", _("the model returned no usable answer")
    MODEL_UNAVAILABLE = "model_unavailable", _("the model is unavailable")
    MODEL_TIMEOUT = "model_timeout", _("the model took too long")
    BUSY = "busy", _("too busy")
    TOO_MANY_CALLS = "too_many_calls", _("too many calls")
    RUN_FAILED = "run_failed", _("the run failed")
    RUN_TIMED_OUT = "run_timed_out", _("the run took too long")
    UNCONFIRMED = "unconfirmed", _("it is not known whether it ran")
    INTERRUPTED = "interrupted", _("interrupted")
    INTERNAL = "internal", _("internal error")


class StageFailed(Exception):
    """The message is a sentence for the caller."""

    def __init__(
        self,
        message: str,
        *,
        failure: Failure,
        invalid_tool_ids: list[str] | None = None,
        retry_after: int | None = None,
        execution_id: uuid.UUID | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.failure = failure
        self.invalid_tool_ids = invalid_tool_ids or []
        self.retry_after = retry_after  # Seconds
        self.execution_id = execution_id

    def preceded_by(self, sentence: str) -> "StageFailed":
        return StageFailed(
            f"{self.message} {sentence}",
            failure=self.failure,
            invalid_tool_ids=self.invalid_tool_ids,
            retry_after=self.retry_after,
            execution_id=self.execution_id,
        )


class WorkflowRequestQuerySet(models.QuerySet["WorkflowRequest"]):
    def visible_to(self, caller: Caller) -> Self:
        """The caller's own requests, or all of them for a caller that sees everything."""
        return self.all() if caller.sees_everything else self.filter(caller.own)


class WorkflowRequest(models.Model):
    """Each transition is one UPDATE of a running request, and returns False if it had ended."""

    class Status(models.TextChoices):
        RUNNING = "running", _("in progress")
        SUCCESS = "success", _("success")
        ERROR = "error", _("error")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    caller = models.CharField(max_length=100)
    caller_name = models.CharField(_("caller"), max_length=255)
    toolset = models.CharField(
        max_length=64, blank=True, db_default="", help_text="The toolset that limited it. Empty: none."
    )
    idempotency_key = models.CharField(
        max_length=255, blank=True, help_text="The key that the caller gave this request."
    )
    request_hash = models.CharField(max_length=64, editable=False, help_text="SHA-256 of what was asked.")
    created_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True)
    deadline_at = models.DateTimeField(
        null=True,
        help_text="When the process that works on it gives up. Empty: it waits for its run, and ends when "
        "the run ends.",
    )
    payload_pruned_at = models.DateTimeField(
        null=True,
        help_text="When the retention policy removed the instructions and what was derived from them.",
    )
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.RUNNING)

    instructions = models.TextField()
    tool_ids = JSONTextField(default=list)
    format_response = models.BooleanField(default=False)
    format_instructions = models.TextField(blank=True)
    dry_run = models.BooleanField(default=False, help_text="Stops before anything is sent.")

    model = models.CharField(max_length=255, blank=True, help_text="The model that answered.")
    selected_tool = models.CharField(max_length=64, blank=True)
    reason = models.TextField(blank=True, help_text="Why this tool, in the model's words.")
    arguments: JSONTextField = JSONTextField(null=True)
    http_spec = JSONTextField(null=True, help_text="The request as it was checked, without credentials.")
    execution = models.ForeignKey(
        Execution, null=True, on_delete=models.SET_NULL, related_name="workflow_requests"
    )
    formatted_response = models.TextField(blank=True)
    error = models.TextField(blank=True)
    error_stage = models.CharField(max_length=20, choices=Stage.choices, blank=True)
    failure = models.CharField(max_length=20, choices=Failure.choices, blank=True)
    invalid_tool_ids = JSONTextField(default=list)
    warnings = JSONTextField(default=list)
    stages = JSONTextField(
        default=list, help_text="[{stage, state, started_at, seconds, message}], as far as the request got."
    )
    prompt_tokens = models.PositiveIntegerField(default=0)
    completion_tokens = models.PositiveIntegerField(default=0)

    retry_after: int | None = None  # Seconds; not stored. None: a retry is of no use
    objects: ClassVar[models.Manager["WorkflowRequest"]] = WorkflowRequestQuerySet.as_manager()

    class Meta:
        verbose_name = _("natural-language request")
        verbose_name_plural = _("natural-language requests")
        ordering = ("-created_at", "-id")
        indexes = [
            models.Index(fields=["caller", "-created_at"], name="request_by_caller"),
            models.Index(fields=["-created_at"], name="request_by_time"),
            models.Index(fields=["selected_tool", "-created_at"], name="request_by_tool"),
            models.Index(fields=["status", "-created_at"], name="request_by_status"),
            models.Index(
                fields=["deadline_at"], name="request_unfinished", condition=models.Q(finished_at=None)
            ),
            # For the retention: only rows that it may still have to prune.
            models.Index(
                fields=["finished_at"],
                name="request_finished",
                condition=models.Q(finished_at__isnull=False),
            ),
            models.Index(
                fields=["finished_at"],
                name="request_payload_kept",
                condition=models.Q(finished_at__isnull=False, payload_pruned_at=None),
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["caller", "idempotency_key"],
                name="one_request_per_key",
                condition=~models.Q(idempotency_key=""),
            ),
        ]

    def __str__(self) -> str:
        # The retention removes the instructions.
        return f"{self.caller_name}: {self.instructions[:60] or self.selected_tool or self.pk}"

    @property
    def is_running(self) -> bool:
        return self.status == self.Status.RUNNING

    @property
    def awaits_run(self) -> bool:
        """It was answered before its run ended, and ends with it."""
        return self.deadline_at is None and self.is_running

    @property
    def seconds(self) -> float | None:
        return None if self.finished_at is None else (self.finished_at - self.created_at).total_seconds()

    @property
    def stage(self) -> Stage:
        reached = [entry for entry in self.stages if entry["state"] != StageState.SKIPPED]
        return Stage(reached[-1]["stage"]) if reached else Stage.TOOL_RETRIEVAL

    def begin_stage(self, stage: Stage, *, within: timedelta, message: str = "", **found: Any) -> bool:
        """`message` and `found` belong to the stage that this ends. A stage under way begins again."""
        now = timezone.now()
        if self.stage == stage:
            self.stages = self.stages[:-1]
        else:
            self._end_stage(StageState.DONE, message, now)
        self.stages = [*self.stages, started_stage(stage, now)]
        return self._change(stages=self.stages, deadline_at=now + within, **found)

    def await_run(self, execution_id: uuid.UUID, **found: Any) -> bool:
        """The run outlasts the answer: no process works on the request any more."""
        return self._change(deadline_at=None, execution_id=execution_id, **found)

    def succeed(
        self,
        *,
        message: str = "",
        state: StageState = StageState.DONE,
        at: datetime | None = None,
        **found: Any,
    ) -> bool:
        """`state`: of the last stage, which may fail without failing the request. `at`: default now."""
        return self._finish(self.Status.SUCCESS, state, message, at, **found)

    def fail(self, why: str, *, failure: Failure, at: datetime | None = None, **found: Any) -> bool:
        """Frees the idempotency key if nothing can have been started."""
        why, stage = printable(why), self.stage
        may_run = stage == Stage.API_EXECUTION and failure in (Failure.INTERNAL, Failure.INTERRUPTED)
        if (found.get("execution_id") or self.execution_id) is None and not may_run:
            found["idempotency_key"] = ""
        return self._finish(
            self.Status.ERROR,
            StageState.FAILED,
            why,
            at,
            error=why,
            error_stage=stage,
            failure=failure,
            **found,
        )

    def _finish(
        self, status: Status, state: StageState, message: str, at: datetime | None, **found: Any
    ) -> bool:
        at = at or timezone.now()
        self._end_stage(state, message, at)
        known = {entry["stage"] for entry in self.stages}
        skipped = {"state": StageState.SKIPPED.value, "started_at": None, "seconds": None, "message": ""}
        left_out = [{"stage": stage.value, **skipped} for stage in Stage if stage.value not in known]
        return self._change(status=status, finished_at=at, stages=[*self.stages, *left_out], **found)

    def _end_stage(self, state: StageState, message: str, now: datetime) -> None:
        if not self.stages:
            return
        *earlier, last = self.stages
        seconds = (now - datetime.fromisoformat(last["started_at"])).total_seconds()
        ended = {"state": state.value, "seconds": max(0.0, seconds), "message": message}
        self.stages = [*earlier, last | ended]

    def _change(self, **values: Any) -> bool:
        """Matches the deadline too, so that a process presumed dead changes nothing."""
        known = type(self).objects.filter(
            pk=self.pk, status=self.Status.RUNNING, deadline_at=self.deadline_at
        )
        for name, value in values.items():
            setattr(self, name, value)
        return known.update(**values) == 1
