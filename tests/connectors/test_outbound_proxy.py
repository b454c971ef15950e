"""Requests that leave the company through its proxy."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from connectors.errors import Misconfigured, OutcomeUnknown, Rejected, Unreachable
from connectors.network.client import EngineClient
from connectors.network.policy import OutboundProxy, http_tool_addresses
from connectors.testing import Sample, everything_told_by, free_port, start, until_ended
from tests.connectors.outbound_proxy import Proxy, proxied, running_proxy
from tests.connectors.resolving import names
from tests.connectors.scripted import ScriptedEngine, replies, sends_and_hangs_up
from tests.engines.temporal.definitions import connector_to, workflow_ref
from tests.engines.temporal.tls import Authority

ENGINE = "engine.beyond.example"
"""A name that is known to the proxy alone."""
SECRET = "proxy-secret-0123456789"


@asynccontextmanager
async def client(base_url: str, **settings: Any) -> AsyncIterator[EngineClient]:
    made = EngineClient(base_url=base_url, **settings)
    try:
        yield made
    finally:
        await made.aclose()


@asynccontextmanager
async def beyond(engine: ScriptedEngine, **settings: Any) -> AsyncIterator[tuple[Proxy, EngineClient]]:
    """A client of an engine that only the proxy reaches, with a password that a URL has to escape."""
    async with running_proxy({ENGINE: engine.port}, login="catalogue:p@ss/wörd") as proxy:
        scheme = "https" if engine.tls else "http"
        with proxied(f"http://catalogue:p%40ss%2Fw%C3%B6rd@127.0.0.1:{proxy.port}"):
            async with client(f"{scheme}://{ENGINE}", **settings) as made:
                yield proxy, made


async def test_an_engine_that_only_the_proxy_can_reach_is_used():
    """B4, E6: by plain HTTP with the whole address; the proxy gets its password, and the engine does not."""
    async with ScriptedEngine(replies(200, ["a"])) as engine, beyond(engine) as (proxy, made):
        for _ in range(2):
            assert await made.request_json("POST", "/list", body={"n": 1}) == ["a"]
        assert proxy.asked == [f"POST http://{ENGINE}/list"] * 2
    assert [(one.headers["host"], one.json) for one in engine.received] == [(ENGINE, {"n": 1})] * 2
    assert not [name for one in engine.received for name in one.headers if name.startswith("proxy-")]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_tls_is_between_us_and_the_engine_and_the_proxy_sees_only_its_name(tmp_path, new_loop):
    """E6: the certificate is verified for the engine's name, and the proxy gets no path and no credential."""
    authority = Authority(tmp_path)
    issued = authority.issue("engine", host=ENGINE)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(issued.certificate, issued.key)

    async def ask() -> None:
        async with ScriptedEngine(replies(200, []), tls=tls) as engine:
            async with beyond(engine, ca_file=str(authority.ca)) as (proxy, made):
                for _ in range(2):
                    assert await made.request_json("GET", "/list") == []
                assert proxy.asked == [f"CONNECT {ENGINE}:443"]
            assert [one.target for one in engine.received] == ["/list"] * 2
            async with beyond(engine) as (_, made):
                with pytest.raises(Unreachable, match="certificate verify failed"):
                    await made.request_json("GET", "/list")

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(ask())


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_that_refuses_the_password_is_told_apart_without_quoting_it(scheme):
    """A5.5, E6: the words say whose answer it was, and nothing has started."""
    async with running_proxy({}, login="other:password") as proxy:
        with proxied(f"http://catalogue:{SECRET}@127.0.0.1:{proxy.port}"):
            async with client(f"{scheme}://{ENGINE}") as made:
                with pytest.raises((Unreachable, Rejected)) as refused:
                    await made.request_json("POST", "/start", repeatable=False)
    assert "407 Proxy Authentication Required" in str(refused.value)
    if scheme == "https":
        assert f"the proxy of CATALOGUE_OUTBOUND_PROXY, 127.0.0.1:{proxy.port}, answered" in str(
            refused.value
        )
    assert SECRET not in everything_told_by(refused.value)


async def test_a_proxy_that_is_not_there_is_named():
    """A5.5: the engine is not to blame."""
    port = free_port()
    with proxied(f"http://127.0.0.1:{port}"):
        async with client(f"https://{ENGINE}") as made:
            with pytest.raises(Unreachable, match=f"OUTBOUND_PROXY, 127.0.0.1:{port}, cannot be reached"):
                await made.request_json("POST", "/start", repeatable=False)


async def test_a_start_whose_answer_the_proxy_lost_may_have_happened():
    """A5.4: it was sent once, and nobody repeats it."""
    async with ScriptedEngine(sends_and_hangs_up()) as engine, beyond(engine) as (_, made):
        with pytest.raises(OutcomeUnknown):
            await made.request_json("POST", "/start", repeatable=False)
    assert len(engine.received) == 1


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "localhost", "127.0.0.1.", "127.1.", "2130706433.", "localhost."]
)
async def test_this_machine_is_reached_without_the_proxy(host):
    """B4: an engine beside us needs no entry in CATALOGUE_NO_PROXY."""
    async with ScriptedEngine(replies(200, [])) as engine, running_proxy({}) as proxy:
        with proxied(proxy.url):
            async with client(f"http://{host}:{engine.port}") as made:
                assert await made.request_json("GET", "/list") == []
    assert proxy.asked == []


async def test_hosts_of_no_proxy_are_reached_directly(monkeypatch):
    """B4: by name, with all names below a domain."""
    names(monkeypatch, **{"jobs.corp.example": [["127.0.0.1"]]})
    async with ScriptedEngine(replies(200, [])) as engine, running_proxy({}) as proxy:
        with proxied(proxy.url, but="*.corp.example"):
            async with client(f"http://jobs.corp.example:{engine.port}") as made:
                assert await made.request_json("GET", "/list") == []
    assert proxy.asked == []


@pytest.mark.parametrize(
    ("host", "port", "is_carried"),
    [
        ("api.example.com", 443, True),
        ("corp.example", 443, True),
        ("jobs.corp.example", 443, False),
        ("JOBS.corp.example", 443, False),
        ("billing.internal", 8080, False),
        ("billing.internal", 443, True),
        ("10.2.3.4", 80, False),
        ("11.2.3.4", 80, True),
        ("::1", 80, False),
        ("2001:db8::1", 80, True),
    ],
)
def test_what_the_proxy_carries(host, port, is_carried):
    """B4: everything but this machine and CATALOGUE_NO_PROXY."""
    proxy = OutboundProxy.parse("http://proxy:3128", "*.corp.example, billing.internal:8080, 10.0.0.0/8")
    assert proxy is not None
    assert proxy.carries(host, port) is is_carried


@pytest.mark.parametrize("address", ["10.0.0.7", "127.0.0.1", "169.254.169.254"])
async def test_the_proxy_is_no_way_around_the_address_policy(address, monkeypatch):
    """E6: HTTP tools reach public addresses only, as far as this machine knows a name's address."""
    names(monkeypatch, **{"inside.example": [[address]]})
    async with running_proxy({"inside.example": 1}) as proxy:
        with proxied(proxy.url):
            async with client("http://inside.example:8080", policy=http_tool_addresses()) as made:
                with pytest.raises(Misconfigured, match="not contacted"):
                    await made.request_json("GET", "/list")
    assert proxy.asked == []


@pytest.mark.engines
async def test_temporal_is_reached_through_the_proxy(temporal_server):
    """B4: the SDK tunnels its connection, under a name that this machine does not know."""
    login = "catalogue:secret"
    async with running_proxy({ENGINE: temporal_server.port}, login=login) as proxy:
        with proxied(f"http://{login}@127.0.0.1:{proxy.port}"):
            async with connector_to(f"{ENGINE}:{temporal_server.port}") as connector:
                _, run = await start(connector, Sample(workflow_ref("Echo"), {"hello": "you"}))
                assert (await until_ended(connector, run)).output == {"hello": "you"}
    assert set(proxy.asked) == {f"CONNECT {ENGINE}:{temporal_server.port}"}
