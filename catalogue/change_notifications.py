"""Notifications of engines that their listing changed, which make their source due at once.

Every process with such a connector listens, and any of them makes the source due; the database limits how
often, for all of them together.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from django.conf import settings
from django.db import DatabaseError, InterfaceError
from django.db.models import Q
from django.utils import timezone
from loguru import logger

from catalogue.database import run_in_database
from catalogue.models import Source
from connectors.protocol import Connector

FEWEST_SECONDS = 5.0
"""Minimum between two listings after notifications."""
FEWEST_SECONDS_WHILE_FAILING = 15.0
PAUSE_SECONDS = 1.0
"""Minimum between two notifications that a process handles."""
LOOK_SECONDS = 15.0
"""How often a listener checks that its connector still fits the source."""


class Listening:
    """Listens to one source's engine until `end`. Create it on an event loop."""

    def __init__(self, source: Source, connector: Connector, *, let_go: Callable[[], None]) -> None:
        """`let_go` is called once the source is disabled, changed or deleted."""
        self._source_id = source.pk
        self._fingerprint = source.settings_fingerprint
        self._let_go = let_go
        self._told = asyncio.Event()
        connector.on_listing_changed(self._told.set)
        self._task = asyncio.get_running_loop().create_task(self._heed())

    def end(self) -> None:
        self._task.cancel()

    async def _heed(self) -> None:
        while True:
            try:
                if await self._was_told():
                    await run_in_database(make_due_after_change, self._source_id)
                    await asyncio.sleep(PAUSE_SECONDS)
                elif not await run_in_database(self._is_wanted):
                    self._let_go()
                    return
            except (DatabaseError, InterfaceError) as error:
                logger.warning("A change of an engine's listing could not be noted, trying again: {}", error)
                self._told.set()
                await asyncio.sleep(PAUSE_SECONDS)

    async def _was_told(self) -> bool:
        """False after a while without a notification."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._told.wait()
        except TimeoutError:
            return False
        self._told.clear()
        return True

    def _is_wanted(self) -> bool:
        source = Source.objects.filter(pk=self._source_id, enabled=True).first()
        return source is not None and source.settings_fingerprint == self._fingerprint


def make_due_after_change(source_id: int) -> bool:
    """Make the source due as soon as it may be listed again; False if it never may.

    A listing in progress may miss the change, so another one follows.
    """
    source = Source.objects.filter(pk=source_id, enabled=True).first()
    if source is None or not (settings.CATALOGUE["discovery_enabled"] and source.effective_refresh_interval):
        return False
    now = due = timezone.now()
    if source.failures:
        due = now + timedelta(seconds=FEWEST_SECONDS_WHILE_FAILING)
    elif source.last_refreshed_at is not None:
        due = max(now, source.last_refreshed_at + timedelta(seconds=FEWEST_SECONDS))
    later = Q(next_refresh_at=None) | Q(next_refresh_at__gt=due) | Q(refresh_lease_expires_at__gte=now)
    if Source.objects.filter(later, pk=source_id).update(next_refresh_at=due):
        logger.bind(source=source.name).info("The engine says that its listing changed; it is listed anew")
    return True
