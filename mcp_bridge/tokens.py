import getpass
import hashlib
import secrets
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import ProtectedError
from django.http import parse_cookie
from django.utils import timezone
from loguru import logger
from starlette.datastructures import Headers

from catalogue.database import run_in_database
from catalogue.models import Toolset
from catalogue.permissions import grantable_scopes, tell_missing
from catalogue.scopes import Scope
from executions.callers import Caller
from mcp_bridge.models import AccessToken, default_scopes

TOKEN_START = "wfc_"  # noqa: S105 - a prefix by which secret scanners recognise a leaked token
SHOWN_CHARACTERS = 12
METADATA_PATH = "/.well-known/oauth-protected-resource"
REMEMBERED_SECONDS = 0.5  # Without a query; so a revoked token is refused within a second
REMEMBERED_TOKENS = 10_000
USE_NOTED_EVERY = timedelta(minutes=1)
_remembered: dict[str, tuple[float, AccessToken]] = {}
forget_tokens = _remembered.clear
NAMED_TOKENS = 10


def create_token(
    *,
    name: str,
    scopes: Iterable[str] | None = None,
    expires_at: datetime | None = None,
    toolset: Toolset | None = None,
    inline_wait_seconds: int | None = None,
    created_by: User | None = None,
) -> tuple[AccessToken, str]:
    """A token and its text, which is not stored. Raises ValidationError keyed by field. The permissions of
    `created_by` limit the scopes; None: the operator."""
    text = TOKEN_START + secrets.token_urlsafe(32)
    chosen = default_scopes() if scopes is None else sorted(set(scopes))
    if unknown := [scope for scope in chosen if scope not in Scope.values] or not chosen:
        named = f"Unknown: {', '.join(unknown)}. " if isinstance(unknown, list) else ""
        raise ValidationError({"scopes": f"{named}Choose from {', '.join(Scope.values)}."})
    if created_by is not None and (refused := sorted(set(chosen) - set(grantable_scopes(created_by)))):
        raise ValidationError({"scopes": tell_missing(created_by, refused)})
    token = AccessToken(
        name=name,
        digest=digest_of(text),
        prefix=text[:SHOWN_CHARACTERS],
        scopes=chosen,
        expires_at=expires_at,
        toolset=toolset,
        inline_wait_seconds=inline_wait_seconds,
        created_by=created_by,
    )
    token.full_clean()
    token.save()
    return token, text


def authenticate(text: str) -> AccessToken | None:
    """The usable token of this text; at most two queries a second for one token."""
    digest = digest_of(text)
    return recognise(digest) or look_up(digest)


def look_up(digest: str) -> AccessToken | None:
    asked_at = time.monotonic()
    token = AccessToken.objects.usable().select_related("toolset").filter(digest=digest).first()
    if token is None:
        _remembered.pop(digest, None)
        return None
    now = timezone.now()
    if token.last_used_at is None or now - token.last_used_at > USE_NOTED_EVERY:
        AccessToken.objects.filter(pk=token.pk).update(last_used_at=now)
    if len(_remembered) >= REMEMBERED_TOKENS:
        _remembered.clear()
    _remembered[digest] = (asked_at, token)
    return token


def recognise(digest: str) -> AccessToken | None:
    """A token authenticated within REMEMBERED_SECONDS; no query."""
    asked_at, token = _remembered.get(digest, (0.0, None))
    return token if token is not None and time.monotonic() - asked_at < REMEMBERED_SECONDS else None


def describe_wrong_token(text: str) -> str:
    """For the log, without secrets."""
    token = AccessToken.objects.filter(digest=digest_of(text)).first()
    if token is not None:
        return f"{token.name!r} is {'expired' if token.revoked_at is None else 'revoked'}"
    if text.startswith(TOKEN_START):
        return f"{text[:SHOWN_CHARACTERS]!r}... is unknown"
    return f"it does not begin with {TOKEN_START}"


def digest_of(text: str) -> str:
    """A plain hash is enough for 256 random bits."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


@transaction.atomic
def note_given_up(token_id: int, *, after_seconds: int, begun_at: datetime, is_certain: bool) -> None:
    """Remember the shortest patience of a token's clients. An uncertain one has to be seen in two calls that
    do not overlap: one network failure or restart ends any number of calls."""
    token = AccessToken.objects.select_for_update().get(pk=token_id)
    known = token.patience_seconds
    if token.inline_wait_seconds is not None or (known is not None and known <= after_seconds):
        return
    is_repeated = (
        token.gave_up_after == after_seconds and token.gave_up_at is not None and token.gave_up_at < begun_at
    )
    found = AccessToken.objects.filter(pk=token_id)
    if not (is_certain or is_repeated):
        found.update(gave_up_after=after_seconds, gave_up_at=timezone.now())
        return
    found.update(patience_seconds=after_seconds, gave_up_after=None, gave_up_at=None)
    token.patience_seconds = after_seconds
    logger.warning(
        "A client of the token {!r} gives calls up after {} s: from now on they get a handle after {} s. An "
        "inline wait that is set for the token counts instead.",
        token.name,
        after_seconds,
        token.learned_wait_seconds,
    )


def resource_url(slug: str | None = None) -> str:
    return f"{settings.PUBLIC_URL}{_path(slug)}"


def metadata_url(slug: str | None = None) -> str:
    """Of the resource's description, RFC 9728."""
    return f"{settings.PUBLIC_URL}{METADATA_PATH}{_path(slug)}"


def _path(slug: str | None) -> str:
    return "/mcp" if slug is None else f"/mcp/{slug}"


async def is_known(scope: dict[str, Any]) -> bool:
    """Whether the request has a usable token or the cookie of a signed-in user."""
    headers = Headers(scope=scope)
    scheme, _, token = headers.get("authorization", "").partition(" ")
    session = parse_cookie(headers.get("cookie", "")).get(settings.SESSION_COOKIE_NAME, "")
    if scheme.lower() == "bearer":
        return await run_in_database(authenticate, token.strip()) is not None
    store = import_module(settings.SESSION_ENGINE).SessionStore(session)
    return bool(session) and await run_in_database(store.__contains__, SESSION_KEY)


class ToolsetInUse(Exception):
    def __init__(self, toolset: Toolset, names: list[str]) -> None:
        more = f" and {len(names) - NAMED_TOKENS} more" if len(names) > NAMED_TOKENS else ""
        super().__init__(
            f"Toolset {toolset.slug} is all that these tokens see: {', '.join(names[:NAMED_TOKENS])}{more}. "
            "Revoke them first, or switch the toolset off instead of deleting it."
        )


def tokens_bound_to(toolset: Toolset) -> list[str]:
    """Names of the tokens that block its deletion: all that are not revoked."""
    bound = AccessToken.objects.filter(toolset=toolset, revoked_at=None)
    return list(bound.order_by("name").values_list("name", flat=True))


def delete_toolset(toolset: Toolset) -> None:
    """Raises ToolsetInUse. Revoked tokens, which are never deleted, do not block it."""
    try:
        with transaction.atomic():
            AccessToken.objects.filter(toolset=toolset).exclude(revoked_at=None).update(toolset=None)
            toolset.delete()
    except (ProtectedError, IntegrityError):
        raise ToolsetInUse(toolset, tokens_bound_to(toolset)) from None


class OtherToolset(Exception):
    """The token is bound to another toolset."""


@dataclass(frozen=True, slots=True)
class Access:
    caller: Caller
    scopes: frozenset[str]
    token_id: int | None = None
    inline_wait_seconds: int | None = None  # As set for the token; None: for the toolset or the product
    learned_wait_seconds: int | None = None  # From calls that its clients gave up; applies where none is set

    def allows(self, scope: Scope) -> bool:
        return scope in self.scopes

    @property
    def toolset(self) -> str | None:
        return self.caller.toolset

    @classmethod
    def by_token(cls, token: AccessToken, *, toolset: str | None = None) -> "Access":
        """`toolset`: the slug in the requested address. Raises OtherToolset."""
        caller = token.caller
        if toolset is not None and caller.toolset not in (None, toolset):
            raise OtherToolset
        if toolset is not None:
            caller = replace(caller, toolset=toolset)
        return cls(caller, token.granted, token.pk, token.inline_wait_seconds, token.learned_wait_seconds)

    @classmethod
    def of_local_user(cls, *, toolset: str | None = None) -> "Access":
        """Needs no token: a user who can start this process can read the database anyway."""
        user = getpass.getuser()
        caller = Caller(key=f"local:{user}"[:100], name=f"{user} (local)", toolset=toolset)
        return cls(caller, frozenset({Scope.READ, Scope.RUN}))


def granted_tokens(keys: Collection[int]) -> set[int]:
    return set(AccessToken.objects.usable().filter(pk__in=keys).values_list("pk", flat=True))
