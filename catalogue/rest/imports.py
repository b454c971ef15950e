from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from access.callers import Scope
from access.permissions import Access
from catalogue.history import actor_of
from catalogue.imports.openapi import ImportedTool, OpenApiImport, OpenApiImportRequest, import_document
from catalogue.imports.pipeline import ImportRefused, permissions_to_import
from catalogue.imports.temporal import DEFAULT_SOURCE, TemporalImport, TemporalImportRequest, import_file
from catalogue.models import Source
from catalogue.reconciliation import Change
from catalogue.rest.base import Problem, Refusal, SecretsField, StrictSerializer, StringListField, as_problem
from catalogue.rest.sources import CheckSerializer
from catalogue.rest.views import ApiViewSet
from connectors.http_tools.openapi.document import RefusedOperation


class ImportViewSet(ApiViewSet[Source]):
    queryset = Source.objects.none()
    text_field = "file"
    refused = "Nothing was imported; `errors` names each mistake."

    def check_permissions_for(self, request: Request, source: str) -> None:
        """Tokens need the scope instead."""
        for needed in permissions_to_import(source) if request.auth is None else ():
            if not request.user.has_perm(needed):
                raise PermissionDenied(f"This needs the permission {needed}; an administrator can grant it.")

    def handle_exception(self, error: Exception) -> Response:
        if isinstance(error, ImportRefused):
            problems = [Problem(f"/{self.text_field}", reason) for reason in error.reasons]
            error = Refusal(400, self.refused, kind="configuration", errors=problems)
        return super().handle_exception(error)


# Temporal files


TEMPORAL_EXAMPLE = {
    "file": "temporal:\n  hostPort: localhost:7233\nworkflows:\n  IngestWorkflow:\n    purpose: Ingests "
    "documents.\n    taskQueue: ingest-queue\n",
    "source": "temporal",
    "dry_run": True,
}


class NewImportSerializer(StrictSerializer):
    """A file of Temporal workflows, and what to do with it."""

    file = serializers.CharField(trim_whitespace=False, help_text="The YAML text.")
    source = serializers.CharField(  # type: ignore[assignment]
        default=DEFAULT_SOURCE,
        max_length=64,
        help_text="A source of the kind temporal, or the name of a new one.",
    )
    secrets = SecretsField(
        "`clientSecret` or `apiKey`, where the file leaves it out. Stored encrypted.", default=dict
    )
    prune = serializers.BooleanField(
        default=False, help_text="Remove the workflows that are not in the file."
    )
    expose_new = serializers.BooleanField(
        source="expose", default=False, help_text="Enable the workflows of a new source."
    )
    dry_run = serializers.BooleanField(default=False, help_text="Write nothing; return what would change.")


class WorkflowChangeSerializer(serializers.Serializer[Any]):
    workflow = serializers.CharField(help_text="Its name in the file.")
    change = serializers.ChoiceField(choices=[change.value for change in Change])


class ImportSerializer(serializers.Serializer[TemporalImport]):
    """The outcome of an import, or of a dry run."""

    source = serializers.CharField()  # type: ignore[assignment]
    is_new = serializers.BooleanField(help_text="Whether the source is created.")
    settings = StringListField(help_text="The source's settings that change, by the file's names.")
    workflows = serializers.SerializerMethodField(
        help_text="The change of each workflow. `kept`: it is from an earlier file and not in this one."
    )
    notes = StringListField(help_text="What else there is to know.")
    health = CheckSerializer(help_text="Whether Temporal answers, also in a dry run.")

    @extend_schema_field(WorkflowChangeSerializer(many=True))
    def get_workflows(self, outcome: TemporalImport) -> list[dict[str, str]]:
        return [{"workflow": name, "change": change.value} for name, change in outcome.changes.items()]


@extend_schema(tags=["Sources"])
class TemporalImportViewSet(ImportViewSet):
    serializer_class = ImportSerializer  # type: ignore[assignment]
    access = {"create": Access(Scope.ADMIN, "catalogue.view_source")}

    @extend_schema(
        request=NewImportSerializer,
        responses={
            200: ImportSerializer,
            400: as_problem("`errors` names each mistake with its line and key. Nothing was imported."),
        },
        examples=[OpenApiExample("What would change", TEMPORAL_EXAMPLE, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        """Import a file of Temporal workflows.
        Creates or updates a source and its workflows as the file declares them; it is checked as a whole
        before anything is written. Workflows of earlier files stay unless they are pruned."""
        given = self.read_body(NewImportSerializer)
        self.check_permissions_for(request, given["source"])
        content = given.pop("file").encode("utf-8", "surrogatepass")
        wanted = TemporalImportRequest(content=content, by=actor_of(request), **given)
        return Response(ImportSerializer(import_file(wanted)).data)


# OpenAPI documents


OPENAPI_EXAMPLE = {
    "document": '{"openapi": "3.1.0", "info": {"title": "Orders", "version": "1"}, "servers": [{"url": '
    '"https://api.example.com/v1"}], "paths": {"/orders": {"get": {"operationId": "listOrders"}}}}',
    "only": ["list*", "GET /orders/*"],
    "dry_run": True,
}


def conditions_field(help_text: str) -> serializers.ListField:
    condition = serializers.CharField(max_length=500)
    return serializers.ListField(child=condition, default=list, max_length=1_000, help_text=help_text)


class NewOpenApiImportSerializer(StrictSerializer):
    """An OpenAPI document, and what to do with it."""

    document = serializers.CharField(trim_whitespace=False, help_text="Its text, JSON or YAML.")
    source = serializers.CharField(  # type: ignore[assignment]
        default="",
        allow_blank=True,
        max_length=64,
        help_text="A source of the kind http, or the name of a new one; left out: by the API's host.",
    )
    base_url = serializers.CharField(
        default="", allow_blank=True, max_length=2_000, help_text="Instead of the document's first server."
    )
    only = conditions_field(
        "Patterns of operations' ids or paths, such as `issues/*` or `GET /repos/*`; none: all."
    )
    tags = conditions_field("Operations with one of these tags; none: all.")
    deprecated = serializers.BooleanField(
        default=False, help_text="Also operations that the document calls deprecated."
    )
    expose = serializers.BooleanField(default=False, help_text="Enable new tools immediately.")
    prune = serializers.BooleanField(
        default=False, help_text="Remove the source's tools that this import does not contain."
    )
    settings = serializers.DictField(
        default=dict, help_text="Of a new source, besides what the document says: such as `username`."
    )
    credentials = SecretsField(
        "Of a new source: `api_key`, `token`, `password`, `oauth_client_secret`. Stored encrypted.",
        default=dict,
    )
    secrets = SecretsField("An older name for `credentials`.", default=dict)
    dry_run = serializers.BooleanField(default=False, help_text="Write nothing; return what would change.")


class ImportedToolSerializer(serializers.Serializer[ImportedTool]):
    """An operation that became a tool, or would become one."""

    tool_id = serializers.CharField(source="stored.tool_id", help_text="Its name as a tool.")
    name = serializers.CharField(source="stored.name", help_text="As the document calls the operation.")
    method = serializers.CharField()
    path = serializers.CharField(help_text="Below the base URL.")
    tags = StringListField()
    change = serializers.ChoiceField(source="stored.change", choices=[change.value for change in Change])
    exposed = serializers.BooleanField(source="stored.exposed", help_text="Whether agents see it.")
    notes = StringListField(help_text="Parts of the operation that the tool lacks.")


class RefusedOperationSerializer(serializers.Serializer[RefusedOperation]):
    """An operation that does not become a tool."""

    method = serializers.CharField(help_text="`*`: all of the path's.")
    path = serializers.CharField()
    operation_id = serializers.CharField(help_text="Empty where the document gives none.")
    pointer = serializers.CharField(help_text="JSON Pointer to the cause.")
    reason = serializers.CharField()


class OpenApiImportSerializer(serializers.Serializer[OpenApiImport]):
    """The outcome of an import, or of a dry run; every operation of the document counts once."""

    source = serializers.CharField()  # type: ignore[assignment]
    is_new = serializers.BooleanField(help_text="Whether the source is created.")
    base_url = serializers.CharField(source="target.base_url")
    authentication = serializers.CharField(
        source="target.authentication.authentication", help_text="How the source authenticates."
    )
    dry_run = serializers.BooleanField(help_text="Whether nothing was written.")
    counts = serializers.SerializerMethodField(help_text="Number of tools by change.")
    tools = ImportedToolSerializer(many=True)
    removed = serializers.SerializerMethodField(help_text="Ids of tools that the import removes.")
    refused = RefusedOperationSerializer(many=True)
    deprecated = serializers.IntegerField(help_text="Left out because the document calls them so.")
    not_chosen = serializers.IntegerField()
    characters = serializers.IntegerField(help_text="What the tools take in `tools/list`, about.")
    tokens = serializers.IntegerField(help_text="The same in tokens of a model.")
    notes = StringListField(help_text="What else there is to know.")

    def get_counts(self, outcome: OpenApiImport) -> dict[str, int]:
        return {change.value: number for change in Change if (number := outcome.every_change.count(change))}

    def get_removed(self, outcome: OpenApiImport) -> list[str]:
        return [tool.tool_id for tool in outcome.removed]


@extend_schema(tags=["Tools"])
class OpenApiImportViewSet(ImportViewSet):
    serializer_class = OpenApiImportSerializer  # type: ignore[assignment]
    text_field = "document"
    refused = "Nothing was imported; `errors` says why."
    access = {"create": Access(Scope.ADMIN, "catalogue.view_source")}

    @extend_schema(
        request=NewOpenApiImportSerializer,
        responses={200: OpenApiImportSerializer, 400: as_problem("Nothing was imported; `errors` says why.")},
        examples=[OpenApiExample("What would be imported", OPENAPI_EXAMPLE, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        """Import an OpenAPI document.
        Each chosen operation of an OpenAPI 3 or Swagger 2.0 document becomes an HTTP tool. An operation
        that cannot is refused with its reason and position; the others are imported. Importing a document
        again updates its tools. The document counts towards the maximum size of a request body."""
        given = self.read_body(NewOpenApiImportSerializer)
        self.check_permissions_for(request, given["source"])
        wanted = OpenApiImportRequest(
            content=given.pop("document").encode("utf-8", "surrogatepass"),
            secrets=given.pop("secrets") | given.pop("credentials"),
            by=actor_of(request),
            **given,
        )
        return Response(OpenApiImportSerializer(import_document(wanted)).data)
