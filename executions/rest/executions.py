from typing import Any

from django.db.models import QuerySet
from django.http import QueryDict
from django.shortcuts import get_object_or_404
from django.urls import reverse
from drf_spectacular.helpers import forced_singular_serializer
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    OpenApiResponse,
    extend_schema,
    extend_schema_view,
)
from rest_framework import mixins, serializers, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from catalogue.access import Caller, Scope
from catalogue.database import run_without_connection
from catalogue.models import Source
from catalogue.permissions import Access, admin_access
from catalogue.rest.base import (
    REFUSED,
    JSONObjectField,
    LongPages,
    Problem,
    Refusal,
    StrictSerializer,
    as_problem,
    find_problems,
)
from catalogue.rest.tables import FORMAT, TableMixin
from catalogue.tables import CSV
from connectors.protocol import RunFilter, RunState
from executions import engine_runs
from executions.engine_runs import LARGEST_PAGE, USUAL_PAGE, EngineRun, list_engine_runs
from executions.interacting import CancelOutcome, cancel_execution, query_execution, signal_execution
from executions.models import Execution
from executions.models.lifecycle import StartRequest
from executions.rest import base
from executions.rest.base import (
    AnyJSONField,
    CancellationSerializer,
    ExecutionDetailSerializer,
    ExecutionSerializer,
    NotCancelledSerializer,
    ResolveSerializer,
    StartSerializer,
)
from executions.starting import create_execution
from executions.waiting import start_and_wait
from executions.wakeups import request_poll, request_poll_if_stale

REFUSALS = {
    400: as_problem("The workflow declares no such query or signal, or the arguments do not match."),
    409: as_problem("The run is not running, or the engine does not support the request or refused it."),
    503: as_problem("The engine did not answer. Nothing happened; try again later."),
}
MAX_TEXT = 255
MAX_QUERY = 2_000
MAX_CURSOR = 4_000
STATES = [state.value for state in RunState]


class TalkSerializer(StrictSerializer):
    """A query for a run, or a signal to it."""

    name = serializers.CharField(max_length=255, help_text="The name that the workflow declares.")
    arguments = JSONObjectField(default=dict, help_text="The arguments, which must match its inputSchema.")


class AnswerSerializer(serializers.Serializer[Any]):
    execution_id = serializers.UUIDField(source="execution.pk")
    query = serializers.CharField()
    answer = AnyJSONField(source="value", help_text="The run's answer.")


CANCEL_CODES = {
    CancelOutcome.CANCELLED: status.HTTP_200_OK,
    CancelOutcome.REQUESTED: status.HTTP_202_ACCEPTED,
    CancelOutcome.ALREADY_FINISHED: status.HTTP_409_CONFLICT,
    CancelOutcome.NOT_SUPPORTED: status.HTTP_409_CONFLICT,
    CancelOutcome.REFUSED: status.HTTP_409_CONFLICT,
}
RENAMED = ("Tool-Renamed-To", "The current name of the tool, if the request used a former name.")


@extend_schema_view(
    list=extend_schema(
        summary="List executions",
        description="The newest first, without payloads. Callers who are not administrators see only their "
        "own. Pages with `cursor` repeat and miss no row while others are added, and have no `count`.",
        parameters=[FORMAT],
        responses={(200, "application/json"): ExecutionSerializer(many=True), (200, CSV): OpenApiTypes.STR},
    ),
    retrieve=extend_schema(
        summary="Read an execution",
        description="State and progress while it runs; once it is settled, the final result or error, the "
        "engine's raw answers and the timeline. Workers keep the record up to date: reading asks no engine.",
    ),
)
@extend_schema(tags=["Executions"])
class ExecutionViewSet(TableMixin[Execution], mixins.RetrieveModelMixin, base.ExecutionsViewSet[Execution]):
    queryset = Execution.objects.none()
    filterset_class = base.ExecutionFilters
    pagination_class = LongPages
    newest_by = "created_at"
    lookup_value_regex = "[0-9a-fA-F-]{36}"
    access = {
        "list": Access(Scope.READ, "executions.view_execution"),
        # A client that may start runs may read them.
        "retrieve": Access(Scope.READ, "executions.view_execution", Scope.RUN),
        "create": Access(Scope.RUN, "executions.add_execution"),
        "cancel": Access(Scope.RUN, "executions.change_execution"),
        **admin_access("executions.change_execution", "resolve"),
        "query": Access(Scope.READ, "executions.view_execution"),
        "signal": Access(Scope.RUN, "executions.change_execution"),
    }

    def get_queryset(self) -> QuerySet[Execution]:
        visible = Execution.objects.visible_to(base.caller_of(self.request))
        if self.action == "list":
            return visible.order_by("-created_at", "-id")
        return visible.select_related("payload").prefetch_related("events")

    def get_object(self) -> Execution:
        execution: Execution = super().get_object()
        request_poll_if_stale(execution)
        return execution

    def get_serializer_class(self) -> type[ExecutionSerializer]:
        return ExecutionSerializer if self.action == "list" else ExecutionDetailSerializer

    @extend_schema(
        operation_id="executions_start",
        summary="Start a workflow",
        description="Without `wait_seconds` the answer comes at once and a worker starts the run; with it, "
        "as soon as the run is settled or the time is up, or at once while very many requests wait. The run "
        "goes on either way: read the execution at `Location`. A cached result may answer at once; "
        "`cached_at` says so.",
        request=StartSerializer,
        responses={
            201: OpenApiResponse(ExecutionDetailSerializer, "The run has ended; `success` says how."),
            202: OpenApiResponse(ExecutionDetailSerializer, "The run continues."),
            404: as_problem("The tool does not exist or is disabled. Nothing was started."),
            409: as_problem("The idempotency key belongs to another call, `execution_id`."),
            429: as_problem("The calls a minute of token, caller, toolset or tool are used up."),
            503: as_problem("A limit on concurrent runs is reached and the queue is full."),
        },
        parameters=[
            base.IDEMPOTENCY_KEY,
            base.CACHE_CONTROL,
            base.header(*base.REPLAYED, response=[201, 202]),
            base.header(*RENAMED, response=[201, 202]),
            base.header(*base.RETRY_AFTER, type=int, response=[429, 503]),
        ],
        examples=[
            OpenApiExample(
                "Wait for a short run",
                {"tool": "text_statistics", "arguments": {"text": "To be or not to be"}, "wait_seconds": 10},
                request_only=True,
            )
        ],
    )
    def create(self, request: Request) -> Response:
        asked = self.read_body(StartSerializer)
        wanted = StartRequest(
            tool_name=asked["tool"],
            arguments=asked["arguments"],
            caller=base.caller_of(request),
            door=Execution.Door.REST,
            idempotency_key=base.idempotency_key_of(request),
            fresh=base.wants_fresh(request),
        )
        started = _start(wanted, wait_seconds=asked["wait_seconds"])
        execution = self.get_queryset().get(pk=started.pk)
        code = status.HTTP_201_CREATED if execution.is_settled else status.HTTP_202_ACCEPTED
        headers = {"Location": request.build_absolute_uri(reverse("execution-detail", args=[execution.pk]))}
        if started.pk != wanted.id:
            headers[base.REPLAYED[0]] = "true"
        if (workflow := started.workflow) is not None and wanted.tool_name != workflow.tool_name:
            headers[RENAMED[0]] = workflow.tool_name
        return Response(ExecutionDetailSerializer(execution).data, code, headers=headers)

    @extend_schema(
        operation_id="executions_cancel",
        summary="Cancel an execution",
        description="Asks the engine to cancel the run, and reports the outcome.",
        request=None,
        responses={
            200: OpenApiResponse(CancellationSerializer, "The execution is cancelled."),
            202: OpenApiResponse(CancellationSerializer, "It was requested; the engine decides."),
            409: OpenApiResponse(NotCancelledSerializer, "It ended before, or the run continues."),
        },
    )
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: str) -> Response:
        cancellation = run_without_connection(cancel_execution(pk, caller=base.caller_of(request)))
        execution = self.get_queryset().get(pk=cancellation.execution.pk)
        answer: dict[str, Any] = {
            "outcome": cancellation.outcome.value,
            "message": cancellation.message,
            "execution": ExecutionDetailSerializer(execution).data,
        }
        code = CANCEL_CODES[cancellation.outcome]
        if code == status.HTTP_409_CONFLICT:
            raise Refusal(code, cancellation.message, kind="execution", **answer)
        return Response(answer, code)

    @extend_schema(
        operation_id="executions_resolve",
        summary="Resolve an unconfirmed execution",
        description="Resolves a start whose answer was lost. If it ran, the engine is asked about the run, "
        "which is then followed to its end; without `run_id`, for an engine that keeps no runs, such as an "
        "HTTP API, it has completed, with the `output` that you give or none. If it did not run, it has "
        "failed and is safe to call again. For administrators.",
        request=ResolveSerializer,
        responses={
            200: ExecutionDetailSerializer,
            400: as_problem("The engine does not have that run, or keeps runs and `run_id` is missing."),
            409: as_problem("The execution is not unconfirmed."),
            503: as_problem("The engine could not be asked. Nothing was changed."),
        },
    )
    @action(detail=True, methods=["post"])
    def resolve(self, request: Request, pk: str) -> Response:
        asked = self.read_body(ResolveSerializer)
        resolved = _resolve(pk, asked, caller=base.caller_of(request))
        return Response(ExecutionDetailSerializer(self.get_queryset().get(pk=resolved.pk)).data)

    @extend_schema(
        operation_id="executions_query",
        summary="Query a run",
        description="Sends one of the queries that the workflow declares to a run that is in "
        "progress or, if the engine still answers for it, has ended. It changes nothing.",
        request=TalkSerializer,
        responses={200: AnswerSerializer, **REFUSALS},
    )
    @action(detail=True, methods=["post"])
    def query(self, request: Request, pk: str) -> Response:
        asked = self.read_body(TalkSerializer)
        answer = run_without_connection(query_execution(pk, **asked, caller=base.caller_of(request)))
        return Response(AnswerSerializer(answer).data)

    @extend_schema(
        operation_id="executions_signal",
        summary="Signal a run",
        description="Sends one of the signals that the workflow declares to a run in progress, once. The "
        "answer is the execution's record; the effect of the signal shows later.",
        request=TalkSerializer,
        responses={
            200: ExecutionDetailSerializer,
            **REFUSALS,
            504: as_problem("The engine may have received the signal."),
        },
    )
    @action(detail=True, methods=["post"])
    def signal(self, request: Request, pk: str) -> Response:
        asked = self.read_body(TalkSerializer)
        sent = run_without_connection(signal_execution(pk, **asked, caller=base.caller_of(request)))
        return Response(ExecutionDetailSerializer(self.get_queryset().get(pk=sent.pk)).data)


def _start(request: StartRequest, *, wait_seconds: int) -> Execution:
    with base.waiting_places.one_for(request.caller.key) as has_place:
        if wait_seconds and has_place:
            return run_without_connection(start_and_wait(request, seconds=wait_seconds))
    execution = create_execution(request)
    if not execution.is_settled:
        request_poll()
    return execution


def _resolve(execution_id: str, said: dict[str, Any], *, caller: Caller) -> Execution:
    if not said["ran"]:
        return engine_runs.resolve_as_not_started(execution_id, caller=caller)
    if said["run_id"]:
        return run_without_connection(
            engine_runs.resolve_as_started(execution_id, said["run_id"], caller=caller)
        )
    return run_without_connection(engine_runs.resolve_as_ran(execution_id, said["output"], caller=caller))


class RunFilterSerializer(StrictSerializer):
    """Which runs to list."""

    workflow = serializers.CharField(required=False, max_length=MAX_TEXT, help_text="As the engine names it.")
    state = serializers.MultipleChoiceField(
        choices=STATES, required=False, help_text="Several may be named: `state=running&state=failed`."
    )
    run = serializers.CharField(required=False, max_length=MAX_TEXT, help_text="The prefix of the run id.")
    started_after = serializers.DateTimeField(required=False, help_text="Inclusive.")
    started_before = serializers.DateTimeField(required=False)
    query = serializers.CharField(
        required=False, max_length=MAX_QUERY, help_text="A further filter in the engine's query language."
    )
    page_size = serializers.IntegerField(default=USUAL_PAGE, min_value=1, max_value=LARGEST_PAGE)
    cursor = serializers.CharField(
        default="", max_length=MAX_CURSOR, help_text="`next_cursor` of the previous page."
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
    workflow = serializers.CharField(source="listed.workflow", help_text="The engine's name for it.")
    state = serializers.ChoiceField(choices=STATES, source="listed.state")
    told_state = serializers.CharField(source="listed.told_state", help_text="As the engine names it.")
    started_at = serializers.DateTimeField(source="listed.started_at", allow_null=True)
    finished_at = serializers.DateTimeField(source="listed.finished_at", allow_null=True)
    details = JSONObjectField(source="listed.details", help_text="The engine's further details.")
    execution_id = serializers.CharField(
        source="execution.pk", allow_null=True, help_text="Null if another client started it."
    )


class EngineRunPageSerializer(serializers.Serializer[Any]):
    results = EngineRunSerializer(source="runs", many=True)
    next_cursor = serializers.CharField(help_text="For the next page; empty on the last one.")


@extend_schema(tags=["Sources"])
class EngineRunViewSet(base.ExecutionsViewSet[Execution]):
    queryset: QuerySet[Execution] = Execution.objects.none()
    filter_backends = ()
    pagination_class = None
    access = admin_access("executions.view_execution", "list")

    @extend_schema(
        operation_id="sources_runs",
        summary="List the runs at the engine",
        description="Asks the engine for its own list, the latest first, regardless of which client started "
        "them. Nothing is stored. For administrators.",
        parameters=[
            OpenApiParameter("source", location=OpenApiParameter.PATH, description="The source's name."),
            RunFilterSerializer,
        ],
        responses={
            200: forced_singular_serializer(EngineRunPageSerializer),  # type: ignore[no-untyped-call]
            400: as_problem("The engine cannot filter by this."),
            409: as_problem("The engine cannot list its runs."),
            503: as_problem("The engine did not answer."),
        },
    )
    def list(self, request: Request, source: str) -> Response:
        found = get_object_or_404(Source, name=source)
        asked = RunFilterSerializer(data=_without_blanks(request.query_params))
        if not asked.is_valid():
            problems = [Problem(f"?{one.path[1:]}", one.message) for one in find_problems(asked.errors)]
            raise Refusal.invalid(REFUSED, problems)
        size, cursor = asked.validated_data["page_size"], asked.validated_data["cursor"]
        page = run_without_connection(
            list_engine_runs(found, asked.run_filter, page_size=size, cursor=cursor)
        )
        return Response(EngineRunPageSerializer(page).data)


def _without_blanks(parameters: QueryDict) -> QueryDict:
    """Forms send empty fields too."""
    filled = QueryDict(mutable=True)
    for name, values in parameters.lists():
        if any(values):
            filled.setlist(name, [value for value in values if value])
    return filled
