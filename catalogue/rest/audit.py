import json
from collections.abc import Iterable
from typing import Any

import django_filters  # type: ignore[import-untyped]
from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field, extend_schema_view
from rest_framework import mixins, serializers
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from audit.models import Entry, Kind
from audit.sealing import head
from catalogue.access import Scope
from catalogue.audit import MEDIA_TYPE, matching, send_export
from catalogue.history import actor_of
from catalogue.long_lists import SEARCHED
from catalogue.permissions import Access
from catalogue.rest import base
from catalogue.rest.views import ApiViewSet

CURSOR = "cursor"
KNOWN = ("kind", "since", "until")
KIND = OpenApiParameter("kind", str, enum=Kind.values, many=True, description="Only of these kinds.")
SINCE = OpenApiParameter("since", OpenApiTypes.DATETIME, description="Segments with entries from then on.")
UNTIL = OpenApiParameter("until", OpenApiTypes.DATETIME, description="Segments with entries before then.")


@extend_schema_field(base.JSON_OBJECT)
class DetailsField(serializers.Field):  # type: ignore[type-arg]
    def to_representation(self, value: str) -> object:
        return json.loads(value)


class AuditEntrySerializer(serializers.ModelSerializer[Entry]):
    details = DetailsField(help_text="More of it; which fields there are depends on the event.")
    digest = serializers.CharField(
        help_text="SHA-256 of all of the above but `segment`, as docs/audit.md says."
    )

    class Meta:
        model = Entry
        fields = (
            "id", "at", "kind", "event", "actor", "actor_name", "address", "client", "door", "subject",
            "subject_name", "outcome", "details", "key", "segment", "digest",
        )  # fmt: skip
        read_only_fields = fields


class HeadSerializer(serializers.Serializer[Any]):
    """The end of the chain. Keep it elsewhere: with it, `verify_audit --head` finds what was cut off."""

    head = serializers.CharField(help_text="`number:digest` of the last segment; empty before the first.")
    unsealed = serializers.IntegerField(help_text="Entries that no segment has yet.")


class AuditFilters(django_filters.FilterSet):  # type: ignore[misc]
    kind = django_filters.ChoiceFilter(choices=Kind.choices)
    event = django_filters.CharFilter(label="Such as `sign_in.failed`.")
    actor = django_filters.CharFilter(label="Who it was: `user:1`, `token:7`, `command`.")
    subject = django_filters.CharFilter(label="What it was done to, such as `catalogue.source:5`.")
    outcome = django_filters.CharFilter()
    at_after = django_filters.IsoDateTimeFilter(
        field_name="at", lookup_expr="gte", label="From this time on."
    )
    at_before = django_filters.IsoDateTimeFilter(field_name="at", lookup_expr="lt", label="Before this time.")
    search = django_filters.CharFilter(
        method="filter_search",
        label=f"Has these words in a name, event, address or client; in the newest {SEARCHED:,} entries.",
    )

    def filter_search(self, entries: QuerySet[Entry], name: str, value: str) -> QuerySet[Entry]:
        return matching(entries, value.split())


class AuditPages(CursorPagination):
    ordering = ("-at", "-id")
    page_size = base.Pages.page_size
    page_size_query_param = base.Pages.page_size_query_param
    page_size_query_description = base.Pages.page_size_query_description
    max_page_size = base.Pages.max_page_size
    cursor_query_param = CURSOR
    cursor_query_description = "Where the page begins, as `next` and `previous` of another page have it."

    def paginate_queryset(self, queryset: Any, request: Request, view: APIView | None = None) -> Any:
        if "page" in request.query_params:
            problem = base.Problem("?page", "This list has a cursor instead: follow `next`.")
            raise base.Refusal(400, base.REFUSED, kind="validation", errors=[problem])
        try:
            return super().paginate_queryset(queryset, request, view)
        except NotFound:
            problem = base.Problem(f"?{CURSOR}", "Unknown cursor: follow `next`, or begin again without one.")
            raise base.Refusal(400, base.REFUSED, kind="validation", errors=[problem]) from None

    def get_schema_operation_parameters(self, view: APIView) -> list[dict[str, Any]]:
        fields = base.text_parameter(base.FIELDS, base.FIELDS_DESCRIPTION)
        return [*super().get_schema_operation_parameters(view), fields]


@extend_schema_view(
    list=extend_schema(
        summary="List the audit",
        description="Sign-ins, tokens, accounts, approvals, curation, settings, imports, exports and calls: "
        "who did what, when and from where, the latest first. For administrators. Calls and curation come in "
        "within half a minute.",
    ),
    retrieve=extend_schema(summary="Read an entry of the audit"),
)
@extend_schema(tags=["Audit"])
class AuditViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, ApiViewSet[Entry]):
    queryset = Entry.objects.none()
    serializer_class = AuditEntrySerializer
    filterset_class = AuditFilters
    pagination_class = AuditPages
    further_parameters = (CURSOR,)
    lookup_value_regex = "[0-9]{1,18}"
    access = {
        "list": Access(Scope.ADMIN, "audit.view_entry"),
        "retrieve": Access(Scope.ADMIN, "audit.view_entry"),
        "chain": Access(Scope.ADMIN, "audit.view_entry"),
        "export": Access(Scope.ADMIN, "audit.view_entry"),
    }

    def get_queryset(self) -> QuerySet[Entry]:
        return Entry.objects.order_by("-at", "-pk")

    @extend_schema(
        operation_id="audit_head",
        summary="Read the head of the audit's chain",
        responses=HeadSerializer,
        filters=False,
    )
    @action(detail=False, methods=["get"], url_path="head", pagination_class=None, filter_backends=())
    def chain(self, request: Request) -> Response:
        unsealed = Entry.objects.filter(segment=None).count()
        return Response(HeadSerializer({"head": head(), "unsealed": unsealed}).data)

    @extend_schema(
        operation_id="audit_export",
        summary="Export the audit",
        description="JSON lines: the entries of each segment, then the segment, so that `verify_audit "
        "--file` can check it without the database. Segments are whole.",
        parameters=[KIND, SINCE, UNTIL],
        responses={(200, MEDIA_TYPE): OpenApiTypes.STR},
        filters=False,
    )
    @action(detail=False, methods=["get"], pagination_class=None, filter_backends=())
    def export(self, request: Request) -> StreamingHttpResponse:
        problems = [
            base.Problem(f"?{name[:100]}", f"There is no such parameter; there are {', '.join(KNOWN)}.")
            for name in request.query_params
            if name not in KNOWN
        ]
        if problems:
            raise base.Refusal(400, base.REFUSED, kind="validation", errors=problems)
        bounds = {name: request.query_params.get(name, "") for name in ("since", "until")}
        moments = {name: _read_moment(name, text) for name, text in bounds.items()}
        return send_export(
            actor_of(request), kinds=_read_kinds(request.query_params.getlist("kind")), **moments
        )


def _read_kinds(given: Iterable[str]) -> list[str]:
    kinds = list(given)
    if any(kind not in Kind.values for kind in kinds):
        problem = base.Problem("?kind", f"There are {', '.join(Kind.values)}.")
        raise base.Refusal(400, base.REFUSED, kind="validation", errors=[problem])
    return kinds


def _read_moment(name: str, text: str) -> Any:
    try:
        return serializers.DateTimeField().to_internal_value(text) if text else None
    except serializers.ValidationError as error:
        problem = base.Problem(f"?{name}", str(error.detail[0]))  # type: ignore[index]
        raise base.Refusal(400, base.REFUSED, kind="validation", errors=[problem]) from None
