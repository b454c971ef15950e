"""The consents of users, and the access that tokens of applications have."""

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone
from loguru import logger
from oauth2_provider.models import AccessToken, Application, Grant, RefreshToken

from access import permissions
from access.callers import Caller, Scope, person_of
from catalogue.models.toolset import SLUG_FORM
from identity.models import AllowedApplication
from identity.tokens import SHOWN_CHARACTERS, USE_NOTED_EVERY, Access, Kind, digest_of, own_origins

TOKEN_START = "wfo_"  # noqa: S105 - a prefix by which secret scanners recognise a leaked token
REFRESH_START = "wfr_"
OF_EVERY_USER = frozenset({Scope.READ.value, Scope.RUN.value})
UNUSED_KEPT = timedelta(days=1)  # A registration that no user has allowed
MAX_UNUSED = 1_000  # The limit of unused registrations
FLOOD_KEPT = timedelta(minutes=30)  # Beyond the limit: time for a user to sign in
MAX_NAME_LENGTH = 100
USED = '"used"'  # In the column of OpenID Connect's claims, which is unused here


def scopes_of(user: User, *, toolset: str | None = None) -> frozenset[str]:
    """The scopes that this user may grant. A toolset excludes the scopes that it cannot limit."""
    scopes = permissions.scopes_of(user)
    return scopes if toolset is None else scopes & OF_EVERY_USER


def slug_of(resource: str) -> str | None:
    """The slug of a resource's toolset; None: everything exposed, as for the addresses of MCP and of the
    server. Raises ValueError for foreign resources."""
    origin = "{0.scheme}://{0.netloc}".format(urlsplit(resource)).lower()
    plain = resource[: len(origin)].lower() + resource[len(origin) :].rstrip("/")
    if origin in own_origins() and plain in (origin, f"{origin}/mcp"):
        return None
    slug = plain.removeprefix(f"{origin}/mcp/")
    if origin not in own_origins() or not re.match(SLUG_FORM, slug):
        raise ValueError(resource)
    return slug


def caller_of(user: Any, application: Any, *, toolset: str | None) -> Caller:
    """Named after both. Executions belong to the user, since clients may register again at any time. Queries
    the groups of the user unless they are prefetched."""
    name = f"{user.get_username()} via {application.name or application.client_id}"
    return Caller(
        key=f"user:{user.pk}",
        name=name[:MAX_NAME_LENGTH],
        toolset=toolset,
        is_confined=toolset is not None,
        person=person_of(user),
        user_id=user.pk,
    )


def read_token(text: str) -> Access | None:
    token = _counting().select_related("user", "application").filter(token_checksum=digest_of(text)).first()
    if token is None or token.user is None or len(token.resource) != 1:
        return None
    allowed = AllowedApplication.objects.filter(
        user=token.user_id, application=token.application_id, revoked_at=None
    ).first()
    try:
        slug = slug_of(token.resource[0])
    except ValueError:
        return None  # The server had another address then
    scopes = frozenset(token.scope.split()) & scopes_of(token.user, toolset=slug)
    if allowed is None or not scopes:
        return None
    now = timezone.now()
    if allowed.last_used_at is None or now - allowed.last_used_at > USE_NOTED_EVERY:
        AllowedApplication.objects.filter(pk=allowed.pk).update(last_used_at=now)
    is_admin = Scope.ADMIN in scopes
    caller = caller_of(token.user, token.application, toolset=slug)
    return Access(
        replace(caller, sees_everything=is_admin),
        frozenset(Scope.values) if is_admin else scopes,
        kind=Kind.OAUTH,
        credential=str(token.pk),
        user_id=token.user_id,
    )


def usable_tokens(accesses: Collection[Access]) -> set[Access]:
    """Excludes those whose user left or joined a group: a new request shows the difference."""
    found = _counting().filter(pk__in=[access.credential for access in accesses]).select_related("user")
    tokens = {str(token.pk): token for token in found.prefetch_related("user__groups")}
    users = {token.user_id for token in tokens.values()}
    allowed = set(
        AllowedApplication.objects.filter(user__in=users, revoked_at=None).values_list(
            "user_id", "application_id"
        )
    )
    return {
        access
        for access in accesses
        if (token := tokens.get(access.credential)) is not None
        and (token.user_id, token.application_id) in allowed
        and access.bounds.person == person_of(token.user)
    }


def describe_wrong_token(text: str) -> str:
    token = AccessToken.objects.select_related("user").filter(token_checksum=digest_of(text)).first()
    if token is None:
        return f"{text[:SHOWN_CHARACTERS]!r}... of an application is unknown, rotated or revoked"
    if token.user is not None and not token.user.is_active:
        return f"the account {token.user.get_username()!r}, which allowed the application, is disabled"
    return f"the token of {str(token.application)!r} has expired, or its user has no permission that it needs"


@transaction.atomic
def allow(user: Any, application: Any, *, scopes: Iterable[str], toolset: str | None) -> AllowedApplication:
    """Record the user's consent, which also restores a revoked one."""
    allowed, _ = AllowedApplication.objects.update_or_create(
        user=user,
        application=application,
        defaults={
            "name": application.name or application.client_id,
            "scopes": sorted(scopes),
            "toolset": toolset or "",
            "allowed_at": timezone.now(),
            "revoked_at": None,
        },
    )
    return allowed


@transaction.atomic
def revoke(allowed: AllowedApplication) -> None:
    """Takes effect immediately for all of the application's tokens and codes of this user."""
    allowed.revoked_at = timezone.now()
    allowed.save(update_fields=["revoked_at"])
    of_both = {"user": allowed.user_id, "application": allowed.application_id}
    Grant.objects.filter(**of_both).delete()
    RefreshToken.objects.filter(**of_both, revoked=None).update(revoked=allowed.revoked_at)
    AccessToken.objects.filter(**of_both).delete()


def use_up(code: str, application: Any) -> bool:
    """False for the second of two concurrent uses. The row remains until the code would have expired, so that
    later uses are detected."""
    unused = Grant.objects.filter(code=code, application=application).exclude(claims=USED)
    return bool(unused.update(claims=USED))


@transaction.atomic
def is_first_use(code: str, application: Any) -> bool:
    """A second use revokes the tokens of the first."""
    now = timezone.now()
    used = Grant.objects.filter(code=code, application=application, claims=USED, expires__gt=now).first()
    if used is None:
        return True
    since = {"user": used.user_id, "application": application, "created__gte": used.created}
    RefreshToken.objects.filter(**since, revoked=None).update(revoked=now)
    AccessToken.objects.filter(**since).delete()
    logger.warning(
        "An authorization code of {!r} was used again. The tokens that were issued for it are revoked.",
        str(application),
    )
    return False


def is_allowed(user: Any, application: Any) -> bool:
    return bool(user is not None and user.is_active) and (
        AllowedApplication.objects.filter(user=user, application=application, revoked_at=None).exists()
    )


def unused_applications() -> Any:
    """Registered by clients, and not allowed by any user so far."""
    sources = Application.RegistrationSource
    return Application.objects.filter(
        registration_source__in=(sources.DCR, sources.CIMD), allowed=None
    ).order_by("created")


def forget_unused(kept: timedelta = UNUSED_KEPT) -> None:
    unused_applications().filter(created__lt=timezone.now() - kept).delete()


def has_room() -> bool:
    """Returns whether another registration is possible. A flood blocks others for half an hour at most."""
    for kept in (UNUSED_KEPT, FLOOD_KEPT):
        forget_unused(kept)
        if unused_applications().count() < MAX_UNUSED:
            return True
    return False


def _counting() -> Any:
    return AccessToken.objects.filter(
        user__is_active=True, application__isnull=False, expires__gt=timezone.now()
    )
