"""Executions in the admin: what ran, what came of it, and cancelling it."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalogue.curation import enable_workflows
from catalogue.discovery import refresh_source
from catalogue.models import Workflow
from executions.callers import Caller
from executions.models import Execution, ExecutionPayload, State
from executions.polling import advance_due_executions
from executions.starting import StartRequest, create_execution
from tests.admin.conftest import StaffWith
from tests.admin.pages import list_url, page_url, press, text_of, told
from tests.factories import make_event, make_execution, make_source, make_workflow
from tests.processes import ExampleEngine, example_engine  # noqa: F401

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert(1)</script>"
AGENT = Caller(key="token:1", name="an agent")


def found(client: Client, **query: str) -> list[Execution]:
    return list(client.get(list_url(Execution), query).context["cl"].result_list)


# The list


def test_the_list_shows_state_caller_door_and_progress(admin_client: Client) -> None:
    """A8.2, B3."""
    make_execution(state=State.RUNNING, progress=40.0, caller_name="claude", tool_name="countdown")
    shown = text_of(admin_client.get(list_url(Execution)))
    assert "countdown" in shown
    assert "running claude MCP just now - 40 %" in shown


def test_the_list_never_reads_payloads(admin_client: Client) -> None:
    """B3: a large result slows nothing but its own page."""
    make_execution(payload={"output": "x" * 200_000})
    with CaptureQueriesContext(
        connection,
    ) as queries:
        page = admin_client.get(list_url(Execution))
    assert page.status_code == 200
    assert not [query for query in queries if ExecutionPayload._meta.db_table in query["sql"]]


def test_an_execution_is_found_by_any_of_its_ids(admin_client: Client) -> None:
    """B3, B8: the id that somebody has in a log leads to the record."""
    wanted = make_execution(run_id="8f496b6a-c905-41bb-b7b7-200a8982ab30", correlation_id="2724_9a92")
    make_execution()
    for query in (str(wanted.pk), wanted.pk.hex, wanted.run_id, "2724_9a92", wanted.tool_name):
        assert found(admin_client, q=query) == [wanted], query


def test_executions_are_found_by_caller(admin_client: Client) -> None:
    """B8: what one client did."""
    wanted = make_execution(caller="token:7", caller_name="support-bot")
    make_execution()
    assert found(admin_client, q="support") == found(admin_client, q="token:7") == [wanted]


def test_executions_are_filtered_by_state_source_door_and_date(admin_client: Client) -> None:
    """A8.2, E10."""
    workflow = make_workflow(make_source("orders"))
    wanted = make_execution(workflow, state=State.FAILED, door="rest")
    make_execution(created_at=timezone.now() - timedelta(days=2))
    queries: list[dict[str, Any]] = [
        {"state__exact": "failed"},
        {"source_name": "orders"},
        {"door__exact": "rest"},
        {"created": "in the last 24 hours"},
        {"workflow__id__exact": str(workflow.pk)},
    ]
    for query in queries:
        assert found(admin_client, **query) == [wanted], query


# One execution


def test_an_executions_page_tells_the_whole_story(admin_client: Client) -> None:
    """A8.2, A8.4, B3: ids, times, error, progress, timeline, input, output and the raw answers."""
    execution = make_execution(
        state=State.FAILED,
        run_id="run-1",
        correlation_id="2724_9a92",
        error="Line 3 is ragged.",
        error_kind="execution",
        payload={
            "input": {"csv": "a,b"},
            "output": None,
            "start_answer": {"workflow_id": "run-1"},
            "status_answer": {"status": "FAILED"},
        },
    )
    make_event(execution, "started", "The engine runs it as run-1.")
    shown = text_of(admin_client.get(page_url(execution)))
    for part in (
        "run-1",
        "2724_9a92",
        "Line 3 is ragged.",
        "Execution id",
        str(execution.pk),
        "2.0\N{NO-BREAK SPACE}s",
    ):
        assert part.replace("\N{NO-BREAK SPACE}", " ") in shown, part
    for part in ('"csv": "a,b"', '"status": "FAILED"', "The engine runs it as run-1.", "token:1"):
        assert part in shown, part


def test_a_large_payload_is_cut_and_says_how_large_it_is(admin_client: Client) -> None:
    """B3: a page of ten megabytes helps nobody."""
    execution = make_execution(payload={"output": {"text": "y" * 150_000}})
    page = admin_client.get(page_url(execution)).content.decode()
    assert "The first 100,000 of 150," in page
    assert len(page) < 160_000


def test_a_payload_that_was_not_kept_says_so(admin_client: Client) -> None:
    """B3: what was cut is said."""
    cut = [{"payload": "output", "bytes": 12_000_000}]
    execution = make_execution(payload={"output": None, "cut": cut})
    assert "Not kept: its 12,000,000 bytes" in text_of(admin_client.get(page_url(execution)))


def test_a_record_can_be_read_when_its_workflow_and_payload_are_gone(admin_client: Client) -> None:
    """A1.3, E6: history stays, also after payloads were pruned."""
    execution = make_execution()
    ExecutionPayload.objects.all().delete()
    Workflow.objects.all().delete()
    assert execution.tool_name in text_of(admin_client.get(page_url(execution)))


def test_what_engines_and_agents_say_is_shown_as_text(admin_client: Client) -> None:
    """B8: inputs, outputs, errors, progress and names are hostile."""
    execution = make_execution(
        state=State.FAILED,
        error=HOSTILE,
        progress=1.0,
        progress_message=HOSTILE,
        tool_name=HOSTILE,
        caller_name=HOSTILE,
        run_id=HOSTILE,
        payload={"input": {"a": HOSTILE}, "output": HOSTILE, "status_answer": {HOSTILE: 1}},
    )
    make_event(execution, HOSTILE[:30], HOSTILE)
    for url in (list_url(Execution), page_url(execution), "/admin/"):
        page = admin_client.get(url).content.decode()
        assert HOSTILE not in page
        assert "&lt;script&gt;alert(1)" in page


def test_records_of_executions_cannot_be_made_up_changed_or_deleted(admin_client: Client) -> None:
    """B8: the audit trail is nobody's to edit."""
    execution = make_execution()
    assert admin_client.get(list_url(Execution) + "add/").status_code == 403
    assert admin_client.post(page_url(execution), {"state": "failed"}).status_code == 403
    url = page_url(execution).replace("/change/", "/delete/")
    assert admin_client.post(url, {"post": "yes"}).status_code == 403


# Cancelling


@pytest.mark.django_db(transaction=True)
def test_cancelling_reaches_the_engine_and_tells_what_came_of_it(
    admin_client: Client,
    example_engine: ExampleEngine,  # noqa: F811
) -> None:
    """A7.5: the button stops the run at the engine, and the record says who asked."""
    source = make_source(base_url=example_engine.base_url, api_key=example_engine.api_key)
    refresh_source(source)
    enable_workflows(source.workflows.all())
    execution = create_execution(
        StartRequest(tool_name="countdown", arguments={"seconds": 300}, caller=AGENT, door=Execution.Door.MCP)
    )
    advance_due_executions()
    execution.refresh_from_db()
    assert execution.state == State.RUNNING
    assert "cancel" in told(press(admin_client, execution, "cancel")).lower()
    (run,) = example_engine.runs(workflow_id=execution.upstream_id)
    assert run["status"] == "CANCELLED"
    execution.refresh_from_db()
    assert execution.cancel_requested_by == "admin"
    assert "( just now ) by admin" in text_of(admin_client.get(page_url(execution)))


@pytest.mark.django_db(transaction=True)
def test_cancelling_what_has_ended_says_so(admin_client: Client) -> None:
    """A7.5: no button is offered, and a late press tells the truth."""
    execution = make_execution()
    assert "Cancel this execution?" not in admin_client.get(page_url(execution)).content.decode()
    assert "already completed" in told(press(admin_client, execution, "cancel"))


def test_only_people_who_may_change_executions_can_cancel(staff_with: StaffWith) -> None:
    """B8."""
    execution = make_execution(state=State.RUNNING)
    client = staff_with("view_execution")
    assert "Cancel this execution?" not in client.get(page_url(execution)).content.decode()
    assert press(client, execution, "cancel").status_code == 403
