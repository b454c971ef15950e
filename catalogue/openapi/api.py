"""REST's door to importing OpenAPI documents."""

from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from catalogue.history import actor_of
from catalogue.models import Source
from catalogue.openapi.importing import (
    ImportRefused,
    ImportRequest,
    Selection,
    import_document,
    permissions_to_import,
)
from catalogue.openapi.serializers import OpenApiImportSerializer
from catalogue.permissions import Access
from catalogue.rest.bodies import StrictSerializer
from catalogue.rest.description import ProblemSerializer
from catalogue.rest.errors import Problem, Refusal
from catalogue.rest.views import ApiViewSet
from catalogue.scopes import Scope

EXAMPLE = {
    "document": '{"openapi": "3.1.0", "info": {"title": "Orders", "version": "1"}, "servers": [{"url": '
    '"https://api.example.com/v1"}], "paths": {"/orders": {"get": {"operationId": "listOrders"}}}}',
    "only": ["list*", "GET /orders/*"],
    "dry_run": True,
}


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
    only = serializers.ListField(
        child=serializers.CharField(max_length=500),
        default=list,
        max_length=1_000,
        help_text="Patterns of operations' ids or paths, such as `issues/*` or `GET /repos/*`; none: all.",
    )
    tags = serializers.ListField(
        child=serializers.CharField(max_length=500),
        default=list,
        max_length=1_000,
        help_text="Operations with one of these tags; none: all.",
    )
    deprecated = serializers.BooleanField(
        default=False, help_text="Also operations that the document calls deprecated."
    )
    expose = serializers.BooleanField(default=False, help_text="Enable new tools at once.")
    prune = serializers.BooleanField(
        default=False, help_text="Remove the source's tools that this import does not bring."
    )
    settings = serializers.DictField(
        default=dict, help_text="Of a new source, besides what the document says: such as `username`."
    )
    credentials = serializers.DictField(
        child=serializers.CharField(trim_whitespace=False),
        default=dict,
        write_only=True,
        help_text="Of a new source: `api_key`, `token`, `password`, `oauth_client_secret`. Stored encrypted.",
    )
    secrets = serializers.DictField(
        child=serializers.CharField(trim_whitespace=False),
        default=dict,
        write_only=True,
        help_text="An older name for `credentials`.",
    )
    dry_run = serializers.BooleanField(default=False, help_text="Write nothing, tell what would come.")


@extend_schema(tags=["Tools"])
class OpenApiImportViewSet(ApiViewSet[Source]):
    queryset = Source.objects.none()
    serializer_class = OpenApiImportSerializer
    access = {"create": Access(Scope.ADMIN, "catalogue.view_source")}

    @extend_schema(
        operation_id="openapi_imports_create",
        summary="Import an OpenAPI document",
        description="Each chosen operation of an OpenAPI 3 document becomes an HTTP tool; each that cannot "
        "is refused with its reason and its place, and stops no other. Imported again, tools are brought up "
        "to date. The document counts towards the largest request body that is accepted.",
        request=NewOpenApiImportSerializer,
        responses={
            200: OpenApiImportSerializer,
            400: OpenApiResponse(ProblemSerializer, "Nothing was imported; `errors` tells why."),
        },
        examples=[OpenApiExample("What would come", EXAMPLE, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        asked = NewOpenApiImportSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        given = asked.validated_data
        given["secrets"] = given.pop("secrets") | given.pop("credentials")
        _check_permissions(request, given["source"])
        selection = Selection(
            only=tuple(given.pop("only")), tags=tuple(given.pop("tags")), deprecated=given.pop("deprecated")
        )
        content = given.pop("document").encode("utf-8", "surrogatepass")
        try:
            outcome = import_document(
                ImportRequest(content=content, selection=selection, by=actor_of(request), **given)
            )
        except ImportRefused as refused:
            raise Refusal(
                status.HTTP_400_BAD_REQUEST,
                "Nothing was imported; `errors` tells why.",
                kind="configuration",
                errors=[Problem("/document", reason) for reason in refused.reasons],
            ) from None
        return Response(OpenApiImportSerializer(outcome).data)


def _check_permissions(request: Request, name: str) -> None:
    for needed in permissions_to_import(name):
        if request.auth is None and not request.user.has_perm(needed):
            raise PermissionDenied(f"This needs the permission {needed}; an administrator can grant it.")
