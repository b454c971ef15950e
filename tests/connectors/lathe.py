"""The job server of docs/adding-a-connector.md: what its connector is held to the contract with.

It does more than the page's connector asks for: waiting, lookups, queries, signals, a list of runs.
"""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from uuid import UUID, uuid4

from connectors.protocol import Connector, WorkflowRef
from connectors.testing import EngineHarness, Sample

SECONDS = {"measure": 600.0, "turn": 0.02, "break": 0.02, "polish": 600.0}
JOBS = [
    {"id": name, "name": name, "description": f"Lets the lathe {name}.", "inputSchema": {"type": "object"}}
    for name in SECONDS
]
RUN_ID = re.compile(r"[0-9a-f]{32}")
Answer = tuple[int, Any]
WRONG_TOKEN = "wrong-token-fedcba9876543210"


@dataclass
class Run:
    job: str
    key: str
    id: str = field(default_factory=lambda: uuid4().hex)
    began: float = field(default_factory=time.time)
    stopped: float = 0.0
    stops: threading.Event = field(default_factory=threading.Event)
    speed: int = 1200
    is_held: bool = False
    answered: float = 0.0
    """When the question of a run of `measure` was."""

    @property
    def due(self) -> float:
        return self.answered or self.began + SECONDS[self.job]

    @property
    def is_over(self) -> bool:
        return bool(self.stopped) or time.time() >= self.due

    def told(self) -> dict[str, Any]:
        told = {"id": self.id, "job": self.job, "key": self.key, "state": "turning"}
        told |= {"started": _moment(self.began)}
        if self.stopped:
            return told | {"state": "stopped", "ended": _moment(self.stopped)}
        if not self.is_over:
            told |= {"held": self.is_held}
            return told | ({"asks": {"id": "size", "text": "Does it fit?"}} if self.job == "measure" else {})
        told |= {"ended": _moment(self.due)}
        if self.job == "break":
            return told | {"state": "failed", "reason": "The chisel broke."}
        return told | {"state": "done", "result": {"pieces": 3}}


class Lathe:
    """The jobs' runs, by the paths of the API."""

    token = "lathe-token-0123456789abcdef"

    def __init__(self, *, is_open: bool = False) -> None:
        """`is_open`: it asks for no token."""
        self.is_open = is_open
        self.port = 0
        self.second_port = 0
        self.runs: dict[str, Run] = {}
        self._lock = threading.Lock()

    def answer(self, method: str, target: str, key: str) -> Answer:
        url = urlsplit(target)
        asked = dict(parse_qsl(url.query))
        match method, url.path.strip("/").split("/"):
            case "GET", ["jobs"]:
                return 200, JOBS
            case "POST", ["jobs", job, "runs"]:
                return self._start(job, key)
            case "GET", ["runs"]:
                return self._list(**asked)
            case _, ["runs", run_id, *_] if not RUN_ID.fullmatch(run_id):
                return 400, {"error": "That is no id of a run."}
            case _, ["runs", run_id, *rest] if run_id in self.runs:
                return self._of_run(method, self.runs[run_id], rest, asked)
        return 404, {"error": "Nothing is there."}

    def _of_run(self, method: str, run: Run, rest: list[str], asked: dict[str, str]) -> Answer:
        match method, rest:
            case "GET", []:
                run.stops.wait(min(float(asked.get("wait", "0")), max(0.0, run.due - time.time())))
                return 200, run.told()
            case "GET", ["result"]:
                told = run.told()
                return (200, told["result"]) if "result" in told else (409, {"error": "There is no result."})
            case "DELETE", [] | ["process"]:
                return self._stop(run)
            case "POST", ["retries"] if run.told()["state"] == "failed":
                return self._start(run.job, asked["key"])
            case "GET", ["queries", "speed"]:
                return 200, {"answer": run.speed}
            case "POST", ["answers", question]:
                return self._take(run, question, **asked)
            case "POST", [*told] if told in (["signals", "faster"], ["hold"], ["release"], ["retries"]):
                return self._tell(run, told[0])
        return 404, {"error": "A run has nothing like that."}

    def _tell(self, run: Run, told: str) -> Answer:
        if run.is_over:
            return 409, {"error": "The run is over."}
        run.speed += 100 * (told == "signals")
        run.is_held = told == "hold"
        return 202, {}

    def _take(self, run: Run, question: str, fits: str = "") -> Answer:
        if run.is_over or (run.job, question) != ("measure", "size"):
            return 404, {"error": "The run does not ask that."}
        if fits not in ("yes", "no"):
            return 422, {"error": "It fits, or it does not."}
        run.answered = time.time()
        return 200, {}

    def _list(
        self,
        job: str = "",
        key: str = "",
        state: str = "",
        run: str = "",
        begin: str = "0",
        size: str = "100",
    ) -> Answer:
        """The latest first; what is left out does not matter."""
        if not begin.isdigit():
            return 400, {"error": "That is no cursor."}
        wanted = {"job": job, "key": key, "id": run}
        found = [
            told
            for told in (known.told() for known in reversed(self.runs.values()))
            if all(told[name] == value for name, value in wanted.items() if value)
            and (not state or told["state"] in state.split(","))
        ]
        end = int(begin) + int(size)
        return 200, {"runs": found[int(begin) : end], "next": str(end) if end < len(found) else ""}

    def _start(self, job: str, key: str) -> Answer:
        if job not in SECONDS:
            return 404, {"error": f"There is no job {job}."}
        with self._lock:
            known = next((run for run in self.runs.values() if run.key == key), None) if key else None
            run = known or Run(job, key)
            self.runs[run.id] = run
        return 201, {"id": run.id}

    def _stop(self, run: Run) -> Answer:
        if run.is_over:
            return 409, {"error": "The run is over."}
        run.stopped = time.time()
        run.stops.set()
        return 200, {}


class QuietHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # Headers and body are two packets: the second would wait 40 ms
    wbufsize = -1  # One write for each answer: two would wait for an acknowledgement in between.

    def send(self, code: int, body: bytes, **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *given: Any) -> None: ...


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """The port of a server with this handler."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def running_lathe(*, is_open: bool = False) -> Iterator[Lathe]:
    lathe = Lathe(is_open=is_open)

    class Handler(QuietHandler):
        def _reply(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            let_in = lathe.is_open or self.headers.get("authorization") == f"Bearer {lathe.token}"
            key = self.headers.get("idempotency-key", "")
            refusal: Answer = (401, {"error": "Who are you?"})
            code, told = lathe.answer(self.command, self.path, key) if let_in else refusal
            self.send(code, json.dumps(told).encode(), content_type="application/json")

        do_GET = do_POST = do_DELETE = _reply  # noqa: N815

    with served(Handler) as lathe.port, served(Handler) as lathe.second_port:
        yield lathe


class LatheHarness(EngineHarness):
    completing = Sample(WorkflowRef(id="turn", name="turn"), {})
    output = {"pieces": 3}
    failing = Sample(WorkflowRef(id="break", name="break"), {})
    failure = "The chisel broke."
    lasting = Sample(WorkflowRef(id="polish", name="polish"), {})
    secrets = frozenset({Lathe.token, WRONG_TOKEN})

    def __init__(self, kind: type[Connector], lathe: Lathe) -> None:
        self.kind = kind
        self.lathe = lathe

    def unknown_run_id(self) -> str:
        return uuid4().hex

    def runs_started_with(self, key: UUID) -> int:
        return sum(run.key == str(key) for run in self.lathe.runs.values())


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
