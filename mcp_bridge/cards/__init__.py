"""The card of a run, which hosts of MCP Apps (`io.modelcontextprotocol/ui`, 2026-01-26) show in the chat.

A host binds a card to a tool, so one card shows runs, approvals and forms."""

from functools import cache
from pathlib import Path
from typing import Any

from mcp.server.apps import APP_MIME_TYPE
from mcp_types import ReadResourceResult, Resource, TextResourceContents

from access.callers import Bounds
from catalogue.exposure import ExposedCatalogue
from catalogue.models import Workflow
from mcp_bridge.cards.relay import relayed_meta

CARD_URI = "ui://workflow-catalogue/card.html"
CARD_WAIT_SECONDS = 5  # After which a call leaves its run to the card
SHOWS_CARD: dict[str, Any] = {"ui": {"resourceUri": CARD_URI}}  # `_meta` of tools
APP_ONLY: dict[str, Any] = {"ui": {"visibility": ["app"]}}
IN_HOST = {"ui": {"csp": {}, "permissions": {"clipboardWrite": {}}, "prefersBorder": True}}
CARD = Resource(
    uri=CARD_URI,
    name="card",
    title="Card of a run",
    description="Shows a run in the chat: its progress, questions, approval and result.",
    mime_type=APP_MIME_TYPE,
    _meta=IN_HOST,
)


@cache
def card_html() -> str:
    return Path(__file__).with_name("card.html").read_text(encoding="utf-8")


def read_card(ttl_ms: int) -> ReadResourceResult:
    contents = TextResourceContents(uri=CARD_URI, mime_type=APP_MIME_TYPE, text=card_html(), _meta=IN_HOST)
    return ReadResourceResult(contents=[contents], ttl_ms=ttl_ms)


def allows_cards(catalogue: ExposedCatalogue, bounds: Bounds) -> bool:
    """Returns whether the toolset, if any, has cards."""
    entry = catalogue.toolset_within(bounds)
    return entry is None or bool(entry.toolset.cards)


def tool_meta(workflow: Workflow) -> dict[str, Any]:
    return relayed_meta(workflow) or SHOWS_CARD


def has_our_card(workflow: Workflow) -> bool:
    return relayed_meta(workflow) is None
