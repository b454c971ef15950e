"""The contract for Temporal, against its dev server and a worker; a gateway asks for the key."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from connectors.background import run_in_background_loop
from connectors.protocol import Connector, RunRef, WorkflowRef
from connectors.temporal.config import TemporalConfig
from connectors.temporal.connector import TemporalConnector
from connectors.testing import ConnectorContract, EngineHarness, Interaction, Sample, closing
from tests.engines.temporal.definitions import definitions, workflow_ref
from tests.engines.temporal.proxy import Gateway, gateway_to
from tests.engines.temporal.server import TemporalServer

RIGHT_KEY = "right-key-0123456789abcdef"
WRONG_KEY = "wrong-key-fedcba9876543210"


class TemporalHarness(EngineHarness):
    """Workflow ids are made of our keys alone."""

    completing = Sample(workflow_ref("Echo"), {"message": "tea"})
    output = {"message": "tea"}
    failing = Sample(workflow_ref("Fail"), {"tea": "green"})
    failure = "No green tea is left."
    lasting = Sample(workflow_ref("Lasting"), {})
    unknown_workflow = WorkflowRef(id="NoSuchWorkflow", name="NoSuchWorkflow")
    query = Interaction("notes", answer=[])
    signal = Interaction("note", {"text": "Boil."})
    asking = Sample(workflow_ref("Asking", asks={"query": "open_questions", "update": "decide"}), {})
    consent = {"approve": True}
    unfit = {"approve": "perhaps"}
    garbage = {"bytes that are no message": b"\xff\xff\xff"}

    def __init__(self, server: TemporalServer, gateway: Gateway) -> None:
        self.server = server
        self.gateway = gateway
        self.secrets = frozenset({RIGHT_KEY, WRONG_KEY})

    def connector(self) -> Connector:
        return self._connector(self.gateway.port, RIGHT_KEY)

    def connector_with_wrong_credentials(self) -> Connector:
        return self._connector(self.gateway.port, WRONG_KEY)

    def connector_at(self, port: int) -> Connector:
        return self._connector(port, RIGHT_KEY, timeout_seconds=0.5)

    @asynccontextmanager
    async def connector_without_answers(self) -> AsyncIterator[Connector]:
        with gateway_to(self.server.address) as mute:
            mute.swallows_all = True
            async with closing(self.connector_at(mute.port)) as connector:
                yield connector

    async def connectors_with_garbage(self) -> AsyncGenerator[tuple[str, Connector]]:
        with gateway_to(self.server.address) as gateway:
            async with closing(self._connector(gateway.port, RIGHT_KEY, timeout_seconds=0.5)) as connector:
                for name, gateway.garbage in self.garbage.items():
                    yield name, connector

    async def has_heard_signal(self, connector: Connector, run: RunRef) -> bool:
        return await connector.query(run, "notes", {}) == ["Boil."]

    def runs_started_with(self, key: UUID) -> int:
        return run_in_background_loop(self._count(key))

    async def _count(self, key: UUID) -> int:
        client = await self.server.client()
        return len([1 async for run in client.list_workflows(f"WorkflowId = '{key}'")])

    def _connector(self, port: int, key: str, *, timeout_seconds: float = 5.0) -> Connector:
        return TemporalConnector(
            TemporalConfig(
                host_port=f"127.0.0.1:{port}",
                api_key=key,
                tls=False,
                timeout_seconds=timeout_seconds,
                definitions=definitions(),
                pause_enabled=True,
            )
        )


@pytest.fixture(scope="module")
def gateway(temporal_server: TemporalServer) -> Iterator[Gateway]:
    with gateway_to(temporal_server.address) as gateway:
        gateway.keys = {RIGHT_KEY}
        yield gateway


class TestTemporal(ConnectorContract):
    @pytest.fixture
    def harness(self, temporal_server: TemporalServer, gateway: Gateway) -> EngineHarness:
        return TemporalHarness(temporal_server, gateway)
