"""POST /workflow, from the request to the answer, with a model server and a target API on loopback."""

import json
from contextlib import ExitStack
from typing import Any

import pytest
from rest_framework.test import APIClient

from catalogue.access import Scope
from catalogue.models import Workflow
from executions.models import Execution
from executions.rest.shared import MAX_WAITS_OF_ONE, waiting_places
from orchestration import records
from orchestration.models import WorkflowRequest
from tests.api.clients import TokenClient, administrator, agent, problem_paths, staff_session
from tests.engines.model_answers import USAGE, fails, proposes, says
from tests.engines.model_server import MODEL
from tests.engines.target_api import Reply
from tests.executions.engines import wait_until
from tests.factories import make_toolset
from tests.orchestration.engine_tools import discover
from tests.orchestration.shop import (
    API_TOKEN,
    CREATE_ORDER,
    EVERY_TOOL,
    GET_ORDER,
    ORDER,
    ask,
    only,
    shop,
    states,
    store,
)

__all__ = ["shop"]

pytestmark = pytest.mark.django_db(transaction=True)
READ_A7 = proposes("get_order", {"order_id": "A-7"}, reason="It reads one order.")


# Success


def test_the_tool_that_the_model_chose_runs_and_its_response_comes_back(model_server, shop):
    """C2.1, C4.1, C4.2, C5.1, C5.2, C5.4, C7.1, C7.2: and the response is as it came."""
    store(shop)
    model_server.script(READ_A7)

    response = ask()

    answer, raw = response.json(), response.json()["raw_response"]
    assert response.status_code == 200
    assert (answer["status"], answer["selected_tool"]) == ("success", "get_order")
    assert (answer["reason"], answer["arguments"]) == ("It reads one order.", {"order_id": "A-7"})
    assert (raw["status_code"], raw["body"], raw["headers"]["x-shop"]) == (200, ORDER, "north")
    assert set(raw) == {"status_code", "headers", "body", "execution_time_ms"}
    assert raw["execution_time_ms"] > 0
    assert (answer["error"], answer["error_stage"], answer["failure"]) == (None, None, None)
    (arrived,) = shop.arrived
    assert (arrived.method, arrived.target, arrived.body) == ("GET", "/orders/A-7", b"")


def test_the_answer_shows_the_request_that_was_sent_without_its_credentials(model_server, shop):
    """C4.3, C4.4, C4.5, C7.3: method, address, headers, query and body, of arguments in their places."""
    store(shop)
    model_server.script(proposes("create_order", {"item": "lamp", "amount": 2, "urgent": True}))

    response = ask("I need two lamps, quickly", EVERY_TOOL)

    assert response.json()["http_spec"] == {
        "method": "POST",
        "url": f"{shop.base_url}/orders",
        "headers": {"X-Urgent": "true"},
        "query_params": {},
        "body": {"channel": "words", "line": {"item": "lamp", "amount": 2}},
    }
    assert shop.last.json == {"channel": "words", "line": {"item": "lamp", "amount": 2}}
    assert shop.last.header("x-urgent") == "true"
    assert shop.last.header("authorization") == f"Bearer {API_TOKEN}"
    assert API_TOKEN not in response.content.decode()


def test_the_model_gets_the_instructions_and_every_tool_in_one_text(model_server, shop):
    """C3.1, C3.2, C3.3, C4.1: name, description, endpoint, required parameters and expected output."""
    expected = {"type": "object", "properties": {"state": {"type": "string"}}}
    store(
        shop, GET_ORDER | {"output_schema": expected, "field_mappings": {"output": {"state": "/order/state"}}}
    )
    model_server.script(READ_A7)

    ask("Where is my order A-7?", ["get_order"])

    (asked,) = model_server.asked
    for told in ("Where is my order A-7?", "get_order", GET_ORDER["description"], "/orders/{order_id}"):
        assert str(told) in asked.prompt
    assert "order_id" in asked.prompt and "required" in asked.prompt and "state" in asked.prompt
    assert asked.json["model"] == MODEL


def lamps(count: int, **more: Any) -> list[dict[str, Any]]:
    """Tools that have most words of what is asked for, and do something else."""
    texts = {"description": "Reads the lamps of an order that you bought. " * 20}
    return [GET_ORDER | texts | {"name": f"read_bought_lamps_{number}"} | more for number in range(count)]


@pytest.mark.parametrize("sought", [{"words": "create an order"}, {"tools": ["gone", "create_order", 7]}])
def test_of_more_tools_than_fit_the_model_first_says_what_it_looks_for(model_server, shop, settings, sought):
    """C3.1, C4.1: from names and titles, so that of very many tools every one can be chosen."""
    settings.CATALOGUE = settings.CATALOGUE | {"model_context_tokens": 4_000}
    others = lamps(150)
    store(shop, *others, CREATE_ORDER)
    model_server.script(sought, proposes("create_order", {"item": "lamp", "amount": 2}))

    answer = ask("I bought two lamps", [*(one["name"] for one in others), "create_order"])

    assert answer.json()["status"] == "success" and not answer.json().get("warnings")
    assert shop.last.json == {"channel": "words", "line": {"item": "lamp", "amount": 2}}
    named, described = model_server.asked
    assert "\ncreate_order" in named.prompt and "- amount (integer, required" not in named.prompt
    assert "\nread_bought_lamps_149" in named.prompt
    assert "name: create_order" in described.prompt and "- amount (integer, required" in described.prompt
    assert answer.json()["usage"]["prompt_tokens"] == 2 * USAGE["prompt_tokens"]


@pytest.mark.parametrize("said", ["I would describe them all!", {"words": 7, "tools": "create_order"}, {}])
def test_where_the_model_does_not_say_what_it_looks_for_the_instructions_decide(
    model_server, shop, settings, said
):
    """C4.1: its first answer only orders the tools."""
    settings.CATALOGUE = settings.CATALOGUE | {"model_context_tokens": 4_000}
    others = lamps(150)
    store(shop, *others, CREATE_ORDER)
    model_server.script(said, proposes("create_order", {"item": "lamp", "amount": 2}))

    answer = ask("Create an order of two lamps", [*(one["name"] for one in others), "create_order"])

    assert answer.json()["status"] == "success"
    assert "name: create_order" in model_server.asked[1].prompt


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": None, "completion_tokens": -1},
        {"prompt_tokens": "many", "completion_tokens": 10**12},
        {"prompt_tokens": 10**30},
        [],
        "free of charge",
    ],
)
def test_a_model_server_that_counts_tokens_wrongly_still_answers(model_server, shop, usage):
    store(shop)
    model_server.script(says(json.dumps(READ_A7), usage=usage))

    answer = ask().json()

    assert (answer["status"], answer["error"]) == ("success", None)
    assert answer["usage"] == {"model": MODEL, "prompt_tokens": 0, "completion_tokens": 0}


def test_the_answer_tells_time_and_tokens_and_where_it_is_recorded(model_server, shop):
    store(shop)
    model_server.script(READ_A7)

    response = ask()

    answer = response.json()
    expected = {"tool_retrieval": "done", "llm_selection": "done", "api_execution": "done"}
    assert states(answer) == expected | {"response_formatting": "skipped"}
    assert all(stage["seconds"] >= 0 for stage in answer["stages"] if stage["state"] == "done")
    tokens = {name: USAGE[name] for name in ("prompt_tokens", "completion_tokens")}
    assert answer["usage"] == {"model": MODEL, **tokens}
    execution = Execution.objects.get()
    assert (str(execution.pk), execution.door) == (answer["execution_id"], Execution.Door.WORKFLOW)
    assert administrator().get(response["Location"]).json()["id"] == answer["request_id"]


def test_a_workflow_of_another_engine_runs_as_well(model_server, example_engine):
    """C4.3, C7.3, C7.4: of it there is no HTTP request, and its output is the raw response."""
    discover(example_engine)
    model_server.script(proposes("text_statistics", {"text": "To be or not to be"}))

    answer = ask("Count the words of: To be or not to be", ["text_statistics"]).json()

    assert (answer["status"], answer["http_spec"]) == ("success", None)
    assert "http_request" not in str(model_server.asked[0].json)
    assert answer["raw_response"]["state"] == "completed"
    assert answer["raw_response"]["output"]["words"] == 6
    assert answer["raw_response"]["execution_id"] == answer["execution_id"]


def test_a_dry_run_stops_before_anything_is_sent(model_server, shop):
    """Nothing reaches the API, and there is no execution."""
    store(shop)
    model_server.script(READ_A7)

    response = ask(dry_run=True, format_response=True)

    answer = response.json()
    assert (response.status_code, answer["status"], answer["dry_run"]) == (200, "success", True)
    assert answer["http_spec"]["url"] == f"{shop.base_url}/orders/A-7"
    assert (answer["raw_response"], answer["execution_id"], answer["execution_state"]) == (None, None, None)
    assert states(answer)["api_execution"] == states(answer)["response_formatting"] == "skipped"
    assert shop.arrived == [] and not Execution.objects.exists()


def test_a_run_that_takes_longer_than_the_answer_can_wait_goes_on(model_server, shop):
    """The answer says so and how to hear of the rest."""
    store(shop)
    shop.tell("GET", "/orders/A-7", Reply(200, ORDER, held=True))
    Workflow.objects.update(inline_wait_seconds=0)
    model_server.script(READ_A7)

    response = ask(tool_ids=["get_order"], format_response=True)

    answer = response.json()
    assert (response.status_code, answer["status"]) == (202, "running")
    assert answer["raw_response"]["state"] in ("starting", "running")
    assert answer["execution_id"] in answer["warnings"][0]
    assert "formatted_response" in answer["warnings"][0]
    assert states(answer)["api_execution"] == "running"
    shop.released.set()


@pytest.mark.parametrize(
    ("reply", "status", "failure", "stage"),
    [
        (Reply(200, ORDER, held=True), "success", None, None),
        (Reply(500, {"message": "not today"}, held=True), "error", "run_failed", "api_execution"),
    ],
    ids=["succeeds", "fails"],
)
def test_a_request_whose_run_ends_after_the_answer_ends_as_the_run_does(
    model_server, shop, reply, status, failure, stage
):
    """C5.3, C7.1, C7.6, C7.7, C8.3: and `?status=` finds it at once, with the whole answer in the record."""
    store(shop)
    shop.tell("GET", "/orders/A-7", reply)
    Workflow.objects.update(inline_wait_seconds=0)
    model_server.script(READ_A7)
    client = administrator()
    response = ask(tool_ids=["get_order"])

    def found(status: str) -> list[str]:
        rows = client.get(f"/api/workflow-requests/?status={status}").json()["results"]
        return [row["id"] for row in rows]

    request_id = response.json()["request_id"]
    assert found("running") == [request_id] and found(status) == []
    shop.released.set()
    wait_until(lambda: Execution.objects.get().is_settled, "the run is over")

    assert found(status) == [request_id] and found("running") == []
    answer = client.get(response["Location"]).json()["answer"]
    assert (answer["status"], answer["failure"], answer["error_stage"]) == (status, failure, stage)
    assert answer["raw_response"]["body"] == reply.body
    assert ("not today" in (answer["error"] or "")) == (status == "error")
    assert answer["warnings"] == []
    assert only().finished_at == Execution.objects.get().finished_at


def test_who_comes_again_with_the_key_of_a_request_whose_run_went_on_gets_its_end(
    model_server, shop, monkeypatch
):
    """C7.6: the run is waited for as long as calls usually wait, and nothing runs twice."""
    monkeypatch.setattr(records, "LOOK_AGAIN_SECONDS", 0.05)
    store(shop)
    shop.tell("GET", "/orders/A-7", Reply(500, {"message": "not today"}, held=True))
    Workflow.objects.update(inline_wait_seconds=0)
    model_server.script(READ_A7)
    client, key = agent(), {"Idempotency-Key": "one look"}
    assert ask(tool_ids=["get_order"], client=client, headers=key).status_code == 202
    shop.released.set()

    again = ask(tool_ids=["get_order"], client=client, headers=key)

    assert (again.status_code, again.json()["failure"]) == (502, "run_failed")
    assert len(shop.arrived) == 1


def test_a_cached_result_answers_with_the_response_that_it_came_from(model_server, shop):
    store(shop, GET_ORDER | {"cache_seconds": 600})
    model_server.answer_by(lambda asked: READ_A7)

    first, second = (ask(tool_ids=["get_order"]).json() for _ in range(2))

    assert len(shop.arrived) == 1
    assert second["raw_response"] == first["raw_response"]
    assert second["execution_id"] != first["execution_id"]
    fresh = ask(tool_ids=["get_order"], headers={"Cache-Control": "no-cache"})
    assert (fresh.status_code, len(shop.arrived)) == (200, 2)


# What is asked


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"user_instructions": None}, "/user_instructions"),
        ({"user_instructions": "  "}, "/user_instructions"),
        ({"user_instructions": "x" * 20_001}, "/user_instructions"),
        ({"user_instructions": ["a"]}, "/user_instructions"),
        ({"tool_ids": None}, "/tool_ids"),
        ({"tool_ids": []}, "/tool_ids"),
        ({"tool_ids": "get_order"}, "/tool_ids"),
        ({"tool_ids": ["get_order", {"a": 1}]}, "/tool_ids/1"),
        ({"tool_ids": ["t"] * 201}, "/tool_ids"),
        ({"format_response": "perhaps"}, "/format_response"),
        ({"response_format_instructions": "x" * 5_001}, "/response_format_instructions"),
        ({"dry_run": 7}, "/dry_run"),
        ({"format_instructions": "short"}, "/format_instructions"),
    ],
)
def test_a_request_that_cannot_be_is_refused_at_its_fields(model_server, fields, path):
    """C2.2, C2.3, C2.4, C2.5: nothing is recorded, and the model is not asked."""
    body = {"user_instructions": "Where is it?", "tool_ids": ["get_order"]} | fields

    response = TokenClient(Scope.RUN).post("/workflow", body)

    assert (response.status_code, problem_paths(response)) == (400, [path])
    assert response.json()["kind"] == "validation"
    assert model_server.asked == []


def test_the_address_may_end_with_a_slash_and_takes_nothing_but_post(model_server, shop):
    """C2.1"""
    store(shop)
    model_server.script(READ_A7)
    client = TokenClient(Scope.RUN)

    assert ask(client=client).status_code == 200
    with_slash = client.post("/workflow/", {"user_instructions": "Where?"})
    assert (with_slash.status_code, problem_paths(with_slash)) == (400, ["/tool_ids"])
    assert client.get("/workflow").status_code == 405
    assert "detail" in client.get("/workflow").json()


def test_who_may_ask():
    """Tokens that may run workflows, and members of staff who may add requests."""
    body = {"user_instructions": "Where?", "tool_ids": ["nothing"]}

    assert staff_session().post("/workflow", body).status_code == 403
    asking, running = (
        staff_session("add_workflowrequest"),
        staff_session("add_workflowrequest", "add_execution"),
    )
    assert asking.post("/workflow", body).status_code == 403
    assert asking.post("/workflow", body | {"dry_run": True}).status_code == 404
    assert running.post("/workflow", body).status_code == 404
    assert TokenClient(Scope.READ).post("/workflow", body).status_code == 403
    assert TokenClient(Scope.RUN).post("/workflow", body).status_code == 404
    assert APIClient().post("/workflow", body).status_code == 401


def test_a_body_of_more_than_the_limit_is_refused(settings):
    settings.CATALOGUE = settings.CATALOGUE | {"max_request_bytes": 2_000}

    assert ask("x" * 3_000).status_code == 413


# The tools


def test_every_id_that_is_no_tool_is_named(model_server, shop):
    """C1.2, C1.3, C3.4, C7.6, C7.7, C8.1: other letters, a disabled one, and what was perhaps meant."""
    store(shop)
    Workflow.objects.filter(tool_name="list_orders").update(enabled=False)

    response = ask(tool_ids=["get_order", "Get_Order", "list_orders", "get_ordr", "Get_Order", "x" * 200])

    answer = response.json()
    assert (response.status_code, answer["status"]) == (404, "error")
    assert (answer["error_stage"], answer["failure"]) == ("tool_retrieval", "unknown_tools")
    assert answer["invalid_tool_ids"] == ["Get_Order", "list_orders", "get_ordr", "x" * 200]
    assert all(tool_id[:100] in answer["error"] for tool_id in answer["invalid_tool_ids"])
    assert "did you mean get_order" in answer["error"]
    assert states(answer)["llm_selection"] == "skipped"
    assert model_server.asked == [] and shop.arrived == []


def test_a_tool_outside_the_callers_toolset_is_unknown_to_them(model_server, shop):
    """C1.3"""
    store(shop)
    client = TokenClient(Scope.RUN)
    client.token.toolset = make_toolset(picked=[Workflow.objects.get(tool_name="get_order")])
    client.token.save()
    model_server.script(READ_A7)

    refused = ask(client=client).json()
    allowed = ask(tool_ids=["get_order"], client=client).json()

    assert refused["invalid_tool_ids"] == ["list_orders"]
    assert allowed["status"] == "success"


def test_an_id_that_is_named_twice_counts_once(model_server, shop):
    """C1.2"""
    store(shop)
    model_server.script(READ_A7)

    answer = ask(tool_ids=["get_order"] * 3).json()

    assert answer["stages"][0]["message"] == "1 tool"
    assert model_server.asked[0].prompt.count("name: get_order") == 1


# In words


def test_the_response_is_put_into_words_as_wished(model_server, shop):
    """C6.1, C6.2, C6.3, C6.5, C7.5: in a field of its own, beside the raw response."""
    store(shop)
    model_server.script(READ_A7, "Deine Bestellung ist unterwegs.")

    answer = ask(format_response=True, response_format_instructions="One German sentence.").json()

    assert answer["formatted_response"] == "Deine Bestellung ist unterwegs."
    assert answer["raw_response"]["body"] == ORDER
    assert states(answer)["response_formatting"] == "done"
    assert "One German sentence." in model_server.asked[1].prompt
    assert '"A-7"' in model_server.asked[1].prompt
    assert answer["usage"]["prompt_tokens"] == 2 * USAGE["prompt_tokens"]


@pytest.mark.parametrize("fields", [{}, {"format_response": False, "response_format_instructions": "Short."}])
def test_without_a_wish_for_words_there_are_none(model_server, shop, fields):
    """C2.4, C6.4: that stage is left out, and the model is not asked a second time."""
    store(shop)
    model_server.script(READ_A7, "Nobody asked for this.")

    answer = ask(**fields).json()

    assert "formatted_response" not in answer
    assert states(answer)["response_formatting"] == "skipped"
    assert answer["raw_response"]["body"] == ORDER
    assert len(model_server.asked) == 1
    ignored = "response_format_instructions had no effect because format_response is not true."
    assert answer["warnings"] == ([ignored] if fields else [])
    assert answer["execution_state"] == "completed"


def test_a_failure_to_put_it_into_words_costs_only_the_words(model_server, shop):
    """C8.4: success, with the raw response and a warning."""
    store(shop)
    model_server.script(READ_A7, fails())

    response = ask(format_response=True)

    answer = response.json()
    assert (response.status_code, answer["status"]) == (200, "success")
    assert (answer["raw_response"]["body"], answer["formatted_response"]) == (ORDER, None)
    assert "could not be put into words" in answer["warnings"][0]
    assert states(answer)["response_formatting"] == "failed"
    assert only().status == "success"


def test_a_caller_whose_requests_wait_already_does_not_take_everybodys_threads(shop):
    """E7: nothing is recorded, and others are served."""
    store(shop)
    client = TokenClient(Scope.READ, Scope.RUN)
    body = {"user_instructions": "Where is A-7?", "tool_ids": ["get_order"]}
    with ExitStack() as stack:
        for _ in range(MAX_WAITS_OF_ONE):
            assert stack.enter_context(waiting_places.one_for(client.token.caller.key))
        refused = client.post("/workflow", body)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert "Nothing was done" in refused.json()["detail"]
    assert not WorkflowRequest.objects.exists()
