import django_filters  # type: ignore[import-untyped]
from django.db import transaction
from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework import mixins, serializers, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from access.permissions import admin_access
from catalogue.actions.features import accept_change, change_feature
from catalogue.configuration import FEATURE
from catalogue.history import actor_of, changed_fields
from catalogue.models import ServerFeature
from catalogue.rest import base
from catalogue.rest.views import ApiViewSet


class ServerFeatureSerializer(base.RowSerializer[ServerFeature]):
    """A prompt, resource or resource template of an MCP server."""

    source = serializers.CharField(source="source.name")  # type: ignore[assignment]
    title = serializers.CharField(help_text="As clients see it.")
    description = serializers.CharField(help_text="As clients see it.")
    definition = base.JSONObjectField(help_text="The server's definition, as accepted.")
    offered = base.JSONObjectField(
        allow_null=True, help_text="The server's current one, if it awaits review."
    )
    offer = serializers.CharField(source="offer_hash", help_text="Identifies `offered`; a decision names it.")

    class Meta:
        model = ServerFeature
        fields = (
            "id", "source", "kind", "upstream_id", "served_as", "enabled", "title", "description",
            "title_override", "description_override", "definition", "offered", "offer", "missing_since",
            "first_seen_at", "changed_at",
        )  # fmt: skip


class ServerFeatureChangeSerializer(base.StrictSerializer, serializers.ModelSerializer[ServerFeature]):
    """Omitted fields stay."""

    class Meta:
        model = ServerFeature
        fields = ("enabled", "served_as", "title", "description")
        extra_kwargs = base.rename(FEATURE.names)


class FeatureOfferSerializer(base.StrictSerializer):
    offer = serializers.CharField(max_length=64, help_text="The reviewed `offer`.")


class AppHtmlSerializer(serializers.Serializer[ServerFeature]):
    accepted = serializers.CharField(allow_null=True, help_text="What clients get.")
    offered = serializers.CharField(
        allow_null=True, help_text="The server's current one, if it awaits review."
    )


class ServerFeatureFilters(django_filters.FilterSet):  # type: ignore[misc]
    source = django_filters.CharFilter(field_name="source__name", label="The source's name.")
    kind = django_filters.ChoiceFilter(choices=ServerFeature.Kind.choices)
    enabled = base.StrictBooleanFilter()
    missing = base.StrictBooleanFilter(
        field_name="missing_since", lookup_expr="isnull", exclude=True, label="Gone upstream."
    )
    changed = base.StrictBooleanFilter(
        field_name="offered", lookup_expr="isnull", exclude=True, label="With a change to review."
    )
    ordering = base.StableOrdering(fields=["served_as", "changed_at", "first_seen_at"])


@extend_schema(tags=["Prompts and resources"])
class ServerFeatureViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, ApiViewSet[ServerFeature]):
    """Those of all MCP servers, also resource templates."""

    queryset = ServerFeature.objects.select_related("source").order_by("kind", "served_as", "pk")
    serializer_class = ServerFeatureSerializer
    filterset_class = ServerFeatureFilters
    access = {
        **admin_access("catalogue.view_serverfeature", "list", "retrieve", "html"),
        **admin_access("catalogue.change_serverfeature", "partial_update", "accept"),
    }

    @extend_schema(
        request=ServerFeatureChangeSerializer,
        examples=[OpenApiExample("Let clients see it", {"enabled": True}, request_only=True)],
    )
    @transaction.atomic
    def partial_update(self, request: Request, pk: str) -> Response:
        """Change a prompt or resource.
        Omitted fields are unchanged. Clients notice within a second."""
        feature = self.get_object()
        change_feature(feature, **self.read_body(ServerFeatureChangeSerializer, partial=True))
        self.record(changed_fields(request.data), feature)
        return Response(ServerFeatureSerializer(feature).data)

    @extend_schema(responses=AppHtmlSerializer)
    @action(detail=True)
    def html(self, request: Request, pk: str) -> Response:
        """Show the HTML of an app.
        Null without one, or if the server has not been listed since the row was made."""
        feature = self.get_object()
        shown = {"accepted": feature.definition, "offered": feature.offered}
        return Response({name: feature.html_of(definition) for name, definition in shown.items()})

    @extend_schema(
        request=FeatureOfferSerializer,
        responses={
            200: ServerFeatureSerializer,
            409: base.as_problem("The server changed it again, or no change is held."),
        },
    )
    @action(detail=True, methods=["post"])
    def accept(self, request: Request, pk: str) -> Response:
        """Accept a server's change.
        Clients see the server's current version."""
        feature, body = self.get_object(), self.read_body(FeatureOfferSerializer)
        if not accept_change(feature, offer=body["offer"], by=actor_of(request)):
            raise base.Refusal(
                status.HTTP_409_CONFLICT,
                "Nothing was changed. The server changed it again, or no change is held: review it.",
            )
        return Response(ServerFeatureSerializer(self.get_object()).data)
