"""Where the API begins."""

from drf_spectacular.utils import extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse
from rest_framework.views import APIView

from catalogue.permissions import AnyoneKnown

ROUTES = {
    "sources": "source-list",
    "connectors": "connector-list",
    "tools": "tool-list",
    "workflows": "workflow-list",
    "reviews": "review-list",
    "filters": "filter-list",
    "toolsets": "toolset-list",
    "discovery-runs": "discovery-run-list",
    "executions": "execution-list",
    "tokens": "token-list",
    "statistics": "statistics-list",
    "workflow-requests": "workflow-request-list",
    "result-cache": "result-cache-list",
    "history": "history-list",
    "settings": "settings",
    "schema": "api-schema",
}


class ApiRoot(APIView):
    """Points to everything else."""

    permission_classes = (AnyoneKnown,)

    @extend_schema(
        operation_id="root_retrieve",
        summary="Find the collections",
        description="The address of each collection, and of this description.",
        tags=["Root"],
        responses=inline_serializer("Root", {name: serializers.URLField() for name in ROUTES}),
    )
    def get(self, request: Request) -> Response:
        # Where a slash is optional, `reverse` leaves it out.
        return Response({name: reverse(route, request=request) + "/" for name, route in ROUTES.items()})
