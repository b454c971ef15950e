"""A short run of `make chaos` on the stack that the tests run on."""

import subprocess
import sys

import pytest

from chaos.stacks import StackName, choose_name
from tests.e2e.product import environment
from tests.processes import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SHORT = ("--seed", "20", "--executions", "40", "--kills", "4", "--outage", "5", "--longest", "8")
NONE = {"lost": "0", "doubled": "0", "wrong": "0"}


def test_nothing_is_lost_and_nothing_done_twice_while_everything_is_killed() -> None:
    """A7.4, A8.4, B8: checked against the engines' own record; on servers they are disturbed as well."""
    options = [*SHORT, "--flush-broker"]
    if choose_name() is not StackName.SQLITE:
        options += ["--restart-database", "connections"]
    outcome = subprocess.run(
        [sys.executable, "-m", "chaos", *options],
        cwd=ROOT,
        env=environment({}),
        capture_output=True,
        text=True,
        check=False,
        timeout=850,
    )
    told = outcome.stdout[-10_000:] + outcome.stderr[-5_000:]
    assert outcome.returncode == 0, told
    stack, *figures = outcome.stdout.splitlines()[-1].split()
    found = dict(figure.split("=") for figure in figures)
    assert stack == choose_name()
    assert found | NONE == found, told
    assert found["kills"] == "4"
    assert int(found["completed"]) > 0
