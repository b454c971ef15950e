"""Access tokens by client credentials: how often they are got, and what is told when they are not."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from connectors.errors import InvalidAnswer, Misconfigured, Rejected, Unreachable
from connectors.network.oauth import ClientCredentials
from connectors.testing import everything_told_by
from tests.connectors.scripted import Received, ScriptedEngine, response

SECRET = "client-secret-0123456789"


class TokenUrl:
    """Answers with tokens that have numbers, until it is told to answer otherwise."""

    def __init__(self) -> None:
        self.seconds: object = 100
        self.status = 200
        self.answer: str | None = None
        self.asked: list[Received] = []

    async def behave(self, received: Received, writer: asyncio.StreamWriter) -> None:
        self.asked.append(received)
        told = self.answer
        if told is None:
            seconds = "" if self.seconds is None else f', "expires_in": {self.seconds}'
            told = f'{{"access_token": "token-{len(self.asked)}", "token_type": "Bearer"{seconds}}}'
        writer.write(response(self.status, told, content_type="application/json"))


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def url() -> TokenUrl:
    return TokenUrl()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def credentials(url: TokenUrl, clock: Clock) -> AsyncIterator[ClientCredentials]:
    async with ScriptedEngine(url.behave) as server:
        config = SimpleNamespace(
            oauth_client_id="catalogue",
            oauth_client_secret=SecretStr(SECRET),
            oauth_audience="",
            oauth_scope="runs",
        )
        made = ClientCredentials(
            config,
            url=f"{server.base_url}/oauth2/token",
            seconds=1.0,
            now=clock,
        )
        yield made
        await made.aclose()


async def test_a_token_is_asked_for_with_a_form(credentials, url):
    """E2: as OAuth has it, and with the scope that is wanted."""
    await credentials.token()
    assert url.asked[0].method == "POST"
    assert url.asked[0].target == "/oauth2/token"
    assert url.asked[0].headers["content-type"] == "application/x-www-form-urlencoded"
    assert url.asked[0].body.decode() == (
        f"grant_type=client_credentials&client_id=catalogue&client_secret={SECRET}&scope=runs"
    )


async def test_many_who_want_a_token_at_once_cost_one_request(credentials, url):
    """E2, E7: nobody gets in anybody's way."""
    assert set(await asyncio.gather(*(credentials.token() for _ in range(20)))) == {"token-1"}
    assert len(url.asked) == 1


async def test_a_token_is_renewed_when_four_fifths_of_its_time_are_over(credentials, clock):
    """E2: no request is ever sent with a token that is about to expire."""
    assert await credentials.token() == "token-1"
    clock.now += 79
    assert await credentials.token() == "token-1"
    clock.now += 2
    assert await credentials.token() == "token-2"


@pytest.mark.parametrize("seconds", [None, 0, -5, '"soon"', "null", "true"])
async def test_a_token_whose_lifetime_is_not_told_is_kept_for_a_few_minutes(credentials, url, clock, seconds):
    """E2: not for ever, and not for one request only."""
    url.seconds = seconds
    assert await credentials.token() == "token-1"
    clock.now += 200
    assert await credentials.token() == "token-1"
    clock.now += 100
    assert await credentials.token() == "token-2"


async def test_a_renewal_that_fails_leaves_the_old_token_in_use_until_it_expires(credentials, url, clock):
    """E2: a token URL that is away for a moment is noticed by nobody."""
    await credentials.token()
    url.status, url.answer = 503, "{}"
    clock.now += 90
    assert await credentials.token() == "token-1"
    assert await credentials.token() == "token-1"
    assert len(url.asked) == 2, "it is not asked at every request meanwhile"
    clock.now += 11
    with pytest.raises(Unreachable):
        await credentials.token()


async def test_a_token_that_was_refused_is_not_used_again(credentials):
    """E2: who forgets an older one changes nothing."""
    first = await credentials.token()
    credentials.forget(first)
    second = await credentials.token()
    credentials.forget(first)
    assert [first, second, await credentials.token()] == ["token-1", "token-2", "token-2"]


@pytest.mark.parametrize(
    ("status", "answer", "error", "words"),
    [
        (401, f'{{"error": "invalid_client", "hint": "{SECRET}"}}', Rejected, "invalid_client"),
        (400, f'{{"error": "bad secret {SECRET}"}}', Rejected, "bad secret ***"),
        (404, "{}", Misconfigured, "404"),
        (500, "{}", Unreachable, "500"),
        (200, "[]", InvalidAnswer, "no usable access_token"),
        (200, '{"access_token": ""}', InvalidAnswer, "no usable access_token"),
        (200, '{"access_token": "a\\nb"}', InvalidAnswer, "no usable access_token"),
        (200, "<html>", InvalidAnswer, "JSON"),
    ],
)
async def test_what_is_no_token_is_told_as_the_token_urls_doing_without_the_secret(
    credentials, url, status, answer, error, words
):
    """E2, E6: an admin learns which of the two did not want us."""
    url.status, url.answer = status, answer
    with pytest.raises(error) as caught:
        await credentials.token()
    assert "OAuth token URL" in caught.value.message
    assert words in caught.value.message
    assert SECRET not in everything_told_by(caught.value)


async def test_no_secret_shows_in_reprs(credentials):
    """E6: nor in a log that prints the whole object."""
    await credentials.token()
    everything: Any = (repr(credentials), str(credentials), repr(vars(credentials)["_client_secret"]))
    assert SECRET not in "".join(everything)
