"""Serializers of natural-language requests and their answers."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from catalogue.rest.bodies import StrictSerializer
from executions.models import State
from executions.rest.serializers import AnyJSONField
from orchestration.models import WorkflowRequest
from orchestration.records import answer_of
from orchestration.request_types import (
    LONGEST_FORMAT_INSTRUCTIONS,
    LONGEST_INSTRUCTIONS,
    MOST_TOOLS,
    RequestOutcome,
)
from orchestration.stages import Failure, Stage, StageState

LONGEST_ID = 255


class AskSerializer(StrictSerializer):
    """What the user wants, in natural language, and which tools may be used for it."""

    user_instructions = serializers.CharField(
        max_length=LONGEST_INSTRUCTIONS, help_text="What the user wants, in their own words."
    )
    tool_ids = serializers.ListField(
        child=serializers.CharField(max_length=LONGEST_ID),
        min_length=1,
        max_length=MOST_TOOLS,
        help_text="The tools that may be used, by their tool names. No other one is.",
    )
    format_response = serializers.BooleanField(
        default=False, help_text="Whether the model puts the response into words as well."
    )
    response_format_instructions = serializers.CharField(
        default="",
        allow_blank=True,
        allow_null=True,
        max_length=LONGEST_FORMAT_INSTRUCTIONS,
        help_text="How: length, language, tone, form.",
    )
    dry_run = serializers.BooleanField(
        default=False, help_text="Stop before anything is sent: the answer shows what would be."
    )


class StageEntrySerializer(serializers.Serializer[Any]):
    """One stage, as far as it got."""

    stage = serializers.ChoiceField(choices=Stage.choices)
    state = serializers.ChoiceField(choices=StageState.choices)
    seconds = serializers.FloatField(allow_null=True)
    message = serializers.CharField()


class ModelUsageSerializer(serializers.Serializer[WorkflowRequest]):
    """What it cost at the model, failures included."""

    model = serializers.CharField(help_text="The name that the model's server gives it.")
    prompt_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()


class HttpRequestSpecSerializer(serializers.Serializer[Any]):
    """The request as it was checked; credentials are added as it leaves."""

    method = serializers.CharField()
    url = serializers.CharField()
    headers = serializers.DictField(child=serializers.CharField())
    query_params = serializers.DictField()
    body = AnyJSONField()


class OrNull(serializers.CharField):
    """A text of the record, null where it is empty."""

    def to_representation(self, value: Any) -> Any:
        return super().to_representation(value) if value else None


class WorkflowAnswerSerializer(serializers.Serializer[RequestOutcome]):
    """The answer, of one shape whether it succeeded or not."""

    request_id = serializers.UUIDField(source="request.pk")
    status = serializers.ChoiceField(
        choices=WorkflowRequest.Status.choices,
        source="request.status",
        help_text="`running`: the run takes longer than the answer can wait; the request ends as it does.",
    )
    dry_run = serializers.BooleanField(source="request.dry_run")
    selected_tool = OrNull(source="request.selected_tool", allow_null=True)
    reason = OrNull(
        source="request.reason", allow_null=True, help_text="Why this tool, in the model's words."
    )
    arguments = serializers.DictField(source="request.arguments", allow_null=True)
    http_spec = HttpRequestSpecSerializer(
        source="request.http_spec",
        allow_null=True,
        help_text="Of HTTP tools. Null for those of other engines.",
    )
    execution_id = serializers.UUIDField(source="request.execution_id", allow_null=True)
    execution_state = serializers.ChoiceField(
        choices=State.choices,
        source="request.execution.state",
        allow_null=True,
        help_text="How the run is now. `unconfirmed`: it may have run, and asking again may do it twice.",
    )
    raw_response = AnyJSONField(
        help_text="Of HTTP tools `{status_code, headers, body, execution_time_ms}`; of others, and where no "
        "response came, `{execution_id, state, output, error}`. Null where nothing was run."
    )
    formatted_response = OrNull(
        source="request.formatted_response",
        allow_null=True,
        required=False,
        help_text="The response in words; only there if it was asked for, and null if it could not be made.",
    )
    error = OrNull(source="request.error", allow_null=True)
    error_stage = serializers.ChoiceField(
        choices=Stage.choices, source="request.error_stage", allow_null=True
    )
    failure = serializers.ChoiceField(choices=Failure.choices, source="request.failure", allow_null=True)
    invalid_tool_ids = serializers.ListField(child=serializers.CharField())
    warnings = serializers.ListField(child=serializers.CharField())
    stages = StageEntrySerializer(many=True, source="request.stages")
    usage = ModelUsageSerializer(source="request")

    def to_representation(self, answered: RequestOutcome) -> dict[str, Any]:
        shown: dict[str, Any] = super().to_representation(answered)
        for name in ("error_stage", "failure"):
            shown[name] = shown[name] or None
        if not answered.request.format_response:
            del shown["formatted_response"]
        return shown


class WorkflowRequestSerializer(serializers.ModelSerializer[WorkflowRequest]):
    """A request as lists show it."""

    error = OrNull(allow_null=True)
    selected_tool = OrNull(allow_null=True)
    error_stage = OrNull(allow_null=True)
    failure = OrNull(allow_null=True)
    seconds = serializers.FloatField(allow_null=True, help_text="Null while it goes on.")
    usage = ModelUsageSerializer(source="*")

    class Meta:
        model = WorkflowRequest
        fields: tuple[str, ...] = (
            "id",
            "caller",
            "caller_name",
            "idempotency_key",
            "created_at",
            "finished_at",
            "seconds",
            "status",
            "dry_run",
            "selected_tool",
            "execution_id",
            "error",
            "error_stage",
            "failure",
            "usage",
        )
        read_only_fields = fields


class WorkflowRequestDetailSerializer(WorkflowRequestSerializer):
    """Everything that is known of a request: what was asked, and the answer as it is now."""

    user_instructions = serializers.CharField(source="instructions")
    tool_ids = serializers.ListField(child=serializers.CharField())
    response_format_instructions = serializers.CharField(source="format_instructions")
    payload_removed_at = serializers.DateTimeField(
        source="payload_pruned_at",
        allow_null=True,
        help_text="When the retention removed the instructions and what was made of them.",
    )
    answer = serializers.SerializerMethodField(
        help_text="As `POST /workflow` answers, with the run as it is now."
    )

    class Meta(WorkflowRequestSerializer.Meta):
        fields = (
            *WorkflowRequestSerializer.Meta.fields,
            "user_instructions",
            "tool_ids",
            "format_response",
            "response_format_instructions",
            "payload_removed_at",
            "answer",
        )
        read_only_fields = fields

    @extend_schema_field(WorkflowAnswerSerializer)
    def get_answer(self, request: WorkflowRequest) -> dict[str, Any]:
        return dict(WorkflowAnswerSerializer(answer_of(request)).data)
