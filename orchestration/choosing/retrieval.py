"""The first stage: the tools that a request may use (C1.2, C1.3)."""

from catalogue.exposure import current_catalogue
from catalogue.models import Workflow
from catalogue.naming import find_similar_names
from connectors.network.redaction import printable
from executions.callers import Caller
from orchestration.stages import Failure, StageFailed

SHOWN_NAME = 100


def find_tools(tool_ids: list[str], *, caller: Caller) -> dict[str, Workflow]:
    """The workflows by tool name, in the order asked for; what is named twice is there once.

    Raises StageFailed, which names every id that is none of a tool that the caller may run.
    """
    shown = current_catalogue().seen_through(caller.toolset)
    wanted = list(dict.fromkeys(tool_ids))
    if invalid := [tool_id for tool_id in wanted if tool_id not in shown]:
        told = "; ".join(_tell(tool_id, find_similar_names(tool_id, shown)) for tool_id in invalid)
        raise StageFailed(
            f"No such tools, or they are disabled: {told}. GET /api/workflows/ lists those that there are.",
            failure=Failure.UNKNOWN_TOOLS,
            invalid_tool_ids=invalid,
        )
    return {tool_id: shown[tool_id] for tool_id in wanted}


def _tell(tool_id: str, similar: list[str]) -> str:
    meant = f" (did you mean {' or '.join(similar)}?)" if similar else ""
    return f"{printable(tool_id[:SHOWN_NAME])}{meant}"
