"""Which redirects of an HTTP API are followed, and what does not go along."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from connectors.errors import InvalidAnswer, OutcomeUnknown, Unreachable
from connectors.network.client import Credentials, EngineClient
from connectors.network.policy import http_tool_addresses
from connectors.network.transport import Exchange, HttpLimits
from connectors.testing import advance_clock, everything_told_by
from tests.connectors.http_tool_hosts import http_tool_hosts
from tests.connectors.resolving import names
from tests.connectors.scripted import (
    Behaviour,
    Received,
    ScriptedEngine,
    replies,
    response,
)
from tests.engines.temporal.tls import Authority

KEY = "hunter2hunter2"
CREDENTIALS = Credentials(headers={"Authorization": f"Bearer {KEY}"}, query=[("api_key", KEY)])
WITH_KEY = f"api_key={KEY}"
HEADERS = {
    "Accept": "text/plain",
    "Content-Type": "application/json",
    "Cookie": "session=1",
    "X-Api-Key": "another",
    "X-Tenant": "7",
}


def pages(answers: Mapping[str, tuple[int, str]]) -> Behaviour:
    """By path: a status, and for a redirect where it points, else the body."""

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        status, said = answers[request.target.partition("?")[0]]
        sends_on = 300 <= status < 400
        writer.write(response(status, location=said) if sends_on else response(status, said))

    return behave


@contextlib.asynccontextmanager
async def client_of(api: ScriptedEngine, **settings: Any) -> AsyncIterator[EngineClient]:
    """Held to the addresses of HTTP tools, of which two of this machine's are opened."""
    with http_tool_hosts("127.0.0.1, localhost"):
        client = EngineClient(base_url=api.base_url, policy=http_tool_addresses(), **settings)
    async with contextlib.aclosing(client):
        yield client


@contextlib.asynccontextmanager
async def connected(behave: Behaviour, **settings: Any) -> AsyncIterator[tuple[ScriptedEngine, EngineClient]]:
    async with ScriptedEngine(behave) as api, client_of(api, **settings) as client:
        yield api, client


async def ask(
    client: EngineClient, method: str = "GET", target: str = "/start?a=1", **changes: Any
) -> Exchange:
    """With everything that could go along."""
    given: dict[str, Any] = {
        "headers": HEADERS,
        "credentials": CREDENTIALS,
        "content": None if method in ("GET", "HEAD") else b'{"n": 1}',
        "repeatable": method in ("GET", "HEAD"),
        "follow_redirects": True,
    }
    return await client.exchange(method, target, **given | changes)


def told(request: Received) -> str:
    return f"{request.target} {request.headers} {request.body!r}"


# --- what is followed ---


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_safe_request_follows_every_redirect(status, method):
    """C5.1: on the same origin with everything, its credentials once."""
    async with connected(pages({"/start": (status, "/end?b=2#part"), "/end": (200, "")})) as (api, client):
        answer = await ask(client, method)
    assert (answer.status, answer.place) == (200, f"{api.base_url}/end")
    assert [request.method for request in api.received] == [method, method]
    assert [request.target for request in api.received] == [
        f"/start?a=1&{WITH_KEY}",
        f"/end?b=2&{WITH_KEY}",
    ]
    assert api.received[1].headers["authorization"] == f"Bearer {KEY}"
    assert api.received[1].headers["x-tenant"] == "7"
    assert not answer.carried_out


@pytest.mark.parametrize(
    ("location", "arrives_at"),
    [
        ("end", "/deep/end"),
        ("../end", "/end"),
        ("?page=2", "/deep/start?page=2"),
        ("//127.0.0.1:{port}/end", "/end"),
        ("HTTP://127.0.0.1:{port}/end#x", "/end"),
        (f"/end?{WITH_KEY}", "/end"),
    ],
)
async def test_a_location_may_be_written_in_every_way(location, arrives_at):
    """C5.1: relative, without scheme, with a fragment, or with our own key in it, which is then sent once."""
    async with ScriptedEngine(replies(200, {})) as api:

        async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
            first = len(api.received) == 1
            there = location.format(port=api.port)
            writer.write(response(302, location=there) if first else response(200, "{}"))

        api.behave = behave
        async with client_of(api) as client:
            await ask(client, target="/deep/start")
    separator = "&" if "?" in arrives_at else "?"
    assert api.received[1].target == f"{arrives_at}{separator}{WITH_KEY}"


async def test_after_a_303_the_result_is_fetched():
    """C5.1: as GET and without the body; whatever comes of it, the request was carried out."""
    async with connected(pages({"/start": (303, "/done"), "/done": (404, "gone")})) as (api, client):
        answer = await ask(client, "POST")
    assert (answer.status, answer.carried_out) == (404, True)
    second = api.received[1]
    assert (second.method, second.body) == ("GET", b"")
    assert not {"content-type", "content-length"} & set(second.headers)


@pytest.mark.parametrize("status", [307, 308])
async def test_a_request_that_changes_something_is_repeated_on_its_own_origin(status):
    """C5.1: with the same method and body."""
    async with connected(pages({"/start": (status, "/v2"), "/v2": (201, "")})) as (api, client):
        answer = await ask(client, "POST")
    assert (answer.status, answer.carried_out) == (201, False)
    assert [(request.method, request.body) for request in api.received] == [("POST", b'{"n": 1}')] * 2
    assert api.received[1].headers["content-type"] == "application/json"


# --- what does not go along ---


@pytest.mark.parametrize("place", ["another port", "another name"])
@pytest.mark.parametrize(("method", "status"), [("GET", 302), ("GET", 307), ("POST", 303)])
async def test_nothing_that_could_be_a_credential_goes_to_another_origin(place, method, status):
    """C9, E6: neither credentials nor any header of the tool, however it is called; nor a Referer."""
    async with ScriptedEngine(replies(200, {})) as other, ScriptedEngine(replies(200, {})) as api:
        there = other if place == "another port" else api
        name = "127.0.0.1" if place == "another port" else "localhost"
        api.behave = pages({"/start": (status, f"http://{name}:{there.port}/end?c=3"), "/end": (200, "")})
        async with client_of(api) as client:
            answer = await ask(client, method)
        last = there.received[-1]
    assert answer.status == 200
    assert last.target == "/end?c=3"
    assert last.headers == {
        "host": f"{name}:{there.port}",
        "accept": "text/plain",
        "accept-encoding": "identity",
        "user-agent": "workflow-catalogue",
    }
    assert last.body == b""


async def test_credentials_do_not_come_back_when_a_redirect_returns():
    """C9, E6: whoever was in between chose that address, so it gets no key of ours."""
    async with ScriptedEngine(replies(200, {})) as other, ScriptedEngine(replies(200, {})) as api:
        other.behave = pages({"/there": (302, f"{api.base_url}/delete-all")})
        api.behave = pages({"/start": (302, f"{other.base_url}/there"), "/delete-all": (200, "")})
        async with client_of(api) as client:
            answer = await ask(client)
    assert answer.place == f"{api.base_url}/delete-all"
    assert KEY in told(api.received[0])
    assert [request for request in (*other.received, api.received[1]) if KEY in told(request)] == []
    assert "x-api-key" not in api.received[1].headers


@pytest.mark.parametrize(
    "location", [f"/start?a=1&{WITH_KEY}", f"/login?next=%2Fstart%3Fapi%5Fkey%3D{KEY}", f"/{KEY}"]
)
async def test_an_address_that_repeats_our_key_to_others_is_not_followed(location):
    """C9, E6: as servers do that send on to "the same address" at another host."""
    async with ScriptedEngine(replies(200, {})) as other, ScriptedEngine(replies(200, {})) as api:
        api.behave = replies(301, location=f"{other.base_url}{location}")
        async with client_of(api) as client:
            answer = await ask(client)
        assert other.connections == 0
    assert "send the source's credentials" in answer.not_followed
    assert KEY not in f"{answer.not_followed} {answer!r}"


# --- what is not followed ---


@pytest.mark.parametrize(
    ("method", "status", "location", "reason"),
    [
        ("POST", 301, "/end", "the redirect of a POST request is not well-defined"),
        ("DELETE", 302, "/end", "the redirect of a DELETE request is not well-defined"),
        ("POST", 307, "http://localhost:{port}/end", "a POST request is not repeated at another address"),
        ("PUT", 308, "http://127.0.0.1:1/end", "a PUT request is not repeated at another address"),
        ("GET", 302, "ftp://127.0.0.1/end", "not an http:// or https:// URL"),
        ("GET", 302, "javascript:alert(1)", "not an http:// or https:// URL"),
        ("GET", 302, "file:///etc/passwd", "not an http:// or https:// URL"),
        ("GET", 302, "http://127.0.0.1:0/", "not an http:// or https:// URL"),
        ("GET", 302, "http://[::1", "not a valid URL"),
        ("GET", 302, "http://admin:hunter2@127.0.0.1:{port}/end", "a user name or password"),
        ("GET", 302, "http://127.0.0.2:{port}/end", "127.0.0.2 is 127.0.0.2, a loopback address"),
        ("GET", 302, "http://2130706434:{port}/end", "is 127.0.0.2, a loopback address"),
        ("GET", 302, "http://[::ffff:127.0.0.2]:{port}/end", "a loopback address"),
        ("GET", 302, "http://10.0.0.1/", "a private address: not contacted. An operator can allow it"),
        ("GET", 307, "http://169.254.169.254/latest/meta-data/", "cloud metadata address: not contacted."),
        ("POST", 303, "http://[fd00:ec2::254]/latest/", "cloud metadata address: not contacted."),
    ],
)
async def test_a_redirect_that_is_not_followed_is_the_answer_and_says_why(method, status, location, reason):
    """C5.2, C5.3, C9: the API has answered, so the record shows its answer, and nobody else is contacted."""
    async with (
        ScriptedEngine(replies(200, {})) as api,
        ScriptedEngine(replies(200, {}), host="127.0.0.2", wanted_port=api.port) as hidden,
    ):
        there = location.format(port=api.port)
        api.behave = replies(status, {"see": "there"}, location=there)
        async with client_of(api) as client:
            answer = await ask(client, method)
        assert hidden.connections == 0
    assert (answer.status, answer.body) == (status, b'{"see": "there"}')
    assert answer.not_followed.startswith(f"The response {status} points to ")
    assert reason in answer.not_followed
    assert "hunter2" not in answer.not_followed
    assert len(api.received) == 1


async def test_a_name_behind_a_redirect_is_judged_by_its_address(monkeypatch):
    """C9: and by the one that it has when it is connected to."""
    async with ScriptedEngine(replies(200, {})) as api:
        names(monkeypatch, **{"rebound.example.com": [["169.254.169.254"]]})
        api.behave = replies(302, location="http://rebound.example.com/")
        async with client_of(api) as client:
            answer = await ask(client)
    assert "rebound.example.com is 169.254.169.254, a link-local" in answer.not_followed


async def test_a_circle_of_redirects_ends_in_words():
    """C5.3: after five."""
    async with connected(pages({"/start": (302, "/other"), "/other": (302, "/start")})) as (api, client):
        answer = await ask(client)
    assert len(api.received) == 6
    assert answer.not_followed == (
        "The response 302 points to /start, which was not followed: 5 redirects have been followed already."
    )


@pytest.mark.parametrize("status", [300, 304, 305, 306])
async def test_other_answers_with_an_address_are_answers(status):
    """C5.2: so is a redirect that names no address, or one that nobody wanted followed."""
    async with connected(replies(status, location="/end")) as (api, client):
        assert (await ask(client)).not_followed == ""
        api.behave = replies(302)
        assert (await ask(client)).not_followed == ""
        api.behave = replies(302, location="/end")
        assert (await ask(client, follow_redirects=False)).not_followed == ""
    assert len(api.received) == 3


# --- limits and failures on the way ---


async def test_the_time_limit_covers_all_redirects():
    """C5.3: each of them alone has time enough."""

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        advance_clock(0.1)
        writer.write(response(302, location="/next"))

    limits = HttpLimits(read_seconds=60, total_seconds=0.35)
    async with connected(behave, limits=limits) as (_, client):
        with pytest.raises(Unreachable, match=r"GET /next: no complete response within 0\.35 s"):
            await ask(client)


async def test_the_body_of_a_redirect_is_read_with_a_limit():
    """B8: it is of no use to anybody."""
    async with connected(
        replies(302, b"x" * 5_000, location="/end"), limits=HttpLimits(max_response_bytes=1_000)
    ) as (api, client):
        with pytest.raises(InvalidAnswer, match="larger than 1,000 bytes"):
            await ask(client)
    assert len(api.received) == 6


@pytest.mark.parametrize(("method", "error"), [("GET", Unreachable), ("POST", OutcomeUnknown)])
async def test_a_failure_after_a_redirect_tells_if_something_happened(method, error):
    """C5.3: a POST that was sent on with 303 was carried out, although its result cannot be fetched."""
    async with ScriptedEngine(replies(200, {})) as gone:
        pass
    async with connected(replies(303, location=f"{gone.base_url}/end?secret=1")) as (_, client):
        with pytest.raises(error, match="connection refused") as caught:
            await ask(client, method)
    assert KEY not in everything_told_by(caught.value)


async def test_a_repetition_that_could_not_be_sent_did_not_happen():
    """C5.3: 307 says that nothing has happened yet."""
    async with ScriptedEngine(replies(307, location="/end")) as api:

        async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
            writer.write(response(307, location="/end", connection="close"))
            api.stop_listening()

        api.behave = behave
        async with client_of(api) as client:
            with pytest.raises(Unreachable, match="Could not connect"):
                await ask(client, "POST")


# --- TLS ---


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("redirects"))


@pytest.fixture(scope="module")
def server_tls(authority: Authority) -> ssl.SSLContext:
    issued = authority.issue("api")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(issued.certificate, issued.key)
    return context


async def test_a_redirect_to_https_verifies_the_other_side(server_tls, authority):
    """C9, E6: with the source's own authority, and without credentials, since it is another origin."""
    async with (
        ScriptedEngine(replies(200, {}), tls=server_tls) as safe,
        ScriptedEngine(replies(200, {})) as api,
    ):
        api.behave = replies(301, location=f"{safe.base_url}/end")
        async with client_of(api) as client:
            with pytest.raises(Unreachable, match="certificate verify failed"):
                await ask(client)
        assert safe.received == []
        async with client_of(api, ca_file=str(authority.ca)) as client:
            assert (await ask(client)).status == 200
    assert KEY not in told(safe.received[0])


async def test_not_verifying_an_api_does_not_extend_to_where_it_sends_us(server_tls):
    """E6: the admin meant one server."""
    async with (
        ScriptedEngine(replies(200, {}), tls=server_tls) as other,
        ScriptedEngine(replies(200, {}), tls=server_tls) as api,
    ):
        api.behave = replies(302, location=f"{other.base_url}/end")
        async with client_of(api, verify_tls=False) as client:
            with pytest.raises(Unreachable, match="certificate verify failed"):
                await ask(client)
        assert (len(api.received), other.received) == (1, [])


@pytest.mark.parametrize("place", ["http://127.0.0.1:{port}/end", "http://localhost:{port}/end"])
async def test_no_redirect_leads_from_https_to_http(server_tls, place, authority):
    """C9, E6: what was asked for in private is not fetched in the open."""
    async with (
        ScriptedEngine(replies(200, {})) as plain,
        ScriptedEngine(replies(302, location=place.format(port=plain.port)), tls=server_tls) as api,
        client_of(api, ca_file=str(authority.ca)) as client,
    ):
        answer = await ask(client)
        assert plain.connections == 0
    assert "that leads from https to http" in answer.not_followed
