"""supervisord as a child: started with what its configuration names, listened to, and surely stopped."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Thread

from config.environment import BASE_DIR

STOP_SECONDS = 9.5
"""supervisord itself needs less: it kills what does not stop by itself."""


class Supervisor:
    """The running programs and what they print."""

    def __init__(self, variables: dict[str, str]) -> None:
        self._printing = Lock()
        self._process = subprocess.Popen(
            _command(),
            cwd=BASE_DIR,
            env=os.environ | variables | {"PYTHONUNBUFFERED": "1", "QUICKSTART_PYTHON": sys.executable},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Ctrl-C reaches all of a terminal's processes at once; these are stopped in order instead.
            start_new_session=True,
        )
        Thread(target=self._copy_output, name="output", daemon=True).start()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def say(self, text: str) -> None:
        """Print between the programs' lines, never inside one."""
        with self._printing:
            print(text, flush=True)

    def wait(self) -> int:
        return self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            # The programs are tethered to it, so they end as well.
            self._process.kill()
            self._process.wait()

    def _copy_output(self) -> None:
        """Through a pipe of our own, because supervisord cannot write to every kind of standard output."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._printing:
                try:
                    sys.stdout.buffer.write(line)
                    sys.stdout.buffer.flush()
                except OSError:
                    # Nobody reads any more; the programs must be able to go on writing all the same.
                    continue


@contextmanager
def supervised(variables: dict[str, str]) -> Iterator[Supervisor]:
    """Run all programs for the length of the block."""
    supervisor = Supervisor(variables)
    try:
        yield supervisor
    finally:
        supervisor.stop()


def _command() -> list[str]:
    deploy = Path(BASE_DIR) / "deploy"
    options = ["-m", "supervisor.supervisord", "--configuration", str(deploy / "supervisord.conf")]
    # Without a user named, it warns whoever runs it as root.
    as_root = ["--user", "0"] if os.geteuid() == 0 else []
    return [sys.executable, str(deploy / "tethered.py"), *options, *as_root]
