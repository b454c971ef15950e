"""Limits on a server's messages. Parsing costs far more than receiving: a flood of progress notifications
would block the event loop for every other request."""

import json
import re
import time
from collections.abc import Callable
from typing import Any

from loguru import logger

from connectors.formats.json import TooDeep, UnreadableJSON, is_nested_deeper, parse_listing, parse_top_level

NOTIFICATIONS_AT_ONCE, NOTIFICATIONS_PER_SECOND = 500, 50
"""Per stream; more are dropped unread. Progress is reported about once a second anyway."""
MESSAGES_AT_ONCE, MESSAGES_PER_SECOND = 5_000, 1_000  # Per stream; one more ends it
NOTIFICATION = re.compile(rb'"method"\s*:\s*"notifications/')
ANSWER = re.compile(rb'"(result|error)"\s*:')
END_OF_EVENT = re.compile(rb"\r\n\r\n|\n\n|\r\r")
MAX_DEPTH = 150  # The SDK's parser stops at 200
CUT = "workflow-catalogue/cut"  # Marks a tool that lost the parts that are nested too deep


class TooDeepAnswer(Exception):
    """An answer that cannot be used at all."""

    def __init__(self, request_id: Any) -> None:
        super().__init__(f"the answer is nested more than {MAX_DEPTH} levels deep.")
        self.request_id = request_id if isinstance(request_id, int | str) else None


def without_depth(message: bytes) -> bytes:
    """The usable part of a message that the SDK's parser cannot read. Raises TooDeepAnswer."""
    listing = cut_deep_tools(message)
    if not is_nested_deeper(listing, MAX_DEPTH):
        return listing
    try:
        members = parse_top_level(message)
    except UnreadableJSON:
        return b"{}"
    if "method" not in members:
        raise TooDeepAnswer(members.get("id"))
    logger.warning("A message of an MCP server is nested more than {} levels deep: cut.", MAX_DEPTH)
    # Neither a refusal nor a change notification needs parameters.
    members.pop("params", None)
    return json.dumps(members).encode()


def cut_deep_tools(body: bytes) -> bytes:
    """Tools nested too deep keep only the values of their top level."""
    if not body.lstrip().startswith(b"{"):
        return body
    try:
        listing = parse_listing(body, max_depth=MAX_DEPTH)
    except UnreadableJSON:
        return body
    result = listing.get("result") if isinstance(listing, dict) else None
    tools = result.get("tools") if isinstance(result, dict) else None
    if not isinstance(tools, list) or not any(isinstance(tool, TooDeep) for tool in tools):
        return body
    tools[:] = [tool | {CUT: True} if isinstance(tool, TooDeep) else tool for tool in tools]
    return json.dumps(listing).encode()


class TooManyMessages(Exception):
    """The stream exceeds its limits."""


class Bucket:
    def __init__(self, at_once: float, per_second: float) -> None:
        self._at_once, self._per_second = at_once, per_second
        self._left, self._filled_at = at_once, time.monotonic()

    def take(self) -> bool:
        now = time.monotonic()
        self._left = min(self._at_once, self._left + self._per_second * (now - self._filled_at))
        self._filled_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class FloodGate:
    def __init__(self) -> None:
        self._notifications = Bucket(NOTIFICATIONS_AT_ONCE, NOTIFICATIONS_PER_SECOND)
        self._messages = Bucket(MESSAGES_AT_ONCE, MESSAGES_PER_SECOND)

    def admits(self, message: bytes | bytearray) -> bool:
        """False for a message to drop. Raises TooManyMessages."""
        is_notification = NOTIFICATION.search(message) and not ANSWER.search(message)
        if is_notification and not self._notifications.take():
            return False
        if not self._messages.take():
            raise TooManyMessages
        return True


class Events:
    """Splits an event stream into events, and drops those beyond the limits.

    `fit` replaces events that the parser cannot read.
    """

    def __init__(self, fit: Callable[[bytes], bytes]) -> None:
        self._fit = fit
        self.rest = bytearray()
        self._gate = FloodGate()

    def feed(self, chunk: bytes) -> bytes:
        searched_to = max(0, len(self.rest) - 4)  # An end may have begun in the chunk before
        self.rest += chunk
        admitted, begin = bytearray(), 0
        while found := END_OF_EVENT.search(self.rest, max(begin, searched_to)):
            event = self.rest[begin : found.end()]
            begin = found.end()
            if self._gate.admits(event):
                admitted += self._fit(bytes(event))
        del self.rest[:begin]
        return bytes(admitted)
