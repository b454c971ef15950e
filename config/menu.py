"""The admin's menu: eight places, and the tabs within each. A tab is for those who may open its page."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _


@dataclass(frozen=True, slots=True)
class Tab:
    title: str | Promise
    page: str  # The name of its address
    permissions: tuple[str, ...] | None = None
    """Any of them suffices. None: those that show the list of `page`; empty: all who may use the admin."""
    also_needed: tuple[str, ...] = ()  # All of these permissions
    covers: tuple[str, ...] = ()  # Beginnings of the names of further pages; those of its model are known
    query: str = ""
    is_form: bool = False  # A single row: the list leads to its form

    @property
    def name(self) -> str:
        return self.page.removeprefix("admin:")

    @property
    def address(self) -> str:
        return reverse(self.page) + (f"?{self.query}" if self.query else "")

    @property
    def beginnings(self) -> tuple[str, ...]:
        return (self.name.removesuffix("changelist"), *self.covers)

    @property
    def own_pages(self) -> set[str]:
        return {self.name} | ({self.name.replace("_changelist", "_change")} if self.is_form else set())

    def is_allowed(self, request: HttpRequest) -> bool:
        needed = self.permissions
        if needed is None:
            app, _, rest = self.name.removesuffix("_changelist").rpartition("_")
            needed = (f"{app}.view_{rest}", f"{app}.change_{rest}")
        has = request.user.has_perm
        return (not needed or any(map(has, needed))) and all(map(has, self.also_needed))

    def fits(self, request: HttpRequest) -> bool:
        """Whether the page is narrowed as the tab narrows it."""
        return set(parse_qsl(self.query)) <= set(request.GET.items())


@dataclass(frozen=True, slots=True)
class Place:
    title: str | Promise
    icon: str
    tabs: tuple[Tab, ...]

    def allowed(self, request: HttpRequest) -> list[Tab]:
        return [tab for tab in self.tabs if tab.is_allowed(request)]


VIEW_RUNS = "executions.view_execution"
SUBSCRIBERS = (
    "catalogue.view_source", "catalogue.view_workflow", VIEW_RUNS, "executions.decide_approval",
    "executions.manage_subscription", "executions.view_problemreport",
)  # fmt: skip
VIEW_REACH = ("catalogue.view_workflow", "catalogue.view_toolset", "mcp_bridge.view_accesstoken")
APPROVERS = ("executions.decide_approval", "executions.view_approval")
PLACES = (
    Place(
        _("Overview"),
        "dashboard",
        (
            Tab(_("Overview"), "admin:index", (), covers=("app_list",)),
            Tab(_("Notifications"), "admin:executions_subscription_changelist", SUBSCRIBERS),
            Tab(_("Problem reports"), "admin:executions_problemreport_changelist"),
            Tab(_("History"), "admin:catalogue_historyentry_changelist"),
            Tab(_("Audit"), "admin:audit_entry_changelist"),
        ),
    ),
    Place(
        _("Workflows"),
        "account_tree",
        (
            Tab(_("All"), "admin:catalogue_workflow_changelist"),
            Tab(_("Review"), "admin:catalogue_review_changelist", ("catalogue.view_workflow",)),
            Tab(_("Exposure rules"), "admin:catalogue_workflowfilter_changelist"),
            Tab(_("Prompts and resources"), "admin:catalogue_serverfeature_changelist"),
        ),
    ),
    Place(
        _("Sources"),
        "hub",
        (
            Tab(_("All"), "admin:catalogue_source_changelist"),
            Tab(_("Discovery runs"), "admin:catalogue_discoveryrun_changelist"),
        ),
    ),
    Place(_("Toolsets"), "widgets", (Tab(_("All"), "admin:catalogue_toolset_changelist"),)),
    Place(
        _("Runs"),
        "play_circle",
        (
            Tab(
                _("All"),
                "admin:executions_execution_changelist",
                covers=("executions_run", "executions_engine_runs"),
            ),
            Tab(_("Failures"), "admin:executions_failures", (VIEW_RUNS,), covers=("executions_again",)),
            Tab(_("Usage"), "admin:executions_usage", (VIEW_RUNS,)),
            Tab(_("Requests in words"), "admin:orchestration_workflowrequest_changelist"),
            Tab(
                _("Try a request"),
                "admin:orchestration_workflowrequest_try_it",
                ("orchestration.add_workflowrequest",),
            ),
        ),
    ),
    Place(
        _("Approvals"),
        "approval",
        (
            Tab(_("Waiting"), "admin:executions_approval_changelist", APPROVERS, query="decision=waiting"),
            Tab(_("All"), "admin:executions_approval_changelist", APPROVERS),
            Tab(
                _("Approved for a period"),
                "admin:executions_standingapproval_changelist",
                ("executions.decide_approval", "executions.view_standingapproval"),
            ),
        ),
    ),
    Place(
        _("Access"),
        "key",
        (
            Tab(_("Tokens"), "admin:mcp_bridge_accesstoken_changelist"),
            Tab(_("Applications"), "admin:mcp_bridge_allowedapplication_changelist"),
            Tab(_("Who can call what"), "admin:mcp_bridge_accesstoken_reach", (), also_needed=VIEW_REACH),
            Tab(_("Users"), "admin:auth_user_changelist"),
            Tab(_("Groups"), "admin:auth_group_changelist"),
            Tab(
                _("My applications"),
                "oauth2_provider:applications",
                (),
                covers=("password_change", "second-factor"),
            ),
            Tab(_("REST API"), "api-docs", ()),
        ),
    ),
    Place(
        _("Settings"),
        "tune",
        (
            Tab(_("Settings"), "admin:catalogue_productsettings_changelist", is_form=True),
            Tab(
                _("Result cache"),
                "admin:executions_cachepolicy_changelist",
                covers=("executions_cacheuse_", "executions_cachedresult_"),
                is_form=True,
            ),
            Tab(_("Retention"), "admin:executions_retention_changelist", is_form=True),
            Tab(
                _("Configuration as code"),
                "admin:catalogue_productsettings_as_code",
                ("catalogue.view_source",),
            ),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Here:
    """Where a page is."""

    place: Place
    tab: Tab
    is_own: bool  # The page of the tab itself

    @property
    def is_first(self) -> bool:
        return self.tab.page == self.place.tabs[0].page

    @property
    def heading(self) -> str | Promise:
        return self.place.title if self.is_first else self.tab.title

    @property
    def before(self) -> list[tuple[str | Promise, str]]:
        """The titles and addresses of the pages above this one."""
        way = [(self.place.title, self.place.tabs[0].address)]
        if not self.is_first:
            way.append((self.tab.title, self.tab.address))
        return way[:-1] if self.is_own else way


def locate(request: HttpRequest) -> Here | None:
    """The tab whose address has the longest common beginning with the page's."""
    name = (request.resolver_match and request.resolver_match.url_name) or ""
    found = [
        (len(beginning), bool(tab.query), place, tab)
        for place in PLACES
        for tab in place.tabs
        for beginning in tab.beginnings
        if name.startswith(beginning) and tab.fits(request)
    ]
    if not found:
        return None
    _, _, place, tab = max(found, key=lambda one: one[:2])
    return Here(place, tab, name in tab.own_pages)


def add_place(request: HttpRequest) -> dict[str, Any]:
    """Adds to the context of every page what its heading shows."""
    return {"here": locate(request)}


def navigation(request: HttpRequest) -> list[dict[str, Any]]:
    here = locate(request)
    items = [
        {
            "title": place.title,
            "icon": place.icon,
            "link": tabs[0].address,
            "active": here is not None and place is here.place,
        }
        for place in PLACES
        if (tabs := place.allowed(request))
    ]
    return [{"title": "", "items": items}]


def tabs(request: HttpRequest) -> list[dict[str, Any]]:
    """Those of the place, on their own pages; none where there is no choice."""
    here = locate(request)
    if here is None or not here.is_own:
        return []
    items = [
        {"title": tab.title, "link": tab.address, "active": tab is here.tab}
        for tab in here.place.allowed(request)
    ]
    return [{"page": "place", "items": items}] if len(items) > 1 else []
