"""How long what ran is kept: one page, without a list."""

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from catalogue.admin.base import CatalogueAdmin
from executions.models import Retention


@admin.register(Retention)
class RetentionAdmin(CatalogueAdmin):
    fields = (
        "keep_records_days",
        "keep_payloads_days",
        "keep_events_days",
        "keep_discovery_runs_days",
        "keep_statistics_days",
    )
    change_form_outer_before_template = "executions/admin/retention.html"

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Straight to the one that there is."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        retention, _ = Retention.objects.get_or_create(pk=Retention.ONLY)
        return HttpResponseRedirect(reverse("admin:executions_retention_change", args=[retention.pk]))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Retention | None = None) -> bool:
        return False
