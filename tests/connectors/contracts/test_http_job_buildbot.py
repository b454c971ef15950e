"""The contract for the declaration of Buildbot, and what is its own, against a real master."""

from collections.abc import AsyncIterator
from typing import ClassVar
from unittest.mock import ANY
from uuid import uuid4

import pytest

from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.errors import NotFound, OutcomeUnknown, Rejected
from connectors.protocol import Connector, RunState, WorkflowRef
from connectors.testing import ConnectorContract, EngineHarness, Sample, closing, start, until_ended
from tests.connectors.contracts.test_http_job import BuildbotHarness
from tests.connectors.contracts.test_http_job_airflow_and_dagster import RealEngineHarness, until
from tests.engines.job_engines.servers import BuildbotServer, buildbot

__all__ = ["buildbot"]
# A server's start alone may take a minute on a busy machine.
pytestmark = pytest.mark.timeout(400)


class RealBuildbot(RealEngineHarness, BuildbotHarness):
    has_credentials = False
    secrets = frozenset()
    output: ClassVar = {"result": "build successful", "build": ANY, "properties": ANY}
    unknown_workflow = WorkflowRef(id="999", name="gone", metadata={"kept": {"scheduler": "gone"}})

    def __init__(self, server: BuildbotServer) -> None:
        self.server = server
        self.completing = Sample(self.builder("brew"), {"cups": 3})
        self.failing = Sample(self.builder("spill"), {"words": self.failure})
        self.lasting = Sample(self.builder("steep", scheduler="force"), {})

    def builder(self, name: str, scheduler: str = "") -> WorkflowRef:
        assert isinstance(self.server, BuildbotServer)
        listed = self.server.ask("/api/v2/builders")["builders"]
        number = next(one["builderid"] for one in listed if one["name"] == name)
        kept = {"scheduler": scheduler or f"force-{name}"}
        return WorkflowRef(id=str(number), name=name, metadata={"kept": kept})


class TestRealBuildbot(ConnectorContract):
    @pytest.fixture
    def harness(self, buildbot: BuildbotServer) -> EngineHarness:
        return RealBuildbot(buildbot)

    async def test_an_unknown_workflow_cannot_be_started(self, connector, harness):
        """A2.4: Buildbot fails with an internal error instead, and the lookup tells that there is no run."""
        key = uuid4()
        with pytest.raises(OutcomeUnknown, match="has no attribute 'force'"):
            await connector.start(harness.unknown_workflow, {}, key=key)
        assert await connector.find_run(harness.unknown_workflow, {}, key=key) is None


@pytest.fixture
async def to_buildbot(buildbot: BuildbotServer) -> AsyncIterator[Connector]:
    async with closing(buildbot.connector()) as made:
        yield made


async def test_builders_are_listed_with_the_parameters_of_their_force_scheduler(to_buildbot):
    """A1.1, A6.1: one without a force scheduler is skipped, with the reason."""
    found = {one.name: one async for one in to_buildbot.discover() if isinstance(one, WorkflowDefinition)}
    skipped = [one async for one in to_buildbot.discover() if isinstance(one, RejectedDefinition)]
    assert found.keys() == {"brew", "spill", "steep"}
    brew, spill = found["brew"], found["spill"]
    assert (brew.description, brew.tags) == ("Brews tea.", ["tea"])
    own = {name: brew.input_schema["properties"][name] for name in ("cups", "sort")}
    assert own == {
        "cups": {"type": "integer", "description": "How many.", "default": 2},
        "sort": {
            "type": "string",
            "description": "Sort",
            "enum": ["Assam", "Darjeeling"],
            "default": "Assam",
        },
    }
    assert not {"reason", "username", "priority"} & brew.input_schema["properties"].keys()
    assert spill.input_schema["required"] == ["words"]
    (without,) = skipped
    assert without.reason.endswith("the engine refused: No force scheduler starts this builder.")


async def test_arguments_reach_the_build_and_what_it_logs_is_kept(buildbot, to_buildbot):
    """A2.1, A8.5, E6: as properties; the environment of the worker, where secrets often are, is left out."""
    sample = Sample(RealBuildbot(buildbot).completing.workflow, {"cups": 5, "sort": "Darjeeling"})
    _, run = await start(to_buildbot, sample)
    seen = await until_ended(to_buildbot, run, seconds=60)
    assert seen.output["properties"]["cups"] == [5, "Force Build Form"]
    assert "5 cups of Darjeeling" in seen.raw["logs"]
    assert "PATH=" not in str(seen.raw["logs"])


async def test_a_refusal_says_which_parameter_is_wrong(buildbot, to_buildbot):
    """A2.4: in Buildbot's words."""
    key = uuid4()
    with pytest.raises(Rejected, match="words: Words:'no!' does not match pattern"):
        await start(to_buildbot, Sample(RealBuildbot(buildbot).failing.workflow, {"words": "no!"}), key)
    assert buildbot.runs_started_with(key) == 0


async def test_a_request_that_buildbot_merges_into_a_later_one_has_not_succeeded(buildbot, to_buildbot):
    """A7.1: by default it merges those that wait, whatever their parameters; a builder can forbid that."""
    workflow = RealBuildbot(buildbot).completing.workflow
    runs = [(await start(to_buildbot, Sample(workflow, {"cups": cups})))[1] for cups in range(4)]
    ended = [await until_ended(to_buildbot, run, seconds=60) for run in runs]
    built = [seen for seen in ended if seen.state == RunState.COMPLETED]
    assert built and len({seen.output["build"] for seen in built}) == len(built)
    merged = [seen for seen in ended if seen not in built]
    assert all(seen.state == RunState.FAILED and "merged this request" in seen.error for seen in merged)


async def test_a_build_that_goes_on_is_stopped(buildbot, to_buildbot):
    """A7.5: not only one that still waits. That of an unknown run never gets there: Buildbot would
    claim its number for good."""
    buildbot.stop_everything()
    _, run = await start(to_buildbot, RealBuildbot(buildbot).lasting)
    await until(to_buildbot, run, lambda seen: seen.progress_message == "building")
    await to_buildbot.cancel(run)
    assert (await until_ended(to_buildbot, run, seconds=60)).state is RunState.CANCELLED
    unknown = RealBuildbot(buildbot).unknown_run_id()
    with pytest.raises(NotFound):
        await to_buildbot.cancel(type(run)(workflow=run.workflow, run_id=unknown, key=run.key))
