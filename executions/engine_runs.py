"""The runs that an engine itself lists, whoever started them, and which of them are executions of ours (E10).

They are no executions: nothing of them is stored, followed or cancelled here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Q

from catalogue.connections import connector_for
from catalogue.database import run_in_database, run_without_connection
from catalogue.models import Source
from connectors.errors import ConnectorError, Unreachable, Unsupported
from connectors.protocol import ListedRun, RunFilter, RunPage
from executions.models import Execution
from executions.runner.engine_calls import READ_SECONDS, ask

USUAL_PAGE = 50
LARGEST_PAGE = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineRun:
    listed: ListedRun
    execution: Execution | None
    """Ours that it belongs to; None for one that others started, or whose record is gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineRunPage:
    runs: Sequence[EngineRun]
    next_cursor: str
    """Empty on the last page."""


async def list_engine_runs(
    source: Source, wanted: RunFilter, *, page_size: int = USUAL_PAGE, cursor: str = ""
) -> EngineRunPage:
    """One page, the latest runs first. Raises ConnectorError, Rejected for what the engine cannot read."""

    async def read() -> RunPage:
        async with connector_for(source) as connector:
            if not connector.capabilities.can_list_runs:
                raise Unsupported(
                    f"Not supported: the engine behind {source.name} cannot list its runs to others."
                )
            return await connector.list_runs(wanted, page_size=page_size, cursor=cursor)

    page = await ask(read(), seconds=READ_SECONDS, otherwise=Unreachable)
    return await run_in_database(_mark_ours, source, page)


def can_list_runs(source: Source) -> bool:
    """Whether the engine offers it. A source that cannot be used at all says so elsewhere."""

    async def look() -> bool:
        async with connector_for(source) as connector:
            return connector.capabilities.can_list_runs

    try:
        return run_without_connection(ask(look(), seconds=READ_SECONDS, otherwise=Unreachable))
    except ConnectorError:
        return False


def _mark_ours(source: Source, page: RunPage) -> EngineRunPage:
    named = Q(run_id__in={run.run_id for run in page.runs if run.run_id})
    keyed = Q(pk__in={run.key for run in page.runs if run.key is not None})
    # By name also those whose workflow is gone; the name may have been another source's before.
    of_source = Q(workflow__source=source) | Q(workflow=None, source_name=source.name)
    ours = list(Execution.objects.filter(named | keyed).filter(of_source))
    by_run = {execution.run_id: execution for execution in ours if execution.run_id}
    by_key = {execution.pk: execution for execution in ours}

    def execution_of(run: ListedRun) -> Execution | None:
        known = by_run.get(run.run_id)
        return known if known is not None or run.key is None else by_key.get(run.key)

    marked = [EngineRun(listed=run, execution=execution_of(run)) for run in page.runs]
    return EngineRunPage(runs=marked, next_cursor=page.next_cursor)
