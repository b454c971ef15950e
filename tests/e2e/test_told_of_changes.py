"""Real clients that listen at one web process are told of what an admin changes through another."""

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.subscriptions import ToolsListChanged

from tests import plain_http
from tests.e2e.browser import Browser
from tests.e2e.node_tools import FOLDER, node
from tests.e2e.product import Product, another_web, environment, wait_until
from tests.processes import ROOT

__all__ = ["node"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

PATIENCE_SECONDS = 10.0
START_SECONDS = 60.0
TOOL, TOOLSET = "markdown_outline", "told-of-changes"
FILTERS = "catalogue/workflowfilter/"
EXCLUDED = {"action": "exclude", "subject": "name", "syntax": "glob", "pattern": TOOL, "position": "1"}

Change = Callable[[], None]


@pytest.fixture(scope="module")
def other_web(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a second web process on the product's data."""
    with another_web(product, tmp_path_factory.mktemp("other_web")) as url:
        yield url


@dataclass(frozen=True)
class Admin:
    """Somebody at the first web process, with a browser and with REST."""

    product: Product
    browser: Browser
    token: str

    def rest(self, method: str, path: str, **fields: Any) -> None:
        plain_http.request(
            method,
            f"{self.product.url}/api/{path}",
            headers={"authorization": f"Bearer {self.token}"},
            json=fields or None,
            timeout=30,
        ).raise_for_status()

    def hide_by_filter(self) -> None:
        self.browser.submit_and_confirm(f"{FILTERS}add/", "workflowfilter_form", EXCLUDED | {"enabled": "on"})

    def remove_filter(self) -> None:
        row = self.browser.first_match(FILTERS, rf'href="/admin/({FILTERS}\d+/)change/"')
        self.browser.submit_and_confirm(f"{row}change/", "workflowfilter_form", {"pattern": "no-such-*"})


@pytest.fixture(scope="module")
def admin(product: Product) -> Iterator[Admin]:
    with Browser(product) as browser:
        assert product.password
        assert browser.log_in(product.password).status_code == 302
        token = product.manage("create_mcp_token", "told-of-changes", "--scope", "catalogue:admin")
        yield Admin(product, browser, token)


@pytest.fixture(scope="module")
def toolset(admin: Admin, other_web: str) -> str:
    """A new one, which every process knows by now."""
    admin.rest("POST", "toolsets/", slug=TOOLSET, picked=[TOOL])
    headers = {"authorization": f"Bearer {admin.product.token}"}
    for url in (f"{admin.product.url}/mcp/{TOOLSET}", f"{other_web}/{TOOLSET}"):
        wait_until(
            lambda url=url: plain_http.get(url, headers=headers).status_code != 404,
            PATIENCE_SECONDS,
        )
    return TOOLSET


@asynccontextmanager
async def connected(url: str, token: str) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        plain_http.AsyncClient(headers=headers, timeout=30) as http,
        # Without the client's own cache, which whoever does not listen would be answered from.
        Client(streamable_http_client(url, http_client=http), mode="2026-07-28", cache=None) as client,
    ):
        yield client


async def seconds_until_told(client: Client, change: Change) -> float:
    """From the moment at which the change was made."""
    async with asyncio.timeout(PATIENCE_SECONDS), client.listen(tools_list_changed=True) as subscription:
        await asyncio.to_thread(change)
        changed_at = time.monotonic()
        assert await anext(subscription) == ToolsListChanged()
        return time.monotonic() - changed_at


async def shown(client: Client) -> set[str]:
    return {tool.title or tool.name for tool in (await client.list_tools()).tools}


@pytest.mark.parametrize("changed", ["filter", "toolset", "workflow"])
async def test_a_change_at_one_process_is_told_at_the_other_and_both_serve_the_new_list(
    product, other_web, admin, toolset, changed, record_property
):
    """A4.2, A4.4: how long it takes is recorded; the aim is less than 2 s."""
    there, back = {
        "filter": (admin.hide_by_filter, admin.remove_filter),
        "toolset": (
            lambda: admin.rest("PATCH", f"toolsets/{toolset}", mode="compact"),
            lambda: admin.rest("PATCH", f"toolsets/{toolset}", mode="full"),
        ),
        "workflow": (
            lambda: admin.rest("PATCH", f"workflows/{TOOL}", title="Another title"),
            lambda: admin.rest("PATCH", f"workflows/{TOOL}", title=""),
        ),
    }[changed]
    here = f"{product.url}/mcp/{toolset}"
    async with (
        connected(f"{other_web}/{toolset}", product.token) as listener,
        connected(here, product.token) as asker,
    ):
        before = await shown(asker)
        for number, change in enumerate((there, back)):
            seconds = await seconds_until_told(listener, change)
            record_property(f"{changed} {number}", round(seconds, 2))
            print(f"{changed} {number}: told after {seconds:.2f} s")
            for client in (asker, listener):
                assert (await shown(client) == before) is (change is back)


class Listener:
    """The TypeScript client as a process, and what it has told."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def told(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            line = await self._process.stdout.readline()
        assert line, "it has ended"
        told: dict[str, Any] = json.loads(line)
        assert "problem" not in told, told
        return told


@asynccontextmanager
async def typescript_client(node: Path, **asked: Any) -> AsyncIterator[Listener]:
    process = await asyncio.create_subprocess_exec(
        node,
        FOLDER / "listener.mjs",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=environment({}),
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(asked).encode())
    process.stdin.write_eof()
    try:
        yield Listener(process)
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize(
    ("client", "version"),
    [
        ({"release": "v1"}, "2025-11-25"),
        ({"release": "v2", "mode": "legacy"}, "2025-11-25"),
        ({"release": "v2", "mode": "auto"}, "2026-07-28"),
    ],
)
async def test_the_official_typescript_client_asks_anew_when_it_is_told(
    node, product, other_web, admin, client, version
):
    """In the handshake era by the stream that it opens with GET, of its own accord and without a session."""
    async with typescript_client(node, url=other_web, token=product.token, **client) as listener:
        begun = [await listener.told() for _ in range(1 if version == "2026-07-28" else 2)]
        assert {"version": version} in begun
        assert all(told.get("status", 200) == 200 for told in begun)
        for is_enabled in (False, True):
            await asyncio.to_thread(_enable if is_enabled else _disable, admin)
            told = [await listener.told() for _ in range(2)]
            assert {news["kind"] for news in told} == {"tools", "resources"}
            assert all((TOOL in news["names"]) is is_enabled for news in told)


def _disable(admin: Admin) -> None:
    admin.rest("POST", f"workflows/{TOOL}/disable")


def _enable(admin: Admin) -> None:
    admin.rest("POST", f"workflows/{TOOL}/enable")
