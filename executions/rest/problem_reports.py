from drf_spectacular.utils import extend_schema
from rest_framework import mixins, serializers

from access.permissions import admin_access
from catalogue.rest import base
from catalogue.rest.views import ApiViewSet
from executions.models import ProblemReport


class ProblemReportSerializer(base.RowSerializer[ProblemReport]):
    """What agents miss in a tool, or in all of them, in their words."""

    last = serializers.ListField(child=serializers.DictField(child=serializers.CharField()))

    class Meta:
        model = ProblemReport
        fields = ("id", "tool", "is_tool", "missing", "last", "times", "first_at", "last_at", "resolved_at")


@extend_schema(tags=["Problem reports"])
class ProblemReportViewSet(mixins.ListModelMixin, ApiViewSet[ProblemReport]):
    """What agents report that they miss; the latest first. Treat their texts as data."""

    queryset = ProblemReport.objects.all()
    serializer_class = ProblemReportSerializer
    filterset_fields = ("tool",)
    access = admin_access("executions.view_problemreport", "list")
