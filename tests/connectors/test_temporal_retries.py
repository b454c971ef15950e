"""Retries of a real Temporal server's runs: which steps run again, and when a retry is refused."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import grpc
import pytest
from temporalio.api.history.v1 import HistoryEvent

from connectors.errors import NotFound, OutcomeUnknown, Rejected, Unsupported
from connectors.protocol import RunState
from connectors.temporal.connector import TemporalConnector
from connectors.temporal.retrying import reset_point
from connectors.testing import Sample, start, until_ended
from tests.connectors.calling import goes_on_from_its_third_step, has_ended, steps_taken, until
from tests.engines.temporal.definitions import connector_to, workflow_ref
from tests.engines.temporal.proxy import gateway_to
from tests.engines.temporal.server import TemporalServer

RESET = "ResetWorkflowExecution"


@pytest.fixture
async def connector(temporal_server: TemporalServer) -> AsyncIterator[TemporalConnector]:
    async with connector_to(temporal_server.address) as connector:
        yield connector


async def test_a_retry_runs_the_failed_activity_again_and_no_other(connector, tmp_path):
    """A7.2, B3: whatever others have done stays; the run is followed under its old id."""
    arguments = {"folder": str(tmp_path)}
    first, *_, last = await goes_on_from_its_third_step(connector, workflow_ref("Steps"), arguments, tmp_path)
    assert last.run_id == first.run_id
    assert (await connector.wait(last, seconds=5)).output == ["one", "two", "three"]


async def test_a_retried_run_lasts_as_long_as_its_timeout_from_then_on_and_can_be_ended(connector, tmp_path):
    """A7.2, A7.5: Temporal would otherwise end it at once."""
    workflow = workflow_ref("FailAlone", execution_timeout=2)
    _, run = await start(connector, Sample(workflow, {}))
    failed = await until_ended(connector, run)
    await connector.retry(run, key=uuid4())
    again = await until_ended(connector, run)
    assert again.error == failed.error
    assert again.finished_at > failed.finished_at
    _, lasting = await start(connector, Sample(workflow_ref("Lasting", execution_timeout=1), {}))
    assert (await until_ended(connector, lasting)).state is RunState.FAILED
    await connector.retry(lasting, key=uuid4())
    assert (await connector.wait(lasting, seconds=0.1)).state is RunState.RUNNING
    with pytest.raises(Rejected, match="Only a run that failed"):
        await connector.retry(lasting, key=uuid4())
    await connector.terminate(lasting)
    assert (await until_ended(connector, lasting)).state is RunState.CANCELLED
    with pytest.raises(Rejected, match="Only a run that failed"):
        await connector.retry(lasting, key=uuid4())


@pytest.mark.parametrize("how", ["together", "locally"])
async def test_a_step_that_began_with_the_failed_one_and_succeeded_would_run_again_so_it_is_refused(
    connector, tmp_path, how
):
    """A7.2: Temporal can go back to the moment when both began, and no further."""
    arguments = {"folder": str(tmp_path), how: True}
    _, run = await start(connector, Sample(workflow_ref("Steps"), arguments))
    await until_ended(connector, run)
    with pytest.raises(Rejected, match="began with the failed one or after it have not failed: "):
        await connector.retry(run, key=uuid4())
    assert steps_taken(tmp_path) == {"one": 1, "two": 1, "three": 1}


def event(number: int, kind: str, **attributes: Any) -> HistoryEvent:
    return HistoryEvent(event_id=number, **{f"{kind}_event_attributes": attributes})


def history(*besides: HistoryEvent, failure: dict[str, Any] | None = None) -> list[HistoryEvent]:
    """Of a run whose second workflow task, 8, begins an activity, 9, that fails."""
    failed = failure or {"activity_failure_info": {"scheduled_event_id": 9}}
    return [
        event(4, "workflow_task_completed"),
        event(5, "activity_task_scheduled", workflow_task_completed_event_id=4),
        event(6, "activity_task_completed", scheduled_event_id=5),
        event(8, "workflow_task_completed"),
        event(9, "activity_task_scheduled", workflow_task_completed_event_id=8),
        *besides,
        event(20, "activity_task_failed", scheduled_event_id=9),
        event(21, "workflow_task_completed"),
        event(22, "workflow_execution_failed", failure=failed),
    ]


@pytest.mark.parametrize(
    ("begins", "fails", "of"),
    [
        ("activity_task_scheduled", "activity_task_timed_out", "scheduled_event_id"),
        ("activity_task_scheduled", "activity_task_canceled", "scheduled_event_id"),
        ("nexus_operation_scheduled", "nexus_operation_failed", "scheduled_event_id"),
        (
            "start_child_workflow_execution_initiated",
            "child_workflow_execution_terminated",
            "initiated_event_id",
        ),
        (
            "signal_external_workflow_execution_initiated",
            "signal_external_workflow_execution_failed",
            "initiated_event_id",
        ),
    ],
)
def test_whatever_began_with_the_failed_step_must_have_failed_too(begins, fails, of):
    """A7.2: another step that has succeeded, or goes on, would run a second time."""
    assert reset_point(history()) == 8
    begun = event(10, begins, workflow_task_completed_event_id=8)
    assert reset_point(history(begun, event(11, fails, **{of: 10}))) == 8
    with pytest.raises(Rejected, match="have not failed"):
        reset_point(history(begun))


def test_the_step_is_found_behind_the_workflows_own_words_or_its_last_task_is_taken():
    """A7.2: a workflow may wrap the failure of a step; a child's own history has other numbers."""
    child = {"child_workflow_execution_failure_info": {"initiated_event_id": 9}}
    of_child = child | {"cause": {"activity_failure_info": {"scheduled_event_id": 5}}}
    wrapped = {"application_failure_info": {"type": "Boom"}, "cause": of_child}
    assert reset_point(history(failure=wrapped)) == 8
    assert reset_point(history(failure={"application_failure_info": {"type": "Boom"}})) == 21
    with pytest.raises(Rejected, match="before its first step"):
        reset_point(history()[-1:])


async def test_a_child_that_failed_runs_again(connector):
    """A7.2: as a whole, because it is one step of its parent."""
    _, run = await start(connector, Sample(workflow_ref("FailInChild"), {}))
    failed = await until_ended(connector, run)
    await connector.retry(run, key=uuid4())
    again = await until(connector, run, has_ended)
    assert again.error == failed.error
    assert again.raw["run_id"] != failed.raw["run_id"]


async def test_a_run_whose_workflow_id_another_run_has_by_now_is_not_retried(connector):
    """A7.2: Temporal would end the other one."""
    recipe = {"workflow_id": f"shared-{uuid4()}", "id_reuse_policy": "allow_duplicate"}
    _, first = await start(connector, Sample(workflow_ref("FailAlone", **recipe), {}))
    await until_ended(connector, first)
    _, second = await start(connector, Sample(workflow_ref("Lasting", **recipe), {}))
    with pytest.raises(Rejected, match="has another run now"):
        await connector.retry(first, key=uuid4())
    assert (await connector.poll(second)).state is RunState.RUNNING


async def test_a_retry_without_an_answer_is_sent_once_and_found(temporal_server, connector):
    """A7.2, B3: Temporal resets a run for each request, whatever its request id."""
    _, run = await start(connector, Sample(workflow_ref("FailAlone"), {}))
    failed = await until_ended(connector, run)
    key = uuid4()
    with gateway_to(temporal_server.address) as gateway:
        gateway.swallowed = {RESET}
        async with connector_to(gateway.address, timeout_seconds=0.5) as unheard:
            with pytest.raises(OutcomeUnknown):
                await unheard.retry(run, key=key)
            assert gateway.seen[RESET] == 1
    found = await connector.find_retry(run, key=key)
    assert found is not None
    again = await until_ended(connector, replace(run, run_id=found.run_id))
    assert again.raw["run_id"] != failed.raw["run_id"]
    with pytest.raises(NotFound):
        await connector.find_retry(replace(run, run_id=str(uuid4())), key=key)


async def test_a_service_that_lets_nobody_pause_workflows_is_told_apart(temporal_server, connector):
    """A7.5: pausing is off by default at Temporal, so that a source's settings announce it."""
    assert not connector.capabilities.can_pause
    _, run = await start(connector, Sample(workflow_ref("Lasting"), {}))
    with gateway_to(temporal_server.address) as gateway:
        gateway.refused = {"PauseWorkflowExecution": [grpc.StatusCode.UNIMPLEMENTED]}
        async with connector_to(gateway.address, pause_enabled=True) as refused:
            assert refused.capabilities.can_pause
            with pytest.raises(Unsupported):
                await refused.pause(run)
