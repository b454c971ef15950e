"""What is used: in the list of workflows, on the pages of usage and on the first page."""

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalogue.exposure import forget_catalogue
from catalogue.models import Review, Workflow
from executions.models import Execution
from identity.tokens import create_token
from tests.admin.pages import list_url, listed, page_url, run_action, text_of
from tests.factories import (
    make_execution,
    make_source,
    make_toolset,
    make_workflow,
    make_workflow_request,
)

pytestmark = [pytest.mark.django_db, pytest.mark.databases("executions.admin.usage")]

USAGE = "/admin/executions/execution/usage/"
LONG_AGO = {
    "finished_at": timezone.now() - timedelta(days=60),
    "created_at": timezone.now() - timedelta(days=61),
}


def shown_rows(client: Client, model: type[Model], **query: str) -> list[str]:
    return [str(row) for row in listed(client, list_url(model), query).result_list]


def links_of(page: Any) -> dict[str, str]:
    """The numbers that are links, by where they lead to."""
    found = re.findall(r'<a[^>]*href="([^"]+)"[^>]*>(.*?)</a>', page.content.decode(), re.DOTALL)
    plain = {unescape(url): re.sub(r"<[^>]+>|\s+", " ", text).strip() for url, text in found}
    return {
        url: found.group()
        for url, text in plain.items()
        if url.startswith("/admin/") and "/usage/" not in url and (found := re.match(r"[\d,]+\b", text))
    }


def failures_on(client: Client, url: str) -> int:
    """Without the unconfirmed, which the statistics count as neither."""
    causes = client.get(url).context["causes"]
    return sum(shown.cause.runs for shown in causes if shown.cause.state != "unconfirmed")


def assert_numbers_lead_to_their_rows(client: Client, page: Any) -> int:
    """Each number that is a link says how many rows there are behind it. Returns how many such links."""
    links = links_of(page)
    for url, number in links.items():
        if "/review/" in url:
            shown = client.get(url).context["left"]
        else:
            shown = failures_on(client, url) if "/failures/" in url else listed(client, url).result_count
        assert shown == int(number.replace(",", "")), url
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
def test_the_list_of_workflows_is_narrowed_by_their_use(admin_client, use, names):
    """What is called, never called, failing."""
    make_used_workflows()
    assert shown_rows(admin_client, Workflow, use=use) == names


def test_the_list_of_workflows_shows_and_sorts_by_calls_failures_and_the_last_call(admin_client):
    """And each number leads to its executions."""
    make_used_workflows()
    page = admin_client.get(list_url(Workflow))
    assert assert_numbers_lead_to_their_rows(admin_client, page) == 3
    columns = [str(getattr(column, "__name__", column)) for column in page.context["cl"].list_display]
    for name, first in (("calls", "failing"), ("failures", "failing"), ("last_call", "failing")):
        assert shown_rows(admin_client, Workflow, o=f"-{columns.index(name)}")[0] == first
    shown = text_of(admin_client.get(list_url(Workflow), {"q": "once"}))
    assert "1 month" in shown or "8 weeks" in shown
    assert Execution.objects.count() == 7


def test_a_workflows_page_tells_its_use_and_each_number_leads_to_its_executions(admin_client):
    """B8: for the periods in which it was called."""
    make_used_workflows()
    page = admin_client.get(page_url(Workflow.objects.get(tool_name="failing")))
    assert "Last 30 days 3 2" in text_of(page) and "Last 24 hours 3 2" in text_of(page)
    assert assert_numbers_lead_to_their_rows(admin_client, page) == 6
    assert "Last 30 days - -" in text_of(admin_client.get(page_url(Workflow.objects.get(tool_name="never"))))


@pytest.mark.parametrize("by", ["tool", "toolset", "caller"])
@pytest.mark.parametrize("period", ["24h", "7d", "30d"])
def test_each_number_of_the_usage_page_leads_to_its_executions(admin_client, by, period):
    """Calls and failures per tool, toolset and caller, also of tools that are gone."""
    make_used_workflows()
    gone = make_workflow(name="gone")
    make_execution(gone, caller="token:2", caller_name="Robot", toolset="finance")
    make_execution(gone, state="failed", finished_at=timezone.now() - timedelta(days=3))
    gone.source.delete()
    page = admin_client.get(USAGE, {"by": by, "period": period})
    assert assert_numbers_lead_to_their_rows(admin_client, page) >= 3


def test_the_usage_page_tells_durations_tokens_and_shares_and_is_sorted_by_each(admin_client):
    """B8."""
    workflow, now = make_workflow(name="slow"), timezone.now()
    began = now - timedelta(seconds=60)
    make_execution(workflow, created_at=began, started_at=began, finished_at=now, input_characters=4_000)
    make_execution(make_workflow(name="quick"), state="failed", output_characters=8_000)
    shown = text_of(admin_client.get(USAGE))
    assert re.search(r"slow 1 - 1 min 0 s 1 min 0 s 1,000 0 just now", shown)
    assert re.search(r"quick 1 1 \(100%\) 2.0 s 2.0 s 0 2,000 (just now|in a moment)", shown)
    firsts = {
        order: admin_client.get(USAGE, {"order": order}).context["rows"][0].name
        for order in ("name", "-name", "-failures", "-p50", "p95", "-in", "-out", "nonsense")
    }
    assert {order: "slow" in first for order, first in firsts.items()} == {
        "name": False, "-name": True, "-failures": False, "-p50": True, "p95": False, "-in": True,
        "-out": False, "nonsense": False,
    }  # fmt: skip


def test_what_nobody_calls_is_found_in_the_list_of_workflows(admin_client):
    """What is new, disabled or under way is left out."""
    long_ago = timezone.now() - timedelta(days=100)
    idle, busy, active = (
        make_workflow(name=name, first_seen_at=long_ago) for name in ("idle", "busy", "active")
    )
    make_workflow(name="new")
    make_workflow(name="disabled", first_seen_at=long_ago, enabled=False)
    make_execution(idle, **LONG_AGO)
    make_execution(busy)
    make_execution(active, state="running")
    address = admin_client.get(USAGE).context["uncalled"]
    assert [str(row) for row in listed(admin_client, address).result_list] == ["idle"]


def test_usage_is_not_shown_to_who_may_not_see_executions(staff_with):
    """B8."""
    stranger = staff_with("view_source")
    assert stranger.get(USAGE).status_code == 403


def test_usage_costs_the_same_number_of_queries_for_few_and_many_rows(admin_client):
    """B8."""
    counts = []
    for _ in range(2):
        for number in range(20):
            make_execution(make_workflow(), caller=f"token:{number}")
        for url in (USAGE, f"{USAGE}?by=caller"):
            admin_client.get(url)
            with CaptureQueriesContext(connection) as queries:
                admin_client.get(url)
            counts.append(len(queries))
    assert counts[:2] == counts[2:] and max(counts) <= 10


def make_what_needs_attention() -> None:
    """One of each, at least, and others that need none."""
    long_ago = timezone.now() - timedelta(days=60)
    make_used_workflows()
    gone = make_workflow(name="gone", missing_since=timezone.now())
    make_execution(gone)
    make_workflow(name="gone_unmissed", missing_since=timezone.now())
    make_workflow(name="double", resembles="list_workflows")
    make_source(health_state="failing")
    make_source(health_state="failing", enabled=False)
    make_source(health_state="held")
    for name, kind in (("rewritten", "changed"), ("recent", "new"), ("turned_down", "changed")):
        kept_at = timezone.now() if name == "turned_down" else None
        Review.objects.create(workflow=make_workflow(name=name), kind=kind, offer_hash=name, kept_at=kept_at)
    make_execution(gone, state="unconfirmed", created_at=long_ago)
    make_execution(gone, state="cancelled")
    make_execution(gone, cached_at=timezone.now())
    queued = make_execution(gone, state="pending")
    Execution.objects.filter(pk=queued.pk).update(admitted_at=None)
    make_toolset(picked=[make_workflow()], token_budget=5)
    make_toolset(picked=[make_workflow()], token_budget=500_000)
    make_workflow_request()
    make_workflow_request(created_at=long_ago)


@pytest.mark.parametrize("period", ["24h", "7d", "30d"])
def test_each_number_of_the_first_page_leads_to_its_rows(admin_client, period):
    """What needs attention, what runs, what was called and what failed."""
    make_what_needs_attention()
    page = admin_client.get("/admin/", {"period": period})
    lost, *others = page.context["inbox"]
    assert (lost.key, lost.number, set(lost.names)) == ("lost", 2, {"gone", "gone_unmissed"})
    assert [row.number for row in others] == [1] * 7
    assert assert_numbers_lead_to_their_rows(admin_client, page) >= 20


def test_the_first_page_shows_the_first_steps_until_all_are_done(admin_client):
    """N6: connect, review, expose, a token, a call; with the address for clients and the documentation."""

    def to_do() -> list[str]:
        forget_catalogue()
        return [
            step.title for step, _ in admin_client.get("/admin/").context.get("steps", []) if not step.done
        ]

    assert [title.split()[0] for title in to_do()] == ["Connect", "Review", "Expose", "Create", "Call"]
    workflow = make_workflow(enabled=False)
    assert [title.split()[0] for title in to_do()] == ["Review", "Expose", "Create", "Call"]
    run_action(admin_client, "enable_selected", workflow)
    assert [title.split()[0] for title in to_do()] == ["Create", "Call"]
    create_token(name="agent")
    shown = text_of(admin_client.get("/admin/"))
    assert "First steps" in shown and "Nothing needs your attention." in shown
    assert shown.index("http://localhost:8000/mcp") < shown.index("First steps") < shown.index("index.md")
    make_execution(workflow)
    assert to_do() == [] and "First steps" not in text_of(admin_client.get("/admin/"))


def test_the_demo_is_no_engine_of_one_s_own_and_can_be_deleted(admin_client):
    """N6: for good, with what it ran."""
    demo = make_source(settings.DEMO_SOURCE)
    workflow = make_workflow(source=demo)
    make_execution(workflow)
    page = admin_client.get("/admin/")
    assert not page.context["steps"][0][0].done
    (address,) = re.findall(r'href="(/admin/catalogue/source/[^"]*)">example-engine', page.content.decode())
    assert admin_client.get(address).status_code == 200
    delete = address.replace("/change/", "/delete/")
    assert admin_client.post(delete, {"post": "yes"}).status_code == 302
    make_workflow()
    forget_catalogue()
    page = admin_client.get("/admin/")
    assert page.context["steps"][0][0].done and "is a demo" not in text_of(page)


def test_the_charts_add_up_to_what_was_called(admin_client):
    """For 24 hours, 7 and 30 days, with a bar for each hour or day."""
    workflow, now = make_workflow(), timezone.now()
    for days in (0, 2, 10, 40):
        end = now - timedelta(days=days)
        make_execution(workflow, state="failed", created_at=end - timedelta(hours=1), finished_at=end)
    for period, bars, calls in (("24h", 24, 1), ("7d", 7, 2), ("30d", 30, 3), ("nonsense", 24, 1)):
        page = admin_client.get("/admin/", {"period": period})
        charts = page.context["charts"]
        calls_chart, failures, durations = charts.each
        assert [len(charts.labels), len(calls_chart.bars), len(failures.bars)] == [bars] * 3
        assert [calls_chart.told, failures.told] == [str(calls)] * 2
        assert [height for _, height, _ in durations.bars if height][-1] == 100
        assert 1 <= len([label for label in charts.labels if label]) <= 6, "as many as have room"
