"""REST's door to toolsets."""

from typing import Any

from django.db import transaction
from django.db.models import Prefetch, QuerySet
from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import mixins, status
from rest_framework.request import Request
from rest_framework.response import Response

from catalogue.exposure import confirmed_catalogue
from catalogue.history import changed_fields
from catalogue.models import Toolset, Workflow
from catalogue.permissions import Access
from catalogue.rest.description import ProblemSerializer
from catalogue.rest.errors import NOT_VALID, Problem, Refusal
from catalogue.rest.views import ApiViewSet
from catalogue.scopes import Scope
from catalogue.toolsets import UnknownPicks, write_toolset
from mcp_bridge.rest.filters import ToolsetFilters
from mcp_bridge.rest.serializers import (
    NewToolsetSerializer,
    ToolsetChangeSerializer,
    ToolsetDetailSerializer,
    ToolsetSerializer,
)
from mcp_bridge.toolsets import ToolsetInUse, delete_toolset

NEW_TOOLSET = {
    "slug": "finance",
    "description": "What the accounting team's agents need.",
    "rules": [{"subject": "tag", "pattern": "finance"}],
    "picked": ["text_statistics"],
    "token_budget": 4000,
}


@extend_schema_view(
    list=extend_schema(
        summary="List toolsets",
        description="With what the list of tools of each costs a client's context.",
    ),
    retrieve=extend_schema(
        summary="Read a toolset",
        description="With its rules, and the names of the workflows that it shows.",
        responses=ToolsetDetailSerializer,
    ),
)
@extend_schema(tags=["Toolsets"])
class ToolsetViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, ApiViewSet[Toolset]):
    queryset = Toolset.objects.none()
    filterset_class = ToolsetFilters
    lookup_field = "slug"
    lookup_value_regex = "[A-Za-z0-9_.-]+"
    access = {
        "list": Access(Scope.ADMIN, "catalogue.view_toolset"),
        "retrieve": Access(Scope.ADMIN, "catalogue.view_toolset"),
        "create": Access(Scope.ADMIN, "catalogue.add_toolset"),
        "partial_update": Access(Scope.ADMIN, "catalogue.change_toolset"),
        "destroy": Access(Scope.ADMIN, "catalogue.delete_toolset"),
    }

    def get_queryset(self) -> QuerySet[Toolset]:
        names = Prefetch("picked", queryset=Workflow.objects.only("tool_name").order_by())
        return Toolset.objects.prefetch_related("rules", names).order_by("slug")

    def get_serializer_class(self) -> type[ToolsetSerializer]:
        return ToolsetSerializer if self.action == "list" else ToolsetDetailSerializer

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "catalogue": confirmed_catalogue()}

    @extend_schema(
        summary="Add a toolset",
        description="Clients can connect to its address within a second.",
        request=NewToolsetSerializer,
        responses={201: ToolsetDetailSerializer},
        examples=[OpenApiExample("By tag, and one by hand", NEW_TOOLSET, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        asked = NewToolsetSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        return self._written(Toolset(), asked.validated_data, status.HTTP_201_CREATED, told="Added.")

    @extend_schema(
        summary="Change a toolset",
        description="`picked` and `rules` are each replaced as a whole; what is not named stays.",
        request=ToolsetChangeSerializer,
        responses=ToolsetDetailSerializer,
        examples=[OpenApiExample("Only the built-in tools", {"mode": "compact"}, request_only=True)],
    )
    def partial_update(self, request: Request, slug: str) -> Response:
        toolset = self.get_object()
        asked = ToolsetChangeSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        told = changed_fields(asked.validated_data)
        return self._written(toolset, asked.validated_data, status.HTTP_200_OK, told=told)

    @extend_schema(
        summary="Delete a toolset",
        description="Its address is gone at once; the workflows stay.",
        responses={
            204: None,
            409: OpenApiResponse(ProblemSerializer, "Tokens are bound to it. Nothing was changed."),
        },
    )
    @transaction.atomic
    def destroy(self, request: Request, slug: str) -> Response:
        toolset = self.get_object()
        self.record_deletion(toolset)
        try:
            delete_toolset(toolset)
        except ToolsetInUse as error:
            raise Refusal(status.HTTP_409_CONFLICT, str(error), kind="configuration") from None
        return Response(status=status.HTTP_204_NO_CONTENT)

    @transaction.atomic
    def _written(self, toolset: Toolset, asked: dict[str, Any], code: int, *, told: str) -> Response:
        try:
            written = write_toolset(toolset, **asked)
        except UnknownPicks as unknown:
            problems = [
                Problem(f"/picked/{asked['picked'].index(name)}", f"No such workflow: {name}")
                for name in unknown.names
            ]
            raise Refusal(400, NOT_VALID, kind="validation", errors=problems) from None
        self.record(told, written)
        shown = self.get_serializer(self.get_queryset().get(pk=written.pk))
        return Response(shown.data, code)
