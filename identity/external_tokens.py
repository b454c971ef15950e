"""Access tokens of an external authorization server: their users here, and what they allow."""

import asyncio
import re
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth.models import Group, User
from loguru import logger
from pydantic import SecretStr

from access.callers import GROUP, Caller, Person, Scope, person_of
from access.permissions import permissions_behind, scopes_of
from catalogue.database import run_without_connection
from catalogue.models import Toolset
from connectors.background import start_in_background_loop
from connectors.errors import ConnectorError, Unreachable
from connectors.formats.lists import split_list
from connectors.network.issuer import Issuer, TokenRefused
from identity.bearers import KINDS, AuthenticationUnavailable, TokenKind
from identity.identity_provider import find_user, identity_of, issuer_at
from identity.oauth import grants
from identity.tokens import TOKEN_START, Access, Kind, digest_of

READ_SECONDS = 0.25  # How long claims wait for the thread that looks up their user
REMEMBERED_TOKENS = 10_000
RETRY_SECONDS = 5
JWT = re.compile(r"[\w-]+\.[\w-]+\.[\w-]*")
UNAVAILABLE = (
    "The authorization server cannot check this token at the moment. The token may be "
    f"valid. Try again in {RETRY_SECONDS} seconds."
)


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float
    claims: dict[str, Any] | None
    refused: str = ""


_read: dict[str, _Reading] = {}
forget_outside = _read.clear


def named_outside(scope: str) -> str:
    """The external server's name for this scope; the scope itself if it has none."""
    mapped = settings.CATALOGUE.oauth_scopes
    return next((theirs for theirs, ours in mapped.items() if ours == scope), str(scope))


def _fits(text: str) -> bool:
    if not settings.CATALOGUE.oauth_issuer or text.startswith((TOKEN_START, grants.TOKEN_START)):
        return False
    return bool(settings.CATALOGUE.oauth_client_id) or JWT.fullmatch(text) is not None


async def _read_anew(text: str) -> _Reading:
    """Raises AuthenticationUnavailable."""
    return _recall(text) or _remember(text, await asyncio.wrap_future(start_in_background_loop(_ask(text))))


def _recall(text: str) -> _Reading | None:
    reading = _read.get(digest_of(text))
    return reading if reading is not None and time.monotonic() - reading.at < READ_SECONDS else None


def _remember(text: str, reading: _Reading) -> _Reading:
    if len(_read) >= REMEMBERED_TOKENS:
        _read.clear()
    _read[digest_of(text)] = reading
    return reading


async def _ask(text: str) -> _Reading:
    """On the background loop. Raises AuthenticationUnavailable."""
    at, issuer = time.monotonic(), _issuer()
    try:
        if JWT.fullmatch(text):
            types = split_list(settings.CATALOGUE.oauth_token_types)
            return _Reading(at, await issuer.read_access_token(text, audience=_is_ours, types=types))
        claims = await issuer.introspect(text, audience=_is_ours)
        return _Reading(at, {"iss": issuer.url} | claims)
    except TokenRefused as refused:
        return _Reading(at, None, str(refused))
    except ConnectorError as problem:
        if not isinstance(problem, Unreachable):
            logger.error("The authorization server {} cannot be used: {}", issuer.url, problem.message)
        raise AuthenticationUnavailable(UNAVAILABLE, seconds=RETRY_SECONDS) from None


def _issuer() -> Issuer:
    known = settings.CATALOGUE
    return issuer_at(
        known.oauth_issuer,
        client_id=known.oauth_client_id,
        client_secret=known.oauth_client_secret,
        introspection_url=known.oauth_introspection_url,
    )


def _is_ours(audience: str) -> bool:
    with suppress(ValueError):
        _slug_in(audience)
        return True
    return False


def _slug_in(audience: str) -> str | None:
    """None: everything exposed. Raises ValueError for foreign audiences."""
    is_whole = audience in split_list(settings.CATALOGUE.oauth_audiences)
    return None if is_whole else grants.slug_of(audience)


def _read_access(text: str) -> Access | None:
    reading = _recall(text) or _remember(text, run_without_connection(_ask(text)))
    if reading.claims is None:
        return None
    try:
        return _access_of(reading.claims, text)
    except TokenRefused as refused:
        _remember(text, _Reading(reading.at, None, str(refused)))
        return None


def _access_of(claims: dict[str, Any], text: str) -> Access:
    """Raises TokenRefused."""
    user = find_user(claims, claim=settings.CATALOGUE.oauth_user_claim)
    toolset, named = _toolset_of(claims["aud"]), claims.get("client_id") or claims.get("azp")
    client = named if isinstance(named, str) else ""
    person: Person | None
    if user is None:
        group = _group_without_user()
        most, person = _scopes_of(group), frozenset({f"{GROUP}{group.pk}"})
        subject = digest_of("\0".join(identity_of(claims).values()))
        key, name = f"outside:{subject[:32]}", client
    else:
        most, key = scopes_of(user), f"user:{user.pk}"
        name = f"{user.get_username()}{client and ' via '}{client}"
        person = person_of(user)
        if not user.is_active:
            raise TokenRefused(f"its user {user.get_username()!r} is disabled")
    scopes = _granted(claims) & most
    if toolset is not None:
        scopes -= {Scope.ADMIN, Scope.VIEW}  # They would allow reading everything
    elif Scope.ADMIN in scopes:
        scopes = frozenset(Scope.values)
    return Access(
        Caller(
            key=key,
            name=name[:100],
            sees_everything=Scope.ADMIN in scopes,
            toolset=toolset,
            is_confined=toolset is not None,
            person=person,
            user_id=None if user is None else user.pk,
        ),
        scopes,
        kind=Kind.OUTSIDE,
        credential=f"{digest_of(text)}:{claims.get('exp', '')}",
        text=SecretStr(text),
        user_id=None if user is None else user.pk,
    )


def _granted(claims: dict[str, Any]) -> frozenset[str]:
    named = claims.get("scope", claims.get("scp", ""))  # Some servers call it `scp`
    theirs = named.split() if isinstance(named, str) else named
    if not isinstance(theirs, list):
        return frozenset()
    mapped: Mapping[str, str] = settings.CATALOGUE.oauth_scopes or {scope: scope for scope in Scope.values}
    return frozenset(mapped[scope] for scope in theirs if isinstance(scope, str) and scope in mapped)


def _toolset_of(audiences: Iterable[str]) -> str | None:
    """The toolset of a token that was issued for the address of one."""
    slugs = {_slug_in(one) for one in audiences}
    if None in slugs:
        return None
    slug = slugs.pop()
    if slugs or not Toolset.objects.filter(slug=slug).exists():
        raise TokenRefused("it was made for several toolsets" if slugs else "its toolset does not exist")
    return slug


def _group_without_user() -> Group:
    """Raises TokenRefused if only users have access."""
    role = settings.CATALOGUE.oauth_role_without_user
    group = Group.objects.filter(name=role).first() if role else None
    if group is None:
        missing = f", and the group {role!r} does not exist" if role else ""
        raise TokenRefused(f"its subject is not a user{missing}")
    return group


def _scopes_of(group: Group) -> frozenset[str]:
    names = group.permissions.values_list("content_type__app_label", "codename")
    permissions = {f"{app}.{codename}" for app, codename in names}
    return frozenset(scope.value for scope in Scope if permissions >= permissions_behind(scope))


def _usable(accesses: Collection[Access]) -> set[Access]:
    """Excludes those whose user left or joined a group: a new request shows the difference."""
    users = User.objects.filter(is_active=True, pk__in={one.user_id for one in accesses if one.user_id})
    persons = {user.pk: person_of(user) for user in users.prefetch_related("groups")}
    now = time.time()
    return {
        access
        for access in accesses
        if (access.user_id is None or persons.get(access.user_id, ()) == access.bounds.person)
        and float(access.credential.rpartition(":")[2] or "inf") > now
    }


async def _withdrawn(accesses: Collection[Access]) -> set[Access]:
    """Revoked at the server, or signed with a removed key. If the server does not answer: none."""

    async def is_withdrawn(access: Access) -> bool:
        assert access.text is not None
        try:
            return (await _read_anew(access.text.get_secret_value())).claims is None
        except AuthenticationUnavailable:
            return False

    asked = list(accesses)
    ended = await asyncio.gather(*map(is_withdrawn, asked))
    return {access for access, is_over in zip(asked, ended, strict=True) if is_over}


def _describe(text: str) -> str:
    reading = _read.get(digest_of(text))
    reason = reading.refused if reading is not None else ""
    return f"of {settings.CATALOGUE.oauth_issuer}: {reason or 'it is not valid'}"


KINDS[Kind.OUTSIDE] = TokenKind(
    fits=_fits,
    prepare=_read_anew,
    read=_read_access,
    usable=_usable,
    withdrawn=_withdrawn,
    describe=_describe,
)
