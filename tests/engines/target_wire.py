"""The wire of `tests.engines.target_api`: what arrived, what is replied, and the server in between."""

import json
import select
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote

MAX_HOLD_SECONDS = 30.0
LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Arrived:
    """One request as it came over the wire."""

    method: str
    target: str
    """Path and query, as they were sent."""
    headers: list[tuple[str, str]]
    """In order, with the names as they were sent."""
    body: bytes

    @property
    def path(self) -> str:
        """Still percent-encoded."""
        return self.target.partition("?")[0]

    @property
    def query(self) -> list[tuple[str, str]]:
        return parse_qsl(self.target.partition("?")[2], keep_blank_values=True)

    @property
    def form(self) -> list[tuple[str, str]]:
        return parse_qsl(self.body.decode("ascii"), keep_blank_values=True)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        """All values of it; None where it was not sent."""
        values = [value for said, value in self.headers if said.lower() == name.lower()]
        return ", ".join(values) if values else None


@dataclass(frozen=True)
class Reply:
    """One answer; `body` is sent as JSON unless it is bytes or text."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    held: bool = False
    """Only once the test releases it, or its client is gone."""
    cut_off: bool = False
    """The connection ends before the body does."""
    hangs_up: bool = False
    """Instead of an answer."""

    @property
    def content(self) -> bytes:
        if self.body is None:
            return b""
        written = self.body if isinstance(self.body, bytes | str) else json.dumps(self.body)
        return written.encode() if isinstance(written, str) else written

    @property
    def all_headers(self) -> dict[str, str]:
        is_json = not isinstance(self.body, bytes | str) and self.body is not None
        own = {"Content-Type": "application/json"} if is_json else {}
        return own | dict(self.headers)


Answering = Callable[["TargetApi", Arrived], Reply]


@dataclass
class TargetApi:
    """A running one."""

    port: int
    answer: Answering
    required_headers: Mapping[str, str] = field(default_factory=dict)
    """By name; requests without them get a 401. The token endpoint asks for none."""
    required_query: Mapping[str, str] = field(default_factory=dict)
    arrived: list[Arrived] = field(default_factory=list)
    told: dict[tuple[str, str], list[Reply]] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)
    """What the endpoints remember."""
    released: threading.Event = field(default_factory=threading.Event)
    holding: threading.Event = field(default_factory=threading.Event)
    """Set once an answer is held back."""
    broken_off: int = 0
    """How many held answers nobody waited for any more."""

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def last(self) -> Arrived:
        return self.arrived[-1]

    def tell(self, method: str, path: str, *replies: Reply) -> None:
        """The answers to come at this path, one after the other; the last one stays."""
        self.told[method, path] = list(replies)

    def requests(self, method: str, path: str) -> list[Arrived]:
        return [one for one in self.arrived if (one.method, one.path) == (method, path)]

    def reply_to(self, request: Arrived) -> Reply:
        if not self._is_known(request):
            return Reply(401, {"error": "who are you?"})
        replies = self.told.get((request.method, request.path))
        if not replies:
            return self.answer(self, request)
        return replies.pop(0) if len(replies) > 1 else replies[0]

    def _is_known(self, request: Arrived) -> bool:
        headers = all(request.header(name) == value for name, value in self.required_headers.items())
        query = all((name, value) in request.query for name, value in self.required_query.items())
        return (headers and query) or request.path == "/oauth/token"


class Handler(BaseHTTPRequestHandler):
    """Make a subclass with an `api` for each server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # Headers and body are two packets: the second would wait 40 ms
    api: TargetApi

    def answer(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        # Not self.path, which the library mends.
        request = Arrived(
            self.command, self.requestline.split(" ")[1], self.headers.items(), self.rfile.read(length)
        )
        self.api.arrived.append(request)
        reply = self.api.reply_to(request)
        if reply.hangs_up or (reply.held and not self._hold()):
            self.close_connection = True
            return
        self._send(reply)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815

    def _send(self, reply: Reply) -> None:
        content = reply.content
        self.send_response(reply.status)
        for name, value in reply.all_headers.items():
            self.send_header(name, value)
        if reply.status != 204:
            self.send_header("Content-Length", str(len(content) + (10 if reply.cut_off else 0)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.close_connection = self.close_connection or reply.cut_off

    def _hold(self) -> bool:
        """Whether somebody still waits for the answer once it is released."""
        self.api.holding.set()
        for _ in range(int(MAX_HOLD_SECONDS / LOOK_SECONDS)):
            if self.api.released.is_set():
                return True
            if select.select([self.connection], [], [], LOOK_SECONDS)[0] and self._has_hung_up():
                self.api.broken_off += 1
                return False
        return True

    def _has_hung_up(self) -> bool:
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            return True

    def log_message(self, format: str, *args: Any) -> None:
        """The record is enough."""


class Server(ThreadingHTTPServer):
    """One thread per connection."""

    daemon_threads = True
    # Connections that clients keep open must not keep the server from ending.
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up in the middle is what some tests are about."""


def decoded_path(request: Arrived) -> list[str]:
    """Its steps."""
    return [unquote(step) for step in request.path.strip("/").split("/")]
