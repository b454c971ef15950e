"""Operations on a Temporal service's runs; importing this module imports the SDK."""

import time
from dataclasses import replace
from datetime import timedelta
from string import Formatter
from typing import Any
from uuid import UUID, uuid4

from cachetools import LRUCache
from temporalio.api.common.v1 import Memo, Payloads, WorkflowType
from temporalio.api.enums.v1 import WorkflowExecutionStatus as Status
from temporalio.api.enums.v1 import WorkflowIdConflictPolicy, WorkflowIdReusePolicy
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import OnConflictOptions, WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeWorkflowExecutionResponse,
    PauseWorkflowExecutionRequest,
    ResetWorkflowExecutionRequest,
    StartWorkflowExecutionRequest,
    StartWorkflowExecutionResponse,
    UnpauseWorkflowExecutionRequest,
)
from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError
from temporalio.common import RawValue
from temporalio.service import RPCError, RPCStatusCode

from connectors.errors import ConnectorError, InvalidAnswer, NotFound, Rejected, Unreachable, Unsupported
from connectors.network.redaction import printable, shorten
from connectors.protocol import RunFilter, RunPage, RunRef, RunSnapshot, RunState, Started, WorkflowRef
from connectors.temporal import runs
from connectors.temporal.asking import Asking, can_ask
from connectors.temporal.config import (
    EXECUTION_ID,
    METADATA_KEY,
    WORKFLOW,
    ServiceSettings,
    TemporalConfig,
    TemporalSettings,
    placeholders_in,
    settings_of,
)
from connectors.temporal.connection import IDENTITY, Connection
from connectors.temporal.declarations import AsksDeclaration
from connectors.temporal.retrying import is_reset_by, reason_of, reset_point
from connectors.temporal.runs import GOES_ON, Pollers, TemporalRun, ended, no_worker_on, progress_of, running
from telemetry import traces

LEEWAY_SECONDS = 60.0  # Beyond the execution's timeout, for a cancelled run's cleanup
REUSE = {
    "allow_duplicate": WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
    "allow_duplicate_failed_only": WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY,
    "reject_duplicate": WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE,
}
CONFLICT = {
    "fail": WorkflowIdConflictPolicy.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
    "use_existing": WorkflowIdConflictPolicy.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING,
    "terminate_existing": WorkflowIdConflictPolicy.WORKFLOW_ID_CONFLICT_POLICY_TERMINATE_EXISTING,
}
ENDED_BADLY = (Status.WORKFLOW_EXECUTION_STATUS_FAILED, Status.WORKFLOW_EXECUTION_STATUS_TIMED_OUT)
RUNS_PER_PAGE = 500
MAX_PAGES = 20


class TemporalService:
    """One namespace of a service, with one source's credentials."""

    def __init__(self, config: TemporalConfig) -> None:
        self._config = config
        self.connection = Connection(config)
        self.pollers = Pollers(self.connection)
        self.asking = Asking(self.connection, self.pollers)
        # The latest known run of each chain, so that chains need not be followed from the start.
        self._latest: LRUCache[TemporalRun, str] = LRUCache(10_000)

    def __repr__(self) -> str:
        return f"TemporalService({self._config.host_port}, {self._config.namespace})"

    async def reach(self) -> None:
        request = DescribeNamespaceRequest(namespace=self.connection.namespace)
        await self.connection.read(lambda service: service.describe_namespace, request)

    async def start(self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID) -> Started:
        """Raises Rejected if a run of another key has the workflow id."""
        if METADATA_KEY not in workflow.metadata:
            raise NotFound(f"The definitions of this source have no workflow {workflow.id}.")
        settings = settings_of(workflow.metadata)
        workflow_id = _workflow_id(settings, workflow, arguments, key)
        if not settings.id_is_ours and (found := await self._find_under(workflow, workflow_id, key)):
            return found
        request = _request(self._config, settings, workflow, arguments, workflow_id=workflow_id, key=key)

        async def send(client: Client) -> StartWorkflowExecutionResponse | None:
            # Retries are safe: the service deduplicates by the request id.
            try:
                return await client.workflow_service.start_workflow_execution(
                    request, retry=True, timeout=self.connection.rpc_timeout
                )
            except RPCError as error:
                if error.status != RPCStatusCode.ALREADY_EXISTS:
                    raise
            return None

        if (answer := await self.connection.ask(send, repeatable=False)) is not None:
            run = TemporalRun(workflow_id, answer.first_execution_run_id or answer.run_id)
            raw = {"workflow_id": workflow_id, "run_id": answer.run_id, "started": answer.started}
            return Started(run_id=str(run), raw=raw)
        if found := await self._find_under(workflow, workflow_id, key):
            return found
        raise Rejected(
            f"Another call has already started a run with the workflow id {workflow_id}; the workflow id "
            "policies do not allow another one."
        )

    async def find_run(
        self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID
    ) -> Started | None:
        """Looks by workflow id; where that does not follow from the key, among the workflow's runs."""
        settings = settings_of(workflow.metadata)
        try:
            workflow_id = _workflow_id(settings, workflow, arguments, key)
        except Rejected:
            # These are not the arguments of the start, or the start was never sent.
            found = None
        else:
            found = await self._find_under(workflow, workflow_id, key)
        if found is not None or set(placeholders_in(settings.workflow_id)) - {WORKFLOW} == {EXECUTION_ID}:
            return found
        # The template may have changed since the start.
        return await self._find_listed(workflow, f"WorkflowType = {runs.quoted(workflow.id)}", key)

    async def _find_under(self, workflow: WorkflowRef, workflow_id: str, key: UUID) -> Started | None:
        """The key's run among those that have or had the workflow id."""
        try:
            latest = await runs.describe(self.connection, TemporalRun(workflow_id, ""))
        except NotFound:
            return None
        info, requests = latest.workflow_execution_info, latest.workflow_extended_info.request_id_infos
        attached = not settings_of(workflow.metadata).id_is_ours and str(key) in requests
        # A run that the start attached itself to counts, whatever its workflow type.
        if attached or _was_started_as(info, workflow, key):
            return _found(info)
        return await self._find_listed(workflow, f"WorkflowId = {runs.quoted(workflow_id)}", key)

    async def _find_listed(self, workflow: WorkflowRef, condition: str, key: UUID) -> Started | None:
        page = b""
        for _ in range(MAX_PAGES):
            answer = await runs.list_page(self.connection, condition, page_size=RUNS_PER_PAGE, token=page)
            for info in answer.executions:
                if _was_started_as(info, workflow, key):
                    return _found(info)
            if not (page := answer.next_page_token):
                return None
        raise InvalidAnswer(f"There are more than {MAX_PAGES * RUNS_PER_PAGE:,} runs to search.")

    async def poll(self, run: RunRef) -> RunSnapshot:
        named = runs.parse_run(run.run_id)
        answer = await runs.describe(self.connection, named)
        execution = answer.workflow_execution_info.execution
        if execution.run_id != named.first_run_id:
            self._latest[named] = execution.run_id
        if answer.workflow_execution_info.status not in GOES_ON:
            try:
                event = await runs.close_event(self.connection, execution.workflow_id, execution.run_id)
            except ConnectorError as error:
                if runs.STATES[answer.workflow_execution_info.status][0] is not RunState.COMPLETED:
                    raise
                return runs.snapshot_of(answer, RunState.COMPLETED, unread=error)
            # The run may have continued as new between the two answers.
            if event is not None and not runs.continued_as(event):
                return ended(answer, event, output_bytes=self._config.max_output_bytes)
        settings = settings_of(run.workflow.metadata)
        progress = await progress_of(self.connection, self.pollers, answer, settings.progress_query)
        seen = running(answer, progress)
        return seen if settings.asks is None else await self._with_questions(seen, answer, settings.asks)

    async def _with_questions(
        self, seen: RunSnapshot, answer: DescribeWorkflowExecutionResponse, asks: AsksDeclaration
    ) -> RunSnapshot:
        try:
            if can_ask(answer):
                return replace(seen, questions=await self.asking.questions_of(answer, asks))
        except Rejected as error:
            words = shorten(f"What it asks is unknown: {error.message}", runs.MESSAGE_LIMIT)
            seen = replace(seen, progress_message=words)
        return replace(seen, questions=None)

    async def wait(self, run: RunRef, *, seconds: float) -> RunSnapshot:
        """Long-poll for the run's end, then `poll`."""
        named = runs.parse_run(run.run_id)
        give_up_at = time.monotonic() + seconds
        while (left := give_up_at - time.monotonic()) > 0.05:
            latest = self._latest.get(named, named.first_run_id)
            event = await runs.close_event(self.connection, named.workflow_id, latest, wait_seconds=left)
            if event is None or not (next_run := runs.continued_as(event)):
                break
            self._latest[named] = next_run
        return await self.poll(run)

    async def cancel(self, run: RunRef) -> None:
        connection, named = self.connection, runs.parse_run(run.run_id)
        # The service accepts the cancellation of a run that has ended, and ignores it.
        _refuse_ended(await runs.describe(connection, named), "cancelled")
        await connection.ask(
            lambda client: _handle(client, named).cancel(
                reason="Cancelled in the workflow catalogue.", rpc_timeout=connection.rpc_timeout
            )
        )

    async def terminate(self, run: RunRef) -> None:
        connection, named = self.connection, runs.parse_run(run.run_id)
        try:
            await connection.ask(
                lambda client: _handle(client, named).terminate(
                    reason="Terminated in the workflow catalogue.", rpc_timeout=connection.rpc_timeout
                )
            )
        except NotFound:
            # The service gives the same answer for a run that has ended.
            _refuse_ended(await runs.describe(connection, named), "terminated")
            raise

    async def hold(self, run: RunRef, *, paused: bool) -> None:
        connection = self.connection
        described = await runs.describe(connection, runs.parse_run(run.run_id))
        _refuse_ended(described, "paused or resumed")
        if runs.is_paused(described) is paused:
            return
        execution = described.workflow_execution_info.execution
        names = {"workflow_id": execution.workflow_id, "run_id": execution.run_id, "identity": IDENTITY}
        names |= {"namespace": connection.namespace, "request_id": str(uuid4())}
        if paused:
            pause = PauseWorkflowExecutionRequest(**names)
            await connection.read(lambda service: service.pause_workflow_execution, pause)
        else:
            resume = UnpauseWorkflowExecutionRequest(**names)
            await connection.read(lambda service: service.unpause_workflow_execution, resume)

    async def retry(self, run: RunRef, *, key: UUID) -> Started:
        """Resets the run to where its failed step began; the reset run stays in the run's chain."""
        connection, named = self.connection, runs.parse_run(run.run_id)
        described = await runs.describe(connection, named)
        info = described.workflow_execution_info
        if info.status not in ENDED_BADLY:
            raise Rejected("Only a run that failed can go on from its failed step.")
        current = await runs.describe(connection, TemporalRun(named.workflow_id, ""))
        if current.workflow_execution_info.execution != info.execution:
            # A reset would end it.
            raise Rejected(f"The workflow id {named.workflow_id} has another run now.")
        request = ResetWorkflowExecutionRequest(
            namespace=connection.namespace,
            workflow_execution=info.execution,
            reason=reason_of(key),
            workflow_task_finish_event_id=reset_point(await runs.history_of(connection, info.execution)),
            request_id=str(key),
            identity=IDENTITY,
        )
        timeout = connection.rpc_timeout
        # Sent once: the service resets the run again, whatever its request id.
        answer = await connection.ask(
            lambda client: client.workflow_service.reset_workflow_execution(request, timeout=timeout),
            repeatable=False,
        )
        self._latest[named] = answer.run_id
        raw = {"workflow_id": named.workflow_id, "run_id": answer.run_id, "started": True}
        return Started(run_id=str(runs.run_of(info)), raw=raw)

    async def find_retry(self, run: RunRef, *, key: UUID) -> Started | None:
        """The history of a reset run says why it was reset."""
        described = await runs.describe(self.connection, runs.parse_run(run.run_id))
        info = described.workflow_execution_info
        events = await runs.history_of(self.connection, info.execution)
        return _found(info) if any(is_reset_by(event, key) for event in events) else None

    async def query(self, run: RunRef, name: str, arguments: dict[str, Any]) -> Any:
        """A worker's answer, also for a run that has ended. Raises Unreachable without a worker."""
        described = await runs.describe(self.connection, runs.parse_run(run.run_id))
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
                refusal: ConnectorError = Rejected(f"The run did not answer: {shorten(words, 1_000)}")
            except RPCError as error:
                if error.status in runs.TIME_IS_UP:
                    refusal = Unreachable(
                        f"No worker on the task queue {task_queue} answered in time: busy, or gone."
                    )
                elif error.status == RPCStatusCode.FAILED_PRECONDITION and "no poller seen" in error.message:
                    # The task queue has had no worker for a while.
                    refusal = Unreachable(no_worker_on(task_queue))
                else:
                    raise
            else:
                return answer
            raise refusal

        answer = await self.connection.ask(ask)
        return runs.values_of([] if answer is None else [answer.payload], limit=self._config.max_output_bytes)

    async def signal(self, run: RunRef, name: str, arguments: dict[str, Any]) -> None:
        """Deliver a signal, which the service stores until a worker takes it. Raises NotFound if the run has
        ended, OutcomeUnknown if the service may have taken it."""
        try:
            await self._send_signal(run, name, arguments)
        except NotFound:
            # The signal was not accepted, and the run may just have continued as new.
            await self._send_signal(run, name, arguments)

    async def answer(self, run: RunRef, question_id: str, content: dict[str, Any]) -> None:
        asks = settings_of(run.workflow.metadata).asks
        if asks is None:
            raise Unsupported("The definition of this workflow does not say how it asks people.")
        described = await runs.describe(self.connection, runs.parse_run(run.run_id))
        await self.asking.send_answer(described, asks, run.key, question_id, content)

    async def _send_signal(self, run: RunRef, name: str, arguments: dict[str, Any]) -> None:
        described = await runs.describe(self.connection, runs.parse_run(run.run_id))
        inputs, timeout = _inputs(arguments), self.connection.rpc_timeout
        await self.connection.ask(
            lambda client: _handle_of(client, described).signal(name, args=inputs, rpc_timeout=timeout),
            repeatable=False,
        )

    async def list_runs(self, wanted: RunFilter, *, page_size: int, cursor: str) -> RunPage:
        return await runs.list_runs(self.connection, wanted, page_size=page_size, cursor=cursor)

    async def aclose(self) -> None:
        await self.connection.aclose()


def _refuse_ended(answer: DescribeWorkflowExecutionResponse, what: str) -> None:
    if answer.workflow_execution_info.status not in GOES_ON:
        raise Rejected(f"The run has ended, so it cannot be {what}.")


def _handle_of(client: Client, described: DescribeWorkflowExecutionResponse) -> WorkflowHandle[Any, Any]:
    execution = described.workflow_execution_info.execution
    return client.get_workflow_handle(execution.workflow_id, run_id=execution.run_id)


def _handle(client: Client, run: TemporalRun) -> WorkflowHandle[Any, Any]:
    """The handle of the chain's latest run; the service refuses a run of another chain."""
    return client.get_workflow_handle(run.workflow_id, first_execution_run_id=run.first_run_id or None)


def _inputs(arguments: dict[str, Any]) -> list[RawValue]:
    """All arguments as one object; none for handlers without input."""
    return [RawValue(runs.payload_of(arguments))] if arguments else []


def _workflow_id(
    settings: TemporalSettings, workflow: WorkflowRef, arguments: dict[str, Any], key: UUID
) -> str:
    values = {**settings.workflow_id_defaults, **arguments, EXECUTION_ID: str(key), WORKFLOW: workflow.id}
    filled = ""
    for text, name, _, _ in Formatter().parse(settings.workflow_id):
        filled += text
        if name is not None:
            value = values.get(name)
            if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
                must = "must not be empty" if value == "" else "must be a string or a number"
                raise Rejected(f"The workflow id contains the argument {name}, which {must}.")
            filled += str(value)
    if len(filled) > runs.WORKFLOW_ID_LIMIT or not filled.isprintable():
        raise Rejected(
            f"The arguments make an invalid workflow id: {shorten(repr(filled), 100)} must have at most "
            f"{runs.WORKFLOW_ID_LIMIT} characters, all printable."
        )
    return filled


def _request(
    config: ServiceSettings,
    settings: TemporalSettings,
    workflow: WorkflowRef,
    arguments: dict[str, Any],
    *,
    workflow_id: str,
    key: UUID,
) -> StartWorkflowExecutionRequest:
    task_queue = settings.task_queue or config.default_task_queue
    if not task_queue:
        raise Rejected(f"Neither the definition of {workflow.id} nor the source has a task queue.")
    request = StartWorkflowExecutionRequest(
        namespace=config.namespace,
        workflow_id=workflow_id,
        workflow_type=WorkflowType(name=workflow.id),
        task_queue=TaskQueue(name=task_queue),
        input=Payloads(payloads=[runs.payload_of(value) for value in _inputs_of(settings, arguments)]),
        identity=IDENTITY,
        request_id=str(key),
        memo=Memo(fields={runs.MEMO_KEY: runs.payload_of(str(key))}),
        workflow_id_reuse_policy=REUSE[
            settings.id_reuse_policy or ("reject_duplicate" if settings.id_is_ours else "allow_duplicate")
        ],
        workflow_id_conflict_policy=CONFLICT[settings.id_conflict_policy or "fail"],
    )
    if settings.id_conflict_policy == "use_existing":
        # Records this key on the existing run.
        request.on_conflict_options.CopyFrom(OnConflictOptions(attach_request_id=True))
    if (parent := traces.current_traceparent()) is not None:
        # As the OpenTelemetry interceptors of Temporal's SDKs read it.
        request.header.fields["_tracer-data"].CopyFrom(runs.payload_of({traces.TRACEPARENT: parent}))
    _set_timeouts(request, config, settings, workflow)
    return request


def _set_timeouts(
    request: StartWorkflowExecutionRequest,
    config: ServiceSettings,
    settings: TemporalSettings,
    workflow: WorkflowRef,
) -> None:
    longest = config.default_execution_timeout_seconds
    if workflow.timeout_seconds is not None:
        longest = workflow.timeout_seconds + max(LEEWAY_SECONDS, config.cancel_grace_seconds)
    if settings.execution_timeout is not None:
        longest = min(longest, settings.execution_timeout)
    request.workflow_execution_timeout.FromTimedelta(timedelta(seconds=longest))
    if settings.run_timeout is not None:
        request.workflow_run_timeout.FromTimedelta(timedelta(seconds=settings.run_timeout))
    if settings.task_timeout is not None:
        request.workflow_task_timeout.FromTimedelta(timedelta(seconds=settings.task_timeout))


def _inputs_of(settings: TemporalSettings, arguments: dict[str, Any]) -> list[Any]:
    match settings.input:
        case "none":
            return []
        case "positional":
            given = [arguments.get(name) for name in settings.input_order]
            # Omitted trailing arguments take the workflow's defaults.
            while given and given[-1] is None:
                given.pop()
            return given
    return [arguments]


def _was_started_as(info: WorkflowExecutionInfo, workflow: WorkflowRef, key: UUID) -> bool:
    return info.type.name == workflow.id and runs.memo_key(info) == str(key)


def _found(info: WorkflowExecutionInfo) -> Started:
    execution = info.execution
    raw = {"workflow_id": execution.workflow_id, "run_id": execution.run_id, "started": False}
    return Started(run_id=str(runs.run_of(info)), raw=raw)
