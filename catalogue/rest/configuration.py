"""The settings that change at run time, and all that curators decide as one file."""

from collections.abc import Mapping
from functools import cache
from typing import IO, Any

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from access.callers import Scope
from access.permissions import Access, demand_of_staff
from catalogue import product_settings
from catalogue.audit import record_export
from catalogue.configuration import (
    FILE_NAME,
    MEDIA_TYPE,
    ROWS,
    SECTIONS,
    CatalogueFile,
    Curated,
    export_catalogue,
    row_of,
    sections_for,
)
from catalogue.history import actor_of
from catalogue.imports.configuration import CatalogueImportRequest, Plan, Verb, import_catalogue, rights_of
from catalogue.models import ProductSettings
from catalogue.rest.base import (
    NOT_VALID,
    BoundedJSONParser,
    Problem,
    Refusal,
    StrictSerializer,
    as_problem,
    check_parameters,
    is_set,
    read_bounded,
)
from catalogue.rest.imports import ImportViewSet
from catalogue.rest.views import ApiViewSet

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
        return {"file": read_bounded(stream).decode("utf-8", "surrogateescape")}


class CatalogueImportSerializer(StrictSerializer):
    """A file of the export, and the secrets that it names."""

    file = serializers.CharField(trim_whitespace=False, help_text="The YAML text.")
    secrets = serializers.DictField(
        child=serializers.DictField(child=serializers.CharField(trim_whitespace=False)),
        default=dict,
        write_only=True,
        help_text="By source and setting. Stored secrets that are not given are kept.",
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


PLAN = OpenApiParameter("plan", bool, description="Write nothing; return what would change.")
PRUNE = OpenApiParameter(
    "prune", bool, description="Remove objects that the sections of the file do not have."
)
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

    @extend_schema(parameters=[SECTION], responses={(200, MEDIA_TYPE): OpenApiTypes.OBJECT})
    @action(detail=False, methods=["get"], renderer_classes=[YAMLRenderer, JSONRenderer])
    def export(self, request: Request) -> HttpResponse:
        """Export the curation.
        Settings, groups, sources without secrets, exposure rules, toolsets and what curators decided of
        workflows, as YAML that `POST /api/catalogue/import` reads. Members of staff get the sections that
        they may see."""
        check_parameters(request, SECTION)
        wanted = request.query_params.getlist("section") or list(SECTIONS)
        if unknown := [name for name in wanted if name not in SECTIONS]:
            message = f"Unknown section {unknown[0][:100]}. The sections are {', '.join(SECTIONS)}."
            raise Refusal.invalid(message, [Problem("?section", message)])
        if request.auth is None:
            wanted = sections_for(request.user, wanted)
        record_export(actor_of(request), "configuration", sections=wanted)
        response = HttpResponse(export_catalogue(wanted), content_type=f"{MEDIA_TYPE}; charset=utf-8")
        response["Content-Disposition"] = f'attachment; filename="{FILE_NAME}"'
        return response

    @extend_schema(
        operation_id="catalogue_import",
        parameters=[PLAN, PRUNE],
        request={"application/json": CatalogueImportSerializer, MEDIA_TYPE: OpenApiTypes.OBJECT},
        responses={200: PlanSerializer, 400: as_problem(REFUSED)},
        examples=[OpenApiExample("A toolset", EXAMPLE, request_only=True, media_type="application/json")],
    )
    @action(detail=False, methods=["post"], url_path="import", parser_classes=[BoundedJSONParser, YAMLParser])
    def import_file(self, request: Request) -> Response:
        """Import the curation.
        Makes the catalogue what the file says: all of it, or nothing. An object that the file has is
        described by it as a whole; others stay unless they are pruned. Groups are for superusers, and not
        for tokens. The file may be the body itself, as `application/yaml`."""
        check_parameters(request, PLAN, PRUNE)
        asked = self.read_body(CatalogueImportSerializer)
        content = asked["file"].encode("utf-8", "surrogateescape")
        plan = import_catalogue(
            CatalogueImportRequest(
                file=CatalogueFile.read(content),
                secrets=asked["secrets"],
                prune=is_set(request, PRUNE),
                secret_hint=lambda source, secret: (
                    f'give it as {{"secrets": {{"{source}": {{"{secret}": "..."}}}}}} beside the file'
                ),
                by=actor_of(request),
                rights=rights_of(request.user if request.auth is None else None),
                dry_run=is_set(request, PLAN),
            )
        )
        return Response(PlanSerializer(plan).data)


@extend_schema_field({"oneOf": [{"type": "boolean"}, {"type": "number"}]})
class SettingValueField(serializers.Field[Any, Any, Any, Any]):
    def to_representation(self, value: Any) -> Any:
        return value


class SettingSerializer(serializers.Serializer[product_settings.LiveSetting]):
    """One setting, and where its value comes from."""

    name = serializers.CharField()
    value = SettingValueField(help_text="The present value.")
    origin = serializers.CharField(
        help_text="`changed here`: by an administrator; `environment` and `default`: unchanged."
    )
    default = SettingValueField(help_text="The value without a change.")
    variable = serializers.CharField(help_text="The environment variable of the default.")
    description = serializers.CharField()


@cache
def _serializer_of(curated: Curated) -> type[StrictSerializer]:
    """Makes the serializer of a model that has one row, which is a section of the configuration file too."""
    meta = type("Meta", (), {"model": curated.model, "fields": curated.fields})
    bases = (StrictSerializer, serializers.ModelSerializer)
    return type(f"{curated.model.__name__}Serializer", bases, {"Meta": meta, "__module__": __name__})


class SettingsSerializer(serializers.Serializer[Any]):
    settings = SettingSerializer(many=True)

    def get_fields(self) -> dict[str, Any]:
        rows = {name: _serializer_of(curated)(required=False) for name, curated in ROWS.items()}
        return {**super().get_fields(), **rows}


def _field(setting: product_settings.LiveSetting) -> serializers.Field[Any, Any, Any, Any]:
    common: dict[str, Any] = {"required": False, "allow_null": True, "help_text": setting.description}
    if setting.type is bool:
        return serializers.BooleanField(**common)
    bounds = {"min_value": setting.minimum, "max_value": setting.maximum}
    common |= {name: bound for name, bound in bounds.items() if bound is not None}
    return (serializers.IntegerField if setting.type is int else serializers.FloatField)(**common)


SettingsChangeSerializer = type(
    "SettingsChangeSerializer",
    (StrictSerializer,),
    {
        "__doc__": "The settings to change; null restores the environment's value.",
        "__module__": __name__,
        **{name: _field(setting) for name, setting in product_settings.live_settings().items()},
        **{name: _serializer_of(curated)(required=False) for name, curated in ROWS.items()},
    },
)


@extend_schema(tags=["Settings"])
class SettingsViewSet(ApiViewSet[ProductSettings]):
    queryset = ProductSettings.objects.none()
    filter_backends = ()
    pagination_class = None
    access = {
        "retrieve": Access(Scope.ADMIN, "catalogue.view_productsettings"),
        "partial_update": Access(Scope.ADMIN, "catalogue.change_productsettings"),
    }

    @extend_schema(responses=SettingsSerializer)
    def retrieve(self, request: Request) -> Response:
        """Read the settings that can be changed.
        Those that take effect within seconds, in all processes. For administrators."""
        return Response(_settings(request))

    @extend_schema(
        operation_id="settings_update", request=SettingsChangeSerializer, responses=SettingsSerializer
    )
    def partial_update(self, request: Request) -> Response:
        """Change settings.
        Only those that are named; null takes a change back. All of them, or none."""
        body = self.read_body(SettingsChangeSerializer, partial=True)
        rows = {ROWS[name].model: body.pop(name) for name in ROWS if name in body}
        for model in rows:
            demand_of_staff(request, f"{model._meta.app_label}.change_{model._meta.model_name}")
        row = product_settings.settings_row()
        token: Any = request.auth
        by = f"user {request.user.get_username()}" if token is None else f"token {token.caller.name}"
        try:
            phrases = product_settings.change_settings(body, by=by)
        except product_settings.InvalidSettings as error:
            problems = [Problem(f"/{name}", problem) for name, problem in error.problems.items()]
            raise Refusal.invalid(NOT_VALID, problems) from None
        if phrases:
            self.record(f"Changed {'; '.join(phrases)}.", row)
        for model, values in rows.items():
            changed = row_of(model)
            for name, value in values.items():
                setattr(changed, name, value)
            changed.save()
            self.record(f"Changed {', '.join(values)}.", changed)
        return Response(_settings(request))


def _settings(request: Request) -> Any:
    shown = ROWS if request.auth is not None else sections_for(request.user, ROWS)
    rows = {name: row_of(ROWS[name].model) for name in shown}
    return SettingsSerializer({"settings": product_settings.live_settings().values(), **rows}).data
