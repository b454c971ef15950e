"""Lists of the admin as CSV."""

import csv
import re
from html import unescape
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from audit.models import Entry, Kind
from catalogue.models import Workflow
from executions.models import Execution
from tests.admin.pages import list_url, told
from tests.factories import make_execution, make_workflow, make_workflows

pytestmark = pytest.mark.django_db


def table(client: Client, address: str) -> list[dict[str, str]]:
    """By the link of the list at this address."""
    [link] = re.findall(r'href="([^"]*)"[^>]*>\s*CSV', client.get(address).content.decode())
    response: Any = client.get(f"{address.partition('?')[0]}{unescape(link)}")
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    return list(csv.DictReader(StringIO(response.getvalue().decode())))


def test_the_workflows_that_filters_and_search_leave_come_as_a_table_in_the_order_of_the_list(admin_client):
    """All pages of them, with what curators said beside what engines say."""
    for number in range(120):
        make_workflow(name=f"report_{number:03}", category="reports", tags=["a", "b"], enabled=number != 7)
    make_workflow(name="report_x", category="others")
    make_workflow(name="bill", category="reports")

    rows = table(admin_client, f"{list_url(Workflow)}?q=report&category=reports&o=-2&p=2")

    assert [row["tool_name"] for row in rows] == [f"report_{number:03}" for number in reversed(range(120))]
    assert {(row["tags"], row["upstream_tags"]) for row in rows} == {("a, b", "a, b")}
    hidden = [row for row in rows if row["curator_enabled"] == "false"]
    assert [(row["tool_name"], row["exposed"], row["visibility"]) for row in hidden] == [
        ("report_007", "false", "disabled")
    ]
    [entry] = Entry.objects.filter(kind=Kind.EXPORT)
    assert (entry.event, entry.door, entry.actor_name) == ("workflows.exported", "admin", "admin")


def test_the_executions_that_filters_and_search_leave_come_as_a_table(admin_client):
    """All pages of them, the newest first."""
    workflow = make_workflow(tool_name="report")
    made = [make_execution(workflow, state="failed", error="=1+1", error_kind="timeout") for _ in range(60)]
    make_execution(workflow)
    make_execution(make_workflow(tool_name="bill"), state="failed")

    rows = table(admin_client, f"{list_url(Execution)}?q=report&state=failed&o=1")

    assert [row["id"] for row in rows] == [str(one.pk) for one in reversed(made)]
    assert {(row["error_kind"], row["error"]) for row in rows} == {("timeout", "'=1+1")}


@pytest.mark.parametrize("model", [Workflow, Execution])
def test_whoever_may_see_a_list_may_have_its_table(staff_with, model):
    make_execution(make_workflow())
    assert len(table(staff_with(f"view_{model._meta.model_name}"), list_url(model))) == 1
    User.objects.get(username="member").user_permissions.clear()
    refused = Client()
    refused.force_login(User.objects.get(username="member"))
    assert refused.get(f"{list_url(model)}csv/").status_code == 403


def test_a_table_that_cannot_be_filtered_like_this_leads_to_the_list_which_says_so(admin_client):
    for asked in ("colour=red", "colour__name=red"):
        answer = admin_client.get(f"{list_url(Workflow)}csv/?{asked}", follow=True)
        assert f"cannot be filtered by {asked.partition('=')[0]}" in told(answer)


def test_a_longer_table_takes_no_query_more_for_a_row(admin_client):
    def queries() -> int:
        with CaptureQueriesContext(connection) as queried:
            sent: Any = admin_client.get(f"{list_url(Workflow)}csv/")
            assert sent.getvalue()
        return len(queried)

    def queries_for(more: int) -> int:
        make_workflows(more)
        queries()  # The first one reads the changed catalogue, too.
        return queries()

    assert queries_for(2) == queries_for(40)
