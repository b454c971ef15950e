"""An outside authorization server: how often it is asked, and what of its answers is believed."""

from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pydantic import SecretStr

from connectors.errors import ConnectorError, Unreachable
from connectors.network.issuer import (
    KEPT_SECONDS,
    KEYS_SECONDS,
    PAUSE_SECONDS,
    REFETCH_SECONDS,
    Issuer,
    TokenRefused,
)
from connectors.network.policy import check_issuer
from tests.connectors.issuing import INTROSPECTION, KEYS, METADATA, RESOURCE, AuthorizationServer, public_jwk
from tests.connectors.scripted import ScriptedEngine
from tests.connectors.test_oauth import Clock

SECRET = "secret:of/the%client"
Read = Callable[..., Any]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def server() -> AsyncIterator[AuthorizationServer]:
    server = AuthorizationServer()
    async with ScriptedEngine(server.behave) as engine:
        server.base_url = engine.base_url
        yield server


@pytest.fixture
async def issuer(server: AuthorizationServer, clock: Clock) -> AsyncIterator[Issuer]:
    made = Issuer(server.base_url, client_id="us", client_secret=SecretStr(SECRET), now=clock)
    yield made
    await made.aclose()


def is_resource(audience: str) -> bool:
    return audience == RESOURCE


async def read(issuer: Issuer, token: str) -> dict[str, Any]:
    return await issuer.read_access_token(token, audience=is_resource, types=["at+jwt"])


async def test_keys_are_read_once_for_many_tokens_and_again_after_five_minutes(issuer, server, clock):
    for subject in ("7", "8", "9"):
        assert (await read(issuer, server.sign(sub=subject)))["sub"] == subject
    assert server.times(KEYS) == server.times(METADATA) == 1
    clock.now += KEYS_SECONDS
    server.keys = [public_jwk("two")]
    with pytest.raises(TokenRefused, match="no key of its server"):
        await read(issuer, server.sign())
    assert server.times(KEYS) == 2


async def test_unknown_keys_make_it_ask_again_but_not_more_than_once_in_ten_seconds(issuer, server, clock):
    await read(issuer, server.sign())
    clock.now += REFETCH_SECONDS
    for number in range(5):
        with pytest.raises(TokenRefused):
            await read(issuer, server.sign(headers={"kid": f"unknown-{number}"}))
    assert server.times(KEYS) == 2
    clock.now += REFETCH_SECONDS
    server.keys.append(public_jwk("two"))
    assert await read(issuer, server.sign("two"))
    assert server.times(KEYS) == 3


async def test_a_token_that_names_no_key_is_tried_with_all(issuer, server):
    server.keys = [public_jwk("two"), public_jwk("one")]
    assert await read(issuer, server.sign(headers={"kid": None}))


async def test_known_keys_count_while_the_server_fails_but_not_for_ever(issuer, server, clock):
    token = server.sign()
    await read(issuer, token)
    server.status = 500
    clock.now += KEYS_SECONDS
    assert await read(issuer, token)
    with pytest.raises(Unreachable):
        await read(issuer, server.sign("two"))  # Which nobody can say to be wrong
    clock.now += KEPT_SECONDS
    with pytest.raises(Unreachable):
        await read(issuer, token)
    server.status = 200
    clock.now += PAUSE_SECONDS
    assert await read(issuer, token)


async def test_a_server_that_fails_is_left_alone_for_a_moment(issuer, server, clock):
    server.status = 500
    for _ in range(5):
        with pytest.raises(Unreachable):
            await read(issuer, server.sign())
    assert len(server.asked) == 1


UNUSABLE: dict[str, Callable[[AuthorizationServer], None]] = {
    "the metadata of another": lambda server: server.metadata.update(issuer="https://other.example"),
    "no address of keys": lambda server: server.metadata.update(jwks_uri=None),
    "keys on an unprotected way": lambda server: server.metadata.update(jwks_uri="http://keys.example/"),
    "keys in a file": lambda server: server.metadata.update(jwks_uri="file:///etc/passwd"),
    "keys at the cloud's metadata": lambda server: server.metadata.update(
        jwks_uri="https://169.254.169.254/"
    ),
    "no JSON": lambda server: setattr(server, "body", "<html>"),
    "no object": lambda server: setattr(server, "body", "[]"),
    "too much": lambda server: setattr(server, "body", '{"x": "' + "x" * 600_000 + '"}'),
    "too deep": lambda server: setattr(server, "body", "[" * 100_000),
}


@pytest.mark.parametrize("problem", UNUSABLE)
async def test_of_a_server_that_cannot_be_used_no_token_is_good_or_wrong(issuer, server, problem):
    UNUSABLE[problem](server)
    with pytest.raises(ConnectorError):
        await read(issuer, server.sign())


KEYS_NOT_TO_USE: dict[str, Callable[[], Any]] = {
    "a symmetric one": lambda: {"kty": "oct", "k": "c2VjcmV0", "kid": "one", "alg": "HS256"},
    "one for encryption": lambda: public_jwk("one", use="enc"),
    "one for another algorithm": lambda: public_jwk("one", alg="RS512"),
    "a short one": lambda: public_jwk("short", 1024, kid="one"),
    "a broken one": lambda: {"kty": "RSA", "kid": "one", "n": "!", "e": "AQAB"},
    "no key": lambda: "one",
}


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
@pytest.mark.parametrize("key", KEYS_NOT_TO_USE)
async def test_a_key_that_is_not_for_this_signs_nothing(issuer, server, key):
    server.keys = [KEYS_NOT_TO_USE[key]()]
    token = server.sign("short", 1024, headers={"kid": "one"}) if key == "a short one" else server.sign()
    with pytest.raises(TokenRefused):
        await read(issuer, token)


@pytest.mark.parametrize("token", ["", "a.b.c", "x" * 20_000, "e30.e30.", "ä.ö.ü", "." * 5])
async def test_what_is_no_token_is_refused_without_a_question(issuer, server, token):
    with pytest.raises(TokenRefused):
        await read(issuer, token)
    assert not server.asked


INACTIVE: list[dict[str, Any]] = [
    {"active": False},
    {},
    {"active": "true"},
    {"active": True, "sub": "7", "aud": "https://other.example"},
    {"active": True, "sub": "7"},
    {"active": True, "aud": RESOURCE},
    {"active": True, "sub": "7", "aud": RESOURCE, "exp": 1},
    {"active": True, "sub": "7", "aud": RESOURCE, "exp": "soon"},
    {"active": True, "sub": "7", "aud": RESOURCE, "iss": "https://other.example"},
    {"active": True, "sub": "7", "aud": RESOURCE, "token_type": "DPoP"},
]


async def test_the_server_is_asked_about_opaque_tokens_with_our_own_credentials(issuer, server):
    server.introspected = {"active": True, "sub": "7", "aud": [RESOURCE, "x"], "token_type": "bearer"}
    claims = await issuer.introspect("opaque", audience=is_resource)
    assert claims["aud"] == [RESOURCE]
    assert server.asked[-1].target == INTROSPECTION
    assert server.introspected_token == "opaque"
    quoted = b64encode(b"us:secret%3Aof%2Fthe%25client").decode()
    assert server.asked[-1].headers["authorization"] == f"Basic {quoted}"


@pytest.mark.parametrize("answer", INACTIVE, ids=str)
async def test_only_a_token_that_is_active_and_ours_is_good(issuer, server, answer):
    server.introspected = answer
    with pytest.raises(TokenRefused):
        await issuer.introspect("opaque", audience=is_resource)


@pytest.mark.parametrize(
    ("changes", "nonce", "why"),
    [
        ({}, "n", ""),
        ({"nonce": "other"}, "n", "does not belong to this login"),
        ({"nonce": None}, "n", "does not belong to this login"),
        ({"aud": "them"}, "n", "another audience"),
        ({"aud": ["us", "them"]}, "n", "another client"),
        ({"aud": ["us", "them"], "azp": "us"}, "n", ""),
        ({"azp": "them"}, "n", "another client"),
        ({"exp": 1}, "n", "expired"),
        ({"iss": "https://other.example"}, "n", "issuer"),
    ],
)
async def test_an_id_token_has_to_be_for_us_and_for_this_login(issuer, server, changes, nonce, why):
    token = server.sign(headers={"typ": "JWT"}, **{"aud": "us", "nonce": "n"} | changes)
    if not why:
        assert (await issuer.read_id_token(token, nonce=nonce))["sub"] == "7"
        return
    with pytest.raises(TokenRefused, match=why):
        await issuer.read_id_token(token, nonce=nonce)


@pytest.mark.parametrize(
    ("url", "is_good"),
    [
        ("https://login.example.com/realms/x", True),
        ("http://localhost:9000", True),
        ("http://[::1]:9000/", True),
        ("http://login.example.com", False),
        ("https://user:pass@login.example.com", False),
        ("https://login.example.com/?x", False),
        ("https://169.254.169.254", False),
        ("login.example.com", False),
    ],
)
def test_an_issuer_is_reached_on_a_protected_way(url, is_good):
    if is_good:
        assert check_issuer(url) == url
        return
    with pytest.raises(ValueError, match=r"\w"):
        check_issuer(url)
