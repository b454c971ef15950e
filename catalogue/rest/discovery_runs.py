from typing import Any

import django_filters  # type: ignore[import-untyped]
from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import mixins, serializers, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from catalogue.history import actor_of
from catalogue.models import DiscoveryRun
from catalogue.permissions import Access
from catalogue.rest.base import LongPages, ProblemSerializer, Refusal, StableOrdering
from catalogue.rest.views import ApiViewSet
from catalogue.review import ReviewRefused, confirm_listing
from catalogue.scopes import Scope


class DiscoveryRunSerializer(serializers.ModelSerializer[DiscoveryRun]):
    source = serializers.CharField(source="source.name")  # type: ignore[assignment]
    duration_ms = serializers.IntegerField(allow_null=True)
    found = serializers.IntegerField(help_text="Usable workflows in the listing.")

    class Meta:
        model = DiscoveryRun
        fields: tuple[str, ...] = (
            "id", "source", "trigger", "outcome", "started_at", "finished_at", "duration_ms", "found",
            "added", "updated", "unchanged", "returned", "missing", "held", "skipped_count", "error",
            "confirmed_at",
        )  # fmt: skip
        read_only_fields = fields


class SkippedSerializer(serializers.Serializer[Any]):
    position = serializers.IntegerField(help_text="Where in the listing, from 0.")
    id = serializers.CharField(help_text="The engine's id, as far as it could be read.")
    name = serializers.CharField()
    reason = serializers.CharField()


class FlaggedSerializer(serializers.Serializer[Any]):
    id = serializers.CharField(help_text="The engine's id.")
    name = serializers.CharField()
    reason = serializers.CharField()


class NamedWorkflowSerializer(serializers.Serializer[Any]):
    id = serializers.CharField(help_text="The engine's id.")
    name = serializers.CharField()
    tool_name = serializers.CharField(help_text="What agents called it at that time.")


class NamedChangesSerializer(serializers.Serializer[Any]):
    """The workflows behind the counts, at most 1,000 of each; what did not occur is left out."""

    added = NamedWorkflowSerializer(many=True, required=False)
    updated = NamedWorkflowSerializer(many=True, required=False)
    returned = NamedWorkflowSerializer(many=True, required=False)
    missing = NamedWorkflowSerializer(many=True, required=False)
    held = NamedWorkflowSerializer(
        many=True, required=False, help_text="Of the returned ones, too, those that came back changed."
    )


class DiscoveryRunDetailSerializer(DiscoveryRunSerializer):
    skipped = SkippedSerializer(
        many=True, help_text="Objects of the listing that were left out; at most 1,000."
    )
    flagged = FlaggedSerializer(
        many=True,
        help_text="Workflows to look at: something of them, such as an invalid schema, was replaced or left "
        "out, or they can be mistaken for another tool.",
    )

    changes = NamedChangesSerializer()

    class Meta(DiscoveryRunSerializer.Meta):
        fields = (*DiscoveryRunSerializer.Meta.fields, "changes", "skipped", "flagged")
        read_only_fields = fields


class DiscoveryRunFilters(django_filters.FilterSet):  # type: ignore[misc]
    source = django_filters.CharFilter(field_name="source__name", label="The source's name.")
    outcome = django_filters.ChoiceFilter(choices=DiscoveryRun.Outcome.choices)
    trigger = django_filters.ChoiceFilter(choices=DiscoveryRun.Trigger.choices)
    ordering = StableOrdering(fields=["started_at"])


@extend_schema_view(
    list=extend_schema(summary="List discovery runs"),
    retrieve=extend_schema(
        summary="Read a discovery run",
        description="With every object that was skipped or flagged, and why.",
        responses=DiscoveryRunDetailSerializer,
    ),
)
@extend_schema(tags=["Discovery runs"])
class DiscoveryRunViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, ApiViewSet[DiscoveryRun]):
    queryset = DiscoveryRun.objects.none()
    filterset_class = DiscoveryRunFilters
    pagination_class = LongPages
    newest_by = "started_at"
    lookup_value_regex = "[0-9]{1,18}"
    access = {
        "list": Access(Scope.ADMIN, "catalogue.view_discoveryrun"),
        "retrieve": Access(Scope.ADMIN, "catalogue.view_discoveryrun"),
        "confirm": Access(Scope.ADMIN, "catalogue.change_source"),
    }

    def get_queryset(self) -> QuerySet[DiscoveryRun]:
        runs = DiscoveryRun.objects.select_related("source").order_by("-started_at", "-pk")
        return runs.for_lists() if self.action == "list" else runs

    def get_serializer_class(self) -> type[DiscoveryRunSerializer]:
        return DiscoveryRunSerializer if self.action == "list" else DiscoveryRunDetailSerializer

    @extend_schema(
        operation_id="discovery_runs_confirm",
        summary="Confirm a held listing",
        description="Says that the workflows which it has lost are gone, and lists the source again. That "
        "listing is the answer; it is held again if it has lost others.",
        request=None,
        responses={
            200: DiscoveryRunDetailSerializer,
            202: OpenApiResponse(
                DiscoveryRunDetailSerializer,
                "Confirmed; the source is being listed already, or disabled: the next listing counts.",
            ),
            409: OpenApiResponse(ProblemSerializer, "It is not held, or a later listing was good."),
        },
    )
    @action(detail=True, methods=["post"])
    def confirm(self, request: Request, pk: str) -> Response:
        held = self.get_object()
        try:
            run = confirm_listing(held, by=actor_of(request))
        except ReviewRefused as refused:
            raise Refusal(status.HTTP_409_CONFLICT, str(refused), kind="discovery") from None
        code = status.HTTP_202_ACCEPTED if run is None else status.HTTP_200_OK
        return Response(DiscoveryRunDetailSerializer(run or self.get_object()).data, code)
