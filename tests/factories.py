"""Rows for tests, with as few words as possible; whatever a test is about it says itself."""

import itertools
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.utils import timezone

from catalogue.actions.toolsets import write_toolset
from catalogue.models import DiscoveryRun, ServerFeature, Source, Toolset, Workflow, WorkflowFilter
from catalogue.schemas import GENERIC_SCHEMA
from executions.models import Execution, ExecutionEvent, ExecutionPayload, ProblemReport, State
from executions.models.statements import carry_out
from executions.models.usage import end_of, usage_insertion
from orchestration.models import Stage, StageState, WorkflowRequest

_numbers = itertools.count(1)
NOWHERE = "http://127.0.0.1:9"
"""The discard port: nobody answers there, and the refusal comes at once."""


def make_source(
    name: str = "", *, base_url: str = NOWHERE, api_key: str = "example-key-0123456789", **fields: Any
) -> Source:
    """A source of kind `simplified`; without more, it is enabled and no engine answers behind it."""
    source = Source(
        name=name or f"engine-{next(_numbers)}",
        kind=fields.pop("kind", "simplified"),
        config={"base_url": base_url} | fields.pop("config", {}),
        **fields,
    )
    source.credentials = {"api_key": api_key} if api_key else {}
    source.save()
    return source


def make_workflow(source: Source | None = None, **fields: Any) -> Workflow:
    """An enabled workflow whose schema takes any object; of a new source unless one is given."""
    number = next(_numbers)
    fields = {
        "upstream_id": f"wf-{number}",
        "name": f"workflow_{number}",
        "description": f"What workflow {number} does.",
        "input_schema": GENERIC_SCHEMA,
        "content_hash": f"{number:064x}",
        "enabled": True,
    } | fields
    fields.setdefault("tool_name", fields["name"])
    return Workflow.objects.create(source=source or make_source(), **fields)


def make_workflows(count: int, source: Source | None = None, **fields: Any) -> list[Workflow]:
    source = source or make_source()
    return [make_workflow(source, **fields) for _ in range(count)]


def make_feature(source: Source, upstream_id: str, **fields: Any) -> ServerFeature:
    """An enabled prompt, unless the fields say otherwise."""
    written = {
        "kind": "prompt",
        "served_as": upstream_id,
        "definition": {"name": upstream_id, "description": f"What {upstream_id} is for."},
        "enabled": True,
    }
    return ServerFeature.objects.create(source=source, upstream_id=upstream_id, **written | fields)


def make_filter(pattern: str, **fields: Any) -> WorkflowFilter:
    """An include filter on the name unless the fields say otherwise; later ones come later."""
    fields.setdefault("position", next(_numbers))
    return WorkflowFilter.objects.create(pattern=pattern, **fields)


def make_toolset(
    slug: str = "",
    *,
    picked: Iterable[Workflow] = (),
    rules: Iterable[str | dict[str, Any]] = (),
    **fields: Any,
) -> Toolset:
    """One that shows what was picked and what its rules let through; a text as a rule includes names."""
    written = [{"pattern": rule} if isinstance(rule, str) else rule for rule in rules]
    names = [workflow.tool_name for workflow in picked]
    fields["slug"] = slug or f"toolset-{next(_numbers)}"
    return write_toolset(Toolset(), picked=names, rules=written, **fields)


def make_discovery_run(source: Source | None = None, **fields: Any) -> DiscoveryRun:
    """A listing by hand that succeeded, finished the moment it began."""
    fields = {"trigger": DiscoveryRun.Trigger.MANUAL} | fields
    run = DiscoveryRun(source=source or make_source(), **fields)
    if "outcome" not in fields:
        run.outcome = DiscoveryRun.Outcome.SUCCEEDED
    run.finished_at = fields.get("finished_at", run.started_at)
    run.save()
    return run


def make_report(**fields: Any) -> ProblemReport:
    number, now = next(_numbers), timezone.now()
    latest = {"at": now.isoformat(), "caller": "an agent", "tried": "To close the month"}
    usual = {
        "key": f"{number:064x}",
        "tool": "",
        "is_tool": False,
        "missing": f"A way to do {number}",
        "last": [latest],
        "times": 1,
        "first_at": now,
        "last_at": now,
    }
    return ProblemReport.objects.create(**usual | fields)


def make_execution(
    workflow: Workflow | None = None, *, payload: dict[str, Any] | None = None, **fields: Any
) -> Execution:
    """A record in the given state (completed without one), with its payload and its first event.

    The state is set, not reached: nothing was sent to any engine.
    """
    workflow = workflow or make_workflow()
    execution = Execution(
        **{
            "workflow": workflow,
            "tool_name": workflow.tool_name,
            "workflow_name": workflow.name,
            "upstream_id": workflow.upstream_id,
            "source_name": workflow.source.name,
            "caller": "token:1",
            "caller_name": "an agent",
            "door": Execution.Door.MCP,
            "state": State.COMPLETED,
            "timeout_seconds": 300,
        }
        | fields
    )
    _complete_times(execution)
    execution.save(force_insert=True)
    ExecutionPayload.objects.create(
        execution=execution, **{"input": {}, "output": {"answer": 42}} | (payload or {})
    )
    if execution.is_final and execution.is_counted:
        carry_out(usage_insertion([end_of(execution, {})]))
    execution.note("created", f"{execution.caller_name} called {execution.tool_name}.")
    return execution


def make_event(execution: Execution, kind: str, message: str = "") -> ExecutionEvent:
    return ExecutionEvent.objects.create(execution=execution, kind=kind, message=message)


def make_workflow_request(instructions: str = "What runs longest?", **fields: Any) -> WorkflowRequest:
    """The record of a natural-language request that succeeded (or as the fields say); no model was asked."""
    request = WorkflowRequest(
        **{
            "instructions": instructions,
            "tool_ids": [],
            "caller": "token:1",
            "caller_name": "a front end",
            "status": WorkflowRequest.Status.SUCCESS,
        }
        | fields
    )
    begun = request.created_at
    if request.deadline_at is None and "deadline_at" not in fields:
        request.deadline_at = begun + timedelta(seconds=120)
    if request.finished_at is None and request.status != WorkflowRequest.Status.RUNNING:
        request.finished_at = begun + timedelta(seconds=2)
    request.save(force_insert=True)
    return request


def stage_entry(stage: Stage, state: StageState = StageState.DONE, **fields: Any) -> dict[str, Any]:
    """One of a request's `stages`, of half a second."""
    started_at = fields.pop("started_at", timezone.now()).isoformat()
    seconds = None if state == StageState.RUNNING else 0.5
    told = {"stage": stage.value, "state": state.value, "started_at": started_at, "seconds": seconds}
    return told | {"message": ""} | fields


def _complete_times(execution: Execution) -> None:
    """Times that fit the state, where the test did not give them."""
    begun = execution.created_at
    if execution.deadline_at is None:
        execution.deadline_at = begun + timedelta(seconds=execution.timeout_seconds)
    if execution.admitted_at is None:
        execution.admitted_at = begun
    if execution.started_at is None and execution.state not in (State.PENDING, State.STARTING):
        execution.started_at = begun
    if execution.finished_at is None and execution.is_final:
        execution.finished_at = begun + timedelta(seconds=2)
