"""Who gets in at the endpoint, in which order it is looked at, and what the others are told."""

import itertools
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from pytest_django import Settings

from catalogue.access import Scope
from catalogue.models import Toolset
from mcp_bridge.oauth.grants import slug_of
from mcp_bridge.oauth.server import canonical_resource
from mcp_bridge.tokens import create_token
from tests import plain_http
from tests.factories import make_execution, make_workflow
from tests.mcp_bridge.conftest import McpServer
from tests.mcp_bridge.serving import serving
from tests.mcp_bridge.test_endpoint import modern

ERAS = {"2026-07-28": modern("tools/list")[1], "2025-06-18": {"mcp-protocol-version": "2025-06-18"}}
METHODS = ("POST", "GET", "DELETE")


def request(
    server: McpServer, method: str = "POST", *, path: str = "/mcp", token: str = "", **headers: str
) -> httpx2.Response:
    usual = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    usual |= {"authorization": f"Bearer {token}"} if token else {}
    return plain_http.request(
        method,
        f"{server.base_url}{path}",
        headers=usual | {name.replace("_", "-"): value for name, value in headers.items()},
        json=modern("tools/list")[0] if method == "POST" else None,
        timeout=20,
    )


def challenge(response: httpx2.Response) -> dict[str, str]:
    """The parameters of `WWW-Authenticate: Bearer`."""
    scheme, _, parameters = response.headers["www-authenticate"].partition(" ")
    assert scheme == "Bearer"
    return dict(re.findall(r'(\w+)="([^"]*)"(?:, |$)', parameters))


FOREIGN_HOSTS = [
    "evil.example",
    "localhost.evil.example",
    "localhost:80.evil.example",
    "evil@localhost",
    "a b",
    "*",
]


def test_a_foreign_host_is_refused_before_anybody_looks_at_the_token(mcp_server, token, subtests):
    """DNS rebinding: a name of somebody else's that leads to this machine."""
    for host, version, method in itertools.product(FOREIGN_HOSTS, ERAS, METHODS):
        with subtests.test(f"{method} {host} ({version})"):
            for sent in (token, "", "wrong"):
                response = request(mcp_server, method, token=sent, host=host, **ERAS[version])
                assert response.status_code == 421
                assert "CATALOGUE_ALLOWED_HOSTS" in response.json()["error"]["message"]


FOREIGN_ORIGINS = [
    *("https://evil.example", "null", "http://localhost.evil.example", "http://localhost:80.evil.example"),
    *("http://localhost@evil.example", "http://evillocalhost", "file://", "http://127.0.0.1.evil.example"),
    *("https://tauri.localhost.evil.example", "app://", "://x", "blob:http://localhost", "http:app://x"),
    *("ftp://evil.example", "ipfs://bafy", "ipns://evil.example", "content://media"),
]


def test_a_page_of_another_origin_is_refused_before_anybody_looks_at_the_token(mcp_server, token, subtests):
    for origin, version, method in itertools.product(FOREIGN_ORIGINS, ERAS, METHODS):
        with subtests.test(f"{method} {origin} ({version})"):
            for sent in (token, ""):
                response = request(mcp_server, method, token=sent, origin=origin, **ERAS[version])
                assert response.status_code == 403
                told = response.json()["error"]["message"]
                assert repr(origin) in told and "CATALOGUE_ALLOWED_ORIGINS" in told


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:8000", "127.0.0.1:1", "[::1]", "[::1]:8000", "localhost."]
)
def test_our_own_hosts_are_served_however_they_are_written(mcp_server, token, host):
    assert request(mcp_server, token=token, host=host, **ERAS["2026-07-28"]).status_code == 200


@pytest.mark.parametrize(
    ("allowed", "host"),
    [("tools.example.com", "tools.example.com:8443"), (".example.com", "a.example.com"), ("*", "x")],
)
def test_the_hosts_that_are_served_are_those_that_django_serves(mcp_server, token, settings, allowed, host):
    settings.ALLOWED_HOSTS = [allowed]
    assert request(mcp_server, token=token, host=host, **ERAS["2026-07-28"]).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        *("http://localhost", "http://localhost:6274", "http://127.0.0.1:80", "http://[::1]:1"),
        *(
            "https://localhost",
            "http://tauri.localhost",
            "https://tauri.localhost",
            "http://a.b-c.localhost:1",
        ),
        *("tauri://localhost", "capacitor://localhost", "app://obsidian.md", "vscode-webview://0v5q7"),
        *("chrome-extension://abcdefghijklmnop", "moz-extension://8f1c5c0e-9d6e-4b6e-8f59-7a1d2e3f4a5b"),
    ],
)
def test_pages_of_this_machine_and_applications_may_use_it(mcp_server, token, origin):
    """Such as the MCP Inspector, and web views of desktop applications."""
    assert request(mcp_server, token=token, origin=origin, **ERAS["2026-07-28"]).status_code == 200


def test_pages_of_the_public_address_may_use_it(mcp_server, token, settings):
    settings.PUBLIC_URL = "https://Tools.example.com"
    for origin, status in [("https://tools.example.com", 200), ("http://tools.example.com", 403)]:
        response = request(mcp_server, token=token, origin=origin, **ERAS["2026-07-28"])
        assert response.status_code == status


PREFLIGHT = {
    "access_control_request_method": "POST",
    "access_control_request_headers": "authorization,content-type,mcp-protocol-version",
}
LISTED = "https://inspector.example"
APPLICATIONS = ("http://tauri.localhost", "app://obsidian.md", "chrome-extension://abcdef", "null")


@pytest.fixture
def listing_server(settings: Settings) -> Iterator[McpServer]:
    """With a page whose scripts may use it."""
    from config.asgi import build_application

    settings.CATALOGUE = settings.CATALOGUE | {
        "allowed_origins": ", ".join((LISTED, "http://localhost:6274/", *APPLICATIONS))
    }
    with serving(build_application()) as base_url:
        yield McpServer(base_url)


def test_scripts_of_listed_origins_may_read_answers_and_send_what_clients_send(listing_server, token):
    """CORS. Cookies are never allowed to come along."""
    for path in ("/mcp", "/mcp/finance", "/oauth/token", "/oauth/register", "/oauth/revoke"):
        asked = request(listing_server, "OPTIONS", path=path, origin=LISTED, **PREFLIGHT)
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, LISTED), path
        assert "mcp-protocol-version" in asked.headers["access-control-allow-headers"]
        assert "access-control-allow-credentials" not in asked.headers
    answer = request(listing_server, token=token, origin=LISTED, **ERAS["2026-07-28"])
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, LISTED)
    refused = request(listing_server, origin=LISTED)
    assert refused.status_code == 401 and "Origin" in refused.headers["vary"]
    assert "WWW-Authenticate" in refused.headers["access-control-expose-headers"]


@pytest.mark.parametrize("origin", APPLICATIONS)
def test_so_may_those_of_listed_applications(listing_server, token, origin):
    asked = request(listing_server, "OPTIONS", origin=origin, **PREFLIGHT)
    assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, origin)
    answer = request(listing_server, token=token, origin=origin, **ERAS["2026-07-28"])
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, origin)


@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost:1", "file://", "app://x"])
def test_scripts_of_other_origins_may_read_the_metadata_alone(listing_server, origin):
    for path in ("/mcp", "/oauth/token", "/oauth/register", "/oauth/revoke"):
        asked = request(listing_server, "OPTIONS", path=path, origin=origin, **PREFLIGHT)
        assert asked.status_code == 400 and "access-control-allow-origin" not in asked.headers
        assert "access-control-allow-origin" not in request(listing_server, path=path, origin=origin).headers
    for path in ("oauth-protected-resource/mcp", "oauth-authorization-server", "openid-configuration"):
        found = request(listing_server, "GET", path=f"/.well-known/{path}", origin=origin)
        assert (found.status_code, found.headers["access-control-allow-origin"]) == (200, "*")


def test_without_the_setting_no_page_of_another_origin_reads_an_answer(mcp_server):
    for path in ("/mcp", "/oauth/token", "/oauth/register"):
        for method in ("OPTIONS", "POST"):
            asked = request(mcp_server, method, path=path, origin="http://localhost:6274", **PREFLIGHT)
            assert "access-control-allow-origin" not in asked.headers


def test_without_credentials_no_error_is_told_only_where_to_get_some(mcp_server):
    """RFC 6750, 3.1, and RFC 9728, 5.1."""
    response = request(mcp_server)
    assert response.status_code == 401
    assert list(challenge(response)) == ["scope", "resource_metadata"]


@pytest.mark.parametrize(
    "authorization", ["Bearer wrong", "Bearer", "Basic d2ZjOng=", "bearer \xff", "wfc_abc", ""]
)
def test_wrong_credentials_are_told_to_be_wrong(mcp_server, authorization):
    headers: Any = [("authorization", authorization.encode("latin-1")), ("content-type", "application/json")]
    response = plain_http.post(mcp_server.url, headers=headers, content=b"{}", timeout=20)
    assert response.status_code == 401
    assert challenge(response)["error"] == "invalid_token"


@pytest.mark.parametrize("path", ["/mcp", "/mcp/sales", "/mcp/no-such-toolset"])
def test_the_challenge_leads_to_the_description_of_the_very_resource(mcp_server, path):
    """Of a toolset that there is not, too: whoever has no token is not told which there are."""
    Toolset.objects.create(slug="sales")
    address = challenge(request(mcp_server, path=path))["resource_metadata"]
    assert address.endswith(f"/.well-known/oauth-protected-resource{path}")
    document = mcp_server.get(address[address.index("/.well-known") :])
    assert document.status_code == 200
    assert document.json()["resource"] == address.replace("/.well-known/oauth-protected-resource", "")
    assert document.json()["bearer_methods_supported"] == ["header"]


PUBLIC = "http://localhost:8000"
NAMES = {
    "127.0.0.1:8000": "http://127.0.0.1:8000",
    "[::1]:8000": "http://[::1]:8000",
    "LOCALHOST:8000": PUBLIC,
    "tools.lan:8000": "http://tools.lan:8000",
    "Shared.LAN:8000": "http://shared.lan:8000",
    # Another service of this machine, a pattern, and a proxy that does not pass the name on.
    "127.0.0.1:9000": PUBLIC,
    "a.example.com:8000": PUBLIC,
    "tools.lan": PUBLIC,
}


@pytest.mark.parametrize("path", ["", "/mcp", "/mcp/", "/mcp/sales", "/mcp/sales/"])
def test_a_resource_has_the_name_by_which_it_is_asked(mcp_server, settings, subtests, path):
    """RFC 9728, 3.3: a client refuses the description of another. Tokens for all of these are accepted."""
    settings.PUBLIC_URL = PUBLIC
    settings.ALLOWED_HOSTS = [
        "localhost",
        "127.0.0.1",
        "[::1]",
        "tools.lan",
        "Shared.lan",
        ".example.com",
        "*",
    ]
    Toolset.objects.create(slug="sales")
    for host, origin in NAMES.items():
        with subtests.test(host):
            refused = request(mcp_server, path=path or "/api/tools/", host=host)
            described = f"{origin}/.well-known/oauth-protected-resource{path}"
            assert challenge(refused)["resource_metadata"] == described
            headers = {"host": host}
            address = f"{mcp_server.base_url}/.well-known/oauth-protected-resource{path}"
            document = plain_http.get(address, headers=headers, timeout=20).json()
            assert document["resource"] == f"{origin}{path}"
            assert document["authorization_servers"] == [PUBLIC]
            for written in (origin, origin.upper(), origin.title()):
                assert canonical_resource([written + path]) == f"{PUBLIC}{path.rstrip('/') or '/mcp'}"


FOREIGN_RESOURCES = [
    *("http://127.0.0.1:9000/mcp", "https://127.0.0.1:8000/mcp", "http://evil.example:8000/mcp", "/mcp"),
    *("http://localhost:8000@evil.example/mcp", "http://127.0.0.1:8000/other", "http://127.0.0.1:8000/mcpx"),
    *(
        "http://127.0.0.1:8000/mcp?x",
        "http://127.0.0.1:8000/mcp#x",
        "http://127.0.0\t.1:8000/mcp",
        "http://[",
    ),
    *("http://a.example.com:8000/mcp", "http://*:8000/mcp", "http://127.0.0.1/mcp"),
    *("http://127.0.0.1:8000/MCP", "http://127.0.0.1:8000/mcp/SALES"),
]


@pytest.mark.parametrize("resource", FOREIGN_RESOURCES)
def test_a_resource_elsewhere_is_foreign(settings, resource):
    settings.PUBLIC_URL, settings.ALLOWED_HOSTS = PUBLIC, ["127.0.0.1", ".example.com", "*"]
    with pytest.raises(ValueError, match=re.escape(resource) if "[" not in resource else "IPv6"):
        slug_of(resource)


def test_a_name_of_the_users_machine_is_not_that_of_another_server(mcp_server, settings):
    """A program of somebody else's could have it there, and ask for tokens."""
    settings.PUBLIC_URL = "https://tools.example.com"
    document = mcp_server.get("/.well-known/oauth-protected-resource/mcp").json()
    assert document["resource"] == "https://tools.example.com/mcp"
    settings.ALLOWED_HOSTS = [*settings.ALLOWED_HOSTS, "LocalHost"]
    for name in ("localhost", "127.0.0.1", "[::1]", "LocalHost"):
        with pytest.raises(ValueError, match="mcp"):
            slug_of(f"https://{name}/mcp")


@pytest.mark.parametrize(
    "slug", ["%0d%0aX-Evil:1", '%22,evil="', "%C3%BC", "UPPER", "a" * 65, "-", "%F0%9F%98%80"]
)
def test_what_no_toolset_can_be_called_is_repeated_in_no_header(mcp_server, token, slug):
    refused = request(mcp_server, path=f"/mcp/{slug}")
    assert refused.status_code == 401
    assert challenge(refused)["resource_metadata"].endswith("/.well-known/oauth-protected-resource/mcp")
    assert request(mcp_server, path=f"/mcp/{slug}", token=token).status_code == 404


def test_a_token_anywhere_but_in_its_header_is_none(mcp_server, token):
    for path in (f"/mcp?access_token={token}", f"/mcp?token={token}", f"/mcp/{token}"):
        assert request(mcp_server, path=path).status_code == 401
    assert request(mcp_server, cookie=f"token={token}; sessionid={token}").status_code == 401
    assert request(mcp_server, x_api_key=token).status_code == 401


@pytest.mark.parametrize("path", ["/mcp", "/mcp/sales"])
def test_a_call_that_the_scopes_do_not_allow_is_told_which_it_needs(mcp_server, path):
    """RFC 6750, 3.1; the resource is the one that was asked, whatever the token is bound to."""
    sales = Toolset.objects.create(slug="sales")
    make_workflow(name="report")
    body, headers = modern("tools/call", name="report", arguments={})
    for toolset in (None, sales):
        token = create_token(name=f"reader of {toolset}", scopes=[Scope.READ], toolset=toolset)[1]
        response = mcp_server.post(
            body, token=token, headers=headers, toolset=path.removeprefix("/mcp")[1:] or None
        )
        assert response.status_code == 403
        told = challenge(response)
        assert (told["error"], told["scope"]) == ("insufficient_scope", "workflows:read workflows:run")
        assert told["resource_metadata"].endswith(f"/.well-known/oauth-protected-resource{path}")
        assert response.json()["id"] == 1


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_no_answer_may_be_kept_on_the_way(mcp_server, token, method):
    refused = request(mcp_server, method)
    assert (refused.status_code, refused.headers["cache-control"]) == (401, "no-store")
    called = mcp_server.post(modern("ping")[0], token=token, headers={"mcp-protocol-version": "2025-06-18"})
    assert "no-cache" in called.headers["cache-control"] or called.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("scope", "lists", "reads"),
    [(Scope.ADMIN, True, True), (Scope.RUN, False, True), (Scope.READ, True, True)],
)
def test_a_scope_allows_the_same_at_both_doors(mcp_server, scope, lists, reads):
    """B8: catalogue:admin includes the others, and who may start runs may see what becomes of them."""
    token, text = create_token(name="one", scopes=[scope])
    execution = make_execution(make_workflow(tool_name="greet"), caller=token.caller.key)
    authorized = {"authorization": f"Bearer {text}"}

    def rest(path: str) -> bool:
        return plain_http.get(f"{mcp_server.base_url}/api/{path}/", headers=authorized).status_code == 200

    def call(name: str, **arguments: str) -> bool:
        body, headers = modern("tools/call", name=name, arguments=arguments)
        response = mcp_server.post(body, headers=headers, token=text)
        return response.status_code == 200 and not response.json()["result"].get("isError")

    assert (rest("workflows"), call("list_workflows")) == (lists, lists)
    assert (rest("executions"), call("list_executions")) == (lists, lists)
    read = call("get_execution_status", execution_id=str(execution.pk))
    assert (rest(f"executions/{execution.pk}"), read) == (reads, reads)
    body, headers = modern("tools/list")
    listed = mcp_server.post(body, headers=headers, token=text).json()["result"]["tools"]
    assert "get_execution_status" in {tool["name"] for tool in listed}
    assert ("greet" in {tool["name"] for tool in listed}) == (scope is not Scope.READ)
