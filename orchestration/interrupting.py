"""Ending requests that no process works on: they wait for their run, or their process was killed."""

from django.utils import timezone
from loguru import logger

from executions.models import Execution
from orchestration.models import WorkflowRequest
from orchestration.running import describe_failure
from orchestration.stages import Failure, Stage

BATCH = 100
UNREAD = (
    "instructions", "format_instructions", "tool_ids", "reason", "arguments", "http_spec",
    "formatted_response", "error", "stages",
)  # fmt: skip
"""Not needed to find them; ending one reads its stages."""
NOT_IN_WORDS = (
    "The run took longer than the answer could wait for it, so its response was not put into words."
)
RUN_GONE = "The record of its run was removed before the request had ended."


def end_with_runs() -> int:
    """End those whose run has ended since they were answered. Returns how many there were, a batch at most.

    The schedule calls it, and so does whoever is about to read requests: a status is never behind its run.
    """
    waiting = WorkflowRequest.objects.with_ended_run().select_related("execution").order_by()
    return sum(end_with_run(request) for request in waiting.defer(*UNREAD)[:BATCH])


def end_with_run(request: WorkflowRequest) -> bool:
    """As its run ended. False where it goes on, or where the request had ended."""
    execution = request.execution
    if not request.awaits_run or (execution is not None and not execution.is_settled):
        return False
    if execution is None:
        return request.fail(RUN_GONE, failure=Failure.INTERRUPTED)
    if execution.succeeded:
        unformatted = [NOT_IN_WORDS] if request.format_response else []
        return request.succeed(
            message=execution.told_state,
            at=execution.finished_at,
            warnings=[*request.warnings, *unformatted],
        )
    message, failure = describe_failure(execution)
    ended = request.fail(message, failure=failure, at=execution.finished_at, execution_id=execution.pk)
    if ended:
        bound = logger.bind(request=request.pk, caller=request.caller, stage=request.error_stage)
        bound.bind(tool=request.selected_tool, execution=execution.pk).warning(
            "A request in words failed after it was answered: {}", message
        )
    return ended


def end_interrupted() -> int:
    """End those that are past their deadline. Returns how many there were, a batch at most.

    The run of such a request goes on by itself, and the record points to it.
    """
    ended = 0
    for request in WorkflowRequest.objects.overdue(timezone.now())[:BATCH]:
        # An execution has its request's id.
        execution = Execution.objects.filter(pk=request.pk).values_list("pk", flat=True).first()
        why = _why(request, has_run=execution is not None)
        if request.fail(why, failure=Failure.INTERRUPTED, execution_id=execution):
            ended += 1
            logger.bind(request=request.pk, stage=request.error_stage).error("A request was interrupted")
    return ended


def _why(request: WorkflowRequest, *, has_run: bool) -> str:
    if has_run:
        return f"The process that worked on it is gone; the run goes on as execution {request.pk}."
    if request.stage == Stage.API_EXECUTION:
        return "The process that worked on it is gone; nothing shows that the tool was started."
    return "The process that worked on it is gone. Nothing was started; ask again."
