"""The embedded authorization server over HTTP: what clients get, what it refuses, and how access ends."""

import asyncio
import base64
import hashlib
import html
import re
import secrets
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import httpx2
import pytest
from django.contrib.auth.models import Group, User
from django.contrib.sessions.models import Session
from django.core.cache import cache
from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone
from oauth2_provider.models import AccessToken, Application, RefreshToken
from pytest_django import Settings

from audit.models import Entry, Kind
from audit.sealing import seal, verify
from catalogue.models import HistoryEntry
from config.celery import app
from connectors.background import run_in_background_loop
from executions.models import Execution
from identity import second_factor
from identity.bearers import authenticate, forget_bearers
from identity.models import AllowedApplication, FailureCount
from identity.oauth import server
from identity.oauth.tasks import clean_up_authorizations
from identity.tokens import create_token
from tests import plain_http
from tests.admin.pages import list_url, page_url, press, run_action, text_of, told
from tests.connectors.scripted import ScriptedEngine, replies
from tests.engines.temporal.tls import Authority
from tests.factories import make_execution, make_toolset, make_workflow, make_workflow_request
from tests.logs import shown_lines
from tests.mcp_bridge.conftest import McpServer

pytestmark = pytest.mark.databases(
    "identity.admin.allowed_applications", "identity.oauth.grants", "identity.oauth.server"
)

REDIRECT = "http://127.0.0.1:4711/callback"
PASSWORD = "correct horse battery"
RPC = {"jsonrpc": "2.0", "id": 1}


@dataclass
class Agent:
    """A client as the specification has it, and the browser of its user."""

    server: McpServer
    path: str = "/mcp"
    scope: str = "workflows:read workflows:run"
    name: str = "Desk Agent"
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(48))
    client_id: str = ""

    def __post_init__(self) -> None:
        self.browser = plain_http.Client(base_url=self.server.base_url, timeout=20)
        self.metadata = self.server.get("/.well-known/oauth-authorization-server").json()
        self.tokens: dict[str, Any] = {}

    def close(self) -> None:
        self.browser.close()

    def local(self, address: str) -> str:
        """The test's server has another port than the public address."""
        return urlsplit(address)._replace(scheme="", netloc="").geturl()

    @property
    def resource(self) -> str:
        return f"{self.metadata['issuer']}{self.path}"

    def register(self, **metadata: Any) -> httpx2.Response:
        body = {"client_name": self.name, "redirect_uris": [REDIRECT], **metadata}
        answer = self.browser.post(self.local(self.metadata["registration_endpoint"]), json=body)
        self.client_id = answer.json().get("client_id", "")
        return answer

    def address(self, **changes: Any) -> str:
        challenge = (
            base64.urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).decode().rstrip("=")
        )
        query = {
            "response_type": "code", "client_id": self.client_id, "redirect_uri": REDIRECT, "state": "s1",
            "code_challenge": challenge, "code_challenge_method": "S256", "scope": self.scope,
            "resource": self.resource, **changes,
        }  # fmt: skip
        asked = urlencode({name: value for name, value in query.items() if value is not None}, doseq=True)
        return f"{self.local(self.metadata['authorization_endpoint'])}?{asked}"

    def sign_in(self, username: str) -> httpx2.Response:
        self.browser.get("/oauth/sign-in")
        return self.send("/oauth/sign-in", {"username": username, "password": PASSWORD})

    def send(self, path: str, form: dict[str, str]) -> httpx2.Response:
        return self.browser.post(path, data=form | {"csrfmiddlewaretoken": self.browser.cookies["csrftoken"]})

    def decide(self, decision: str = "allow", **changes: Any) -> dict[str, str]:
        """What the browser carries back to the client."""
        page = self.browser.get(self.address(**changes))
        assert page.status_code == 200, page.headers.get("location", page.text)
        answer = self.send(self.address(**changes), {decision: "yes"})
        assert answer.status_code == 302, answer.text
        return carried(answer)

    def exchange(self, **form: str) -> httpx2.Response:
        body = {"client_id": self.client_id, **form}
        answer = self.browser.post(self.local(self.metadata["token_endpoint"]), data=body)
        if answer.status_code == 200:
            self.tokens = answer.json()
        return answer

    def redeem(self, code: str, **changes: str) -> httpx2.Response:
        form = {
            "grant_type": "authorization_code", "code": code, "redirect_uri": REDIRECT,
            "code_verifier": self.verifier, "resource": self.resource,
        }  # fmt: skip
        return self.exchange(**form | changes)

    def refresh(self, token: str = "") -> httpx2.Response:
        return self.exchange(grant_type="refresh_token", refresh_token=token or self.tokens["refresh_token"])

    def connect(self, username: str) -> None:
        assert self.register().status_code == 201
        self.sign_in(username)
        assert self.redeem(self.decide()["code"]).status_code == 200

    @property
    def bearer(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.tokens['access_token']}"}

    def read(self, path: str) -> httpx2.Response:
        return self.browser.get(path, headers=self.bearer)

    def ids(self, path: str) -> set[str]:
        return {row["id"] for row in self.read(path).json()["results"]}

    def ask(self, method: str, *, path: str = "", **params: Any) -> httpx2.Response:
        headers = self.bearer | {"accept": "application/json, text/event-stream"}
        body = RPC | {"method": method, "params": params}
        return self.browser.post(path or self.path, json=body, headers=headers)

    def tools(self, **options: Any) -> set[str]:
        return {tool["name"] for tool in self.ask("tools/list", **options).json()["result"]["tools"]}


def carried(answer: httpx2.Response) -> dict[str, str]:
    location = answer.headers["location"]
    assert location.startswith(REDIRECT), location
    return {name: values[0] for name, values in parse_qs(urlsplit(location).query).items()}


def refused_because(answer: httpx2.Response) -> str:
    assert answer.status_code == 302, answer.text
    return carried(answer)["error"]


@pytest.fixture
def anna() -> User:
    return User.objects.create_user("anna", password=PASSWORD)


@pytest.fixture
def agent(mcp_server: McpServer, anna: User) -> Any:
    agent = Agent(mcp_server)
    yield agent
    agent.close()


def test_a_client_finds_the_server_from_the_resource(mcp_server):
    """RFC 9728, RFC 8414: and only what it offers is advertised."""
    make_toolset("finance")
    for path in ("", "/mcp", "/mcp/finance"):
        resource = mcp_server.get(f"/.well-known/oauth-protected-resource{path}").json()
        assert resource["scopes_supported"] == ["workflows:read", "workflows:run"]
        [issuer] = resource["authorization_servers"]
        assert resource["resource"] == f"{issuer}{path}"
    for name in ("oauth-authorization-server", "openid-configuration"):
        found = mcp_server.get(f"/.well-known/{name}").json()
        assert found["issuer"] == issuer
        assert found["code_challenge_methods_supported"] == ["S256"]
        assert found["response_types_supported"] == ["code"]
        assert found["grant_types_supported"] == ["authorization_code", "refresh_token"]
        assert found["token_endpoint_auth_methods_supported"] == ["none"]
        assert found["client_id_metadata_document_supported"] is True
        assert found["authorization_response_iss_parameter_supported"] is True
        for endpoint in ("authorization", "token", "registration", "revocation"):
            assert found[f"{endpoint}_endpoint"].startswith(f"{issuer}/oauth/")


def test_a_user_who_is_no_staff_signs_an_application_in(agent, anna, settings):
    """The page says in words what it gets; executions name user and client."""
    settings.CATALOGUE = settings.CATALOGUE | {"retry_attempts": 0}
    make_workflow(name="monthly_report")
    assert agent.register(client_name="Desk \u202eAgent\n").json()["client_name"] == "Desk Agent"
    to_sign_in = agent.browser.get(agent.address())
    assert to_sign_in.headers["location"].startswith("/oauth/sign-in?next=/oauth/authorize")
    agent.sign_in("anna")
    page = agent.browser.get(agent.address())
    words = " ".join(re.sub(r"<[^>]+>", " ", page.text).split())
    for said in (
        "Desk Agent requests access on behalf of anna", "gets 1 workflow as a tool", "onthly", "eport",
        "It may start runs on your behalf", "a program on this computer (http://127.0.0.1:4711)",
        "was not verified",
    ):  # fmt: skip
        assert said in words
    # Where a client's callback redirects to is not known, and Chromium applies this to redirects as well.
    assert "form-action" not in page.headers["content-security-policy"]
    assert "form-action 'self'" in agent.browser.get("/oauth/sign-in").headers["content-security-policy"]
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert (page.headers["x-frame-options"], page.headers["cache-control"]) == ("DENY", "no-store")
    given = agent.decide()
    assert (given["state"], given["iss"]) == ("s1", agent.metadata["issuer"])
    tokens = agent.redeem(given["code"])
    assert tokens.headers["cache-control"] == "no-store"
    assert agent.tokens["access_token"].startswith("wfo_") and agent.tokens["expires_in"] == 3600
    assert "monthly_report" in agent.tools()
    agent.ask("tools/call", name="monthly_report", arguments={})
    execution = Execution.objects.get()
    assert (execution.caller, execution.caller_name) == (f"user:{anna.pk}", "anna via Desk Agent")
    assert AllowedApplication.objects.get().last_used_at is not None


def test_no_secret_is_stored(agent):
    agent.connect("anna")
    secret = [agent.tokens["access_token"], agent.tokens["refresh_token"]]
    with connection.cursor() as cursor:
        for table in (AccessToken, RefreshToken, AllowedApplication, Application):
            cursor.execute(f"SELECT * FROM {table._meta.db_table}")
            assert not any(text in str(row) for row in cursor.fetchall() for text in secret)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"code_challenge": None, "code_challenge_method": None}, "invalid_request"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"code_challenge_method": None}, "invalid_request"),
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"scope": "everything"}, "invalid_scope"),
        ({"scope": "openid offline_access"}, "invalid_scope"),
        ({"scope": "workflows:read\u200b WORKFLOWS:READ"}, "invalid_scope"),
        ({"scope": "catalogue:admin"}, "invalid_scope"),
        ({"resource": "https://elsewhere.example/mcp"}, "invalid_target"),
        ({"resource": "http://localhost:8000/api"}, "invalid_target"),
        ({"resource": "http://localhost:8000/mcp/no-such-toolset"}, "invalid_target"),
        ({"resource": "http://localhost:8000/mcp/closed"}, "invalid_target"),
        ({"resource": ["http://localhost:8000/mcp", "http://localhost:8000/mcp/finance"]}, "invalid_target"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("prompt", [None, "none", "login"])
def test_a_request_that_asks_for_too_much_leads_to_a_page_and_from_there_back_with_an_error(
    agent, changes, error, prompt
):
    """The page leads on by itself to a program on the user's machine, without a redirect: the policy of the
    sign-in page's form would stop that."""
    make_toolset("finance")
    Group.objects.create(name="Finance")
    make_toolset("closed", reserved_for=["group:Finance"])
    agent.register()
    asked = agent.address(prompt=prompt, **changes)
    signed_out = agent.browser.get(asked)
    assert (signed_out.status_code, signed_out.headers["location"][:14]) == (302, "/oauth/sign-in")
    agent.sign_in("anna")
    page = agent.browser.get(asked)
    assert page.status_code in (400, 401) and "location" not in page.headers
    [link] = re.findall(rf'href="({REDIRECT}[^"]*)"', page.text)
    given = {name: values[0] for name, values in parse_qs(urlsplit(html.unescape(link)).query).items()}
    assert (given["error"], given["iss"], given["state"]) == (error, agent.metadata["issuer"], "s1")
    assert page.headers["refresh"] == f"0;url={html.unescape(link)}"


@pytest.mark.parametrize(
    "address",
    [
        "https://agent.example/callback",
        "https://127.0.0.1.agent.example/callback",
        "claude://localhost/callback",
        "com.example.agent:/callback",
    ],
)
def test_no_link_alone_leads_to_an_application_that_its_user_never_allowed(agent, address):
    """H15: anyone may register an address. After the user has allowed it once, it hears of errors at once."""
    agent.register(redirect_uris=[address])
    agent.sign_in("anna")
    wrong = agent.address(redirect_uri=address, scope="everything")
    page = agent.browser.get(wrong)
    assert f'href="{address}?error=invalid_scope' in page.text
    assert not {"location", "refresh"} & set(page.headers)
    right = agent.address(redirect_uri=address)
    assert agent.browser.get(right).status_code == 200
    allowed = agent.send(right, {"allow": "yes"})
    assert allowed.headers["location"].startswith(f"{address}?code=")
    assert agent.browser.get(wrong).headers["refresh"].startswith(f"0;url={address}?error=invalid_scope")
    AllowedApplication.objects.update(revoked_at=timezone.now())
    assert "refresh" not in agent.browser.get(wrong).headers


def test_an_error_after_a_second_factor_leads_to_the_client(agent, anna):
    agent.register()
    factor = second_factor.begin(anna, {})
    [code, *_] = second_factor.confirm(factor)
    assert agent.sign_in("anna").status_code == 302
    wrong = agent.address(scope="everything")
    asked = agent.browser.get(wrong).headers["location"]
    entered = agent.send(asked, {"code": code})
    assert entered.headers["location"] == wrong
    assert "error=invalid_scope" in agent.browser.get(wrong).headers["refresh"]


@pytest.mark.parametrize(
    ("requested", "granted"),
    [
        ("workflows:read workflows:run offline_access", "workflows:read workflows:run"),
        ("openid profile workflows:read", "workflows:read"),
        ("workflows:read  workflows:read workflows:run ", "workflows:read workflows:run"),
        ('workflows:run https://a.example/scope \u00e9 "x" *', "workflows:run"),
        ("catalogue:admin workflows:read", "workflows:read"),
        ("", "workflows:read workflows:run"),
        (" ", "workflows:read workflows:run"),
        (None, "workflows:read workflows:run"),
    ],
)
def test_scopes_of_other_servers_are_left_out_and_the_token_names_what_is_left(agent, requested, granted):
    """RFC 6749, 3.3; also at registration."""
    assert agent.register(scope=requested).status_code == 201
    agent.sign_in("anna")
    agent.redeem(agent.decide(scope=requested)["code"])
    assert agent.tokens["scope"] == granted
    assert agent.ask("tools/list").status_code == 200


@pytest.mark.parametrize(
    ("requested", "granted"),
    [
        ("workflows:read workflows:run offline_access", "workflows:read workflows:run"),
        ("openid workflows:run workflows:run", "workflows:run"),
        ("workflows:read catalogue:admin", "workflows:read"),
        ("", "workflows:read workflows:run"),
        ("  ", "workflows:read workflows:run"),
    ],
)
def test_a_renewal_narrows_to_what_was_granted(agent, requested, granted):
    """RFC 6749, 6: never to more."""
    agent.connect("anna")
    form = {"grant_type": "refresh_token", "refresh_token": agent.tokens["refresh_token"]}
    for unknown in ("offline_access", "catalogue:admin"):
        refused = agent.exchange(**form, scope=unknown)
        assert (refused.status_code, refused.json()["error"]) == (400, "invalid_scope")
        assert "workflows:read workflows:run" in refused.json()["error_description"]
    assert agent.exchange(**form, scope=requested).json()["scope"] == granted


@pytest.mark.parametrize(
    "changes",
    [
        {"client_id": "unknown"},
        {"redirect_uri": "https://evil.example/callback"},
        {"redirect_uri": "http://127.0.0.1:4711/other"},
        {"redirect_uri": "http://127.0.0.1:4711/callback?next=evil"},
        {"redirect_uri": "http://localhost:4711/callback"},
        {"redirect_uri": "http://127.0.0.1:4711/callback#f"},
        {"redirect_uri": "http://evil@127.0.0.1:4711/callback"},
    ],
)
def test_a_request_that_names_another_address_leads_nowhere(agent, changes):
    agent.register()
    agent.sign_in("anna")
    for answer in (
        agent.browser.get(agent.address(**changes)),
        agent.send(agent.address(**changes), {"allow": "yes"}),
        agent.send(agent.address(**changes), {"refuse": "yes"}),
    ):
        assert answer.status_code == 400 and "location" not in answer.headers
        assert "Nothing was allowed" in answer.text


def test_a_program_on_the_users_machine_may_use_any_port(agent):
    """RFC 8252, 7.3."""
    agent.register()
    agent.sign_in("anna")
    other = "http://127.0.0.1:5999/callback"
    assert agent.browser.get(agent.address(redirect_uri=other)).status_code == 200


@pytest.mark.parametrize(
    ("name", "shown", "reads_as"),
    [
        ("\u0421l\u0430ude", "\u0421l\u0430ude", "Claude"),
        (
            "\u0421l\u0430ude \u05db\u05dc\u05d1",
            "\u0421l\u0430ude \u05db\u05dc\u05d1",
            "Claude \u05db\u05dc\u05d1",
        ),
        ("Claude", "Claude", ""),
        ("Caf\u00e9 M\u00fcller", "Caf\u00e9 M\u00fcller", ""),
        (
            "\u041f\u043e\u043c\u043e\u0449\u043d\u0438\u043a",
            "\u041f\u043e\u043c\u043e\u0449\u043d\u0438\u043a",
            "",
        ),
        ("\u05db\u05dc\u05d1 123", "\u05db\u05dc\u05d1 123", ""),
        ("A" + "\u0489" * 60, "A\u0489\u0489", ""),
        ("<b>x</b>" + "y" * 500, "&lt;b&gt;x&lt;/b&gt;" + "y" * 92, ""),
        ("\u200b\u2060\ufeff\u3164\U000e0141", "An application without a name", ""),
    ],
)
def test_the_page_shows_strange_names_for_what_they_are(agent, name, shown, reads_as):
    """A name in another direction stays among itself, accents do not cover other lines, and letters that are
    taken for others are named."""
    agent.register(client_name=name)
    agent.sign_in("anna")
    page = agent.browser.get(agent.address()).text
    assert f"<bdi>{shown}</bdi>" in page
    assert ("letters of another alphabet" in page) == bool(reads_as)
    assert f"“<bdi>{reads_as}</bdi>”" in page or not reads_as


@pytest.mark.parametrize("state", ["%zz", "a%", "%e2%82", "%u0041", "{a|b}", "%41%2"])
def test_escapes_that_are_none_are_read_as_characters(agent, state):
    """As browsers do, which send them as they are."""
    agent.register()
    agent.sign_in("anna")
    for more in ("", "&scope=everything"):
        asked = f"{agent.address(state=None, scope=None)}{more}&state={state}"
        page = agent.browser.get(asked)
        answer = agent.send(asked, {"allow": "yes"})
        assert page.status_code == (400 if more else 200)
        assert carried(answer)["state"] == unquote(state)


def test_an_empty_resource_counts_as_none(agent):
    """RFC 6749, 3.1."""
    agent.register()
    agent.sign_in("anna")
    assert agent.redeem(agent.decide(resource="")["code"], resource="").status_code == 200
    assert agent.ask("tools/list").status_code == 200


def test_nothing_skips_the_consent(agent):
    agent.connect("anna")
    for more in ({"approval_prompt": "auto"}, {"prompt": "none"}):
        assert "requests access on behalf of" in agent.browser.get(agent.address(**more)).text
    assert agent.browser.post(agent.address(), data={"allow": "yes"}).status_code == 403  # Without its token
    refused = agent.decide("refuse")
    assert (refused["error"], refused["iss"]) == ("access_denied", agent.metadata["issuer"])


@pytest.mark.parametrize(
    "changes",
    [
        {"code_verifier": "x" * 60},
        {"redirect_uri": "http://127.0.0.1:4711/other"},
        {"client_id": "other"},
        {"resource": "https://elsewhere.example/mcp"},
        {"resource": "http://localhost:8000/mcp/finance"},
    ],
)
def test_a_code_is_good_only_for_what_it_was_given_for(agent, changes):
    make_toolset("finance")
    agent.register()
    agent.sign_in("anna")
    assert agent.redeem(agent.decide()["code"], **changes).status_code in (400, 401)
    assert not AccessToken.objects.exists()


def test_a_code_is_good_once_and_its_reuse_ends_what_came_of_it(agent):
    """OAuth 2.1, 4.1.3: one of the two who have it has stolen it."""
    agent.connect("anna")
    before = agent.tokens
    code = agent.decide()["code"]
    assert agent.redeem(code).status_code == 200
    assert agent.ask("tools/list").status_code == 200
    assert agent.redeem(code).json()["error"] == "invalid_grant"
    forget_bearers()
    assert agent.ask("tools/list").status_code == 401
    assert agent.refresh().json()["error"] == "invalid_grant"
    assert agent.redeem(code).json()["error"] == "invalid_grant"
    assert agent.refresh(before["refresh_token"]).status_code == 200, "of another sign-in"


def test_a_parameter_that_is_sent_twice_is_refused(agent):
    """RFC 6749, 3.1 and 3.2: whichever is sent twice, and whether both are the same."""
    agent.connect("anna")
    form = {
        "grant_type": "refresh_token", "refresh_token": agent.tokens["refresh_token"],
        "client_id": agent.client_id, "scope": "workflows:read",
    }  # fmt: skip
    headers = {"content-type": "application/x-www-form-urlencoded"}
    for path, sent in (
        ("/oauth/token", form),
        ("/oauth/revoke", {"token": "x", "client_id": agent.client_id}),
    ):
        for name in sent:
            for value in (sent[name], "other"):
                body = urlencode([*sent.items(), (name, value)])
                answer = agent.browser.post(path, content=body, headers=headers)
                assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request"), body
                answer = agent.browser.post(f"{path}?{urlencode({name: value})}", data=sent)
                assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request"), body
    for name in ("client_id", "redirect_uri", "state", "scope", "code_challenge"):
        twice = f"{agent.address()}&{urlencode({name: 'x'})}"
        answer = agent.browser.get(twice)
        assert answer.status_code == 400 and "location" not in answer.headers
    assert agent.refresh().status_code == 200


def test_characters_that_no_database_stores_are_refused_as_other_wrong_ones(agent, subtests):
    """U+0000, which PostgreSQL has no text for."""
    agent.register()
    agent.sign_in("anna")
    for name in ("client_id", "redirect_uri", "state", "code_challenge", "scope", "resource"):
        with subtests.test(name):
            assert agent.browser.get(agent.address(**{name: "a\0b"})).status_code < 500
    code = agent.decide()["code"]
    for name in ("code", "client_id", "redirect_uri", "code_verifier", "resource"):
        with subtests.test(f"of a token: {name}"):
            form = {"code": code, name: "a\0b"}
            assert agent.redeem(**form).status_code in (400, 401)
    assert agent.refresh("wfr_a\0b").status_code == 400
    revoked = agent.browser.post("/oauth/revoke", data={"token": "a\0b", "client_id": agent.client_id})
    assert revoked.status_code in (200, 400)
    named = agent.register(client_name="a\0b", redirect_uris=["https://a.example/\0"])
    assert named.status_code == 400
    assert agent.send("/oauth/sign-in", {"username": "a\0b", "password": "a\0b"}).status_code == 200
    asked = agent.browser.get("/api/sources/", headers={"authorization": "Bearer wfo_a%00b"})
    assert asked.status_code == 401


@pytest.mark.parametrize(
    "kind", ["password", "client_credentials", "urn:ietf:params:oauth:grant-type:device_code", "implicit", ""]
)
def test_no_other_grant_gives_a_token(agent, kind):
    agent.register()
    answer = agent.exchange(grant_type=kind, username="anna", password=PASSWORD)
    assert (answer.status_code, answer.json()["error"]) == (400, "unsupported_grant_type")


def test_a_token_for_a_toolset_sees_that_alone(mcp_server, anna):
    """RFC 8707; the resource is given with and without the slash at its end."""
    paid = make_workflow(name="paid")
    make_workflow(name="other")
    make_toolset("finance", picked=[paid])
    make_toolset("sales")
    agent = Agent(mcp_server, path="/mcp/finance")
    agent.register()
    agent.sign_in("anna")
    shown = agent.browser.get(agent.address(resource=f"{agent.resource}/")).text
    assert "In the toolset" in shown and "gets 1 workflow as a tool" in " ".join(shown.split())
    agent.redeem(agent.decide()["code"])
    for path in ("/mcp/finance", "/mcp"):
        assert "paid" in agent.tools(path=path) and "other" not in agent.tools(path=path)
    assert agent.ask("tools/list", path="/mcp/sales").status_code == 404
    listed = agent.read("/api/workflows")
    assert [row["tool_name"] for row in listed.json()["results"]] == ["paid"]
    agent.close()


def test_an_application_of_a_toolset_reads_only_what_its_user_ran_in_that_toolset(mcp_server, anna):
    """E6: records of tools that it does not see stay out of its reach, over MCP and REST."""
    paid = make_workflow(name="paid")
    make_toolset("finance", picked=[paid])
    of_anna: dict[str, Any] = {"caller": f"user:{anna.pk}", "state": "completed"}
    own = make_execution(paid, toolset="finance", **of_anna)
    salary = make_execution(make_workflow(name="salary"), idempotency_key="k1", **of_anna)
    asked = make_workflow_request("What does Ben earn?", caller=f"user:{anna.pk}")
    mine = make_workflow_request("What was paid?", caller=f"user:{anna.pk}", toolset="finance")
    agent = Agent(mcp_server, path="/mcp/finance")
    agent.connect("anna")

    shown = agent.ask("tools/call", name="list_executions", arguments={}).text
    assert str(own.pk) in shown and str(salary.pk) not in shown
    assert agent.ids("/api/executions") == {str(own.pk)}
    assert agent.ids("/api/workflow-requests") == {str(mine.pk)}
    assert agent.read(f"/api/executions/{own.pk}").status_code == 200
    assert agent.read(f"/api/executions/{salary.pk}").status_code == 404
    assert agent.read(f"/api/workflow-requests/{asked.pk}").status_code == 404
    read = agent.ask("tools/call", name="get_execution_status", arguments={"execution_id": str(salary.pk)})
    assert f"Unknown execution: {salary.pk}" in read.text
    keyed = agent.bearer | {"idempotency-key": "k1"}
    again = agent.browser.post("/api/executions", json={"tool": "paid", "arguments": {}}, headers=keyed)
    assert again.status_code == 409
    assert "belongs to a call outside of this toolset" in again.text and str(salary.pk) not in again.text
    agent.close()

    whole = Agent(mcp_server)
    whole.connect("anna")
    assert whole.ids("/api/executions") == {str(own.pk), str(salary.pk)}
    whole.close()


def test_a_token_of_another_address_of_this_server_is_refused(agent, settings):
    agent.connect("anna")
    settings.PUBLIC_URL = "https://new.example"
    forget_bearers()
    assert agent.ask("tools/list").status_code == 401


def test_a_refresh_token_is_good_once_and_its_reuse_ends_the_family(agent):
    """RFC 9700, 4.14."""
    agent.connect("anna")
    first, old = agent.tokens["refresh_token"], agent.tokens["access_token"]
    assert agent.refresh().status_code == 200
    assert agent.tokens["refresh_token"] != first and agent.tokens["access_token"] != old
    assert agent.ask("tools/list").status_code == 200
    second = agent.tokens["refresh_token"]
    let_pass(61)
    assert agent.refresh(first).json()["error"] == "invalid_grant"
    forget_bearers()
    assert agent.ask("tools/list").status_code == 401
    assert agent.refresh(second).json()["error"] == "invalid_grant"


def let_pass(seconds: float) -> None:
    """For the tokens that have been replaced."""
    past = timedelta(seconds=seconds)
    replaced = RefreshToken.objects.exclude(revoked=None)
    former = list(replaced.values_list("access_token", flat=True))
    replaced.update(revoked=F("revoked") - past)
    AccessToken.objects.filter(pk__in=former).update(expires=F("expires") - past)
    forget_bearers()


def test_a_renewal_by_one_process_of_a_client_leaves_another_time_for_its_own(agent):
    """Its access token goes on, and ends while it can still be renewed."""
    agent.connect("anna")
    waiting = agent.tokens
    agent.refresh()
    renewed = agent.tokens
    agent.refresh()
    agent.tokens = waiting
    forget_bearers()
    assert agent.ask("tools/list").status_code == 200
    let_pass(31)
    assert agent.ask("tools/list").status_code == 401
    assert agent.refresh().status_code == 200
    assert agent.ask("tools/list").status_code == 200
    agent.tokens = renewed
    assert agent.refresh().status_code == 200


@pytest.mark.parametrize("seconds", [0, 1800])
def test_an_operator_sets_for_how_long(agent, settings, seconds):
    settings.OAUTH2_PROVIDER = settings.OAUTH2_PROVIDER | {"REFRESH_TOKEN_GRACE_PERIOD_SECONDS": seconds}
    agent.connect("anna")
    first = agent.tokens["refresh_token"]
    agent.refresh()
    let_pass(max(0, seconds - 30))
    assert agent.refresh(first).status_code == (200 if seconds else 400)


@pytest.mark.parametrize("kind", ["access_token", "refresh_token"])
@pytest.mark.parametrize("whose", ["the former", "the last", "the other's"])
def test_a_client_gives_back_the_tokens_of_all_its_processes(agent, whose, kind):
    """RFC 7009, 2.1: also those that go on for a while after a renewal."""
    agent.connect("anna")
    former = agent.tokens
    agent.refresh()
    last = agent.tokens
    agent.refresh(former["refresh_token"])
    tokens = {"the former": former, "the last": last, "the other's": agent.tokens}
    form = {"token": tokens[whose][kind], "client_id": agent.client_id}
    assert agent.browser.post("/oauth/revoke", data=form).status_code == 200
    forget_bearers()
    for agent.tokens in tokens.values():
        assert agent.ask("tools/list").status_code == 401
        assert agent.refresh().json()["error"] == "invalid_grant"


def test_a_client_gives_back_also_the_tokens_of_a_renewal_under_way(agent, anna):
    agent.connect("anna")
    form = {"token": agent.tokens["refresh_token"], "client_id": agent.client_id}
    give_back = threading.Thread(target=agent.browser.post, args=("/oauth/revoke",), kwargs={"data": form})
    with transaction.atomic():
        used = RefreshToken.objects.select_for_update().get()
        owner = {"user": anna, "application": used.application}
        access = AccessToken.objects.create(**owner, token="wfo_new", expires=timezone.now())
        family = {"token_family": used.token_family, "access_token": access}
        renewed = RefreshToken.objects.create(**owner, **family, token="wfr_new")
        give_back.start()
        give_back.join(timeout=1)
    give_back.join()
    renewed.refresh_from_db()
    assert renewed.revoked is not None and not AccessToken.objects.exists()


def test_another_client_gives_back_none_of_them(agent, mcp_server):
    agent.connect("anna")
    other = Agent(mcp_server)
    other.register()
    form = {"token": agent.tokens["refresh_token"], "client_id": other.client_id}
    assert other.browser.post("/oauth/revoke", data=form).status_code == 200
    other.close()
    assert agent.refresh().status_code == 200


def test_who_loses_the_answer_to_a_refresh_asks_again_and_all_of_it_is_one_family(agent):
    """RFC 9700, 4.14: neither of the two has been stolen; a reuse later on ends both."""
    agent.connect("anna")
    first = agent.tokens["refresh_token"]
    agent.refresh()
    lost = agent.tokens
    let_pass(59)
    assert agent.refresh(first).status_code == 200
    assert agent.ask("tools/list").status_code == 200
    again = agent.tokens
    assert agent.refresh(lost["refresh_token"]).status_code == 200, "the other process of the client"
    assert agent.exchange(
        grant_type="refresh_token", refresh_token=again["refresh_token"], resource=f"{agent.resource}/other"
    ).json()["error"] == "invalid_target"  # fmt: skip
    let_pass(61)
    assert agent.refresh(first).json()["error"] == "invalid_grant"
    assert agent.refresh(again["refresh_token"]).json()["error"] == "invalid_grant"
    assert agent.refresh(agent.tokens["refresh_token"]).json()["error"] == "invalid_grant"


def test_many_who_use_one_refresh_token_at_once_all_go_on(agent):
    agent.connect("anna")
    token, barrier, answers = agent.tokens["refresh_token"], threading.Barrier(6), []
    address = f"{agent.server.base_url}{agent.local(agent.metadata['token_endpoint'])}"
    form = {"grant_type": "refresh_token", "refresh_token": token, "client_id": agent.client_id}

    def use() -> None:
        barrier.wait()
        answers.append(plain_http.post(address, data=form, timeout=30))

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [200] * 6
    assert len({answer.json()["access_token"] for answer in answers}) == 6
    for answer in answers:
        agent.tokens = answer.json()
        assert agent.ask("tools/list").status_code == 200


def test_access_ends_with_the_users(agent, anna):
    """Of the token, of refreshing, and of a code that was given before."""
    agent.connect("anna")
    code = agent.decide()["code"]
    User.objects.filter(pk=anna.pk).update(is_active=False)
    forget_bearers()
    assert agent.ask("tools/list").status_code == 401
    assert agent.refresh().status_code in (400, 401)
    assert agent.redeem(code).status_code in (400, 401)


def test_an_agent_loses_what_its_user_loses(mcp_server, anna):
    """The scopes of an administrator go with the account's rights; those of every user stay."""
    User.objects.filter(pk=anna.pk).update(is_staff=True, is_superuser=True)
    agent = Agent(mcp_server, scope="workflows:read catalogue:read")
    agent.connect("anna")
    headers = {"authorization": f"Bearer {agent.tokens['access_token']}"}
    assert agent.browser.get("/api/sources", headers=headers).status_code == 200
    User.objects.filter(pk=anna.pk).update(is_superuser=False, is_staff=False)
    forget_bearers()
    assert agent.browser.get("/api/sources", headers=headers).status_code == 403
    assert agent.ask("tools/list").status_code == 200
    agent.close()


def test_an_application_gets_no_access_that_outlasts_its_users_consent(mcp_server, anna):
    """An access token that it made or rotated would go on after the user has revoked the application."""
    User.objects.filter(pk=anna.pk).update(is_staff=True, is_superuser=True)
    agent = Agent(mcp_server, scope="catalogue:admin")
    agent.connect("anna")
    headers = {"authorization": f"Bearer {agent.tokens['access_token']}"}
    token, _ = create_token(name="other")
    for path, body in (("", {"name": "lasting", "expires_at": None}), (f"{token.pk}/rotate/", {})):
        refused = agent.browser.post(f"/api/tokens/{path}", json=body, headers=headers)
        assert (refused.status_code, "would outlive the login" in refused.text) == (403, True)
    assert agent.browser.get("/api/tokens/", headers=headers).json()["count"] == 1
    agent.close()


def test_a_user_revokes_an_application(agent, anna):
    """Their own only; the history names both."""
    agent.connect("anna")
    code = agent.decide()["code"]
    bob = User.objects.create_user("bob", password=PASSWORD)
    theirs = AllowedApplication.objects.create(
        user=bob, application=Application.objects.get(), name="x", allowed_at="2026-01-01T00:00Z"
    )
    page = agent.browser.get("/oauth/applications").text
    assert "Desk Agent" in page and page.count("Revoke") == 1
    assert agent.send(f"/oauth/applications/{theirs.pk}/revoke", {}).status_code == 404
    mine = AllowedApplication.objects.get(user=anna)
    assert agent.send(f"/oauth/applications/{mine.pk}/revoke", {}).status_code == 302
    forget_bearers()
    assert agent.ask("tools/list").status_code == 401
    assert agent.refresh().json()["error"] == "invalid_grant"
    assert agent.redeem(code).json()["error"] == "invalid_grant"
    assert "No application can act on your behalf" in agent.browser.get("/oauth/applications").text
    assert agent.redeem(agent.decide()["code"]).status_code == 200  # Allowed anew


def test_the_audit_has_who_allowed_and_revoked_what(agent, anna):
    """As of a token that is made in the admin."""
    agent.connect("anna")
    allowed = AllowedApplication.objects.get()
    agent.send(f"/oauth/applications/{allowed.pk}/revoke", {})
    given, ended = HistoryEntry.objects.filter(model="mcp_bridge.allowedapplication").order_by("pk")
    assert given.message == "Allowed by its user: workflows:read, workflows:run."
    assert ended.message == "Revoked by its user."
    seal()
    entries = Entry.objects.filter(event__startswith="allowedapplication").order_by("pk")
    assert [(one.kind, one.actor_name, one.subject_name) for one in entries] == [
        (Kind.TOKEN, "anna", "Desk Agent for anna")
    ] * 2
    assert verify().holds


def test_an_administrator_finds_and_revokes_what_a_user_allowed(agent, admin_client):
    """B8: by its page and in bulk, and the history says who did it. The toolkit's own pages are gone."""
    agent.connect("anna")
    listed = admin_client.get(list_url(AllowedApplication), {"q": "DESK", "usable": "yes"})
    assert "Desk Agent" in text_of(listed)
    assert "Desk Agent" not in text_of(admin_client.get(list_url(AllowedApplication), {"usable": "no"}))
    allowed = AllowedApplication.objects.get()
    assert REDIRECT in text_of(admin_client.get(page_url(allowed)))
    assert "Revoked: 1." in told(run_action(admin_client, "revoke_selected", allowed))
    forget_bearers()
    assert agent.ask("tools/list").status_code == 401
    assert HistoryEntry.objects.get(message="Revoked.").actor_name == "admin"
    agent.redeem(agent.decide()["code"])
    assert "Revoked: Desk Agent for anna." in told(press(admin_client, allowed, "revoke"))
    forget_bearers()
    assert agent.ask("tools/list").status_code == 401
    assert admin_client.get("/admin/oauth2_provider/accesstoken/").status_code == 404


def test_a_consent_that_is_given_several_times_at_once_counts_once(agent):
    agent.register()
    agent.sign_in("anna")
    assert agent.browser.get(agent.address()).status_code == 200
    barrier, answers = threading.Barrier(4), []

    def allow() -> None:
        barrier.wait()
        answers.append(agent.send(agent.address(), {"allow": "yes"}).status_code)

    threads = [threading.Thread(target=allow) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [302] * 4 and AllowedApplication.objects.count() == 1


def test_a_client_gives_its_tokens_back(agent):
    """RFC 7009."""
    agent.connect("anna")
    form = {"token": agent.tokens["refresh_token"], "client_id": agent.client_id}
    assert (
        agent.browser.post(agent.local(agent.metadata["revocation_endpoint"]), data=form).status_code == 200
    )
    forget_bearers()
    assert agent.ask("tools/list").status_code == 401
    assert agent.refresh().json()["error"] == "invalid_grant"


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ({"redirect_uris": []}, "invalid_redirect_uri"),
        ({"redirect_uris": ["http://evil.example/cb"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["javascript:alert(1)"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["data:text/html,x"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://a.example/cb#x"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://*.example/cb"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://a.example/cb https://b.example"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://[::1"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https:///cb"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://a.example;sandbox/cb"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://a.example,b.example/cb"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://a.example\\.b.example/cb"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://a.example%2eb.example/cb"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://a.example:0x50/cb"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://'self'/cb"]}, "invalid_redirect_uri"),
        (
            {"redirect_uris": ['https://a.example/"cb', "https://a.example/{cb}", "https://a.example/c|b"]},
            "invalid_redirect_uri",
        ),
        (
            {"redirect_uris": ["com.example.app:/<cb>", "https://a.example/%zz", "https://a.example/c\\b"]},
            "invalid_redirect_uri",
        ),
        ({"redirect_uris": "https://a.example/cb"}, "invalid_redirect_uri"),
        ({"redirect_uris": None}, "invalid_redirect_uri"),
        ({"redirect_uris": [None, 7, {}]}, "invalid_redirect_uri"),
        (
            {"redirect_uris": ["file:///etc/passwd", "vbscript:x", "blob:https://a.example/1"]},
            "invalid_redirect_uri",
        ),
        ({"redirect_uris": ["a.example:8080/cb"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["claude:"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["unknown-editor://cb"]}, "invalid_redirect_uri"),
        ({"grant_types": ["client_credentials"]}, "invalid_client_metadata"),
        ({"client_name": 7}, "invalid_client_metadata"),
        ({"client_name": "x" * 20_000}, "invalid_client_metadata"),
    ],
)
def test_a_registration_that_could_harm_is_refused(agent, metadata, error):
    answer = agent.register(**metadata)
    assert (answer.status_code, answer.json()["error"]) == (400, error)
    assert not Application.objects.exists()


HERE, ELSEWHERE = "http://127.0.0.1/cb", "https://a.example/cb"
MANY = [*(f"{ELSEWHERE}{number}" for number in range(20)), HERE]
SCHEMES = ["warp://cb", "kiro://kiro.oauth/cb", "com.example.app:/cb", "org.example.app://cb"]
CAPITALS = ["HTTPS://A.example/cb", "Https://127.0.0.1/cb", "HTTP://127.0.0.1/cb", "Claude://cb"]


@pytest.mark.parametrize(
    ("metadata", "registered"),
    [
        ({"redirect_uris": [ELSEWHERE, HERE, "unknown-editor://cb"]}, [ELSEWHERE, HERE]),
        ({"redirect_uris": ["http://127.0.0.1:*/cb", "http://a.example/cb", HERE]}, [HERE]),
        ({"redirect_uris": [None, 7, {"uri": HERE}, "javascript:alert(1)", f"{ELSEWHERE}\n", HERE]}, [HERE]),
        ({"redirect_uris": [HERE, HERE]}, [HERE]),
        ({"redirect_uris": MANY}, MANY),
        ({"redirect_uris": SCHEMES}, SCHEMES),
        ({"redirect_uris": CAPITALS}, CAPITALS),
        ({"redirect_uris": ["https://[2001:db8::1]:8/c?b=%20'"]}, ["https://[2001:db8::1]:8/c?b=%20'"]),
        ({"client_name": None, "grant_types": None, "logo_uri": None, "scope": None}, [REDIRECT]),
        ({"grant_types": "authorization_code", "contacts": {}, "jwks": 7, "scope": 7}, [REDIRECT]),
        ({"grant_types": []}, [REDIRECT]),
        ({"grant_types": ["authorization_code", "device", 7, None]}, [REDIRECT]),
    ],
)  # fmt: skip
def test_what_cannot_be_used_of_a_registration_is_left_out_and_said(agent, metadata, registered):
    with shown_lines() as lines:
        answer = agent.register(**metadata)
    assert (answer.status_code, answer.json()["redirect_uris"]) == (201, registered)
    left_out = set(map(str, metadata.get("redirect_uris", []))) - set(registered)
    assert bool(left_out) == any("Left out redirect_uris" in line for line in lines)
    agent.sign_in("anna")
    for address in registered:
        page = agent.browser.get(agent.address(redirect_uri=address))
        assert page.status_code == 200, address
        shown = "a program on this computer" in " ".join(page.text.split())
        assert shown is not address.lower().startswith("https:"), address


def test_an_operator_decides_which_desktop_applications_sign_users_in(agent, settings):
    """At once, also for those that have registered; the refusal names the setting."""
    address = "unknown-editor://callback"
    refused = agent.register(redirect_uris=[address])
    assert "CATALOGUE_OAUTH_REDIRECT_SCHEMES" in refused.json()["error_description"]
    before = settings.CATALOGUE
    settings.CATALOGUE = before | {"oauth_redirect_schemes": "claude, unknown-editor"}
    assert agent.register(redirect_uris=[address]).status_code == 201
    agent.sign_in("anna")
    asked = agent.address(redirect_uri=address)
    assert "unknown-editor:" in agent.browser.get(asked).text
    assert agent.send(asked, {"allow": "yes"}).headers["location"].startswith(f"{address}?code=")
    refusal = agent.send(asked, {"refuse": "yes"})
    assert refusal.headers["location"].startswith(f"{address}?error=access_denied")
    settings.CATALOGUE = before
    for request in (asked, agent.address(redirect_uri=None)):
        page = agent.browser.get(request)
        assert page.status_code == 400 and "CATALOGUE_OAUTH_REDIRECT_SCHEMES" in page.text
    assert agent.send(asked, {"allow": "yes"}).status_code == 400


def test_a_page_that_opens_the_sign_in_in_a_pop_up_sees_when_it_ends(agent):
    """No response on the way is isolated from its opener; all others are."""
    agent.register()

    def isolation(response: httpx2.Response) -> str:
        return response.headers["cross-origin-opener-policy"]

    asked = agent.browser.get(agent.address())
    signing_in = asked.headers["location"]
    assert isolation(asked) == isolation(agent.browser.get(signing_in)) == "unsafe-none"
    again = agent.send(signing_in, {"username": "anna", "password": "wrong"})
    assert (again.status_code, isolation(again)) == (200, "unsafe-none")
    assert isolation(agent.sign_in("anna")) == "unsafe-none"
    for changes in ({}, {"scope": "everything"}):
        assert isolation(agent.browser.get(agent.address(**changes))) == "unsafe-none"
    assert isolation(agent.send(agent.address(), {"allow": "yes"})) == "unsafe-none"
    assert isolation(agent.browser.get(f"/admin/second-factor/?next={agent.address()}")) == "unsafe-none"
    asking = "?next=/oauth/authorize"
    for path in (
        *("/oauth/sign-in", "/oauth/applications", "/admin/login/", "/oauth/sign-in?next=/admin/"),
        *(f"/oauth/applications{asking}", f"/admin/login/{asking}"),
    ):
        assert isolation(agent.browser.get(path)) == "same-origin", path


TWICE = b'{"redirect_uris": ["http://127.0.0.1/a"], "redirect_uris": ["http://127.0.0.1/b"]}'


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"1", b"[" * 5000, TWICE])
def test_what_is_no_registration_is_refused(agent, body):
    assert agent.browser.post("/oauth/register", content=body).status_code == 400


def test_registrations_are_bounded(agent, monkeypatch):
    """By address, and in all; those that no user allowed go after a day, the others stay."""
    agent.connect("anna")
    kept = agent.client_id
    monkeypatch.setattr("identity.oauth.grants.MAX_UNUSED", 2)
    assert [agent.register().status_code for _ in range(3)] == [201, 201, 503]
    Application.objects.exclude(client_id=kept).update(created=timezone.now() - timedelta(minutes=31))
    assert agent.register().status_code == 201, "a flood keeps others out for half an hour, not for a day"
    Application.objects.update(created="2026-01-01T00:00Z")
    assert agent.register().status_code == 201
    assert set(Application.objects.values_list("client_id", flat=True)) == {kept, agent.client_id}
    FailureCount.objects.update(failures=100)
    refused = agent.register()
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 0
    told = refused.json()["error_description"]
    assert "failed" not in told and "CATALOGUE_OAUTH_REGISTRATIONS_PER_HOUR" in told


def test_strangers_make_this_server_read_no_address(agent, monkeypatch):
    """And users only public ones, so often."""
    read: list[str] = []
    fetch = server.DocumentReader.fetch
    monkeypatch.setattr(
        server.DocumentReader, "fetch", lambda self, address: (read.append(address), fetch(self, address))[1]
    )
    agent.client_id = "https://127.0.0.1/client.json"
    agent.browser.get(agent.address())
    agent.browser.get(agent.address(prompt="none"))
    agent.redeem("x")
    agent.refresh("x")
    assert not read
    agent.sign_in("anna")
    assert agent.browser.get(agent.address()).status_code == 400
    assert read == [agent.client_id] and not Application.objects.exists()
    FailureCount.objects.update(failures=30)
    agent.client_id = "https://127.0.0.1/other.json"
    assert "Too many" in agent.browser.get(agent.address()).text
    assert len(read) == 1


@dataclass
class Vendor:
    """Describes a client at an https address of a private host, with a certificate of its own authority."""

    engine: ScriptedEngine
    authority: Path

    def __post_init__(self) -> None:
        self.address = f"https://127.0.0.1:{self.engine.port}/client.json"
        self.document = {
            "client_id": self.address,
            "client_name": "Editor",
            "redirect_uris": ["http://127.0.0.1/callback"],
            "grant_types": ["authorization_code", "urn:ietf:params:oauth:grant-type:device_code"],
        }

    def answers(self, status: int = 200, body: Any = None, **headers: str) -> None:
        self.engine.behave = replies(status, self.document if body is None else body, **headers)


@pytest.fixture
def vendor(tmp_path: Path, settings: Settings) -> Iterator[Vendor]:
    authority = Authority(tmp_path)
    issued = authority.issue("vendor")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(issued.certificate, issued.key)
    engine = ScriptedEngine(replies(404), tls=context)
    run_in_background_loop(engine.__aenter__())
    vendor = Vendor(engine, authority.ca)
    settings.CATALOGUE = settings.CATALOGUE | {
        "oauth_document_hosts": f"127.0.0.1:{engine.port}",
        "oauth_document_ca_file": str(authority.ca),
    }
    yield vendor
    run_in_background_loop(engine.__aexit__(None, None, None))
    cache.clear()  # A failure is remembered for a minute, by an address whose port the next test may get


def test_a_client_that_describes_itself_at_an_address(agent, vendor):
    """Client id metadata documents, over TLS: other grants of it are left out."""
    vendor.answers()
    agent.client_id = vendor.address
    agent.sign_in("anna")
    assert "it is described at 127.0.0.1" in " ".join(agent.browser.get(agent.address()).text.split())
    assert agent.redeem(agent.decide()["code"]).status_code == 200
    assert agent.ask("tools/list").status_code == 200
    assert [asked.target for asked in vendor.engine.received] == ["/client.json"]


@pytest.mark.parametrize(
    "described",
    [
        {"redirect_uris": ["https://a.example/cb", "http://127.0.0.1/callback", "unknown-editor://callback"]},
        {"redirect_uris": ["http://127.0.0.1:*/callback", "http://127.0.0.1/callback"]},
        {"redirect_uris": [*(f"https://a{n}.example/cb" for n in range(12)), "http://127.0.0.1/callback"]},
        {"redirect_uris": ["https://under_score.example/cb", "https://a.example:9/", "http://127.0.0.1/callback"]},
        {"redirect_uris": [None, "com.example.app:/cb", "http://127.0.0.1/callback"]},
        {"client_name": None, "grant_types": None, "response_types": None, "logo_uri": None},
        {"scope": "openid offline_access", "grant_types": "all", "contacts": 7},
    ],
)  # fmt: skip
def test_what_cannot_be_used_of_a_description_is_left_out(agent, vendor, described):
    vendor.answers(body=vendor.document | described)
    agent.client_id = vendor.address
    agent.sign_in("anna")
    assert agent.redeem(agent.decide()["code"]).status_code == 200
    for address in described.get("redirect_uris", ()):
        usable = address in Application.objects.get().redirect_uris.split()
        found = agent.browser.get(agent.address(redirect_uri=address or "unknown-editor://callback"))
        assert found.status_code == (200 if usable else 400), address


Change = Callable[[Vendor, Settings, pytest.MonkeyPatch], None]


def setting(**changes: str) -> Change:
    def change(vendor: Vendor, settings: Settings, _: pytest.MonkeyPatch) -> None:
        vendor.answers()
        settings.CATALOGUE = settings.CATALOGUE | changes

    return change


def answering(status: int = 200, **headers: str) -> Change:
    return lambda vendor, *_: vendor.answers(status, **headers)


def describing(**changes: Any) -> Change:
    return lambda vendor, *_: vendor.answers(body=vendor.document | changes)


def never_answering(vendor: Vendor, _: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(*_: Any) -> None:
        await asyncio.Event().wait()

    vendor.engine.behave = wait
    monkeypatch.setattr(server, "DOCUMENT_SECONDS", 0.3)


UNREACHED = "cannot be reached at a public address"
UNUSABLE: dict[str, tuple[Change, str]] = {
    "a private host, by default": (setting(oauth_document_hosts=""), UNREACHED),
    "another port of an allowed host": (setting(oauth_document_hosts="127.0.0.1:1"), UNREACHED),
    "an unknown authority": (setting(oauth_document_ca_file=""), "certificate verify failed"),
    "a redirect": (answering(302, location="/other.json"), "returned 302"),
    "nothing there": (answering(404), "returned 404"),
    "a page": (answering(content_type="text/html"), "text/html"),
    "too large": (describing(padding="x" * 20_000), "larger than 16,384 bytes"),
    "no JSON": (lambda vendor, *_: vendor.answers(body="{"), "is not JSON"),
    "no object": (lambda vendor, *_: vendor.answers(body=[1]), "is not a JSON object"),
    "another client": (describing(client_id="https://127.0.0.1/other.json"), "client_id"),
    "a foreign redirect address": (describing(redirect_uris=["http://evil.example/"]), "not encrypted"),
    "no answer in time": (never_answering, "within 0.3 s"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_a_description_that_cannot_be_used_signs_nobody_in_and_the_page_says_why(
    agent, vendor, settings, monkeypatch, case
):
    change, words = UNUSABLE[case]
    change(vendor, settings, monkeypatch)
    agent.client_id = vendor.address
    agent.sign_in("anna")
    page = agent.browser.get(agent.address())
    assert (page.status_code, Application.objects.exists()) == (400, False)
    assert words in html.unescape(page.text)
    if case.startswith(("a private host", "another port")):
        assert not vendor.engine.connections


@pytest.mark.parametrize(
    "host", ["localhost", "no-such-host.invalid", "10.9.8.7", "[::1]", "169.254.169.254", "2130706433"]
)
def test_no_user_learns_of_a_host_that_is_not_public(agent, host):
    """H16: neither its address nor whether it exists; the log has it."""
    agent.client_id = f"https://{host}/client.json"
    agent.sign_in("anna")
    with shown_lines() as lines:
        page = agent.browser.get(agent.address())
    assert page.status_code == 400
    words = html.unescape(page.text).replace(agent.client_id, "").replace(host, "")
    assert UNREACHED in words
    assert not re.search(r"127\.0|::1|10\.9|loopback|private|link-local|resolved|contacted", words)
    told = "link-local|private|loopback|not contacted|could not be resolved"
    assert [line for line in lines if re.search(told, line)]


@pytest.mark.parametrize("off", ["oauth_enabled", "oauth_registration"])
def test_an_operator_switches_it_off(agent, settings, off):
    agent.connect("anna")
    settings.CATALOGUE = settings.CATALOGUE | {off: False}
    forget_bearers()
    assert agent.browser.post("/oauth/register", json={"redirect_uris": [REDIRECT]}).status_code == 404
    everything = off == "oauth_enabled"
    assert agent.ask("tools/list").status_code == (401 if everything else 200)
    assert agent.refresh().status_code == (404 if everything else 200)
    found = agent.server.get("/.well-known/oauth-protected-resource/mcp").json()
    assert ("authorization_servers" in found) is not everything


def test_expired_tokens_are_cleaned_up(agent, caplog):
    caplog.set_level("INFO")
    agent.connect("anna")
    AccessToken.objects.update(expires="2026-01-01T00:00Z")
    forget_bearers()
    assert agent.ask("tools/list").status_code == 401
    assert app.conf.beat_schedule["clean-up-authorizations"]["task"] == clean_up_authorizations.name
    Session.objects.create(session_key="ended", session_data="", expire_date="2026-01-01T00:00Z")
    clean_up_authorizations()
    assert "deleted" not in caplog.text, "six lines an hour"
    assert not AccessToken.objects.exists() and not RefreshToken.objects.exists()
    assert not Session.objects.filter(session_key="ended").exists()
    assert Session.objects.exists(), "the browser's goes on"


def test_a_token_costs_its_queries_at_most_twice_a_second(agent, django_assert_num_queries, monkeypatch):
    agent.connect("anna")
    text = agent.tokens["access_token"]
    authenticate(text)
    forget_bearers()
    now = 1_000.0
    monkeypatch.setattr("identity.bearers.time", SimpleNamespace(monotonic=lambda: now))
    with django_assert_num_queries(5):
        assert authenticate(text) is not None
    with django_assert_num_queries(0):
        assert authenticate(text) is not None
    now += 0.51
    with django_assert_num_queries(5):
        assert authenticate(text) is not None


def test_an_application_renews_a_token_that_has_expired(agent):
    agent.connect("anna")
    AccessToken.objects.update(expires=timezone.now() - timedelta(minutes=1))
    clean_up_authorizations()
    forget_bearers()
    assert agent.ask("tools/list").status_code == 401
    assert agent.refresh().status_code == 200
    assert agent.ask("tools/list").status_code == 200
