"""The errors of connectors, and how long to wait before trying again.

ConnectorError
├── Unreachable       nothing happened: no connection, or the engine is busy
├── OutcomeUnknown    a start that may have happened: the answer never came, or could not be read
├── InvalidAnswer     the engine answered a read with something that its protocol does not allow
├── Rejected          the engine refused: bad credentials, bad arguments, wrong state
├── NotFound          the engine does not know this workflow or run
├── Unsupported       this engine cannot do that at all
├── NotGenuine        a webhook's delivery does not prove that the engine sent it
└── Misconfigured     the settings for this engine are wrong

Messages are shown to administrators and agents. They contain the engine's message, but never credentials.
"""

import random
import re
from typing import Any


def error_name(error: Exception) -> str:
    """Returns a name for labels and listings, such as `invalid_answer`; `other` for any other error."""
    known = (Unreachable, OutcomeUnknown, InvalidAnswer, Rejected, NotFound, Unsupported, NotGenuine)
    kind = next((kind for kind in (*known, Misconfigured) if isinstance(error, kind)), None)
    return "other" if kind is None else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


class ConnectorError(Exception):
    """`details` is the engine's own answer, redacted, for the record."""

    needs_operator = False
    """The source's settings must change, such as its credentials."""
    depends_on_arguments = True
    """False: no other arguments can help."""

    def __init__(self, message: str, *, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = details or {}


class Unreachable(ConnectorError):
    """Nothing changed at the engine, so retrying is safe, after `retry_after` seconds if it is set."""

    def __init__(
        self, message: str, *, retry_after: float | None = None, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message, details=details)
        self.retry_after = retry_after


class OutcomeUnknown(ConnectorError):
    """The request may have been carried out; repeat it only if the engine is idempotent."""


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
    """The message is for administrators; the sender does not learn which check failed."""


class Misconfigured(ConnectorError):
    """An administrator must change the source's settings."""

    needs_operator = True


def login_failure(error: ConnectorError, message: str) -> ConnectorError:
    """Returns the error of a login: a missing endpoint must not look like a missing run."""
    kind = Misconfigured if isinstance(error, NotFound) else type(error)
    failure = kind(message, details=error.details)
    failure.needs_operator |= isinstance(error, Rejected)
    return failure


def backoff_seconds(repeated: int, *, first: float, longest: float) -> float:
    """`first`, doubled `repeated` times, at most `longest`."""
    # 2.0 ** 1024 overflows.
    return min(first * 2.0 ** min(repeated, 100), longest)


def spread(seconds: float) -> float:
    """Returns at least half of it, at random, so that callers refused together do not return together."""
    return seconds * random.uniform(0.5, 1)  # noqa: S311
