from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from catalogue.rest.base import StrictSerializer
from executions.cancelling import CancelOutcome
from executions.models import CancelProgress, ErrorKind, Execution, ExecutionEvent

LONGEST_WAIT_SECONDS = 50
ANY_JSON: dict[str, Any] = {}


@extend_schema_field(ANY_JSON)
class AnyJSONField(serializers.JSONField):
    pass


class ExecutionErrorSerializer(serializers.Serializer[Execution]):
    """The error; null without one."""

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
        allow_null=True, help_text="By the engine's clock if it reports both times, else by the product's."
    )
    error = ExecutionErrorSerializer(source="*", read_only=True, allow_null=True)
    progress = serializers.FloatField(
        source="progress_percent",
        allow_null=True,
        help_text="Percent, as the engine reports it; 100 once it has completed.",
    )
    queued = serializers.BooleanField(
        source="is_queued", help_text="It waits until the limits have room; no engine has got it yet."
    )
    awaited = serializers.BooleanField(source="is_awaited", help_text="A request waits for it.")
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

    def get_success(self, execution: Execution) -> bool | None:
        return execution.succeeded if execution.is_settled else None


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
        help_text="The outcome of a request to cancel it; null without one.",
    )
    payload_removed_at = serializers.DateTimeField(
        source="payload_pruned_at",
        allow_null=True,
        help_text="When the retention removed input, output and raw answers, which are null since then.",
    )
    events_removed_at = serializers.DateTimeField(
        source="events_pruned_at", allow_null=True, help_text="When the retention removed the timeline."
    )
    input = AnyJSONField(source="payload.input", help_text="The arguments.")
    output = AnyJSONField(source="payload.output", help_text="The result, once it has completed.")
    content = serializers.ListField(
        child=serializers.DictField(),
        source="payload.content",
        allow_null=True,
        help_text="The result as MCP content blocks (text, image, audio, ...), if the engine returns "
        "them, also for a failure. Null otherwise.",
    )
    start_answer = AnyJSONField(
        source="payload.start_answer", help_text="The engine's raw answer to the start."
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
    arguments = serializers.DictField(default=dict, help_text="By the workflow's input schema.")
    wait_seconds = serializers.IntegerField(
        default=0,
        min_value=0,
        max_value=LONGEST_WAIT_SECONDS,
        help_text="How long to wait for the result before answering with the record as it is then.",
    )


class ResolveSerializer(StrictSerializer):
    """The resolution of an unconfirmed execution."""

    ran = serializers.BooleanField(help_text="Whether the engine has a run for it.")
    run_id = serializers.CharField(
        default="",
        max_length=255,
        help_text="The engine's id of that run. Needed if it ran, except at an engine that keeps no runs, "
        "such as an HTTP API.",
    )
    output = AnyJSONField(
        default=None,
        allow_null=True,
        help_text="For a run that the engine does not keep: its answer, if you know it. It is recorded as "
        "reported by you; null: not known.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs["run_id"] and not attrs["ran"]:
            raise serializers.ValidationError({"run_id": "An execution that did not run has no run id."})
        if attrs["output"] is not None and not attrs["ran"]:
            raise serializers.ValidationError({"output": "An execution that did not run has no output."})
        if attrs["output"] is not None and attrs["run_id"]:
            raise serializers.ValidationError({"output": "The engine has the output of a run that it keeps."})
        return attrs


class CancellationSerializer(serializers.Serializer[Any]):
    outcome = serializers.ChoiceField(choices=[outcome.value for outcome in CancelOutcome])
    message = serializers.CharField()
    execution = ExecutionDetailSerializer()
