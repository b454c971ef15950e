"""How workflows look as JSON, and what may be written to them."""

from functools import cached_property
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from catalogue.argument_overrides import LONGEST_DESCRIPTION
from catalogue.curation import MOST_ALIAS_DAYS
from catalogue.exposure import Visibility, explain_exposure
from catalogue.filters import FilterChain
from catalogue.models import Workflow, WorkflowFilter
from catalogue.permissions import is_administrator
from catalogue.presentation import CURATORS_HINTS, MAX_ICON_CHARACTERS
from catalogue.rest.bodies import StrictSerializer
from catalogue.rest.serializers import HIGHEST_LIMIT, JSONObjectField

LONGEST_TIMEOUT = LONGEST_CACHING = 2_592_000
LONGEST_INLINE_WAIT = 3600
MOST_NAMES = 10_000
ADMINISTRATORS_ONLY = "Null for callers that are no administrators."
HINTS = {"type": "object", "properties": {name: {"type": "boolean"} for name in CURATORS_HINTS.values()}}


@extend_schema_field(HINTS)
class HintsField(serializers.DictField):
    """MCP's hints, those that somebody gave."""


class IconSerializer(serializers.Serializer[Any]):
    """An icon as MCP has it; the other members only where the engine gave them."""

    src = serializers.CharField(help_text="An https: or data:image/ address.")
    mimeType = serializers.CharField(required=False)  # noqa: N815 - MCP's own name
    sizes = serializers.ListField(child=serializers.CharField(), required=False)
    theme = serializers.ChoiceField(choices=["light", "dark"], required=False)


class LayerMixin:
    """A part of a workflow, null for callers that are no administrators."""

    context: dict[str, Any]

    def get_attribute(self, instance: Workflow) -> Workflow | None:
        return instance if is_administrator(self.context["request"]) else None


class UpstreamSerializer(LayerMixin, serializers.ModelSerializer[Workflow]):
    """What the engine says of a workflow."""

    id = serializers.CharField(source="upstream_id", help_text="The engine's id.")
    tags = serializers.ListField(child=serializers.CharField())

    class Meta:
        model = Workflow
        fields: tuple[str, ...] = (
            "id",
            "name",
            "description",
            "category",
            "version",
            "author",
            "tags",
            "execution_type",
            "resembles",
            "first_seen_at",
            "changed_at",
            "missing_since",
        )
        read_only_fields = fields


class InteractionSerializer(serializers.Serializer[Any]):
    """What runs can be asked or told while they go on."""

    name = serializers.CharField()
    description = serializers.CharField()
    inputSchema = JSONObjectField()  # noqa: N815 - as MCP has it


class UpstreamDetailSerializer(UpstreamSerializer):
    """What the engine says of a workflow, in full."""

    hints = HintsField()
    icons = IconSerializer(many=True)
    queries = InteractionSerializer(many=True, help_text="What its runs can be asked.")
    signals = InteractionSerializer(many=True, help_text="What its runs can be told.")
    metadata = JSONObjectField()
    schema_problem = serializers.CharField(
        help_text="Why the engine's input schema was replaced by one that takes any object."
    )

    class Meta(UpstreamSerializer.Meta):
        fields = (
            *UpstreamSerializer.Meta.fields,
            "hints",
            "icons",
            "queries",
            "signals",
            "metadata",
            "schema_problem",
            "content_hash",
        )
        read_only_fields = fields


class CuratorSerializer(LayerMixin, serializers.Serializer[Workflow]):
    """What the curator decided; empty or null where the engine's word or the product's default stands."""

    enabled = serializers.BooleanField()
    title = serializers.CharField(source="title_override")
    description = serializers.CharField(source="description_override")
    tags = serializers.ListField(child=serializers.CharField(), source="tags_override", allow_null=True)
    timeout_seconds = serializers.IntegerField(allow_null=True)
    inline_wait_seconds = serializers.IntegerField(allow_null=True)
    execution_type = serializers.ChoiceField(
        source="execution_type_override", choices=Workflow.ExecutionType.choices, allow_blank=True
    )
    on_disconnect = serializers.ChoiceField(choices=Workflow.OnDisconnect.choices)
    reattach = serializers.BooleanField()
    max_concurrent = serializers.IntegerField(allow_null=True)
    read_only_hint = serializers.BooleanField(allow_null=True)
    destructive_hint = serializers.BooleanField(allow_null=True)
    idempotent_hint = serializers.BooleanField(allow_null=True)
    open_world_hint = serializers.BooleanField(allow_null=True)
    offered_as_prompt = serializers.BooleanField()
    cache_seconds = serializers.IntegerField(allow_null=True)


class CuratorDetailSerializer(CuratorSerializer):
    """What the curator decided, in full."""

    icon = serializers.CharField(source="icon_override")
    argument_overrides = serializers.DictField(
        child=JSONObjectField(), help_text="Changes to single arguments, by name."
    )
    argument_problems = serializers.DictField(
        child=serializers.CharField(),
        help_text="Changes to arguments that no longer fit the engine's schema, by the argument's name.",
    )
    former_tool_names = serializers.ListField(child=serializers.CharField(), help_text="The last name first.")
    aliases = serializers.DictField(
        child=serializers.DateTimeField(),
        source="live_aliases",
        help_text="The former names by which calls still run, and until when.",
    )


class WorkflowSerializer(serializers.Serializer[Workflow]):
    """What agents are shown, and for administrators the two layers that it is made of."""

    tool_name = serializers.CharField(help_text="What agents call.")
    source = serializers.CharField(source="source.name")  # type: ignore[assignment]
    title = serializers.CharField()
    description = serializers.CharField(source="shown_description")
    tags = serializers.ListField(child=serializers.CharField(), source="shown_tags")
    category = serializers.CharField()
    version = serializers.CharField()
    execution_type = serializers.ChoiceField(
        source="effective_execution_type", choices=Workflow.ExecutionType.choices
    )
    hints = HintsField(source="effective_hints", help_text="What clients are told that it does.")
    offered_as_prompt = serializers.BooleanField(help_text="Clients show it to people as a command, too.")
    cache_seconds = serializers.IntegerField(
        source="effective_cache_seconds",
        allow_null=True,
        help_text="How long a result answers the same arguments again. Null: never.",
    )
    exposed = serializers.SerializerMethodField(help_text="Whether agents see it and may call it.")
    visibility = serializers.SerializerMethodField(help_text="If not exposed, the first thing in the way.")
    curator = CuratorSerializer(source="*", read_only=True, allow_null=True, help_text=ADMINISTRATORS_ONLY)
    upstream = UpstreamSerializer(source="*", read_only=True, allow_null=True, help_text=ADMINISTRATORS_ONLY)

    def get_exposed(self, workflow: Workflow) -> bool:
        return self._visibility(workflow) == Visibility.EXPOSED

    @extend_schema_field(serializers.ChoiceField(choices=[visibility.value for visibility in Visibility]))
    def get_visibility(self, workflow: Workflow) -> str:
        return self._visibility(workflow).value

    @cached_property
    def _chain(self) -> FilterChain[WorkflowFilter]:
        return FilterChain(WorkflowFilter.objects.filter(enabled=True))

    def _visibility(self, workflow: Workflow) -> Visibility:
        return explain_exposure(workflow, self._chain).visibility


class WorkflowDetailSerializer(WorkflowSerializer):
    """A workflow in full."""

    input_schema = JSONObjectField(
        source="served_input_schema", help_text="JSON Schema that arguments are checked with."
    )
    output_schema = JSONObjectField(
        source="served_output_schema",
        allow_null=True,
        help_text="JSON Schema that results follow, where the engine vouches for one.",
    )
    icons = IconSerializer(many=True, source="shown_icons")
    curator = CuratorDetailSerializer(
        source="*", read_only=True, allow_null=True, help_text=ADMINISTRATORS_ONLY
    )
    upstream = UpstreamDetailSerializer(
        source="*", read_only=True, allow_null=True, help_text=ADMINISTRATORS_ONLY
    )


class ArgumentOverrideSerializer(StrictSerializer):
    """How one argument is shown, or what it always is."""

    description = serializers.CharField(
        required=False, max_length=LONGEST_DESCRIPTION, help_text="Shown instead of the engine's."
    )
    constant = serializers.JSONField(
        required=False,
        allow_null=True,
        help_text="What each call sends; agents do not see the argument, and may not give it.",
    )
    default = serializers.JSONField(
        required=False, allow_null=True, help_text="What is sent where a call leaves the argument out."
    )


class OverridesSerializer(StrictSerializer):
    """The curator's own words and limits; an empty text or null takes the engine's or the default again."""

    tool_name = serializers.CharField(
        max_length=64,
        help_text="What agents call.",
    )
    alias_days = serializers.IntegerField(
        min_value=0,
        max_value=MOST_ALIAS_DAYS,
        help_text="Days for which calls by the old name still run when `tool_name` changes; without it they "
        "are refused at once, with the new name. Where the name stays, the time of its last one from now.",
    )
    title = serializers.CharField(
        source="title_override",
        max_length=255,
        allow_blank=True,
        help_text="Shown instead of the engine's name.",
    )
    description = serializers.CharField(
        source="description_override",
        max_length=20_000,
        allow_blank=True,
        help_text="Shown instead of the engine's description.",
    )
    tags = serializers.ListField(
        child=serializers.CharField(max_length=100),
        source="tags_override",
        max_length=100,
        allow_null=True,
        help_text="Shown instead of the engine's tags.",
    )
    argument_overrides = serializers.DictField(
        child=ArgumentOverrideSerializer(),
        help_text="Changes to single arguments, by name; they take the place of all that there were. Not for "
        "secrets: records of runs show the values.",
    )
    timeout_seconds = serializers.IntegerField(
        min_value=1,
        max_value=LONGEST_TIMEOUT,
        allow_null=True,
        help_text="A run that takes longer is cancelled.",
    )
    inline_wait_seconds = serializers.IntegerField(
        min_value=0,
        max_value=LONGEST_INLINE_WAIT,
        allow_null=True,
        help_text="How long an agent's call waits before it gets a handle instead of the result.",
    )
    execution_type = serializers.ChoiceField(
        source="execution_type_override",
        choices=Workflow.ExecutionType.choices,
        allow_blank=True,
        help_text="Synchronous: a call waits until the run ends, unless its token or toolset has an inline "
        "wait.",
    )
    on_disconnect = serializers.ChoiceField(
        choices=Workflow.OnDisconnect.choices,
        help_text="What becomes of a run whose caller's connection ends before it has an answer.",
    )
    reattach = serializers.BooleanField(
        help_text="A caller that lost its connection and repeats the identical call gets the same run."
    )
    max_concurrent = serializers.IntegerField(
        min_value=1,
        max_value=HIGHEST_LIMIT,
        allow_null=True,
        help_text="Runs at a time; further calls wait in the queue. Null: no limit.",
    )
    read_only_hint = serializers.BooleanField(
        allow_null=True, help_text="It changes nothing, so clients may call it unasked."
    )
    destructive_hint = serializers.BooleanField(
        allow_null=True, help_text="It may delete or overwrite, so clients ask before."
    )
    idempotent_hint = serializers.BooleanField(
        allow_null=True, help_text="Calling it again with the same arguments is harmless."
    )
    open_world_hint = serializers.BooleanField(
        allow_null=True, help_text="It deals with systems outside the company's own."
    )
    icon = serializers.CharField(
        source="icon_override",
        max_length=MAX_ICON_CHARACTERS,
        allow_blank=True,
        help_text="An https: address, or a PNG, JPEG, WebP or GIF as data:image/...;base64,...",
    )
    offered_as_prompt = serializers.BooleanField(
        help_text="Clients show it to people as a command of its own, too."
    )
    cache_seconds = serializers.IntegerField(
        min_value=0,
        max_value=LONGEST_CACHING,
        allow_null=True,
        help_text="Seconds that a result answers the same arguments again, whoever asks. For what changes "
        "nothing and answers all callers alike. 0: every call runs. Null: what the engine says, if anything.",
    )


class SeenSerializer(StrictSerializer):
    content_hash = serializers.CharField(
        required=False, max_length=64, help_text="Of what was looked at. Left out: as it is by now."
    )


class SelectionSerializer(StrictSerializer):
    """Some or all workflows of one source."""

    source = serializers.CharField(max_length=64, help_text="The source's name.")  # type: ignore[assignment]
    names = serializers.ListField(
        child=serializers.CharField(max_length=255),
        required=False,
        min_length=1,
        max_length=MOST_NAMES,
        help_text="Tool names, workflow names or engine's ids.",
    )
    all = serializers.BooleanField(default=False, help_text="Every workflow in the engine's last good list.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs["all"] == bool(attrs.get("names")):
            raise serializers.ValidationError("Give either `names` or `all: true`.")
        return attrs


class ChangedSerializer(serializers.Serializer[Any]):
    changed = serializers.IntegerField(help_text="How many were not in that state before.")
