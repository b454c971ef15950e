"""Lets a running workflow report its progress to the engine, and learn that it should stop."""

from collections.abc import Callable
from dataclasses import dataclass

from examples.engine.clock import now_ms


class RunStopped(Exception):
    """Raised inside a workflow whose run was cancelled or whose engine is shutting down."""


@dataclass(frozen=True, slots=True)
class Report:
    percent: float | None
    message: str | None
    at: int


class Progress:
    """One run's live progress. Its workflow's thread writes it while the event loop reads it.

    Nothing is locked: each change is one attribute assignment. Nothing is stored either: a run that is
    interrupted starts over, so progress only matters while it lives.
    """

    def __init__(self, started_at: int) -> None:
        self.started_at = started_at
        self._stopped = False
        self._source: Callable[[], Report] = lambda: Report(None, None, started_at)

    def report(self, percent: float, message: str) -> None:
        """Publish how far the run is; raises RunStopped when there is no point in going on."""
        if self._stopped:
            raise RunStopped
        latest = Report(round(percent, 1), message, now_ms())
        self._source = lambda: latest

    def derive_from(self, source: Callable[[], Report]) -> None:
        """Ask `source` whenever progress is wanted, for runs that would otherwise wake up only to report."""
        self._source = source

    def latest(self) -> Report:
        return self._source()

    def stop(self) -> None:
        self._stopped = True
