"""Exposure rules, which decide what agents see at all, and toolsets: named parts of it, each with an endpoint
of its own. Both choose workflows by rules."""

from collections.abc import Collection
from typing import Any, ClassVar

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models.signals import m2m_changed
from django.dispatch import receiver
from django.utils.translation import gettext_lazy as _

from catalogue.fields import optional_number
from catalogue.models.history import Exposing, ExposingQuerySet, Reservable, Revision
from catalogue.models.workflow import MAX_APPROVERS, MAX_CALLS, Workflow
from catalogue.patterns import find_pattern_problem

SLUG_FORM = r"\A[a-z0-9][a-z0-9-]{0,63}\Z"
SLUG = RegexValidator(
    SLUG_FORM, "An address has 1 to 64 lower-case letters, digits or hyphens, and starts with no hyphen."
)

MAX_INLINE_WAIT = 3600  # Seconds


class ChoosingRule(Exposing):
    """One rule of an ordered list; the first that matches a workflow decides about it."""

    class Action(models.TextChoices):
        INCLUDE = "include", _("include")
        EXCLUDE = "exclude", _("exclude")

    class Subject(models.TextChoices):
        NAME = "name", _("name")
        ID = "id", _("engine's id")
        CATEGORY = "category", _("category")
        TAG = "tag", _("any tag")
        SOURCE = "source", _("source")

    class Syntax(models.TextChoices):
        GLOB = "glob", _("glob (*, ?, [abc])")
        REGEX = "regex", _("regular expression")

    position = models.PositiveIntegerField(
        default=0, db_index=True, help_text=_("Lower numbers come first; the first match decides.")
    )
    action = models.CharField(max_length=10, choices=Action.choices, default=Action.INCLUDE)
    subject = models.CharField(max_length=10, choices=Subject.choices, default=Subject.NAME)
    syntax = models.CharField(max_length=10, choices=Syntax.choices, default=Syntax.GLOB)
    pattern = models.CharField(max_length=500)
    enabled = models.BooleanField(default=True)
    note = models.CharField(max_length=255, blank=True)

    class Meta:
        abstract = True
        ordering = ("position", "pk")

    def __str__(self) -> str:
        return f"{self.get_action_display()} {self.get_subject_display()} {self.pattern}"

    def clean_fields(self, exclude: Collection[str] | None = None) -> None:
        super().clean_fields(exclude=exclude)
        if "pattern" not in (exclude or ()) and (problem := self.pattern_problem):
            raise ValidationError({"pattern": problem})

    @property
    def pattern_problem(self) -> str:
        """Why the rule cannot be used; empty for a usable one."""
        return find_pattern_problem(syntax=self.syntax, pattern=self.pattern)


class WorkflowFilter(ChoosingRule):
    objects: ClassVar[models.Manager["WorkflowFilter"]] = ExposingQuerySet.as_manager()

    class Meta(ChoosingRule.Meta):
        abstract = False
        verbose_name = _("exposure rule")


class Toolset(Reservable):
    """Chooses what `/mcp/<slug>` serves: exposed workflows, picked by hand or chosen by its rules."""

    names_by_people = ("title",)

    class Mode(models.TextChoices):
        FULL = "full", _("full: a tool per workflow")
        COMPACT = "compact", _("compact: only the built-in tools, which list and run workflows by name")

    slug = models.CharField(
        max_length=64,
        unique=True,
        validators=[SLUG],
        help_text=_(
            "The end of its address, such as /mcp/finance. Changing it breaks the clients that use it."
        ),
    )
    title = models.CharField(max_length=255, blank=True, help_text=_("Shown to people. Empty: the address."))
    description = models.TextField(blank=True, help_text=_("What it is for. Shown to agents."))
    enabled = models.BooleanField(
        default=True, help_text=_("Off: its endpoint answers as if it did not exist.")
    )
    mode = models.CharField(max_length=10, choices=Mode.choices, default=Mode.FULL)
    portable = models.BooleanField(
        default=False,
        help_text=_(
            "Tools are written so that every model provider accepts them: plain names without dots, no "
            "references, no recursion. Calls are translated back."
        ),
    )
    cards = models.BooleanField(
        default=True,
        db_default=True,
        help_text=_(
            "Clients that can show cards (MCP Apps) show each run in the chat: its progress, questions, "
            "approval and result. Off: they get what other clients get."
        ),
    )
    picked = models.ManyToManyField(
        Workflow,
        blank=True,
        related_name="toolsets",
        verbose_name=_("picked by hand"),
        help_text=_("Always in the toolset, regardless of its rules, as long as they are exposed."),
    )
    token_budget = optional_number(
        help_text=_(
            "If the list of tools exceeds this number of tokens, a warning is shown. Empty: no limit."
        )
    )
    inline_wait_seconds = optional_number(
        "inline wait",
        most=MAX_INLINE_WAIT,
        help_text=_(
            "Seconds that a call of its clients waits before it gets a handle: less than they wait. "
            "Empty: the product's default."
        ),
    )
    calls_per_minute = optional_number(
        most=MAX_CALLS,
        help_text=_(
            "Calls of its workflows by all its clients. Further calls are refused for a while. "
            "Empty: no separate limit."
        ),
    )
    calls_at_once = optional_number(
        most=MAX_CALLS, help_text=_("Number of calls that pass without a pause. Empty: ten seconds' worth.")
    )
    approval_required = models.BooleanField(
        default=False,
        help_text=_("Each call of its workflows waits until a person has approved it, at every address."),
    )
    approvers_needed = models.PositiveSmallIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_APPROVERS)],
        help_text=_("How many people must approve the same call. Empty: one."),
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects: ClassVar[models.Manager["Toolset"]] = ExposingQuerySet.as_manager()

    class Meta:
        ordering = ("slug",)

    def __str__(self) -> str:
        return self.slug

    def recorded_relations(self) -> dict[str, Any]:
        picks = Toolset.picked.through.objects.filter(toolset=self.pk)
        columns = ("position", "action", "subject", "syntax", "pattern", "enabled", "note")
        return {
            "picked": sorted(picks.values_list("workflow__tool_name", flat=True)),
            "rules": list(self.rules.order_by("position", "pk").values(*columns)),
        }


class ToolsetRule(ChoosingRule):
    toolset = models.ForeignKey(Toolset, on_delete=models.CASCADE, related_name="rules")

    objects: ClassVar[models.Manager["ToolsetRule"]] = ExposingQuerySet.as_manager()

    class Meta(ChoosingRule.Meta):
        abstract = False


@receiver(m2m_changed, sender=Toolset.picked.through)
def _move_revision(action: str, **_: Any) -> None:
    """Before the rows change, as for other changes of the exposed catalogue; Django uses one transaction."""
    if action in ("pre_add", "pre_remove", "pre_clear"):
        Revision.bump()
