"""A Redis and workers of RQ, for tests: on this machine only, and gone afterwards."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ConnectionError
from rq import Queue, Worker

from connectors.testing import free_port

PASSWORD = "password-of-the-tests-0123456789"
STARTUP_SECONDS = 30.0
WORKERS = 2


@dataclass(frozen=True)
class RqEngine:
    port: int

    @property
    def redis(self) -> Redis:
        return Redis(port=self.port, password=PASSWORD, socket_timeout=5)

    def number_of_started_jobs(self) -> int:
        with self.redis as redis:
            return len(Queue(connection=redis, serializer="json").started_job_registry.get_job_ids())

    def stop_everything(self) -> None:
        """Ends all jobs, also those that a worker has taken and not started, which cannot be cancelled."""
        with self.redis as redis:
            for key in redis.scan_iter("rq:job:*"):
                redis.set(key.decode().replace("rq:job:", "over:"), 1)
            Queue(connection=redis, serializer="json").empty()


@contextmanager
def running_rq(folder: Path) -> Iterator[RqEngine]:
    """Redis with a password, and workers in `folder`'s logs. Skips, or fails under CI=true, without Redis."""
    server = shutil.which("redis-server")
    if server is None:
        reason = "There is no redis-server; on Debian and Ubuntu: apt-get install redis-server"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    engine = RqEngine(port := free_port())
    redis = [server, "--port", str(port), "--bind", "127.0.0.1", "--requirepass", PASSWORD, "--save", ""]
    url = f"redis://:{PASSWORD}@127.0.0.1:{port}"
    pool = [sys.executable, "-m", "rq.cli", "worker-pool", "--num-workers", str(WORKERS), "--url", url]
    pool += ["--serializer", "json", "--path", str(Path(__file__).parent), "--logging-level", "WARNING"]
    with _process(redis, folder / "redis.log"), _process(pool, folder / "workers.log"):
        _wait_until_workers_listen(engine, folder)
        yield engine
        engine.stop_everything()


@contextmanager
def _process(command: list[str], log: Path) -> Iterator[None]:
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_workers_listen(engine: RqEngine, folder: Path) -> None:
    deadline = time.monotonic() + STARTUP_SECONDS
    while time.monotonic() < deadline:
        try:
            with engine.redis as redis:
                if Worker.count(connection=redis) == WORKERS:
                    return
        except ConnectionError:
            pass
        time.sleep(0.05)
    logs = "\n".join(log.read_text()[-2000:] for log in folder.glob("*.log"))
    raise AssertionError(f"Redis or its workers did not come up:\n{logs}")
