"""What a Temporal service does for us. Everything that needs the SDK begins here."""

import time
from typing import Any
from uuid import UUID, uuid4

from temporalio.api.common.v1 import Payloads, WorkflowExecution
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeNamespaceResponse,
    DescribeWorkflowExecutionResponse,
    QueryWorkflowRequest,
    QueryWorkflowResponse,
    RequestCancelWorkflowExecutionRequest,
    RequestCancelWorkflowExecutionResponse,
    SignalWorkflowExecutionRequest,
    TerminateWorkflowExecutionRequest,
    TerminateWorkflowExecutionResponse,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from connectors.errors import ConnectorError, NotFound, Rejected, Unreachable
from connectors.protocol import RunFilter, RunPage, RunRef, RunSnapshot, Started, WorkflowRef
from connectors.redaction import printable, shorten
from connectors.temporal.config import TemporalConfig
from connectors.temporal.connection import IDENTITY, Connection
from connectors.temporal.runs import (
    TIME_IS_UP,
    LatestRuns,
    TemporalRun,
    close_event,
    continued_as,
    describe,
    parse_run,
    payloads_of,
    values_of,
    wait_for_close_event,
)
from connectors.temporal.settings import settings_of
from connectors.temporal.starting import find_run, start_run
from connectors.temporal.status import GOES_ON, Pollers, ended, nobody_listens, progress_of, running
from connectors.temporal.visibility import list_runs

SHORTEST_WAIT_SECONDS = 0.05
"""Of one request that waits for a run's end."""
REASON_LIMIT = 1_000
NO_POLLER = "no poller seen"
"""In the service's words, which it has only after a while."""


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


async def query_run(
    connection: Connection,
    pollers: Pollers,
    run: TemporalRun,
    name: str,
    arguments: dict[str, Any],
    *,
    answer_bytes: int,
) -> Any:
    """What the run's worker answers, also of a run that has ended. Raises Unreachable where there is none."""
    described = await describe(connection, run)
    task_queue = described.execution_config.task_queue.name
    if not await pollers.listen(task_queue):
        raise Unreachable(f"{nobody_listens(task_queue)} A run cannot answer without one.")
    request = QueryWorkflowRequest(
        namespace=connection.namespace,
        execution=described.workflow_execution_info.execution,
        query=WorkflowQuery(query_type=name, query_args=_inputs(arguments)),
    )

    async def ask(client: Client) -> QueryWorkflowResponse:
        try:
            return await client.workflow_service.query_workflow(
                request, retry=True, timeout=connection.rpc_timeout
            )
        except RPCError as error:
            if (refusal := _refusal_of_worker(error, task_queue)) is None:
                raise
        raise refusal

    answer = await connection.ask(ask)
    return values_of(answer.query_result.payloads, limit=answer_bytes)


def _refusal_of_worker(error: RPCError, task_queue: str) -> ConnectorError | None:
    """What went wrong at the run's own worker; None where it was the service that refused."""
    if error.status in TIME_IS_UP:
        return Unreachable(f"No worker on the task queue {task_queue} answered in time: busy, or gone.")
    if error.status == RPCStatusCode.FAILED_PRECONDITION and NO_POLLER in error.message:
        return Unreachable(nobody_listens(task_queue))
    if error.status == RPCStatusCode.INVALID_ARGUMENT:
        # With this status the service passes on what the workflow's own code said.
        words = " ".join(printable(error.message).split())
        return Rejected(f"The run did not answer: {shorten(words, REASON_LIMIT)}")
    return None


async def signal_run(connection: Connection, run: TemporalRun, name: str, arguments: dict[str, Any]) -> None:
    """The service keeps it for the run, whether a worker listens or not.

    Raises NotFound where the run has ended, OutcomeUnknown where the service may have taken it.
    """
    try:
        await _send_signal(connection, run, name, arguments)
    except NotFound:
        # It was surely not taken, and the run may just have continued as new.
        await _send_signal(connection, run, name, arguments)


async def _send_signal(
    connection: Connection, run: TemporalRun, name: str, arguments: dict[str, Any]
) -> None:
    described = await describe(connection, run)
    request = SignalWorkflowExecutionRequest(
        namespace=connection.namespace,
        workflow_execution=described.workflow_execution_info.execution,
        signal_name=name,
        input=_inputs(arguments),
        identity=IDENTITY,
        # By it the service recognises the SDK's own repetitions.
        request_id=str(uuid4()),
    )

    async def send(client: Client) -> None:
        await client.workflow_service.signal_workflow_execution(
            request, retry=True, timeout=connection.rpc_timeout
        )

    await connection.ask(send, repeatable=False)


def _inputs(arguments: dict[str, Any]) -> Payloads:
    """All arguments as one object; none for handlers that take nothing."""
    return payloads_of([arguments] if arguments else [])
