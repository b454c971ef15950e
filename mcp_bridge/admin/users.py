"""What this room adds to the pages of accounts; imported after the module that registers them."""

from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

from catalogue.admin import users
from catalogue.admin.base import Button, ButtonsMixin, button
from catalogue.history import actor_of, record_change
from mcp_bridge.models import ExternalIdentity, SecondFactor

admin.site.unregister(User)


@admin.register(User)
class UserAdmin(ButtonsMixin, users.UserAdmin):
    buttons = ("reset_second_factor", "unlink_company_login")
    change_form_outer_before_template = "mcp_bridge/admin/user.html"

    @button(
        "Reset second factor",
        icon="phonelink_erase",
        variant="danger",
        confirm="Remove the second factor of this account? Its password alone opens it then.",
    )
    def reset_second_factor(self, request: HttpRequest, user: User) -> None:
        if not self.has_change_permission(request, user):
            raise PermissionDenied
        SecondFactor.objects.filter(user=user).delete()
        messages.success(request, f"{user.get_username()} has no second factor any more.")

    @button(
        "Unlink company login",
        icon="link_off",
        variant="danger",
        records=True,
        confirm="Remove the link between this account and its person at the company's login? The next login "
        "there finds its account anew. To keep a person out, disable the account instead.",
    )
    def unlink_company_login(self, request: HttpRequest, user: User) -> None:
        if not self.has_change_permission(request, user):
            raise PermissionDenied
        links = ExternalIdentity.objects.filter(user=user)
        named = ", ".join(map(str, links))
        links.delete()
        record_change(actor_of(request), [user], f"Unlinked from {named}.")
        messages.success(request, f"{user.get_username()} is not linked to {named} any more.")

    @admin.display(description="Company logins")
    def company_logins(self, user: User) -> str:
        shown = (
            f"{one}, last used {one.last_login_at:%Y-%m-%d %H:%M} UTC"
            if one.last_login_at
            else f"{one}, never used"
            for one in user.identities.all()
        )
        return "; ".join(shown)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*super().get_readonly_fields(request, obj), "company_logins")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        shown = super().get_fieldsets(request, obj)
        if obj is None or not obj.identities.exists():
            return shown
        return (*shown, ("Company login", {"fields": ("company_logins",)}))

    def get_buttons(self, request: HttpRequest, obj: User) -> list[Button]:
        if not self.has_change_permission(request, obj):
            return []
        present = {
            "reset_second_factor": SecondFactor.objects.filter(user=obj).exists(),
            "unlink_company_login": obj.identities.exists(),
        }
        return [button for button in super().get_buttons(request, obj) if present[button.name]]
