"""Naming and reading runs. A run's id here is its workflow id and its chain's first run id.

A run that continues as new, or is retried, gets further run ids, and all of them refer to the first.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cachetools import LRUCache
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.enums.v1 import HistoryEventFilterType, WorkflowExecutionStatus
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionRequest,
    DescribeWorkflowExecutionResponse,
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryResponse,
    ListWorkflowExecutionsRequest,
    ListWorkflowExecutionsResponse,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from connectors.errors import InvalidAnswer, Rejected
from connectors.formats.json import UnreadableJSON, parse_json
from connectors.temporal.connection import Connection

RUN_ID_LIMIT = 255
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
WORKFLOW_ID_LIMIT = RUN_ID_LIMIT - 37
MOST_HOPS = 1_000
"""The longest chain of continued runs that is followed."""
REMEMBERED = 10_000
TIME_IS_UP = (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)
ENCODING = "encoding"
JSON_ENCODINGS = ("json/plain", "json/protobuf")
NOTHING = "binary/null"
ENDS = frozenset(
    f"workflow_execution_{end}_event_attributes"
    for end in ("completed", "failed", "timed_out", "canceled", "terminated", "continued_as_new")
)


@dataclass(frozen=True, slots=True)
class TemporalRun:
    workflow_id: str
    first_run_id: str
    """Empty: the current run of the workflow id."""

    def __str__(self) -> str:
        return f"{self.workflow_id}/{self.first_run_id}" if self.first_run_id else self.workflow_id


def parse_run(text: str) -> TemporalRun:
    """Parse `workflow-id/run-id`; any other text is a workflow id."""
    workflow_id, slash, run_id = text.rpartition("/")
    if slash and workflow_id and UUID.fullmatch(run_id):
        return TemporalRun(workflow_id, run_id)
    return TemporalRun(text, "")


def run_of(info: WorkflowExecutionInfo) -> TemporalRun:
    return TemporalRun(info.execution.workflow_id, info.first_run_id or info.execution.run_id)


async def describe(connection: Connection, run: TemporalRun) -> DescribeWorkflowExecutionResponse:
    """Describe the latest run in its chain. Raises NotFound."""
    latest = await _describe(connection, run.workflow_id, "")
    if run.first_run_id in ("", run_of(latest.workflow_execution_info).first_run_id):
        return latest
    # Another run has the workflow id by now, so the chain has to be followed.
    run_id = run.first_run_id
    for _ in range(MOST_HOPS):
        answer = await _describe(connection, run.workflow_id, run_id)
        if answer.workflow_execution_info.status == WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING:
            return answer
        event = await close_event(connection, run.workflow_id, run_id)
        if not (run_id := "" if event is None else continued_as(event)):
            return answer
    raise InvalidAnswer(f"The run continued as new more than {MOST_HOPS:,} times.")


async def _describe(
    connection: Connection, workflow_id: str, run_id: str
) -> DescribeWorkflowExecutionResponse:
    request = DescribeWorkflowExecutionRequest(
        namespace=connection.namespace,
        execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
    )
    # The SDK's handles and iterators raise ValueError for the status of a paused run.
    return await connection.ask(
        lambda client: client.workflow_service.describe_workflow_execution(
            request, retry=True, timeout=connection.rpc_timeout
        )
    )


async def list_page(
    connection: Connection, condition: str, *, page_size: int, token: bytes
) -> ListWorkflowExecutionsResponse:
    request = ListWorkflowExecutionsRequest(
        namespace=connection.namespace, query=condition, page_size=page_size, next_page_token=token
    )
    return await connection.ask(
        lambda client: client.workflow_service.list_workflow_executions(
            request, retry=True, timeout=connection.rpc_timeout
        )
    )


async def close_event(
    connection: Connection, workflow_id: str, run_id: str, *, wait_seconds: float = 0
) -> HistoryEvent | None:
    """The closing event of exactly this run; None if it is still running after `wait_seconds`."""
    request = GetWorkflowExecutionHistoryRequest(
        namespace=connection.namespace,
        execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
        wait_new_event=bool(wait_seconds),
        history_event_filter_type=HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT,
        skip_archival=True,
    )
    timeout = timedelta(seconds=wait_seconds) if wait_seconds else connection.rpc_timeout

    async def ask(client: Client) -> GetWorkflowExecutionHistoryResponse | None:
        try:
            return await client.workflow_service.get_workflow_execution_history(
                request, retry=not wait_seconds, timeout=timeout
            )
        except RPCError as error:
            if not wait_seconds or error.status not in TIME_IS_UP:
                raise
        return None

    answer = await connection.ask(ask, seconds=wait_seconds or None)
    # For a running workflow, the service answers a request that does not wait with the latest event.
    events = [] if answer is None else answer.history.events
    return events[-1] if events and events[-1].WhichOneof("attributes") in ENDS else None


def attributes_of(event: HistoryEvent) -> Any:
    return getattr(event, event.WhichOneof("attributes") or "")


def continued_as(event: HistoryEvent) -> str:
    """The id of the next run in the chain; empty where there is none."""
    return str(getattr(attributes_of(event), "new_execution_run_id", ""))


class LatestRuns:
    """The latest known run of each chain, so that chains are not followed from the start each time."""

    def __init__(self) -> None:
        self._known: LRUCache[TemporalRun, str] = LRUCache(REMEMBERED)

    def of(self, run: TemporalRun) -> str:
        return self._known.get(run, run.first_run_id)

    def note(self, run: TemporalRun, run_id: str) -> None:
        if run_id != run.first_run_id:
            self._known[run] = run_id


def moment(stamp: Timestamp) -> datetime | None:
    return stamp.ToDatetime(UTC) if stamp.seconds > 0 else None


def payload_of(value: Any) -> Payload:
    """Raises Rejected for what cannot be written as JSON."""
    try:
        written = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError):
        raise Rejected("The arguments cannot be written as JSON, so they were not sent.") from None
    return Payload(metadata={ENCODING: JSON_ENCODINGS[0].encode()}, data=written)


def value_of(payload: Payload, *, limit: int, bytes_in_all: int | None = None) -> Any:
    """The JSON value; for one that is unreadable or larger than `limit` bytes, an object that says so."""
    encoding = payload.metadata.get(ENCODING, b"").decode("ascii", "replace") or "none"
    if encoding == NOTHING:
        return None
    if (bytes_in_all or len(payload.data)) > limit:
        why = f"is larger than the limit of {limit:,} bytes"
    elif encoding not in JSON_ENCODINGS:
        why = "is not JSON"
    else:
        try:
            return parse_json(payload.data)
        except UnreadableJSON as error:
            why = f"cannot be read: {error}"
    return {
        "unreadable": f"What Temporal holds here {why}.",
        ENCODING: encoding,
        "bytes": len(payload.data),
    }


def values_of(payloads: Sequence[Payload], *, limit: int) -> Any:
    """A list for several payloads, which some SDKs send; None for no payload."""
    total = sum(len(payload.data) for payload in payloads)
    values = [value_of(payload, limit=limit, bytes_in_all=total) for payload in payloads]
    return values[0] if len(values) == 1 else values or None


def is_readable(payload: Payload) -> bool:
    return payload.metadata.get(ENCODING, b"").decode("ascii", "replace") in JSON_ENCODINGS
