"""Access tokens at the REST door, and the limits on failures to show a good one."""

import hashlib
import ipaddress
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.db import transaction
from django.db.models import F
from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from loguru import logger
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed, Throttled
from rest_framework.request import Request

from mcp_bridge.models import AccessToken, FailureCount
from mcp_bridge.tokens import authenticate, describe_wrong_token

NEIGHBOURS = {4: 32, 6: 64}
"""Bits of an address that tell callers apart: one subscriber has a whole network of IPv6 addresses."""
SHOWN_NAME = 100
REMEMBERED_CALLERS = 10_000
PURGED_AT_ONCE = 1_000
PASSWORD_CHECKS = 1
"""At a time in one process: each takes a core for most of a second, and calls of tokens need the others."""
PATIENCE_SECONDS = 10.0
"""How long a sign-in waits until others were checked."""


@dataclass(frozen=True, slots=True)
class Limit:
    """So many failures within so many seconds, counted from the first."""

    name: str
    failures: int
    seconds: int


SIGN_INS_TO_ONE_ACCOUNT = Limit("sign-ins to an account from an address", 10, 900)
SIGN_INS = Limit("sign-ins from an address", 50, 900)
TOKENS = Limit("tokens from an address", 30, 60)


class TooManyFailures(Exception):
    """The caller has to wait."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"Too many failed attempts: try again in {describe_wait(seconds)}.")
        self.seconds = seconds


class TooBusy(Exception):
    """More sign-ins are being checked than this process has time for."""


def describe_wait(seconds: int) -> str:
    minutes = -(-seconds // 60)
    return f"{seconds} seconds" if minutes < 2 else f"{minutes} minutes"


class SignInAttempt:
    """One attempt to sign in. It counts before the password is checked: many at once are no way round."""

    def __init__(self, *, username: str, address: str) -> None:
        """Raises TooManyFailures."""
        self._username, self._address = username[:SHOWN_NAME], address
        account = username.casefold()
        self._keys = {
            _key(SIGN_INS_TO_ONE_ACCOUNT, account, _neighbourhood(address)): SIGN_INS_TO_ONE_ACCOUNT,
            _key(SIGN_INS, _neighbourhood(address)): SIGN_INS,
        }
        for key, limit in self._keys.items():
            if seconds := _count(key, limit):
                self._log("too many failures, the password was not looked at")
                raise TooManyFailures(seconds)

    def succeeded(self) -> None:
        """This attempt was none of the failures, and ends those of the account."""
        self.withdraw()
        FailureCount.objects.filter(key=next(iter(self._keys))).delete()

    def withdraw(self) -> None:
        """It was none: nobody looked at the password."""
        FailureCount.objects.filter(key__in=self._keys, failures__gt=0).update(failures=F("failures") - 1)

    def failed(self) -> None:
        self._log("wrong name or password")

    def _log(self, why: str) -> None:
        logger.warning("Refused a sign-in as {!r} from {}: {}.", self._username, self._address, why)


_checks = threading.BoundedSemaphore(PASSWORD_CHECKS)


@contextmanager
def checking_password() -> Iterator[None]:
    """A turn at the expensive part of a sign-in. Raises TooBusy."""
    if not _checks.acquire(timeout=PATIENCE_SECONDS):
        raise TooBusy
    try:
        yield
    finally:
        _checks.release()


_paused: dict[str, float] = {}
"""Until when, by this process's clock: the wrong tokens of who is over the limit cost no query."""


def note_wrong_token(text: str, *, address: str) -> None:
    """This token, which came from that address, was refused. Raises TooManyFailures at one of too many.

    It never keeps a good token out: many clients may share the address of a proxy or an office.
    """
    key = _key(TOKENS, _neighbourhood(address))
    if (seconds := _paused.get(key, 0) - time.monotonic()) > 0:
        raise TooManyFailures(int(seconds) + 1)
    seconds = _count(key, TOKENS)
    logger.warning("Refused an access token from {}: {}.", address, describe_wrong_token(text))
    if seconds:
        logger.warning("Too many of them: those of the next {} seconds are not logged.", seconds)
        if len(_paused) >= REMEMBERED_CALLERS:
            _paused.clear()
        _paused[key] = time.monotonic() + seconds
        raise TooManyFailures(seconds)


def forget_pauses() -> None:
    _paused.clear()


def client_address(peer: str | None, forwarded_for: str) -> str:
    """Who sent the request: the peer, or whom a trusted proxy names in `X-Forwarded-For`."""
    trusted = _trusted_networks()
    hops = [hop.strip() for hop in forwarded_for.split(",") if hop.strip()]
    address = peer or ""
    while hops and _is_within(address, trusted):
        address = hops.pop()
    return address[:SHOWN_NAME]


def _trusted_networks() -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    listed = settings.CATALOGUE["trusted_proxies"].split(",")
    return [ipaddress.ip_network(network.strip()) for network in listed if network.strip()]


def _is_within(address: str, networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in networks)


def _neighbourhood(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((parsed, NEIGHBOURS[parsed.version]), strict=False))


def _key(limit: Limit, *parts: str) -> str:
    return hashlib.sha256("\0".join((limit.name, *parts)).encode("utf-8", "surrogateescape")).hexdigest()


def _count(key: str, limit: Limit) -> int:
    """Count one more failure; the seconds to wait, if there are too many by now."""
    now = timezone.now()
    with transaction.atomic():
        counts = FailureCount.objects.filter(key=key)
        counts.filter(ends_at__lte=now).delete()
        fresh = FailureCount(key=key, ends_at=now + timedelta(seconds=limit.seconds))
        FailureCount.objects.bulk_create([fresh], ignore_conflicts=True)
        counts.update(failures=F("failures") + 1)
        count = counts.first()
        if count is not None and count.failures == 1:
            _purge()
    if count is None or count.failures <= limit.failures:
        return 0
    return max(1, int((count.ends_at - now).total_seconds()))


def _purge() -> None:
    """Remove counts that have ended; what another process removes at this moment is left to it."""
    ended = FailureCount.objects.filter(ends_at__lte=timezone.now()).select_for_update(skip_locked=True)
    keys = list(ended.values_list("key", flat=True)[:PURGED_AT_ONCE])
    FailureCount.objects.filter(key__in=keys).delete()


REFUSED = "The access token is unknown, expired or revoked; an administrator can make a new one."


class AccessTokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer <token>`. The token is `request.auth`; there is no Django user behind it."""

    def authenticate(self, request: Request) -> tuple[AnonymousUser, AccessToken] | None:
        scheme, _, text = _authorization(request).partition(" ")
        if scheme.lower() != "bearer":
            return None
        token = authenticate(text.strip())
        if token is None:
            _note_wrong_token(request, text.strip())
            raise AuthenticationFailed(REFUSED)
        return AnonymousUser(), token

    def authenticate_header(self, request: Request) -> str:
        """RFC 6750: no error code for a request that brought no token."""
        return 'Bearer error="invalid_token"' if _authorization(request) else "Bearer"


class AccessTokenDescription(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = AccessTokenAuthentication
    name = "accessToken"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "An access token, made in the admin or with `manage.py create_mcp_token`.",
        }


def _note_wrong_token(request: Request, text: str) -> None:
    address = client_address(request.META.get("REMOTE_ADDR"), request.META.get("HTTP_X_FORWARDED_FOR", ""))
    try:
        note_wrong_token(text, address=address)
    except TooManyFailures as problem:
        throttled = Throttled(detail=str(problem))
        # For `Retry-After`; given at once, REST framework would say it in the text a second time.
        throttled.wait = problem.seconds  # type: ignore[attr-defined]
        raise throttled from None


def _authorization(request: Request) -> str:
    return get_authorization_header(request).decode("iso-8859-1")
