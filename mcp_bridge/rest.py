from typing import Any

import django_filters  # type: ignore[import-untyped]
from django.db import transaction
from django.db.models import Prefetch
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_field, extend_schema_view
from rest_framework import mixins, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from access.permissions import admin_access
from catalogue.actions.toolsets import CHANGEABLE, write_toolset
from catalogue.actions.workflows import UnknownWorkflows
from catalogue.configuration import TOOLSET
from catalogue.exposure import confirmed_catalogue, shown_by
from catalogue.history import changed_fields
from catalogue.models import Toolset, Workflow
from catalogue.rest import base
from catalogue.rest.base import RESERVED_FOR
from catalogue.rest.filters import RuleSerializer
from catalogue.rest.views import ApiViewSet
from identity.tokens import ToolsetInUse, delete_toolset, resource_url
from mcp_bridge.portability import find_refused
from mcp_bridge.tool_lists import cost_of_toolset

MAX_DESCRIPTION = 20_000
MAX_BUDGET = 1_000_000_000
MAX_RULES = 200
MAX_PICKED = 10_000


class ListCostSerializer(serializers.Serializer[Any]):
    """What one `tools/list`, over all its pages, costs a client's context."""

    tools = serializers.IntegerField()
    characters = serializers.IntegerField(help_text="Of the JSON array of tools as it is served.")
    tokens = serializers.IntegerField(help_text="Estimated: one for every four characters.")


class ToolsetCostSerializer(serializers.Serializer[Any]):
    """What the list of tools costs in either mode, for a token that may read and run."""

    full = ListCostSerializer()
    compact = ListCostSerializer()
    over_budget = serializers.BooleanField(source="is_over_budget")
    warning = serializers.CharField(help_text="How far it is over the budget; empty within.")


class ToolsetSerializer(base.RowSerializer[Toolset]):
    reserved_for = base.StringListField(help_text=RESERVED_FOR)
    url = serializers.SerializerMethodField(help_text="The address to which MCP clients connect.")
    workflow_count = serializers.SerializerMethodField(help_text="How many it shows if it is enabled.")
    cost = serializers.SerializerMethodField()

    class Meta:
        model = Toolset
        fields: tuple[str, ...] = (
            "slug", "title", "description", "enabled", "mode", "portable", "cards",
            "token_budget", "inline_wait_seconds", "calls_per_minute", "calls_at_once", "approval_required",
            "approvers_needed", "reserved_for", "url", "workflow_count", "cost", "created_at", "updated_at",
        )  # fmt: skip

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
    rules = RuleSerializer(many=True, help_text="Rules in the order in which they are evaluated.")
    workflows = serializers.SerializerMethodField(help_text="Tool names of those that it shows if enabled.")
    refused = serializers.SerializerMethodField(
        help_text="By tool name, why some model providers refuse it; empty in portable mode."
    )

    class Meta(ToolsetSerializer.Meta):
        fields = (*ToolsetSerializer.Meta.fields, "picked", "rules", "workflows", "refused")

    def get_picked(self, toolset: Toolset) -> list[str]:
        return sorted(workflow.tool_name for workflow in toolset.picked.all())

    def get_workflows(self, toolset: Toolset) -> list[str]:
        return list(shown_by(toolset, self.context["catalogue"]))

    def get_refused(self, toolset: Toolset) -> dict[str, list[str]]:
        return find_refused(toolset, self.context["catalogue"])


class ToolsetChangeSerializer(base.StrictSerializer, serializers.ModelSerializer[Toolset]):
    """The fields of a toolset that can change; `picked` and `rules` are each replaced as a whole."""

    reserved_for = base.ReservedForField()
    picked = serializers.ListField(
        child=serializers.CharField(max_length=64),
        max_length=MAX_PICKED,
        help_text="Tool names of workflows that are always in it, as long as they are exposed.",
    )
    rules = serializers.ListField(
        child=RuleSerializer(),
        max_length=MAX_RULES,
        help_text="Which other exposed workflows it contains. The first rule that matches decides.",
    )

    class Meta:
        model = Toolset
        fields = (*CHANGEABLE, "picked", "rules")
        extra_kwargs = {
            "slug": {"validators": []},  # Those of the row, which also tell which slug is taken
            "description": {"max_length": MAX_DESCRIPTION},
            "token_budget": {"max_value": MAX_BUDGET},
        }

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        for field in fields.values():
            # `partial=True` would make the fields of the rules optional too.
            field.required = False
        return fields


class NewToolsetSerializer(ToolsetChangeSerializer):
    """A toolset; without `picked` and `rules` it is empty."""

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        fields["slug"].required = True
        base.set_defaults(fields, TOOLSET.defaults | {"picked": [], "rules": []})
        return fields


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
    retrieve=extend_schema(summary="Read a toolset", description="With its rules and what it shows.")
)
@extend_schema(tags=["Toolsets"])
class ToolsetViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, ApiViewSet[Toolset]):
    """With what each takes of a client's context."""

    queryset = Toolset.objects.prefetch_related(
        "rules", Prefetch("picked", queryset=Workflow.objects.only("tool_name").order_by())
    ).order_by("slug")
    serializer_class, list_serializer_class = ToolsetDetailSerializer, ToolsetSerializer
    filterset_class = ToolsetFilters
    lookup_field = "slug"
    lookup_value_regex = "[A-Za-z0-9_.-]+"
    access = {
        **admin_access("catalogue.view_toolset", "list", "retrieve"),
        **admin_access("catalogue.add_toolset", "create"),
        **admin_access("catalogue.change_toolset", "partial_update"),
        **admin_access("catalogue.delete_toolset", "destroy"),
    }

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "catalogue": confirmed_catalogue()}

    @extend_schema(
        request=NewToolsetSerializer,
        examples=[OpenApiExample("By tag, and one picked by hand", NEW_TOOLSET, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        """Add a toolset.
        Clients can connect to its address within a second."""
        asked = self.read_body(NewToolsetSerializer)
        return self._written(Toolset(), asked, status.HTTP_201_CREATED, change="Added.")

    @extend_schema(request=ToolsetChangeSerializer)
    def partial_update(self, request: Request, slug: str) -> Response:
        """Change a toolset.
        `picked` and `rules` are each replaced as a whole. Omitted fields do not change."""
        toolset = self.get_object()
        asked = self.read_body(ToolsetChangeSerializer)
        return self._written(toolset, asked, status.HTTP_200_OK, change=changed_fields(asked))

    @extend_schema(responses={204: None, 409: base.as_problem("Tokens are bound to the toolset.")})
    @transaction.atomic
    def destroy(self, request: Request, slug: str) -> Response:
        """Delete a toolset.
        Its address stops working immediately. The workflows are not affected."""
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
        except UnknownWorkflows as unknown:
            problems = [
                base.Problem(f"/picked/{asked['picked'].index(name)}", f"No such workflow: {name}")
                for name in unknown.names
            ]
            raise base.Refusal.invalid(base.NOT_VALID, problems) from None
        self.record(change, written)
        return self.answer_with(written, code)
