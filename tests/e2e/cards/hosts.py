"""A chat that shows cards: its page, its sandbox on another origin, and the way from it to the product."""

import json
import os
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from connectors.testing import free_port
from tests import plain_http
from tests.e2e.node_tools import PACKAGES
from tests.e2e.product import wait_until
from tests.e2e.webdriver import TAB, BrowserRefused, RealBrowser

FOLDER = Path(__file__).parent
PATIENCE_SECONDS = 60.0
HOP_BY_HOP = {"host", "content-length", "connection", "accept-encoding", "origin", "referer"}
NOT_PASSED_ON = {"content-length", "transfer-encoding", "connection", "content-encoding"}
OUTER, INNER = "document.querySelector('#sandbox')", "document.querySelector('iframe')"


@dataclass(frozen=True)
class Arrived:
    """A request to the product's MCP endpoint."""

    at: float
    method: str
    tool: str


@dataclass
class Host:
    """The chat's servers. `token` may be changed while a page is open."""

    product_url: str
    token: str
    script: Path
    port: int = field(default_factory=free_port)
    sandbox_port: int = field(default_factory=free_port)
    arrived: list[Arrived] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def calls(self, tool: str) -> list[Arrived]:
        return [one for one in self.arrived if one.tool == tool]

    def build_app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/", lambda _: FileResponse(FOLDER / "host.html")),
                Route("/host.js", lambda _: FileResponse(self.script)),
                Route("/mcp", self._pass_on, methods=["GET", "POST", "DELETE"]),
            ]
        )

    @staticmethod
    def build_sandbox() -> Starlette:
        return Starlette(routes=[Route("/sandbox", _sandbox)])

    async def _pass_on(self, request: Request) -> Response:
        body = await request.body()
        if request.method == "POST":
            asked = json.loads(body)
            tool = asked.get("params", {}).get("name", "") if asked.get("method") == "tools/call" else ""
            self.arrived.append(Arrived(time.monotonic(), asked.get("method", ""), tool))
        headers = {name: value for name, value in request.headers.items() if name not in HOP_BY_HOP}
        http = plain_http.AsyncClient(timeout=120)
        sent = http.build_request(
            request.method,
            f"{self.product_url}/mcp",
            content=body,
            headers=headers | {"authorization": f"Bearer {self.token}"},
        )
        answer = await http.send(sent, stream=True)

        async def passed() -> AsyncIterator[bytes]:
            try:
                async for part in answer.aiter_bytes():
                    yield part
            finally:
                await answer.aclose()
                await http.aclose()

        kept = {name: value for name, value in answer.headers.items() if name not in NOT_PASSED_ON}
        return StreamingResponse(passed(), status_code=answer.status_code, headers=kept)


async def _sandbox(request: Request) -> Response:
    """With the policy that the specification wants from what the resource declares."""
    declared = json.loads(request.query_params["csp"])
    resources = " ".join(declared.get("resourceDomains") or [])
    policy = {
        "default-src": "'none'",
        "script-src": f"'unsafe-inline' {resources}",
        "style-src": f"'unsafe-inline' {resources}",
        "img-src": f"data: {resources}",
        "media-src": f"data: {resources}",
        "font-src": resources or "'none'",
        "connect-src": " ".join(declared.get("connectDomains") or []) or "'none'",
        "frame-src": " ".join(declared.get("frameDomains") or []) or "'none'",
        "base-uri": " ".join(declared.get("baseUriDomains") or []) or "'none'",
        "object-src": "'none'",
    }
    written = "; ".join(f"{name} {value}" for name, value in policy.items())
    return FileResponse(FOLDER / "sandbox.html", headers={"content-security-policy": written})


@contextmanager
def running_host(product_url: str, token: str, folder: Path) -> Iterator[Host]:
    script = folder / "host.js"
    bundle(FOLDER / "host.ts", script)
    host = Host(product_url, token, script)
    with _serving(host.build_app(), host.port), _serving(host.build_sandbox(), host.sandbox_port):
        yield host


def bundle(source: Path, target: Path) -> None:
    esbuild = PACKAGES / ".bin" / "esbuild"
    command = [esbuild, source, "--bundle", "--format=esm", "--log-level=warning", f"--outfile={target}"]
    subprocess.run(command, check=True, env=os.environ | {"NODE_PATH": str(PACKAGES)})


@contextmanager
def _serving(app: Starlette, port: int) -> Iterator[None]:
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, PATIENCE_SECONDS)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(timeout=10)


class Chat:
    """The page of a host, with the card of the tool that was called last.

    `options`: `era` (auto or legacy), `cards` ("no" for a client without the extension), `theme`, `width`,
    `locale`, `sandbox` (the view's flags), `without` (capabilities, with spaces between them), `mute`
    ("tools" or "everything").
    """

    def __init__(self, browser: RealBrowser, host: Host, **options: str) -> None:
        self.browser, self.host, self.outer = browser, host, OUTER
        self.leave()
        browser.complaints()
        host.arrived.clear()
        sandbox = {"sandboxOrigin": f"http://127.0.0.1:{host.sandbox_port}"}
        browser.open(f"{host.url}/?{urlencode(options | sandbox)}")
        browser.wait_for("document.documentElement.dataset.state")
        assert browser.run("return document.documentElement.dataset.state") == "ready", browser.text()

    @classmethod
    def of_page(cls, browser: RealBrowser, host: Host, frame: str) -> "Chat":
        """The card in an open page of another host, whose sandbox is that frame."""
        chat = cls.__new__(cls)
        chat.browser, chat.host, chat.outer = browser, host, f"document.querySelector({frame!r})"
        return chat

    def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """What the model would get; the card is there then, if the tool has one."""
        answer: dict[str, Any] = self.await_("host.call", tool, arguments)
        return answer

    def await_(self, function: str, *given: Any) -> Any:
        """What a function of the page's answers, once it does."""
        self.leave()
        answer = self.browser.run_async(
            f"const done = arguments[arguments.length - 1];"
            f"{function}(...{json.dumps(given)}).then((value) => done({{value}}), "
            f"(error) => done({{error: String(error)}}))"
        )
        assert "error" not in answer, answer["error"]
        return answer.get("value")

    @property
    def record(self) -> dict[str, Any]:
        """What the card has asked its host for."""
        self.leave()
        found: dict[str, Any] = self.browser.run("return host.record")
        return found

    def enter(self) -> RealBrowser:
        """The browser, looking at the card."""
        self.leave()
        self.browser.enter_frame(self.outer)
        self.browser.enter_frame(INNER)
        return self.browser

    def leave(self) -> None:
        self.browser.leave_frames()

    def text(self) -> str:
        """What a person reads in the card."""
        return self.enter().text()

    def wait_for(self, condition: str, seconds: float = PATIENCE_SECONDS) -> Any:
        """What the expression comes to in the card, once that is true. Its policy forbids `eval`."""

        def look() -> Any:
            try:
                return self.enter().run(f"return ({condition})")
            except BrowserRefused:
                return None

        return wait_until(look, seconds, self._told)

    def wait_for_text(self, *texts: str, seconds: float = PATIENCE_SECONDS) -> None:
        wanted = json.dumps([text.lower() for text in texts])
        words = "document.body.innerText.toLowerCase()"
        self.wait_for(f"{wanted}.every((text) => {words}.includes(text))", seconds)

    def wait_for_state(self, state: str, seconds: float = PATIENCE_SECONDS) -> None:
        """The word beside the title."""
        self.wait_for(f"document.querySelector('h1 + [role=status]').innerText === {state!r}", seconds)

    def wait_until_still(self, place: str = "[document.body.offsetHeight]") -> None:
        """Until the card and its frame keep their heights, and what is at that place stays there."""
        seen: list[Any] = []
        # The Inspector's frame has one height; ours grows with the card, a little later.
        fits = "innerHeight >= document.body.offsetHeight" if self.outer == OUTER else "true"

        def stays() -> bool:
            seen.append(
                self.wait_for(
                    f"{place}.length && {fits} && [...{place}, innerHeight, document.body.offsetHeight]"
                )
            )
            return seen[-1] == seen[-2:][0] and len(seen) > 1

        wait_until(stays, PATIENCE_SECONDS, self._told)

    def press(self, label: str) -> None:
        """The button with that text, as a person who sees it would: once it stays where it is."""
        found = (
            "[...document.querySelectorAll('button, summary')]"
            f".find((one) => one.innerText.trim() === {json.dumps(label)} && !one.disabled)"
        )
        self.wait_until_still(f"Object.values({found}?.getBoundingClientRect().toJSON() ?? {{}})")
        self.enter().click_found(found)

    def fill(self, label: str, text: str) -> None:
        """The field with that label."""
        self.enter().run(f"({field_of(label)}).select()")
        self.browser.press(text)

    def tab_to_label(self, label: str) -> None:
        """Press Tab until the field with that label has the focus."""
        for _ in range(60):
            if self.enter().run(f"return document.activeElement === {field_of(label)}"):
                return
            self.browser.press(TAB)
        raise AssertionError(f"Tab does not lead to {label}: {self._told()}")

    def hide(self, is_hidden: bool = True) -> None:
        """As if the person looked at another tab; a browser without a window knows no other."""
        hidden, state = json.dumps(is_hidden), json.dumps("hidden" if is_hidden else "visible")
        self.enter().run(
            f"Object.defineProperty(document, 'hidden', {{configurable: true, value: {hidden}}});"
            f"Object.defineProperty(document, 'visibilityState', {{configurable: true, value: {state}}});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )

    def axe_problems(self, axe: str) -> list[str]:
        """By all rules of axe, within the card."""
        self.enter().run(axe)
        found = self.browser.run_async(
            "const done = arguments[arguments.length - 1];"
            "const tell = ({html, any}) => [html.slice(0, 160), ...any.map((one) => one.message)].join(' ');"
            "axe.run(document, {resultTypes: ['violations']}).then((found) => done(found.violations.map("
            "(one) => `${one.id}: ${one.nodes.map(tell).join(' ; ')}`)), (error) => done([String(error)]))"
        )
        return list(found)

    def complaints(self) -> list[str]:
        """Errors and refused requests of the card and of the page."""
        return [*self.record["complaints"], *self.browser.complaints()]

    def _told(self) -> str:
        try:
            return f"The card: {self.text()[:3000]!r}; {self.complaints()}"
        except BrowserRefused as refusal:
            return f"{refusal}; {self.complaints()}"


def field_of(label: str) -> str:
    """An expression for the field with that label."""
    return (
        "[...document.querySelectorAll('label')]"
        f".find((one) => one.innerText.startsWith({json.dumps(label)}))?.control"
    )
