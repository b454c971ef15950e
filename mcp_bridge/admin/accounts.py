"""Django's own accounts in the look of the other pages, and with more care.

Failed sign-ins are counted and logged. People hand out only the permissions that they have themselves, and
change only accounts and groups that have no others: whoever may edit a more powerful account could set its
password and be that account.
"""

from typing import Any

from django.contrib import admin
from django.contrib.auth import admin as auth_admin
from django.contrib.auth.models import Group, Permission, User
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from unfold.contrib.filters.admin import BooleanRadioFilter, RelatedDropdownFilter
from unfold.forms import AdminPasswordChangeForm, AuthenticationForm, UserChangeForm, UserCreationForm

from catalogue.admin.base import CatalogueAdmin
from mcp_bridge.throttling import (
    SignInAttempt,
    TooBusy,
    TooManyFailures,
    checking_password,
    client_address,
)

admin.site.unregister(User)
admin.site.unregister(Group)


class SignInForm(AuthenticationForm):  # type: ignore[misc]
    """Looks at passwords one at a time, and at none of a caller that guesses."""

    def clean(self) -> Any:
        request, username = self.request, self.cleaned_data.get("username")
        if not (username and self.cleaned_data.get("password")):
            return super().clean()
        address = client_address(request.META.get("REMOTE_ADDR"), request.headers.get("X-Forwarded-For", ""))
        try:
            attempt = SignInAttempt(username=username, address=address)
        except TooManyFailures as problem:
            raise ValidationError(str(problem), code="throttled") from None
        try:
            with checking_password():
                cleaned = super().clean()
        except TooBusy:
            attempt.withdraw()
            raise ValidationError("Too many people sign in at this moment: try again.", code="busy") from None
        except ValidationError:
            attempt.failed()
            raise
        attempt.succeeded()
        return cleaned


admin.site.login_form = SignInForm


class OwnPermissionsMixin(CatalogueAdmin):
    """Bounds what can be given away, and whose rows can be changed, by the permissions of the user."""

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
    add_fieldsets = auth_admin.UserAdmin.add_fieldsets  # Unfold's own class has none, and comes first.
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
    """Whether the user has every permission that the account or group has."""
    if other is None or user.is_superuser:
        return True
    if getattr(other, "is_superuser", False):
        return False
    return not _permissions_of(other).exclude(pk__in=_permissions_of(user)).exists()


def _permissions_of(holder: Any) -> QuerySet[Permission]:
    """Also of an account that is switched off: it can be switched on again."""
    if isinstance(holder, Group):
        return Permission.objects.filter(group=holder)
    return Permission.objects.filter(Q(user=holder) | Q(group__user=holder))


def _within(offered: QuerySet[Any], permissions: QuerySet[Permission]) -> QuerySet[Any]:
    """Those of the permissions or groups that give nothing else."""
    others = Permission.objects.exclude(pk__in=permissions.values("pk"))
    if offered.model is Group:
        return offered.exclude(permissions__in=others)
    return offered.filter(pk__in=permissions.values("pk"))


def _with_short_names(db_field: Any, field: Any) -> Any:
    """`Can add workflow`: with the names of app and model before it, lists cut what matters."""
    if field is not None and db_field.remote_field.model is Permission:
        field.queryset = field.queryset.order_by("content_type__model", "pk")
        field.label_from_instance = lambda permission: permission.name
    return field
