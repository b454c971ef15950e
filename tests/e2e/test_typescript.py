"""The official TypeScript clients and the Inspector's command line, against the running product."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.node_tools import FOLDER, PACKAGES, node
from tests.e2e.product import Product, another_web, environment
from tests.processes import ROOT

__all__ = ["node"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

INSPECTOR = PACKAGES / "@modelcontextprotocol" / "inspector" / "clients" / "launcher" / "build" / "index.js"
TOOL, GIVEN, WORDS = "text_statistics", {"text": "One sentence. And another one!"}, 5
PATIENCE_SECONDS = 150  # Each start of Node and of the product takes seconds, and four others start theirs
SEVERAL_PAGES = {"CATALOGUE_PAGE_SIZE": "4"}
OTHER_TOOLS = {"csv_profile", "countdown", "list_workflows", "execute_workflow", "get_execution_status"}
V1 = {"release": "v1"}
"""`@modelcontextprotocol/sdk`, which most clients are still built with."""
V2 = {"release": "v2", "mode": "auto"}
"""`@modelcontextprotocol/client`, looking for the newest revision that both sides speak."""
V2_AS_BEFORE = {"release": "v2", "mode": "legacy"}


@pytest.fixture(scope="module")
def many_pages(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Another web process on the product's data, whose lists take several pages."""
    with another_web(product, tmp_path_factory.mktemp("many_pages"), **SEVERAL_PAGES) as url:
        yield url


def ask(node: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What a client was told that lists everything, calls a tool and reads a resource."""
    wanted = {"calls": [[TOOL, GIVEN]], "resources": [f"workflow://schema/{TOOL}"], **asked}
    answer = run([node, FOLDER / "client.mjs"], given=json.dumps(wanted))
    told: dict[str, Any] = json.loads(answer)
    return told


def run(command: list[Any], *, given: str = "", variables: Mapping[str, str] | None = None) -> str:
    outcome = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(variables or {}),
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert outcome.returncode == 0, f"{outcome.stdout[-2000:]}{outcome.stderr[-4000:]}"
    return outcome.stdout


def check_what_was_told(told: Mapping[str, Any]) -> None:
    names = [tool["name"] for tool in told["tools"]]
    assert len(names) == len(set(names)) > int(SEVERAL_PAGES["CATALOGUE_PAGE_SIZE"])
    assert OTHER_TOOLS | {TOOL} <= set(names)
    (call,), (resource,) = told["calls"], told["resources"]
    assert not call.get("isError")
    assert call["structuredContent"]["words"] == json.loads(call["content"][0]["text"])["words"] == WORDS
    schema = json.loads(resource["contents"][0]["text"])
    assert "text" in json.dumps(schema)
    assert told["server"]["name"] == "workflow-catalogue"


@pytest.mark.parametrize(
    ("client", "version"), [(V1, "2025-11-25"), (V2_AS_BEFORE, "2025-11-25"), (V2, "2026-07-28")]
)
def test_the_official_client_lists_calls_and_reads_over_http(node, product, many_pages, client, version):
    """A2.1, A2.2, A2.3, D8, E8: page by page, in both eras."""
    told = ask(node, {**client, "url": many_pages, "token": product.token})
    check_what_was_told(told)
    assert told["version"] == version


@pytest.mark.parametrize(("client", "version"), [(V1, None), (V2, "2026-07-28")])
def test_the_official_client_lists_calls_and_reads_over_stdio(node, product, client, version):
    """E8: as a desktop client, which starts the server itself; the older client does not tell the version."""
    server = {"command": sys.executable, "args": ["manage.py", "mcp_stdio"]}
    told = ask(node, {**client, **server, "env": environment(product.variables | SEVERAL_PAGES)})
    check_what_was_told(told)
    assert told["version"] == version


def over_http(product: Product) -> list[str]:
    header = f"Authorization: Bearer {product.token}"
    return [f"{product.url}/mcp", "--transport", "http", "--header", header]


def over_stdio(product: Product) -> list[str]:
    """It hands on hardly anything of its own environment, as desktop clients do."""
    settings = [word for item in product.variables.items() for word in ("-e", "=".join(item))]
    return [sys.executable, str(ROOT / "manage.py"), "mcp_stdio", *settings]


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("target", [over_http, over_stdio])
def test_the_inspector_lists_tools_that_any_client_can_take_and_calls_one(
    node, product, target, era, tmp_path
):
    """A2.1, A2.2, E8: it ends with an error where a tool's schema is one that clients refuse."""
    patiently = ["--connect-timeout", str(1000 * PATIENCE_SECONDS)]
    inspect = [node, INSPECTOR, "--cli", *target(product), "--protocol-era", era, *patiently]
    # It keeps files in its user's home.
    variables = {"HOME": str(tmp_path)}
    listed = json.loads(run([*inspect, "--method", "tools/list", "--strict"], variables=variables))
    assert OTHER_TOOLS | {TOOL} <= {tool["name"] for tool in listed["tools"]}
    call = ["--method", "tools/call", "--tool-name", TOOL, "--tool-args-json", json.dumps(GIVEN)]
    called = json.loads(run([*inspect, *call], variables=variables))
    assert called["structuredContent"]["words"] == WORDS
