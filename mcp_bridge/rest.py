from typing import Any

import django_filters  # type: ignore[import-untyped]
from django.db import transaction
from django.db.models import Prefetch, QuerySet
from django.utils import timezone
from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiResponse,
    extend_schema,
    extend_schema_field,
    extend_schema_view,
)
from rest_framework import mixins, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from catalogue.exposure import confirmed_catalogue, shown_by
from catalogue.history import changed_fields
from catalogue.models import Toolset, Workflow
from catalogue.models.toolset import LONGEST_INLINE_WAIT
from catalogue.permissions import Access
from catalogue.rest import base
from catalogue.rest.filters import RuleSerializer
from catalogue.rest.views import ApiViewSet
from catalogue.scopes import Scope
from catalogue.toolsets import UnknownPicks, write_toolset
from mcp_bridge.models import AccessToken
from mcp_bridge.portability import find_refused
from mcp_bridge.tokens import ToolsetInUse, delete_toolset, resource_url
from mcp_bridge.toolset_costs import cost_of_toolset

LONGEST_DESCRIPTION = 20_000
HIGHEST_BUDGET = 1_000_000_000
MOST_RULES = 200
MOST_PICKED = 10_000
INLINE_WAIT_HELP = (
    "Seconds that a call of its clients waits before it gets a handle: less than they wait. "
    "Null: the product's default."
)


class ListCostSerializer(serializers.Serializer[Any]):
    """What one `tools/list`, over all its pages, costs a client's context."""

    tools = serializers.IntegerField()
    characters = serializers.IntegerField(help_text="Of the JSON array of tools, as it is served.")
    tokens = serializers.IntegerField(help_text="An estimate: one for four characters.")


class ToolsetCostSerializer(serializers.Serializer[Any]):
    """What the list of tools costs in either mode, for a token that may read and run."""

    full = ListCostSerializer()
    compact = ListCostSerializer()
    over_budget = serializers.BooleanField(source="is_over_budget")
    warning = serializers.CharField(help_text="By how much, and what helps; empty within the budget.")


class ToolsetSerializer(serializers.ModelSerializer[Toolset]):
    url = serializers.SerializerMethodField(help_text="Where MCP clients connect to it.")
    workflow_count = serializers.SerializerMethodField(
        help_text="How many workflows it shows, or would if it were enabled."
    )
    cost = serializers.SerializerMethodField()

    class Meta:
        model = Toolset
        fields: tuple[str, ...] = (
            "slug", "title", "description", "enabled", "mode", "portable", "token_budget",
            "inline_wait_seconds", "url", "workflow_count", "cost", "created_at", "updated_at",
        )  # fmt: skip
        read_only_fields = fields

    def get_url(self, toolset: Toolset) -> str:
        return resource_url(toolset.slug)

    def get_workflow_count(self, toolset: Toolset) -> int:
        return len(shown_by(toolset, self.context["catalogue"]))

    @extend_schema_field(ToolsetCostSerializer)
    def get_cost(self, toolset: Toolset) -> dict[str, Any]:
        return dict(ToolsetCostSerializer(cost_of_toolset(toolset, self.context["catalogue"])).data)


class ToolsetDetailSerializer(ToolsetSerializer):
    """A toolset in full."""

    picked = serializers.SerializerMethodField(help_text="Tool names of the workflows picked by hand.")
    rules = RuleSerializer(many=True, help_text="In the order in which they are tried.")
    workflows = serializers.SerializerMethodField(
        help_text="Tool names of the exposed workflows that it shows, or would if it were enabled."
    )
    refused = serializers.SerializerMethodField(
        help_text="What some model providers refuse of these tools, by name; nothing in portable mode."
    )

    class Meta(ToolsetSerializer.Meta):
        fields = (*ToolsetSerializer.Meta.fields, "picked", "rules", "workflows", "refused")
        read_only_fields = fields

    def get_picked(self, toolset: Toolset) -> list[str]:
        return sorted(workflow.tool_name for workflow in toolset.picked.all())

    def get_workflows(self, toolset: Toolset) -> list[str]:
        return list(shown_by(toolset, self.context["catalogue"]))

    def get_refused(self, toolset: Toolset) -> dict[str, list[str]]:
        return find_refused(toolset, self.context["catalogue"])


class ToolsetChangeSerializer(base.StrictSerializer):
    """What may change of a toolset; `picked` and `rules` are each replaced as a whole.

    Its fields may be missing, instead of the whole being partial: that would hold for those of the rules too.
    """

    slug = serializers.CharField(
        required=False,
        max_length=64,
        help_text="The end of its address. Changing it breaks the clients that use it.",
    )
    title = serializers.CharField(required=False, max_length=255, allow_blank=True, help_text="For people.")
    description = serializers.CharField(
        required=False,
        max_length=LONGEST_DESCRIPTION,
        allow_blank=True,
        help_text="What it is for; agents are told.",
    )
    enabled = serializers.BooleanField(
        required=False, help_text="Off: its address answers as if it did not exist."
    )
    mode = serializers.ChoiceField(required=False, choices=Toolset.Mode.choices)
    portable = serializers.BooleanField(
        required=False, help_text="Tools are written so that every model provider takes them."
    )
    token_budget = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=1,
        max_value=HIGHEST_BUDGET,
        help_text="Tokens that its list of tools should not exceed, or there is a warning. Null: none.",
    )
    inline_wait_seconds = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=1,
        max_value=LONGEST_INLINE_WAIT,
        help_text=INLINE_WAIT_HELP,
    )
    picked = serializers.ListField(
        required=False,
        child=serializers.CharField(max_length=64),
        max_length=MOST_PICKED,
        help_text="Tool names of workflows that are always in it, as long as they are exposed.",
    )
    rules = serializers.ListField(
        required=False,
        child=RuleSerializer(),
        max_length=MOST_RULES,
        help_text="Which other exposed workflows are in it; the first that matches decides.",
    )


class NewToolsetSerializer(ToolsetChangeSerializer):
    """A toolset; without `picked` and `rules` it is empty."""

    slug = serializers.CharField(max_length=64, help_text="The end of its address.")

    def get_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = super().get_fields()
        for name, default in NEW_TOOLSET_DEFAULTS.items():
            fields[name].default = default
        return fields


NEW_TOOLSET_DEFAULTS: dict[str, Any] = {
    "title": "",
    "description": "",
    "enabled": True,
    "mode": Toolset.Mode.FULL.value,
    "portable": False,
    "token_budget": None,
    "inline_wait_seconds": None,
    "picked": list,
    "rules": list,
}
NEW_TOOLSET = {
    "slug": "finance",
    "description": "What the accounting team's agents need.",
    "rules": [{"subject": "tag", "pattern": "finance"}],
    "picked": ["text_statistics"],
    "token_budget": 4000,
}


class ToolsetFilters(django_filters.FilterSet):  # type: ignore[misc]
    enabled = base.StrictBooleanFilter()
    mode = django_filters.ChoiceFilter(choices=Toolset.Mode.choices)
    ordering = base.StableOrdering(fields=["slug", "created_at", "updated_at"])


@extend_schema_view(
    list=extend_schema(
        summary="List toolsets",
        description="With what the list of tools of each costs a client's context.",
    ),
    retrieve=extend_schema(
        summary="Read a toolset",
        description="With its rules, and the names of the workflows that it shows.",
        responses=ToolsetDetailSerializer,
    ),
)
@extend_schema(tags=["Toolsets"])
class ToolsetViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, ApiViewSet[Toolset]):
    queryset = Toolset.objects.none()
    filterset_class = ToolsetFilters
    lookup_field = "slug"
    lookup_value_regex = "[A-Za-z0-9_.-]+"
    access = {
        "list": Access(Scope.ADMIN, "catalogue.view_toolset"),
        "retrieve": Access(Scope.ADMIN, "catalogue.view_toolset"),
        "create": Access(Scope.ADMIN, "catalogue.add_toolset"),
        "partial_update": Access(Scope.ADMIN, "catalogue.change_toolset"),
        "destroy": Access(Scope.ADMIN, "catalogue.delete_toolset"),
    }

    def get_queryset(self) -> QuerySet[Toolset]:
        names = Prefetch("picked", queryset=Workflow.objects.only("tool_name").order_by())
        return Toolset.objects.prefetch_related("rules", names).order_by("slug")

    def get_serializer_class(self) -> type[ToolsetSerializer]:
        return ToolsetSerializer if self.action == "list" else ToolsetDetailSerializer

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "catalogue": confirmed_catalogue()}

    @extend_schema(
        summary="Add a toolset",
        description="Clients can connect to its address within a second.",
        request=NewToolsetSerializer,
        responses={201: ToolsetDetailSerializer},
        examples=[OpenApiExample("By tag, and one by hand", NEW_TOOLSET, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        asked = NewToolsetSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        return self._written(Toolset(), asked.validated_data, status.HTTP_201_CREATED, change="Added.")

    @extend_schema(
        summary="Change a toolset",
        description="`picked` and `rules` are each replaced as a whole; what is not named stays.",
        request=ToolsetChangeSerializer,
        responses=ToolsetDetailSerializer,
        examples=[OpenApiExample("Only the built-in tools", {"mode": "compact"}, request_only=True)],
    )
    def partial_update(self, request: Request, slug: str) -> Response:
        toolset = self.get_object()
        asked = ToolsetChangeSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        change = changed_fields(asked.validated_data)
        return self._written(toolset, asked.validated_data, status.HTTP_200_OK, change=change)

    @extend_schema(
        summary="Delete a toolset",
        description="Its address is gone at once; the workflows stay.",
        responses={
            204: None,
            409: OpenApiResponse(base.ProblemSerializer, "Tokens are bound to it. Nothing was changed."),
        },
    )
    @transaction.atomic
    def destroy(self, request: Request, slug: str) -> Response:
        toolset = self.get_object()
        self.record_deletion(toolset)
        try:
            delete_toolset(toolset)
        except ToolsetInUse as error:
            raise base.Refusal(status.HTTP_409_CONFLICT, str(error), kind="configuration") from None
        return Response(status=status.HTTP_204_NO_CONTENT)

    @transaction.atomic
    def _written(self, toolset: Toolset, asked: dict[str, Any], code: int, *, change: str) -> Response:
        try:
            written = write_toolset(toolset, **asked)
        except UnknownPicks as unknown:
            problems = [
                base.Problem(f"/picked/{asked['picked'].index(name)}", f"No such workflow: {name}")
                for name in unknown.names
            ]
            raise base.Refusal(400, base.NOT_VALID, kind="validation", errors=problems) from None
        self.record(change, written)
        shown = self.get_serializer(self.get_queryset().get(pk=written.pk))
        return Response(shown.data, code)


class TokenFilters(django_filters.FilterSet):  # type: ignore[misc]
    usable = base.StrictBooleanFilter(method="by_use", label="Whether it is neither revoked nor expired.")
    toolset = django_filters.CharFilter(field_name="toolset__slug", label="The slug that bounds it.")
    ordering = base.StableOrdering(fields=["name", "created_at", "expires_at", "last_used_at"])

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
