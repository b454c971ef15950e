"""Discovery runs, and the confirmation of listings that were held."""

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from unfold.contrib.filters.admin import ChoicesDropdownFilter, RelatedDropdownFilter

from catalogue.actions.curation import Queue
from catalogue.actions.reviews import ReviewRefused, confirm_listing
from catalogue.admin import base
from catalogue.admin import rendering as html
from catalogue.history import actor_of
from catalogue.http_tools import KIND
from catalogue.models import DiscoveryRun

OUTCOME_BADGES = {
    DiscoveryRun.Outcome.RUNNING: "info",
    DiscoveryRun.Outcome.SUCCEEDED: "success",
    DiscoveryRun.Outcome.FAILED: "danger",
    DiscoveryRun.Outcome.HELD: "warning",
}
COUNTS = {
    "added": gettext_lazy("%(count)d added"),
    "updated": gettext_lazy("%(count)d updated"),
    "unchanged": gettext_lazy("%(count)d unchanged"),
    "returned": gettext_lazy("%(count)d returned"),
    "missing": gettext_lazy("%(count)d missing"),
    "held": gettext_lazy("%(count)d held"),
}
HELD = gettext_lazy(
    "Agents still see the workflows below. Confirm the listing if they were removed for good."
)
NAMED = {
    "missing": gettext_lazy("Missing from the engine's list"),
    "held": gettext_lazy("Changed and held for review"),
    "added": gettext_lazy("Added"),
    "updated": gettext_lazy("Updated"),
    "returned": gettext_lazy("Returned"),
}
RUN_HEADERS = (
    gettext_lazy("Started"),
    gettext_lazy("Outcome"),
    gettext_lazy("Trigger"),
    gettext_lazy("Took"),
    gettext_lazy("Result"),
)


def describe_counts(run: DiscoveryRun) -> str:
    """`8 workflows found: 2 added, 6 unchanged; 1 skipped, 1 with its schema replaced`."""
    counts = {name: getattr(run, name) for name in COUNTS}
    changes = ", ".join(str(COUNTS[name]) % {"count": count} for name, count in counts.items() if count)
    if run.source.kind == KIND:
        return changes or _("The API was reached; its tools are declared in the catalogue")
    told = _("%(count)d skipped") % {"count": run.skipped_count}
    skipped = f"; {told}" if run.skipped_count else ""
    found = ngettext("%(count)s workflow found", "%(count)s workflows found", run.found)
    return f"{found % {'count': f'{run.found:,}'}}{': ' if changes else ''}{changes}{skipped}"


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


@admin.register(DiscoveryRun)
class DiscoveryRunAdmin(base.ReadOnlyMixin, base.ButtonsMixin):
    list_display = ("started", "source", "outcome_shown", "trigger", "took", "told")
    list_filter = (
        ("source", RelatedDropdownFilter),
        ("outcome", ChoicesDropdownFilter),
        ("trigger", ChoicesDropdownFilter),
    )
    list_select_related = ("source",)
    list_per_page = 50
    newest_by = "started_at"
    fieldsets = (
        (
            None,
            {"fields": (("source", "trigger"), ("outcome_shown", "took"), ("began", "ended"), "error_shown")},
        ),
        (
            gettext_lazy("Found"),
            {"fields": (("found", "unchanged"), ("added", "updated"), ("missing", "returned"), "held")},
        ),
    )
    buttons = ("confirm",)
    change_form_outer_before_template = "catalogue/admin/discovery_run_panel.html"
    change_form_outer_after_template = "catalogue/admin/discovery_run_objects.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[DiscoveryRun]:
        runs: QuerySet[DiscoveryRun] = super().get_queryset(request)
        # Only the page of a run shows the long lists, and reads them then.
        return runs.for_lists()  # type: ignore[attr-defined,no-any-return]

    started = base.column(gettext_lazy("started"), "started_at")
    began = base.column(gettext_lazy("started"), "started_at", html.exactly)
    ended = base.column(gettext_lazy("finished"), "finished_at", html.exactly)
    found = base.column(gettext_lazy("found"), "found", int, sorts=False)
    took = base.column(gettext_lazy("took"), "duration_ms", html.duration, sorts=False)
    error_shown = base.column(gettext_lazy("error"), "error", html.paragraphs)
    outcome_shown = base.cell(gettext_lazy("outcome"), outcome_badge, sorts_by="outcome")
    told = base.cell(gettext_lazy("result"), lambda run: html.shortened(describe_run(run), 80))

    def get_buttons(self, request: HttpRequest, obj: DiscoveryRun) -> list[base.Button]:
        """The latest held listing of a source can be confirmed."""
        is_held = obj.outcome == DiscoveryRun.Outcome.HELD and DiscoveryRun.objects.held().filter(pk=obj.pk)
        return super().get_buttons(request, obj) if is_held else []

    def may_press_buttons(self, request: HttpRequest) -> bool:
        return request.user.has_perm("catalogue.change_source")

    @base.button(
        gettext_lazy("Confirm removal"),
        icon="check",
        variant="primary",
        confirm=gettext_lazy(
            "Remove these workflows from the catalogue, as the engine no longer lists them?"
        ),
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
                request, _("Confirmed. The source cannot be listed right now; its next listing applies.")
            )
        elif run.outcome == DiscoveryRun.Outcome.SUCCEEDED:
            messages.success(request, _("Confirmed. %s.") % describe_counts(run))
        else:
            messages.error(request, _("Confirmed, but: %s") % run.error)

    def panel(self, request: HttpRequest, obj: DiscoveryRun) -> dict[str, Any]:
        may_look = request.user.has_perm("catalogue.view_workflow")
        return {
            "headline": [outcome_badge(obj), HELD] if self.get_buttons(request, obj) else [],
            "facts": [(_("Confirmed"), html.exactly(obj.confirmed_at))],
            "to_decide": Queue(source=obj.source_id).rows().count() if may_look else 0,
            "named": [
                (label, getattr(obj, change), obj.changes[change])
                for change, label in NAMED.items()
                if obj.changes.get(change)
            ],
            "skipped_count": obj.skipped_count,
            "skipped": obj.skipped,
            "flagged": obj.flagged,
        }
