"""The whole product as processes, with a data folder, ports and a database of its own."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx2
import psutil
import psycopg
from mcp_types import Implementation

from connectors.testing import free_port
from tests import plain_http
from tests.migrated import copy_migrated
from tests.processes import ROOT, run_python, running, watched, web_command

AGENT = Implementation(name="agent", version="1.0")
"""A client with a name, which waits for as long as the product lets it."""
START_SECONDS = 90.0
STOP_SECONDS = 25.0
QUICKSTART = (sys.executable, "manage.py", "quickstart")


class Product:
    """One `manage.py quickstart` (or another command that ends up there), from its start to its end."""

    def __init__(self, variables: Mapping[str, str], command: tuple[str, ...] = QUICKSTART) -> None:
        self.variables = dict(variables)
        self.port = int(variables["PORT"])
        self.url = f"http://127.0.0.1:{self.port}"
        self.started_at = time.monotonic()
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(self.variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A process group of its own, as a terminal would give it.
            start_new_session=True,
        )
        # A worker that is killed leaves nothing running either.
        self._watcher = watched(self.process.pid)
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def wait_until_up(self) -> float:
        """Until the banner is there; the seconds that it took."""
        wait_until(lambda: "  - Read on: " in self.output or self._ended, START_SECONDS, self.told)
        assert not self._ended, self.output
        return time.monotonic() - self.started_at

    def told(self) -> str:
        return self.output[-6000:]

    @property
    def token(self) -> str:
        found = re.search(r"Token +(wfc_\S+)", self.output)
        assert found, self.output
        return found[1]

    @property
    def password(self) -> str | None:
        found = re.search(r"Login +admin / (\S+) +\(shown only once", self.output)
        return found[1] if found else None

    def family(self) -> list[psutil.Process]:
        """The started process and all its descendants."""
        try:
            ancestor = psutil.Process(self.process.pid)
            return [ancestor, *ancestor.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def program(self, *words: str) -> psutil.Process | None:
        """The process whose command line has all these words, if it is running."""
        for process in self.family():
            try:
                line = process.cmdline()
            except psutil.Error:
                continue
            if all(word in line for word in words) and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None

    def manage(self, *arguments: str) -> str:
        """What a management command prints, on the same data."""
        outcome = run_python(["manage.py", *arguments], environment=environment(self.variables))
        assert outcome.returncode == 0, outcome.stderr
        return outcome.stdout.strip()

    def add_source(self, name: str, kind: str, config: Mapping[str, Any], *options: str) -> None:
        """Add it and list it once; later listings are made by hand."""
        words = ("--config", json.dumps(config), "--refresh-interval=0", *options)
        self.manage("add_source", name, kind, *words)
        self.manage("refresh_sources", name)

    def stop(self, number: int = signal.SIGINT, *, group: bool = True) -> float:
        """Send the signal; the seconds until everything had ended. Nothing may be left."""
        family, sent_at = self.family(), time.monotonic()
        if group:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)
        self.process.wait(timeout=STOP_SECONDS)
        _, left = psutil.wait_procs(family, timeout=max(0.1, STOP_SECONDS - (time.monotonic() - sent_at)))
        assert not left, f"Still running: {left}\n{self.told()}"
        self._reader.join(timeout=5)
        return time.monotonic() - sent_at

    def kill(self) -> None:
        """Whatever the test made of it."""
        # Those who start others first: a supervisor would replace a worker that is gone.
        for process in self.family():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait()
        self._watcher.kill()
        self._watcher.communicate()
        self._reader.join(timeout=5)
        if self.process.stdout:
            self.process.stdout.close()

    @property
    def _ended(self) -> bool:
        return self.process.poll() is not None

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)


@contextmanager
def started(variables: Mapping[str, str], command: tuple[str, ...] = QUICKSTART) -> Iterator[Product]:
    """A product that surely is gone after the block."""
    product = Product(variables, command)
    try:
        yield product
    finally:
        product.kill()


IMPATIENT = {"CATALOGUE_INLINE_WAIT": "2", "CATALOGUE_STATUS_CHECK_INTERVAL": "1"}


@contextmanager
def product_of_engine(folder: Path, kind: str, config: Mapping[str, Any], *options: str) -> Iterator[Product]:
    """A product with one source, of the name of its kind, whose workflows nobody has enabled."""
    with place_for_one(folder) as place, started(place | IMPATIENT) as running:
        running.wait_until_up()
        running.add_source(kind, kind, config, *options)
        yield running


@contextmanager
def another_web(product: Product, folder: Path, **variables: str) -> Iterator[str]:
    """The MCP endpoint of one more web process on the product's data."""
    port = free_port()
    with running(
        web_command(port),
        answers_at=f"http://127.0.0.1:{port}/admin/login/",
        log=folder / "web.log",
        environment=product.variables | variables | {"PORT": str(port)},
    ):
        yield f"http://127.0.0.1:{port}/mcp"


@contextmanager
def place_for_one(folder: Path, *, is_empty: bool = False) -> Iterator[dict[str, str]]:
    """The variables of a product with its own port, data and, on a server, database.

    An SQLite database has its tables already, unless the folder has to be empty as before a first start.
    """
    variables = {"PORT": str(free_port()), "CATALOGUE_DATA_DIR": str(folder), "LOG_LEVEL": "INFO"}
    if broker := os.environ.get("CELERY_BROKER_URL", ""):
        variables["CELERY_BROKER_URL"] = broker_of_its_own(broker)
    if not os.environ.get("DATABASE_URL", "").startswith("postgres"):
        if not is_empty:
            folder.mkdir(exist_ok=True)
            copy_migrated(folder / "catalogue.sqlite3")
        yield variables
        return
    with scratch_database(os.environ["DATABASE_URL"]) as url:
        yield variables | {"DATABASE_URL": url}


@contextmanager
def scratch_database(url: str, template: str = "template1") -> Iterator[str]:
    """A new PostgreSQL database on the same server, for the length of the block."""
    parts, name = urlsplit(url), f"catalogue_e2e_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(urlunsplit(parts._replace(path="/postgres")), autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            yield urlunsplit(parts._replace(path=f"/{name}"))
        finally:
            server.execute(f"DROP DATABASE {name} WITH (FORCE)")


_brokers = itertools.count(1)


def broker_of_its_own(url: str) -> str:
    """Another of Redis's numbered databases than the tests and the other products use."""
    parts = urlsplit(url)
    if not parts.scheme.startswith("redis"):
        return url
    number = (int(parts.path.strip("/") or 0) - next(_brokers)) % 16
    return urlunsplit(parts._replace(path=f"/{number}"))


OF_THE_TESTS = ("COV_", "PYTEST_", "MAKE", "MFLAGS", "ARGS", "JOBS")


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """That of the tests, without what coverage, pytest and `make test ARGS=...` put into it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_THE_TESTS)}
    return kept | {"PYTHONUNBUFFERED": "1"} | dict(variables)


def wait_until(done: Callable[[], Any], seconds: float, told: Callable[[], str] = str) -> Any:
    """What `done` returns, once that is true. What is waited for happens in other processes."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if outcome := done():
            return outcome
        time.sleep(0.05)
    raise AssertionError(f"It did not happen within {seconds:g} s. {told()}")


class Rest:
    """The REST API as a dashboard uses it."""

    def __init__(self, product: Product, token: str) -> None:
        self._url = f"{product.url}/api"
        self._headers = {"Authorization": f"Bearer {token}"}

    def get(self, path: str, **filters: str) -> Any:
        response = plain_http.get(f"{self._url}{path}", params=filters, headers=self._headers, timeout=10)
        response.raise_for_status()
        return json.loads(response.text)

    def delete(self, path: str) -> None:
        address = f"{self._url}{path}"
        httpx2.delete(address, headers=self._headers, timeout=10).raise_for_status()

    def post(self, path: str, **fields: Any) -> Any:
        response = plain_http.post(f"{self._url}{path}", json=fields, headers=self._headers, timeout=60)
        response.raise_for_status()
        return json.loads(response.text)

    def patch(self, path: str, **fields: Any) -> Any:
        address = f"{self._url}{path}"
        response = httpx2.patch(address, json=fields, headers=self._headers, timeout=10)
        response.raise_for_status()
        return json.loads(response.text)

    def execution(self, execution_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/executions/{execution_id}/")
        return found

    def executions(self, **filters: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/executions/", **filters)["results"]
        return found
