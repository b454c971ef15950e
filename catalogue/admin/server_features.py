from dataclasses import replace
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.contrib.filters.admin import ChoicesDropdownFilter, RelatedDropdownFilter
from unfold.widgets import UnfoldAdminTextareaWidget

from catalogue.actions.features import CHANGEABLE, accept_change, switch_features
from catalogue.admin import rendering as html
from catalogue.admin.base import (
    Button,
    ButtonsMixin,
    CatalogueForm,
    FixedRowsMixin,
    OptionsFilter,
    button,
    change_if_sure,
    column,
)
from catalogue.features import describe
from catalogue.history import actor_of
from catalogue.models import ServerFeature

OFFER = "offer"
STATES = {
    "enabled": (gettext_lazy("enabled"), "success"),
    "hidden": (gettext_lazy("hidden"), ""),
    "gone": (gettext_lazy("gone upstream"), "danger"),
    "off": (gettext_lazy("source switched off"), ""),
}
SHOWN_DESCRIPTION = 80
NOUNS = ("prompt or resource", "prompts and resources")
HEADERS = ("", gettext_lazy("Served now"), gettext_lazy("Current on the server"))


def state_of(feature: ServerFeature) -> str:
    if feature.missing_since is not None:
        return "gone"
    if feature.enabled and not feature.source.enabled:
        return "off"
    return "enabled" if feature.enabled else "hidden"


class StateFilter(OptionsFilter):
    title = gettext_lazy("state")
    parameter_name = "state"
    options = {
        "enabled": (gettext_lazy("enabled"), Q(enabled=True, missing_since=None)),
        "hidden": (gettext_lazy("hidden"), Q(enabled=False, missing_since=None)),
        "gone": (gettext_lazy("gone upstream"), ~Q(missing_since=None)),
        "changed": (gettext_lazy("change to review"), ~Q(offered=None)),
    }


class ServerFeatureForm(CatalogueForm):
    class Meta:
        model = ServerFeature
        fields = CHANGEABLE


@admin.register(ServerFeature)
class ServerFeatureAdmin(FixedRowsMixin, ButtonsMixin):
    form = ServerFeatureForm
    list_display = ("name", "kind", "state", "described", "source", "changed")
    list_filter = (
        ("source", RelatedDropdownFilter),
        ("kind", ChoicesDropdownFilter),
        StateFilter,
    )
    list_select_related = ("source",)
    list_per_page = 50
    search_fields = ("served_as", "upstream_id", "definition", "title_override", "description_override")
    actions = ("enable_selected", "disable_selected")
    buttons = ("accept",)
    fieldsets = (
        (None, {"fields": ("enabled", "served_as")}),
        (gettext_lazy("What clients see"), {"fields": ("title_override", "description_override")}),
    )
    change_form_outer_before_template = "catalogue/admin/panel.html"
    change_form_outer_after_template = "catalogue/admin/server_feature_definition.html"

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "description_override":
            kwargs["widget"] = UnfoldAdminTextareaWidget(attrs={"rows": 4})
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def save_model(self, request: HttpRequest, obj: ServerFeature, form: Any, change: bool) -> None:
        """A listing may have changed the other columns meanwhile."""
        if form.changed_data:
            obj.save(update_fields=form.changed_data)

    name = column(gettext_lazy("served as"), "served_as", html.wrapped)
    changed = column(gettext_lazy("changed"), "changed_at")

    @admin.display(description=gettext_lazy("state"))
    def state(self, feature: ServerFeature) -> SafeString:
        badges = [html.badge(*STATES[state_of(feature)])]
        if feature.offered is not None:
            badges.append(html.badge("change to review", "warning"))
        return html.side_by_side(badges)

    @admin.display(description=gettext_lazy("description"))
    def described(self, feature: ServerFeature) -> str:
        return html.shortened(feature.description or feature.title, SHOWN_DESCRIPTION)

    @admin.action(description=gettext_lazy("Enable"), permissions=["change"])
    def enable_selected(self, request: HttpRequest, queryset: QuerySet[ServerFeature]) -> HttpResponse | None:
        done = "Enabled: {:,}. Clients that may use their sources can see them."
        told = "Clients that may use their sources can see {}."
        return self._switch(request, queryset, done, told, enabled=True)

    @admin.action(description=gettext_lazy("Disable"), permissions=["change"])
    def disable_selected(
        self, request: HttpRequest, queryset: QuerySet[ServerFeature]
    ) -> HttpResponse | None:
        return self._switch(request, queryset, "Disabled: {:,}.", "Clients no longer see {}.", enabled=False)

    def _switch(
        self, request: HttpRequest, queryset: QuerySet[ServerFeature], done: str, told: str, *, enabled: bool
    ) -> HttpResponse | None:
        affected = queryset.filter(enabled=not enabled)
        switch = partial(switch_features, queryset, enabled=enabled, by=actor_of(request))
        title = f"{'Enable' if enabled else 'Disable'} prompts and resources"
        return change_if_sure(self, request, affected, title, switch, done=done, note=told, noun=NOUNS)

    def get_buttons(self, request: HttpRequest, obj: ServerFeature) -> list[Button]:
        if obj.offered is None:
            return []
        shown = ((OFFER, obj.offer_hash),)
        return [replace(one, values=shown) for one in super().get_buttons(request, obj)]

    @button(gettext_lazy("Accept the change"), icon="check", variant="primary", records=True)
    def accept(self, request: HttpRequest, feature: ServerFeature) -> None:
        offer = request.POST.get(OFFER, "")
        if accept_change(feature, offer=offer, by=actor_of(request)):
            messages.success(request, _("Accepted. Clients get the server's current version."))
        else:
            messages.warning(
                request, _("Nothing was accepted: the server has changed it again. Review it again.")
            )

    def panel(self, request: HttpRequest, obj: ServerFeature) -> dict[str, Any]:
        now = dict(describe(obj, obj.definition))
        offered = dict(describe(obj, obj.offered or {}))
        rows = [
            (label, html.paragraphs(text), *([html.paragraphs(offered[label])] if obj.offered else []))
            for label, text in now.items()
        ]
        if obj.is_app:
            pages = [obj.definition, *([obj.offered] if obj.offered else [])]
            rows.append((_("HTML, which clients run"), *map(html.code_folded, map(obj.html_of, pages))))
        source = html.link_if_allowed(request, obj.source, "catalogue_source_change", obj.source_id)
        gone = [(_("Missing since"), html.exactly(obj.missing_since))] if obj.missing_since else []
        return {
            "headline": [self.state(obj), _("Clients get the accepted version.") if obj.offered else ""],
            "facts": [
                (_("Source"), source),
                (_("Kind"), obj.get_kind_display()),
                (_("The server's name or address"), html.chip(obj.upstream_id)),
                (_("First seen"), html.exactly(obj.first_seen_at)),
                (_("Changed"), html.exactly(obj.changed_at)),
                *gone,
            ],
            "definition": html.table([*map(str, HEADERS if obj.offered else HEADERS[:2])], rows),
        }
