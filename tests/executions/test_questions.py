"""What runs ask people while they are polled, and how each answer reaches the engine once."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.utils import timezone

from catalogue.actions.workflows import override_workflow
from catalogue.models import Source, Workflow
from connectors.registry import BUILT_IN
from executions.models import Execution, InputRequest, State
from executions.questions import begin_sending
from tests.api.clients import TokenClient, administrator, agent, staff_session
from tests.connectors.scripted import response
from tests.executions.asking_engine import Asking
from tests.executions.engines import RUN_ID, WORKFLOW_ID, WireEngine, in_thread
from tests.executions.steps import (
    advance_due_executions,
    expire_lease,
    let_pass,
    reach_deadline,
    read,
    told,
)
from tests.factories import make_execution, make_source, make_workflow

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("executions.questions", "executions.models.transitions"),
]


@pytest.fixture
def asking(engine: WireEngine) -> Asking:
    return Asking(engine)


@pytest.fixture
def workflow(engine: WireEngine, monkeypatch: pytest.MonkeyPatch) -> Workflow:
    monkeypatch.setitem(BUILT_IN, "asking", "tests.executions.asking_engine:AskingConnector")
    source: Source = make_source(base_url=engine.base_url, kind="asking")
    return make_workflow(source, upstream_id=WORKFLOW_ID, name="report")


@pytest.fixture
def client() -> TokenClient:
    return agent()


@pytest.fixture
def run(workflow: Workflow, client: TokenClient, asking: Asking) -> Execution:
    """A run of the agent that asks `q1`, as its poll has found."""
    caller = client.token.caller
    execution = make_execution(
        workflow,
        state=State.RUNNING,
        run_id=RUN_ID,
        caller=caller.key,
        caller_name=caller.name,
        deadline_at=timezone.now() + timedelta(hours=9),
    )
    asking.ask()
    step(execution)
    return execution


def step(execution: Execution, seconds: float = 60) -> None:
    """The next step of a worker, after so much time."""
    let_pass(execution, seconds)
    assert advance_due_executions() == 1


def send(client: Any, execution: Execution, question: str = "q1", **content: Any) -> Any:
    body = {"question": question, "content": content or {"amount": 7}}
    return client.post(f"/api/executions/{execution.pk}/answer/", body, format="json")


def asked(client: Any, execution: Execution) -> list[dict[str, Any]]:
    questions: list[dict[str, Any]] = client.get(f"/api/executions/{execution.pk}/").json()["questions"]
    return questions


def test_an_answer_reaches_the_engine_and_the_run_goes_on(run, client, asking):
    (question,) = asked(client, run)
    assert (question["question"], question["message"]) == ("q1", "How much?")
    assert read(run).state_label == "waiting for a person's answer"
    answered = send(client, run, amount=7, note="yes")
    assert answered.status_code == 200, answered.json()
    assert answered.json()["questions"][0]["answered_by"] == client.token.name
    step(run)
    assert asking.sent == asking.taken == [("q1", {"amount": 7, "note": "yes"})]
    assert read(run).state == State.COMPLETED
    assert not InputRequest.objects.exists()
    assert told(run, "answered") == [f"{client.token.name} answered through REST: “How much?”"]
    assert "asked" in list(run.events.values_list("kind", flat=True))


def test_of_two_answers_at_once_the_first_wins_and_the_other_is_told_who(run, client, asking):
    """The two doors race for the row of the run."""
    doors, outcomes = [client, administrator()], dict[int, Any]()
    meeting = threading.Barrier(2)

    def answer(number: int) -> None:
        from django.db import connection

        meeting.wait()
        try:
            outcomes[number] = send(doors[number], run, amount=number + 1)
        finally:
            connection.close()

    threads = [threading.Thread(target=answer, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    codes = {number: outcome.status_code for number, outcome in outcomes.items()}
    assert sorted(codes.values()) == [200, 409], [one.json() for one in outcomes.values()]
    winner = next(number for number, code in codes.items() if code == 200)
    lost = outcomes[1 - winner].json()["detail"]
    assert "has answered this already" in lost and doors[winner].token.name in lost
    step(run)
    assert asking.sent == [("q1", {"amount": winner + 1})]


def test_an_answer_that_does_not_fit_is_refused_by_place(run, client, asking):
    refused = send(client, run, amount=0)
    assert refused.status_code == 400
    assert [one["path"] for one in refused.json()["errors"]] == ["/content/amount"]
    assert send(client, run, question="q9").status_code == 409
    step(run)
    assert asking.sent == []


def test_an_answer_to_a_pause_that_has_ended_by_itself_is_not_sent(run, client, asking):
    send(client, run)
    asking.questions.clear()
    asking.ask("q2", "And now?")
    asking.on_answer = lambda: response(404, "{}")
    step(run)
    step(run)
    assert [one["question"] for one in asked(client, run)] == ["q2"]
    assert told(run, "question_gone")
    late = send(client, run)
    assert late.status_code == 409 and "it asks q2" in late.json()["detail"]


def test_an_answer_outlives_the_process_that_took_it_and_is_sent_once(run, client, asking):
    """Killed before the send: any other process sends it."""
    send(client, run)
    expire_lease(run)
    step(run)
    assert asking.sent == [("q1", {"amount": 7})]


def hold(run: Execution) -> Execution:
    Execution.objects.filter(pk=run.pk).update(
        lease_holder="us", lease_expires_at=timezone.now() + timedelta(seconds=20)
    )
    return Execution.objects.select_related("workflow__source").get(pk=run.pk)


def test_a_process_that_was_killed_before_its_request_left_loses_no_answer(run, client, asking):
    """Marked as being sent, and the engine still asks: it is sent again."""
    send(client, run)
    assert begin_sending(hold(run)) == {"q1": {"amount": 7}}
    expire_lease(run)
    step(run, seconds=2)
    assert asking.sent == [], "the engine may still take it"
    step(run)
    step(run)
    assert asking.sent == asking.taken == [("q1", {"amount": 7})]
    assert told(run, "answer_missed")


def test_an_answer_that_arrived_before_the_process_was_killed_is_not_sent_again(run, client, asking):
    send(client, run)
    assert begin_sending(hold(run)) == {"q1": {"amount": 7}}
    asking.taken.append(("q1", {"amount": 7}))
    asking.questions.clear()
    expire_lease(run)
    step(run)
    assert asking.sent == []
    assert read(run).state == State.COMPLETED


def test_a_lost_reply_to_an_answer_is_decided_by_the_next_poll(run, client, asking):
    """It had arrived."""
    asking.reply = None
    asking.ask("q2", "And now?")
    step(run)
    send(client, run)
    step(run)
    assert asking.sent == [("q1", {"amount": 7})]
    assert told(run, "answer_unknown")
    assert told(run, "answer_sent") == [
        f"“How much?”: the engine no longer asks: the answer by {client.token.name} has arrived."
    ]
    assert [one["question"] for one in asked(client, run)] == ["q2"]


def test_while_the_engine_cannot_say_what_the_run_asks_nothing_counts_as_answered(run, client, asking):
    asking.is_unsure = True
    step(run)
    assert [one["question"] for one in asked(client, run)] == ["q1"]
    asking.on_answer = lambda: response(500, "{}")
    send(client, run)
    step(run)
    step(run)
    assert told(run, "answer_unknown") and not told(run, "answer_sent")
    asking.is_unsure, asking.on_answer = False, lambda: None
    step(run)
    step(run)
    assert asking.taken == [("q1", {"amount": 7})]


def test_a_lost_answer_is_sent_again_once_the_engine_still_asks(run, client, asking):
    losses = iter([b""])

    def lose() -> bytes | None:
        return response(500, "{}") if next(losses, None) is not None else None

    asking.on_answer = lose
    send(client, run)
    for _ in range(3):
        if read(run).state == State.RUNNING:
            step(run)
    assert asking.taken == [("q1", {"amount": 7})]
    assert len(asking.sent) == 2


def test_a_question_that_is_listed_a_moment_longer_is_not_asked_again(run, client, asking):
    asking.lingers = True
    send(client, run)
    step(run)
    assert read(run).input_request is None
    assert asked(client, run)[0]["answered_by"] == client.token.name
    assert send(client, run).status_code == 409
    asking.questions.clear()
    step(run, seconds=2)
    assert asking.sent == [("q1", {"amount": 7})]
    assert read(run).state == State.COMPLETED


def test_the_same_question_may_be_asked_again_after_its_answer(run, client, asking):
    """At once after a poll without it; else once it is listed for too long to be the same."""
    asking.lingers = True
    send(client, run, amount=1)
    step(run)
    step(run)
    assert told(run, "asked_again")
    assert read(run).input_request is not None
    send(client, run, amount=2)
    step(run)
    assert asking.sent == [("q1", {"amount": 1}), ("q1", {"amount": 2})]
    asking.questions.clear()
    asking.ask("q2")
    step(run, seconds=2)
    asking.questions.clear()
    asking.ask("q1")
    step(run)
    assert [(one["question"], one["answered_by"]) for one in asked(client, run)] == [("q1", None)]


def test_a_refused_answer_is_asked_again_with_the_reason(run, client, asking):
    asking.on_answer = lambda: response(400, '{"error": "Too much."}')
    send(client, run)
    step(run)
    (question,) = asked(client, run)
    assert question["answered_by"] is None
    assert "Too much." in question["refusals"][0]
    asking.on_answer = lambda: None
    assert send(client, run, amount=1).status_code == 200
    step(run)
    assert asking.taken == [("q1", {"amount": 1})]


def test_an_engine_that_is_down_gets_the_answer_later(run, client, asking):
    asking.on_answer = lambda: response(503, "{}", retry_after="1")
    send(client, run)
    for _ in range(3):
        step(run)
    assert len(asking.sent) == 3 and len(told(run, "answer_failed")) == 1
    asking.on_answer = lambda: None
    step(run)
    assert asking.taken == [("q1", {"amount": 7})]


def test_a_cancelled_run_asks_nothing_and_gets_no_answer(run, client, asking):
    send(client, run)
    answer = client.post(f"/api/executions/{run.pk}/cancel/")
    assert answer.status_code in (200, 202), answer.json()
    assert asking.sent == []
    late = send(client, run)
    assert late.status_code == 409


def test_a_run_that_ends_withdraws_its_questions(run, client, asking):
    asking.questions.clear()
    asking.taken.append(("by", {"somebody": "else"}))
    step(run)
    assert read(run).state == State.COMPLETED
    assert (read(run).input_request, asked(client, run)) == (None, [])
    assert not InputRequest.objects.exists()
    refused = send(client, run)
    assert refused.status_code == 409 and "asks nothing" in refused.json()["detail"]


def test_a_deadline_counts_while_a_person_is_asked_and_says_so(run, client, asking):
    reach_deadline(run)
    for _ in range(3):
        if read(run).state == State.RUNNING:
            step(run)
    ended = read(run)
    assert ended.state == State.TIMED_OUT
    assert "waiting for a person's answer, which counts" in ended.error


def test_two_questions_are_answered_one_by_one(run, client, asking):
    asking.ask("q2", "Really?", {"type": "object"})
    step(run)
    assert [one["question"] for one in asked(client, run)] == ["q1", "q2"]
    send(client, run, question="q2", really=True)
    step(run)
    assert read(run).input_request is not None
    assert [one["question"] for one in asked(client, run)] == ["q1"]
    send(client, run)
    step(run)
    assert asking.sent == [("q2", {"really": True}), ("q1", {"amount": 7})]


def test_an_answer_during_a_poll_is_sent_by_the_next_step_at_once(run, client, asking, engine):
    """The step has planned its next one for later."""
    tell = engine.on_status

    async def answer_meanwhile(request: Any, writer: Any) -> None:
        engine.on_status = tell
        await in_thread(send, client, run)
        await tell(request, writer)

    engine.on_status = answer_meanwhile
    step(run)
    assert asking.sent == []
    assert read(run).next_attempt_at <= timezone.now()
    assert advance_due_executions() == 1
    assert asking.sent == [("q1", {"amount": 7})]


@pytest.mark.parametrize(("asks", "queries"), [(False, 0), (True, 1)])
def test_polls_without_questions_cost_no_query_and_unchanged_ones_one(
    run, asking, asks, queries, django_assert_num_queries
):
    from connectors.protocol import RunSnapshot, RunState
    from executions.runner.follow import _record_asked

    if not asks:
        asking.questions.clear()
        step(run)
    held = hold(run)
    questions = held.workflow and read_questions(asking)
    with django_assert_num_queries(queries):
        _record_asked([(held, RunSnapshot(state=RunState.RUNNING, questions=questions))])


def read_questions(asking: Asking) -> list[Any]:
    from connectors.protocol import Question

    return [Question(**one) for one in asking.questions.values()]


def test_only_approvers_answer_where_the_workflow_says_so(run, client, asking, workflow):
    workflow.answered_by = Workflow.AnsweredBy.APPROVERS
    workflow.save()
    refused = send(client, run)
    assert refused.status_code == 403 and "approver" in refused.json()["detail"]
    approver = staff_session("change_execution", "view_execution", "decide_approval")
    assert send(administrator(), run).status_code == 403
    assert send(approver, run).status_code == 200


def test_only_members_of_its_group_answer_where_the_workflow_names_one(run, client, asking, workflow):
    """A8.2: neither the caller, nor tokens, nor approvers outside the group."""
    with pytest.raises(ValidationError, match="There is no group Baristas"):
        override_workflow(workflow, answer_group="Baristas")
    group = Group.objects.create(name="Baristas")
    override_workflow(Workflow.objects.get(), answer_group="Baristas")
    refused = send(client, run)
    assert refused.status_code == 403 and "a member of the group Baristas" in refused.json()["detail"]
    approver = staff_session("change_execution", "view_execution", "decide_approval")
    assert send(administrator(), run).status_code == send(approver, run).status_code == 403
    member = staff_session("change_execution", "view_execution")
    group.user_set.add(User.objects.get(pk=member.session["_auth_user_id"]))
    assert send(member, run).status_code == 200
    step(run)
    assert asking.sent == [("q1", {"amount": 7})]


def test_another_caller_sees_and_answers_nothing(run, asking):
    stranger = agent()
    assert send(stranger, run).status_code == 404
