"""One whole exchange with an HTTP API: what is sent, and every answer as it came."""

import contextlib
import gzip
import logging
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from loguru import logger

from connectors.errors import InvalidAnswer, Misconfigured, OutcomeUnknown, Unreachable
from connectors.network.client import Credentials, EngineClient
from connectors.network.transport import HttpLimits
from connectors.testing import everything_told_by
from tests.connectors.scripted import ScriptedEngine, replies, response, sends, stays_silent_after

KEY = "hunter2/hunter2"
# Of an answer alone: connecting may take a busy machine longer than that.
IMPATIENT = HttpLimits(read_seconds=0.2)
CREDENTIALS = Credentials(headers={"Authorization": f"Bearer {KEY}"}, query=[("api key", KEY)])


@contextlib.asynccontextmanager
async def client_of(engine: ScriptedEngine, path: str = "", **settings: Any) -> AsyncIterator[EngineClient]:
    """Within the server's own `async with`."""
    async with contextlib.aclosing(EngineClient(base_url=engine.base_url + path, **settings)) as client:
        yield client


# --- answers ---


@pytest.mark.parametrize("status", [200, 204, 302, 401, 404, 409, 429, 500, 503])
async def test_every_status_is_an_answer(status):
    """C5.2, C5.4: status, headers, body and time, whatever the API thinks of the request."""
    body = b"" if status == 204 else b'{"so": "it is"}'
    engine = ScriptedEngine(replies(status, body, location="/x", x_request="7"))
    async with engine, client_of(engine) as client:
        answer = await client.exchange("POST", "/orders", content=b"{}", repeatable=False)
    assert (answer.status, answer.body) == (status, body)
    assert answer.headers["x-request"] == "7"
    assert 0 < answer.seconds < 30
    assert answer.place == f"{engine.base_url}/orders"
    assert len(engine.received) == 1
    assert answer.not_followed == ""


@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize(("size", "fits"), [(100_000, True), (100_001, False)])
async def test_a_body_is_read_whole_up_to_the_limit(status, size, fits):
    """C5.4, B8: also that of an error, which engines' own calls cut off earlier."""
    limits = HttpLimits(max_response_bytes=100_000)
    async with (
        ScriptedEngine(replies(status, b"x" * size)) as engine,
        client_of(engine, limits=limits) as client,
    ):
        if fits:
            assert len((await client.exchange("GET", "/", repeatable=True)).body) == size
        else:
            with pytest.raises(InvalidAnswer, match="larger than 100,000 bytes"):
                await client.exchange("GET", "/", repeatable=True)
            with pytest.raises(OutcomeUnknown, match="larger than 100,000 bytes"):
                await client.exchange("POST", "/", repeatable=False)


async def test_headers_without_end_are_not_read_on():
    """B8, C5.3: an API cannot fill our memory with what comes before the body."""
    endless = b"HTTP/1.1 200 OK\r\n" + b"x-more: " + b"x" * 300_000
    async with ScriptedEngine(stays_silent_after(endless)) as engine, client_of(engine) as client:
        with pytest.raises(Unreachable, match="broke before the response was complete"):
            await client.exchange("GET", "/", repeatable=True)


ORDERS = b'{"orders": ["' + b"x" * 50_000 + b'"]}'


async def test_an_answer_that_is_compressed_though_nobody_asked_for_it_is_read(subtests):
    """B8: some APIs always do so."""
    packed = {"gzip": gzip.compress, "x-gzip": gzip.compress, "Deflate": zlib.compress}
    for encoding, pack in packed.items():
        with subtests.test(encoding):
            for status, body in ((200, ORDERS), (422, ORDERS), (204, b"")):
                answer = replies(status, body and pack(body), content_encoding=encoding)
                async with ScriptedEngine(answer) as engine, client_of(engine) as client:
                    assert (await client.exchange("GET", "/", repeatable=True)).body == body
                    assert (await client.exchange("HEAD", "/", repeatable=True)).body == b""
                assert engine.received[0].headers["accept-encoding"] == "identity"


async def test_few_bytes_do_not_become_more_than_an_answer_may_have(subtests):
    """B8: however often an engine packs them."""
    bomb = gzip.compress(bytes(50_000_000))
    cases = {
        "gzip": (bomb, "larger than 100,000 bytes"),
        "gzip, gzip": (gzip.compress(bomb), r"compressed \(gzip, gzip\) and cannot be unpacked"),
        "br": (b"x", r"compressed \(br\) and cannot be unpacked"),
        "deflate": (b"not at all", r"compressed \(deflate\) and cannot be unpacked"),
        "x-gzip": (gzip.compress(ORDERS)[:-9], r"compressed \(x-gzip\) and cannot be unpacked"),
    }
    limits = HttpLimits(max_response_bytes=100_000)
    for encoding, (body, words) in cases.items():
        with subtests.test(encoding):
            async with (
                ScriptedEngine(replies(200, body, content_encoding=encoding)) as engine,
                client_of(engine, limits=limits) as client,
            ):
                with pytest.raises(InvalidAnswer, match=words):
                    await client.exchange("GET", "/", repeatable=True)


@pytest.mark.parametrize("arrived", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"])
async def test_an_answer_that_does_not_come_is_an_error_that_says_what_may_have_happened(arrived):
    """C5.3: after a safe request nothing has, after another it may have."""
    async with (
        ScriptedEngine(stays_silent_after(arrived, seconds=1.0)) as engine,
        client_of(engine, limits=IMPATIENT) as client,
    ):
        with pytest.raises(Unreachable, match=r"GET /orders: no response within 0\.2 s"):
            await client.exchange("GET", "/orders", repeatable=True)
        with pytest.raises(OutcomeUnknown, match=r"POST /orders: no response within 0\.2 s"):
            await client.exchange("POST", "/orders", repeatable=False)


async def test_a_request_that_found_nobody_did_not_happen():
    """C5.3: whatever its method."""
    async with ScriptedEngine(replies(200, {})) as engine:
        pass
    async with client_of(engine) as client:
        with pytest.raises(Unreachable, match="connection refused"):
            await client.exchange("POST", "/", repeatable=False)


# --- what is sent ---


async def test_a_request_arrives_as_it_was_given_with_credentials_added():
    """C5.1: path, query in order, headers and body, and the keys that nobody has seen."""
    async with ScriptedEngine(replies(200, {})) as engine, client_of(engine, "/v1") as client:
        await client.exchange(
            "PUT",
            "/orders/a%2Fb?fixed=1",
            query=[("tag", "x y"), ("tag", "ä&b=c"), ("empty", "")],
            content=b"\x00raw",
            headers={"Content-Type": "text/plain", "X-Tenant": "7"},
            credentials=CREDENTIALS,
            repeatable=True,
        )
        await client.exchange("HEAD", "", repeatable=True)
    put, head = engine.received
    assert (put.method, put.body) == ("PUT", b"\x00raw")
    assert put.target == (
        "/v1/orders/a%2Fb?fixed=1&tag=x%20y&tag=%C3%A4%26b%3Dc&empty=&api%20key=hunter2%2Fhunter2"
    )
    assert put.headers["authorization"] == f"Bearer {KEY}"
    assert (put.headers["content-type"], put.headers["x-tenant"]) == ("text/plain", "7")
    assert (head.method, head.target) == ("HEAD", "/v1")
    assert not {"authorization", "cookie", "referer", "content-length"} & set(head.headers)


async def test_nobody_else_chooses_what_stands_for_credentials():
    """C5.1, E6: an argument of the same name is replaced, in headers and in any spelling in the query."""
    async with ScriptedEngine(replies(200, {})) as engine, client_of(engine) as client:
        await client.exchange(
            "GET",
            "/?api+key=mine&a=1",
            query=[("api key", "mine"), ("b", "2")],
            headers={"AUTHORIZATION": "Bearer mine"},
            credentials=CREDENTIALS,
            repeatable=True,
        )
    request = engine.received[0]
    assert request.target == "/?a=1&b=2&api%20key=hunter2%2Fhunter2"
    assert request.headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("headers", "complaint"),
    [
        ({"Host": "evil.example.com"}, "The header host cannot be set"),
        ({"Content-Length": "0"}, "The header content-length cannot be set"),
        ({"Transfer-Encoding": "chunked"}, "The header transfer-encoding cannot be set"),
        ({"Accept-Encoding": "gzip"}, "The header accept-encoding cannot be set"),
        ({"Proxy-Authorization": "hunter2"}, "The header proxy-authorization cannot be set"),
        ({"x y": "hunter2"}, "'x y' is not a valid header name"),
        ({"x\r\nhost": "hunter2"}, "is not a valid header name"),
        ({"": "hunter2"}, "'' is not a valid header name"),
        ({"x-note": "hunter2\r\nhost: evil"}, "The header x-note has characters"),
    ],
)
async def test_headers_that_would_change_what_the_request_is_are_refused(headers, complaint):
    """C4.5, E6: nothing is sent, and no value is quoted."""
    async with ScriptedEngine(replies(200, {})) as engine, client_of(engine) as client:
        with pytest.raises(Misconfigured, match=complaint) as caught:
            await client.exchange("GET", "/", headers=headers, repeatable=True)
        assert engine.connections == 0
    assert "hunter2" not in everything_told_by(caught.value)


@pytest.mark.parametrize(
    "target",
    ["http://127.0.0.1:1/x", "https://{host}/x", "//evil.example.com/x@", "http://a@{host}/x", "x", "?x=1"],
)
async def test_only_the_configured_origin_is_asked(target):
    """C5.1: a URL of another origin, or none, is refused before anything is sent."""
    async with ScriptedEngine(replies(200, {})) as engine, client_of(engine) as client:
        url = target.format(host=engine.base_url.removeprefix("http://"))
        if url.startswith("//"):
            await client.exchange("GET", url, credentials=CREDENTIALS, repeatable=True)
            assert engine.received[0].headers["host"] == f"127.0.0.1:{engine.port}"
        else:
            with pytest.raises(Misconfigured, match="is not on http"):
                await client.exchange("GET", url, credentials=CREDENTIALS, repeatable=True)
            assert engine.connections == 0


# --- credentials stay hidden ---


@pytest.mark.parametrize(
    "behave",
    [
        sends(response(200, "x" * 99)),
        stays_silent_after(seconds=1.0),
        replies(200, b"x", content_encoding="br"),
    ],
)
async def test_no_error_answer_log_or_repr_shows_credentials(behave, caplog):
    """C9, E6: neither those in headers nor those in the query, although nobody named them as secrets."""
    caplog.set_level(logging.DEBUG)
    told: list[str] = []
    sink = logger.add(told.append, level=0, diagnose=False)
    limits = HttpLimits(max_response_bytes=50, read_seconds=0.2, total_seconds=0.2)
    async with ScriptedEngine(behave) as engine, client_of(engine, limits=limits) as client:
        with pytest.raises((InvalidAnswer, Unreachable)) as caught:
            await client.exchange("GET", "/", credentials=CREDENTIALS, repeatable=True)
        told += [everything_told_by(caught.value), repr(client), repr(CREDENTIALS)]
        engine.behave = replies(200, {})
        answer = await client.exchange("GET", "/", credentials=CREDENTIALS, repeatable=True)
        told += [repr(answer), answer.place]
    logger.remove(sink)
    told += [record.getMessage() for record in caplog.records]
    assert any("GET /" in line for line in told)
    assert not [line for line in told if "hunter2" in line]


async def test_the_client_masks_what_an_api_repeats():
    """C9, E6: whoever shows an answer has a redactor that knows the credentials, also a bare token."""
    async with (
        ScriptedEngine(replies(401, {"error": f"{KEY} has expired"})) as engine,
        client_of(engine) as client,
    ):
        answer = await client.exchange("GET", "/", credentials=CREDENTIALS, repeatable=True)
        assert client.redactor.text(answer.content.decode()) == '{"error": "*** has expired"}'
