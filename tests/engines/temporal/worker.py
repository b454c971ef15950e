"""The worker of the tests, a process of its own: ADDRESS NAMESPACE TASK_QUEUE, until it is ended."""

import asyncio
import sys
from datetime import timedelta

from temporalio.client import Client
from temporalio.worker import Worker

from tests.engines.temporal.workflows import ACTIVITIES, WORKFLOWS

ONCE_A_MOMENT = timedelta(milliseconds=50)


async def work(address: str, namespace: str, task_queue: str) -> None:
    client = await Client.connect(address, namespace=namespace)
    worker = Worker(
        client,
        task_queue=task_queue,
        workflows=WORKFLOWS,
        activities=ACTIVITIES,
        max_concurrent_activities=100,
        max_heartbeat_throttle_interval=ONCE_A_MOMENT,
        default_heartbeat_throttle_interval=ONCE_A_MOMENT,
    )
    await worker.run()


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:4]))
