"""A request to start a workflow, and the first rows of its record."""

import uuid
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from catalogue.models import Workflow
from executions.callers import Caller
from executions.models import Execution, ExecutionEvent, ExecutionPayload
from executions.models.payload import size_of
from executions.models.transitions import Event


@dataclass(frozen=True, kw_only=True, slots=True)
class StartRequest:
    """What a door asks to run."""

    tool_name: str
    arguments: dict[str, Any]
    caller: Caller
    door: Execution.Door
    idempotency_key: str = ""
    """Requests of one caller with the same key are one request; empty: none."""
    may_reattach: bool = False
    """Whether it may be a retry after a lost connection."""
    fresh: bool = False
    """Whether a cached result may not answer."""
    may_be_hidden: bool = False
    """Whether a workflow may run that is hidden from agents, as for a curator who tries it."""
    client: dict[str, Any] = field(default_factory=dict)
    """The client's description of itself."""
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    """Of the execution, unless the request repeats an existing one."""


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
        idempotency_key=request.idempotency_key,
        timeout_seconds=timeout,
        created_at=now,
        deadline_at=now + timedelta(seconds=timeout),
        **fields,
    )


def insert_execution(
    execution: Execution, request: StartRequest, workflow: Workflow, *events: Event, **payload: Any
) -> None:
    """Within a transaction: the row with its payload and first events."""
    execution.save(force_insert=True)
    metadata: dict[str, Any] = {"version": workflow.version, "content_hash": workflow.content_hash}
    if request.client:
        metadata["client"] = request.client
    ExecutionPayload(execution=execution, input=request.arguments, metadata=metadata, **payload).save(
        force_insert=True
    )
    by_alias = f" by its former name {request.tool_name}" if request.tool_name != workflow.tool_name else ""
    called = ("created", f"{request.caller.name} called {workflow.tool_name}{by_alias}.")
    ExecutionEvent.objects.bulk_create(
        [
            ExecutionEvent(execution=execution, kind=kind, message=message)
            for kind, message in (called, *events)
        ]
    )
