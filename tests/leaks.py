"""Fails the tests that leave tasks, and the modules that leave threads (`-p tests.leaks`).

Of sockets, transports, event loops and processes Python warns itself as it frees them; pytest fails for that.
"""

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

PATIENCE = 5.0
expected = {*threading.enumerate()}
"""Threads of fixtures of the session, and those that a module was failed for."""
OF_THE_PROCESS = "background-loop"


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
    before = {*threading.enumerate()}
    try:
        return (yield)
    finally:
        if fixturedef.scope == "session":
            expected.update({*threading.enumerate()} - before)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """The first fixture is torn down last."""
    expected.update(threading.enumerate())
    for item in items:
        # Whole products and their engines are killed and replaced by one test and go on to serve the next.
        if isinstance(item, pytest.Function) and item.get_closest_marker("e2e") is None:
            tasks = ["_no_task_left"] if inspect.iscoroutinefunction(item.function) else []
            item.fixturenames[:0] = ["_no_thread_left", *tasks]


@pytest.fixture(scope="module")
def _no_thread_left() -> Iterator[None]:
    yield
    deadline = time.monotonic() + PATIENCE
    while (left := {*filter(_ends, threading.enumerate())} - expected) and time.monotonic() < deadline:
        time.sleep(0.02)
    expected.update(left)
    assert not left, f"Left running: {left}"


def _ends(thread: threading.Thread) -> bool:
    """Those of pools stay with them."""
    target = getattr(thread, "_target", None)
    is_pooled = hasattr(thread, "loop") or getattr(target, "__name__", "") == "_worker"
    return thread.name != OF_THE_PROCESS and not is_pooled


@pytest.fixture
async def _no_task_left() -> AsyncIterator[None]:
    yield
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        _, left = await asyncio.wait(left, timeout=PATIENCE)
    assert not left, f"Left on the event loop: {left}"
