"""nginx and Caddy, as deploy/proxy has them, in front of two web processes."""

import asyncio
import itertools
import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest

from config.environment import Environment
from connectors.testing import free_port
from dev.chaos.deployment import Deployment, deployed
from dev.chaos.doors import Answer, ConnectionBroke, NothingSent, attempt
from dev.chaos.plan import BEAT, CALLERS, KEYED, WEBS, WORKERS, Call, Door, Persistence
from dev.chaos.records import Records
from dev.chaos.stacks import choose_name, own_stack
from tests.e2e.product import wait_until
from tests.e2e.proxies import FOLDER, NAMES, Proxy, running_proxy
from tests.processes import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

LARGEST = Environment.model_fields["max_request_bytes"].default + 1024 * 1024
CLIENTS = 4
"""Of each proxy."""
REPEAT_SECONDS = 0.3
PAUSE_SECONDS = 0.05
PATIENCE_SECONDS = 60.0
STOP_SECONDS = 60.0


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
    proxy: Proxy, upstreams: tuple[Upstream, Upstream]
) -> None:
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
def test_a_request_that_no_process_got_is_sent_to_the_other(
    name: str, tmp_path: Path, upstreams: tuple[Upstream, Upstream]
) -> None:
    """O2: Caddy cannot send a body again, and knows which processes are there."""
    urls = f"http://127.0.0.1:{free_port()}", upstreams[0].url
    with running_proxy(name, tmp_path / name, urls) as proxy, client_of(proxy) as client:
        assert [client.get(f"/{n}").status_code for n in range(8)] == [200] * 8
        if name == "caddy":
            wait_until(lambda: "health" in proxy.log, PATIENCE_SECONDS)
        assert [client.post(f"/{n}", content=b"{}").status_code for n in range(8)] == [200] * 8
    assert len(upstreams[0].requests) == 16


@pytest.mark.parametrize("name", NAMES)
def test_processes_are_used_at_once_after_none_could_be_reached(name: str, tmp_path: Path) -> None:
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


def test_the_product_learns_who_asked_for_what(proxy: Proxy, upstreams: tuple[Upstream, Upstream]) -> None:
    """O2: cookies, HSTS, limits of guesses and the audit depend on it."""
    sent = {"x-forwarded-proto": "http", "x-forwarded-for": "192.0.2.1"}
    with client_of(proxy) as client:
        client.get("/", headers=sent)
    ((_, _, headers),) = [request for one in upstreams for request in one.requests]
    told = {name.lower(): value for name, value in headers.items()}
    assert told["x-forwarded-proto"] == "https"
    assert f"https://{told['host']}" == proxy.url
    assert told["x-forwarded-for"].rpartition(",")[2].strip() == "127.0.0.1"


def test_connections_to_the_processes_are_used_again(
    proxy: Proxy, upstreams: tuple[Upstream, Upstream]
) -> None:
    with client_of(proxy) as client:
        for number in range(20):
            client.post(f"/{number}", content=b"{}")
    assert sum(len(one.connections) for one in upstreams) <= 4


def test_a_body_may_be_as_large_as_the_product_takes_by_default(
    proxy: Proxy, upstreams: tuple[Upstream, Upstream]
) -> None:
    with client_of(proxy) as client:
        assert client.post("/", content=b"x" * LARGEST).status_code == 200
        # Caddy 2.6 calls it an error of the process.
        assert client.post("/", content=b"x" * (LARGEST + 1)).status_code in (413, 502)
    assert sum(len(one.requests) for one in upstreams) == 1, "nothing is sent on without its end"


def test_an_event_arrives_before_the_next_is_sent(proxy: Proxy, upstreams: tuple[Upstream, Upstream]) -> None:
    with client_of(proxy) as client, client.stream("GET", "/events") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "data: first"
        for one in upstreams:
            one.goes_on.set()
        assert "data: second" in list(lines)


def test_nginx_waits_longer_than_any_call() -> None:
    (seconds,) = re.findall(r"proxy_read_timeout (\d+)s;", (FOLDER / "nginx.conf").read_text())
    (longest,) = [
        bound.le for bound in Environment.model_fields["inline_wait"].metadata if hasattr(bound, "le")
    ]
    assert int(seconds) > longest


@dataclass
class Load:
    """Clients of one proxy, which call and read until it is over, and repeat what has no answer."""

    proxy: Proxy
    deployment: Deployment
    name: str
    marks: list[str] = field(default_factory=list)
    """Of calls with an idempotency key, each of which had an answer in the end."""
    single: list[str] = field(default_factory=list)
    """Of calls without one, which nobody repeats unless nothing was sent."""
    answers: dict[str, Answer] = field(default_factory=dict)
    reads: int = 0
    repeated: Counter[str] = field(default_factory=Counter)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as together:
            for number in range(CLIENTS):
                together.create_task(self._call(f"{self.name}-{number}", is_keyed=number > 0))
            together.create_task(self._read())

    def _client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(verify=self.proxy.trust, trust_env=False, timeout=PATIENCE_SECONDS)

    async def _call(self, name: str, *, is_keyed: bool) -> None:
        tool, token = self.deployment.tools[KEYED]["countdown"], self.deployment.tokens[CALLERS[0]]
        async with self._client() as client:
            for number in itertools.count():
                if self.over.is_set():
                    return
                call = make_call(f"{name}-{number}.", is_keyed=is_keyed)
                (self.marks if is_keyed else self.single).append(call.mark)
                while True:
                    try:
                        answer = await attempt(client, self.proxy.url, token, tool, call, hangs_up=False)
                        self.answers[call.mark] = answer
                    except (ConnectionBroke, NothingSent) as broken:
                        self.repeated[f"POST: {broken}"] += 1
                        await asyncio.sleep(REPEAT_SECONDS)
                        if is_keyed:
                            continue
                    break
                await asyncio.sleep(PAUSE_SECONDS)

    async def _read(self) -> None:
        """REST, which any client may repeat."""
        headers = {"authorization": f"Bearer {self.deployment.tokens[CALLERS[0]]}"}
        async with self._client() as client:
            while not self.over.is_set():
                try:
                    answer = await client.get(f"{self.proxy.url}/api/workflows/", headers=headers)
                    outcome = "" if answer.status_code == 200 else f"HTTP {answer.status_code}"
                except httpx2.TransportError as error:
                    outcome = type(error).__name__
                self.reads += not outcome
                if outcome:
                    self.repeated[f"GET: {outcome}"] += 1
                await asyncio.sleep(REPEAT_SECONDS if outcome else PAUSE_SECONDS)


def make_call(mark: str, *, is_keyed: bool) -> Call:
    return Call(
        mark=mark,
        at=0.0,
        source=KEYED,
        workflow="countdown",
        arguments={"seconds": 0, "message": mark},
        caller=CALLERS[0],
        door=Door.MCP,
        web=0,
        persistence=Persistence.KEY if is_keyed else Persistence.GIVE_UP,
        repeat_after=REPEAT_SECONDS,
        hangs_up_after=None,
        cancel_after=None,
    )


async def under_load(proxies: list[Proxy], deployment: Deployment, *, together: bool) -> list[Load]:
    """What the clients saw while every process was restarted, one after the other or all at once."""
    loads = [Load(proxy, deployment, f"{proxy.name}-{together}") for proxy in proxies]

    async def restart() -> None:
        try:
            order = (WORKERS[0], WEBS[0], WORKERS[1], WEBS[1], BEAT)
            restarts = [deployment.programs[name].replace(ROOT, seconds=STOP_SECONDS) for name in order]
            await asyncio.sleep(1)
            if together:
                await asyncio.gather(*restarts)
            else:
                for one in restarts:
                    await one
            await asyncio.sleep(1)
        finally:
            for load in loads:
                load.over.set()

    async with asyncio.TaskGroup() as tasks:
        for load in loads:
            tasks.create_task(load.run())
        tasks.create_task(restart())
    return loads


async def test_restarts_of_all_processes_break_nothing_that_clients_do_not_repeat(tmp_path: Path) -> None:
    """O2: under load, one process after the other, and all at the same time."""
    with own_stack(choose_name()) as stack, ExitStack() as proxies:
        async with deployed(stack, tmp_path, engines=(KEYED,), graceful_seconds=5) as deployment:
            first, second = deployment.web_urls
            running = [
                proxies.enter_context(running_proxy(name, tmp_path / name, (first, second))) for name in NAMES
            ]
            rolling = await under_load(running, deployment, together=False)
            at_once = await under_load(running, deployment, together=True)
            records = Records(deployment)
            try:
                await records.wait_until_settled(seconds=PATIENCE_SECONDS)
            finally:
                await records.aclose()
            runs = deployment.engines[KEYED].runs()
    counts = Counter(run["input"]["message"] for run in runs)
    for load in (*rolling, *at_once):
        assert load.reads and load.marks
        assert {mark: load.answers[mark] for mark in load.marks if counts[mark] != 1} == {}
        assert {mark: counts[mark] for mark in load.single if counts[mark] > 1} == {}
        # Every answer is the call's own.
        assert [
            mark
            for mark, answer in load.answers.items()
            if answer.completed and answer.output["message"] != mark
        ] == []
    for load in rolling:
        # Requests that arrive while a process closes its socket; of Caddy, those with a body until it knows.
        most = 2 * CLIENTS if load.proxy.name == "caddy" else 1
        assert load.repeated.total() <= len(WEBS) * most, load.repeated
    for load in at_once:
        # While there is no process, clients repeat; Caddy lets those that read wait.
        waiting = "POST" if load.proxy.name == "caddy" else ""
        told = {reason for reason in load.repeated if not reason.startswith(waiting)}
        assert not told and all(reason.endswith(("502", "503")) for reason in load.repeated), load.repeated
