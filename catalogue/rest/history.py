"""The history of curation, and the audit, which includes that history."""

import json
from base64 import b64decode
from typing import Any

import django_filters  # type: ignore[import-untyped]
from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field
from rest_framework import mixins, serializers, status
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound, PermissionDenied
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from access.callers import Scope
from access.permissions import admin_access, demand_of_staff, permissions_behind
from audit.models import Entry, Kind
from audit.sealing import head
from catalogue.actions.reverting import RevertRefused, permission_to_revert, revert_change
from catalogue.audit import MEDIA_TYPE, matching, send_export
from catalogue.history import actor_of
from catalogue.long_lists import SEARCHED, search_newest, with_keys
from catalogue.models import HistoryEntry
from catalogue.rest import base
from catalogue.rest.base import LongPages, Refusal, StableOrdering, as_problem
from catalogue.rest.views import ApiViewSet


@extend_schema_field({"type": "object", "additionalProperties": {"type": "array", "items": {}}})
class ChangesField(serializers.Field):  # type: ignore[type-arg]
    def to_representation(self, value: object) -> object:
        return value


class HistoryEntrySerializer(base.RowSerializer[HistoryEntry]):
    changes = ChangesField(
        help_text="What changed: `{field: [old value, new value]}`. Of secrets only that they changed."
    )

    class Meta:
        model = HistoryEntry
        fields = (
            "id", "at", "actor", "actor_name", "door", "model", "object_id", "object_name", "kind", "message",
            "changes", "revision", "reverts",
        )  # fmt: skip


class HistoryFilters(django_filters.FilterSet):  # type: ignore[misc]
    actor = django_filters.CharFilter(label="Who it was: `user:1`, `token:7`, `command`.")
    door = django_filters.ChoiceFilter(choices=HistoryEntry.Door.choices)
    model = django_filters.CharFilter(label="Of what: `catalogue.workflow`.")
    object_id = django_filters.CharFilter(label="The object's key; give `model` as well.")
    kind = django_filters.ChoiceFilter(choices=HistoryEntry.Kind.choices)
    at_after = base.MomentFilter(field_name="at", lookup_expr="gte", label="From this time on.")
    at_before = base.MomentFilter(field_name="at", lookup_expr="lt", label="Before this time.")
    search = base.SearchFilter(
        method="filter_search",
        label=f"Has this text in the name of the object or the person, or the message; in the newest "
        f"{SEARCHED:,} that the other parameters leave.",
    )
    ordering = StableOrdering(fields=["at"])

    def filter_search(self, entries: QuerySet[HistoryEntry], name: str, value: str) -> QuerySet[HistoryEntry]:
        fields = ("object_name", "actor_name", "message")
        return with_keys(entries, search_newest(entries, [value], fields, by="at"))


@extend_schema(tags=["History"])
class HistoryViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, ApiViewSet[HistoryEntry]):
    """Every change of curation, by whom, by which door, with old and new values; the latest first. For
    administrators."""

    queryset = HistoryEntry.objects.order_by("-at", "-pk")
    serializer_class = HistoryEntrySerializer
    filterset_class = HistoryFilters
    pagination_class = LongPages
    newest_by = "at"
    access = admin_access("catalogue.view_historyentry", "list", "retrieve", "revert")

    @extend_schema(
        responses={
            200: HistoryEntrySerializer,
            409: as_problem(
                "The object has changed since, is in use, contained secrets, or its values were not "
                "kept: `detail` gives the reason. Nothing was changed."
            ),
        }
    )
    @action(detail=True, methods=["post"])
    def revert(self, request: Request, pk: str) -> Response:
        """Revert a change.
        Restores the old values or a deleted object, or removes an added one. Returns the new entry, which
        can be reverted too. The request requires the permission for that change; a token can revert what
        it can change over REST."""
        entry = self.get_object()
        needed = permission_to_revert(entry)
        if request.auth is None:
            demand_of_staff(request, needed)
        elif needed not in permissions_behind(Scope.ADMIN):
            raise PermissionDenied(f"No token reverts this: it needs a person with the permission {needed}.")
        try:
            reverted = revert_change(entry, by=actor_of(request))
        except RevertRefused as refused:
            raise Refusal(status.HTTP_409_CONFLICT, f"Nothing was changed. {refused}") from None
        return Response(HistoryEntrySerializer(reverted).data)


# The audit

CURSOR = "cursor"
KIND = OpenApiParameter("kind", str, enum=Kind.values, many=True, description="Only of these kinds.")
SINCE = OpenApiParameter("since", OpenApiTypes.DATETIME, description="Segments with entries from then on.")
UNTIL = OpenApiParameter("until", OpenApiTypes.DATETIME, description="Segments with entries before then.")


@extend_schema_field(base.JSON_OBJECT)
class DetailsField(serializers.Field):  # type: ignore[type-arg]
    def to_representation(self, value: str) -> object:
        return json.loads(value)


class AuditEntrySerializer(base.RowSerializer[Entry]):
    details = DetailsField(help_text="More of it; which fields there are depends on the event.")
    digest = serializers.CharField(
        help_text="SHA-256 of all of the above except `segment`; docs/audit.md describes it."
    )

    class Meta:
        model = Entry
        fields = (
            "id", "at", "kind", "event", "actor", "actor_name", "address", "client", "door", "subject",
            "subject_name", "outcome", "details", "key", "segment", "digest",
        )  # fmt: skip


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
    at_after = base.MomentFilter(field_name="at", lookup_expr="gte", label="From this time on.")
    at_before = base.MomentFilter(field_name="at", lookup_expr="lt", label="Before this time.")
    search = base.SearchFilter(
        method=lambda entries, _, words: matching(entries, words.split()),
        label=f"Has these words in a name, event, address or client; in the newest {SEARCHED:,} entries.",
    )


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
            raise Refusal.of_parameter("page", "This list has a cursor instead: follow `next`.")
        try:
            return super().paginate_queryset(queryset, request, view)
        except NotFound:
            raise Refusal.of_parameter(CURSOR, base.UNKNOWN_CURSOR) from None

    def decode_cursor(self, request: Request) -> Any:
        """Raises NotFound for invalid Base64 too, which REST framework would decode in part."""
        given = request.query_params.get(CURSOR, "")
        try:
            b64decode(given, validate=True)
        except ValueError:
            raise NotFound from None
        return super().decode_cursor(request)


@extend_schema(tags=["Audit"])
class AuditViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, ApiViewSet[Entry]):
    """Sign-ins, tokens, accounts, approvals, curation, settings, imports, exports and calls: who did what,
    when and from where, the latest first. For administrators. Calls and curation come in within half a
    minute."""

    queryset = Entry.objects.order_by("-at", "-pk")
    serializer_class = AuditEntrySerializer
    filterset_class = AuditFilters
    pagination_class = AuditPages
    extra_parameters = (CURSOR,)
    access = admin_access("audit.view_entry", "list", "retrieve", "chain", "export")

    @extend_schema(operation_id="audit_head", responses=HeadSerializer, filters=False)
    @action(detail=False, methods=["get"], url_path="head", pagination_class=None, filter_backends=())
    def chain(self, request: Request) -> Response:
        """Read the head of the audit's chain."""
        unsealed = Entry.objects.filter(segment=None).count()
        return Response(HeadSerializer({"head": head(), "unsealed": unsealed}).data)

    @extend_schema(
        parameters=[KIND, SINCE, UNTIL], responses={(200, MEDIA_TYPE): OpenApiTypes.STR}, filters=False
    )
    @action(detail=False, methods=["get"], pagination_class=None, filter_backends=())
    def export(self, request: Request) -> StreamingHttpResponse:
        """Export the audit.
        JSON lines: the entries of each segment, then the segment, so that `verify_audit --file` can check
        it without the database. Segments are whole."""
        base.check_parameters(request, KIND, SINCE, UNTIL)
        bounds = {name: request.query_params.get(name, "") for name in ("since", "until")}
        moments = {name: _read_moment(name, text) for name, text in bounds.items()}
        kinds = request.query_params.getlist("kind")
        if any(kind not in Kind.values for kind in kinds):
            raise Refusal.of_parameter("kind", f"The kinds are {', '.join(Kind.values)}.")
        return send_export(actor_of(request), kinds=kinds, **moments)


def _read_moment(name: str, text: str) -> Any:
    try:
        return serializers.DateTimeField().to_internal_value(text) if text else None
    except serializers.ValidationError as error:
        raise Refusal.of_parameter(name, str(error.detail[0])) from None  # type: ignore[index]
