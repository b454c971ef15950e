"""The menu of eight places, the tabs within each, and the way to each page."""

import re

import pytest
from django.contrib.auth.models import User

from config.menu import PLACES
from tests.admin.test_pages_in_a_browser import address_of, pages
from tests.admin.window import make_everything, make_http_tool

TITLES = ["Overview", "Workflows", "Sources", "Toolsets", "Runs", "Approvals", "Access", "Settings"]
PLACE_OF = {  # By the beginning of a page's name, the longest that fits
    "index": "Overview",
    "catalogue_historyentry": "Overview",
    "audit_entry": "Overview",
    "catalogue_workflow": "Workflows",
    "catalogue_review": "Workflows",
    "catalogue_serverfeature": "Workflows",
    "catalogue_source": "Sources",
    "catalogue_discoveryrun": "Sources",
    "catalogue_toolset": "Toolsets",
    "executions_": "Runs",
    "orchestration_": "Runs",
    "executions_approval": "Approvals",
    "executions_standingapproval": "Approvals",
    "mcp_bridge_": "Access",
    "auth_": "Access",
    "password_change": "Access",
    "catalogue_productsettings": "Settings",
    "executions_cache": "Settings",
    "executions_retention": "Settings",
    "executions_subscription": "Overview",
    "executions_problemreport": "Overview",
}


def entries(page):
    return [item["title"] for group in page.context["sidebar_navigation"] for item in group["items"]]


def tabs(page):
    return [
        item["title"] for one in page.context["tab_list"] for item in one["items"] if item["has_permission"]
    ]


def test_each_page_marks_the_one_place_that_it_belongs_to(admin_client, subtests):
    make_everything(User.objects.get())
    make_http_tool()
    for name in pages():
        with subtests.test(name):
            page = admin_client.get(address_of(name), follow=True)
            place = PLACE_OF[max((one for one in PLACE_OF if name.startswith(one)), key=len)]
            marked = [
                item["title"] for group in page.context["sidebar_navigation"] for item in group["items"]
                if item["active"]
            ]  # fmt: skip
            assert marked == [place]
            assert entries(page) == TITLES
            assert sum(item["active"] for one in page.context["tab_list"] for item in one["items"]) <= 1


def test_each_tab_is_marked_on_its_own_page(admin_client, subtests):
    for place in PLACES:
        for tab in place.tabs:
            if not tab.address.startswith("/admin/") or len(place.tabs) == 1:
                continue
            with subtests.test(tab.address):
                page = admin_client.get(tab.address, follow=True)
                shown = [
                    item["title"]
                    for one in page.context["tab_list"]
                    for item in one["items"]
                    if item["active"]
                ]
                assert shown == [tab.title]
                assert len(re.findall(r"<h1\b", page.content.decode())) == 1


@pytest.mark.parametrize(
    ("permissions", "places", "tab", "its_tabs"),
    [
        ((), ["Overview", "Access"], "/admin/", []),
        (
            ("view_discoveryrun",),
            ["Overview", "Sources", "Access"],
            "/admin/catalogue/discoveryrun/",
            [],
        ),
        (
            ("change_workflow", "view_workflowfilter"),
            ["Overview", "Workflows", "Access"],
            "/admin/catalogue/workflow/",
            ["All", "Exposure rules"],
        ),
        (
            ("view_execution", "add_workflowrequest"),
            ["Overview", "Runs", "Access"],
            "/admin/executions/execution/usage/",
            ["All", "Failures", "Usage", "Try a request"],
        ),
        (("decide_approval",), ["Overview", "Approvals", "Access"], "/admin/executions/approval/", None),
    ],
)
def test_the_menu_has_what_a_person_may_open_and_no_more(staff_with, permissions, places, tab, its_tabs):
    page = staff_with(*permissions).get(tab)
    assert entries(page) == places
    assert tabs(page) == (["Waiting", "All", "Approved for a period"] if its_tabs is None else its_tabs)


def test_a_place_leads_to_the_first_of_its_pages_that_a_person_may_open(staff_with):
    page = staff_with("view_discoveryrun").get("/admin/")
    links = {item["title"]: item["link"] for item in page.context["sidebar_navigation"][0]["items"]}
    assert links["Sources"] == "/admin/catalogue/discoveryrun/"


def test_the_heading_says_where_a_page_is(admin_client):
    make_everything(User.objects.get())

    def way(address):
        page = admin_client.get(address, follow=True).content.decode()
        heading = re.search(r"<h1\b.*?</h1>", page, re.DOTALL)[0]
        crumbs = re.sub(r"<span class=\"[^\"]*material.*?</span>", ">", heading, flags=re.DOTALL)
        return " ".join(re.sub(r"<[a-z/][^>]*>", " ", crumbs).split())

    assert way("/admin/") == "Overview"
    assert way("/admin/executions/execution/") == "Runs"
    assert way("/admin/executions/execution/usage/") == "Runs > Usage"
    assert way(address_of("catalogue_workflow_change")) == "Workflows > plain"
    assert way(address_of("catalogue_discoveryrun_change")).startswith("Sources > Discovery runs > ")
    assert way("/admin/executions/retention/") == "Settings > Retention"


def test_titles_of_lists_name_what_is_listed(admin_client):
    def title(address):
        return re.search(r"<title>(.*?)</title>", admin_client.get(address).content.decode())[1].split(" | ")[
            0
        ]

    assert title("/admin/catalogue/source/").strip() == "Sources"
    assert title("/admin/auth/user/").strip() == "Users"
