import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.db import transaction
from django.db.models import F
from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from loguru import logger
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import APIException, AuthenticationFailed, Throttled
from rest_framework.request import Request

from access.addresses import SHOWN_NAME, client_address, neighbourhood
from audit.models import Kind, record
from catalogue.database import without_connection
from catalogue.naming import counted
from connectors.background import CLOCKS_APART
from identity.bearers import AuthenticationUnavailable, authenticate, describe_wrong_bearer, sent_token
from identity.external_tokens import named_outside
from identity.models import FailureCount
from identity.tokens import Access, Origin, arriving, digest_of, metadata_url

REMEMBERED_CALLERS = 10_000
PURGED_AT_ONCE = 1_000
PASSWORD_CHECKS = 1  # At a time in a process: each takes a core for most of a second, which tool calls need
PATIENCE_SECONDS = 10.0
_checks = threading.BoundedSemaphore(PASSWORD_CHECKS)
_paused: dict[str, float] = {}  # Until when (monotonic) wrong tokens are refused without a query, by caller
forget_pauses = _paused.clear
REFUSED = "The access token is unknown, expired or revoked; an administrator can create a new one."


@dataclass(frozen=True, slots=True)
class Limit:
    name: str
    failures: int
    seconds: int


SIGN_INS_TO_ONE_ACCOUNT = Limit("sign-ins to an account from an address", 10, 900)
SIGN_INS = Limit("sign-ins from an address", 50, 900)
CODES = Limit("second factors of an account", 10, 900)
TOKENS = Limit("tokens from an address", 30, 60)
DELIVERIES = Limit("deliveries of webhooks from an address", 30, 60)
REGISTRATIONS = Limit(
    "registrations of clients from one address (CATALOGUE_OAUTH_REGISTRATIONS_PER_HOUR)",
    settings.CATALOGUE.oauth_registrations_per_hour,
    3600,
)
CLIENT_DOCUMENTS = Limit("addresses of clients read for one user", 20, 3600)


class TooManyFailures(Exception):
    def __init__(self, seconds: int, what: str = "failed attempts") -> None:
        minutes = -(-seconds // 60)
        wait = counted(seconds, "second") if minutes < 2 else f"{minutes} minutes"
        super().__init__(f"Too many {what}: try again in {wait}.")
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
            _key(SIGN_INS_TO_ONE_ACCOUNT, account, neighbourhood(address)): SIGN_INS_TO_ONE_ACCOUNT,
            _key(SIGN_INS, neighbourhood(address)): SIGN_INS,
        }
        self._begin()

    def _begin(self) -> None:
        for key, limit in self._keys.items():
            if seconds := _count(key, limit):
                self._log("too many failures, so this attempt was not checked")
                raise TooManyFailures(seconds)

    def succeeded(self) -> None:
        self.withdraw()
        FailureCount.objects.filter(key=next(iter(self._keys))).delete()

    def withdraw(self) -> None:
        FailureCount.objects.filter(key__in=self._keys, failures__gt=0).update(failures=F("failures") - 1)

    def failed(self) -> None:
        self._log("wrong name or password")

    def _log(self, why: str) -> None:
        """Logs only names of existing accounts: other input may be a password."""
        users = get_user_model()._default_manager
        known = users.filter(**{get_user_model().USERNAME_FIELD: self._username}).exists()
        shown = repr(self._username) if known else "an unknown account"
        logger.warning("Refused a sign-in as {} from {}: {}.", shown, self._address, why)


class CodeAttempt(SignInAttempt):
    """Limits codes of the second factor. Counts all addresses together: the password is already known."""

    def __init__(self, *, username: str, address: str) -> None:
        """Raises TooManyFailures."""
        self._username, self._address = username[:SHOWN_NAME], address
        self._keys = {_key(CODES, username): CODES}
        self._begin()

    def failed(self) -> None:
        self._log("wrong second-factor code")


@contextmanager
def checking_password() -> Iterator[None]:
    """Raises TooBusy."""
    with without_connection():
        has_turn = _checks.acquire(timeout=PATIENCE_SECONDS)
    if not has_turn:
        raise TooBusy
    try:
        yield
    finally:
        _checks.release()


def note_wrong_token(text: str, *, address: str) -> None:
    """Raises TooManyFailures. Not for valid tokens: many clients may share one address."""
    with _counted(TOKENS, address):
        why = describe_wrong_bearer(text)
        logger.warning("Refused an access token from {}: {}.", address, why)
        record(Kind.TOKEN, "token.refused", outcome="refused", address=address, why=why)


def note_wrong_delivery(source: str, why: str, *, address: str) -> None:
    """Counts a wrong delivery to a webhook. Raises TooManyFailures. Not for genuine ones."""
    with _counted(DELIVERIES, address):
        logger.warning("Refused a delivery to the webhook {!r} from {}: {}", source, address, why)
        told = {"outcome": "refused", "subject_name": source, "address": address, "why": why}
        record(Kind.TOKEN, "delivery.refused", **told)


@contextmanager
def _counted(limit: Limit, address: str) -> Iterator[None]:
    """Count one failure, which is logged within, up to the limit. Raises TooManyFailures beyond it."""
    key = _key(limit, neighbourhood(address))
    if (seconds := _paused.get(key, 0) - time.monotonic()) > 0:
        raise TooManyFailures(int(seconds) + 1)
    seconds = _count(key, limit)
    yield
    if seconds:
        logger.warning("Too many of these: those of the next {} seconds are not logged.", seconds)
        if len(_paused) >= REMEMBERED_CALLERS:
            _paused.clear()
        _paused[key] = time.monotonic() + seconds
        raise TooManyFailures(seconds)


def count_attempt(limit: Limit, caller: str) -> None:
    """Counts attempts that are limited even if they succeed. Raises TooManyFailures."""
    if seconds := _count(_key(limit, neighbourhood(caller)), limit):
        raise TooManyFailures(seconds, limit.name)


def _key(limit: Limit, *parts: str) -> str:
    return digest_of("\0".join((limit.name, *parts)))


def _count(key: str, limit: Limit) -> int:
    """Count one failure. Returns the seconds to wait, 0 below the limit."""
    now = timezone.now()
    with transaction.atomic():
        counts = FailureCount.objects.filter(key=key)
        fresh = FailureCount(key=key, ends_at=now + timedelta(seconds=limit.seconds))
        # One that ends later than a new one is from a clock that was ahead.
        counts.exclude(ends_at__gt=now, ends_at__lte=fresh.ends_at + CLOCKS_APART).delete()
        FailureCount.objects.bulk_create([fresh], ignore_conflicts=True)
        counts.update(failures=F("failures") + 1)
        count = counts.first()
        if count is not None and count.failures == 1:
            # Skips rows that another process is removing.
            ended = FailureCount.objects.filter(ends_at__lte=now).select_for_update(skip_locked=True)
            keys = list(ended.values_list("key", flat=True)[:PURGED_AT_ONCE])
            FailureCount.objects.filter(key__in=keys).delete()
    if count is None or count.failures <= limit.failures:
        return 0
    return max(1, int((count.ends_at - now).total_seconds()))


class Unavailable(APIException):
    status_code = 503

    def __init__(self, problem: AuthenticationUnavailable) -> None:
        super().__init__(str(problem))
        self.wait = problem.seconds


def challenge(metadata: str, error: str = "", scopes: Iterable[str] = ()) -> str:
    """The `WWW-Authenticate` of every refusal (RFC 6750, RFC 9728). Without `error`: no credentials were
    sent. `metadata`: the address of the resource's description; `scopes`: those that a client should request
    instead."""
    parameters = {
        "error": error,
        "scope": " ".join(sorted(map(named_outside, scopes))),
        "resource_metadata": metadata,
    }
    return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in parameters.items() if value)


class AccessTokenAuthentication(BaseAuthentication):
    """`request.auth` is the Access of `Authorization: Bearer <token>`; there is no Django user."""

    def authenticate(self, request: Request) -> tuple[AnonymousUser, Access] | None:
        if (text := sent_token(_authorization(request))) is None:
            return None
        peer, forwarded = request.META.get("REMOTE_ADDR", ""), request.META.get("HTTP_X_FORWARDED_FOR", "")
        arriving.set(Origin(peer, forwarded, request.META.get("HTTP_USER_AGENT", "")))
        try:
            access = authenticate(text)
        except AuthenticationUnavailable as problem:
            raise Unavailable(problem) from None
        if access is None:
            try:
                note_wrong_token(text, address=client_address(peer, forwarded))
            except TooManyFailures as problem:
                throttled = Throttled(detail=str(problem))
                # For `Retry-After`: as an argument, REST framework would append it to the text.
                throttled.wait = problem.seconds  # type: ignore[attr-defined]
                raise throttled from None
            raise AuthenticationFailed(REFUSED)
        return AnonymousUser(), access

    def authenticate_header(self, request: Request) -> str:
        return challenge(_metadata_of(request), "invalid_token" if _authorization(request) else "")

    def refuse_scope(self, request: Request, access: Access, needed: str) -> str:
        """The `WWW-Authenticate` of a request that needs another scope."""
        return challenge(_metadata_of(request), "insufficient_scope", {*access.scopes, needed})


class AccessTokenDescription(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = AccessTokenAuthentication
    name = "accessToken"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "An access token, created in the admin or with `manage.py create_mcp_token`.",
        }


def _authorization(request: Request) -> str:
    return get_authorization_header(request).decode("iso-8859-1")


def _metadata_of(request: Request) -> str:
    return metadata_url(request.META.get("HTTP_HOST", ""))
