"""Calling a declared tool, as executions do it, and waiting for runs of engines that take seconds."""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

from connectors.http_tools.connector import HttpConnector
from connectors.http_tools.tool import ToolConfig
from connectors.protocol import Connector, RunRef, RunSnapshot, RunState, WorkflowRef
from connectors.testing import closing
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
