"""The second factor of accounts that log in with a password: codes of an authenticator app."""

import base64
import os
import time
from collections.abc import Callable
from math import ceil
from typing import Any
from urllib.parse import urlencode

import segno
from cryptography.hazmat.primitives.hashes import SHA1
from cryptography.hazmat.primitives.twofactor.totp import TOTP
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth import BACKEND_SESSION_KEY
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.auth.views import redirect_to_login
from django.db import transaction
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _
from django.views import View
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters

from access.addresses import address_of
from audit.models import Kind, record
from catalogue.history import actor_of, record_change
from catalogue.secrets import CredentialsUnreadable, decrypt_credentials, encrypt_credentials
from connectors.background import CLOCKS_APART
from identity.authentication import CodeAttempt, TooManyFailures
from identity.models import SecondFactor
from identity.tokens import digest_of

STEP_SECONDS = 30
STEPS_APART = ceil(CLOCKS_APART.total_seconds() / STEP_SECONDS) + 1
DIGITS = 6
KEY_BYTES = 20
RECOVERY_CODES = 10
RECOVERY_BYTES = 10  # 80 random bits, so that a plain hash is enough
SESSION_KEY = "second_factor"
BEGUN_KEY = "second_factor_begun"  # Of the session that sets it up; its value identifies the key shown there
PASSED, WANTED, NOT_WANTED = "passed", "wanted", "not wanted"
COMPANY = "identity.company_login.CompanyBackend"  # Its provider asks for a second factor itself
PAGES = ("oauth2_provider:authorize", "oauth2_provider:applications")  # For users, outside the admin
PRODUCT = "Workflow Catalogue"


def is_demanded(user: Any) -> bool:
    """Returns whether this user needs one to log in with a password."""
    return settings.CATALOGUE.second_factor == "staff" and bool(user.is_staff)


def begin(user: User, session: Any) -> SecondFactor:
    """Unconfirmed until the user enters a code. Until then, its key is that of this session: another one with
    the password may be a thief's, who would know the code of every later login."""
    key = base64.b32encode(os.urandom(KEY_BYTES)).decode()
    fresh = {"encrypted_key": encrypt_credentials({"key": key})}
    factor, is_new = SecondFactor.objects.get_or_create(user=user, defaults=fresh)
    is_ours = not is_new and _is_readable(factor) and session.get(BEGUN_KEY) == digest_of(key_of(factor))
    if factor.confirmed_at is None and not is_ours:
        SecondFactor.objects.filter(pk=factor.pk, confirmed_at=None).update(**fresh)
        session[BEGUN_KEY] = digest_of(key)
        factor.refresh_from_db()
    return factor


def key_of(factor: SecondFactor) -> str:
    """Returns base 32. Raises CredentialsUnreadable."""
    return decrypt_credentials(factor.encrypted_key)["key"]


def _is_readable(factor: SecondFactor) -> bool:
    try:
        key_of(factor)
    except CredentialsUnreadable:
        return False
    return True


def accepts(factor: SecondFactor, text: str) -> bool:
    """Returns whether the code is correct; each is accepted once."""
    code = "".join(text.split()).replace("-", "").lower()
    if len(code) == DIGITS and code.isascii() and code.isdigit():
        try:
            totp = _totp(factor)
        except CredentialsUnreadable:
            return False
        present = int(time.time()) // STEP_SECONDS
        for step in (present - 1, present, present + 1):
            if totp.generate(step * STEP_SECONDS).decode() == code:
                # A step far ahead was accepted by a clock that was, and would refuse all codes until then.
                unused = Q(last_step__lt=step) | Q(last_step__gt=present + STEPS_APART)
                return SecondFactor.objects.filter(unused, pk=factor.pk).update(last_step=step) == 1
        return False
    return factor.confirmed_at is not None and _uses_up(factor, code)


def _totp(factor: SecondFactor) -> TOTP:
    return TOTP(base64.b32decode(key_of(factor)), DIGITS, SHA1(), STEP_SECONDS)  # noqa: S303 - as apps do


@transaction.atomic
def _uses_up(factor: SecondFactor, code: str) -> bool:
    locked = SecondFactor.objects.select_for_update().filter(pk=factor.pk).first()
    if locked is None or (digest := digest_of(code)) not in locked.recovery_digests:
        return False
    locked.recovery_digests = [one for one in locked.recovery_digests if one != digest]
    locked.save(update_fields=["recovery_digests"])
    return True


def renew_recovery_codes(factor: SecondFactor) -> list[str]:
    """The new codes, which are shown once and replace all earlier ones."""
    codes = [base64.b32encode(os.urandom(RECOVERY_BYTES)).decode().lower() for _ in range(RECOVERY_CODES)]
    factor.recovery_digests = [digest_of(code) for code in codes]
    factor.save(update_fields=["recovery_digests"])
    return ["-".join(code[at : at + 4] for at in range(0, len(code), 4)) for code in codes]


class ChangedElsewhere(Exception):
    """Another session has begun to set up a second factor, or has done so."""


def confirm(factor: SecondFactor) -> list[str]:
    """Returns the recovery codes. Raises ChangedElsewhere."""
    same = SecondFactor.objects.filter(
        pk=factor.pk, encrypted_key=factor.encrypted_key, confirmed_at=factor.confirmed_at
    )
    factor.confirmed_at = timezone.now()
    if not same.update(confirmed_at=factor.confirmed_at):
        raise ChangedElsewhere
    return renew_recovery_codes(factor)


def note_login(request: HttpRequest, user: Any) -> None:
    """Called at every login, on any page."""
    request.session[SESSION_KEY] = WANTED if _needs_code(request, user) else NOT_WANTED


def _needs_code(request: HttpRequest, user: Any) -> bool:
    return request.session.get(BACKEND_SESSION_KEY) != COMPANY and (
        is_demanded(user) or SecondFactor.objects.filter(user=user).exclude(confirmed_at=None).exists()
    )


def account_links(request: HttpRequest) -> list[dict[str, str]]:
    """Returns the entries of the menu with the user's name."""
    if not (isinstance(request.user, User) and request.user.has_usable_password()):
        return []
    return [
        {"title": _("Change password"), "link": reverse("admin:password_change")},
        {"title": _("Second factor"), "link": reverse("second-factor")},
    ]


class SecondFactorRequired:
    """Limits a session without its second factor to the page that asks for it."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if settings.SESSION_COOKIE_NAME not in request.COOKIES or not request.user.is_authenticated:
            return self._get_response(request)
        # Sessions may be older than the user's second factor or role, or the setting that demands one.
        state = request.session.get(SESSION_KEY)
        if state is None or (state == NOT_WANTED and _needs_code(request, request.user)):
            note_login(request, request.user)
        if request.session[SESSION_KEY] != WANTED:
            return self._get_response(request)
        page = reverse("second-factor")
        if request.path not in (page, reverse("admin:logout")):
            if request.path.startswith(reverse("admin:index")) or request.path in map(reverse, PAGES):
                wanted = request.GET.get("next") if request.path == reverse("admin:login") else None
                query = urlencode({"next": wanted or request.get_full_path()})
                return HttpResponseRedirect(f"{page}?{query}")
            request.user = AnonymousUser()
        return self._get_response(request)


@method_decorator([never_cache, sensitive_post_parameters("code")], name="dispatch")
class SecondFactorPage(View):
    """Asks for the second factor, sets it up, or shows its state, depending on the session."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not request.user.is_authenticated:
            return redirect_to_login(request.get_full_path())
        return super().dispatch(request, *args, **kwargs)

    def get(self, request: HttpRequest) -> HttpResponse:
        return self._show(request)

    def post(self, request: HttpRequest) -> HttpResponse:
        factor = begin(request.user, request.session)  # type: ignore[arg-type]
        if problem := self._problem(request, factor):
            return self._show(request, problem=problem)
        wanted = request.POST.get("do", "")
        if factor.confirmed_at is None:
            try:
                codes = self._change(request, "Set up a second factor.", lambda: confirm(factor))
            except ChangedElsewhere:
                return self._show(request, problem=_("The key was replaced in another session. Start again."))
            request.session[SESSION_KEY] = PASSED
            request.session.cycle_key()
            return self._show(request, codes=codes)
        if request.session.get(SESSION_KEY) == WANTED:
            self._enter(request, "passed", "succeeded")
            request.session[SESSION_KEY] = PASSED
            request.session.cycle_key()
            return HttpResponseRedirect(self._next(request))
        if wanted == "renew":
            codes = self._change(
                request, "Generated new recovery codes.", lambda: renew_recovery_codes(factor)
            )
            return self._show(request, codes=codes)
        if wanted == "remove" and not is_demanded(request.user):
            self._change(request, "Removed the second factor.", factor.delete)
            request.session[SESSION_KEY] = NOT_WANTED
            messages.success(request, _("Your account no longer has a second factor."))
        return HttpResponseRedirect(reverse("second-factor"))

    def _problem(self, request: HttpRequest, factor: SecondFactor) -> str:
        try:
            attempt = CodeAttempt(username=request.user.get_username(), address=address_of(request))
        except TooManyFailures as problem:
            return str(problem)
        if accepts(factor, request.POST.get("code", "")):
            attempt.succeeded()
            return ""
        attempt.failed()
        self._enter(request, "failed", "failed")
        if not _is_readable(factor):
            return _(
                "The server cannot read the key of your second factor: its SECRET_KEY has changed. Enter a "
                "recovery code, or have an administrator reset your second factor."
            )
        return _(
            "This code is wrong or has already been used. Wait for the next code, and check your "
            "device's clock."
        )

    def _enter(self, request: HttpRequest, what: str, outcome: str) -> None:
        """Adds an audit event: the password alone was already recorded as a sign-in."""
        named = {"actor": f"user:{request.user.pk}", "actor_name": request.user.get_username()}
        record(Kind.SIGN_IN, f"second_factor.{what}", outcome=outcome, **named)

    def _change(self, request: HttpRequest, message: str, change: Callable[[], Any]) -> Any:
        with transaction.atomic():
            outcome = change()
            record_change(
                actor_of(request), User.objects.filter(username=request.user.get_username()), message
            )
        return outcome

    def _next(self, request: HttpRequest) -> str:
        wanted = request.GET.get("next", "")
        is_ours = url_has_allowed_host_and_scheme(
            wanted, allowed_hosts={request.get_host()}, require_https=request.is_secure()
        )
        return wanted if is_ours else reverse("admin:index")

    def _show(
        self, request: HttpRequest, *, problem: str = "", codes: list[str] | None = None
    ) -> HttpResponse:
        factor = begin(request.user, request.session)  # type: ignore[arg-type]
        context = admin.site.each_context(request) | {
            "title": _("Second factor"),
            "problem": problem,
            "codes": codes,
            "factor": factor,
            "is_asked": request.session.get(SESSION_KEY) == WANTED,
            "is_demanded": is_demanded(request.user),
            "next_page": self._next(request),
        }
        if factor.confirmed_at is None:
            address = _totp(factor).get_provisioning_uri(factor.user.get_username(), PRODUCT)
            # Black on white in dark pages too.
            code = segno.make(address, error="m").svg_inline(
                scale=5, light="#fff", dark="#000", svgclass=None
            )
            context |= {"key": key_of(factor), "picture": mark_safe(code)}  # noqa: S308 - made of squares alone
        return TemplateResponse(
            request, "identity/admin/second_factor.html", context, status=400 if problem else 200
        )
