"""The job server of docs/adding-a-connector.md: what its connector is held to the contract with."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

SECONDS = {"turn": 0.05, "break": 0.05, "polish": 600.0}
JOBS = [
    {"id": name, "name": name, "description": f"Lets the lathe {name}.", "inputSchema": {"type": "object"}}
    for name in SECONDS
]
Answer = tuple[int, Any]


@dataclass
class Run:
    job: str
    key: str
    id: str = field(default_factory=lambda: uuid4().hex)
    began: float = field(default_factory=time.time)
    stopped: float = 0.0

    @property
    def due(self) -> float:
        return self.began + SECONDS[self.job]

    @property
    def is_over(self) -> bool:
        return bool(self.stopped) or time.time() >= self.due

    def told(self) -> dict[str, Any]:
        told = {"id": self.id, "state": "turning", "started": _moment(self.began)}
        if self.stopped:
            return told | {"state": "stopped", "ended": _moment(self.stopped)}
        if not self.is_over:
            return told
        told |= {"ended": _moment(self.due)}
        if self.job == "break":
            return told | {"state": "failed", "reason": "The chisel broke."}
        return told | {"state": "done", "result": {"pieces": 3}}


class Lathe:
    """The jobs' runs, by the paths of the API."""

    token = "lathe-token-0123456789abcdef"

    def __init__(self) -> None:
        self.port = 0
        self.runs: dict[str, Run] = {}
        self._lock = threading.Lock()

    def answer(self, method: str, path: str, key: str) -> Answer:
        match method, path.strip("/").split("/"):
            case "GET", ["jobs"]:
                return 200, JOBS
            case "POST", ["jobs", job, "runs"]:
                return self._start(job, key)
            case "GET", ["runs", run_id] if run_id in self.runs:
                return 200, self.runs[run_id].told()
            case "DELETE", ["runs", run_id] if run_id in self.runs:
                return self._stop(self.runs[run_id])
        return 404, {"error": "Nothing is there."}

    def _start(self, job: str, key: str) -> Answer:
        if job not in SECONDS:
            return 404, {"error": f"There is no job {job}."}
        with self._lock:
            known = next((run for run in self.runs.values() if run.key == key), None)
            run = known or Run(job, key)
            self.runs[run.id] = run
        return 201, {"id": run.id}

    def _stop(self, run: Run) -> Answer:
        if run.is_over:
            return 409, {"error": "The run is over."}
        run.stopped = time.time()
        return 200, {}


@contextmanager
def running_lathe() -> Iterator[Lathe]:
    lathe = Lathe()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _reply(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            let_in = self.headers.get("authorization") == f"Bearer {lathe.token}"
            key = self.headers.get("idempotency-key", "")
            refusal: Answer = (401, {"error": "Who are you?"})
            code, told = lathe.answer(self.command, self.path, key) if let_in else refusal
            body = json.dumps(told).encode()
            self.send_response(code)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = _reply  # noqa: N815

        def log_message(self, *given: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    lathe.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield lathe
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
