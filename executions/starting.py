"""From a call to a durable record: who may run what, with which arguments."""

import json
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone
from loguru import logger

from catalogue.exposure import current_catalogue
from catalogue.models import Workflow
from catalogue.schemas import ArgumentProblem, find_argument_problems
from executions.callers import Caller
from executions.launching import START_LEASE
from executions.models import Execution, ExecutionPayload, State


class StartRefused(Exception):
    """Nothing was recorded and nothing was started; the message says what to do instead."""


class UnknownTool(StartRefused):
    """No exposed workflow has this name."""

    def __init__(self, tool_name: str) -> None:
        super().__init__(
            f"Unknown or disabled tool: {tool_name[:200]}. list_workflows shows those that can be called."
        )


class InvalidArguments(StartRefused):
    """The arguments do not fit the workflow's input schema."""

    def __init__(self, tool_name: str, problems: list[ArgumentProblem]) -> None:
        listed = "\n".join(f"- {problem}" for problem in problems)
        super().__init__(f"Invalid arguments for {tool_name}; nothing was started:\n{listed}")
        self.problems = problems


def exposed_workflow(tool_name: str) -> Workflow:
    """The workflow behind a tool name. Raises UnknownTool."""
    workflow = current_catalogue().workflows.get(tool_name)
    if workflow is None:
        raise UnknownTool(tool_name)
    return workflow


def create_execution(
    *, tool_name: str, arguments: dict[str, Any], caller: Caller, door: Execution.Door, holder: str = ""
) -> Execution:
    """Commit the record of a run that is about to be started.

    With a `holder` the record is already STARTING under its lease, and the holder goes on at once with
    `advancing.launch`; without one a worker will. Raises UnknownTool or InvalidArguments.
    """
    workflow = exposed_workflow(tool_name)
    if problems := _find_problems(workflow, arguments):
        raise InvalidArguments(tool_name, problems)
    try:
        execution = _record(workflow, arguments, caller, door, holder)
    except IntegrityError:
        # Deleted in the moment for which the catalogue is remembered.
        raise UnknownTool(tool_name) from None
    logger.bind(execution=execution.pk, tool=tool_name, caller=caller.key, door=door.value).info(
        "Execution created"
    )
    return execution


def _find_problems(workflow: Workflow, arguments: dict[str, Any]) -> list[ArgumentProblem]:
    if problems := find_argument_problems(workflow.input_schema, arguments):
        return problems
    try:
        size, limit = len(json.dumps(arguments, allow_nan=False)), settings.CATALOGUE["max_payload_bytes"]
    except ValueError:
        return [ArgumentProblem("", "JSON has no numbers that are infinite or none at all (NaN)")]
    # Not cut like what an engine answers: it is what a start that has to be repeated will send.
    return [ArgumentProblem("", f"{size} bytes are over the limit of {limit}")] if size > limit else []


@transaction.atomic
def _record(
    workflow: Workflow, arguments: dict[str, Any], caller: Caller, door: Execution.Door, holder: str
) -> Execution:
    now = timezone.now()
    timeout = workflow.timeout_seconds or settings.CATALOGUE["execution_timeout"]
    execution = Execution(
        workflow=workflow,
        tool_name=workflow.tool_name,
        workflow_name=workflow.name,
        upstream_id=workflow.upstream_id,
        source_name=workflow.source.name,
        caller=caller.key,
        caller_name=caller.name,
        door=door,
        state=State.STARTING if holder else State.PENDING,
        timeout_seconds=timeout,
        created_at=now,
        deadline_at=now + timedelta(seconds=timeout),
        lease_holder=holder,
        lease_expires_at=now + START_LEASE if holder else None,
    )
    execution.save(force_insert=True)
    ExecutionPayload(execution=execution, input=arguments).save(force_insert=True)
    execution.note("created", f"{caller.name} called {workflow.tool_name}.")
    return execution
