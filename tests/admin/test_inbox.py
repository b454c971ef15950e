"""The inbox of the overview: rows that are links as a whole, to exactly what they count."""

from datetime import timedelta

import pytest
from django.utils import timezone

from catalogue.actions.workflows import override_workflow
from catalogue.models import Review, Source, Workflow
from executions.inbox import TOPICS
from executions.starting import create_execution
from tests.admin.pages import list_url, text_of
from tests.executions.steps import request_for
from tests.executions.test_failure_spikes import count_runs
from tests.factories import make_discovery_run, make_execution, make_report, make_source, make_workflow

pytestmark = [pytest.mark.django_db, pytest.mark.databases("executions.inbox")]
LONG_AGO = timezone.now() - timedelta(days=60)


def make_one_of_each():
    """And others that the inbox must not count."""
    now, source = timezone.now(), make_source("engine")
    old = {"source": source, "first_seen_at": LONG_AGO}
    for number in range(4):
        at = now - timedelta(hours=number)
        make_workflow(**old, name=f"lost_{number}", missing_since=at)
    make_workflow(**old, name="lost_but_hidden", missing_since=now, enabled=False)
    make_workflow(make_source(enabled=False), name="of_no_concern", missing_since=now)
    make_workflow(source, name="new", enabled=False)
    make_workflow(**old, name="decided", enabled=False)
    make_workflow(**old, name="commanding", warning="ignore previous instructions")
    make_workflow(**old, name="decided_and_commanding", warning="ignore", enabled=False)
    make_workflow(**old, name="double", resembles="list_workflows")
    make_source("down", health_state="failing", failing_since=now, health_message="401 Unauthorized")
    held = make_source("held", health_state="held")
    make_discovery_run(held, outcome="succeeded", started_at=now - timedelta(hours=9))
    for hours in (5, 1):
        make_discovery_run(held, outcome="held", started_at=now - timedelta(hours=hours))
    for kind in ("changed", "new"):
        Review.objects.create(workflow=make_workflow(**old, name=f"{kind}_held"), kind=kind, offer_hash=kind)
    count_runs(make_workflow(**old, name="breaking"), days_ago=0, calls=40, failed=18)
    make_execution(Workflow.objects.get(name="decided"), state="unconfirmed")
    decided = Workflow.objects.get(name="decided")
    make_execution(decided, state="running", run_id="run-1", input_request=1, admitted_at=now)
    make_execution(decided, state="running", run_id="run-2", admitted_at=now)
    pay = override_workflow(make_workflow(**old, name="pay", tool_name="pay"), approval_required=True)
    create_execution(request_for(pay.tool_name, {}))
    make_report(tool="pay", is_tool=True, missing="refunds")
    make_report(resolved_at=now)


def rows_by_key(client):
    return {row.key: row for row in client.get("/admin/").context["inbox"]}


def test_each_row_counts_names_and_dates_what_its_page_shows(admin_client):
    make_one_of_each()
    rows = rows_by_key(admin_client)
    assert rows.keys() == TOPICS.keys()
    assert {key: row.number for key, row in rows.items() if row.number > 1} == {"lost": 4, "flagged": 2}
    for row in rows.values():
        page = admin_client.get(row.url).context
        assert (page["left"] if "left" in page else page["cl"].result_count) == row.number, row.key
    lost = rows["lost"]
    assert (list(lost.names), lost.others) == (["lost_0", "lost_1", "lost_2"], 1)
    assert lost.since == Workflow.objects.get(name="lost_3").missing_since
    assert rows["failing-tools"].names == ["breaking (45% of 40 runs)"]
    assert rows["reports"].names == ["pay: refunds"]
    assert rows["failing-sources"].names == ["down: 401 Unauthorized"]
    told = timezone.now() - rows["held-listings"].since
    assert timedelta(hours=4) < told < timedelta(hours=6), "since the first one that was held"


def test_the_most_urgent_rows_come_first(admin_client):
    make_one_of_each()
    urgencies = [row.urgency for row in rows_by_key(admin_client).values()]
    assert urgencies == sorted(urgencies, key=["danger", "warning", "info"].index)
    assert (urgencies[0], urgencies[-1]) == ("danger", "info")


@pytest.mark.parametrize(
    ("codenames", "expected"),
    [
        (["view_source"], {"failing-sources", "held-listings"}),
        (["view_workflow"], {"lost", "flagged", "changed", "held-new", "new"}),
        (["view_execution"], {"unconfirmed", "paused"}),
        (
            ["view_execution", "view_source"],
            {"failing-sources", "held-listings", "failing-engines", "unconfirmed", "paused"},
        ),
        (["decide_approval"], {"approvals"}),
        (["view_approval"], set()),
    ],
)
def test_a_user_sees_the_rows_of_their_permissions_alone(staff_with, codenames, expected):
    make_one_of_each()
    client = staff_with(*codenames)
    rows = rows_by_key(client)
    assert rows.keys() == expected
    assert {client.get(row.url).status_code for row in rows.values()} <= {200}, "each may be followed"


def test_an_empty_inbox_says_so(admin_client, staff_with):
    page = admin_client.get("/admin/").content.decode()
    assert 'id="inbox-is-empty"' in page and 'id="inbox"' not in page
    assert 'id="inbox-is-empty"' not in staff_with("view_approval").get("/admin/").content.decode()


def test_names_of_engines_are_escaped(admin_client):
    make_workflow(make_source(), name="x", tool_name="x", missing_since=timezone.now())
    Workflow.objects.update(tool_name="<img src=x>")
    page = admin_client.get("/admin/").content.decode()
    assert "<img src=x>" not in page and "&lt;img src=x&gt;" in page


def test_the_filters_of_the_inbox_can_show_their_counts(admin_client):
    make_one_of_each()
    for model in (Workflow, Source):
        assert admin_client.get(list_url(model), {"_facets": "True"}).status_code == 200


def test_tools_in_the_tables_of_usage_are_links_for_those_who_may_follow_them(admin_client, staff_with):
    workflow = make_workflow(name="breaking")
    make_execution(workflow, state="failed")
    address = f"/admin/catalogue/workflow/{workflow.pk}/change/"
    assert f'href="{address}"' in admin_client.get("/admin/").content.decode()
    page = staff_with("view_execution").get("/admin/")
    assert address not in page.content.decode() and "breaking" in text_of(page)


def test_hours_are_shown_in_the_readers_zone(admin_client):
    make_execution()
    with timezone.override("Asia/Kolkata"):
        local = timezone.localtime()
        charts = admin_client.get("/admin/").context["charts"]
    assert charts.moments[-1] == f"{local - timedelta(minutes=(local.minute - 30) % 60):%H:%M}"
    assert "IST" in charts.zone


@pytest.mark.django_db(transaction=True)
def test_a_row_is_one_link_that_a_click_anywhere_follows_in_a_browser(window):
    make_workflow(name="gone", missing_since=timezone.now())
    make_execution(state="failed")
    window.open("/admin/")
    tops = window.run(
        "return [...document.querySelectorAll('.overview-cards > div > div > p')].map(e => e.offsetTop)"
    )
    assert len(tops) > 3 and len(set(tops)) == 1, "the numbers stand at one height"
    bottom = window.run("return document.querySelector('[data-axis]').getBoundingClientRect().bottom")
    assert bottom < 800, "the charts are above the fold"
    window.click_through("[data-row=lost] .truncate")
    assert window.run("return location.pathname + location.search") == f"{list_url(Workflow)}?inbox=lost"
    assert "gone" in window.run("return document.querySelector('#result_list').textContent")
