"""The web server: uvicorn with limits for each connection; Django behind it in threads; and for Django's
requests and responses the recorded origin, security headers, and debug pages without values.
docs/decisions/0003-web-server.md gives the reasons for the limits and for the separate handler."""

import asyncio
import resource
import signal
import socket
import struct
import threading
from asyncio import CancelledError
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from tempfile import SpooledTemporaryFile
from types import FrameType
from typing import Any, ClassVar, TypeVar, cast

import uvicorn
from anyio import CapacityLimiter, fail_after, from_thread, to_thread
from django.conf import settings
from django.core import signals
from django.core.exceptions import RequestAborted, RequestDataTooBig
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.http import (
    FileResponse,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    JsonResponse,
    StreamingHttpResponse,
)
from django.urls import set_script_prefix
from django.views.debug import SafeExceptionReporterFilter
from loguru import logger
from sse_starlette.sse import AppStatus
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from access.addresses import address_of
from audit.models import Origin, origin
from catalogue.database import REQUESTS_AT_ONCE, place, release_connection
from config.compat import AnnouncingProtocol, note_handler
from identity.doorkeeper import Doorkeeper, Throttled
from telemetry import metrics

APPLICATION = "config.asgi:application"
KEEP_ALIVE_SECONDS = 75  # Longer than proxies and clients keep idle ones, so none is closed under a request
MAX_CONNECTIONS = 5_000  # Per process, mostly of clients that wait for a run
MIN_CONNECTIONS = 100
FORCE_SECONDS = 3.0  # After the grace, for closing everything
ANSWER_SECONDS = 2.0  # Of a graceful end, for sending what waiting calls are answered with
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close at once and drop unsent data
OTHER_FILES = 1_200  # Open besides connections: two per thread with SQLite, engines, the broker
THREADS = 256  # Concurrent requests, of which most wait for a run and do not use the database
PLACE_SECONDS = 4.0  # How long a request waits until it may use the database
BUSY_SECONDS = 2  # After which a refused client should try again
BYTES_IN_MEMORY = 65_536  # Bytes of a body; the rest, from known callers only, goes to disk
Result = TypeVar("Result")
Known = Callable[[dict[str, Any]], Awaitable[bool]]  # Whether a request's headers identify a caller
AUTHORIZE = "/oauth/authorize"
BEFORE_IT = ("/oauth/sign-in", "/admin/second-factor/")
PAGES = "; ".join(  # Only our own scripts run, never what engines, agents and clients sent
    (
        "default-src 'self'",
        # Alpine, which the admin's pages are made with, compiles what stands in their attributes.
        "script-src 'self' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
DOCUMENTS = "default-src 'none'; frame-ancestors 'none'"
WRONG_TOKEN = (401, 429)  # Status codes of its refusal
WEBHOOKS = "/hooks/"  # Each of their deliveries proves its sender


@dataclass(frozen=True, slots=True)
class Bounds:
    head_bytes: int = 64 * 1024  # Request line and headers together
    head_seconds: float = 20  # From the connection, or the request's first byte, to the last header
    body_seconds: float = 30  # For the rest of the body, or for `body_bytes` more of it, while we read
    body_bytes: int = 32 * 1024
    unread_seconds: float = 60  # For the client to read some of an answer


class Phase(Enum):
    NOTHING = auto()
    HEAD = auto()
    BODY = auto()


class BoundedProtocol(AnnouncingProtocol):
    """A connection with time limits; uvicorn itself limits only how long it is idle."""

    bounds: ClassVar[Bounds] = Bounds()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._phase = Phase.NOTHING
        self._answering: RequestResponseCycle | None = None
        self._received = 0
        self._head_bytes = 0
        self._incoming: asyncio.TimerHandle | None = None
        self._outgoing: asyncio.TimerHandle | None = None
        self._await_input()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_awaiting_input()
        self._stop_awaiting_reader()
        self._note_disconnect()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        # Counts too much for a head that follows another request in the same piece.
        self._head_bytes = len(data) + (self._head_bytes if self._phase is Phase.HEAD else 0)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._phase is Phase.HEAD and self._head_bytes > self.bounds.head_bytes:
            self._abort(431, b"Request line and headers are too large.")
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

    def answer_begins(self, cycle: RequestResponseCycle) -> None:
        self._answering = cycle

    @property
    def _is_idle(self) -> bool:
        return self._answering is None or self._answering.response_complete

    def _note_disconnect(self) -> None:
        """Uvicorn informs only the last of several requests; the answered one would fail when writing."""
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
            self._abort(408, b"The request did not arrive in time.")

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

    def _abort(self, status: int, reason: bytes) -> None:
        """Close the connection, with the reason if no response has begun."""
        self._stop_awaiting_input()
        if self._phase is Phase.HEAD and self._is_idle:
            self._write_response(status, reason)
        if self._phase is Phase.BODY and self._answering is self.cycle and not self.cycle.response_started:
            self._write_response(status, reason)
        self._note_disconnect()
        self.transport.close()

    def _write_response(self, status: int, reason: bytes) -> None:
        length = b"content-length: %d\r\n" % len(reason)
        headers = b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\n" + length
        self.transport.write(STATUS_LINE[status] + headers + b"\r\n" + reason)


def configure_server(application: Any, **options: Any) -> uvicorn.Config:
    """Returns the configuration of every web process. `options` are uvicorn's."""
    usual: dict[str, Any] = {
        "http": BoundedProtocol,
        "ws": "none",
        "lifespan": "on",
        "log_config": None,
        # Requests are not logged; otherwise an entry would be made for each and dropped.
        "access_log": False,
        "proxy_headers": False,
        "server_header": False,
        "timeout_keep_alive": KEEP_ALIVE_SECONDS,
    }
    return uvicorn.Config(application, **usual | options)


class Server(uvicorn.Server):
    """Answers waiting calls before it ends, instead of aborting them. Ends also if a thread never does, such
    as one that waits for a database that hangs."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Models need Django's applications, which the servers of tests that use this module do not have.
        from executions.wakeups import waits

        waits.end(within=max(0.0, (self.config.timeout_graceful_shutdown or 0) - ANSWER_SECONDS))
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        grace = self.config.timeout_graceful_shutdown or 0
        end_by_force = threading.Timer(grace + FORCE_SECONDS, _end_by_force, [grace])
        end_by_force.daemon = True
        end_by_force.start()
        super().handle_exit(sig, frame)


def _end_by_force(grace: int) -> None:
    logger.error(
        "The process did not end within the {} s that it was given, so it is killed: a thread still waits, "
        "perhaps for the database. Executions in progress are recorded, and go on elsewhere.",
        grace,
    )
    signal.raise_signal(signal.SIGKILL)


def serve(*, host: str, port: int, graceful_seconds: int) -> None:
    # As many connections as the limit on open files allows besides everything else.
    wanted = MAX_CONNECTIONS + OTHER_FILES
    soft, hard = (
        wanted if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    allowed = min(wanted, hard)
    if soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    config = configure_server(
        APPLICATION,
        host=host,
        port=port,
        timeout_graceful_shutdown=graceful_seconds,
        limit_concurrency=max(allowed - OTHER_FILES, MIN_CONNECTIONS),
    )
    # It would end every stream at the signal, those of waiting calls too, which then have no answer.
    AppStatus.enable_automatic_graceful_drain = False
    Server(config).run()


class _NoPlace(Exception):
    """All places for requests that use the database are taken."""


class _Place:
    """Requests take turns by arrival. The limiter belongs to the event loop, `release` and `reacquire` to the
    request's thread."""

    def __init__(self, places: CapacityLimiter) -> None:
        self._places, self._is_taken = places, False

    async def take(self) -> None:
        await self._places.acquire_on_behalf_of(self)
        self._is_taken = True

    def leave(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self._places.release_on_behalf_of(self)

    def release(self) -> None:
        from_thread.run_sync(self.leave)

    def reacquire(self) -> None:
        from_thread.run(self.take)


class _UnknownCaller(Exception):
    """A large body from an unauthenticated caller."""


class ThreadHandler(ASGIHandler):
    """Runs a request's synchronous views and middleware in one thread. Django's handler starts a thread with
    a database connection per request and switches there and back for every middleware;
    docs/decisions/0003-web-server.md has the figures. A view runs to its end even if the client has
    disconnected; a stream does not."""

    def __init__(self, *, largest_body: int, is_known: Known, doorkeeper: Doorkeeper) -> None:
        BaseHandler.__init__(self)
        self._largest_body, self._is_known, self._doorkeeper = largest_body, is_known, doorkeeper
        self.load_middleware(is_async=False)
        self._threads, self._places = CapacityLimiter(THREADS), CapacityLimiter(REQUESTS_AT_ONCE)

    async def __call__(self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        try:
            async with self._doorkeeper.turn(scope):
                await self._answer(scope, receive, send)
        except Throttled as crowd:
            words = "Too many people are signing in at the moment. Try again later."
            await self.send_response(_problem(429, words, retry_after=crowd.seconds), send)
        except _NoPlace:
            metrics.database_refusals.labels("busy").inc()
            logger.bind(recurring="busy").warning(
                "Refused {} {}: {} requests use the database, and this one waited {:.0f} s for its turn. If "
                "that lasts, run more web processes",
                *(scope["method"], scope["path"], REQUESTS_AT_ONCE, PLACE_SECONDS),
            )
            words = (
                f"Busy: this process answers {REQUESTS_AT_ONCE} requests at a time, and others are before "
                f"this one. Nothing was done; try again in {BUSY_SECONDS} s."
            )
            await self.send_response(_problem(503, words, retry_after=BUSY_SECONDS), send)

    async def _answer(self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        try:
            body = await self._read_body(scope, receive)
        except RequestAborted:
            return
        except RequestDataTooBig:
            await self.send_response(_problem(413, "The request body is too large."), send)
            return
        with body:
            try:
                response = await self._in_thread(self._respond, scope, body)
            except CancelledError:
                # The process ends without waiting longer; it cannot stop the thread.
                response = _problem(
                    503,
                    "This server is shutting down. Executions in progress are recorded. Send "
                    "the request again.",
                    retry_after=5,
                )
            if response.status_code in WRONG_TOKEN and (
                scope["path"].startswith(WEBHOOKS)
                or any(name == b"authorization" for name, _ in scope["headers"])
            ):
                await self._doorkeeper.delay(scope)
            if not isinstance(response, StreamingHttpResponse):
                await self.send_response(response, send)
                return
            try:
                parts = cast(Iterator[bytes], response.streaming_content)
                response.streaming_content = self._read_in_threads(parts, receive)
                await self.send_response(response, send)
            finally:
                await self._in_thread(response.close)

    async def _in_thread(
        self, work: Callable[..., Result], *args: Any, seconds: float | None = PLACE_SECONDS
    ) -> Result:
        """Runs `work` once it has a place to use the database. Raises _NoPlace after `seconds`."""
        mine = _Place(self._places)
        try:
            with fail_after(seconds):
                await mine.take()
        except TimeoutError:
            raise _NoPlace from None
        held = place.set(mine)
        try:
            return await to_thread.run_sync(work, *args, limiter=self._threads)
        finally:
            place.reset(held)
            mine.leave()

    async def _read_body(self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]]) -> Any:
        """Large bodies are on disk. Raises RequestAborted or RequestDataTooBig. The body of an
        unauthenticated caller is discarded, so that the request is refused."""
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._largest_body:
            raise RequestDataTooBig
        body = SpooledTemporaryFile(max_size=BYTES_IN_MEMORY)  # noqa: SIM115 - the caller closes it
        try:
            async for part in self._receive_parts(scope, receive):
                body.write(part)
                if body.tell() > self._largest_body:
                    raise RequestDataTooBig
        except _UnknownCaller:
            body.truncate(0)
        except BaseException:
            body.close()
            raise
        body.seek(0)
        return body

    async def _receive_parts(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]]
    ) -> AsyncIterator[bytes]:
        """Raises RequestAborted, and _UnknownCaller for the first part beyond the memory limit."""
        taken, known, more = 0, False, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RequestAborted
            part, more = message.get("body", b""), message.get("more_body", False)
            taken += len(part)
            if taken > BYTES_IN_MEMORY and not known:
                known = await self._is_known(scope)
                if not known:
                    raise _UnknownCaller
            yield part

    def _respond(self, scope: dict[str, Any], body: Any) -> HttpResponseBase:
        """Leaves the thread's database connection free."""
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=self.__class__, scope=scope)
        request, problem = self.create_request(scope, body)
        response: Any = problem if request is None else self.get_response(request)
        note_handler(response, self.__class__)
        if isinstance(response, FileResponse):
            response.block_size = self.chunk_size
        if not response.streaming:
            response.close()
        return response  # type: ignore[no-any-return]

    async def _read_in_threads(
        self, parts: Iterator[bytes], receive: Callable[[], Awaitable[Any]]
    ) -> AsyncIterator[bytes]:
        """Ends when the client disconnects: the server drops what is sent to it without an error."""
        gone = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            while not gone.done():
                part = await self._in_thread(_next_part, parts, seconds=None)
                if part is None:
                    return
                yield part
        finally:
            gone.cancel()


def _next_part(parts: Iterator[bytes]) -> bytes | None:
    """A slow reader keeps no connection, and the next part may be read in another thread."""
    try:
        return next(parts, None)
    finally:
        release_connection()


async def _wait_for_disconnect(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _problem(status: int, words: str, *, retry_after: int | None = None) -> HttpResponse:
    """Answers in REST's format, because most large bodies are for REST."""
    from catalogue.rest.base import problem_body

    headers = None if retry_after is None else {"Retry-After": str(retry_after)}
    return JsonResponse(problem_body(status, words), status=status, headers=headers)


class SecurityHeaders:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self._get_response(request)
        # Django's own error pages have scripts in them.
        if settings.DEBUG and response.status_code >= 400:
            return response
        is_page = response.get("Content-Type", "").startswith("text/html")
        policy = PAGES if is_page else DOCUMENTS
        if getattr(response, "form_leads_anywhere", False):  # `form-action` applies to redirects as well
            policy = policy.replace("form-action 'self'; ", "")
        response.setdefault("Content-Security-Policy", policy)
        # Web clients open the sign-in in a pop-up window, and lose sight of it once a response is isolated.
        leads_to = request.GET.get("next", "") if request.path_info in BEFORE_IT else request.path
        if "Location" in response or (is_page and leads_to.partition("?")[0].endswith(AUTHORIZE)):
            response["Cross-Origin-Opener-Policy"] = "unsafe-none"
        # Files have a header of their own.
        response.setdefault("Cache-Control", "no-store")
        return response


class OriginMiddleware:
    """Records for the audit where a request comes from."""

    def __init__(self, answer: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._answer = answer

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        noted = origin.set(Origin(address_of(request), request.headers.get("User-Agent", "")))
        try:
            return self._answer(request)
        finally:
            origin.reset(noted)


class WithoutValues(SafeExceptionReporterFilter):
    """Debug pages without the values of variables and forms, which may be credentials."""

    def is_active(self, request: HttpRequest | None) -> bool:
        return True

    def get_post_parameters(self, request: HttpRequest | None) -> dict[str, Any]:
        return {} if request is None else dict.fromkeys(request.POST, self.cleansed_substitute)

    def get_traceback_frame_variables(self, request: Any, tb_frame: Any) -> Any:
        return [(name, self.cleansed_substitute) for name in tb_frame.f_locals]
