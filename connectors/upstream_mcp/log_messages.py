"""Log messages of a server, on their way to the caller whose call caused them."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from connectors.network.redaction import printable, shorten
from connectors.protocol import LOG_LEVELS, LogMessage, RunCaller, covers_level
from connectors.upstream_mcp.questions import CALL, FOR_CALLERS
from connectors.upstream_mcp.rate_limits import Bucket

LOG_MESSAGE = "notifications/message"
MESSAGES_AT_ONCE, MESSAGES_PER_SECOND = 100, 20  # Passed on to one call; more are dropped
LONGEST_DATA = 5_000  # Characters of JSON
LONGEST_LOGGER = 200


class CallLogs:
    """The requests under way in one conversation, and which of them a message belongs to."""

    def __init__(self) -> None:
        self._under_way: list[str] = []
        self._calls: dict[str, tuple[RunCaller, Bucket]] = {}
        self._callers: set[str] = set()  # All that ever called

    @contextmanager
    def during(self, method: str, call_id: str, caller: RunCaller | None) -> Iterator[None]:
        self._under_way.append(call_id)
        if method in FOR_CALLERS:
            # One without a caller may be anybody's.
            self._callers.add("" if caller is None else caller.key)
        if caller is not None:
            self._calls[call_id] = caller, Bucket(MESSAGES_AT_ONCE, MESSAGES_PER_SECOND)
        try:
            yield
        finally:
            self._under_way.remove(call_id)
            self._calls.pop(call_id, None)

    def is_wanted(self, params: Mapping[str, Any]) -> bool:
        """To be asked first: checking and masking a message costs more."""
        return self._find(params) is not None

    def pass_on(self, params: Mapping[str, Any]) -> None:
        """A message with secrets masked."""
        if (caller := self._find(params, take=True)) is None:
            return
        data, logger = params.get("data"), params.get("logger")
        if len(text := json.dumps(data, ensure_ascii=False)) > LONGEST_DATA:
            data = shorten(data if isinstance(data, str) else text, LONGEST_DATA)
        name = shorten(printable(logger), LONGEST_LOGGER) if isinstance(logger, str) else ""
        caller.log(LogMessage(level=params["level"], data=data, logger=name))

    def _find(self, params: Mapping[str, Any], *, take: bool = False) -> RunCaller | None:
        meta = params.get("_meta")
        call_id = str(meta.get(CALL) or "") if isinstance(meta, dict) else ""
        if not call_id and len(self._under_way) == 1 and len(self._callers) == 1:
            # Over stdio, and on a session's own stream, no message says to which call it belongs. It may be a
            # late one of an earlier call, so that there must not have been any other caller either.
            call_id = self._under_way[0]
        if call_id not in self._calls:
            return None
        caller, bucket = self._calls[call_id]
        level = params.get("level")
        if not isinstance(level, str) or not covers_level(caller.log_level, level):
            return None
        return None if take and not bucket.take() else caller


def is_more_verbose(wanted: str, than: str) -> bool:
    """An empty level is that of a server that nobody has told one."""
    return wanted in LOG_LEVELS and (not than or LOG_LEVELS.index(wanted) < LOG_LEVELS.index(than))
