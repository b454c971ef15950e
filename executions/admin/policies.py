from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.defaultfilters import filesizeformat
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.text import format_lazy
from django.utils.translation import gettext, gettext_lazy
from unfold.contrib.filters.admin import RelatedDropdownFilter

from catalogue.admin.base import ButtonsMixin, CatalogueAdmin, FixedRowsMixin, ReadOnlyMixin, button, column
from catalogue.admin.rendering import DASH, ago, link
from catalogue.history import actor_of, record_change
from catalogue.long_lists import SEARCHED
from catalogue.models import Workflow
from catalogue.naming import counted
from executions.admin.page import Part
from executions.models import CachedResult, CachePolicy, CacheUse, Retention
from executions.models.result_cache import evict_excess, remove_results
from executions.result_cache import cache_figures, clear_results

MAY_CLEAR = "executions.delete_cachedresult"
MAY_LOOK = "executions.view_cacheuse"
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

    @button(gettext_lazy("Clear"), icon="mop", variant="danger", confirm="Remove all cached results?")
    def clear_all(self, request: HttpRequest, policy: CachePolicy) -> None:
        messages.success(request, f"Cleared: {counted(clear_results(), 'result')}.")

    def panel(self, request: HttpRequest, obj: CachePolicy) -> dict[str, Any]:
        figures = cache_figures()
        return {
            "figures": figures,
            "hit_rate": _share(figures.hits, figures.misses),
            "workflows": Workflow.objects.cached().count(),
        }


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

    @admin.action(
        description=gettext_lazy("Clear the cached results of selected workflows"), permissions=["clear"]
    )
    def clear(self, request: HttpRequest, queryset: QuerySet[CacheUse]) -> None:
        workflows = Workflow.objects.filter(cache_use__in=queryset)
        record_change(actor_of(request), workflows.only("tool_name"), "Cleared its cached results.")
        cleared = clear_results(list(queryset.values_list("pk", flat=True)))
        messages.success(request, f"Cleared: {counted(cleared, 'result')}.")

    @admin.display(description=gettext_lazy("workflow"), ordering="workflow__tool_name")
    def workflow_shown(self, use: CacheUse) -> SafeString:
        return link(use.workflow.tool_name, "catalogue_workflow_change", use.pk)

    @admin.display(description=gettext_lazy("cached for"), ordering="workflow__cache_seconds")
    def answers_for(self, use: CacheUse) -> str:
        seconds = use.workflow.effective_cache_seconds
        return "no longer cached" if seconds is None else f"{seconds:,} s"

    @admin.display(description=gettext_lazy("results"), ordering="entries")
    def results(self, use: CacheUse) -> SafeString:
        return link(f"{use.entries:,}", RESULTS, query=f"?workflow__id__exact={use.pk}")

    size = column(gettext_lazy("size"), "bytes", filesizeformat)
    cleared_last = column(gettext_lazy("last cleared"), "cleared_at")

    @admin.display(description=gettext_lazy("hit rate"))
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
    search_help_text = format_lazy(
        gettext_lazy("Searches the tool name, in the {} most recently used results"),
        f"{SEARCHED:,}",
    )
    actions = ("forget",)

    def has_clear_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(MAY_CLEAR)

    @admin.action(description=gettext_lazy("Remove the selected results"), permissions=["clear"])
    def forget(self, request: HttpRequest, queryset: QuerySet[CachedResult]) -> None:
        workflows = Workflow.objects.filter(cached_results__in=queryset).distinct()
        record_change(actor_of(request), workflows.only("tool_name"), "Removed some of its cached results.")
        removed = remove_results(queryset.values_list("pk", flat=True), counted_as="cleared")
        messages.success(request, f"Removed: {counted(removed, 'result')}.")

    @admin.display(description=gettext_lazy("workflow"), ordering="workflow__tool_name")
    def workflow_shown(self, result: CachedResult) -> SafeString:
        return link(result.workflow.tool_name, "catalogue_workflow_change", result.workflow_id)

    size_shown = column(gettext_lazy("size"), "size", filesizeformat)
    age = column(gettext_lazy("age"), "created_at")
    expires = column(gettext_lazy("expires"), "expires_at")

    @admin.display(description=gettext_lazy("last used"), ordering="last_used_at")
    def used(self, result: CachedResult) -> str:
        return ago(result.last_used_at) if result.hits else DASH

    @admin.display(description=gettext_lazy("run"))
    def run(self, result: CachedResult) -> str:
        if result.execution_id is None:
            return DASH
        return link(gettext("its record"), "executions_execution_change", result.execution_id)


def cache_fact(request: HttpRequest, workflow: Workflow) -> tuple[str, Part | None]:
    """Returns the label and the counts for a workflow's page; None if its results were never cached."""
    use = CacheUse.objects.filter(pk=workflow.pk).first() if request.user.has_perm(MAY_LOOK) else None
    if use is None:
        return (gettext("Cached results"), None)
    shown = {"use": use, "hit_rate": _share(use.hits, use.misses)}
    return (gettext("Cached results"), Part("executions/admin/cached_results.html", shown))


@admin.register(Retention)
class RetentionAdmin(OnlyRowAdmin):
    fields = (
        "keep_records_days", "keep_payloads_days", "keep_events_days", "keep_discovery_runs_days",
        "keep_statistics_days",
    )  # fmt: skip
    change_form_outer_before_template = "executions/admin/retention.html"
