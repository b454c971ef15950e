"""A request that comes again while the first of its key goes on."""

import asyncio
import uuid

from django.conf import settings

from catalogue.database import run_in_database
from orchestration.interrupting import end_interrupted, end_with_runs
from orchestration.models import WorkflowRequest
from orchestration.refusals import StillGoingOn

LOOK_AGAIN_SECONDS = 0.5


async def wait_for_end(request: WorkflowRequest) -> None:
    """As long as calls usually wait. Raises StillGoingOn, unless there is an answer: that its run goes on."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + settings.CATALOGUE["inline_wait"]
    while request.is_running:
        if loop.time() >= give_up_at:
            if request.awaits_run:
                return
            raise StillGoingOn(request)
        await asyncio.sleep(LOOK_AGAIN_SECONDS)
        request = await run_in_database(_look_again, request.pk)


def _look_again(request_id: uuid.UUID) -> WorkflowRequest:
    end_interrupted()
    end_with_runs()
    return WorkflowRequest.objects.get(pk=request_id)
