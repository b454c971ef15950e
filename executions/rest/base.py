"""What requests and responses share: caller, headers, filters, limits on waiting."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import django_filters  # type: ignore[import-untyped]
from django.db.models import Q, QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema_field
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from catalogue import tables
from catalogue.access import Caller
from catalogue.columns import Rows
from catalogue.permissions import is_administrator
from catalogue.rest import base
from catalogue.rest.base import Problem, Refusal, StrictSerializer
from catalogue.rest.views import ApiViewSet, Row
from connectors.errors import ConnectorError, Rejected, Unsupported
from connectors.formats.lists import split_list
from executions.approvals import NotAllowed, NotDecided, UnknownApproval
from executions.engine_runs import EngineSilent, ResolutionRefused, UnknownRun
from executions.interacting import (
    CancelOutcome,
    EngineUnavailable,
    InteractionRefused,
    SignalUncertain,
    UnfitArguments,
    UnknownInteraction,
)
from executions.models import CancelProgress, ErrorKind, Execution, ExecutionEvent, State
from executions.models.execution import ExecutionQuerySet
from executions.reading import UnknownExecution
from executions.refusals import (
    Busy,
    IdempotencyConflict,
    KeyOfOtherToolset,
    StartRefused,
    TooManyCalls,
    UnknownTool,
)
from executions.starting import read_idempotency_key

MAX_WAIT_SECONDS = 50
ANY_JSON: dict[str, Any] = {}


def caller_of(request: Request) -> Caller:
    token: Any = request.auth
    if token is None:
        return Caller.of_user(request.user, sees_everything=is_administrator(request))
    caller: Caller = token.caller
    return replace(caller, sees_everything=is_administrator(request))


def header(name: str, description: str, **options: Any) -> OpenApiParameter:
    return OpenApiParameter(name, location=OpenApiParameter.HEADER, description=description, **options)


IDEMPOTENCY_KEY = header(
    "Idempotency-Key",
    "A key that the caller chooses: 1 to 255 printable ASCII characters, such as a UUID. For "
    "CATALOGUE_IDEMPOTENCY_HOURS the same request with the same key is answered as the first one was, and "
    "runs nothing again. Requests are the same if they are the same JSON, whatever the order of names; `1` "
    "and `1.0` differ. One that was refused, or failed before a tool was started, does not use the key up.",
)
CACHE_CONTROL = header(
    "Cache-Control",
    "`no-cache`: the workflow runs even if a result is cached; its result takes the place of that one.",
)
REPLAYED = ("Idempotent-Replayed", "`true` if this is the answer to an earlier request with the key.")
RETRY_AFTER = ("Retry-After", "Seconds.")


def idempotency_key_of(request: Request) -> str:
    """Empty if none was sent. Raises InvalidIdempotencyKey."""
    sent = request.headers.get(IDEMPOTENCY_KEY.name)
    return "" if sent is None else read_idempotency_key(sent)


def wants_fresh(request: Request) -> bool:
    return "no-cache" in split_list(request.headers.get(CACHE_CONTROL.name, "").lower())


class ExecutionsViewSet(ApiViewSet[Row]):
    def handle_exception(self, error: Exception) -> Response:
        return super().handle_exception(as_refusal(error))


# Of the closest class that is named here.
CODES: dict[type[Exception], int] = {
    UnknownExecution: 404,
    UnknownApproval: 404,
    NotAllowed: 403,
    NotDecided: 409,
    StartRefused: 400,
    UnknownTool: 404,
    IdempotencyConflict: 409,
    KeyOfOtherToolset: 409,
    Busy: 503,
    TooManyCalls: 429,
    InteractionRefused: 409,
    UnknownInteraction: 400,
    UnfitArguments: 400,
    EngineUnavailable: 503,
    SignalUncertain: 504,
    ResolutionRefused: 409,
    UnknownRun: 400,
    EngineSilent: 503,
    ConnectorError: 503,
    Rejected: 400,
    Unsupported: 409,
}
PLACES: dict[type[Exception], str] = {UnknownInteraction: "/name", UnknownRun: "/run_id"}


def as_refusal(error: Exception) -> Exception:
    """What a caller is told if the product or an engine refuses the request; other errors as they are."""
    code = next((CODES[one] for one in type(error).__mro__ if one in CODES), None)
    if code is None:
        return error
    message, is_start = str(error), isinstance(error, StartRefused)
    if isinstance(error, UnknownTool):
        message += " GET /api/workflows/ lists the available ones."
    problems = [Problem(f"/arguments{one.path}", one.message) for one in getattr(error, "problems", ())]
    if place := PLACES.get(type(error)):
        problems = [Problem(place, message)]
    kind = "execution" if code >= status.HTTP_409_CONFLICT and not is_start else ""
    refusal = Refusal(code, message, kind=kind, errors=problems)
    if isinstance(error, Busy):
        refusal.wait = error.retry_after
    if isinstance(error, IdempotencyConflict):
        refusal.more["execution_id"] = str(error.execution.pk)
    return refusal


class ExecutionFilters(django_filters.FilterSet):  # type: ignore[misc]
    state = django_filters.MultipleChoiceFilter(
        choices=State.choices, distinct=False, label="Several may be named: `state=running&state=failed`."
    )
    tool = django_filters.CharFilter(field_name="tool_name", label="The tool's name at the time.")
    source = django_filters.CharFilter(field_name="source_name", label="The source's name at the time.")
    caller = django_filters.CharFilter(label="Who started it, such as `token:7` or `user:1`.")
    idempotency_key = django_filters.CharFilter(label="The key that its caller gave it.")
    queued = base.StrictBooleanFilter(method="by_queue", label="Whether it is waiting in the queue.")
    cached = base.StrictBooleanFilter(
        method="by_cache", label="Whether a cached result answered it, without a run."
    )
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


MAX_WAITS = 128  # Concurrent waits of one web process, which has twice as many threads
MAX_WAITS_OF_ONE = 64  # Of one caller


class WaitingPlaces:
    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._taken: Counter[str] = Counter()

    @contextmanager
    def one_for(self, caller: str) -> Iterator[bool]:
        """Returns whether there was a place, which is held for the block."""
        with self._turn:
            has_place = self._taken.total() < MAX_WAITS and self._taken[caller] < MAX_WAITS_OF_ONE
            if has_place:
                self._taken[caller] += 1
        try:
            yield has_place
        finally:
            if has_place:
                with self._turn:
                    self._taken -= Counter([caller])  # Without those that have none left


waiting_places = WaitingPlaces()


@extend_schema_field(ANY_JSON)
class AnyJSONField(serializers.JSONField):
    pass


class ExecutionErrorSerializer(serializers.Serializer[Execution]):
    """The error, or why the result of a completed execution could not be read; null without one."""

    columns = ("error_kind", "error")  # Of tables

    kind = serializers.ChoiceField(choices=ErrorKind.choices, source="error_kind")
    message = serializers.CharField(source="error")

    def get_attribute(self, instance: Execution) -> Execution | None:
        return instance if instance.error else None


class ExecutionSerializer(serializers.ModelSerializer[Execution]):
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
    unanswered = serializers.BooleanField(
        source="is_unanswered", help_text="Its caller left without an answer and has not asked again."
    )

    class Meta:
        model = Execution
        fields: tuple[str, ...] = (
            "id", "tool", "workflow_name", "workflow_id", "source", "caller", "caller_name", "door",
            "idempotency_key", "cached_from", "cached_at", "state", "queued", "awaited", "unanswered",
            "success", "progress", "progress_message", "error", "run_id", "correlation_id",
            "created_at", "admitted_at", "started_at", "finished_at", "duration_ms",
        )  # fmt: skip
        read_only_fields = fields
        extra_kwargs: dict[str, dict[str, Any]] = {
            "tool": {"source": "tool_name"},
            "workflow_id": {"source": "upstream_id", "help_text": "The engine's id of the workflow."},
            "source": {"source": "source_name", "help_text": "The source's name at the time."},
        }
        list_serializer_class = Rows

    def get_success(self, execution: Execution) -> bool | None:
        return execution.succeeded if execution.is_settled else None


tables.serializers[Execution] = ExecutionSerializer


class EventSerializer(serializers.ModelSerializer[ExecutionEvent]):
    """A line of the timeline."""

    class Meta:
        model = ExecutionEvent
        fields = ("at", "kind", "message")
        read_only_fields = fields


class CutSerializer(serializers.Serializer[Any]):
    payload = serializers.CharField()
    bytes = serializers.IntegerField()


class ExecutionDetailSerializer(ExecutionSerializer):
    """An execution with its payloads and timeline."""

    metadata = AnyJSONField(
        source="payload.metadata", help_text="Of the workflow that ran, and of the client that called it."
    )
    cancel_progress = serializers.ChoiceField(
        choices=CancelProgress.choices, allow_null=True, help_text="Of a request to cancel, if there was one."
    )
    input = AnyJSONField(source="payload.input", help_text="The arguments.")
    output = AnyJSONField(source="payload.output", help_text="The result, once it has completed.")
    content = serializers.ListField(
        child=serializers.DictField(),
        source="payload.content",
        allow_null=True,
        help_text="The result as MCP content blocks, if the engine returns them, and notes on the output.",
    )
    start_answer = AnyJSONField(
        source="payload.start_answer", help_text="To the start, as the engine sent it."
    )
    status_answer = AnyJSONField(source="payload.status_answer", help_text="The engine's last raw status.")
    cut = CutSerializer(source="payload.cut", many=True, help_text="Payloads that were too large to keep.")
    events = EventSerializer(many=True)

    class Meta(ExecutionSerializer.Meta):
        fields = (
            *ExecutionSerializer.Meta.fields, "timeout_seconds", "deadline_at", "engine_created_at",
            "engine_started_at", "engine_updated_at", "engine_finished_at", "polls", "polled_at",
            "poll_failure", "overdue_since", "cancel_requested_at", "cancel_requested_by",
            "cancel_sent_at", "cancel_refusal", "cancel_progress", "looked_up_since", "metadata",
            "payload_removed_at", "events_removed_at", "input", "output", "content", "start_answer",
            "status_answer", "cut", "events",
        )  # fmt: skip
        read_only_fields = fields
        extra_kwargs = ExecutionSerializer.Meta.extra_kwargs | {
            "payload_removed_at": {"source": "payload_pruned_at"},
            "events_removed_at": {"source": "events_pruned_at"},
        }


class StartSerializer(StrictSerializer):
    """A workflow and its arguments."""

    tool = serializers.CharField(max_length=64, help_text="The workflow's tool name.")
    arguments = base.JSONObjectField(default=dict, help_text="They must match the workflow's input schema.")
    wait_seconds = serializers.IntegerField(
        default=0, min_value=0, max_value=MAX_WAIT_SECONDS, help_text="How long to wait for the result."
    )


class ResolveSerializer(StrictSerializer):
    """The resolution of an unconfirmed execution."""

    ran = serializers.BooleanField(help_text="Whether the engine has a run for it.")
    run_id = serializers.CharField(
        default="",
        max_length=255,
        help_text="The engine's id of that run. Required if it ran, unless the engine keeps no runs.",
    )
    output = AnyJSONField(
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
