"""A process that ends anywhere in a call loses nothing, doubles nothing and records nothing wrong."""

import pytest

from dev.chaos.crashpoints import KINDS, PARTS
from tests.processes import run_python

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.mark.parametrize("part", range(PARTS))
def test_a_call_is_ended_at_each_of_its_steps_and_others_go_on(part):
    """A7.5, E6, issue 15."""
    done = run_python(["-m", "dev.chaos.crashpoints", f"--part={part}"], seconds=580)
    *kinds, last = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert last.startswith("0 lost, doubled or wrong")
    assert [line.partition(" (on")[0] for line in kinds] == [kind.name for kind in KINDS[part::PARTS]]
    for line in kinds:
        at_statements, at_requests = line.split("; ")[1:]
        assert "never recorded" in at_statements, line
        assert "completed, ran" in at_requests or "unconfirmed, ran" in at_requests, line
