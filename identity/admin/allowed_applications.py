from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest
from django.utils.text import format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from oauth2_provider import admin as toolkit
from oauth2_provider.models import AccessToken, Application, Grant, IDToken, RefreshToken
from unfold.contrib.filters.admin import RelatedDropdownFilter
from unfold.decorators import display

from catalogue.admin import rendering
from catalogue.admin.base import OptionsFilter, PanelOnlyMixin, column
from catalogue.history import Actor, record_change
from catalogue.long_lists import SEARCHED
from identity.admin.revoking import RevokingMixin
from identity.models import AllowedApplication
from identity.oauth import grants

assert toolkit  # It registers pages that create and change tokens; they are removed.
for _model in (AccessToken, Application, Grant, IDToken, RefreshToken):
    admin.site.unregister(_model)


class RevokedFilter(OptionsFilter):
    title = gettext_lazy("state")
    parameter_name = "usable"
    options = {
        "yes": (gettext_lazy("allowed"), Q(revoked_at=None, user__is_active=True)),
        "no": (gettext_lazy("revoked, or its user is disabled"), ~Q(revoked_at=None, user__is_active=True)),
    }


STATES = {"allowed": "success", "user disabled": "warning", "revoked": "danger"}


@admin.register(AllowedApplication)
class AllowedApplicationAdmin(PanelOnlyMixin, RevokingMixin):
    list_display = ("name", "user", "state", "scopes_shown", "toolset", "allowed", "last_used")
    list_filter = (RevokedFilter, ("user", RelatedDropdownFilter))
    list_select_related = ("user",)
    newest_by = "allowed_at"
    search_fields = ("name", "user__username")
    search_help_text = format_lazy(
        gettext_lazy("Names of applications and users, in the newest {}"),
        f"{SEARCHED:,}",
    )
    noun = "application"
    note = "The access of {} ends immediately."
    change_form_outer_before_template = "catalogue/admin/panel.html"

    def end_access(self, rows: Iterable[AllowedApplication], *, by: Actor) -> int:
        allowed = [one for one in rows if one.revoked_at is None]
        for one in allowed:
            grants.revoke(one)
        record_change(by, allowed, "Revoked.")
        return len(allowed)

    scopes_shown = column(gettext_lazy("scopes"), "scopes", ", ".join, sorts=False)

    @display(description=gettext_lazy("state"), label=STATES)  # type: ignore[untyped-decorator]
    def state(self, allowed: AllowedApplication) -> str:
        if allowed.revoked_at is not None:
            return "revoked"
        return "allowed" if allowed.user.is_active else "user disabled"

    allowed = column(gettext_lazy("allowed"), "allowed_at")
    last_used = column(gettext_lazy("last used"), "last_used_at")

    def panel(self, request: HttpRequest, obj: AllowedApplication) -> dict[str, Any]:
        return {
            "headline": [self.state(obj)],
            "facts": [
                (_("User"), obj.user),
                (_("Scopes"), self.scopes_shown(obj)),
                (_("Toolset"), obj.toolset or "none: all exposed workflows"),
                (_("Redirects to"), ", ".join(obj.application.redirect_uris.split())),
                (_("Registered"), obj.application.get_registration_source_display()),
                (_("Client id"), obj.application.client_id),
                (_("Allowed"), rendering.exactly(obj.allowed_at)),
                (_("Last used"), rendering.exactly(obj.last_used_at) if obj.last_used_at else "never"),
                (_("Revoked"), rendering.exactly(obj.revoked_at)),
            ],
        }
