"""An admin says what came of a start that nobody knows the outcome of.

ResolutionRefused
├── NotUnconfirmed    there is nothing to find out (any more)
├── UnknownRun        the run that was named cannot be this execution's, or it has to be named
└── EngineSilent      the engine could not be asked; it is worth trying again
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from catalogue.database import run_in_database
from catalogue.models import Workflow
from connectors.errors import ConnectorError, Misconfigured, NotFound, Unreachable
from connectors.protocol import Capabilities
from executions.callers import Caller
from executions.dispatch import ask_for_a_poll
from executions.models import Execution, State
from executions.reading import find_execution
from executions.runner.engine_calls import READ_SECONDS, ask, capabilities_of, connector_of, log_of
from executions.wakeups import wake

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Traces:
    """What a start of unknown outcome can have left at the engine, and so what an admin can say of it."""

    run_may_be_named: bool
    """The engine keeps runs; one that is named is followed."""
    run_may_be_missing: bool
    """The answer to the start was the result, and nothing was kept that could be named."""
    key: str
    """What the start was sent with; empty where the engine did not get it, or nobody can tell."""


NO_WORKFLOW = Traces(run_may_be_named=False, run_may_be_missing=True, key="")
"""Nobody can ask about, or follow, a run whose workflow was deleted."""


async def find_traces(execution: Execution) -> Traces:
    """Without asking the engine. Raises EngineSilent where the source's settings cannot be used."""
    if execution.workflow is None:
        return NO_WORKFLOW
    try:
        async with connector_of(execution) as connector:
            capabilities = capabilities_of(connector, execution)
    except ConnectorError as error:
        raise EngineSilent(f"What the engine keeps of it cannot be found out: {error.message}") from None
    return Traces(
        run_may_be_named=capabilities.keeps_runs,
        # One whose run is known was lost later: the engine does not tell of it.
        run_may_be_missing=not capabilities.keeps_runs
        or capabilities.starts_can_be_broken_off
        or bool(execution.run_id),
        key=str(execution.pk) if _gets_keys(execution.workflow, capabilities) else "",
    )


async def resolve_as_ran(execution_id: str, output: Any = None, *, caller: Caller) -> Execution:
    """It ran to its end, where the engine keeps no run that could be named; nobody but the caller says so.

    `output`: any JSON value that the caller found it to have; None: it is not known. Raises UnknownExecution
    and the subclasses of ResolutionRefused.
    """
    execution = await run_in_database(_find_unconfirmed, execution_id, caller)
    if not (await find_traces(execution)).run_may_be_missing:
        raise UnknownRun("Name the run that the engine has for it. Nothing was changed.")
    return await run_in_database(_confirm_ran, execution, output, caller)


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
            "Say without a run id whether it ran."
        )
    execution.run_id = run_id
    try:
        async with connector_of(execution) as connector:
            if not capabilities_of(connector, execution).keeps_runs:
                raise UnknownRun(
                    "The engine keeps no runs: its answer was all that there is. Say without a run id that "
                    "it ran. Nothing was changed."
                )
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


def _confirm_ran(execution: Execution, output: Any, caller: Caller) -> Execution:
    if not execution.confirm_ran(output, by=caller.name):
        raise NotUnconfirmed(find_execution(str(execution.pk), caller=caller))
    log_of(execution).info("Resolved by {}: it ran", caller.key)
    wake(execution.pk)
    return execution


def _gets_keys(workflow: Workflow, capabilities: Capabilities) -> bool:
    """Whether the engine gets the key of a start, with the settings as they are."""
    if capabilities.keeps_runs:
        return capabilities.idempotent_start or capabilities.can_find_runs
    # A request may be repeated for what it does, too, and then carries no key.
    return bool(workflow.metadata.get("idempotency_header"))
