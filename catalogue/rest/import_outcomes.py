"""The outcome of an OpenAPI import as JSON, for REST and for `import_openapi --json`."""

from rest_framework import serializers

from catalogue.imports.openapi import ImportedTool, OpenApiImport
from catalogue.reconciliation import Change
from connectors.http_tools.openapi.document import RefusedOperation


class ImportedToolSerializer(serializers.Serializer[ImportedTool]):
    """An operation that became a tool, or would."""

    tool_id = serializers.CharField(source="stored.tool_id", help_text="Its name as a tool.")
    name = serializers.CharField(source="stored.name", help_text="As the document calls the operation.")
    method = serializers.CharField()
    path = serializers.CharField(help_text="Below the base URL.")
    tags = serializers.ListField(child=serializers.CharField())
    change = serializers.ChoiceField(source="stored.change", choices=[change.value for change in Change])
    exposed = serializers.BooleanField(source="stored.exposed", help_text="Whether agents see it.")
    notes = serializers.ListField(
        child=serializers.CharField(), help_text="What of the operation the tool has not."
    )


class RefusedOperationSerializer(serializers.Serializer[RefusedOperation]):
    """An operation that becomes no tool."""

    method = serializers.CharField(help_text="`*`: all of the path's.")
    path = serializers.CharField()
    operation_id = serializers.CharField(help_text="Empty where the document gives none.")
    pointer = serializers.CharField(help_text="JSON Pointer to what is in the way.")
    reason = serializers.CharField()


class OpenApiImportSerializer(serializers.Serializer[OpenApiImport]):
    """What an import came to, or would come to; every operation of the document counts once."""

    source = serializers.CharField()  # type: ignore[assignment]
    is_new = serializers.BooleanField(help_text="Whether the source is created.")
    base_url = serializers.CharField()
    authentication = serializers.CharField(help_text="How the source authenticates.")
    dry_run = serializers.BooleanField(help_text="Whether nothing was written.")
    counts = serializers.SerializerMethodField(help_text="Tools by what became of them.")
    tools = ImportedToolSerializer(many=True)
    removed = serializers.SerializerMethodField(help_text="Ids of tools that the import removes.")
    refused = RefusedOperationSerializer(many=True)
    deprecated = serializers.IntegerField(help_text="Left out because the document calls them so.")
    not_chosen = serializers.IntegerField()
    characters = serializers.IntegerField(help_text="What the tools take in `tools/list`, about.")
    tokens = serializers.IntegerField(help_text="The same in tokens of a model.")
    notes = serializers.ListField(child=serializers.CharField(), help_text="What else there is to know.")

    def get_counts(self, outcome: OpenApiImport) -> dict[str, int]:
        return {change.value: number for change in Change if (number := outcome.count(change))}

    def get_removed(self, outcome: OpenApiImport) -> list[str]:
        return [tool.tool_id for tool in outcome.removed]
