"""How toolsets look as JSON, and what may be written to them."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from catalogue.exposure import shown_by
from catalogue.models import Toolset
from catalogue.models.toolset import LONGEST_INLINE_WAIT
from catalogue.rest.bodies import StrictSerializer
from catalogue.rest.workflow_filters import RuleSerializer
from mcp_bridge.lists.toolset_costs import cost_of_toolset
from mcp_bridge.portability import find_refused
from mcp_bridge.tokens import resource_url

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
            "slug",
            "title",
            "description",
            "enabled",
            "mode",
            "portable",
            "token_budget",
            "inline_wait_seconds",
            "url",
            "workflow_count",
            "cost",
            "created_at",
            "updated_at",
        )
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


class ToolsetChangeSerializer(StrictSerializer):
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
    title = serializers.CharField(max_length=255, allow_blank=True, default="", help_text="For people.")
    description = serializers.CharField(
        max_length=LONGEST_DESCRIPTION,
        allow_blank=True,
        default="",
        help_text="What it is for; agents are told.",
    )
    enabled = serializers.BooleanField(
        default=True, help_text="Off: its address answers as if it did not exist."
    )
    mode = serializers.ChoiceField(choices=Toolset.Mode.choices, default=Toolset.Mode.FULL.value)
    portable = serializers.BooleanField(
        default=False, help_text="Tools are written so that every model provider takes them."
    )
    token_budget = serializers.IntegerField(
        allow_null=True,
        default=None,
        min_value=1,
        max_value=HIGHEST_BUDGET,
        help_text="Tokens that its list of tools should not exceed, or there is a warning. Null: none.",
    )
    inline_wait_seconds = serializers.IntegerField(
        allow_null=True,
        default=None,
        min_value=1,
        max_value=LONGEST_INLINE_WAIT,
        help_text=INLINE_WAIT_HELP,
    )
    picked = serializers.ListField(
        child=serializers.CharField(max_length=64),
        default=list,
        max_length=MOST_PICKED,
        help_text="Tool names of workflows that are always in it, as long as they are exposed.",
    )
    rules = serializers.ListField(
        child=RuleSerializer(),
        default=list,
        max_length=MOST_RULES,
        help_text="Which other exposed workflows are in it; the first that matches decides.",
    )
