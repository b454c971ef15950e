from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter, RelatedDropdownFilter

from catalogue.admin import rendering as html
from catalogue.admin.base import Button, ButtonsMixin, ReadOnlyMixin, button
from catalogue.history import actor_of
from catalogue.http_tools import KIND
from catalogue.models import DiscoveryRun
from catalogue.review import ReviewRefused, confirm_listing

OUTCOME_BADGES = {
    DiscoveryRun.Outcome.RUNNING: "info",
    DiscoveryRun.Outcome.SUCCEEDED: "success",
    DiscoveryRun.Outcome.FAILED: "danger",
    DiscoveryRun.Outcome.HELD: "warning",
}
COUNTS = ("added", "updated", "unchanged", "returned", "missing", "held")
CHECKED = "Its tools are declared here; the API was reached"
HELD = "Agents go on seeing the workflows below. Confirm it if they are gone for good."
NAMED = {
    "missing": "Gone from the engine's list",
    "held": "Changed, and held for review",
    "added": "Added",
    "updated": "Updated",
    "returned": "Back again",
}
RUN_HEADERS = ("Started", "Outcome", "Trigger", "Took", "What it did")


def describe_counts(run: DiscoveryRun) -> str:
    """`8 workflows found: 2 added, 6 unchanged; 1 skipped, 1 with its schema replaced`."""
    changes = ", ".join(f"{getattr(run, name)} {name}" for name in COUNTS if getattr(run, name))
    if run.source.kind == KIND:
        return changes or CHECKED
    skipped = f"; {run.skipped_count} skipped" if run.skipped_count else ""
    return f"{run.found} workflows found{': ' if changes else ''}{changes}{skipped}"


def describe_run(run: DiscoveryRun) -> str:
    return run.error or describe_counts(run)


def run_row(request: HttpRequest, run: DiscoveryRun) -> list[Any]:
    started = html.link_if_allowed(request, html.ago(run.started_at), "catalogue_discoveryrun_change", run.pk)
    return [
        started,
        outcome_badge(run),
        run.get_trigger_display(),
        html.duration(run.duration_ms),
        html.paragraphs(describe_run(run)),
    ]


def outcome_badge(run: DiscoveryRun) -> SafeString:
    return html.badge(run.get_outcome_display(), OUTCOME_BADGES[DiscoveryRun.Outcome(run.outcome)])


def _with_reason(named: dict[str, Any]) -> tuple[str, str, str]:
    return html.shortened(named["id"]), html.shortened(named["name"]), html.paragraphs(named["reason"])


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
    newest_by = "started_at"
    show_full_result_count = False
    fieldsets = (
        (
            None,
            {"fields": (("source", "trigger"), ("outcome_shown", "took"), ("began", "ended"), "error_shown")},
        ),
        (
            "What it found",
            {"fields": (("found", "unchanged"), ("added", "updated"), ("missing", "returned"), "held")},
        ),
    )
    buttons = ("confirm",)
    change_form_outer_before_template = "catalogue/admin/discovery_run_panel.html"
    change_form_outer_after_template = "catalogue/admin/discovery_run_objects.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[DiscoveryRun]:
        runs: QuerySet[DiscoveryRun] = super().get_queryset(request)
        # The long lists are for one run's own page, which reads them when it shows them.
        return runs.for_lists()  # type: ignore[attr-defined,no-any-return]

    @admin.display(description="started", ordering="started_at")
    def started(self, run: DiscoveryRun) -> str:
        return html.ago(run.started_at)

    @admin.display(description="started")
    def began(self, run: DiscoveryRun) -> str:
        return html.exactly(run.started_at)

    @admin.display(description="finished")
    def ended(self, run: DiscoveryRun) -> str:
        return html.exactly(run.finished_at)

    @admin.display(description="outcome", ordering="outcome")
    def outcome_shown(self, run: DiscoveryRun) -> SafeString:
        return outcome_badge(run)

    @admin.display(description="took")
    def took(self, run: DiscoveryRun) -> str:
        return html.duration(run.duration_ms)

    @admin.display(description="what it did")
    def told(self, run: DiscoveryRun) -> str:
        return html.shortened(describe_run(run), 80)

    @admin.display(description="error")
    def error_shown(self, run: DiscoveryRun) -> SafeString:
        return html.paragraphs(run.error)

    def get_buttons(self, request: HttpRequest, obj: DiscoveryRun) -> list[Button]:
        """The latest held listing of a source can be confirmed."""
        is_held = obj.outcome == DiscoveryRun.Outcome.HELD and DiscoveryRun.objects.held().filter(pk=obj.pk)
        return super().get_buttons(request, obj) if is_held else []

    def may_press_buttons(self, request: HttpRequest) -> bool:
        return request.user.has_perm("catalogue.change_source")

    @button(
        "Confirm: they are gone",
        icon="check",
        variant="primary",
        confirm="Take these workflows out of the catalogue, as the engine does not list them any more?",
        records=True,
    )
    def confirm(self, request: HttpRequest, held: DiscoveryRun) -> None:
        try:
            run = confirm_listing(held, by=actor_of(request))
        except ReviewRefused as refused:
            messages.warning(request, str(refused))
            return
        if run is None:
            messages.info(
                request, "Confirmed. The source cannot be listed just now; its next listing counts."
            )
        elif run.outcome == DiscoveryRun.Outcome.SUCCEEDED:
            messages.success(request, f"Confirmed. {describe_counts(run)}.")
        else:
            details = html.link("Details", "catalogue_discoveryrun_change", run.pk)
            messages.error(request, format_html("Confirmed, but: {} {}", run.error, details))

    def panel(self, request: HttpRequest, obj: DiscoveryRun) -> dict[str, Any]:
        page = "catalogue_workflow_change"
        return {
            "headline": [outcome_badge(obj), HELD] if self.get_buttons(request, obj) else [],
            "facts": [("Confirmed", html.exactly(obj.confirmed_at))],
            "named": [
                (
                    label,
                    getattr(obj, change),
                    [
                        html.link_if_allowed(request, one["tool_name"], page, one["workflow"])
                        for one in changed
                    ],
                )
                for change, label in NAMED.items()
                if (changed := obj.changes.get(change))
            ],
            "skipped_count": obj.skipped_count,
            "skipped": html.table(
                ("Position", "Id", "Name", "Why it was skipped"),
                ((one["position"], *_with_reason(one)) for one in obj.skipped),
            ),
            "flagged": html.table(("Id", "Name", "Why it wants a look"), map(_with_reason, obj.flagged)),
        }
