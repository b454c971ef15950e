import asyncio
import uuid
from dataclasses import dataclass
from enum import StrEnum

from catalogue.access import Caller
from catalogue.connections import connector_for
from catalogue.database import run_in_database
from connectors.errors import ConnectorError, Unsupported
from executions.advancing import advance_and_release, begin, hold_and_read
from executions.approvals import cancel_unapproved
from executions.models import Execution, State
from executions.reading import find_execution
from executions.runner.engine_calls import capabilities_of
from executions.wakeups import wake


class CancelOutcome(StrEnum):
    CANCELLED = "cancelled"
    REQUESTED = "cancel requested"
    ALREADY_FINISHED = "already finished"
    NOT_SUPPORTED = "not supported"


@dataclass(frozen=True, slots=True)
class Cancellation:
    outcome: CancelOutcome
    message: str
    execution: Execution


async def cancel_execution(execution_id: str, *, caller: Caller, by: str = "") -> Cancellation:
    """Request the cancellation, at once if the lease is free; `by` is recorded instead of the caller."""
    execution = await run_in_database(find_execution, execution_id, caller=caller)
    if execution.is_settled:
        return _finished_before(execution)
    if execution.is_unapproved:
        if await run_in_database(cancel_unapproved, execution, by=by or caller.name):
            return _told(await run_in_database(find_execution, execution_id, caller=caller))
        # It was decided in the meantime.
        return await cancel_execution(execution_id, caller=caller, by=by)
    if execution.is_queued:
        if await run_in_database(execution.cancel_queued, by or caller.name):
            wake(execution.pk)
            return _told(execution)
        # It was admitted or ended in the meantime.
        return await cancel_execution(execution_id, caller=caller, by=by)
    if (why_not := await _why_not_cancellable(execution)) is not None:
        return Cancellation(CancelOutcome.NOT_SUPPORTED, why_not, execution)
    await run_in_database(execution.request_cancel, by or caller.name)
    wake(execution.pk)
    await asyncio.shield(begin(_try_now(execution)))
    return _told(await run_in_database(find_execution, execution_id, caller=caller))


async def _why_not_cancellable(execution: Execution) -> str | None:
    """An execution that no engine has yet can always be cancelled."""
    if execution.state == State.PENDING or execution.workflow is None:
        return None
    try:
        async with connector_for(execution.workflow.source) as connector:
            capabilities = capabilities_of(connector, execution)
            if capabilities.can_cancel or (
                execution.state == State.STARTING and capabilities.cancellable_start
            ):
                return None
    except ConnectorError as error:
        return error.message
    unsupported = Unsupported(
        f"Not supported: the engine behind {execution.source_name} cannot cancel runs. "
        f"The run goes on until it ends or its timeout of {execution.timeout_seconds} s passes."
    )
    return unsupported.message


async def _try_now(execution: Execution) -> None:
    holder = uuid.uuid4().hex
    fresh = await run_in_database(hold_and_read, execution, holder=holder)
    if fresh.lease_holder == holder:
        await advance_and_release(fresh, waited_for=True)


def _told(execution: Execution) -> Cancellation:
    if execution.state == State.CANCELLED:
        return Cancellation(CancelOutcome.CANCELLED, "The run was cancelled.", execution)
    if execution.is_settled:
        return _finished_before(execution)
    return Cancellation(
        CancelOutcome.REQUESTED,
        "Cancelling was asked for; the execution's status shows when the engine has done it.",
        execution,
    )


def _finished_before(execution: Execution) -> Cancellation:
    message = f"Nothing to cancel: the execution is already {execution.get_state_display()}."
    if execution.state == State.UNCONFIRMED:
        message = "Nothing was cancelled: an administrator has to find out whether it runs at all."
        if execution.run_id and execution.workflow_id is None:
            message = "Nothing was cancelled: the run may go on, and the engine can no longer be asked."
    return Cancellation(CancelOutcome.ALREADY_FINISHED, message, execution)
