import django_filters  # type: ignore[import-untyped]
from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_field, extend_schema_view
from rest_framework import mixins, serializers, status
from rest_framework.decorators import action
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from catalogue.access import Scope
from catalogue.history import actor_of
from catalogue.long_lists import SEARCHED, search_newest, with_keys
from catalogue.models import HistoryEntry
from catalogue.permissions import Access, demand_of_staff, permissions_behind
from catalogue.rest.base import LongPages, ProblemSerializer, Refusal, StableOrdering
from catalogue.rest.views import ApiViewSet
from catalogue.reverting import RevertRefused, permission_to_revert, revert_change


@extend_schema_field({"type": "object", "additionalProperties": {"type": "array", "items": {}}})
class ChangesField(serializers.Field):  # type: ignore[type-arg]
    def to_representation(self, value: object) -> object:
        return value


class HistoryEntrySerializer(serializers.ModelSerializer[HistoryEntry]):
    changes = ChangesField(
        help_text="What changed: `{field: [old value, new value]}`. Of secrets only that they changed."
    )

    class Meta:
        model = HistoryEntry
        fields = (
            "id", "at", "actor", "actor_name", "door", "model", "object_id", "object_name", "kind", "message",
            "changes", "revision", "reverts",
        )  # fmt: skip
        read_only_fields = fields


class HistoryFilters(django_filters.FilterSet):  # type: ignore[misc]
    actor = django_filters.CharFilter(label="Who it was: `user:1`, `token:7`, `command`.")
    door = django_filters.ChoiceFilter(choices=HistoryEntry.Door.choices)
    model = django_filters.CharFilter(label="Of what: `catalogue.workflow`.")
    object_id = django_filters.CharFilter(label="The object's key; give `model` as well.")
    kind = django_filters.ChoiceFilter(choices=HistoryEntry.Kind.choices)
    at_after = django_filters.IsoDateTimeFilter(
        field_name="at", lookup_expr="gte", label="From this time on."
    )
    at_before = django_filters.IsoDateTimeFilter(field_name="at", lookup_expr="lt", label="Before this time.")
    search = django_filters.CharFilter(
        method="filter_search",
        label=f"Has this text in the name of the object or the person, or the message; in the newest "
        f"{SEARCHED:,} that the other parameters leave.",
    )
    ordering = StableOrdering(fields=["at"])

    def filter_search(self, entries: QuerySet[HistoryEntry], name: str, value: str) -> QuerySet[HistoryEntry]:
        fields = ("object_name", "actor_name", "message")
        return with_keys(entries, search_newest(entries, [value], fields, by="at"))


@extend_schema_view(
    list=extend_schema(
        summary="List the history",
        description="Every change of curation, by whom, by which door, with old and new values; the latest "
        "first. For administrators.",
    ),
    retrieve=extend_schema(summary="Read an entry of the history"),
)
@extend_schema(tags=["History"])
class HistoryViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, ApiViewSet[HistoryEntry]):
    queryset = HistoryEntry.objects.none()
    serializer_class = HistoryEntrySerializer
    filterset_class = HistoryFilters
    pagination_class = LongPages
    newest_by = "at"
    lookup_value_regex = "[0-9]{1,18}"
    access = {
        "list": Access(Scope.ADMIN, "catalogue.view_historyentry"),
        "retrieve": Access(Scope.ADMIN, "catalogue.view_historyentry"),
        "revert": Access(Scope.ADMIN, "catalogue.view_historyentry"),
    }

    def get_queryset(self) -> QuerySet[HistoryEntry]:
        return HistoryEntry.objects.order_by("-at", "-pk")

    @extend_schema(
        operation_id="history_revert",
        summary="Revert a change",
        description="What was changed has its earlier values again, what was deleted is there again, and "
        "what was added goes. The answer is the new entry, which can be reverted too. It needs the right to "
        "do that otherwise; a token reverts what REST lets it change.",
        request=None,
        responses={
            200: HistoryEntrySerializer,
            409: OpenApiResponse(
                ProblemSerializer,
                "It was changed since, it is used, it held secrets, or the values are not kept: "
                "`detail` says why. Nothing was changed.",
            ),
        },
    )
    @action(detail=True, methods=["post"])
    def revert(self, request: Request, pk: str) -> Response:
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
