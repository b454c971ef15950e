"""The admin as a whole: its first page, who sees what, and what the pages cost."""

import math
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import OperationalError, connection, models
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from audit.models import Entry
from catalogue import exposure
from catalogue.actions.workflows import override_workflow
from catalogue.exposure import forget_catalogue
from catalogue.models import (
    DiscoveryRun,
    HistoryEntry,
    ServerFeature,
    Source,
    Toolset,
    Workflow,
    WorkflowFilter,
)
from executions.approvals import decide
from executions.models import Approval, CachedResult, CacheUse, Execution, ProblemReport
from executions.starting import create_execution
from identity.models import AccessToken
from identity.tokens import create_token
from tests.admin.pages import add_url, list_url, page_url, text_of
from tests.executions.caching import cache_for, finish_run
from tests.executions.steps import request_for
from tests.factories import (
    make_discovery_run,
    make_execution,
    make_filter,
    make_report,
    make_source,
    make_toolset,
    make_workflow,
)

pytestmark = pytest.mark.django_db


def test_a_login_without_a_destination_leads_to_the_first_page(client):
    """B8."""
    User.objects.create_superuser("ada", password="a-long-enough-password")
    answer = client.post("/admin/login/", {"username": "ada", "password": "a-long-enough-password"})
    assert (answer.status_code, answer.headers["location"]) == (302, "/admin/")


@pytest.mark.databases("executions.dashboard", "orchestration.admin")
def test_the_first_page_counts_sources_workflows_and_executions(admin_client):
    """B9: what fails, what agents see, what ran lately."""
    source = make_source("good", health_state="ok")
    make_source("bad", health_state="failing", health_message="401 Unauthorized")
    make_source("off", health_state="failing", enabled=False)
    workflow = make_workflow(source)
    make_workflow(source, enabled=False)
    make_execution(workflow, had_card=True)
    make_execution(workflow, state="failed")
    shown = text_of(admin_client.get("/admin/"))
    assert "2 Enabled sources 1 working 1 failing" in shown
    assert "1 Workflows that agents see 1 not exposed" in shown
    ended = "2 Executions in the last 24 hours 1 completed 1 shown by a card in a chat"
    assert f"{ended} 1 Failed in the last 24 hours 1 failed" in shown


@pytest.mark.databases("executions.dashboard", "orchestration.admin")
def test_the_first_page_shows_what_is_under_way_what_waits_and_what_is_unconfirmed(admin_client):
    """B7, B9: and each card leads to the executions that it counts."""
    workflow = make_workflow()
    make_execution(workflow, state="running")
    make_execution(workflow, state="starting")
    make_execution(workflow)
    for minutes in (3, 12):
        queued = make_execution(workflow, state="pending")
        created_at = timezone.now() - timedelta(minutes=minutes)
        Execution.objects.filter(pk=queued.pk).update(admitted_at=None, created_at=created_at)
    unconfirmed = make_execution(workflow, state="unconfirmed", created_at=timezone.now() - timedelta(days=9))
    page = admin_client.get("/admin/")
    shown = text_of(page)
    assert "2 Running executions 2 waiting in the queue the oldest for 12 minutes" in shown
    assert "1 Unconfirmed runs 1 week ago" in shown
    url = f"{list_url(Execution)}?state__exact=unconfirmed"
    assert f'href="{url}"' in page.content.decode()
    assert list(admin_client.get(url).context["cl"].result_list) == [unconfirmed]


def test_the_first_page_counts_calls_that_wait_for_approval_and_leads_to_them(admin_client, staff_with):
    override_workflow(make_workflow(name="pay", tool_name="pay"), approval_required=True)
    for amount in (1, 2):
        create_execution(request_for("pay", {"amount": amount}))
    decided = Approval.objects.earliest("requested_at")
    decide(decided.pk, user=User.objects.create_superuser("eve"), verdict="refuse", words="No.")
    page = admin_client.get("/admin/")
    waiting = page.context["inbox"][0]
    assert (waiting.key, waiting.number, list(waiting.names)) == ("approvals", 1, ["pay"])
    url = f"{list_url(Approval)}?decision=waiting"
    assert f'href="{url}"' in page.content.decode()
    assert list(admin_client.get(url).context["cl"].result_list) == list(Approval.objects.waiting())
    assert "waiting for approval" not in text_of(staff_with("view_source").get("/admin/"))


def test_the_first_page_shows_no_numbers_of_what_one_may_not_see(staff_with):
    """B8."""
    make_execution()
    shown = text_of(staff_with("view_source").get("/admin/"))
    assert "Enabled sources" in shown
    assert "Executions in the last" not in shown
    assert "Latest executions" not in shown
    assert "Workflows that agents see" not in shown


def test_nobody_gets_in_without_a_login(client):
    """B8: neither to pages nor to buttons."""
    source = make_source()
    for url in ("/admin/", list_url(Source), page_url(source)):
        assert "/login/" in client.get(url)["Location"]
    assert "/login/" in client.post(page_url(source).replace("/change/", "/refresh_now/"))["Location"]
    assert not DiscoveryRun.objects.exists()


def test_people_and_groups_are_managed_in_the_same_place(admin_client):
    """B8: accounts keep Django's forms in the look of the other pages."""
    group = Group.objects.create(name="curators")
    user = User.objects.get()
    urls = [list_url(User), list_url(Group), add_url(User), add_url(Group), page_url(user), page_url(group)]
    urls.append(page_url(user).replace("/change/", "/password/"))
    assert [admin_client.get(url).status_code for url in urls] == [200] * len(urls)


def test_the_search_over_everything_finds_what_one_may_see(admin_client, staff_with):
    """B8: workflows, sources and toolsets besides the pages; and that there is nothing is told, too."""
    workflow = make_workflow(make_source("orders-engine"), name="collect_orders", title_override="Collect")
    make_toolset("orders-only")
    found = admin_client.get("/admin/search/", {"s": "orders", "extended": "1"})
    shown = text_of(found)
    assert "collect_orders • Workflow, enabled, orders-engine: Collect" in shown
    assert "orders-engine • Source, on" in shown and "orders-only • Toolset, on" in shown
    assert page_url(workflow) in found.content.decode()
    member = staff_with("view_source")
    shown = text_of(member.get("/admin/search/", {"s": "orders", "extended": "1"}))
    assert "orders-engine" in shown and "collect_orders" not in shown and "orders-only" not in shown
    workflow.delete()
    make_workflow(name="return_orders")
    shown = text_of(admin_client.get("/admin/search/", {"s": "orders", "extended": "1"}))
    assert "return_orders" in shown and "collect_orders" not in shown, "it is searched each time"
    nothing = admin_client.get("/admin/search/", {"s": "nothing-is-called-that", "extended": "1"})
    assert "No results matching your query" in text_of(nothing)
    assert 'id="command-results-list"' in nothing.content.decode()


def test_pages_that_are_refused_or_missing_look_like_the_others(admin_client, staff_with, client):
    """B8: with the way back, and the reason where there is one."""
    missing = admin_client.get("/admin/catalogue/nowhere/")
    assert missing.status_code == 404
    assert "This page does not exist" in text_of(missing) and "Go to the overview" in text_of(missing)
    refused = staff_with("view_source").get(list_url(Workflow))
    assert refused.status_code == 403
    assert "An administrator can grant it." in text_of(refused) and "Sources" in text_of(refused)
    assert "Users" not in text_of(refused)
    assert client.get("/nowhere/").content == b"There is no page at this address.\n"


BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


@pytest.mark.parametrize(("method", "is_safe"), [("get", True), ("post", False)])
def test_without_the_database_a_page_is_503_and_says_what_to_do(admin_client, method, is_safe):
    """B8: not as a bug, and without another query."""

    def locked(*_: Any) -> None:
        raise OperationalError("database is locked")

    admin_client.raise_request_exception = False
    with connection.execute_wrapper(locked):
        answer = getattr(admin_client, method)("/admin/catalogue/workflow/", headers=BROWSER)
        program = getattr(admin_client, method)("/api/workflows/", headers={"Accept": "*/*"})
    assert (answer.status_code, answer["Retry-After"]) == (503, "5")
    told = text_of(answer)
    assert "is unavailable at present" in told
    assert ("Check before you repeat it" in told) != is_safe
    assert program.status_code == 503
    assert "is unavailable at present" in program.json()["detail"], "the session is read before REST is asked"


def test_an_internal_error_is_a_page_that_says_where_to_look(admin_client):
    """B8."""

    def broken(*_: Any) -> None:
        raise ValueError("a bug")

    admin_client.raise_request_exception = False
    with connection.execute_wrapper(broken):
        answer = admin_client.get("/admin/", headers=BROWSER)
    assert answer.status_code == 500
    assert "The server's log has the details." in text_of(answer) and "a bug" not in text_of(answer)


def test_browsers_get_the_products_symbol(client):
    """B8."""
    symbol = client.get("/favicon.ico", follow=True)
    assert (symbol.status_code, symbol["content-type"]) == (200, "image/svg+xml")
    symbol.close()


def _make_bound_toolset(*, enabled: bool) -> None:
    toolset = make_toolset(picked=[make_workflow()], rules=["x*"], token_budget=5, enabled=enabled)
    create_token(name=f"token of {toolset}", toolset=toolset)


Maker = Callable[[int], Any]
LISTS: list[tuple[type[models.Model], Maker]] = [
    (Source, lambda number: make_workflow(make_source(failing_since="2026-01-01T00:00Z"))),
    (Workflow, lambda number: make_workflow(category=f"category {number}")),
    (WorkflowFilter, lambda number: (make_filter(f"x{number}*"), make_workflow())),
    (Toolset, lambda number: _make_bound_toolset(enabled=bool(number % 2))),
    (DiscoveryRun, lambda number: make_discovery_run(skipped=[{"position": 1}])),
    (Execution, lambda number: make_execution()),
    (ProblemReport, lambda number: make_report()),
    (AccessToken, lambda number: create_token(name=f"token {number}", created_by=User.objects.get())),
]


@pytest.mark.parametrize(("model", "make"), LISTS, ids=lambda part: getattr(part, "__name__", ""))
@pytest.mark.databases("catalogue.admin.base")
@pytest.mark.usefixtures("catalogue_lasts")
def test_a_list_costs_the_same_number_of_queries_for_5_and_for_20_rows(admin_client, model, make):
    """A4.2, B9: lists stay fast as the catalogue grows."""
    for number in range(5):
        make(number)
    few = _queries(admin_client, list_url(model))
    for number in range(5, 20):
        make(number)
    assert _queries(admin_client, list_url(model)) == few <= 35


@pytest.mark.usefixtures("catalogue_lasts")
def test_the_first_page_costs_the_same_number_of_queries_for_5_and_for_20_rows(admin_client):
    """B9."""
    pay = override_workflow(make_workflow(name="pay", tool_name="pay"), approval_required=True)
    for number in range(5):
        make_execution(make_workflow(make_source(health_state="failing")))
        create_execution(request_for(pay.tool_name, {"amount": number}))
        make_report()
    few = _queries(admin_client, "/admin/")
    for number in range(5, 20):
        make_execution(make_workflow(make_source(health_state="failing")))
        create_execution(request_for(pay.tool_name, {"amount": number}))
        make_report()
    assert _queries(admin_client, "/admin/") == few <= 38


@pytest.mark.databases(
    "catalogue.admin.sources",
    "identity.admin.tokens",
    "mcp_bridge.admin.toolsets",
    "executions.admin.policies",
)
def test_lists_are_searched_in_any_case_of_letters(admin_client):
    """B8"""
    wanted = [
        make_source("Billing"),
        make_toolset("of-billing"),
        create_token(name="Agent of billing")[0],
    ]
    make_source("orders")
    make_toolset("of-orders")
    create_token(name="Agent of orders")
    for name in ("Billing_report", "orders_report"):
        finish_run(cache_for(make_workflow(name=name)), digest=name, output={})
    wanted += [
        CachedResult.objects.get(workflow__name="Billing_report"),
        CacheUse.objects.get(workflow__name="Billing_report"),
    ]
    for row in wanted:
        found = admin_client.get(list_url(type(row)), {"q": "bILLING"}).context["cl"].result_list
        assert list(found) == [row]


@pytest.mark.parametrize("model", [Source, Workflow, Toolset, Execution, Entry, HistoryEntry, AccessToken])
@pytest.mark.parametrize("text", ["w " * 5_000, "w" * 50_001])
@pytest.mark.databases("catalogue.long_lists")
def test_a_text_that_is_too_long_to_search_for_is_refused(admin_client, model, text):
    """It took seconds, and then the page said that the database was away."""
    page = admin_client.get(list_url(model), {"q": text})
    assert page.status_code == 200 and not page.context["cl"].result_list
    assert re.search(r"Search for at most [0-9,]+ (words|characters)\. Nothing was searched\.", text_of(page))


def test_other_searches_of_the_admin_have_the_same_limit(admin_client):
    make_workflow(name="w", tags=["w"])
    refused = admin_client.get(list_url(Workflow), {"tag": "w" * 50_001}, follow=True)
    assert refused.status_code == 200 and "cannot be filtered by tag=www" in text_of(refused)
    completed = {"app_label": "catalogue", "model_name": "workflow", "field_name": "source"}
    found = admin_client.get(reverse("admin:autocomplete"), completed | {"term": "w" * 50_001})
    assert found.status_code == 200 and found.json()["results"] == []
    chosen = admin_client.get(add_url(Toolset), {"find_workflows": "w" * 50_001})
    assert chosen.status_code == 200


@pytest.mark.parametrize("model", [Source, Workflow, Toolset, DiscoveryRun, ServerFeature, AccessToken])
@pytest.mark.databases("catalogue.admin.base")
def test_filters_can_show_their_counts(admin_client, model):
    """A4.2: how many of each kind there are."""
    make_discovery_run(make_workflow().source)
    assert admin_client.get(list_url(model), {"_facets": "True"}).status_code == 200


@pytest.mark.parametrize(
    "page", ["/admin/", "{list}", "{source}", "{toolsets}", "{toolset}", "{workflow}", "{tokens}", "{token}"]
)
def test_no_page_shows_markup_as_text(admin_client, page):
    """B8: what is ours to render is rendered, once."""
    source = make_source(health_state="failing", failing_since="2026-01-01T00:00Z")
    workflow = make_workflow(source)
    make_execution(workflow)
    toolset = make_toolset(picked=[workflow], rules=["x*"], token_budget=5)
    token, _ = create_token(name="bound", toolset=toolset)
    url = page.format(
        list=list_url(Source),
        source=page_url(source),
        toolsets=list_url(Toolset),
        toolset=page_url(toolset),
        workflow=page_url(workflow),
        tokens=list_url(AccessToken),
        token=page_url(token),
    )
    assert not re.search(r"&lt;(span|a|div)\b", admin_client.get(url).content.decode())


@pytest.fixture
def catalogue_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that takes more than half a second asks for the revision again, under load."""
    monkeypatch.setattr(exposure, "MAX_AGE_SECONDS", math.inf)


def _queries(client: Client, url: str) -> int:
    """Of a page whose process knows its users and permissions already, but not the catalogue."""
    client.get(url)
    forget_catalogue()
    with CaptureQueriesContext(connection) as queries:
        assert client.get(url).status_code == 200
    return len(queries)


def test_people_without_permissions_are_told_whom_to_ask(staff_with):
    """B8: an empty page says nothing."""
    assert "You have no permissions yet; ask an administrator." in text_of(staff_with().get("/admin/"))


def test_people_who_may_see_something_are_not_told_that_they_may_not(staff_with):
    """B8: also where it has no number on the first page."""
    assert "You have no permissions yet" not in text_of(staff_with("view_toolset").get("/admin/"))
