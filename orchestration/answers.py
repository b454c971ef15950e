"""A request's answer, read from its record: the first time, when it comes again, and later."""

import uuid

from orchestration.asked import Answered
from orchestration.interrupting import end_with_run
from orchestration.models import WorkflowRequest
from orchestration.running import raw_response_of

WITH_RUN = ("execution__payload", "execution__cached_from__payload")
"""What `answer_of` reads beside the record."""


def read_answer(request_id: uuid.UUID, *, retry_after: int | None = None) -> Answered:
    """In one query, unless its run has ended since the request was last looked at."""
    request = WorkflowRequest.objects.select_related(*WITH_RUN).get(pk=request_id)
    end_with_run(request)
    return answer_of(request, retry_after=retry_after)


def answer_of(request: WorkflowRequest, *, retry_after: int | None = None) -> Answered:
    execution = request.execution
    if execution is None:
        return Answered(request=request, raw_response=None, retry_after=retry_after)
    raw = raw_response_of(execution, of_http_tool=request.http_spec is not None)
    return Answered(request=request, raw_response=raw)
