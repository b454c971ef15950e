"""The servers that are measured, as processes of their own, with their worker and database."""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import dj_database_url
import psutil

from connectors.testing import free_port
from dev.benchmarks._status_engine import ARRIVALS_PATH
from tests.processes import ExampleEngine, running, running_example_engine, web_command


@dataclass(frozen=True)
class McpServer:
    url: str
    process: psutil.Process
    token: str = field(repr=False, default="none")

    def cpu_seconds(self) -> float:
        """What the process has used so far; other work on the machine changes it less than the time.

        By its clock, as clock_getcpuclockid(3) names it: what /proc tells is rounded to 10 ms.
        """
        return time.clock_gettime((~self.process.pid << 3) | 2)


@contextmanager
def product(folder: Path) -> Iterator[McpServer]:
    """The product's web server on this process's database, with the example engine's workflows enabled."""
    from identity.tokens import METADATA_PATH, create_token

    with running_example_engine(folder) as engine:
        _connect(engine)
        _, token = create_token(name="benchmark")
        with _web(folder, answers=f"{METADATA_PATH}/mcp") as server:
            base_url, process = server
            yield McpServer(f"{base_url}/mcp", process, token)


@contextmanager
def do_nothing_server(folder: Path) -> Iterator[McpServer]:
    """The SDK's own server with the product's tools and nothing behind them."""
    from catalogue.exposure import current_catalogue
    from identity.tokens import Access
    from mcp_bridge.tool_lists import visible_tools

    tools = folder / "tools.json"
    shown = [
        tool.model_dump(mode="json", by_alias=True)
        for tool in visible_tools(current_catalogue(), Access.of_local_user())
    ]
    tools.write_text(json.dumps(shown))
    application = "dev.benchmarks._do_nothing:application"
    with _uvicorn(application, folder, answers="/ready", DO_NOTHING_TOOLS=str(tools)) as server:
        base_url, process = server
        yield McpServer(f"{base_url}/mcp", process)


@contextmanager
def catalogue_server(folder: Path) -> Iterator[McpServer]:
    """The product's web server on this process's database as it is, without an engine."""
    from identity.tokens import METADATA_PATH, create_token

    _, token = create_token(name=f"benchmark {secrets.token_hex(4)}")
    with _web(folder, answers=f"{METADATA_PATH}/mcp") as server:
        base_url, process = server
        yield McpServer(f"{base_url}/mcp", process, token)


@contextmanager
def bare_server(folder: Path, answer: bytes) -> Iterator[McpServer]:
    """Uvicorn with an application that does nothing but send these bytes."""
    file = folder / f"answer-{secrets.token_hex(4)}"
    file.write_bytes(answer)
    with _uvicorn(
        "dev.benchmarks._bare_answer:application", folder, answers="/", BARE_ANSWER=str(file)
    ) as server:
        base_url, process = server
        yield McpServer(f"{base_url}/mcp", process)


@contextmanager
def model_and_shop(folder: Path) -> Iterator[str]:
    """The base URL of a model server and an API that answer at once."""
    with _uvicorn("dev.benchmarks._model_and_shop:application", folder, answers="/ready") as server:
        yield server[0]


@contextmanager
def status_engine(folder: Path) -> Iterator[str]:
    """The base URL of an engine that answers from memory."""
    application = "dev.benchmarks._status_engine:application"
    with _uvicorn(application, folder, answers=ARRIVALS_PATH) as server:
        yield server[0]


@contextmanager
def traces_collector(folder: Path) -> Iterator[str]:
    """The base URL of a collector that reads traces and forgets them."""
    with _uvicorn("dev.benchmarks._collector:application", folder, answers="/received") as server:
        yield server[0]


def _connect(engine: ExampleEngine) -> None:
    from catalogue.curation import enable_workflows
    from catalogue.discovery import refresh_source
    from catalogue.models import Workflow
    from catalogue.sources import create_source

    source = create_source(
        name=f"example-{secrets.token_hex(4)}",
        kind="simplified",
        config={"base_url": engine.base_url},
        credentials={"api_key": engine.api_key},
    )
    run = refresh_source(source)
    assert run.added >= 6, run.error
    enable_workflows(Workflow.objects.filter(source=source))


@contextmanager
def _web(folder: Path, *, answers: str) -> Iterator[tuple[str, psutil.Process]]:
    port = free_port()
    base_url = f"http://127.0.0.1:{port}"
    with running(web_command(port), answers_at=base_url + answers, log=folder / "web.log") as started:
        yield base_url, psutil.Process(started.pid)


@contextmanager
def _uvicorn(
    application: str, folder: Path, *, answers: str, **environment: str
) -> Iterator[tuple[str, psutil.Process]]:
    port = free_port()
    base_url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "uvicorn", application, f"--port={port}", "--lifespan=auto"]
    command += ["--no-access-log", "--log-level=warning", "--timeout-graceful-shutdown=2"]
    log = folder / f"{application.partition(':')[0]}.log"
    with running(command, answers_at=base_url + answers, log=log, environment=environment) as started:
        yield base_url, psutil.Process(started.pid)


CELERY = (sys.executable, "-m", "celery", "--app", "config.celery", "--quiet")
WORKER = ("worker", "--pool=threads", "--concurrency=4", "--without-gossip", "--without-mingle")
BEAT = ("beat", "--pidfile=")


@contextmanager
def running_worker(folder: Path, **environment: str) -> Iterator[psutil.Process]:
    """One worker process on this process's database and broker; yields it so that it can be measured."""
    with (folder / "worker.log").open("ab") as log:
        command = [*CELERY, *WORKER, "--without-heartbeat"]
        processes = [
            subprocess.Popen(words, env=os.environ | environment, stdout=log, stderr=log)
            for words in (command, [*CELERY, *BEAT])
        ]
        try:
            yield psutil.Process(processes[0].pid)
            assert all(process.poll() is None for process in processes), (folder / "worker.log").read_text()
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(timeout=30)


@contextmanager
def own_database(url: str = "", *, kept_as: str = "") -> Iterator[str]:
    """SQLite in the data folder, or a database created beside the one that a PostgreSQL URL names.

    Sets DATABASE_URL for this process and those it starts, so use it before Django is set up.
    With `kept_as` it stays for the next run, as .cache/NAME or as the database bench_NAME.
    """
    if not url.startswith("postgres"):
        os.environ.pop("DATABASE_URL", None)
        if kept_as:
            folder = Path(__file__).parents[2] / ".cache" / kept_as
            folder.mkdir(parents=True, exist_ok=True)
            os.environ["CATALOGUE_DATA_DIR"] = str(folder)
        _migrate()
        yield "SQLite"
        return
    import psycopg

    name = f"bench_{kept_as or os.getpid()}"
    with psycopg.connect(url, autocommit=True) as connection:
        with suppress(psycopg.errors.DuplicateDatabase):
            connection.execute(f'CREATE DATABASE "{name}"')
        try:
            os.environ["DATABASE_URL"] = _with_name(url, name)
            _migrate()
            yield "PostgreSQL"
        finally:
            if not kept_as:
                connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _with_name(url: str, name: str) -> str:
    known = dj_database_url.parse(url)["NAME"]
    base, _, options = url.partition("?")
    return base.removesuffix(f"/{known}").rstrip("/") + f"/{name}" + (f"?{options}" if options else "")


def _migrate() -> None:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
