from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Q

from catalogue.connections import connector_for
from catalogue.database import run_in_database, run_without_connection
from catalogue.models import Source
from connectors.errors import ConnectorError, Unreachable, Unsupported
from connectors.protocol import Capabilities, ListedRun, RunFilter, RunPage
from executions.models import Execution
from executions.runner.engine_calls import READ_SECONDS, ask

USUAL_PAGE = 50
LARGEST_PAGE = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineRun:
    listed: ListedRun
    execution: Execution | None  # None if another client started the run or the record is gone


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineRunPage:
    runs: Sequence[EngineRun]
    next_cursor: str


async def list_engine_runs(
    source: Source, wanted: RunFilter, *, page_size: int = USUAL_PAGE, cursor: str = ""
) -> EngineRunPage:
    """The latest first. Raises ConnectorError; Rejected for a query that the engine cannot read."""

    async def read() -> RunPage:
        async with connector_for(source) as connector:
            if not connector.capabilities.can_list_runs:
                raise Unsupported(
                    f"Not supported: the engine behind {source.name} cannot list its runs to others."
                )
            return await connector.list_runs(wanted, page_size=page_size, cursor=cursor)

    page = await ask(read(), seconds=READ_SECONDS, otherwise=Unreachable)
    return await run_in_database(_mark_ours, source, page)


def present_capabilities(source: Source) -> Capabilities:
    """None of them where the settings cannot be used."""

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
    ours = list(Execution.objects.filter(named | keyed).filter(of_source))
    by_run = {execution.run_id: execution for execution in ours if execution.run_id}
    by_key = {execution.pk: execution for execution in ours}
    runs = [
        EngineRun(listed=run, execution=by_run.get(run.run_id) or (by_key.get(run.key) if run.key else None))
        for run in page.runs
    ]
    return EngineRunPage(runs=runs, next_cursor=page.next_cursor)
