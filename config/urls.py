"""Django's URLs; `config.asgi` adds `/mcp`."""

from django.conf import settings
from django.contrib import admin
from django.urls import include, path, re_path
from django.views.generic import RedirectView
from django.views.i18n import set_language
from rest_framework.routers import SimpleRouter

from catalogue.rest.configuration import ConfigurationViewSet, SettingsViewSet
from catalogue.rest.filters import FilterViewSet
from catalogue.rest.history import AuditViewSet, HistoryViewSet
from catalogue.rest.imports import OpenApiImportViewSet, TemporalImportViewSet
from catalogue.rest.reviews import ReviewViewSet
from catalogue.rest.server_features import ServerFeatureViewSet
from catalogue.rest.sources import ConnectorViewSet, DiscoveryRunViewSet, SourceViewSet
from catalogue.rest.tools import RootToolViewSet, ToolViewSet
from catalogue.rest.views import NAME, ApiDocs, ApiRoot, NoSuchEndpoint, SchemaView
from catalogue.rest.workflows import WorkflowViewSet
from executions.rest.approvals import ApprovalViewSet, StandingApprovalViewSet
from executions.rest.executions import EngineRunViewSet, ExecutionViewSet
from executions.rest.problem_reports import ProblemReportViewSet
from executions.rest.result_cache import ResultCacheViewSet
from executions.rest.statistics import StatisticsViewSet
from identity.company_login import BeginLogin, EndLogin, log_out
from identity.engine_webhooks import receive_delivery
from identity.rest import TokenViewSet
from identity.second_factor import SecondFactorPage
from mcp_bridge.rest import ToolsetViewSet
from orchestration.rest import WorkflowRequestViewSet
from orchestration.rest import WorkflowViewSet as RequestInWords


class Router(SimpleRouter):
    """Makes the trailing slash optional, because a redirect would turn a POST into a GET."""

    def __init__(self) -> None:
        super().__init__()
        self.trailing_slash = "/?"


api = Router()
api.register("sources", SourceViewSet, "source")
api.register(f"sources/(?P<source>{NAME})/runs", EngineRunViewSet, "engine-run")
api.register("connectors", ConnectorViewSet, "connector")
api.register("temporal-imports", TemporalImportViewSet, "temporal-import")
api.register("openapi-imports", OpenApiImportViewSet, "openapi-import")
api.register("tools", ToolViewSet, "tool")
api.register("workflows", WorkflowViewSet, "workflow")
api.register("reviews", ReviewViewSet, "review")
api.register("server-features", ServerFeatureViewSet, "server-feature")
api.register("filters", FilterViewSet, "filter")
api.register("toolsets", ToolsetViewSet, "toolset")
api.register("discovery-runs", DiscoveryRunViewSet, "discovery-run")
api.register("executions", ExecutionViewSet, "execution")
api.register("tokens", TokenViewSet, "token")
api.register("statistics", StatisticsViewSet, "statistics")
api.register("workflow-requests", WorkflowRequestViewSet, "workflow-request")
api.register("result-cache", ResultCacheViewSet, "result-cache")
api.register("history", HistoryViewSet, "history")
api.register("audit", AuditViewSet, "audit")
api.register("approvals", ApprovalViewSet, "approval")
api.register("standing-approvals", StandingApprovalViewSet, "standing-approval")
api.register("problem-reports", ProblemReportViewSet, "problem-report")
api.register("catalogue", ConfigurationViewSet, "catalogue")

collections = {
    prefix: f"{name}-list"
    for prefix, view, name in api.registry
    if hasattr(view, "list") and "(" not in prefix
}

# Not at Django's setup: commands and workers start half a second earlier without the admin's pages.
admin.autodiscover()

handler403, handler404 = "catalogue.admin.site.page_refused", "catalogue.admin.site.page_missing"
handler500 = "catalogue.admin.site.page_failed"

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/second-factor/", SecondFactorPage.as_view(), name="second-factor"),
    path("admin/logout/", log_out),
    path("admin/language/", set_language, name="set_language"),
    path("admin/", admin.site.urls),
    path("", include("identity.consent")),
    path("login/company/", BeginLogin.as_view(), name="company-login"),
    path("login/company/callback", EndLogin.as_view(), name="company-login-callback"),
    # Browsers look there for addresses that answer with no page, such as those of the API.
    path("favicon.ico", RedirectView.as_view(url=settings.STATIC_URL + settings.FAVICON)),
    re_path(rf"^hooks/(?P<source>{NAME})/?$", receive_delivery, name="webhook"),
    re_path(r"^tools/?$", RootToolViewSet.as_view({"get": "list", "post": "create"}), name="tools"),
    re_path(r"^workflow/?$", RequestInWords.as_view({"post": "create"}), name="workflow"),
    re_path(r"^api/schema/?$", SchemaView.as_view(), name="api-schema"),
    re_path(r"^api/docs/?$", ApiDocs.as_view(), name="api-docs"),
    re_path(r"^api/docs/redoc/?$", ApiDocs.as_view(viewer="redoc"), name="api-redoc"),
    re_path(
        r"^api/settings/?$",
        SettingsViewSet.as_view({"get": "retrieve", "patch": "partial_update"}),
        name="settings",
    ),
    re_path(
        r"^api/?$",
        ApiRoot.as_view(routes=collections | {"settings": "settings", "schema": "api-schema"}),
        name="api-root",
    ),
    path("api/", include(api.urls)),
    re_path(r"^(?:api|tools|workflow)(/|$)", NoSuchEndpoint.as_view()),
]
