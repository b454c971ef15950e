"""The user of a subject of another server, and the connections to such servers."""

from typing import Any

from django.contrib.auth.models import User
from pydantic import SecretStr

from connectors.background import finish_at_exit
from connectors.network.issuer import Issuer, TokenRefused
from identity.models import ExternalIdentity

MAX_NAME_LENGTH = 255  # Of an issuer or subject
EMAIL = "email"  # The claim that counts only if the server has verified it
_issuers: dict[tuple[str, str, SecretStr, str], Issuer] = {}  # Of the background loop, by their settings


def identity_of(claims: dict[str, Any]) -> dict[str, str]:
    """The columns of an ExternalIdentity. Raises TokenRefused."""
    issuer, subject = str(claims["iss"]), claims.get("sub")
    # Others may be shared by several people, or read alike.
    if not isinstance(subject, str) or not subject.isprintable() or subject != subject.strip() or not subject:
        raise TokenRefused("its subject is not a text of visible characters")
    if max(len(issuer), len(subject)) > MAX_NAME_LENGTH:
        raise TokenRefused("its subject is too long")
    return {"issuer": issuer, "subject": subject}


def find_user(claims: dict[str, Any], *, claim: str) -> User | None:
    """The user linked to a subject, else the one that `claim` names. Raises TokenRefused for several users,
    and for a superuser: many servers let people choose their name, and no other server grants superuser
    rights."""
    linked = ExternalIdentity.objects.filter(**identity_of(claims)).select_related("user").first()
    if linked is not None:
        if linked.user.is_superuser:
            raise TokenRefused("its user is a superuser")
        return linked.user
    named = claims.get(claim) if claim else None
    if not isinstance(named, str) or not named:
        return None
    if claim == EMAIL and claims.get("email_verified") is not True:
        return None
    by = {"email__iexact": named} if claim == EMAIL else {"username": named}
    found = list(User.objects.filter(**by)[:2])
    if len(found) > 1:
        raise TokenRefused("several users have its e-mail address")
    if found and found[0].is_superuser:
        raise TokenRefused(f"its {claim} names a superuser")
    return found[0] if found else None


def issuer_at(url: str, *, client_id: str, client_secret: SecretStr, introspection_url: str = "") -> Issuer:
    """Returns a shared issuer, for coroutines of the background loop."""
    key = (url, client_id, client_secret, introspection_url)
    if key not in _issuers:
        _issuers[key] = Issuer(
            url, client_id=client_id, client_secret=client_secret, introspection_url=introspection_url
        )
    return _issuers[key]


@finish_at_exit
async def close_issuers() -> None:
    while _issuers:
        _, issuer = _issuers.popitem()
        await issuer.aclose()
