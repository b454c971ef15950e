"""Recovering starts whose answer was lost, at engines that can find runs by key."""

from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from catalogue.database import run_in_database
from connectors.backoff import backoff_seconds
from connectors.errors import ConnectorError, Misconfigured, NotFound, Unreachable
from connectors.protocol import Connector, Started
from executions.models import Execution
from executions.runner.engine_calls import READ_SECONDS, ask, capabilities_of, connector_of, log_of

LOOKING_UP = timedelta(seconds=60)  # How long a start that the engine does not know may still be on its way
FEWEST_LOOKS = 3
"""Consecutive empty answers that are needed: an engine that has just restarted may not know yet."""
LONGEST_PAUSE_SECONDS = 30.0


async def can_be_looked_up(execution: Execution) -> bool:
    assert execution.workflow is not None, "advance() ends executions without a workflow"
    # The settings have changed since: perhaps another engine, or another header.
    if execution.workflow.source.configured_at > (execution.admitted_at or execution.created_at):
        return False
    try:
        async with connector_of(execution) as connector:
            return capabilities_of(connector, execution).can_find_runs
    except Misconfigured:
        return False
    except Exception:  # noqa: BLE001 - said in the next line
        log_of(execution).exception("A connector failed unexpectedly")
        return False


async def look_up(execution: Execution) -> Started | None:
    """Ask the engine once for the run; if there is none, record another look, a failure or no certainty."""
    try:
        async with connector_of(execution) as connector:
            if (found := await _find_run(connector, execution)) is not None:
                return found
            blind_to = await _find_run_missed(connector, execution) if _looked_enough(execution) else None
    except ConnectorError as error:
        await run_in_database(_record_unanswered_look, execution, error)
    else:
        await run_in_database(_record_empty_look, execution, blind_to)
    return None


async def _find_run(connector: Connector, execution: Execution) -> Started | None:
    arguments = await run_in_database(input_of, execution)
    looking = connector.find_run(execution.run.workflow, arguments, key=execution.pk)
    return await ask(looking, seconds=READ_SECONDS, otherwise=Unreachable)


async def _find_run_missed(connector: Connector, execution: Execution) -> Execution | None:
    """A known run that the lookup misses too: then an empty answer proves nothing.

    Guards against a faulty lookup path. A run that the engine has forgotten altogether proves nothing.
    """
    known = await run_in_database(_latest_with_run, execution)
    if known is None or await _find_run(connector, known) is not None:
        return None
    try:
        await ask(connector.poll(known.run), seconds=READ_SECONDS, otherwise=Unreachable)
    except NotFound:
        return None
    return known


def _latest_with_run(execution: Execution) -> Execution | None:
    """Of the same workflow, started with the source's present settings."""
    assert execution.workflow is not None, "advance() ends executions without a workflow"
    same = Execution.objects.filter(workflow=execution.workflow, payload_pruned_at=None).exclude(run_id="")
    since = same.filter(created_at__gt=execution.workflow.source.configured_at).order_by("-created_at")
    return since.select_related("workflow__source").first()


def input_of(execution: Execution) -> dict[str, Any]:
    arguments: dict[str, Any] = execution.payload.input
    return arguments


def begin_to_look_up(execution: Execution, why: str) -> bool:
    log_of(execution).warning("Start of unknown outcome, to be looked up: {}", why)
    said = f"It is not known whether the run was started: {why}"
    return execution.look_again(next_attempt_at=_next_look(execution), why=said)


def _record_empty_look(execution: Execution, blind_to: Execution | None) -> None:
    why = "The engine has no run for it."
    if blind_to is not None:
        execution.mark_unconfirmed(
            f"It is not known whether the run was started: the engine finds no run for it, but neither run "
            f"{blind_to.run_id} of execution {blind_to.pk}, which it has. Looking runs up seems not to "
            "work; where the source has a run lookup path, check that."
        )
        log_of(execution).warning("Start unconfirmed: the lookup does not even find a run that there is")
    elif not _looked_enough(execution):
        execution.look_again(
            next_attempt_at=_next_look(execution), why=f"{why} It may be on its way.", found_nothing=True
        )
    elif execution.conclude_not_started(f"{why} The start did not happen; it is safe to call again."):
        log_of(execution).warning("The start did not happen: the engine has no run for our key")


def _record_unanswered_look(execution: Execution, error: ConnectorError) -> None:
    if _looked_long_enough(execution) and execution.deadline_at <= timezone.now():
        why = f"It is not known whether the run was started, and the engine does not tell: {error.message}"
        execution.mark_unconfirmed(why)
        log_of(execution).warning("Start unconfirmed: {}", error.message)
    else:
        execution.look_again(next_attempt_at=_next_look(execution, error), why=error.message)


def _looked_enough(execution: Execution) -> bool:
    return execution.not_found + 1 >= FEWEST_LOOKS and _looked_long_enough(execution)


def _looked_long_enough(execution: Execution) -> bool:
    since = execution.looked_up_since
    return since is not None and timezone.now() >= since + LOOKING_UP


def _next_look(execution: Execution, error: ConnectorError | None = None) -> datetime:
    """1, 2, 4, ... 30 s; also past the deadline, as the run may exist."""
    asked = error.retry_after if isinstance(error, Unreachable) else None
    attempts = execution.attempts if execution.looked_up_since else 0
    pause = backoff_seconds(attempts, first=1, longest=LONGEST_PAUSE_SECONDS)
    return timezone.now() + timedelta(seconds=max(pause, asked or 0.0))
