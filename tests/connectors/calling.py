"""Calling a declared tool, as executions do it, and waiting for runs of engines that take seconds."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from connectors.errors import Rejected
from connectors.http_tools.connector import HttpConnector
from connectors.http_tools.tool import ToolConfig
from connectors.protocol import Connector, RunRef, RunSnapshot, RunState, WorkflowRef
from connectors.testing import Sample, closing, start
from tests.connectors.declared_tools import connector_of, workflow_of

KEY = UUID("5e4f1a1c-59f4-4a52-8a1b-d3a6c9a44d0e")


async def run(declared: ToolConfig, arguments: dict[str, Any] | None = None, **settings: Any) -> RunSnapshot:
    """How the call ends; `settings`: others of its source than the tool says."""
    return await call(connector_of(declared, **settings), workflow_of(declared), arguments or {})


async def call(connector: HttpConnector, workflow: WorkflowRef, arguments: dict[str, Any]) -> RunSnapshot:
    async with closing(connector):
        started = await connector.start(workflow, arguments, key=KEY)
    assert started.snapshot is not None
    assert started.run_id == str(KEY)
    return started.snapshot


async def until(connector: Connector, run: RunRef, done: Callable[[RunSnapshot], Any]) -> RunSnapshot:
    """The first snapshot that it is true of."""
    async with asyncio.timeout(180.0):
        while not done(snapshot := await connector.poll(run)):  # noqa: ASYNC110 - engines must be polled
            await asyncio.sleep(0.25)
    return snapshot


def has_ended(snapshot: RunSnapshot) -> bool:
    return snapshot.state is not RunState.RUNNING


def steps_taken(folder: Path) -> dict[str, int]:
    """How often each of the three steps ran; the third fails without a file `fixed`."""
    files = {name: folder / name for name in ("one", "two", "three")}
    return {name: len(file.read_text()) for name, file in files.items() if file.exists()}


async def goes_on_from_its_third_step(
    connector: Connector, workflow: WorkflowRef, arguments: dict[str, Any], folder: Path
) -> list[RunRef]:
    """A run whose third step fails, and fails again when it is retried, and then succeeds. Returns it and its
    two retries."""
    _, run = await start(connector, Sample(workflow, arguments))
    assert (await until(connector, run, has_ended)).state is RunState.FAILED
    assert steps_taken(folder) == {"one": 1, "two": 1, "three": 1}
    runs = [run]
    for times, state in ((2, RunState.FAILED), (3, RunState.COMPLETED)):
        if state is RunState.COMPLETED:
            (folder / "fixed").touch()
        key = uuid4()
        retried = await connector.retry(runs[-1], key=key)
        runs.append(RunRef(workflow=workflow, run_id=retried.run_id, key=key))
        assert (await until(connector, runs[-1], has_ended)).state is state
        assert steps_taken(folder) == {"one": 1, "two": 1, "three": times}
        found = await connector.find_retry(runs[-2], key=key)
        assert found is not None and found.run_id == retried.run_id
    with pytest.raises(Rejected):
        await connector.retry(runs[-1], key=uuid4())
    return runs
