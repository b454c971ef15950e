"""A workflow: what upstream says of it, and what the curator decided."""

from datetime import datetime
from typing import Any, ClassVar

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.utils import timezone

from catalogue.argument_overrides import check_form, find_override_problems, offer_schema
from catalogue.fields import JSONTextField
from catalogue.models.revision import Exposing
from catalogue.models.source import Source
from catalogue.naming import RESERVED
from catalogue.presentation import CURATORS_HINTS, MAX_ICON_CHARACTERS, Unusable, check_icon_address
from catalogue.querysets import WorkflowQuerySet
from catalogue.served_schemas import serve_schema
from connectors.protocol import WorkflowRef

TOOL_NAME = RegexValidator(
    r"\A[A-Za-z0-9_.-]{1,64}\Z", "A tool name has 1 to 64 letters, digits, underscores, dots or hyphens."
)


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
    upstream_title = models.CharField("engine's title", max_length=255, blank=True, editable=False)
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
    resembles = models.CharField(
        max_length=255,
        blank=True,
        editable=False,
        help_text="What its name or title can be mistaken for: a built-in tool, or one of another source.",
    )
    hints = JSONTextField(
        default=dict, editable=False, help_text="The engine's own MCP hints: {readOnlyHint: true, ...}."
    )
    icons = JSONTextField(default=list, editable=False, help_text="The engine's own icons: [{src, ...}].")
    upstream_timeout_seconds = models.PositiveIntegerField("engine's timeout", null=True, editable=False)
    upstream_cache_seconds = models.PositiveIntegerField("engine's cache time", null=True, editable=False)
    queries = JSONTextField(
        default=list,
        editable=False,
        help_text="What its runs can be asked: [{name, description, inputSchema}].",
    )
    signals = JSONTextField(default=list, editable=False, help_text="What its runs can be told, likewise.")
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
        help_text="What agents call.",
    )
    former_tool_names = JSONTextField(
        default=list, editable=False, help_text="What agents called it before, the last name first."
    )
    tool_aliases = JSONTextField(
        default=dict, editable=False, help_text="Those of them that still work: {name: until when}."
    )
    enabled = models.BooleanField(default=False, db_index=True)
    title_override = models.CharField(
        "title", max_length=255, blank=True, help_text="Empty: the engine's title, else its name."
    )
    description_override = models.TextField(
        "description", blank=True, help_text="Empty: the engine's description."
    )
    tags_override = JSONTextField(
        "tags", null=True, blank=True, help_text="A JSON list; empty: the engine's tags."
    )
    argument_overrides = JSONTextField(
        "arguments",
        default=dict,
        blank=True,
        help_text="{name: {description?, constant? | default?}}. A constant is sent with each call, and "
        "agents do not see the argument; a default stands in where they leave it out. Not for secrets.",
    )
    timeout_seconds = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(2_592_000)],
        help_text="A run that takes longer is cancelled. Empty: what the engine says, else the product's "
        "default.",
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
        help_text="Synchronous: a call waits until the run ends, unless its token or toolset has an inline "
        "wait. Empty: the engine's.",
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
    read_only_hint = models.BooleanField(
        "read-only", null=True, blank=True, help_text="It changes nothing, so clients may call it unasked."
    )
    destructive_hint = models.BooleanField(
        "destructive",
        null=True,
        blank=True,
        help_text="It may delete or overwrite, so clients ask before. Nothing that is read-only does.",
    )
    idempotent_hint = models.BooleanField(
        "idempotent", null=True, blank=True, help_text="Calling it again with the same arguments is harmless."
    )
    open_world_hint = models.BooleanField(
        "open world", null=True, blank=True, help_text="It deals with systems outside the company's own."
    )
    icon_override = models.TextField(
        "icon",
        blank=True,
        help_text="An https: address, or a PNG, JPEG, WebP or GIF as data:image/...;base64, "
        f"of at most {MAX_ICON_CHARACTERS:,} characters. Empty: the engine's icons.",
    )
    offered_as_prompt = models.BooleanField(
        "offer as prompt", default=False, help_text="Clients show it to people as a command of its own, too."
    )
    cache_seconds = models.PositiveIntegerField(
        "cache results for",
        null=True,
        blank=True,
        validators=[MaxValueValidator(2_592_000)],
        help_text="Seconds that a result answers the same arguments again, whoever asks. For what changes "
        "nothing and answers all callers alike. 0: every call runs. Empty: what the engine says.",
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
        """Refuse what would hide a built-in tool, contradict itself, or break whoever reads it."""
        problems = self.find_own_problems()
        others = Workflow.objects.exclude(pk=self.pk).live_aliases()
        if (other := others.get(self.tool_name)) is not None:
            problems["tool_name"] = tell_alias(*other)
        if problems:
            raise ValidationError(problems)

    def find_own_problems(self) -> dict[str, str]:
        """What is wrong with it whatever others are called, by field."""
        problems = {}
        if self.tool_name in RESERVED:
            problems["tool_name"] = "This name is taken by a built-in tool or by REST."
        tags = self.tags_override
        if tags is not None and not (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)):
            problems["tags_override"] = 'This has to be a list of texts, such as ["finance"].'
        if self.read_only_hint and self.destructive_hint:
            problems["destructive_hint"] = "What is read-only cannot be destructive."
        if problem := check_form(self.argument_overrides):
            problems["argument_overrides"] = problem
        if problem := _icon_problem(self.icon_override):
            problems["icon_override"] = problem
        return problems

    @property
    def live_aliases(self) -> dict[str, datetime]:
        """The former tool names that calls may still use, and until when."""
        now = timezone.now()
        until = {name: datetime.fromisoformat(told) for name, told in self.tool_aliases.items()}
        return {name: moment for name, moment in until.items() if moment > now}

    @property
    def title(self) -> str:
        return self.title_override or self.upstream_title or self.name

    @property
    def effective_execution_type(self) -> str:
        return self.execution_type_override or self.execution_type

    @property
    def effective_timeout_seconds(self) -> int:
        own = self.timeout_seconds or self.upstream_timeout_seconds
        timeout: int = own or settings.CATALOGUE["execution_timeout"]
        return timeout

    @property
    def effective_cache_seconds(self) -> int | None:
        """None where every call runs."""
        decided = self.upstream_cache_seconds if self.cache_seconds is None else self.cache_seconds
        return decided or None

    @property
    def shown_description(self) -> str:
        return self.description_override or self.description

    @property
    def shown_tags(self) -> list[str]:
        shown: list[str] = self.tags if self.tags_override is None else self.tags_override
        return shown

    @property
    def offered_input_schema(self) -> dict[str, Any]:
        """What callers may give: the engine's schema with the curator's changes to single arguments."""
        return offer_schema(self.input_schema, self.argument_overrides)

    @property
    def argument_problems(self) -> dict[str, str]:
        """Of those changes, what no longer fits the engine's schema, by the argument's name."""
        return find_override_problems(self.input_schema, self.argument_overrides)

    @property
    def served_input_schema(self) -> dict[str, Any]:
        return serve_schema(self.offered_input_schema)

    @property
    def served_output_schema(self) -> dict[str, Any] | None:
        return None if self.output_schema is None else serve_schema(self.output_schema)

    @property
    def effective_hints(self) -> dict[str, bool]:
        """MCP's annotations by their names there: the curator's word, else the engine's.

        What is said to be read-only and destructive is what the curator says, else destructive.
        """
        decided = {name: getattr(self, field) for field, name in CURATORS_HINTS.items()}
        hints = {**self.hints, **{name: hint for name, hint in decided.items() if hint is not None}}
        if hints.get("readOnlyHint") and hints.get("destructiveHint"):
            hints["destructiveHint" if self.read_only_hint else "readOnlyHint"] = False
        return hints

    @property
    def shown_icons(self) -> list[dict[str, Any]]:
        """MCP's icons: `[{src, mimeType?, sizes?}]`."""
        shown: list[dict[str, Any]] = [{"src": self.icon_override}] if self.icon_override else self.icons
        return shown

    @property
    def promised_output_schema(self) -> dict[str, Any] | None:
        """What results are held to. One that only describes them, as documents of APIs do, promises nothing,
        unless the source's settings say so."""
        promises = self.metadata.get("output_is_promised", True) or self.source.config.get(
            "promise_output_schemas"
        )
        schema: dict[str, Any] | None = self.output_schema if promises else None
        return schema

    @property
    def ref(self) -> WorkflowRef:
        return WorkflowRef(id=self.upstream_id, name=self.name, metadata=self.metadata)


def tell_alias(name: str, until: datetime) -> str:
    """Why another workflow cannot have a former name of this one yet."""
    return f"Until {until:%Y-%m-%d %H:%M} UTC calls by this name still run {name}."


def _icon_problem(address: str) -> str:
    try:
        if address:
            check_icon_address(address)
    except Unusable as problem:
        return f"This cannot be shown: {problem}"
    return ""
