"""Requests for input and log messages that a server sends to callers during their calls."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND, URL_ELICITATION_REQUIRED
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from connectors.errors import ConnectorError, InvalidAnswer, Unsupported
from connectors.formats.json import as_object
from connectors.formats.mcp_apps import EXTENSION, MIME_TYPES
from connectors.network.redaction import printable, shorten
from connectors.network.transport import WORDS_LIMIT
from connectors.protocol import GivenInput, LogMessage, RunCaller, covers_level
from connectors.upstream_mcp.messages import Bucket

ELICIT = "elicitation/create"
CAPABILITY_OF = {
    ELICIT: "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
PASSED_ON = {"none": (), "elicitation": ("elicitation",), "all": ("elicitation", "sampling", "roots")}
DECLARED: dict[str, dict[str, Any]] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
CALL_PREFIX = "call-"  # Of the ids of requests that callers may have caused
CALL = "workflow-catalogue/call"  # In `_meta` of a server's request: the call on whose stream it came
PAGE = re.compile(r"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:\d+)?([/?#][!-~]*)?", re.IGNORECASE)
"""Without a user name, which people could take for the host."""
FOR_CALLERS = {"tools/call", "prompts/get", "resources/read", "completion/complete"}
MAX_AT_ONCE = 10
MAX_BYTES = 100_000  # Of all questions of a round
CANNOT_ANSWER = "The tool asks for input during the call, which its caller's client cannot provide."
LOG_MESSAGE = "notifications/message"
MESSAGES_AT_ONCE, MESSAGES_PER_SECOND = 100, 20  # Passed on to one call; more are dropped
MAX_DATA_LENGTH = 5_000  # Characters of JSON


def read_error(
    code: Any, message: str, data: Any, mask: Callable[[str], str] = str
) -> tuple[str, list[dict[str, str]]]:
    """A server's error in words, with its data, and the pages that a person must open first, as questions."""
    pages: list[dict[str, str]] = []
    if code == URL_ELICITATION_REQUIRED and isinstance(data, dict):
        asked = data.get("elicitations")
        for one in map(as_object, asked[:MAX_AT_ONCE] if isinstance(asked, list) else []):
            page = {name: mask(str(one.get(name) or "")) for name in ("elicitationId", "message", "url")}
            if one.get("mode", "url") == "url" and PAGE.fullmatch(page["url"]):
                words = {name: shorten(printable(text), WORDS_LIMIT) for name, text in page.items()}
                words["elicitationId"] = words["elicitationId"] or str(uuid4())
                pages.append(words | {"mode": "url", "url": page["url"]})
        data = {name: value for name, value in data.items() if name != "elicitations"}
    said = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False) if data else ""
    texts = [shorten(printable(mask(text)), WORDS_LIMIT) for text in (message, said)]
    texts += [f"A person must first open {page['url']} ({page['message']})." for page in pages]
    return ". ".join(text.removesuffix(".") for text in texts if text) or "it gave no reason", pages


def _call_id_in(params: Mapping[str, Any]) -> str:
    """Empty for a message that does not name its call."""
    return str(as_object(params.get("_meta")).get(CALL) or "")


class Questions:
    """Passes on what the settings allow and the caller's client can answer."""

    def __init__(self, passed_on: str, *, apps: bool = False) -> None:
        self._capabilities = PASSED_ON[passed_on]
        self.extensions: dict[str, Any] = {EXTENSION: {"mimeTypes": [*MIME_TYPES]}} if apps else {}
        self._calls: dict[str, RunCaller | None] = {}  # Under way, by the id of their request

    @property
    def declared(self) -> dict[str, Any]:
        """The client capabilities of a handshake, which holds for the calls of all callers."""
        declared: dict[str, Any] = {name: DECLARED[name] for name in self._capabilities}
        return declared | ({"extensions": self.extensions} if self.extensions else {})

    def capabilities_of(self, caller: RunCaller | GivenInput | None) -> dict[str, Any]:
        if caller is None:
            return {}
        return {name: caller.capabilities[name] for name in self._capabilities if name in caller.capabilities}

    @contextmanager
    def during(self, method: str, call_id: str, caller: RunCaller | None) -> Iterator[None]:
        if method in FOR_CALLERS:
            self._calls[call_id] = caller
        try:
            yield
        finally:
            self._calls.pop(call_id, None)

    async def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Answers a request of a handshake server. Raises MCPError for one that cannot be forwarded."""
        call_id = _call_id_in(params)
        # Over stdio, requests do not name their call.
        only = next(iter(self._calls.values())) if len(self._calls) == 1 else None
        caller = self._calls.get(call_id) if call_id else only
        is_too_large = len(json.dumps(params)) > MAX_BYTES
        if caller is None or is_too_large or not self._can_answer(caller, method, params):
            if method == ELICIT:
                return {"action": "cancel"}  # No user has seen it
            raise MCPError(METHOD_NOT_FOUND, f"The client of this caller does not support {method[:100]}.")
        asked = {name: value for name, value in params.items() if name != "_meta"}
        result = (await caller.ask({"0": {"method": method, "params": asked}}))["0"]
        if "error" in result:
            raise MCPError(METHOD_NOT_FOUND, "The caller's client did not answer.")
        return result

    async def answer_all(self, requests: Any, caller: RunCaller | None) -> dict[str, dict[str, Any]]:
        """The `inputRequests` of a stateless server's answer. Raises Unsupported or InvalidAnswer."""
        asked = self.admissible(requests, caller)
        results = {} if caller is None or not asked else await caller.ask(asked)
        if any("error" in result for result in results.values()):
            raise Unsupported(
                "The tool asks for input during the call, which its caller's client refused to provide."
            )
        return results

    def admissible(self, requests: Any, caller: RunCaller | None) -> dict[str, dict[str, Any]]:
        """`inputRequests` that the caller's client can answer. Raises Unsupported or InvalidAnswer."""
        if not isinstance(requests, dict) or len(requests) > MAX_AT_ONCE:
            raise InvalidAnswer(f"The tool's request for input must have at most {MAX_AT_ONCE} named parts.")
        if len(json.dumps(requests)) > MAX_BYTES:
            raise InvalidAnswer(f"The tool's request for input is larger than {MAX_BYTES:,} bytes.")
        asked: dict[str, dict[str, Any]] = {}
        for key, given in requests.items():
            request = as_object(given)
            method, params = request.get("method"), request.get("params") or {}
            if caller is None or not isinstance(params, dict) or not self._can_answer(caller, method, params):
                raise Unsupported(CANNOT_ANSWER)
            asked[key] = {"method": method, "params": params}
        return asked

    def pages_to_open(
        self, error: ConnectorError, caller: RunCaller | GivenInput | None
    ) -> dict[str, dict[str, Any]]:
        """The pages that an error requires, as questions; empty if the caller's client cannot show them."""
        pages = error.details.get("elicitations", [])
        if caller is None or not all(self._can_answer(caller, ELICIT, page) for page in pages):
            return {}
        return {str(number): {"method": ELICIT, "params": page} for number, page in enumerate(pages)}

    async def open_pages(self, error: ConnectorError, caller: RunCaller | None) -> None:
        """Returns once the user has agreed to open the pages that the error requires. Otherwise, and for
        clients with a handshake, which know such an error, raises it."""
        if caller is None or caller.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            raise error
        asked = self.pages_to_open(error, caller)
        opened = (await caller.ask(asked)).values() if asked else ()
        if not opened or any(result.get("action") != "accept" for result in opened):
            raise error

    def _can_answer(self, caller: RunCaller | GivenInput, method: Any, params: Mapping[str, Any]) -> bool:
        """`method` and `params` are the server's, and may be anything."""
        capability = self.capabilities_of(caller).get(CAPABILITY_OF.get(str(method), ""))
        if not isinstance(capability, dict):
            return False
        if method != ELICIT:
            return True
        mode = str(params.get("mode", "form"))
        if mode == "url" and not PAGE.fullmatch(str(params.get("url"))):
            return False
        # An empty capability means forms.
        return mode in (capability or {"form": {}})


# Log messages


class CallLogs:
    """The requests under way in one conversation, and which of them a message belongs to."""

    def __init__(self) -> None:
        self._under_way: list[str] = []
        self._calls: dict[str, tuple[RunCaller, Bucket]] = {}
        self._callers: set[str] = set()  # All callers so far

    @contextmanager
    def during(self, method: str, call_id: str, caller: RunCaller | None) -> Iterator[None]:
        self._under_way.append(call_id)
        if method in FOR_CALLERS:
            # A call without a caller may belong to any client.
            self._callers.add("" if caller is None else caller.key)
        if caller is not None:
            self._calls[call_id] = caller, Bucket(MESSAGES_AT_ONCE, MESSAGES_PER_SECOND)
        try:
            yield
        finally:
            self._under_way.remove(call_id)
            self._calls.pop(call_id, None)

    def pass_on(self, params: Mapping[str, Any], mask: Callable[[Any], dict[str, Any]] = dict) -> bool:
        """Returns True if a caller gets the message. `mask` hides secrets, at more cost than the search."""
        if (caller := self._find(params)) is None:
            return False
        params = mask(params)
        data, logger = params.get("data"), params.get("logger")
        if len(text := json.dumps(data, ensure_ascii=False)) > MAX_DATA_LENGTH:
            data = shorten(data if isinstance(data, str) else text, MAX_DATA_LENGTH)
        name = shorten(printable(logger), 200) if isinstance(logger, str) else ""
        caller.log(LogMessage(level=params["level"], data=data, logger=name))
        return True

    def _find(self, params: Mapping[str, Any]) -> RunCaller | None:
        call_id = _call_id_in(params)
        if not call_id and len(self._under_way) == 1 and len(self._callers) == 1:
            # Over stdio, and on a session's own stream, messages do not name their call. It may be a late
            # message of an earlier call, so there must not have been another caller either.
            call_id = self._under_way[0]
        if call_id not in self._calls:
            return None
        caller, bucket = self._calls[call_id]
        level = params.get("level")
        if not isinstance(level, str) or not covers_level(caller.log_level, level):
            return None
        return caller if bucket.take() else None
