"""Runs at the engine: listing them, and resolving an execution whose start has an unknown outcome."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q
from django.utils import timezone

from access.callers import Caller
from catalogue.connections import connector_for
from catalogue.database import run_in_database, run_without_connection
from catalogue.models import Source
from connectors.errors import ConnectorError, Misconfigured, NotFound, Unreachable, Unsupported
from connectors.protocol import Capabilities, ListedRun, RunFilter, RunPage
from executions.models import Execution, State
from executions.reading import find_execution
from executions.runner.engine_calls import (
    READ_SECONDS,
    ask,
    capabilities_of,
    connector_of,
    log_of,
    read_capabilities,
)
from executions.wakeups import request_poll, wake

DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 200
MAX_RUN_ID = 255


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineRun:
    listed: ListedRun
    execution: Execution | None  # None if another client started the run or the record is gone


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineRunPage:
    runs: Sequence[EngineRun]
    next_cursor: str


async def list_engine_runs(
    source: Source, wanted: RunFilter, *, page_size: int = DEFAULT_PAGE_SIZE, cursor: str = ""
) -> EngineRunPage:
    """Returns the latest first. Raises ConnectorError; Rejected for a query that the engine cannot read."""

    async def read() -> RunPage:
        async with connector_for(source) as connector:
            if not connector.capabilities.can_list_runs:
                raise Unsupported(f"Not supported: the engine behind {source.name} does not list its runs.")
            return await connector.list_runs(wanted, page_size=page_size, cursor=cursor)

    page = await ask(read(), seconds=READ_SECONDS, otherwise=Unreachable)
    return await run_in_database(_mark_ours, source, page)


def present_capabilities(source: Source) -> Capabilities:
    """None of them if the settings cannot be used."""

    async def look() -> Capabilities:
        async with connector_for(source) as connector:
            return connector.capabilities

    try:
        return run_without_connection(ask(look(), seconds=READ_SECONDS, otherwise=Unreachable))
    except ConnectorError:
        return Capabilities()


def _mark_ours(source: Source, page: RunPage) -> EngineRunPage:
    named = Q(run_id__in={run.run_id for run in page.runs if run.run_id})
    keyed = Q(pk__in={run.key for run in page.runs if run.key is not None})
    # Also by name, for deleted workflows; another source may have had the name before.
    of_source = Q(workflow__source=source) | Q(workflow=None, source_name=source.name)
    # Of attempts that continue one run, the last.
    ours = list(Execution.objects.filter(named | keyed).filter(of_source).order_by("created_at"))
    by_run = {execution.run_id: execution for execution in ours if execution.run_id}
    by_key = {execution.pk: execution for execution in ours}
    runs = [
        EngineRun(listed=run, execution=by_run.get(run.run_id) or (by_key.get(run.key) if run.key else None))
        for run in page.runs
    ]
    return EngineRunPage(runs=runs, next_cursor=page.next_cursor)


# Resolving


class ResolutionRefused(Exception):
    """Nothing was changed; the message says why and what to do."""


class NotUnconfirmed(ResolutionRefused):
    def __init__(self, execution: Execution) -> None:
        super().__init__(
            f"Nothing to resolve: the execution is {execution.get_state_display()}. "
            "Only unconfirmed executions can be resolved."
        )


class UnknownRun(ResolutionRefused):
    """The named run is not this execution's, or none was named."""


class EngineSilent(ResolutionRefused):
    """The engine could not be asked; trying again may help."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StartEvidence:
    """Describes what a start of unknown outcome may have left at the engine."""

    run_may_be_named: bool  # The engine keeps runs
    run_may_be_missing: bool  # The start's answer was the result: there is no run that could be named
    key: str  # Sent with the start; empty if the engine did not get one, or that is not known


async def find_traces(execution: Execution) -> StartEvidence:
    """Does not contact the engine. Raises EngineSilent if the source's settings cannot be used."""
    if execution.workflow is None:
        return StartEvidence(run_may_be_named=False, run_may_be_missing=True, key="")
    try:
        capabilities = await read_capabilities(execution)
    except ConnectorError as error:
        raise EngineSilent(f"The engine's record of it cannot be read: {error.message}") from None
    # A tool that is safe to repeat sends no key.
    gets_keys = bool(execution.workflow.metadata.get("idempotency_header"))
    if capabilities.keeps_runs:
        gets_keys = capabilities.idempotent_start or capabilities.can_find_runs
    return StartEvidence(
        run_may_be_named=capabilities.keeps_runs,
        # A run with a known id was lost later: the engine does not report it.
        run_may_be_missing=not capabilities.keeps_runs
        or capabilities.cancellable_start
        or bool(execution.run_id),
        key=str(execution.pk) if gets_keys else "",
    )


async def resolve_as_ran(execution_id: str, output: Any = None, *, caller: Caller) -> Execution:
    """Record that it ran, at an engine that keeps no runs. `output`: any JSON value; None: not known."""
    execution = await run_in_database(_find_unconfirmed, execution_id, caller)
    if not (await find_traces(execution)).run_may_be_missing:
        raise UnknownRun("Give the id of the run that the engine has for it. Nothing was changed.")
    return await run_in_database(_confirm_ran, execution, output, caller)


async def resolve_as_started(execution_id: str, run_id: str, *, caller: Caller) -> Execution:
    execution = await run_in_database(_find_unconfirmed, execution_id, caller)
    if not run_id.strip() or len(run_id) > MAX_RUN_ID or not run_id.isprintable():
        raise UnknownRun(f"A run id must consist of 1 to {MAX_RUN_ID} printable characters.")
    same_run = Execution.objects.filter(run_id=run_id, source_name=execution.source_name)
    other = await run_in_database(same_run.exclude(pk=execution.pk).first)
    if other is not None and run_id != execution.retried_run_id:
        raise UnknownRun(f"Run {run_id} belongs to execution {other.pk}. Nothing was changed.")
    next_poll = await _ask_about(execution, run_id)
    return await run_in_database(_confirm_started, execution, run_id, caller, next_poll)


def resolve_as_not_started(execution_id: str, *, caller: Caller) -> Execution:
    execution = _find_unconfirmed(execution_id, caller)
    done = execution.confirm_not_started(by=caller.name)
    return _resolved(execution, caller, "it was not started", done=done)


def _find_unconfirmed(execution_id: str, caller: Caller) -> Execution:
    execution = find_execution(execution_id, caller=caller)
    if execution.state != State.UNCONFIRMED:
        raise NotUnconfirmed(execution)
    return execution


async def _ask_about(execution: Execution, run_id: str) -> datetime:
    """Returns when the run may next be polled. Raises UnknownRun or EngineSilent."""
    if execution.workflow is None:
        raise EngineSilent(
            "Its workflow was deleted, so its run can be neither looked up nor followed. "
            "Resolve it without a run id."
        )
    execution.run_id = run_id
    try:
        async with connector_of(execution) as connector:
            if not capabilities_of(connector, execution).keeps_runs:
                raise UnknownRun(
                    "The engine does not keep runs. Resolve it without a run id, as one that "
                    "ran. Nothing was changed."
                )
            await ask(connector.poll(execution.run), seconds=READ_SECONDS, otherwise=Unreachable)
            pause = capabilities_of(connector, execution).min_poll_seconds
    except NotFound as error:
        raise UnknownRun(
            f"The engine has no run {run_id} of this workflow: {error.message} Nothing was changed."
        ) from None
    except (Unreachable, Misconfigured) as error:
        why = "The engine could not be asked about the run. Nothing was changed; try again later"
        raise EngineSilent(f"{why}: {error.message}") from None
    except ConnectorError as error:
        raise UnknownRun(
            f"The engine does not report the run's state: {error.message} Nothing was changed."
        ) from None
    return timezone.now() + timedelta(seconds=pause)


def _confirm_started(execution: Execution, run_id: str, caller: Caller, next_poll: datetime) -> Execution:
    done = execution.confirm_started(run_id, by=caller.name, next_attempt_at=next_poll)
    resolved = _resolved(execution, caller, f"it runs as {run_id}", done=done)
    request_poll()
    return resolved


def _confirm_ran(execution: Execution, output: Any, caller: Caller) -> Execution:
    return _resolved(execution, caller, "it ran", done=execution.confirm_ran(output, by=caller.name))


def _resolved(execution: Execution, caller: Caller, how: str, *, done: bool) -> Execution:
    """Raises NotUnconfirmed if it was resolved in the meantime."""
    if not done:
        raise NotUnconfirmed(find_execution(str(execution.pk), caller=caller))
    log_of(execution).info("Resolved by {}: {}", caller.key, how)
    wake(execution.pk)
    return execution
