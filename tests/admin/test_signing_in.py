"""Signing in: who guesses is kept waiting, and the log says who failed."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.hashers import MD5PasswordHasher
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.utils import timezone
from loguru import logger
from pytest_django import Settings

from identity import authentication
from identity.authentication import SIGN_INS, SIGN_INS_TO_ONE_ACCOUNT
from identity.models import FailureCount
from tests.admin.pages import text_of

pytestmark = pytest.mark.databases("identity.authentication", "identity.models")

PASSWORD = "correct horse battery"
TRIES = SIGN_INS_TO_ONE_ACCOUNT.failures


class QuickHasher(MD5PasswordHasher):
    """The tests are about how often passwords are looked at, which takes most of a second otherwise."""

    algorithm = "quick"
    looks = 0

    def verify(self, password: str, encoded: str) -> bool:
        type(self).looks += 1
        return super().verify(password, encoded)


class WaitingHasher(QuickHasher):
    algorithm = "waiting"
    looking, may_end = threading.Event(), threading.Event()

    def verify(self, password: str, encoded: str) -> bool:
        self.looking.set()
        assert self.may_end.wait(20)
        return super().verify(password, encoded)


@pytest.fixture(autouse=True)
def _quick_passwords(db: None, settings: Settings) -> None:
    settings.PASSWORD_HASHERS = [f"{__name__}.QuickHasher"]
    QuickHasher.looks = 0
    User.objects.create_superuser("ada", password=PASSWORD)


@pytest.fixture
def logged() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lines.append, format="{level} {message}")
    yield lines
    logger.remove(sink)


def sign_in(name: str = "ada", password: str = "wrong", *, address: str = "192.0.2.1", via: str = "") -> Any:
    forwarded = {"HTTP_X_FORWARDED_FOR": via} if via else {}
    given = {"username": name, "password": password}
    return Client(REMOTE_ADDR=address).post("/admin/login/", given, **forwarded)


def test_after_some_wrong_passwords_not_even_the_right_one_is_looked_at():
    """B8: until a quarter of an hour has passed; other people and other addresses are not concerned."""
    User.objects.create_superuser("grace", password=PASSWORD)
    for _ in range(TRIES):
        assert "correct username and password" in text_of(sign_in())
    looks = QuickHasher.looks
    assert "Too many failed attempts: try again in 15 minutes." in text_of(sign_in(password=PASSWORD))
    assert "Too many" in text_of(sign_in("ADA", PASSWORD))
    assert QuickHasher.looks == looks
    assert sign_in("grace", PASSWORD).status_code == 302
    assert sign_in(password=PASSWORD, address="192.0.2.2").status_code == 302
    FailureCount.objects.update(ends_at=timezone.now() - timedelta(seconds=1))
    assert sign_in(password=PASSWORD).status_code == 302


def test_one_address_does_not_try_a_password_on_everybody():
    """B8"""
    for number in range(SIGN_INS.failures):
        assert "correct username" in text_of(sign_in(f"user-{number}"))
    assert "Too many" in text_of(sign_in(password=PASSWORD))


def test_whoever_signs_in_begins_anew():
    """B8: people mistype."""
    for _ in range(3):
        for _ in range(TRIES - 1):
            sign_in()
        assert sign_in(password=PASSWORD).status_code == 302
    assert FailureCount.objects.get().failures == 3 * (TRIES - 1)


def test_a_network_of_ipv6_is_one_caller_and_a_named_proxy_is_none(settings):
    """B8: behind a proxy, strangers lock out nobody but themselves; others may claim what they like."""
    for number in range(TRIES):
        sign_in(address=f"2001:db8::{number}")
    assert "Too many" in text_of(sign_in(password=PASSWORD, address="2001:db8::ffff"))
    assert sign_in(password=PASSWORD, address="2001:db8:0:1::1").status_code == 302
    settings.CATALOGUE = settings.CATALOGUE | {"trusted_proxies": "10.0.0.0/8"}
    for number in range(TRIES):
        sign_in(address="10.0.0.1", via=f"198.51.100.{number}, 203.0.113.7")
    assert "Too many" in text_of(sign_in(address="10.0.0.2", via="203.0.113.7, 10.0.0.1"))
    assert sign_in(password=PASSWORD, address="10.0.0.1", via="203.0.113.8").status_code == 302
    assert "Too many" in text_of(sign_in(address="203.0.113.7", via="203.0.113.8"))


@pytest.mark.parametrize(
    "shown", ["203.0.113.7:{}", "[2001:db8::{}]:443", "[2001:db8::{}]", "::ffff:203.0.113.7"]
)
def test_however_a_proxy_writes_an_address_it_is_that_address(settings, shown):
    """Some add the port, by which each connection would begin anew."""
    settings.CATALOGUE = settings.CATALOGUE | {"trusted_proxies": "10.0.0.1"}
    for port in range(TRIES):
        sign_in(address="::ffff:10.0.0.1", via=shown.format(5000 + port))
    plain = "2001:db8::1" if "2001" in shown else "203.0.113.7"
    assert "Too many" in text_of(sign_in(password=PASSWORD, address="10.0.0.1", via=plain))
    assert sign_in(password=PASSWORD, address="10.0.0.1", via="203.0.113.8").status_code == 302
    assert sign_in(password=PASSWORD, address="::ffff:203.0.113.8").status_code == 302


def test_the_log_names_who_failed_and_from_where(logged):
    """B8: in one line; what is no account's name may be a password, and is left out."""
    sign_in("ada\nINFO all is well", address="192.0.2.9")
    for _ in range(TRIES + 1):
        sign_in()
    told = [line for line in logged if "sign-in" in line]
    assert told[0].startswith("WARNING Refused a sign-in as an unknown account from 192.0.2.9: wrong")
    assert told[1].startswith("WARNING Refused a sign-in as 'ada' from ")
    assert "too many failures" in told[-1]
    assert all(line.count("\n") == 1 for line in told)


def test_counts_that_have_ended_are_removed():
    """E7"""
    ended = timezone.now() - timedelta(seconds=1)
    FailureCount.objects.create(key="old", failures=1, ends_at=ended)
    sign_in()
    assert not FailureCount.objects.filter(key="old").exists()


def test_counts_of_a_clock_that_was_ahead_keep_nobody_out():
    """It was a day until the next attempt."""
    for _ in range(TRIES + 1):
        sign_in()
    FailureCount.objects.update(ends_at=timezone.now() + timedelta(days=1))
    assert sign_in(password=PASSWORD).status_code == 302


@pytest.mark.django_db(transaction=True)
def test_passwords_are_checked_one_at_a_time(settings, monkeypatch):
    """G3: however many sign in, calls find a core; who would wait too long is told, and not counted."""
    settings.PASSWORD_HASHERS = [f"{__name__}.WaitingHasher"]
    User.objects.filter(username="ada").delete()
    User.objects.create_superuser("ada", password=PASSWORD)
    monkeypatch.setattr(authentication, "PATIENCE_SECONDS", 0)

    def sign_in_elsewhere() -> int:
        try:
            return int(sign_in(password=PASSWORD).status_code)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(sign_in_elsewhere)
        assert WaitingHasher.looking.wait(20)
        assert "Too many people are signing in at the moment" in text_of(sign_in(password=PASSWORD))
        assert WaitingHasher.looks == 0
        WaitingHasher.may_end.set()
        assert first.result(20) == 302
    assert sum(FailureCount.objects.values_list("failures", flat=True)) == 0
