"""Processes of engines: ended with the block that they are started for, or when pytest is killed."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.processes import ROOT

WATCH = 'cat > /dev/null; kill -s KILL -- "-$1"'
"""Its input ends when whoever holds the other end of the pipe is gone, however that came about."""


def do_without(reason: str) -> None:
    """Skip the test for want of an engine; where CI has installed them all, fail it."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


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


def watched(group: int) -> "subprocess.Popen[bytes]":
    """The process that kills that process group when this one is gone."""
    command = ["sh", "-c", WATCH, "watch", str(group)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def end_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
