import getpass
import hashlib
import math
import secrets
import time
from collections.abc import Collection, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum, StrEnum, auto
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, InternalError, OperationalError, transaction
from django.db.models import ProtectedError, Q
from django.utils import timezone
from loguru import logger
from pydantic import SecretStr

from access.addresses import client_address
from access.callers import Bounds, Caller, Scope, person_of
from access.permissions import grantable_scopes, permissions_behind
from catalogue.history import Actor, record_change
from catalogue.models import Toolset
from catalogue.naming import counted, listed
from identity.models import AccessToken, TokenState, default_scopes

TOKEN_START = "wfc_"  # noqa: S105 - a prefix by which secret scanners recognise a leaked token
SHOWN_CHARACTERS = 12
LOOPBACK = ("127.0.0.1", "::1", "localhost")
METADATA_PATH = "/.well-known/oauth-protected-resource"
USE_NOTED_EVERY = timedelta(minutes=1)
REMEMBERED_ORIGINS = 50  # Of one token, between two writes
REMEMBERED_USES = 10_000
KEPT_USES = 10  # Addresses with their clients, the last ones
SHOWN_AGENT = 120  # Characters of a User-Agent
MAX_OVERLAP_HOURS = 720
KEEP, ASSIGN = "mcp_bridge.keep_accesstoken", "mcp_bridge.assign_accesstoken"
NAMED_TOKENS = 10


class Expiry(Enum):
    USUAL = auto()  # CATALOGUE_TOKEN_DAYS from now


def create_token(
    *,
    name: str,
    scopes: Iterable[str] | None = None,
    expires_at: datetime | Expiry | None = Expiry.USUAL,
    created_by: User | None = None,
    owner: User | None = None,
    **fields: Any,
) -> tuple[AccessToken, str]:
    """A token and its text, which is not stored. Raises ValidationError keyed by field. The permissions of
    `created_by` limit scopes, expiry and owner; None: the operator. `fields`: other fields of the row."""
    text = new_secret()
    chosen = default_scopes() if scopes is None else sorted(set(scopes))
    unknown = [scope for scope in chosen if scope not in Scope.values]
    if unknown or not chosen:
        named = f"Unknown: {', '.join(unknown)}. " if unknown else ""
        raise ValidationError({"scopes": f"{named}Choose from {', '.join(Scope.values)}."})
    _check_scopes(chosen, given_by=created_by)
    if owner is not None:
        check_owner(owner, chosen_by=created_by)
    token = AccessToken(
        name=name,
        digest=digest_of(text),
        prefix=text[:SHOWN_CHARACTERS],
        scopes=chosen,
        expires_at=settle_expiry(expires_at, chosen_by=created_by),
        created_by=created_by,
        owner=owner,
        **fields,
    )
    token.full_clean()
    token.save()
    return token, text


def new_secret() -> str:
    return TOKEN_START + secrets.token_urlsafe(32)


def usual_expiry() -> datetime:
    days, most = settings.CATALOGUE.token_days, settings.CATALOGUE.max_token_days
    return timezone.now() + timedelta(days=min(days, most or days))


def settle_expiry(wanted: datetime | Expiry | None, *, chosen_by: User | None) -> datetime | None:
    """None: never. Raises ValidationError."""
    if wanted is Expiry.USUAL:
        return usual_expiry()
    assert not isinstance(wanted, Expiry)
    if wanted is not None and wanted <= timezone.now():
        raise ValidationError({"expires_at": "The expiry must be in the future."})
    if may_keep_tokens(chosen_by):
        return wanted
    if wanted is None:
        raise ValidationError({"expires_at": f"A token that never expires needs the permission {KEEP}."})
    most = settings.CATALOGUE.max_token_days
    if most and wanted > timezone.now() + timedelta(days=most, minutes=1):
        raise ValidationError({"expires_at": f"The settings allow {counted(most, 'day')} at most."})
    return wanted


def may_keep_tokens(user: Any) -> bool:
    """Returns whether tokens created by this user may never expire; None: the operator."""
    return user is None or user.has_perm(KEEP)


def check_owner(owner: User, *, chosen_by: User | None) -> None:
    """Raises ValidationError."""
    if not owner.is_active:
        raise ValidationError({"owner": f"The user {owner} is disabled, so the user's tokens do not work."})
    if chosen_by is None or chosen_by == owner or chosen_by.has_perm(ASSIGN):
        return
    raise ValidationError({"owner": f"A token for another user needs the permission {ASSIGN}."})


def check_new_owner(token: AccessToken, owner: User | None, *, chosen_by: User | None) -> None:
    """The token's secret is known to others, and its scopes become what the new owner may do. Raises
    ValidationError."""
    if owner == token.owner:
        return
    if owner is not None:
        check_owner(owner, chosen_by=chosen_by)
    if chosen_by is not None and not chosen_by.has_perm(ASSIGN):
        raise ValidationError({"owner": f"To give a token another owner, you need the permission {ASSIGN}."})
    _check_scopes(token.scopes, given_by=chosen_by)


def tell_missing(user: Any, scopes: Iterable[str]) -> str:
    """A sentence for each of the scopes that this user may not grant."""
    sentences = []
    for scope in scopes:
        missing = sorted(one for one in permissions_behind(Scope(scope)) if not user.has_perm(one))
        sentences.append(f"To grant {scope}, you need {listed(missing, most=4)}.")
    return " ".join(sentences)


def _check_scopes(scopes: Collection[str], *, given_by: User | None) -> None:
    if given_by is not None and (refused := sorted(set(scopes) - set(grantable_scopes(given_by)))):
        raise ValidationError({"scopes": tell_missing(given_by, refused)})


def _check_rotation(token: AccessToken, *, rotated_by: User | None) -> None:
    """Raises ValidationError if the user, who gets the new secret, may not create such a token."""
    if rotated_by is None:
        return
    _check_scopes(token.scopes, given_by=rotated_by)
    if token.rights_of != rotated_by and not rotated_by.has_perm(ASSIGN):
        raise ValidationError(f"To rotate a token of another user, you need the permission {ASSIGN}.")
    if token.expires_at is None and not may_keep_tokens(rotated_by):
        raise ValidationError(f"To rotate a token that never expires, you need the permission {KEEP}.")


@transaction.atomic
def rotate_token(
    token: AccessToken,
    *,
    by: Actor,
    overlap_hours: float = 0,
    expires_at: datetime | Expiry | None = Expiry.USUAL,
    rotated_by: User | None = None,
) -> str:
    """The text of a new secret; the current one works for `overlap_hours` more. A secret from before an
    earlier rotation ends immediately. A token that never expires stays so. `rotated_by`: as `created_by` of a
    new token. Raises ValidationError."""
    locked = AccessToken.objects.select_for_update(of=("self",))
    row = locked.select_related("owner", "created_by").get(pk=token.pk)
    if row.state is TokenState.REVOKED:
        raise ValidationError(f"{row.name} is revoked. Create another token.")
    if not 0 <= overlap_hours <= MAX_OVERLAP_HOURS:
        raise ValidationError({"overlap_hours": f"Must be between 0 and {MAX_OVERLAP_HOURS} hours."})
    _check_rotation(row, rotated_by=rotated_by)
    now, text = timezone.now(), new_secret()
    ends_at = now + timedelta(hours=overlap_hours)
    if row.expires_at is not None:
        ends_at = min(ends_at, row.expires_at)
        row.expires_at = settle_expiry(expires_at, chosen_by=rotated_by)
    overlaps = ends_at > now
    row.former_digest, row.former_prefix = (row.digest, row.prefix) if overlaps else (None, "")
    row.former_ends_at, row.former_used_at = (ends_at, row.last_used_at) if overlaps else (None, None)
    row.digest, row.prefix, row.rotated_at = digest_of(text), text[:SHOWN_CHARACTERS], now
    row.end_logged_at = None
    row.save()
    record_change(by, [row], "Rotated: it has a new secret.")
    logger.info(
        "The token {!r} has a new secret. The former one stops working in {:g} h.", row.name, overlap_hours
    )
    return text


@transaction.atomic
def end_former_secret(token: AccessToken, *, by: Actor) -> bool:
    """Returns whether it was still valid."""
    with_one = AccessToken.objects.filter(pk=token.pk, former_ends_at__gt=timezone.now())
    if not with_one.update(former_digest=None, former_ends_at=timezone.now()):
        return False
    record_change(by, [token], "Ended the former secret.")
    return True


@transaction.atomic
def revoke_tokens(tokens: Iterable[AccessToken], *, by: Actor) -> int:
    """Returns how many were not revoked before."""
    valid = [token for token in tokens if token.revoked_at is None]
    for token in valid:
        token.revoke()
    record_change(by, valid, "Revoked.")
    return len(valid)


@dataclass(frozen=True, slots=True)
class Origin:
    """Holds a request's connection address, `X-Forwarded-For` and `User-Agent`, as sent."""

    peer: str
    forwarded_for: str
    user_agent: str


arriving: ContextVar[Origin | None] = ContextVar("arriving", default=None)
"""The origin of the request that is being authenticated; transports set it."""
_unwritten: dict[int, set[Origin]] = {}  # By token, until they are written at most once a minute
_written_at: dict[int, float] = {}


def forget_uses() -> None:
    _unwritten.clear()
    _written_at.clear()


def find_token(text: str) -> AccessToken | None:
    """The usable token of this text; records its use."""
    digest, now = digest_of(text), timezone.now()
    by_secret = Q(digest=digest) | Q(former_digest=digest, former_ends_at__gt=now)
    # Origins are read once a minute, to be written.
    usable = AccessToken.objects.usable().select_related("toolset", "owner", "created_by").defer("last_uses")
    if (token := usable.filter(by_secret).first()) is None:
        return None
    # While the database cannot be written to (a full disk, a replica), what only reads goes on.
    try:
        _note_use(token, digest, now)
        if token.end_logged_at is None and token.ends_soon:
            # Once, by the first process to notice.
            unlogged = AccessToken.objects.filter(pk=token.pk, end_logged_at=None)
            if unlogged.update(end_logged_at=timezone.now()):
                logger.warning(
                    "The token {!r} is in use and expires at {:%Y-%m-%d %H:%M} UTC. Rotate it before then.",
                    token.name,
                    token.expires_at,
                )
    except (OperationalError, InternalError) as error:
        logger.warning("The use of the token {} could not be recorded: {}", token.name, error)
    return token


def _note_use(token: AccessToken, digest: str, now: datetime) -> None:
    origins = _unwritten.setdefault(token.pk, set())
    if (origin := arriving.get()) is not None and len(origins) < REMEMBERED_ORIGINS:
        origins.add(origin)
    is_former = digest != token.digest
    noted_at = (token.last_used_at, token.former_used_at) if is_former else (token.last_used_at,)
    is_old = any(at is None or abs(now - at) > USE_NOTED_EVERY for at in noted_at)
    rested = time.monotonic() - _written_at.get(token.pk, -math.inf) > USE_NOTED_EVERY.total_seconds()
    if not (is_old or rested):
        return
    taken = set(origins)
    uses = [(client_address(one.peer, one.forwarded_for), one.user_agent[:SHOWN_AGENT]) for one in taken]
    known = {(use["address"], use["client"]) for use in token.last_uses}
    if not is_old and known.issuperset(uses):
        return
    at = now.isoformat(timespec="seconds")
    kept = [use for use in token.last_uses if (use["address"], use["client"]) not in uses]
    fresh = [{"address": address, "client": client, "at": at} for address, client in dict.fromkeys(uses)]
    noted: dict[str, Any] = {"last_used_at": now, "last_uses": [*fresh, *kept][:KEPT_USES]}
    if is_former:
        noted["former_used_at"] = now
    # Only one of two processes writes; the other's uses are written the next time.
    if AccessToken.objects.filter(pk=token.pk, last_used_at=token.last_used_at).update(**noted):
        origins -= taken
    if len(_written_at) >= REMEMBERED_USES:
        forget_uses()
    _written_at[token.pk] = time.monotonic()


def read_token(text: str) -> "Access | None":
    if (token := find_token(text)) is None:
        return None
    return replace(
        Access.by_token(token), credential=digest_of(text), origins=_unwritten.setdefault(token.pk, set())
    )


def describe_wrong_token(text: str) -> str:
    digest = digest_of(text)
    either = Q(digest=digest) | Q(former_digest=digest)
    token = AccessToken.objects.select_related("owner").filter(either).first()
    if token is not None and token.state is TokenState.STOPPED:
        return f"{token.name!r} belongs to {token.owner}, who is disabled"
    if token is not None:
        was_rotated = token.state is TokenState.USABLE
        return f"{token.name!r} is {'from before its rotation' if was_rotated else token.state}"
    return f"{text[:SHOWN_CHARACTERS]!r}... is unknown"


def digest_of(text: str) -> str:
    """A plain hash is enough for 256 random bits."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def authorization_server() -> str | None:
    """The address of the server where clients sign their users in; None if they cannot."""
    if issuer := settings.CATALOGUE.oauth_issuer:
        return str(issuer)
    return str(settings.PUBLIC_URL) if settings.CATALOGUE.oauth_enabled else None


def resource_url(slug: str | None = None) -> str:
    return f"{settings.PUBLIC_URL}/mcp{'' if slug is None else f'/{slug}'}"


def own_origins() -> list[str]:
    """The public address, and the same with each other name that Django serves, such as 127.0.0.1, as
    browsers write them. Not with patterns, nor with a name of the user's machine for another one: others may
    serve there."""
    public = urlsplit(settings.PUBLIC_URL.lower())
    port = "" if public.port is None else f":{public.port}"
    foreign = () if public.hostname in LOOPBACK else LOOPBACK
    served = map(str.lower, settings.ALLOWED_HOSTS)
    names = [name for name in served if name[0] not in "*." and name.strip("[]") not in foreign]
    return [public.geturl(), *(f"{public.scheme}://{name}{port}" for name in names)]


def asked_origin(host: str) -> str:
    """Returns the own origin with a request's `Host`: clients refuse a resource with another name."""
    return next((one for one in own_origins() if one.endswith(f"://{host.lower()}")), settings.PUBLIC_URL)


def metadata_url(host: str, path: str = "") -> str:
    """The address of the description of the resource at this path (RFC 9728), as a client named the host."""
    return f"{asked_origin(host)}{METADATA_PATH}{path}"


class ToolsetInUse(Exception):
    def __init__(self, toolset: Toolset, names: list[str]) -> None:
        super().__init__(
            f"These tokens are bound to the toolset {toolset.slug}: "
            f"{listed(names, NAMED_TOKENS)}. Revoke them first, or disable the toolset "
            "instead of deleting it."
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


class Kind(StrEnum):
    """Names the ways to identify a caller."""

    LOCAL = "local"  # The process itself: stdio and commands
    ACCESS_TOKEN = "token"  # noqa: S105 - made here, by name
    OAUTH = "oauth"  # A token of the embedded authorization server
    OUTSIDE = "outside"  # A token of another authorization server


@dataclass(frozen=True, slots=True)
class Access:
    """Holds a caller's rights, with any kind of token. REST has it as `request.auth`."""

    caller: Caller
    scopes: frozenset[str]  # Includes implied ones
    token_id: int | None = None  # Of an AccessToken
    inline_wait_seconds: int | None = None  # As set for the token; None: for the toolset or the product
    kind: Kind = Kind.LOCAL
    credential: str = ""  # Identifies the token within its kind; no secret
    user_id: int | None = None  # The user for whom it acts; None: itself
    text: SecretStr | None = field(default=None, compare=False, repr=False)  # If only others can check it
    origins: set[Origin] = field(default_factory=set, compare=False, repr=False)  # Not yet written

    def allows(self, scope: Scope) -> bool:
        return scope in self.scopes

    @property
    def toolset(self) -> str | None:
        """The slug of the toolset that limits what is visible."""
        return self.caller.toolset

    @property
    def bounds(self) -> Bounds:
        return self.caller.bounds

    def at(self, slug: str | None) -> "Access":
        """This access at the address of a toolset. Raises OtherToolset."""
        if slug is None or slug == self.toolset:
            return self
        if self.toolset is not None:
            raise OtherToolset
        return replace(self, caller=replace(self.caller, toolset=slug))

    @classmethod
    def by_token(cls, token: AccessToken) -> "Access":
        granted = token.granted
        return cls(
            token.caller_granted(granted),
            granted,
            token.pk,
            token.inline_wait_seconds,
            kind=Kind.ACCESS_TOKEN,
            credential=token.digest,
            user_id=token.owner_id,
        )

    @classmethod
    def of_local_user(cls, *, toolset: str | None = None) -> "Access":
        """Needs no token: a user who can start this process can read the database anyway."""
        user = getpass.getuser()
        caller = Caller(key=f"local:{user}"[:100], name=f"{user} (local)", toolset=toolset)
        return cls(caller, frozenset({Scope.READ, Scope.RUN}))


def usable_tokens(accesses: Collection[Access]) -> set[Access]:
    """Excludes those whose user left or joined a group: a new request shows the difference."""
    keys = {access.token_id for access in accesses if access.token_id is not None}
    rows = AccessToken.objects.usable().filter(pk__in=keys).select_related("owner", "created_by")
    now, found = timezone.now(), set()
    for token in rows.prefetch_related("owner__groups", "created_by__groups"):
        person = None if token.rights_of is None else person_of(token.rights_of)
        former = token.former_ends_at is not None and token.former_ends_at > now
        found.add((token.pk, token.digest, person))
        if former and token.former_digest is not None:
            found.add((token.pk, token.former_digest, person))
    return {
        access for access in accesses if (access.token_id, access.credential, access.bounds.person) in found
    }
