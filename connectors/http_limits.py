"""What one engine may cost us."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpLimits:
    """Times and sizes of the requests to one engine."""

    connect_seconds: float = 5.0
    """To get a connection: once for a free place in the pool, once more to connect."""
    read_seconds: float = 30.0
    """The longest silence while an answer is awaited or read."""
    total_seconds: float = 30.0
    """One whole request, from the wait for a connection to the last byte of the answer."""
    max_response_bytes: int = 10_000_000
    max_connections: int = 50
