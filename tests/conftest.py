"""Which tests there are for `-m`, and who runs them in what order."""

import re
from zlib import crc32

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling, Scheduling

from tests.isolation import A_DATABASE, A_SERVER, FOREIGN_SERVERS, WHOLE_PRODUCT, is_by_place, names
from tests.thoroughness import leave_out_variants


def pytest_configure(config: pytest.Config) -> None:
    """Who only hands tests out needs nothing of the product, which takes a second to import."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("tests.given")


LARGE_SECONDS = 300
"""For a test of those: its processes share two cores with those of four others."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`make test` leaves out what starts many processes; which tests do so is told by their fixtures."""
    leave_out_variants(config, items)
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures & WHOLE_PRODUCT or is_by_place(item.path):
            item.add_marker("e2e")
        elif fixtures & FOREIGN_SERVERS and item.get_closest_marker("e2e") is None:
            item.add_marker("engines")
        is_large = item.get_closest_marker("e2e") or item.get_closest_marker("engines")
        if is_large and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LARGE_SECONDS))
        is_database = item.get_closest_marker("databases") is not None
        if is_large and not is_by_place(item.path) and not names(item.path, A_SERVER):
            raise pytest.UsageError(f"{item.nodeid} gets a server whose fixture its module does not name.")
        if is_database and not names(item.path, A_DATABASE):
            raise pytest.UsageError(f"{item.nodeid} gets the mark `databases` from another module.")


SHARED_PRODUCT = {
    "test_clients",
    "test_lifecycle",
    "test_run_by_hand",
    "test_told_of_changes",
    "test_typescript",
}
"""Modules of tests/e2e that use one running product."""
THE_SHARED_PRODUCT = "the shared product"
SHARED_SERVERS = {
    "test_prefect": "the Prefect server",
    "test_http_job_airflow_and_dagster": "Airflow and Dagster",
}
"""For all modules of the name: to start them takes 15 s of CPU each."""
SHARES_NOTHING = {"test_chaos"}
"""Modules whose tests have nothing in common; two of them may run at the same time."""
SHARES = {"test_pages_in_a_browser": 5, "test_lists_in_a_browser": 3, "test_buttons_in_a_browser": 2}
"""Modules that several workers share, each with a browser of its own: one would be the last by minutes."""
PART = re.compile(r"\[part-(\d+)\]$")
"""Of what a test looks at: each for another worker."""


class ByModule(LoadScopeScheduling):
    """A module's tests run in one worker, but for SHARES, so that what the module shares is started once."""

    def _split_scope(self, nodeid: str) -> str:
        # Called twice for each test, for which a Path would take as long as all else of this.
        module = nodeid.partition("::")[0]
        *_, folder, name = module.removesuffix(".py").split("/")
        if folder == "e2e" and name in SHARED_PRODUCT:
            return THE_SHARED_PRODUCT
        if name in SHARED_SERVERS:
            return SHARED_SERVERS[name]
        if name in SHARES_NOTHING:
            return nodeid
        if name in SHARES:
            part = PART.search(nodeid)
            number = int(part[1]) if part else crc32(nodeid.encode())
            return f"{module}#{number % SHARES[name]}"
        return module


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    return ByModule(config, log) if config.getoption("dist") == "load" else None
