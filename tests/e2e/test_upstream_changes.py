"""An MCP server that says that its tools have changed is listed anew at once, by a product of processes."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests import plain_http
from tests.e2e.product import Product, Rest, wait_until
from tests.engines.workflow_server import WorkflowServer

pytestmark = pytest.mark.e2e

PATIENCE_SECONDS = 30.0
WITHIN_SECONDS = 15.0
"""A twentieth of the interval; of it, the schedule's tick and the bound on such listings take ten at most."""


@contextmanager
def source_of(server: WorkflowServer, name: str, product: Product, rest: Rest) -> Iterator[None]:
    """Listed by the product's worker, for the length of the block."""
    config = json.dumps({"url": server.url})
    product.manage("add_source", name, "mcp", "--config", config, "--expose-new")
    try:
        yield
    finally:
        rest.delete(f"/sources/{name}/")


def served(product: Product, ending: str) -> set[str]:
    """The servers whose tool with this ending an agent sees."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    headers = {"authorization": f"Bearer {product.token}", "accept": "application/json, text/event-stream"}
    headers |= {"mcp-protocol-version": "2025-11-25"}
    answer = plain_http.post(f"{product.url}/mcp", json=body, headers=headers, timeout=10)
    names = [tool["name"].split("-") for tool in answer.json()["result"]["tools"]]
    return {name[0] for name in names if name[-1] == ending}


def test_a_tool_that_a_server_adds_at_run_time_is_served_within_seconds(product: Product, rest: Rest) -> None:
    """A1.2, A4.3, B10: in both eras, and nobody waits for the interval of five minutes."""
    servers = {"stateless": WorkflowServer(), "sessions": WorkflowServer(stateless=False)}
    with ExitStack() as stack:
        for name, server in servers.items():
            server.tools = {f"{name}-first": "There from the beginning."}
            stack.enter_context(server.running())
            stack.enter_context(source_of(server, name, product, rest))
        wait_until(lambda: served(product, "first") == servers.keys(), PATIENCE_SECONDS, product.told)
        for server in servers.values():
            wait_until(lambda server=server: server.is_listened_to, PATIENCE_SECONDS, product.told)
        for name, server in servers.items():
            server.change_tools(**{f"{name}-added": "Added at run time."})
        wait_until(lambda: served(product, "added") == servers.keys(), WITHIN_SECONDS, product.told)
