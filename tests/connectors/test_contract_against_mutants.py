"""The contract passes a faultless connector and fails each of its mutants, by the promise that it breaks."""

import pytest

from connectors.errors import ConnectorError
from connectors.testing import ConnectorContract
from tests.connectors import mutants
from tests.connectors.mutants import MUTANTS
from tests.processes import ROOT

pytest_plugins = ["pytester"]

INI = """[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
"""
OPTIONS = ["--noconftest", "--import-mode=importlib", "--tb=native", "--show-capture=no"]
OPTIONS += [f"-pno:{plugin}" for plugin in ("cacheprovider", "django", "randomly", "schemathesis", "xdist")]
PASSED, FAILED = "passed", "failed"
BY_A_PROMISE = (AssertionError, pytest.fail.Exception, ConnectorError, TimeoutError)
"""What a test of the contract fails with. A mutant's own mistake is something else."""
TESTS = {name for name in dir(ConnectorContract) if name.startswith("test_")}
NOT_OF_THIS_ENGINE = {
    "test_a_start_that_lasts_tells_how_far_it_is_and_ends_at_the_engine_when_it_is_broken_off"
}
"""Its starts do not last as long as their runs."""


@pytest.fixture
def outcomes(pytester: pytest.Pytester) -> dict[str, str]:
    """How each test of the mutants' module ended, by `Class::test[mutant]`."""
    ini = pytester.makeini(INI)
    ran = pytester.inline_run(*OPTIONS, f"-c{ini}", f"--rootdir={ROOT}", mutants.__file__)
    told: dict[str, str] = {}
    for made in ran.getcalls("pytest_runtest_makereport"):
        name, failure = made.item.nodeid.partition("::")[2], made.call.excinfo
        if failure is None:
            told.setdefault(name, PASSED)
        else:
            told[name] = FAILED if failure.errisinstance(BY_A_PROMISE) else failure.exconly()
    return told


def test_the_contract_lets_good_connectors_pass_and_no_mutant(outcomes):
    """B10: a connector from elsewhere is as good as the contract that it is held to."""
    good = ("TestFaultless", "TestFaultlessWithoutCredentials")
    wanted = {f"{kind}::{test}": PASSED for kind in good for test in TESTS}
    wanted |= {f"TestMutants::{mutant.broken}[{name}]": FAILED for name, mutant in MUTANTS.items()}
    assert {name: outcome for name, outcome in outcomes.items() if wanted.get(name) != outcome} == {}
    assert outcomes.keys() == wanted.keys()


def test_every_test_of_the_contract_has_a_mutant_that_fails_it():
    """B10: what no connector could fail promises nothing."""
    assert TESTS - {mutant.broken for mutant in MUTANTS.values()} == NOT_OF_THIS_ENGINE
