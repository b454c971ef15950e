"""People read what agents report, and resolve it, in the desk and by REST."""

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from access.callers import Caller
from catalogue.models import HistoryEntry, Workflow
from executions.models import EventKind, ProblemReport
from executions.problem_reports import report_problem
from tests.admin.pages import list_url, page_url, text_of
from tests.api.clients import agent, staff_session
from tests.executions.test_subscriptions import ada as ada  # noqa: PLC0414
from tests.executions.test_subscriptions import letters as letters  # noqa: PLC0414
from tests.executions.test_subscriptions import report as report_events
from tests.executions.test_subscriptions import subscribe
from tests.factories import make_report, make_workflow

pytestmark = [pytest.mark.django_db, pytest.mark.databases("executions.admin.problem_reports")]
HOSTILE = "<img src=x onerror=alert(1)> [click](https://evil.example)"


def press_resolve(client, report):
    return client.post(reverse("admin:executions_problemreport_resolve", args=[report.pk]), follow=True)


def inbox(client):
    return {row.key: row.number for row in client.get("/admin/").context["inbox"]}.get("reports", 0)


def say(missing="refunds"):
    report_problem(Caller(key="user:1", name="agent"), tool="pay", tried=HOSTILE, missing=missing)
    return ProblemReport.objects.get(missing=missing)


def test_a_report_is_read_resolved_and_comes_again(admin_client):
    make_workflow(name="pay")
    report = say()
    assert inbox(admin_client) == 1
    page = admin_client.get(page_url(report))
    assert f"{list_url(Workflow)}?q=pay" in page.content.decode() and "agent" in text_of(page)
    press_resolve(admin_client, report)
    assert inbox(admin_client) == 0
    assert HistoryEntry.objects.get(model="executions.problemreport").actor_name == "admin"
    say()
    assert inbox(admin_client) == 1


def test_texts_of_agents_are_never_markup(admin_client):
    latest = {"at": "2026-11-30T00:00:00+00:00", "caller": HOSTILE, "tried": HOSTILE}
    report = make_report(tool=HOSTILE, missing=HOSTILE, last=[latest])
    for address in (page_url(report), list_url(ProblemReport), "/admin/"):
        shown = admin_client.get(address).content.decode()
        assert "<img src=x" not in shown and "&lt;img src=x" in shown, address


def test_several_are_resolved_at_once_and_recorded(admin_client):
    long_ago = timezone.now() - timedelta(days=9)
    reports = [make_report(), make_report(), make_report(resolved_at=long_ago)]
    chosen = {"action": "resolve_selected", "_selected_action": [one.pk for one in reports]}
    admin_client.post(list_url(ProblemReport), chosen)
    assert not ProblemReport.objects.filter(resolved_at=None).exists()
    assert ProblemReport.objects.filter(resolved_at=long_ago).count() == 1
    assert HistoryEntry.objects.filter(model="executions.problemreport").count() == 2


@pytest.mark.parametrize(
    ("codenames", "reads", "resolves"),
    [
        ([], 403, 403),
        (["view_workflow"], 403, 403),
        (["view_problemreport"], 200, 403),
        (["view_problemreport", "change_problemreport"], 200, 200),
    ],
)
def test_who_reads_and_who_resolves(staff_with, codenames, reads, resolves):
    client, report = staff_with(*codenames), make_report()
    assert client.get(list_url(ProblemReport)).status_code == reads
    assert press_resolve(client, report).status_code == resolves
    assert (ProblemReport.objects.get().resolved_at is not None) == (resolves == 200)


def test_subscribers_are_told_once_in_plain_text(ada, letters):
    ada.is_superuser = True
    ada.save()
    subscribe(ada, EventKind.REPORT)
    say(HOSTILE)
    say(HOSTILE)
    assert [report_events(), report_events()] == [1, 0]
    (letter,) = letters
    assert HOSTILE in letter.body and letter.content_subtype == "plain"
    assert "/admin/executions/problemreport/?resolved=no" in letter.body


def test_operators_list_them_by_rest(client):
    make_report(tool="pay", is_tool=True)
    staff = staff_session("view_problemreport")
    (listed,) = staff.get("/api/problem-reports/?tool=pay").json()["results"]
    assert (listed["tool"], listed["times"], listed["last"][0]["caller"]) == ("pay", 1, "an agent")
    assert staff.get("/api/problem-reports/?tool=ship").json()["results"] == []
    assert agent().get("/api/problem-reports/").status_code == 403
