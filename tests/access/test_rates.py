"""Bookings of rates: what survives other clocks, threads and processes, and what is removed."""

from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection

from access import rates
from access.callers import rate_of
from access.models import RateBucket
from access.rates import forget_rates, seconds_until_free
from tests.threads import together

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.databases("access.rates", "access.models")]


def limited(per_minute: int, at_once: int | None = None, *, key: str = "token:1") -> Any:
    return rate_of(key, per_minute, at_once, whose="the token")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The clocks of this one module stand still until they are moved; other threads have their own."""

    class Clock:
        now = 1_800_000_000.0

    frozen = SimpleNamespace(time_ns=lambda: int(Clock.now * 1_000_000_000), monotonic=lambda: Clock.now)
    monkeypatch.setattr(rates, "time", frozen)
    return Clock


def test_a_lowered_rate_and_a_clock_that_is_set_back_lock_nobody_out(clock):
    for _ in range(60):
        seconds_until_free(limited(6, 60))
    assert seconds_until_free(limited(6, 1)) == 10.0
    clock.now -= 3600
    forget_rates()
    assert seconds_until_free(limited(6, 1)) == 10.0
    clock.now += 10.001
    assert seconds_until_free(limited(6, 1)) == 0.0


def test_rows_of_rates_that_nobody_uses_are_removed(clock):
    seconds_until_free(limited(6, key="token:1"))
    clock.now += 2 * 24 * 3600
    seconds_until_free(limited(6, key="token:2"))
    assert list(RateBucket.objects.values_list("pk", flat=True)) == ["token:2"]


def test_threads_that_book_the_last_calls_at_once_get_no_more_than_there_are():
    """The race: both read that one is left. A conditional UPDATE decides."""

    def book() -> list[float]:
        return [seconds_until_free(limited(1, 5)) for _ in range(3)]

    waits = [seconds for booked in together(*[book] * 8) for seconds in booked]
    assert waits.count(0.0) == 5


def test_a_row_that_another_process_makes_meanwhile_refuses_no_call(clock):
    """The race: this process finds no row to update, and then the other's."""
    rate, made = limited(6_000, 1_000), []

    def make_row(execute: Any, sql: str, *rest: Any) -> Any:
        found = execute(sql, *rest)
        if sql.startswith("UPDATE") and not made:
            made.append(RateBucket.objects.create(key=rate.key, booked_until=int(clock.now * 1_000_000)))
        return found

    with connection.execute_wrapper(make_row):
        assert seconds_until_free(rate) == 0.0
