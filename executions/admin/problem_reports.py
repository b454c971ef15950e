"""What agents report that they miss: to read, and to resolve."""

from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from catalogue.admin.base import Button, ButtonsMixin, OptionsFilter, PanelOnlyMixin, button, column
from catalogue.admin.rendering import ago, badge, link_if_allowed, paragraphs, shortened, side_by_side
from catalogue.history import actor_of, record_change
from catalogue.models import Workflow
from executions.models import ProblemReport
from executions.problem_reports import resolve_reports


class ResolvedFilter(OptionsFilter):
    title = gettext_lazy("state")
    parameter_name = "resolved"
    options = {
        "no": (gettext_lazy("open"), Q(resolved_at=None)),
        "yes": (gettext_lazy("resolved"), Q(resolved_at__isnull=False)),
    }


def _state(report: ProblemReport) -> SafeString:
    return badge(_("open"), "info") if report.resolved_at is None else badge(_("resolved"))


@admin.register(ProblemReport)
class ProblemReportAdmin(PanelOnlyMixin, ButtonsMixin):
    list_display = ("missing_shown", "tool", "state_shown", "times", "latest")
    list_filter = (ResolvedFilter,)
    list_per_page = 50
    search_fields = ("tool", "missing")
    when_empty = gettext_lazy("Agents report here what a tool lacks, or that they find none.")
    buttons = ("resolve",)
    actions = ("resolve_selected",)
    change_form_outer_before_template = "catalogue/admin/panel.html"

    missing_shown = column(gettext_lazy("missing"), "missing", shortened, sorts=False)
    latest = column(gettext_lazy("latest report"), "last_at")

    @admin.display(description=gettext_lazy("state"))
    def state_shown(self, report: ProblemReport) -> SafeString:
        return _state(report)

    def get_buttons(self, request: HttpRequest, obj: ProblemReport) -> list[Button]:
        return super().get_buttons(request, obj) if obj.resolved_at is None else []

    def has_resolve_permission(self, request: HttpRequest) -> bool:
        return self.may_press_buttons(request)

    @button(gettext_lazy("Mark as resolved"), icon="check", variant="primary", records=True)
    def resolve(self, request: HttpRequest, report: ProblemReport) -> None:
        self.resolve_selected(request, ProblemReport.objects.filter(pk=report.pk))

    @admin.action(description=gettext_lazy("Mark selected reports as resolved"), permissions=["resolve"])
    def resolve_selected(self, request: HttpRequest, queryset: QuerySet[ProblemReport]) -> None:
        still_open = list(queryset.filter(resolved_at=None))
        keys = [report.pk for report in still_open]
        number = resolve_reports(ProblemReport.objects.filter(pk__in=keys), by=request.user.get_username())
        record_change(actor_of(request), still_open, "Resolved.")
        told = ngettext("%d report is resolved.", "%d reports are resolved.", number) % number
        messages.success(request, told)

    def panel(self, request: HttpRequest, obj: ProblemReport) -> dict[str, Any]:
        workflow = Workflow.objects.filter(tool_name=obj.tool).first() if obj.is_tool else None
        tool: Any = obj.tool
        if workflow is not None:
            tool = link_if_allowed(request, obj.tool, "catalogue_workflow_change", workflow.pk)
        facts = [
            (_("Tool"), tool),
            (_("Missing"), paragraphs(obj.missing)),
            (_("Reports"), f"{obj.times:,}"),
            (_("First report"), ago(obj.first_at)),
            (_("Resolved by"), obj.resolved_by),
        ]
        for one in obj.last:
            who = side_by_side([ago(datetime.fromisoformat(one["at"])), one["caller"]])
            facts += [(_("Report of"), who), (_("Tried"), paragraphs(one["tried"]))]
        return {"headline": [_state(obj)], "facts": facts}
