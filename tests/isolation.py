"""Loaded before Django's settings (`-p tests.isolation`): tests get a data folder of their own.

Only DATABASE_URL and CELERY_BROKER_URL are taken over: they choose the stack that the tests run on.
"""

import atexit
import gc
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from _pytest import runner
from _pytest.unraisableexception import gc_collect_iterations_key

ROOT = Path(__file__).resolve().parents[1]
PRODUCT_VARIABLES = ("SECRET_KEY", "PORT", "LOG_LEVEL", "LOG_FORMAT")
PREFIXES = ("CATALOGUE_", "OPENAI_")
"""Whoever has a model configured must not have it asked by tests."""
WHOLE_PRODUCTS = ROOT / "tests" / "e2e"
IN_A_BROWSER = "_in_a_browser"
"""The tests in that folder and in modules whose names end so get the mark `e2e`."""
WHOLE_PRODUCT = {"stdio_server", "other_process"}
"""Fixtures that start the product as a process; their tests get that mark, too."""
FOREIGN_SERVERS = {"temporal_server", "prefect", "restate", "job_engines", "buildbot", "n8n_server"}
FOREIGN_SERVERS |= {"everything", "mcp_servers", "mcp_programs", "asking_server", "library_server"}
FOREIGN_SERVERS |= {"small_model"}
"""Fixtures that start what is not ours, or need what a machine may lack: the mark `engines`."""
A_SERVER = re.compile(rf'\b({"|".join(WHOLE_PRODUCT | FOREIGN_SERVERS)})[:",)]|mark\.(e2e|engines)\b')
A_DATABASE = re.compile(r"mark\.databases\b")
"""In the source of each module with tests that get these marks."""
SOUGHT = {"engines or e2e": A_SERVER, "engines": A_SERVER, "e2e": A_SERVER}
SOUGHT |= {"databases and not engines": A_DATABASE}
"""By the expression for `-m`; most modules then have nothing to run, and took half a minute to import."""
THRESHOLDS = 20_000, 20, 20
"""Of the garbage collector, which takes 2 % of the CPU of all tests with these and 4 % with Python's."""


NOT_NEEDED = {
    "_dj_autoclear_mailbox",
    "_django_clear_site_cache",
    "_django_isolate_apps",
    "_django_set_urlconf",
    "_django_setup_unittest",
    "_fail_for_invalid_template_variable",
    "_live_server_helper",
    "_template_string_if_invalid_marker",
}
"""What pytest-django gives each test for mail, sites, `unittest` and marks that no test here has: a sixth of
the time of a test that takes none."""


STACK_SIZE = 70_000
"""Values of a frame that gets a megabyte, of which most is left for the frames of what it calls."""


def _with_room(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with room for its whole stack.

    Python keeps a thread's frames in chunks of 16 kB, and returns one to the system as soon as its first
    frame ends: what is called in a loop at such a border maps memory each time, 700 times for a list of the
    admin. Tests, whose stacks are deep, take a seventh less CPU with this.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_stacksize=STACK_SIZE)
    return call


def _folder() -> str:
    """Of the whole run, for all that it writes; removed at its end, since pytest-xdist kills its workers."""
    if "PYTEST_DEBUG_TEMPROOT" not in os.environ:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.mkdtemp(prefix="workflow-catalogue-tests-")
        atexit.register(shutil.rmtree, os.environ["PYTEST_DEBUG_TEMPROOT"], ignore_errors=True)
    return os.environ["PYTEST_DEBUG_TEMPROOT"]


def isolate() -> None:
    for name in list(os.environ):
        if name in PRODUCT_VARIABLES or name.startswith(PREFIXES):
            del os.environ[name]
    # Without bytecode every process that a test starts compiles the product anew: 2 s of CPU.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    os.environ["CATALOGUE_DATA_DIR"] = tempfile.mkdtemp(prefix="data-", dir=_folder())
    # What hypothesis works out of Unicode and of our modules takes it 2 s of CPU without this.
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(ROOT / ".cache" / "hypothesis")
    os.environ["LOG_LEVEL"] = "WARNING"


def pytest_configure(config: pytest.Config) -> None:
    # At the very end once is enough, not five times: tests.leaks has looked after each test.
    config.stash[gc_collect_iterations_key] = 1
    if not config.option.durations:
        for plugin in config.pluginmanager.get_plugins():
            if type(plugin).__name__ == "WorkerInteractor":
                plugin.sendevent = partial(_send_if_news, plugin.sendevent)


def _send_if_news(send: Callable[..., None], name: str, **told: Any) -> None:
    """Half of what a worker of pytest-xdist sends is that a test begins, that its fixtures did not fail when
    they were set up, and when they were torn down: 3 % of the CPU of all tests."""
    if name == "testreport" and told["data"]["when"] != "call" and told["data"]["outcome"] == "passed":
        return
    if name != "logstart":
        send(name, **told)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[object]:
    given_to_all = session._fixturemanager._node_autousenames[session]
    given_to_all[:] = [name for name in given_to_all if name not in NOT_NEEDED]
    try:
        return (yield)
    finally:
        # Modules and tests live as long as the process; collecting garbage need not look at them each time,
        # and looking through them once for the little that is garbage takes more than it frees.
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What `-m` leaves out as a whole need not be imported."""
    return (collection_path.suffix == ".py" and _is_left_out(collection_path, config)) or None


def _is_left_out(path: Path, config: pytest.Config) -> bool:
    expression = config.option.markexpr
    if expression in SOUGHT:
        return not (SOUGHT[expression] is A_SERVER and is_by_place(path)) and not names(
            path, SOUGHT[expression]
        )
    return "not e2e" in expression and " or " not in expression and is_by_place(path)


def is_by_place(path: Path) -> bool:
    """Whether its tests get the mark `e2e` for where they are."""
    return path.is_relative_to(WHOLE_PRODUCTS) or path.stem.endswith(IN_A_BROWSER)


@cache
def names(path: Path, sought: re.Pattern[str]) -> bool:
    """Whether a module of tests has this in its source."""
    return sought.search(path.read_text()) is not None


# For jsonschema, which does without where the product runs: it takes 1.2 s of CPU to import.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
isolate()
runner.runtestprotocol = _with_room(runner.runtestprotocol)
threading.Thread.run = _with_room(threading.Thread.run)  # type: ignore[method-assign]
# What is imported and collected stays; looking for garbage among it takes a fifth of that time.
gc.disable()
pytest.register_assert_rewrite("connectors.testing")
