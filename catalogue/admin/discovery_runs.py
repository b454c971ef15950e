"""Discovery runs: what each listing found, changed and skipped."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter, RelatedDropdownFilter

from catalogue.admin.base import ButtonsMixin, ReadOnlyMixin
from catalogue.admin.rendering import (
    ago,
    badge,
    duration,
    exactly,
    link_if_allowed,
    paragraphs,
    shortened,
    table,
)
from catalogue.http_tools.configs import KIND
from catalogue.models import DiscoveryRun

OUTCOME_BADGES = {
    DiscoveryRun.Outcome.RUNNING: "info",
    DiscoveryRun.Outcome.SUCCEEDED: "success",
    DiscoveryRun.Outcome.FAILED: "danger",
}
COUNTS = ("added", "updated", "unchanged", "returned", "missing")
CHECKED = "Its tools are declared here; the API was reached"
"""Of a source that lists nothing."""
RUN_HEADERS = ("Started", "Outcome", "Trigger", "Took", "What it did")


def describe_counts(run: DiscoveryRun) -> str:
    """`8 workflows found: 2 added, 6 unchanged; 1 skipped, 1 with its schema replaced`."""
    changes = ", ".join(f"{getattr(run, name)} {name}" for name in COUNTS if getattr(run, name))
    if run.source.kind == KIND:
        return changes or CHECKED
    skipped = f"; {run.skipped_count} skipped" if run.skipped_count else ""
    return f"{run.found} workflows found{': ' if changes else ''}{changes}{skipped}"


def describe_run(run: DiscoveryRun) -> str:
    return run.error if run.outcome == DiscoveryRun.Outcome.FAILED else describe_counts(run)


def run_row(request: HttpRequest, run: DiscoveryRun) -> list[Any]:
    """One line of the short table on a source's page."""
    started = link_if_allowed(request, ago(run.started_at), "catalogue_discoveryrun_change", run.pk)
    return [
        started,
        outcome_badge(run),
        run.get_trigger_display(),
        duration(run.duration_ms),
        paragraphs(describe_run(run)),
    ]


def outcome_badge(run: DiscoveryRun) -> SafeString:
    return badge(run.get_outcome_display(), OUTCOME_BADGES[DiscoveryRun.Outcome(run.outcome)])


@admin.register(DiscoveryRun)
class DiscoveryRunAdmin(ReadOnlyMixin, ButtonsMixin):
    list_display = ("started", "source", "outcome_shown", "trigger", "took", "told")
    list_filter = (
        ("source", RelatedDropdownFilter),
        ("outcome", ChoicesDropdownFilter),
        ("trigger", ChoicesDropdownFilter),
    )
    list_select_related = ("source",)
    list_per_page = 50
    fieldsets = (
        (
            None,
            {"fields": (("source", "trigger"), ("outcome_shown", "took"), ("began", "ended"), "error_shown")},
        ),
        (
            "What it found",
            {"fields": (("found", "unchanged"), ("added", "updated"), ("missing", "returned"))},
        ),
    )
    change_form_outer_after_template = "catalogue/admin/discovery_run_objects.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[DiscoveryRun]:
        runs: QuerySet[DiscoveryRun] = super().get_queryset(request)
        # The long lists are for one run's own page, which reads them when it shows them.
        return runs.defer("skipped", "flagged")

    @admin.display(description="started", ordering="started_at")
    def started(self, run: DiscoveryRun) -> str:
        return ago(run.started_at)

    @admin.display(description="started")
    def began(self, run: DiscoveryRun) -> str:
        return exactly(run.started_at)

    @admin.display(description="finished")
    def ended(self, run: DiscoveryRun) -> str:
        return exactly(run.finished_at)

    @admin.display(description="outcome", ordering="outcome")
    def outcome_shown(self, run: DiscoveryRun) -> SafeString:
        return outcome_badge(run)

    @admin.display(description="took")
    def took(self, run: DiscoveryRun) -> str:
        return duration(run.duration_ms)

    @admin.display(description="what it did")
    def told(self, run: DiscoveryRun) -> str:
        return shortened(describe_run(run), 80)

    @admin.display(description="error")
    def error_shown(self, run: DiscoveryRun) -> SafeString:
        return paragraphs(run.error)

    def panel(self, request: HttpRequest, obj: DiscoveryRun) -> dict[str, Any]:
        return {
            "skipped_count": obj.skipped_count,
            "skipped": table(
                ("Position", "Id", "Name", "Why it was skipped"),
                (
                    (
                        item["position"],
                        shortened(item["id"]),
                        shortened(item["name"]),
                        paragraphs(item["reason"]),
                    )
                    for item in obj.skipped
                ),
            ),
            "flagged": table(
                ("Id", "Name", "Why it wants a look"),
                (
                    (shortened(item["id"]), shortened(item["name"]), paragraphs(item["reason"]))
                    for item in obj.flagged
                ),
            ),
        }
