"""REST's door to the catalogue."""

from collections.abc import Iterable
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404
from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import mixins, status
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError as InvalidRequest
from rest_framework.request import Request
from rest_framework.response import Response

from catalogue.curation import (
    UnknownWorkflows,
    choose_workflows,
    disable_workflows,
    enable_as_seen,
    enable_workflows,
    override_workflow,
)
from catalogue.discovery import RefreshRefused, refresh_source
from catalogue.exposure import confirmed_catalogue
from catalogue.history import actor_of, changed_fields
from catalogue.models import DiscoveryRun, Source, Workflow
from catalogue.permissions import Access, is_administrator, toolset_of
from catalogue.rest.description import ProblemSerializer
from catalogue.rest.errors import Problem, Refusal
from catalogue.rest.filters import DiscoveryRunFilters, SourceFilters, WorkflowFilters
from catalogue.rest.serializers import (
    CheckSerializer,
    DiscoveryRunDetailSerializer,
    DiscoveryRunSerializer,
    NewSourceSerializer,
    SourceChangeSerializer,
    SourceSerializer,
)
from catalogue.rest.views import ApiViewSet
from catalogue.rest.workflow_serializers import (
    ChangedSerializer,
    OverridesSerializer,
    SeenSerializer,
    SelectionSerializer,
    WorkflowDetailSerializer,
    WorkflowSerializer,
)
from catalogue.review import ReviewRefused, confirm_listing
from catalogue.scopes import Scope
from catalogue.sources import UPDATABLE, check_source, configure_source, create_source, update_source

NAME = "[A-Za-z0-9_.-]+"
CHANGED = {
    200: ChangedSerializer,
    404: OpenApiResponse(ProblemSerializer, "There is no such source or workflow; nothing was changed."),
}
NEW_SOURCE = {
    "name": "orders",
    "kind": "simplified",
    "config": {"base_url": "https://engine.example.com"},
    "credentials": {"api_key": "the-engines-key"},
    "new_workflows": "hidden",
}


@extend_schema_view(
    list=extend_schema(
        summary="List sources", description="With the health that their last listings showed."
    ),
    retrieve=extend_schema(summary="Read a source"),
    destroy=extend_schema(
        summary="Delete a source",
        description="Its workflows go with it, at once and for good; records of executions stay. "
        "What has not been started fails. Runs that are under way may go on at the engine, where nobody can "
        "be asked about them any more: their executions become `unconfirmed`, for an administrator to "
        "resolve. To take it out of service for a while, set `enabled` to false instead.",
    ),
)
@extend_schema(tags=["Sources"])
class SourceViewSet(
    mixins.ListModelMixin, mixins.RetrieveModelMixin, mixins.DestroyModelMixin, ApiViewSet[Source]
):
    serializer_class = SourceSerializer
    filterset_class = SourceFilters
    lookup_field = "name"
    lookup_value_regex = NAME
    access = {
        "list": Access(Scope.ADMIN, "catalogue.view_source"),
        "retrieve": Access(Scope.ADMIN, "catalogue.view_source"),
        "create": Access(Scope.ADMIN, "catalogue.add_source"),
        "partial_update": Access(Scope.ADMIN, "catalogue.change_source"),
        "destroy": Access(Scope.ADMIN, "catalogue.delete_source"),
        "check": Access(Scope.ADMIN, "catalogue.change_source"),
        "refresh": Access(Scope.ADMIN, "catalogue.change_source"),
    }

    def get_queryset(self) -> QuerySet[Source]:
        return Source.objects.with_workflow_counts().order_by("name")

    @extend_schema(
        summary="Add a source",
        description="Its first listing is due at once.",
        request=NewSourceSerializer,
        responses={201: SourceSerializer},
        examples=[OpenApiExample("An engine of kind simplified", NEW_SOURCE, request_only=True)],
    )
    @transaction.atomic
    def create(self, request: Request) -> Response:
        asked = NewSourceSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        try:
            source = create_source(**asked.validated_data)
        except ValidationError as error:
            raise Refusal.of_settings(error) from None
        self.record("Added.", source)
        return self._shown(source, status.HTTP_201_CREATED)

    @extend_schema(
        summary="Change a source",
        description="`config` and `credentials` are each replaced as a whole; what is not named stays.",
        request=SourceChangeSerializer(partial=True),
        responses=SourceSerializer,
        examples=[OpenApiExample("Switch it off", {"enabled": False}, request_only=True)],
    )
    @transaction.atomic
    def partial_update(self, request: Request, name: str) -> Response:
        source = self.get_object()
        asked = SourceChangeSerializer(data=request.data, partial=True)
        asked.is_valid(raise_exception=True)
        try:
            _change(source, asked.validated_data)
        except ValidationError as error:
            raise Refusal.of_settings(error) from None
        self.record(changed_fields(asked.validated_data), source)
        return self._shown(source)

    @transaction.atomic
    def perform_destroy(self, instance: Source) -> None:
        self.record_deletion(instance)
        instance.delete()

    @extend_schema(
        operation_id="sources_check",
        summary="Check a source's connection",
        description="Tries to talk to the engine now. The answer is 200 also when it does not work.",
        request=None,
        responses=CheckSerializer,
    )
    @action(detail=True, methods=["post"])
    def check(self, request: Request, name: str) -> Response:
        return Response(CheckSerializer(check_source(self.get_object())).data)

    @extend_schema(
        operation_id="sources_refresh",
        summary="Refresh a source",
        description="Lists the engine's workflows now and waits for the result. "
        "The answer is 200 also for a listing that failed or is held: its `outcome` and `error` say so.",
        request=None,
        responses={
            200: DiscoveryRunDetailSerializer,
            409: OpenApiResponse(ProblemSerializer, "It is switched off, or being refreshed already."),
        },
    )
    @action(detail=True, methods=["post"])
    def refresh(self, request: Request, name: str) -> Response:
        source = self.get_object()
        self.record("Asked for a listing.", source)
        try:
            run = refresh_source(source)
        except RefreshRefused as refused:
            raise Refusal(status.HTTP_409_CONFLICT, str(refused), kind="discovery") from None
        return Response(DiscoveryRunDetailSerializer(run).data)

    def _shown(self, source: Source, code: int = status.HTTP_200_OK) -> Response:
        return Response(SourceSerializer(self.get_queryset().get(pk=source.pk)).data, code)


@transaction.atomic
def _change(source: Source, asked: dict[str, Any]) -> None:
    decisions = {name: value for name, value in asked.items() if name in UPDATABLE}
    connection = {name: value for name, value in asked.items() if name not in UPDATABLE}
    if decisions:
        update_source(source, **decisions)
    if connection:
        configure_source(source, **connection)


@extend_schema_view(
    list=extend_schema(
        summary="List workflows",
        description="Without schemas; a single workflow has them. Callers with the scope `workflows:read` "
        "see what agents see, administrators everything. A token that is bound to a toolset sees no more "
        "than that shows.",
    ),
    retrieve=extend_schema(
        summary="Read a workflow",
        description="By its tool name, or by a former one as long as calls by that still run.",
        responses=WorkflowDetailSerializer,
    ),
)
@extend_schema(tags=["Workflows"])
class WorkflowViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, ApiViewSet[Workflow]):
    queryset = Workflow.objects.none()
    filterset_class = WorkflowFilters
    lookup_field = "tool_name"
    lookup_value_regex = NAME
    access = {
        "list": Access(Scope.READ, "catalogue.view_workflow"),
        "retrieve": Access(Scope.READ, "catalogue.view_workflow"),
        "partial_update": Access(Scope.ADMIN, "catalogue.change_workflow"),
        "enable": Access(Scope.ADMIN, "catalogue.change_workflow"),
        "disable": Access(Scope.ADMIN, "catalogue.change_workflow"),
        "enable_many": Access(Scope.ADMIN, "catalogue.change_workflow"),
        "disable_many": Access(Scope.ADMIN, "catalogue.change_workflow"),
    }

    def get_queryset(self) -> QuerySet[Workflow]:
        workflows = Workflow.objects.select_related("source").order_by("tool_name")
        if self.action == "list":
            workflows = workflows.for_lists()
        if is_administrator(self.request):
            return workflows
        seen = confirmed_catalogue().seen_through(toolset_of(self.request))
        return workflows.filter(tool_name__in=list(seen))

    def get_object(self) -> Workflow:
        """Reading knows former names while calls by them still run; changes name the present one."""
        try:
            return super().get_object()
        except Http404:
            name = self.kwargs[self.lookup_field]
            if self.action != "retrieve" or (alias := Workflow.objects.live_aliases().get(name)) is None:
                raise
            self.kwargs[self.lookup_field], _ = alias
            return super().get_object()

    def get_serializer_class(self) -> type[WorkflowSerializer]:
        return WorkflowSerializer if self.action == "list" else WorkflowDetailSerializer

    @extend_schema(
        operation_id="workflows_override",
        summary="Override what the engine says",
        description="Sets the curator's own words and limits; what is not named stays. "
        "An empty text or null takes the engine's word or the product's default again.",
        request=OverridesSerializer(partial=True),
        responses=WorkflowDetailSerializer,
        examples=[
            OpenApiExample(
                "Words and a limit",
                {"title": "Count words", "tags": ["text"], "timeout_seconds": 60},
                request_only=True,
            )
        ],
    )
    @transaction.atomic
    def partial_update(self, request: Request, tool_name: str) -> Response:
        workflow = self.get_object()
        asked = OverridesSerializer(data=request.data, partial=True)
        asked.is_valid(raise_exception=True)
        try:
            override_workflow(workflow, **asked.validated_data)
        except ValidationError as error:
            raise InvalidRequest(_by_field_of_request(error)) from None
        self.record(changed_fields(_by_name_of_request(asked.validated_data)), workflow)
        return self._shown(workflow)

    @extend_schema(
        operation_id="workflows_enable",
        summary="Enable a workflow",
        description="Hidden workflows follow their engine. With the `content_hash` that was looked at "
        "(`upstream.content_hash`), one that says something else by now stays hidden.",
        request=SeenSerializer,
        responses={
            200: WorkflowDetailSerializer,
            409: OpenApiResponse(ProblemSerializer, "The engine has changed it; nothing was changed."),
        },
    )
    @action(detail=True, methods=["post"])
    def enable(self, request: Request, tool_name: str) -> Response:
        workflow = self.get_object()
        asked = SeenSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        seen, by = asked.validated_data.get("content_hash"), actor_of(request)
        if seen is None:
            enable_workflows(Workflow.objects.filter(pk=workflow.pk), by=by)
        elif told := enable_as_seen({workflow.pk: seen}, by=by).tell_unseen():
            raise Refusal(status.HTTP_409_CONFLICT, told)
        return self._shown(workflow)

    @extend_schema(
        operation_id="workflows_disable",
        summary="Disable a workflow",
        request=None,
        responses=WorkflowDetailSerializer,
    )
    @action(detail=True, methods=["post"])
    def disable(self, request: Request, tool_name: str) -> Response:
        workflow = self.get_object()
        disable_workflows(Workflow.objects.filter(pk=workflow.pk), by=actor_of(request))
        return self._shown(workflow)

    @extend_schema(
        operation_id="workflows_enable_many",
        summary="Enable workflows of a source",
        description="All or none: an unknown name changes nothing.",
        request=SelectionSerializer,
        responses=CHANGED,
        examples=[
            OpenApiExample("All", {"source": "orders", "all": True}, request_only=True),
            OpenApiExample("Some", {"source": "orders", "names": ["text_statistics"]}, request_only=True),
        ],
    )
    @action(detail=False, methods=["post"], url_path="enable", url_name="enable-many")
    def enable_many(self, request: Request) -> Response:
        return Response({"changed": enable_workflows(_chosen(request), by=actor_of(request))})

    @extend_schema(
        operation_id="workflows_disable_many",
        summary="Disable workflows of a source",
        description="All or none: an unknown name changes nothing.",
        request=SelectionSerializer,
        responses=CHANGED,
        examples=[OpenApiExample("All", {"source": "orders", "all": True}, request_only=True)],
    )
    @action(detail=False, methods=["post"], url_path="disable", url_name="disable-many")
    def disable_many(self, request: Request) -> Response:
        return Response({"changed": disable_workflows(_chosen(request), by=actor_of(request))})

    def _shown(self, workflow: Workflow) -> Response:
        workflow.refresh_from_db()
        return Response(self.get_serializer(workflow).data)


def _by_name_of_request(given: Iterable[str]) -> list[str]:
    return [name.removesuffix("_override") for name in given]


def _by_field_of_request(error: ValidationError) -> dict[str, list[str]]:
    """The rooms say `title_override` where the request says `title`."""
    return {name.removesuffix("_override"): messages for name, messages in error.message_dict.items()}


def _chosen(request: Request) -> QuerySet[Workflow]:
    asked = SelectionSerializer(data=request.data)
    asked.is_valid(raise_exception=True)
    wanted = asked.validated_data["source"]
    source = Source.objects.filter(name=wanted).first()
    if source is None:
        raise Refusal(404, f"Nothing was changed: there is no source {wanted}.")
    try:
        return choose_workflows(source, asked.validated_data.get("names"))
    except UnknownWorkflows as unknown:
        problems = [Problem("/names", f"No such workflow: {name}") for name in unknown.names]
        raise Refusal(404, "Nothing was changed: some names are unknown.", errors=problems) from None


@extend_schema_view(
    list=extend_schema(summary="List discovery runs"),
    retrieve=extend_schema(
        summary="Read a discovery run",
        description="With every object that was skipped or flagged, and why.",
        responses=DiscoveryRunDetailSerializer,
    ),
)
@extend_schema(tags=["Discovery runs"])
class DiscoveryRunViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, ApiViewSet[DiscoveryRun]):
    queryset = DiscoveryRun.objects.none()
    filterset_class = DiscoveryRunFilters
    lookup_value_regex = "[0-9]{1,18}"
    access = {
        "list": Access(Scope.ADMIN, "catalogue.view_discoveryrun"),
        "retrieve": Access(Scope.ADMIN, "catalogue.view_discoveryrun"),
        "confirm": Access(Scope.ADMIN, "catalogue.change_source"),
    }

    def get_queryset(self) -> QuerySet[DiscoveryRun]:
        runs = DiscoveryRun.objects.select_related("source").order_by("-started_at", "-pk")
        return runs.for_lists() if self.action == "list" else runs

    def get_serializer_class(self) -> type[DiscoveryRunSerializer]:
        return DiscoveryRunSerializer if self.action == "list" else DiscoveryRunDetailSerializer

    @extend_schema(
        operation_id="discovery_runs_confirm",
        summary="Confirm a held listing",
        description="Says that the workflows which it has lost are gone, and lists the source anew. That "
        "listing is the answer; it is held again if it has lost others.",
        request=None,
        responses={
            200: DiscoveryRunDetailSerializer,
            202: OpenApiResponse(
                DiscoveryRunDetailSerializer,
                "Confirmed; the source is being listed already, or switched off: the next listing counts.",
            ),
            409: OpenApiResponse(ProblemSerializer, "It is not held, or a later listing was good."),
        },
    )
    @action(detail=True, methods=["post"])
    def confirm(self, request: Request, pk: str) -> Response:
        held = self.get_object()
        try:
            run = confirm_listing(held, by=actor_of(request))
        except ReviewRefused as refused:
            raise Refusal(status.HTTP_409_CONFLICT, str(refused), kind="discovery") from None
        code = status.HTTP_202_ACCEPTED if run is None else status.HTTP_200_OK
        return Response(DiscoveryRunDetailSerializer(run or self.get_object()).data, code)
