"""Calls a minute: counted by all processes together, at no cost where there is no limit."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.test.utils import CaptureQueriesContext

from access.callers import Caller
from access.rates import forget_rates
from catalogue.exposure import current_catalogue, forget_catalogue
from catalogue.models import Toolset, Workflow
from catalogue.product_settings import change_settings
from executions.rates import take_call
from executions.refusals import TooManyCalls
from tests.access.test_rates import clock as clock  # noqa: PLC0414
from tests.access.test_rates import limited
from tests.factories import make_toolset, make_workflow
from tests.processes import ROOT, database_url

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
    ("per_minute", "at_once", "begins_with"), [(60, 10, 10), (60, None, 10), (1, None, 1), (6000, 500, 500)]
)
def test_as_many_calls_pass_at_once_as_the_rate_says_and_then_one_after_the_other(
    clock: Any, per_minute: int, at_once: int | None, begins_with: int
) -> None:
    workflow, caller = make_workflow(), caller_with(per_minute, at_once)
    assert passed(workflow, caller, calls=begins_with * 2 + 3) == begins_with
    for _ in range(3):
        clock.now += 60 / per_minute + 0.001
        assert passed(workflow, caller, calls=2) == 1


def test_a_refusal_says_whose_rate_it_is_and_when_to_come_back(clock: Any) -> None:
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


def test_a_call_that_one_rate_refuses_uses_up_nothing_of_the_others(clock: Any) -> None:
    """A caller beyond its own rate does not lock the others out of the tool."""
    workflow = make_workflow(calls_per_minute=60, calls_at_once=4)
    assert passed(workflow, caller_with(60, 2), calls=50) == 2
    assert passed(workflow, Caller(key="token:2", name="other"), calls=50) == 2


@pytest.mark.parametrize("rated", ["tool", "toolset", "person", "default of tools"])
def test_rates_are_shared_by_all_callers_of_what_has_them(clock: Any, rated: str) -> None:
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


def test_a_call_costs_one_statement_for_each_of_its_rates(clock: Any) -> None:
    workflow, caller = make_workflow(calls_per_minute=600), caller_with(60_000)
    take_call(workflow, caller)
    with CaptureQueriesContext(connection) as asked:
        take_call(workflow, caller)
    assert len(asked) == 2


def test_a_caller_that_is_refused_asks_the_database_once(clock: Any) -> None:
    workflow, caller = make_workflow(), caller_with(6, 1)
    passed(workflow, caller, calls=2)
    with CaptureQueriesContext(connection) as asked:
        assert passed(workflow, caller, calls=100) == 0
    assert not asked


HAMMER = """
import sys, time
import django
django.setup()
from access.callers import Caller, rate_of
from executions.rates import take_call
from executions.refusals import TooManyCalls
from catalogue.models import Workflow

per_minute, at_once, seconds = map(int, sys.argv[1:])
rate = rate_of("token:1", per_minute, at_once, whose="the token")
caller, workflow, passed = Caller(key="token:1", name="agent", rates=(rate,)), Workflow.objects.get(), 0
print("ready", flush=True)
sys.stdin.readline()
end = time.monotonic() + seconds
while time.monotonic() < end:
    try:
        take_call(workflow, caller)
        passed += 1
    except TooManyCalls:
        time.sleep(0.002)
print(passed)
"""


@pytest.mark.e2e
@pytest.mark.parametrize(("per_minute", "at_once"), [(60, 5), (1200, 20), (6_000, 100)])
def test_two_processes_together_let_no_more_pass_than_the_rate(
    per_minute: int, at_once: int, tmp_path: Path
) -> None:
    make_workflow()
    forget_rates()
    seconds = 4
    environment = os.environ | {
        "DATABASE_URL": database_url(),
        "CATALOGUE_DATA_DIR": str(tmp_path),
        "SECRET_KEY": settings.SECRET_KEY,
        "DJANGO_SETTINGS_MODULE": "config.settings",
    }
    hammers = [
        subprocess.Popen(
            [sys.executable, "-c", HAMMER, str(per_minute), str(at_once), str(seconds)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for hammer in hammers:
        assert hammer.stdout is not None and hammer.stdout.readline() == "ready\n"
    begun = time.monotonic()
    for hammer in hammers:
        assert hammer.stdin is not None
        hammer.stdin.write("\n")
        hammer.stdin.flush()
    answers = [int(hammer.communicate()[0]) for hammer in hammers]
    took = time.monotonic() - begun
    assert sum(answers) <= at_once + per_minute / 60 * took
    # Nor many fewer.
    assert sum(answers) >= 0.7 * (at_once + per_minute / 60 * seconds)
