"""The HTTP client below the connectors: addresses, limits, connections, credentials."""

import asyncio
import base64
import html
import ipaddress
import json
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from connectors.errors import (
    InvalidAnswer,
    Misconfigured,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unreachable,
)
from connectors.network.client import EngineClient
from connectors.network.policy import address_objection, normalise_base_url
from connectors.network.redaction import Redactor, words_of
from connectors.network.transport import HttpLimits, retry_after
from connectors.testing import everything_told_by
from tests.connectors.scripted import (
    Behaviour,
    Received,
    ScriptedEngine,
    replies,
    response,
    sends,
    sends_and_hangs_up,
    stays_silent_after,
)

FAST = HttpLimits(connect_seconds=0.2, read_seconds=0.2, total_seconds=0.2)


def client_of(engine: ScriptedEngine, **settings: Any) -> EngineClient:
    return EngineClient(base_url=engine.base_url, **settings)


@asynccontextmanager
async def connected(
    behave: Behaviour, *, tls: ssl.SSLContext | None = None, **settings: Any
) -> AsyncIterator[tuple[ScriptedEngine, EngineClient]]:
    async with ScriptedEngine(behave, tls=tls) as engine:
        client = client_of(engine, **settings)
        try:
            yield engine, client
        finally:
            await client.aclose()


def resolver(*answers: list[str]) -> tuple[Callable[..., Any], list[str]]:
    """A name service that gives the first answer first and the last one for ever, and the names asked for."""
    asked: list[str] = []

    def getaddrinfo(host: str, port: int, *args: Any, **kwargs: Any) -> list[Any]:
        asked.append(host)
        addresses = answers[min(len(asked), len(answers)) - 1]
        return [(family_of(ip), socket.SOCK_STREAM, 6, "", (ip, port)) for ip in addresses]

    return getaddrinfo, asked


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


# --- addresses ---


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.0.1",
        "fe80::1",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "::ffff:169.254.169.254",
        "2002:a9fe:a9fe::1",
        "64:ff9b::a9fe:a9fe",
        "100.100.100.200",
        "224.0.0.1",
        "ff02::1",
        "255.255.255.255",
        "0.0.0.0",
        "::",
        "::ffff:0.0.0.0",
    ],
)
def test_addresses_where_no_engine_may_live_are_refused(address):
    """B8: cloud credentials and the like cannot be fetched through a source."""
    assert address_objection(address)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "::1", "10.1.2.3", "192.168.0.9", "172.16.0.1", "fd12::1", "93.184.216.34", "engine"],
)
def test_company_networks_are_allowed(address):
    """B10: engines live on private addresses."""
    assert address_objection(address) == ""


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("ftp://engine", "http:// or https://"),
        ("engine.example.com", "http:// or https://"),
        ("http://", "no host"),
        ("https://<your-domain>", "host is not a valid name"),
        ("https://api.<region>.example.com/v1", "host is not a valid name"),
        ("http://user:hunter2@engine", "user name or password"),
        ("http://engine/?key=hunter2", "before any"),
        ("http://engine/#hunter2", "before any"),
        ("http://[::1", "not a valid URL"),
        ("http://engine:99999", "port must be"),
        ("http://169.254.169.254/latest", "link-local"),
        ("http://[fe80::1]", "link-local"),
    ],
)
def test_an_unusable_base_url_is_refused_without_quoting_it(url, complaint):
    """B4: settings are validated with clear errors, and a password in one is not repeated."""
    with pytest.raises(ValueError, match=complaint) as caught:
        normalise_base_url(url)
    assert "hunter2" not in everything_told_by(caught.value)
    with pytest.raises(Misconfigured, match=complaint):
        EngineClient(base_url=url)


def test_a_base_url_loses_its_last_slash_and_keeps_its_prefix():
    """B4: both ways of writing an address mean the same."""
    assert normalise_base_url(" https://engine.example.com/flows/ ") == "https://engine.example.com/flows"


async def test_a_name_that_leads_to_a_forbidden_address_is_not_contacted(monkeypatch):
    """B8: the check is on what the name means when we connect."""
    getaddrinfo, _ = resolver(["169.254.169.254", "fe80::1"])
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    client = EngineClient(base_url="http://engine.example.com")
    with pytest.raises(Misconfigured, match=r"169\.254\.169\.254, a link-local"):
        await client.request_json("GET", "/list")
    await client.aclose()


async def test_what_was_checked_is_what_is_connected_to(monkeypatch):
    """B8: a name that changes its meaning after the check gains nothing."""
    getaddrinfo, asked = resolver(["127.0.0.1"], ["169.254.169.254"])
    async with ScriptedEngine(replies(200, {"fine": True})) as engine:
        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        client = EngineClient(base_url=f"http://engine.example.com:{engine.port}")
        assert await client.request_json("GET", "/list") == {"fine": True}
        await client.aclose()
    assert asked == ["engine.example.com"]
    assert engine.received[0].headers["host"] == f"engine.example.com:{engine.port}"


async def test_forbidden_and_dead_addresses_of_a_name_are_passed_over(monkeypatch):
    """A1.4: an engine with several addresses answers on the one that works."""
    getaddrinfo, _ = resolver(["169.254.169.254", "::1", "127.0.0.1"])
    async with ScriptedEngine(replies(200, [])) as engine:
        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        client = EngineClient(base_url=f"http://engine.example.com:{engine.port}")
        assert await client.request_json("GET", "/list") == []
        await client.aclose()


async def test_an_unknown_name_is_unreachable_in_words(monkeypatch):
    """A1.4, B1: a start to a name that nobody knows did not happen."""

    def getaddrinfo(*args: Any, **kwargs: Any) -> list[Any]:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    client = EngineClient(base_url="http://nowhere.example.com")
    with pytest.raises(Unreachable, match=r"the name nowhere\.example\.com could not be resolved"):
        await client.request_json("POST", "/start", repeatable=False)
    await client.aclose()


# --- connections and limits ---


async def test_proxies_from_the_environment_are_ignored(monkeypatch):
    """E6: a variable does not divert credentials."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with connected(replies(200, [])) as (_, client):
        assert await client.request_json("GET", "/list") == []


async def test_connections_are_reused():
    """E7: polling does not connect anew each time."""
    async with connected(replies(200, [])) as (engine, client):
        for _ in range(3):
            await client.request_json("GET", "/list")
    assert [request.connection for request in engine.received] == [1, 1, 1]


async def test_a_start_that_found_no_free_connection_did_not_happen():
    """B1, B7: waiting in our own pool is not the engine's silence."""
    limits = HttpLimits(connect_seconds=0.1, read_seconds=5, total_seconds=5, max_connections=1)
    async with connected(stays_silent_after(), limits=limits) as (engine, client):
        first = asyncio.create_task(client.request_json("GET", "/status"))
        await engine.asked.wait()
        with pytest.raises(Unreachable, match="all 1 connections to the engine stayed busy"):
            await client.request_json("POST", "/start", body={}, repeatable=False)
        first.cancel()
    assert [request.target for request in engine.received] == ["/status"]


async def test_the_deadline_covers_the_whole_request():
    """A7.2: no engine can hold a caller longer than configured."""
    async with connected(stays_silent_after(), limits=HttpLimits(read_seconds=60, total_seconds=0.1)) as (
        _,
        client,
    ):
        with pytest.raises(OutcomeUnknown, match=r"within 0\.1 s"):
            await client.request_json("POST", "/start", body={}, repeatable=False)


async def test_a_cancelled_caller_gives_its_connection_back():
    """A7.5: resources are freed when a caller goes away."""
    async with connected(stays_silent_after(), limits=HttpLimits(max_connections=1)) as (engine, client):
        call = asyncio.create_task(client.request_json("GET", "/status"))
        await engine.asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        engine.behave = replies(200, [])
        assert await client.request_json("GET", "/status") == []


@pytest.mark.parametrize("is_used", [True, False])
async def test_a_closed_client_sends_nothing_and_opens_nothing(is_used):
    """A7.5: a process that ends closes its connections, whatever still has a request to send."""
    async with connected(replies(200, [])) as (engine, client):
        if is_used:
            await client.request_json("GET", "/list")
        await client.aclose()
        with pytest.raises(Unreachable, match="closed before the request was sent"):
            await client.request_json("POST", "/start", body={}, repeatable=False)
    assert [request.target for request in engine.received] == ["/list"] * is_used


async def test_a_start_that_waits_for_a_connection_when_all_are_closed_did_not_happen():
    """B1, B7."""
    async with connected(stays_silent_after(), limits=HttpLimits(max_connections=1)) as (engine, client):
        first = asyncio.create_task(client.request_json("GET", "/status"))
        await engine.asked.wait()
        second = asyncio.create_task(client.request_json("POST", "/start", body={}, repeatable=False))
        await asyncio.sleep(0)
        await client.aclose()
        with pytest.raises(Unreachable):
            await first
        with pytest.raises(Unreachable, match="closed before the request was sent"):
            await second
    assert [request.target for request in engine.received] == ["/status"]


@pytest.mark.parametrize(("size", "fits"), [(1_000, True), (1_001, False)])
async def test_an_answer_may_have_exactly_the_size_allowed(size, fits):
    """B8: the limit is on bytes, to the byte."""
    async with connected(
        replies(200, b'"' + b"x" * (size - 2) + b'"'), limits=HttpLimits(max_response_bytes=1_000)
    ) as (_, client):
        if fits:
            assert len(await client.request_json("GET", "/list")) == 998
        else:
            with pytest.raises(InvalidAnswer, match="larger than 1,000 bytes"):
                await client.request_json("GET", "/list")


async def test_a_success_need_not_be_json_where_its_content_does_not_matter():
    """A7.5: a cancel counts whatever the engine says to it."""
    async with connected(replies(202, "no JSON", content_type="text/plain")) as (engine, client):
        await client.request("POST", "/cancel")
        engine.behave = replies(409, "no JSON", content_type="text/plain")
        with pytest.raises(Rejected, match="409 Conflict: no JSON"):
            await client.request("POST", "/cancel")


# --- credentials and headers ---


@pytest.mark.parametrize("value", ["line\r\nbreak: hunter2", "hunter2 ", "hunter2\x00", "hünter2"])
def test_a_header_that_http_does_not_allow_is_refused_without_its_value(value):
    """E6, B4: the complaint names the header only."""
    with pytest.raises(Misconfigured, match="The header authorization") as caught:
        EngineClient(base_url="http://engine", headers={"authorization": value})
    assert "nter2" not in everything_told_by(caught.value)


async def test_arguments_that_are_no_json_are_not_sent():
    """A2.5: nothing runs on arguments that cannot be written down."""
    async with connected(replies(200, {})) as (engine, client):
        with pytest.raises(Rejected, match="nothing was sent"):
            await client.request_json("POST", "/start", body={"x": float("nan")}, repeatable=False)
    assert engine.received == []


async def test_queries_stay_out_of_messages():
    """E6: a token in a link is not shown."""
    token = "hunter" * 2
    async with connected(replies(404)) as (_, client):
        with pytest.raises(NotFound, match="GET /list: ") as caught:
            await client.request_json("GET", f"/list?token={token}")
    assert token not in everything_told_by(caught.value)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (302, {"location": f"/{'x' * 185}/hunter2hunter2"}),
        (302, {"location": "/hunter2?hunter2"}),
        (200, {"content_type": "text/hunter2hunter2"}),
    ],
)
async def test_a_secret_in_a_header_is_masked_before_anything_is_cut_off(status, headers):
    """E6: no part of a key is shown either."""
    async with connected(
        replies(status, "no JSON", **headers), secrets=["hunter2hunter2", "hunter2?hunter2"]
    ) as (_, client):
        with pytest.raises(InvalidAnswer) as caught:
            await client.request_json("GET", "/list")
    assert "hunter2" not in f"{caught.value.message} {caught.value.details}"


ODD_KEY = "hunter2/+=\"'<&>\\\\~ é:hunter3"
ESCAPES: dict[str, Callable[[str], str]] = {
    "none": str,
    "a URL's path": quote,
    "a URL's query": quote_plus,
    "a URL in lower-case digits": lambda key: re.sub(
        "%..", lambda code: code[0].lower(), quote(key, safe="")
    ),
    "HTML": html.escape,
    "HTML by numbers": lambda key: key.replace("'", "&#39;").replace("<", "&#x3C;").replace("&>", "&#38;>"),
    "JSON": json.dumps,
    "JSON in JSON": lambda key: json.dumps(json.dumps(key)),
    "Python": repr,
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "base64 for URLs": lambda key: base64.urlsafe_b64encode(key.encode()).decode().rstrip("="),
}


@pytest.mark.parametrize("escape", ESCAPES)
async def test_a_secret_in_a_message_is_masked_whatever_it_is_escaped_for(escape):
    """E6: and whether the message is a text with markup or JSON."""
    echo = ESCAPES[escape](ODD_KEY)
    for body in (f"<h1>Refused</h1>{echo}", json.dumps({"error": echo})):
        async with connected(replies(401, body), secrets=[ODD_KEY]) as (_, client):
            with pytest.raises(Rejected) as caught:
                await client.request_json("GET", "/list")
        assert "***" in caught.value.message
        assert not re.search("hunter|3VudG|aHVu", f"{caught.value.message} {caught.value.details}")


async def test_no_part_of_a_secret_remains_where_a_page_is_cut_off():
    """E6: markup takes most of what is looked at."""
    for markup in range(3_980, 4_000):
        page = f"{'<p>' * 1_320}{' ' * (markup - 3_960)}hunter2hunter2"
        async with connected(replies(401, page), secrets=["hunter2hunter2"]) as (_, client):
            with pytest.raises(Rejected) as caught:
                await client.request_json("GET", "/list")
        assert "hunt" not in caught.value.message


def test_a_secret_of_any_characters_is_looked_for_in_linear_time():
    started = time.perf_counter()
    for char in "\\'&%é\n +😀u0":
        text = "\\" * 30_000 + char * 30_000
        assert Redactor(["\\" * 40 + char * 40 + "x"]).text(text) == text
    assert time.perf_counter() - started < 20


async def test_a_secret_in_a_result_is_masked():
    """E6: an engine that echoes our headers does not hand the key to agents."""
    key = "abc/def+ghi=0123456789"
    echo = {"output": {f"x {key}": [f"Api-Key {key}", 7, None]}, "plain": "abc"}
    async with connected(replies(200, json.dumps(echo).replace("/", "\\/")), secrets=[key]) as (_, client):
        answer = await client.request_json("GET", "/status")
    assert answer == {"output": {"x ***": ["Api-Key ***", 7, None]}, "plain": "abc"}


def test_a_short_secret_is_masked_in_messages_only():
    """E6: a key like "demo" must not change ids and results that contain the word."""
    redactor = Redactor(["demo"])
    assert redactor.text("bad key demo") == "bad key ***"
    assert redactor.answer({"id": "demo-1"}, b'{"id": "demo-1"}') == {"id": "demo-1"}
    assert "demo" not in repr(redactor)


def test_the_client_does_not_show_its_headers():
    """E6: a repr in a traceback is harmless."""
    client = EngineClient(
        base_url="http://engine", headers={"authorization": "Api-Key hunter2"}, secrets=["hunter2"]
    )
    assert repr(client) == "EngineClient(http://engine)"


# --- links ---


async def test_links_are_followed_on_the_same_origin_only():
    """B10, E6: a listing cannot send our key elsewhere."""
    client = EngineClient(base_url="https://engine.example.com/flows")
    follow = client.follow
    assert follow("?page=2", found_at="/list") == "https://engine.example.com/flows/list?page=2"
    assert follow("/flows/list?page=2", found_at="/list") == "https://engine.example.com/flows/list?page=2"
    assert follow("https://engine.example.com:443/x", found_at="/list") == "https://engine.example.com/x"
    for link in (
        "http://engine.example.com/x",
        "https://evil.example.com/x",
        "//evil.example.com/x",
        "https://engine.example.com:8443/x",
        "https://user:pw@engine.example.com/x",
        "https://engine.example.com@evil.example.com/",
        "javascript:alert(1)",
        "https://[::1",
        "/x\x00y",
    ):
        with pytest.raises(InvalidAnswer, match="not on https://engine"):
            follow(link, found_at="/list")
    await client.aclose()


# --- what engines say ---


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": "no"}', "no"),
        (b'{"error": {"code": 7, "message": "no year"}}', "no year"),
        (b'{"detail": [{"loc": ["a"], "msg": "one"}, {"msg": "two"}]}', "one; two"),
        (b'{"error": true, "message": "no"}', "no"),
        (
            b'{"fault": {"code": "E42", "why": "out of paper"}}',
            '{"fault": {"code": "E42", "why": "out of paper"}}',
        ),
        (b"{}", ""),
        (
            b'{"error": {"code": 1, "message": {"year": "is no year", "sort": ["one", "two"]}}}',
            "year: is no year; sort: one; two",
        ),
        (b'{"extra_vars": ["Expected a dictionary."], "code": 7}', "extra_vars: Expected a dictionary."),
        (b'{"code": 7}', ""),
        (b'"just a text"', "just a text"),
        (b"<h1>Bad\n\tGateway</h1><p>nginx</p>", "Bad Gateway nginx"),
        (b"\x1b[31mred\x00", "[31mred"),
        (b"\xff\xfe", "��"),
        (b"", ""),
    ],
)
def test_an_engines_words_are_found_in_any_shape(body, words):
    """A2.4, A5.2: people read what the engine said, without what only a terminal would obey."""
    assert words_of(body, Redactor([])) == words


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7),
        ("0", 0),
        ("99999999999999999999", 3600),
        ("Mon, 01 Jan 2001 00:00:00 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3600),
        ("-5", None),
        ("soon", None),
        ("1e9", None),
        ("", None),
        ("²", None),
    ],
)
def test_the_time_to_come_back_is_bounded_and_never_an_error(header, seconds):
    """A5.4: an engine cannot silence itself for ever, nor break us with nonsense."""
    assert retry_after(httpx2.Headers({"retry-after": header.encode()} if header else {})) == seconds  # type: ignore[dict-item]


def test_the_time_to_come_back_may_be_a_date():
    """A5.4: both forms of the header count."""
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    assert 90 < (retry_after(httpx2.Headers({"retry-after": date})) or 0) <= 100


# --- TLS ---


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PEM file with a key and a certificate for 127.0.0.1 that signed itself."""
    return write_certificate(tmp_path_factory.mktemp("tls"), from_day=-1, to_day=1)


def write_certificate(folder: Path, *, from_day: float, to_day: float) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"engine until day {to_day}")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=from_day))
        .not_valid_after(now + timedelta(days=to_day))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = folder / "engine.pem"
    path.write_bytes(key.private_bytes(*form) + signed.public_bytes(serialization.Encoding.PEM))
    return path


def join(path: Path, *parts: Path) -> Path:
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    return path


@pytest.fixture
def server_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    return context


async def test_an_unknown_authority_is_refused(server_tls):
    """E6: TLS is verified unless an admin says otherwise; nothing was sent."""
    async with connected(replies(200, []), tls=server_tls, limits=FAST) as (engine, client):
        with pytest.raises(Unreachable, match="certificate verify failed"):
            await client.request_json("POST", "/start", repeatable=False)
    assert engine.received == []


async def test_a_companys_own_authority_can_be_trusted(server_tls, certificate):
    """B4: a CA file makes a private engine reachable."""
    async with connected(replies(200, []), tls=server_tls, ca_file=str(certificate)) as (_, client):
        assert await client.request_json("GET", "/list") == []


@pytest.mark.parametrize(
    ("from_day", "to_day", "reason"),
    [
        (-2, -1, "certificate has expired; renew it on that server"),
        # OpenSSL 3.5 goes on after "valid" in words of its own.
        (1, 2, "certificate is not yet valid.*; compare the clocks of both machines"),
    ],
)
async def test_a_certificate_out_of_its_time_is_named_until_it_is_renewed(
    tmp_path, certificate, from_day, to_day, reason
):
    """A5.1: what happened and what to do, and no restart afterwards."""
    outdated = write_certificate(tmp_path, from_day=from_day, to_day=to_day)
    trusted = join(tmp_path / "authorities.pem", outdated, certificate)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(outdated)
    async with connected(replies(200, []), tls=context, ca_file=str(trusted)) as (engine, client):
        with pytest.raises(Unreachable) as refused:
            await client.request_json("GET", "/list")
        refusal = f"Could not connect to 127.0.0.1:{engine.port}: certificate verify failed: {reason}."
        assert re.fullmatch(refusal, refused.value.message)
        context.load_cert_chain(certificate)
        assert await client.request_json("GET", "/list") == []


async def test_an_engine_without_tls_is_said_to_fail_in_tls():
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = EngineClient(base_url=f"https://{place}")
        with pytest.raises(Unreachable) as refused:
            await client.request_json("GET", "/list")
        await client.aclose()
    assert refused.value.message == f"Could not connect to {place}: TLS failed: wrong version number."


async def test_verification_can_be_switched_off(server_tls):
    """B4: for tests only, and only on purpose."""
    async with connected(replies(200, []), tls=server_tls, verify_tls=False) as (_, client):
        assert await client.request_json("GET", "/list") == []


async def test_what_one_client_trusts_another_does_not(server_tls, certificate):
    """E6: clients share the public authorities, and nothing that an admin added for one of them."""
    async with ScriptedEngine(replies(200, []), tls=server_tls) as engine:
        for trusting in (client_of(engine, verify_tls=False), client_of(engine, ca_file=str(certificate))):
            assert await trusting.request_json("GET", "/list") == []
            await trusting.aclose()
        client = client_of(engine, limits=FAST)
        with pytest.raises(Unreachable, match="certificate verify failed"):
            await client.request_json("GET", "/list")
        await client.aclose()


async def test_plain_http_on_a_tls_port_is_an_error_in_words(server_tls):
    """A5.1: a wrong scheme is told, not hung on."""
    async with ScriptedEngine(sends_and_hangs_up(b"x")) as engine:
        client = EngineClient(base_url=f"https://127.0.0.1:{engine.port}", limits=FAST)
        with pytest.raises(Unreachable, match="Could not connect"):
            await client.request_json("GET", "/list")
        await client.aclose()


def test_an_engine_with_tls_is_used_on_the_event_loop_of_web_processes(server_tls):
    """uvloop's transports are other objects than asyncio's. A body of two megabytes is sent in parts."""
    uvloop = pytest.importorskip("uvloop", reason="not for Windows")

    async def talk() -> list[int]:
        async with connected(replies(200, []), tls=server_tls, verify_tls=False) as (engine, client):
            for size in (1, 2_000_000):
                await client.request_json("GET", "/list")
                assert await client.request_json("POST", "/start", body={"text": "x" * size}) == []
            engine.behave = stays_silent_after()
            with pytest.raises(Unreachable, match=r"within 0\.1 s"):
                await client.exchange("GET", "/list", repeatable=True, seconds=0.1)
        assert len(engine.received[3].json["text"]) == 2_000_000
        return [request.connection for request in engine.received]

    assert uvloop.run(talk()) == [1] * 5


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_an_unusable_ca_file_is_named(tmp_path, content):
    """B4: the error says which file."""
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(Misconfigured, match=r"The CA file .*ca\.pem"):
        EngineClient(base_url="https://engine", ca_file=str(path))


# --- framing ---

LIST = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n[]"


async def test_an_interim_answer_is_passed_over():
    """RFC 9110: any number of them may come before the answer."""
    async with connected(sends(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * 2 + LIST)) as (
        engine,
        client,
    ):
        for _ in range(2):
            assert await client.request_json("GET", "/list") == []
    assert [request.connection for request in engine.received] == [1, 1]


@pytest.mark.parametrize("is_read", [True, False])
async def test_what_an_engine_sends_unasked_answers_nobody(is_read):
    """B8: proxies send a 408 on an idle connection; the next start must not take it for its own answer."""
    sent = asyncio.Event()

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(response(200, f'"{request.target}"'))
        await writer.drain()
        if request.target == "/first":
            await may_go_on.wait()
            writer.write(response(408))
            await writer.drain()
            sent.set()

    may_go_on = asyncio.Event()
    async with ScriptedEngine(behave) as engine, ScriptedEngine(replies(200, [])) as other:
        client, neighbour = client_of(engine), client_of(other)
        assert await client.request_json("GET", "/first") == "/first"
        may_go_on.set()
        await sent.wait()
        if is_read:
            # The event loop goes on meanwhile, and reads what has arrived from the first engine.
            await neighbour.request_json("GET", "/list")
        assert await client.request_json("POST", "/start", body={}, repeatable=False) == "/start"
        await client.aclose()
        await neighbour.aclose()
    assert [request.connection for request in engine.received] == [1, 2]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
async def test_a_request_whose_connection_breaks_is_not_sent_again(method):
    """B8: also where HTTP calls the method idempotent, and on a connection that has been used before."""
    async with connected(replies(200, [])) as (engine, client):
        await client.request_json("GET", "/list")
        engine.behave = sends_and_hangs_up()
        with pytest.raises(OutcomeUnknown, match="the connection broke"):
            await client.request_json(method, "/start", repeatable=False)
    assert [request.target for request in engine.received] == ["/list", "/start"]


async def test_an_answer_may_have_many_headers_and_long_ones():
    """Gateways add cookies and policies of ten kilobytes."""
    headers = {f"x_{number}": "a" for number in range(500)} | {"content_security_policy": "b" * 20_000}
    async with connected(replies(200, [], **headers)) as (_, client):
        answer = await client.exchange("GET", "/list", repeatable=True)
    assert len(answer.headers) > 500
    assert len(answer.headers["content-security-policy"]) == 20_000


async def test_an_answer_without_a_length_ends_with_its_connection():
    async with connected(sends_and_hangs_up(b"HTTP/1.1 200 OK\r\n\r\n[1,\n 2]")) as (engine, client):
        for _ in range(2):
            assert await client.request_json("GET", "/list") == [1, 2]
    assert [request.connection for request in engine.received] == [1, 2]


async def test_an_answer_to_head_has_no_body_whatever_length_it_names():
    async with connected(sends(b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n")) as (_, client):
        answer = await client.exchange("HEAD", "/list", repeatable=True)
        assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 4\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n[]",
        b"220 mail.example.com ESMTP\r\n",
    ],
)
async def test_an_answer_whose_end_is_not_certain_is_none(raw):
    """B8: a start may have happened then."""
    async with connected(sends_and_hangs_up(raw)) as (_, client):
        with pytest.raises(OutcomeUnknown, match="the connection broke"):
            await client.request_json("POST", "/start", body={}, repeatable=False)


async def test_callers_that_wait_for_a_connection_get_it_in_turn():
    async with connected(replies(200, []), limits=HttpLimits(max_connections=1)) as (engine, client):
        targets = [f"/list/{number}" for number in range(5)]
        await asyncio.gather(*(client.request_json("GET", target) for target in targets))
    assert [(request.target, request.connection) for request in engine.received] == [
        (target, 1) for target in targets
    ]
