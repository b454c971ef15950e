"""The errors of connectors, and how long to wait before trying again.

ConnectorError
├── Unreachable       nothing happened: no connection, or the engine is busy
├── OutcomeUnknown    a start that may have happened: the answer never came, or could not be read
├── InvalidAnswer     the engine answered a read with something that its protocol does not allow
├── Rejected          the engine said no, and why: bad credentials, bad arguments, not now
├── NotFound          the engine does not know this workflow or run
├── Unsupported       this engine cannot do that at all
├── NotGenuine        a webhook's delivery does not prove that the engine sent it
└── Misconfigured     our own settings for this engine are wrong

Messages are shown to admins and agents: they never carry credentials, and they say what the engine said.
"""

import random
import re
from typing import Any


def error_name(error: Exception) -> str:
    """Of its kind, for labels and listings, such as `invalid_answer`; `other` for one of no kind above."""
    known = (Unreachable, OutcomeUnknown, InvalidAnswer, Rejected, NotFound, Unsupported, NotGenuine)
    kind = next((kind for kind in (*known, Misconfigured) if isinstance(error, kind)), None)
    return "other" if kind is None else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


class ConnectorError(Exception):
    """`details` is the engine's own answer, redacted, for the record."""

    needs_operator = False
    """Only other settings help, such as credentials."""
    depends_on_arguments = True
    """False: no other arguments can help."""

    def __init__(self, message: str, *, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = details or {}


class Unreachable(ConnectorError):
    """Nothing changed at the engine, so retrying is safe, after `retry_after` seconds if it named any."""

    def __init__(
        self, message: str, *, retry_after: float | None = None, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message, details=details)
        self.retry_after = retry_after


class OutcomeUnknown(ConnectorError):
    """The request may have been carried out; repeat it only at an idempotent engine."""


class InvalidAnswer(ConnectorError):
    """The engine answered, but not in its own protocol (HTML, truncated JSON, wrong types, too large)."""


class Rejected(ConnectorError):
    def __init__(
        self, message: str, *, details: dict[str, Any] | None = None, needs_operator: bool = False
    ) -> None:
        super().__init__(message, details=details)
        self.needs_operator = needs_operator


class NotFound(ConnectorError):
    depends_on_arguments = False


class Unsupported(ConnectorError):
    depends_on_arguments = False


class NotGenuine(ConnectorError):
    """The message is for administrators; the sender is not told which check failed."""


class Misconfigured(ConnectorError):
    """An administrator has to change the source's settings."""

    needs_operator = True


def backoff_seconds(repeated: int, *, first: float, longest: float) -> float:
    """`first`, doubled for each attempt that was `repeated` before, and `longest` at most."""
    # 2.0 ** 1024 overflows.
    return min(first * 2.0 ** min(repeated, 100), longest)


def spread(seconds: float) -> float:
    """At least half of it, so that callers that were refused together return at different times."""
    return seconds * random.uniform(0.5, 1)  # noqa: S311
