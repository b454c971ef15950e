"""The first lines of every record: who called what, with which arguments."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from executions.models import Execution, ExecutionEvent, ExecutionPayload
from executions.models.moves import Event
from executions.models.payload import size_of

if TYPE_CHECKING:
    from catalogue.models import Workflow
    from executions.starting import StartRequest


def new_execution(
    request: StartRequest, workflow: Workflow, *, digest: str, now: datetime, **fields: Any
) -> Execution:
    """Not saved yet."""
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
    """Within a transaction: the row with its payload and its first events."""
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
        ExecutionEvent(execution=execution, kind=kind, message=message) for kind, message in (called, *events)
    )
