"""What clients are told when they connect: what the server is for, and what of it is missing and why."""

import json
from collections.abc import Callable

from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server

from catalogue.database import run_in_database
from catalogue.exposure import ExposedCatalogue, current_catalogue, fresh_catalogue
from catalogue.models import Toolset
from catalogue.outages import Outage, Outages, current_outages, fresh_outages, outages_seen_through
from executions.local_worker import stands_in_for_workers
from mcp_bridge.access import Access
from mcp_bridge.declarations import Context

OF_LONG_RUNS = (
    "A run that takes long answers with an execution_id: it goes on by itself, so ask get_execution_status "
    "for its result instead of starting it again; list_executions finds a lost id."
)
FULL = (
    "The company's workflows as tools. Call a workflow's own tool, or find one with list_workflows and run "
    f"it with execute_workflow. {OF_LONG_RUNS}"
)
COMPACT = (
    "The company's workflows. They are not tools of their own here: find one with list_workflows, see its "
    f"arguments with get_workflow_info and run it with execute_workflow. {OF_LONG_RUNS}"
)
ALONE = (
    "No worker is running beside this server: it lists the engines and follows runs itself, as long as this "
    "connection lasts. How a run went on after that is seen the next time."
)
DESCRIBED_CHARACTERS = 2_000
"""Of a toolset's description."""
NAMED_OUTAGES = 5
REASON_CHARACTERS = 200
TELLING = ("initialize", "server/discover")


async def instructions_for(access: Access) -> str:
    """At most one hop to the database, none when what is known is fresh."""
    catalogue, outages = fresh_catalogue(), fresh_outages()
    if catalogue is None or outages is None:
        asked = await run_in_database(_look)
        return write_instructions(*asked, toolset=access.toolset)
    return write_instructions(catalogue, outages, toolset=access.toolset)


def write_instructions(catalogue: ExposedCatalogue, outages: Outages, *, toolset: str | None) -> str:
    seen = outages_seen_through(catalogue, outages, toolset)
    paragraphs = [*_about_toolset(catalogue, toolset), *map(_about_outage, seen[:NAMED_OUTAGES])]
    if stands_in_for_workers():
        paragraphs.append(ALONE)
    if (more := len(seen) - NAMED_OUTAGES) > 0:
        paragraphs.append(f"{more} more sources cannot be reached: list_workflows names all of them.")
    return "\n\n".join(paragraphs)


def _look() -> tuple[ExposedCatalogue, Outages]:
    return current_catalogue(), current_outages()


def _about_toolset(catalogue: ExposedCatalogue, slug: str | None) -> list[str]:
    if slug is None:
        return [FULL]
    if (entry := catalogue.toolsets.get(slug)) is None:
        off = (
            f"Toolset {slug}, all that may be seen here, is switched off: no workflow can be run at present."
        )
        return [COMPACT, f"{off} An administrator can switch it on again."]
    fixed = COMPACT if entry.toolset.mode == Toolset.Mode.COMPACT else FULL
    told = entry.toolset.description.strip()[:DESCRIBED_CHARACTERS]
    return [fixed, f"{entry.toolset.title or slug}: {told}"] if told else [fixed]


def _about_outage(outage: Outage) -> str:
    """The reason in quotes and on one line, because the engine may have worded it."""
    since = f" since {outage.since:%Y-%m-%d %H:%M} UTC" if outage.since else ""
    reason = " ".join(outage.reason.split())[:REASON_CHARACTERS]
    shown = (
        "Its workflows are those of its last good list."
        if outage.was_listed
        else "None of its workflows is known."
    )
    return (
        f"Source {outage.source} cannot be reached{since}: {json.dumps(reason, ensure_ascii=False)}. {shown}"
    )


class Instructions:
    """Writes them anew for each client that connects, where the SDK knows one text for all."""

    def __init__(self, access_of: Callable[[Context], Access]) -> None:
        self._access_of = access_of

    def register(self, server: Server[None]) -> None:
        server.middleware.append(self._tell)

    async def _tell(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        result = await call_next(ctx)
        if ctx.method in TELLING and isinstance(result, dict):
            return {**result, "instructions": await instructions_for(self._access_of(ctx))}
        return result
