"""What this start may use: the data folder, the ports, and what earlier starts left behind."""

import errno
import fcntl
import json
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

from django.core.management import CommandError

from config.private_files import write_secret

HOST = "127.0.0.1"
USUAL_ENGINE_PORT = 8090


@dataclass(frozen=True, kw_only=True, slots=True)
class ExampleEngine:
    """Where the example engine listens, and the key that it wants."""

    port: int
    api_key: str

    @property
    def base_url(self) -> str:
        return f"http://{HOST}:{self.port}"


@contextmanager
def claimed(data_dir: Path, *, port: int) -> Iterator[None]:
    """Keep a second start out of the data folder for the length of the block."""
    with (data_dir / "quickstart.lock").open("a+", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise CommandError(
                f"It is running already, at {lock.read().strip()}, with the data in {data_dir}. "
                "Stop it first (Ctrl-C), or set CATALOGUE_DATA_DIR to start another one beside it."
            ) from None
        lock.truncate(0)
        lock.write(f"http://localhost:{port} (process {os.getpid()})")
        lock.flush()
        yield


@contextmanager
def reserved(port: int) -> Iterator[str | None]:
    """Keep a port from other starts on this machine, which may look for one before anybody listens there.

    Yields why it cannot be used; None: it is ours for the length of the block.
    """
    path = Path(tempfile.gettempdir()) / f"workflow-catalogue-port-{port}.lock"
    problem: str | None
    with ExitStack() as kept:
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            kept.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            # Another start holds it, or another user's start has made it.
            problem = "is taken"
        else:
            problem = _why_not(port)
        yield problem


@contextmanager
def claimed_port(port: int) -> Iterator[None]:
    """Reserve the web server's port. Raises CommandError where that is impossible."""
    with reserved(port) as problem:
        if problem:
            another = port + 1 if port < 65535 else port - 1
            raise CommandError(
                f"Port {port} {problem}. Choose another one, for example: PORT={another} make run"
            )
        yield


@contextmanager
def chosen_engine(data_dir: Path) -> Iterator[tuple[ExampleEngine | None, ExampleEngine]]:
    """The engine of the start before, if there was one, and that of this start.

    The key stays the same for ever, the port as long as nobody else has it. It is reserved for the length of
    the block.
    """
    path = data_dir / "example-engine.json"
    before = _read(path)
    api_key = before.api_key if before else secrets.token_urlsafe(24)
    wanted = (before.port if before else USUAL_ENGINE_PORT, USUAL_ENGINE_PORT)
    for port in chain(wanted, iter(_free_port, None)):
        with reserved(port) as problem:
            if problem:
                continue
            now = ExampleEngine(port=port, api_key=api_key)
            if now != before:
                write_secret(path, json.dumps(asdict(now)))
            yield before, now
            return


def _read(path: Path) -> ExampleEngine | None:
    try:
        return ExampleEngine(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _why_not(port: int) -> str | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
    return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
