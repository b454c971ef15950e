"""A call as a client makes it: over HTTP, at the product's public address, with a token."""

import json
from dataclasses import dataclass
from typing import Any

import httpx2
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from connectors.formats.json import readable_json
from identity.tokens import resource_url
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS

PATIENCE_SECONDS = 20.0
SHOWN_CHARACTERS = 4_000
UNREACHABLE = (
    "This server could not reach its own public address {}: {}. Clients elsewhere may still reach it. If "
    "they cannot, check CATALOGUE_ADDRESS, the proxy and the certificate."
)


class TrialFailed(Exception):
    """Its text says why, for people."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    address: str
    tools: list[str]  # Of the first page of the list
    called: str = ""  # A tool that changes nothing and needs no arguments; empty: the list has none
    answer: str = ""  # Of that call
    failed: bool = False  # The call, not the list


def try_endpoint(slug: str | None, token: str) -> Trial:
    """Lists the tools, and calls one that is read-only and has no required arguments, a workflow's if there
    is one. Raises TrialFailed if the list cannot be read."""
    address = resource_url(slug)
    with httpx2.Client(timeout=PATIENCE_SECONDS, follow_redirects=False) as client:
        tools = _ask(client, address, token, "tools/list").get("tools", [])
        names = [str(tool["name"]) for tool in tools]
        harmless = [str(tool["name"]) for tool in tools if _is_harmless(tool)]
        if not harmless:
            return Trial(address=address, tools=names)
        called = min(harmless, key=lambda name: name in BUILT_IN_TOOLS)
        try:
            answer = _ask(client, address, token, "tools/call", name=called, arguments={})
        except TrialFailed as problem:
            return Trial(address=address, tools=names, called=called, answer=str(problem), failed=True)
    shown = answer.get("structuredContent") or answer.get("content") or answer
    failed = bool(answer.get("isError"))
    text = readable_json(shown)[:SHOWN_CHARACTERS]
    return Trial(address=address, tools=names, called=called, answer=text, failed=failed)


def _is_harmless(tool: dict[str, Any]) -> bool:
    reads_only = (tool.get("annotations") or {}).get("readOnlyHint") is True
    return reads_only and not tool.get("inputSchema", {}).get("required")


def _ask(client: httpx2.Client, address: str, token: str, method: str, **params: Any) -> dict[str, Any]:
    headers = {
        "authorization": f"Bearer {token}",
        "accept": "application/json",
        "mcp-protocol-version": max(HANDSHAKE_PROTOCOL_VERSIONS),
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    try:
        answered = client.post(address, json=body, headers=headers)
    except httpx2.HTTPError as problem:
        raise TrialFailed(UNREACHABLE.format(address, str(problem) or type(problem).__name__)) from None
    try:
        document = answered.json()
    except json.JSONDecodeError:
        raise TrialFailed(
            f"{address} answered {answered.status_code}, but not as an MCP server does."
        ) from None
    if isinstance(document, dict) and isinstance(document.get("result"), dict):
        result: dict[str, Any] = document["result"]
        return result
    raise TrialFailed(f"{address} answered {answered.status_code}: {_reason_in(document)[:SHOWN_CHARACTERS]}")


def _reason_in(document: Any) -> str:
    error = document.get("error") if isinstance(document, dict) else document
    if isinstance(error, dict):
        return str(error.get("message", error))
    return (
        str(document.get("error_description") or error or document)
        if isinstance(document, dict)
        else str(error)
    )
