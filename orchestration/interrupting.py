"""Requests that nobody works on any more, as their process was killed."""

from django.utils import timezone
from loguru import logger

from executions.models import Execution
from orchestration.models import WorkflowRequest
from orchestration.stages import Failure, Stage

BATCH = 100


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
