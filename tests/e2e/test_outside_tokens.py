"""Tokens of a real authorization server that is not ours, at the running product's doors."""

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests import plain_http
from tests.e2e.node_tools import node
from tests.e2e.openid_provider import (
    OPAQUE_AGENT,
    READ_AND_RUN,
    RESOURCE_SERVER,
    SECRET,
    OpenIdProvider,
    SigningKey,
)
from tests.e2e.product import AGENT, Product, another_web

__all__ = ["node"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

TEXT = {"text": "One sentence. And another one!"}
ACCOUNTS = {
    "ada-of-the-company": {"preferred_username": "ada"},
    "grace-of-the-company": {"preferred_username": "grace"},
    "a-stranger": {"preferred_username": "mallory"},
}
MAKE_USERS = """
from django.contrib.auth.models import User
for name in ("ada", "grace"):
    User.objects.get_or_create(username=name)
"""
DISABLED_SECONDS = 1.0
PAUSE_SECONDS = 0.1  # Between two looks


_callers = itertools.count(1)


def from_elsewhere() -> dict[str, str]:
    """Each request from an address of its own: refusals of one address's wrong tokens come ever later."""
    return {"x-forwarded-for": str(IPv4Address("10.0.0.0") + next(_callers))}


@dataclass
class Outside:
    """The product beside an authorization server; `url` is its MCP endpoint."""

    product: Product
    provider: OpenIdProvider
    url: str
    resource: str
    key: SigningKey = field(default_factory=lambda: SigningKey("of-today"))
    keys: tuple[SigningKey, ...] = ()
    """Of the authorization server that is running; none where it is away."""
    _server: ExitStack = field(default_factory=ExitStack)

    def provide(self, *keys: SigningKey) -> None:
        """Have the authorization server run with these keys from now on; without any it is away."""
        if keys != self.keys:
            self._server.close()
            self.keys = ()
            if keys:
                self._server.enter_context(self.provider.running(*keys))
            self.keys = keys

    def post(self, token: str, *, path: str = "", **params: Any) -> httpx2.Response:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}} | params
        headers = {"accept": "application/json, text/event-stream", "authorization": f"Bearer {token}"}
        headers |= {"mcp-protocol-version": "2025-06-18"} | from_elsewhere()
        return plain_http.post(self.url + path, json=body, headers=headers, timeout=30)

    def call(self, token: str) -> httpx2.Response:
        return self.post(token, method="tools/call", params={"name": "text_statistics", "arguments": TEXT})

    def rest(self, token: str, path: str = "/api/workflows/") -> httpx2.Response:
        address = self.url.removesuffix("/mcp") + path
        headers = {"authorization": f"Bearer {token}"} | from_elsewhere()
        return plain_http.get(address, headers=headers, timeout=30)

    def run(self, script: str) -> str:
        return self.product.manage("shell", "--no-imports", "-c", script)


@pytest.fixture(scope="module")
def provider(node: Path, tmp_path_factory: pytest.TempPathFactory) -> OpenIdProvider:
    return OpenIdProvider(node, tmp_path_factory.mktemp("provider"), ACCOUNTS)


@pytest.fixture(scope="module")
def outside(
    product: Product, provider: OpenIdProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outside]:
    """One more web process of the product, which the provider's tokens open."""
    settings = {
        "CATALOGUE_OAUTH_ISSUER": provider.issuer,
        "CATALOGUE_OAUTH_CLIENT_ID": RESOURCE_SERVER,
        "CATALOGUE_OAUTH_CLIENT_SECRET": SECRET,
        "CATALOGUE_OAUTH_USER_CLAIM": "preferred_username",
        "CATALOGUE_TRUSTED_PROXIES": "127.0.0.1",
    }
    with another_web(product, tmp_path_factory.mktemp("outside"), **settings) as url:
        outside = Outside(product, provider, url, url.replace("127.0.0.1", "localhost"))
        outside.run(MAKE_USERS)
        yield outside
        outside.provide()


@pytest.fixture
def running(outside: Outside) -> Outside:
    outside.provide(outside.key)
    return outside


async def test_a_person_s_agent_lists_and_calls_tools_with_a_token_of_the_company(running):
    token = running.provider.token_of("ada-of-the-company", running.resource)
    async with (
        plain_http.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=30) as http,
        Client(
            streamable_http_client(running.url, http_client=http),
            mode="2026-07-28",
            cache=None,
            client_info=AGENT,
        ) as client,
    ):
        assert "text_statistics" in {tool.name for tool in (await client.list_tools()).tools}
        result = await client.call_tool("text_statistics", TEXT)
    assert result.structured_content["words"] == 5
    own = running.rest(token, "/api/executions/").json()["results"]
    assert ("text_statistics", "ada via an-agent") in {(run["tool"], run["caller_name"]) for run in own}


def test_the_metadata_of_the_resource_names_the_company_s_server(running):
    """RFC 9728, from the challenge on."""
    refused = plain_http.post(running.url, json={}, timeout=20)
    assert refused.status_code == 401
    place = refused.headers["www-authenticate"].partition('resource_metadata="')[2].partition('"')[0]
    document = plain_http.get(place, timeout=20).json()
    assert document["authorization_servers"] == [running.provider.issuer]
    assert document["resource"] == running.url
    assert set(READ_AND_RUN.split()) <= set(document["scopes_supported"])


def test_keys_are_rotated_without_a_restart_and_those_of_a_removed_key_refused(outside):
    outside.provide(SigningKey("of-yesterday"))
    old = outside.provider.token_of("ada-of-the-company", outside.resource)
    wait_until_let_in(outside, old)
    outside.provide(SigningKey("of-tomorrow"))
    new = outside.provider.token_of("ada-of-the-company", outside.resource)
    wait_until_let_in(outside, new)
    wait_until_answered(outside, old, 401)
    outside.provide(outside.key)
    wait_until_let_in(outside, outside.provider.token_of("ada-of-the-company", outside.resource))


def wait_until_let_in(outside: Outside, token: str) -> None:
    """Unknown keys make the product read the keys at most every ten seconds."""
    deadline = (asked_at := time.monotonic()) + 15
    while (status := outside.post(token).status_code) != 200:
        assert status == 401 and asked_at < deadline
        time.sleep(PAUSE_SECONDS)
        asked_at = time.monotonic()


def wait_until_answered(outside: Outside, token: str, status: int) -> None:
    """The answer of half a second before may still count."""
    deadline = (asked_at := time.monotonic()) + DISABLED_SECONDS
    while outside.post(token).status_code != status:
        assert asked_at < deadline
        asked_at = time.monotonic()


def test_opaque_tokens_are_asked_about_until_they_are_revoked(running):
    token = running.provider.token_of("ada-of-the-company", running.resource, client=OPAQUE_AGENT)
    assert "." not in token
    assert '"words":5' in running.call(token).text
    assert running.rest(token).status_code == 200
    running.provider.revoke(token, client=OPAQUE_AGENT)
    wait_until_answered(running, token, 401)
    elsewhere = running.provider.token_of(
        "ada-of-the-company", "https://other.example/mcp", client=OPAQUE_AGENT
    )
    assert running.post(elsewhere).status_code == 401
    assert running.post("unknown").status_code == 401
