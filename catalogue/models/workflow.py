"""A workflow: the engine's description, the curator's decisions, and changes that await review."""

import json
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from fnmatch import translate
from functools import cached_property
from typing import Any, ClassVar

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import Count, Q
from django.db.models.functions import Coalesce
from django.utils import timezone
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from access.callers import GROUP, find_keys
from catalogue import approval_rules
from catalogue.argument_overrides import check_form, find_override_problems, offer_schema
from catalogue.fields import JSONTextField, optional_number
from catalogue.long_lists import among
from catalogue.models.history import Exposing, ExposingQuerySet
from catalogue.models.source import Source
from catalogue.naming import RESERVED, spellings
from catalogue.presentation import CURATORS_HINTS, MAX_ICON_CHARACTERS, Unusable, check_icon_address
from catalogue.reduced_schemas import serve_reduced
from catalogue.served_schemas import serve_schema
from connectors.definitions import MAX_SECONDS, OUTPUT_SCHEMA, presentation_of
from connectors.formats.mcp_apps import audiences_of
from connectors.protocol import WorkflowRef


def check_group(name: str) -> None:
    """Raises ValidationError for a name that no group has."""
    if not find_keys([f"{GROUP}{name}"]):
        raise ValidationError(f"There is no group {name}.")


TOOL_NAME = RegexValidator(
    r"\A[A-Za-z0-9_.-]{1,64}\Z", "A tool name has 1 to 64 letters, digits, underscores, dots or hyphens."
)

MAX_CALLS = 1_000_000  # A minute
MAX_APPROVERS = 10
OF_OUTPUT = "/output_schema"  # Where pointers to parts of it begin
OVERRIDES: dict[str, Any] = {  # The columns of a curator's decisions, with their values where there is none
    **dict.fromkeys(("title_override", "description_override", "icon_override"), ""),
    **dict.fromkeys(
        (
            "tags_override",
            "timeout_seconds",
            "max_concurrent",
            "calls_per_minute",
            "calls_at_once",
            "cache_seconds",
        )
    ),
    **dict.fromkeys(CURATORS_HINTS),
    "former_tool_names": [],
    "execution_type_override": "",
}


def new_row_version() -> int:
    return secrets.randbits(63)


class WorkflowQuerySet(ExposingQuerySet["Workflow"]):
    def update(self, **changes: Any) -> int:
        return super().update(**{"row_version": new_row_version(), **changes})

    update.alters_data = True  # type: ignore[attr-defined]

    def bulk_create(self, objs: Iterable["Workflow"], *args: Any, **options: Any) -> list["Workflow"]:
        written = list(objs)
        for workflow in written:
            workflow.row_version = new_row_version()
        if options.get("update_fields") is not None:
            options["update_fields"] = [*options["update_fields"], "row_version"]
        return super().bulk_create(written, *args, **options)

    def present(self) -> "WorkflowQuerySet":
        return self.filter(missing_since=None)

    def runnable(self) -> "WorkflowQuerySet":
        """Exposed as far as the rows decide; the filters have the last word (`catalogue.exposure`)."""
        return self.filter(missing_since=None, enabled=True, source__enabled=True)

    def live_aliases(self) -> dict[str, tuple[str, datetime]]:
        """Returns, by former tool names that calls may still use, the present name and until when."""
        renamed = self.exclude(tool_aliases={}).only("tool_name", "tool_aliases")
        return {
            name: (workflow.tool_name, until)
            for workflow in renamed
            for name, until in workflow.live_aliases.items()
        }

    def cached(self) -> "WorkflowQuerySet":
        """Filters by `Workflow.effective_cache_seconds`, in the database."""
        return self.annotate(kept_seconds=Coalesce("cache_seconds", "upstream_cache_seconds", 0)).filter(
            kept_seconds__gt=0
        )

    def undescribed(self) -> "WorkflowQuerySet":
        return self.filter(description="", description_override="")

    def for_lists(self) -> "WorkflowQuerySet":
        """Defers large columns that only a workflow's own page shows."""
        large = ("input_schema", "output_schema", "argument_overrides", "metadata", "icons", "icon_override")
        return self.defer(*large)

    def tagged(self, tag: str) -> "WorkflowQuerySet":
        """Filters by shown tags, without regard to case."""
        return self.filter(is_tagged(tag))

    def count_tags(self) -> list[tuple[str, str, int]]:
        """Returns shown tags in lower case, one of their spellings, and how many are `tagged` with it; the
        most frequent first."""
        counts: Counter[str] = Counter()
        spelled: dict[str, str] = {}
        groups = self.order_by().values_list("tags", "tags_override").annotate(Count("pk"))
        for engines, ours, count in groups:
            spellings_here = {tag.lower(): tag for tag in (engines if ours is None else ours)}
            counts.update(dict.fromkeys(spellings_here, count))
            spelled |= spellings_here
        return [(tag, spelled[tag], count) for tag, count in counts.most_common()]

    def named_like(self, glob: str) -> "WorkflowQuerySet":
        return self.filter(self.is_named_like(glob))

    def is_named_like(self, *globs: str) -> Q:
        """Returns the condition that a name matches one of them as a whole, without regard to case; runs a
        query."""
        # Not by the database: their regular expressions differ, and some take exponential time.
        fits = re.compile("|".join(map(translate, globs)), re.IGNORECASE).match
        rows = self.order_by().values_list("pk", "tool_name", "name", "upstream_id", "title_override")
        return among(key for key, *names in rows if any(map(fits, names)))

    def matching(self, text: str) -> "WorkflowQuerySet":
        return self.filter(has_text(text))


SEARCHED = (
    "tool_name", "name", "upstream_id", "title_override", "upstream_title", "description",
    "description_override",
)  # fmt: skip


def has_text(text: str) -> Q:
    """Returns the condition for a text in a name or description of the engine or the curator."""
    return Q(*((f"{field}__icontains", text) for field in SEARCHED), _connector=Q.OR)


def is_tagged(tag: str) -> Q:
    """Returns the condition for a shown tag, without regard to case."""
    shown = Q()
    # The column holds the tags as JSON text in ASCII, so each is in quotes.
    for quoted in map(json.dumps, [tag] if tag.isascii() else spellings(tag)):
        shown |= Q(tags_override=None, tags__icontains=quoted) | Q(tags_override__icontains=quoted)
    return shown


def is_hinted(hint: str) -> Q:
    """Returns the condition of `Workflow.effective_hints` for the database."""
    shown = _has_hint(hint)
    if hint == "readOnlyHint":
        shown &= Q(read_only_hint=True) | ~_has_hint("destructiveHint")
    if hint == "destructiveHint":
        shown &= ~(Q(read_only_hint=True) & _has_hint("readOnlyHint"))
    return shown


def is_overridden(*fields: str) -> Q:
    """Returns the condition that a curator decided on one of these fields; on any field by default."""
    return Q(*(~Q(**{field: OVERRIDES[field]}) for field in fields or OVERRIDES), _connector=Q.OR)


def _has_hint(hint: str) -> Q:
    """The curator's value, else the engine's."""
    column = next(column for column, name in CURATORS_HINTS.items() if name == hint)
    # The column holds the engine's hints as JSON text without white space.
    engines = Q(**{f"{column}__isnull": True, "hints__contains": f'"{hint}":true'})
    return Q(**{column: True}) | engines


class Workflow(Exposing):
    class ExecutionType(models.TextChoices):
        SYNC = "sync", _("synchronous")
        ASYNC = "async", _("asynchronous")

    class OnDisconnect(models.TextChoices):
        CONTINUE = "continue", _("continues, and the result is kept")
        CANCEL = "cancel", _("is cancelled")

    class AnsweredBy(models.TextChoices):
        CALLER = "caller", _("the caller, or staff in the admin")
        APPROVERS = "approvers", _("people who may decide approvals")

    names_by_people = ("title_override",)

    source = models.ForeignKey(Source, on_delete=models.CASCADE, related_name="workflows")

    # The engine's description; only discovery writes it.
    upstream_id = models.CharField(_("engine's id"), max_length=255, editable=False)
    name = models.CharField(max_length=255, editable=False)
    upstream_title = models.CharField(_("engine's title"), max_length=255, blank=True, editable=False)
    description = models.TextField(editable=False)
    category = models.CharField(max_length=100, default="workflow", editable=False, db_index=True)
    version = models.CharField(max_length=100, default="1.0.0", editable=False)
    author = models.CharField(max_length=255, blank=True, editable=False)
    tags = JSONTextField(default=list, editable=False)
    execution_type = models.CharField(
        max_length=10, choices=ExecutionType.choices, default=ExecutionType.ASYNC, editable=False
    )
    input_schema = JSONTextField(
        default=dict, editable=False, help_text="JSON Schema against which arguments are validated."
    )
    output_schema = JSONTextField(null=True, editable=False)
    schema_problem = models.TextField(
        blank=True, editable=False, help_text="Why the engine's input schema was replaced by the generic one."
    )
    resembles = models.CharField(
        max_length=255,
        blank=True,
        editable=False,
        help_text="What its name or title can be mistaken for: a built-in tool, or another workflow.",
    )
    warning = models.TextField(
        blank=True,
        db_default="",
        editable=False,
        help_text="Excerpts of the engine's texts that may be instructions to agents.",
    )
    hints = JSONTextField(
        default=dict, editable=False, help_text="The engine's own MCP hints: {readOnlyHint: true, ...}."
    )
    icons = JSONTextField(default=list, editable=False, help_text="The engine's own icons: [{src, ...}].")
    upstream_timeout_seconds = models.PositiveIntegerField(_("engine's timeout"), null=True, editable=False)
    upstream_cache_seconds = models.PositiveIntegerField(_("engine's cache time"), null=True, editable=False)
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

    # The curator's decisions; discovery never changes them.
    tool_name = models.CharField(
        max_length=64, unique=True, validators=[TOOL_NAME], help_text=_("What agents call.")
    )
    former_tool_names = JSONTextField(
        default=list, editable=False, help_text="What agents called it before, the last name first."
    )
    tool_aliases = JSONTextField(
        default=dict, editable=False, help_text="Those of them that still work: {name: until when}."
    )
    enabled = models.BooleanField(default=False, db_index=True)
    only_in_toolsets = models.BooleanField(
        default=False,
        db_default=False,
        help_text=_("Agents see it only at the addresses of the toolsets that show it, and not at /mcp."),
    )
    title_override = models.CharField(
        _("title"), max_length=255, blank=True, help_text=_("Empty: the engine's title, else its name.")
    )
    description_override = models.TextField(
        _("description"), blank=True, help_text=_("Empty: the engine's description.")
    )
    tags_override = JSONTextField(
        _("tags"), null=True, blank=True, help_text=_("A JSON list; empty: the engine's tags.")
    )
    argument_overrides = JSONTextField(
        _("arguments"),
        default=dict,
        blank=True,
        help_text=_(
            "{name: {description?, constant? | default?}}. A constant is sent with each call, and "
            "agents do not see the argument; a default stands in where they leave it out. Not for secrets."
        ),
    )
    timeout_seconds = optional_number(
        most=MAX_SECONDS,
        help_text=_(
            "A run that takes longer is cancelled. Empty: the engine's timeout, otherwise the "
            "product's default."
        ),
    )
    inline_wait_seconds = optional_number(
        least=0,
        most=3600,
        help_text=_(
            "Seconds that a call waits before it gets a handle instead. Empty: the product's default."
        ),
    )
    execution_type_override = models.CharField(
        _("execution type"),
        max_length=10,
        blank=True,
        choices=ExecutionType.choices,
        help_text=_(
            "Synchronous: a call waits until the run ends, unless its token or toolset has an inline "
            "wait. Empty: the engine's."
        ),
    )
    on_disconnect = models.CharField(
        max_length=10,
        choices=OnDisconnect.choices,
        default=OnDisconnect.CONTINUE,
        help_text=_("What happens to a run if the caller's connection ends before the answer."),
    )
    reattach = models.BooleanField(
        _("re-attach"),
        default=True,
        help_text=_("A caller that lost its connection and repeats the identical call gets the same run."),
    )
    max_concurrent = optional_number(
        "concurrent runs", help_text=_("Maximum; further calls wait in the queue. Empty: no limit.")
    )
    calls_per_minute = optional_number(
        most=MAX_CALLS,
        help_text=_("By all callers. Further calls are refused for a while. Empty: the product's default."),
    )
    calls_at_once = optional_number(
        most=MAX_CALLS, help_text=_("Number of calls that pass without a pause. Empty: ten seconds' worth.")
    )
    read_only_hint = models.BooleanField(
        _("read-only"),
        null=True,
        blank=True,
        help_text=_("The workflow changes nothing, so clients may call it without asking."),
    )
    destructive_hint = models.BooleanField(
        _("destructive"),
        null=True,
        blank=True,
        help_text=_("The workflow may delete or overwrite, so clients ask first. Not if it is read-only."),
    )
    idempotent_hint = models.BooleanField(
        _("idempotent"),
        null=True,
        blank=True,
        help_text=_("Calling it again with the same arguments is harmless."),
    )
    open_world_hint = models.BooleanField(
        _("open world"),
        null=True,
        blank=True,
        help_text=_("The workflow interacts with systems outside the company."),
    )
    icon_override = models.TextField(
        _("icon"),
        blank=True,
        help_text=format_lazy(
            _(
                "An https: address, or a PNG, JPEG, WebP or GIF as data:image/...;base64, "
                "of at most {} characters. Empty: the engine's icons."
            ),
            f"{MAX_ICON_CHARACTERS:,}",
        ),
    )
    offered_as_prompt = models.BooleanField(
        _("offer as prompt"),
        default=False,
        help_text=_("Clients also show the workflow to people as a command."),
    )
    cache_seconds = optional_number(
        "cache results for",
        least=0,
        most=MAX_SECONDS,
        help_text=_(
            "Seconds for which a result answers calls with the same arguments. Only for workflows "
            "that change nothing and answer all callers alike. 0: every call runs. Empty: the engine's value."
        ),
    )
    approval_required = models.BooleanField(
        default=False, help_text=_("Each call waits until a person has approved it.")
    )
    approval_rules = JSONTextField(
        default=list,
        blank=True,
        help_text=_(
            "Calls that wait for approval by their arguments: [{argument, is, value}], such as "
            '[{"argument": "/amount", "is": "over", "value": 1000}]. What a rule cannot judge waits too.'
        ),
    )
    approvers_needed = models.PositiveSmallIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_APPROVERS)],
        help_text=_("How many people must approve the same call. Empty: one."),
    )
    answered_by = models.CharField(
        max_length=10,
        choices=AnsweredBy.choices,
        default=AnsweredBy.CALLER,
        db_default=AnsweredBy.CALLER,
        help_text=_("Who answers what a paused run asks. Approvers: the caller's client is not asked."),
    )
    answer_group = models.CharField(
        max_length=150,
        blank=True,
        default="",
        db_default="",
        validators=[check_group],
        help_text=_("A group whose members answer instead; the caller's client is not asked."),
    )

    row_version = models.BigIntegerField(
        default=0, editable=False, help_text="Another number after each write of the row."
    )

    # Not stored.
    derived: cached_property[dict[Any, Any]] = cached_property(lambda _: {})
    """What is made of this version of the row, such as its tool's JSON; the exposed catalogue replaces the
    object when the row or its source's settings change."""
    approving_toolsets: tuple[Any, ...] = ()  # Those that show it and require approval; of exposed ones
    app: Any = None  # The enabled app of an MCP server's tool, a ServerFeature; of exposed ones

    objects: ClassVar[models.Manager["Workflow"]] = WorkflowQuerySet.as_manager()

    class Meta:
        ordering = ("tool_name",)
        constraints = [
            models.UniqueConstraint(fields=["source", "upstream_id"], name="one_workflow_per_engine_id")
        ]

    def __str__(self) -> str:
        return self.tool_name

    def save(self, *, update_fields: Iterable[str] | None = None, **options: Any) -> None:
        self.row_version = new_row_version()
        if update_fields is not None:
            update_fields = [*update_fields, "row_version"]
        super().save(update_fields=update_fields, **options)

    def clean(self) -> None:
        problems = self.find_own_problems()
        others = Workflow.objects.exclude(pk=self.pk).live_aliases()
        if (other := others.get(self.tool_name)) is not None:
            problems["tool_name"] = describe_alias(*other)
        if problems:
            raise ValidationError(problems)

    def unique_error_message(
        self, model_class: type[models.Model], unique_check: Sequence[str]
    ) -> ValidationError:
        others = Workflow.objects.exclude(pk=self.pk).select_related("source")
        if tuple(unique_check) == ("tool_name",) and (
            other := others.filter(tool_name=self.tool_name).first()
        ):
            problem = (
                f"{other.name} of {other.source.name} has this name. Choose another, or rename that first."
            )
            return ValidationError(problem, code="unique")
        return super().unique_error_message(model_class, unique_check)

    def find_own_problems(self) -> dict[str, str]:
        """Problems by field that do not depend on other workflows."""
        problems = {}
        if self.tool_name in RESERVED:
            problems["tool_name"] = "This name is taken by a built-in tool or by REST."
        tags = self.tags_override
        if tags is not None and not (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)):
            problems["tags_override"] = 'This must be a list of strings, such as ["finance"].'
        if self.read_only_hint and self.destructive_hint:
            problems["destructive_hint"] = "A read-only workflow cannot be destructive."
        found = {
            "argument_overrides": check_form(self.argument_overrides),
            "approval_rules": approval_rules.check_form(self.approval_rules),
            "tool_aliases": self._alias_problem(),
        }
        problems |= {name: problem for name, problem in found.items() if problem}
        try:
            if self.icon_override:
                check_icon_address(self.icon_override)
        except Unusable as unusable:
            problems["icon_override"] = f"This cannot be shown: {unusable}"
        return problems

    def _alias_problem(self) -> str:
        try:
            self.live_aliases  # noqa: B018 - reads each time
        except (AttributeError, TypeError, ValueError):
            return "This must be former names with times, as an export writes them."
        return ""

    @property
    def live_aliases(self) -> dict[str, datetime]:
        now = timezone.now()
        until = {name: datetime.fromisoformat(moment) for name, moment in self.tool_aliases.items()}
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
        timeout: int = own or settings.CATALOGUE.execution_timeout
        return timeout

    @property
    def effective_cache_seconds(self) -> int | None:
        """None: every call runs."""
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
        return offer_schema(self.input_schema, self.argument_overrides)

    @property
    def argument_problems(self) -> dict[str, str]:
        """Argument overrides that no longer fit the engine's schema, by argument name."""
        return find_override_problems(self.input_schema, self.argument_overrides)

    @property
    def approval_rule_problems(self) -> list[str]:
        """Approval rules that no longer fit the engine's schema; each call waits for approval then."""
        return approval_rules.find_rule_problems(self.input_schema, self.approval_rules)

    @property
    def served_input_schema(self) -> dict[str, Any]:
        """Returns the schema as agents read it."""
        return serve_reduced(self.offered_input_schema)

    @property
    def served_output_schema(self) -> dict[str, Any] | None:
        return None if self.output_schema is None else serve_reduced(self.output_schema, within=OF_OUTPUT)

    @property
    def whole_input_schema(self) -> dict[str, Any]:
        return serve_schema(self.offered_input_schema)

    @property
    def whole_output_schema(self) -> dict[str, Any] | None:
        return None if self.output_schema is None else serve_schema(self.output_schema)

    @property
    def effective_hints(self) -> dict[str, bool]:
        """MCP's annotations by MCP's names: the curator's value, else the engine's. If read-only and
        destructive contradict each other, the curator's value stays, else destructive."""
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
    def declared_output_schema(self) -> dict[str, Any] | None:
        """Returns the schema also of results that are not objects, which MCP does not promise."""
        schema = self.output_schema or self.metadata.get(OUTPUT_SCHEMA)
        return schema if isinstance(schema, dict) else None

    @property
    def presentation(self) -> dict[str, Any]:
        """Returns what clients get of the `_meta` of an MCP server's tool; empty with apps off."""
        return presentation_of(self.metadata) if self.source.shows_apps else {}

    @property
    def is_for_models(self) -> bool:
        return "model" in audiences_of(self.presentation)

    @property
    def is_for_apps(self) -> bool:
        """Returns whether an app of its server may call it."""
        return "app" in audiences_of(self.presentation)

    @property
    def promised_output_schema(self) -> dict[str, Any] | None:
        """Returns what results are validated against; None where the schema only describes them."""
        promises = self.metadata.get("output_is_promised", True) or self.source.config.get(
            "promise_output_schemas"
        )
        schema: dict[str, Any] | None = self.output_schema if promises else None
        return schema

    @property
    def may_need_approval(self) -> bool:
        """Returns whether at least some calls do; of exposed workflows, as only they know their toolsets."""
        return bool(self.approval_required or self.approval_rules or self.approving_toolsets)

    @property
    def ref(self) -> WorkflowRef:
        return WorkflowRef(id=self.upstream_id, name=self.name, metadata=self.metadata)


def describe_alias(name: str, until: datetime) -> str:
    return f"Until {until:%Y-%m-%d %H:%M} UTC calls by this name still run {name}."


class ReviewQuerySet(models.QuerySet["Review"]):
    def awaiting(self) -> "ReviewQuerySet":
        """Undecided reviews of workflows that the engine still lists."""
        return self.filter(kept_at=None, workflow__missing_since=None)

    def changes(self) -> "ReviewQuerySet":
        return self.filter(kind="changed")

    def new_workflows(self) -> "ReviewQuerySet":
        return self.filter(kind="new")


class Review(models.Model):
    """A changed or new workflow that agents do not see until a curator accepts it. The workflow's row holds
    the served version, so lists and the exposed catalogue never read the offer."""

    class Kind(models.TextChoices):
        CHANGED = "changed", _("changed")
        NEW = "new", _("new")

    workflow = models.OneToOneField(
        Workflow, on_delete=models.CASCADE, primary_key=True, related_name="review"
    )
    kind = models.CharField(max_length=10, choices=Kind.choices)
    offer_hash = models.CharField(
        max_length=64, help_text="The content hash of what the engine says now; a decision names it."
    )
    offered = JSONTextField(
        null=True, help_text="All that the engine says now; null for a new workflow, whose row has it."
    )
    held_since = models.DateTimeField(default=timezone.now, db_index=True)
    kept_at = models.DateTimeField(
        null=True,
        db_index=True,
        help_text="When a curator turned the offer down; nobody is asked again until it is another one.",
    )

    objects: ClassVar[models.Manager["Review"]] = ReviewQuerySet.as_manager()

    class Meta:
        ordering = ("-held_since", "pk")
        verbose_name = _("change to review")
        verbose_name_plural = _("changes to review")
        # The permissions of workflows apply.
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.workflow)

    @property
    def state(self) -> str:
        """Returns a text for the history, such as `held 5f1d09c2ab34`."""
        state = "new" if self.kind == self.Kind.NEW else "turned down" if self.kept_at else "held"
        return f"{state} {self.offer_hash[:12]}"
