"""An engine of B2's simplified API that answers from memory, and notes when it was asked for a status.

Runs of POLLED are over at their first poll, those of AT_ONCE and CACHED with the start; all others run on.
It is not the example engine, which would need as much of the processor as the process that is measured.
"""

import json
import time
from collections import defaultdict
from itertools import count
from typing import Any

ARRIVALS_PATH = "/arrivals"
POLLED, AT_ONCE, CACHED = "polled", "at-once", "cached"
OUTPUT = {"words": 5, "characters": 26, "sentences": 1}
_arrivals: dict[str, list[float]] = defaultdict(list)
_started_at = time.time()
_numbers = count(1)


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        path = scope["path"]
        *_, before, last = path.split("/")
        if last == "start":
            answer = _start(before)
        elif path == ARRIVALS_PATH:
            answer = dict(_arrivals)
        else:
            answer = _status(*path.split("/")[-4:-1:2])
        headers = [(b"content-type", b"application/json")]
        body = json.dumps(answer).encode()
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _start(workflow_id: str) -> dict[str, Any]:
    run_id = f"run-{next(_numbers)}"
    if workflow_id in (AT_ONCE, CACHED):
        return {"workflow_id": run_id, "correlation_id": "c", "status": "COMPLETED", "output": OUTPUT}
    return {"workflow_id": run_id, "correlation_id": "c"}


def _status(workflow_id: str, run_id: str) -> dict[str, Any]:
    """`.../workflows/{workflow id}/runs/{run id}/status`; the progress moves once a minute."""
    if workflow_id == POLLED:
        return {"status": "COMPLETED", "workflow_id": workflow_id, "output": OUTPUT, "progress": 100}
    now = time.time()
    _arrivals[run_id].append(now)
    minutes = int((now - _started_at) / 60)
    return {
        "create_time": int(_started_at * 1000),
        "start_time": int(_started_at * 1000),
        "update_time": int((_started_at + 60 * minutes) * 1000),
        "status": "RUNNING",
        "workflow_id": workflow_id,
        "input": {"context": {}},
        "output": None,
        "progress": min(minutes, 99),
        "progress_message": f"minute {minutes}",
    }
