"""What a connection may do to a web process, byte by byte: slow, half, endless and unread."""

import asyncio
import itertools
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from loguru import logger
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from config.web_server import BoundedProtocol, Bounds
from tests import plain_http
from tests.mcp_bridge.serving import serving

PATIENCE_SECONDS = 20.0
BIG_ANSWER = b"x" * 600_000
HEAD = b"POST /echo HTTP/1.1\r\nHost: test\r\n"


class ImpatientProtocol(BoundedProtocol):
    """So that nobody has to wait for it; the tests send nothing, or all at once."""

    bounds = Bounds(head_seconds=0.3, body_seconds=0.3, unread_seconds=0.3)


class Application:
    """Reads whole bodies, gives big answers, and counts both."""

    def __init__(self) -> None:
        self.read, self.answered = 0, 0

    async def echo(self, request: Request) -> Response:
        try:
            body = await request.body()
        except ClientDisconnect:
            return Response()  # To nobody.
        self.read += 1
        return PlainTextResponse(str(len(body)))

    async def big(self, request: Request) -> Response:
        self.answered += 1
        return Response(BIG_ANSWER)

    async def late(self, request: Request) -> Response:
        await asyncio.sleep(0.4)  # Longer than the bounds, which are on clients and not on us.
        return PlainTextResponse("late")

    def routes(self) -> list[Route]:
        return [
            Route("/echo", self.echo, methods=["POST"]),
            Route("/big", self.big),
            Route("/late", self.late, methods=["GET", "POST"]),
        ]


class Connection:
    """A client that sends what the test says, when it says so."""

    def __init__(self, address: tuple[str, int], *, receive_buffer: int = 0) -> None:
        self._socket = socket.socket()
        if receive_buffer:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(PATIENCE_SECONDS)
        self._socket.connect(address)

    def send(self, *parts: bytes) -> None:
        for part in parts:
            self._socket.sendall(part)

    def stop_sending(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def answer(self, enough: Callable[[bytes], bool] = lambda _: False) -> bytes:
        """All that comes until the server closes the connection, or until it is enough."""
        received = b""
        while not enough(received) and (piece := self._socket.recv(65536)):
            received += piece
        return received

    def is_refused_while_sending(self, parts: Iterable[bytes], *, pause: float = 0) -> bool:
        deadline = time.monotonic() + PATIENCE_SECONDS
        try:
            for part in itertools.takewhile(lambda _: time.monotonic() < deadline, parts):
                self.send(part)
                time.sleep(pause)
        except (BrokenPipeError, ConnectionResetError):
            return True
        return False

    def was_cut(self) -> bool:
        """Without reading what is there: whether the server gave the connection up."""
        poll = select.poll()
        poll.register(self._socket, select.POLLHUP | select.POLLERR)
        return bool(poll.poll(PATIENCE_SECONDS * 1000))

    def close(self) -> None:
        self._socket.close()


class Web:
    """A web process as its clients see it."""

    def __init__(self, base_url: str, application: Application) -> None:
        self.base_url, self.application = base_url, application
        self._open: list[Connection] = []

    def connect(self, **options: Any) -> Connection:
        parts = urlsplit(self.base_url)
        self._open.append(Connection((str(parts.hostname), int(parts.port or 0)), **options))
        return self._open[-1]

    def serves(self) -> bool:
        return plain_http.post(f"{self.base_url}/echo", content=b"123", timeout=20).text == "3"

    def begin_anew(self) -> None:
        while self._open:
            self._open.pop().close()
        self.application.read = self.application.answered = 0


@contextmanager
def running(protocol: type[BoundedProtocol]) -> Iterator[Web]:
    application = Application()
    with serving(Starlette(routes=application.routes()), http=protocol) as base_url:
        yield Web(base_url, application)


@pytest.fixture(scope="module")
def shared_web() -> Iterator[Web]:
    with running(BoundedProtocol) as started:
        yield started


@pytest.fixture(scope="module")
def shared_impatient_web() -> Iterator[Web]:
    with running(ImpatientProtocol) as started:
        yield started


@pytest.fixture
def web(shared_web: Web) -> Iterator[Web]:
    yield shared_web
    shared_web.begin_anew()


@pytest.fixture
def impatient_web(shared_impatient_web: Web) -> Iterator[Web]:
    yield shared_impatient_web
    shared_impatient_web.begin_anew()


@pytest.fixture(autouse=True)
def _nothing_logged_as_an_error() -> Iterator[None]:
    logged: list[str] = []
    sink = logger.add(lambda line: logged.append(str(line)), level="ERROR")
    yield
    logger.remove(sink)
    assert not logged, logged[0]


HALVES = {
    "a request line": b"POST /ec",
    "headers": HEAD + b"Content-Length: 3\r\nX-More: ",
    "a body of a length": HEAD + b"Content-Length: 10\r\n\r\nabc",
    "no body of a length": HEAD + b"Content-Length: 10\r\n\r\n",
    "a chunked body": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
    "chunks without their end": HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n",
    "a body that it announced": HEAD + b"Expect: 100-continue\r\nContent-Length: 10\r\n\r\n",
    "a second request": HEAD + b"Content-Length: 0\r\n\r\n" + HEAD,
}


def test_a_request_of_which_only_half_comes_is_refused_in_time(impatient_web, subtests):
    connections = {half: impatient_web.connect() for half in HALVES}
    for half, connection in connections.items():
        connection.send(HALVES[half])
    for half, connection in connections.items():
        with subtests.test(half):
            answer = connection.answer()
            assert answer.count(b"HTTP/1.1 408 ") == 1
            assert answer.endswith(b"The request did not arrive in time.")
    assert impatient_web.serves()
    # The first one of "a second request" as well
    assert impatient_web.application.read == 2


def test_a_connection_on_which_nothing_is_asked_is_closed(impatient_web):
    silent, blank = impatient_web.connect(), impatient_web.connect()
    blank.send(b"\r\n\r\n")
    assert (silent.answer(), blank.answer()) == (b"", b"")


def test_line_breaks_between_requests_do_not_keep_a_connection_open(impatient_web):
    connection = impatient_web.connect()
    connection.send(HEAD + b"Content-Length: 1\r\n\r\na")
    connection.answer(enough=lambda received: received.endswith(b"\r\n\r\n1"))
    connection.send(b"\r\n")
    assert connection.answer() == b""


def test_a_client_that_trickles_is_as_late_as_one_that_stops(impatient_web):
    connection = impatient_web.connect()
    connection.send(HEAD)
    assert connection.is_refused_while_sending(itertools.repeat(b"X-Header: value\r\n"), pause=0.01)
    assert impatient_web.serves()


def test_a_large_body_may_take_longer_as_long_as_it_comes(impatient_web):
    connection = impatient_web.connect()
    connection.send(HEAD + b"Content-Length: 262144\r\n\r\n")
    for _ in range(4):
        connection.send(b"x" * 65536)
        time.sleep(0.1)
    assert b"HTTP/1.1 200 OK" in connection.answer(enough=lambda received: received.endswith(b"262144"))


def test_an_answer_that_takes_long_is_not_cut_off(impatient_web):
    assert plain_http.get(f"{impatient_web.base_url}/late", timeout=20).text == "late"


def test_a_request_that_waits_behind_a_slow_one_is_not_late(impatient_web):
    connection = impatient_web.connect()
    slow = b"GET /late HTTP/1.1\r\nHost: test\r\n\r\n"
    connection.send(slow, slow)
    answers = connection.answer(enough=lambda received: received.count(b"late") == 2)
    assert answers.count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.parametrize(
    "flood", [b"GET /" + b"a" * 8192, HEAD + b"X: " + b"a" * 8192, HEAD + b"X-Many: headers\r\n" * 512]
)
def test_a_head_without_end_is_refused_before_it_fills_the_memory(web, flood):
    connection = web.connect()
    connection.send(flood)
    more = b"X-Many: headers\r\n" * 512 if flood.endswith(b"\r\n") else b"a" * 8192
    assert connection.is_refused_while_sending(itertools.repeat(more, 5_000))
    assert web.serves()


def test_a_head_that_is_too_large_is_told_so(web):
    connection = web.connect()
    connection.send(HEAD + b"X: " + b"a" * 66_000)
    assert connection.answer().startswith(b"HTTP/1.1 431 ")


def test_requests_may_follow_each_other_without_waiting_for_answers(web):
    connection = web.connect()
    connection.send(*[HEAD + b"Content-Length: 1\r\n\r\na"] * 20)
    answers = connection.answer(enough=lambda received: received.count(b"\r\n\r\n1") == 20)
    assert answers.count(b"HTTP/1.1 200 OK") == 20


UPGRADES = (  # Of Java's HTTP client for every first request, and of browsers
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
)


@pytest.mark.parametrize("upgrade", UPGRADES, ids=["h2c", "websocket"])
@pytest.mark.parametrize(
    "body", [b"Content-Length: 3\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"]
)
def test_an_offer_of_another_protocol_is_ignored_and_nothing_else_of_the_request(web, upgrade, body, caplog):
    headers, _, content = body.partition(b"\r\n\r\n")
    for pieces in (
        [HEAD + upgrade + body],
        [HEAD + upgrade + headers + b"\r\n\r\n", content],
        [bytes([byte]) for byte in HEAD + upgrade + body],
    ):
        connection = web.connect()
        connection.send(*pieces)
        assert connection.answer(enough=lambda received: received.endswith(b"\r\n\r\n3")), pieces
        connection.send(HEAD + b"Content-Length: 2\r\n\r\nab")
        assert connection.answer(enough=lambda received: received.endswith(b"\r\n\r\n2")), pieces
    assert not caplog.records, "anybody could fill the log"


def test_any_number_of_offers_may_follow_each_other(web):
    connection = web.connect()
    connection.send((HEAD + UPGRADES[0] + b"Content-Length: 1\r\n\r\na") * 400)
    answers = connection.answer(enough=lambda received: received.count(b"\r\n\r\n1") == 400)
    assert answers.count(b"HTTP/1.1 200 OK") == 400


def test_answers_that_nobody_takes_are_not_piled_up(web):
    connection = web.connect(receive_buffer=4096)
    connection.send(b"GET /big HTTP/1.1\r\nHost: test\r\n\r\n" * 200)
    assert all(web.serves() for _ in range(5))
    assert web.application.answered < 20


def test_a_client_that_never_takes_its_answer_is_cut_off(impatient_web):
    connection = impatient_web.connect(receive_buffer=4096)
    connection.send(b"GET /big HTTP/1.1\r\nHost: test\r\n\r\n" * 20)
    assert connection.was_cut()


def test_a_client_that_takes_its_answer_slowly_gets_all_of_it(impatient_web):
    connection = impatient_web.connect(receive_buffer=4096)
    connection.send(b"GET /big HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")

    def pause(received: bytes) -> bool:
        time.sleep(0.003)
        return False

    assert connection.answer(enough=pause).endswith(BIG_ANSWER)


def test_clients_that_hang_up_in_the_middle_trouble_nobody(web):
    for half in HALVES.values():
        connection = web.connect()
        connection.send(half)
        connection.close()
    assert web.serves()


def test_a_client_that_closes_its_sending_side_has_gone(web):
    """Until an answer is on its way, that looks the same as a client that has hung up."""
    connection = web.connect()
    connection.send(b"GET /late HTTP/1.1\r\nHost: test\r\n\r\n")
    connection.stop_sending()
    assert connection.answer() == b""
    assert web.serves()


def test_a_client_that_hangs_up_before_several_answers_is_no_fault_of_ours(web):
    """Uvicorn alone would log a traceback: it does not tell the one that is being answered."""
    connection = web.connect(receive_buffer=4096)
    connection.send(b"GET /big HTTP/1.1\r\nHost: test\r\n\r\n" * 20)
    connection.answer(enough=lambda received: len(received) > 10_000)
    connection.close()
    assert all(web.serves() for _ in range(3))


def test_idle_connections_keep_nobody_from_being_served(web):
    for half in [b"", *HALVES.values()] * 23:
        web.connect().send(half)
    with ThreadPoolExecutor(8) as callers:
        assert all(callers.map(lambda _: web.serves(), range(24)))
