"""Calling the product once, over MCP or REST, and telling apart what an attempt can come to."""

import asyncio
import json
import re
from dataclasses import dataclass
from typing import Any

import httpx2

from dev.chaos.plan import Call, Door, Persistence

VERSION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
}
IDEMPOTENCY_KEY = "workflow-catalogue/idempotency-key"
ANSWER_SECONDS = 120.0
REST_WAIT_SECONDS = 10
EXECUTION_ID = re.compile(r"\(execution ([0-9a-f-]{36})\)")


class NothingSent(Exception):
    """The call surely has not reached the product, or was turned away at its door."""


class ConnectionBroke(Exception):
    """There is no answer, and the product may have carried the call out."""


class Refused(Exception):
    """An answer that no call of the plan should get."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a client was told. `execution_id` is empty for a result, which names none."""

    execution_id: str = ""
    completed: bool = False
    output: Any = None


async def attempt(
    client: httpx2.AsyncClient, url: str, token: str, tool: str, call: Call, *, hangs_up: bool
) -> Answer:
    """One request for the call. Raises NothingSent, ConnectionBroke or Refused."""
    ask = _ask_mcp if call.door is Door.MCP else _ask_rest
    try:
        async with asyncio.timeout(call.hangs_up_after if hangs_up else ANSWER_SECONDS):
            return await ask(client, url, token, tool, call)
    except httpx2.ConnectError as error:
        raise NothingSent(str(error)) from None
    except httpx2.TransportError as error:
        raise ConnectionBroke(type(error).__name__) from None
    except TimeoutError:
        raise ConnectionBroke("hung up" if hangs_up else "no answer") from None


async def cancel(client: httpx2.AsyncClient, url: str, token: str, execution_id: str) -> bool:
    """Whether it was cancelled there and then. Raises ConnectionBroke or Refused."""
    headers = {"authorization": f"Bearer {token}"}
    try:
        answer = await client.post(f"{url}/api/executions/{execution_id}/cancel/", headers=headers)
    except httpx2.TransportError as error:
        raise ConnectionBroke(type(error).__name__) from None
    if answer.status_code >= 500:
        raise ConnectionBroke(f"HTTP {answer.status_code}")
    if answer.status_code not in (200, 202, 409):
        raise Refused(f"HTTP {answer.status_code} to a cancel: {answer.text[:500]}")
    return answer.status_code == 200


async def _ask_rest(client: httpx2.AsyncClient, url: str, token: str, tool: str, call: Call) -> Answer:
    headers = {"authorization": f"Bearer {token}"}
    if call.persistence is Persistence.KEY:
        headers["idempotency-key"] = call.mark
    wait = REST_WAIT_SECONDS if call.door is Door.WAITING_REST else 0
    body = {"tool": tool, "arguments": call.arguments, "wait_seconds": wait}
    answer = await client.post(f"{url}/api/executions/", json=body, headers=headers)
    if answer.status_code == 503:
        raise NothingSent("busy")
    if answer.status_code >= 500:
        raise ConnectionBroke(f"HTTP {answer.status_code}")
    if answer.status_code not in (201, 202):
        raise Refused(f"HTTP {answer.status_code}: {answer.text[:500]}")
    told = answer.json()
    return Answer(execution_id=told["id"], completed=told["state"] == "completed", output=told["output"])


async def _ask_mcp(client: httpx2.AsyncClient, url: str, token: str, tool: str, call: Call) -> Answer:
    headers = {
        "accept": "application/json, text/event-stream",
        "authorization": f"Bearer {token}",
        "mcp-protocol-version": VERSION,
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }
    key = {IDEMPOTENCY_KEY: call.mark} if call.persistence is Persistence.KEY else {}
    params = {"name": tool, "arguments": call.arguments, "_meta": META | key}
    body = {"jsonrpc": "2.0", "id": call.mark, "method": "tools/call", "params": params}
    answer = await client.post(f"{url}/mcp", json=body, headers=headers)
    if answer.status_code >= 500:
        raise ConnectionBroke(f"HTTP {answer.status_code}")
    message = _read_message(answer)
    if "error" in message:
        raise _broken(message["error"])
    return _read_result(message["result"])


def _read_message(answer: httpx2.Response) -> dict[str, Any]:
    """The response, which comes as it is or as the last event of a stream."""
    text = answer.text
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        events = [line.removeprefix("data:") for line in text.splitlines() if line.startswith("data:")]
        messages = [json.loads(event) for event in events if event.strip()]
        text = json.dumps(
            next((found for found in messages if "id" in found and "method" not in found), None)
        )
    try:
        message = json.loads(text)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise ConnectionBroke(f"HTTP {answer.status_code} without a message")
    return message


def _broken(error: dict[str, Any]) -> Exception:
    """An internal error leaves open what happened; every other one is a refusal."""
    told = f"JSON-RPC {error['code']}: {error['message']}"
    return ConnectionBroke(told) if error["code"] == -32603 else Refused(told)


def _read_result(result: dict[str, Any]) -> Answer:
    text = "\n".join(block.get("text", "") for block in result["content"])
    structured = result.get("structuredContent")
    if result.get("isError"):
        if text.startswith("Busy"):
            raise NothingSent("busy")
        if (named := EXECUTION_ID.search(text)) is None:
            raise Refused(text[:500])
        return Answer(execution_id=named[1])
    if isinstance(structured, dict) and "execution_id" in structured and "next" in structured:
        return Answer(execution_id=structured["execution_id"])
    if structured is None:  # A note stands beside the output
        structured = json.loads(result["content"][0]["text"])
    return Answer(completed=True, output=structured)
