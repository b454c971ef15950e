"""The product's contract, held by a Redis with workers of RQ."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import pytest
from engine import PASSWORD, RqEngine
from pydantic import ValidationError
from rq.job import Job
from workflow_catalogue_rq.config import RqConfig
from workflow_catalogue_rq.connector import RqConnector

from connectors.protocol import Connector, WorkflowRef
from connectors.testing import ConnectorContract, EngineHarness, Sample, closing, start, until_ended

WRONG_PASSWORD = "wrong-password-fedcba9876543210"
FUNCTIONS = {
    "jobs.count_words": "Counts the words of a text.",
    "jobs.brew": "Makes tea.",
    "jobs.keep_watch": "Watches for some seconds.",
}
HARMLESS = (b"HELLO", b"AUTH", b"CLIENT", b"SELECT", b"PING")


def sample(function: str, **arguments: object) -> Sample:
    return Sample(WorkflowRef(id=f"jobs.{function}", name=function), dict(arguments))


class RqHarness(EngineHarness):
    completing = sample("count_words", text="two words")
    output = {"words": 2}
    failing = sample("brew", tea="Darjeeling")
    failure = "The Darjeeling went cold."
    lasting = sample("keep_watch", seconds=600)
    secrets = frozenset({PASSWORD, WRONG_PASSWORD})
    garbage = {"a type that Redis does not have": b"?garbage\r\n"}

    def __init__(self, engine: RqEngine) -> None:
        self.engine = engine

    def connector(self) -> Connector:
        return self._connector(self.engine.port, PASSWORD, 10.0)

    def connector_with_wrong_credentials(self) -> Connector:
        return self._connector(self.engine.port, WRONG_PASSWORD, 10.0)

    def connector_at(self, port: int) -> Connector:
        return self._connector(port, PASSWORD, 1.0)

    @asynccontextmanager
    async def connector_without_answers(self) -> AsyncIterator[Connector]:
        """Redis lets us in and falls silent then: before that, nothing could have been started."""
        async with (
            after_login(self.engine.port, b"") as port,
            closing(self.connector_at(port)) as connector,
        ):
            yield connector

    async def connectors_with_garbage(self) -> AsyncGenerator[tuple[str, Connector]]:
        for name, garbage in self.garbage.items():
            async with (
                after_login(self.engine.port, garbage) as port,
                closing(self._connector(port, PASSWORD, 5.0)) as connector,
            ):
                yield name, connector

    def runs_started_with(self, key: UUID) -> int:
        with self.engine.redis as redis:
            return int(Job.exists(str(key), connection=redis))

    def _connector(self, port: int, password: str, timeout: float) -> Connector:
        return RqConnector(
            RqConfig(
                host="127.0.0.1",
                port=port,
                password=password,
                functions=FUNCTIONS,
                request_timeout_seconds=timeout,
            )
        )


@asynccontextmanager
async def after_login(port: int, answer: bytes) -> AsyncIterator[int]:
    """The port of a proxy to Redis that passes on nothing but what a client says before its first command,
    and answers everything else itself, if there is an answer."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        redis_reader, redis_writer = await asyncio.open_connection("127.0.0.1", port)
        answers = asyncio.create_task(pass_on(redis_reader, writer))
        try:
            while said := await reader.read(65_536):
                if any(word in said for word in HARMLESS):
                    redis_writer.write(said)
                else:
                    writer.write(answer)
        finally:
            answers.cancel()
            redis_writer.transport.abort()
            writer.transport.abort()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while said := await reader.read(65_536):
        writer.write(said)


@pytest.fixture
def harness(rq: RqEngine) -> Iterator[RqHarness]:
    yield RqHarness(rq)
    rq.stop_everything()


class TestRq(ConnectorContract):
    @pytest.fixture
    def harness(self, harness: RqHarness) -> EngineHarness:
        return harness

    async def test_a_listing_that_is_garbage_is_no_empty_listing(self, harness: EngineHarness) -> None:
        """The settings name the workflows, so that Redis cannot garble them."""
        async with closing(harness.connector()) as connector:
            assert [item.id async for item in connector.discover()] == list(FUNCTIONS)


async def test_a_run_tells_how_far_it_is(harness: RqHarness) -> None:
    async with closing(harness.connector()) as connector:
        _, run = await start(connector, harness.lasting)
        async with asyncio.timeout(30):
            while True:
                if (snapshot := await connector.poll(run)).progress is not None:
                    break
                await asyncio.sleep(0.02)
    assert (snapshot.progress, snapshot.progress_message) == (25.0, "watching")


async def test_a_run_that_waits_for_a_worker_can_be_cancelled(harness: RqHarness) -> None:
    async with closing(harness.connector()) as connector:
        for _ in range(4):
            _, run = await start(connector, harness.lasting)
        await connector.cancel(run)
        assert (await until_ended(connector, run)).state.value == "cancelled"


async def test_the_key_is_the_jobs_id(harness: RqHarness) -> None:
    key = uuid4()
    async with closing(harness.connector()) as connector:
        started, _ = await start(connector, harness.completing, key)
    assert started.run_id == str(key)


@pytest.mark.parametrize("functions", [{}, {"jobs": "x"}, {"os;system.x": "x"}, {"jobs.brew": ""}])
def test_functions_need_a_path_and_a_description(functions: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        RqConfig(host="localhost", functions=functions)
