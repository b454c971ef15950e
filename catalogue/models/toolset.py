"""Toolsets: named parts of the exposed workflows, each with an endpoint of its own."""

from typing import Any, ClassVar

from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models.signals import m2m_changed
from django.dispatch import receiver

from catalogue.models.filter import ChoosingRule
from catalogue.models.history import ExposingQuerySet, Reservable, Revision
from catalogue.models.workflow import MOST_APPROVERS, MOST_CALLS, Workflow

SLUG_FORM = r"\A[a-z0-9][a-z0-9-]{0,63}\Z"
SLUG = RegexValidator(
    SLUG_FORM, "A slug has 1 to 64 lower-case letters, digits or hyphens, and starts with no hyphen."
)

LONGEST_INLINE_WAIT = 3600  # Seconds


class Toolset(Reservable):
    """What `/mcp/<slug>` serves: exposed workflows, picked by hand or chosen by its rules."""

    names_by_people = ("title",)

    class Mode(models.TextChoices):
        FULL = "full", "full: a tool per workflow"
        COMPACT = "compact", "compact: only the built-in tools, which list and run workflows by name"

    slug = models.CharField(
        max_length=64,
        unique=True,
        validators=[SLUG],
        help_text="The end of its address, such as /mcp/finance. Changing it breaks the clients that use it.",
    )
    title = models.CharField(max_length=255, blank=True, help_text="Shown to people. Empty: the slug.")
    description = models.TextField(blank=True, help_text="What it is for. Shown to agents.")
    enabled = models.BooleanField(default=True, help_text="Off: its endpoint answers as if it did not exist.")
    mode = models.CharField(max_length=10, choices=Mode.choices, default=Mode.FULL)
    portable = models.BooleanField(
        default=False,
        help_text="Tools are written so that every model provider accepts them: plain names without dots, no "
        "references, no recursion. Calls are translated back.",
    )
    picked = models.ManyToManyField(
        Workflow,
        blank=True,
        related_name="toolsets",
        verbose_name="picked by hand",
        help_text="Always in the toolset, regardless of its rules, as long as they are exposed.",
    )
    token_budget = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="If the list of tools exceeds this number of tokens, a warning is shown. Empty: no limit.",
    )
    inline_wait_seconds = models.PositiveIntegerField(
        "inline wait",
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(LONGEST_INLINE_WAIT)],
        help_text="Seconds that a call of its clients waits before it gets a handle: less than they wait. "
        "Empty: the product's default.",
    )
    calls_per_minute = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MOST_CALLS)],
        help_text="Calls of its workflows by all its clients. Further calls are refused for a while. "
        "Empty: no separate limit.",
    )
    calls_at_once = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MOST_CALLS)],
        help_text="Number of calls that pass without a pause. Empty: ten seconds' worth.",
    )
    approval_required = models.BooleanField(
        default=False,
        help_text="Each call of its workflows waits until a person has approved it, at every address.",
    )
    approvers_needed = models.PositiveSmallIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MOST_APPROVERS)],
        help_text="How many people must approve the same call. Empty: one.",
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
