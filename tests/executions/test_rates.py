"""Calls a minute: counted by all processes together, at no cost where there is no limit."""

from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from catalogue.access import Caller, rate_of
from catalogue.exposure import current_catalogue, forget_catalogue
from catalogue.models import Toolset, Workflow
from catalogue.product_settings import change_settings
from executions import rates
from executions.models import RateBucket
from executions.rates import forget_rates, seconds_until_free, take_call
from executions.refusals import TooManyCalls
from tests.factories import make_toolset, make_workflow
from tests.threads import together

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("executions.rates", "executions.models.usage"),
]


def limited(per_minute: int, at_once: int | None = None, *, key: str = "token:1") -> Any:
    return rate_of(key, per_minute, at_once, whose="the token")


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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The clocks of this one module stand still until they are moved; other threads have their own."""

    class Clock:
        now = 1_800_000_000.0

    frozen = SimpleNamespace(time_ns=lambda: int(Clock.now * 1_000_000_000), monotonic=lambda: Clock.now)
    monkeypatch.setattr(rates, "time", frozen)
    return Clock


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


def test_a_lowered_rate_and_a_clock_that_is_set_back_lock_nobody_out(clock):
    for _ in range(60):
        seconds_until_free(limited(6, 60))
    assert seconds_until_free(limited(6, 1)) == 10.0
    clock.now -= 3600
    forget_rates()
    assert seconds_until_free(limited(6, 1)) == 10.0
    clock.now += 10.001
    assert seconds_until_free(limited(6, 1)) == 0.0


def test_rows_of_rates_that_nobody_uses_are_removed(clock):
    seconds_until_free(limited(6, key="token:1"))
    clock.now += 2 * 24 * 3600
    seconds_until_free(limited(6, key="token:2"))
    assert list(RateBucket.objects.values_list("pk", flat=True)) == ["token:2"]


def test_threads_that_book_the_last_calls_at_once_get_no_more_than_there_are():
    """The race: both read that one is left. A conditional UPDATE decides."""

    def book() -> list[float]:
        return [seconds_until_free(limited(1, 5)) for _ in range(3)]

    waits = [seconds for booked in together(*[book] * 8) for seconds in booked]
    assert waits.count(0.0) == 5


def test_a_row_that_another_process_makes_meanwhile_refuses_no_call(clock):
    """The race: this process finds no row to update, and then the other's."""
    rate, made = limited(6_000, 1_000), []

    def make_row(execute: Any, sql: str, *rest: Any) -> Any:
        found = execute(sql, *rest)
        if sql.startswith("UPDATE") and not made:
            made.append(RateBucket.objects.create(key=rate.key, booked_until=int(clock.now * 1_000_000)))
        return found

    with connection.execute_wrapper(make_row):
        assert seconds_until_free(rate) == 0.0
