"""The judge of a chaos run finds each kind of damage, and nothing where there is none."""

from collections import Counter
from dataclasses import replace

import pytest

from dev.chaos.clients import Story
from dev.chaos.doors import Answer
from dev.chaos.plan import ASKED, KEYED, PLAIN, Call, Door, Persistence, draw_plan
from dev.chaos.records import Execution, Run
from dev.chaos.verdict import Kind, judge

MARK = "mark-00001"
CALL = Call(
    mark=MARK,
    at=0,
    source=PLAIN,
    workflow="countdown",
    arguments={"message": MARK},
    caller="alice",
    door=Door.REST,
    web=0,
    persistence=Persistence.REPEAT,
    repeat_after=0,
    hangs_up_after=None,
    cancel_after=None,
)
EXECUTION = Execution(id="e1", mark=MARK, source=PLAIN, state="completed", run_id="r1", output={"n": 1})
RUN = Run(source=PLAIN, run_id="r1", mark=MARK, key="", status="COMPLETED", output={"n": 1})
TOLD = Story(CALL, answer=Answer(execution_id="e1"))


def found(story: Story, executions: list[Execution], runs: list[Run]) -> set[Kind]:
    return {violation.kind for violation in judge([story], executions, runs, limit=1).violations}


def broken(story: Story, times: int) -> Story:
    return replace(story, breaks=Counter({"broke": times}))


def test_an_execution_that_ended_as_its_run_did_is_no_violation():
    assert found(TOLD, [EXECUTION], [RUN]) == set()


@pytest.mark.parametrize(
    ("changes", "run_changes", "kind"),
    [
        ({"state": "running"}, {}, Kind.LOST),
        ({"run_id": ""}, {"mark": "mark-00009"}, Kind.LOST),
        ({"state": "failed", "error": "no", "run_id": "r9"}, {}, Kind.LOST),
        ({"output": {"n": 2}}, {}, Kind.WRONG),
        ({"state": "cancelled"}, {}, Kind.WRONG),
        ({"state": "timed_out"}, {}, Kind.WRONG),
        ({"state": "failed", "error": "ours"}, {"status": "FAILED", "error": "theirs"}, Kind.WRONG),
        ({}, {"mark": "mark-00009"}, Kind.WRONG),
    ],
)
def test_a_record_that_tells_something_else_than_the_engine_is_found(changes, run_changes, kind):
    assert kind in found(TOLD, [replace(EXECUTION, **changes)], [replace(RUN, **run_changes)])


def test_a_second_run_of_one_execution_is_doubled():
    assert found(TOLD, [EXECUTION], [RUN, replace(RUN, run_id="r2")]) == {Kind.DOUBLED}


def test_two_runs_for_one_key_are_doubled_even_if_executions_name_both():
    story = broken(replace(TOLD, call=replace(CALL, source=KEYED)), 1)
    executions = [replace(EXECUTION, source=KEYED), replace(EXECUTION, source=KEYED, id="e2", run_id="r2")]
    runs = [replace(RUN, source=KEYED, key="e1"), replace(RUN, source=KEYED, key="e1", run_id="r2")]
    assert found(story, executions, runs) == {Kind.DOUBLED}


def test_two_executions_of_one_run_are_wrong():
    assert found(broken(TOLD, 1), [EXECUTION, replace(EXECUTION, id="e2")], [RUN]) == {Kind.WRONG}


def test_a_run_that_no_execution_knows_is_lost():
    cancelled = replace(EXECUTION, state="cancelled", run_id="", output=None)
    assert found(TOLD, [cancelled], [RUN]) == {Kind.LOST}


def test_an_unconfirmed_start_may_have_one_run_and_not_two():
    unconfirmed = replace(EXECUTION, state="unconfirmed", run_id="", output=None)
    verdict = judge([TOLD], [unconfirmed], [RUN], limit=1)
    assert (verdict.violations, [doubt.ran for doubt in verdict.unconfirmed]) == ([], [True])
    verdict = judge([TOLD], [unconfirmed], [], limit=1)
    assert (verdict.violations, [doubt.ran for doubt in verdict.unconfirmed]) == ([], [False])
    assert found(TOLD, [unconfirmed], [RUN, replace(RUN, run_id="r2")]) == {Kind.LOST}


def test_an_unconfirmed_start_at_an_engine_that_knows_keys_is_wrong_unless_it_was_cancelled():
    story = replace(TOLD, call=replace(CALL, source=KEYED))
    unconfirmed = replace(EXECUTION, source=KEYED, state="unconfirmed", run_id="", output=None)
    assert found(story, [unconfirmed], []) == {Kind.WRONG}
    assert found(story, [replace(unconfirmed, cancel_requested=True)], []) == set()


def test_an_engine_that_was_asked_is_believed_unless_it_has_the_run_after_all():
    story = replace(TOLD, call=replace(CALL, source=ASKED))
    error = "The engine has no run for it. The start did not happen; it is safe to call again."
    failed = replace(EXECUTION, source=ASKED, state="failed", run_id="", output=None, error=error)
    assert found(story, [failed], []) == set()
    assert found(story, [failed], [replace(RUN, source=ASKED, key="e1")]) == {Kind.LOST}
    assert found(story, [replace(failed, state="unconfirmed")], []) == {Kind.WRONG}


@pytest.mark.parametrize(
    ("persistence", "kinds"), [(Persistence.KEY, {Kind.DOUBLED}), (Persistence.REPEAT, set())]
)
def test_a_second_execution_is_allowed_to_a_repeated_call_without_a_key_only(persistence, kinds):
    story = broken(replace(TOLD, call=replace(CALL, persistence=persistence)), 1)
    executions = [EXECUTION, replace(EXECUTION, id="e2", run_id="r2")]
    assert found(story, executions, [RUN, replace(RUN, run_id="r2")]) == kinds


def test_a_call_that_was_never_repeated_has_one_execution():
    executions = [EXECUTION, replace(EXECUTION, id="e2", run_id="r2")]
    assert found(TOLD, executions, [RUN, replace(RUN, run_id="r2")]) == {Kind.DOUBLED}


def test_an_acknowledged_execution_that_is_not_on_record_is_lost():
    assert Kind.LOST in found(replace(TOLD, answer=Answer(execution_id="e9")), [EXECUTION], [RUN])
    assert Kind.LOST in found(TOLD, [], [])


def test_a_result_that_is_not_on_record_is_wrong():
    told = replace(TOLD, answer=Answer(completed=True, output={"n": 2}))
    assert found(told, [EXECUTION], [RUN]) == {Kind.WRONG}
    assert found(replace(told, answer=Answer(completed=True, output={"n": 1})), [EXECUTION], [RUN]) == set()


def test_a_cancel_that_was_confirmed_and_is_not_on_record_is_wrong():
    assert found(replace(TOLD, cancelled=True), [EXECUTION], [RUN]) == {Kind.WRONG}


def test_a_persistent_caller_without_an_answer_is_a_violation_and_one_that_gave_up_is_none():
    assert found(broken(Story(CALL), 1), [], []) == {Kind.LOST}
    gave_up = Story(replace(CALL, persistence=Persistence.GIVE_UP))
    assert found(broken(gave_up, 1), [EXECUTION], [RUN]) == set()


@pytest.mark.parametrize(("second_started_at", "kinds"), [(20, set()), (19, {Kind.WRONG})])
def test_more_runs_at_a_time_than_are_allowed_are_found(second_started_at, kinds):
    story = replace(broken(TOLD, 1), call=replace(CALL, source=KEYED))
    executions = [replace(EXECUTION, source=KEYED), replace(EXECUTION, source=KEYED, id="e2", run_id="r2")]
    first = replace(RUN, source=KEYED, started_at=10, ended_at=20)
    second = replace(first, run_id="r2", started_at=second_started_at, ended_at=30)
    assert found(story, executions, [first, second]) == kinds


def test_one_seed_is_one_plan_and_another_is_another():
    plans = [draw_plan(seed=seed, executions=50, kills=8, outage=5, longest=5) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    assert len(plans[0].calls) == len({call.mark for call in plans[0].calls}) == 50
    assert {"beat", "web", "worker"} <= {kill.program.partition("-")[0] for kill in plans[0].kills}
