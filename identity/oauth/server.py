"""The rules of the authorization server, which django-oauth-toolkit applies; config.settings names them."""

import asyncio
import contextlib
import hashlib
import re
import secrets
import unicodedata
from collections.abc import Iterable
from contextvars import ContextVar
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx2
from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils import timezone
from loguru import logger
from oauth2_provider.cimd import CIMDError
from oauth2_provider.models import AccessToken, Application, RefreshToken
from oauth2_provider.oauth2_validators import OAuth2Validator
from oauth2_provider.settings import oauth2_settings
from oauthlib.oauth2.rfc6749.errors import CustomOAuth2Error, InvalidGrantError, InvalidScopeError
from oauthlib.oauth2.rfc6749.utils import scope_to_list
from oauthlib.uri_validate import is_absolute_uri

from access.callers import Scope
from connectors.errors import ConnectorError, Misconfigured
from connectors.formats.json import UnreadableJSON, is_visible, parse_json
from connectors.formats.lists import split_list
from connectors.network.client import EngineClient
from connectors.network.policy import AddressPolicy, AllowedHosts, outbound_proxy, port_of
from connectors.network.transport import HttpLimits
from identity.oauth.grants import REFRESH_START, TOKEN_START, is_allowed, is_first_use, slug_of, use_up
from identity.tokens import LOOPBACK, resource_url

MAX_REDIRECT_LENGTH = 500
MAX_CLIENT_NAME_LENGTH = 100
MAX_MARKS = 2  # On one letter of a client's name
PLAIN_HOST = re.compile(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(:\d+)?", re.IGNORECASE)
"""Of redirect addresses: hosts that browser policies and people read alike."""
DOCUMENT_BYTES = 16 * 1024
DOCUMENT_SECONDS = 5.0
DOCUMENT_AGE = 3600  # Seconds until a client's document is read again
ADVICE = (
    "Where this server cannot reach such addresses, CATALOGUE_OAUTH_CLIENT_DOCUMENTS=false makes clients "
    "register instead."
)
SCHEMES = "Desktop applications need a reversed domain name, or one of CATALOGUE_OAUTH_REDIRECT_SCHEMES."
asked_by_user: ContextVar[bool] = ContextVar("asked_by_user", default=False)
"""Whether a signed-in user waits for this response: only then may the address of a client be read."""


client_fault: ContextVar[str] = ContextVar("client_fault", default="")
"""Why the description or the address of this request's client cannot be used; shown to its user."""


class InvalidClient(CIMDError):  # type: ignore[misc]
    """The client's metadata cannot be used."""


class Validator(OAuth2Validator):  # type: ignore[misc]
    """Django-oauth-toolkit's rules, limited to this product's resources and the user's consent."""

    def validate_redirect_uri(self, client_id: str, redirect_uri: str, request: Any, *_: Any) -> bool:
        """Checked again because an operator may have removed its scheme since it was registered."""
        client_fault.set(_objection_to(redirect_uri))
        return not client_fault.get() and bool(request.client.redirect_uri_allowed(redirect_uri))

    def get_default_redirect_uri(self, client_id: str, request: Any, *_: Any) -> str | None:
        address: str = super().get_default_redirect_uri(client_id, request)
        return address if self.validate_redirect_uri(client_id, address, request) else None

    def validate_scopes(self, client_id: str, scopes: list[str], client: Any, request: Any, *_: Any) -> bool:
        """RFC 6749, 3.1: an empty parameter counts as absent."""
        known = _narrowed(" ".join(scopes), Scope.values, request)
        request.scopes = known or self.get_default_scopes(client_id, request)
        return True

    def get_original_scopes(self, refresh_token: str, request: Any, *args: Any, **kwargs: Any) -> list[str]:
        granted: list[str] = scope_to_list(super().get_original_scopes(refresh_token, request))
        request.scope = " ".join(_narrowed(request.scope or "", granted, request))
        return granted

    def validate_code(
        self, client_id: str, code: str, client: Any, request: Any, *args: Any, **kw: Any
    ) -> bool:
        if not is_first_use(code, client):
            return False
        is_valid = super().validate_code(client_id, code, client, request, *args, **kw)
        return is_valid and is_allowed(request.user, client)

    def invalidate_authorization_code(
        self, client_id: str, code: str, request: Any, *args: Any, **kwargs: Any
    ) -> None:
        if not use_up(code, request.client):
            raise InvalidGrantError(request=request)

    def validate_refresh_token(
        self, refresh_token: str, client: Any, request: Any, *args: Any, **kwargs: Any
    ) -> bool:
        is_valid = super().validate_refresh_token(refresh_token, client, request, *args, **kwargs)
        return is_valid and is_allowed(request.user, client)

    def save_bearer_token(self, token: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        """A refresh token that was used a moment ago is good for another pair: processes of one client use it
        at the same time, and a response may be lost. Later, its use ends all that came of it."""
        # oauthlib keeps only the last of repeated parameters.
        sent = getattr(request, "decoded_body", None) or []
        resources = [value for name, value in sent if name == "resource" and value]
        try:
            request.resource = [canonical_resource(resources)] if resources else []
        except ValueError:
            raise invalid_target(request) from None
        with transaction.atomic():
            used = getattr(request, "refresh_token_instance", None)
            if used is not None and _is_used_up(used, request):
                self._save_another(token, request, used)
                return
            if used is not None:
                _retire(used)
            super().save_bearer_token(token, request, *args, **kwargs)

    def revoke_token(self, token: str, token_type_hint: str, request: Any, *args: Any, **kwargs: Any) -> None:
        """Revokes those of the client's other processes, too, from the same consent (RFC 7009, 2.1). The
        lock waits for renewals under way, whose tokens would otherwise not be seen."""
        checksum = hashlib.sha256(token.encode()).hexdigest()
        of_it = Q(token_checksum=checksum) | Q(access_token__token_checksum=checksum)
        families = RefreshToken.objects.filter(of_it, application=request.client).values("token_family")
        siblings = RefreshToken.objects.filter(token_family__in=families).order_by("pk")
        with transaction.atomic():
            for family in {sibling.token_family for sibling in siblings.select_for_update()}:
                RefreshToken.revoke_family(family)

    def _save_another(self, token: Any, request: Any, used: Any) -> None:
        """Keeps the family. The toolkit would answer with the first pair, of which only hashes are kept."""
        if request.resource not in ([], used.resource):
            raise invalid_target(request)
        request.resource, request.refresh_token_instance = used.resource, None
        super().save_bearer_token(token, request)
        checksum = hashlib.sha256(token["refresh_token"].encode()).hexdigest()
        RefreshToken.objects.filter(token_checksum=checksum).update(token_family=used.token_family)


def _narrowed(requested: str, available: Iterable[str], request: Any) -> list[str]:
    """Each once. Clients also request scopes of other servers, such as `offline_access`; these are left out
    (RFC 6749, 3.3). Raises InvalidScopeError if no other is left."""
    scopes = [scope for scope in dict.fromkeys(requested.split()) if scope in available]
    if requested.strip() and not scopes:
        description = f"None of these scopes is available here. Available: {' '.join(available)}"
        raise InvalidScopeError(description=description, request=request)
    return scopes


def _retire(token: Any) -> None:
    """The toolkit would delete its access token at once, which another process of the client may be using. It
    ends early enough for that process to renew it within the grace period."""
    now = timezone.now()
    ends_at = now + timedelta(seconds=oauth2_settings.REFRESH_TOKEN_GRACE_PERIOD_SECONDS / 2)
    RefreshToken.objects.filter(pk=token.pk).update(revoked=now)
    AccessToken.objects.filter(pk=token.access_token_id, expires__gt=ends_at).update(expires=ends_at)


def _is_used_up(token: Any, request: Any) -> bool:
    """Locks it. Raises InvalidGrantError if it has been revoked since it was validated."""
    locked = RefreshToken.objects.select_for_update().filter(pk=token.pk).first()
    if locked is not None and locked.revoked is None:
        return False
    if not AccessToken.objects.filter(source_refresh_token=token.pk).exists():
        raise InvalidGrantError(request=request)
    return True


def make_token(_: Any) -> str:
    return TOKEN_START + secrets.token_urlsafe(32)


def make_refresh_token(_: Any) -> str:
    return REFRESH_START + secrets.token_urlsafe(32)


def canonical_resource(resources: Iterable[str]) -> str:
    """The one resource that a token is for; without one, everything exposed. Raises ValueError."""
    found = {resource_url(slug_of(resource)) for resource in resources} or {resource_url()}
    if len(found) > 1:
        raise ValueError("more than one")
    return found.pop()


def invalid_target(request: Any = None) -> CustomOAuth2Error:
    description = f"Each access token of this server is for {resource_url()} or for one toolset below it."
    return CustomOAuth2Error(error="invalid_target", description=description, request=request)


class AskedByUser:
    """Lets only signed-in users make this server read addresses."""

    def has_permission(self, request: Any, client_id: str) -> bool:
        return asked_by_user.get()


class DocumentReader:
    """Client id metadata documents, read from public addresses by the product's own HTTP client."""

    def fetch(self, client_id: str) -> tuple[dict[str, Any], int]:
        try:
            document = asyncio.run(_read_document(client_id))
            checked = check_metadata(document)
        except CIMDError as problem:
            client_fault.set(f"The application is described at {client_id}, which cannot be used: {problem}")
            logger.warning("{} {} {}", client_fault.get(), problem.__cause__ or "", ADVICE)
            raise
        # Documents list all capabilities of a client; only one grant type is used here.
        checked |= {"client_id": document.get("client_id"), "grant_types": ["authorization_code"]}
        return checked, DOCUMENT_AGE


async def _read_document(address: str) -> dict[str, Any]:
    """Raises CIMDError."""
    parts = urlsplit(address)
    if parts.scheme != "https" or not parts.path.strip("/") or "#" in address or "@" in parts.netloc:
        raise CIMDError("a client ID that is an address must be an https address with a path")
    limits = HttpLimits.within(DOCUMENT_SECONDS, max_response_bytes=DOCUMENT_BYTES)
    opened = AllowedHosts.parse(settings.CATALOGUE.oauth_document_hosts)
    policy = AddressPolicy(public_only=True, opened=opened)
    try:
        client = EngineClient(
            base_url=f"https://{parts.netloc}",
            limits=limits,
            ca_file=settings.CATALOGUE.oauth_document_ca_file,
            policy=policy,
        )
        try:
            answer = await client.exchange("GET", address, repeatable=True)
        finally:
            await client.aclose()
    except ConnectorError as error:
        raise CIMDError(await _reason_for_user(error, policy, address)) from error
    media_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if answer.status != 200 or not (media_type == "application/json" or media_type.endswith("+json")):
        raise CIMDError(f"{answer.place} returned {answer.status} {media_type!r} instead of a JSON document")
    try:
        document = parse_json(answer.content, given=True)
    except UnreadableJSON:
        raise CIMDError(f"{answer.place} is not JSON") from None
    if not isinstance(document, dict):
        raise CIMDError(f"{answer.place} is not a JSON object")
    return document


async def _reason_for_user(error: ConnectorError, policy: AddressPolicy, address: str) -> str:
    """Any user can name any host, and learns neither its address nor whether it exists, nor of the proxy."""
    url = httpx2.URL(address)
    with contextlib.suppress(Misconfigured, httpx2.ConnectError):
        await policy.resolve(url.host, port_of(url))
        if outbound_proxy() is None and not isinstance(error, Misconfigured):
            return str(error)
    return "its host cannot be reached at a public address"


def check_metadata(document: dict[str, Any]) -> dict[str, Any]:
    """`client_name` and `redirect_uris` of RFC 7591 metadata, without the addresses that cannot be used. Null
    counts as absent. Raises InvalidClient."""
    grants = document.get("grant_types")
    if isinstance(grants, list) and grants and "authorization_code" not in grants:
        raise InvalidClient("grant_types must include authorization_code.")
    if document.get("token_endpoint_auth_method") == "private_key_jwt":
        logger.info("A client offers its own key. It is treated as a public client with PKCE.")
    name = document.get("client_name")
    if not isinstance(name, str | None):
        raise InvalidClient("client_name must be a string.")
    name = _printable(name or "")
    redirects = document.get("redirect_uris")
    if not isinstance(redirects, list) or not redirects:
        raise InvalidClient("redirect_uris must be a list of addresses.")
    usable = [redirect for redirect in redirects if not _objection_to(redirect)]
    left_out = " ".join(sorted({*map(_objection_to, redirects)} - {""})[:5])
    if not usable:
        raise InvalidClient(f"redirect_uris: {left_out}")
    if left_out:
        logger.warning("Left out redirect_uris of the client {!r}: {}", name, left_out)
    return {"client_name": name, "redirect_uris": list(dict.fromkeys(usable))}


# The toolkit's own check, of documents only, has a fixed list of schemes and refuses all for one address.
Application.clean = lambda _: None


def register(document: dict[str, Any]) -> Application:
    """RFC 7591. Raises InvalidClient. All clients are public: a secret that anyone can get proves nothing."""
    checked = check_metadata(document)
    application = Application(
        name=checked["client_name"],
        redirect_uris=" ".join(checked["redirect_uris"]),
        client_type=Application.CLIENT_PUBLIC,
        client_secret="",
        hash_client_secret=False,
        authorization_grant_type=Application.GRANT_AUTHORIZATION_CODE,
        registration_source=Application.RegistrationSource.DCR,
    )
    application.save()
    return application


def _objection_to(redirect: Any) -> str:
    """A sentence; empty for an address that can be used."""
    shown = ascii(redirect)[:MAX_REDIRECT_LENGTH]
    is_plain = isinstance(redirect, str) and len(redirect) <= MAX_REDIRECT_LENGTH and redirect.isascii()
    if not is_plain or not redirect.isprintable() or not is_absolute_uri(redirect):
        return f"{shown} is not a valid address of at most {MAX_REDIRECT_LENGTH} characters in ASCII."
    try:
        parts = urlsplit(redirect)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return f"{shown} is not a valid address."
    if "#" in redirect or "@" in parts.netloc or "*" in redirect:
        return f"{shown} has a fragment, a user name or a wildcard."
    if parts.scheme not in ("https", "http"):
        # RFC 8252, 7.1 and 8.4: a scheme with a dot, a reversed domain name, belongs to one application.
        known = "." in parts.scheme or parts.scheme in split_list(settings.CATALOGUE.oauth_redirect_schemes)
        is_of_one = known and (parts.netloc or parts.path.startswith("/"))
        return "" if is_of_one else f"{shown} is not an https address. {SCHEMES}"
    if not host or not PLAIN_HOST.fullmatch(parts.netloc):
        return f"{shown} has no valid host."
    if parts.scheme == "http" and host not in LOOPBACK:
        return f"{shown} is not encrypted; http is for programs on the user's own machine."
    return ""


def _printable(name: str) -> str:
    """Removes line breaks, characters that reverse text or are invisible, and stacked accents, which would
    cover the lines above and below."""
    shown, marks = "", 0
    for char in "".join(char if is_visible(char) else " " for char in name):
        marks = marks + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        shown += char if marks <= MAX_MARKS else ""
    return " ".join(shown.split())[:MAX_CLIENT_NAME_LENGTH]
