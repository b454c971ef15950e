"""Not to start again and again what ends at once."""

import time

from connectors.errors import Unreachable

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 60.0
LONG_ENOUGH_SECONDS = 30.0
FREE_ATTEMPTS = 2
"""To begin again at once what had ended soon."""


class Backoff:
    """Holds back from beginning again and again what ends at once."""

    def __init__(self, *, holds_back: bool) -> None:
        self._holds_back = holds_back
        self._in_a_row = 0
        self._not_before = 0.0

    def check(self) -> None:
        if (left := self._not_before - time.monotonic()) > 0:
            raise Unreachable(
                f"The MCP server ended {self._in_a_row} times in a row; it is started again in {left:.1f} s.",
                retry_after=left,
            )

    def note(self, *, lasted: float) -> None:
        if not self._holds_back or lasted > LONG_ENOUGH_SECONDS:
            self._in_a_row = 0
            return
        self._in_a_row += 1
        if self._in_a_row > FREE_ATTEMPTS:
            doubled = FIRST_BACKOFF_SECONDS * 2.0 ** (self._in_a_row - FREE_ATTEMPTS - 1)
            self._not_before = time.monotonic() + min(doubled, LONGEST_BACKOFF_SECONDS)
