"""What a workflow asks people: a query returns its open questions, an update or a signal takes an answer."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid5

from temporalio.api.common.v1 import Payloads, WorkflowExecution
from temporalio.api.enums.v1 import UpdateWorkflowExecutionLifecycleStage as Stage
from temporalio.api.enums.v1 import WorkflowExecutionStatus as Status
from temporalio.api.update.v1 import Input, Meta, Request, WaitPolicy
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionResponse,
    SignalWorkflowExecutionRequest,
    UpdateWorkflowExecutionRequest,
)

from connectors.errors import NotFound, OutcomeUnknown, Rejected, Unreachable
from connectors.protocol import Question
from connectors.questions import digest_of, read_told
from connectors.temporal import runs
from connectors.temporal.connection import IDENTITY, Connection
from connectors.temporal.declarations import AsksDeclaration
from connectors.temporal.runs import GOES_ON, Pollers, no_worker_on, payload_of

QUESTIONS_BYTES = 200_000
ACCEPTED = Stage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_ACCEPTED
COMPLETED = Stage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED


def can_ask(described: DescribeWorkflowExecutionResponse) -> bool:
    """A paused workflow takes neither queries nor updates, and one that has ended still answers queries."""
    return described.workflow_execution_info.status == Status.WORKFLOW_EXECUTION_STATUS_RUNNING


@dataclass(frozen=True, slots=True)
class Asking:
    connection: Connection
    pollers: Pollers

    async def questions_of(
        self, described: DescribeWorkflowExecutionResponse, asks: AsksDeclaration
    ) -> list[Question]:
        """Raises Rejected if the query fails. Without a worker, what the run asks is unknown: raises
        Unreachable."""
        task_queue = described.execution_config.task_queue.name
        if not await self.pollers.listen(task_queue):
            raise Unreachable(f"{no_worker_on(task_queue)} What the run asks is unknown without one.")
        told = await runs.ask_run(self.connection, described, asks.query, limit_bytes=QUESTIONS_BYTES)
        return read_told(told)

    async def send_answer(
        self,
        described: DescribeWorkflowExecutionResponse,
        asks: AsksDeclaration,
        key: UUID,
        question_id: str,
        content: dict[str, Any],
    ) -> None:
        """Raises as `Connector.answer`. `key`: of the run."""
        if described.workflow_execution_info.status not in GOES_ON:
            raise NotFound("The run has ended, so it asks nothing any more.")
        if not can_ask(described):
            raise Unreachable("The workflow is paused in Temporal, so it takes no answer now.")
        if question_id not in {question.id for question in await self.questions_of(described, asks)}:
            raise NotFound("The run does not ask this any more.")
        # Of this run and no continuation, which may ask anything.
        execution = described.workflow_execution_info.execution
        run = WorkflowExecution(workflow_id=execution.workflow_id, run_id=execution.run_id)
        common: dict[str, Any] = {"namespace": self.connection.namespace, "workflow_execution": run}
        told = Payloads(payloads=[payload_of({"id": question_id, "answer": content})])
        # One answer is taken once; another answer has its own id, so that it is not refused like the first.
        answer_id = str(uuid5(key, f"{question_id} {digest_of(content)}"))
        if asks.signal:
            signal = SignalWorkflowExecutionRequest(
                **common, signal_name=asks.signal, input=told, identity=IDENTITY, request_id=answer_id
            )
            await self._send("signal_workflow_execution", signal)
            return
        update = Request(
            meta=Meta(update_id=answer_id, identity=IDENTITY),
            input=Input(name=asks.update or "", args=told),
        )
        wait_policy = WaitPolicy(lifecycle_stage=COMPLETED)
        answer = await self._send(
            "update_workflow_execution",
            UpdateWorkflowExecutionRequest(**common, wait_policy=wait_policy, request=update),
        )
        if answer.outcome.HasField("failure"):
            raise Rejected(f"The run refused the answer: {runs.words_of_failure(answer.outcome.failure)}")
        if answer.stage not in (ACCEPTED, COMPLETED):
            raise OutcomeUnknown("No worker has decided about the answer yet.")

    async def _send(self, method: str, request: Any) -> Any:
        """Retries are safe: the service takes an id once."""
        timeout = self.connection.rpc_timeout
        return await self.connection.ask(
            lambda client: getattr(client.workflow_service, method)(request, retry=True, timeout=timeout),
            repeatable=False,
        )
