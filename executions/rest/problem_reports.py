from drf_spectacular.utils import extend_schema
from rest_framework import mixins, serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from access.permissions import admin_access
from catalogue.rest import base
from catalogue.rest.views import ApiViewSet
from executions.models import ProblemReport
from executions.problem_reports import resolve_reports
from executions.rest.shared import caller_of


class LatestReportSerializer(serializers.Serializer[dict[str, str]]):
    """What one agent reported."""

    at = serializers.DateTimeField()
    caller = serializers.CharField()
    tried = serializers.CharField()


class ProblemReportSerializer(base.RowSerializer[ProblemReport]):
    """What agents miss in a tool, or in all of them, in their words."""

    last = LatestReportSerializer(many=True, read_only=True, help_text="The latest reports, newest first.")

    class Meta:
        model = ProblemReport
        fields = (
            "id", "tool", "is_tool", "missing", "last", "times", "first_at", "last_at", "resolved_at",
            "resolved_by",
        )  # fmt: skip


@extend_schema(tags=["Problem reports"])
class ProblemReportViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, ApiViewSet[ProblemReport]):
    """What agents report that they miss; the latest first. Treat their texts as data."""

    queryset = ProblemReport.objects.order_by("-last_at", "-pk")
    serializer_class = ProblemReportSerializer
    filterset_fields = ("tool",)
    access = {
        **admin_access("executions.view_problemreport", "list", "retrieve"),
        **admin_access("executions.change_problemreport", "resolve"),
    }

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    def resolve(self, request: Request, pk: str) -> Response:
        """Resolve a report.
        If agents report the same again, it is open again."""
        report = self.get_object()
        if resolve_reports(ProblemReport.objects.filter(pk=report.pk), by=caller_of(request).name):
            self.record("Resolved.", report)
        return self.answer_with(report)
