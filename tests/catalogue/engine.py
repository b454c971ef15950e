"""An engine over real HTTP whose listing the test writes, in a thread of its own."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

JSON = {"content-type": "application/json"}
PATIENCE = 20.0
"""Seconds; only a test that fails waits that long."""


def definition(number: int = 1, **fields: Any) -> dict[str, Any]:
    """A workflow as an engine lists it; a field given as None is left out."""
    listed = {
        "id": f"wf-{number}",
        "name": f"report_{number}",
        "description": f"Makes report {number}.",
        "inputSchema": {"type": "object", "properties": {"month": {"type": "string"}}},
    } | fields
    return {name: value for name, value in listed.items() if value is not None}


def definitions(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [definition(number, **fields) for number in range(1, count + 1)]


class Pause:
    """A listing that was asked for and is not answered yet."""

    def __init__(self) -> None:
        self._arrived, self._released = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        self._arrived.set()
        self._released.wait(PATIENCE)

    def wait_until_asked(self) -> None:
        assert self._arrived.wait(PATIENCE), "nobody asked the engine for its listing"

    def release(self) -> None:
        self._released.set()


class Engine:
    """Use as `with Engine() as engine`, or by the fixture of that name."""

    def __init__(self) -> None:
        self.workflows: list[Any] = []
        self.answer: tuple[int, bytes, dict[str, str]] | None = None
        """Sent instead of the listing where it is set: status, body, headers."""
        self.asked = 0
        self.demanded = ""
        """What requests have to bring in the header Authorization, where it is set."""
        self._pause: Pause | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._pause:
            self._pause.release()
        self._server.shutdown()
        self._server.server_close()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def fails_with(self, status: int, body: bytes | str = b"", **headers: str) -> None:
        """From now on; `retry_after="7"` becomes the header `retry-after: 7`."""
        content = body.encode() if isinstance(body, str) else body
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answer = status, content, JSON | given

    def demand_key(self, key: str) -> None:
        self.demanded = f" {key}"

    def recovers(self) -> None:
        self.answer = None

    @contextmanager
    def paused(self) -> Iterator[Pause]:
        """Who asks for the listing meanwhile waits until the block ends or releases it."""
        self._pause = Pause()
        try:
            yield self._pause
        finally:
            self._pause.release()
            self._pause = None

    def _reply(self, brought: str) -> tuple[int, bytes, dict[str, str]]:
        self.asked += 1
        if not brought.endswith(self.demanded):
            return 401, b'{"error": "wrong key"}', JSON
        if self._pause:
            self._pause.pass_through()
        if self.answer is not None:
            return self.answer
        return 200, json.dumps(self.workflows).encode(), JSON

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        engine = self

        class Handler(BaseHTTPRequestHandler):
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                status, body, headers = engine._reply(self.headers.get("authorization", ""))
                # Who asked may have given up by now.
                with suppress(ConnectionError):
                    self.send_response(status)
                    for name, value in ({"content-length": str(len(body))} | headers).items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing: the test knows what it asked for."""

        return Handler
