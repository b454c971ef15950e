"""Processes of engines: ended with the block that they are started for, or when pytest is killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.processes import ROOT, watched


def do_without(reason: str) -> None:
    """Skip the test for want of an engine; where CI has installed them all, fail it."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def install(what: str, *script: str) -> None:
    """`make install-all` has done it already where that was possible."""
    outcome = subprocess.run([sys.executable, *script], cwd=ROOT, capture_output=True, text=True, check=False)
    if outcome.returncode:
        told = f"{outcome.stdout}{outcome.stderr}".strip()[-1000:]
        do_without(f"{what} is missing; install it with: make install-all\n{told}")


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
