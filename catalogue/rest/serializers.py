"""How sources and discovery runs look as JSON, and what may be written to them."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from catalogue.models import DiscoveryRun, Source
from catalogue.models.source import TOLERATED_LOSS
from catalogue.rest.bodies import StrictSerializer

LONGEST_REFRESH_INTERVAL = 604_800
HIGHEST_LIMIT = 1_000_000
CHANGE_POLICY = (
    "What happens when the engine changes an enabled workflow: `follow` serves it, `careful` serves what is "
    "harmless and holds the rest for review, `hold` holds everything. What is held goes on being served as "
    "it was accepted."
)
TOLERATED = (
    "A listing that loses more percent of the workflows, and at least five, is held until somebody confirms "
    "it. An empty one always is."
)
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
            "change_policy",
            "vanishing_share_percent",
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
    change_policy = serializers.ChoiceField(choices=Source.ChangePolicy.choices, help_text=CHANGE_POLICY)
    vanishing_share_percent = serializers.IntegerField(min_value=0, max_value=100, help_text=TOLERATED)
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
    change_policy = serializers.ChoiceField(
        choices=Source.ChangePolicy.choices,
        default=Source.ChangePolicy.CAREFUL.value,
        help_text=CHANGE_POLICY,
    )
    vanishing_share_percent = serializers.IntegerField(
        default=TOLERATED_LOSS, min_value=0, max_value=100, help_text=TOLERATED
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
            "held",
            "skipped_count",
            "error",
            "confirmed_at",
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
