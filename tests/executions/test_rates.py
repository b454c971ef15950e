"""Calls a minute: counted by all processes together, at no cost where there is no limit."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from access.callers import Caller
from catalogue.exposure import current_catalogue, forget_catalogue
from catalogue.models import Toolset, Workflow
from catalogue.product_settings import change_settings
from executions.rates import take_call
from executions.refusals import TooManyCalls
from tests.access.test_rates import clock as clock  # noqa: PLC0414
from tests.access.test_rates import limited
from tests.factories import make_toolset, make_workflow

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("executions.rates", "access.rates"),
]


def caller_with(per_minute: int, at_once: int | None = None, **fields: Any) -> Caller:
    rate = limited(per_minute, at_once)
    return Caller(key="token:1", name="agent", rates=(rate,), **fields)


def passed(workflow: Workflow, caller: Caller, *, calls: int) -> int:
    found = 0
    for _ in range(calls):
        try:
            take_call(workflow, caller)
        except TooManyCalls:
            continue
        found += 1
    return found


@pytest.mark.parametrize(
    ("per_minute", "at_once", "begins_with"), [(60, 10, 10), (60, None, 10), (1, None, 1)]
)
def test_as_many_calls_pass_at_once_as_the_rate_says_and_then_one_after_the_other(
    clock, per_minute, at_once, begins_with
):
    workflow, caller = make_workflow(), caller_with(per_minute, at_once)
    assert passed(workflow, caller, calls=begins_with * 2 + 3) == begins_with
    for _ in range(3):
        clock.now += 60 / per_minute + 0.001
        assert passed(workflow, caller, calls=2) == 1


def test_a_refusal_says_whose_rate_it_is_and_when_to_come_back(clock):
    workflow, caller = make_workflow(), caller_with(6, 1)
    take_call(workflow, caller)
    with pytest.raises(TooManyCalls) as refused:
        take_call(workflow, caller)
    assert str(refused.value) == (
        "Too many calls: the token is limited to 6 a minute and 1 at once. Nothing was started; "
        "try again in 10 s."
    )
    clock.now += refused.value.retry_after
    take_call(workflow, caller)


def test_a_call_that_one_rate_refuses_uses_up_nothing_of_the_others(clock):
    """A caller beyond its own rate does not lock the others out of the tool."""
    workflow = make_workflow(calls_per_minute=60, calls_at_once=4)
    assert passed(workflow, caller_with(60, 2), calls=50) == 2
    assert passed(workflow, Caller(key="token:2", name="other"), calls=50) == 2


def test_a_call_that_its_tool_refuses_uses_up_nothing_of_its_caller(clock):
    full, free = make_workflow(calls_per_minute=60, calls_at_once=1), make_workflow()
    take_call(full, Caller(key="token:2", name="other"))
    caller = caller_with(60, 2)
    assert passed(full, caller, calls=5) == 0
    assert passed(free, caller, calls=5) == 2


@pytest.mark.parametrize("rated", ["tool", "toolset", "person", "default of tools"])
def test_rates_are_shared_by_all_callers_of_what_has_them(clock, rated):
    workflow = make_workflow(**({"calls_per_minute": 6, "calls_at_once": 3} if rated == "tool" else {}))
    fields: dict[str, Any] = {}
    if rated == "toolset":
        make_toolset("finance", picked=[workflow], calls_per_minute=6, calls_at_once=3)
        fields = {"toolset": "finance"}
        forget_catalogue()
        current_catalogue()
    if rated == "person":
        change_settings({"calls_per_minute": 6, "calls_at_once": 3}, by="test")
        fields = {"user_id": 7}
    if rated == "default of tools":
        change_settings({"tool_calls_per_minute": 6, "tool_calls_at_once": 3}, by="test")
    callers = [Caller(key=f"token:{number}", name="agent", **fields) for number in (1, 2)]
    assert [passed(workflow, caller, calls=2) for caller in callers] == [2, 1]
    assert Toolset.objects.count() == (rated == "toolset")


def test_a_call_costs_one_statement_for_each_of_its_rates(clock):
    workflow, caller = make_workflow(calls_per_minute=600), caller_with(60_000)
    take_call(workflow, caller)
    with CaptureQueriesContext(connection) as asked:
        take_call(workflow, caller)
    assert len(asked) == 2


def test_a_caller_that_is_refused_asks_the_database_once(clock):
    workflow, caller = make_workflow(), caller_with(6, 1)
    passed(workflow, caller, calls=2)
    with CaptureQueriesContext(connection) as asked:
        assert passed(workflow, caller, calls=100) == 0
    assert not asked
