"""A real Airflow, Dagster and Buildbot, which the shipped declarations are held to."""

import hashlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import httpx2
import psutil
import pytest

from connectors.http_job.connector import HttpJobConnector
from connectors.http_job.engine import HttpJobConfig
from connectors.protocol import RunRef
from connectors.testing import free_port
from tests import plain_http
from tests.engines.guarding import install
from tests.processes import PROBE_SECONDS, ROOT, guarded

STARTUP_SECONDS = 180.0
HERE = Path(__file__).parent
KEPT_DATABASES = ROOT / ".cache" / "airflow"
"""What Airflow makes of a new database and of its DAGs, by its lock file and the DAGs."""


@dataclass
class JobEngineServer(ABC):
    """Its processes. It can be stopped and started again, with all that it knew."""

    directory: Path
    port: int = field(default_factory=free_port)
    ended_runs: dict[str, RunRef] = field(default_factory=dict)
    """By workflow: runs that tests may look at again, since each costs some seconds."""
    _serving: ExitStack = field(default_factory=ExitStack)
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    preset: ClassVar[str]
    environment: ClassVar[Path]
    lock: ClassVar[str]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Of a source, beside preset and address; its secrets too."""

    @abstractmethod
    def start(self) -> None:
        """Without waiting until it answers."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether everything that a run needs is up. Raises httpx2.HTTPError too, while it is not."""

    @abstractmethod
    def runs_started_with(self, key: UUID) -> int:
        """By the engine's own record."""

    def connector(self, **settings: Any) -> HttpJobConnector:
        usual = {"preset": self.preset, "base_url": self.base_url, "request_timeout_seconds": 60.0}
        return HttpJobConnector(HttpJobConfig.model_validate(usual | self.settings | settings))

    def wait(self, for_what: Callable[[], bool] | None = None) -> None:
        done = for_what or self.answers
        deadline = time.monotonic() + STARTUP_SECONDS
        while time.monotonic() < deadline and all(process.poll() is None for process in self._processes):
            with suppress(httpx2.HTTPError):
                if done():
                    return
            time.sleep(5 * PROBE_SECONDS)
        logs = {log.name: log.read_text()[-2000:] for log in self.directory.glob("*.log")}
        raise AssertionError(f"{self.preset} did not come up: {logs}")

    def kill(self) -> None:
        """All of it, in the middle of things."""
        self._serving.close()
        self._processes.clear()

    def send_signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            for one in _family(process.pid):
                with suppress(psutil.NoSuchProcess):
                    one.send_signal(number)

    def install(self) -> None:
        install(self.preset, "dev/scripts/install.py", str(self.environment), self.lock)

    def _run(self, log: str, program: str, *arguments: str) -> None:
        command = (str(self.environment / "bin" / program), *arguments)
        process = self._serving.enter_context(
            guarded(command, log=self.directory / log, environment=self._variables())
        )
        # Some of its descendants are in sessions of their own.
        self._serving.callback(_kill_descendants, process.pid)
        self._processes.append(process)

    @abstractmethod
    def _variables(self) -> dict[str, str]: ...


class AirflowServer(JobEngineServer):
    """Its API server and its scheduler. The DAGs are in the database already, so no process reads them."""

    preset = "airflow"
    environment = ROOT / ".venv-airflow"
    lock = "requirements/airflow.lock"
    password = "airflow-password-0123456789"

    @property
    def settings(self) -> dict[str, Any]:
        return {"username": "admin", "password": self.password}

    def start(self) -> None:
        is_new = not (self.directory / "airflow.db").exists()
        self._make_database()
        self._run(
            "api-server.log",
            "airflow",
            "api-server",
            "--host=127.0.0.1",
            f"--port={self.port}",
            "--workers=1",
        )
        if not is_new:
            # Tasks that are tried again want to reach the API server, and the processor hears of lost ones.
            self.wait(self._serves)
            self._run("dag-processor.log", "airflow", "dag-processor")
        self._run("scheduler.log", "airflow", "scheduler", "--skip-serve-logs")

    def answers(self) -> bool:
        return self._serves(scheduler="healthy")

    def _serves(self, *, scheduler: str = "") -> bool:
        answer = plain_http.get(f"{self.base_url}/api/v2/monitor/health", timeout=10)
        state = answer.raise_for_status().json()["scheduler"]["status"]
        return scheduler in ("", state)

    def runs_started_with(self, key: UUID) -> int:
        listed = self.ask("GET", f"/api/v2/dags/~/dagRuns?limit=100&dag_run_id_pattern={key}")
        return len([run for run in listed["dag_runs"] if run["dag_run_id"] == str(key)])

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Airflow's own word."""
        login = {"username": "admin", "password": self.password}
        token = (
            plain_http.post(f"{self.base_url}/auth/token", json=login, timeout=30).raise_for_status().json()
        )
        headers = {"Authorization": f"Bearer {token['access_token']}"}
        with plain_http.Client(headers=headers, timeout=30) as client:
            return client.request(method, f"{self.base_url}{path}", json=body).raise_for_status().json()

    def fail_everything(self) -> None:
        """What still goes on would take the time of the tests that follow. It may, where Airflow answers 500
        because its own processes have kept SQLite locked for 15 s."""
        going = self.ask("GET", "/api/v2/dags/~/dagRuns?state=running&state=queued&limit=100")
        kept = {run.run_id for run in self.ended_runs.values()}
        for run in going["dag_runs"]:
            if run["dag_run_id"] not in kept:
                path = f"/api/v2/dags/{run['dag_id']}/dagRuns/{run['dag_run_id']}"
                with suppress(httpx2.HTTPStatusError):
                    self.ask("PATCH", path, {"state": "failed"})

    def _make_database(self) -> None:
        """It takes Airflow 7 s of CPU to make one and to read the DAGs, so that a made one is copied."""
        database = self.directory / "airflow.db"
        (self.directory / "passwords.json").write_text(json.dumps({"admin": self.password}))
        # Airflow answers 500 to a request that waits longer than 5 s for SQLite.
        (self.directory / "config").mkdir(exist_ok=True)
        (self.directory / "config" / "patient_database.py").write_text('connect_args = {"timeout": 15}')
        if database.exists():
            return
        made_of = (ROOT / self.lock).read_bytes() + (HERE / "airflow_dags" / "dags.py").read_bytes()
        kept = KEPT_DATABASES / f"{hashlib.sha256(made_of + str(ROOT).encode()).hexdigest()[:16]}.sqlite3"
        if not kept.exists():
            for command in (("db", "migrate"), ("dags", "reserialize")):
                self._prepare(command)
            _keep(database, kept)
        else:
            shutil.copyfile(kept, database)

    def _prepare(self, command: Sequence[str]) -> None:
        with (self.directory / "preparation.log").open("ab") as log:
            subprocess.run(
                [str(self.environment / "bin" / "airflow"), *command],
                env=os.environ | self._variables(),
                stdout=log,
                stderr=log,
                timeout=STARTUP_SECONDS,
                check=True,
            )

    def _variables(self) -> dict[str, str]:
        settings = {
            "CORE__DAGS_FOLDER": str(HERE / "airflow_dags"),
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__PARALLELISM": "4",
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "CORE__EXECUTION_API_SERVER_URL": f"{self.base_url}/execution/",
            "CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin",
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.directory / "passwords.json"),
            "API__PORT": str(self.port),
            "API__BASE_URL": self.base_url,
            "API__SECRET_KEY": "api-secret-0123456789",
            "API_AUTH__JWT_SECRET": "jwt-secret-0123456789abcdef0123456789abcdef",
            "DATABASE__SQL_ALCHEMY_CONNECT_ARGS": "patient_database.connect_args",
            # How soon the tasks of a scheduler that was killed are taken over, and missed themselves.
            "SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "10",
            "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
            "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
            "SCHEDULER__JOB_HEARTBEAT_SEC": "2",
            "SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "2",
            "USAGE_DATA_COLLECTION__ENABLED": "False",
        }
        prefixed = {f"AIRFLOW__{name}": value for name, value in settings.items()}
        return prefixed | {
            "AIRFLOW_HOME": str(self.directory),
            "NO_PROXY": "127.0.0.1",
            "PYTHONUNBUFFERED": "1",
        }


class DagsterServer(JobEngineServer):
    """Its webserver, which starts the process that has the jobs, which starts each run."""

    preset = "dagster"
    environment = ROOT / ".venv-dagster"
    lock = "requirements/dagster.lock"

    @property
    def settings(self) -> dict[str, Any]:
        return {}

    def start(self) -> None:
        # The other coordinator needs a daemon.
        coordinator = {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"}
        instance = {"telemetry": {"enabled": False}, "run_coordinator": coordinator}
        (self.directory / "dagster.yaml").write_text(json.dumps(instance))
        jobs = str(HERE / "dagster_jobs.py")
        self._run(
            "webserver.log",
            "dagster-webserver",
            "--host=127.0.0.1",
            f"--port={self.port}",
            f"--python-file={jobs}",
        )

    def answers(self) -> bool:
        jobs = "{ repositoriesOrError { ... on RepositoryConnection { nodes { jobs { name } } } } }"
        return bool(self.ask(jobs)["repositoriesOrError"]["nodes"])

    def runs_started_with(self, key: UUID) -> int:
        return len(self.states_of(str(key)))

    def states_of(self, key: str) -> list[str]:
        document = """
            query ($tags: [ExecutionTag!]) {
              runsOrError(filter: {tags: $tags}) { ... on Runs { results { status } } }
            }
        """
        tags = [{"key": "workflow-catalogue/key", "value": key}]
        return [run["status"] for run in self.ask(document, tags=tags)["runsOrError"]["results"]]

    def ask(self, document: str, **variables: Any) -> Any:
        """Dagster's own word."""
        asked = {"query": document, "variables": variables}
        answer = plain_http.post(f"{self.base_url}/graphql", json=asked, timeout=30)
        return answer.raise_for_status().json()["data"]

    def _variables(self) -> dict[str, str]:
        return {"DAGSTER_HOME": str(self.directory), "NO_PROXY": "127.0.0.1", "PYTHONUNBUFFERED": "1"}


class BuildbotServer(JobEngineServer):
    """Its master, with a worker in the same process."""

    preset = "buildbot"
    environment = ROOT / ".venv-buildbot"
    lock = "requirements/buildbot.lock"

    @property
    def settings(self) -> dict[str, Any]:
        return {"min_poll_seconds": 1.0}

    def start(self) -> None:
        if not (self.directory / "buildbot.tac").exists():
            shutil.copyfile(HERE / "buildbot_master.py", self.directory / "master.cfg")
            made = [
                str(self.environment / "bin" / "buildbot"),
                "create-master",
                "--quiet",
                str(self.directory),
            ]
            subprocess.run(made, env=os.environ | self._variables(), timeout=STARTUP_SECONDS, check=True)
        tac = str(self.directory / "buildbot.tac")
        serve = ("--nodaemon", "--no_save", "--reactor=poll", "--pidfile=", "--logfile=-")
        self._run("master.log", "twistd", *serve, f"--rundir={self.directory}", f"--python={tac}")

    def answers(self) -> bool:
        return any(worker["connected_to"] for worker in self.ask("/api/v2/workers")["workers"])

    def runs_started_with(self, key: UUID) -> int:
        listed = self.ask("/api/v2/buildrequests?property=reason")["buildrequests"]
        return len([one for one in listed if one["properties"]["reason"][0] == str(key)])

    def stop_everything(self) -> None:
        """A worker has one build of a builder at a time, so that what goes on is in the way of others."""
        command = {"jsonrpc": "2.0", "id": 1, "method": "cancel", "params": {"reason": "The test is over."}}
        for going in self.ask("/api/v2/buildrequests?complete=false")["buildrequests"]:
            path = f"/api/v2/buildrequests/{going['buildrequestid']}"
            plain_http.post(f"{self.base_url}{path}", json=command, timeout=30).raise_for_status()
        self.wait(lambda: not self.ask("/api/v2/builds?complete=false")["builds"])

    def ask(self, path: str) -> Any:
        """Buildbot's own word."""
        return plain_http.get(f"{self.base_url}{path}", timeout=30).raise_for_status().json()

    def _variables(self) -> dict[str, str]:
        return {"MASTER_PORT": str(self.port), "NO_PROXY": "127.0.0.1", "PYTHONUNBUFFERED": "1"}


@contextmanager
def running_engines(*servers: JobEngineServer) -> Iterator[None]:
    """They come up side by side."""
    try:
        for server in servers:
            server.install()
            server.start()
        for server in servers:
            server.wait()
        yield
    finally:
        for server in servers:
            server.kill()


Servers = dict[str, JobEngineServer]


@pytest.fixture(scope="session")
def job_engine_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    airflow = AirflowServer(tmp_path_factory.mktemp("airflow"))
    dagster = DagsterServer(tmp_path_factory.mktemp("dagster"))
    with running_engines(airflow, dagster):
        yield {server.preset: server for server in (airflow, dagster)}


@pytest.fixture(scope="module")
def job_engines(job_engine_servers: Servers) -> Iterator[Servers]:
    """One of each for the tests of a process; import the name into the modules that want them.

    Without work they take a tenth of a core, so they stand still when no module has to do with them.
    """
    for server in job_engine_servers.values():
        server.send_signal(signal.SIGCONT)
    yield job_engine_servers
    for server in job_engine_servers.values():
        server.send_signal(signal.SIGSTOP)


@pytest.fixture(scope="session")
def buildbot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuildbotServer]:
    server = BuildbotServer(tmp_path_factory.mktemp("buildbot"))
    with running_engines(server):
        yield server


def _keep(database: Path, copy: Path) -> None:
    """SQLite copies it; its new name it gets once it is whole."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    unfinished = copy.with_suffix(f".{os.getpid()}")
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(unfinished)) as target:
        source.backup(target)
    unfinished.replace(copy)


def _family(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _kill_descendants(pid: int) -> None:
    for process in _family(pid):
        with suppress(psutil.NoSuchProcess):
            process.kill()
