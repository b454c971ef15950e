"""REST endpoints of natural-language requests."""

from typing import Any

import django_filters  # type: ignore[import-untyped]
from django.db.models import QuerySet
from django.urls import reverse
from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiResponse,
    PolymorphicProxySerializer,
    extend_schema,
    extend_schema_field,
    extend_schema_view,
)
from rest_framework import mixins, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from access.callers import Scope
from access.permissions import Access, demand_of_staff
from catalogue.compat import mark_logged
from catalogue.database import run_without_connection
from catalogue.rest import base
from catalogue.rest.base import Refusal, StringListField, as_problem
from catalogue.rest.views import ApiViewSet
from executions.models import State
from executions.rest import shared
from orchestration import records
from orchestration.models import Failure, Stage, StageState, WorkflowRequest
from orchestration.pipeline import answer_request, settle_requests
from orchestration.records import WITH_RUN, raw_response_of, warnings_of

MAX_ID_LENGTH = 255


class AskSerializer(base.StrictSerializer):
    """What the user wants, in natural language, and which tools may be used for it."""

    user_instructions = serializers.CharField(max_length=records.MAX_INSTRUCTIONS_LENGTH)
    tool_ids = serializers.ListField(
        child=serializers.CharField(max_length=MAX_ID_LENGTH),
        min_length=1,
        max_length=records.MAX_TOOLS,
        help_text="The names of the tools that the model may use.",
    )
    format_response = serializers.BooleanField(default=False, help_text="Also put the response into words.")
    response_format_instructions = serializers.CharField(
        default="",
        allow_blank=True,
        allow_null=True,
        max_length=records.MAX_FORMAT_INSTRUCTIONS,
        help_text="How to phrase the response.",
    )
    dry_run = serializers.BooleanField(default=False, help_text="Only show what would be sent.")


class StageEntrySerializer(serializers.Serializer[Any]):
    """One stage, as far as it got."""

    stage = serializers.ChoiceField(choices=Stage.choices)
    state = serializers.ChoiceField(choices=StageState.choices)
    seconds = serializers.FloatField(allow_null=True)
    message = serializers.CharField()


class ModelUsageSerializer(base.RowSerializer[WorkflowRequest]):
    """The costs of the model, including failures."""

    class Meta:
        model = WorkflowRequest
        fields = ("model", "prompt_tokens", "completion_tokens")


class HttpRequestSpecSerializer(serializers.Serializer[Any]):
    """The checked request, without the credentials that are added when it is sent."""

    method = serializers.CharField()
    url = serializers.CharField()
    headers = serializers.DictField(child=serializers.CharField())
    query_params = serializers.DictField()
    body = shared.AnyJSONField()


class OrNull(serializers.CharField):
    """A text of the record; null if it is empty."""

    def to_representation(self, value: Any) -> Any:
        return super().to_representation(value) if value else None


class WorkflowAnswerSerializer(base.RowSerializer[WorkflowRequest]):
    """The answer, which has the same shape for success and failure."""

    selected_tool = OrNull(allow_null=True)
    reason = OrNull(allow_null=True, help_text="Why this tool, in the model's words.")
    arguments = serializers.DictField(allow_null=True)
    http_spec = HttpRequestSpecSerializer(
        allow_null=True, help_text="Set for HTTP tools. Null for the tools of other engines."
    )
    execution_state = serializers.ChoiceField(
        choices=State.choices,
        source="execution.state",
        allow_null=True,
        help_text="`unconfirmed`: it may have run, and a repeated request may run it twice.",
    )
    raw_response = serializers.SerializerMethodField(
        help_text="For HTTP tools `{status_code, headers, body, execution_time_ms}`; for others, "
        "and where no response came, `{execution_id, state, output, error}`. Null where nothing was run."
    )
    formatted_response = OrNull(
        allow_null=True,
        required=False,
        help_text="The response in words; present only if requested, and null if it could not be made.",
    )
    error = OrNull(allow_null=True)
    error_stage = serializers.ChoiceField(choices=Stage.choices, allow_null=True)
    failure = serializers.ChoiceField(choices=Failure.choices, allow_null=True)
    invalid_tool_ids = StringListField()
    warnings = serializers.SerializerMethodField()
    stages = StageEntrySerializer(many=True)
    usage = ModelUsageSerializer(source="*")

    class Meta:
        model = WorkflowRequest
        fields = (
            "request_id", "status", "dry_run", "selected_tool", "reason", "arguments", "http_spec",
            "execution_id", "execution_state", "raw_response", "formatted_response", "error", "error_stage",
            "failure", "invalid_tool_ids", "warnings", "stages", "usage",
        )  # fmt: skip
        extra_kwargs = {
            "request_id": {"source": "id"},
            "status": {"help_text": "`running`: the run goes on, and the request ends with it."},
        }

    @extend_schema_field(shared.ANY_JSON)
    def get_raw_response(self, request: WorkflowRequest) -> Any:
        if request.execution is None:
            return None
        return raw_response_of(request.execution, of_http_tool=request.http_spec is not None)

    def get_warnings(self, request: WorkflowRequest) -> list[str]:
        return warnings_of(request)

    def to_representation(self, request: WorkflowRequest) -> dict[str, Any]:
        shown: dict[str, Any] = super().to_representation(request)
        for name in ("error_stage", "failure"):
            shown[name] = shown[name] or None
        if not request.format_response:
            del shown["formatted_response"]
        return shown


class WorkflowRequestSerializer(base.RowSerializer[WorkflowRequest]):
    """A request as lists show it."""

    error = OrNull(allow_null=True)
    selected_tool = OrNull(allow_null=True)
    error_stage = OrNull(allow_null=True)
    failure = OrNull(allow_null=True)
    seconds = serializers.FloatField(allow_null=True, help_text="Null while it is in progress.")
    usage = ModelUsageSerializer(source="*")

    class Meta:
        model = WorkflowRequest
        fields: tuple[str, ...] = (
            "id", "caller", "caller_name", "idempotency_key", "created_at", "finished_at", "seconds",
            "status", "dry_run", "selected_tool", "execution_id", "error", "error_stage", "failure", "usage",
        )  # fmt: skip


class WorkflowRequestDetailSerializer(WorkflowRequestSerializer):
    """A request in full: what was asked, and the present answer."""

    tool_ids = StringListField()
    answer = WorkflowAnswerSerializer(
        source="*", help_text="The answer of `POST /workflow`, with the current state of the run."
    )

    class Meta(WorkflowRequestSerializer.Meta):
        fields = (
            *WorkflowRequestSerializer.Meta.fields, "user_instructions", "tool_ids", "format_response",
            "response_format_instructions", "payload_removed_at", "answer",
        )  # fmt: skip
        extra_kwargs = {
            "user_instructions": {"source": "instructions"},
            "response_format_instructions": {"source": "format_instructions"},
            "payload_removed_at": {"source": "payload_pruned_at"},
        }


CODES = {
    Failure.UNKNOWN_TOOLS: status.HTTP_404_NOT_FOUND,
    Failure.NO_TOOL_FITS: status.HTTP_422_UNPROCESSABLE_ENTITY,
    Failure.PROPOSAL_REFUSED: status.HTTP_422_UNPROCESSABLE_ENTITY,
    Failure.MODEL_ANSWER: status.HTTP_502_BAD_GATEWAY,
    Failure.MODEL_UNAVAILABLE: status.HTTP_503_SERVICE_UNAVAILABLE,
    Failure.MODEL_TIMEOUT: status.HTTP_504_GATEWAY_TIMEOUT,
    Failure.BUSY: status.HTTP_503_SERVICE_UNAVAILABLE,
    Failure.TOO_MANY_CALLS: status.HTTP_429_TOO_MANY_REQUESTS,
    Failure.RUN_FAILED: status.HTTP_502_BAD_GATEWAY,
    Failure.RUN_TIMED_OUT: status.HTTP_504_GATEWAY_TIMEOUT,
    Failure.UNCONFIRMED: status.HTTP_504_GATEWAY_TIMEOUT,
    Failure.INTERRUPTED: status.HTTP_500_INTERNAL_SERVER_ERROR,
    Failure.INTERNAL: status.HTTP_500_INTERNAL_SERVER_ERROR,
}
OURS = (Failure.INTERNAL, Failure.INTERRUPTED)
NOT_LISTED = ("arguments", "http_spec", "formatted_response", "stages", "instructions", "format_instructions")
MAY_RUN = "executions.add_execution"  # Required of staff unless it is a dry run
RETRY_AFTER_SECONDS = 5  # For repetitions of a request that still runs


def _answer(why: str) -> OpenApiResponse:
    return OpenApiResponse(WorkflowAnswerSerializer, why)


REFUSED_FOR_NOW = PolymorphicProxySerializer(
    "RefusedForNow", [WorkflowAnswerSerializer, base.ProblemSerializer], resource_type_field_name=None
)


class WorkflowRequestFilters(django_filters.FilterSet):  # type: ignore[misc]
    status = django_filters.ChoiceFilter(choices=WorkflowRequest.Status.choices)
    tool = django_filters.CharFilter(field_name="selected_tool", label="The tool that was chosen.")
    caller = django_filters.CharFilter(label="The caller, such as `token:7` or `user:1`.")
    idempotency_key = django_filters.CharFilter(label="The key that its caller gave it.")
    error_stage = django_filters.ChoiceFilter(choices=Stage.choices)
    failure = django_filters.ChoiceFilter(choices=Failure.choices)
    dry_run = base.StrictBooleanFilter()
    created_after = base.MomentFilter(field_name="created_at", lookup_expr="gte")
    created_before = base.MomentFilter(field_name="created_at", lookup_expr="lt")
    ordering = base.StableOrdering(
        fields=["created_at", "finished_at", "status", ("selected_tool", "tool"), "prompt_tokens"]
    )


@extend_schema_view(
    list=extend_schema(operation_id="workflow_requests_list"),
    retrieve=extend_schema(
        operation_id="workflow_requests_retrieve",
        summary="Read a natural-language request",
        description="With its stages so far, and the answer with the current state of the run.",
    ),
)
@extend_schema(tags=["Natural-language requests"])
class WorkflowRequestViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, ApiViewSet[WorkflowRequest]):
    """The newest first. Callers who are not administrators see their own requests."""

    queryset = WorkflowRequest.objects.none()
    serializer_class, list_serializer_class = WorkflowRequestDetailSerializer, WorkflowRequestSerializer
    filterset_class = WorkflowRequestFilters
    pagination_class = base.LongPages
    newest_by = "created_at"
    lookup_value_regex = "[0-9a-fA-F-]{36}"
    access = {
        "list": Access(Scope.READ, "orchestration.view_workflowrequest"),
        "retrieve": Access(Scope.READ, "orchestration.view_workflowrequest", Scope.RUN),
    }

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        settle_requests()

    def get_queryset(self) -> QuerySet[WorkflowRequest]:
        visible = WorkflowRequest.objects.visible_to(shared.caller_of(self.request))
        if self.action == "list":
            return visible.defer(*NOT_LISTED).order_by("-created_at", "-id")
        return visible.select_related(*WITH_RUN)


class WorkflowViewSet(shared.ExecutionsViewSet[WorkflowRequest]):
    """`POST /workflow`."""

    queryset = WorkflowRequest.objects.none()
    filter_backends = ()
    pagination_class = None
    access = {"create": Access(Scope.RUN, "orchestration.add_workflowrequest")}

    def handle_exception(self, error: Exception) -> Response:
        if isinstance(error, records.RequestRefused):
            conflict = Refusal(status.HTTP_409_CONFLICT, str(error), request_id=str(error.request.pk))
            if isinstance(error, records.StillRunning):
                conflict.kind, conflict.wait = "execution", RETRY_AFTER_SECONDS
            error = conflict
        return super().handle_exception(error)

    @extend_schema(
        operation_id="workflow",
        tags=["Natural-language requests"],
        request=AskSerializer,
        responses={
            200: _answer("The request is done; for a dry run, the answer shows what would be sent."),
            202: _answer("The run goes on, and the request ends with it; `warnings` says where to read it."),
            404: _answer("tool_retrieval: `invalid_tool_ids` lists tools that this caller may not run."),
            409: as_problem("The idempotency key belongs to another or a running request, `request_id`."),
            422: _answer("llm_selection: no tool fits, or the model's proposal was refused."),
            429: OpenApiResponse(
                REFUSED_FOR_NOW,
                "api_execution: the calls a minute of caller, token, toolset or tool are used up; or, as a "
                "problem, too many wrong tokens came from this address.",
            ),
            500: _answer("Internal error, or the process was killed."),
            502: _answer("llm_selection: no usable answer; api_execution: the run failed: `raw_response`."),
            503: OpenApiResponse(
                REFUSED_FOR_NOW,
                "llm_selection: there is no model, or it cannot be asked; api_execution: the queue is full; "
                "or, as a problem, too many requests wait or the database is not available.",
            ),
            504: _answer("It took too long; as `unconfirmed`, it may have run, and a repetition run twice."),
        },
        parameters=[
            shared.IDEMPOTENCY_KEY,
            shared.CACHE_CONTROL,
            shared.header(*shared.REPLAYED, response=True),
            shared.header(*shared.RETRY_AFTER, type=int, response=[409, 429, 503]),
        ],
        examples=[
            OpenApiExample(
                "See what would be sent",
                {
                    "user_instructions": "Where is order 4711?",
                    "tool_ids": ["get_order", "list_orders"],
                    "dry_run": True,
                },
                request_only=True,
            )
        ],
    )
    def create(self, request: Request) -> Response:
        """Send a natural-language request.
        The model chooses one of the tools and its arguments; the product checks that, runs it, and puts the
        response into words if asked to. The answer has the same shape if that fails; `error_stage` says
        where. It is recorded, and continues even if the client disconnects."""
        wanted = self.read_body(AskSerializer)
        asked = records.RequestInput(
            **wanted | {"response_format_instructions": wanted["response_format_instructions"] or ""},
            caller=shared.caller_of(request),
            idempotency_key=shared.idempotency_key_of(request),
            fresh=shared.wants_fresh(request),
        )
        if not asked.dry_run:
            demand_of_staff(request, MAY_RUN)
        with shared.waiting_places.one_for(asked.caller.key) as has_place:
            if not has_place:
                why = "Too many requests are waiting for answers. Nothing was done."
                busy = Refusal(status.HTTP_503_SERVICE_UNAVAILABLE, why)
                busy.wait = RETRY_AFTER_SECONDS
                raise busy
            answered = run_without_connection(answer_request(asked))
        code: int = status.HTTP_202_ACCEPTED if answered.awaits_run else status.HTTP_200_OK
        if answered.failure:
            code = CODES[Failure(answered.failure)]
        recorded = reverse("workflow-request-detail", args=[answered.pk])
        headers = {"Location": request.build_absolute_uri(recorded)}
        if answered.pk != asked.id:
            headers[shared.REPLAYED[0]] = "true"
        if answered.retry_after is not None:
            headers["Retry-After"] = str(answered.retry_after)
        response = Response(WorkflowAnswerSerializer(answered).data, code, headers=headers)
        if answered.failure not in OURS:
            # Already logged, with the request's id; Django would add an ERROR.
            mark_logged(response)
        return response
