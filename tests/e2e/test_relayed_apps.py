"""Apps of real MCP servers behind the product, over both transports, for a client that shows them."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp.client.extension import advertise
from mcp.server.apps import APP_MIME_TYPE, EXTENSION_ID

from connectors.testing import free_port
from tests.e2e.cards.fixtures import browser, in_a_browser
from tests.e2e.cards.hosts import Chat, running_host
from tests.e2e.node_tools import PACKAGES, node
from tests.e2e.product import Product, Rest, place_for_one, started, wait_until
from tests.e2e.test_everything import as_json, ours
from tests.engines.everything import LOOPBACK, START_SECONDS, Everything, everything
from tests.processes import guarded

pytestmark = pytest.mark.e2e
__all__ = ["browser", "everything", "node"]
PROGRAM = PACKAGES / "@modelcontextprotocol" / "server-basic-vanillajs" / "dist" / "index.js"
HTML = PROGRAM.with_name("mcp-app.html")
APP = "ui://get-time/mcp-app.html"
CARDS: dict[str, Any] = {"extensions": [advertise(EXTENSION_ID, {"mimeTypes": [APP_MIME_TYPE]})]}


@pytest.fixture(scope="module")
def clock(node: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """How a source reaches the server of the app."""
    log, port = tmp_path_factory.mktemp("clock") / "server.log", free_port()
    command = [str(node), "--require", str(LOOPBACK), str(PROGRAM)]
    environment = {"PATH": os.environ["PATH"], "PORT": str(port), "TZ": "UTC"}
    with guarded(command, log=log, environment=environment):
        wait_until(lambda: "listening" in log.read_text(), START_SECONDS, log.read_text)
        yield {"url": f"http://127.0.0.1:{port}/mcp"}


@pytest.fixture(scope="module")
def product(
    clock: dict[str, str], node: Path, everything: Everything, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    """One with apps on, for that server over HTTP and over stdio, and for one without apps."""
    allowed = {"clock": {"command": [str(node), str(PROGRAM), "--stdio"]}}
    with place_for_one(tmp_path_factory.mktemp("product")) as place:
        place["CATALOGUE_STDIO_COMMANDS"] = json.dumps(allowed)
        with started(place) as running:
            running.wait_until_up()
            for name, config in {
                "clock": clock,
                "local-clock": {"transport": "stdio", "command": "clock"},
                "everything": {"url": everything.url},
            }.items():
                running.add_source(name, "mcp", config | {"apps": True}, "--expose-new")
            yield running


@pytest.fixture(scope="module")
def rest(product: Product) -> Rest:
    """Of a curator, who has enabled the apps."""
    token = product.manage("create_mcp_token", "admin", "--scope", "catalogue:admin")
    rest = Rest(product, token)
    for source in ("clock", "local-clock"):
        (app,) = rest.get("/server-features/", source=source)["results"]
        assert not app["enabled"], "a curator enables an app, whatever the source does"
        rest.patch(f"/server-features/{app['id']}/", enabled=True)
    return rest


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("source", ["clock", "local-clock"])
async def test_a_real_app_is_shown_and_gets_its_tools_result(product, rest, source, era):
    (workflow,) = rest.get("/workflows/", source=source)["results"]
    async with ours(product, era, **CARDS) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        address = tools[workflow["tool_name"]].meta["ui"]["resourceUri"]
        (shown,) = (await client.read_resource(address)).contents
        result = await client.call_tool(workflow["tool_name"], {})
    assert address == f"ui://{source}/get-time/mcp-app.html"
    assert (shown.uri, shown.mime_type, shown.text) == (address, APP_MIME_TYPE, HTML.read_text())
    assert result.content[0].text == result.structured_content["time"]


async def test_other_clients_and_servers_without_apps_are_as_without_the_setting(product, rest):
    async with ours(product, "2026-07-28") as client:
        tools = [as_json(tool) for tool in (await client.list_tools()).tools]
        resources = {one.uri for one in (await client.list_resources()).resources}
    assert not any("_meta" in tool for tool in tools)
    assert not any(uri.startswith("ui://") for uri in resources)
    workflows = rest.get("/workflows/", source="everything")["results"]
    async with ours(product, "2026-07-28", **CARDS) as client:
        metas = {tool.name: tool.meta for tool in (await client.list_tools()).tools}
    ours_alone = {"ui": {"resourceUri": "ui://workflow-catalogue/card.html"}}
    assert all(metas[one["tool_name"]] == ours_alone for one in workflows)


def test_a_curator_reads_the_html_before_clients_run_it(product, rest):
    features = rest.get("/server-features/", source="clock")["results"]
    (app,) = [one for one in features if one["upstream_id"] == APP]
    assert "html" not in app["definition"]
    assert len(app["definition"]["html_sha256"]) == 64
    assert rest.get(f"/server-features/{app['id']}/html/") == {"accepted": HTML.read_text(), "offered": None}


@in_a_browser
def test_the_app_runs_in_a_host_and_calls_its_tool(product, rest, browser, tmp_path):
    (workflow,) = rest.get("/workflows/", source="clock")["results"]
    with running_host(product.url, product.manage("create_mcp_token", "chat"), tmp_path) as host:
        chat = Chat(browser, host)
        shown = chat.call(workflow["tool_name"], {})["structuredContent"]["time"]
        chat.wait_for_text(shown)
        chat.press("Get Server Time")
        wait_until(lambda: len(host.calls("get-time")) == 2, START_SECONDS, chat.text)
        chat.wait_for(f"!document.body.innerText.includes({shown!r})")
