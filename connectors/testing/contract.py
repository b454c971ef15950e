"""The contract: the protocol's promises, each a class with its tests."""

import inspect
import logging
from collections.abc import AsyncIterator, Iterator

import pytest
from loguru import logger

from connectors.definitions import WorkflowDefinition
from connectors.protocol import Connector
from connectors.registry import objection_to
from connectors.testing.answering import Answering, Credentials
from connectors.testing.harness import EngineHarness, capabilities_of, closing
from connectors.testing.running import Ending, Following, Interacting, Starting

METHODS_BY_CAPABILITY = {
    "can_find_runs": "find_run",
    "can_wait": "wait",
    "terminates_after_seconds": "terminate",
    "can_query": "query",
    "can_signal": "signal",
    "can_list_runs": "list_runs",
}


class Listing:
    """`check` and `discover` at a good engine."""

    async def test_check_of_a_good_engine_is_ok_and_timed(self, connector: Connector) -> None:
        """B9: the engine's health can be asked for."""
        health = await connector.check()
        assert health.ok
        assert health.message
        assert (health.latency_seconds or 0) > 0

    async def test_discovery_finds_the_engines_workflows(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A1.1, A3.1: the listing yields each workflow with its id and name."""
        found = [item async for item in connector.discover() if isinstance(item, WorkflowDefinition)]
        if not connector.capabilities.lists_workflows:
            assert found == []
            return
        names_by_id = {definition.id: definition.name for definition in found}
        for sample in (harness.completing, harness.failing, harness.lasting):
            assert names_by_id.get(sample.workflow.id) == sample.workflow.name
        assert harness.unknown_workflow.id not in names_by_id


class ConnectorContract(Listing, Starting, Following, Ending, Interacting, Answering, Credentials):
    """Subclass and provide the fixture `harness`."""

    @pytest.fixture
    async def connector(self, harness: EngineHarness) -> AsyncIterator[Connector]:
        async with closing(harness.connector()) as connector:
            yield connector

    @pytest.fixture
    def log(self, caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
        """Everything that our code (loguru) and its libraries (logging) write, at every level."""
        caplog.set_level(logging.DEBUG)
        lines: list[str] = []
        sink = logger.add(lines.append, level=0, diagnose=False)
        yield lines
        logger.remove(sink)

    async def test_a_source_can_have_this_class_as_its_connector(self, connector: Connector) -> None:
        """B10: the class passes the check that the registry makes before `add_source` takes its kind."""
        found = type(connector)
        assert objection_to(found, getattr(found, "kind", "")) == ""

    async def test_what_the_capabilities_promise_has_its_method(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B10: the product calls an optional method once the capabilities promise it."""
        for sample in (harness.completing, harness.failing, harness.lasting):
            capabilities = capabilities_of(connector, sample)
            for capability, method in METHODS_BY_CAPABILITY.items():
                promised = getattr(capabilities, capability) not in (None, False)
                found = getattr(connector, method, None)
                assert not promised or inspect.iscoroutinefunction(found), f"{capability} needs {method}()"
            assert not capabilities.reports_listing_changes or callable(
                getattr(connector, "on_listing_changed", None)
            )
