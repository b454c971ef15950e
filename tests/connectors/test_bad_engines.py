"""Every way in which an engine can misbehave on the wire, and what each call makes of it."""

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from uuid import uuid4

import pytest

from connectors.errors import (
    ConnectorError,
    InvalidAnswer,
    Misconfigured,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unreachable,
)
from connectors.protocol import RunRef, WorkflowRef
from connectors.simplified import SimplifiedConfig, SimplifiedConnector
from connectors.testing import closing, everything_told_by, free_port
from tests.connectors.scripted import (
    Behaviour,
    Received,
    ScriptedEngine,
    repeats,
    replies,
    response,
    sends,
    sends_and_hangs_up,
    stays_silent_after,
)

KEY = "s3cret/key+with=signs-42"
PATIENT, IMPATIENT = 10.0, 0.5
"""Seconds: where an engine never answers, they pass at once."""
RUN = RunRef(workflow=WorkflowRef(id="2724", name="report"), run_id="8f496b6a", key=uuid4())
MEGABYTE = b"x" * 1_000_000
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
CHUNKED = JSON_HEAD + b"transfer-encoding: chunked\r\n\r\n"
ENDLESS = JSON_HEAD + b'connection: close\r\n\r\n["'


@dataclass(frozen=True)
class Case:
    """What the engine does, and which errors it makes of a read and of a start."""

    name: str
    behave: Behaviour
    read: type[ConnectorError]
    start: type[ConnectorError]
    words: str
    """Part of every error's message."""
    timeout_seconds: float = PATIENT


NO_ANSWER = (Unreachable, OutcomeUnknown)
BAD_ANSWER = (InvalidAnswer, OutcomeUnknown)
HTML = "<html><head><title>Sign in</title></head><body>Please log in</body></html>"


def made_late(make: Callable[[], Behaviour]) -> Behaviour:
    """For megabytes that the worker needs which sends them, and not each that collects the tests."""
    made = cache(make)

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        await made()(request, writer)

    return behave


def zip_bomb() -> Behaviour:
    content = zlib.compress(b"[" + b" " * 5_000_000 + b"]")
    return replies(200, content, content_encoding="deflate, deflate")


CASES = [
    Case("silence", stays_silent_after(seconds=IMPATIENT), *NO_ANSWER, f"within {IMPATIENT:g} s", IMPATIENT),
    Case(
        "half the headers",
        stays_silent_after(b"HTTP/1.1 200 OK\r\ncontent-", seconds=IMPATIENT),
        *NO_ANSWER,
        f"within {IMPATIENT:g} s",
        IMPATIENT,
    ),
    Case(
        "headers only",
        stays_silent_after(CHUNKED, seconds=IMPATIENT),
        *NO_ANSWER,
        f"within {IMPATIENT:g} s",
        IMPATIENT,
    ),
    Case(
        "a trickling body",
        repeats(CHUNKED, b"1\r\n \r\n", every_seconds=0.01, seconds=IMPATIENT / 5),
        *NO_ANSWER,
        f"within {IMPATIENT:g} s",
        IMPATIENT,
    ),
    Case(
        "trickling headers",
        repeats(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n", every_seconds=0.01, seconds=IMPATIENT / 5),
        *NO_ANSWER,
        f"within {IMPATIENT:g} s",
        IMPATIENT,
    ),
    Case("hanging up at once", sends_and_hangs_up(), *NO_ANSWER, "connection broke"),
    Case(
        "hanging up in the body",
        sends_and_hangs_up(JSON_HEAD + b'content-length: 900\r\n\r\n{"workflows": ['),
        *NO_ANSWER,
        "connection broke",
    ),
    Case("no HTTP", sends_and_hangs_up(b"SSH-2.0-OpenSSH_9.9\r\n\r\n"), *NO_ANSWER, "connection broke"),
    Case(
        "endless headers",
        repeats(b"HTTP/1.1 200 OK\r\na: ", MEGABYTE, every_seconds=0),
        *NO_ANSWER,
        "connection broke",
    ),
    Case("401", replies(401, {"error": "key expired"}), Rejected, Rejected, "credentials.*key expired"),
    Case("403", replies(403, {"message": "not you"}), Rejected, Rejected, "credentials.*not you"),
    Case(
        "400", replies(400, {"detail": [{"msg": "no year"}]}), Rejected, Rejected, "400 Bad Request: no year"
    ),
    Case("409", replies(409, {"error": {"message": "taken"}}), Rejected, Rejected, "409 Conflict: taken"),
    Case("404", replies(404, {"detail": "no such thing"}), NotFound, NotFound, "no such thing"),
    Case("410", replies(410), NotFound, NotFound, "410 Gone"),
    Case("429", replies(429, {"error": "slow down"}, retry_after="7"), Unreachable, Unreachable, "slow down"),
    Case("503 with a time", replies(503, "busy", retry_after="7"), Unreachable, Unreachable, "busy"),
    Case("503", replies(503, "<h1>busy</h1>"), *NO_ANSWER, "503 Service Unavailable: busy"),
    Case("500", replies(500, {"error": "database gone"}), *NO_ANSWER, "database gone"),
    Case("504 of a gateway", replies(504, HTML, content_type="text/html"), *NO_ANSWER, "Please log in"),
    Case("408 of a gateway", replies(408), *NO_ANSWER, "408 Request Timeout"),
    Case(
        "an endless 500",
        repeats(ENDLESS.replace(b"200", b"500"), MEGABYTE, every_seconds=0),
        *NO_ANSWER,
        "500",
    ),
    Case(
        "301",
        replies(301, location="https://new.example/x?token=t0ken"),
        Misconfigured,
        Misconfigured,
        "new.ex",
    ),
    Case("302 to a login", replies(302, location="/login?next=%2F"), *BAD_ANSWER, "points to /login"),
    Case(
        "HTML", replies(200, HTML, content_type="text/html; charset=utf-8"), *BAD_ANSWER, "text/html: Sign in"
    ),
    Case("no JSON at all", replies(200, "OK", content_type="text/plain"), *BAD_ANSWER, "got text/plain: OK"),
    Case("nothing", replies(200), *BAD_ANSWER, "expected JSON.*empty"),
    Case("204", sends(b"HTTP/1.1 204 No Content\r\n\r\n"), *BAD_ANSWER, "expected JSON.*empty"),
    Case("truncated JSON", replies(200, '{"workflows": [{"id"'), *BAD_ANSWER, "expected JSON.*column"),
    Case("NaN", replies(200, "[NaN]"), *BAD_ANSWER, "NaN"),
    Case("deep JSON", replies(200, "[" * 10_000 + "]" * 10_000), *BAD_ANSWER, "(100|250) levels"),
    Case(
        "50 MB of JSON",
        made_late(lambda: replies(200, b'["' + MEGABYTE * 50 + b'"]')),
        *BAD_ANSWER,
        "1,000,000 bytes",
    ),
    Case("endless JSON", repeats(ENDLESS, MEGABYTE, every_seconds=0), *BAD_ANSWER, "1,000,000 bytes"),
    Case("a zip bomb", made_late(zip_bomb), *BAD_ANSWER, "compressed"),
    Case("a text", replies(200, '"hello"'), *BAD_ANSWER, "a string"),
    Case("null", replies(200, "null"), *BAD_ANSWER, "null"),
    Case("a number", replies(200, "42"), *BAD_ANSWER, "a number"),
    Case(
        "an error that says 200",
        replies(200, {"oops": "no", "code": 1}),
        *BAD_ANSWER,
        "(oops, code|status is null)",
    ),
    Case(
        "wrong types",
        replies(200, {"workflow_id": ["a"], "status": 5, "workflows": "many"}),
        *BAD_ANSWER,
        "(a number|workflow_id, status, workflows)",
    ),
]


def connector_at(base_url: str, **changes: Any) -> SimplifiedConnector:
    settings = {
        "base_url": base_url,
        "api_key": KEY,
        "request_timeout_seconds": PATIENT,
        "max_response_bytes": 1_000_000,
    }
    return SimplifiedConnector(SimplifiedConfig.model_validate(settings | changes))


@asynccontextmanager
async def connected(
    engine: ScriptedEngine, timeout_seconds: float = PATIENT
) -> AsyncIterator[SimplifiedConnector]:
    connector = connector_at(engine.base_url, request_timeout_seconds=timeout_seconds)
    try:
        yield connector
    finally:
        await connector.aclose()


async def discover(connector: SimplifiedConnector) -> object:
    return [item async for item in connector.discover()]


async def start(connector: SimplifiedConnector) -> object:
    return await connector.start(RUN.workflow, {"year": 2024}, key=RUN.key)


async def poll(connector: SimplifiedConnector) -> object:
    return await connector.poll(RUN)


Call = Callable[[SimplifiedConnector], Awaitable[object]]


async def error_of(call: Call, behave: Behaviour, timeout_seconds: float = PATIENT) -> ConnectorError:
    async with ScriptedEngine(behave) as engine, connected(engine, timeout_seconds) as connector:
        with pytest.raises(ConnectorError) as caught:
            await call(connector)
    return caught.value


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    bad: Case = request.param
    return bad


@pytest.mark.parametrize("call", [discover, poll])
async def test_a_read_from_a_bad_engine_fails_as_the_right_kind_of_error(case, call):
    """A1.4, A5.1, B2: each fault is told apart, in words."""
    error = await error_of(call, case.behave, case.timeout_seconds)
    assert type(error) is case.read, error
    assert_matches(case.words, error.message)


async def test_a_start_at_a_bad_engine_tells_refused_from_unknown(case):
    """A5.2, B1: only what surely did not happen passes for not having happened."""
    error = await error_of(start, case.behave, case.timeout_seconds)
    assert type(error) is case.start, error
    assert_matches(case.words, error.message)


async def test_check_of_a_bad_engine_is_a_message_and_never_an_exception(case):
    """B9, A5.1: an admin reads what is wrong."""
    async with ScriptedEngine(case.behave) as engine, connected(engine, case.timeout_seconds) as connector:
        health = await connector.check()
    assert not health.ok
    assert_matches(case.words, health.message)


def assert_matches(pattern: str, message: str) -> None:
    __tracebackhide__ = True
    assert re.search(pattern, message), message
    assert len(message) < 800
    assert message.isprintable()


async def test_a_refused_connection_is_unreachable_for_every_call():
    """A1.4, B1: nothing was sent, so a start may be repeated."""
    async with closing(connector_at(f"http://127.0.0.1:{free_port()}")) as connector:
        for call in (discover, start, poll):
            with pytest.raises(Unreachable, match=r"Could not connect.*connection refused"):
                await call(connector)


async def test_the_time_to_come_back_is_passed_on():
    """A5.4, B7: an engine that is busy says when to try again."""
    error = await error_of(poll, replies(429, {"error": "slow down"}, retry_after="7"))
    assert isinstance(error, Unreachable)
    assert error.retry_after == 7


@pytest.mark.parametrize("status", [200, 302, 400, 401, 403, 404, 429, 500])
@pytest.mark.parametrize("call", [discover, start, poll])
async def test_an_engine_that_echoes_our_key_does_not_leak_it(status, call):
    """E6, A5.1: the key is masked in whatever spelling it comes back."""
    escaped = KEY.replace("/", "\\/")
    body = f'{{"error": "bad header Api-Key {KEY}", "status": "{escaped}", "{KEY}": 1}}'
    error = await error_of(call, replies(status, body, location=f"/login/{KEY}"))
    assert KEY not in everything_told_by(error)
    assert "key+with" not in everything_told_by(error)


async def test_a_redirect_is_not_followed():
    """E6: the key goes to the configured address only."""
    async with ScriptedEngine(replies(200, [])) as elsewhere:
        redirect = replies(307, location=f"{elsewhere.base_url}/api")
        assert isinstance(await error_of(discover, redirect), Misconfigured)
        assert elsewhere.received == []


async def test_a_refusal_counts_even_if_its_body_never_ends():
    """A5.2, B1: a status says enough to know that a start was refused."""
    head = b"HTTP/1.1 401 No\r\ntransfer-encoding: chunked\r\n\r\n7\r\nbad key\r\n"
    assert isinstance(await error_of(start, stays_silent_after(head, seconds=IMPATIENT), IMPATIENT), Rejected)


async def test_a_kept_connection_that_drops_leaves_a_start_unknown():
    """B1: the engine may have read the request before it went away."""
    hang_up = sends_and_hangs_up()

    async def behave(request: Received, writer: Any) -> None:
        if request.method == "POST":
            await hang_up(request, writer)
        else:
            writer.write(response(200, "[]"))

    async with ScriptedEngine(behave) as engine, connected(engine) as connector:
        assert (await connector.check()).ok
        with pytest.raises(OutcomeUnknown):
            await connector.start(RUN.workflow, {}, key=RUN.key)
    assert [request.connection for request in engine.received] == [1, 1]


async def test_a_bad_engine_does_not_spoil_the_next_call():
    """B6: after a failure the same connector works again."""
    broken = True

    async def behave(request: Received, writer: Any) -> None:
        await (stays_silent_after(seconds=IMPATIENT) if broken else replies(200, []))(request, writer)

    async with ScriptedEngine(behave) as engine, connected(engine, IMPATIENT) as connector:
        assert not (await connector.check()).ok
        broken = False
        assert (await connector.check()).ok
