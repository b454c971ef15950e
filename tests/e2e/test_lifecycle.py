"""Starting, stopping and being killed: what a person at a terminal can rely on."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import psutil
import pytest

from connectors.testing import free_port
from tests.e2e.browser import Browser
from tests.e2e.product import QUICKSTART, environment, place_for_one, started, wait_until
from tests.e2e.test_clients import client_of_2026
from tests.processes import ROOT

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


def refusal(variables: dict[str, str]) -> str:
    """What a start says that is refused at once."""
    outcome = subprocess.run(
        QUICKSTART,
        cwd=ROOT,
        env=environment(variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert outcome.returncode == 1
    return outcome.stderr


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
def test_ctrl_c_ends_everything_without_an_error(first_start: FirstStart) -> None:
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


def test_taken_port_is_a_sentence_that_names_it_and_another(product, tmp_path):
    told = refusal({"PORT": str(product.port), "CATALOGUE_DATA_DIR": str(tmp_path)})
    assert f"Port {product.port} is in use" in told
    assert f"PORT={product.port + 1} make run" in told
    assert len(told.strip().splitlines()) == 1


def test_start_in_a_folder_in_use_says_where_the_other_one_is(place, product):
    told = refusal(place | {"PORT": str(free_port())})
    assert f"already running at http://localhost:{product.port}" in told


def test_secrets_are_for_their_owner_only(product, place):
    folder = Path(place["CATALOGUE_DATA_DIR"])
    for name in ("secret_key", "quickstart-token", "example-engine.json"):
        assert (folder / name).stat().st_mode & 0o077 == 0
