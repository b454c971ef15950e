from typing import Any

from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from oauth2_provider import admin as toolkit
from oauth2_provider.models import AccessToken, Application, Grant, IDToken, RefreshToken
from unfold.contrib.filters.admin import RelatedDropdownFilter

from catalogue.admin import rendering
from catalogue.admin.base import (
    Button,
    ButtonsMixin,
    FixedRowsMixin,
    OptionsFilter,
    button,
    change_if_sure,
    column,
)
from catalogue.history import actor_of, record_change
from catalogue.long_lists import SEARCHED
from identity.models import AllowedApplication
from identity.oauth import grants

assert toolkit  # It registers pages that create and change tokens; they are removed.
for _model in (AccessToken, Application, Grant, IDToken, RefreshToken):
    admin.site.unregister(_model)


class RevokedFilter(OptionsFilter):
    title = "state"
    parameter_name = "usable"
    options = {
        "yes": ("allowed", Q(revoked_at=None, user__is_active=True)),
        "no": ("revoked, or its user is disabled", ~Q(revoked_at=None, user__is_active=True)),
    }


@admin.register(AllowedApplication)
class AllowedApplicationAdmin(FixedRowsMixin, ButtonsMixin):
    list_display = ("name", "user", "state", "scopes_shown", "toolset", "allowed", "last_used")
    list_filter = (RevokedFilter, ("user", RelatedDropdownFilter))
    list_select_related = ("user",)
    newest_by = "allowed_at"
    search_fields = ("name", "user__username")
    search_help_text = f"Names of applications and users, in the newest {SEARCHED:,}"
    actions = ("revoke_selected",)
    buttons = ("revoke",)
    change_form_outer_before_template = "catalogue/admin/panel.html"

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # There is nothing to edit, but the button needs the permission.

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return self.may_press_buttons(request)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return []

    def get_buttons(self, request: HttpRequest, obj: AllowedApplication) -> list[Button]:
        return [] if obj.revoked_at else super().get_buttons(request, obj)

    @button(
        "Revoke",
        icon="block",
        variant="danger",
        confirm="Revoke this application's access? It is locked out immediately.",
    )
    def revoke(self, request: HttpRequest, allowed: AllowedApplication) -> None:
        grants.revoke(allowed)
        messages.success(request, f"Revoked: {allowed}.")

    @admin.action(description="Revoke", permissions=["revoke"])
    def revoke_selected(
        self, request: HttpRequest, queryset: QuerySet[AllowedApplication]
    ) -> HttpResponse | None:
        chosen = queryset.filter(revoked_at=None)

        def revoke() -> int:
            applications = list(chosen)
            for allowed in applications:
                grants.revoke(allowed)
            record_change(actor_of(request), applications, "Revoked.")
            return len(applications)

        said = {"done": "Revoked: {:,}.", "note": "The access of {} ends immediately."}
        return change_if_sure(self, request, chosen, "Revoke access", revoke, **said, noun=("application",))

    @admin.display(description="scopes")
    def scopes_shown(self, allowed: AllowedApplication) -> SafeString:
        return rendering.one_a_line(map(rendering.chip, allowed.scopes))

    @admin.display(description="state")
    def state(self, allowed: AllowedApplication) -> SafeString:
        if allowed.revoked_at is not None:
            return rendering.badge("revoked", "danger")
        if not allowed.user.is_active:
            return rendering.badge("user disabled", "warning")
        return rendering.badge("allowed", "success")

    allowed = column("allowed", "allowed_at")
    last_used = column("last used", "last_used_at")

    def panel(self, request: HttpRequest, obj: AllowedApplication) -> dict[str, Any]:
        return {
            "headline": [self.state(obj)],
            "facts": [
                ("User", obj.user),
                ("Scopes", self.scopes_shown(obj)),
                ("Toolset", obj.toolset or "none: all exposed workflows"),
                ("Redirects to", rendering.one_a_line(obj.application.redirect_uris.split())),
                ("Registered", obj.application.get_registration_source_display()),
                ("Client id", obj.application.client_id),
                ("Allowed", rendering.exactly(obj.allowed_at)),
                ("Last used", rendering.exactly(obj.last_used_at) if obj.last_used_at else "never"),
                ("Revoked", rendering.exactly(obj.revoked_at)),
            ],
        }
