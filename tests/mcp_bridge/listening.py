"""Listening to the server as its messages are on the wire, and changing what it tells of."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from access.callers import Scope
from catalogue import exposure
from catalogue.models import Revision
from identity.tokens import create_token
from tests import plain_http
from tests.executions.engines import until
from tests.mcp_bridge.conftest import McpServer
from tests.mcp_bridge.test_tasks import modern

TAG = "io.modelcontextprotocol/subscriptionId"
PATIENCE_SECONDS = 20
TOOLS, PROMPTS, RESOURCES = (
    f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")
)
UPDATED = "notifications/resources/updated"


class Stream:
    """What comes on one stream, as it is on the wire."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def message(self) -> dict[str, Any]:
        """The next message; comments keep the connection alive and are none."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for line in self._lines:
                if line.startswith("data:"):
                    message: dict[str, Any] = json.loads(line.removeprefix("data:"))
                    return message
        raise AssertionError("the stream ended without another message")

    async def news(self) -> str:
        """The next message of a subscription, by its method, or its resource's address."""
        message = await self.message()
        assert message["params"]["_meta"] == {TAG: 7}, message
        return str(message["params"].get("uri", message["method"]))

    async def untagged(self) -> str:
        """The next message of a stream that belongs to no subscription, by its method."""
        message = await self.message()
        assert message == {"jsonrpc": "2.0", "method": message["method"]} | {"params": {"_meta": {}}}, message
        return str(message["method"])

    async def line(self) -> str:
        """The next line that is not empty."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await anext(line async for line in self._lines if line)

    async def task(self) -> dict[str, Any]:
        message = await self.message()
        assert message["method"] == "notifications/tasks", message
        assert message["params"].pop("_meta") == {TAG: 7}
        return dict(message["params"])

    async def honoured(self) -> dict[str, Any]:
        """What the acknowledgement names, which has to come now."""
        message = await self.message()
        assert message["method"] == "notifications/subscriptions/acknowledged", message
        assert message["params"]["_meta"] == {TAG: 7}
        return dict(message["params"]["notifications"])

    async def ends(self) -> bool:
        """Whether the server ends the subscription gracefully now."""
        message = await self.message()
        result = message.get("result", {})
        return message.get("id") == 7 and result["resultType"] == "complete" and result["_meta"][TAG] == 7

    async def is_cut_off(self) -> bool:
        """Whether the stream ends without another message."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return not [line async for line in self._lines if line.startswith("data:")]


@asynccontextmanager
async def change_stream(
    server: McpServer, token: str, *, toolset: str | None = None, version: str = "2025-11-25"
) -> AsyncIterator[Stream]:
    """By GET, as clients of the handshake era do."""
    headers = {"authorization": f"Bearer {token}", "accept": "text/event-stream"}
    headers |= {"mcp-protocol-version": version} if version else {}
    async with (
        plain_http.AsyncClient(timeout=PATIENCE_SECONDS) as client,
        client.stream("GET", server.toolset_url(toolset), headers=headers) as response,
    ):
        yield Stream(response)


@asynccontextmanager
async def listening(
    server: McpServer, token: str, *task_ids: str, toolset: str | None = None, **wanted: Any
) -> AsyncIterator[Stream]:
    """By `subscriptions/listen`. The id of the request is 7."""
    wanted |= {"taskIds": list(task_ids)} if task_ids else {}
    body, headers = modern("subscriptions/listen", notifications=wanted)
    headers |= {"authorization": f"Bearer {token}", "accept": "application/json, text/event-stream"}
    async with (
        plain_http.AsyncClient(timeout=PATIENCE_SECONDS) as client,
        client.stream("POST", server.toolset_url(toolset), json=body, headers=headers) as response,
    ):
        yield Stream(response)


async def noticed() -> None:
    """Return once the process that serves here has taken notice of the present revision."""

    def is_known() -> bool:
        known = exposure._cache._catalogue
        return known is not None and known.revision == Revision.current()

    await until(is_known, "the present revision is noticed")


class Curator:
    """Somebody who changes the catalogue by REST."""

    def __init__(self, server: McpServer) -> None:
        self._base_url = server.base_url
        self._token = create_token(name="curator", scopes=[Scope.ADMIN])[1]

    def change(self, path: str, **fields: Any) -> None:
        answer = httpx2.patch(
            f"{self._base_url}/api/{path}",
            json=fields,
            headers={"authorization": f"Bearer {self._token}"},
            timeout=PATIENCE_SECONDS,
        )
        assert answer.is_success, answer.text
