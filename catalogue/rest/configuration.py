from collections.abc import Mapping
from typing import IO, Any

from django.conf import settings
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from catalogue.access import Scope
from catalogue.audit import record_export
from catalogue.configuration import (
    FILE_NAME,
    MEDIA_TYPE,
    SECTIONS,
    CatalogueFile,
    export_catalogue,
    sections_for,
)
from catalogue.history import actor_of
from catalogue.imports.configuration import (
    CatalogueImportRequest,
    Plan,
    Verb,
    import_catalogue,
    rights_of,
)
from catalogue.permissions import Access
from catalogue.rest.base import (
    BOOLEANS,
    TOO_LARGE,
    BoundedJSONParser,
    Problem,
    ProblemSerializer,
    Refusal,
    StrictSerializer,
)
from catalogue.rest.imports import ImportViewSet

REFUSED = "Nothing was changed; `errors` names each mistake with its line."
EXAMPLE = {"file": "version: 1\ntoolsets:\n  finance:\n    rules: [{subject: tag, pattern: finance}]\n"}
CHANGED_BY_IMPORTS = frozenset(
    {"catalogue.change_workflow", "catalogue.change_productsettings"}
    | {
        f"catalogue.{verb}_{model}"
        for verb in ("add", "change", "delete")
        for model in ("source", "workflowfilter", "toolset")
    }
)


class YAMLRenderer(BaseRenderer):
    """Renders the text itself; JSON is for problems."""

    media_type = MEDIA_TYPE
    format = "yaml"


class YAMLParser(BaseParser):
    """Parses a body that is the file."""

    media_type = MEDIA_TYPE

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        limit: int = settings.CATALOGUE["max_request_bytes"]
        body = stream.read(limit + 1)
        if len(body) > limit:
            raise Refusal(status.HTTP_413_REQUEST_ENTITY_TOO_LARGE, TOO_LARGE, kind="validation")
        return {"file": body.decode("utf-8", "surrogateescape")}


class CatalogueImportSerializer(StrictSerializer):
    """A file of the export, and the secrets that it names."""

    file = serializers.CharField(trim_whitespace=False, help_text="The YAML text.")
    secrets = serializers.DictField(
        child=serializers.DictField(child=serializers.CharField(trim_whitespace=False)),
        default=dict,
        write_only=True,
        help_text="By source and setting; those that are not given stay as they are stored.",
    )


class FieldChangeSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    old = serializers.CharField(help_text="As JSON, cut where it is long; `-` where there was none.")
    new = serializers.CharField()


class PlannedChangeSerializer(serializers.Serializer[Any]):
    verb = serializers.ChoiceField(choices=[verb.value for verb in Verb])
    kind = serializers.CharField(help_text="Such as `source`.")
    name = serializers.CharField()
    fields = FieldChangeSerializer(many=True)  # type: ignore[assignment]


class PlanSerializer(serializers.Serializer[Plan]):
    """What an import changed, or would change."""

    summary = serializers.CharField(source="counts")
    changes = PlannedChangeSerializer(many=True, help_text="Empty where nothing differs.")


PLAN = OpenApiParameter("plan", bool, description="Write nothing, show what would change.")
PRUNE = OpenApiParameter("prune", bool, description="Remove what the sections of the file do not have.")
SECTION = OpenApiParameter(
    "section", str, many=True, enum=list(SECTIONS), description="Only these; all if none is named."
)


@extend_schema(tags=["Configuration as code"])
class ConfigurationViewSet(ImportViewSet):
    refused = REFUSED
    filter_backends = ()
    pagination_class = None
    access = {
        "export": Access(Scope.ADMIN, "catalogue.view_source"),
        "import_file": Access(Scope.ADMIN, "catalogue.view_source", also=CHANGED_BY_IMPORTS),
    }

    @extend_schema(
        operation_id="catalogue_export",
        summary="Export the curation",
        description="Settings, groups, sources without secrets, filters, toolsets and what curators decided "
        "of workflows, as YAML that `POST /api/catalogue/import` reads. Members of staff get the sections "
        "that they may see.",
        parameters=[SECTION],
        responses={(200, MEDIA_TYPE): OpenApiTypes.OBJECT},
    )
    @action(detail=False, methods=["get"], renderer_classes=[YAMLRenderer, JSONRenderer])
    def export(self, request: Request) -> HttpResponse:
        _refuse_unknown(request, SECTION)
        wanted = request.query_params.getlist("section") or list(SECTIONS)
        if unknown := [name for name in wanted if name not in SECTIONS]:
            message = f"There is no section {unknown[0][:100]}; there are {', '.join(SECTIONS)}."
            raise Refusal(400, message, kind="validation", errors=[Problem("?section", message)])
        if request.auth is None:
            wanted = sections_for(request.user, wanted)
        record_export(actor_of(request), "configuration", sections=wanted)
        response = HttpResponse(export_catalogue(wanted), content_type=f"{MEDIA_TYPE}; charset=utf-8")
        response["Content-Disposition"] = f'attachment; filename="{FILE_NAME}"'
        return response

    @extend_schema(
        operation_id="catalogue_import",
        summary="Import the curation",
        description="Makes the catalogue what the file says: all of it, or nothing. An object that the file "
        "has is described by it as a whole; others stay unless they are pruned. Groups are for superusers, "
        "and not for tokens. The file may be the body itself, as `application/yaml`.",
        parameters=[PLAN, PRUNE],
        request={"application/json": CatalogueImportSerializer, MEDIA_TYPE: OpenApiTypes.OBJECT},
        responses={200: PlanSerializer, 400: OpenApiResponse(ProblemSerializer, REFUSED)},
        examples=[OpenApiExample("A toolset", EXAMPLE, request_only=True, media_type="application/json")],
    )
    @action(detail=False, methods=["post"], url_path="import", parser_classes=[BoundedJSONParser, YAMLParser])
    def import_file(self, request: Request) -> Response:
        _refuse_unknown(request, PLAN, PRUNE)
        asked = CatalogueImportSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        content = asked.validated_data["file"].encode("utf-8", "surrogateescape")

        def importer() -> Plan:
            return import_catalogue(
                CatalogueImportRequest(
                    file=CatalogueFile.read(content),
                    secrets=asked.validated_data["secrets"],
                    prune=_is_set(request, PRUNE),
                    secret_hint=lambda source, secret: (
                        f'give it as {{"secrets": {{"{source}": {{"{secret}": "..."}}}}}} beside the file'
                    ),
                    by=actor_of(request),
                    rights=rights_of(request.user if request.auth is None else None),
                    dry_run=_is_set(request, PLAN),
                )
            )

        return Response(PlanSerializer(self.carry_out(importer)).data)


def _refuse_unknown(request: Request, *known: OpenApiParameter) -> None:
    names = [parameter.name for parameter in known]
    message = f"There is no such parameter; there are {', '.join(names)}."
    if problems := [Problem(f"?{name[:100]}", message) for name in request.query_params if name not in names]:
        raise Refusal(400, message, kind="validation", errors=problems)


def _is_set(request: Request, parameter: OpenApiParameter) -> bool:
    text = request.query_params.get(parameter.name, "").strip().lower()
    if text not in BOOLEANS:
        message = "Say true or false."
        problem = Problem(f"?{parameter.name}", message)
        raise Refusal(400, message, kind="validation", errors=[problem])
    return bool(BOOLEANS[text])
