from collections.abc import Collection
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiExample, OpenApiResponse, PolymorphicProxySerializer, extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from access.callers import Scope
from access.permissions import Access, admin_access
from catalogue.exposure import FilterChain, enabled_filters
from catalogue.history import actor_of
from catalogue.http_tools import KIND, StoredTool, stored_tool_of, write_tool_config
from catalogue.imports.pipeline import ToolsRefused
from catalogue.imports.tools import (
    ToolSubmission,
    place_of,
    read_submission,
    read_tool,
    remove_tool,
    replace_tool,
    store_tools,
)
from catalogue.models import Workflow, WorkflowFilter
from catalogue.reconciliation import Change
from catalogue.rest.base import FIELDS, Problem, Refusal, StringListField, as_problem, wanted_fields
from catalogue.rest.views import ApiViewSet
from catalogue.rest.workflows import ToolFilters, seen_by_caller
from connectors.http_tools.tool import ToolConfig

EXAMPLE = {
    "name": "get_order",
    "description": "Reads one order: its state, its lines and what it costs.",
    "api": {
        "endpoint": "https://api.example.com/v1/orders/{order_id}",
        "method": "GET",
        "authentication": {"type": "bearer", "token": "the-apis-token"},
    },
    "input_schema": {
        "type": "object",
        "properties": {"order_id": {"type": "string", "description": "Such as A-1001."}},
        "required": ["order_id"],
    },
    "field_mappings": {"output": {"state": "/state", "total": "/amount/total"}},
}
NOT_STORED = "Nothing was stored. `errors` has each invalid field."
SUBMISSION = PolymorphicProxySerializer(
    component_name="Tools",
    serializers=[ToolConfig, ToolSubmission],  # type: ignore[list-item]
    resource_type_field_name=None,
)


class ToolChangeSerializer(serializers.Serializer[Any]):
    """The outcome for one tool."""

    id = serializers.CharField(
        source="tool_id", help_text="Unique and permanent. `tool_ids` and agents use it."
    )
    name = serializers.CharField(help_text="As submitted.")
    source = serializers.CharField(help_text="The source it belongs to.")  # type: ignore[assignment]
    change = serializers.ChoiceField(choices=[change.value for change in Change])
    exposed = serializers.BooleanField(help_text="Whether agents see it and may call it.")
    hidden_because = serializers.CharField(help_text="Why they do not; empty if they do.")
    note = serializers.CharField(help_text="Further information, such as why the id is not the name.")


class StoredToolsSerializer(serializers.Serializer[Any]):
    """The outcome of a submission, or of a dry run."""

    tools = ToolChangeSerializer(many=True, help_text="In the order of the submission.")
    new_sources = StringListField(help_text="Sources that were added.")
    notes = StringListField(help_text="Further information.")
    dry_run = serializers.BooleanField(help_text="Whether nothing was stored.")


@extend_schema(tags=["Tools"])
class ToolViewSet(ApiViewSet[Workflow]):
    queryset = Workflow.objects.none()
    serializer_class = StoredToolsSerializer
    filterset_class = ToolFilters
    lookup_field = "tool_name"
    lookup_url_kwarg = "id"
    lookup_value_regex = "[A-Za-z0-9_.-]+"
    access = {
        "list": Access(Scope.READ, "catalogue.view_workflow"),
        "retrieve": Access(Scope.READ, "catalogue.view_workflow"),
        **admin_access("catalogue.change_source", "create", "update", "destroy"),
    }

    def get_queryset(self) -> QuerySet[Workflow]:
        tools = Workflow.objects.present().filter(source__kind=KIND)
        tools = tools.select_related("source").order_by("tool_name")
        return seen_by_caller(self.request, tools)

    def handle_exception(self, error: Exception) -> Response:
        if isinstance(error, ToolsRefused):
            raw = self.request.data if self.action == "create" else None
            problems = [Problem(place_of(fault, raw), fault.message) for fault in error.problems]
            error = Refusal.invalid(NOT_STORED, problems)
        return super().handle_exception(error)

    @extend_schema(
        responses={200: StoredTool, 404: as_problem("`ids` has some that do not exist; `errors` names them.")}
    )
    def list(self, request: Request) -> Response:
        """List HTTP tools.
        Those that are declared here, without secrets; what engines list is under `/api/workflows/`.
        Callers with the scope `workflows:read` see what agents see. `GET /tools` answers the same."""
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        chain = enabled_filters()
        wanted = _wanted(request)
        shown = [_shown(workflow, chain) for workflow in page or []]
        return self.get_paginated_response([_only(tool, wanted) for tool in shown])

    @extend_schema(responses=StoredTool)
    def retrieve(self, request: Request, id: str) -> Response:
        """Read an HTTP tool.
        As it would be submitted, without secrets."""
        return Response(_only(_shown(self.get_object()), _wanted(request)))

    @extend_schema(
        request=SUBMISSION,
        responses={
            201: OpenApiResponse(StoredToolsSerializer, "At least one tool is new."),
            200: OpenApiResponse(StoredToolsSerializer, "No tool is new, or nothing was to be stored."),
            400: as_problem("`errors` names each mistake. Nothing was stored."),
        },
        examples=[
            OpenApiExample("One tool", EXAMPLE, request_only=True),
            OpenApiExample("What would change", {"tools": [EXAMPLE], "dry_run": True}, request_only=True),
        ],
    )
    def create(self, request: Request) -> Response:
        """Store HTTP tools.
        One ToolConfig, a list of them, or `{tools, source, expose, dry_run}`. A tool belongs to the source
        of its API: one whose base URL its endpoint begins with and which authenticates in the same way,
        else a new one. Stored again, it changes or stays as it is, and keeps its id. Secrets are stored
        encrypted with the source and never shown; leave them out where the source has them. `POST /tools`
        does the same."""
        asked = read_submission(request.data)
        stored = store_tools(
            asked.tools,
            source=asked.source,
            expose=asked.expose,
            dry_run=asked.dry_run,
            may_add_source=request.auth is not None or request.user.has_perm("catalogue.add_source"),
            by=actor_of(request),
        )
        answer = StoredToolsSerializer(stored).data
        is_new = not asked.dry_run and any(tool.change is Change.ADDED for tool in stored.tools)
        return Response(answer, status.HTTP_201_CREATED if is_new else status.HTTP_200_OK)

    @extend_schema(
        request=ToolConfig,
        responses=StoredTool,
        examples=[OpenApiExample("The whole tool", EXAMPLE, request_only=True)],
    )
    def update(self, request: Request, id: str) -> Response:
        """Replace an HTTP tool.
        The body is the complete new definition. The tool keeps its id, name and source, and the source
        keeps its secrets; for another API, submit another tool. The body may contain the further fields
        that a read returns, if they are unchanged."""
        workflow = self.get_object()
        tool = read_tool(_declared_part(request.data, _shown(workflow)))
        replace_tool(workflow, tool, by=actor_of(request))
        return Response(_shown(self.get_object()))

    def destroy(self, request: Request, id: str) -> Response:
        """Remove an HTTP tool.
        The tool can no longer be called. Its executions and its source are kept. If you store it again, it
        gets the same id."""
        workflow = self.get_object()
        self.record("Removed the tool.", workflow)
        remove_tool(workflow)
        return Response(status=status.HTTP_204_NO_CONTENT)


@extend_schema(exclude=True)
class RootToolViewSet(ToolViewSet):
    """The same at `/tools`, for front ends; documented once."""

    access = {action: ToolViewSet.access[action] for action in ("list", "create")}


def _shown(workflow: Workflow, chain: FilterChain[WorkflowFilter] | None = None) -> dict[str, Any]:
    chain = chain or enabled_filters()
    return write_tool_config(stored_tool_of(workflow, chain))


def _wanted(request: Request) -> Collection[str]:
    """Raises Refusal."""
    known = StoredTool.model_fields
    return wanted_fields(request, known) if FIELDS in request.query_params else known


def _only(tool: dict[str, Any], wanted: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in tool.items() if name in wanted}


def _declared_part(raw: Any, shown: dict[str, Any]) -> Any:
    """Accepts a tool as it was read; changed read-only fields are refused."""
    if not isinstance(raw, dict):
        return raw
    read_only = [key for key in StoredTool.model_fields if key in raw and key not in ToolConfig.model_fields]
    if problems := [
        Problem(f"/{key}", f"This is {shown[key]!r} now and is not changed here: leave it out.")
        for key in read_only
        if raw[key] != shown[key]
    ]:
        raise Refusal.invalid(NOT_STORED, problems)
    return {key: value for key, value in raw.items() if key not in read_only}
