"""The rates that apply to a call: of its token, caller, toolset and tool."""

import math
from collections.abc import Iterator

from django.conf import settings

from access.callers import Caller, Rate, rate_of
from access.rates import refund, seconds_until_free
from catalogue.exposure import current_catalogue
from catalogue.models import Workflow
from executions.refusals import TooManyCalls


def take_call(workflow: Workflow | None, caller: Caller) -> None:
    """Count one call, or without a workflow one read of an MCP server's prompt or resource. Raises
    TooManyCalls, and counts nothing then."""
    booked: list[Rate] = []
    for rate in rates_of(workflow, caller):
        if (seconds := seconds_until_free(rate)) > 0:
            for other in booked:
                refund(other)
            raise TooManyCalls(rate, retry_after=math.ceil(seconds))
        booked.append(rate)


def rates_of(workflow: Workflow | None, caller: Caller) -> Iterator[Rate]:
    """The narrowest first, so that a caller beyond its own rate does not use up shared ones."""
    yield from caller.rates
    usual = settings.CATALOGUE
    most: tuple[int | None, int | None] = (usual.calls_per_minute, usual.calls_at_once)
    found = [rate_of(f"caller:{caller.counted_as}", *most, whose="each caller")]
    shown = None if caller.toolset is None else current_catalogue().toolsets.get(caller.toolset)
    if shown is not None:
        most = (shown.toolset.calls_per_minute, shown.toolset.calls_at_once)
        found.append(rate_of(f"toolset:{shown.toolset.pk}", *most, whose=f"the toolset {caller.toolset}"))
    if workflow is not None:
        most = (usual.tool_calls_per_minute, usual.tool_calls_at_once)
        if workflow.calls_per_minute:
            most = (workflow.calls_per_minute, workflow.calls_at_once)
        found.append(rate_of(f"tool:{workflow.pk}", *most, whose=workflow.tool_name))
    yield from (rate for rate in found if rate is not None)
