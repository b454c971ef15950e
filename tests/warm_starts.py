"""Processes of the product that begin with the libraries imported: two thirds of what a start costs.

A server forks for each program. It has imported nothing of the product that reads the environment or Django's
settings, so a program finds the environment that it is given. The program becomes a child of the process that
wants it, as if that had executed it: it has a process id to wait for and to kill. `quickstart` starts its
programs in the same way. What `STARTS_COLD` is set for starts from nothing, and so does what no test starts
itself, such as `make run` and the servers of clients in Node, or what starts in another folder.
"""

import atexit
import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = (
    "aiohttp",
    "anyio._backends._asyncio",
    "cachetools",
    "celery.apps.beat",
    "celery.apps.worker",
    "celery.bin.celery",
    "celery.concurrency.thread",
    "celery.contrib.django.task",
    "celery.events",
    "celery.fixups.django",
    "celery.worker.autoscale",
    "celery.worker.consumer.delayed_delivery",
    "connectors.http_tools.checks",
    "connectors.http_tools.connector",
    "connectors.http_tools.openapi.document",
    "connectors.http_tools.openapi.operations",
    "connectors.network.client",
    "connectors.network.issuer",
    "connectors.registry",
    "connectors.simplified",
    "connectors.temporal.config",
    "cryptography.fernet",
    "cryptography.hazmat.primitives.kdf.hkdf",
    "dj_database_url",
    "django.contrib.messages",
    "django.core.management.commands.migrate",
    "django.db.backends.sqlite3.base",
    "django.db.models.sql.compiler",
    "django.forms",
    "django.test",
    "django.urls",
    "django_filters",
    "drf_spectacular.utils",
    "httpx2",
    "jsonschema_rs",
    "jwcrypto.jwt",
    "jwt",
    "kombu.transport.filesystem",
    "loguru",
    "mcp.server.lowlevel",
    "oauth2_provider.compat",
    "oauth2_provider.validators",
    "oauthlib.oauth2",
    "psycopg",
    "pydantic_settings",
    "rest_framework.permissions",
    "segno",
    "smtplib",
    "starlette.applications",
    "supervisor.process",
    "unfold.sections",
    "unfold.utils",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
    "whitenoise.middleware",
)
STARTS_COLD = "TESTS_START_COLD"
TETHERED = str(ROOT / "deploy" / "tethered.py")
SCRIPTS = {"manage.py", str(ROOT / "manage.py"), "deploy/tethered.py", TETHERED}
CHAOS = "dev.chaos", "dev.chaos.approvals", "dev.chaos.rolling"
MODULES = *CHAOS, "dev.chaos._prepare", "dev.chaos.crashpoints", "examples.engine", "tests.e2e."
"""What starts warm; of a package all, where the name ends with a dot."""
STARTS_OTHERS = ["manage.py", "quickstart"], *(["-m", module] for module in CHAOS)
SECONDS = 100
REQUEST_BYTES = 100_000
TITLE_BYTES = 2_000
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
_UNCHANGED = -1
"""As `subprocess` has it for the umask and for a stream that is inherited."""


@dataclass(frozen=True, kw_only=True)
class Request:
    words: list[str]
    """What follows Python's name: `-c PROGRAM`, `-m MODULE` or a script, and arguments."""
    environment: dict[str, str]
    folder: str
    umask: int
    in_new_session: bool
    ignored: list[int]
    """Signals that the starter ignores, and therefore what it executes, such as SIGHUP after `nohup`."""


_turn = threading.Lock()
_server: socket.socket | None = None
"""The line to what forks for this process."""
_libc = ctypes.CDLL(None)
_fork_exec: Callable[..., int] = subprocess._fork_exec  # type: ignore[attr-defined]
_is_wanted = threading.local()


@contextmanager
def starting_warm() -> Iterator[None]:
    """For the length of the block; within another one this changes nothing."""
    global _server
    if _server is not None or sys.platform != "linux":
        yield
        return
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", __name__, str(far.fileno()), " " * TITLE_BYTES]
    with far:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=[far.fileno()])
    _server = near
    subprocess._fork_exec = _fork_or_execute  # type: ignore[attr-defined]
    try:
        yield
    finally:
        subprocess._fork_exec = _fork_exec  # type: ignore[attr-defined]
        _server = None
        near.close()
        process.wait()


def run_warm(
    words: Sequence[str], *, environment: Mapping[str, str], umask: int = 0o022
) -> subprocess.CompletedProcess[str]:
    """What `python WORDS` does in the project's folder: `-c PROGRAM`, or a script and its arguments."""
    _is_wanted.always = True
    try:
        with starting_warm():
            return subprocess.run(
                [sys.executable, *words],
                cwd=ROOT,
                env=dict(environment),
                umask=umask,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
    finally:
        _is_wanted.always = False


@contextmanager
def _adopting() -> Iterator[None]:
    """The kernel gives the orphans of our children to us."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 0)


def _fork_or_execute(*arguments: Any) -> int:
    """In place of what `subprocess.Popen` calls."""
    words, _, _, kept, folder, variables, stdin, _, _, stdout, _, stderr, _, error_pipe = arguments[:14]
    in_new_session, umask, before_execution = arguments[15], *arguments[20:22]
    words = [os.fsdecode(word) for word in words]
    environment = (
        dict(os.environ)
        if variables is None
        else dict(os.fsdecode(variable).split("=", 1) for variable in variables)
    )
    folder = os.fsdecode(folder or os.getcwd())
    is_plain = not set(kept) - {error_pipe} and before_execution is None
    if _server is None or not is_plain or not _is_program(words, environment, folder):
        return _fork_exec(*arguments)
    request = Request(
        words=words[1:],
        environment=environment,
        folder=folder,
        umask=umask,
        in_new_session=in_new_session,
        ignored=_ignored_signals(),
    )
    streams = [own if one == _UNCHANGED else one for own, one in enumerate((stdin, stdout, stderr))]
    with _turn, _adopting():
        socket.send_fds(_server, [json.dumps(asdict(request)).encode()], [*streams, error_pipe])
        return int(_server.recv(REQUEST_BYTES))


def _is_program(words: Sequence[str], environment: Mapping[str, str], folder: str) -> bool:
    if words[0] != sys.executable or STARTS_COLD in environment:
        return False
    if words[1] == "-m":
        is_ours = words[2].startswith(MODULES[-1]) or words[2] in MODULES
    else:
        is_ours = words[1] in SCRIPTS
    return getattr(_is_wanted, "always", False) or (is_ours and folder == str(ROOT))


def _end_with_parent() -> None:
    """Or before it, by Ctrl-C; while it imports, a server would not notice otherwise."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _serve(line: socket.socket) -> None:
    """Until the tests are over. Each program runs in a process whose parent has ended: ours adopts it."""
    while True:
        message, streams, *_ = socket.recv_fds(line, REQUEST_BYTES, 4)
        if not message:
            return
        reading, writing = os.pipe()
        if not (middle := os.fork()):
            middle = os.getpid()
            if not (pid := os.fork()):
                while os.getppid() == middle:
                    time.sleep(0.0005)
                _become(Request(**json.loads(message)), streams)
            os.write(writing, str(pid).encode())
            os._exit(0)
        os.waitpid(middle, 0)
        line.send(os.read(reading, REQUEST_BYTES))
        for number in (reading, writing, *streams):
            os.close(number)


def _become(request: Request, streams: Sequence[int] = ()) -> NoReturn:
    """What executing it would make of this process."""
    if request.in_new_session:
        os.setsid()
    _set_signals(request.ignored)
    _name_process([sys.executable, *request.words])
    for number, stream in enumerate(streams[:3]):
        os.dup2(stream, number)
    # With the others the pipe whose end tells `Popen` that the program runs.
    os.closerange(3, 1024)
    if request.umask != _UNCHANGED:
        os.umask(request.umask)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    time.tzset()
    tempfile.tempdir = None
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.stdout.reconfigure(write_through=bool(os.environ.get("PYTHONUNBUFFERED")))  # type: ignore[union-attr]
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    atexit._clear()
    global _server
    _server = _server_of_its_own() if request.words[:2] in STARTS_OTHERS else None
    os.execv, os.execve = _execute, _execute
    _end(partial(_run, request.words))


def _ignored_signals() -> list[int]:
    """But for those that each interpreter ignores of its own accord."""
    ignored = {number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN}
    return [int(number) for number in ignored - IGNORED_BY_PYTHON]


def _set_signals(ignored: Sequence[int]) -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        wanted = signal.SIG_IGN if number in {*ignored, *IGNORED_BY_PYTHON} else signal.SIG_DFL
        # Those of glibc's own cannot be set.
        with suppress(OSError, ValueError):
            if signal.getsignal(number) is not wanted:
                signal.signal(number, wanted)
    if signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _name_process(words: Sequence[str]) -> None:
    """What `ps` shows: the memory that the server's own command line was put in."""
    status = Path("/proc/self/stat").read_text()
    start, end = map(int, status[status.rindex(")") :].split()[46:48])
    title = b"\0".join(map(os.fsencode, words))[: end - start - 1]
    ctypes.memmove(start, title.ljust(end - start, b"\0"), end - start)


def _server_of_its_own() -> socket.socket:
    """A child that starts what this program wants, of which nothing is imported yet."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        far.close()
        subprocess._fork_exec = _fork_or_execute  # type: ignore[attr-defined]
        return near
    near.close()
    _end_with_parent()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    _serve(far)
    os._exit(0)


def _execute(executable: str, words: Sequence[str], environment: Mapping[str, str] = os.environ) -> NoReturn:
    """In place of `os.execv` and `os.execve`, which what tethers and what supervises programs call."""
    request = Request(
        words=list(words[1:]),
        environment=dict(environment),
        folder=os.getcwd(),
        umask=_UNCHANGED,
        in_new_session=False,
        ignored=_ignored_signals(),
    )
    assert executable == sys.executable, executable
    _become(request)


def _run(words: list[str]) -> None:
    while words[0] == "-W":
        warnings._processoptions([words[1]])  # type: ignore[attr-defined]
        words = words[2:]
    option, *arguments = words
    if option == "-c":
        sys.argv = ["-c", *arguments[1:]]
        exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})
    elif option == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(option, run_name="__main__")


def _end(run: Callable[[], None]) -> NoReturn:
    """As the interpreter does it, but for taking down all modules at the end, which costs half a start."""
    code: object = 0
    is_interrupted = False
    try:
        run()
    except SystemExit as ended:
        code = ended.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
    except BaseException as error:  # noqa: BLE001 - told as the interpreter does
        traceback.print_exc()
        code, is_interrupted = 1, isinstance(error, KeyboardInterrupt)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    if is_interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF if isinstance(code, int) else 1)


if __name__ == "__main__":
    _end_with_parent()
    for library in LIBRARIES:
        import_module(library)
    gc.collect()
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
