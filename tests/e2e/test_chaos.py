"""A short run of `make chaos` on the stack that the tests run on."""

import os

import pytest

from dev.chaos.stacks import StackName, choose_name
from tests.e2e.product import environment
from tests.processes import run_python

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SHORT = ("--seed", "20", "--executions", "40", "--kills", "4", "--outage", "5", "--longest", "8")
NONE = {"lost": "0", "doubled": "0", "wrong": "0"}

# Ports are divided among the workers by it.
WORKER = {"PYTEST_XDIST_WORKER": os.environ.get("PYTEST_XDIST_WORKER", "gw0")}


def disturb(*words: str) -> tuple[str, dict[str, str], str]:
    """Returns the stack that it ran on, its figures and what it printed."""
    outcome = run_python(["-m", *words], environment=environment(WORKER), seconds=850)
    told = outcome.stdout[-10_000:] + outcome.stderr[-5_000:]
    assert outcome.returncode == 0, told
    stack, *figures = outcome.stdout.splitlines()[-1].split()
    return stack, dict(figure.split("=") for figure in figures), told


def test_nothing_is_lost_and_nothing_done_twice_while_everything_is_killed():
    """A7.4, A8.4, B8: checked against the engines' own record; on servers they are disturbed as well."""
    options = [*SHORT, "--flush-broker"]
    if choose_name() is not StackName.SQLITE:
        options += ["--restart-database", "connections"]
    stack, found, told = disturb("dev.chaos", *options)
    assert stack == choose_name()
    assert found | NONE == found, told
    assert found["kills"] == "4"
    assert int(found["completed"]) > 0


def test_what_people_approve_runs_once_and_as_approved_while_processes_are_killed():
    """30 calls and 2 kills; `make chaos RUN=approvals` makes 1,000 of them."""
    _, found, told = disturb("dev.chaos.approvals", "--calls", "30", "--kills", "2", "--seed", "5")
    assert (found["wrong"], found["kills"]) == ("0", "2"), told
    assert 0 < int(found["runs"]) < 30, told


def test_no_call_breaks_off_while_old_processes_are_replaced_by_a_next_version():
    """E10: over one database, which the next version's migration expands; a call that is too long for a
    process that ends is answered with its execution. `make chaos RUN=rolling` takes longer."""
    _, found, told = disturb("dev.chaos.rolling", "--clients", "8", "--seed", "3", "--between", "1")
    assert found["violations"] == "0", told
    assert int(found["broken"]) <= 2, "but for requests that arrive while a socket is being closed"
    assert int(found["old"]) > 0 and int(found["new"]) > 0, told
