"""The product's worker and the clock that it needs, as `make run` starts them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

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
