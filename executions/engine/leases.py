"""Keeping what is in hand: leases are short, and whoever lives renews them.

A process that is killed renews nothing, so that within `LEASE` others go on with what it held.
"""

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db import DatabaseError, InterfaceError, transaction
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


Held = tuple[uuid.UUID, str]
"""An execution and its holder."""


@dataclass(slots=True)
class _Kept:
    """What the steps on one event loop hold at present, each as often as there are steps that need it."""

    held: Counter[Held] = field(default_factory=Counter)
    awaited: Counter[uuid.UUID] = field(default_factory=Counter)
    renewing: asyncio.Task[None] | None = None


_kept: dict[asyncio.AbstractEventLoop, _Kept] = {}


@contextlib.asynccontextmanager
async def keep(execution_id: uuid.UUID, *, holder: str, awaited: bool = False) -> AsyncIterator[None]:
    """Renew the lease that `holder` has until the block ends; `awaited` says that a request waits for it."""
    loop = asyncio.get_running_loop()
    kept = _kept.setdefault(loop, _Kept())
    kept.held[execution_id, holder] += 1
    if awaited:
        kept.awaited[execution_id] += 1
    if kept.renewing is None or kept.renewing.done():
        kept.renewing = loop.create_task(_renew(kept))
    try:
        yield
    finally:
        _drop_one(kept.held, (execution_id, holder))
        if awaited:
            _drop_one(kept.awaited, execution_id)
        if not kept.held:
            kept.renewing.cancel()
            _kept.pop(loop, None)


def _drop_one(counts: Counter[Any], key: Any) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


async def _renew(kept: _Kept) -> None:
    while True:
        await asyncio.sleep(RENEWAL_SECONDS)
        try:
            await run_in_database(_extend, list(kept.held), list(kept.awaited))
        except (DatabaseError, InterfaceError) as error:
            logger.warning("Renewing leases failed, trying again in {} s: {}", RENEWAL_SECONDS, error)


def _extend(held: Sequence[Held], awaited: Sequence[uuid.UUID]) -> None:
    now = timezone.now()
    until = now + LEASE
    for at in range(0, len(held), AT_A_TIME):
        keys, holders = zip(*held[at : at + AT_A_TIME], strict=True)
        # Also one that has run out meanwhile: nobody has taken it, or the holder would be another.
        ours = Execution.objects.filter(pk__in=keys, lease_holder__in=set(holders), state__in=ACTIVE)
        with transaction.atomic():
            # Rows that others lock at the moment, for what a step found, are renewed the next time.
            unlocked = ours.select_for_update(skip_locked=True).values("pk")
            Execution.objects.filter(pk__in=unlocked).update(lease_expires_at=until)
    for at in range(0, len(awaited), AT_A_TIME):
        waited_for = Execution.objects.filter(pk__in=awaited[at : at + AT_A_TIME])
        # Not those whose caller has gone while a step of theirs is still under way.
        waited_for.filter(awaited_until__gt=now).update(awaited_until=until)
