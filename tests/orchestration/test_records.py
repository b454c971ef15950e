"""What is kept of natural-language requests, who sees it, and for how long."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalogue.models import Workflow
from config.celery import app
from executions.models import Execution, Retention
from executions.retention import prune
from orchestration import language_model, records
from orchestration.models import Failure, Stage, StageState, WorkflowRequest
from orchestration.pipeline import answer_request
from orchestration.records import RequestInput, raw_response_of
from orchestration.tasks import end_interrupted_requests
from tests.api.clients import administrator, agent, problem_paths, staff_session
from tests.engines.model_answers import USAGE, fails, proposes
from tests.engines.model_server import ModelServer
from tests.engines.target_api import Reply, TargetApi
from tests.executions.engines import in_thread, until, wait_until
from tests.executions.steps import ALICE, disconnect, is_nothing_under_way
from tests.factories import make_execution, make_workflow_request, stage_entry
from tests.orchestration.shop import ORDER, ask, asking, only, shop, states, store

__all__ = ["shop"]

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases(
        "orchestration.records",
        "orchestration.models",
        "orchestration.records",
        "orchestration.records",
        "orchestration.models",
    ),
]
READ_A7 = proposes("get_order", {"order_id": "A-7"})
URL = "/api/workflow-requests/"


# Reading


def test_the_record_tells_what_was_asked_and_what_became_of_it(model_server, shop):
    store(shop)
    model_server.script(READ_A7, "It is on its way.")
    client = agent()

    answer = ask(client=client, format_response=True, response_format_instructions="Short.").json()

    shown = client.get(f"{URL}{answer['request_id']}/").json()
    assert shown["answer"] == answer
    assert (shown["user_instructions"], shown["tool_ids"]) == (
        "Where is my order A-7?",
        ["get_order", "list_orders"],
    )
    assert (shown["response_format_instructions"], shown["caller_name"]) == ("Short.", client.token.name)
    assert shown["seconds"] > 0


def test_a_request_can_be_read_while_it_goes_on(model_server, shop):
    store(shop)
    model_server.script(model_server.slow(READ_A7))

    with asking() as asked:
        model_server.wait_until_asked_slowly()
        shown = administrator().get(URL).json()["results"][0]
        stages = only().stages
        model_server.release()

    assert (shown["status"], shown["finished_at"]) == ("running", None)
    assert [(stage["stage"], stage["state"]) for stage in stages] == [
        ("tool_retrieval", "done"),
        ("llm_selection", "running"),
    ]
    assert asked.result().json()["status"] == "success"


def test_callers_see_their_own_requests_and_administrators_all():
    mine, other = agent(), agent()
    own = make_workflow_request(caller=f"token:{mine.token.pk}")
    strange = make_workflow_request(caller=f"token:{other.token.pk}")

    def listed(client: Any) -> set[str]:
        return {row["id"] for row in client.get(URL).json()["results"]}

    assert listed(mine) == {str(own.pk)}
    assert mine.get(f"{URL}{strange.pk}/").status_code == 404
    assert (
        listed(administrator())
        == listed(staff_session("view_workflowrequest"))
        == {
            str(own.pk),
            str(strange.pk),
        }
    )
    assert staff_session().get(URL).status_code == 403


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("status=success", ["good"]),
        ("status=error", ["bad"]),
        ("tool=get_order", ["good"]),
        ("error_stage=llm_selection", ["bad"]),
        ("failure=no_tool_fits", ["bad"]),
        ("dry_run=true", ["good"]),
        ("caller=token:7", ["bad"]),
        ("idempotency_key=k1", ["good"]),
        ("ordering=created_at", ["good", "bad"]),
        ("", ["bad", "good"]),
    ],
)
def test_the_list_is_narrowed_and_ordered(query, found):
    hour_ago = timezone.now() - timedelta(hours=1)
    rows = {
        "good": make_workflow_request(
            selected_tool="get_order", dry_run=True, idempotency_key="k1", created_at=hour_ago
        ),
        "bad": make_workflow_request(
            status="error",
            error="None fits.",
            error_stage=Stage.LLM_SELECTION,
            failure=Failure.NO_TOOL_FITS,
            caller="token:7",
        ),
    }

    listed = administrator().get(f"{URL}?{query}").json()["results"]

    assert [row["id"] for row in listed] == [str(rows[name].pk) for name in found]


def test_a_misspelt_filter_is_refused():
    response = administrator().get(f"{URL}?state=running")

    assert (response.status_code, problem_paths(response)) == (400, ["?state"])


def test_reading_takes_the_same_number_of_queries_however_many_there_are():
    client = administrator()

    def queries(address: str) -> int:
        with CaptureQueriesContext(connection) as captured:
            assert client.get(address).status_code == 200
        return len([query for query in captured if "workflowrequest" in query["sql"]])

    queries(URL)
    first = make_workflow_request(execution=make_execution())
    few = queries(URL), queries(f"{URL}{first.pk}/")
    for _ in range(20):
        make_workflow_request(execution=make_execution())

    assert (queries(URL), queries(f"{URL}{first.pk}/")) == few


# Keys


def test_a_key_answers_with_the_first_request_though_the_model_would_choose_anew(model_server, shop):
    """The same answer, from the record, and nothing runs twice."""
    store(shop)
    model_server.script(
        proposes("create_order", {"item": "lamp", "amount": 1}),
        proposes("create_order", {"item": "lamp", "amount": 2}),
    )
    client, key = agent(), {"Idempotency-Key": "order-1"}

    first = ask("A lamp", ["create_order", "get_order"], client=client, headers=key)
    again = ask("A lamp", ["get_order", "create_order"], client=client, headers=key)

    assert again.json() == first.json()
    assert (first.has_header("Idempotent-Replayed"), again["Idempotent-Replayed"]) == (False, "true")
    assert len(shop.arrived) == len(model_server.asked) == 1


def test_a_key_is_that_of_one_caller_and_one_request(model_server, shop):
    store(shop)
    model_server.answer_by(lambda asked: READ_A7)
    client, key = agent(), {"Idempotency-Key": "order-1"}
    first = ask(client=client, headers=key).json()

    conflict = ask("Where is A-8?", client=client, headers=key)
    of_somebody_else = ask("Where is A-8?", headers=key)

    assert (conflict.status_code, conflict.json()["request_id"]) == (409, first["request_id"])
    assert "new key" in conflict.json()["detail"]
    assert of_somebody_else.status_code == 200


def test_two_requests_with_one_key_at_the_same_time_are_one(model_server, shop, monkeypatch):
    """Whichever comes second waits for the first, and both get its answer."""
    monkeypatch.setattr(records, "LOOK_AGAIN_SECONDS", 0.05)
    store(shop)
    model_server.answer_by(lambda asked: proposes("create_order", {"item": "lamp", "amount": 1}))
    client, key = agent(), {"Idempotency-Key": "order-1"}
    meeting, answers = threading.Barrier(4), []

    def ask_together() -> None:
        meeting.wait()
        try:
            answers.append(ask("A lamp", ["create_order"], client=client, headers=key))
        finally:
            connection.close()

    threads = [threading.Thread(target=ask_together) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [answer.status_code for answer in answers] == [200] * 4
    assert len({answer.content for answer in answers}) == 1
    assert len(shop.arrived) == WorkflowRequest.objects.count() == 1


def test_who_repeats_a_key_of_a_request_that_goes_on_is_told_so_after_a_while(model_server, shop, settings):
    settings.CATALOGUE = settings.CATALOGUE | {"inline_wait": 0.0}
    store(shop)
    model_server.script(model_server.slow(READ_A7))
    client, key = agent(), {"Idempotency-Key": "order-1"}

    with asking(client=client, headers=key):
        model_server.wait_until_asked_slowly()
        again = ask(client=client, headers=key)
        model_server.release()

    assert (again.status_code, again["Retry-After"]) == (409, "5")
    assert "still in progress" in again.json()["detail"]


def test_a_request_that_started_nothing_does_not_use_its_key_up(model_server, shop):
    store(shop)
    model_server.script("Hm.", "Hm.", READ_A7)
    client, key = agent(), {"Idempotency-Key": "order-1"}

    assert ask(client=client, headers=key).status_code == 502
    assert ask(client=client, headers=key).status_code == 200


def test_a_failed_run_does_use_the_key_up(model_server, shop):
    store(shop)
    shop.tell("POST", "/orders", Reply(500, {"message": "half done"}))
    model_server.answer_by(lambda asked: proposes("create_order", {"item": "lamp", "amount": 1}))
    client, key = agent(), {"Idempotency-Key": "order-1"}

    first, again = (ask("A lamp", ["create_order"], client=client, headers=key) for _ in range(2))

    assert (first.status_code, again.status_code) == (502, 502)
    assert again.json()["raw_response"]["body"] == {"message": "half done"}
    assert len(shop.arrived) == 1


def test_a_key_is_forgotten_in_time(model_server, shop, settings):
    store(shop)
    model_server.answer_by(lambda asked: READ_A7)
    client, key = agent(), {"Idempotency-Key": "order-1"}
    ask(client=client, headers=key)
    hours = timedelta(hours=settings.CATALOGUE.idempotency_hours + 1)
    WorkflowRequest.objects.update(created_at=timezone.now() - hours)

    ask("Something else", client=client, headers=key)

    assert len(shop.arrived) == 2


def test_a_key_that_cannot_be_one_is_refused():
    response = ask(headers={"Idempotency-Key": "x" * 256})

    assert (response.status_code, WorkflowRequest.objects.count()) == (400, 0)


# Whoever goes away


async def test_a_client_that_is_gone_leaves_a_request_that_comes_to_its_end(model_server, shop):
    """And whoever comes back with its key gets the answer."""
    await in_thread(store, shop)
    model_server.script(model_server.slow(READ_A7))
    asked = RequestInput(
        user_instructions="Where?", tool_ids=["get_order"], caller=ALICE, idempotency_key="order-1"
    )
    waiting = asyncio.create_task(answer_request(asked))
    await in_thread(model_server.wait_until_asked_slowly)

    await disconnect(waiting)
    model_server.release()

    await until(lambda: only().status == "success", "the request comes to its end")
    again = RequestInput(
        user_instructions="Where?", tool_ids=["get_order"], caller=ALICE, idempotency_key="order-1"
    )
    answered = await answer_request(again)
    assert answered.execution is not None
    assert raw_response_of(answered.execution, of_http_tool=True)["body"] == ORDER
    assert len(shop.arrived) == 1


def overdue(stage: Stage, **fields: Any) -> WorkflowRequest:
    """As a process that was killed leaves it, once its time is over."""
    begun = timezone.now() - timedelta(hours=1)
    running = stage_entry(stage, StageState.RUNNING, started_at=begun)
    times = {"created_at": begun, "deadline_at": begun + timedelta(minutes=5)}
    return make_workflow_request(
        **{"status": "running", "stages": [running], "idempotency_key": "k1", **times, **fields}
    )


def test_a_request_whose_process_was_killed_is_ended_and_its_key_is_free():
    request = overdue(Stage.LLM_SELECTION)

    end_interrupted_requests()

    request.refresh_from_db()
    assert (request.status, request.failure, request.error_stage) == (
        "error",
        "interrupted",
        "llm_selection",
    )
    assert request.idempotency_key == "" and request.finished_at is not None
    assert "Nothing was started" in request.error


def test_one_that_may_have_started_its_tool_keeps_its_key_and_shows_the_run():
    with_run, without = overdue(Stage.API_EXECUTION), overdue(Stage.API_EXECUTION, idempotency_key="k2")
    make_execution(id=with_run.pk)

    end_interrupted_requests()

    for request in (with_run, without):
        request.refresh_from_db()
        assert (request.failure, request.idempotency_key != "") == ("interrupted", True)
    assert with_run.execution_id == with_run.pk
    assert without.execution_id is None


def test_one_that_goes_on_in_its_time_is_left_alone():
    request = overdue(Stage.LLM_SELECTION, deadline_at=timezone.now() + timedelta(seconds=30))

    end_interrupted_requests()

    request.refresh_from_db()
    assert request.status == "running"


def test_one_that_was_given_up_meanwhile_does_not_start_its_tool(model_server, shop):
    """Whoever came again with its key may have started it."""
    store(shop)
    model_server.script(model_server.slow(READ_A7))

    with asking() as asked:
        model_server.wait_until_asked_slowly()
        WorkflowRequest.objects.update(deadline_at=timezone.now() - timedelta(seconds=1))
        end_interrupted_requests()
        model_server.release()

    answer = asked.result().json()
    assert (answer["status"], answer["failure"]) == ("error", "interrupted")
    assert shop.arrived == [] and not Execution.objects.exists()


def test_the_schedule_looks_for_interrupted_requests():
    entry = app.conf.beat_schedule["end-interrupted-requests"]

    assert entry["task"] == end_interrupted_requests.name and entry["schedule"] <= 60


# Retention


def ended(days_ago: int) -> WorkflowRequest:
    at = timezone.now() - timedelta(days=days_ago)
    texts = {
        "reason": "It fits.",
        "arguments": {"a": 1},
        "http_spec": {"url": "x"},
        "formatted_response": "Hi",
    }
    return make_workflow_request(created_at=at, finished_at=at, selected_tool="get_order", **texts)


def keep(*, records: int | None = None, payloads: int | None = None) -> None:
    Retention.objects.create(keep_records_days=records, keep_payloads_days=payloads)


def test_what_was_asked_is_removed_like_payloads_and_the_record_stays():
    """E6"""
    keep(payloads=30)
    old, young = ended(31), ended(29)

    pruned = prune()

    old.refresh_from_db()
    young.refresh_from_db()
    assert (old.instructions, old.arguments, old.http_spec, old.reason, old.formatted_response) == (
        "",
        None,
        None,
        "",
        "",
    )
    assert (old.selected_tool, old.status) == ("get_order", "success")
    assert (young.instructions != "", young.payload_pruned_at) == (True, None)
    assert pruned.others == {"texts of requests": 1}
    shown = administrator().get(f"{URL}{old.pk}/").json()
    assert shown["payload_removed_at"] and shown["answer"]["arguments"] is None


def test_records_are_removed_with_those_of_executions():
    """B7"""
    keep(records=90)
    old, young = ended(91), ended(89)

    pruned = prune()

    assert list(WorkflowRequest.objects.all()) == [young]
    assert "1 natural-language requests" in str(pruned)
    assert old.pk != young.pk


def test_a_request_outlives_the_record_of_its_run():
    execution = make_execution()
    request = make_workflow_request(execution=execution)
    execution.delete()

    shown = administrator().get(f"{URL}{request.pk}/").json()

    assert (shown["execution_id"], shown["answer"]["raw_response"]) == (None, None)


# Formatting, of a run that ended after its request was answered


@pytest.fixture
def answered(model_server: ModelServer, shop: TargetApi) -> WorkflowRequest:
    """A request for text, answered while its run, which has ended since, went on."""
    store(shop)
    shop.tell("GET", "/orders/A-7", Reply(200, ORDER, held=True))
    Workflow.objects.update(inline_wait_seconds=0)
    model_server.script(READ_A7)
    assert ask(tool_ids=["get_order"], format_response=True).status_code == 202
    shop.released.set()
    wait_until(lambda: Execution.objects.get().is_settled, "the run is over")
    return only()


def test_open_requests_are_found_without_reading_the_runs_that_have_completed():
    """B7: before each page and each request of REST that shows requests."""
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL chooses by the number of rows, of which there are none")
    with CaptureQueriesContext(connection) as asked:
        end_interrupted_requests()
    selects = [query["sql"] for query in asked if query["sql"].startswith("SELECT")]
    assert selects
    with connection.cursor() as cursor:
        for select in selects:
            cursor.execute(f"EXPLAIN QUERY PLAN {select}")
            assert "execution_by_state" not in str(cursor.fetchall())


def settled_answer() -> dict[str, Any]:
    wait_until(lambda: not only().is_running and is_nothing_under_way(), "the request has ended")
    return administrator().get(f"{URL}{only().pk}/").json()["answer"]


@pytest.mark.parametrize("door", ["worker", "read", "list"])
def test_a_run_that_ends_after_the_answer_is_formatted_once(model_server, answered, door):
    """C6.1, C7.5: whoever notices it first begins, and the others leave it alone."""
    model_server.script(model_server.slow("It is on its way."))
    notice = {
        "worker": end_interrupted_requests,
        "read": lambda: administrator().get(f"{URL}{answered.pk}/"),
        "list": lambda: administrator().get(URL),
    }[door]
    with ThreadPoolExecutor(4) as pool:
        for outcome in [pool.submit(notice) for _ in range(8)]:
            outcome.result()
    model_server.wait_until_asked_slowly()
    notice()
    shown = administrator().get(f"{URL}{answered.pk}/").json()["answer"]
    assert (shown["status"], states(shown)["response_formatting"]) == ("running", "running")
    model_server.release()

    answer = settled_answer()

    assert (answer["status"], answer["formatted_response"]) == ("success", "It is on its way.")
    assert answer["raw_response"]["body"] == ORDER and answer["warnings"] == []
    assert set(states(answer).values()) == {"done"}
    assert len(model_server.asked) == 2
    assert answer["usage"]["completion_tokens"] == 2 * USAGE["completion_tokens"]


def test_formatting_that_a_killed_process_began_is_done_by_another(model_server, answered):
    """C6.1, C8.4: once its time is over, and the killed one can no longer write."""
    within = timedelta(seconds=-1)
    killed = WorkflowRequest.objects.get()
    assert killed.begin_stage(Stage.RESPONSE_FORMATTING, within=within, execution_id=answered.pk)
    model_server.script("It is on its way.")

    end_interrupted_requests()

    answer = settled_answer()
    assert (answer["status"], answer["formatted_response"]) == ("success", "It is on its way.")
    assert [entry["stage"] for entry in answer["stages"]] == list(Stage)
    assert not killed.succeed(formatted_response="Late.")
    assert only().formatted_response == "It is on its way."


def test_formatting_that_fails_after_the_answer_gives_the_raw_response_and_a_warning(model_server, answered):
    """C8.4"""
    model_server.script(fails(500))

    end_interrupted_requests()

    answer = settled_answer()
    assert (answer["status"], answer["formatted_response"]) == ("success", None)
    assert answer["raw_response"]["body"] == ORDER and len(answer["warnings"]) == 1
    assert states(answer)["response_formatting"] == "failed"


@pytest.mark.parametrize("is_begun", [False, True])
def test_formatting_is_given_up_some_time_after_the_run(model_server, answered, is_begun):
    """C8.4: a request does not wait for ever."""
    if is_begun:
        within = timedelta(seconds=-1)
        answered.begin_stage(Stage.RESPONSE_FORMATTING, within=within, execution_id=answered.pk)
    long_ago = timezone.now() - records.FORMATTED_WITHIN
    Execution.objects.update(finished_at=long_ago)

    end_interrupted_requests()

    answer = settled_answer()
    assert (answer["status"], answer["formatted_response"]) == ("success", None)
    assert answer["warnings"] == [records.NOT_IN_WORDS]
    assert len(model_server.asked) == 1


def test_formatting_waits_while_the_model_has_no_free_place(model_server, answered, monkeypatch):
    monkeypatch.setattr(language_model, "_places", threading.BoundedSemaphore(1))
    model_server.script("It is on its way.")
    with language_model._places:
        end_interrupted_requests()
        wait_until(is_nothing_under_way, "it was tried")
        assert only().awaits_run
    end_interrupted_requests()

    assert settled_answer()["formatted_response"] == "It is on its way."
