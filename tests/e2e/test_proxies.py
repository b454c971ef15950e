"""nginx and Caddy, as deploy/proxy has them, in front of two web processes."""

import itertools
import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest

from config.environment import Environment
from connectors.testing import free_port
from tests.e2e.product import wait_until
from tests.e2e.proxies import FOLDER, NAMES, Proxy, running_proxy

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

LARGEST = Environment.model_fields["max_request_bytes"].default + 1024 * 1024
PATIENCE_SECONDS = 60.0


class Upstream(ThreadingHTTPServer):
    """Answers, or closes each connection once it has the whole request."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.breaks = False
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.connections: set[object] = set()
        self.goes_on = threading.Event()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Upstream

    def answer(self) -> None:
        length = int(self.headers.get("content-length", 0))
        if len(self.rfile.read(length)) < length:
            self.close_connection = True
            return
        is_probe = self.path == "/health/live"
        if not is_probe:
            self.server.requests.append((self.command, self.path, dict(self.headers)))
            self.server.connections.add(self.client_address)
        if self.server.breaks and not is_probe:
            self.close_connection = True
            return
        self.send_response(200)
        if self.path == "/events":
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b"data: first\n\n")
            assert self.server.goes_on.wait(PATIENCE_SECONDS)
            self.wfile.write(b"data: second\n\n")
            self.close_connection = True
            return
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    do_GET = do_POST = do_PATCH = answer  # noqa: N815 - the base class's names

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def upstreams() -> Iterator[tuple[Upstream, Upstream]]:
    with Upstream() as first, Upstream() as second:
        for one in (first, second):
            threading.Thread(target=one.serve_forever, args=(0.02,), daemon=True).start()
        yield first, second
        for one in (first, second):
            one.shutdown()


@pytest.fixture(params=NAMES)
def proxy(
    request: pytest.FixtureRequest, tmp_path: Path, upstreams: tuple[Upstream, Upstream]
) -> Iterator[Proxy]:
    first, second = upstreams
    with running_proxy(request.param, tmp_path / request.param, (first.url, second.url)) as running:
        yield running


@contextmanager
def client_of(proxy: Proxy) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=proxy.url, verify=proxy.trust, trust_env=False, timeout=30) as client:
        yield client


def test_a_request_that_a_process_may_have_carried_out_is_repeated_only_if_it_changes_nothing(
    proxy, upstreams
):
    """O2: one of two processes ends each connection without an answer."""
    upstreams[0].breaks = True
    with client_of(proxy) as client:
        for method, number in itertools.product(("POST", "PATCH"), range(6)):
            assert client.request(method, f"/{method}/{number}", content=b"{}").status_code in (200, 502)
        assert [client.get(f"/GET/{number}").status_code for number in range(6)] == [200] * 6
    counts = Counter(path for one in upstreams for _, path, _ in one.requests)
    assert {path: count for path, count in counts.items() if count > 1 and "GET" not in path} == {}
    assert any(path.startswith("/POST") for _, path, _ in upstreams[0].requests)


@pytest.mark.parametrize("name", NAMES)
def test_a_request_that_no_process_got_is_sent_to_the_other(name, tmp_path, upstreams):
    """O2: Caddy cannot send a body again, and knows which processes are there."""
    urls = f"http://127.0.0.1:{free_port()}", upstreams[0].url
    with running_proxy(name, tmp_path / name, urls) as proxy, client_of(proxy) as client:
        assert [client.get(f"/{n}").status_code for n in range(8)] == [200] * 8
        if name == "caddy":
            wait_until(lambda: "health" in proxy.log, PATIENCE_SECONDS)
        assert [client.post(f"/{n}", content=b"{}").status_code for n in range(8)] == [200] * 8
    assert len(upstreams[0].requests) == 16


@pytest.mark.parametrize("name", NAMES)
def test_processes_are_used_at_once_after_none_could_be_reached(name, tmp_path):
    """O2: nginx answered "no live upstreams" for ten seconds. Caddy lets requests wait."""
    first, second = free_port(), free_port()
    urls = f"http://127.0.0.1:{first}", f"http://127.0.0.1:{second}"
    with (
        running_proxy(name, tmp_path / name, urls) as proxy,
        client_of(proxy) as client,
        ThreadPoolExecutor() as pool,
    ):
        if name == "nginx":
            assert {client.get("/").status_code for _ in range(6)} == {502}
        waiting = [pool.submit(client.get, "/") for _ in range(2) if name == "caddy"]
        with Upstream(first) as server:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            assert {client.get("/").status_code for _ in range(6)} == {200}
            assert all(one.result(PATIENCE_SECONDS).status_code == 200 for one in waiting)
            server.shutdown()
        assert "no live upstreams" not in proxy.log


def test_the_product_learns_who_asked_for_what(proxy, upstreams):
    """O2: cookies, HSTS, limits of guesses and the audit depend on it."""
    sent = {"x-forwarded-proto": "http", "x-forwarded-for": "192.0.2.1"}
    with client_of(proxy) as client:
        client.get("/", headers=sent)
    ((_, _, headers),) = [request for one in upstreams for request in one.requests]
    told = {name.lower(): value for name, value in headers.items()}
    assert told["x-forwarded-proto"] == "https"
    assert f"https://{told['host']}" == proxy.url
    assert told["x-forwarded-for"].rpartition(",")[2].strip() == "127.0.0.1"


def test_connections_to_the_processes_are_used_again(proxy, upstreams):
    with client_of(proxy) as client:
        for number in range(20):
            client.post(f"/{number}", content=b"{}")
    assert sum(len(one.connections) for one in upstreams) <= 4


def test_a_body_may_be_as_large_as_the_product_takes_by_default(proxy, upstreams):
    with client_of(proxy) as client:
        assert client.post("/", content=b"x" * LARGEST).status_code == 200
        # Caddy 2.6 calls it an error of the process.
        assert client.post("/", content=b"x" * (LARGEST + 1)).status_code in (413, 502)
    assert sum(len(one.requests) for one in upstreams) == 1, "nothing is sent on without its end"


def test_an_event_arrives_before_the_next_is_sent(proxy, upstreams):
    with client_of(proxy) as client, client.stream("GET", "/events") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "data: first"
        for one in upstreams:
            one.goes_on.set()
        assert "data: second" in list(lines)


def test_nginx_waits_longer_than_any_call():
    (seconds,) = re.findall(r"proxy_read_timeout (\d+)s;", (FOLDER / "nginx.conf").read_text())
    (longest,) = [
        bound.le for bound in Environment.model_fields["inline_wait"].metadata if hasattr(bound, "le")
    ]
    assert int(seconds) > longest
