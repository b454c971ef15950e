"""Keeping what readers see fresh: many who ask for the status of a run cause one poll (B7)."""

from datetime import timedelta

from django.utils import timezone

from executions.models import Execution, State
from executions.nudging import ask_for_a_poll

FRESH_SECONDS = 2.0
"""A status that is no older is good enough for anybody."""


def want_fresh(execution: Execution) -> None:
    """Have a worker ask the engine soon, if the status that was just read is old and nobody waits for it.

    For database threads. Costs nothing where it is not needed, and of many readers one causes the poll.
    """
    now = timezone.now()
    if execution.state != State.RUNNING or execution.workflow_id is None or execution.next_attempt_at <= now:
        return
    if (execution.polled_at or execution.started_at or execution.created_at) > now - _shortest(execution):
        return
    if execution.bring_poll_forward(unless_since=now - _shortest(execution)):
        ask_for_a_poll()


def _shortest(execution: Execution) -> timedelta:
    """Between two polls. Whoever polls keeps the engine's minimum; here it only saves asking in vain."""
    minimum = execution.workflow.source.config.get("min_poll_seconds") if execution.workflow else None
    return timedelta(seconds=max(FRESH_SECONDS, minimum or 0.0))
