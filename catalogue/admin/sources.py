"""Sources: connect an engine, test it, refresh it, see how it does."""

from collections.abc import Callable
from typing import Any, ClassVar

from django.conf import settings
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.forms import HiddenInput, ModelForm
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import BooleanRadioFilter, ChoicesDropdownFilter
from unfold.decorators import action

from catalogue.admin.base import ButtonsMixin, button
from catalogue.admin.discovery_runs import RUN_HEADERS, describe_counts, run_row
from catalogue.admin.openapi_import import show_openapi_import
from catalogue.admin.rendering import (
    DASH,
    ago,
    badge,
    duration,
    exactly,
    link,
    link_if_allowed,
    paragraphs,
    shortened,
    side_by_side,
    table,
)
from catalogue.admin.reviews import tell_of_held_listing, tell_of_reviews
from catalogue.admin.source_fieldsets import fieldsets_to_fill_in, fieldsets_to_read, label_of
from catalogue.admin.source_form import SourceForm, shown_settings, source_form
from catalogue.admin.temporal_import import show_import, tell_of_import
from catalogue.admin.tools import tell_of_tools
from catalogue.discovery import RefreshRefused, make_due, refresh_source
from catalogue.history import actor_of, record_change
from catalogue.kinds import summary_of
from catalogue.models import DiscoveryRun, Source, Workflow
from catalogue.sources import check_candidate, disable_sources, enable_sources
from connectors.errors import Misconfigured
from connectors.protocol import Health
from connectors.registry import connector_class, connector_problems, usable_connectors

HEALTH_BADGES = {
    Source.HealthState.UNKNOWN: "",
    Source.HealthState.OK: "success",
    Source.HealthState.FAILING: "danger",
    Source.HealthState.HELD: "warning",
}
RECENT_RUNS = 5


@admin.register(Source)
class SourceAdmin(ButtonsMixin):
    further_facts: ClassVar[list[Callable[[HttpRequest, Source], tuple[str, Any]]]] = [
        tell_of_held_listing,
        tell_of_reviews,
        tell_of_import,
        tell_of_tools,
    ]
    """What the rooms above tell of a source; they add themselves."""
    further_losses: ClassVar[list[Callable[[list[Source]], str]]] = []
    """What the rooms above warn of before sources are deleted; nothing where they would lose nothing."""
    list_display = (
        "name", "kind", "health", "told", "workflow_counts", "last_refresh", "next_refresh", "enabled",
    )  # fmt: skip
    list_filter = (("health_state", ChoicesDropdownFilter), ("enabled", BooleanRadioFilter))
    search_fields = ("name",)
    actions = ("refresh_selected", "enable_selected", "disable_selected")
    actions_list = ("import_temporal", "import_openapi")
    buttons = ("refresh_now",)
    change_form_outer_before_template = "catalogue/admin/source_panel.html"
    change_form_after_template = "catalogue/admin/source_test_result.html"

    class Media:
        css: ClassVar[dict[str, tuple[str, ...]]] = {"all": ("catalogue/admin/source_form.css",)}
        js = ("catalogue/admin/source_form.js",)

    # The list

    def get_queryset(self, request: HttpRequest) -> QuerySet[Source]:
        return super().get_queryset(request).with_workflow_counts()  # type: ignore[attr-defined,no-any-return]

    @admin.display(description="health", ordering="health_state")
    def health(self, source: Source) -> SafeString:
        return badge(
            source.get_health_state_display(), HEALTH_BADGES[Source.HealthState(source.health_state)]
        )

    @admin.display(description="what the engine said")
    def told(self, source: Source) -> str:
        since = format_html("since {}: ", ago(source.failing_since)) if source.failing_since else ""
        # One element, since narrow screens lay out the children of a cell side by side.
        return format_html("<span>{}{}</span>", since, shortened(source.health_message))

    @admin.display(description="enabled / present", ordering="present_count")
    def workflow_counts(self, source: Any) -> SafeString:
        counts = f"{source.enabled_count} / {source.present_count}"
        return link(counts, "catalogue_workflow_changelist", query=f"?source__id__exact={source.pk}")

    @admin.display(description="last refresh", ordering="last_refreshed_at")
    def last_refresh(self, source: Source) -> str:
        return ago(source.last_refreshed_at)

    @admin.display(description="next refresh", ordering="next_refresh_at")
    def next_refresh(self, source: Source) -> str:
        return ago(source.next_refresh_at) if source.enabled else DASH

    # The form

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if self.has_add_permission(request) and not self._kind_to_add(request):
            return self._ask_for_kind(request)
        return super().add_view(request, form_url, extra_context)

    def _ask_for_kind(self, request: HttpRequest) -> HttpResponse:
        context = self.admin_site.each_context(request) | {
            "title": "What kind of engine?",
            "opts": self.opts,
            "kinds": [
                (connector.label, summary_of(connector), f"?{urlencode({'kind': kind})}")
                for kind, connector in usable_connectors().items()
            ],
            "problems": connector_problems(),
        }
        return TemplateResponse(request, "catalogue/admin/choose_kind.html", context)

    def _kind_to_add(self, request: HttpRequest) -> str:
        """Empty while somebody has to choose; with a single kind there is no choice."""
        kinds = [*usable_connectors()]
        chosen = request.POST.get("kind") or request.GET.get("kind") or (kinds[0] if len(kinds) == 1 else "")
        return chosen if chosen in kinds else ""

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        initial = super().get_changeform_initial_data(request)
        return initial | {"kind": self._kind_to_add(request)}

    def get_form(
        self, request: HttpRequest, obj: Source | None = None, change: bool = False, **kwargs: Any
    ) -> "type[ModelForm[Source]]":
        kind = obj.kind if obj else self._kind_to_add(request)
        kwargs["form"] = source_form(kind, sealed_for=f"{request.user.pk} {kind} {obj and obj.pk}")
        return super().get_form(request, obj, change, **kwargs)

    def get_fieldsets(self, request: HttpRequest, obj: Source | None = None) -> Any:
        if obj is not None and not self.has_change_permission(request, obj):
            return fieldsets_to_read()
        return fieldsets_to_fill_in(obj.kind if obj else self._kind_to_add(request), obj)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "kind":
            kwargs["widget"] = HiddenInput()
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        if db_field.name == "refresh_interval" and field:
            field.widget.attrs["placeholder"] = settings.CATALOGUE["discovery_interval"]
        return field

    def get_readonly_fields(self, request: HttpRequest, obj: Source | None = None) -> Any:
        return ("kind_label", "settings_shown")

    @admin.display(description="kind")
    def kind_label(self, source: Source) -> str:
        return label_of(source.kind)

    @admin.display(description="engine's settings")
    def settings_shown(self, source: Source) -> SafeString:
        return side_by_side(format_html("<div><b>{}</b>: {}</div>", *row) for row in shown_settings(source))

    def save_model(self, request: HttpRequest, obj: Source, form: Any, change: bool) -> None:
        if change:
            form.update()
        else:
            obj.pk = form.create().pk

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Come here with a form that was sent only to be tried, or that cannot be saved as it is."""
        form = context["adminform"].form
        if isinstance(form, SourceForm) and form.is_bound and form.is_tried:
            outcome = _try(form)
            if request.headers.get("X-Requested-With") == "XMLHttpRequest":
                return JsonResponse(outcome)
            tell = messages.success if outcome["ok"] else messages.error
            tell(request, paragraphs("\n".join(outcome["told"])))
        return super().render_change_form(request, context, *args, **kwargs)

    # Deleting takes everything of the source along; what it ran stays on record.

    def get_deleted_objects(
        self, objs: Any, request: HttpRequest
    ) -> tuple[list[Any], dict[str, int], set[str], list[str]]:
        """Counts instead of the names of thousands of workflows."""
        sources = list(objs)
        counts = {
            "workflows": Workflow.objects.filter(source__in=sources).count(),
            "discovery runs": DiscoveryRun.objects.filter(source__in=sources).count(),
        }
        named: list[Any] = [f"Source: {source.name}" for source in sources]
        warnings = [format_html("<b>{}</b>", loss) for tell in self.further_losses if (loss := tell(sources))]
        return named + warnings, {"sources": len(sources)} | counts, set(), []

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Source]) -> None:
        for source in queryset:
            source.delete()

    # Buttons and actions

    @button("Refresh now", icon="refresh", variant="primary")
    def refresh_now(self, request: HttpRequest, source: Source) -> None:
        _refresh_and_tell(request, source)

    @admin.action(description="Refresh now", permissions=["change"])
    def refresh_selected(self, request: HttpRequest, queryset: QuerySet[Source]) -> None:
        """One at once; several by the worker, since one engine that hangs would hold up the page."""
        record_change(actor_of(request), queryset, "Asked for a listing.")
        if queryset.count() == 1:
            _refresh_and_tell(request, queryset.get())
        elif asked := make_due(queryset):
            messages.success(
                request, f"{asked} listings begin within seconds; the discovery runs tell how they go."
            )
        else:
            messages.warning(
                request, "Nothing to list: the sources, or discovery as a whole, are switched off."
            )

    @action(  # type: ignore[untyped-decorator]
        description="Import Temporal file",
        url_path="import-temporal",
        icon="upload_file",
        permissions=["import"],
    )
    def import_temporal(self, request: HttpRequest) -> HttpResponse:
        return show_import(request)

    @action(  # type: ignore[untyped-decorator]
        description="Import OpenAPI document",
        url_path="import-openapi",
        icon="upload_file",
        permissions=["import"],
    )
    def import_openapi(self, request: HttpRequest) -> HttpResponse:
        return show_openapi_import(request)

    def has_import_permission(self, request: HttpRequest) -> bool:
        return self.has_add_permission(request) or self.has_change_permission(request)

    @admin.action(description="Switch on", permissions=["change"])
    def enable_selected(self, request: HttpRequest, queryset: QuerySet[Source]) -> None:
        messages.success(request, f"Switched on: {enable_sources(queryset, by=actor_of(request))}.")

    @admin.action(description="Switch off", permissions=["change"])
    def disable_selected(self, request: HttpRequest, queryset: QuerySet[Source]) -> None:
        messages.success(request, f"Switched off: {disable_sources(queryset, by=actor_of(request))}.")

    def panel(self, request: HttpRequest, obj: Source) -> dict[str, Any]:
        runs = obj.discovery_runs.for_lists()[:RECENT_RUNS]
        return {
            "headline": [self.health(obj), obj.health_message and paragraphs(obj.health_message)],
            "facts": [
                (f"{obj.get_health_state_display().capitalize()} since", exactly(obj.failing_since)),
                ("Last good listing", exactly(obj.last_refreshed_at)),
                ("Next listing", exactly(obj.next_refresh_at) if obj.enabled else "none, switched off"),
                ("Workflows enabled / present", self.workflow_counts(obj)),
                *(tell(request, obj) for tell in self.further_facts),
            ],
            "runs": table(RUN_HEADERS, (run_row(request, run) for run in runs)),
            "all_runs": link_if_allowed(
                request,
                "All discovery runs",
                "catalogue_discoveryrun_changelist",
                query=f"?source__id__exact={obj.pk}",
                otherwise="",
            ),
            "kind_problem": _problem_of(obj.kind),
        }


def _refresh_and_tell(request: HttpRequest, source: Source) -> None:
    try:
        run = refresh_source(source)
    except RefreshRefused as error:
        messages.warning(request, str(error))
        return
    details = link("Details", "catalogue_discoveryrun_change", run.pk)
    if run.outcome == DiscoveryRun.Outcome.SUCCEEDED:
        tell = messages.warning if run.missing else messages.success
        tell(request, format_html("{}: {}. {}", source.name, describe_counts(run), details))
    else:
        kept = "" if run.outcome == DiscoveryRun.Outcome.HELD else "The last good list is kept."
        messages.error(request, format_html("{}: {} {} {}", source.name, run.error, kept, details))


def _try(form: SourceForm) -> dict[str, Any]:
    """Whether the form's settings reach the engine, and what is to be told of it."""
    if form.setting_errors:
        labels = {name: f"{field.label}: " for name, field in form.fields.items()}
        problems = form.setting_errors.items()
        return {
            "ok": False,
            "told": [f"{labels.get(name, '')}{message}" for name, told in problems for message in told],
        }
    health = check_candidate(form.candidate())
    return {"ok": health.ok, "told": [_in_words(health)]}


def _in_words(health: Health) -> str:
    if health.latency_seconds is None:
        return health.message
    return f"{health.message} ({duration(round(health.latency_seconds * 1000))})"


def _problem_of(kind: str) -> str:
    try:
        connector_class(kind)
    except Misconfigured as error:
        return error.message
    return ""
