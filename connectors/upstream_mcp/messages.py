"""Brings what a server sends into the form that the SDK's parser reads. That one is strict: an odd value
would cost the answer that holds it, and an odd notification the call on whose stream it comes."""

import re
import time
from contextlib import suppress
from typing import Any

from loguru import logger
from mcp_types import INTERNAL_ERROR, jsonrpc_message_adapter
from pydantic import ValidationError

from connectors.errors import ConnectorError, InvalidAnswer
from connectors.formats.json import (
    TooDeep,
    UnreadableJSON,
    as_object,
    is_nested_deeper,
    parse_json,
    parse_listing,
    parse_top_level,
)

MAX_DEPTH = 150  # The SDK's parser stops at 200
LISTS = ("tools", "prompts", "resources", "resourceTemplates")
CUT = "workflow-catalogue/cut"  # Marks an item of a list that lost what is nested too deep


class UnusableAnswer(InvalidAnswer):
    """The server has carried out a request, and its answer cannot be used; `problem` ends a sentence."""

    session_is_gone = False

    def __init__(self, problem: str, message: Any) -> None:
        super().__init__(f"The server's answer cannot be used: {problem}.")
        request_id = as_object(message).get("id")
        self.request_id = request_id if isinstance(request_id, int | str) else None

    def error(self, *, repeatable: bool) -> ConnectorError:
        return self


def read_message(data: bytes) -> dict[str, Any] | None:
    """A message that the SDK accepts; None for anything else. Raises UnusableAnswer, and UnreadableJSON."""
    if is_nested_deeper(data, MAX_DEPTH):
        message = _without_depth(data)
    else:
        message = parse_json(data, max_depth=MAX_DEPTH, lenient=True)
    if isinstance(message, list):  # MCP 2025-03-26 has batches: the answer in it is what a request waits for
        message = next((one for one in message if is_answer(as_object(one))), None)
    if not isinstance(message, dict):
        return None
    try:
        jsonrpc_message_adapter.validate_python(message, by_name=False)
    except ValidationError:
        return _mended(message) if is_answer(message) else None
    return message


def _mended(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer in the form that it should have had. Raises UnusableAnswer."""
    # Over HTTP, an answer needs no id to be known as that of its request.
    request_id = answer["id"] if isinstance(answer.get("id"), int | str) else ""
    if (said := answer.get("error")) is not None and answer.keys() & {"jsonrpc", "id"}:
        error = {"code": INTERNAL_ERROR, "message": "", "data": said}
        return {"jsonrpc": "2.0", "id": request_id, "error": error}
    if answer.get("jsonrpc") == "2.0" and isinstance(answer.get("result"), dict):
        return answer | {"id": request_id}
    raise UnusableAnswer("it is not a result or error of MCP", answer)


def is_answer(message: dict[str, Any]) -> bool:
    return message.get("method") is None and ("result" in message or "error" in message)


def _without_depth(data: bytes) -> Any:
    """Leaves out what is nested too deep in the items of a list or in an error, or without parameters."""
    with suppress(UnreadableJSON):
        message = parse_listing(data, max_depth=MAX_DEPTH, lenient=True)
        result = as_object(as_object(message).get("result"))
        lists = [result[name] for name in LISTS if isinstance(result.get(name), list)]
        if cut := [item for items in lists for item in items if isinstance(item, TooDeep)]:
            for item in cut:
                item[CUT] = True
            return message
    members = parse_top_level(data, depth=2)
    if members.get("error") is not None:
        return members
    if is_answer(members):
        raise UnusableAnswer(f"it is nested more than {MAX_DEPTH} levels deep", members)
    logger.warning("A message of an MCP server is nested more than {} levels deep: cut.", MAX_DEPTH)
    # Neither a refusal nor a change notification needs parameters.
    members.pop("params", None)
    return members


NOTIFICATIONS_AT_ONCE, NOTIFICATIONS_PER_SECOND = 500, 50
"""Per stream; more are dropped unread."""
MESSAGES_AT_ONCE, MESSAGES_PER_SECOND = 5_000, 1_000  # Per stream; one more ends it
NOTIFICATION = re.compile(rb'"method"\s*:\s*"notifications\\?/')
ANSWER = re.compile(rb'"(result|error)"\s*:')


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
