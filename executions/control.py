"""Retries, pauses, resumes and terminates runs, for every door.

- A retry is a call by the person who asks for it: access, approvals, limits and rates apply, and no cached
  result answers it. Its id follows from the failed execution's (`executions.rerunning`), so that an execution
  is retried once, whatever the door; then the retry can be.
- A pause is sent within the request, since sending it twice does no harm, and polls show it. A termination is
  committed first, as a cancellation is; the step that holds the lease sends it.
"""

import asyncio
from enum import StrEnum
from typing import Any

from django.utils import timezone

from access.callers import Caller
from catalogue.argument_overrides import settle_arguments
from catalogue.database import run_in_database, run_without_connection
from catalogue.models import Workflow
from connectors.errors import ConnectorError, NotFound, Unreachable
from connectors.protocol import Capabilities, Connector, RunSnapshot, RunState
from executions.advancing import begin
from executions.interacting import (
    CancelOutcome,
    EngineUnavailable,
    NotNow,
    NotSupported,
    cancel_execution,
    send_and_note,
)
from executions.models import Execution, ExecutionPayload, State
from executions.models.execution import DOORS
from executions.models.lifecycle import StartRequest
from executions.reading import find_execution
from executions.refusals import AlreadyRetried
from executions.rerunning import find_retry, request_for
from executions.runner.engine_calls import (
    READ_SECONDS,
    ask,
    capabilities_of,
    connector_of,
    read_capabilities,
)
from executions.runner.start import ELSEWHERE, is_elsewhere
from executions.wakeups import request_poll, wake


class Action(StrEnum):
    RETRY = "retry"
    RETRY_FAILED = "retry_failed"
    PAUSE = "pause"
    RESUME = "resume"
    TERMINATE = "terminate"

    @property
    def starts(self) -> bool:
        return self in (Action.RETRY, Action.RETRY_FAILED)


async def prepare_retry(
    execution_id: str, action: Action, *, caller: Caller, door: Execution.Door, **options: Any
) -> StartRequest:
    """The call that retries it; `options`: more of it. Raises UnknownExecution, InteractionRefused or
    AlreadyRetried."""
    execution = await run_in_database(find_execution, execution_id, caller=caller)
    attempt = await run_in_database(find_retry, execution)
    from_failed_step = action == Action.RETRY_FAILED
    if attempt is None:
        if why_not := await run_in_database(why_not_retried, execution, action):
            raise NotNow(why_not)
        await _ask_engine(execution, action)
    elif not caller.owns(attempt) or attempt.from_failed_step != from_failed_step:
        raise AlreadyRetried(attempt.pk)
    options["from_failed_step"] = from_failed_step
    return await run_in_database(_request_for, execution, caller, door, options)


def why_not_retried(execution: Execution, action: Action) -> str:
    """Returns why its state, or that of its source, rules it out; empty if it does not."""
    if execution.state == State.UNCONFIRMED:
        return "It is not known whether it ran: an administrator must resolve it first."
    if not execution.is_settled:
        return f"It is {execution.get_state_display()}: wait for its end, or cancel it first."
    if execution.succeeded:
        return "It has completed: call the tool if it is to run once more."
    if execution.workflow is None:
        return "Its workflow was deleted."
    if action == Action.RETRY_FAILED and not execution.last_run.run_id:
        return "It has no run at the engine and so no failed step: retry all of it."
    return ELSEWHERE if action == Action.RETRY_FAILED and is_elsewhere(execution) else ""


async def _ask_engine(execution: Execution, action: Action) -> None:
    """Raises InteractionRefused if the engine cannot retry it, or may still be running it."""
    try:
        async with connector_of(execution) as connector:
            if action == Action.RETRY_FAILED and not capabilities_of(connector, execution).can_retry:
                raise NotSupported(execution, "be retried from the failed step; retry all of it")
            if execution.state != State.TIMED_OUT or not execution.run_id:
                return
            # The engine may not have ended it when its timeout passed.
            poll = connector.poll(execution.run)
            snapshot = await ask(poll, seconds=READ_SECONDS, otherwise=Unreachable, returns=RunSnapshot)
    except NotFound:
        return
    except ConnectorError as error:
        raise EngineUnavailable(f"Nothing was started. {error.message}") from None
    if snapshot.state in (RunState.RUNNING, RunState.COMPLETED):
        now = "is still running" if snapshot.state == RunState.RUNNING else "has completed since"
        raise NotNow(
            f"Nothing was started: its run {execution.run_id} {now} at the engine. Look there first."
        )


def _request_for(
    execution: Execution, caller: Caller, door: Execution.Door, options: dict[str, Any]
) -> StartRequest:
    """Raises NotNow."""
    try:
        request = request_for(execution, caller, door=door, **options)
    except ExecutionPayload.DoesNotExist:
        raise NotNow("Its arguments are no longer kept: call the tool with them.") from None
    except Workflow.DoesNotExist:
        raise NotNow("Its workflow was deleted.") from None
    if request.from_failed_step:
        # The rules of today judge the arguments that the run has.
        workflow = execution.known_workflow
        settled = settle_arguments(workflow.input_schema, workflow.argument_overrides, request.arguments)
        if settled.arguments != execution.payload.sent_input and not settled.problems:
            raise NotNow("The curator's settings give it other arguments today: retry all of it.")
    return request


async def control_run(
    execution_id: str, action: Action, *, caller: Caller, door: Execution.Door
) -> tuple[Execution, str]:
    """Pauses, resumes or terminates it. Returns the execution and a message. Raises UnknownExecution or
    InteractionRefused."""
    by = f"{caller.name} through {DOORS[door]}"
    if action == Action.TERMINATE:
        cancellation = await cancel_execution(execution_id, caller=caller, by=by, terminates=True)
        if cancellation.outcome not in (CancelOutcome.CANCELLED, CancelOutcome.REQUESTED):
            raise NotNow(cancellation.message)
        return cancellation.execution, cancellation.message
    execution = await run_in_database(find_execution, execution_id, caller=caller)
    if why_not := why_not_held(execution, action):
        raise NotNow(why_not)
    try:
        capabilities = await read_capabilities(execution)
    except ConnectorError as error:
        raise EngineUnavailable(error.message) from None
    if not capabilities.can_pause:
        raise NotSupported(execution, f"be {DONE[action]}")

    async def send(connector: Connector) -> None:
        await getattr(connector, action)(execution.run)

    event = (DONE[action], f"By {by}.")
    refusal = await asyncio.shield(begin(send_and_note(execution, send, action, event, caller)))
    if refusal is not None:
        raise refusal
    await run_in_database(_poll_soon, execution)
    return execution, f"The engine was asked to {action} the run; its status shows when it has."


DONE = {Action.PAUSE: "paused", Action.RESUME: "resumed"}


def why_not_held(execution: Execution, action: Action) -> str:
    """Returns why its state rules out a pause or its end; empty if it does not."""
    if execution.state != State.RUNNING or execution.workflow is None:
        return f"It is {execution.state_label}: only a running run can be {DONE[action]}."
    is_to_end = execution.cancel_requested_at is not None or execution.overdue_since is not None
    return "It is being ended." if action == Action.PAUSE and is_to_end else ""


def _poll_soon(execution: Execution) -> None:
    wake(execution.pk)
    if execution.bring_poll_forward(unless_since=timezone.now()):
        request_poll()


def possible_actions(execution: Execution) -> list[Action]:
    """What its state and its engine allow, for pages that offer it. Asks no engine."""
    known: list[Action] = []
    if execution.state == State.RUNNING:
        holds = Action.RESUME if execution.is_held else Action.PAUSE
        known = [Action.TERMINATE] if why_not_held(execution, holds) else [holds, Action.TERMINATE]
    elif execution.is_settled and find_retry(execution) is None:
        retries = (Action.RETRY, Action.RETRY_FAILED)
        known = [action for action in retries if not why_not_retried(execution, action)]
    if not known or execution.workflow is None:
        return []
    # Loads all rows first: the connectors' loop cannot query.
    at_hand = Execution.objects.select_related("workflow__source").get(pk=execution.pk)
    try:
        capabilities = run_without_connection(read_capabilities(at_hand))
    except ConnectorError:
        capabilities = Capabilities()
    able = {
        Action.RETRY: True,
        Action.RETRY_FAILED: capabilities.can_retry,
        Action.PAUSE: capabilities.can_pause,
        Action.RESUME: capabilities.can_pause,
        Action.TERMINATE: capabilities.can_terminate,
    }
    return [action for action in known if able[action]]
