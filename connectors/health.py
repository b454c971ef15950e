"""The answer to "can we talk to this engine?", made the same way by every connector."""

import time
from collections.abc import Awaitable

from connectors.errors import ConnectorError
from connectors.protocol import Health


async def health_of(answer: Awaitable[str]) -> Health:
    """Awaits a sentence on what answered, and times it; a refusal is told in the engine's own words."""
    started = time.perf_counter()
    try:
        message = await answer
    except ConnectorError as error:
        return Health(ok=False, message=error.message)
    return Health(ok=True, message=message, latency_seconds=time.perf_counter() - started)
