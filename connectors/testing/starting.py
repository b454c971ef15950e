"""Starts, the keys that they carry, and looking runs up by those."""

import asyncio
from uuid import uuid4

import pytest

from connectors.errors import Misconfigured, NotFound, Rejected
from connectors.protocol import Connector
from connectors.testing.harness import EngineHarness, capabilities_of, is_unsupported, start


class Starting:
    """`start` and `find_run` at a good engine."""

    async def test_an_unknown_workflow_cannot_be_started(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A2.4: the engine's refusal reaches the caller."""
        # For declared workflows, a missing declaration is a misconfiguration.
        undeclared = () if connector.capabilities.lists_workflows else (Misconfigured,)
        with pytest.raises((NotFound, Rejected, *undeclared)):
            await connector.start(harness.unknown_workflow, {}, key=uuid4())

    async def test_one_key_starts_one_run_or_nothing_is_promised(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B3: a start sent twice makes one run, by the engine's own record, where that is declared."""
        if not capabilities_of(connector, harness.completing).idempotent_start:
            return
        key = uuid4()
        first, _ = await start(connector, harness.completing, key)
        second, _ = await start(connector, harness.completing, key)
        assert first.run_id == second.run_id
        assert harness.runs_started_with(key) == 1

    async def test_simultaneous_starts_with_one_key_keep_the_promise_too(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B3: one key starts one run under a race as well, where that is declared."""
        if not capabilities_of(connector, harness.completing).idempotent_start:
            return
        key = uuid4()
        starts = await asyncio.gather(*(start(connector, harness.completing, key) for _ in range(5)))
        assert len({started.run_id for started, _ in starts}) == 1
        assert harness.runs_started_with(key) == 1

    async def test_different_keys_start_different_runs(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B3: a run belongs to the call that it was started for."""
        if capabilities_of(connector, harness.completing).starts_can_be_broken_off:
            # The answer is the result, so that the run's id does not matter.
            return
        (first, _), (second, _) = [await start(connector, harness.completing) for _ in range(2)]
        assert first.run_id != second.run_id

    async def test_a_run_is_found_by_its_key_or_looking_it_up_is_unsupported(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B3: a start whose answer was lost can be found out."""
        workflow, arguments = harness.completing.workflow, harness.completing.arguments
        if not capabilities_of(connector, harness.completing).can_find_runs:
            await is_unsupported(connector, "find_run", workflow, arguments, key=uuid4())
            return
        run, _ = await harness.ended(connector, harness.completing)
        found = await connector.find_run(workflow, arguments, key=run.key)
        assert found is not None and found.run_id == run.run_id
        assert await connector.find_run(workflow, arguments, key=uuid4()) is None

    async def test_the_key_of_another_workflows_run_finds_nothing(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B3: no other workflow's run is taken for the one that was looked for."""
        another = harness.another_workflow()
        if another is None or not capabilities_of(connector, harness.completing).can_find_runs:
            return
        run, _ = await harness.ended(connector, harness.completing)
        assert await connector.find_run(another, harness.completing.arguments, key=run.key) is None
