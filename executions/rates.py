"""Calls per minute, counted across all processes.

Each rate has one row in the database: until when its calls are booked (GCRA, a leaky bucket in one number). A
process books a portion ahead and passes calls from it without a statement; one conditional UPDATE decides, so
that processes need no lock beyond the row's. A portion is one call at first, doubles while it is used up
within TERM_SECONDS, is at most one second's worth, and ends after TERM_SECONDS. So in any period of `s`
seconds no more than `at_once + per_minute / 60 * (s + TERM_SECONDS)` calls pass, whatever the number of
processes; rates of up to one call a second are exact. Calls that a process books and does not use are
unavailable to the others for that time. If clocks differ, at most the calls of that difference pass in
addition.
"""

import math
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

from django.conf import settings
from django.db.models import F
from django.db.models.functions import Greatest

from catalogue.access import Caller, Rate, rate_of
from catalogue.exposure import current_catalogue
from catalogue.models import Workflow
from connectors.background import CLOCKS_APART
from executions.models import RateBucket
from executions.refusals import TooManyCalls

TERM_SECONDS = 1.0
REMEMBERED_RATES = 10_000
MINUTE = 60_000_000  # Microseconds
EXCESS = CLOCKS_APART // timedelta(microseconds=1)  # From other clocks, and waits for the database
KEPT = 24 * 60 * MINUTE  # Rows with bookings that ended longer ago are removed
PURGED_AT_ONCE = 1_000


def take_call(workflow: Workflow | None, caller: Caller) -> None:
    """Count one call, or without a workflow one read of an MCP server's prompt or resource. Raises
    TooManyCalls, and counts nothing then."""
    passed: list[Rate] = []
    for rate in rates_of(workflow, caller):
        if (seconds := seconds_until_free(rate)) > 0:
            for other in passed:
                _portion_of(other.key).give_back()
            raise TooManyCalls(rate, retry_after=math.ceil(seconds))
        passed.append(rate)


def seconds_until_free(rate: Rate) -> float:
    """Count one of anything that has a rate. 0: it may pass."""
    return _portion_of(rate.key).take(rate)


def rates_of(workflow: Workflow | None, caller: Caller) -> Iterator[Rate]:
    """The narrowest first, so that a caller beyond its own rate does not use up shared ones."""
    yield from caller.rates
    usual = settings.CATALOGUE
    most: tuple[int | None, int | None] = (usual.calls_per_minute, usual.calls_at_once)
    found = [rate_of(f"caller:{caller.counted_as}", *most, whose="each caller")]
    shown = None if caller.toolset is None else current_catalogue().toolsets.get(caller.toolset)
    if shown is not None:
        most = (shown.toolset.calls_per_minute, shown.toolset.calls_at_once)
        found.append(rate_of(f"toolset:{shown.toolset.pk}", *most, whose=f"the toolset {caller.toolset}"))
    if workflow is not None:
        most = (usual.tool_calls_per_minute, usual.tool_calls_at_once)
        if workflow.calls_per_minute:
            most = (workflow.calls_per_minute, workflow.calls_at_once)
        found.append(rate_of(f"tool:{workflow.pk}", *most, whose=workflow.tool_name))
    yield from (rate for rate in found if rate is not None)


class _Portion:
    """What this process has booked of one rate."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rate: Rate | None = None
        self._begin(None)

    def _begin(self, rate: Rate | None) -> None:
        self._rate, self._left, self._size = rate, 0, 1
        self._ends_at = self._refused_until = 0.0
        self._is_booking = False

    def take(self, rate: Rate) -> float:
        """Seconds until the next call; 0: this one may pass."""
        with self._lock:
            now = time.monotonic()
            if rate != self._rate:
                self._begin(rate)
            if self._left and now < self._ends_at:
                self._left -= 1
                return 0.0
            # Nothing can be free earlier: bookings are never taken back.
            if now < self._refused_until:
                return self._refused_until - now
            # One thread books for all; the others do not wait for it, and book their own call.
            books_for_all, self._is_booking = not self._is_booking, True
            wanted = self._wanted(rate, now) if books_for_all else 1
        booked, seconds = 0, 0.0
        try:
            booked, seconds = book_calls(rate, wanted)
        finally:
            with self._lock:
                if books_for_all:
                    self._is_booking = False
                    if booked:
                        self._size, self._left, self._ends_at = booked, booked - 1, now + TERM_SECONDS
                if seconds and self._left:  # Of what another thread has booked meanwhile
                    self._left, seconds = self._left - 1, 0.0
                elif seconds:
                    self._refused_until = now + seconds
        return seconds

    def _wanted(self, rate: Rate, now: float) -> int:
        was_used_up = not self._left and now < self._ends_at
        wanted = self._size * 2 if was_used_up else self._size - self._left
        most = max(1, min(int(rate.per_minute / 60 * TERM_SECONDS), rate.at_once))
        return max(1, min(wanted, most))

    def give_back(self) -> None:
        with self._lock:
            self._left += 1


def book_calls(rate: Rate, number: int) -> tuple[int, float]:
    """Book `number` calls or, if there are fewer, one. Returns how many; if none, the seconds until there is
    one."""
    each = max(1, MINUTE // rate.per_minute)
    row = RateBucket.objects.filter(key=rate.key)
    while True:
        now = time.time_ns() // 1000
        horizon = now + rate.at_once * each
        for calls in dict.fromkeys((number, 1)):
            free = row.filter(booked_until__lte=horizon - calls * each)
            if free.update(booked_until=Greatest(F("booked_until"), now) + calls * each):
                return calls, 0.0
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
    return 0, max(booked_until + each - horizon, 1) / 1_000_000


_portions: dict[str, _Portion] = {}
forget_rates = _portions.clear


def _portion_of(key: str) -> _Portion:
    if (portion := _portions.get(key)) is None:
        if len(_portions) >= REMEMBERED_RATES:
            _portions.clear()
        portion = _portions.setdefault(key, _Portion())
    return portion
