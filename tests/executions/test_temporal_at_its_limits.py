"""A real Temporal service that loses answers, is frozen, or is killed and comes back."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from catalogue.models import Source
from connectors.testing import eventually, free_port
from executions.models import Execution
from tests.engines.temporal.asking import make_temporal_source
from tests.engines.temporal.proxy import gateway_to
from tests.engines.temporal.server import TemporalServer, running_server, running_worker
from tests.executions.engines import PATIENCE_SECONDS, in_thread, until
from tests.executions.steps import (
    call,
    in_database,
    only,
    timeline,
)
from tests.processes import end_group

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.engines, pytest.mark.timeout(120)]


@dataclass
class Engine:
    """A service of this test's own, with all that it knew when it comes back."""

    folder: Path
    port: int = field(default_factory=free_port)
    _running: ExitStack = field(default_factory=ExitStack)

    def bring_up(self) -> TemporalServer:
        database = self.folder / "temporal.sqlite3"
        self.server = self._running.enter_context(
            running_server(self.folder, port=self.port, database=database)
        )
        self._running.enter_context(running_worker(self.server))
        return self.server

    def freeze(self) -> None:
        """On return it has stopped: until then a busy machine lets some of its threads go on and answer."""
        os.kill(self.server.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.server.process.pid, os.WSTOPPED)

    def thaw(self) -> None:
        os.kill(self.server.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        end_group(self.server.process)
        self._running.close()


@pytest.fixture
def temporal(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path)
    engine.bring_up()
    try:
        yield engine
    finally:
        engine.kill()


SHORT = 0.5
"""Seconds of patience with a service that will not answer. A busy one may take longer."""


def source_of(temporal: Engine, **settings: Any) -> Source:
    return make_temporal_source(temporal.server, **settings)


async def runs_of(temporal: Engine, execution: Execution) -> int:
    client = await temporal.server.client()
    return (await client.count_workflows(f"WorkflowId = '{execution.pk}'")).count


async def test_a_start_whose_every_answer_is_lost_is_found_at_temporal(temporal, configured):
    """A7.2, B8: repeats are used up, and then the service is asked what it has."""
    configured(retry_attempts=1)
    with gateway_to(temporal.server.address) as gateway:
        gateway.swallowed = {"StartWorkflowExecution"}
        await in_thread(lambda: source_of(temporal, host_port=gateway.address, timeout_seconds=SHORT))
        execution = await call("Echo", {"tea": "green"}, seconds=40)
    assert execution.succeeded
    assert "looked_up" in await in_database(timeline, execution)
    assert await runs_of(temporal, execution) == 1


@pytest.mark.parametrize("outage", ["frozen", "killed"])
async def test_a_run_that_began_before_the_service_fell_silent_is_found_when_it_is_back(
    temporal, configured, outage
):
    """A7.2, B8: the answer to the start was lost, and every repeat met a service that was not there."""
    configured(retry_attempts=1)
    down, up = (temporal.freeze, temporal.thaw) if outage == "frozen" else (temporal.kill, temporal.bring_up)
    with gateway_to(temporal.server.address) as gateway:
        gateway.swallowed = {"StartWorkflowExecution"}
        await in_thread(lambda: source_of(temporal, host_port=gateway.address, timeout_seconds=SHORT))
        calling = asyncio.create_task(call("Later", {"seconds": 1}, seconds=90))
        execution = await until(lambda: Execution.objects.first())
        await eventually(lambda: runs_of(temporal, execution), seconds=PATIENCE_SECONDS)
        await in_thread(down)
        try:
            await until(lambda: only().attempts and only().looked_up_since, "it was looked up in vain")
        finally:
            await in_thread(up)
        execution = await calling
    assert execution.succeeded
    assert await runs_of(temporal, execution) == 1


# A run whose timeout has passed.
