"""The runs that an engine itself lists, on a page of its source."""

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.urls import reverse

from catalogue.models import Workflow
from connectors.errors import Rejected, Unreachable
from connectors.protocol import Capabilities, ListedRun, RunFilter, RunState
from executions.models import State
from tests.admin.pages import page_url, text_of
from tests.executions.talkative import review, talker
from tests.factories import make_execution, make_source

__all__ = ["review", "talker"]

pytestmark = pytest.mark.django_db(transaction=True)
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOSTILE = "<script>alert(1)</script>"


def listed(run_id: str, **fields) -> ListedRun:
    fields = {"workflow": "Review", "state": RunState.RUNNING, "told_state": "Running"} | fields
    return ListedRun(run_id=run_id, **fields)


def address(workflow: Workflow) -> str:
    return reverse("admin:executions_engine_runs", args=[workflow.source_id])


def test_the_page_of_a_source_leads_to_its_runs_where_the_engine_lists_them(review, talker, admin_client):
    """E10."""
    assert address(review) in admin_client.get(page_url(review.source)).content.decode()
    talker.capabilities = Capabilities()
    assert address(review) not in admin_client.get(page_url(review.source)).content.decode()
    plain = make_source("plain")
    assert "Runs at the engine" not in text_of(admin_client.get(page_url(plain)))


def test_runs_are_shown_with_a_way_to_our_own_executions(review, talker, admin_client):
    """E10: what an engine tells is text and nothing else."""
    ours = make_execution(review, state=State.RUNNING, run_id="run-1")
    talker.list(
        listed("run-2", workflow=HOSTILE, details={"memo": {"of": HOSTILE}}, told_state=HOSTILE),
        listed("run-1", started_at=NOON, finished_at=NOON + timedelta(seconds=90), told_state="TimedOut"),
    )
    page = admin_client.get(address(review))
    shown = text_of(page)
    assert f"Runs at the engine: {review.source.name}" in shown and "Started after" in shown
    assert "TimedOut 1 min 30 s review run-1" in shown
    assert page_url(ours) in page.content.decode()
    assert HOSTILE not in page.content.decode() and HOSTILE in shown


def test_the_form_asks_the_engine_and_keeps_what_was_asked(review, talker, admin_client):
    """E10: also from page to page."""
    talker.list(listed("run-1"), next_cursor="more&more")
    asked = {
        "workflow": "Review",
        "state": "failed",
        "run": "order-",
        "started_after": "2026-11-21T12:00",
        "started_before": "",
        "query": "Priority > 3",
    }
    page = admin_client.get(address(review), asked)
    wanted = RunFilter(
        workflow="Review",
        run="order-",
        states=frozenset({RunState.FAILED}),
        started_after=NOON,
        engine_query="Priority > 3",
    )
    following = admin_client.get(address(review) + page.context["next_page"])
    assert talker.asked_for == [(wanted, 50, ""), (wanted, 50, "more&more")]
    assert 'value="Priority &gt; 3"' in following.content.decode()
    talker.list()
    assert "The engine lists no matching runs." in text_of(admin_client.get(address(review), asked))
    assert "No more runs." in text_of(admin_client.get(address(review) + page.context["next_page"]))


@pytest.mark.parametrize("error", [Rejected("invalid query: Colour"), Unreachable("connection refused")])
def test_an_engine_that_refuses_or_is_gone_is_told_on_the_page(review, talker, admin_client, error):
    """B5, B6: with the form, to try again."""
    talker.answer = error
    page = admin_client.get(address(review), {"query": "Colour = 'red'"})
    assert page.status_code == 200 and str(error) in text_of(page)
    assert "Colour = &#x27;red&#x27;" in page.content.decode()


def test_a_filter_that_cannot_be_read_is_told_at_its_field(review, talker, admin_client):
    """B5."""
    page = admin_client.get(address(review), {"started_after": "yesterday", "state": "asleep"})
    assert "Enter a valid date/time." in text_of(page) and "asleep is not one of" in text_of(page)
    assert talker.asked_for == []


def test_an_engine_that_cannot_list_its_runs_is_said_to_be_unable(review, talker, admin_client):
    """A8.5."""
    talker.capabilities = Capabilities()
    assert "Not supported" in text_of(admin_client.get(address(review)))


def test_only_who_may_see_executions_may_look(review, talker, staff_with):
    """E10."""
    member = staff_with("view_source")
    assert member.get(address(review)).status_code == 403
    assert address(review) not in member.get(page_url(review.source)).content.decode()
    assert Client().get(address(review)).status_code == 302
    assert talker.asked_for == []


def test_a_source_that_does_not_exist_is_not_found(admin_client):
    assert admin_client.get(reverse("admin:executions_engine_runs", args=[4711])).status_code == 404
