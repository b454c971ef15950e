"""What a test leaves open fails that test, by name (`tests/leaks.py`)."""

import asyncio
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.connectors.scripted import ScriptedEngine, replies
from tests.processes import ROOT

TESTS = '''
import asyncio, socket, subprocess, sys, threading
from concurrent.futures import ThreadPoolExecutor

import pytest

kept, forgotten, pool, forever = [], [], ThreadPoolExecutor(1), threading.Event()


@pytest.fixture(scope="module")
def server():
    """Keeps one end of each connection, as servers with keep-alive do."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener
        for one in kept:
            if isinstance(one, socket.socket):
                one.close()


@pytest.fixture
async def closed_afterwards():
    listening = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    yield listening.sockets[0].getsockname()[1]
    listening.close()
    await listening.wait_closed()


def test_leaves_a_listener():
    kept.append(socket.create_server(("127.0.0.1", 0)))


def test_leaves_a_connection():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept.append(socket.create_connection(listener.getsockname()))
        with listener.accept()[0]:
            pass


def test_leaves_a_pair_of_sockets():
    kept.extend(socket.socketpair())


def test_leaves_an_event_loop():
    kept.append(asyncio.new_event_loop())


def test_leaves_a_thread():
    threading.Thread(target=forever.wait, name="forgotten", daemon=True).start()


def test_leaves_a_process():
    kept.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))


def test_leaves_a_process_that_ended():
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    with process.stdout:
        process.stdout.read()
    kept.append(process)


async def test_leaves_a_task():
    async def go_on():
        await asyncio.Event().wait()

    kept.append(asyncio.create_task(go_on()))


async def test_leaves_a_transport(server):
    """In a reference cycle, as the streams of real tests are."""
    _, writer = await asyncio.open_connection(*server.getsockname())
    cycle = [writer]
    cycle.append(cycle)


def test_is_clean_though_a_server_of_the_module_keeps_a_connection(server):
    with socket.create_connection(server.getsockname()):
        kept.append(server.accept()[0])


def test_is_clean_though_a_pool_of_the_process_keeps_its_thread():
    pool.submit(int).result()


def test_is_clean_though_its_thread_takes_a_moment():
    threading.Timer(0.1, int).start()


async def test_is_clean_with_a_server_of_its_own(closed_afterwards):
    reader, writer = await asyncio.open_connection("127.0.0.1", closed_afterwards)
    await reader.read()
    writer.close()
    await writer.wait_closed()


@pytest.fixture(scope="module")
def forgetful():
    yield
    forgotten.extend(socket.socketpair())


def test_is_the_last_to_use_a_fixture_that_leaves_sockets(forgetful):
    pass


def test_ends_all():
    forever.set()
    for one in kept:
        if isinstance(one, subprocess.Popen):
            one.kill()
            one.wait()
        elif isinstance(one, asyncio.AbstractEventLoop):
            one.close()
'''

LOOPS = ("--asyncio-mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")

LEFT = {
    "leaves_a_listener": r"socket:\[\d+\] listening on port \d+",
    "leaves_a_connection": r"socket:\[\d+\] from port \d+ to port \d+",
    "leaves_a_pair_of_sockets": r"socket:\[\d+\].*socket:\[\d+\]",
    "leaves_an_event_loop": r"socket:\[\d+\] of <_UnixSelectorEventLoop running=False closed=False.*>",
    "leaves_a_thread": "thread forgotten at .*threading.py",
    "leaves_a_process": r"process \d+: .*python.* time\.sleep\(60\)",
    "leaves_a_process_that_ended": r"process \d+: ended, and not waited for",
    "leaves_a_task": r"task Task-\d+ of <coroutine object .*go_on.* at test_sample\.py:\d+",
    "ends_all": r"left open by the fixtures of test_sample\.py: socket:\[\d+\], AF_UNIX .*; socket:\[\d+\]",
    "leaves_a_transport": "ResourceWarning.*unclosed transport",
}


@pytest.fixture
def output(tmp_path: Path) -> str:
    """What pytest says of the tests above."""
    Path(tmp_path, "conftest.py").write_text(
        "import tests.leaks\ntests.leaks.MOMENT = tests.leaks.PATIENCE = 0.15\n"
    )
    Path(tmp_path, "test_sample.py").write_text(TESTS)
    Path(tmp_path, "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    plugins = ["-p", "tests.leaks", "-p", "no:randomly", "-p", "no:django", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugins, *LOOPS, "-rA", "--tb=line"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "1000"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.e2e
def test_what_a_test_leaves_open_fails_that_test_alone(output: str) -> None:
    errors = dict(re.findall(r"^ERROR test_sample\.py::test_(\w+) - (.*)$", output, re.MULTILINE))

    assert errors.keys() == LEFT.keys(), output
    for test, left in LEFT.items():
        assert re.search(left, errors[test]), (test, errors[test])
    assert f"{TESTS.count('def test_')} passed" in output


@pytest.mark.parametrize("steps", range(6))
async def test_an_engine_leaves_nothing_though_a_client_comes_as_it_ends(steps: int) -> None:
    """Its connection is ready only so many steps of the loop later; the fixture fails what is left of it."""
    async with ScriptedEngine(replies(200)) as engine:
        client = socket.create_connection((engine.host, engine.port))
        for _ in range(steps):
            await asyncio.sleep(0)
    client.close()
