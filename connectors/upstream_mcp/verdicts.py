"""What became of a request below JSON-RPC, told to whoever made it.

The SDK's transports know only JSON-RPC errors; anything else that they meet would end the whole conversation.
So a failure travels as a JSON-RPC error whose data is a key that nobody else can know.
"""

import json
from typing import Any, Protocol
from uuid import uuid4

from mcp_types import INTERNAL_ERROR

from connectors.errors import ConnectorError

MOST_UNREAD = 1_000
"""Verdicts about requests that nobody waits for any more."""


class Verdict(Protocol):
    def error(self, *, repeatable: bool) -> ConnectorError:
        """`repeatable`: the request changes nothing at the server, however often it is made."""
        ...

    @property
    def session_is_gone(self) -> bool: ...


class Verdicts:
    """Those that were passed and not yet heard."""

    def __init__(self) -> None:
        self._passed: dict[str, Verdict] = {}

    def write(self, verdict: Verdict, *, request_id: int | str | None = None) -> bytes:
        """The JSON-RPC error that stands for the verdict."""
        key = uuid4().hex
        self._passed[key] = verdict
        if len(self._passed) > MOST_UNREAD:
            del self._passed[next(iter(self._passed))]
        error = {"code": INTERNAL_ERROR, "message": "verdict", "data": key}
        return json.dumps({"jsonrpc": "2.0", "id": request_id, "error": error}).encode()

    def read(self, data: Any) -> Verdict | None:
        return self._passed.pop(data, None) if isinstance(data, str) else None
