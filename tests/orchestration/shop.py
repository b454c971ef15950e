"""A shop's API with its tools, and asking for something in words by HTTP."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection
from rest_framework.test import APIClient

from connectors.network.policy import allow_http_tool_hosts
from orchestration.models import WorkflowRequest
from tests.api.clients import administrator, agent
from tests.engines.target_api import Reply, TargetApi, running_target_api

API_TOKEN = "shop-token-0123456789abcdef"
QUERY_KEY = "map-key-9876543210fedcba"
ORDER = {"order": {"id": "A-7", "state": "sent", "total": 42.5}}

GET_ORDER = {
    "name": "get_order",
    "description": "Reads one order of the shop: its state and what it costs.",
    "api": {"endpoint": "{base}/orders/{order_id}", "method": "GET"},
    "input_schema": {
        "type": "object",
        "properties": {
            "order_id": {"type": "string", "pattern": "^[A-Z]-[0-9]+$"},
            "fields": {"type": "string", "default": "all"},
        },
        "required": ["order_id"],
    },
}
CREATE_ORDER = {
    "name": "create_order",
    "description": "Orders something in the shop.",
    "api": {"endpoint": "{base}/orders", "method": "POST"},
    "input_schema": {
        "type": "object",
        "properties": {
            "item": {"type": "string"},
            "amount": {"type": "integer", "minimum": 1, "maximum": 10},
            "urgent": {"type": "boolean"},
        },
        "required": ["item", "amount"],
    },
    "field_mappings": {
        "input": {
            "item": {"in": "body", "name": "/line/item"},
            "amount": {"in": "body", "name": "/line/amount"},
            "urgent": {"in": "header", "name": "X-Urgent"},
        },
        "constants": [{"in": "body", "name": "/channel", "value": "words"}],
    },
}
LIST_ORDERS = {
    "name": "list_orders",
    "description": "Lists the orders of the shop.",
    "api": {"endpoint": "{base}/orders", "method": "GET"},
    "input_schema": {
        "type": "object",
        "properties": {
            "state": {"type": "string", "enum": ["open", "sent"]},
            "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        },
    },
}
TOOLS = (GET_ORDER, CREATE_ORDER, LIST_ORDERS)
EVERY_TOOL = [str(tool["name"]) for tool in TOOLS]


@pytest.fixture
def shop() -> Iterator[TargetApi]:
    """The API, which wants its token with every request; private addresses are allowed for it."""
    allow_http_tool_hosts("127.0.0.1")
    with running_target_api(required_headers={"authorization": f"Bearer {API_TOKEN}"}) as api:
        api.tell("GET", "/orders/A-7", Reply(200, ORDER, {"X-Shop": "north"}))
        yield api
    allow_http_tool_hosts("")


def store(api: TargetApi, *tools: dict[str, Any], expected: int = 201, **authentication: Any) -> None:
    """By `POST /tools`, as an administrator does it; with the shop's token unless told otherwise."""
    how = authentication or {"type": "bearer", "token": API_TOKEN}
    stored = [_at(api, tool, how) for tool in tools or TOOLS]
    answer = administrator().post("/tools", stored)
    assert answer.status_code == expected, answer.content


def _at(api: TargetApi, tool: dict[str, Any], authentication: dict[str, Any]) -> dict[str, Any]:
    called = tool["api"]
    endpoint = called["endpoint"].replace("{base}", api.base_url)
    return tool | {"api": called | {"endpoint": endpoint, "authentication": authentication}}


def ask(
    instructions: str = "Where is my order A-7?",
    tool_ids: Any = ("get_order", "list_orders"),
    *,
    client: APIClient | None = None,
    headers: dict[str, str] | None = None,
    **fields: Any,
) -> Any:
    """The answer of `POST /workflow` to somebody who may run tools."""
    body = {"user_instructions": instructions, "tool_ids": list(tool_ids)} | fields
    return (client or agent()).post("/workflow", body, headers=headers or {})


@contextmanager
def asking(*args: Any, **fields: Any) -> Iterator[Future[Any]]:
    """`ask` in a thread of its own; its answer comes within the block or after it."""

    def ask_and_close() -> Any:
        try:
            return ask(*args, **fields)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(ask_and_close)


def only() -> WorkflowRequest:
    """The one record that there is."""
    return WorkflowRequest.objects.get()


def states(answer: dict[str, Any]) -> dict[str, str]:
    """Of the answer's stages."""
    return {stage["stage"]: stage["state"] for stage in answer["stages"]}
