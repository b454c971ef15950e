"""The engine's health and its workflows."""

from connectors.definitions import WorkflowDefinition
from connectors.protocol import Connector
from connectors.testing.harness import EngineHarness


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
