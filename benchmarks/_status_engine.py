"""An engine that only answers B2's status request: every run is running. It notes when it was asked.

It is not the example engine, because that would need as much of the processor as the worker that is measured.
"""

import json
import time
from collections import defaultdict
from typing import Any

ARRIVALS_PATH = "/arrivals"
_arrivals: dict[str, list[float]] = defaultdict(list)
_started_at = time.time()


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        path = scope["path"]
        answer = dict(_arrivals) if path == ARRIVALS_PATH else _status(*path.split("/")[-4:-1:2])
        headers = [(b"content-type", b"application/json")]
        body = json.dumps(answer).encode()
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _status(workflow_id: str, run_id: str) -> dict[str, Any]:
    """`.../workflows/{workflow id}/runs/{run id}/status`; the progress moves once a minute."""
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
