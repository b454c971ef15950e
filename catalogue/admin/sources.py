"""Sources: connect an engine, test it, refresh it, see how it does."""

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.forms import HiddenInput, ModelForm
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter

from catalogue.admin.base import ButtonsMixin, button
from catalogue.admin.discovery_runs import RUN_HEADERS, describe_counts, run_row
from catalogue.admin.rendering import (
    DASH,
    ago,
    badge,
    duration,
    exactly,
    link,
    shortened,
    side_by_side,
    table,
)
from catalogue.admin.setting_fields import is_secret
from catalogue.admin.source_form import (
    FORGET,
    SETTING,
    config_class,
    setting_infos,
    shown_settings,
    source_form,
    stored_credentials,
)
from catalogue.discovery import RefreshRefused, make_due, refresh_source
from catalogue.models import DiscoveryRun, Source, Workflow
from catalogue.sources import check_source, disable_sources, enable_sources
from connectors.errors import Misconfigured
from connectors.registry import connector_class, connector_kinds

HEALTH_BADGES = {
    Source.HealthState.UNKNOWN: "",
    Source.HealthState.OK: "success",
    Source.HealthState.FAILING: "danger",
}
RECENT_RUNS = 5
OWN_FIELDS = ("name", "enabled")
DISCOVERY_FIELDS = ("new_workflows", "refresh_interval")
LIMIT_FIELDS = ("max_concurrent",)


@admin.register(Source)
class SourceAdmin(ButtonsMixin):
    list_display = (
        "name", "kind", "health", "told", "workflow_counts", "last_refresh", "next_refresh", "enabled",
    )  # fmt: skip
    list_filter = (("health_state", ChoicesDropdownFilter), "enabled")
    search_fields = ("name",)
    actions = ("refresh_selected", "enable_selected", "disable_selected")
    buttons = ("test_connection", "refresh_now")
    change_form_outer_before_template = "catalogue/admin/source_panel.html"

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
        return format_html("{}{}", since, shortened(source.health_message))

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
        connectors = [(kind, connector_class(kind)) for kind in connector_kinds()]
        context = self.admin_site.each_context(request) | {
            "title": "What kind of engine?",
            "opts": self.opts,
            "kinds": [
                (known.label, known.__doc__, f"?{urlencode({'kind': kind})}") for kind, known in connectors
            ],
        }
        return TemplateResponse(request, "catalogue/admin/choose_kind.html", context)

    def _kind_to_add(self, request: HttpRequest) -> str:
        """Empty while somebody has to choose; with a single kind there is no choice."""
        kinds = connector_kinds()
        chosen = request.POST.get("kind") or request.GET.get("kind") or (kinds[0] if len(kinds) == 1 else "")
        return chosen if chosen in kinds else ""

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        initial = super().get_changeform_initial_data(request)
        return initial | {"kind": self._kind_to_add(request)}

    def get_form(
        self, request: HttpRequest, obj: Source | None = None, change: bool = False, **kwargs: Any
    ) -> "type[ModelForm[Source]]":
        kwargs["form"] = source_form(obj.kind if obj else self._kind_to_add(request))
        return super().get_form(request, obj, change, **kwargs)

    def get_fieldsets(self, request: HttpRequest, obj: Source | None = None) -> Any:
        if obj is not None and not self.has_change_permission(request, obj):
            return [(None, {"fields": [*OWN_FIELDS, *DISCOVERY_FIELDS, *LIMIT_FIELDS, "settings_shown"]})]
        kind = obj.kind if obj else self._kind_to_add(request)
        first, rest = _setting_lines(kind, obj)
        return [
            (None, {"fields": ["name", "kind_label" if obj else "kind", "enabled"]}),
            (f"Connection: {_label(kind)}", {"fields": first}),
            ("Discovery", {"fields": DISCOVERY_FIELDS}),
            ("Limits", {"fields": LIMIT_FIELDS}),
            ("More settings of the engine", {"fields": rest, "classes": ["collapse"]}),
        ]

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "kind":
            kwargs["widget"] = HiddenInput()
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def get_readonly_fields(self, request: HttpRequest, obj: Source | None = None) -> Any:
        return ("kind_label", "settings_shown")

    @admin.display(description="kind")
    def kind_label(self, source: Source) -> str:
        return _label(source.kind)

    @admin.display(description="engine's settings")
    def settings_shown(self, source: Source) -> SafeString:
        return side_by_side(format_html("<div><b>{}</b>: {}</div>", *row) for row in shown_settings(source))

    def save_model(self, request: HttpRequest, obj: Source, form: Any, change: bool) -> None:
        if change:
            form.update()
        else:
            obj.pk = form.create().pk

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
        return [f"Source: {source.name}" for source in sources], {"sources": len(sources)} | counts, set(), []

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Source]) -> None:
        for source in queryset:
            source.delete()

    # Buttons and actions

    @button("Test connection", icon="network_check")
    def test_connection(self, request: HttpRequest, source: Source) -> None:
        health = check_source(source)
        took = (
            "" if health.latency_seconds is None else f" ({duration(round(health.latency_seconds * 1000))})"
        )
        tell = messages.success if health.ok else messages.error
        tell(request, f"{source.name}: {health.message}{took}")

    @button("Refresh now", icon="refresh", variant="primary")
    def refresh_now(self, request: HttpRequest, source: Source) -> None:
        _refresh_and_tell(request, source)

    @admin.action(description="Refresh now", permissions=["change"])
    def refresh_selected(self, request: HttpRequest, queryset: QuerySet[Source]) -> None:
        """One at once; several by the worker, since one engine that hangs would hold up the page."""
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

    @admin.action(description="Switch on", permissions=["change"])
    def enable_selected(self, request: HttpRequest, queryset: QuerySet[Source]) -> None:
        messages.success(request, f"Switched on: {enable_sources(queryset)}.")

    @admin.action(description="Switch off", permissions=["change"])
    def disable_selected(self, request: HttpRequest, queryset: QuerySet[Source]) -> None:
        messages.success(request, f"Switched off: {disable_sources(queryset)}.")

    def panel(self, request: HttpRequest, obj: Source) -> dict[str, Any]:
        runs = obj.discovery_runs.defer("skipped", "flagged")[:RECENT_RUNS]
        return {
            "headline": [self.health(obj), obj.health_message],
            "facts": [
                ("Failing since", exactly(obj.failing_since)),
                ("Last good listing", exactly(obj.last_refreshed_at)),
                ("Next listing", exactly(obj.next_refresh_at) if obj.enabled else "none, switched off"),
                ("Workflows enabled / present", self.workflow_counts(obj)),
            ],
            "runs": table(RUN_HEADERS, map(run_row, runs)),
            "all_runs": link(
                "All discovery runs",
                "catalogue_discoveryrun_changelist",
                query=f"?source__id__exact={obj.pk}",
            ),
            "kind_unknown": config_class(obj.kind) is None,
        }


def _label(kind: str) -> str:
    try:
        return connector_class(kind).label
    except Misconfigured as error:
        return error.message if kind else ""


def _setting_lines(kind: str, source: Source | None) -> tuple[list[Any], list[Any]]:
    """The fields that somebody has to fill in, and those that have good defaults."""
    stored = stored_credentials(source) if source else {}
    first: list[Any] = []
    rest: list[Any] = []
    for name, info in setting_infos(config_class(kind)).items():
        line: Any = SETTING + name
        if stored.get(name) and not info.is_required():
            line = (SETTING + name, FORGET + name)
        (first if info.is_required() or is_secret(info) else rest).append(line)
    return first, rest


def _refresh_and_tell(request: HttpRequest, source: Source) -> None:
    try:
        run = refresh_source(source)
    except RefreshRefused as error:
        messages.warning(request, str(error))
        return
    details = link("Details", "catalogue_discoveryrun_change", run.pk)
    if run.outcome == DiscoveryRun.Outcome.SUCCEEDED:
        messages.success(request, format_html("{}: {}. {}", source.name, describe_counts(run), details))
    else:
        kept = "The last good list is kept."
        messages.error(request, format_html("{}: {} {} {}", source.name, run.error, kept, details))
