"""The pages where users sign in to an application, and see and revoke their consents; the addresses of the
authorization server."""

from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn
from urllib.parse import urlencode, urlsplit

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth import forms as auth_forms
from django.contrib.auth.decorators import login_required
from django.contrib.auth.views import LoginView
from django.db import transaction
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseRedirect,
    JsonResponse,
)
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import path, reverse, reverse_lazy
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST, require_safe
from loguru import logger
from oauth2_provider import views
from oauth2_provider.exceptions import FatalClientError, OAuthToolkitError
from oauth2_provider.http import OAuth2ResponseRedirect
from oauth2_provider.models import AccessToken, Application
from oauth2_provider.views.base import BaseAuthorizationView
from oauth2_provider.views.mixins import OAuthLibMixin
from oauthlib.oauth2.rfc6749.errors import CustomOAuth2Error, InvalidRequestError, InvalidScopeError

from access.addresses import address_of
from access.callers import Bounds, Scope, person_of
from catalogue.exposure import current_catalogue
from catalogue.history import actor_of, record_change
from catalogue.naming import latin_looks
from connectors.formats.json import UnreadableJSON, parse_json
from identity.admin.tokens import SignInForm
from identity.authentication import CLIENT_DOCUMENTS, REGISTRATIONS, TooManyFailures, count_attempt
from identity.models import AllowedApplication
from identity.oauth import grants, server
from identity.tokens import LOOPBACK

app_name = "oauth2_provider"  # Django-oauth-toolkit looks for its addresses under this name
NAMED_TOOLS = 8
MAX_REGISTRATION_BYTES = 16 * 1024  # Bytes
SIGN_IN = reverse_lazy(f"{app_name}:sign-in")


class AnyUserSignInForm(SignInForm):
    """The admin's form, with its throttle, also for users who are not staff."""

    confirm_login_allowed = auth_forms.AuthenticationForm.confirm_login_allowed


class SignInPage(LoginView):
    template_name = "identity/admin/login.html"
    authentication_form = AnyUserSignInForm

    def get_default_redirect_url(self) -> str:
        return reverse(f"{app_name}:applications")

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        page = {"title": _("Sign in"), "app_path": self.request.get_full_path()}
        return super().get_context_data(**kwargs) | admin.site.each_context(self.request) | page


class ConsentPage(BaseAuthorizationView):  # type: ignore[misc]
    """RFC 6749's authorization endpoint. The form is posted to the address of the request, which is checked
    again: no part of the request is in fields that a page could change."""

    login_url = SIGN_IN
    http_method_names = ("get", "post")

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        asked = server.asked_by_user.set(request.user.is_authenticated)
        server.client_fault.set("")
        try:
            response: HttpResponseBase = super().dispatch(request, *args, **kwargs)
        finally:
            server.asked_by_user.reset(asked)
        response["Cache-Control"] = "no-store"
        return response

    def get(self, request: HttpRequest) -> HttpResponseBase:
        try:
            asked = _Asked(self, request)
        except OAuthToolkitError as error:
            return self.error_response(error, None)
        context = admin.site.each_context(request) | asked.describe()
        response = TemplateResponse(request, "identity/consent.html", context)
        response.form_leads_anywhere = True  # type: ignore[attr-defined]
        return response

    def post(self, request: HttpRequest) -> HttpResponseBase:
        try:
            asked = _Asked(self, request)
            allowed = "allow" in request.POST
            if allowed:
                asked.allow()
            address, *_ = self.create_authorization_response(
                request=request, scopes=" ".join(asked.scopes), credentials=asked.credentials, allow=allowed
            )
        except OAuthToolkitError as error:
            return self.error_response(error, None)
        return self.redirect(address, asked.application)

    def redirect(self, redirect_to: str, application: Any) -> HttpResponseBase:
        response: HttpResponseBase = OAuth2ResponseRedirect(redirect_to, [urlsplit(redirect_to).scheme])
        return response

    def error_response(self, error: Any, application: Any, **kwargs: Any) -> HttpResponseBase:
        """Redirects to the client if its address is verified and the user has decided. Before, it is a page
        that leads on only to trusted addresses, because anyone can register one (RFC 9700, 4.11.2). It uses
        `Refresh`: browsers apply the sign-in page's `form-action` to redirects as well."""
        redirects, details = OAuthLibMixin.error_response(self, error)
        # RFC 9207 requires `iss` in errors too; the toolkit adds it only when access is granted.
        address = f"{details['url']}&{urlencode({'iss': settings.PUBLIC_URL})}" if redirects else ""
        if address and self.request.method == "POST":
            return self.redirect(address, application)
        problem = details["error"]
        context = admin.site.each_context(self.request) | {
            "title": _("This application cannot sign you in"),
            "problem": server.client_fault.get() or problem.description or problem.error,
            "address": address,
            "target": _origin_of(address),
        }
        page = TemplateResponse(
            self.request, "identity/consent_refused.html", context, status=problem.status_code
        )
        if address and self._is_trusted(address):
            page["Refresh"] = f"0;url={address}"
        return page

    def _is_trusted(self, address: str) -> bool:
        """Returns whether it is on the user's machine, or of an application that the user has allowed."""
        if address.startswith(("http:", "https:")) and urlsplit(address).hostname in LOOPBACK:
            return True
        application = Application.objects.filter(client_id=self.request.GET.get("client_id")).first()
        return grants.is_allowed(self.request.user, application)


class _Asked:
    """A valid authorization request. Raises OAuthToolkitError."""

    def __init__(self, page: ConsentPage, request: HttpRequest) -> None:
        user: Any = request.user
        self._user, self._request = user, request
        # Limits how many client addresses each user can make this server read.
        client_id = request.GET.get("client_id", "")
        if client_id.startswith("https://") and not Application.objects.filter(client_id=client_id).exists():
            try:
                count_attempt(CLIENT_DOCUMENTS, str(request.user.pk))
            except TooManyFailures as problem:
                raise FatalClientError(
                    error=CustomOAuth2Error(error="slow_down", description=str(problem), status_code=429)
                ) from None
        scopes, self.credentials = page.validate_authorization_request(request)
        self.application = Application.objects.get(client_id=self.credentials["client_id"])
        self.redirect: str = self.credentials["redirect_uri"]
        if self.credentials.get("code_challenge_method") != "S256":
            self._refuse(InvalidRequestError(description="PKCE with S256 is required."))
        try:
            self.resource = server.canonical_resource(filter(None, request.GET.getlist("resource")))
            self.slug = grants.slug_of(self.resource)
        except ValueError:
            self._refuse(server.invalid_target())
        bounds = Bounds(self.slug, person_of(user))
        # One that is reserved for others does not exist for this user.
        if self.slug is not None and current_catalogue().toolset_within(bounds) is None:
            self._refuse(server.invalid_target())
        grantable = grants.scopes_of(user, toolset=self.slug)
        self.scopes = [scope for scope in scopes if scope in grantable]
        if not self.scopes:
            wanted = f"This user may not grant {' '.join(scopes)}."
            self._refuse(InvalidScopeError(description=wanted))
        self.credentials["resource"] = [self.resource]

    def allow(self) -> None:
        granted = ", ".join(self.scopes)
        where = "" if self.slug is None else f", in the toolset {self.slug}"
        with transaction.atomic():
            allowed = grants.allow(self._user, self.application, scopes=self.scopes, toolset=self.slug)
            record_change(actor_of(self._request), [allowed], f"Allowed by its user: {granted}{where}.")
        username, name = self._user.get_username(), self.application.name
        logger.info("{!r} allowed the application {!r}: {}{}.", username, name, granted, where)

    def _refuse(self, error: Any) -> NoReturn:
        error.state = self.credentials.get("state")
        raise OAuthToolkitError(error=error, redirect_uri=self.redirect)

    def describe(self) -> dict[str, Any]:
        catalogue = current_catalogue()
        workflows = list(catalogue.seen_within(Bounds(self.slug, person_of(self._user))).values())
        sources = Application.RegistrationSource
        by_document = self.application.registration_source == sources.CIMD
        return {
            "title": _("Allow an application"),
            "name": self.application.name or _("An application without a name"),
            "reads_as": latin_looks(self.application.name),
            "username": self._user.get_username(),
            "count": len(workflows),
            "first": [workflow.title or workflow.tool_name for workflow in workflows[:NAMED_TOOLS]],
            "further": max(len(workflows) - NAMED_TOOLS, 0),
            "toolset": None if self.slug is None else catalogue.toolsets[self.slug].toolset,
            "may_run": Scope.RUN in self.scopes or Scope.ADMIN in self.scopes,
            "extra": [Scope(scope).label for scope in self.scopes if scope not in grants.OF_EVERY_USER],
            "returns_here": urlsplit(self.redirect).scheme != "https",
            "target": _origin_of(self.redirect),
            "described_by": urlsplit(self.application.client_id).hostname if by_document else "",
        }


def _origin_of(address: str) -> str:
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}" if parts.scheme in ("http", "https") else f"{parts.scheme}:"


class TokenEndpoint(views.TokenView):  # type: ignore[misc]
    def post(self, request: HttpRequest, *_: Any, **__: Any) -> HttpResponse:
        """Omits the toolkit's device flow, which is not supported here and fails."""
        try:
            response: HttpResponse = self.authorization_flow_token_response(request)
        except AccessToken.DoesNotExist:
            # Revoked by another request since it was made; the toolkit reads it once more.
            return JsonResponse({"error": "invalid_grant"}, status=400)
        return response


@csrf_exempt
@never_cache
@require_POST
def register(request: HttpRequest) -> HttpResponseBase:
    """RFC 7591. A registration that no user allows is removed after a day."""
    if not settings.CATALOGUE.oauth_registration:
        raise Http404
    address = address_of(request)
    try:
        count_attempt(REGISTRATIONS, address)
    except TooManyFailures as problem:
        logger.warning("Refused a registration of a client from {}: {}", address, problem)
        return _registration_refused("slow_down", str(problem), status=429, wait=problem.seconds)
    if not grants.has_room():
        full = "Too many registered clients have not been allowed by a user yet. Try again in half an hour."
        return _registration_refused("temporarily_unavailable", full, status=503, wait=1800)
    try:
        if len(request.body) > MAX_REGISTRATION_BYTES:
            raise server.InvalidClient(
                f"The metadata must not be larger than {MAX_REGISTRATION_BYTES} bytes."
            )
        document = parse_json(request.body, given=True)
        if not isinstance(document, dict):
            raise server.InvalidClient("The request body must be a JSON object.")
        application = server.register(document)
    except server.InvalidClient as problem:
        kind = "invalid_redirect_uri" if "redirect_uris" in str(problem) else "invalid_client_metadata"
        return _registration_refused(kind, str(problem))
    except UnreadableJSON:
        return _registration_refused("invalid_client_metadata", "The request body must be a JSON object.")
    registered = {
        "client_id": application.client_id,
        "client_id_issued_at": int(application.created.timestamp()),
        "client_name": application.name,
        "redirect_uris": application.redirect_uris.split(),
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }
    return JsonResponse(registered, status=201)


@never_cache
@require_safe
@login_required(login_url=SIGN_IN)
def applications(request: HttpRequest) -> HttpResponseBase:
    """Lists the consents of the user."""
    allowed = AllowedApplication.objects.filter(user=request.user.pk, revoked_at=None)
    context = admin.site.each_context(request) | {"title": _("My applications"), "applications": allowed}
    return TemplateResponse(request, "identity/my_applications.html", context)


@require_POST
@login_required(login_url=SIGN_IN)
def revoke(request: HttpRequest, key: int) -> HttpResponseBase:
    allowed = get_object_or_404(AllowedApplication, pk=key, user=request.user, revoked_at=None)
    grants.revoke(allowed)
    record_change(actor_of(request), [allowed], "Revoked by its user.")
    messages.success(
        request, _("{application} can no longer act on your behalf.").format(application=allowed.name)
    )
    return HttpResponseRedirect(reverse(f"{app_name}:applications"))


View = Callable[..., HttpResponseBase]


def _if_enabled(view: View) -> View:
    """Keeps the view's exemption from CSRF tokens: requests of clients have no cookie."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not settings.CATALOGUE.oauth_enabled:
            raise Http404
        return view(request, *args, **kwargs)

    return answer


def _well_formed(view: View) -> View:
    """PostgreSQL cannot store U+0000, and no client has a reason to send it. RFC 6749, 3.1 and 3.2, forbids
    repeated parameters; RFC 8707 allows those of `resource`."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        forms = (*request.GET.lists(), *request.POST.lists())
        once = [name for name, values in forms for _ in values if name != "resource"]
        if len(set(once)) < len(once) or any("\0" in value for _, values in forms for value in values):
            return JsonResponse({"error": "invalid_request"}, status=400)
        request.META["QUERY_STRING"] = request.GET.urlencode()  # oauthlib fails on escapes such as %zz
        return view(request, *args, **kwargs)

    return answer


def _registration_refused(error: str, description: str, *, status: int = 400, wait: int = 0) -> HttpResponse:
    headers = {"Retry-After": str(wait)} if wait else None
    return JsonResponse({"error": error, "error_description": description}, status=status, headers=headers)


@_if_enabled
def metadata(request: HttpRequest) -> HttpResponseBase:
    response: HttpResponseBase = views.OAuthServerMetadataView.as_view()(request)
    del response["Access-Control-Allow-Origin"]  # `CrossOrigin` sets it, and two would invalidate each other
    return response


urlpatterns = [
    path(".well-known/oauth-authorization-server", metadata, name="oauth-server-metadata"),
    path(".well-known/openid-configuration", metadata),  # Some clients look here
    path("oauth/authorize", _if_enabled(_well_formed(ConsentPage.as_view())), name="authorize"),
    path("oauth/token", _if_enabled(_well_formed(TokenEndpoint.as_view())), name="token"),
    path("oauth/revoke", _well_formed(views.RevokeTokenView.as_view()), name="revoke-token"),
    path("oauth/register", _if_enabled(register), name="dcr-register"),
    path("oauth/sign-in", never_cache(SignInPage.as_view()), name="sign-in"),
    path("oauth/applications", applications, name="applications"),
    path("oauth/applications/<int:key>/revoke", revoke, name="revoke"),
]
