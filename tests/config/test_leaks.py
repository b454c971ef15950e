"""What a test leaves open fails it or its module (`tests/leaks.py`, and pytest of what Python warns of)."""

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

TESTS = """
import asyncio, socket, subprocess, sys, threading
from concurrent.futures import ThreadPoolExecutor
import pytest

kept, pool = [], ThreadPoolExecutor(1)

@pytest.fixture(scope="session")
def server():
    threading.Thread(target=threading.Event().wait, daemon=True).start()

def test_leaves_a_listener():
    socket.create_server(("127.0.0.1", 0))

def test_leaves_a_process():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)"])

async def test_leaves_a_task():
    kept.append(asyncio.create_task(asyncio.Event().wait()))

def test_is_clean_though_a_pool_and_a_session_keep_their_threads(server):
    pool.submit(int).result()

def test_is_the_last_of_those_that_left_a_thread():
    threading.Thread(target=threading.Event().wait, name="forgotten", daemon=True).start()
"""
LEFT = {
    "leaves_a_listener": "unclosed <socket",
    "leaves_a_process": "subprocess .* still running",
    "leaves_a_task": "Left on the event loop: .*Event.wait",
    "is_the_last_of_those_that_left_a_thread": "Left running: .*forgotten",
}


@pytest.mark.e2e
def test_what_a_test_leaves_open_fails_that_test_alone(tmp_path: Path) -> None:
    Path(tmp_path, "conftest.py").write_text("import tests.leaks\ntests.leaks.PATIENCE = 0.15\n")
    Path(tmp_path, "test_sample.py").write_text(TESTS)
    Path(tmp_path, "pytest.ini").write_text("[pytest]\nfilterwarnings = error\nasyncio_mode = auto\n")
    plugins = ["-p", "tests.leaks", "-p", "no:randomly", "-p", "no:django", "-p", "no:cacheprovider"]
    scope = ["-o", "asyncio_default_fixture_loop_scope=function"]
    command = [sys.executable, "-m", "pytest", *plugins, *scope, "-rfEp", "--tb=short"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "1000"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    for test, left in LEFT.items():
        assert re.search(rf"^(FAILED|ERROR) test_sample\.py::test_{test} - ", done.stdout, re.MULTILINE), done
        assert re.search(left, done.stdout), test
    assert "FAILED test_sample.py::test_is_clean" not in done.stdout
    assert len(re.findall("^(?:FAILED|ERROR) ", done.stdout, re.MULTILINE)) == len(LEFT)


@pytest.mark.parametrize("steps", range(6))
async def test_an_engine_leaves_nothing_though_a_client_comes_as_it_ends(steps: int) -> None:
    """Its connection is ready only so many steps of the loop later."""
    async with ScriptedEngine(replies(200)) as engine:
        client = socket.create_connection((engine.host, engine.port))
        for _ in range(steps):
            await asyncio.sleep(0)
    client.close()
