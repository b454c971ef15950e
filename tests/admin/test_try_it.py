"""Trying natural-language requests in the admin: what the page asks, shows, refuses, and sends later."""

import re
import uuid
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from catalogue.exposure import forget_catalogue
from catalogue.models import Workflow
from executions.models import Execution, ExecutionPayload, State
from orchestration.models import Stage, StageState, WorkflowRequest
from tests.admin.pages import list_url, page_url, text_of
from tests.engines.model_server import proposes
from tests.factories import make_source, make_workflow, make_workflow_request, make_workflows, stage_entry
from tests.orchestration.conftest import model_server
from tests.orchestration.shop import API_TOKEN, shop, store

__all__ = ["model_server", "shop"]

pytestmark = pytest.mark.django_db(transaction=True)

HOSTILE = "<script>alert(1)</script>"
OF_SCRIPT = {"accept": "application/json"}
ORDER = proposes("get_order", {"order_id": "A-7"}, reason="It reads one order.")
TRIES = ("add_workflowrequest",)
RUNS = ("add_workflowrequest", "add_execution")


TOOLS = "admin:orchestration_workflowrequest_tools"


def found(client: Client, text: str) -> str:
    return text_of(client.get(reverse(TOOLS), {"find_workflows": text}))


def try_url() -> str:
    return reverse("admin:orchestration_workflowrequest_try_it")


def send_url(record: WorkflowRequest) -> str:
    return reverse("admin:orchestration_workflowrequest_send", args=[record.pk])


def progress(client: Client, key: uuid.UUID | str) -> Any:
    return client.get(reverse("admin:orchestration_workflowrequest_progress", args=[key]))


def shown(client: Client, record: WorkflowRequest) -> str:
    """The part of the page that follows the request."""
    answer = progress(client, record.pk)
    assert answer.status_code == 200
    return str(answer.content.decode())


def ask(client: Client, button: str = "dry_run", *, script: bool = True, **fields: Any) -> Any:
    """Press a button of the page, as its script does it or as a browser without scripts."""
    form = {"id": str(uuid.uuid4()), "user_instructions": "Where is my order A-7?", "tool_ids": ["get_order"]}
    return client.post(try_url(), form | {button: "1"} | fields, headers=OF_SCRIPT if script else {})


def send(client: Client, record: WorkflowRequest, *, key: str = "", script: bool = True) -> Any:
    form = {"id": key or str(uuid.uuid4())}
    return client.post(send_url(record), form, headers=OF_SCRIPT if script else {})


def asked(answer: Any) -> WorkflowRequest:
    """The record to which an answer leads."""
    assert answer.status_code == 200, answer.content
    return WorkflowRequest.objects.get(pk=answer.json()["request"])


def dry_run_by(user: User, **fields: Any) -> WorkflowRequest:
    """One that succeeded."""
    known = {"caller": f"user:{user.pk}", "dry_run": True, "arguments": {"text": "Hello"}}
    return make_workflow_request(**known | fields)


# Asking


def test_a_dry_run_shows_tool_reason_arguments_and_the_exact_request_and_sends_nothing(
    admin_client, model_server, shop
):
    """C4.1 to C4.5, C7.2: and no credential."""
    store(shop)
    model_server.script(ORDER)

    record = asked(ask(admin_client))

    assert (record.status, record.dry_run, record.caller_name) == ("success", True, "admin")
    told = shown(admin_client, record)
    assert 'data-told="Ended: success."' in told and "data-running" not in told
    page = admin_client.get(try_url(), {"request": str(record.pk)})
    for part in ("Nothing was sent", "It reads one order.", f"GET {shop.base_url}/orders/A-7", '"order_id"'):
        assert part in text_of(page), part
    assert API_TOKEN not in page.content.decode() + told
    assert not shop.arrived
    assert not Execution.objects.exists()


def test_a_run_shows_the_raw_response_and_the_answer_in_words(admin_client, model_server, shop):
    """C5.1, C5.4, C6.1, C6.2, C6.5: how to put it reaches the model."""
    store(shop)
    model_server.script(ORDER, f"Your order is on its way. {HOSTILE}")

    record = asked(ask(admin_client, "run", format_response="on", response_format_instructions="As a haiku."))

    told = shown(admin_client, record)
    assert "&quot;state&quot;: &quot;sent&quot;" in told
    assert "Your order is on its way." in told and HOSTILE not in told
    assert "As a haiku." in model_server.asked[-1].prompt
    assert record.execution is not None
    assert (record.execution.caller_name, record.execution.door) == ("admin", Execution.Door.WORKFLOW)


def test_without_scripts_the_form_is_posted_and_leads_to_what_came_of_it(admin_client, model_server, shop):
    """C7.1: the page says that it does without."""
    store(shop)
    model_server.script(ORDER)
    assert "<noscript>" in admin_client.get(try_url()).content.decode()
    answer = ask(admin_client, "run", script=False)
    record = WorkflowRequest.objects.get()
    assert answer.headers["location"] == f"{try_url()}?request={record.pk}#record"
    page = admin_client.get(answer.headers["location"])
    assert '"state": "sent"' in text_of(page)
    assert "Where is my order A-7?</textarea>" in page.content.decode()
    assert re.search(r'value="get_order"\s+checked', page.content.decode())


@pytest.mark.databases("orchestration.admin")
def test_a_page_that_posts_twice_has_asked_once(admin_client, model_server, shop):
    """C7.1: two clicks do not run twice."""
    store(shop)
    model_server.script(ORDER)
    key = str(uuid.uuid4())
    first, second = (asked(ask(admin_client, "run", id=key)) for _ in range(2))
    assert first == second
    assert (len(model_server.asked), len(shop.arrived)) == (1, 1)


def test_what_fails_is_said_with_its_stage(admin_client, model_server):
    """C3.4, C7.6, C7.7: also a tool that is gone since the page was opened."""
    record = asked(ask(admin_client, tool_ids=["gone"]))
    assert record.error_stage == Stage.TOOL_RETRIEVAL
    told = shown(admin_client, record)
    assert "Failed at finding the tools" in told and "gone" in told


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"user_instructions": " "}, "Describe what you want."),
        ({"tool_ids": []}, "Pick at least one tool."),
        ({"tool_ids": [f"t{number}" for number in range(201)]}, "Pick at most 200 tools; 201 are picked."),
        ({"user_instructions": "x" * 20_001}, "at most 20000 characters"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_words(admin_client, wrong, told):
    """C2.2, C2.3: to the script and on the page; nothing is recorded."""
    answer = ask(admin_client, **wrong)
    assert answer.status_code == 400
    assert told in answer.json()["problems"][0]
    assert told in text_of(ask(admin_client, script=False, **wrong))
    assert not WorkflowRequest.objects.exists()


def test_without_a_model_the_page_says_what_to_set(admin_client, settings):
    """C4.1: and nothing can be pressed."""
    make_workflow()
    settings.CATALOGUE = settings.CATALOGUE | {"openai_model": ""}
    page = admin_client.get(try_url())
    assert "No language model is configured" in text_of(page) and "OPENAI_MODEL" in text_of(page)
    assert 'name="run"' not in page.content.decode()


# The tools


@pytest.mark.databases("orchestration.admin")
def test_tools_are_found_among_hundreds_in_the_search_language_of_the_list(admin_client):
    """C1.2, C2.3: exposed ones only; the page shows the first."""
    make_workflows(300)
    make_workflow(name="refund_order", description="Pays back.", tags=["money"])
    make_workflow(name="hidden_one", enabled=False)
    page = admin_client.get(try_url())
    assert "and 251 more" in text_of(page) and "hidden_one" not in page.content.decode()
    for text in ("pays back", "tag:money", "refund_*"):
        only = found(admin_client, text)
        assert only.startswith("refund_order") and only.endswith("Pays back.")
    assert found(admin_client, "hidden_one") == "No workflow matches all of these words."
    assert "Close the quotation mark" in found(admin_client, '"refund')


def test_a_user_finds_only_tools_that_are_not_reserved_for_others(staff_with):
    """D4: what a request may use, and no more."""
    tellers = Group.objects.create(name="tellers")
    make_workflow(name="open_door")
    make_workflow(name="vault", source=make_source("bank", reserved_for=["group:tellers"]))
    client = staff_with(*TRIES)
    assert "open_door" in found(client, "") and "vault" not in found(client, "")
    assert "vault" not in text_of(client.get(try_url())) and "vault" not in found(client, "vault")
    assert "No such tools" in shown(client, asked(ask(client, tool_ids=["vault"])))
    User.objects.get().groups.add(tellers)
    assert "vault" in found(client, "vault")


def test_a_page_without_tools_says_where_they_come_from(admin_client):
    """C2.3."""
    assert "No workflow is exposed" in text_of(admin_client.get(try_url()))


# Following


def test_the_stages_are_told_while_the_request_goes_on(admin_client):
    """C7.7."""
    stages = [stage_entry(Stage.TOOL_RETRIEVAL), stage_entry(Stage.LLM_SELECTION, StageState.RUNNING)]
    record = make_workflow_request(status="running", stages=stages)
    told = shown(admin_client, record)
    assert "data-running" in told and 'data-told="Choosing tool and arguments …"' in told
    assert "in progress" in told
    assert progress(admin_client, uuid.uuid4()).status_code == 404


def test_who_may_only_try_sees_what_they_asked_for_themselves(staff_with):
    """C7.1."""
    client = staff_with(*TRIES)
    own = make_workflow_request("Mine.", caller=f"user:{User.objects.get().pk}")
    other = make_workflow_request("Somebody else's.")
    assert progress(client, own.pk).status_code == 200
    assert progress(client, other.pk).status_code == 404
    assert "Somebody else" not in text_of(client.get(try_url(), {"request": str(other.pk)}))
    assert "Mine." in text_of(client.get(try_url(), {"request": str(own.pk)}))


# Who may


def test_who_may_not_ask_finds_no_button_and_no_page(staff_with):
    """C7.1."""
    client = staff_with("view_workflowrequest", "add_execution")
    assert try_url() not in client.get(list_url(WorkflowRequest)).content.decode()
    assert client.get(try_url()).status_code == ask(client).status_code == 403
    assert client.get(reverse(TOOLS)).status_code == 403
    assert not WorkflowRequest.objects.exists()


def test_the_list_and_the_sidebar_lead_to_the_page(staff_with):
    """C7.1: the sidebar also for those who may not look at what others asked."""
    client = staff_with("view_workflowrequest", *TRIES)
    assert client.get(list_url(WorkflowRequest)).content.decode().count(try_url()) >= 2
    User.objects.all().delete()
    assert try_url() in staff_with(*TRIES).get("/admin/").content.decode()


def test_who_may_not_run_gets_a_dry_run_and_no_more(staff_with, model_server, shop):
    """C7.1."""
    store(shop)
    model_server.script(ORDER)
    client = staff_with(*TRIES)
    assert 'name="run"' not in client.get(try_url()).content.decode()
    assert ask(client, "run").status_code == 403
    record = asked(ask(client))
    assert "Send this" not in shown(client, record)
    assert send(client, record).status_code == 403
    assert not shop.arrived


# Sending what a dry run showed


def test_sending_runs_what_was_shown_without_asking_the_model_again(admin_client, model_server, shop):
    """C4.5, C5.1: the arguments of the dry run, as a request of its own."""
    store(shop)
    model_server.script(ORDER)
    dry_run = asked(ask(admin_client))
    assert "Send this" in shown(admin_client, dry_run)

    record = asked(send(admin_client, dry_run))

    assert record != dry_run and not record.dry_run
    assert (record.status, record.http_spec, record.arguments, record.reason) == (
        "success", dry_run.http_spec, dry_run.arguments, dry_run.reason,
    )  # fmt: skip
    assert "get_order, as the dry run showed it" in shown(admin_client, record)
    (arrived,) = shop.arrived
    assert arrived.target == "/orders/A-7"
    assert len(model_server.asked) == 1
    assert ExecutionPayload.objects.get(pk=record.execution_id).input == {"order_id": "A-7"}


@pytest.mark.databases("orchestration.admin")
def test_a_dry_run_is_sent_once_however_often_it_is_pressed(admin_client, model_server, shop):
    """C5.1: with scripts and without."""
    store(shop)
    model_server.script(ORDER)
    dry_run = asked(ask(admin_client))
    first, second = (asked(send(admin_client, dry_run)) for _ in range(2))
    assert first == second
    third = send(admin_client, dry_run, script=False)
    assert third.headers["location"] == f"{try_url()}?request={first.pk}#record"
    assert len(shop.arrived) == 1


def test_a_tool_that_would_send_something_else_by_now_sends_nothing(admin_client, model_server, shop):
    """C4.5: what was looked at is what is sent."""
    store(shop)
    model_server.script(ORDER)
    dry_run = asked(ask(admin_client))
    workflow = Workflow.objects.get(tool_name="get_order")
    workflow.metadata = workflow.metadata | {"path": "/archive/{order_id}"}
    workflow.save()
    forget_catalogue()

    record = asked(send(admin_client, dry_run))

    assert (record.status, record.error_stage) == ("error", Stage.LLM_SELECTION)
    assert (
        "get_order would now send a different request. Nothing was sent; make a new dry run." in record.error
    )
    assert not shop.arrived


def test_an_answer_in_words_is_made_of_what_was_sent_later(admin_client, model_server, shop):
    """C6.1: as the dry run asked for it."""
    store(shop)
    model_server.script(ORDER, "It is on its way.")
    dry_run = asked(ask(admin_client, format_response="on"))
    assert asked(send(admin_client, dry_run)).formatted_response == "It is on its way."


@pytest.mark.parametrize(
    "fields", [{"caller": "user:0"}, {"dry_run": False}, {"status": "error"}, {"arguments": None}], ids=str
)
def test_only_ones_own_dry_run_that_succeeded_can_be_sent(admin_client, fields):
    """C4.5."""
    record = dry_run_by(User.objects.get(), **fields)
    answer = send(admin_client, record)
    assert answer.status_code == 400
    assert "Only your own successful dry runs" in answer.json()["problems"][0]
    assert "Only your own successful dry runs" in text_of(send(admin_client, record, script=False))
    assert "Send this" not in text_of(admin_client.get(page_url(record)))
    assert not Execution.objects.exists()


def test_sending_needs_a_post_with_an_id_and_a_record(admin_client):
    """C4.5."""
    record = dry_run_by(User.objects.get())
    assert admin_client.get(send_url(record)).status_code == 405
    assert send(admin_client, record, key="none").status_code == 400
    WorkflowRequest.objects.all().delete()
    assert send(admin_client, record).status_code == 404


def test_a_workflow_of_another_engine_is_dry_run_and_sent_likewise(admin_client, model_server, settings):
    """C4.5: what its engine refuses is what the run came to."""
    settings.CATALOGUE = settings.CATALOGUE | {"retry_attempts": 0}
    make_workflow(name="say", input_schema={"type": "object", "properties": {"text": {"type": "string"}}})
    model_server.script(proposes("say", {"text": "Hello"}))
    dry_run = asked(ask(admin_client, tool_ids=["say"]))
    assert dry_run.http_spec is None and dry_run.arguments == {"text": "Hello"}
    record = asked(send(admin_client, dry_run))
    assert record.arguments == {"text": "Hello"}
    assert record.execution is not None
    assert record.execution.state in (State.FAILED, State.PENDING, State.STARTING)
