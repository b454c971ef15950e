"""Natural-language requests in the admin: the list, and the page that tells everything about one."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalogue.exposure import forget_catalogue
from executions.models import Execution
from orchestration.models import Stage, StageState, WorkflowRequest
from tests.admin.pages import list_url, listed, page_url, text_of
from tests.factories import make_execution, make_workflow, make_workflow_request, stage_entry

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert(1)</script> ![x](https://evil.example/?q=1) [here](https://evil.example)"
SPEC = {
    "method": "POST",
    "url": "https://api.example.com/orders/A-7/refunds",
    "headers": {"x-tenant": "north"},
    "query_params": {"notify": True, "tag": ["a", "b"]},
    "body": {"amount": 12.5},
}
RESPONSE = {
    "status_code": 201,
    "headers": {"x-shop": "north"},
    "body": {"refund": "re-91"},
    "execution_time_ms": 183.42,
}
LONG = ("http_spec", "arguments", "reason", "formatted_response", "stages", "error")


def found(client: Client, **query: str) -> list[WorkflowRequest]:
    return list(listed(client, list_url(WorkflowRequest), query).result_list)


def shown(client: Client, record: WorkflowRequest) -> str:
    return text_of(client.get(page_url(record)))


def refunded(**fields: Any) -> WorkflowRequest:
    """A request that an HTTP tool answered."""
    payload = {"status_answer": {"request": SPEC, "response": RESPONSE}, "output": {"refund": "re-91"}}
    execution = fields.pop("execution", None) or make_execution(make_workflow(), payload=payload)
    return make_workflow_request(
        **{
            "instructions": "Refund 12.50 for A-7.",
            "selected_tool": "refund_order",
            "tool_ids": ["refund_order", "get_order"],
            "reason": "It refunds one order.",
            "arguments": {"order_id": "A-7", "amount": 12.5},
            "http_spec": SPEC,
            "execution": execution,
            "model": "small-model",
            "prompt_tokens": 1_834,
            "completion_tokens": 121,
        }
        | fields,
    )


# The list


def test_the_list_shows_who_asked_what_and_what_came_of_it(admin_client):
    """C7.1, C7.7."""
    refunded(caller_name="shop front", warnings=["Not put into words."])
    page = text_of(admin_client.get(list_url(WorkflowRequest)))
    assert "just now shop front Refund 12.50 for A-7. refund_order success warning - 2.0 s 1,955" in page


def test_the_list_tells_what_failed_what_goes_on_and_what_was_lost(admin_client):
    """C7.6, C8.1 to C8.3."""
    make_workflow_request(status="error", error="No.", error_stage=Stage.LLM_SELECTION)
    make_workflow_request(status="running")
    make_workflow_request(status="running", deadline_at=timezone.now() - timedelta(seconds=1))
    make_workflow_request(dry_run=True)
    page = text_of(admin_client.get(list_url(WorkflowRequest)))
    for part in ("error choosing tool and arguments", "in progress", "lost", "success dry run"):
        assert part in page, part


@pytest.mark.databases("orchestration.admin")
def test_requests_are_narrowed_by_outcome_stage_tool_purpose_and_time(admin_client):
    """C7.7."""
    make_workflow(name="refund_order")
    wanted = make_workflow_request(
        status="error", error_stage=Stage.API_EXECUTION, selected_tool="refund_order", dry_run=True
    )
    make_workflow_request(created_at=timezone.now() - timedelta(days=2))
    queries: list[dict[str, str]] = [
        {"status__exact": "error"},
        {"error_stage__exact": "api_execution"},
        {"tool": "refund_order"},
        {"dry_run": "yes"},
        {"created": "in the last 24 hours"},
    ]
    for query in queries:
        assert found(admin_client, **query) == [wanted], query
    assert found(admin_client, dry_run="no") == [WorkflowRequest.objects.exclude(pk=wanted.pk).get()]


@pytest.mark.databases("orchestration.admin")
def test_a_request_is_found_by_its_words_its_tool_its_caller_and_its_id(admin_client):
    """C7.1: also by a tool that is gone."""
    wanted = make_workflow_request("Where is A-7?", selected_tool="get_order", caller_name="shop front")
    make_workflow_request()
    for query in ("where is", "get_order", "shop front", str(wanted.pk)):
        assert found(admin_client, q=query) == [wanted], query


def test_the_list_reads_no_long_texts_and_costs_the_same_for_5_and_for_50_rows(admin_client):
    """C7.1."""

    def queries() -> list[str]:
        admin_client.get(list_url(WorkflowRequest))
        forget_catalogue()
        with CaptureQueriesContext(connection) as captured:
            assert admin_client.get(list_url(WorkflowRequest)).status_code == 200
        return [query["sql"] for query in captured]

    for _ in range(5):
        refunded(execution=make_execution())
    few = queries()
    for _ in range(45):
        make_workflow_request()
    many = queries()
    assert len(many) == len(few) <= 15
    table = WorkflowRequest._meta.db_table
    assert not [sql for sql in many for name in LONG if f'"{table}"."{name}"' in sql]


def test_who_may_not_look_at_requests_sees_neither_list_nor_page(staff_with):
    """C7.1: nor the entry in the sidebar."""
    record = make_workflow_request()
    client = staff_with("view_execution")
    assert client.get(list_url(WorkflowRequest)).status_code == 403
    assert client.get(page_url(record)).status_code == 403
    assert "Natural-language requests" not in text_of(client.get("/admin/"))


def test_the_first_page_counts_the_requests_of_the_last_day(admin_client, staff_with):
    """C7.1: for those who may look at them."""
    make_workflow_request()
    make_workflow_request(status="error")
    make_workflow_request(created_at=timezone.now() - timedelta(days=2))
    (card,) = (one for one in admin_client.get("/admin/").context["cards"] if "workflowrequest" in one.url)
    assert (card.number, [text for text, *_ in card.badges]) == (2, ["1 success", "1 error"])
    assert "Natural-language requests" not in text_of(staff_with("view_execution").get("/admin/"))


# One request


def test_the_page_shows_what_was_asked_chosen_sent_and_answered(admin_client):
    """C4.4, C5.2, C5.4, C6.5, C7.1 to C7.5."""
    workflow = make_workflow(name="refund_order")
    record = refunded(
        format_response=True,
        format_instructions="One sentence.",
        formatted_response="The refund re-91 is under way.",
        warnings=["Cut."],
        stages=[stage_entry(stage) for stage in Stage],
    )
    page = shown(admin_client, record)
    for part in (
        "Refund 12.50 for A-7.",
        "How to phrase the answer One sentence.",
        "refund_order get_order",
        "It refunds one order.",
        '"order_id": "A-7"',
        "POST https://api.example.com/orders/A-7/refunds",
        "Query notify true tag a tag b Headers x-tenant north",
        '"amount": 12.5',
        "201 183.4 ms",
        '"refund": "re-91"',
        "x-shop north",
        "The refund re-91 is under way.",
        "Cut.",
        "1,834 read, 121 written",
        "small-model",
        str(record.pk),
    ):
        assert part in page, part
    html = admin_client.get(page_url(record)).content.decode()
    assert page_url(record.execution) in html and page_url(workflow) in html


def test_the_page_shows_each_stage_with_its_state_and_time(admin_client):
    """C7.7: also those that it did not come to."""
    begun = timezone.now()
    record = make_workflow_request(
        status="error",
        error="The API answered 422.",
        error_stage=Stage.API_EXECUTION,
        created_at=begun,
        stages=[
            stage_entry(Stage.TOOL_RETRIEVAL, seconds=0.012, message="2 tools"),
            stage_entry(Stage.LLM_SELECTION, seconds=1.5),
            stage_entry(Stage.API_EXECUTION, StageState.FAILED, message="The API answered 422."),
            stage_entry(Stage.RESPONSE_FORMATTING, StageState.SKIPPED),
        ],
    )
    page = shown(admin_client, record)
    assert "Failed at running the tool: The API answered 422." in page
    assert "Finding the tools done 12 ms 2 tools" in page
    assert "Running the tool failed 500 ms The API answered 422." in page
    assert "Putting the answer into words skipped" in page


def test_a_request_under_way_is_shown_as_far_as_it_is(admin_client):
    """C7.7."""
    stages = [stage_entry(Stage.TOOL_RETRIEVAL), stage_entry(Stage.LLM_SELECTION, StageState.RUNNING)]
    page = admin_client.get(page_url(make_workflow_request(status="running", stages=stages)))
    assert "Choosing tool and arguments in progress" in text_of(page)
    assert "Running the tool pending" in text_of(page)
    assert "data-running" in page.content.decode()


def test_texts_of_callers_models_and_apis_stay_texts(admin_client):
    """C6.5: a picture or a link in an answer would carry off what is in it."""
    hostile_spec = SPEC | {"url": f"https://api.example.com/{HOSTILE}", "body": HOSTILE}
    response = RESPONSE | {"body": HOSTILE, "headers": {"x-shop": HOSTILE}}
    payload = {"status_answer": {"request": hostile_spec, "response": response}, "output": HOSTILE}
    record = refunded(
        instructions=HOSTILE,
        tool_ids=[HOSTILE],
        selected_tool="gone",
        reason=HOSTILE,
        arguments={"text": HOSTILE},
        http_spec=hostile_spec,
        formatted_response=HOSTILE,
        format_instructions=HOSTILE,
        error=HOSTILE,
        warnings=[HOSTILE],
        caller_name=HOSTILE,
        model=HOSTILE,
        stages=[stage_entry(Stage.TOOL_RETRIEVAL, message=HOSTILE)],
        execution=make_execution(payload=payload),
    )
    page = admin_client.get(page_url(record)).content.decode()
    assert "<script>alert" not in page
    assert "evil.example" in page
    assert 'href="https://evil' not in page and 'src="https://evil' not in page
    assert "<script>alert" not in admin_client.get(list_url(WorkflowRequest)).content.decode()


def test_the_answer_of_another_engine_is_shown_as_its_result(admin_client):
    """C5.4: what ran is no HTTP tool."""
    record = make_workflow_request(execution=make_execution(payload={"output": {"days": 365}}))
    page = shown(admin_client, record)
    assert "Raw response completed" in page and '"days": 365' in page


def test_raw_responses_of_others_are_for_those_who_may_look_at_executions(staff_with):
    """C5.4."""
    page = shown(staff_with("view_workflowrequest"), refunded())
    assert "You may not view other callers' executions." in page
    assert "183.4 ms" not in page


def test_what_the_retention_removed_is_said(admin_client):
    """E6."""
    record = refunded(payload_pruned_at=timezone.now(), instructions="", arguments=None, http_spec=None)
    Execution.objects.filter(pk=record.execution_id).update(payload_pruned_at=timezone.now())
    page = shown(admin_client, record)
    assert f"a front end: {record.selected_tool} " in page
    assert "What was asked Removed by the retention" in page
    assert "Raw response Removed by the retention policy." in page


# An execution of an HTTP tool


def test_the_page_of_an_http_tools_execution_shows_request_and_response(admin_client):
    """C5.2, C5.4: readably, in place of their JSON."""
    record = refunded()
    page = text_of(admin_client.get(page_url(record.execution)))
    assert "HTTP request POST https://api.example.com/orders/A-7/refunds" in page
    assert 'Body { "amount": 12.5 }' in page
    assert "HTTP response 201 183.4 ms from sending the request to receiving the last byte" in page
    assert "The body is the output, which is shown above." in page
    assert page.count('{ "refund"') == 1
    assert "The engine's last status" not in page


def test_an_answer_that_only_looks_like_http_is_shown_as_it_is(admin_client):
    """B3."""
    execution = make_execution(payload={"status_answer": {"request": "r-1", "response": {"code": 3}}})
    page = text_of(admin_client.get(page_url(execution)))
    assert "The engine's last status" in page and '"code": 3' in page
