"""Several things at the same moment."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connection


def together(*steps: Callable[[], Any]) -> list[Any]:
    """Returns what the steps return, which begin at once, each in a thread with a connection of its own."""
    meeting = threading.Barrier(len(steps), timeout=20)

    def run(step: Callable[[], Any]) -> Any:
        try:
            meeting.wait()
            return step()
        finally:
            connection.close()

    with ThreadPoolExecutor(len(steps)) as threads:
        return [future.result() for future in [threads.submit(run, step) for step in steps]]
