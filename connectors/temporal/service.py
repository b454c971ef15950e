"""Operations on a Temporal service's runs; importing this module imports the SDK."""

import time
from typing import Any
from uuid import UUID

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, DescribeWorkflowExecutionResponse
from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError
from temporalio.common import RawValue
from temporalio.service import RPCError, RPCStatusCode

from connectors.errors import ConnectorError, NotFound, Rejected, Unreachable
from connectors.network.redaction import printable, shorten
from connectors.protocol import RunFilter, RunPage, RunRef, RunSnapshot, Started, WorkflowRef
from connectors.temporal.config import TemporalConfig
from connectors.temporal.connection import Connection
from connectors.temporal.runs import (
    TIME_IS_UP,
    LatestRuns,
    TemporalRun,
    close_event,
    continued_as,
    describe,
    list_runs,
    parse_run,
    payload_of,
    values_of,
)
from connectors.temporal.settings import settings_of
from connectors.temporal.starting import find_run, start_run
from connectors.temporal.status import GOES_ON, Pollers, ended, no_worker_on, progress_of, running

SHORTEST_WAIT_SECONDS = 0.05
"""The shortest time limit of a request that waits for a run's end."""
REASON_LIMIT = 1_000
CANCELLED = "Cancelled in the workflow catalogue."
TERMINATED = "It did not follow its cancellation in time."
NO_POLLER = "no poller seen"
"""Part of the service's error where a task queue has had no worker for a while."""


class TemporalService:
    """One namespace of a service, with one source's credentials."""

    def __init__(self, config: TemporalConfig) -> None:
        self._config = config
        self.connection = Connection(config)
        self.pollers = Pollers(self.connection)
        self._latest = LatestRuns()

    def __repr__(self) -> str:
        return f"TemporalService({self._config.host_port}, {self._config.namespace})"

    async def reach(self) -> None:
        """Verify address, namespace and credentials by the cheapest call."""
        connection = self.connection
        request = DescribeNamespaceRequest(namespace=connection.namespace)
        await connection.ask(
            lambda client: client.workflow_service.describe_namespace(
                request, retry=True, timeout=connection.rpc_timeout
            )
        )

    async def start(self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID) -> Started:
        return await start_run(self.connection, self._config, workflow, arguments, key=key)

    async def find_run(
        self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID
    ) -> Started | None:
        return await find_run(self.connection, workflow, arguments, key=key)

    async def poll(self, run: RunRef) -> RunSnapshot:
        named = parse_run(run.run_id)
        answer = await describe(self.connection, named)
        execution = answer.workflow_execution_info.execution
        self._latest.note(named, execution.run_id)
        if answer.workflow_execution_info.status not in GOES_ON:
            event = await close_event(self.connection, execution.workflow_id, execution.run_id)
            # The run may have continued as new between the two answers.
            if event is not None and not continued_as(event):
                return ended(answer, event, output_bytes=self._config.max_output_bytes)
        query = settings_of(run.workflow.metadata).progress_query
        return running(answer, await progress_of(self.connection, self.pollers, answer, query))

    async def wait(self, run: RunRef, *, seconds: float) -> RunSnapshot:
        """Long-poll for the run's end, then `poll`."""
        named = parse_run(run.run_id)
        give_up_at = time.monotonic() + seconds
        while (left := give_up_at - time.monotonic()) > SHORTEST_WAIT_SECONDS:
            event = await close_event(
                self.connection, named.workflow_id, self._latest.of(named), wait_seconds=left
            )
            if event is None or not (next_run := continued_as(event)):
                break
            self._latest.note(named, next_run)
        return await self.poll(run)

    async def cancel(self, run: RunRef) -> None:
        connection, named = self.connection, parse_run(run.run_id)
        # The service accepts the cancellation of a run that has ended, and ignores it.
        _refuse_ended(await describe(connection, named), "cancelled")
        await connection.ask(
            lambda client: _handle(client, named).cancel(reason=CANCELLED, rpc_timeout=connection.rpc_timeout)
        )

    async def terminate(self, run: RunRef) -> None:
        connection, named = self.connection, parse_run(run.run_id)
        timeout = connection.rpc_timeout
        try:
            await connection.ask(
                lambda client: _handle(client, named).terminate(reason=TERMINATED, rpc_timeout=timeout)
            )
        except NotFound:
            # The service answers the same for a run that has ended.
            _refuse_ended(await describe(connection, named), "terminated")
            raise

    async def query(self, run: RunRef, name: str, arguments: dict[str, Any]) -> Any:
        """A worker's answer, also for a run that has ended. Raises Unreachable without a worker."""
        described = await describe(self.connection, parse_run(run.run_id))
        task_queue = described.execution_config.task_queue.name
        if not await self.pollers.listen(task_queue):
            raise Unreachable(f"{no_worker_on(task_queue)} A run cannot answer without one.")
        timeout = self.connection.rpc_timeout

        async def ask(client: Client) -> RawValue | None:
            handle = _handle_of(client, described)
            try:
                answer: RawValue | None = await handle.query(
                    name, args=_inputs(arguments), result_type=RawValue, rpc_timeout=timeout
                )
            except WorkflowQueryFailedError as error:
                # The message comes from the workflow's own code.
                words = " ".join(printable(error.message).split())
                refusal: ConnectorError = Rejected(f"The run did not answer: {shorten(words, REASON_LIMIT)}")
            except RPCError as error:
                if error.status in TIME_IS_UP:
                    refusal = Unreachable(
                        f"No worker on the task queue {task_queue} answered in time: busy, or gone."
                    )
                elif error.status == RPCStatusCode.FAILED_PRECONDITION and NO_POLLER in error.message:
                    refusal = Unreachable(no_worker_on(task_queue))
                else:
                    raise
            else:
                return answer
            raise refusal

        answer = await self.connection.ask(ask)
        return values_of([] if answer is None else [answer.payload], limit=self._config.max_output_bytes)

    async def signal(self, run: RunRef, name: str, arguments: dict[str, Any]) -> None:
        """Deliver a signal, which the service stores until a worker takes it.

        Raises NotFound if the run has ended, OutcomeUnknown if the service may have taken it.
        """
        try:
            await self._send_signal(run, name, arguments)
        except NotFound:
            # The signal was not accepted, and the run may just have continued as new.
            await self._send_signal(run, name, arguments)

    async def _send_signal(self, run: RunRef, name: str, arguments: dict[str, Any]) -> None:
        described = await describe(self.connection, parse_run(run.run_id))
        inputs, timeout = _inputs(arguments), self.connection.rpc_timeout
        await self.connection.ask(
            lambda client: _handle_of(client, described).signal(name, args=inputs, rpc_timeout=timeout),
            repeatable=False,
        )

    async def list_runs(self, wanted: RunFilter, *, page_size: int, cursor: str) -> RunPage:
        return await list_runs(self.connection, wanted, page_size=page_size, cursor=cursor)

    async def aclose(self) -> None:
        await self.connection.aclose()


def _refuse_ended(answer: DescribeWorkflowExecutionResponse, what: str) -> None:
    if answer.workflow_execution_info.status not in GOES_ON:
        raise Rejected(f"The run has ended, so it cannot be {what} any more.")


def _handle_of(client: Client, described: DescribeWorkflowExecutionResponse) -> WorkflowHandle[Any, Any]:
    """The handle of exactly this run, not of its continuations."""
    execution = described.workflow_execution_info.execution
    return client.get_workflow_handle(execution.workflow_id, run_id=execution.run_id)


def _handle(client: Client, run: TemporalRun) -> WorkflowHandle[Any, Any]:
    """The handle of the chain's latest run; the service refuses a run of another chain."""
    return client.get_workflow_handle(run.workflow_id, first_execution_run_id=run.first_run_id or None)


def _inputs(arguments: dict[str, Any]) -> list[RawValue]:
    """All arguments as one object; none for handlers without input."""
    return [RawValue(payload_of(arguments))] if arguments else []
