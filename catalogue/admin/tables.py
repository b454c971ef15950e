"""Lists of the admin as CSV."""

from django.contrib.admin.exceptions import DisallowedModelAdminLookup
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path, reverse

from catalogue import tables
from catalogue.admin.base import CatalogueAdmin
from catalogue.history import actor_of


class TableMixin(CatalogueAdmin):
    """What the filters and the search leave, of all pages, with the columns of REST's table."""

    csv_address = "csv/"

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self._send)
        name = f"{self.opts.app_label}_{self.opts.model_name}_csv"
        return [path(self.csv_address, view, name=name), *super().get_urls()]

    def _send(self, request: HttpRequest) -> HttpResponseBase:
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method != "GET":
            return HttpResponseNotAllowed(["GET"])
        try:
            listed = self.get_changelist_instance(request)
        except (IncorrectLookupParameters, DisallowedModelAdminLookup):
            # The list says what is wrong.
            page = reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")
            return HttpResponseRedirect(f"{page}?{request.GET.urlencode()}")
        return tables.send_table(
            listed.get_queryset(request),
            tables.serializers[self.model](context={"request": request}),
            by=actor_of(request),
            filters=request.GET.keys(),
            newest_by=self.newest_by,
        )
