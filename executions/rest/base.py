"""What requests and responses share: caller, headers, filters, limits on waiting."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import django_filters  # type: ignore[import-untyped]
from django.db.models import Q, QuerySet
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request

from catalogue import tables
from catalogue.access import Caller
from catalogue.columns import Rows
from catalogue.permissions import is_administrator
from catalogue.rest import base
from catalogue.rest.base import StrictSerializer
from connectors.formats.lists import split_list
from executions.interacting import CancelOutcome
from executions.models import CancelProgress, ErrorKind, Execution, ExecutionEvent, State
from executions.models.execution import ExecutionQuerySet
from executions.refusals import InvalidIdempotencyKey
from executions.starting import read_idempotency_key

LONGEST_WAIT_SECONDS = 50
ANY_JSON: dict[str, Any] = {}


def caller_of(request: Request) -> Caller:
    token: Any = request.auth
    if token is None:
        return Caller.of_user(request.user, sees_everything=is_administrator(request))
    caller: Caller = token.caller
    return replace(caller, sees_everything=is_administrator(request))


IDEMPOTENCY_KEY = "Idempotency-Key"
IDEMPOTENT_REPLAYED = "Idempotent-Replayed"
CACHE_CONTROL = "Cache-Control"


def idempotency_key_of(request: Request) -> str:
    """Empty if none was sent. Raises Refusal for an invalid one."""
    sent = request.headers.get(IDEMPOTENCY_KEY)
    try:
        return "" if sent is None else read_idempotency_key(sent)
    except InvalidIdempotencyKey as error:
        raise base.Refusal.invalid(str(error)) from None


def wants_fresh(request: Request) -> bool:
    return "no-cache" in split_list(request.headers.get(CACHE_CONTROL, "").lower())


class ExecutionFilters(django_filters.FilterSet):  # type: ignore[misc]
    state = django_filters.MultipleChoiceFilter(
        choices=State.choices, method="by_state", label="Several may be named: `state=running&state=failed`."
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
        label="Searches, ignoring case, the name of the tool, workflow, source or caller, "
        "the error, the last progress message, the engine's ids and the keys. Searches the newest "
        "20,000 executions that match the other parameters, and returns the newest 1,000 matches; "
        "use `created_before` for older ones. The complete id of an execution or a run, or the "
        "complete name of a tool, is found regardless of age. Payloads are not searched.",
    )
    ordering = base.StableOrdering(
        fields=["created_at", "finished_at", "state", ("tool_name", "tool"), ("source_name", "source")]
    )

    def by_text(self, executions: ExecutionQuerySet[Execution], name: str, text: str) -> QuerySet[Execution]:
        return executions.matching(text.strip())

    def by_state(self, executions: QuerySet[Execution], name: str, states: list[str]) -> QuerySet[Execution]:
        return executions.filter(state__in=states) if states else executions

    def by_cache(self, executions: QuerySet[Execution], name: str, wanted: bool) -> QuerySet[Execution]:
        # Not by excluding, in which SQLite does not recognise the condition of the index.
        return executions.filter(cached_at__isnull=not wanted)

    def by_queue(self, executions: QuerySet[Execution], name: str, wanted: bool) -> QuerySet[Execution]:
        waiting = Q(state=State.PENDING, admitted_at=None)
        return executions.filter(waiting if wanted else ~waiting)


MOST = 128  # Concurrent waits of one web process, which has twice as many threads
MOST_OF_ONE = 64  # Of one caller


class WaitingPlaces:
    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._taken: Counter[str] = Counter()

    @contextmanager
    def one_for(self, caller: str) -> Iterator[bool]:
        """Returns whether there was a place, which is held for the block."""
        with self._turn:
            has_place = self._taken.total() < MOST and self._taken[caller] < MOST_OF_ONE
            if has_place:
                self._taken[caller] += 1
        try:
            yield has_place
        finally:
            if has_place:
                with self._turn:
                    self._taken[caller] -= 1
                    if not self._taken[caller]:
                        del self._taken[caller]


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

    tool = serializers.CharField(source="tool_name")
    source = serializers.CharField(source="source_name", help_text="The source's name at the time.")  # type: ignore[assignment]
    workflow_id = serializers.CharField(source="upstream_id", help_text="The engine's id of the workflow.")
    success = serializers.SerializerMethodField(help_text="Null until the execution is settled.")
    duration_ms = serializers.IntegerField(
        allow_null=True,
        help_text="Measured by the engine's clock if it reports both times, otherwise by the product's. Null "
        "until it has ended, and if it ended while it waited in the queue or for approval.",
    )
    finished_at = serializers.DateTimeField(
        source="ended_at",
        allow_null=True,
        read_only=True,
        help_text="When the run ended, as the engine reports it if that lies between the start and the time "
        "when the end was recorded; otherwise the latter. Executions are ordered and removed by the latter.",
    )
    error = ExecutionErrorSerializer(source="*", read_only=True, allow_null=True)
    progress = serializers.FloatField(
        source="progress_percent",
        allow_null=True,
        help_text="Percent, as the engine reports it; 100 once it has completed.",
    )
    queued = serializers.BooleanField(
        source="is_queued",
        help_text="It waits until the limits allow it to start; it has not been sent to the engine.",
    )
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
        source="payload.metadata",
        help_text="Version and content hash of the workflow that ran, and what the client reported about "
        "itself.",
    )
    cancel_progress = serializers.ChoiceField(
        choices=CancelProgress.choices,
        allow_null=True,
        help_text="The outcome of a cancel request; null if there was none.",
    )
    payload_removed_at = serializers.DateTimeField(
        source="payload_pruned_at",
        allow_null=True,
        help_text="When the retention policy removed input, output and raw responses, which are then null.",
    )
    events_removed_at = serializers.DateTimeField(
        source="events_pruned_at",
        allow_null=True,
        help_text="When the retention policy removed the timeline.",
    )
    input = AnyJSONField(source="payload.input", help_text="The arguments.")
    output = AnyJSONField(source="payload.output", help_text="The result, once it has completed.")
    content = serializers.ListField(
        child=serializers.DictField(),
        source="payload.content",
        allow_null=True,
        help_text="The result as MCP content blocks (text, image, audio, ...), if the engine returns "
        "them, also for a failure, and notes on the output. Null otherwise.",
    )
    start_answer = AnyJSONField(
        source="payload.start_answer", help_text="The engine's raw response to the start."
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


class StartSerializer(StrictSerializer):
    """A workflow and its arguments."""

    tool = serializers.CharField(max_length=64, help_text="The workflow's tool name.")
    arguments = base.JSONObjectField(
        default=dict, help_text="The arguments, which must match the workflow's input schema."
    )
    wait_seconds = serializers.IntegerField(
        default=0,
        min_value=0,
        max_value=LONGEST_WAIT_SECONDS,
        help_text="How long to wait for the result. After this time, the response has the current record.",
    )


class ResolveSerializer(StrictSerializer):
    """The resolution of an unconfirmed execution."""

    ran = serializers.BooleanField(help_text="Whether the engine has a run for it.")
    run_id = serializers.CharField(
        default="",
        max_length=255,
        help_text="The engine's id of that run. Required if it ran, except for an engine that does "
        "not keep runs, such as an HTTP API.",
    )
    output = AnyJSONField(
        default=None,
        allow_null=True,
        help_text="For a run that the engine does not keep: its answer, if known. It is recorded as "
        "reported by you; null: not known.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        problems: dict[str, str] = {}
        if attrs["run_id"] and not attrs["ran"]:
            problems["run_id"] = "Omit the run id for an execution that did not run."
        elif attrs["output"] is not None and not attrs["ran"]:
            problems["output"] = "Omit the output for an execution that did not run."
        elif attrs["output"] is not None and attrs["run_id"]:
            problems["output"] = "Omit the output: the engine has the output of this run."
        if problems:
            raise serializers.ValidationError(problems)
        return attrs


class CancellationSerializer(serializers.Serializer[Any]):
    # With names: drf-spectacular finds the schema's own name by the values and names.
    outcome = serializers.ChoiceField(choices=[(outcome.value, outcome.name) for outcome in CancelOutcome])
    message = serializers.CharField()
    execution = ExecutionDetailSerializer()


class NotCancelledSerializer(CancellationSerializer, base.ProblemSerializer):
    """An execution that is not cancelled."""
