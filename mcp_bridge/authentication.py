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

NEIGHBOURS = {4: 32, 6: 64}  # Prefix lengths: one subscriber has a whole network of IPv6 addresses
SHOWN_NAME = 100
REMEMBERED_CALLERS = 10_000
PURGED_AT_ONCE = 1_000
PASSWORD_CHECKS = 1  # At once in a process: each takes a core for most of a second, which tool calls need
PATIENCE_SECONDS = 10.0
_checks = threading.BoundedSemaphore(PASSWORD_CHECKS)
_paused: dict[str, float] = {}  # Until when (monotonic) wrong tokens are refused without a query, by caller
forget_pauses = _paused.clear
REFUSED = "The access token is unknown, expired or revoked; an administrator can make a new one."


@dataclass(frozen=True, slots=True)
class Limit:
    name: str
    failures: int
    seconds: int


SIGN_INS_TO_ONE_ACCOUNT = Limit("sign-ins to an account from an address", 10, 900)
SIGN_INS = Limit("sign-ins from an address", 50, 900)
TOKENS = Limit("tokens from an address", 30, 60)


class TooManyFailures(Exception):
    def __init__(self, seconds: int) -> None:
        minutes = -(-seconds // 60)
        wait = f"{seconds} seconds" if minutes < 2 else f"{minutes} minutes"
        super().__init__(f"Too many failed attempts: try again in {wait}.")
        self.seconds = seconds


class TooBusy(Exception):
    pass


class SignInAttempt:
    """Counts as failed before the password is checked, or concurrent attempts would bypass the limit."""

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
        self.withdraw()
        FailureCount.objects.filter(key=next(iter(self._keys))).delete()

    def withdraw(self) -> None:
        FailureCount.objects.filter(key__in=self._keys, failures__gt=0).update(failures=F("failures") - 1)

    def failed(self) -> None:
        self._log("wrong name or password")

    def _log(self, why: str) -> None:
        logger.warning("Refused a sign-in as {!r} from {}: {}.", self._username, self._address, why)


@contextmanager
def checking_password() -> Iterator[None]:
    """Raises TooBusy."""
    if not _checks.acquire(timeout=PATIENCE_SECONDS):
        raise TooBusy
    try:
        yield
    finally:
        _checks.release()


def note_wrong_token(text: str, *, address: str) -> None:
    """Raises TooManyFailures. Good tokens never come here: many clients may share one address."""
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


def client_address(peer: str | None, forwarded_for: str) -> str:
    """The peer's, or the one that a trusted proxy names in `X-Forwarded-For`."""
    listed = settings.CATALOGUE["trusted_proxies"].split(",")
    trusted = [ipaddress.ip_network(network.strip()) for network in listed if network.strip()]
    hops = [hop.strip() for hop in forwarded_for.split(",") if hop.strip()]
    address = peer or ""
    while hops and _is_within(address, trusted):
        address = hops.pop()
    return address[:SHOWN_NAME]


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
    """Count one failure. Returns the seconds to wait, 0 below the limit."""
    now = timezone.now()
    with transaction.atomic():
        counts = FailureCount.objects.filter(key=key)
        counts.filter(ends_at__lte=now).delete()
        fresh = FailureCount(key=key, ends_at=now + timedelta(seconds=limit.seconds))
        FailureCount.objects.bulk_create([fresh], ignore_conflicts=True)
        counts.update(failures=F("failures") + 1)
        count = counts.first()
        if count is not None and count.failures == 1:
            # Rows that another process is removing are left to it.
            ended = FailureCount.objects.filter(ends_at__lte=now).select_for_update(skip_locked=True)
            keys = list(ended.values_list("key", flat=True)[:PURGED_AT_ONCE])
            FailureCount.objects.filter(key__in=keys).delete()
    if count is None or count.failures <= limit.failures:
        return 0
    return max(1, int((count.ends_at - now).total_seconds()))


class AccessTokenAuthentication(BaseAuthentication):
    """`request.auth` is the token of `Authorization: Bearer <token>`; there is no Django user."""

    def authenticate(self, request: Request) -> tuple[AnonymousUser, AccessToken] | None:
        scheme, _, text = _authorization(request).partition(" ")
        if scheme.lower() != "bearer":
            return None
        token = authenticate(text.strip())
        if token is None:
            forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "")
            try:
                note_wrong_token(
                    text.strip(), address=client_address(request.META.get("REMOTE_ADDR"), forwarded)
                )
            except TooManyFailures as problem:
                throttled = Throttled(detail=str(problem))
                # For `Retry-After`: as an argument, REST framework would append it to the text.
                throttled.wait = problem.seconds  # type: ignore[attr-defined]
                raise throttled from None
            raise AuthenticationFailed(REFUSED)
        return AnonymousUser(), token

    def authenticate_header(self, request: Request) -> str:
        """RFC 6750: no error code for a request without a token."""
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


def _authorization(request: Request) -> str:
    return get_authorization_header(request).decode("iso-8859-1")
