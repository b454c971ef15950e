"""A deployment as in production: two web processes, two workers, beat, and two engines to talk to."""

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from connectors.testing import free_port
from dev.chaos.plan import ASKED, BEAT, CALLERS, KEYED, PLAIN, WEBS, WORKERS
from dev.chaos.programs import ROOT, Program
from dev.chaos.stacks import Stack
from tests.processes import ExampleEngine

OBSERVER = "observer"
PROMISES = {
    KEYED: {"idempotency_header": "Idempotency-Key"},
    PLAIN: {},
    ASKED: {"run_lookup_path": "/runs?workflow_id={workflow_id}&idempotency_key={key}"},
}
"""What is known of each engine, as its source's settings say it."""
CELERY = ("-W", "ignore:You're running the worker", "-m", "celery", "--app", "config.celery", "--quiet")
WORKER = ("--pool", "threads", "--concurrency", "4", "--without-gossip", "--without-mingle")
PATIENT = {
    # What surely did not start is tried again for as long as an outage may last.
    "CATALOGUE_RETRY_ATTEMPTS": "10",
    # Nothing that is planned takes long; what is not settled after this time is lost.
    "CATALOGUE_EXECUTION_TIMEOUT": "1800",
    "CATALOGUE_INLINE_WAIT": "8",
    "CATALOGUE_STATUS_CHECK_INTERVAL": "2",
    "CATALOGUE_DISCOVERY_INTERVAL": "20",
    "LOG_LEVEL": "INFO",
}


@dataclass
class Deployment:
    """The programs by name, and what is needed to talk to them."""

    stack: Stack
    folder: Path
    secret_key: str = field(repr=False)
    programs: dict[str, Program]
    web_urls: tuple[str, ...]
    engines: dict[str, ExampleEngine]
    variables: dict[str, str] = field(repr=False)
    tools: dict[str, dict[str, str]] = field(default_factory=dict)
    """Source, then the engine's name of the workflow, to the tool's name."""
    tokens: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def data_dir(self) -> Path:
        return Path(self.variables["CATALOGUE_DATA_DIR"])

    async def wait_until_up(self) -> None:
        await asyncio.gather(*(program.wait_until_up() for program in self.programs.values()))


@asynccontextmanager
async def deployed(
    stack: Stack,
    folder: Path,
    *,
    engines: Sequence[str] = (KEYED, PLAIN),
    request_timeout: float = 30.0,
    limits: Mapping[str, int] | None = None,
    engine_log_level: str = "warning",
    graceful_seconds: int = 2,
    variables: Mapping[str, str] | None = None,
) -> AsyncIterator[Deployment]:
    """Everything up and connected for the length of the block; afterwards nothing is left running.

    `request_timeout`: seconds that the engines have for an answer; `limits`: a source's runs at a time;
    `graceful_seconds`: how long a web process that ends waits for requests; `variables`: further settings.
    """
    deployment = _plan_programs(stack, folder, engines, engine_log_level, graceful_seconds, variables or {})
    with contextlib.ExitStack() as running:
        for program in deployment.programs.values():
            running.callback(program.stop)
        for name in engines:
            deployment.programs[name].start()
            await deployment.programs[name].wait_until_up()
        _prepare(deployment, _sources(deployment, request_timeout, limits or {}))
        for name in (*WEBS, *WORKERS, BEAT):
            deployment.programs[name].start()
        await deployment.wait_until_up()
        yield deployment


def _plan_programs(
    stack: Stack,
    folder: Path,
    engine_names: Sequence[str],
    engine_log_level: str,
    graceful_seconds: int,
    further: Mapping[str, str],
) -> Deployment:
    ports = [free_port() for _ in WEBS]
    key = secrets.token_urlsafe(24)
    engines = {name: ExampleEngine(f"http://127.0.0.1:{free_port()}", key) for name in engine_names}
    secret_key = secrets.token_urlsafe(50)
    variables = _surroundings() | PATIENT | stack.variables | dict(further)
    variables |= {"CATALOGUE_DATA_DIR": str(folder / "data"), "SECRET_KEY": secret_key}
    programs = [_engine(name, engine, folder, engine_log_level) for name, engine in engines.items()]
    programs += [
        _web(name, port, variables, folder, graceful_seconds) for name, port in zip(WEBS, ports, strict=True)
    ]
    programs += [_worker(name, variables, folder) for name in WORKERS]
    beat = [*CELERY, "beat", "--pidfile="]
    programs.append(Program(BEAT, beat, variables=variables, folder=folder))
    return Deployment(
        stack=stack,
        folder=folder,
        secret_key=secret_key,
        programs={program.name: program for program in programs},
        web_urls=tuple(f"http://127.0.0.1:{port}" for port in ports),
        engines=engines,
        variables=variables,
    )


def _surroundings() -> dict[str, str]:
    """The environment without what would configure the product, or measure its coverage."""
    ours = ("CATALOGUE_", "DATABASE_URL", "CELERY_", "SECRET_KEY", "PORT", "COV_", "PYTEST_", "DJANGO_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | {
        "PYTHONUNBUFFERED": "1"
    }


def _engine(name: str, engine: ExampleEngine, folder: Path, log_level: str) -> Program:
    port = engine.base_url.rpartition(":")[2]
    arguments = ["-m", "examples.engine", "--port", port, "--db", str(folder / f"{name}.sqlite3")]
    arguments += ["--log-level", log_level, *([] if name == KEYED else ["--no-idempotency"])]
    variables = _surroundings() | {"EXAMPLE_ENGINE_API_KEY": engine.api_key}
    return Program(
        name, arguments, variables=variables, folder=folder, answers_at=f"{engine.base_url}/healthz"
    )


def _web(name: str, port: int, variables: dict[str, str], folder: Path, graceful_seconds: int) -> Program:
    return Program(
        name,
        ["manage.py", "serve", "--port", str(port), "--graceful-seconds", str(graceful_seconds)],
        variables=variables | {"PORT": str(port)},
        folder=folder,
        answers_at=f"http://127.0.0.1:{port}/admin/login/",
    )


def _worker(name: str, variables: dict[str, str], folder: Path) -> Program:
    arguments = [*CELERY, "worker", *WORKER, "--without-heartbeat", "--hostname", f"{name}@%h"]
    return Program(name, arguments, variables=variables, folder=folder)


def _sources(deployment: Deployment, request_timeout: float, limits: Mapping[str, int]) -> dict[str, Any]:
    return {
        name: {
            "config": {
                "base_url": engine.base_url,
                "request_timeout_seconds": request_timeout,
            }
            | PROMISES[name],
            "credentials": {"api_key": engine.api_key},
            "max_concurrent": limits.get(name),
        }
        for name, engine in deployment.engines.items()
    }


def _prepare(deployment: Deployment, sources: dict[str, Any]) -> None:
    usual = ["workflows:read", "workflows:run"]
    wanted = {"sources": sources, "tokens": dict.fromkeys(CALLERS, usual) | {OBSERVER: ["catalogue:admin"]}}
    prepared = subprocess.run(
        [sys.executable, "-m", "dev.chaos._prepare"],
        cwd=ROOT,
        env=deployment.variables,
        input=json.dumps(wanted),
        capture_output=True,
        text=True,
        check=False,
    )
    if prepared.returncode:
        raise RuntimeError(f"The deployment could not be prepared: {prepared.stderr[-3000:]}")
    known = json.loads(prepared.stdout)
    deployment.tools, deployment.tokens = known["tools"], known["tokens"]
