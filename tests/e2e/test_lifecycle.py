"""Starting, stopping and being killed: what a person at a terminal can rely on."""

import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import psutil
import pytest

from tests.e2e.browser import Browser
from tests.e2e.product import place_for_one, started, wait_until
from tests.e2e.test_clients import client_of_2026

pytestmark = pytest.mark.e2e

WORKER = ("celery", "worker")
TAKEN_OVER_SECONDS = 90
"""For another worker to start and the killed one's lease, of twenty seconds, to run out."""


@dataclass
class FirstStart:
    """A place that was used once, and what was seen then."""

    place: dict[str, str]
    password: str
    token: str
    output: str
    exit_code: int


@pytest.fixture(scope="module")
def first_start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FirstStart]:
    """`make run` until Ctrl-C, with this environment in the place of .venv, which is not made here."""
    command = ("make", "--old-file=install", "run", f"BIN={quote(str(Path(sys.executable).parent))}")
    with (
        place_for_one(tmp_path_factory.mktemp("first") / "data", is_empty=True) as place,
        started(place, command) as product,
    ):
        product.wait_until_up()
        password = product.password
        assert password
        product.manage("disable_workflows", "--source", "example-engine", "countdown")
        with Browser(product) as browser:
            assert browser.log_in(password).status_code == 302
        product.stop(signal.SIGINT)
        yield FirstStart(place, password, product.token, product.output, product.process.returncode)


async def test_run_nobody_waits_for_ends_correctly_though_the_worker_was_killed(product, rest):
    """The database is the truth: the supervisor starts another worker, and that one goes on."""
    async with client_of_2026(product) as client:
        handle = (await client.call_tool("countdown", {"seconds": 7})).structured_content
    assert handle["state"] == "running"
    killed = wait_until(lambda: product.program(*WORKER), 10, product.told)
    killed.kill()
    execution = wait_until(
        lambda: (found := rest.execution(handle["execution_id"]))["state"] != "running" and found,
        TAKEN_OVER_SECONDS,
        product.told,
    )
    assert execution["state"] == "completed"
    assert execution["output"]["seconds"] == 7
    replacement = product.program(*WORKER)
    assert replacement and replacement.pid != killed.pid


@pytest.mark.timeout(240)
def test_ctrl_c_ends_everything_without_an_error(first_start):
    # Called by another make, or where SIGINT is ignored, make has a word of its own to say about its folder.
    told = [line for line in first_start.output.splitlines() if not line.startswith("make")]
    assert told[-1] == "Stopped."
    assert "***" not in first_start.output, "make has nothing to complain about"
    assert "Traceback" not in first_start.output
    assert first_start.exit_code in (0, -signal.SIGINT), "make itself dies of the signal, as shells expect"


@pytest.mark.timeout(240)
def test_second_start_keeps_what_the_first_one_made(first_start):
    with started(first_start.place) as product:
        product.wait_until_up()
        assert product.token == first_start.token
        assert product.password is None
        assert "7 workflows" in product.output, "what the curator disabled stays disabled"
        with Browser(product) as browser:
            assert browser.log_in(first_start.password).status_code == 302
        product.stop(signal.SIGTERM, group=False)
        assert product.process.returncode == 0


@pytest.mark.timeout(240)
def test_nothing_outlives_the_command(first_start):
    with started(first_start.place) as product:
        product.wait_until_up()
        product.stop(signal.SIGKILL, group=False)


@pytest.mark.timeout(240)
def test_nothing_outlives_the_supervisor(first_start):
    with started(first_start.place) as product:
        product.wait_until_up()
        family, supervisor = product.family(), product.program("supervisor.supervisord")
        assert supervisor
        supervisor.kill()
        _, left = psutil.wait_procs(family, timeout=15)
        assert not left, product.told()
        # What the pipe holds when the last process has gone is read a moment later.
        wait_until(lambda: "The supervisor ended unexpectedly" in product.output, 10, product.told)
