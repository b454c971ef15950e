"""What goes wrong on the way, stage by stage: told in the answer, kept in the record, and logged."""

from collections.abc import Iterator
from typing import Any

import pytest
from loguru import logger

from catalogue.curation import disable_workflows
from catalogue.exposure import forget_catalogue
from catalogue.models import Revision, Source, Workflow
from connectors.testing import free_port
from executions.models import Execution
from executions.runner import start
from orchestration import language_model, pipeline
from tests.api.clients import administrator, agent
from tests.engines.model_answers import (
    answers_html,
    busy,
    cuts_the_connection,
    declines,
    does_not_know_model,
    error,
    fails,
    proposes,
    raw,
    refuses_key,
    says,
    stops_short,
)
from tests.engines.model_server import KEY
from tests.engines.target_api import Reply
from tests.logs import with_fields
from tests.orchestration.shop import (
    EVERY_TOOL,
    GET_ORDER,
    ORDER,
    QUERY_KEY,
    ask,
    asking,
    only,
    shop,
    states,
    store,
)

__all__ = ["shop"]

pytestmark = pytest.mark.django_db(transaction=True)
BY_NUMBER = {
    "type": "object",
    "properties": {"order_id": {"type": "integer"}},
    "required": ["order_id"],
}
TOO_LONG = "This model's maximum context length is 4096 tokens."
READ_A7 = proposes("get_order", {"order_id": "A-7"})


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """What is logged meanwhile, with stack traces."""
    lines: list[str] = []
    sink = logger.add(lines.append, level="DEBUG", format=with_fields, diagnose=False)
    yield lines
    logger.remove(sink)


@pytest.fixture(autouse=True)
def impatient(settings: Any) -> None:
    """What an engine could be asked again for is not."""
    settings.CATALOGUE = settings.CATALOGUE | {"retry_attempts": 0}


def assert_failed(response: Any, code: int, stage: str, failure: str) -> dict[str, Any]:
    answer: dict[str, Any] = response.json()
    assert (response.status_code, answer["status"]) == (code, "error"), answer
    assert (answer["error_stage"], answer["failure"]) == (stage, failure), answer
    assert states(answer)[stage] == "failed"
    record = only()
    assert (record.status, record.error_stage, record.error) == ("error", stage, answer["error"])
    return answer


# Choosing


@pytest.mark.parametrize(
    "useless",
    ["I would read the order.", '{"tool": "get_order", ', {"name": "get_order"}, [1, 2], {"tool": 7}],
    ids=["words", "half", "other-shape", "list", "number"],
)
def test_an_answer_that_is_no_proposal_is_asked_for_once_more(model_server, shop, useless):
    """C4.2, C4.5: with what was wrong about it."""
    store(shop)
    model_server.script(useless, READ_A7)

    answer = ask().json()

    assert (answer["status"], len(model_server.asked)) == ("success", 2)
    assert "cannot be used" in model_server.asked[1].prompt
    assert "sent back" in answer["stages"][1]["message"]


def test_a_second_answer_of_no_use_is_told_with_why_the_first_was_refused(model_server, shop):
    """C4.5, C8.2: both reasons, whatever the second one is."""
    store(shop)
    model_server.script(proposes("drop_orders"), "Still no.")

    answer = assert_failed(ask(), 502, "llm_selection", "model_answer")

    assert "no complete JSON object" in answer["error"]
    assert (
        "Before that, its first proposal was refused: 'drop_orders' is none of the tools" in answer["error"]
    )


def test_a_model_that_fails_when_it_is_asked_again_is_told_with_why_that_was(model_server, shop):
    """C8.2"""
    store(shop)
    model_server.script(proposes("drop_orders"), fails())

    answer = assert_failed(ask(), 503, "llm_selection", "model_unavailable")

    assert "The model server fails" in answer["error"] and "'drop_orders' is none" in answer["error"]


def test_a_model_that_finds_no_tool_says_why(model_server, shop):
    """C8.2: that is an answer, so it is not asked again."""
    store(shop)
    model_server.script(proposes(None, reason="None of them makes coffee."))

    answer = assert_failed(ask("Make coffee"), 422, "llm_selection", "no_tool_fits")

    assert "None of them makes coffee." in answer["error"]
    assert len(model_server.asked) == 1 and shop.arrived == []


@pytest.mark.parametrize(
    ("misbehaves", "code", "failure"),
    [
        (busy(), 503, "model_unavailable"),
        (fails(), 503, "model_unavailable"),
        (cuts_the_connection(), 503, "model_unavailable"),
        (refuses_key(), 503, "model_unavailable"),
        (does_not_know_model(), 503, "model_unavailable"),
        (raw(error(TOO_LONG), 400), 503, "model_unavailable"),
        (declines(), 502, "model_answer"),
        (stops_short(), 502, "model_answer"),
        (says(""), 502, "model_answer"),
        (answers_html(), 503, "model_unavailable"),
    ],
    ids=["429", "500", "cut-off", "401", "404", "long-prompt", "declines", "too-long", "empty", "html"],
)
def test_a_model_that_gives_no_answer_ends_it_at_the_selection(
    model_server, shop, logged, misbehaves, code, failure
):
    """C8.2, C8.5: nothing is sent, and no key shows."""
    store(shop)
    model_server.answer_by(lambda asked: misbehaves)

    response = ask()

    assert_failed(response, code, "llm_selection", failure)
    assert shop.arrived == []
    assert KEY not in response.content.decode() + "".join(logged)
    assert "Traceback" in "".join(logged)


def test_the_answer_passes_on_when_a_busy_model_may_be_asked_again(model_server, shop):
    store(shop)
    model_server.script(busy(retry_after="120"))

    response = ask()

    answer = assert_failed(response, 503, "llm_selection", "model_unavailable")
    assert answer["error"].endswith("Try again in 120 s.")
    assert response["Retry-After"] == "120"


def test_a_model_that_is_too_slow_meets_a_timeout(model_server, shop, settings):
    """C8.2"""
    settings.CATALOGUE = settings.CATALOGUE | {"model_timeout": 1}
    store(shop)
    model_server.script(model_server.slow(READ_A7))

    assert_failed(ask(), 504, "llm_selection", "model_timeout")
    model_server.release()


def test_without_a_model_the_answer_says_how_to_set_one(shop):
    """C8.2"""
    store(shop)

    answer = assert_failed(ask(), 503, "llm_selection", "model_unavailable")

    assert "OPENAI_MODEL" in answer["error"]


def test_a_process_asks_the_model_so_many_questions_at_once_and_no_more(model_server, shop, monkeypatch):
    store(shop)
    monkeypatch.setattr(language_model, "_places", language_model.threading.BoundedSemaphore(1))
    with language_model._places:
        response = ask()

    assert_failed(response, 503, "llm_selection", "busy")
    assert response["Retry-After"] == str(language_model.BUSY_SECONDS)
    assert model_server.asked == []


def test_tools_whose_names_do_not_fit_either_are_said_to_be_unknown_to_the_model(
    model_server, shop, settings
):
    """C3.1"""
    settings.CATALOGUE = settings.CATALOGUE | {"model_context_tokens": 3_000}
    many = [GET_ORDER | {"name": f"{'x' * 60}{number:03}"} for number in range(150)]
    store(shop, GET_ORDER, *many)
    model_server.script({"words": "read an order", "tools": ["get_order"]}, READ_A7)

    answer = ask(tool_ids=["get_order", *(str(tool["name"]) for tool in many)]).json()

    assert answer["status"] == "success"
    assert "did not see all tools" in answer["warnings"][0]


# Running


@pytest.mark.parametrize("status", [401, 422, 429, 500])
def test_an_error_of_the_api_comes_back_with_its_response(model_server, shop, logged, status):
    """C5.4, C7.6, C7.7, C8.3, C8.5"""
    store(shop)
    shop.tell("GET", "/orders/A-7", Reply(status, {"message": "not today"}, {"X-Shop": "south"}))
    model_server.script(READ_A7)

    answer = assert_failed(ask(format_response=True), 502, "api_execution", "run_failed")

    assert str(status) in answer["error"] and "not today" in answer["error"]
    raw = answer["raw_response"]
    assert (raw["status_code"], raw["body"]) == (status, {"message": "not today"})
    assert raw["headers"]["x-shop"] == "south"
    assert (answer["selected_tool"], answer["http_spec"]["method"]) == ("get_order", "GET")
    assert answer["execution_id"] == str(Execution.objects.get().pk)
    (line,) = [line for line in logged if "A natural-language request failed" in line]
    for told in (answer["request_id"], "caller=token:", "stage=api_execution", "tool=get_order"):
        assert told in line
    assert line.startswith("WARNING")
    assert "Traceback (most recent call last)" in line and "orchestration.models.StageFailed" in line
    # The traceback below it names the checkout's folder, which may have this name too.
    assert not [other for other in logged if "/workflow" in other.partition("\n")[0]]
    assert answer["execution_state"] == "failed"
    assert len(model_server.asked) == 1


@pytest.mark.parametrize(
    ("reply", "responded"),
    [(Reply(504, "upstream timed out"), 504), (Reply(hangs_up=True), None)],
    ids=["gateway timeout", "hang-up"],
)
def test_a_post_without_an_answer_leaves_open_whether_the_order_was_made(
    model_server, shop, reply, responded
):
    """C5.3, C8.3: told apart from what failed, since whoever asks again may order twice."""
    store(shop)
    shop.tell("POST", "/orders", reply)
    model_server.script(proposes("create_order", {"item": "lamp", "amount": 1}))

    language_model, key = agent(), {"Idempotency-Key": "one lamp"}
    response = ask("A lamp", EVERY_TOOL, client=language_model, headers=key)

    answer = assert_failed(response, 504, "api_execution", "unconfirmed")
    assert ask("A lamp", EVERY_TOOL, client=language_model, headers=key).json() == answer
    assert "not known whether" in answer["error"] and "may run it twice" in answer["error"]
    assert answer["execution_state"] == "unconfirmed"
    assert answer["raw_response"].get("status_code") == responded
    assert len(shop.arrived) == 1


def test_once_an_administrator_has_said_that_it_ran_the_record_of_the_request_shows_it(model_server, shop):
    """B8, C8.3"""
    store(shop)
    shop.tell("POST", "/orders", Reply(hangs_up=True))
    model_server.script(proposes("create_order", {"item": "lamp", "amount": 1}))
    response = ask("A lamp", EVERY_TOOL)
    language_model = administrator()

    run = f"/api/executions/{response.json()['execution_id']}"
    assert language_model.post(f"{run}/resolve/", {"ran": True, "output": {"id": 7}}).status_code == 200

    answer = language_model.get(response["Location"]).json()["answer"]
    assert (answer["failure"], answer["execution_state"]) == ("unconfirmed", "completed")
    assert answer["raw_response"]["output"] == {"id": 7}


def test_an_api_that_cannot_be_reached_is_told(model_server, shop, logged):
    """C5.3, C8.3, C8.5: with the stack trace, in which no credential is."""
    store(shop, **{"type": "api_key", "in": "query", "name": "key", "key": QUERY_KEY})
    Source.objects.update(
        config={**Source.objects.get().config, "base_url": f"http://127.0.0.1:{free_port()}"}
    )
    model_server.script(READ_A7)

    answer = assert_failed(ask(), 502, "api_execution", "run_failed")

    assert answer["raw_response"]["state"] == "failed"
    assert answer["raw_response"]["error"] in answer["error"]
    (line,) = [line for line in logged if "A natural-language request failed" in line]
    # That of the stage, and before it the connector's, which shows where in the exchange it went wrong.
    assert line.count("Traceback (most recent call last)") >= 2
    assert "connectors.errors.Unreachable" in line and "connectors/http_tools/" in line
    assert QUERY_KEY not in "".join(logged)


@pytest.mark.parametrize("path", ["/cut-off", "/hang-up"])
def test_an_answer_that_is_none_is_told(model_server, shop, path):
    """C5.3"""
    store(shop, {**GET_ORDER, "api": {"endpoint": "{base}" + path, "method": "GET"}})
    model_server.script(READ_A7)

    assert_failed(ask(tool_ids=["get_order"]), 502, "api_execution", "run_failed")


def test_an_api_that_takes_too_long_is_told(model_server, shop, monkeypatch):
    """C5.3, C8.3"""
    monkeypatch.setattr(start, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(Workflow, "effective_timeout_seconds", 0.3)
    store(shop)
    shop.tell("GET", "/orders/A-7", Reply(200, ORDER, held=True))
    model_server.script(READ_A7)

    assert_failed(ask(tool_ids=["get_order"]), 504, "api_execution", "run_timed_out")
    shop.released.set()


def test_limits_without_room_say_when_to_come_again(model_server, shop, settings):
    """C8.3: nothing was started."""
    settings.CATALOGUE = settings.CATALOGUE | {"max_executions": 1, "max_queued_executions": 0}
    store(shop)
    Workflow.objects.update(inline_wait_seconds=0)
    shop.tell("GET", "/orders/A-7", Reply(200, ORDER, held=True))
    model_server.answer_by(lambda asked: READ_A7)
    Source.objects.update(max_concurrent=1)
    assert ask().status_code == 202

    response = ask()

    answer = response.json()
    assert (response.status_code, answer["failure"]) == (503, "busy")
    assert int(response["Retry-After"]) > 0
    assert Execution.objects.count() == 1
    shop.released.set()


def test_a_rate_that_is_used_up_is_429_as_at_the_other_doors(model_server, shop):
    store(shop)
    Workflow.objects.update(calls_per_minute=6, calls_at_once=1)
    Revision.bump()
    shop.tell("GET", "/orders/A-7", Reply(200, ORDER))
    model_server.answer_by(lambda asked: READ_A7)
    assert ask().status_code == 200

    response = ask()

    answer = response.json()
    assert (response.status_code, answer["error_stage"]) == (429, "api_execution")
    assert answer["failure"] == "too_many_calls"
    assert 0 < int(response["Retry-After"]) <= 10
    assert Execution.objects.count() == 1


def test_a_tool_that_was_disabled_while_the_model_thought_is_not_run(model_server, shop):
    """C8.3"""
    store(shop)
    model_server.script(model_server.slow(READ_A7))

    with asking() as asked:
        model_server.wait_until_asked_slowly()
        disable_workflows(Workflow.objects.all())
        forget_catalogue()
        model_server.release()

    answer = assert_failed(asked.result(), 502, "api_execution", "run_failed")
    assert "Unknown or disabled tool" in answer["error"]
    assert answer["execution_id"] is None and shop.arrived == []


@pytest.mark.parametrize(
    ("changed", "status"), [(GET_ORDER, "success"), (GET_ORDER | {"input_schema": BY_NUMBER}, "error")]
)
def test_a_tool_that_was_changed_while_the_model_thought_is_checked_anew(model_server, shop, changed, status):
    """C4.5: what is shown and sent is what the tool is now."""
    store(shop)
    moved = {"api": {"endpoint": "{base}/v2/orders/{order_id}", "method": "GET"}}
    shop.tell("GET", "/v2/orders/A-7", Reply(200, ORDER))
    model_server.script(model_server.slow(READ_A7))

    with asking() as asked:
        model_server.wait_until_asked_slowly()
        store(shop, changed | moved, expected=200)
        forget_catalogue()
        model_server.release()

    answer = asked.result().json()
    assert answer["status"] == status
    if status == "success":
        assert answer["http_spec"]["url"] == f"{shop.base_url}/v2/orders/A-7"
        assert [arrived.path for arrived in shop.arrived] == ["/v2/orders/A-7"]
    else:
        assert "was changed while the model chose" in answer["error"] and shop.arrived == []


# Ourselves


def test_an_error_of_our_own_is_told_without_its_details(model_server, shop, logged, monkeypatch):
    """C8.5: the log has them, with the stack trace."""
    store(shop)
    model_server.script(READ_A7)

    async def break_down(*args: Any, **options: Any) -> Any:
        raise RuntimeError("the shelf fell down")

    monkeypatch.setattr(pipeline, "run_call", break_down)

    answer = assert_failed(ask(), 500, "api_execution", "internal")

    assert "shelf" not in answer["error"]
    (line,) = [line for line in logged if "A natural-language request failed" in line]
    assert line.startswith("ERROR") and "Traceback" in line and "the shelf fell down" in line


def test_neither_instructions_nor_arguments_are_logged(model_server, shop, logged):
    """C8.5"""
    store(shop)
    model_server.script(proposes("create_order", {"item": "a secret present", "amount": 3}))

    assert ask("Order a secret present for Ada", EVERY_TOOL).json()["status"] == "success"

    assert "a secret present" not in "".join(logged)
    assert any("A natural-language request succeeded" in line for line in logged)
