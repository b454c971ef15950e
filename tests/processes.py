"""Real processes for tests to talk to."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from django.db import connection

from connectors.testing import free_port
from tests import plain_http

ROOT = Path(__file__).resolve().parents[1]
STARTUP_SECONDS = 60.0
PROBE_SECONDS = 0.02
WATCH = 'cat > /dev/null; kill -s KILL -- "-$1"'
"""Its input ends when whoever holds the other end of the pipe is gone, however that came about."""


@dataclass(frozen=True)
class ExampleEngine:
    """The engine of examples/engine, running."""

    base_url: str
    api_key: str = field(repr=False)

    def runs(self, **filters: str) -> list[dict[str, object]]:
        """The engine's own record of what was started."""
        headers = {"authorization": f"Api-Key {self.api_key}"}
        response = plain_http.get(f"{self.base_url}/runs", params=filters, headers=headers)
        runs: list[dict[str, object]] = response.raise_for_status().json()["runs"]
        return runs


def database_url() -> str:
    """The tests' own database, for another process."""
    name = connection.settings_dict["NAME"]
    if connection.vendor == "sqlite":
        return f"sqlite:///{name}"
    return f"{os.environ['DATABASE_URL'].rpartition('/')[0]}/{name}"


def run_python(
    words: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    umask: int = 0o022,
    seconds: float = 100,
) -> "subprocess.CompletedProcess[str]":
    """What `python WORDS` does in the project's folder: `-c PROGRAM`, or a script and its arguments."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=environment,
        umask=umask,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def web_command(port: int, *, graceful_seconds: int = 2) -> list[str]:
    """A web process of the product, as operators start it."""
    return [
        sys.executable,
        "manage.py",
        "serve",
        f"--port={port}",
        f"--graceful-seconds={graceful_seconds}",
    ]


@contextmanager
def running(
    command: Sequence[str], *, answers_at: str, log: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server for the length of the block, which begins once it answers 2xx at that URL.

    It is in a process group of its own, of which nothing is left when this process is killed.
    """
    with guarded(command, log=log, environment=environment) as process:
        _wait_until_it_answers(process, answers_at, log)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(timeout=10)


@contextmanager
def listening(
    command: Sequence[str], *, port: int, log: Path, environment: dict[str, str] | None = None
) -> Iterator[None]:
    """The same for a server that takes connections to that port, whatever it answers."""
    with guarded(command, log=log, environment=environment) as process:
        deadline = time.monotonic() + STARTUP_SECONDS
        while True:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            assert time.monotonic() < deadline and process.poll() is None, log.read_text()[-2000:]
            time.sleep(PROBE_SECONDS)
        yield


@contextmanager
def guarded(
    command: Sequence[str], *, log: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in a process group of its own, of which nothing is left after the block."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | (environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    watcher = watched(process.pid)
    try:
        yield process
    finally:
        end_group(process)
        watcher.kill()
        watcher.communicate()


def end_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def watched(group: int) -> "subprocess.Popen[bytes]":
    """The process that kills that process group when this one is gone."""
    command = ["sh", "-c", WATCH, "watch", str(group)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


@contextmanager
def running_example_engine(directory: Path, *options: str) -> Iterator[ExampleEngine]:
    port = free_port()
    engine = ExampleEngine(f"http://127.0.0.1:{port}", "example-key-0123456789abcdef")
    database = directory / "engine.sqlite3"
    command = [sys.executable, "-m", "examples.engine", f"--port={port}", f"--db={database}", *options]
    with running(
        command,
        answers_at=f"{engine.base_url}/healthz",
        log=directory / "engine.log",
        environment={"EXAMPLE_ENGINE_API_KEY": engine.api_key},
    ):
        yield engine


def _wait_until_it_answers(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + STARTUP_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if _answers(url):
            return
        time.sleep(PROBE_SECONDS)
    raise AssertionError(f"{url} does not answer (exit code {process.poll()}): {log.read_text()[-2000:]}")


def _answers(url: str) -> bool:
    try:
        return plain_http.get(url, timeout=2).is_success
    except httpx2.TransportError:
        return False
