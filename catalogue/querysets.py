"""Reads that repeat."""

from __future__ import annotations

import json
import re
from datetime import datetime
from fnmatch import translate
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import models, transaction
from django.db.models import Count, Q
from django.db.models.functions import Coalesce

from catalogue.presentation import CURATORS_HINTS

if TYPE_CHECKING:
    from catalogue.models import DiscoveryRun, Review, Source, Workflow  # noqa: F401


Row = TypeVar("Row", bound=models.Model)
OVERRIDES: dict[str, Any] = {
    "title_override": "",
    "description_override": "",
    "tags_override": None,
    "former_tool_names": [],
    "read_only_hint": None,
    "destructive_hint": None,
    "idempotent_hint": None,
    "open_world_hint": None,
    "icon_override": "",
    "timeout_seconds": None,
    "max_concurrent": None,
    "execution_type_override": "",
    "cache_seconds": None,
}
"""What a curator may say of a workflow, and what stands there as long as nobody has."""


class ExposingQuerySet(models.QuerySet[Row]):
    def delete(self) -> tuple[int, dict[str, int]]:
        """Like the model's own `delete`, it moves the revision. `update` does not: see `Revision.bump`."""
        from catalogue.models import Revision

        with transaction.atomic(using=self.db):
            Revision.bump()
            return super().delete()

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]


class SourceQuerySet(ExposingQuerySet["Source"]):
    def due(self, now: datetime) -> SourceQuerySet:
        """Enabled sources whose time for a listing has come and that nobody is listing."""
        free = Q(refresh_lease_expires_at=None) | Q(refresh_lease_expires_at__lt=now)
        return self.filter(free, enabled=True, next_refresh_at__lte=now)

    def with_workflow_counts(self) -> SourceQuerySet:
        """Annotated with `present_count` and, of those, `enabled_count`."""
        present = Q(workflows__isnull=False, workflows__missing_since=None)
        return self.annotate(
            present_count=Count("workflows", filter=present),
            enabled_count=Count("workflows", filter=present & Q(workflows__enabled=True)),
        )


class DiscoveryRunQuerySet(models.QuerySet["DiscoveryRun"]):
    def for_lists(self) -> DiscoveryRunQuerySet:
        """Without the long lists, which only a page of its own shows."""
        return self.defer("skipped", "flagged", "changes")

    def held(self) -> DiscoveryRunQuerySet:
        """Of each source whose last listing is held, that one."""
        from catalogue.models import DiscoveryRun

        of_source = DiscoveryRun.objects.filter(source=models.OuterRef("source"))
        newest = of_source.filter(outcome__in=("succeeded", "held")).order_by("-pk").values("pk")[:1]
        return self.filter(outcome="held", pk=models.Subquery(newest))

    def confirmed_since_success(self, source: Source) -> DiscoveryRunQuerySet:
        """The source's held listings that somebody confirmed, and that no later good one has replaced."""
        succeeded = self.filter(source=source, outcome="succeeded").order_by("-pk").values("pk")[:1]
        later = self.filter(source=source, outcome="held").exclude(confirmed_at=None)
        return later.filter(pk__gt=Coalesce(models.Subquery(succeeded), 0))


class ReviewQuerySet(models.QuerySet["Review"]):
    def awaiting(self) -> ReviewQuerySet:
        """Those that nobody has decided, of workflows that the engine lists."""
        return self.filter(kept_at=None, workflow__missing_since=None)

    def changes(self) -> ReviewQuerySet:
        """Changes that are held."""
        return self.filter(kind="changed")

    def new_workflows(self) -> ReviewQuerySet:
        """New workflows that a curator has to look at."""
        return self.filter(kind="new")


class WorkflowQuerySet(ExposingQuerySet["Workflow"]):
    def present(self) -> WorkflowQuerySet:
        """Still in the engine's list."""
        return self.filter(missing_since=None)

    def runnable(self) -> WorkflowQuerySet:
        """What the rows alone allow to be exposed; the filters have the last word (`catalogue.exposure`)."""
        return self.present().filter(enabled=True, source__enabled=True)

    def live_aliases(self) -> dict[str, tuple[str, datetime]]:
        """The former tool names that calls may still use: what they run, and until when."""
        renamed = self.exclude(tool_aliases={}).only("tool_name", "tool_aliases")
        return {
            name: (workflow.tool_name, until)
            for workflow in renamed
            for name, until in workflow.live_aliases.items()
        }

    def cached(self) -> WorkflowQuerySet:
        """Those whose results are cached: what `Workflow.effective_cache_seconds` says, for the database."""
        return self.annotate(kept_seconds=Coalesce("cache_seconds", "upstream_cache_seconds", 0)).filter(
            kept_seconds__gt=0
        )

    def with_held_changes(self) -> WorkflowQuerySet:
        """Those of which the engine says something else than what was accepted, whether it awaits review or
        was turned down."""
        return self.filter(review__kind="changed")

    def undescribed(self) -> WorkflowQuerySet:
        """Those that need a description from a curator."""
        return self.filter(description="", description_override="")

    def for_lists(self) -> WorkflowQuerySet:
        """Without what may be large and only a page of its own shows."""
        large = ("input_schema", "output_schema", "argument_overrides", "metadata", "icons", "icon_override")
        return self.defer(*large)

    def tagged(self, tag: str) -> WorkflowQuerySet:
        """Those whose shown tags contain this one, in any case of letters."""
        # The column holds the tags as JSON text, in which each stands within its quotes.
        quoted = json.dumps(tag)
        shown = Q(tags_override=None, tags__icontains=quoted) | Q(tags_override__icontains=quoted)
        return self.filter(shown)

    def hinted(self, hint: str) -> WorkflowQuerySet:
        """Those that clients are told this of: `Workflow.effective_hints`, for the database."""
        told = Q(_told(hint))
        if hint == "readOnlyHint":
            told &= Q(read_only_hint=True) | ~_told("destructiveHint")
        if hint == "destructiveHint":
            told &= ~(Q(read_only_hint=True) & _told("readOnlyHint"))
        return self.filter(told)

    def overridden(self, *fields: str) -> WorkflowQuerySet:
        """Those of which a curator has decided one of these, unlike the engine; all there are by default."""
        anywhere = Q()
        for field in fields or OVERRIDES:
            anywhere |= ~Q(**{field: OVERRIDES[field]})
        return self.filter(anywhere)

    def named_like(self, glob: str) -> WorkflowQuerySet:
        """Those of which a name fits as a whole, in any case of letters: a query of its own."""
        # Not by the database: each has other expressions, and some take for ever over them.
        fits = re.compile(translate(glob), re.IGNORECASE).match
        rows = self.order_by().values_list("pk", "tool_name", "name", "upstream_id", "title_override")
        return self.filter(pk__in=[key for key, *names in rows if any(map(fits, names))])

    def matching(self, text: str) -> WorkflowQuerySet:
        """Those that have the text in a name or description, the engine's or the curator's."""
        fields = ("tool_name", "name", "title_override", "description", "description_override", "upstream_id")
        anywhere = Q()
        for field in fields:
            anywhere |= Q(**{f"{field}__icontains": text})
        return self.filter(anywhere)


def _told(hint: str) -> Q:
    """That the curator says so, or else the engine."""
    column = next(column for column, name in CURATORS_HINTS.items() if name == hint)
    # The column holds the engine's hints as JSON text without white space.
    engines = Q(**{f"{column}__isnull": True, "hints__contains": f'"{hint}":true'})
    return Q(**{column: True}) | engines
