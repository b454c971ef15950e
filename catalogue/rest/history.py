"""REST's door to the history of what people, tokens and commands changed."""

import django_filters  # type: ignore[import-untyped]
from django.db.models import Q, QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_field, extend_schema_view
from rest_framework import mixins, serializers

from catalogue.models import HistoryEntry
from catalogue.permissions import Access
from catalogue.rest.lists import StableOrdering
from catalogue.rest.views import ApiViewSet
from catalogue.scopes import Scope


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
        method="filter_search", label="Has this text in the name of the object or the person, or the message."
    )
    ordering = StableOrdering(fields=["at"])

    def filter_search(self, entries: QuerySet[HistoryEntry], name: str, value: str) -> QuerySet[HistoryEntry]:
        fields = ("object_name", "actor_name", "message")
        anywhere = Q()
        for field in fields:
            anywhere |= Q(**{f"{field}__icontains": value})
        return entries.filter(anywhere)


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
    lookup_value_regex = "[0-9]{1,18}"
    access = {
        "list": Access(Scope.ADMIN, "catalogue.view_historyentry"),
        "retrieve": Access(Scope.ADMIN, "catalogue.view_historyentry"),
    }

    def get_queryset(self) -> QuerySet[HistoryEntry]:
        return HistoryEntry.objects.order_by("-at", "-pk")
