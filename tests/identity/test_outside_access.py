"""What tokens of an outside authorization server may do here, and whose they are."""

import asyncio
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from django.contrib.auth.models import Group, Permission, User
from loguru import logger
from pytest_django import Settings

from access.callers import Scope
from access.permissions import permissions_behind
from connectors.background import run_in_background_loop
from identity import bearers, external_tokens
from identity.bearers import AuthenticationUnavailable, authenticate, forget_bearers, still_usable
from identity.external_tokens import forget_outside
from identity.identity_provider import close_issuers
from identity.models import ExternalIdentity
from identity.tokens import Access
from mcp_bridge import notifications
from tests.connectors.issuing import AuthorizationServer
from tests.connectors.scripted import ScriptedEngine
from tests.executions.engines import until
from tests.factories import make_toolset, make_workflow
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.listening import TOOLS, listening

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("identity.external_tokens", "identity.identity_provider", "identity.models"),
]

PUBLIC_URL = "https://catalogue.example"
SCOPES = "workflows:read workflows:run catalogue:read catalogue:admin"
REFUSED_WITHIN = 1.0  # Seconds after the revocation of a token
ENDED_WITHIN = notifications.LOOK_SECONDS + external_tokens.READ_SECONDS
Configure = Callable[..., None]


@pytest.fixture
def server(settings: Settings) -> Iterator[AuthorizationServer]:
    server = AuthorizationServer()
    engine = ScriptedEngine(server.behave)
    run_in_background_loop(engine.__aenter__())
    server.base_url = engine.base_url
    settings.PUBLIC_URL = PUBLIC_URL
    settings.CATALOGUE = settings.CATALOGUE | {"oauth_issuer": server.base_url, "oauth_user_claim": "name"}
    User.objects.create(username="ada")
    yield server
    run_in_background_loop(close_issuers())
    run_in_background_loop(engine.__aexit__(None, None, None))


@pytest.fixture
def configure(settings: Settings) -> Configure:
    def change(**changes: Any) -> None:
        settings.CATALOGUE = settings.CATALOGUE | changes

    return change


def access_of(server: AuthorizationServer, **claims: Any) -> Access | None:
    return authenticate(server.sign(**{"name": "ada", "scope": SCOPES} | claims))


def test_a_user_s_agent_may_what_the_user_may_and_no_more(server):
    access = access_of(server, client_id="agent")
    assert access is not None
    assert access.scopes == {Scope.READ, Scope.RUN}
    assert access.caller.key == f"user:{User.objects.get().pk}"
    assert access.caller.name == "ada via agent"
    viewer = Permission.objects.filter(codename__startswith="view_")
    User.objects.get().user_permissions.set(viewer)
    access = access_of(server, jti="2")
    assert access is not None and access.scopes == {Scope.READ, Scope.VIEW}
    access = access_of(server, scope="workflows:read")
    assert access is not None and access.scopes == {Scope.READ}


@pytest.mark.parametrize(
    ("mapped", "scope", "granted"),
    [
        ({"tools.use": "workflows:run", "tools.list": "workflows:read"}, "tools.use", {Scope.RUN}),
        ({"tools.use": "workflows:run"}, SCOPES, set()),
        ({}, "openid email", set()),
        ({}, None, set()),
        ({}, ["workflows:run"], {Scope.RUN}),
        ({}, {"workflows:run": 1}, set()),
    ],
    ids=str,
)
def test_scopes_are_ours_or_mapped_to_ours(server, configure, mapped, scope, granted):
    configure(oauth_scopes=mapped)
    access = access_of(server, scope=scope)
    assert access is not None and access.scopes == granted


def test_microsoft_s_name_for_scopes_is_understood(server):
    access = access_of(server, scope=None, scp="workflows:read")
    assert access is not None and access.scopes == {Scope.READ}


def test_a_token_for_the_address_of_a_toolset_is_bound_to_it(server, configure):
    User.objects.update(is_superuser=False)
    make_toolset("finance")
    bound = access_of(server, aud=f"{PUBLIC_URL}/mcp/finance")
    assert bound is not None and bound.toolset == "finance" and bound.caller.is_confined
    whole = access_of(server, aud=[f"{PUBLIC_URL}/mcp/finance", f"{PUBLIC_URL}/mcp"])
    assert whole is not None and whole.toolset is None and not whole.caller.is_confined
    configure(oauth_audiences="api://catalogue, other")
    named = access_of(server, aud="api://catalogue")
    assert named is not None and named.toolset is None
    assert access_of(server, aud=[f"{PUBLIC_URL}/mcp/finance", f"{PUBLIC_URL}/mcp/other"]) is None
    for foreign in (f"{PUBLIC_URL}/mcp/../admin", f"{PUBLIC_URL}/mcp/a\0", "https://[", "/mcp"):
        assert access_of(server, aud=foreign) is None


def test_so_is_one_for_another_name_of_this_server(server, settings):
    settings.ALLOWED_HOSTS = ["catalogue.example", "tools.example", "127.0.0.1"]
    make_toolset("finance")
    for path, toolset in {"": None, "/mcp": None, "/mcp/": None, "/mcp/finance/": "finance"}.items():
        access = access_of(server, aud=f"https://tools.example{path}")
        assert access is not None and access.toolset == toolset
    assert access_of(server, aud="https://127.0.0.1/mcp") is None


def test_the_linked_user_comes_before_the_claim(server):
    grace = User.objects.create(username="grace")
    ExternalIdentity.objects.create(user=grace, issuer=server.base_url, subject="7")
    access = access_of(server)
    assert access is not None and access.user_id == grace.pk
    ExternalIdentity.objects.update(issuer="https://other.example")
    access = access_of(server, jti="2")
    assert access is not None and access.user_id != grace.pk


CLAIMS: list[tuple[dict[str, Any], bool]] = [
    ({"email": "Ada@Example.com", "email_verified": True}, True),
    ({"email": "ada@example.com", "email_verified": False}, False),
    ({"email": "ada@example.com", "email_verified": "true"}, False),
    ({"email": "ada@example.com"}, False),
    ({"email": "", "email_verified": True}, False),
    ({"email": ["ada@example.com"], "email_verified": True}, False),
    ({"email": "two@example.com", "email_verified": True}, False),
]


@pytest.mark.parametrize(("claims", "is_found"), CLAIMS, ids=str)
def test_an_e_mail_address_counts_where_the_server_has_verified_it(server, configure, claims, is_found):
    configure(oauth_user_claim="email")
    User.objects.update(email="ada@example.com")
    for number in range(2):
        User.objects.create(username=f"two-{number}", email="two@example.com")
    assert (access_of(server, **claims) is not None) is is_found


def test_no_token_is_a_superuser_s(server, configure):
    """Many servers let people choose their name; nor is there a way round by the role of those without."""
    configure(oauth_role_without_user="Guests")
    Group.objects.create(name="Guests")
    User.objects.update(is_superuser=True)
    assert access_of(server) is None
    ExternalIdentity.objects.create(user=User.objects.get(), issuer=server.base_url, subject="7")
    assert access_of(server, jti="2") is None, "nor does a link of before"


def test_a_disabled_user_s_agents_are_refused_and_their_streams_end(server, configure):
    configure(oauth_role_without_user="Guests")
    Group.objects.create(name="Guests")
    access = access_of(server)
    assert access is not None and still_usable([access]) == {access}
    User.objects.update(is_active=False)
    assert not still_usable([access])
    forget_bearers()
    assert access_of(server) is None


def test_subjects_without_a_user_have_the_rights_of_a_group_where_that_is_set(server, configure):
    assert access_of(server, name="mallory") is None
    configure(oauth_role_without_user="Guests")
    assert access_of(server, name="mallory") is None, "the group is missing"
    guests = Group.objects.create(name="Guests")
    named = {one.partition(".")[2] for one in permissions_behind(Scope.READ)}
    guests.permissions.set(Permission.objects.filter(codename__in=named))
    access = access_of(server, name="mallory", jti="2")
    assert access is not None
    assert (access.scopes, access.user_id) == ({Scope.READ}, None)
    other = access_of(server, name="mallory", sub="8")
    assert other is not None and other.caller.key != access.caller.key


def test_a_stream_ends_with_its_token(server, monkeypatch):
    access = access_of(server)
    assert access is not None
    after_its_end = float(access.credential.split(":")[1]) + 1
    clocks = SimpleNamespace(time=lambda: after_its_end, monotonic=time.monotonic)
    monkeypatch.setattr("identity.external_tokens.time", clocks)
    assert not still_usable([access])


@pytest.fixture
def with_a_stream(server: AuthorizationServer, configure: Configure) -> dict[str, Any]:
    """What the server says of the opaque token `opaque`."""
    configure(oauth_client_id="us")
    server.introspected = {"active": True, "sub": "7", "aud": f"{PUBLIC_URL}/mcp", "name": "ada"}
    server.introspected["scope"] = SCOPES
    return server.introspected


@pytest.mark.usefixtures("quick_news")
async def test_an_open_stream_ends_with_the_revocation_of_its_token_at_its_server(
    server, with_a_stream, mcp_server
):
    """Also an idle one, and no later than a request is refused. Streams of other tokens go on."""
    assert ENDED_WITHIN < REFUSED_WITHIN
    async with (
        listening(mcp_server, "opaque", toolsListChanged=True) as revoked,
        listening(mcp_server, server.sign(name="ada", scope=SCOPES), toolsListChanged=True) as other,
    ):
        assert await revoked.honoured() == await other.honoured() == {"toolsListChanged": True}
        server.introspected = {"active": False}
        assert await revoked.ends()
        await in_database(make_workflow)()
        assert await other.news() == TOOLS


@pytest.mark.usefixtures("quick_news")
async def test_an_open_stream_ends_when_its_jwt_expires(server, mcp_server, monkeypatch):
    expires_at = int(time.time()) + 600
    token = server.sign(name="ada", scope=SCOPES, exp=expires_at)
    async with listening(mcp_server, token, toolsListChanged=True) as stream:
        await stream.honoured()
        clock = SimpleNamespace(monotonic=time.monotonic, time=Mock(return_value=expires_at - 1))
        monkeypatch.setattr(external_tokens, "time", clock)
        await until(lambda: clock.time.call_count > 1, "it was looked at before")
        await in_database(make_workflow)()
        assert await stream.news() == TOOLS
        clock.time.return_value = expires_at
        assert await stream.ends()


@pytest.mark.usefixtures("quick_news")
async def test_while_the_server_cannot_be_asked_open_streams_go_on(server, with_a_stream, mcp_server):
    async with listening(mcp_server, "opaque", toolsListChanged=True) as stream:
        await stream.honoured()
        server.status = 503
        asked = len(server.asked)
        await until(lambda: len(server.asked) >= asked + 2, "the stream's token is asked about in vain")
        await in_database(make_workflow)()
        assert await stream.news() == TOOLS


def test_opaque_tokens_are_asked_about_only_where_we_are_a_client(server, configure, monkeypatch):
    monkeypatch.setattr(bearers, "REMEMBERED_SECONDS", 60.0)
    server.introspected = {"active": True, "sub": "7", "aud": f"{PUBLIC_URL}/mcp", "name": "ada"}
    assert authenticate("opaque") is None
    assert not server.asked
    configure(oauth_client_id="us")
    assert authenticate("opaque") is not None
    asked = len(server.asked)
    assert authenticate("opaque") is not None
    assert len(server.asked) == asked, "for a while the answer counts"
    forget_bearers()
    forget_outside()
    server.introspected = {"active": False}
    assert authenticate("opaque") is None
    assert authenticate("wfc_unknown") is authenticate("wfo_unknown") is None
    assert server.introspected_token == "opaque", "tokens of our own go nowhere"


def test_failures_of_the_server_are_no_refusals_and_the_log_tells_more(server):
    lines: list[str] = []
    sink = logger.add(lines.append, format="{level} {message}")
    server.body = '{"issuer": "https://other.example"}'
    token = server.sign()
    with pytest.raises(AuthenticationUnavailable, match="cannot check this token"):
        authenticate(token)
    logger.remove(sink)
    assert any("https://other.example" in line for line in lines)
    assert token.split(".")[2] not in "".join(lines)


def test_no_thread_of_the_database_waits_for_the_server(server):
    """They are few, and all calls need them."""
    token = server.sign(name="ada")
    asyncio.run(external_tokens._read_anew(token))
    asked = len(server.asked)
    assert authenticate(token) is not None
    assert len(server.asked) == asked
