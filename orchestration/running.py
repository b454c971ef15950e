"""The third stage: the approved call becomes an execution like any other."""

import uuid
from typing import Any

from django.conf import settings

from executions.callers import Caller
from executions.creating import StartRequest
from executions.models import Execution, State
from executions.refusals import Busy, StartRefused
from executions.waiting import start_and_wait
from orchestration.choosing.guard import Approved
from orchestration.stages import Failure, StageFailed

FAILURES = {State.TIMED_OUT: Failure.RUN_TIMED_OUT, State.UNCONFIRMED: Failure.UNCONFIRMED}
"""What it is called when the run did not simply fail."""
DO_NOT_REPEAT = (
    "It may have run: asking again may do it twice. An administrator has to find out and say whether it ran."
)


def longest_wait(approved: Approved) -> float:
    """How long the answer waits for the run, in seconds; what takes longer goes on without it."""
    seconds = approved.workflow.inline_wait_seconds
    return float(settings.CATALOGUE["inline_wait"] if seconds is None else seconds)


async def run_call(approved: Approved, *, caller: Caller, key: uuid.UUID, fresh: bool) -> Execution:
    """The execution, whose id is `key`, as it is when it has ended or the wait is over.

    Raises StageFailed where nothing was started.
    """
    request = StartRequest(
        tool_name=approved.workflow.tool_name,
        arguments=approved.arguments,
        caller=caller,
        door=Execution.Door.WORKFLOW,
        fresh=fresh,
        id=key,
    )
    try:
        return await start_and_wait(request, seconds=longest_wait(approved))
    except Busy as error:
        raise StageFailed(str(error), failure=Failure.BUSY, retry_after=error.retry_after) from error
    except StartRefused as error:
        raise StageFailed(str(error), failure=Failure.RUN_FAILED) from error


def describe_failure(execution: Execution) -> tuple[str, Failure]:
    """Of an execution that is settled and did not succeed."""
    failure = FAILURES.get(State(execution.state), Failure.RUN_FAILED)
    why = execution.error or "No reason was given."
    advice = f" {DO_NOT_REPEAT}" if failure == Failure.UNCONFIRMED else ""
    return f"{execution.tool_name}: {execution.told_state}. {why}{advice}", failure


def raw_response_of(execution: Execution, *, of_http_tool: bool) -> dict[str, Any]:
    """The HTTPResponseSpec of an HTTP tool that was answered, else what came of the run.

    Of what a cached result answered, that of the run which it came from.
    """
    if of_http_tool and (response := _recorded_response(execution)) is not None:
        return response
    return {
        "execution_id": str(execution.pk),
        "state": execution.state,
        "output": execution.payload.output,
        "error": execution.error,
    }


def _recorded_response(execution: Execution) -> dict[str, Any] | None:
    ran = execution if execution.cached_at is None else execution.cached_from
    if ran is None:
        return None
    for answer in (ran.payload.status_answer, ran.payload.start_answer):
        if isinstance(answer, dict) and isinstance(answer.get("response"), dict):
            response: dict[str, Any] = answer["response"]
            return response
    return None
