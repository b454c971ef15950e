from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.defaultfilters import filesizeformat
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import RelatedDropdownFilter

from catalogue.admin.base import ButtonsMixin, CatalogueAdmin, FixedRowsMixin, ReadOnlyMixin, button, column
from catalogue.admin.rendering import DASH, ago, badge, exactly, link, link_if_allowed
from catalogue.history import actor_of, record_change
from catalogue.long_lists import SEARCHED
from catalogue.models import Workflow
from catalogue.naming import counted
from executions.models import CachedResult, CachePolicy, CacheUse, Retention
from executions.models.result_cache import evict_excess, remove_results
from executions.result_cache import CacheFigures, cache_figures, clear_results

MAY_CLEAR = "executions.delete_cachedresult"
MAY_LOOK = "executions.view_cacheuse"
WORKFLOWS, USES = "catalogue_workflow_changelist", "executions_cacheuse_changelist"
RESULTS = "executions_cachedresult_changelist"


class OnlyRowAdmin(FixedRowsMixin, CatalogueAdmin):
    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        only, _ = self.model.objects.get_or_create(pk=self.model.ONLY)
        return HttpResponseRedirect(
            reverse(f"admin:executions_{self.opts.model_name}_change", args=[only.pk])
        )


@admin.register(CachePolicy)
class CachePolicyAdmin(ButtonsMixin, OnlyRowAdmin):
    fields = ("enabled", "max_bytes", "cleanup_seconds")
    buttons = ("clear_all",)
    change_form_outer_before_template = "executions/admin/cache_policy.html"

    def may_press_buttons(self, request: HttpRequest) -> bool:
        return request.user.has_perm(MAY_CLEAR)

    def save_model(self, request: HttpRequest, obj: CachePolicy, form: Any, change: bool) -> None:
        """Applies a lower limit immediately; does not write fields that a worker updates."""
        obj.save(update_fields=form.changed_data)
        if evicted := evict_excess():
            messages.info(
                request, f"{counted(evicted, 'result was', 'results were')} evicted to stay within the limit."
            )

    @button("Clear", icon="mop", variant="danger", confirm="Remove all cached results?")
    def clear_all(self, request: HttpRequest, policy: CachePolicy) -> None:
        messages.success(request, f"Cleared: {counted(clear_results(), 'result')}.")

    def panel(self, request: HttpRequest, obj: CachePolicy) -> dict[str, Any]:
        figures = cache_figures()
        cached = Workflow.objects.cached().count()
        return {
            "headline": [badge("on", "success") if obj.enabled else badge("off", "warning")],
            "facts": [
                ("Workflows that use it", link_if_allowed(request, cached, WORKFLOWS, query="?cache=cached")),
                ("Statistics by workflow", link_if_allowed(request, "All workflows", USES, otherwise="")),
                ("Results", link_if_allowed(request, f"{figures.entries:,}", RESULTS)),
                ("Size", f"{filesizeformat(figures.bytes)} of {filesizeformat(figures.max_bytes)}"),
                *_facts(figures),
                ("Cleaned", exactly(obj.cleaned_at)),
            ],
        }


def _facts(figures: CacheFigures) -> list[tuple[str, str]]:
    return [
        ("Hits", f"{figures.hits:,}"),
        ("Misses", f"{figures.misses:,}"),
        ("Hit rate", _share(figures.hits, figures.misses)),
        ("Fresh runs requested", f"{figures.refreshes:,}"),
        ("Stored", f"{figures.stored:,}"),
        ("Too large", f"{figures.oversized:,}"),
        ("Evicted", f"{figures.evictions:,}"),
        ("Expired", f"{figures.expired:,}"),
        ("Cleared", f"{figures.cleared:,}"),
    ]


def _share(hits: int, misses: int) -> str:
    return f"{100 * hits / (hits + misses):.0f} %" if hits + misses else DASH


@admin.register(CacheUse)
class CacheUseAdmin(ReadOnlyMixin, CatalogueAdmin):
    list_display = (
        "workflow_shown", "answers_for", "results", "size", "hits", "misses", "hit_rate",
        "evictions", "expired", "cleared_last",
    )  # fmt: skip
    list_display_links = None
    list_select_related = ("workflow__source",)
    list_per_page = 50
    search_fields = ("workflow__tool_name", "workflow__name")
    ordering = ("-bytes", "pk")
    actions = ("clear",)

    def has_clear_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(MAY_CLEAR)

    @admin.action(description="Clear the cached results of selected workflows", permissions=["clear"])
    def clear(self, request: HttpRequest, queryset: QuerySet[CacheUse]) -> None:
        workflows = Workflow.objects.filter(cache_use__in=queryset)
        record_change(actor_of(request), workflows.only("tool_name"), "Cleared its cached results.")
        cleared = clear_results(list(queryset.values_list("pk", flat=True)))
        messages.success(request, f"Cleared: {counted(cleared, 'result')}.")

    @admin.display(description="workflow", ordering="workflow__tool_name")
    def workflow_shown(self, use: CacheUse) -> SafeString:
        return link(use.workflow.tool_name, "catalogue_workflow_change", use.pk)

    @admin.display(description="cached for", ordering="workflow__cache_seconds")
    def answers_for(self, use: CacheUse) -> str:
        seconds = use.workflow.effective_cache_seconds
        return "no longer cached" if seconds is None else f"{seconds:,} s"

    @admin.display(description="results", ordering="entries")
    def results(self, use: CacheUse) -> SafeString:
        return link(f"{use.entries:,}", RESULTS, query=f"?workflow__id__exact={use.pk}")

    size = column("size", "bytes", filesizeformat)
    cleared_last = column("last cleared", "cleared_at")

    @admin.display(description="hit rate")
    def hit_rate(self, use: CacheUse) -> str:
        return _share(use.hits, use.misses)


class WorkflowDropdown(RelatedDropdownFilter):  # type: ignore[misc]
    def field_choices(self, field: Any, request: HttpRequest, model_admin: Any) -> list[tuple[Any, str]]:
        with_results = Workflow.objects.filter(pk__in=CachedResult.objects.order_by().values("workflow"))
        return list(with_results.order_by("tool_name").values_list("pk", "tool_name"))


@admin.register(CachedResult)
class CachedResultAdmin(ReadOnlyMixin, CatalogueAdmin):
    list_display = ("workflow_shown", "size_shown", "age", "expires", "used", "hits", "run")
    list_display_links = None
    list_filter = (("workflow", WorkflowDropdown),)
    list_select_related = ("workflow",)
    list_per_page = 50
    newest_by = "last_used_at"
    search_fields = ("workflow__tool_name",)
    search_help_text = f"Searches the tool name, in the {SEARCHED:,} most recently used results"
    actions = ("forget",)

    def has_clear_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(MAY_CLEAR)

    @admin.action(description="Remove the selected results", permissions=["clear"])
    def forget(self, request: HttpRequest, queryset: QuerySet[CachedResult]) -> None:
        workflows = Workflow.objects.filter(cached_results__in=queryset).distinct()
        record_change(actor_of(request), workflows.only("tool_name"), "Removed some of its cached results.")
        removed = remove_results(queryset.values_list("pk", flat=True), counted_as="cleared")
        messages.success(request, f"Removed: {counted(removed, 'result')}.")

    @admin.display(description="workflow", ordering="workflow__tool_name")
    def workflow_shown(self, result: CachedResult) -> SafeString:
        return link(result.workflow.tool_name, "catalogue_workflow_change", result.workflow_id)

    size_shown = column("size", "size", filesizeformat)
    age = column("age", "created_at")
    expires = column("expires", "expires_at")

    @admin.display(description="last used", ordering="last_used_at")
    def used(self, result: CachedResult) -> str:
        return ago(result.last_used_at) if result.hits else DASH

    @admin.display(description="run")
    def run(self, result: CachedResult) -> str:
        if result.execution_id is None:
            return DASH
        return link("its record", "executions_execution_change", result.execution_id)


def cache_fact(request: HttpRequest, workflow: Workflow) -> tuple[str, str]:
    """Returns the label and the counts for a workflow's page; empty if its results were never cached."""
    use = CacheUse.objects.filter(pk=workflow.pk).first() if request.user.has_perm(MAY_LOOK) else None
    if use is None:
        return ("Cached results", "")
    found = link(f"{use.entries:,}", RESULTS, query=f"?workflow__id__exact={use.pk}")
    hits, misses = counted(use.hits, "hit"), counted(use.misses, "miss", "misses")
    counts = f"{hits}, {misses}, {_share(use.hits, use.misses)}"
    return ("Cached results", format_html("{} ({}, {} hit rate)", found, filesizeformat(use.bytes), counts))


@admin.register(Retention)
class RetentionAdmin(OnlyRowAdmin):
    fields = (
        "keep_records_days", "keep_payloads_days", "keep_events_days", "keep_discovery_runs_days",
        "keep_statistics_days",
    )  # fmt: skip
    change_form_outer_before_template = "executions/admin/retention.html"
