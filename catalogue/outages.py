"""Sources that cannot be listed at present: of what they offer, agents see the last good list (A1.4)."""

import threading
import time
from dataclasses import dataclass
from datetime import datetime

from catalogue.exposure import ExposedCatalogue
from catalogue.models import Source

MAX_AGE_SECONDS = 0.5
"""How long a process may go without asking again, as for the catalogue itself."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A switched-on source whose last listing failed or is held."""

    source: str
    since: datetime | None
    reason: str
    """In words that may be the engine's own."""
    was_listed: bool
    """Whether there is a last good list at all."""


Outages = tuple[Outage, ...]


def outages_seen_through(catalogue: ExposedCatalogue, outages: Outages, slug: str | None) -> Outages:
    """Those of the sources of which whoever comes through the toolset sees a workflow."""
    if slug is None or not outages:
        return outages
    sources = {workflow.source.name for workflow in catalogue.seen_through(slug).values()}
    return tuple(outage for outage in outages if outage.source in sources)


class _Remembered:
    """What this process knew last, and since when."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outages: Outages = ()
        self._asked_at: float | None = None

    def fresh(self) -> Outages | None:
        """Without touching the database; None when it has to be asked."""
        asked_at = self._asked_at
        is_fresh = asked_at is not None and time.monotonic() - asked_at < MAX_AGE_SECONDS
        return self._outages if is_fresh else None

    def current(self) -> Outages:
        with self._lock:
            if (known := self.fresh()) is not None:
                return known
            asked_at = time.monotonic()
            self._outages = _load_outages()
            self._asked_at = asked_at
            return self._outages

    def forget(self) -> None:
        self._asked_at = None


def _load_outages() -> Outages:
    unlisted = (Source.HealthState.FAILING, Source.HealthState.HELD)
    out = Source.objects.filter(enabled=True, health_state__in=unlisted).order_by("name")
    columns = out.values_list("name", "failing_since", "health_message", "last_refreshed_at")
    return tuple(
        Outage(name, since, reason, refreshed is not None) for name, since, reason, refreshed in columns
    )


_remembered = _Remembered()
fresh_outages = _remembered.fresh
current_outages = _remembered.current
forget_outages = _remembered.forget
