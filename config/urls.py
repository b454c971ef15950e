"""URLs of the Django part; `/mcp` is mounted beside it in `config.asgi`."""

from django.contrib import admin
from django.urls import include, path, re_path
from django.views.generic import RedirectView
from drf_spectacular.views import SpectacularAPIView
from rest_framework.routers import SimpleRouter

from catalogue.api import DiscoveryRunViewSet, SourceViewSet, WorkflowViewSet
from catalogue.rest.nowhere import NoSuchEndpoint
from catalogue.rest.root import ApiRoot
from executions.api import ExecutionViewSet
from executions.cache_api import ResultCacheViewSet
from mcp_bridge.api import ToolsetViewSet


class Router(SimpleRouter):
    """The slash at the end is optional: redirecting a POST there would turn it into a GET."""

    def __init__(self) -> None:
        super().__init__()
        self.trailing_slash = "/?"


api = Router()
api.register("sources", SourceViewSet, "source")
api.register("workflows", WorkflowViewSet, "workflow")
api.register("toolsets", ToolsetViewSet, "toolset")
api.register("discovery-runs", DiscoveryRunViewSet, "discovery-run")
api.register("executions", ExecutionViewSet, "execution")
api.register("result-cache", ResultCacheViewSet, "result-cache")

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/", admin.site.urls),
    re_path(r"^api/schema/?$", SpectacularAPIView.as_view(), name="api-schema"),
    re_path(r"^api/?$", ApiRoot.as_view(), name="api-root"),
    path("api/", include(api.urls)),
    re_path(r"^api(/|$)", NoSuchEndpoint.as_view()),
]
