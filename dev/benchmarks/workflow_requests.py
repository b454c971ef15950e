"""What POST /workflow adds to its three calls (model, API, model), and MCP to the one of an HTTP tool."""

import asyncio
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import httpx2
from openai import AsyncOpenAI

from dev.benchmarks._figures import milliseconds, percentile, stopwatch, table
from dev.benchmarks._load import send_load
from dev.benchmarks._model_and_shop import ARGUMENTS, TOOL
from dev.benchmarks._processes import McpServer, catalogue_server, model_and_shop, own_database
from dev.benchmarks._workflows import realistic_definitions
from dev.benchmarks.calls import META, VERSION

MANY_TOOLS = 100
WARM_UP = 20
REQUESTS = 100
ROUNDS = 3
CLIENTS = (1, 8)
WANTED = "Order two kettles for me, please."


@dataclass(frozen=True)
class Figures:
    per_second: float
    p50: float
    p95: float


class Measured(Protocol):
    def measure(self, *, clients: int, requests: int = REQUESTS) -> Figures: ...


@dataclass(frozen=True)
class Call:
    """One HTTP request that is measured; its answer has `expected` in it."""

    server: McpServer
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    expected: bytes

    def measure(self, *, clients: int, requests: int = REQUESTS) -> Figures:
        load = send_load(
            self.server, self.body, self.headers, clients=clients, requests=requests, expected=self.expected
        )
        with stopwatch() as took:
            seconds = asyncio.run(load)
        return figures_of(seconds, took.seconds)


def figures_of(seconds: list[float], took: float) -> Figures:
    return Figures(len(seconds) / took, percentile(seconds, 50), percentile(seconds, 95))


def measure(wanted: Mapping[str, Measured], *, clients: int) -> dict[str, Figures]:
    """The best round of each; they take turns, so that a busy machine disturbs all of them."""
    for measured in wanted.values():
        measured.measure(clients=clients, requests=WARM_UP)
    rounds: dict[str, list[Figures]] = {name: [] for name in wanted}
    for _ in range(ROUNDS):
        for name, measured in wanted.items():
            rounds[name].append(measured.measure(clients=clients))
    return {name: min(figures, key=lambda found: found.p50) for name, figures in rounds.items()}


def report(title: str, found: Mapping[str, Figures]) -> None:
    """The first of them is what the others are compared with."""
    directly = next(iter(found.values()))
    table(
        (title, "per second", "p50", "p95", "added at p50", "times"),
        *(
            (
                name,
                f"{figures.per_second:,.0f}",
                milliseconds(figures.p50),
                milliseconds(figures.p95),
                milliseconds(figures.p50 - directly.p50),
                f"{figures.p50 / directly.p50:.1f}",
            )
            for name, figures in found.items()
        ),
    )


def store_all(base_url: str) -> list[str]:
    """Their ids: the one that is called, and others beside it."""
    from catalogue.imports.tools import store_tools
    from connectors.http_tools.tool import ToolConfig

    tools = [
        ToolConfig.model_validate(
            {
                "name": raw["name"],
                "description": raw["description"],
                "api": {"endpoint": f"{base_url}/{raw['id']}", "method": "POST"},
                "input_schema": raw.get("inputSchema", {"type": "object"}),
            }
        )
        for raw in [ORDERING, *realistic_definitions(MANY_TOOLS - 1)]
    ]
    return [tool.tool_id for tool in store_tools(tools, expose=True).tools]


ORDERING = {
    "id": "orders",
    "name": TOOL,
    "description": "Orders something in the shop.",
    "inputSchema": {
        "type": "object",
        "properties": {"item": {"type": "string"}, "amount": {"type": "integer", "minimum": 1}},
        "required": ["item", "amount"],
    },
}


class Directly:
    """The calls as somebody sends them who does without the product, with the libraries that it uses."""

    def __init__(self, base_url: str, *, in_words: bool) -> None:
        self._base_url = base_url
        self._in_words = in_words

    def measure(self, *, clients: int, requests: int = REQUESTS) -> Figures:
        with stopwatch() as took:
            seconds = asyncio.run(self._send(clients, requests))
        return figures_of(seconds, took.seconds)

    async def _send(self, clients: int, requests: int) -> list[float]:
        left, seconds = requests, list[float]()
        async with (
            httpx2.AsyncClient(base_url=self._base_url, trust_env=False) as http,
            AsyncOpenAI(base_url=f"{self._base_url}/v1", api_key="none", http_client=http) as model,
        ):

            async def client() -> None:
                nonlocal left
                while left > 0:
                    left -= 1
                    with stopwatch() as took:
                        await (self._three_calls(http, model) if self._in_words else self._call(http))
                    seconds.append(took.seconds)

            await asyncio.gather(*(client() for _ in range(clients)))
        return seconds

    async def _call(self, http: httpx2.AsyncClient) -> Any:
        return (await http.post(f"{self._base_url}/orders", json=ARGUMENTS)).raise_for_status().json()

    async def _three_calls(self, http: httpx2.AsyncClient, model: AsyncOpenAI) -> None:
        from orchestration.prompts import formatting_prompt, selection_prompt

        ask: Any = model.chat.completions.create
        chosen = await ask(
            model="instant",
            messages=selection_prompt(WANTED, f"name: {TOOL}"),
            response_format={"type": "json_object"},
        )
        assert json.loads(chosen.choices[0].message.content or "")["tool"] == TOOL
        order = json.dumps(await self._call(http))
        told = await ask(
            model="instant", messages=formatting_prompt(order, instructions=WANTED, format_instructions="")
        )
        assert told.choices[0].message.content


def request_in_words(product: McpServer, tool_ids: list[str]) -> Call:
    return Call(
        replace(product, url=product.url.removesuffix("/mcp") + "/workflow"),
        {"user_instructions": WANTED, "tool_ids": tool_ids, "format_response": True},
        {"authorization": f"Bearer {product.token}"},
        b'"formatted_response":"Two kettles',
    )


def tools_call(product: McpServer) -> Call:
    headers = {
        "accept": "application/json, text/event-stream",
        "authorization": f"Bearer {product.token}",
        "mcp-protocol-version": VERSION,
        "mcp-method": "tools/call",
        "mcp-name": TOOL,
    }
    params = {"_meta": META, "name": TOOL, "arguments": ARGUMENTS}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return Call(product, body, headers, b'"structuredContent"')


def main() -> None:
    os.environ["CATALOGUE_HTTP_TOOL_HOSTS"] = "127.0.0.1"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        base_url = stack.enter_context(model_and_shop(folder))
        os.environ |= {
            "OPENAI_BASE_URL": f"{base_url}/v1",
            "OPENAI_API_KEY": "none",
            "OPENAI_MODEL": "instant",
        }
        database = stack.enter_context(own_database(os.environ.get("DATABASE_URL", "")))
        tool_ids = store_all(base_url)
        product = stack.enter_context(catalogue_server(folder))
        print(f"  {database}, {REQUESTS} requests a round, best of {ROUNDS} rounds; the model takes no time")
        in_words: dict[str, Measured] = {
            "the three calls directly": Directly(base_url, in_words=True),
            "POST /workflow, 1 tool": request_in_words(product, tool_ids[:1]),
            f"POST /workflow, {MANY_TOOLS} tools": request_in_words(product, tool_ids),
        }
        by_mcp: dict[str, Measured] = {
            "the API directly": Directly(base_url, in_words=False),
            "tools/call": tools_call(product),
        }
        for clients in CLIENTS:
            report(f"in words x {clients}", measure(in_words, clients=clients))
            report(f"HTTP tool x {clients}", measure(by_mcp, clients=clients))


if __name__ == "__main__":
    main()
