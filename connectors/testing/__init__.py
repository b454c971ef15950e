"""The contract of every connector, as tests to subclass, also for other packages. Write an `EngineHarness`
for the engine, and a subclass of `ConnectorContract` with a fixture `harness`. It needs pytest with
pytest-asyncio in its mode "auto"."""

from connectors.testing.contract import ConnectorContract
from connectors.testing.harness import (
    BROKEN_OFF,
    GARBAGE,
    Asked,
    EngineHarness,
    Interaction,
    Sample,
    advance_clock,
    closing,
    everything_told_by,
    free_port,
    http_answer,
    silent_engine,
    start,
    until_ended,
)

__all__ = [
    "BROKEN_OFF",
    "GARBAGE",
    "Asked",
    "ConnectorContract",
    "EngineHarness",
    "Interaction",
    "Sample",
    "advance_clock",
    "closing",
    "everything_told_by",
    "free_port",
    "http_answer",
    "silent_engine",
    "start",
    "until_ended",
]
