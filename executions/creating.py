import uuid
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from audit.recording import origin
from catalogue.models import Workflow
from executions.callers import Caller
from executions.models import Execution, ExecutionEvent, ExecutionPayload
from executions.models.payload import size_of
from executions.models.record import EVENT_COLUMNS
from executions.models.statements import carry_out, insertion, insertion_of
from executions.models.transitions import Event
from executions.models.usage import end_of, usage_insertion
from telemetry import traces

KEPT_CHARACTERS = 100  # Of a client's description of itself


@dataclass(frozen=True, kw_only=True, slots=True)
class StartRequest:
    tool_name: str
    arguments: dict[str, Any]
    caller: Caller
    door: Execution.Door
    idempotency_key: str = ""  # Requests of one caller with the same key are one request; empty: none
    may_reattach: bool = False  # Whether it may be a retry after a lost connection
    fresh: bool = False  # Whether a cached result may not answer
    may_be_hidden: bool = False  # Whether a workflow may run that is hidden from agents
    client: dict[str, Any] = field(default_factory=dict)  # The client's description of itself
    id: uuid.UUID = field(default_factory=uuid.uuid4)  # Of the execution, unless it repeats another


def new_execution(
    request: StartRequest, workflow: Workflow, *, digest: str, now: datetime, **fields: Any
) -> Execution:
    timeout = workflow.effective_timeout_seconds
    return Execution(
        id=request.id,
        workflow=workflow,
        tool_name=workflow.tool_name,
        workflow_name=workflow.name,
        upstream_id=workflow.upstream_id,
        source_name=workflow.source.name,
        caller=request.caller.key,
        caller_name=request.caller.name,
        door=request.door,
        toolset=request.caller.toolset or "",
        input_characters=size_of(request.arguments),
        arguments_hash=digest,
        request_id=traces.request_id.get() or None,
        traceparent=traces.current_traceparent(),
        idempotency_key=request.idempotency_key,
        timeout_seconds=timeout,
        created_at=now,
        deadline_at=now + timedelta(seconds=timeout),
        **fields,
    )


def insert_execution(
    execution: Execution, request: StartRequest, workflow: Workflow, *events: Event, **payload: Any
) -> None:
    """The row with its payload, its first events and, if it has ended, its line in the statistics."""
    metadata: dict[str, Any] = {"version": workflow.version, "content_hash": workflow.content_hash}
    if request.client:
        metadata["client"] = request.client
    elif (here := origin.get()) is not None:
        metadata["client"] = {"address": here.address, "user_agent": here.client[:KEPT_CHARACTERS]}
    stored = ExecutionPayload(execution=execution, input=request.arguments, metadata=metadata, **payload)
    by_alias = f" by its former name {request.tool_name}" if request.tool_name != workflow.tool_name else ""
    called = ("created", f"{request.caller.name} called {workflow.tool_name}{by_alias}.")
    lines = [(execution.pk, execution.created_at, kind, message) for kind, message in (called, *events)]
    carry_out(
        insertion_of(execution),
        insertion_of(stored),
        insertion(ExecutionEvent, EVENT_COLUMNS, lines),
        *([usage_insertion([end_of(execution, {})])] if execution.is_final else []),
    )
    execution._state.adding = stored._state.adding = False
