"""A real Restate server and the process of its services, for the length of a block or of the session."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from connectors.restate import RestateConfig, RestateConnector
from connectors.testing import free_port
from tests import plain_http
from tests.engines.guarding import do_without, install
from tests.processes import PROBE_SECONDS, ROOT, guarded

ENVIRONMENT = ROOT / ".venv-restate"
LOCK = "requirements/restate.lock"
FOLDER = "tests/engines/restate"
SERVER = "@restatedev/restate-server"
STARTUP_SECONDS = 60.0
TOKEN = "restate-token-0123456789abcdef"
ADMIN_TOKEN = "restate-admin-token-0123456789"


@dataclass
class RestateServer:
    """Where it answers. It can be killed and started again, with all that it knew."""

    directory: Path
    program: Path
    ingress: int = field(default_factory=free_port)
    admin: int = field(default_factory=free_port)
    node: int = field(default_factory=free_port)
    services: int = field(default_factory=free_port)
    _group: int = 0
    _serving: ExitStack = field(default_factory=ExitStack)
    _handlers: ExitStack = field(default_factory=ExitStack)

    def addresses(self) -> dict[str, str]:
        return {
            "ingress_url": f"http://127.0.0.1:{self.ingress}",
            "admin_url": f"http://127.0.0.1:{self.admin}",
        }

    def connector(self, **settings: Any) -> RestateConnector:
        """The open-source server has no access control, so it takes any tokens."""
        usual = {**self.addresses(), "token": TOKEN, "admin_token": ADMIN_TOKEN}
        return RestateConnector(RestateConfig.model_validate(usual | settings))

    def rows(self, condition: str) -> list[dict[str, Any]]:
        """Restate's own word of its invocations."""
        wanted = {"query": f"select * from sys_invocation where {condition}"}
        answer = plain_http.post(
            f"http://127.0.0.1:{self.admin}/query",
            json=wanted,
            headers={"accept": "application/json"},
            timeout=30,
        )
        rows: list[dict[str, Any]] = answer.raise_for_status().json()["rows"]
        return rows

    def serve_handlers(self) -> None:
        command = (str(ENVIRONMENT / "bin" / "python"), f"{FOLDER}/services.py", str(self.services))
        self._handlers.enter_context(guarded(command, log=self.directory / "services.log"))

    def stop_handlers(self) -> None:
        self._handlers.close()

    def start(self) -> None:
        process = self._serving.enter_context(
            guarded(
                (str(self.program), "--listen-mode=tcp", "--node-name=tests"),
                log=self.directory / "server.log",
                environment={
                    "RESTATE_BASE_DIR": str(self.directory / "data"),
                    "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{self.ingress}",
                    "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{self.admin}",
                    "RESTATE_BIND_ADDRESS": f"127.0.0.1:{self.node}",
                    "RESTATE_DEFAULT_NUM_PARTITIONS": "2",
                    "RESTATE_DISABLE_TELEMETRY": "true",
                },
            )
        )
        self._group = process.pid
        self._wait_until(lambda: self.rows("target = 'nothing'") == [], process)

    def register(self) -> None:
        wanted = {"uri": f"http://127.0.0.1:{self.services}"}
        url = f"http://127.0.0.1:{self.admin}/deployments"
        self._wait_until(
            lambda: plain_http.post(url, json=wanted, timeout=30).status_code == httpx2.codes.CREATED
        )

    def kill(self) -> None:
        """The server alone, in the middle of things."""
        self._serving.close()

    @contextmanager
    def silent(self) -> Iterator[None]:
        """It takes requests, and answers them after the block only."""
        os.killpg(self._group, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._group, signal.SIGCONT)

    def end(self) -> None:
        self._serving.close()
        self._handlers.close()

    def _wait_until(self, done: Any, process: subprocess.Popen[bytes] | None = None) -> None:
        deadline = time.monotonic() + STARTUP_SECONDS
        while time.monotonic() < deadline and (process is None or process.poll() is None):
            # Until the partitions have leaders, it answers 500 to queries.
            with suppress(httpx2.HTTPError):
                if done():
                    return
            time.sleep(PROBE_SECONDS)
        raise AssertionError(
            f"Restate did not come up: {(self.directory / 'server.log').read_text()[-2000:]}"
        )


@contextmanager
def running_restate(directory: Path) -> Iterator[RestateServer]:
    server = RestateServer(directory, _program())
    try:
        server.serve_handlers()
        server.start()
        server.register()
        yield server
    finally:
        server.end()


@pytest.fixture(scope="module")
def restate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestateServer]:
    """Up after about a second; import the name into the module that wants it."""
    with running_restate(tmp_path_factory.mktemp("restate")) as server:
        yield server


def _program() -> Path:
    install("Restate", "dev/scripts/install.py", str(ENVIRONMENT), LOCK)
    install("Restate", "dev/scripts/install_node.py", FOLDER)
    found = list((ROOT / FOLDER / "node_modules").glob(f"{SERVER}-*/bin/restate-server"))
    if not found:
        do_without("There is no Restate server for this machine on npm.")
    return found[0]
