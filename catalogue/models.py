"""What exists in the engines, and what the curators made of it."""

import hashlib
import json
from collections.abc import Collection
from typing import Any, ClassVar, Self

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models, transaction
from django.utils import timezone

from catalogue.fields import JSONTextField
from catalogue.naming import RESERVED
from catalogue.querysets import ExposingQuerySet, SourceQuerySet, WorkflowQuerySet
from catalogue.secrets import decrypt_credentials, encrypt_credentials
from connectors.protocol import WorkflowRef

TOOL_NAME = RegexValidator(
    r"\A[A-Za-z0-9_.-]{1,64}\Z", "A tool name has 1 to 64 letters, digits, underscores, dots or hyphens."
)
SOURCE_NAME = RegexValidator(
    r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z",
    "A source's name has 1 to 64 letters, digits, underscores, dots or hyphens, and starts with no sign.",
)


class Revision(models.Model):
    """One counter, moved in the transaction of every change that can alter what agents see."""

    number = models.PositiveBigIntegerField(default=0)

    class Meta:
        verbose_name = "catalogue revision"

    def __str__(self) -> str:
        return str(self.number)

    @classmethod
    def lock(cls) -> None:
        """Let nobody else change what agents see until the transaction ends; call it before touching a row.

        So no two workflows get one tool name and no two changes wait for each other's rows. SQLite, which
        has one writer at a time, works like that anyway.
        """
        cls.objects.select_for_update().get_or_create(pk=1)

    @classmethod
    def bump(cls) -> None:
        """Say that what agents see may have changed. Call it inside the transaction that changes it.

        Locks like `lock`, so call it first unless that was called.
        """
        if not cls.objects.filter(pk=1).update(number=models.F("number") + 1):
            cls.objects.update_or_create(pk=1, defaults={"number": 1})

    @classmethod
    def current(cls) -> int:
        return cls.objects.filter(pk=1).values_list("number", flat=True).first() or 0


class Exposing(models.Model):
    """A row whose every change may alter what agents see, and so moves the revision."""

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        with transaction.atomic():
            Revision.bump()
            super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        with transaction.atomic():
            Revision.bump()
            return super().delete(*args, **kwargs)


class Source(Exposing):
    """A connection to one engine."""

    class NewWorkflows(models.TextChoices):
        HIDDEN = "hidden", "hidden until a curator enables them"
        EXPOSED = "exposed", "enabled at once"

    class HealthState(models.TextChoices):
        UNKNOWN = "unknown", "not tried yet"
        OK = "ok", "working"
        FAILING = "failing", "failing"

    name = models.CharField(max_length=64, unique=True, validators=[SOURCE_NAME])
    kind = models.CharField(max_length=50)
    config = JSONTextField(default=dict, blank=True, help_text="The engine's settings, without its secrets.")
    encrypted_credentials = models.TextField(blank=True, editable=False)
    enabled = models.BooleanField(
        default=True, help_text="Off: nothing of this source is discovered, listed or run."
    )
    new_workflows = models.CharField(
        max_length=10,
        choices=NewWorkflows.choices,
        default=NewWorkflows.HIDDEN,
        help_text="What happens to workflows when discovery first sees them.",
    )
    refresh_interval = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MaxValueValidator(604_800)],
        help_text="Seconds between two listings; 0: only by hand; empty: the product's default.",
    )
    max_concurrent = models.PositiveIntegerField(
        "concurrent runs",
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="At most, of all its workflows; further calls wait in the queue. Empty: no limit.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    configured_at = models.DateTimeField(
        default=timezone.now, editable=False, help_text="When its settings or credentials last changed."
    )

    health_state = models.CharField(
        max_length=10, choices=HealthState.choices, default=HealthState.UNKNOWN, editable=False
    )
    health_message = models.TextField(blank=True, editable=False)
    failing_since = models.DateTimeField(null=True, editable=False)
    failures = models.PositiveIntegerField(default=0, editable=False, help_text="Failed listings in a row.")
    last_refreshed_at = models.DateTimeField(
        null=True, editable=False, help_text="The last listing that worked."
    )
    next_refresh_at = models.DateTimeField(default=timezone.now, null=True, editable=False, db_index=True)
    refresh_lease_expires_at = models.DateTimeField(null=True, editable=False)

    objects: ClassVar[models.Manager["Source"]] = SourceQuerySet.as_manager()

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    @property
    def credentials(self) -> dict[str, str]:
        """The secrets by field name. Raises CredentialsUnreadable after a change of SECRET_KEY."""
        return decrypt_credentials(self.encrypted_credentials)

    @credentials.setter
    def credentials(self, credentials: dict[str, str]) -> None:
        self.encrypted_credentials = encrypt_credentials(credentials)

    @property
    def settings_fingerprint(self) -> str:
        """Changes whenever a connector has to be made anew."""
        return hashlib.sha256(
            json.dumps([self.kind, self.config, self.encrypted_credentials], sort_keys=True).encode()
        ).hexdigest()


class Workflow(Exposing):
    """A workflow of a source: what upstream says of it, and what the curator decided."""

    class ExecutionType(models.TextChoices):
        SYNC = "sync", "synchronous"
        ASYNC = "async", "asynchronous"

    class OnDisconnect(models.TextChoices):
        CONTINUE = "continue", "goes on, and the result is kept"
        CANCEL = "cancel", "is cancelled"

    source = models.ForeignKey(Source, on_delete=models.CASCADE, related_name="workflows")

    # What upstream says; only discovery writes these.
    upstream_id = models.CharField("engine's id", max_length=255, editable=False)
    name = models.CharField(max_length=255, editable=False)
    description = models.TextField(editable=False)
    category = models.CharField(max_length=100, default="workflow", editable=False, db_index=True)
    version = models.CharField(max_length=100, default="1.0.0", editable=False)
    author = models.CharField(max_length=255, blank=True, editable=False)
    tags = JSONTextField(default=list, editable=False)
    execution_type = models.CharField(
        max_length=10, choices=ExecutionType.choices, default=ExecutionType.ASYNC, editable=False
    )
    input_schema = JSONTextField(
        default=dict, editable=False, help_text="JSON Schema that arguments are checked with."
    )
    output_schema = JSONTextField(null=True, editable=False)
    schema_problem = models.TextField(
        blank=True, editable=False, help_text="Why the engine's input schema was replaced by the generic one."
    )
    metadata = JSONTextField(default=dict, editable=False)
    content_hash = models.CharField(max_length=64, editable=False)
    first_seen_at = models.DateTimeField(default=timezone.now, editable=False)
    changed_at = models.DateTimeField(default=timezone.now, editable=False, help_text="Last change upstream.")
    missing_since = models.DateTimeField(null=True, blank=True, editable=False, db_index=True)

    # What the curator decided; discovery never touches these.
    tool_name = models.CharField(
        max_length=64,
        unique=True,
        validators=[TOOL_NAME],
        help_text="What agents call. Changing it breaks their habits.",
    )
    enabled = models.BooleanField(default=False, db_index=True)
    title_override = models.CharField(
        "title", max_length=255, blank=True, help_text="Empty: the engine's name."
    )
    description_override = models.TextField(
        "description", blank=True, help_text="Empty: the engine's description."
    )
    tags_override = JSONTextField(
        "tags", null=True, blank=True, help_text="A JSON list; empty: the engine's tags."
    )
    timeout_seconds = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(2_592_000)],
        help_text="A run that takes longer is cancelled. Empty: the product's default.",
    )
    inline_wait_seconds = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MaxValueValidator(3600)],
        help_text="Seconds that a call waits before it gets a handle instead. Empty: the product's default.",
    )
    execution_type_override = models.CharField(
        "execution type",
        max_length=10,
        blank=True,
        choices=ExecutionType.choices,
        help_text="Synchronous: a call waits until the run ends, never for a handle. Empty: the engine's.",
    )
    on_disconnect = models.CharField(
        max_length=10,
        choices=OnDisconnect.choices,
        default=OnDisconnect.CONTINUE,
        help_text="What becomes of a run whose caller's connection ends before it has an answer.",
    )
    reattach = models.BooleanField(
        "re-attach",
        default=True,
        help_text="A caller that lost its connection and repeats the identical call gets the same run.",
    )
    max_concurrent = models.PositiveIntegerField(
        "concurrent runs",
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="At most; further calls wait in the queue. Empty: no limit.",
    )

    objects: ClassVar[models.Manager["Workflow"]] = WorkflowQuerySet.as_manager()

    class Meta:
        ordering = ("tool_name",)
        constraints = [
            models.UniqueConstraint(fields=["source", "upstream_id"], name="one_workflow_per_engine_id"),
        ]

    def __str__(self) -> str:
        return self.tool_name

    def clean(self) -> None:
        """Refuse what would hide a built-in tool, or break whoever reads the tags."""
        if self.tool_name in RESERVED:
            raise ValidationError({"tool_name": "This name is taken by a built-in tool or by REST."})
        tags = self.tags_override
        if tags is not None and not (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)):
            raise ValidationError({"tags_override": 'This has to be a list of texts, such as ["finance"].'})

    @property
    def title(self) -> str:
        return self.title_override or self.name

    @property
    def effective_execution_type(self) -> str:
        return self.execution_type_override or self.execution_type

    @property
    def shown_description(self) -> str:
        return self.description_override or self.description

    @property
    def shown_tags(self) -> list[str]:
        shown: list[str] = self.tags if self.tags_override is None else self.tags_override
        return shown

    @property
    def ref(self) -> WorkflowRef:
        return WorkflowRef(id=self.upstream_id, name=self.name, metadata=self.metadata)


class WorkflowFilter(Exposing):
    """One rule of the ordered list that decides which enabled workflows agents may see (A4.2)."""

    class Action(models.TextChoices):
        INCLUDE = "include", "include"
        EXCLUDE = "exclude", "exclude"

    class Subject(models.TextChoices):
        NAME = "name", "name"
        ID = "id", "engine's id"
        CATEGORY = "category", "category"
        TAG = "tag", "any tag"
        SOURCE = "source", "source"

    class Syntax(models.TextChoices):
        GLOB = "glob", "glob (*, ?, [abc])"
        REGEX = "regex", "regular expression"

    position = models.PositiveIntegerField(
        default=0, db_index=True, help_text="Lower comes first; the first match decides."
    )
    action = models.CharField(max_length=10, choices=Action.choices, default=Action.INCLUDE)
    subject = models.CharField(max_length=10, choices=Subject.choices, default=Subject.NAME)
    syntax = models.CharField(max_length=10, choices=Syntax.choices, default=Syntax.GLOB)
    pattern = models.CharField(max_length=500)
    enabled = models.BooleanField(default=True)
    note = models.CharField(max_length=255, blank=True)

    objects: ClassVar[models.Manager["WorkflowFilter"]] = ExposingQuerySet.as_manager()

    class Meta:
        ordering = ("position", "pk")

    def __str__(self) -> str:
        return f"{self.get_action_display()} {self.get_subject_display()} {self.pattern}"

    def clean_fields(self, exclude: Collection[str] | None = None) -> None:
        """Refuse a pattern that cannot be compiled, where the curator can still mend it."""
        super().clean_fields(exclude=exclude)
        if "pattern" not in (exclude or ()) and (problem := self.pattern_problem):
            raise ValidationError({"pattern": problem})

    @property
    def pattern_problem(self) -> str:
        """Why the filter is unusable; empty for one that can be used."""
        from catalogue.filters import find_pattern_problem

        return find_pattern_problem(syntax=self.syntax, pattern=self.pattern)


class DiscoveryRun(models.Model):
    """One listing of one source: what it found, what it changed, what it skipped and why."""

    class Trigger(models.TextChoices):
        SCHEDULE = "schedule", "schedule"
        START = "start", "start of the product"
        MANUAL = "manual", "by hand"

    class Outcome(models.TextChoices):
        RUNNING = "running", "running"
        SUCCEEDED = "succeeded", "succeeded"
        FAILED = "failed", "failed"

    source = models.ForeignKey(Source, on_delete=models.CASCADE, related_name="discovery_runs")
    trigger = models.CharField(max_length=10, choices=Trigger.choices)
    outcome = models.CharField(max_length=10, choices=Outcome.choices, default=Outcome.RUNNING)
    started_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True)
    added = models.PositiveIntegerField(default=0)
    updated = models.PositiveIntegerField(default=0)
    unchanged = models.PositiveIntegerField(default=0)
    returned = models.PositiveIntegerField(default=0, help_text="Were missing and are back.")
    missing = models.PositiveIntegerField(default=0, help_text="Newly gone from the engine's list.")
    skipped_count = models.PositiveIntegerField(default=0)
    skipped = JSONTextField(
        default=list, help_text="Objects left out: [{position, id, name, reason}], at most 1,000."
    )
    flagged = JSONTextField(
        default=list, help_text="Workflows served with a generic schema: [{id, name, reason}]."
    )
    error = models.TextField(blank=True)

    class Meta:
        ordering = ("-started_at", "-pk")
        indexes = [models.Index(fields=["source", "-started_at"])]

    def __str__(self) -> str:
        return f"{self.source} {self.started_at:%Y-%m-%d %H:%M:%S}"

    @property
    def duration_ms(self) -> int | None:
        if self.finished_at is None:
            return None
        return round((self.finished_at - self.started_at).total_seconds() * 1000)

    @property
    def found(self) -> int:
        """Usable workflows in the listing."""
        return self.added + self.updated + self.unchanged + self.returned

    def finish(self, *, outcome: "DiscoveryRun.Outcome", error: str = "") -> Self:
        """Write the outcome with all counts, once: a run that was finished or deleted meanwhile stays so."""
        self.outcome, self.error, self.finished_at = outcome, error, timezone.now()
        fields = [field.attname for field in self._meta.concrete_fields if not field.primary_key]
        values = {name: getattr(self, name) for name in fields}
        DiscoveryRun.objects.filter(pk=self.pk, outcome=self.Outcome.RUNNING).update(**values)
        return self
