"""Starting workflows at a real Temporal server: what they are given, and who may have which workflow id."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import WorkflowExecutionDescription

from connectors.errors import Misconfigured, NotFound, OutcomeUnknown, Rejected
from connectors.protocol import RunRef, RunState, WorkflowRef
from connectors.temporal.connector import TemporalConnector
from connectors.temporal.runs import parse_run
from connectors.testing import Sample, start, until_ended
from tests.engines.temporal.definitions import connector_to, workflow_ref
from tests.engines.temporal.proxy import gateway_to
from tests.engines.temporal.server import TemporalServer


@pytest.fixture
async def connector(temporal_server: TemporalServer) -> AsyncIterator[TemporalConnector]:
    async with connector_to(temporal_server.address) as connector:
        yield connector


@pytest.fixture
def recipe() -> str:
    """One that other tests do not use, made of an argument."""
    return f"order-{uuid4()}-{{order_id}}"


def lasting(recipe: str, **settings: Any) -> Sample:
    return Sample(workflow_ref("Lasting", workflow_id=recipe, **settings), {"order_id": 17})


async def described(server: TemporalServer, run: RunRef) -> WorkflowExecutionDescription:
    client = await server.client()
    return await client.get_workflow_handle(parse_run(run.run_id).workflow_id).describe()


@pytest.mark.parametrize(
    ("name", "settings", "given", "output"),
    [
        ("Echo", {}, {"b": 2, "a": [1, None]}, {"b": 2, "a": [1, None]}),
        ("Echo", {"input": "none"}, {}, None),
        ("Positional", {"input": "positional", "input_order": ["x", "y"]}, {"y": 2, "x": 1}, [1, 2]),
        ("Positional", {"input": "positional", "input_order": ["x", "y"]}, {"x": 1}, [1, None]),
    ],
)
async def test_arguments_reach_the_workflow_in_the_way_that_its_definition_says(
    connector, name, settings, given, output
):
    """E3: one object, nothing, or each argument in its place."""
    _, run = await start(connector, Sample(workflow_ref(name, **settings), given))
    assert (await until_ended(connector, run)).output == output


async def test_a_run_carries_our_execution_id_and_a_time_limit_a_little_longer_than_the_executions(
    connector, temporal_server
):
    """E3, A7.2: Temporal ends it by itself, should nobody of us be there any more to cancel it."""
    _, run = await start(connector, Sample(workflow_ref("Lasting", timeout_seconds=90), {}))
    description = await described(temporal_server, run)
    assert description.id == str(run.key)
    assert await description.memo() == {"catalogue_execution_id": str(run.key)}
    config = description.raw_description.execution_config
    assert config.workflow_execution_timeout.ToTimedelta().total_seconds() == 150


async def test_a_run_whose_timeout_nobody_knows_has_the_sources_time_limit(temporal_server):
    """E3: no run goes on for ever."""
    async with connector_to(temporal_server.address, default_execution_timeout_seconds=3_600) as connector:
        _, run = await start(connector, Sample(workflow_ref("Lasting"), {}))
        config = (await described(temporal_server, run)).raw_description.execution_config
    assert config.workflow_execution_timeout.ToTimedelta().total_seconds() == 3_600


async def test_a_start_whose_answer_was_lost_is_repeated_and_finds_the_same_run(temporal_server):
    """B3, A7.2: the workflow id follows from our key, so nothing is started twice."""
    sample, key = Sample(workflow_ref("Lasting"), {}), uuid4()
    with gateway_to(temporal_server.address) as gateway:
        async with connector_to(gateway.address, timeout_seconds=0.3) as connector:
            gateway.swallowed = {"StartWorkflowExecution"}
            with pytest.raises(OutcomeUnknown):
                await start(connector, sample, key)
            gateway.swallowed = set()
            started, _ = await start(connector, sample, key)
            found = await connector.find_run(sample.workflow, sample.arguments, key=key)
    assert found is not None
    assert found.run_id == started.run_id
    client = await temporal_server.client()
    assert (await client.count_workflows(f"WorkflowId = '{key}'")).count == 1


@pytest.mark.parametrize("policy", ["", "fail", "use_existing", "terminate_existing"])
async def test_a_start_that_is_repeated_with_a_recipe_of_arguments_finds_its_own_run(
    connector, recipe, policy
):
    """B3: whatever the policy, our own key never meets itself as a stranger."""
    key = uuid4()
    sample = lasting(recipe, id_conflict_policy=policy)
    first, _ = await start(connector, sample, key)
    again = await asyncio.gather(*(start(connector, sample, key) for _ in range(3)))
    assert {started.run_id for started, _ in again} == {first.run_id}


async def test_a_repeated_start_finds_its_run_even_if_another_one_has_the_workflow_id_by_now(
    connector, recipe
):
    """B3: an id made of arguments is used again and again; a key is not."""
    key = uuid4()
    sample = Sample(workflow_ref("Echo", workflow_id=recipe), {"order_id": 17})
    first, run = await start(connector, sample, key)
    await until_ended(connector, run)
    other, run = await start(connector, sample)
    await until_ended(connector, run)
    again, _ = await start(connector, sample, key)
    assert again.run_id == first.run_id
    assert other.run_id != first.run_id
    found = await connector.find_run(sample.workflow, sample.arguments, key=key)
    assert found is not None and found.run_id == first.run_id


async def test_a_run_whose_id_is_made_of_arguments_is_found_by_them(connector, temporal_server, recipe):
    """B3: without the list of runs, which lags behind and is long."""
    sample, key = lasting(recipe), uuid4()
    first, _ = await start(connector, sample, key)
    with gateway_to(temporal_server.address) as gateway:
        async with connector_to(gateway.address) as through_gateway:
            found = await through_gateway.find_run(sample.workflow, sample.arguments, key=key)
    assert found is not None and found.run_id == first.run_id
    assert gateway.seen["ListWorkflowExecutions"] == 0


async def test_a_workflow_id_that_another_call_holds_is_refused_in_words(connector, recipe):
    """A2.4: the caller learns which id is taken, and that a policy decides that."""
    await start(connector, lasting(recipe))
    workflow_id = recipe.format(order_id=17)
    with pytest.raises(Rejected, match=f"already started a run.* {workflow_id};.*policies"):
        await start(connector, lasting(recipe))


async def test_existing_runs_are_shared_where_the_policy_says_so(connector, recipe):
    """E3: whoever orders the same thing gets the same run."""
    shared = lasting(recipe, id_conflict_policy="use_existing")
    key = uuid4()
    first, _ = await start(connector, shared)
    second, _ = await start(connector, shared, key)
    assert second.run_id == first.run_id
    assert (await start(connector, shared, key))[0].run_id == first.run_id


async def test_existing_runs_make_way_where_the_policy_says_so(connector, recipe):
    """E3: the newest order counts."""
    newest = lasting(recipe, id_conflict_policy="terminate_existing")
    first, run = await start(connector, newest)
    second, _ = await start(connector, newest)
    assert second.run_id != first.run_id
    assert (await until_ended(connector, run)).state is RunState.CANCELLED


async def test_an_id_of_a_run_that_ended_is_refused_where_the_policy_says_so(connector, recipe):
    """E3: some things are done once only."""
    once = Sample(
        workflow_ref("Echo", workflow_id=recipe, id_reuse_policy="reject_duplicate"), {"order_id": 17}
    )
    _, run = await start(connector, once)
    await until_ended(connector, run)
    with pytest.raises(Rejected, match="already"):
        await start(connector, once)


@pytest.mark.parametrize("order_id", [None, "", True, ["a"], "x" * 300, "a\nb"])
async def test_arguments_that_make_no_workflow_id_are_refused(connector, recipe, order_id):
    """E5: that is said before anything is sent."""
    sample = Sample(workflow_ref("Echo", workflow_id=recipe), {"order_id": order_id})
    with pytest.raises(Rejected, match="workflow id"):
        await start(connector, sample)


async def test_an_empty_text_makes_no_workflow_id_and_the_error_says_why(connector, recipe):
    """E3: a text it is, so that "must be a text" would lead nobody to the mistake."""
    with pytest.raises(Rejected, match="argument order_id, which must not be empty"):
        await start(connector, Sample(workflow_ref("Echo", workflow_id=recipe), {"order_id": ""}))


async def test_a_workflow_id_has_the_default_of_what_is_left_out(connector, recipe):
    """E5: the run itself is given nothing that the call has not."""
    workflow = workflow_ref("Echo", workflow_id=recipe, workflow_id_defaults={"order_id": 7})
    for given, made in (({}, 7), ({"order_id": 8}, 8)):
        _, run = await start(connector, Sample(workflow, given))
        assert parse_run(run.run_id).workflow_id == recipe.format(order_id=made)
        assert (await until_ended(connector, run)).output == given


async def test_a_workflow_without_a_task_queue_is_refused(connector):
    """E5: it would wait for a worker for ever."""
    with pytest.raises(Rejected, match="nor the source has a task queue"):
        await start(connector, Sample(workflow_ref("Echo", task_queue=""), {}))


async def test_a_workflow_that_the_definitions_do_not_have_is_not_started(connector):
    """A2.4: Temporal itself would take any name."""
    with pytest.raises(NotFound, match="no workflow Stranger"):
        await connector.start(WorkflowRef(id="Stranger", name="Stranger"), {}, key=uuid4())


async def test_settings_of_a_workflow_that_cannot_be_used_are_a_mistake_of_ours(connector):
    """E5: what is wrong is named."""
    with pytest.raises(Misconfigured, match="id_reuse_policy"):
        await start(connector, Sample(workflow_ref("Echo", id_reuse_policy="sometimes"), {}))


async def test_arguments_that_are_too_large_for_temporal_are_refused_in_its_words(connector):
    """A2.4: a start that can never succeed is not tried again and again."""
    with pytest.raises(Rejected, match=r"(?i)size|larger"):
        await start(connector, Sample(workflow_ref("Echo"), {"text": "x" * 5_000_000}))
