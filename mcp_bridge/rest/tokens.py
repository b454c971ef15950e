"""REST's door to access tokens: to read of them, never to read them."""

from typing import Any

import django_filters  # type: ignore[import-untyped]
from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import mixins, serializers

from catalogue.permissions import Access
from catalogue.rest.lists import StableOrdering, StrictBooleanFilter
from catalogue.rest.views import ApiViewSet
from catalogue.scopes import Scope
from mcp_bridge.models import AccessToken


class TokenFilters(django_filters.FilterSet):  # type: ignore[misc]
    usable = StrictBooleanFilter(method="by_use", label="Whether it is neither revoked nor expired.")
    toolset = django_filters.CharFilter(field_name="toolset__slug", label="The slug that bounds it.")
    ordering = StableOrdering(fields=["name", "created_at", "expires_at", "last_used_at"])

    def by_use(self, tokens: QuerySet[AccessToken], name: str, wanted: bool) -> QuerySet[AccessToken]:
        usable = AccessToken.objects.usable().values("pk")
        return tokens.filter(pk__in=usable) if wanted else tokens.exclude(pk__in=usable)


class TokenSerializer(serializers.ModelSerializer[AccessToken]):
    """An access token, without its text and without what could be compared with that."""

    caller = serializers.CharField(
        source="caller.key", help_text="What executions and the history name it, such as `token:7`."
    )
    scopes = serializers.ListField(child=serializers.CharField())
    toolset = serializers.CharField(source="toolset.slug", allow_null=True, default=None)
    created_by = serializers.CharField(source="created_by.username", allow_null=True, default=None)
    usable = serializers.SerializerMethodField(help_text="Neither revoked nor expired.")

    class Meta:
        model = AccessToken
        fields = (
            "id", "name", "caller", "prefix", "scopes", "toolset", "inline_wait_seconds",
            "patience_seconds", "usable", "created_at", "created_by", "expires_at", "revoked_at",
            "last_used_at",
        )  # fmt: skip
        read_only_fields = fields

    def get_usable(self, token: AccessToken) -> bool:
        expired = token.expires_at is not None and token.expires_at <= timezone.now()
        return token.revoked_at is None and not expired


@extend_schema_view(
    list=extend_schema(summary="List access tokens", description="Who has access, to what, and since when."),
    retrieve=extend_schema(summary="Read of an access token"),
)
@extend_schema(tags=["Tokens"])
class TokenViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, ApiViewSet[AccessToken]):
    queryset = AccessToken.objects.none()
    serializer_class: Any = TokenSerializer
    filterset_class = TokenFilters
    lookup_value_regex = "[0-9]{1,18}"
    access = {
        "list": Access(Scope.ADMIN, "mcp_bridge.view_accesstoken"),
        "retrieve": Access(Scope.ADMIN, "mcp_bridge.view_accesstoken"),
    }

    def get_queryset(self) -> QuerySet[AccessToken]:
        return AccessToken.objects.select_related("toolset", "created_by").order_by("name")
