"""What agents report that they miss: to read, and to resolve."""

from datetime import datetime
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from catalogue.admin.base import Button, ButtonsMixin, OptionsFilter, PanelOnlyMixin, button, column
from catalogue.admin.rendering import (
    ago,
    badge,
    exactly,
    link_if_allowed,
    paragraphs,
    shortened,
    side_by_side,
)
from catalogue.history import actor_of, record_change
from executions.models import ProblemReport


class ResolvedFilter(OptionsFilter):
    title = gettext_lazy("state")
    parameter_name = "resolved"
    options = {
        "no": (gettext_lazy("open"), Q(resolved_at=None)),
        "yes": (gettext_lazy("resolved"), Q(resolved_at__isnull=False)),
    }


@admin.register(ProblemReport)
class ProblemReportAdmin(PanelOnlyMixin, ButtonsMixin):
    list_display = ("shown", "tool", "times", "latest", "resolved")
    list_filter = (ResolvedFilter,)
    list_per_page = 50
    search_fields = ("tool", "missing")
    when_empty = gettext_lazy("Agents report here what a tool lacks, or that they find none.")
    buttons = ("resolve",)
    actions = ("resolve_selected",)
    change_form_outer_before_template = "catalogue/admin/panel.html"

    shown = column(gettext_lazy("missing"), "missing", shortened, sorts=False)
    latest = column(gettext_lazy("latest report"), "last_at")
    resolved = column(gettext_lazy("resolved"), "resolved_at")

    def get_buttons(self, request: HttpRequest, obj: ProblemReport) -> list[Button]:
        return super().get_buttons(request, obj) if obj.resolved_at is None else []

    def has_resolve_permission(self, request: HttpRequest) -> bool:
        return self.may_press_buttons(request)

    @button(gettext_lazy("Mark as resolved"), icon="check", variant="primary", records=True)
    def resolve(self, request: HttpRequest, report: ProblemReport) -> None:
        self.resolve_selected(request, ProblemReport.objects.filter(pk=report.pk))

    @admin.action(description=gettext_lazy("Mark selected reports as resolved"), permissions=["resolve"])
    def resolve_selected(self, request: HttpRequest, queryset: QuerySet[ProblemReport]) -> None:
        reports = {report.pk: report for report in queryset.filter(resolved_at=None)}
        ProblemReport.objects.filter(pk__in=reports).update(resolved_at=timezone.now())
        record_change(actor_of(request), reports.values(), "Resolved.")
        self.message_user(request, _("Resolved. The same report opens it again."))

    def panel(self, request: HttpRequest, obj: ProblemReport) -> dict[str, Any]:
        state = _("open") if obj.resolved_at is None else _("resolved")
        found = "?" + urlencode({"q": obj.tool})
        tool = link_if_allowed(request, obj.tool, "catalogue_workflow_changelist", query=found)
        facts = [(_("Tool"), tool if obj.is_tool else obj.tool), (_("Missing"), paragraphs(obj.missing))]
        facts += [(_("Reports"), f"{obj.times:,}"), (_("First report"), exactly(obj.first_at))]
        for one in obj.last:
            who = side_by_side([ago(datetime.fromisoformat(one["at"])), one["caller"]])
            facts += [(_("Report of"), who), (_("Tried"), paragraphs(one["tried"]))]
        return {"headline": [badge(state)], "facts": facts}
