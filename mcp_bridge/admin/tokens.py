from typing import TYPE_CHECKING, Any, ClassVar, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.auth import admin as auth_admin
from django.contrib.auth.models import Group, Permission, User
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import BooleanRadioFilter, DropdownFilter, RelatedDropdownFilter
from unfold.forms import AdminPasswordChangeForm, AuthenticationForm, UserChangeForm, UserCreationForm
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

from catalogue.admin import rendering
from catalogue.admin.base import Button, ButtonsMixin, CatalogueAdmin, CatalogueForm, button
from catalogue.history import Actor, actor_of, record_change
from catalogue.permissions import grantable_scopes, tell_missing
from catalogue.reverting import RevertRefused, reverters
from catalogue.scopes import Scope
from executions.admin.filters import caller_pages
from executions.dashboard import Step, addresses, further_steps
from mcp_bridge import authentication
from mcp_bridge.client_configuration import HttpServer, configurations_of
from mcp_bridge.models import AccessToken, default_scopes
from mcp_bridge.tokens import create_token, resource_url

if TYPE_CHECKING:
    AccessTokenModelForm = CatalogueForm
else:
    AccessTokenModelForm = forms.ModelForm

FIELDS = ("name", "scopes", "toolset", "inline_wait_seconds", "expires_at")
CHANGEABLE = ("inline_wait_seconds",)


class AccessTokenForm(AccessTokenModelForm):
    maker: Any = None  # The current user, who can grant only scopes of their own
    scopes = forms.MultipleChoiceField(widget=UnfoldAdminCheckboxSelectMultipleWidget())

    class Meta:
        model = AccessToken
        fields = FIELDS
        help_texts: ClassVar[dict[str, str]] = {"expires_at": "In UTC. Empty: it never expires."}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        granted = grantable_scopes(self.maker)
        scopes = cast("forms.MultipleChoiceField", self.fields["scopes"])
        scopes.choices = [(scope.value, f"{scope.value}: {scope.label}") for scope in granted]
        scopes.initial = [scope for scope in default_scopes() if scope in granted]
        if missing := [scope.value for scope in Scope if scope not in granted]:
            scopes.help_text = tell_missing(self.maker, missing)

    def clean_expires_at(self) -> Any:
        expires_at = self.cleaned_data["expires_at"]
        if expires_at is not None and expires_at <= timezone.now():
            raise ValidationError("This time has passed already.")
        return expires_at


class InlineWaitForm(AccessTokenModelForm):
    class Meta:
        model = AccessToken
        fields = CHANGEABLE


class UsableFilter(DropdownFilter):  # type: ignore[misc]
    title = "state"
    parameter_name = "usable"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("yes", "usable"),
            ("orphaned", "usable, though its maker is disabled"),
            ("no", "revoked or expired"),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[AccessToken]) -> QuerySet[AccessToken]:
        usable = AccessToken.objects.usable()
        if self.value() == "yes":
            return queryset & usable
        if self.value() == "orphaned":
            return queryset & usable.filter(created_by__is_active=False)
        return queryset.exclude(pk__in=usable.values("pk")) if self.value() == "no" else queryset


@admin.register(AccessToken)
class AccessTokenAdmin(ButtonsMixin):
    form = AccessTokenForm
    list_display = (
        "name", "start", "scopes_shown", "toolset_shown", "state", "expires", "last_used", "created",
        "created_by",
    )  # fmt: skip
    list_filter = (UsableFilter, ("toolset", RelatedDropdownFilter))
    list_select_related = ("created_by", "toolset")
    search_fields = ("name", "prefix")
    actions = ("revoke_selected",)
    buttons = ("revoke",)
    change_form_outer_before_template = "mcp_bridge/admin/token.html"

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # Executions refer to it as their caller.

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return self.may_press_buttons(request)

    def get_form(
        self, request: HttpRequest, obj: AccessToken | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        if obj is not None:
            return super().get_form(request, obj, change, form=InlineWaitForm, **kwargs)
        form = super().get_form(request, obj, change, **kwargs)
        return type(form.__name__, (form,), {"maker": request.user})

    def get_fieldsets(self, request: HttpRequest, obj: AccessToken | None = None) -> Any:
        return [(None, {"fields": CHANGEABLE if obj else FIELDS})]

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
        """Without a redirect, for which the token would have to be stored."""
        super().response_add(request, obj, post_url_continue)  # For its message.
        context = self.admin_site.each_context(request) | {
            "title": f"Token {obj.name}",
            "opts": self.opts,
            "token": obj.shown_once,
            "configurations": configurations_of(HttpServer(token=obj.shown_once, toolset=obj.caller.toolset)),
        }
        return TemplateResponse(request, "mcp_bridge/admin/token_created.html", context)

    @button(
        "Revoke", icon="block", variant="danger", confirm="Revoke this token? Its clients are locked out."
    )
    def revoke(self, request: HttpRequest, token: AccessToken) -> None:
        token.revoke()
        messages.success(request, f"Revoked: {token.name}.")

    def get_buttons(self, request: HttpRequest, obj: AccessToken) -> list[Button]:
        return [] if obj.revoked_at else super().get_buttons(request, obj)

    @admin.action(description="Revoke", permissions=["revoke"])
    def revoke_selected(self, request: HttpRequest, queryset: QuerySet[AccessToken]) -> None:
        tokens = list(queryset.filter(revoked_at=None))
        for token in tokens:
            token.revoke()
        record_change(actor_of(request), tokens, "Revoked.")
        messages.success(request, f"Revoked: {len(tokens)}.")

    @admin.display(description="token")
    def start(self, token: AccessToken) -> str:
        return f"{token.prefix}…"

    @admin.display(description="scopes")
    def scopes_shown(self, token: AccessToken) -> SafeString:
        return rendering.one_a_line(map(rendering.chip, token.scopes))

    @admin.display(description="toolset", ordering="toolset__slug")
    def toolset_shown(self, token: AccessToken) -> str:
        if token.toolset is None:
            return rendering.DASH
        return rendering.link(token.toolset, "catalogue_toolset_change", token.toolset.pk)

    @admin.display(description="state")
    def state(self, token: AccessToken) -> SafeString:
        if token.revoked_at is not None:
            return rendering.badge("revoked", "danger")
        if token.expires_at is not None and token.expires_at <= timezone.now():
            return rendering.badge("expired", "warning")
        usable = rendering.badge("usable", "success")
        if token.created_by is None or token.created_by.is_active:
            return usable
        hint = f"{token.created_by} made it, and cannot sign in any more. It works until it is revoked."
        return rendering.side_by_side([usable, rendering.badge("maker disabled", "warning", title=hint)])

    @admin.display(description="expires", ordering="expires_at")
    def expires(self, token: AccessToken) -> str:
        return rendering.ago(token.expires_at)

    @admin.display(description="last used", ordering="last_used_at")
    def last_used(self, token: AccessToken) -> str:
        return rendering.ago(token.last_used_at)

    @admin.display(description="created", ordering="created_at")
    def created(self, token: AccessToken) -> str:
        return rendering.ago(token.created_at)

    def panel(self, request: HttpRequest, obj: AccessToken) -> dict[str, Any]:
        page, query = "executions_execution_changelist", f"?caller__exact={obj.caller.key}"
        calls = rendering.link_if_allowed(request, "Executions", page, query=query, otherwise="")
        return {
            "headline": [self.state(obj)],
            "facts": [
                ("Begins with", obj.prefix),
                ("Scopes", self.scopes_shown(obj)),
                ("Toolset", self.toolset_shown(obj) if obj.toolset else "none: whatever is exposed"),
                ("Address", resource_url(obj.caller.toolset)),
                ("Inline wait", _describe_wait(obj)),
                ("Created", rendering.exactly(obj.created_at)),
                ("Created by", obj.created_by or rendering.DASH),
                ("Expires", rendering.exactly(obj.expires_at) if obj.expires_at else "never"),
                ("Last used", rendering.exactly(obj.last_used_at) if obj.last_used_at else "never"),
                ("Revoked", rendering.exactly(obj.revoked_at)),
                ("What it called", calls),
            ],
        }


def _describe_wait(token: AccessToken) -> str:
    if token.inline_wait_seconds is not None:
        return f"{token.inline_wait_seconds} s"
    if (learned := token.learned_wait_seconds) is None:
        return "the usual"
    return f"{learned} s, since a client of it gives calls up after {token.patience_seconds} s"


def _write_back(token: AccessToken, wanted: dict[str, Any], by: Actor) -> None:
    if set(wanted) - set(CHANGEABLE):
        raise RevertRefused("A token that was revoked stays revoked: make another.")
    token.inline_wait_seconds = wanted["inline_wait_seconds"]
    token.full_clean()
    token.save(update_fields=CHANGEABLE)


reverters[AccessToken] = _write_back
caller_pages["token"] = "mcp_bridge_accesstoken_change"  # noqa: S105 - the name of a page


def _make_a_token() -> Step:
    return Step(
        title="Make a token for a client",
        done=AccessToken.objects.exists(),
        url=reverse("admin:mcp_bridge_accesstoken_add"),
        permission="mcp_bridge.add_accesstoken",
    )


further_steps.append(_make_a_token)
addresses.append(resource_url)


admin.site.unregister(User)
admin.site.unregister(Group)


class SignInForm(AuthenticationForm):  # type: ignore[misc]
    def clean(self) -> Any:
        request, username = self.request, self.cleaned_data.get("username")
        if not (username and self.cleaned_data.get("password")):
            return super().clean()
        address = authentication.client_address(
            request.META.get("REMOTE_ADDR"), request.headers.get("X-Forwarded-For", "")
        )
        try:
            attempt = authentication.SignInAttempt(username=username, address=address)
        except authentication.TooManyFailures as problem:
            raise ValidationError(str(problem), code="throttled") from None
        try:
            with authentication.checking_password():
                cleaned = super().clean()
        except authentication.TooBusy:
            attempt.withdraw()
            raise ValidationError("Too many people sign in at this moment: try again.", code="busy") from None
        except ValidationError:
            attempt.failed()
            raise
        attempt.succeeded()
        return cleaned


admin.site.login_form = SignInForm


class OwnPermissionsMixin(CatalogueAdmin):
    """Users can grant only their own permissions, and change only accounts that have no others."""

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_change_permission(request, obj) and _covers(request.user, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_delete_permission(request, obj) and _covers(request.user, obj)

    def formfield_for_manytomany(self, db_field: Any, request: Any = None, **kwargs: Any) -> Any:
        field = super().formfield_for_manytomany(db_field, request=request, **kwargs)
        if field is not None and field.queryset is not None and not request.user.is_superuser:
            field.queryset = _within(field.queryset, _permissions_of(request.user))
        return _with_short_names(db_field, field)


@admin.register(User)
class UserAdmin(OwnPermissionsMixin, auth_admin.UserAdmin):  # type: ignore[type-arg]
    form = UserChangeForm
    add_form = UserCreationForm
    add_fieldsets = auth_admin.UserAdmin.add_fieldsets  # Missing in Unfold's class.
    change_password_form = AdminPasswordChangeForm
    list_filter = (
        ("is_active", BooleanRadioFilter), ("is_staff", BooleanRadioFilter),
        ("is_superuser", BooleanRadioFilter), ("groups", RelatedDropdownFilter),
    )  # fmt: skip

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        readonly = super().get_readonly_fields(request, obj)
        return readonly if request.user.is_superuser else (*readonly, "is_superuser")


@admin.register(Group)
class GroupAdmin(OwnPermissionsMixin, auth_admin.GroupAdmin):
    pass


def _covers(user: Any, other: User | Group | None) -> bool:
    if other is None or user.is_superuser:
        return True
    if getattr(other, "is_superuser", False):
        return False
    return not _permissions_of(other).exclude(pk__in=_permissions_of(user)).exists()


def _permissions_of(holder: Any) -> QuerySet[Permission]:
    """Also of disabled accounts, which can be enabled again."""
    if isinstance(holder, Group):
        return Permission.objects.filter(group=holder)
    return Permission.objects.filter(Q(user=holder) | Q(group__user=holder))


def _within(offered: QuerySet[Any], permissions: QuerySet[Permission]) -> QuerySet[Any]:
    """Permissions among these, or groups without others."""
    others = Permission.objects.exclude(pk__in=permissions.values("pk"))
    if offered.model is Group:
        return offered.exclude(permissions__in=others)
    return offered.filter(pk__in=permissions.values("pk"))


def _with_short_names(db_field: Any, field: Any) -> Any:
    """`Can add workflow`: lists would cut it behind the names of app and model."""
    if field is not None and db_field.remote_field.model is Permission:
        field.queryset = field.queryset.order_by("content_type__model", "pk")
        field.label_from_instance = lambda permission: permission.name
    return field
