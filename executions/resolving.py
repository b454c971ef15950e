"""An admin says what came of a start that nobody knows the outcome of.

ResolutionRefused
├── NotUnconfirmed    there is nothing to find out (any more)
├── UnknownRun        the run that was named cannot be this execution's
└── EngineSilent      the engine could not be asked; it is worth trying again
"""

from datetime import datetime, timedelta

from django.utils import timezone

from catalogue.database import run_in_database
from connectors.errors import ConnectorError, Misconfigured, NotFound, Unreachable
from executions.callers import Caller
from executions.engine.conversing import READ_SECONDS, ask, capabilities_of, connector_of, log_of
from executions.models import Execution, State
from executions.nudging import ask_for_a_poll
from executions.reading import find_execution
from executions.waking import wake

LONGEST_RUN_ID = 255


class ResolutionRefused(Exception):
    """Nothing was changed; the message says why and what to do."""


class NotUnconfirmed(ResolutionRefused):
    """Somebody, or the engine, was faster; or it never was."""

    def __init__(self, execution: Execution) -> None:
        super().__init__(
            f"There is nothing to resolve: the execution is {execution.get_state_display()}. "
            "Only what is unconfirmed can be resolved."
        )


class UnknownRun(ResolutionRefused):
    """The run is unknown to the engine, or belongs to another execution."""


class EngineSilent(ResolutionRefused):
    """The engine could not be asked about the run."""


async def resolve_as_started(execution_id: str, run_id: str, *, caller: Caller) -> Execution:
    """The engine runs it as `run_id`: ask the engine, then let a worker follow it.

    Raises UnknownExecution and the subclasses of ResolutionRefused.
    """
    execution = await run_in_database(_find_unconfirmed, execution_id, caller)
    if not run_id.strip() or len(run_id) > LONGEST_RUN_ID or not run_id.isprintable():
        raise UnknownRun(f"Name the run as the engine does, with 1 to {LONGEST_RUN_ID} printable characters.")
    if other := await run_in_database(_other_execution_of, execution, run_id):
        raise UnknownRun(f"Run {run_id} belongs to execution {other.pk}. Nothing was changed.")
    next_poll = await _ask_about(execution, run_id)
    return await run_in_database(_confirm_started, execution, run_id, caller, next_poll)


def resolve_as_not_started(execution_id: str, *, caller: Caller) -> Execution:
    """The engine did not start it: it has failed, and is safe to call again.

    Raises UnknownExecution and NotUnconfirmed.
    """
    execution = _find_unconfirmed(execution_id, caller)
    if not execution.confirm_not_started(by=caller.name):
        raise NotUnconfirmed(find_execution(execution_id, caller=caller))
    log_of(execution).info("Resolved by {}: it was not started", caller.key)
    wake(execution.pk)
    return execution


def _find_unconfirmed(execution_id: str, caller: Caller) -> Execution:
    execution = find_execution(execution_id, caller=caller)
    if execution.state != State.UNCONFIRMED:
        raise NotUnconfirmed(execution)
    return execution


def _other_execution_of(execution: Execution, run_id: str) -> Execution | None:
    same_engine = Execution.objects.filter(run_id=run_id, source_name=execution.source_name)
    return same_engine.exclude(pk=execution.pk).first()


async def _ask_about(execution: Execution, run_id: str) -> datetime:
    """When the run may next be polled. Raises UnknownRun or EngineSilent."""
    if execution.workflow is None:
        raise EngineSilent(
            "Its workflow was deleted, so the engine cannot be asked about the run, nor the run be followed. "
            "It can only be resolved as not started."
        )
    execution.run_id = run_id
    try:
        async with connector_of(execution) as connector:
            await ask(connector.poll(execution.run), seconds=READ_SECONDS, otherwise=Unreachable)
            pause = capabilities_of(connector, execution).min_poll_seconds
    except NotFound as error:
        raise UnknownRun(
            f"The engine knows no run {run_id} of this workflow: {error.message} Nothing was changed."
        ) from None
    except (Unreachable, Misconfigured) as error:
        why = "The engine could not be asked about the run. Nothing was changed, try again later"
        raise EngineSilent(f"{why}: {error.message}") from None
    except ConnectorError as error:
        raise UnknownRun(
            f"The engine does not say how the run is: {error.message} Nothing was changed."
        ) from None
    return timezone.now() + timedelta(seconds=pause)


def _confirm_started(execution: Execution, run_id: str, caller: Caller, next_poll: datetime) -> Execution:
    if not execution.confirm_started(run_id, by=caller.name, next_attempt_at=next_poll):
        raise NotUnconfirmed(find_execution(str(execution.pk), caller=caller))
    log_of(execution).info("Resolved by {}: it runs as {}", caller.key, run_id)
    wake(execution.pk)
    ask_for_a_poll()
    return execution
