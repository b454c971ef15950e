"""Failures by cause: what failed together is seen together, and run again together where that is safe."""

import re
import threading
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from access.callers import Caller
from catalogue.history import command
from catalogue.models import HistoryEntry
from executions import failures
from executions.failures import FailureFilter, find_cause, find_failures
from executions.models import Execution, ExecutionPayload, State
from executions.refusals import Busy
from executions.rerunning import Obstacle, plan_reruns, rerun_id, run_again
from executions.statistics import Period
from tests.admin.pages import list_url, listed, told
from tests.admin.test_executions import plan_of
from tests.factories import make_execution, make_source, make_workflow

pytestmark = [pytest.mark.django_db, pytest.mark.databases("executions.failures", "executions.rerunning")]

PAGE, AGAIN = "/admin/executions/execution/failures/", "/admin/executions/execution/failures/again/"
HOSTILE = "<script>alert(1)</script>"
TRACEBACK = (
    "Traceback (most recent call last):\n"
    + '  File "/app/step.py", line 7, in run\n    check(row)\n' * 25
    + "app.errors.Ragged: 3 columns instead of 4 in order {number}\n  details: {number}"
)


def make_failures(count: int, workflow: Any = None, **fields: Any) -> list[Execution]:
    workflow = workflow or make_workflow(hints={"readOnlyHint": True})
    fields = {"state": State.FAILED, "error_kind": "execution"} | fields
    error = fields.pop("error", TRACEBACK)
    return [
        make_execution(workflow, error=error.replace("{number}", str(8000 + number)), **fields)
        for number in range(count)
    ]


def causes(**wanted: Any) -> list[tuple[str, int]]:
    return [(cause.words, cause.runs) for cause in find_failures(FailureFilter(**wanted)).causes]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Order 8812 was not found.", "Order 9 was not found."),
        ("No row 8f496b6a-c905-41bb-b7b7-200a8982ab30", "No row 0f496b6a-c905-41bb-b7b7-200a8982ab31"),
        ("https://a.example/x?y=1 is down", "http://b.example:80/ is down"),
        ("column 'amount' is missing", 'column "vat" is missing'),
        ("since 2026-01-02T03:04:05Z", "since 10:15:00"),
        ("rows 1, 2, 3 are bad", "rows 4 are bad"),
        ("anna@example.com may not", "bob@example.com may not"),
        (TRACEBACK, TRACEBACK.replace("line 7", "line 900")),
        ("Connection refused", "connection refused\n\nand more"),
    ],
)
def test_what_differs_in_ids_numbers_times_and_quoted_values_has_one_cause(one, other):
    assert find_cause(one)[1] == find_cause(other)[1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("HTTP 404 for /a", "HTTP 503 for /a"),
        ("the engine answered 401 Unauthorized", "the engine answered 503 Service Unavailable"),
        ("Connection refused", "Connection reset"),
        (TRACEBACK, TRACEBACK.replace("Ragged", "Empty")),
    ],
)
def test_other_words_and_other_statuses_are_other_causes(one, other):
    assert find_cause(one)[1] != find_cause(other)[1]


def test_the_cause_of_a_traceback_is_its_exception():
    assert find_cause(TRACEBACK.replace("{number}", "1"))[0] == (
        "app.errors.Ragged: 3 columns instead of 4 in order 1"
    )
    java = "java.lang.X: a\n\tat b(C.java:1)\nCaused by: java.io.Y: no space\n\tat d(E.java:2)"
    assert find_cause(java)[0] == "Caused by: java.io.Y: no space"


@pytest.mark.parametrize(
    "error", ["a" * 100_000, "'" * 1300, 'a."' * 500, "a@" * 600, "\n" * 1300, "1a" * 700]
)
def test_hostile_errors_are_cut_and_cost_little(error):
    with patch.object(failures, "VARIES", wraps=failures.VARIES):
        line, normalised = find_cause(error)
    assert len(line) <= failures.LINE and len(normalised) <= failures.LINE


def test_failures_are_grouped_by_state_kind_and_cause():
    make_failures(3)
    make_failures(2, state=State.TIMED_OUT, error_kind="timeout", error="Its timeout of {number} s passed.")
    make_failures(1, state=State.UNCONFIRMED, error="The answer was lost.")
    make_failures(1, error_kind="configuration")
    make_execution(error="")
    found = find_failures(FailureFilter())
    assert [cause.runs for cause in found.causes] == [3, 2, 1, 1]
    assert {cause.state for cause in found.causes} == {State.FAILED, State.TIMED_OUT, State.UNCONFIRMED}
    assert found.runs == 7 and not found.is_bounded


def test_a_period_a_tool_a_source_and_a_caller_narrow_the_failures():
    shop = make_workflow(make_source("shop"), tool_name="order")
    make_failures(2, shop, error="a", caller="token:7", caller_name="claude")
    make_failures(1, error="b")
    long_ago = timezone.now() - timedelta(days=3)
    make_failures(1, error="c", created_at=long_ago, finished_at=long_ago)
    assert causes() == causes(period=Period.DAY) == [("a", 2), ("b", 1)]
    assert {words for words, _ in causes(period=Period.WEEK)} == {"a", "b", "c"}
    assert causes(tool="order") == causes(source="shop") == causes(caller="token:7") == [("a", 2)]
    # A long run that failed a moment ago began before the period.
    make_failures(1, error="d", created_at=long_ago, finished_at=timezone.now())
    assert ("d", 1) in causes()


def test_only_the_newest_failures_are_grouped_and_the_page_says_so(admin_client, monkeypatch):
    make_failures(5)
    assert b"is-bounded" not in admin_client.get(PAGE).content
    monkeypatch.setattr(failures, "WINDOW", 3)
    found = find_failures(FailureFilter())
    assert found.is_bounded and found.runs == 3
    assert b"is-bounded" in admin_client.get(PAGE).content


def test_the_page_of_failures_takes_as_many_queries_for_many_as_for_few(admin_client):
    make_failures(2)
    counts = []
    for _ in range(2):
        with CaptureQueriesContext(connection) as queries:
            assert admin_client.get(PAGE).status_code == 200
        counts.append(len(queries))
        for number in range(10):
            make_failures(2, error=f"Cause {chr(97 + number)}", caller=f"token:{number}")
    assert counts[0] == counts[1] < 10


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL plans by what its tables hold")
def test_the_index_of_states_finds_the_failures_however_many_executions_there_are(monkeypatch):
    make_failures(3)
    monkeypatch.setattr(failures, "WINDOW", 1)
    with CaptureQueriesContext(connection) as queries:
        find_failures(FailureFilter(tool="a", source="b", caller="c"))
        find_failures(FailureFilter())
    for query in queries:
        plan = plan_of(query["sql"])
        assert "SCAN executions_execution" not in plan
        assert "USING INDEX execution_by_state (state=?" in plan


def test_the_error_is_cut_in_the_database():
    make_failures(1, error="x" * 500_000)
    with patch.object(failures, "find_cause", wraps=find_cause) as read:
        find_failures(FailureFilter())
    assert len(read.call_args.args[0]) <= failures.BEGINNING + failures.END + 1


def test_what_engines_and_agents_wrote_is_shown_as_text(admin_client):
    make_failures(1, error=HOSTILE, caller_name=HOSTILE, tool_name=HOSTILE, source_name=HOSTILE)
    page = admin_client.get(PAGE).content.decode()
    assert HOSTILE not in page and "&lt;script&gt;" in page
    again = admin_client.get(AGAIN, {"cause": find_failures(FailureFilter()).causes[0].key}).content.decode()
    assert HOSTILE not in again


@pytest.mark.parametrize("query", ["period=rubbish", "tool=%00", "cause=%00", "tool=" + "x" * 5000])
def test_an_address_that_makes_no_sense_shows_a_page(admin_client, query):
    assert admin_client.get(f"{PAGE}?{query}").status_code == 200
    assert admin_client.get(f"{AGAIN}?{query}").status_code == 302


def test_only_those_who_see_executions_see_failures_and_only_those_who_run_run_again(staff_with):
    make_failures(1)
    cause = find_failures(FailureFilter()).causes[0]
    assert staff_with("view_workflow").get(PAGE).status_code == 403
    User.objects.all().delete()
    viewer = staff_with("view_execution")
    assert viewer.get(PAGE).status_code == 200
    assert AGAIN not in viewer.get(PAGE).content.decode()
    for ask in (viewer.get, viewer.post):
        assert ask(f"{AGAIN}?cause={cause.key}").status_code == 403
    User.objects.all().delete()
    runner = staff_with("add_execution")
    assert runner.get(f"{AGAIN}?cause={cause.key}").status_code == 403


def test_the_list_shows_the_executions_of_a_cause(admin_client):
    wanted = make_failures(3)
    make_failures(1, error="Another")
    page = admin_client.get(PAGE)
    shown = page.context["causes"][0]
    assert set(listed(admin_client, shown.runs).result_list) == set(wanted)
    assert not listed(admin_client, list_url(Execution), {"cause": "24h.rubbish"}).result_count
    assert listed(admin_client, list_url(Execution), {"cause": "rubbish"}).result_count == 4


# Running them again


def reasons(executions: list[Execution]) -> dict[Obstacle, int]:
    return plan_reruns([execution.pk for execution in executions]).obstacles


def test_what_a_second_run_may_harm_is_not_run_again():
    """The engine accepted them unless a test says otherwise."""
    began = {"run_id": "run-1", "started_at": timezone.now()}
    plain, destructive = make_workflow(), make_workflow(hints={"destructiveHint": True})
    idempotent = make_workflow(hints={"idempotentHint": True})
    assert reasons(make_failures(1, plain, **began)) == {Obstacle.NOT_REPEATABLE: 1}
    assert reasons(make_failures(1, destructive)) == {Obstacle.DESTRUCTIVE: 1}
    assert reasons(make_failures(1, idempotent, state=State.UNCONFIRMED)) == {Obstacle.UNCONFIRMED: 1}
    assert reasons([make_execution(idempotent)]) == {Obstacle.NOT_FAILED: 1}
    assert reasons(make_failures(1, plain, state=State.TIMED_OUT)) == {Obstacle.NOT_REPEATABLE: 1}
    (pruned,) = make_failures(1, idempotent)
    ExecutionPayload.objects.filter(pk=pruned.pk).update(input=None)
    assert reasons([pruned]) == {Obstacle.NO_ARGUMENTS: 1}
    (orphan,) = make_failures(1, idempotent)
    Execution.objects.filter(pk=orphan.pk).update(workflow=None)
    assert reasons([orphan]) == {Obstacle.NO_WORKFLOW: 1}


def test_what_is_read_only_idempotent_or_never_began_is_run_again():
    began = {"run_id": "run-1", "started_at": timezone.now()}
    safe = [
        *make_failures(1, make_workflow(hints={"readOnlyHint": True}), **began),
        *make_failures(1, make_workflow(hints={"idempotentHint": True}), **began),
        *make_failures(1, make_workflow()),
    ]
    Execution.objects.filter(pk=safe[-1].pk).update(started_at=None)
    assert plan_reruns([execution.pk for execution in safe]).ready == safe


def again_address(admin_client: Any) -> str:
    address: str = admin_client.get(PAGE).context["causes"][0].again
    return address


def keys_in(page: Any) -> dict[str, str]:
    found = re.search(r'name="keys" value="([^"]+)"', page.content.decode())
    assert found is not None
    return {"keys": found[1]}


@pytest.mark.django_db(transaction=True)
def test_a_cause_is_run_again_with_the_original_arguments(admin_client):
    workflow = make_workflow(hints={"readOnlyHint": True}, argument_overrides={"region": {"constant": "eu"}})
    failed = make_failures(3, workflow, payload={"input": {"order": 7, "region": "eu"}})
    make_failures(1, make_workflow())
    address = again_address(admin_client)
    question = admin_client.get(address)
    assert b'data-ready="3"' in question.content and b'id="obstacles"' in question.content
    answer = admin_client.post(address, keys_in(question))
    new = listed(admin_client, answer["Location"]).result_list
    assert {one.pk for one in new} >= {rerun_id(one.pk) for one in failed}
    for one in failed:
        rerun = Execution.objects.select_related("payload").get(pk=rerun_id(one.pk))
        assert (rerun.workflow, rerun.door, rerun.caller[:5]) == (workflow, "admin", "user:")
        assert rerun.payload.input == {"order": 7, "region": "eu"}
        assert HistoryEntry.objects.get(object_id=one.pk).message == f"Run again as execution {rerun.pk}."


@pytest.mark.django_db(transaction=True)
def test_a_double_click_runs_each_once(admin_client):
    make_failures(3)
    address = again_address(admin_client)
    sent = keys_in(admin_client.get(address))
    for _ in range(2):
        answer = admin_client.post(address, sent)
    assert Execution.objects.count() == 6
    assert str(Obstacle.ALREADY.label) in told(answer)
    assert b'data-ready="0"' in admin_client.get(address).content


@pytest.mark.django_db(transaction=True)
def test_only_those_that_the_question_was_about_are_run_again(admin_client):
    """More have failed meanwhile, and one was resolved or run again."""
    first, second = make_failures(2)
    address = again_address(admin_client)
    sent = keys_in(admin_client.get(address))
    make_failures(2, first.workflow)
    Execution.objects.filter(pk=second.pk).update(state=State.COMPLETED)
    admin_client.post(address, sent)
    assert set(Execution.objects.filter(door="admin").values_list("pk", flat=True)) == {rerun_id(first.pk)}


PEOPLE = [Caller(key=f"user:{number}", name=f"person {number}", sees_everything=True) for number in range(2)]


def run_all(executions: list[Execution], caller: Caller) -> Any:
    return run_again(executions, caller=caller, actor=command("x"), may_be_hidden=True)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("callers", [PEOPLE, PEOPLE[:1] * 2], ids=["two people", "one who clicks twice"])
def test_of_two_who_run_them_again_at_once_each_execution_gets_one_run(callers):
    """Both have judged them before either has started one."""
    executions = make_failures(4)
    plans = [plan_reruns([one.pk for one in executions]).ready for _ in callers]
    together, problems = threading.Barrier(2), list[BaseException]()

    def run(plan: list[Execution], caller: Caller) -> None:
        try:
            together.wait()
            run_all(plan, caller)
        except BaseException as problem:  # noqa: BLE001 - of the other thread
            problems.append(problem)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=pair) for pair in zip(plans, callers, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert set(Execution.objects.filter(door="admin").values_list("pk", flat=True)) == {
        rerun_id(one.pk) for one in executions
    }


@pytest.mark.django_db(transaction=True)
def test_what_a_colleague_ran_again_in_the_meantime_is_counted_as_such():
    executions = make_failures(2)
    assert len(run_all(executions, PEOPLE[0]).started) == 2
    late = run_all(executions, PEOPLE[1])
    assert not late.started
    assert late.refusals == {str(Obstacle.ALREADY.label): 2}


def test_a_limit_ends_it_and_the_next_request_runs_the_rest():
    executions = make_failures(3)
    from executions.starting import create_execution

    answers = [create_execution, Busy("a limit is reached.", retry_after=5)]

    def limited(request: Any) -> Execution:
        answer = answers.pop(0)
        if isinstance(answer, Busy):
            raise answer
        return answer(request)

    with patch("executions.rerunning.create_execution", limited):
        done = run_all(executions, PEOPLE[0])
    assert len(done.started) == 1 and list(done.refusals.values()) == [2]
    rest = plan_reruns([one.pk for one in executions])
    assert rest.ready == executions[1:] and rest.obstacles == {Obstacle.ALREADY: 1}


def test_arguments_that_are_removed_in_the_meantime_are_not_replaced_by_none():
    executions = make_failures(1)
    plan = plan_reruns([one.pk for one in executions])
    ExecutionPayload.objects.update(input=None)
    done = run_all(plan.ready, PEOPLE[0])
    assert not done.started and Execution.objects.count() == 1


def test_a_new_run_that_fails_can_be_run_again():
    (execution,) = make_failures(1)
    (again,) = run_all([execution], PEOPLE[0]).started
    Execution.objects.filter(pk=again.pk).update(state=State.FAILED, finished_at=timezone.now())
    plan = plan_reruns([execution.pk, again.pk])
    assert [one.pk for one in plan.ready] == [again.pk]


@pytest.mark.parametrize("keys", ["", "rubbish", "1," * 5000])
def test_a_forged_list_of_keys_runs_nothing(admin_client, keys):
    make_failures(1)
    assert admin_client.post(AGAIN, {"keys": keys}).status_code == 302
    assert Execution.objects.count() == 1
