"""REST's door to importing files of Temporal workflows."""

from typing import Any

from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema, extend_schema_field
from rest_framework import serializers, status
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from catalogue.changes import Change
from catalogue.declared_workflows import (
    USUAL_NAME,
    Import,
    ImportRefused,
    ImportRequest,
    import_file,
    permission_to_import,
    plan_import,
)
from catalogue.history import actor_of
from catalogue.models import Source
from catalogue.permissions import Access
from catalogue.rest.bodies import StrictSerializer
from catalogue.rest.description import ProblemSerializer
from catalogue.rest.errors import Problem, Refusal
from catalogue.rest.serializers import CheckSerializer
from catalogue.rest.views import ApiViewSet
from catalogue.scopes import Scope

EXAMPLE = {
    "file": "temporal:\n  hostPort: localhost:7233\nworkflows:\n  IngestWorkflow:\n    purpose: Ingests "
    "documents.\n    taskQueue: ingest-queue\n",
    "source": "temporal",
    "dry_run": True,
}


class NewImportSerializer(StrictSerializer):
    """A file of Temporal workflows, and what to do with it."""

    file = serializers.CharField(trim_whitespace=False, help_text="The YAML text.")
    source = serializers.CharField(  # type: ignore[assignment]
        default=USUAL_NAME,
        max_length=64,
        help_text="A source of the kind temporal, or the name of a new one.",
    )
    secrets = serializers.DictField(
        child=serializers.CharField(trim_whitespace=False),
        default=dict,
        write_only=True,
        help_text="`clientSecret` or `apiKey`, where the file leaves it out. Stored encrypted.",
    )
    prune = serializers.BooleanField(
        default=False, help_text="Remove the source's workflows that the file has not."
    )
    expose_new = serializers.BooleanField(
        default=False, help_text="Of a new source: enable its workflows at once."
    )
    dry_run = serializers.BooleanField(default=False, help_text="Write nothing, tell what would change.")


class WorkflowChangeSerializer(serializers.Serializer[Any]):
    workflow = serializers.CharField(help_text="Its name in the file.")
    change = serializers.ChoiceField(choices=[change.value for change in Change])


class ImportSerializer(serializers.Serializer[Any]):
    """What an import came to, or would come to."""

    source = serializers.CharField()  # type: ignore[assignment]
    is_new = serializers.BooleanField(help_text="Whether the source is created.")
    settings = serializers.ListField(
        child=serializers.CharField(), help_text="The source's settings that change, by the file's names."
    )
    workflows = serializers.SerializerMethodField(
        help_text="What becomes of each. `kept`: from an earlier file, this one does not mention it."
    )
    notes = serializers.ListField(child=serializers.CharField(), help_text="What else there is to know.")
    health = CheckSerializer(help_text="Whether Temporal answers, also in a dry run.")

    @extend_schema_field(WorkflowChangeSerializer(many=True))
    def get_workflows(self, outcome: Import) -> list[dict[str, str]]:
        return [{"workflow": name, "change": change.value} for name, change in outcome.changes.items()]


@extend_schema(tags=["Sources"])
class TemporalImportViewSet(ApiViewSet[Source]):
    queryset = Source.objects.none()
    serializer_class = ImportSerializer
    access = {"create": Access(Scope.ADMIN, "catalogue.view_source")}

    @extend_schema(
        operation_id="temporal_imports_create",
        summary="Import a file of Temporal workflows",
        description="Creates or updates a source and its workflows as the file declares them; it is checked "
        "as a whole before anything is written. Workflows of earlier files stay unless they are pruned.",
        request=NewImportSerializer,
        responses={
            200: ImportSerializer,
            400: OpenApiResponse(
                ProblemSerializer, "`errors` tells each mistake with its line and key. Nothing was imported."
            ),
        },
        examples=[OpenApiExample("What would change", EXAMPLE, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        asked = NewImportSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        given = asked.validated_data
        _check_permission(request, given["source"])
        carry_out = plan_import if given["dry_run"] else import_file
        try:
            outcome = carry_out(
                ImportRequest(
                    content=given["file"].encode("utf-8", "surrogatepass"),
                    source=given["source"],
                    secrets=given["secrets"],
                    prune=given["prune"],
                    expose_new=given["expose_new"],
                    by=actor_of(request),
                )
            )
        except ImportRefused as refused:
            problems = [Problem("/file", reason) for reason in refused.reasons]
            raise Refusal(
                status.HTTP_400_BAD_REQUEST,
                "Nothing was imported; `errors` names each mistake.",
                kind="configuration",
                errors=problems,
            ) from None
        return Response(ImportSerializer(outcome).data)


def _check_permission(request: Request, name: str) -> None:
    needed = permission_to_import(name)
    if request.auth is None and not request.user.has_perm(needed):
        raise PermissionDenied(f"This needs the permission {needed}; an administrator can grant it.")
