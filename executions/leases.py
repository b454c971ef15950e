"""Keeping what is in hand: leases are short, and whoever lives renews them.

A process that is killed renews nothing, so that within `LEASE` others go on with what it held.
"""

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta

from django.db import DatabaseError, InterfaceError
from django.utils import timezone
from loguru import logger

from catalogue.database import run_in_database
from executions.models import ACTIVE, Execution

LEASE = timedelta(seconds=20)
"""How long a killed process keeps others from its executions."""
RENEWAL_SECONDS = 5.0
"""Three renewals may fail before anybody takes over."""
AT_A_TIME = 500
"""Databases bound the number of a query's parameters."""


@dataclass(slots=True)
class _Kept:
    """What the steps on one event loop hold at present."""

    holders: Counter[str] = field(default_factory=Counter)
    """A batch that was claimed together has one holder and many steps."""
    awaited: Counter[uuid.UUID] = field(default_factory=Counter)
    renewing: asyncio.Task[None] | None = None


_kept: dict[asyncio.AbstractEventLoop, _Kept] = {}


@contextlib.asynccontextmanager
async def keep(holder: str, *, awaited: uuid.UUID | None = None) -> AsyncIterator[None]:
    """Renew the leases of `holder`, and say that a request waits for `awaited`, until the block ends."""
    loop = asyncio.get_running_loop()
    kept = _kept.setdefault(loop, _Kept())
    kept.holders[holder] += 1
    if awaited is not None:
        kept.awaited[awaited] += 1
    if kept.renewing is None or kept.renewing.done():
        kept.renewing = loop.create_task(_renew(kept))
    try:
        yield
    finally:
        kept.holders -= Counter({holder: 1})
        if awaited is not None:
            kept.awaited -= Counter({awaited: 1})
        if not kept.holders:
            kept.renewing.cancel()
            _kept.pop(loop, None)


async def _renew(kept: _Kept) -> None:
    while True:
        await asyncio.sleep(RENEWAL_SECONDS)
        try:
            await run_in_database(_extend, list(kept.holders), list(kept.awaited))
        except (DatabaseError, InterfaceError) as error:
            logger.warning("Renewing leases failed, trying again in {} s: {}", RENEWAL_SECONDS, error)


def _extend(holders: list[str], awaited: list[uuid.UUID]) -> None:
    until = timezone.now() + LEASE
    for at in range(0, len(holders), AT_A_TIME):
        held = Execution.objects.filter(state__in=ACTIVE, lease_holder__in=holders[at : at + AT_A_TIME])
        held.update(lease_expires_at=until)
    for at in range(0, len(awaited), AT_A_TIME):
        waited_for = Execution.objects.filter(pk__in=awaited[at : at + AT_A_TIME])
        waited_for.filter(awaited_until__isnull=False).update(awaited_until=until)
