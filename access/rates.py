"""Calls per minute, counted across all processes.

Each rate has one row in the database: until when its calls are booked (GCRA, a leaky bucket in one number).
One conditional UPDATE decides about a call, so that processes need no lock beyond the row's. If clocks
differ, at most the calls of that difference pass in addition.
"""

import time
from datetime import timedelta

from django.db.models import F
from django.db.models.functions import Greatest

from access.callers import Rate
from access.models import RateBucket
from connectors.background import CLOCKS_APART

MAX_REFUSALS = 10_000
MINUTE = 60_000_000  # Microseconds
EXCESS = CLOCKS_APART // timedelta(microseconds=1)  # From other clocks, and waits for the database
KEPT = 24 * 60 * MINUTE  # Rows with bookings that ended longer ago are removed
PURGED_AT_ONCE = 1_000
_refused_until: dict[Rate, float] = {}  # By the monotonic clock
forget_rates = _refused_until.clear


def seconds_until_free(rate: Rate) -> float:
    """Count one of anything that has a rate. 0: it may pass."""
    now = time.monotonic()
    # A caller that is refused and goes on costs no statement.
    if (refused_until := _refused_until.get(rate, now)) > now:
        return refused_until - now
    if (seconds := _book(rate)) > 0:
        if len(_refused_until) >= MAX_REFUSALS:
            _refused_until.clear()
        _refused_until[rate] = now + seconds
    return seconds


def _book(rate: Rate) -> float:
    """Book one call. Returns 0 or, if there is none, the seconds until there is one."""
    each = _microseconds_of(rate)
    row = RateBucket.objects.filter(key=rate.key)
    while True:
        now = time.time_ns() // 1000
        horizon = now + rate.at_once * each
        free = row.filter(booked_until__lte=horizon - each)
        if free.update(booked_until=Greatest(F("booked_until"), now) + each):
            return 0.0
        booked_until = row.values_list("booked_until", flat=True).first()
        if booked_until is not None and booked_until > horizon - each:
            break
        # Another thread or process may create it at the same moment, also since the update above.
        RateBucket.objects.bulk_create([RateBucket(key=rate.key, booked_until=now)], ignore_conflicts=True)
        old = RateBucket.objects.filter(booked_until__lt=now - KEPT)
        RateBucket.objects.filter(pk__in=list(old.values_list("pk", flat=True)[:PURGED_AT_ONCE])).delete()
    if booked_until > horizon + EXCESS:
        # The rate was lowered, or the clock set back. Another process booked a smaller excess: this one may
        # have waited for the database, or its clock may be behind.
        row.filter(booked_until=booked_until).update(booked_until=horizon)
        booked_until = horizon
    return max(booked_until + each - horizon, 1) / 1_000_000


def refund(rate: Rate) -> None:
    row = RateBucket.objects.filter(key=rate.key)
    row.update(booked_until=F("booked_until") - _microseconds_of(rate))


def _microseconds_of(rate: Rate) -> int:
    return max(1, MINUTE // rate.per_minute)
