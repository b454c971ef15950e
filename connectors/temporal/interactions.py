"""Putting queries to runs, and sending them signals."""

from typing import Any
from uuid import uuid4

from temporalio.api.common.v1 import Payloads
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.workflowservice.v1 import (
    QueryWorkflowRequest,
    QueryWorkflowResponse,
    SignalWorkflowExecutionRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from connectors.errors import ConnectorError, NotFound, Rejected, Unreachable
from connectors.network.redaction import printable, shorten
from connectors.temporal.connection import IDENTITY, Connection
from connectors.temporal.payloads import payloads_of, values_of
from connectors.temporal.pollers import Pollers, nobody_listens
from connectors.temporal.reading import TIME_IS_UP, describe
from connectors.temporal.runs import TemporalRun

WORDS_LIMIT = 1_000
NO_POLLER = "no poller seen"
"""In the service's words, which it has only after a while."""


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
        return Rejected(f"The run did not answer: {shorten(words, WORDS_LIMIT)}")
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
