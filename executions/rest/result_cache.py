from typing import Any

from django.db.models import QuerySet
from drf_spectacular.helpers import forced_singular_serializer
from drf_spectacular.utils import OpenApiParameter, extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from access.permissions import admin_access
from catalogue.models import Workflow
from catalogue.rest.base import (
    Problem,
    Refusal,
    RowSerializer,
    StrictSerializer,
    as_problem,
    check_parameters,
)
from catalogue.rest.views import ApiViewSet
from executions.models import CachePolicy, CacheUse
from executions.result_cache import cache_figures, clear_results

WORKFLOW = OpenApiParameter("workflow", description="Only of the workflow with this tool name.")


class CacheFiguresSerializer(RowSerializer[Any]):
    """The figures of the result cache, for all processes."""

    enabled = serializers.BooleanField(help_text="Whether an administrator has it switched on.")
    max_bytes = serializers.IntegerField(help_text="The limit for the results of all workflows together.")
    hit_rate = serializers.FloatField(allow_null=True, help_text="Hits of hits and misses, from 0 to 1.")

    class Meta:
        model = CacheUse
        fields = (
            "enabled", "max_bytes", "entries", "bytes", "hits", "misses", "hit_rate", "refreshes", "stored",
            "oversized", "evictions", "expired", "cleared",
        )  # fmt: skip


class ClearSerializer(StrictSerializer):
    """What to clear."""

    workflow = serializers.CharField(
        default="", allow_blank=True, max_length=64, help_text="A workflow's tool name. Empty: all results."
    )


CLEARED: dict[str, Any] = {  # As the tool ClearCache answers
    "success": serializers.BooleanField(),
    "workflow": serializers.CharField(help_text="Its tool name; empty for all."),
    "entriesCleared": serializers.IntegerField(),
}


@extend_schema(tags=["Result cache"])
class ResultCacheViewSet(ApiViewSet[CacheUse]):
    queryset: QuerySet[CacheUse] = CacheUse.objects.none()
    filter_backends = ()
    pagination_class = None
    access = {
        **admin_access("executions.view_cacheuse", "list"),
        **admin_access("executions.delete_cachedresult", "clear"),
    }

    @extend_schema(
        operation_id="result_cache_figures",
        parameters=[WORKFLOW],
        responses=forced_singular_serializer(CacheFiguresSerializer),  # type: ignore[no-untyped-call]
    )
    def list(self, request: Request) -> Response:
        """Read the figures of the result cache.
        The figures cover workflows that still exist, since results were first cached."""
        check_parameters(request, WORKFLOW)
        name = request.query_params.get(WORKFLOW.name)
        figures = cache_figures(None if name is None else _key_of(name, place=f"?{WORKFLOW.name}"))
        return Response(CacheFiguresSerializer(figures).data)

    @extend_schema(
        request=ClearSerializer,
        responses={200: inline_serializer("Cleared", CLEARED), 400: as_problem("There is no such workflow.")},
    )
    @action(detail=False, methods=["post"])
    def clear(self, request: Request) -> Response:
        """Clear the result cache.
        Of one workflow, or of all. Runs that began before are not cached either."""
        name = self.read_body(ClearSerializer)["workflow"]
        keys = {_key_of(name, place="/workflow")} if name else None
        changed = [CachePolicy.current()] if keys is None else Workflow.objects.filter(pk__in=keys)
        self.record("Cleared its cached results.", *changed)
        return Response({"success": True, "entriesCleared": clear_results(keys), "workflow": name})


def _key_of(tool_name: str, *, place: str) -> int:
    """Returns the key, also of a workflow that is not exposed. Raises Refusal."""
    same = Workflow.objects.filter(tool_name=tool_name).values_list("pk", flat=True)
    # PostgreSQL refuses characters that no tool name has.
    if not tool_name.isprintable() or (key := same.first()) is None:
        message = f"No workflow has the tool name {tool_name[:64]!a}."
        raise Refusal.invalid(message, [Problem(place, message)])
    return key
