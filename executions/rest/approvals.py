from typing import Any

import django_filters  # type: ignore[import-untyped]
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import mixins, serializers, status
from rest_framework.decorators import action
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from access.permissions import admin_access
from catalogue.rest import base
from executions.approvals import (
    MAX_MESSAGE_LENGTH,
    MAX_MINUTES,
    PERMISSION,
    Verdict,
    change_arguments,
    decide,
    read_past,
    revoke_standing,
)
from executions.models import Approval, ApprovalDecision, Execution, StandingApproval
from executions.rest.shared import ExecutionsViewSet, caller_of


class DecisionSerializer(base.RowSerializer[ApprovalDecision]):
    """One person's answer."""

    user = serializers.CharField(source="user_name")

    class Meta:
        model = ApprovalDecision
        fields = ("user", "verdict", "words", "minutes", "at")


class ApprovalSerializer(base.RowSerializer[Approval]):
    """A call that needs or needed a person's approval."""

    execution = serializers.UUIDField(source="pk", help_text="The id of the execution and of the approval.")
    tool = serializers.CharField(source="execution.tool_name")
    source = serializers.CharField(source="execution.source_name")  # type: ignore[assignment]
    caller = serializers.CharField(source="execution.caller")
    caller_name = serializers.CharField(source="execution.caller_name")
    door = serializers.CharField(source="execution.door")
    unanswered = serializers.BooleanField(
        source="is_unanswered",
        help_text="It waits, but its caller left meanwhile. If you approve it, it runs all the same.",
    )
    decisions = DecisionSerializer(many=True)

    class Meta:
        model = Approval
        fields: tuple[str, ...] = (
            "execution", "state", "tool", "source", "caller", "caller_name", "door", "unanswered", "reason",
            "outcome", "approvers_needed", "decisions", "requested_at", "expires_at", "decided_at",
        )  # fmt: skip


class PastRunSerializer(base.RowSerializer[Execution]):
    """An earlier run of the tool."""

    execution = serializers.UUIDField(source="pk")
    state = serializers.CharField()
    duration_ms = serializers.IntegerField(allow_null=True)

    class Meta:
        model = Execution
        fields = ("execution", "state", "caller_name", "created_at", "duration_ms")


class ApprovalDetailSerializer(ApprovalSerializer):
    """A call that needs a person's approval, with what it would send and what the tool did before."""

    arguments = serializers.JSONField(
        source="execution.payload.sent_input", help_text="What would be sent. Null once removed."
    )
    asked_arguments = serializers.JSONField(
        source="execution.payload.input",
        help_text="What the caller asked for: the same, unless an approver has changed it.",
    )
    arguments_changed_by = serializers.CharField(
        source="execution.payload.changed_by", help_text="The approver who did. Empty: nobody."
    )
    client = serializers.SerializerMethodField(help_text="The client's description of itself.")
    past = serializers.SerializerMethodField(help_text="What the tool's last 100 runs did.")

    class Meta(ApprovalSerializer.Meta):
        fields = (
            *ApprovalSerializer.Meta.fields, "binding", "arguments", "asked_arguments",
            "arguments_changed_by", "client", "past",
        )  # fmt: skip

    def get_client(self, approval: Approval) -> dict[str, Any]:
        client: dict[str, Any] = approval.execution.payload.metadata.get("client") or {}
        return client

    def get_past(self, approval: Approval) -> dict[str, Any]:
        past = read_past(approval.execution)
        return {
            "last": PastRunSerializer(past.last, many=True).data,
            "ended": past.ended,
            "succeeded": past.succeeded,
            "success_rate": past.success_rate,
            "by_caller": past.by_caller,
        }


class ApproveSerializer(base.StrictSerializer, serializers.ModelSerializer[ApprovalDecision]):
    """Approves this call, or identical calls for a period."""

    seen = serializers.CharField(
        default="",
        max_length=64,
        help_text="The `binding` of the approval as it was read: if the arguments are others by now, nothing "
        "is approved. Required for arguments that somebody has changed.",
    )

    class Meta:
        model = ApprovalDecision
        fields = ("minutes", "seen")
        extra_kwargs = {"minutes": {"default": None, "min_value": 1, "max_value": MAX_MINUTES}}


class ChangeArgumentsSerializer(base.StrictSerializer):
    """Changes what the engine would get."""

    arguments = serializers.DictField(help_text="All of them, as in `arguments` of the approval.")
    seen = serializers.CharField(max_length=64, help_text="The `binding` of the approval as it was read.")


class RefuseSerializer(base.StrictSerializer, serializers.ModelSerializer[ApprovalDecision]):
    """Refuses the call, with a reason for the caller."""

    words = serializers.CharField(
        max_length=MAX_MESSAGE_LENGTH, help_text="The reason, which the caller sees."
    )

    class Meta:
        model = ApprovalDecision
        fields = ("words",)


class StandingSerializer(base.RowSerializer[StandingApproval]):
    """An approval for a period."""

    tool = serializers.CharField(source="tool_name")

    class Meta:
        model = StandingApproval
        fields = (
            "id", "tool", "caller", "caller_name", "granted_by", "granted_at", "until", "revoked_at",
            "revoked_by",
        )  # fmt: skip


class ApprovalFilters(django_filters.FilterSet):  # type: ignore[misc]
    state = django_filters.ChoiceFilter(choices=Approval.State.choices)
    decided = base.StrictBooleanFilter(method="filter_decided", label="Whether it is decided or has ended.")
    mine = base.StrictBooleanFilter(
        method="filter_mine", label="Approvals of your own calls, or decided by you; needs a session."
    )
    tool = django_filters.CharFilter(field_name="execution__tool_name", label="The tool's name.")
    caller = django_filters.CharFilter(field_name="execution__caller", label="Such as `token:7`.")
    ordering = base.StableOrdering(fields=["requested_at", "expires_at", "decided_at"])

    def filter_decided(self, approvals: Any, name: str, value: bool) -> Any:
        return approvals.decided() if value else approvals.waiting()

    def filter_mine(self, approvals: Any, name: str, value: bool) -> Any:
        user = self.request.user
        mine = Approval.objects.of_user(user if user.is_authenticated else None).values("pk")
        return approvals.filter(pk__in=mine) if value else approvals.exclude(pk__in=mine)


DECIDED: dict[int, Any] = {
    200: ApprovalDetailSerializer,
    403: base.as_problem("Tokens cannot decide, and people cannot decide on their own calls."),
    409: base.as_problem("It is already decided, has expired, or the workflow has changed since the call."),
}


@extend_schema_view(
    retrieve=extend_schema(
        summary="Read an approval",
        description="With the exact arguments and the previous runs of the tool.",
    )
)
@extend_schema(tags=["Approvals"])
class ApprovalViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, ExecutionsViewSet[Approval]):
    """Calls that wait for a person's approval, and those that were decided; the newest first."""

    queryset = (
        Approval.objects.select_related("execution__payload")
        .prefetch_related("decisions")
        .order_by("-requested_at", "-pk")
    )
    serializer_class, list_serializer_class = ApprovalDetailSerializer, ApprovalSerializer
    filterset_class = ApprovalFilters
    pagination_class = base.LongPages
    newest_by = "requested_at"
    lookup_value_regex = "[0-9a-fA-F-]{36}"
    access = {
        **admin_access("executions.view_approval", "list", "retrieve"),
        **admin_access(PERMISSION, "approve", "refuse", "change_arguments"),
    }

    @extend_schema(request=ApproveSerializer, responses=DECIDED)
    @action(detail=True, methods=["post"])
    def approve(self, request: Request, pk: str) -> Response:
        """Approve a call.
        The last that is needed starts the call, with exactly the recorded arguments."""
        return self._decide(Verdict.APPROVE, ApproveSerializer)

    @extend_schema(request=ChangeArgumentsSerializer, responses=DECIDED)
    @action(detail=True, methods=["post"], url_path="change-arguments")
    def change_arguments(self, request: Request, pk: str) -> Response:
        """Change the arguments of a call.
        They are validated as the caller's were. Approvals that were given before no longer count, and the
        caller is told what was sent. The call still waits for approval."""
        self._demand_person()
        body = self.read_body(ChangeArgumentsSerializer)
        approval = self.get_object()
        change_arguments(approval.pk, user=request.user, **body)
        self.record("Changed the arguments.", approval.execution)
        return self.answer_with(approval)

    @extend_schema(request=RefuseSerializer, responses=DECIDED)
    @action(detail=True, methods=["post"])
    def refuse(self, request: Request, pk: str) -> Response:
        """Refuse a call.
        The call ends, and the caller gets the reason. Nothing is started."""
        return self._decide(Verdict.REFUSE, RefuseSerializer)

    def _demand_person(self) -> None:
        if self.request.auth is not None:
            raise PermissionDenied(
                "A person decides: sign in to the admin as staff. Access tokens can read approvals but "
                "cannot decide them."
            )

    def _decide(self, verdict: Verdict, body: type[base.StrictSerializer]) -> Response:
        self._demand_person()
        answer = self.read_body(body)
        approval = self.get_object()
        decide(approval.pk, user=self.request.user, verdict=verdict, **answer)
        self.record("Approved." if verdict == Verdict.APPROVE else "Refused.", approval.execution)
        return self.answer_with(approval)


@extend_schema_view(list=extend_schema(summary="List approvals for a period"))
@extend_schema(tags=["Approvals"])
class StandingApprovalViewSet(mixins.ListModelMixin, ExecutionsViewSet[StandingApproval]):
    """They let identical calls run. Also those that have ended; the newest first."""

    queryset = StandingApproval.objects.order_by("-granted_at", "-pk")
    serializer_class = StandingSerializer
    pagination_class = base.LongPages
    newest_by = "granted_at"
    access = {
        **admin_access("executions.view_standingapproval", "list"),
        **admin_access(PERMISSION, "revoke"),
    }

    @extend_schema(responses={200: StandingSerializer, 409: base.as_problem("It has already ended.")})
    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, pk: str) -> Response:
        """Revoke an approval for a period.
        The next call needs a new approval."""
        standing = self.get_object()
        if not revoke_standing(standing.pk, by=caller_of(request).name):
            raise base.Refusal(status.HTTP_409_CONFLICT, "It has already ended.")
        self.record("Revoked.", standing)
        return self.answer_with(standing)
