from typing import Any

from django.db.models import QuerySet
from django.http import QueryDict
from django.shortcuts import get_object_or_404
from drf_spectacular.helpers import forced_singular_serializer
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from catalogue.access import Scope
from catalogue.database import run_without_connection
from catalogue.models import Source
from catalogue.permissions import Access
from catalogue.rest import base
from catalogue.rest.views import ApiViewSet
from connectors.errors import ConnectorError, Rejected, Unsupported
from connectors.protocol import RunFilter, RunState
from executions.engine_runs import LARGEST_PAGE, USUAL_PAGE, EngineRun, list_engine_runs
from executions.models import Execution

LONGEST_TEXT = 255
LONGEST_QUERY = 2_000
LONGEST_CURSOR = 4_000
STATES = [state.value for state in RunState]


class RunFilterSerializer(base.StrictSerializer):
    """Which runs to list."""

    workflow = serializers.CharField(
        required=False, max_length=LONGEST_TEXT, help_text="The engine's name of the workflow."
    )
    state = serializers.MultipleChoiceField(
        choices=STATES, required=False, help_text="Several may be named: `state=running&state=failed`."
    )
    run = serializers.CharField(
        required=False, max_length=LONGEST_TEXT, help_text="What the run's id begins with."
    )
    started_after = serializers.DateTimeField(required=False, help_text="Or at that very moment.")
    started_before = serializers.DateTimeField(required=False)
    query = serializers.CharField(
        required=False,
        max_length=LONGEST_QUERY,
        help_text="A further condition in the engine's own query language.",
    )
    page_size = serializers.IntegerField(default=USUAL_PAGE, min_value=1, max_value=LARGEST_PAGE)
    cursor = serializers.CharField(
        default="", max_length=LONGEST_CURSOR, help_text="`next_cursor` of the page before."
    )

    @property
    def run_filter(self) -> RunFilter:
        asked = self.validated_data
        return RunFilter(
            workflow=asked.get("workflow", ""),
            run=asked.get("run", ""),
            states=frozenset(RunState(state) for state in asked.get("state", ())),
            started_after=asked.get("started_after"),
            started_before=asked.get("started_before"),
            engine_query=asked.get("query", ""),
        )


class EngineRunSerializer(serializers.Serializer[EngineRun]):
    run_id = serializers.CharField(source="listed.run_id")
    workflow = serializers.CharField(source="listed.workflow", help_text="The engine's name of it.")
    state = serializers.ChoiceField(choices=STATES, source="listed.state")
    told_state = serializers.CharField(source="listed.told_state", help_text="In the engine's own word.")
    started_at = serializers.DateTimeField(source="listed.started_at", allow_null=True)
    finished_at = serializers.DateTimeField(source="listed.finished_at", allow_null=True)
    details = base.JSONObjectField(source="listed.details", help_text="The engine's further details.")
    execution_id = serializers.SerializerMethodField(
        help_text="The execution it belongs to; null for runs started by other clients."
    )

    def get_execution_id(self, run: EngineRun) -> str | None:
        return None if run.execution is None else str(run.execution.pk)


class EngineRunPageSerializer(serializers.Serializer[Any]):
    results = EngineRunSerializer(source="runs", many=True)
    next_cursor = serializers.CharField(help_text="For the next page; empty on the last one.")


@extend_schema(tags=["Sources"])
class EngineRunViewSet(ApiViewSet[Execution]):
    queryset: QuerySet[Execution] = Execution.objects.none()
    filter_backends = ()
    pagination_class = None
    access = {"list": Access(Scope.ADMIN, "executions.view_execution")}

    @extend_schema(
        operation_id="sources_runs",
        summary="List the runs at the engine",
        description="Asks the engine for its own list, the latest first, whichever client started "
        "them. Nothing is stored. For administrators.",
        parameters=[
            OpenApiParameter("source", location=OpenApiParameter.PATH, description="The source's name."),
            RunFilterSerializer,
        ],
        responses={
            200: forced_singular_serializer(EngineRunPageSerializer),  # type: ignore[no-untyped-call]
            400: OpenApiResponse(base.ProblemSerializer, "The engine cannot filter by this."),
            409: OpenApiResponse(base.ProblemSerializer, "The engine cannot list its runs."),
            503: OpenApiResponse(base.ProblemSerializer, "The engine did not answer."),
        },
    )
    def list(self, request: Request, source: str) -> Response:
        found = get_object_or_404(Source, name=source)
        asked = RunFilterSerializer(data=_without_blanks(request.query_params))
        if not asked.is_valid():
            problems = [
                base.Problem(f"?{one.path[1:]}", one.message) for one in base.find_problems(asked.errors)
            ]
            raise base.Refusal(status.HTTP_400_BAD_REQUEST, base.REFUSED, kind="validation", errors=problems)
        size, cursor = asked.validated_data["page_size"], asked.validated_data["cursor"]
        try:
            page = run_without_connection(
                list_engine_runs(found, asked.run_filter, page_size=size, cursor=cursor)
            )
        except ConnectorError as error:
            raise _refusal(error) from None
        return Response(EngineRunPageSerializer(page).data)


def _without_blanks(parameters: QueryDict) -> QueryDict:
    """Forms send empty fields too."""
    filled = QueryDict(mutable=True)
    for name, values in parameters.lists():
        if any(values):
            filled.setlist(name, [value for value in values if value])
    return filled


def _refusal(error: ConnectorError) -> base.Refusal:
    match error:
        case Rejected():
            return base.Refusal(status.HTTP_400_BAD_REQUEST, error.message, kind="validation")
        case Unsupported():
            return base.Refusal(status.HTTP_409_CONFLICT, error.message, kind="execution")
        case _:
            return base.Refusal(status.HTTP_503_SERVICE_UNAVAILABLE, error.message, kind="execution")
