"""How the catalogue looks as JSON, and what may be written to it."""

from functools import cached_property
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from catalogue.exposure import Visibility, explain_exposure
from catalogue.filters import FilterChain
from catalogue.models import DiscoveryRun, Source, Workflow, WorkflowFilter
from catalogue.permissions import is_administrator
from catalogue.rest.bodies import StrictSerializer

LONGEST_REFRESH_INTERVAL = 604_800
LONGEST_TIMEOUT = 2_592_000
LONGEST_INLINE_WAIT = 3600
HIGHEST_LIMIT = 1_000_000
MOST_NAMES = 10_000
JSON_OBJECT = {"type": "object", "additionalProperties": True}


@extend_schema_field(JSON_OBJECT)
class JSONObjectField(serializers.DictField):
    """Any JSON object."""


# Sources


class HealthSerializer(serializers.Serializer[Source]):
    state = serializers.ChoiceField(choices=Source.HealthState.choices, source="health_state")
    message = serializers.CharField(source="health_message", help_text="What the last listing came to.")
    failing_since = serializers.DateTimeField(allow_null=True)
    failures = serializers.IntegerField(help_text="Failed listings in a row.")


class SourceSerializer(serializers.ModelSerializer[Source]):
    config = JSONObjectField(help_text="The engine's settings, without its secrets.")
    credentials_stored = serializers.SerializerMethodField(
        help_text="Whether secrets are stored. They are never shown, not even encrypted."
    )
    workflows_present = serializers.IntegerField(
        source="present_count", help_text="Workflows in the engine's last good list."
    )
    workflows_enabled = serializers.IntegerField(
        source="enabled_count", help_text="Of those, the enabled ones."
    )
    health = HealthSerializer(source="*")

    class Meta:
        model = Source
        fields = (
            "name",
            "kind",
            "enabled",
            "config",
            "credentials_stored",
            "new_workflows",
            "refresh_interval",
            "max_concurrent",
            "workflows_present",
            "workflows_enabled",
            "health",
            "last_refreshed_at",
            "next_refresh_at",
            "created_at",
            "updated_at",
        )
        read_only_fields = fields

    def get_credentials_stored(self, source: Source) -> bool:
        return bool(source.encrypted_credentials)


class SourceChangeSerializer(StrictSerializer):
    """What may change of a source; its kind may not."""

    name = serializers.CharField(max_length=64, help_text="Letters, digits, underscores, dots and hyphens.")
    config = JSONObjectField(
        help_text="The engine's settings, all of them: what is left out gets its default."
    )
    credentials = serializers.DictField(
        child=serializers.CharField(trim_whitespace=False, allow_blank=True),
        write_only=True,
        help_text="The secret settings, all of them. They are stored encrypted and never shown again.",
    )
    enabled = serializers.BooleanField(help_text="Off: nothing of this source is discovered, listed or run.")
    new_workflows = serializers.ChoiceField(
        choices=Source.NewWorkflows.choices,
        help_text="What happens to workflows when discovery first sees them.",
    )
    refresh_interval = serializers.IntegerField(
        allow_null=True,
        min_value=0,
        max_value=LONGEST_REFRESH_INTERVAL,
        help_text="Seconds between two listings; 0: only by hand; null: the product's default.",
    )
    max_concurrent = serializers.IntegerField(
        allow_null=True,
        min_value=1,
        max_value=HIGHEST_LIMIT,
        help_text="Runs of all its workflows at a time; further calls wait in the queue. Null: no limit.",
    )


class NewSourceSerializer(SourceChangeSerializer):
    """A connection to an engine."""

    kind = serializers.CharField(max_length=50, help_text="Which connector speaks to the engine.")
    config = JSONObjectField(default=dict, help_text="The engine's settings, without its secrets.")
    credentials = serializers.DictField(
        child=serializers.CharField(trim_whitespace=False, allow_blank=True),
        default=dict,
        write_only=True,
        help_text="The secret settings. They are stored encrypted and never shown again.",
    )
    enabled = serializers.BooleanField(
        default=True, help_text="Off: nothing of this source is discovered, listed or run."
    )
    new_workflows = serializers.ChoiceField(
        choices=Source.NewWorkflows.choices,
        default=Source.NewWorkflows.HIDDEN.value,
        help_text="What happens to workflows when discovery first sees them.",
    )
    refresh_interval = serializers.IntegerField(
        default=None,
        allow_null=True,
        min_value=0,
        max_value=LONGEST_REFRESH_INTERVAL,
        help_text="Seconds between two listings; 0: only by hand; null: the product's default.",
    )
    max_concurrent = serializers.IntegerField(
        default=None,
        allow_null=True,
        min_value=1,
        max_value=HIGHEST_LIMIT,
        help_text="Runs of all its workflows at a time; further calls wait in the queue. Null: no limit.",
    )


class CheckSerializer(serializers.Serializer[Any]):
    """Whether the engine answered just now."""

    ok = serializers.BooleanField()
    message = serializers.CharField(help_text="What answered, or the engine's own words of refusal.")
    latency_seconds = serializers.FloatField(allow_null=True)


# Discovery runs


class DiscoveryRunSerializer(serializers.ModelSerializer[DiscoveryRun]):
    source = serializers.CharField(source="source.name")  # type: ignore[assignment]
    duration_ms = serializers.IntegerField(allow_null=True)
    found = serializers.IntegerField(help_text="Usable workflows in the listing.")

    class Meta:
        model = DiscoveryRun
        fields: tuple[str, ...] = (
            "id",
            "source",
            "trigger",
            "outcome",
            "started_at",
            "finished_at",
            "duration_ms",
            "found",
            "added",
            "updated",
            "unchanged",
            "returned",
            "missing",
            "skipped_count",
            "error",
        )
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


class DiscoveryRunDetailSerializer(DiscoveryRunSerializer):
    skipped = SkippedSerializer(
        many=True, help_text="Objects of the listing that were left out; at most 1,000."
    )
    flagged = FlaggedSerializer(many=True, help_text="Workflows whose input schema had to be replaced.")

    class Meta(DiscoveryRunSerializer.Meta):
        fields = (*DiscoveryRunSerializer.Meta.fields, "skipped", "flagged")
        read_only_fields = fields


# Workflows


class UpstreamSerializer(serializers.ModelSerializer[Workflow]):
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
            "first_seen_at",
            "changed_at",
            "missing_since",
        )
        read_only_fields = fields


class UpstreamDetailSerializer(UpstreamSerializer):
    """What the engine says of a workflow, in full."""

    metadata = JSONObjectField()
    schema_problem = serializers.CharField(
        help_text="Why the engine's input schema was replaced by one that takes any object."
    )

    class Meta(UpstreamSerializer.Meta):
        fields = (*UpstreamSerializer.Meta.fields, "metadata", "schema_problem", "content_hash")
        read_only_fields = fields


class CuratorSerializer(serializers.Serializer[Workflow]):
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
    exposed = serializers.SerializerMethodField(help_text="Whether agents see it and may call it.")
    visibility = serializers.SerializerMethodField(help_text="If not exposed, the first thing in the way.")
    curator = serializers.SerializerMethodField(help_text="Null for callers that are no administrators.")
    upstream = serializers.SerializerMethodField(help_text="Null for callers that are no administrators.")

    def get_exposed(self, workflow: Workflow) -> bool:
        return self._visibility(workflow) == Visibility.EXPOSED

    @extend_schema_field(serializers.ChoiceField(choices=[visibility.value for visibility in Visibility]))
    def get_visibility(self, workflow: Workflow) -> str:
        return self._visibility(workflow).value

    @extend_schema_field(CuratorSerializer(allow_null=True))
    def get_curator(self, workflow: Workflow) -> dict[str, Any] | None:
        return CuratorSerializer(workflow).data if self._shows_layers else None

    @extend_schema_field(UpstreamSerializer(allow_null=True))
    def get_upstream(self, workflow: Workflow) -> dict[str, Any] | None:
        return UpstreamSerializer(workflow).data if self._shows_layers else None

    @cached_property
    def _shows_layers(self) -> bool:
        return is_administrator(self.context["request"])

    @cached_property
    def _chain(self) -> FilterChain[WorkflowFilter]:
        return FilterChain(WorkflowFilter.objects.filter(enabled=True))

    def _visibility(self, workflow: Workflow) -> Visibility:
        return explain_exposure(workflow, self._chain).visibility


class WorkflowDetailSerializer(WorkflowSerializer):
    """A workflow in full."""

    input_schema = JSONObjectField(help_text="JSON Schema that arguments are checked with.")
    output_schema = JSONObjectField(
        allow_null=True, help_text="JSON Schema that results follow, where the engine vouches for one."
    )

    @extend_schema_field(UpstreamDetailSerializer(allow_null=True))
    def get_upstream(self, workflow: Workflow) -> dict[str, Any] | None:
        return UpstreamDetailSerializer(workflow).data if self._shows_layers else None


class OverridesSerializer(StrictSerializer):
    """The curator's own words and limits; an empty text or null takes the engine's or the default again."""

    tool_name = serializers.CharField(
        max_length=64, help_text="What agents call. Changing it breaks their habits."
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
        help_text="Synchronous: a call waits until the run ends, never for a handle.",
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
