from typing import Any

import django_filters  # type: ignore[import-untyped]
from django.db.models import Q, QuerySet
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
    extend_schema_field,
    extend_schema_view,
)
from rest_framework import mixins, serializers, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from access.callers import Caller, Scope
from access.permissions import Access, admin_access, demand_of_staff, is_administrator
from catalogue import tables
from catalogue.database import run_without_connection
from catalogue.models import Source
from catalogue.rest import base
from catalogue.rest.base import as_problem
from catalogue.rest.views import FORMAT, TableMixin
from catalogue.tables import CSV
from connectors.protocol import RunFilter, RunState
from executions import engine_runs, run_notices
from executions.asking import TooManyQuestions, ask_result
from executions.control import Action, control_run, prepare_retry
from executions.engine_runs import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, EngineRun, list_engine_runs
from executions.interacting import CancelOutcome, cancel_execution, query_execution, signal_execution
from executions.models import CancelProgress, Execution, ExecutionEvent, State
from executions.models.execution import ExecutionQuerySet
from executions.models.lifecycle import StartRequest
from executions.preflight import MAX_CALLS, Obstacle, PlannedCall, check_calls
from executions.questions import answer_questions, describe_questions
from executions.reading import find_execution
from executions.rest import shared
from executions.starting import create_execution
from executions.waiting import start_and_wait
from executions.wakeups import request_poll, request_poll_if_stale

MAX_WAIT_SECONDS = 50


class ExecutionFilters(django_filters.FilterSet):  # type: ignore[misc]
    state = django_filters.MultipleChoiceFilter(
        choices=State.choices, distinct=False, label="Several may be named: `state=running&state=failed`."
    )
    tool = django_filters.CharFilter(field_name="tool_name", label="The tool's name at the time.")
    source = django_filters.CharFilter(field_name="source_name", label="The source's name at the time.")
    caller = django_filters.CharFilter(label="Who started it, such as `token:7` or `user:1`.")
    idempotency_key = django_filters.CharFilter(label="The key that its caller gave it.")
    queued = base.StrictBooleanFilter(method="by_queue", label="Whether it is waiting in the queue.")
    cached = base.StrictBooleanFilter(method="by_cache", label="Whether a cached result answered it.")
    door = django_filters.ChoiceFilter(choices=Execution.Door.choices)
    created_after = base.MomentFilter(field_name="created_at", lookup_expr="gte")
    created_before = base.MomentFilter(field_name="created_at", lookup_expr="lt")
    # Last: it searches the newest that the other filters leave.
    search = base.SearchFilter(
        method="by_text",
        label="Searches the names of tool, workflow, source and caller, the error, the last progress "
        "message, the engine's ids and the keys, in the newest 20,000 executions that match the other "
        "parameters, and returns the newest 1,000 matches; use `created_before` for older ones. The complete "
        "id of an execution or a run, or name of a tool, is found regardless of age.",
    )
    ordering = base.StableOrdering(
        fields=["created_at", "finished_at", "state", ("tool_name", "tool"), ("source_name", "source")]
    )

    def by_text(self, executions: ExecutionQuerySet[Execution], name: str, text: str) -> QuerySet[Execution]:
        return executions.matching(text.strip())

    def by_cache(self, executions: QuerySet[Execution], name: str, wanted: bool) -> QuerySet[Execution]:
        # Not by excluding, in which SQLite does not recognise the condition of the index.
        return executions.filter(cached_at__isnull=not wanted)

    def by_queue(self, executions: QuerySet[Execution], name: str, wanted: bool) -> QuerySet[Execution]:
        waiting = Q(state=State.PENDING, admitted_at=None)
        return executions.filter(waiting if wanted else ~waiting)


class ExecutionErrorSerializer(base.RowSerializer[Execution]):
    """The error, or why the result of a completed execution could not be read; null without one."""

    columns = ("error_kind", "error")  # Of tables

    class Meta:
        model = Execution
        fields = ("kind", "message")
        extra_kwargs = base.rename({"kind": "error_kind", "message": "error"})

    def get_attribute(self, instance: Execution) -> Execution | None:
        return instance if instance.error else None


class ExecutionSerializer(base.RowSerializer[Execution]):
    """An execution in a list."""

    success = serializers.SerializerMethodField(help_text="Null until the execution is settled.")
    duration_ms = serializers.IntegerField(
        allow_null=True,
        help_text="By the engine's clock if it reports both times, otherwise by the product's. Null until it "
        "has ended, and if it ended while it waited.",
    )
    finished_at = serializers.DateTimeField(
        source="ended_at",
        allow_null=True,
        read_only=True,
        help_text="As the engine reports it, if that lies between the start and the time when the end was "
        "recorded; otherwise the latter, by which executions are ordered and removed.",
    )
    error = ExecutionErrorSerializer(source="*", read_only=True, allow_null=True)
    progress = serializers.FloatField(source="progress_percent", allow_null=True, help_text="Percent.")
    queued = serializers.BooleanField(source="is_queued", help_text="It waits until the limits allow it.")
    awaited = serializers.BooleanField(source="is_awaited", help_text="A request is waiting for the result.")
    paused = serializers.BooleanField(source="is_held_now", help_text="The engine has paused the run.")
    unanswered = serializers.BooleanField(
        source="is_unanswered", help_text="Its caller left without an answer and has not asked again."
    )

    class Meta:
        model = Execution
        fields: tuple[str, ...] = (
            "id", "tool", "workflow_name", "workflow_id", "source", "caller", "caller_name", "door",
            "idempotency_key", "retry_of", "retries", "cached_from", "cached_at", "state", "queued",
            "awaited", "paused", "unanswered",
            "success", "progress", "progress_message", "error", "run_id", "correlation_id",
            "created_at", "admitted_at", "started_at", "finished_at", "duration_ms",
        )  # fmt: skip
        extra_kwargs: dict[str, dict[str, Any]] = {
            "tool": {"source": "tool_name"},
            "workflow_id": {"source": "upstream_id", "help_text": "The engine's id of the workflow."},
            "source": {"source": "source_name", "help_text": "The source's name at the time."},
        }

    def get_success(self, execution: Execution) -> bool | None:
        return execution.succeeded if execution.is_settled else None


tables.serializers[Execution] = ExecutionSerializer


class EventSerializer(base.RowSerializer[ExecutionEvent]):
    """A line of the timeline."""

    class Meta:
        model = ExecutionEvent
        fields = ("at", "kind", "message")


class QuestionSerializer(serializers.Serializer[Any]):
    question = serializers.CharField(help_text="The engine's id of the question.")
    message = serializers.CharField()
    schema = base.JSONObjectField(help_text="The JSON Schema of the answer.")
    url = serializers.CharField(help_text="Where the engine itself asks; else empty.")
    until = serializers.DateTimeField(allow_null=True, help_text="When the engine stops asking, if it tells.")
    refusals = serializers.ListField(child=serializers.CharField(), help_text="Why answers were refused.")
    answered_by = serializers.CharField(allow_null=True, help_text="Whose answer is on its way, if one is.")
    answered_at = serializers.DateTimeField(allow_null=True)


class CutSerializer(serializers.Serializer[Any]):
    payload = serializers.CharField()
    bytes = serializers.IntegerField()


class ExecutionDetailSerializer(ExecutionSerializer):
    """An execution with its payloads and timeline."""

    metadata = shared.AnyJSONField(
        source="payload.metadata", help_text="Of the workflow that ran, and of the client that called it."
    )
    cancel_progress = serializers.ChoiceField(
        choices=CancelProgress.choices, allow_null=True, help_text="Of a request to cancel, if there was one."
    )
    input = shared.AnyJSONField(source="payload.input", help_text="The arguments.")
    changed_input = shared.AnyJSONField(
        source="payload.changed_input",
        help_text="The arguments that were sent instead, if an approver has changed them; else null.",
    )
    arguments_changed_by = serializers.CharField(
        source="payload.changed_by", help_text="The approver who changed the arguments; else empty."
    )
    output = shared.AnyJSONField(source="payload.output", help_text="The result, once it has completed.")
    content = serializers.ListField(
        child=serializers.DictField(),
        source="payload.content",
        allow_null=True,
        help_text="The result as MCP content blocks, if the engine returns them, and notes on the output.",
    )
    start_answer = shared.AnyJSONField(
        source="payload.start_answer", help_text="To the start, as the engine sent it."
    )
    status_answer = shared.AnyJSONField(source="payload.status_answer", help_text="The last, likewise.")
    from_failed_step = serializers.BooleanField(
        help_text="Whether it runs the failed steps of the run of `retry_of` again, rather than all of it."
    )
    questions = serializers.SerializerMethodField(help_text="What a paused run asks people at present.")
    cut = CutSerializer(source="payload.cut", many=True, help_text="Payloads that were too large to keep.")
    events = EventSerializer(many=True)

    class Meta(ExecutionSerializer.Meta):
        fields = (
            *ExecutionSerializer.Meta.fields, "timeout_seconds", "deadline_at", "engine_created_at",
            "engine_started_at", "engine_updated_at", "engine_finished_at", "polls", "polled_at",
            "poll_failure", "overdue_since", "cancel_requested_at", "cancel_requested_by",
            "cancel_sent_at", "cancel_refusal", "cancel_progress", "terminate_requested_at",
            "looked_up_since", "from_failed_step", "metadata",
            "payload_removed_at", "events_removed_at", "input", "changed_input",
            "arguments_changed_by", "output", "content", "start_answer", "status_answer", "questions", "cut",
            "events",
        )  # fmt: skip
        extra_kwargs = ExecutionSerializer.Meta.extra_kwargs | {
            "payload_removed_at": {"source": "payload_pruned_at"},
            "events_removed_at": {"source": "events_pruned_at"},
        }

    @extend_schema_field(QuestionSerializer(many=True))
    def get_questions(self, execution: Execution) -> list[dict[str, Any]]:
        return describe_questions(execution)


class NotifySerializer(base.StrictSerializer):
    """Where to notify when the run waits for approval, is decided, is unconfirmed, or has ended."""

    webhook = serializers.CharField(required=False, max_length=run_notices.MAX_ADDRESS)
    format = serializers.ChoiceField(choices=run_notices.FORMATS, required=False)
    secret = serializers.CharField(
        required=False,
        max_length=run_notices.MAX_SECRET,
        help_text="Signs by Standard Webhooks; never shown.",
    )
    email = serializers.BooleanField(required=False, help_text="To the user behind the caller.")


class StartSerializer(base.StrictSerializer):
    """A workflow and its arguments."""

    tool = serializers.CharField(max_length=64, help_text="The workflow's tool name.")
    arguments = base.JSONObjectField(default=dict, help_text="They must match the workflow's input schema.")
    wait_seconds = serializers.IntegerField(
        default=0, min_value=0, max_value=MAX_WAIT_SECONDS, help_text="How long to wait for the result."
    )
    notify = NotifySerializer(required=False)


class PlannedCallSerializer(base.StrictSerializer):
    tool = serializers.CharField(max_length=64, help_text="The workflow's tool name.")
    arguments = base.JSONObjectField(
        default=None, allow_null=True, help_text="Checked if given. Null: not known yet."
    )
    schema_hash = serializers.CharField(
        default="", max_length=64, help_text="Of the input schema for which the caller was written."
    )


class PlannedCallsSerializer(base.StrictSerializer):
    calls = serializers.ListField(child=PlannedCallSerializer(), max_length=MAX_CALLS)


class ObstacleSerializer(serializers.Serializer[Any]):
    code = serializers.ChoiceField(choices=[(code.value, code.name) for code in Obstacle])
    message = serializers.CharField()


class VerdictSerializer(serializers.Serializer[Any]):
    tool = serializers.CharField()
    ready = serializers.BooleanField(help_text="Whether the call would start a run now.")
    schema_hash = serializers.CharField(help_text="Of the present input schema; empty for an unknown tool.")
    problems = ObstacleSerializer(many=True, required=False)


class PreflightSerializer(serializers.Serializer[Any]):
    calls = VerdictSerializer(many=True, help_text="In the order of the request.")


class ResolveSerializer(base.StrictSerializer):
    """The resolution of an unconfirmed execution."""

    ran = serializers.BooleanField(help_text="Whether the engine has a run for it.")
    run_id = serializers.CharField(
        default="",
        max_length=255,
        help_text="The engine's id of that run. Required if it ran, unless the engine keeps no runs.",
    )
    output = shared.AnyJSONField(
        default=None,
        allow_null=True,
        help_text="Of a run that the engine does not keep, recorded as reported by you. Null: not known.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        given = {"run_id": bool(attrs["run_id"]), "output": attrs["output"] is not None}
        for name in (name for name, is_given in given.items() if is_given and not attrs["ran"]):
            raise serializers.ValidationError({name: "Omit this for an execution that did not run."})
        if all(given.values()):
            problem = "Omit the output: the engine has the output of this run."
            raise serializers.ValidationError({"output": problem})
        return attrs


class CancellationSerializer(serializers.Serializer[Any]):
    # With names: drf-spectacular finds the schema's own name by the values and names.
    outcome = serializers.ChoiceField(choices=[(outcome.value, outcome.name) for outcome in CancelOutcome])
    message = serializers.CharField()
    execution = ExecutionDetailSerializer()


class NotCancelledSerializer(CancellationSerializer, base.ProblemSerializer):
    """An execution that is not cancelled."""


REFUSALS = {
    400: as_problem("The workflow declares no such query or signal, or the arguments do not match."),
    409: as_problem("The run is not running, or the engine does not support the request or refused it."),
    503: as_problem("The engine did not answer. Nothing happened; try again later."),
}
MAX_TEXT = 255
MAX_QUERY = 2_000
MAX_CURSOR = 4_000
STATES = [(state, state.value) for state in RunState]


class TalkSerializer(base.StrictSerializer):
    """A query for a run, or a signal to it."""

    name = serializers.CharField(max_length=255, help_text="The name that the workflow declares.")
    arguments = base.JSONObjectField(default=dict, help_text="They must match its inputSchema.")


class ControlSerializer(base.StrictSerializer):
    """What is to happen to a run."""

    action = serializers.ChoiceField(
        choices=[(action.value, action.name) for action in Action],
        help_text="`retry`: all of it, with the same arguments. `retry_failed`: its failed steps alone.",
    )
    wait_seconds = serializers.IntegerField(
        default=0, min_value=0, max_value=MAX_WAIT_SECONDS, help_text="Of a retry: how long to wait for it."
    )


class AnswerQuestionSerializer(base.StrictSerializer):
    """A person's answer to a question of a paused run."""

    question = serializers.CharField(max_length=4_000, help_text="Its id, as in `questions`.")
    content = base.JSONObjectField(default=dict, help_text="It must match the question's schema.")


class AskSerializer(base.StrictSerializer):
    """A question about a result."""

    query = serializers.CharField(max_length=MAX_QUERY, help_text="A JMESPath expression.")


class FoundSerializer(serializers.Serializer[Any]):
    answer = shared.AnyJSONField(required=False, help_text="What the expression finds, unless too large.")
    shape = shared.AnyJSONField(
        required=False, help_text="Instead of a large answer: its fields, lengths and some values."
    )
    note = serializers.CharField(required=False, help_text="How to see more of it.")
    missing = serializers.CharField(required=False, help_text="What of the result was too large to keep.")


class AnswerSerializer(serializers.Serializer[Any]):
    execution_id = serializers.UUIDField(source="execution.pk")
    query = serializers.CharField()
    answer = shared.AnyJSONField(source="value", help_text="The run's answer.")


CANCEL_CODES = {CancelOutcome.CANCELLED: 200, CancelOutcome.REQUESTED: 202}  # Others: 409
RENAMED = ("Tool-Renamed-To", "The current name of the tool, if the request used a former name.")


@extend_schema_view(
    list=extend_schema(
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
class ExecutionViewSet(TableMixin[Execution], mixins.RetrieveModelMixin, shared.ExecutionsViewSet[Execution]):
    """The newest first, without payloads. Callers who are not administrators see only their own. Pages with
    `cursor` repeat and miss no row while others are added, and have no `count`."""

    queryset = Execution.objects.none()
    serializer_class, list_serializer_class = ExecutionDetailSerializer, ExecutionSerializer
    filterset_class = ExecutionFilters
    pagination_class = base.LongPages
    newest_by = "created_at"
    lookup_value_regex = "[0-9a-fA-F-]{36}"
    access = {
        "list": Access(Scope.READ, "executions.view_execution"),
        # A client that may start runs may read them.
        "retrieve": Access(Scope.READ, "executions.view_execution", Scope.RUN),
        "create": Access(Scope.RUN, "executions.add_execution"),
        "preflight": Access(Scope.RUN, "executions.add_execution"),
        "cancel": Access(Scope.RUN, "executions.change_execution"),
        **admin_access("executions.change_execution", "resolve"),
        "result": Access(Scope.READ, "executions.view_execution", Scope.RUN),
        "query": Access(Scope.READ, "executions.view_execution"),
        "signal": Access(Scope.RUN, "executions.change_execution"),
        "answer": Access(Scope.RUN, "executions.change_execution"),
        "control": Access(Scope.RUN, "executions.change_execution"),
    }

    def get_queryset(self) -> QuerySet[Execution]:
        visible = Execution.objects.visible_to(shared.caller_of(self.request))
        if self.action == "list":
            return visible.order_by("-created_at", "-id")
        return visible.select_related("payload").prefetch_related("events")

    def get_object(self) -> Execution:
        execution: Execution = super().get_object()
        request_poll_if_stale(execution)
        return execution

    @extend_schema(
        operation_id="executions_start",
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
            shared.IDEMPOTENCY_KEY,
            shared.CACHE_CONTROL,
            shared.header(*shared.REPLAYED, response=[201, 202]),
            shared.header(*RENAMED, response=[201, 202]),
            shared.header(*shared.RETRY_AFTER, type=int, response=[429, 503]),
        ],
        examples=[
            OpenApiExample(
                "Wait for a short run",
                {"tool": "text_statistics", "arguments": {"text": "To be"}, "wait_seconds": 10},
                request_only=True,
            )
        ],
    )
    def create(self, request: Request) -> Response:
        """Start a workflow.
        Without `wait_seconds` the answer comes at once and a worker starts the run; with it, as soon as the
        run is settled or the time is up, or at once while very many requests wait. The run goes on: read the
        execution at `Location`. A cached result may answer; `cached_at` says so."""
        asked, caller = self.read_body(StartSerializer), shared.caller_of(request)
        wanted = StartRequest(
            tool_name=asked["tool"],
            arguments=asked["arguments"],
            caller=caller,
            door=Execution.Door.REST,
            idempotency_key=shared.idempotency_key_of(request),
            fresh=shared.wants_fresh(request),
            notices=run_notices.read_notices(asked["notify"], caller) if "notify" in asked else (),
        )
        return self._answer_start(wanted, wait_seconds=asked["wait_seconds"])

    def _answer_start(self, wanted: StartRequest, *, wait_seconds: int) -> Response:
        started = _start(wanted, wait_seconds=wait_seconds)
        execution = self.get_queryset().get(pk=started.pk)
        code = status.HTTP_201_CREATED if execution.is_settled else status.HTTP_202_ACCEPTED
        address = reverse("execution-detail", args=[execution.pk])
        headers = {"Location": self.request.build_absolute_uri(address)}
        if started.pk != wanted.id:
            headers[shared.REPLAYED[0]] = "true"
        if (workflow := started.workflow) is not None and wanted.tool_name != workflow.tool_name:
            headers[RENAMED[0]] = workflow.tool_name
        return Response(ExecutionDetailSerializer(execution).data, code, headers=headers)

    @extend_schema(request=PlannedCallsSerializer, responses=PreflightSerializer, filters=False)
    @action(detail=False, methods=["post"], pagination_class=None)
    def preflight(self, request: Request) -> Response:
        """Check calls.
        Says which of them would start a run now, and why the others would not. Starts, records and counts
        nothing. Callers who may see hidden workflows are told why they are hidden."""
        calls = [PlannedCall(**one) for one in self.read_body(PlannedCallsSerializer)["calls"]]
        explains = is_administrator(request)
        verdicts = check_calls(calls, shared.caller_of(request), explains=explains)
        return Response({"calls": [verdict.document for verdict in verdicts]})

    @extend_schema(
        responses={
            200: OpenApiResponse(CancellationSerializer, "The execution is cancelled."),
            202: OpenApiResponse(CancellationSerializer, "It was requested; the engine decides."),
            409: OpenApiResponse(NotCancelledSerializer, "It ended before, or the run continues."),
        }
    )
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: str) -> Response:
        """Cancel an execution.
        Asks the engine to cancel the run, and reports the outcome."""
        cancellation = run_without_connection(cancel_execution(pk, caller=shared.caller_of(request)))
        execution = self.get_queryset().get(pk=cancellation.execution.pk)
        shown: Any = ExecutionDetailSerializer(execution).data
        answer = {"outcome": cancellation.outcome.value, "message": cancellation.message, "execution": shown}
        code = CANCEL_CODES.get(cancellation.outcome, status.HTTP_409_CONFLICT)
        if code == status.HTTP_409_CONFLICT:
            raise base.Refusal(code, cancellation.message, kind="execution", **answer)
        return Response(answer, code)

    @extend_schema(
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
        """Resolve an unconfirmed execution.
        The answer to its start was lost. If it ran, the engine is asked about the run, which is then followed
        to its end; without `run_id`, for an engine that keeps no runs, it has completed, with the `output`
        that you give. If it did not run, it has failed and is safe to call again."""
        asked = self.read_body(ResolveSerializer)
        resolved = _resolve(pk, asked, caller=shared.caller_of(request))
        return self.answer_with(resolved)

    @extend_schema(
        parameters=[AskSerializer],
        responses={
            200: forced_singular_serializer(FoundSerializer),  # type: ignore[no-untyped-call]
            400: as_problem("The expression is wrong, does not fit the result, or needs too much."),
            409: as_problem("The execution has no result."),
            503: as_problem("Too many questions are asked at present."),
        },
        filters=False,
    )
    @action(detail=True, pagination_class=None)
    def result(self, request: Request, pk: str) -> Response:
        """Ask a result.
        Answers a JMESPath expression over the output of a completed run, within 2 s and 2 kB. A text is
        `{"lines": [{"number", "text"}]}`, or what it holds as JSON."""
        asked = _read_parameters(request, AskSerializer)
        caller = shared.caller_of(request)
        execution = find_execution(pk, caller=caller)  # Without its payload, which takes long to parse
        with shared.waiting_places.one_for(caller.key) as has_place:
            if not has_place:
                raise TooManyQuestions
            return Response(run_without_connection(ask_result(execution, asked["query"])))

    @extend_schema(request=TalkSerializer, responses={200: AnswerSerializer, **REFUSALS})
    @action(detail=True, methods=["post"])
    def query(self, request: Request, pk: str) -> Response:
        """Query a run.
        One that the workflow declares, while the engine answers for it. It changes nothing."""
        asked = self.read_body(TalkSerializer)
        answer = run_without_connection(query_execution(pk, **asked, caller=shared.caller_of(request)))
        return Response(AnswerSerializer(answer).data)

    @extend_schema(
        request=TalkSerializer,
        responses={200: ExecutionDetailSerializer, **REFUSALS, 504: as_problem("It may have been received.")},
    )
    @action(detail=True, methods=["post"])
    def signal(self, request: Request, pk: str) -> Response:
        """Signal a run.
        One that the workflow declares, to a run in progress, once. Its effect shows later."""
        asked = self.read_body(TalkSerializer)
        sent = run_without_connection(signal_execution(pk, **asked, caller=shared.caller_of(request)))
        return self.answer_with(sent)

    @extend_schema(
        request=AnswerQuestionSerializer,
        responses={
            200: ExecutionDetailSerializer,
            400: as_problem("The answer does not match the question's schema."),
            403: as_problem(
                "Only signed-in approvers, or members of a group, may answer runs of this workflow."
            ),
            409: as_problem("The run does not ask this, or somebody has answered it."),
        },
    )
    @action(detail=True, methods=["post"])
    def answer(self, request: Request, pk: str) -> Response:
        """Answer a question of a run.
        The answer is recorded and sent to the engine once; `questions` shows when it has arrived."""
        asked = self.read_body(AnswerQuestionSerializer)
        caller, execution = shared.caller_of(request), self.get_object()
        given, user = {asked["question"]: asked["content"]}, request.user if request.auth is None else None
        answer_questions(execution, given, by=caller.name, door=Execution.Door.REST, user=user)
        return self.answer_with(execution)

    @extend_schema(
        request=ControlSerializer,
        responses={
            200: OpenApiResponse(ExecutionDetailSerializer, "The engine was asked; `state` follows."),
            201: OpenApiResponse(ExecutionDetailSerializer, "The new execution of a retry, which has ended."),
            202: OpenApiResponse(ExecutionDetailSerializer, "The new execution of a retry."),
            409: as_problem("Its state or its engine rules it out, or it was retried already."),
            429: as_problem("The calls a minute of token, caller, toolset or tool are used up."),
            503: as_problem("The engine did not answer, or the limits on runs are reached."),
            504: as_problem("The engine may have received it. Sending it again is harmless."),
        },
    )
    @action(detail=True, methods=["post"])
    def control(self, request: Request, pk: str) -> Response:
        """Retry, pause, resume or terminate a run.
        A retry is a new execution, started as a call of yours, with `retry_of`; one execution is retried
        once. The others concern a running run, where the engine can; terminating ends it as cancelled."""
        asked = self.read_body(ControlSerializer)
        wanted, caller = Action(asked["action"]), shared.caller_of(request)
        door = Execution.Door.REST
        if not wanted.starts:
            controlled, _ = run_without_connection(control_run(pk, wanted, caller=caller, door=door))
            return self.answer_with(controlled)
        demand_of_staff(request, "executions.add_execution")
        retry = run_without_connection(prepare_retry(pk, wanted, caller=caller, door=door))
        return self._answer_start(retry, wait_seconds=asked["wait_seconds"])


def _start(request: StartRequest, *, wait_seconds: int) -> Execution:
    with shared.waiting_places.one_for(request.caller.key) as has_place:
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


class RunFilterSerializer(base.StrictSerializer):
    """Which runs to list."""

    workflow = serializers.CharField(required=False, max_length=MAX_TEXT, help_text="As the engine names it.")
    state = serializers.MultipleChoiceField(
        source="states",
        choices=STATES,
        required=False,
        help_text="Several may be named: `state=running&state=failed`.",
    )
    run = serializers.CharField(required=False, max_length=MAX_TEXT, help_text="The prefix of the run id.")
    started_after = serializers.DateTimeField(required=False, help_text="Inclusive.")
    started_before = serializers.DateTimeField(required=False)
    query = serializers.CharField(
        source="engine_query",
        required=False,
        max_length=MAX_QUERY,
        help_text="A further filter in the engine's query language.",
    )
    page_size = serializers.IntegerField(default=DEFAULT_PAGE_SIZE, min_value=1, max_value=MAX_PAGE_SIZE)
    cursor = serializers.CharField(
        default="", max_length=MAX_CURSOR, help_text="`next_cursor` of the previous page."
    )


class EngineRunSerializer(serializers.Serializer[EngineRun]):
    run_id = serializers.CharField(source="listed.run_id")
    workflow = serializers.CharField(source="listed.workflow", help_text="The engine's name for it.")
    state = serializers.ChoiceField(choices=STATES, source="listed.state")
    told_state = serializers.CharField(source="listed.told_state", help_text="As the engine names it.")
    started_at = serializers.DateTimeField(source="listed.started_at", allow_null=True)
    finished_at = serializers.DateTimeField(source="listed.finished_at", allow_null=True)
    details = base.JSONObjectField(source="listed.details", help_text="The engine's further details.")
    execution_id = serializers.CharField(
        source="execution.pk", allow_null=True, help_text="Null if another client started it."
    )


class EngineRunPageSerializer(serializers.Serializer[Any]):
    results = EngineRunSerializer(source="runs", many=True)
    next_cursor = serializers.CharField(help_text="For the next page; empty on the last one.")


@extend_schema(tags=["Sources"])
class EngineRunViewSet(shared.ExecutionsViewSet[Execution]):
    queryset: QuerySet[Execution] = Execution.objects.none()
    filter_backends = ()
    pagination_class = None
    access = admin_access("executions.view_execution", "list")

    @extend_schema(
        operation_id="sources_runs",
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
        """List the runs at the engine.
        Asks the engine for its own list, the latest first, regardless of which client started them. Nothing
        is stored. For administrators."""
        row = get_object_or_404(Source, name=source)
        wanted = _read_parameters(request, RunFilterSerializer)
        page = {"page_size": wanted.pop("page_size"), "cursor": wanted.pop("cursor")}
        runs = list_engine_runs(row, RunFilter(states=frozenset(wanted.pop("states", ())), **wanted), **page)
        return Response(EngineRunPageSerializer(run_without_connection(runs)).data)


def _read_parameters(request: Request, expected: type[base.StrictSerializer]) -> dict[str, Any]:
    asked = expected(data=_without_blanks(request.query_params))
    if not asked.is_valid():
        found = base.find_problems(asked.errors)
        problems = [base.Problem(f"?{one.path[1:]}", one.message) for one in found]
        raise base.Refusal.invalid(base.REFUSED, problems)
    return dict(asked.validated_data)


def _without_blanks(parameters: QueryDict) -> QueryDict:
    """Forms send empty fields too."""
    filled = QueryDict(mutable=True)
    for name, values in parameters.lists():
        if any(values):
            filled.setlist(name, [value for value in values if value])
    return filled
