"""Requests that arrive all at once, at processes with few connections to the database."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx2
import psycopg
import pytest

from connectors.testing import free_port
from dev.chaos.stacks import StackName, choose_name, own_stack
from tests import plain_http
from tests.e2e.product import environment, wait_until
from tests.processes import ROOT, run_python, running, web_command

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.databases("catalogue.database", "config.web_server"),
]

WORKER = {"PYTEST_XDIST_WORKER": os.environ.get("PYTEST_XDIST_WORKER", "gw0")}


@pytest.mark.parametrize("connections", ["6"] if choose_name() is StackName.SQLITE else ["6", "20"])
def test_all_requests_of_a_burst_are_accepted_or_refused_within_seconds_and_the_processes_stay_ready(
    connections,
):
    """B7: up to 500 starts beside 200 tool calls, far from the limits and near them, at one process and two;
    and then every other request that locks rows. Both processes end within their grace."""
    words = ["-m", "dev.chaos.bursts", "--connections", connections]
    outcome = run_python(words, environment=environment(WORKER), seconds=550)
    told = outcome.stdout[-10_000:] + outcome.stderr[-5_000:]
    assert outcome.returncode == 0, told
    assert outcome.stdout.splitlines()[-1] == f"{choose_name()} connections={connections} wrong=0", told


def test_a_process_whose_request_hangs_in_the_database_ends_after_its_grace(tmp_path):
    """A wrong token is counted, which waits for the lock of the table."""
    if choose_name() is StackName.SQLITE:
        pytest.skip("SQLite waits for a lock for 20 s at most")
    port, log = free_port(), tmp_path / "web.log"
    url = f"http://127.0.0.1:{port}"
    with own_stack(choose_name()) as stack, ThreadPoolExecutor(1) as caller:
        variables = environment({"CATALOGUE_DATA_DIR": str(tmp_path)} | stack.variables)
        subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=variables, check=True)
        command = web_command(port, graceful_seconds=1)
        with (
            running(command, answers_at=f"{url}/health/live", log=log, environment=variables) as web,
            psycopg.connect(stack.database_url) as other,
        ):
            other.execute("LOCK TABLE mcp_bridge_failurecount")
            caller.submit(ask_with_a_wrong_token, url)
            wait_until(lambda: waits_for_a_lock(other), 30)
            web.send_signal(signal.SIGINT)
            status = web.wait(timeout=15)
    assert status == -signal.SIGKILL
    assert "did not end within the 1 s" in log.read_text()


def ask_with_a_wrong_token(url: str) -> None:
    with suppress(httpx2.TransportError):
        plain_http.get(f"{url}/api/workflows/", headers={"authorization": "Bearer wfc_wrong"}, timeout=60)


def waits_for_a_lock(connection: psycopg.Connection) -> bool:
    waiting = (
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'mcp_bridge_failurecount'::regclass"
    )
    found = connection.execute(waiting).fetchone()
    return found is not None and found[0] > 0
