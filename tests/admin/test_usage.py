"""What is used: in the list of workflows, on the pages of usage and on the first page."""

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.db.models import Model
from django.test import Client
from django.utils import timezone

from catalogue.models import Workflow
from executions.models import Execution
from tests.admin.pages import list_url, text_of
from tests.factories import make_execution, make_workflow

pytestmark = [pytest.mark.django_db, pytest.mark.databases("executions.admin.workflow_usage")]

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
