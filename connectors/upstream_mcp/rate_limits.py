"""Limits on a server's messages. Parsing costs far more than receiving: a flood of progress notifications
would block the event loop for every other request."""

import re
import time

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
