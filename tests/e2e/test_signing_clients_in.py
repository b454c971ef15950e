"""Clients sign a user in through a real browser, at the product's own authorization server."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import anyio
import pytest
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)

from connectors.testing import free_port
from tests import plain_http
from tests.e2e.node_tools import FOLDER, PACKAGES, node
from tests.e2e.product import AGENT, Product, environment, wait_until
from tests.e2e.webdriver import BROWSER, DRIVER, MISSING, RealBrowser, real_browser
from tests.processes import ROOT

__all__ = ["node"]
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING),
]

PASSWORD = "correct horse battery"
TOOL, GIVEN = "text_statistics", {"text": "One sentence. And another one!"}
ENDS_WITHIN = 1.0  # Seconds, from the disabling of a user: who asks later is refused
DISABLE = (
    "from django.contrib.auth.models import User; User.objects.filter(username={!r}).update(is_active=False)"
)
MAKE = "from django.contrib.auth.models import User; User.objects.create_user({!r}, password={!r})"


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealBrowser]:
    with real_browser(tmp_path_factory.mktemp("chromium")) as browser:
        browser.hold_still()
        yield browser


@pytest.fixture
def chromium(window: RealBrowser, product: Product) -> RealBrowser:
    """Signed in nowhere."""
    window.open(f"http://localhost:{product.port}/favicon.ico")
    window.devtools("Network.clearBrowserCookies")
    return window


class Return:
    """Where the browser goes back to: a program on the user's machine, which may send it on."""

    def __init__(self) -> None:
        self.leads_on_to = ""
        self.queries: Queue[str] = Queue()
        queries, back = self.queries, self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                if parts.path == "/callback":
                    queries.put(parts.query)
                leads_on = parts.path == "/callback" and back.leads_on_to
                self.send_response(302 if leads_on else 200)
                if leads_on:
                    self.send_header("location", back.leads_on_to)
                self.send_header("content-type", "text/html")
                self.end_headers()
                self.wfile.write(b"You can close this page.")

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.address = f"http://127.0.0.1:{self.server.server_port}/callback"


@pytest.fixture
def back() -> Iterator[Return]:
    back = Return()
    thread = Thread(target=back.server.serve_forever)
    thread.start()
    yield back
    back.server.shutdown()
    back.server.server_close()
    thread.join()


def allow(
    browser: RealBrowser, address: str, username: str, client: str, *, is_signed_in: bool = False
) -> None:
    """What a person does."""
    browser.open(address)
    if not is_signed_in:
        sign_in(browser, username)
    press_allow(browser, username, client)


def sign_in(browser: RealBrowser, username: str) -> None:
    browser.wait_for("document.querySelector('#id_username')")
    browser.click("#id_username")
    browser.press(username)
    browser.click("#id_password")
    browser.press(PASSWORD)
    browser.click("#login-form [type=submit]")


def press_allow(browser: RealBrowser, username: str, client: str) -> None:
    browser.wait_for_text("requests access on behalf of")
    words = browser.text()
    assert client in words and username in words and "was not verified" in words
    browser.click("[name=allow]")
    browser.wait_for("!document.querySelector('#consent')")


def server_address(product: Product, host: str = "localhost", path: str = "/mcp") -> str:
    """As its banner says it, or as some people write it."""
    return f"http://{host}:{product.port}{path}"


def make_user(product: Product, username: str) -> None:
    product.manage("shell", "--no-imports", "-c", MAKE.format(username, PASSWORD))


@contextmanager
def disabling(product: Product, username: str) -> Iterator[float]:
    product.manage("shell", "--no-imports", "-c", DISABLE.format(username))
    yield time.monotonic()


class Storage:
    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


async def test_the_python_client_signs_a_user_in_and_is_refused_once_the_user_is_disabled(
    product, rest, chromium, back
):
    """It lists that user's tools, calls one and refreshes; the record names user and client."""
    make_user(product, "paula")
    storage = Storage()

    async def show(address: str) -> None:
        await anyio.to_thread.run_sync(allow, chromium, address, "paula", "Python client")

    async def carried() -> AuthorizationCodeResult:
        query = parse_qs(await anyio.to_thread.run_sync(back.queries.get))
        return AuthorizationCodeResult(**{name: query[name][0] for name in ("code", "state", "iss")})

    auth = OAuthClientProvider(
        server_url=server_address(product),
        client_metadata=OAuthClientMetadata(client_name="Python client", redirect_uris=[back.address]),
        storage=storage,
        redirect_handler=show,
        callback_handler=carried,
    )

    async def names(*, call: bool = False) -> set[str]:
        async with plain_http.AsyncClient(auth=auth, timeout=60) as http:
            transport = streamable_http_client(server_address(product), http_client=http)
            async with Client(transport, cache=None, client_info=AGENT) as client:
                if call:
                    assert not (await client.call_tool(TOOL, GIVEN)).is_error
                return {tool.name for tool in (await client.list_tools()).tools}

    assert TOOL in await names(call=True)
    [execution] = [row for row in rest.executions(tool=TOOL) if "paula" in row["caller_name"]]
    assert execution["caller_name"] == "paula via Python client"
    assert execution["caller"].startswith("user:")

    first = storage.tokens
    assert first is not None
    auth.context.token_expiry_time = 1  # Long ago: the client renews it by itself
    assert TOOL in await names()
    assert storage.tokens is not None and storage.tokens.refresh_token != first.refresh_token

    headers = {"authorization": f"Bearer {storage.tokens.access_token}"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    options = {"accept": "application/json, text/event-stream"} | headers
    # Refusals of one address are made to wait, the more the more there have been.
    with plain_http.Client(headers=options, timeout=60) as http, disabling(product, "paula") as since:
        asked_at = since
        while http.post(server_address(product), json=body).status_code == 200:
            assert asked_at - since < ENDS_WITHIN
            asked_at = time.monotonic()
        assert http.post(server_address(product), json=body).status_code == 401


@pytest.mark.parametrize(
    ("release", "host", "path"), [("v1", "127.0.0.1", "/mcp/"), ("v2", "127.0.0.1", "/mcp")]
)
def test_the_typescript_clients_do_so_too_at_another_name_of_the_server(
    product, rest, chromium, back, node, release, host, path
):
    username, client = f"theo-{release}", f"TypeScript {release}"
    make_user(product, username)
    command = [node, FOLDER / "sign_in.mjs", release, server_address(product, host, path), back.address]
    process = subprocess.Popen(
        [*command, TOOL, json.dumps(GIVEN)],
        cwd=ROOT,
        env=environment({}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert process.stdin and process.stdout
    with process:
        try:
            allow(chromium, json.loads(process.stdout.readline())["open"], username, client)
            process.stdin.write(back.queries.get() + "\n")
            told = json.loads(process.stdout.readline())
            assert TOOL in told["tools"] and told["tools"] == told["again"]
            assert told["result"]["structuredContent"]["words"] == 5
            assert told["refreshed"]
            assert any(row["caller_name"] == f"{username} via {client}" for row in rest.executions(tool=TOOL))
            with disabling(product, username) as since:
                time.sleep(max(0, since + ENDS_WITHIN - time.monotonic()))
            process.stdin.write("\n")
            assert json.loads(process.stdout.readline())["refused"]
        finally:
            process.kill()


class Remote:
    """`mcp-remote`, as a desktop client that knows only programs starts it: MCP by lines on its pipes."""

    def __init__(self, node: Path, folder: Path, address: str, *options: str) -> None:
        program = PACKAGES / "mcp-remote" / "dist" / "proxy.js"
        self.folder = folder
        self.words: Queue[str] = Queue()
        self.answers: Queue[dict[str, Any]] = Queue()
        self.process = subprocess.Popen(
            [node, program, address, *options],
            cwd=ROOT,
            env=environment({"MCP_REMOTE_CONFIG_DIR": str(folder), "BROWSER": "true"}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._readers = [Thread(target=read) for read in (self._hear, self._note)]
        for reader in self._readers:
            reader.start()
        self._last = 0

    def _hear(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.answers.put(json.loads(line))

    def _note(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.words.put(line.strip())

    def __enter__(self) -> "Remote":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe
            pipe.close()

    def asks_to_open(self) -> str:
        """The address that it wants the user's browser to show."""
        while "/oauth/authorize?" not in (line := self.words.get(timeout=60)):
            pass
        return line

    def send(self, method: str, **params: Any) -> int:
        assert self.process.stdin
        self._last += 1
        message = {"jsonrpc": "2.0", "id": self._last, "method": method, "params": params}
        self.process.stdin.write(json.dumps(message) + "\n")
        return self._last

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = self.send(method, **params)
        while (answer := self.answers.get(timeout=60)).get("id") != number:
            pass
        return answer

    @property
    def tokens(self) -> dict[str, Any]:
        """As it keeps them on the disk."""
        [found] = self.folder.rglob("*_tokens.json")
        kept: dict[str, Any] = json.loads(found.read_text())
        return kept


HANDSHAKE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "a desktop client", "version": "1"},
}
EXPIRE = (
    "from django.utils import timezone; from oauth2_provider.models import AccessToken; "
    "AccessToken.objects.filter(user__username={!r}).update(expires=timezone.now())"
)


def test_mcp_remote_signs_a_user_in_for_clients_that_only_start_programs(
    product, rest, chromium, node, tmp_path
):
    """It registers itself, lists, calls, renews an expired token, and gets nothing for a disabled user."""
    make_user(product, "rita")
    with Remote(node, tmp_path, server_address(product, "127.0.0.1")) as remote:
        remote.send("initialize", **HANDSHAKE)
        allow(chromium, remote.asks_to_open(), "rita", "MCP CLI Proxy")
        assert remote.answers.get(timeout=60)["result"]["serverInfo"]
        tools = {tool["name"] for tool in remote.ask("tools/list")["result"]["tools"]}
        result = remote.ask("tools/call", name=TOOL, arguments=GIVEN)["result"]
        assert TOOL in tools and result["structuredContent"]["words"] == 5
        assert any(row["caller_name"] == "rita via MCP CLI Proxy" for row in rest.executions(tool=TOOL))

        first = remote.tokens["refresh_token"]
        product.manage("shell", "--no-imports", "-c", EXPIRE.format("rita"))
        wait_until(
            lambda: "result" in remote.ask("tools/list") and remote.tokens["refresh_token"] != first, 30
        )

        with disabling(product, "rita") as since:
            time.sleep(max(0, since + ENDS_WITHIN - time.monotonic()))
        number = remote.send("tools/list")
        assert "/oauth/authorize?" in remote.asks_to_open(), "all that is left to it is to ask anew"
        assert all(answer.get("id") != number for answer in list(remote.answers.queue))


CHALLENGE = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


def request_of(product: Product, back: Return, client: str, **changes: str | None) -> str:
    """The address that a client which has just registered opens."""
    issuer = f"http://localhost:{product.port}"
    metadata = {"client_name": client, "redirect_uris": [back.address]}
    registered = plain_http.post(f"{issuer}/oauth/register", json=metadata, timeout=30).json()
    query = {
        "response_type": "code", "client_id": registered["client_id"], "redirect_uri": back.address,
        "code_challenge": CHALLENGE, "code_challenge_method": "S256", "scope": "workflows:read",
        "resource": server_address(product), "state": "s", **changes,
    }  # fmt: skip
    asked = urlencode({name: value for name, value in query.items() if value is not None})
    return f"{issuer}/oauth/authorize?{asked}"


@pytest.mark.parametrize("button", ["allow", "refuse"])
def test_the_browser_follows_a_callback_that_redirects_on(product, back, button, tmp_path):
    """To another origin, and to a desktop application, which this machine does not have."""
    username = f"olga-{button}"
    make_user(product, username)
    onwards = back.address.replace("127.0.0.1", "localhost").replace("/callback", "/done")
    # Its own browser, because Chromium keeps a question about the application in front of later pages.
    with real_browser(tmp_path) as browser:
        browser.open(request_of(product, back, "Hops"))
        sign_in(browser, username)
        for back.leads_on_to in (onwards, "claude://done"):
            browser.wait_for_text("requests access on behalf of")
            browser.complaints()
            browser.click(f"[name={button}]")
            assert ("code" if button == "allow" else "error") in parse_qs(back.queries.get(timeout=30))
            if back.leads_on_to == onwards:
                browser.wait_for(f"location.href.startsWith({onwards!r})")
                browser.open(request_of(product, back, "Hops"))
        assert not [words for words in browser.complaints() if "Content Security Policy" in words]


def test_the_suites_scenarios_for_authorization_servers_pass(product, chromium, node, tmp_path):
    """Both that the suite has: the metadata, and a code for a token."""
    make_user(product, "conny")
    issuer, port = f"http://localhost:{product.port}", free_port()
    metadata = {"client_name": "Suite", "redirect_uris": [f"http://127.0.0.1:{port}/callback"]}
    client = plain_http.post(f"{issuer}/oauth/register", json=metadata, timeout=30).json()["client_id"]
    suite = PACKAGES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    options = ["--client-id", client, "--resource", server_address(product), "--port", str(port)]
    process = subprocess.Popen(
        [node, suite, "authorization", "--url", issuer, *options, "--output-dir", tmp_path],
        cwd=ROOT,
        env=environment({}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout
    with process:
        try:
            seen = []
            for line in process.stdout:
                seen.append(line)
                if line.startswith(f"{issuer}/oauth/authorize"):
                    allow(chromium, line.strip(), "conny", "Suite")
            assert process.wait(timeout=60) == 0, "".join(seen)
        finally:
            process.kill()
    checks = [check for found in tmp_path.rglob("checks.json") for check in json.loads(found.read_text())]
    assert {check["id"] for check in checks} >= {"authorization-code-grant"}, "".join(seen)
    assert {check["status"] for check in checks} == {"SUCCESS"}, checks
