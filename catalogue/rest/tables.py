"""Lists that also come as CSV."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework import mixins
from rest_framework.request import Request

from catalogue.history import actor_of
from catalogue.rest.base import Refusal, refuse_together_with
from catalogue.rest.views import ApiViewSet, Row
from catalogue.tables import CSV, send_table
from connectors.network.headers import media_types_in

FORMAT = OpenApiParameter(
    "format",
    enum=["json", "csv"],
    description="`csv`: all rows that match the other parameters, as one table. "
    "Default: `json`, unless `Accept` names only `text/csv`.",
)
OF_PAGES = ("page", "page_size")


class TableMixin(mixins.ListModelMixin, ApiViewSet[Row]):
    newest_by = ""  # Of a list that grows with use: its time, by which tables are always sorted
    extra_parameters = (FORMAT.name,)

    def perform_content_negotiation(self, request: Request, force: bool = False) -> Any:
        """A table has no renderer that REST framework would find for `Accept`; see `_wants_csv`."""
        is_table = self.action == "list" and CSV in media_types_in(request.headers.get("Accept", ""))
        return super().perform_content_negotiation(request, force=force or is_table)

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        if not self._wants_csv(request):
            return super().list(request, *args, **kwargs)
        shown: Any = self.get_serializer(many=True)
        return send_table(
            self.filter_queryset(self.get_queryset()),
            shown.child,
            by=actor_of(request),
            filters=request.query_params.keys(),
            newest_by=self.newest_by,
        )

    def _wants_csv(self, request: Request) -> bool:
        """Raises Refusal for an unknown format, and for parameters of pages."""
        accepted = media_types_in(request.headers.get("Accept", ""))
        default = "csv" if CSV in accepted and "application/json" not in accepted else "json"
        wanted = request.query_params.get(FORMAT.name, default)
        if wanted not in ("json", "csv"):
            raise Refusal.of_parameter(FORMAT.name, "The format must be json or csv.")
        if wanted == "csv":
            # All rows, and those of a list that grows the newest first.
            beside = (*OF_PAGES, "cursor", "ordering") if self.newest_by else OF_PAGES
            refuse_together_with(request, "format=csv", beside)
        return wanted == "csv"
