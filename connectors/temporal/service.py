"""What a Temporal service does for us. Everything that needs the SDK begins here."""

import time
from typing import Any
from uuid import UUID, uuid4

from temporalio.api.common.v1 import Payloads, WorkflowExecution
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeNamespaceResponse,
    DescribeWorkflowExecutionResponse,
    RequestCancelWorkflowExecutionRequest,
    RequestCancelWorkflowExecutionResponse,
    TerminateWorkflowExecutionRequest,
    TerminateWorkflowExecutionResponse,
)
from temporalio.client import Client

from connectors.errors import NotFound, Rejected
from connectors.protocol import RunFilter, RunPage, RunRef, RunSnapshot, Started, WorkflowRef
from connectors.temporal.config import TemporalConfig
from connectors.temporal.connection import IDENTITY, Connection
from connectors.temporal.interactions import query_run, signal_run
from connectors.temporal.pollers import Pollers
from connectors.temporal.progress import progress_of
from connectors.temporal.reading import (
    LatestRuns,
    close_event,
    continued_as,
    describe,
    wait_for_close_event,
)
from connectors.temporal.runs import TemporalRun, parse_run
from connectors.temporal.settings import settings_of
from connectors.temporal.snapshots import GOES_ON, ended, running
from connectors.temporal.starting import find_run, start_run
from connectors.temporal.visibility import list_runs

SHORTEST_WAIT_SECONDS = 0.05
"""Of one request that waits for a run's end."""


class TemporalService:
    """One namespace of a service, with the credentials of one source."""

    def __init__(self, config: TemporalConfig) -> None:
        self._config = config
        self.connection = Connection(config)
        self.pollers = Pollers(self.connection)
        self._latest = LatestRuns()

    def __repr__(self) -> str:
        return f"TemporalService({self._config.host_port}, {self._config.namespace})"

    async def reach(self) -> None:
        """The cheapest call that proves address, namespace and credentials."""
        connection = self.connection
        request = DescribeNamespaceRequest(namespace=connection.namespace)

        async def ask(client: Client) -> DescribeNamespaceResponse:
            return await client.workflow_service.describe_namespace(
                request, retry=True, timeout=connection.rpc_timeout
            )

        await connection.ask(ask)

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
            # It may have continued between the two answers.
            if event is not None and not continued_as(event):
                return ended(answer, event, output_bytes=self._config.max_output_bytes)
        query = settings_of(run.workflow.metadata).progress_query
        return running(answer, await progress_of(self.connection, self.pollers, answer, query))

    async def wait(self, run: RunRef, *, seconds: float) -> RunSnapshot:
        """A request that the service answers when the run ends; then, or when the time is up, `poll`."""
        named = parse_run(run.run_id)
        give_up_at = time.monotonic() + seconds
        while (left := give_up_at - time.monotonic()) > SHORTEST_WAIT_SECONDS:
            event = await wait_for_close_event(
                self.connection, named.workflow_id, self._latest.of(named), seconds=left
            )
            if event is None:
                break
            if not (next_run := continued_as(event)):
                break
            self._latest.note(named, next_run)
        return await self.poll(run)

    async def cancel(self, run: RunRef) -> None:
        connection, named = self.connection, parse_run(run.run_id)
        # The service takes a cancel of a run that has ended, and does nothing.
        self._refuse_ended(await describe(connection, named), "cancelled")
        request = RequestCancelWorkflowExecutionRequest(
            namespace=connection.namespace,
            workflow_execution=self._latest_of(named),
            first_execution_run_id=named.first_run_id,
            identity=IDENTITY,
            request_id=str(uuid4()),
            reason="Cancelled in the workflow catalogue.",
        )

        async def ask(client: Client) -> RequestCancelWorkflowExecutionResponse:
            return await client.workflow_service.request_cancel_workflow_execution(
                request, retry=True, timeout=connection.rpc_timeout
            )

        await connection.ask(ask)

    async def terminate(self, run: RunRef) -> None:
        connection, named = self.connection, parse_run(run.run_id)
        request = TerminateWorkflowExecutionRequest(
            namespace=connection.namespace,
            workflow_execution=self._latest_of(named),
            first_execution_run_id=named.first_run_id,
            identity=IDENTITY,
            reason="It did not follow its cancellation in time.",
            details=Payloads(),
        )

        async def ask(client: Client) -> TerminateWorkflowExecutionResponse:
            return await client.workflow_service.terminate_workflow_execution(
                request, retry=True, timeout=connection.rpc_timeout
            )

        try:
            await connection.ask(ask)
        except NotFound:
            # The service says so of a run that has ended as well.
            self._refuse_ended(await describe(connection, named), "terminated")
            raise

    async def query(self, run: RunRef, name: str, arguments: dict[str, Any]) -> Any:
        named, limit = parse_run(run.run_id), self._config.max_output_bytes
        return await query_run(self.connection, self.pollers, named, name, arguments, answer_bytes=limit)

    async def signal(self, run: RunRef, name: str, arguments: dict[str, Any]) -> None:
        await signal_run(self.connection, parse_run(run.run_id), name, arguments)

    async def list_runs(self, wanted: RunFilter, *, page_size: int, cursor: str) -> RunPage:
        return await list_runs(self.connection, wanted, page_size=page_size, cursor=cursor)

    async def aclose(self) -> None:
        await self.connection.aclose()

    def _latest_of(self, named: TemporalRun) -> WorkflowExecution:
        """Without a run id: the service then takes the latest, and refuses one that another call started."""
        return WorkflowExecution(workflow_id=named.workflow_id)

    def _refuse_ended(self, answer: DescribeWorkflowExecutionResponse, what: str) -> None:
        if answer.workflow_execution_info.status not in GOES_ON:
            raise Rejected(f"The run has ended, so it cannot be {what} any more.")
