"""Django's part of a web process: one thread for a request, files without a warning."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from django.contrib.staticfiles import finders
from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from pytest_django import Settings

from catalogue.database import REQUESTS_AT_ONCE, without_connection
from config.web_server import BYTES_IN_MEMORY, ThreadHandler
from identity.doorkeeper import Doorkeeper
from telemetry import metrics
from tests import plain_http
from tests.mcp_bridge.serving import serving

TOGETHER = 12
MAX_BODY_BYTES = 2_000_000
KNOWN = {"authorization": "Bearer good"}
STYLES = "unfold/css/styles.css"
meeting = threading.Barrier(TOGETHER, timeout=20)
arrived, released = threading.Event(), threading.Event()
ended, given_up = threading.Event(), threading.Event()


def meet(request: HttpRequest) -> HttpResponse:
    """Answers once so many others are here as well."""
    meeting.wait()
    return HttpResponse("All are here.")


def where(request: HttpRequest) -> HttpResponse:
    connection.ensure_connection()
    return JsonResponse({"thread": threading.get_ident(), "connection": id(connection.connection)})


@csrf_exempt
def count(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(len(request.body)))


def broken(request: HttpRequest) -> StreamingHttpResponse:
    def parts() -> Iterator[bytes]:
        yield b"The first half, "
        raise OSError("The disk is gone.")

    return StreamingHttpResponse(parts())


def endless(request: HttpRequest) -> StreamingHttpResponse:
    def parts() -> Iterator[bytes]:
        try:
            while not given_up.is_set():
                yield b"x" * 1_000
        finally:
            ended.set()

    return StreamingHttpResponse(parts())


def hold(request: HttpRequest) -> HttpResponse:
    arrived.set()
    released.wait(20)
    return HttpResponse("To nobody.")


def wait_for_a_run(request: HttpRequest) -> HttpResponse:
    with without_connection():
        meeting.wait()
    return HttpResponse("It has ended.")


async def knows_somebody(scope: dict[str, Any]) -> bool:
    return (b"authorization", b"Bearer good") in scope["headers"]


urlpatterns = [
    path(view.__name__, view) for view in (meet, where, count, broken, endless, hold, wait_for_a_run)
]


@pytest.fixture
def base_url(settings: Settings) -> Iterator[str]:
    settings.ROOT_URLCONF = __name__
    with serving(
        ThreadHandler(largest_body=MAX_BODY_BYTES, is_known=knows_somebody, doorkeeper=Doorkeeper()),
        lifespan="off",
    ) as url:
        yield url


def get(url: str) -> httpx2.Response:
    return plain_http.get(url, timeout=20)


def get_until(ask: Callable[[], httpx2.Response], status: int) -> httpx2.Response:
    """The first answer with this status: all others must have begun by then."""
    while (answer := ask()).status_code != status:
        pass
    return answer


def test_static_files_arrive_whole(base_url):
    """Where Django read them by itself, it would warn of it, and warnings are errors here."""
    file = finders.find(STYLES)
    assert isinstance(file, str)
    answer = get(f"{base_url}/static/{STYLES}")
    with open(file, "rb") as wanted:
        assert answer.content == wanted.read()
    assert answer.headers["content-type"].startswith("text/css")


def test_requests_that_wait_do_not_wait_for_each_other(base_url):
    with ThreadPoolExecutor(TOGETHER) as clients:
        answers = list(clients.map(get, [f"{base_url}/meet"] * TOGETHER))
    assert {answer.text for answer in answers} == {"All are here."}


@pytest.mark.django_db(transaction=True)
@pytest.mark.databases("config.web_server")
def test_the_next_request_finds_a_thread_and_its_connection(base_url):
    """On PostgreSQL the connection comes from a pool, on SQLite it is the thread's."""
    first, second = get(f"{base_url}/where").json(), get(f"{base_url}/where").json()
    assert second["thread"] == first["thread"]
    if connection.vendor == "sqlite":
        assert second["connection"] == first["connection"]


def test_a_body_of_several_messages_reaches_the_view(base_url):
    answer = plain_http.post(f"{base_url}/count", content=b"x" * 1_000_000, headers=KNOWN, timeout=20)
    assert answer.text == "1000000"


def test_a_query_that_is_no_text_is_refused(base_url):
    address = urlsplit(base_url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as client:
        client.sendall(b"GET /count?\xff HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 400 ")


def test_an_answer_that_breaks_off_is_not_taken_for_a_whole_one(base_url):
    with pytest.raises(httpx2.RemoteProtocolError):
        get(f"{base_url}/broken")


def test_a_stream_ends_when_its_client_disconnects(base_url):
    """Otherwise a download that was broken off reads a million rows for nobody."""
    address = urlsplit(base_url)
    try:
        with socket.create_connection((address.hostname, address.port), timeout=20) as client:
            client.sendall(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert ended.wait(20)
    finally:
        given_up.set()


@pytest.mark.parametrize("told_before", [True, False])
def test_a_body_that_is_too_large_is_refused(base_url, told_before):
    content = b"x" * (MAX_BODY_BYTES + 1)
    body = content if told_before else iter([content])
    answer = plain_http.post(f"{base_url}/count", content=body, headers=KNOWN, timeout=20)
    told = {"detail": "The request body is too large.", "kind": "validation"}
    assert (answer.status_code, answer.json()) == (413, told)


def test_of_an_unknown_caller_no_large_body_is_taken(base_url):
    """E6: the answer comes before the body has; nothing of it was put on disk."""
    address = urlsplit(base_url)
    length = MAX_BODY_BYTES - 1
    with socket.create_connection((address.hostname, address.port), timeout=20) as client:
        head = f"POST /count HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
        client.sendall(head.encode() + b"x" * (BYTES_IN_MEMORY + 1))
        answer = client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"\r\n\r\n0")


def test_who_waits_while_the_process_ends_is_told_to_ask_again(settings):
    settings.ROOT_URLCONF = __name__
    handler = ThreadHandler(largest_body=MAX_BODY_BYTES, is_known=knows_somebody, doorkeeper=Doorkeeper())
    with ThreadPoolExecutor(1) as clients:
        with serving(handler, lifespan="off", timeout_graceful_shutdown=0.1) as url:
            arrived.clear()
            released.clear()
            asked = clients.submit(get, f"{url}/hold")
            assert arrived.wait(20)
        answer = asked.result(20)
        released.set()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "Executions in progress are recorded" in answer.text


def test_a_request_that_gets_no_turn_at_the_database_is_refused_soon_and_counted(base_url, monkeypatch):
    monkeypatch.setattr("config.web_server.PLACE_SECONDS", 0.2)
    counter = partial(
        metrics.registry.get_sample_value, "catalogue_database_refusals_total", {"cause": "busy"}
    )
    before = counter() or 0
    released.clear()
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as callers:
        holding = [callers.submit(get, f"{base_url}/hold") for _ in range(REQUESTS_AT_ONCE)]
        try:
            answer = get_until(lambda: get(f"{base_url}/count"), 503)
        finally:
            released.set()
        assert {one.result().status_code for one in holding} == {200}
    assert answer.headers["retry-after"] == "2"
    assert answer.json()["detail"].startswith("Busy: ")
    assert (counter() or 0) > before
    assert get(f"{base_url}/count").status_code == 200


def test_a_request_that_waits_for_a_run_leaves_its_turn_to_others(base_url, monkeypatch):
    monkeypatch.setattr("config.web_server.REQUESTS_AT_ONCE", 1)
    monkeypatch.setattr("config.web_server.PLACE_SECONDS", 20)
    handler = ThreadHandler(largest_body=MAX_BODY_BYTES, is_known=knows_somebody, doorkeeper=Doorkeeper())
    with serving(handler, lifespan="off") as url, ThreadPoolExecutor(TOGETHER) as callers:
        answers = [callers.submit(get, f"{url}/wait_for_a_run") for _ in range(TOGETHER)]
        assert {one.result().text for one in answers} == {"It has ended."}
