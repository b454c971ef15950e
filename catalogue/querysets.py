"""Reads that repeat."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from django.db import models, transaction
from django.db.models import Count, Q
from django.db.models.functions import Coalesce

if TYPE_CHECKING:
    from catalogue.models import DiscoveryRun, Review, Source, Workflow  # noqa: F401


Row = TypeVar("Row", bound=models.Model)


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
        return self.defer("input_schema", "output_schema", "metadata", "icons", "icon_override")

    def tagged(self, tag: str) -> WorkflowQuerySet:
        """Those whose shown tags contain this one, in any case of letters."""
        # The column holds the tags as JSON text, in which each stands within its quotes.
        quoted = json.dumps(tag)
        shown = Q(tags_override=None, tags__icontains=quoted) | Q(tags_override__icontains=quoted)
        return self.filter(shown)

    def matching(self, text: str) -> WorkflowQuerySet:
        """Those that have the text in a name or description, the engine's or the curator's."""
        fields = ("tool_name", "name", "title_override", "description", "description_override", "upstream_id")
        anywhere = Q()
        for field in fields:
            anywhere |= Q(**{f"{field}__icontains": text})
        return self.filter(anywhere)
