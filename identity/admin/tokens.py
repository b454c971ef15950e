from collections.abc import Iterable
from typing import Any, cast

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.cache import never_cache
from unfold.contrib.filters.admin import RelatedDropdownFilter
from unfold.forms import AuthenticationForm
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from access.addresses import address_of
from access.callers import Scope
from access.permissions import grantable_scopes
from catalogue.actions.reverting import RevertRefused, reverters
from catalogue.admin import rendering
from catalogue.admin.base import (
    Button,
    CatalogueForm,
    Link,
    OptionsFilter,
    button,
    column,
)
from catalogue.exposure import current_catalogue
from catalogue.history import Actor, actor_of, write_fields
from catalogue.models import Workflow
from executions.dashboard import Step
from executions.inbox import Row, address
from identity import authentication
from identity.admin.reach import address_for, may_look, show_reach
from identity.admin.revoking import RevokingMixin
from identity.client_configuration import HttpServer, configurations_of
from identity.models import AccessToken, TokenState, default_scopes
from identity.tokens import (
    ASSIGN,
    Expiry,
    check_new_owner,
    create_token,
    end_former_secret,
    may_keep_tokens,
    resource_url,
    revoke_tokens,
    rotate_token,
    settle_expiry,
    tell_missing,
    usual_expiry,
)

CHANGEABLE = ("purpose", "owner", "inline_wait_seconds", "calls_per_minute", "calls_at_once")
ROTATE = "mcp_bridge_accesstoken_rotate"


class OwnedForm(CatalogueForm):
    maker: Any = None  # The current user, who can grant only scopes of their own

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        owner = cast("forms.ModelChoiceField[User] | None", self.fields.get("owner"))
        # Only those who may choose other users see the field.
        if owner is not None and self.maker is not None and self.maker.has_perm(ASSIGN):
            users = User.objects.filter(Q(is_active=True) | Q(pk=self.instance.owner_id))
            owner.queryset, owner.initial = users.order_by("username"), self.maker.pk
        else:
            self.fields.pop("owner", None)


class AccessTokenForm(OwnedForm):
    scopes = forms.MultipleChoiceField(
        label=gettext_lazy("Scopes"), widget=UnfoldAdminCheckboxSelectMultipleWidget()
    )
    # Django's own widget warns of each browser in another time zone.
    expires_at = forms.DateTimeField(
        required=False, widget=UnfoldAdminTextInputWidget(attrs={"type": "datetime-local"})
    )
    never_expires = forms.BooleanField(
        required=False,
        widget=UnfoldBooleanSwitchWidget,
        help_text=gettext_lazy("The token works until it is revoked or its owner is disabled."),
    )

    class Meta:
        model = AccessToken
        fields = (
            "name", "purpose", "owner", "scopes", "toolset", "expires_at", "inline_wait_seconds",
            "calls_per_minute", "calls_at_once",
        )  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        granted = grantable_scopes(self.maker)
        scopes = cast("forms.MultipleChoiceField", self.fields["scopes"])
        scopes.choices = [(scope.value, f"{scope.value}: {scope.label}") for scope in granted]
        scopes.initial = [scope for scope in default_scopes() if scope in granted]
        if missing := [scope.value for scope in Scope if scope not in granted]:
            scopes.help_text = tell_missing(self.maker, missing)
        days = (usual_expiry() - timezone.now()).days + 1
        told = ngettext(
            "If empty, the token expires in %s day.", "If empty, the token expires in %s days.", days
        )
        self.fields["expires_at"].help_text = told % f"{days:,}"
        if not may_keep_tokens(self.maker):
            del self.fields["never_expires"]

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = super().clean() or self.cleaned_data
        never = given.pop("never_expires", False)
        if never and given.get("expires_at") is not None:
            self.add_error("expires_at", "Choose either an expiry or “never expires”, not both.")
        elif "expires_at" in given:
            wanted = None if never else given["expires_at"] or Expiry.USUAL
            given["expires_at"] = settle_expiry(wanted, chosen_by=self.maker)
        if "owner" not in self.fields:
            given["owner"] = self.maker
        return given


class ChangeForm(OwnedForm):
    class Meta:
        model = AccessToken
        fields = CHANGEABLE

    def clean_owner(self) -> Any:
        owner = self.cleaned_data["owner"]
        # `instance` still has the present one.
        check_new_owner(self.instance, owner, chosen_by=self.maker)
        return owner


class RotationForm(forms.Form):
    overlap_hours = forms.TypedChoiceField(
        label=gettext_lazy("Keep the current secret valid for"),
        coerce=int,
        choices=[
            (0, gettext_lazy("no time: it stops working immediately")),
            (1, gettext_lazy("1 hour")),
            (4, gettext_lazy("4 hours")),
            (24, gettext_lazy("24 hours")),
            (72, gettext_lazy("3 days")),
            (168, gettext_lazy("7 days")),
        ],
        initial=24,
        widget=UnfoldAdminSelectWidget,
        help_text=gettext_lazy("Long enough to give the new secret to every client that uses the token."),
    )


def _usable(**further: Any) -> Q:
    return Q(pk__in=AccessToken.objects.usable().filter(**further).values("pk"))


class UsableFilter(OptionsFilter):
    title = gettext_lazy("state")
    parameter_name = "usable"
    options = {
        "yes": (gettext_lazy("usable"), _usable),
        "soon": (
            gettext_lazy("usable, and expires within 7 days"),
            lambda: Q(pk__in=AccessToken.objects.expiring().values("pk")),
        ),
        "former": (
            gettext_lazy("rotated, and the former secret still works"),
            lambda: _usable(former_ends_at__gt=timezone.now()),
        ),
        "never": (gettext_lazy("usable, and never expires"), lambda: _usable(expires_at=None)),
        "orphaned": (
            gettext_lazy("stopped because its owner is disabled"),
            lambda: Q(pk__in=AccessToken.objects.stopped().values("pk")),
        ),
        "no": (gettext_lazy("revoked, expired or stopped"), lambda: ~_usable()),
    }


@admin.register(AccessToken)
class AccessTokenAdmin(RevokingMixin):
    form = AccessTokenForm
    list_display = (
        "name", "start", "owner_shown", "scopes_shown", "toolset_shown", "state", "expires", "last_used",
        "created",
    )  # fmt: skip
    list_filter = (UsableFilter, ("toolset", RelatedDropdownFilter), ("owner", RelatedDropdownFilter))
    list_select_related = ("owner", "toolset")
    search_fields = ("name", "prefix", "purpose", "owner__username")
    noun = "token"
    buttons = ("end_former_secret", "revoke")
    change_form_outer_before_template = "identity/admin/token.html"

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # Executions refer to it as their caller.

    def get_form(
        self, request: HttpRequest, obj: AccessToken | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        made = AccessTokenForm if obj is None else ChangeForm
        form = super().get_form(request, obj, change, **{**kwargs, "form": made})
        return type(form.__name__, (form,), {"maker": request.user})

    def get_fieldsets(self, request: HttpRequest, obj: AccessToken | None = None) -> Any:
        assigns, keeps = request.user.has_perm(ASSIGN), may_keep_tokens(request.user)
        owner, never = (("owner",) if assigns else ()), (("never_expires",) if keeps else ())
        limits = (
            gettext_lazy("Limits"),
            {"fields": ("inline_wait_seconds", ("calls_per_minute", "calls_at_once"))},
        )
        if obj is not None:
            return [(None, {"fields": ("purpose", *owner)}), limits]
        ends = ("expires_at", *never)
        return [(None, {"fields": ("name", "purpose", *owner, "scopes", "toolset", *ends)}), limits]

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(never_cache(self._rotate))
        reach = path("reach/", self.admin_site.admin_view(show_reach), name="mcp_bridge_accesstoken_reach")
        return [path("<int:key>/rotate/", view, name=ROTATE), reach, *super().get_urls()]

    def _rotate(self, request: HttpRequest, key: int) -> HttpResponse:
        """A form, then the new secret, which is shown without a redirect."""
        if not self.may_press_buttons(request):
            raise PermissionDenied
        token = get_object_or_404(AccessToken.objects.select_related("toolset", "owner"), pk=key)
        form = RotationForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            try:
                text = rotate_token(
                    token,
                    overlap_hours=form.cleaned_data["overlap_hours"],
                    rotated_by=cast("User", request.user),
                    by=actor_of(request),
                )
            except ValidationError as error:
                form.add_error(None, error.messages)
            else:
                messages.success(request, f"The token {token.name} has a new secret.")
                return self._show_secret(request, token, text)
        ends = _("It still never expires.")
        if token.expires_at is not None:
            present, later = f"{token.expires_at:%Y-%m-%d}", f"{usual_expiry():%Y-%m-%d}"
            ends = _("Its new expiry is %s.") % later
            if present != later:
                told = _("Its new expiry is %(later)s, instead of %(present)s.")
                ends = told % {"later": later, "present": present}
        context = self.admin_site.each_context(request) | {
            "title": f"Rotate {token.name}",
            "opts": self.opts,
            "original": token,
            "form": form,
            "ends": ends,
        }
        return TemplateResponse(request, "identity/admin/token_rotation.html", context)

    def _show_secret(self, request: HttpRequest, token: AccessToken, text: str) -> HttpResponse:
        toolset = None if token.toolset is None else token.toolset.slug
        context = self.admin_site.each_context(request) | {
            "title": f"Token {token.name}",
            "opts": self.opts,
            "token": text,
            "configurations": configurations_of(HttpServer(token=text, toolset=toolset)),
        }
        return TemplateResponse(request, "identity/admin/token_created.html", context)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        may_continue = context.get("original") is not None
        context |= {"show_save_and_add_another": False, "show_save_and_continue": may_continue}
        return super().render_change_form(request, context, *args, **kwargs)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if change:
            obj.save(update_fields=form.changed_data)
            return
        maker = request.user if request.user.is_authenticated else None
        token, text = create_token(**form.cleaned_data, created_by=maker)
        obj.pk, obj.shown_once = token.pk, text

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Responds without a redirect, which would require storing the token."""
        super().response_add(request, obj, post_url_continue)  # For its message.
        if withheld := _describe_withheld(obj):
            messages.warning(request, withheld)
        return self._show_secret(request, obj, obj.shown_once)

    @button(
        gettext_lazy("End the former secret"),
        icon="key_off",
        confirm="End the former secret now? Clients that still use it are locked out.",
        records=True,
    )
    def end_former_secret(self, request: HttpRequest, token: AccessToken) -> None:
        if end_former_secret(token, by=actor_of(request)):
            messages.success(request, f"Only the current secret of {token.name} works now.")
        else:
            messages.warning(request, _("The former secret has already ended."))

    def get_buttons(self, request: HttpRequest, obj: AccessToken) -> list[Button]:
        shown = super().get_buttons(request, obj)
        return [one for one in shown if one.name != "end_former_secret" or obj.has_former_secret]

    def end_access(self, rows: Iterable[AccessToken], *, by: Actor) -> int:
        return revoke_tokens(rows, by=by)

    start = column(gettext_lazy("token"), "prefix", lambda prefix: f"{prefix}…", sorts=False)

    @admin.display(description=gettext_lazy("scopes"))
    def scopes_shown(self, token: AccessToken) -> SafeString:
        return rendering.one_a_line(map(rendering.chip, token.scopes))

    @admin.display(description=gettext_lazy("toolset"), ordering="toolset__slug")
    def toolset_shown(self, token: AccessToken) -> str:
        if token.toolset is None:
            return rendering.DASH
        return rendering.link(token.toolset, "catalogue_toolset_change", token.toolset.pk)

    @admin.display(description=gettext_lazy("state"))
    def state(self, token: AccessToken) -> SafeString:
        badges = [rendering.badge(token.state.label, STATE_COLOURS[token.state])]
        if token.ends_soon:
            badges.append(rendering.badge(_("expires soon"), "warning"))
        if token.state is TokenState.USABLE and token.has_former_secret:
            hint = _("The secret that begins with %s also works until then.") % token.former_prefix
            badges.append(rendering.badge(_("two secrets"), "info", title=hint))
        return rendering.side_by_side(badges)

    @admin.display(description=gettext_lazy("owner"), ordering="owner__username")
    def owner_shown(self, token: AccessToken) -> str:
        return rendering.DASH if token.owner is None else str(token.owner)

    expires = column(gettext_lazy("expires"), "expires_at", lambda at: rendering.ago(at) if at else "never")
    last_used = column(gettext_lazy("last used"), "last_used_at")
    created = column(gettext_lazy("created"), "created_at")

    def panel(self, request: HttpRequest, obj: AccessToken) -> dict[str, Any]:
        page, query = "executions_execution_changelist", f"?caller__exact={obj.caller_key}"
        calls = rendering.link_if_allowed(request, "Executions", page, query=query, otherwise="")
        rotate = Link(
            label=gettext_lazy("Rotate"), icon="autorenew", address=reverse(f"admin:{ROTATE}", args=[obj.pk])
        )
        may_rotate = not obj.revoked_at and self.may_press_buttons(request)
        rate = next(iter(obj.caller.rates), None)
        calls_allowed = f"{rate.per_minute} per minute, {rate.at_once} at once" if rate else ""
        return {
            "headline": [self.state(obj)],
            "links": [*([rotate] if may_rotate else []), *(_links_to_reach(request, obj))],
            "uses": obj.last_uses,
            "facts": [
                (_("Begins with"), obj.prefix),
                (_("Purpose"), obj.purpose or rendering.DASH),
                (_("Owner"), obj.owner or _("none: it belongs to the installation")),
                (_("Scopes"), self.scopes_shown(obj)),
                (_("Without effect"), _describe_withheld(obj)),
                (_("Toolset"), self.toolset_shown(obj) if obj.toolset else _("none: all exposed workflows")),
                (_("Address"), resource_url(None if obj.toolset is None else obj.toolset.slug)),
                (
                    _("Inline wait"),
                    f"{obj.inline_wait_seconds} s" if obj.inline_wait_seconds else _("the default"),
                ),
                (_("Calls"), calls_allowed or _("limited as for every caller")),
                (_("Created"), rendering.exactly(obj.created_at)),
                (_("Created by"), obj.created_by or rendering.DASH),
                (_("Expires"), rendering.exactly(obj.expires_at) if obj.expires_at else "never"),
                (_("Last used"), rendering.exactly(obj.last_used_at) if obj.last_used_at else "never"),
                (_("Rotated"), rendering.exactly(obj.rotated_at)),
                *_describe_former_secret(obj),
                (_("Revoked"), rendering.exactly(obj.revoked_at)),
                (_("What it called"), calls),
            ],
        }


def _links_to_reach(request: HttpRequest, token: AccessToken) -> list[Link]:
    if not may_look(request.user) or token.state is not TokenState.USABLE:
        return []
    tools = address_for(by="tool", caller=f"accesstoken-{token.pk}")
    return [Link(label=gettext_lazy("What it can call"), icon="checklist", address=tools)]


def link_to_callers(request: HttpRequest, workflow: Workflow) -> list[Link]:
    if not may_look(request.user):
        return []
    callers = address_for(by="caller", tool=workflow.tool_name)
    return [Link(label=gettext_lazy("Who can call it"), icon="groups", address=callers)]


STATE_COLOURS = {
    TokenState.USABLE: "success",
    TokenState.STOPPED: "danger",
    TokenState.EXPIRED: "warning",
    TokenState.REVOKED: "danger",
}


def _describe_withheld(token: AccessToken) -> str:
    """Describes what the token has, but its owner (or, without one, its creator) may not use now."""
    user, sentences = token.owner or token.created_by, []
    if scopes := [scope for scope in token.scopes if scope not in token.granted]:
        sentences.append(f"{user} lacks the permissions of {', '.join(scopes)}.")
    barred = current_catalogue().reservations.exclusions_for(token.caller.person).toolsets
    if token.toolset is not None and token.toolset.slug in barred:
        sentences.append(f"The toolset {token.toolset.slug} is reserved for others than {user}.")
    return " ".join(sentences)


def _describe_former_secret(token: AccessToken) -> list[tuple[str, Any]]:
    if not token.has_former_secret:
        return []
    used = token.former_used_at
    return [
        (_("Former secret"), f"{token.former_prefix}…"),
        (_("Former secret works until"), rendering.exactly(token.former_ends_at)),
        (_("Former secret last used"), rendering.exactly(used) if used else "never"),
    ]


def _write_back(token: AccessToken, wanted: dict[str, Any], by: Actor) -> None:
    if set(wanted) - set(CHANGEABLE):
        raise RevertRefused("A revoked token cannot be restored. Create a new one.")
    if "owner" in wanted or "owner_id" in wanted:
        raise RevertRefused("The owner determines what a token may do. Change the owner on the token's page.")
    write_fields(token, wanted)


reverters[AccessToken] = _write_back


def make_a_token() -> Step:
    return Step(
        title=_("Create a token for a client"),
        done=AccessToken.objects.exists(),
        url=reverse("admin:mcp_bridge_accesstoken_add"),
        permission="mcp_bridge.add_accesstoken",
    )


def token_rows() -> list[Row]:
    return [
        Row(
            key="expiring-tokens",
            number=AccessToken.objects.expiring().count(),
            words=_("Access tokens that expire within 7 days"),
            url=address("admin:mcp_bridge_accesstoken_changelist", usable="soon"),
        ),
        Row(
            key="stopped-tokens",
            number=AccessToken.objects.stopped().count(),
            words=_("Access tokens that stopped with their owner's account"),
            url=address("admin:mcp_bridge_accesstoken_changelist", usable="orphaned"),
        ),
    ]


class SignInForm(AuthenticationForm):  # type: ignore[misc]
    @property
    def company(self) -> dict[str, object] | None:
        """The company's OpenID provider as the page shows it; None without one."""
        known = settings.CATALOGUE
        if not known.login_issuer:
            return None
        return {"name": known.login_name, "passwords": known.login_passwords}

    def clean(self) -> Any:
        request, username = self.request, self.cleaned_data.get("username")
        if not (username and self.cleaned_data.get("password")):
            return super().clean()
        if not settings.CATALOGUE.login_passwords:
            raise ValidationError(_("Password login is disabled."), code="switched_off")
        address = address_of(request)
        try:
            attempt = authentication.SignInAttempt(username=username, address=address)
        except authentication.TooManyFailures as problem:
            raise ValidationError(str(problem), code="throttled") from None
        try:
            with authentication.checking_password():
                cleaned = super().clean()
        except authentication.TooBusy:
            attempt.withdraw()
            raise ValidationError(
                _("Too many people are signing in at the moment. Try again."), code="busy"
            ) from None
        except ValidationError:
            attempt.failed()
            raise
        attempt.succeeded()
        return cleaned


admin.site.login_form = SignInForm
admin.site.login_template = "identity/admin/login.html"


def callers_to_follow(user: Any) -> list[tuple[str, str]]:
    """Choices of a subscription: all tokens, or the user's own."""
    tokens = AccessToken.objects.unexpired()
    if not user.has_perm("mcp_bridge.view_accesstoken"):
        tokens = tokens.filter(owner=user)
    return [(f"token:{key}", name) for key, name in tokens.values_list("pk", "name")]
