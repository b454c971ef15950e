"""Logging in at the company's OpenID provider: docs/login.md."""

from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth.backends import BaseBackend
from django.contrib.auth.models import Group, User
from django.core.exceptions import PermissionDenied, SuspiciousOperation, ValidationError
from django.db import IntegrityError, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST
from loguru import logger
from mozilla_django_oidc.utils import import_from_settings
from mozilla_django_oidc.views import (
    OIDCAuthenticationCallbackView,
    OIDCAuthenticationRequestView,
    get_next_url,
)

from access.models import Role
from access.roles import lock_owners, would_leave_no_owner
from catalogue.database import run_without_connection
from catalogue.history import Actor, record_change
from catalogue.models import HistoryEntry
from catalogue.naming import look_alike
from catalogue.secrets import CredentialsUnreadable, decrypt_credentials, encrypt_credentials
from connectors.errors import ConnectorError, InvalidAnswer, Rejected
from connectors.network.issuer import Issuer, TokenRefused
from identity.identity_provider import EMAIL, find_user, identity_of, issuer_at
from identity.models import ExternalIdentity

UNFINISHED_SECONDS = 3600  # How long an unfinished login is remembered
NEXT = "next"
STATES, NEXT_PAGE = "oidc_states", "oidc_login_next"  # The library's keys in the session
ID_TOKEN = "company_id_token"  # noqa: S105 - the session's key for it


class LoginRefused(Exception):
    """The message is for the person who logs in."""


class CompanyBackend(BaseBackend):
    """Authenticates only the callback's request: a code, and the login's values from the session."""

    def authenticate(  # type: ignore[override]
        self, request: HttpRequest, *, nonce: str, code_verifier: str
    ) -> User | None:
        try:
            redeemed = _redeem(request.GET["code"], nonce=nonce, verifier=code_verifier)
            claims, id_token = run_without_connection(redeemed)
            request.id_token = id_token  # type: ignore[attr-defined]
            return admit(claims)
        except (LoginRefused, TokenRefused, ConnectorError) as problem:
            request.login_problem = _in_words(problem)  # type: ignore[attr-defined]
            raise PermissionDenied from None

    def get_user(self, user_id: int) -> User | None:
        return User.objects.filter(pk=user_id, is_active=True).first()


def _in_words(problem: Exception) -> str:
    """The message for the user; the log has the details."""
    name = settings.CATALOGUE.login_name
    if isinstance(problem, LoginRefused):
        logger.warning("Refused a login by OpenID Connect: {}", problem)
        return str(problem)
    if isinstance(problem, TokenRefused | Rejected | InvalidAnswer):
        logger.error("A login by OpenID Connect failed: {}", problem)
        return f"Login with {name} failed. The log of this server has the details."
    logger.warning("A login by OpenID Connect failed: {}", problem)
    return f"The login server of {name} cannot be reached. Try again in a moment."


def _issuer() -> Issuer:
    known = settings.CATALOGUE
    return issuer_at(
        known.login_issuer, client_id=known.login_client_id, client_secret=known.login_client_secret
    )


async def _redeem(code: str, *, nonce: str, verifier: str) -> tuple[dict[str, Any], str]:
    """The claims about the person, and their ID token. Raises TokenRefused or a ConnectorError."""
    issuer = _issuer()
    answer = await issuer.redeem_code(code, verifier=verifier, redirect_uri=callback_url())
    id_token, access_token = answer.get("id_token"), answer.get("access_token")
    if not isinstance(id_token, str) or not isinstance(access_token, str):
        raise TokenRefused("the response has no ID token, so the server is not an OpenID provider")
    claims = await issuer.read_id_token(id_token, nonce=nonce)
    more = await issuer.read_user(access_token)
    if more and more.get("sub") != claims["sub"]:
        raise TokenRefused("the userinfo endpoint describes a different user")
    return more | claims, id_token


def callback_url() -> str:
    """The address to register at the provider."""
    return f"{settings.PUBLIC_URL}{reverse('company-login-callback')}"


@transaction.atomic
def admit(claims: dict[str, Any]) -> User:
    """The user of these claims, with the groups that they name. Raises LoginRefused."""
    try:
        user = find_user(claims, claim=settings.CATALOGUE.login_user_claim)
        identity = identity_of(claims)
    except TokenRefused as problem:
        raise LoginRefused(f"This login cannot be linked to an account: {problem}.") from None
    is_new = user is None
    if user is None:
        user = _make_user(claims)
    if not user.is_active:
        raise LoginRefused("Your account is disabled. Ask an administrator to enable it.")
    ExternalIdentity.objects.update_or_create(
        **identity,
        create_defaults={"user": user, "made_user": is_new, "last_login_at": timezone.now()},
        defaults={"last_login_at": timezone.now()},
    )
    _set_groups(user, claims)
    return user


def _make_user(claims: dict[str, Any]) -> User:
    """Raises LoginRefused."""
    known = settings.CATALOGUE
    named = str(claims.get("preferred_username") or claims["sub"])
    if not known.login_creates_users:
        raise LoginRefused(f"There is no account for {named}. Ask an administrator to create one.")
    if known.login_groups and not _wanted(claims):
        raise LoginRefused("None of your groups has access. Ask an administrator which groups do.")
    verified = claims.get(EMAIL) if claims.get("email_verified") is True else ""
    user = User(username=named, email=verified if isinstance(verified, str) else "")
    user.set_unusable_password()
    try:
        user.full_clean(exclude=["password"])
        lock_owners()  # Of two names that look alike and come at once, one is first
        if any(map(partial(look_alike, user.username), User.objects.values_list("username", flat=True))):
            raise ValidationError("It looks like another name.")
        with transaction.atomic():
            user.save()
    except (ValidationError, IntegrityError):
        raise LoginRefused(
            f"An account cannot be created for {named}: the name is already taken, looks like another or is "
            "not valid. Ask an administrator for help."
        ) from None
    record_change(_actor(user), [user], f"Created at the first login with {known.login_name}.")
    return user


def _set_groups(user: User, claims: dict[str, Any]) -> None:
    """Adds and removes only groups that the setting names."""
    managed = set(settings.CATALOGUE.login_groups.values())
    if not managed:
        return
    wanted, found = _wanted(claims), Group.objects.filter(name__in=managed).in_bulk(field_name="name")
    if missing := wanted - found.keys():
        logger.error("CATALOGUE_LOGIN_GROUPS names groups that do not exist: {}", ", ".join(sorted(missing)))
    present = set(user.groups.values_list("name", flat=True))
    given, taken = (wanted & found.keys()) - present, (present & managed) - wanted
    lock_owners()
    owning = Group.objects.filter(role__name=Role.Name.OWNER, name__in=taken).first()
    if owning is not None and would_leave_no_owner([user.pk]):
        logger.error("{} stays in the group {}, because there is no other owner.", user, owning.name)
        taken.discard(owning.name)
    user.groups.add(*(found[name] for name in given))
    user.groups.remove(*(found[name] for name in taken))
    remaining = (present | given) - taken
    if given and not user.is_staff:
        user.is_staff = True
    elif taken and not remaining and not user.is_superuser:
        user.is_staff = False
    user.save(update_fields=["is_staff"])
    if given or taken:
        said = [
            f"{verb} {', '.join(sorted(names))}"
            for verb, names in (("joined", given), ("left", taken))
            if names
        ]
        record_change(
            _actor(user), [user], f"At a login with {settings.CATALOGUE.login_name}: {'; '.join(said)}."
        )


def _wanted(claims: dict[str, Any]) -> set[str]:
    known = settings.CATALOGUE
    named = claims.get(known.login_groups_claim)
    theirs = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    return {known.login_groups[one] for one in theirs if isinstance(one, str) and one in known.login_groups}


def _actor(user: User) -> Actor:
    return Actor(key=f"user:{user.pk}", name=user.get_username(), door=HistoryEntry.Door.ADMIN)


class _Settings:
    @staticmethod
    def get_settings(name: str, *default: Any) -> Any:
        """Replaces a second set of settings for the library."""
        known = {
            "OIDC_OP_AUTHORIZATION_ENDPOINT": "",  # Read from the provider's metadata, for each login
            "OIDC_RP_CLIENT_ID": settings.CATALOGUE.login_client_id,
            "OIDC_RP_SCOPES": settings.CATALOGUE.login_scopes,
            "OIDC_USE_PKCE": True,
            "OIDC_AUTHENTICATION_CALLBACK_URL": "company-login-callback",
            "OIDC_AUTH_REQUEST_EXTRA_PARAMS": {"redirect_uri": callback_url()},
        }
        return known[name] if name in known else import_from_settings(name, *default)


def _refuse(request: HttpRequest, words: str, next_page: str | None) -> HttpResponse:
    messages.error(request, words)
    query = f"?{urlencode({NEXT: next_page})}" if next_page else ""
    return HttpResponseRedirect(reverse("admin:login") + query)


class BeginLogin(_Settings, OIDCAuthenticationRequestView):  # type: ignore[misc]
    def get(self, request: HttpRequest) -> HttpResponse:
        if not settings.CATALOGUE.login_issuer:
            raise Http404
        try:
            begun = _issuer().endpoint("authorization_endpoint")
            self.OIDC_OP_AUTH_ENDPOINT = run_without_connection(begun)
        except ConnectorError as problem:
            return _refuse(request, _in_words(problem), get_next_url(request, NEXT))
        if not request.user.is_authenticated:
            request.session.set_expiry(UNFINISHED_SECONDS)
        answer: HttpResponse = super().get(request)
        # Each tab continues at its own page.
        *_, this_login = request.session[STATES].values()
        this_login[NEXT] = request.session[NEXT_PAGE]
        return answer


class EndLogin(_Settings, OIDCAuthenticationCallbackView):  # type: ignore[misc]
    def get(self, request: HttpRequest) -> HttpResponse:
        known = settings.CATALOGUE
        if not known.login_issuer:
            raise Http404
        this_login = request.session.get(STATES, {}).get(request.GET.get("state", ""), {})
        if NEXT in this_login:
            request.session[NEXT_PAGE] = this_login[NEXT]
        # The request's error text is not shown: any page can link here with one.
        if "error" in request.GET or request.GET.get("iss", known.login_issuer) != known.login_issuer:
            return self.login_failure()
        try:
            answer: HttpResponse = super().get(request)
        except SuspiciousOperation:
            return self.login_failure()
        return answer

    def login_success(self) -> HttpResponse:
        answer: HttpResponse = super().login_success()
        # A time, because a number of seconds would begin again with each change of the session.
        ends_at = timezone.now() + timedelta(hours=settings.CATALOGUE.login_hours)
        self.request.session.set_expiry(ends_at)
        if settings.CATALOGUE.login_ends_at_provider:
            sealed = encrypt_credentials({ID_TOKEN: self.request.id_token})
            self.request.session[ID_TOKEN] = sealed
        return answer

    def login_failure(self) -> HttpResponse:
        again = f"Login with {settings.CATALOGUE.login_name} was not completed. Try again."
        words = getattr(self.request, "login_problem", again)
        return _refuse(self.request, words, self.request.session.get(NEXT_PAGE))


@require_POST
def log_out(request: HttpRequest) -> HttpResponse:
    """The admin's log-out, then the provider's (OpenID Connect RP-Initiated Logout) if the login was made
    there. Uses `Refresh`: a form's redirect may not leave this site (Content-Security-Policy)."""
    further = _end_at_provider(request.session.get(ID_TOKEN, ""))
    answer: HttpResponse = admin.site.logout(request)
    if further:
        answer["Refresh"] = f"0; url={further}"
    return answer


def _end_at_provider(sealed: str) -> str:
    """The address that ends the session at the provider; empty if there is none."""
    if not sealed:
        return ""
    try:
        address = run_without_connection(_issuer().endpoint("end_session_endpoint"))
        id_token = decrypt_credentials(sealed)[ID_TOKEN]
    except (ConnectorError, CredentialsUnreadable) as problem:
        logger.warning("A person was logged out here only, not at the OpenID provider: {}", problem)
        return ""
    query = {
        "id_token_hint": id_token,
        "client_id": settings.CATALOGUE.login_client_id,
        "post_logout_redirect_uri": f"{settings.PUBLIC_URL}{reverse('admin:login')}",
    }
    return f"{address}{'&' if '?' in address else '?'}{urlencode(query)}"
