"""Running a workflow for a tool call: start, tell progress, wait, render."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from catalogue.database import run_in_database
from catalogue.exposure import current_catalogue, find_by_alias, fresh_catalogue
from catalogue.models import Workflow
from executions.creating import StartRequest
from executions.models import Execution
from executions.refusals import InvalidArguments, StartRefused, UnknownTool
from executions.waiting import start_and_wait
from mcp_bridge.access import Access
from mcp_bridge.declarations import RENAMED_TO
from mcp_bridge.portability import find_portable_view, portable_view
from mcp_bridge.results import ToolAnswer, execution_result, tell_renamed, text_result
from mcp_bridge.tasks import describe_created_task

Report = Callable[[float, float | None, str | None], Awaitable[None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """What a tool needs to know of the request that called it."""

    access: Access
    protocol_version: str
    door: Execution.Door = Execution.Door.MCP
    idempotency_key: str = ""
    fresh: bool = False
    """Whether a workflow has to run though a cached result could answer."""
    client: dict[str, Any] = field(default_factory=dict)
    """The client's own name and version, and the protocol's."""
    takes_tasks: bool = False
    """Whether this very request declared the tasks extension."""
    report: Report | None = None
    """Sends a progress notification (value, total, message); None when the client asked for none."""
    stays_for_progress: bool = False
    """Whether progress keeps the client waiting for as long as a run takes."""


async def run_workflow(call: ToolCall, tool_name: str, arguments: dict[str, Any]) -> ToolAnswer:
    """Run it and wait. Raises UnknownTool; everything else that goes wrong is told in the result.

    A run that goes on is a task to clients that take tasks, which serves them better than a long wait.
    """
    progress = ProgressNotifications(call.report) if call.report else None
    portable = await find_portable_view(call.access)
    name = tool_name if portable is None else portable.meant_name(tool_name)
    schema = None if portable is None else portable.schema_of(name)
    try:
        request = StartRequest(
            tool_name=name,
            arguments=arguments if portable is None else portable.read(tool_name, schema, arguments),
            caller=call.access.caller,
            door=call.door,
            idempotency_key=call.idempotency_key,
            may_reattach=call.door == Execution.Door.MCP,
            fresh=call.fresh,
            client=call.client,
        )
        execution = await start_and_wait(
            request,
            patient=call.stays_for_progress and not call.takes_tasks,
            patience=(patience := await patience_of(call.access)),
            on_progress=progress.tell if progress else None,
        )
    except UnknownTool:
        if portable is None:
            raise
        raise portable.tell_unknown(tool_name) from None
    except StartRefused as error:
        if isinstance(error, InvalidArguments) and portable is not None and schema is not None:
            error = portable.tell_invalid(tool_name, schema, error)
        return text_result(str(error), is_error=True)
    if progress is not None and not progress.has_told:
        await progress.tell(execution)
    return await run_in_database(_render, execution, call, patience, name)


async def patience_of(access: Access) -> int | None:
    """Seconds that the client waits: as its token says, else its toolset and what was learned; else None."""
    if access.inline_wait_seconds is not None or access.toolset is None:
        return access.inline_wait_seconds or access.learned_wait_seconds
    if (catalogue := fresh_catalogue()) is None:
        catalogue = await run_in_database(current_catalogue)
    entry = catalogue.toolsets.get(access.toolset)
    decided = None if entry is None else entry.toolset.inline_wait_seconds
    return min((known for known in (decided, access.learned_wait_seconds) if known), default=None)


def _render(execution: Execution, call: ToolCall, patience: int | None, called: str) -> ToolAnswer:
    present = _name_instead_of(called, call.access)
    if call.takes_tasks and not execution.is_settled and not _is_synchronous(execution):
        task = describe_created_task(execution)
        return task | {"_meta": {RENAMED_TO: present}} if present else task
    is_for_a_terminal = call.door == Execution.Door.COMMAND
    result = execution_result(
        execution,
        protocol_version=call.protocol_version,
        may_be_large=is_for_a_terminal,
        patience=patience,
    )
    return tell_renamed(result, called, present) if present else result


def _name_instead_of(called: str, access: Access) -> str:
    """What a tool is called now that was called by an alias; empty for its present name."""
    catalogue = current_catalogue()
    shown = catalogue.seen_through(access.toolset)
    if called in shown or (workflow := find_by_alias(shown, called)) is None:
        return ""
    portable = portable_view(catalogue, access.toolset)
    return workflow.tool_name if portable is None else portable.shown_name(workflow.tool_name)


def _is_synchronous(execution: Execution) -> bool:
    workflow = execution.workflow
    return workflow is not None and workflow.effective_execution_type == Workflow.ExecutionType.SYNC


class ProgressNotifications:
    """Turns what polls find into progress values that always rise, as MCP demands.

    Every poll sends one, also when the engine reports nothing new: they keep the client patient. A run that
    ends before the first poll has one of its end, since the client asked for progress.
    """

    SMALLEST_STEP = 0.001

    def __init__(self, report: Report) -> None:
        self._report = report
        self._last = 0.0

    @property
    def has_told(self) -> bool:
        return self._last > 0.0

    async def tell(self, execution: Execution) -> None:
        percent = 100.0 if execution.succeeded else execution.progress
        known = percent is not None
        step = self.SMALLEST_STEP if known else 1.0
        self._last = max(percent or 0.0, self._last + step)
        message = execution.progress_message or execution.told_state
        await self._report(self._last, 100.0 if known and self._last <= 100.0 else None, message)
