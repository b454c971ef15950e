"""Bounds on how many messages a server may have us look at, whatever it sends.

A message costs far more to understand than to receive: a server that sends progress as fast as it can would
keep everybody else who lives on the same event loop waiting.
"""

import re
import time

NOTIFICATIONS_AT_ONCE, NOTIFICATIONS_PER_SECOND = 500, 50
"""Of one stream; those beyond are dropped unread. What changes is told about once a second, anyway."""
MESSAGES_AT_ONCE, MESSAGES_PER_SECOND = 5_000, 1_000
"""Of one stream; one more, and it ends."""
NOTIFICATION = re.compile(rb'"method"\s*:\s*"notifications/')
ANSWER = re.compile(rb'"(result|error)"\s*:')
END_OF_EVENT = re.compile(rb"\r\n\r\n|\n\n|\r\r")
LONGEST_END = 4


class TooManyMessages(Exception):
    """The stream is a flood."""


class _Bucket:
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
    """What of one stream is worth being read."""

    def __init__(self) -> None:
        self._notifications = _Bucket(NOTIFICATIONS_AT_ONCE, NOTIFICATIONS_PER_SECOND)
        self._messages = _Bucket(MESSAGES_AT_ONCE, MESSAGES_PER_SECOND)

    def admits(self, message: bytes | bytearray) -> bool:
        """False for one that can be dropped. Raises TooManyMessages."""
        is_notification = NOTIFICATION.search(message) and not ANSWER.search(message)
        if is_notification and not self._notifications.take():
            return False
        if not self._messages.take():
            raise TooManyMessages
        return True


class Events:
    """The events of an event stream, cut out of what arrives, without those that the gate does not admit."""

    def __init__(self) -> None:
        self.rest = bytearray()
        """Of an event that has not ended."""
        self._gate = FloodGate()

    def feed(self, chunk: bytes) -> bytes:
        """Raises TooManyMessages."""
        searched_to = max(0, len(self.rest) - LONGEST_END)
        self.rest += chunk
        admitted, begin = bytearray(), 0
        while found := END_OF_EVENT.search(self.rest, max(begin, searched_to)):
            event = self.rest[begin : found.end()]
            begin = found.end()
            if self._gate.admits(event):
                admitted += event
        del self.rest[:begin]
        return bytes(admitted)
