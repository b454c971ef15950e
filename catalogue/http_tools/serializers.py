"""How answers to submissions of tools look as JSON."""

from typing import Any

from rest_framework import serializers

from catalogue.changes import Change


class ToolChangeSerializer(serializers.Serializer[Any]):
    """What became of one tool."""

    id = serializers.CharField(
        source="tool_id", help_text="Unique, and the tool's own for ever: what `tool_ids` and agents name."
    )
    name = serializers.CharField(help_text="As submitted.")
    source = serializers.CharField(help_text="The source it belongs to.")  # type: ignore[assignment]
    change = serializers.ChoiceField(choices=[change.value for change in Change])
    exposed = serializers.BooleanField(help_text="Whether agents see it and may call it.")
    hidden_because = serializers.CharField(help_text="Why they do not; empty where they do.")
    note = serializers.CharField(help_text="What else there is to know, such as why the id is not the name.")


class StoredToolsSerializer(serializers.Serializer[Any]):
    """What a submission came to, or would come to."""

    tools = ToolChangeSerializer(many=True, help_text="In the order of the submission.")
    new_sources = serializers.ListField(child=serializers.CharField(), help_text="Sources that were added.")
    notes = serializers.ListField(child=serializers.CharField(), help_text="What else there is to know.")
    dry_run = serializers.BooleanField(help_text="Whether nothing was stored.")
