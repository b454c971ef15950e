"""Fails the test that leaves something open: sockets, pipes, threads, processes, tasks (`-p tests.leaks`).

Without this the garbage collector finds a forgotten transport during a later test, which fails in its place.
What fixtures of a module or the session open may stay as long as they do; so may connections to their servers
and the threads of pools that the process keeps. All else has to be gone a moment after a test's last fixture.
The tests of whole products (`e2e`) are not watched.
"""

import asyncio
import gc
import inspect
import os
import socket
import stat
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import psutil
import pytest

MOMENT, PATIENCE = 0.2, 5.0
"""Seconds before and after the garbage collection; a server closes its end a little later than the client."""
PAUSE = 0.005
DESCRIPTORS, TASKS = "/proc/self/fd", "/proc/self/task"
IS_LINUX = os.path.isdir(DESCRIPTORS)
"""Elsewhere sockets and processes are not looked for."""
SOCKETS_AND_PIPES = {stat.S_IFSOCK: "socket", stat.S_IFIFO: "pipe"}
LISTENS = "0A"


@dataclass
class Held:
    """What this process holds at a moment."""

    sockets: frozenset[str]
    """Sockets and pipes as Linux names them: `socket:[4026531992]`."""
    threads: frozenset[threading.Thread]
    children: frozenset[int]

    def __bool__(self) -> bool:
        return bool(self.sockets or self.threads or self.children)

    def __sub__(self, other: "Held") -> "Held":
        return Held(
            self.sockets - other.sockets, self.threads - other.threads, self.children - other.children
        )

    def __or__(self, other: "Held") -> "Held":
        return Held(
            self.sockets | other.sockets, self.threads | other.threads, self.children | other.children
        )


def held_now() -> Held:
    return Held(frozenset(_sockets()), frozenset(threading.enumerate()), frozenset(_children()))


def _sockets() -> Iterator[str]:
    # Twice for each test and fifty descriptors: `suppress` would take as long as the kernel does.
    for number in os.listdir(DESCRIPTORS) if IS_LINUX else ():
        try:
            status = os.fstat(int(number))
        except OSError:  # the listing's own, or closed by a thread meanwhile
            continue
        if (kind := SOCKETS_AND_PIPES.get(stat.S_IFMT(status.st_mode))) is not None:
            yield f"{kind}:[{status.st_ino}]"


def _children() -> Iterable[int]:
    """Linux tells them by the thread that started each. There may be thirty: they are looked through once
    there may be a new child, which the last look of a module takes for granted."""
    global _known_children
    if _may_have_started.is_set():
        _may_have_started.clear()
        _known_children = list(_children_of_threads())
    else:
        _known_children = [child for child in _known_children if os.path.exists(f"/proc/{child}")]
    return _known_children


_known_children: list[int] = []
_may_have_started = threading.Event()
_may_have_started.set()


def _children_of_threads() -> Iterator[int]:
    with suppress(ChildProcessError):
        # That there are none is seen a hundred times faster than which ones.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        for thread in os.listdir(TASKS) if IS_LINUX else ():
            # It may have ended.
            with suppress(OSError), open(f"{TASKS}/{thread}/children", "rb", buffering=0) as children:
                yield from map(int, children.readall().split())


def _noted(start: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(start)
    def start_and_note(*args: Any, **kwargs: Any) -> Any:
        try:
            return start(*args, **kwargs)
        finally:
            _may_have_started.set()

    return start_and_note


subprocess.Popen.__init__ = _noted(subprocess.Popen.__init__)  # type: ignore[method-assign]
os.fork, os.posix_spawn = _noted(os.fork), _noted(os.posix_spawn)


NOTHING = Held(frozenset(), frozenset(), frozenset())
expected = dict.fromkeys(("module", "function"), NOTHING)
"""What may still be there once the current test, or module of tests, is over."""
last_seen: dict[str, Held] = {}
"""By the test that is just over, if it has left nothing: then the next one need not look as it begins."""
NARROWER = {"module": ["function"], "class": ["function"]}


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
    """What a fixture of a module or the session opens belongs to no test."""
    if fixturedef.scope == "function":
        return (yield)
    last_seen.clear()
    before = held_now()
    try:
        return (yield)
    finally:
        opened = held_now() - before
        for scope in NARROWER.get(fixturedef.scope, expected):
            expected[scope] |= opened


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """The first fixture is torn down last, after the event loop of the test; what lasts comes before."""
    for item in items:
        # Whole products and their engines are killed and replaced by one test and go on to serve the next.
        if item.get_closest_marker("e2e") is not None:
            continue
        if isinstance(item, pytest.Function) and "_nothing_left" not in item.fixturenames:
            tasks = ["_no_task_left"] if inspect.iscoroutinefunction(item.function) else []
            watched = ["_opened_once", "_nothing_left_by_module", "_nothing_left", *tasks]
            item.fixturenames[:] = [
                *watched,
                *(name for name in item.fixturenames if name not in watched),
            ]


@pytest.fixture(scope="session", autouse=True)
def _opened_once() -> None:
    """What lasts as long as the process, opened by the first test that needs it."""
    import temporalio.runtime
    import uvloop

    from connectors.background import run_in_background_loop

    run_in_background_loop(asyncio.sleep(0))
    uvloop.new_event_loop().close()
    temporalio.runtime.Runtime.default()


@pytest.fixture
async def _no_task_left() -> AsyncIterator[None]:
    yield
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        _, left = await asyncio.wait(left, timeout=PATIENCE)
    if left:
        pytest.fail("left on the event loop: " + "; ".join(map(_describe_task, left)), pytrace=False)


def _describe_task(task: asyncio.Task[Any]) -> str:
    places = [f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" for frame in task.get_stack()]
    return f"task {task.get_name()} of {task.get_coro()} at {', '.join(places)}"


@pytest.fixture
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield from _watch("function", "this test", request)


@pytest.fixture(scope="module")
def _nothing_left_by_module(request: pytest.FixtureRequest) -> Iterator[None]:
    yield from _watch("module", f"the fixtures of {request.node.name}", request)


def _watch(scope: str, culprit: str, request: pytest.FixtureRequest) -> Iterator[None]:
    expected[scope] = last_seen.pop("function", None) or held_now()
    yield
    # pytest refers to the values of a test's fixtures until the next test begins.
    # They are None for one that was interrupted.
    (getattr(request.node, "funcargs", None) or {}).clear()
    if scope == "module":
        _may_have_started.set()  # Also by what is not Python
    held = held_now()
    if not held - expected[scope]:
        last_seen[scope] = held
        return
    found: list[str] = []
    with _unraisable_told_to(found.append):
        left = _wait_until_nothing_is_left(scope, MOMENT)
        # This closes forgotten transports and ends the threads of forgotten pools; the young, of which they
        # nearly always are, take a tenth of the time of all.
        for generation, seconds in ((1, MOMENT), (2, PATIENCE)):
            if left or held_now() - expected[scope]:
                gc.collect(generation)
                left = _wait_until_nothing_is_left(scope, seconds)
    found += _describe(left)
    # The module is not to blame for it once more.
    expected["module"] |= left
    if found:
        pytest.fail(f"left open by {culprit}: " + "; ".join(found), pytrace=False)


def _wait_until_nothing_is_left(scope: str, seconds: float) -> Held:
    """What is left then. Once nothing was, a later look would show what a library opens for a moment."""
    deadline = time.monotonic() + seconds
    while (left := _left(scope)) and time.monotonic() < deadline:
        time.sleep(PAUSE)
    return left


@contextmanager
def _unraisable_told_to(hear: Callable[[str], None]) -> Iterator[None]:
    """pytest would fail the next test for what is noticed in a teardown that fails."""
    before = sys.unraisablehook
    sys.unraisablehook = lambda seen: hear(f"{seen.exc_value!r} in {seen.object!r}")
    try:
        yield
    finally:
        sys.unraisablehook = before


def _left(scope: str) -> Held:
    left = held_now() - expected[scope]
    if not left:
        return left
    threads = frozenset(thread for thread in left.threads if not _is_of_a_living_pool(thread))
    return Held(frozenset(_without_lasting_connections(left.sockets)), threads, left.children)


def _is_of_a_living_pool(thread: threading.Thread) -> bool:
    """A pool's threads end with it, and AnyIO's with their event loop; those of a session's server stay.

    After a garbage collection a pool that lives is the process's.
    """
    anyio_loop: asyncio.AbstractEventLoop | None = getattr(thread, "loop", None)
    target: Any = getattr(thread, "_target", None)
    arguments: Any = getattr(thread, "_args", None)
    in_executor = getattr(target, "__name__", "") == "_worker" and arguments
    return anyio_loop.is_running() if anyio_loop else bool(in_executor and arguments[0]() is not None)


@dataclass(frozen=True)
class Connection:
    """A line of /proc/net/tcp."""

    local: str
    remote: str
    listens: bool


def _connections() -> dict[str, Connection]:
    """TCP connections and listeners of this machine by socket."""
    found = {}
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            _, local, remote, state, *_, inode = line.split()[:10]
            found[f"socket:[{inode}]"] = Connection(_port(local), _port(remote), state == LISTENS)
    return found


def _port(address: str) -> str:
    return str(int(address.rpartition(":")[2], 16))


def _without_lasting_connections(sockets: frozenset[str]) -> Iterator[str]:
    """Those that do not belong to a server that goes on after the test."""
    known = _connections() if sockets else {}
    servers = {one.local for name, one in known.items() if one.listens and name not in sockets}
    for name in sockets:
        connection = known.get(name)
        if connection is None or not {connection.local, connection.remote} & servers:
            yield name


def _describe(left: Held) -> Iterator[str]:
    known = _connections() if left.sockets else {}
    loops = _loops_by_socket() if left.sockets else {}
    for name in sorted(left.sockets):
        connection = known.get(name)
        if connection is None:
            yield f"{name} of {loops[name]}" if name in loops else f"{name}, {_describe_socket(name)}"
        elif connection.listens:
            yield f"{name} listening on port {connection.local}"
        else:
            yield f"{name} from port {connection.local} to port {connection.remote}"
    for thread in left.threads:
        frame = sys._current_frames().get(thread.ident or 0)
        places = [f"{Path(step.filename).name}:{step.lineno}" for step in traceback.extract_stack(frame)]
        yield f"thread {thread.name} at {' '.join(places[-4:])}"
    for pid in left.children:
        yield f"process {pid}: {_command(pid)}"


def _describe_socket(name: str) -> str:
    """Of one that the kernel lists under no connection: its family, kind, ends and state."""
    for number in map(int, os.listdir(DESCRIPTORS)):
        with suppress(OSError):
            if str(os.readlink(f"{DESCRIPTORS}/{number}")) != name:
                continue
            with socket.socket(fileno=os.dup(number)) as found:
                described = f"{found.family.name} {found.type.name} bound to {found.getsockname()!r}"
                with suppress(OSError):
                    described += f" and connected to {found.getpeername()!r}"
                if found.type == socket.SOCK_STREAM and found.family != socket.AF_UNIX:
                    described += f", in state {found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]}"
                return described
    return "closed since or no socket"


def _loops_by_socket() -> dict[str, str]:
    """Event loops, by the pair of sockets with which each wakes itself."""
    found = {}
    # By its type: what only stands for an object would make it when asked for its class.
    for loop in (one for one in gc.get_objects() if issubclass(type(one), asyncio.SelectorEventLoop)):
        for end in filter(None, (loop._ssock, loop._csock)):
            found[f"socket:[{os.fstat(end.fileno()).st_ino}]"] = repr(loop)
    return found


def _command(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline()) or "ended, and not waited for"
    except psutil.NoSuchProcess:
        return "ended, and not waited for"
