"""What is used: in the list of workflows, on the pages of usage and on the first page."""

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalogue.models import HistoryEntry, Workflow
from executions.models import Execution
from tests.admin.conftest import StaffWith
from tests.admin.pages import list_url, text_of
from tests.factories import make_execution, make_workflow

pytestmark = [pytest.mark.django_db, pytest.mark.databases("executions.admin.workflow_usage")]

USAGE, UNCALLED = "/admin/executions/execution/usage/", "/admin/executions/execution/usage/uncalled/"
LONG_AGO = {
    "finished_at": timezone.now() - timedelta(days=60),
    "created_at": timezone.now() - timedelta(days=61),
}


def shown_rows(client: Client, model: type[Model], **query: str) -> list[str]:
    page = client.get(list_url(model), query)
    assert page.status_code == 200
    return [str(row) for row in page.context["cl"].result_list]


def links_of(page: Any) -> dict[str, str]:
    """What leads to executions or workflows, and what it says."""
    found = re.findall(r'<a[^>]*href="([^"]+)"[^>]*>(.*?)</a>', page.content.decode(), re.DOTALL)
    plain = {unescape(url): re.sub(r"<[^>]+>|\s+", " ", text).strip() for url, text in found}
    return {url: text for url, text in plain.items() if "?" in url and re.fullmatch(r"[\d,]+", text)}


def assert_numbers_lead_to_their_rows(client: Client, page: Any) -> int:
    """Each number that is a link says how many rows there are behind it. Returns how many such links."""
    links = links_of(page)
    for url, number in links.items():
        assert client.get(url).context["cl"].result_count == int(number.replace(",", "")), url
    return len(links)


def make_used_workflows() -> None:
    busy, failing = make_workflow(name="busy"), make_workflow(name="failing")
    make_execution(busy), make_execution(busy), make_execution(failing)
    make_execution(failing, state="failed"), make_execution(failing, state="timed_out")
    make_execution(make_workflow(name="once"), **LONG_AGO)
    make_execution(make_workflow(name="under_way"), state="running")
    make_workflow(name="never")


@pytest.mark.parametrize(
    ("use", "names"),
    [
        ("called", ["busy", "failing", "under_way"]),
        ("uncalled", ["never", "once"]),
        ("never", ["never"]),
        ("failing", ["failing"]),
    ],
)
def test_the_list_of_workflows_is_narrowed_by_their_use(
    admin_client: Client, use: str, names: list[str]
) -> None:
    """Issue 13: what is called, never called, failing."""
    make_used_workflows()
    assert shown_rows(admin_client, Workflow, use=use) == names


def test_the_list_of_workflows_shows_and_sorts_by_calls_failures_and_the_last_call(
    admin_client: Client,
) -> None:
    """Issue 13: and each number leads to its executions."""
    make_used_workflows()
    page = admin_client.get(list_url(Workflow))
    assert assert_numbers_lead_to_their_rows(admin_client, page) == 3
    columns = [str(getattr(column, "__name__", column)) for column in page.context["cl"].list_display]
    for name, first in (("calls", "failing"), ("failures", "failing"), ("last_call", "failing")):
        assert shown_rows(admin_client, Workflow, o=f"-{columns.index(name)}")[0] == first
    shown = text_of(admin_client.get(list_url(Workflow), {"q": "once"}))
    assert "1 month" in shown or "8 weeks" in shown
    assert Execution.objects.count() == 7


@pytest.mark.parametrize("by", ["tool", "toolset", "caller"])
@pytest.mark.parametrize("period", ["24h", "7d", "30d"])
def test_each_number_of_the_usage_page_leads_to_its_executions(
    admin_client: Client, by: str, period: str
) -> None:
    """Issue 13: calls and failures per tool, toolset and caller, also of tools that are gone."""
    make_used_workflows()
    gone = make_workflow(name="gone")
    make_execution(gone, caller="token:2", caller_name="Robot", toolset="finance")
    make_execution(gone, state="failed", finished_at=timezone.now() - timedelta(days=3))
    gone.source.delete()
    page = admin_client.get(USAGE, {"by": by, "period": period})
    assert assert_numbers_lead_to_their_rows(admin_client, page) >= 3


def test_the_usage_page_tells_durations_tokens_and_shares_and_is_sorted_by_each(
    admin_client: Client,
) -> None:
    """Issue 13."""
    workflow, now = make_workflow(name="slow"), timezone.now()
    began = now - timedelta(seconds=60)
    make_execution(workflow, created_at=began, started_at=began, finished_at=now, input_characters=4_000)
    make_execution(make_workflow(name="quick"), state="failed", output_characters=8_000)
    shown = text_of(admin_client.get(USAGE))
    assert re.search(r"slow 1 - 55.1 s 55.1 s 1,000 0 just now", shown)
    assert re.search(r"quick 1 1 \(100%\) 1.7 s 1.7 s 0 2,000 (just now|in a moment)", shown)
    firsts = {
        order: admin_client.get(USAGE, {"order": order}).context["rows"][0][0]
        for order in ("name", "-name", "-failures", "-p50", "p95", "-in", "-out", "nonsense")
    }
    assert {order: "slow" in first for order, first in firsts.items()} == {
        "name": False, "-name": True, "-failures": False, "-p50": True, "p95": False, "-in": True,
        "-out": False, "nonsense": False,
    }  # fmt: skip


def test_what_nobody_calls_is_disabled_together_and_leaves_history(admin_client: Client) -> None:
    """Issue 13: what is called meanwhile stays, and so does what is new or under way."""
    long_ago = timezone.now() - timedelta(days=100)
    idle, busy, active = (
        make_workflow(name=name, first_seen_at=long_ago) for name in ("idle", "busy", "active")
    )
    make_workflow(name="new")
    make_execution(idle, **LONG_AGO)
    make_execution(active, state="running")
    asked = admin_client.get(UNCALLED)
    assert [row["tool_name"] for row in asked.context["workflows"]] == ["busy", "idle"]
    make_execution(busy)
    chosen = {"workflow": [workflow.pk for workflow in (idle, busy, active)]}
    done = admin_client.post(UNCALLED, chosen, follow=True)
    assert "Disabled: 1." in text_of(done)
    assert set(Workflow.objects.filter(enabled=True).values_list("name", flat=True)) == {
        "busy",
        "active",
        "new",
    }
    assert HistoryEntry.of(idle).get().message == "Disabled."


def test_who_may_only_look_at_usage_changes_nothing(staff_with: StaffWith) -> None:
    """B8, issue 13."""
    workflow = make_workflow(name="idle", first_seen_at=timezone.now() - timedelta(days=100))
    viewer = staff_with("view_execution", "view_workflow")
    assert viewer.get(USAGE).status_code == 200
    assert "idle" in (shown := text_of(viewer.get(UNCALLED))) and "Disable the chosen" not in shown
    assert viewer.post(UNCALLED, {"workflow": [workflow.pk]}).status_code == 403


def test_usage_is_not_shown_to_who_may_not_see_executions(staff_with: StaffWith) -> None:
    """B8, issue 13."""
    stranger = staff_with("view_source")
    assert [stranger.get(url).status_code for url in (USAGE, UNCALLED)] == [403, 403]


def test_usage_costs_the_same_number_of_queries_for_few_and_many_rows(admin_client: Client) -> None:
    """Issue 13."""
    counts = []
    for _ in range(2):
        for number in range(20):
            make_execution(make_workflow(), caller=f"token:{number}")
        for url in (USAGE, f"{USAGE}?by=caller", UNCALLED):
            admin_client.get(url)
            with CaptureQueriesContext(connection) as queries:
                admin_client.get(url)
            counts.append(len(queries))
    assert counts[:3] == counts[3:] and max(counts) <= 10
