"""A real Prefect server and a real process that serves flows, for the length of a block or of the session."""

import hashlib
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import psutil
import pytest

from connectors.prefect import PrefectConfig, PrefectConnector
from connectors.protocol import RunRef
from connectors.testing import free_port
from tests import plain_http
from tests.engines.guarding import install
from tests.processes import PROBE_SECONDS, ROOT, guarded

ENVIRONMENT = ROOT / ".venv-prefect"
LOCK = "requirements/prefect.lock"
EMPTY_DATABASES = ROOT / ".cache" / "prefect"
"""What releases of Prefect make of a new database, by their lock file."""
FLOWS = "tests/engines/prefect/flows.py"
SERVED = 9
"""Deployments that FLOWS serves."""
STARTUP_SECONDS = 100.0
BUSY_TRIES = 20
AUTH = "tester:prefect-password-0123456789"
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
NOT_NEEDED = ("SCHEDULER", "TRIGGERS", "FOREMAN", "EVENT_PERSISTER", "REPOSSESSOR")
"""Services that cost the server time and that no test looks at."""


@dataclass
class PrefectServer:
    """Where it answers. It can be stopped and started again, with all that it knew."""

    directory: Path
    port: int = field(default_factory=free_port)
    ended_runs: dict[str, RunRef] = field(default_factory=dict)
    """By workflow: runs that tests may look at again, since each costs some seconds."""
    _serving: ExitStack = field(default_factory=ExitStack)
    _worker: ExitStack = field(default_factory=ExitStack)
    _groups: set[int] = field(default_factory=set)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    def connector(self, **settings: Any) -> PrefectConnector:
        usual = {"base_url": self.base_url, "auth_string": AUTH, "request_timeout_seconds": 20.0}
        return PrefectConnector(PrefectConfig.model_validate(usual | settings))

    def ask(self, path: str, body: Any = None) -> Any:
        """Prefect's own word, by POST; asked again while its database is busy."""
        user, password = AUTH.split(":")
        for _ in range(BUSY_TRIES):
            response = plain_http.post(
                f"{self.base_url}{path}",
                json=body or {},
                auth=(user, password),
                timeout=30,
            )
            if response.status_code != httpx2.codes.SERVICE_UNAVAILABLE:
                break
            time.sleep(5 * PROBE_SECONDS)
        return response.raise_for_status().json()

    def deployments(self) -> dict[str, str]:
        """The ids by names, which these flows have only once."""
        return {row["name"]: row["id"] for row in self.ask("/deployments/filter")}

    def deploy_without_worker(self) -> str:
        """The id of a new deployment of `greet` that nobody serves."""
        known = next(row for row in self.ask("/deployments/filter") if row["name"] == "plain")
        kept = ("flow_id", "parameter_openapi_schema", "entrypoint", "path", "enforce_parameter_schema")
        wanted = {name: known[name] for name in kept} | {"name": f"nobody-{uuid4().hex[:8]}"}
        created: str = self.ask("/deployments/", wanted)["id"]
        return created

    def cancel_everything(self) -> None:
        """What still goes on would take the time of the tests that follow."""
        kept = {run.run_id for run in self.ended_runs.values()}
        for run in self.ask("/flow_runs/filter"):
            if run["state_type"] not in ENDED and run["id"] not in kept:
                with suppress(httpx2.HTTPStatusError):
                    self.ask(f"/flow_runs/{run['id']}/set_state", {"state": {"type": "CANCELLING"}})

    def start(self) -> None:
        """Prefect takes 6 s of CPU to make a new database; one that it made before is copied."""
        database, empty = self.directory / "home" / "prefect.db", _empty_database()
        is_new = not database.exists()
        if is_new and empty.exists():
            database.parent.mkdir()
            shutil.copyfile(empty, database)
        command = ("prefect", "server", "start", "--no-ui", "--host=127.0.0.1", f"--port={self.port}")
        process = self._run(self._serving, "server.log", *command)
        self._wait_until(self._answers, process, "server.log")
        if is_new and not empty.exists():
            _keep(database, empty)

    def kill(self) -> None:
        """The server alone, in the middle of things; flows go on, and wait for it where they need it."""
        self._serving.close()

    def serve_flows(self) -> None:
        """Anew where it was done before: who missed the server for long hears of no cancellation any more."""
        self._worker.close()
        process = self._run(self._worker, "serve.log", "python", FLOWS)
        self._wait_until(lambda: len(self.ask("/deployments/filter")) >= SERVED, process, "serve.log")

    def end(self) -> None:
        self._worker.close()
        self._serving.close()

    def send_signal(self, number: signal.Signals) -> None:
        """To the server and to what serves its flows."""
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, number)

    def _run(self, stack: ExitStack, log: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = (str(ENVIRONMENT / "bin" / program), *arguments)
        process = stack.enter_context(
            guarded(command, log=self.directory / log, environment=self._variables())
        )
        stack.callback(_kill_descendants, process.pid)
        self._groups.add(process.pid)
        stack.callback(self._groups.discard, process.pid)
        return process

    def _variables(self) -> dict[str, str]:
        settings = {
            "HOME": str(self.directory / "home"),
            "API_URL": self.base_url,
            "SERVER_API_AUTH_STRING": AUTH,
            "API_AUTH_STRING": AUTH,
            "SERVER_ANALYTICS_ENABLED": "false",
            "SERVER_UI_ENABLED": "false",
            "SERVER_API_BLOCKS_REGISTER_ON_START": "false",
            "SERVER_SERVICES_LATE_RUNS_LOOP_SECONDS": "1",
            "SERVER_SERVICES_LATE_RUNS_AFTER_SECONDS": "1",
            "RUNNER_POLL_FREQUENCY": "1",
            "RUNNER_PROCESS_LIMIT": "20",
            "LOGGING_TO_API_BATCH_INTERVAL": "0.2",
        }
        settings |= {f"SERVER_SERVICES_{name}_ENABLED": "false" for name in NOT_NEEDED}
        prefixed = {f"PREFECT_{name}": value for name, value in settings.items()}
        return prefixed | {"DO_NOT_TRACK": "1", "NO_PROXY": "127.0.0.1", "PYTHONUNBUFFERED": "1"}

    def _answers(self) -> bool:
        return bool(self.ask("/flow_runs/count") >= 0)

    def _wait_until(self, done: Any, process: subprocess.Popen[bytes], log: str) -> None:
        deadline = time.monotonic() + STARTUP_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            with suppress(httpx2.HTTPError):
                if done():
                    return
            time.sleep(5 * PROBE_SECONDS)
        told = (self.directory / log).read_text()[-2000:]
        raise AssertionError(f"Prefect did not come up (exit code {process.poll()}): {told}")


@contextmanager
def running_prefect(directory: Path) -> Iterator[PrefectServer]:
    server = PrefectServer(directory)
    try:
        server.start()
        server.serve_flows()
        yield server
    finally:
        server.end()


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    install("Prefect", "dev/scripts/install.py", str(ENVIRONMENT), LOCK)
    with running_prefect(tmp_path_factory.mktemp("prefect")) as server:
        yield server


@pytest.fixture(scope="module")
def prefect(prefect_server: PrefectServer) -> Iterator[PrefectServer]:
    """One for the tests of a process, up after about 20 s; import the name into the modules that want it.

    Without work it takes 6 % of a core, so it stands still when no module has to do with it.
    """
    prefect_server.send_signal(signal.SIGCONT)
    yield prefect_server
    prefect_server.send_signal(signal.SIGSTOP)


def _empty_database() -> Path:
    lock = hashlib.sha256((ROOT / LOCK).read_bytes()).hexdigest()
    return EMPTY_DATABASES / f"{lock[:16]}.sqlite3"


def _keep(database: Path, copy: Path) -> None:
    """The server is at work on it, so SQLite copies it; its new name it gets once it is whole."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    unfinished = copy.with_suffix(f".{os.getpid()}")
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(unfinished)) as target:
        source.backup(target)
    unfinished.replace(copy)


def _kill_descendants(pid: int) -> None:
    """Each flow run has a session of its own, out of reach of whoever ends the process that serves it."""
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
