"""Whether a worker listens on a task queue, asked seldom enough."""

import time
from collections import OrderedDict
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, DescribeTaskQueueResponse
from temporalio.client import Client

from connectors.temporal.connection import Connection

REMEMBERED_SECONDS = 5.0
SEEN_WITHIN = timedelta(seconds=75)
"""A worker asks for work at least every 60 s; the service remembers one for 5 min after it is gone."""
MOST_QUEUES = 1_000


class Pollers:
    """What was found out about the task queues of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._found: OrderedDict[str, tuple[float, bool]] = OrderedDict()

    async def listen(self, task_queue: str) -> bool:
        """Raises ConnectorError where that cannot be found out."""
        asked_at, found = self._found.get(task_queue, (0.0, False))
        if asked_at and time.monotonic() - asked_at < REMEMBERED_SECONDS:
            return found
        found = await self._ask(task_queue)
        self._found[task_queue] = (time.monotonic(), found)
        self._found.move_to_end(task_queue)
        while len(self._found) > MOST_QUEUES:
            self._found.popitem(last=False)
        return found

    async def _ask(self, task_queue: str) -> bool:
        connection = self._connection
        request = DescribeTaskQueueRequest(
            namespace=connection.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )

        async def describe(client: Client) -> DescribeTaskQueueResponse:
            return await client.workflow_service.describe_task_queue(
                request, retry=True, timeout=connection.rpc_timeout
            )

        oldest = datetime.now(UTC) - SEEN_WITHIN
        answer = await connection.ask(describe)
        return any(poller.last_access_time.ToDatetime(UTC) >= oldest for poller in answer.pollers)


def nobody_listens(task_queue: str) -> str:
    return f"No worker is listening on the task queue {task_queue}."
