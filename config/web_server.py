"""The web server: uvicorn, with bounds on how long a client may keep it waiting and how much it has us keep.

docs/decisions/0019-endpoint-limits.md has the bounds, what happens beyond each, and why uvicorn needs them.
"""

import asyncio
import resource
import socket
import struct
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

APPLICATION = "config.asgi:application"
KEEP_ALIVE_SECONDS = 75
"""Longer than proxies and clients keep an idle connection: not closed under their next request."""
MOST_CONNECTIONS = 5_000
"""Of one process, most of them clients that wait for a run."""
FEWEST_CONNECTIONS = 100
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: end the connection at once, and drop what is still to be sent."""
OTHER_FILES = 1_200
"""What a process has open beside its clients: two for each thread with SQLite, engines, the broker."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one connection."""

    head_bytes: int = 64 * 1024
    """Request line and headers together."""
    head_seconds: float = 20
    """From the connection, or the request's first byte, to the last header."""
    body_seconds: float = 30
    """Within which the body has to end, or `body_bytes` more of it to arrive, as long as we take them."""
    body_bytes: int = 32 * 1024
    unread_seconds: float = 60
    """Within which the client has to take something of an answer."""


class Phase(Enum):
    """What of a request is arriving."""

    NOTHING = auto()
    HEAD = auto()
    BODY = auto()


class BoundedProtocol(HttpToolsProtocol):
    """A connection that does not wait for ever: uvicorn itself bounds only how long it is idle."""

    bounds: ClassVar[Bounds] = Bounds()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._phase = Phase.NOTHING
        self._answering: RequestResponseCycle | None = None
        self._received = 0
        self._head_bytes = 0
        self._incoming: asyncio.TimerHandle | None = None
        self._outgoing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._await_input()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_awaiting_input()
        self._stop_awaiting_reader()
        self._note_disconnect()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        # Of a head that begins behind another request in the same piece, this counts too much.
        self._head_bytes = len(data) + (self._head_bytes if self._phase is Phase.HEAD else 0)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._phase is Phase.HEAD and self._head_bytes > self.bounds.head_bytes:
            self._give_up(431, b"Request line and headers are too large.")
        elif self._incoming is None and (self._phase is not Phase.NOTHING or self._is_idle):
            self._await_input()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._phase = Phase.HEAD

    def on_headers_complete(self) -> None:
        self._phase = Phase.BODY
        self._stop_awaiting_input()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._phase = Phase.NOTHING
        self._stop_awaiting_input()
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        self._stop_awaiting_reader()
        super().resume_writing()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    @property
    def _is_idle(self) -> bool:
        """Whether there is nothing to answer."""
        return self._answering is None or self._answering.response_complete

    def _note_disconnect(self) -> None:
        """Uvicorn tells only the last of several requests, and the one that is answered fails at writing."""
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()

    def _await_input(self) -> None:
        in_body = self._phase is Phase.BODY
        seconds = self.bounds.body_seconds if in_body else self.bounds.head_seconds
        self._incoming = self.loop.call_later(seconds, self._input_is_late, self._received)

    def _input_is_late(self, received_before: int) -> None:
        enough = received_before + self.bounds.body_bytes
        if self.flow.read_paused or (self._phase is Phase.BODY and self._received >= enough):
            self._await_input()
        else:
            self._give_up(408, b"The request did not arrive in time.")

    def _stop_awaiting_input(self) -> None:
        if self._incoming is not None:
            self._incoming.cancel()
            self._incoming = None

    def _await_reader(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._outgoing = self.loop.call_later(self.bounds.unread_seconds, self._reader_is_late, unread)

    def _reader_is_late(self, unread_before: int) -> None:
        if self.transport.get_write_buffer_size() < unread_before:
            self._await_reader()
        else:
            # Otherwise the kernel would keep the unread data.
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.transport.abort()

    def _stop_awaiting_reader(self) -> None:
        if self._outgoing is not None:
            self._outgoing.cancel()
            self._outgoing = None

    def _give_up(self, status: int, reason: bytes) -> None:
        """End the connection; say why, where no answer is on its way."""
        self._stop_awaiting_input()
        if self._phase is Phase.HEAD and self._is_idle:
            self._say(status, reason)
        if self._phase is Phase.BODY and self._answering is self.cycle and not self.cycle.response_started:
            self._say(status, reason)
        self._note_disconnect()
        self.transport.close()

    def _say(self, status: int, reason: bytes) -> None:
        length = b"content-length: %d\r\n" % len(reason)
        headers = b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\n" + length
        self.transport.write(STATUS_LINE[status] + headers + b"\r\n" + reason)


def configure_server(application: Any, **options: Any) -> uvicorn.Config:
    """The configuration of every web process; the options are uvicorn's."""
    usual: dict[str, Any] = {
        "http": BoundedProtocol,
        "ws": "none",
        "lifespan": "on",
        "log_config": None,
        # Nothing is logged of each request; without this, it would be written down and thrown away.
        "access_log": False,
        "proxy_headers": False,
        "server_header": False,
        "timeout_keep_alive": KEEP_ALIVE_SECONDS,
    }
    return uvicorn.Config(application, **usual | options)


def serve(*, host: str, port: int, graceful_seconds: int) -> None:
    """Until a signal ends it."""
    config = configure_server(
        APPLICATION,
        host=host,
        port=port,
        timeout_graceful_shutdown=graceful_seconds,
        limit_concurrency=_most_connections(),
    )
    uvicorn.Server(config).run()


def _most_connections() -> int:
    """As many as there may be, and no more than the system lets us have open beside everything else."""
    wanted = MOST_CONNECTIONS + OTHER_FILES
    soft, hard = (
        wanted if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    if soft < (allowed := min(wanted, hard)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(min(wanted, hard) - OTHER_FILES, FEWEST_CONNECTIONS)
