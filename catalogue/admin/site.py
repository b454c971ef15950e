"""Pages beyond the lists: the search over all of them, 403, 404, 500 and 503, and the product's settings."""

import sys
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.db.models import Case, When
from django.http import HttpRequest, HttpResponse, HttpResponseNotFound, HttpResponseRedirect, JsonResponse
from django.template.response import SimpleTemplateResponse, TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views import defaults
from unfold import widgets
from unfold.dataclasses import SearchResult

from catalogue import product_settings
from catalogue.admin.base import CatalogueAdmin, CatalogueForm, FixedRowsMixin
from catalogue.admin.imports import AS_CODE, ConfigurationPage, download_export
from catalogue.admin.marks import marked
from catalogue.admin.rendering import rendered
from catalogue.compat import search_without_cache
from catalogue.database_problems import TAKEN, count_outage, describe_outage, is_taken, is_unusable
from catalogue.long_lists import search_problem
from catalogue.models import ProductSettings, Source, Toolset, Workflow
from telemetry.traces import request_id

FOUND = 20
search_without_cache()
# By Ctrl-K, with symbols
SEARCHED: dict[Any, tuple[str, str]] = {  # And the columns of their names
    Workflow: ("account_tree", "tool_name"),
    Source: ("hub", "name"),
    Toolset: ("widgets", "slug"),
}


def search_everything(request: HttpRequest, term: str) -> list[SearchResult]:
    """What has the term as its name comes first, then what begins with it, then what has it in its name."""
    results: list[SearchResult] = []
    if search_problem(term):
        return results
    for model, (icon, column) in SEARCHED.items():
        pages = admin.site.get_model_admin(model)
        if not pages.has_view_permission(request):
            continue
        rows = pages.get_queryset(request)
        if model is Workflow:
            rows = rows.for_lists().select_related("source")  # type: ignore[attr-defined]
        rank = Case(
            When(**{f"{column}__iexact": term}, then=0),
            When(**{f"{column}__istartswith": term}, then=1),
            default=2,
        )
        named = rows.filter(**{f"{column}__icontains": term}).order_by(rank, column)
        keys = list(named.values_list("pk", flat=True)[:FOUND])
        # Names are searched in a fraction of the time that texts take.
        if len(keys) < FOUND:
            others, _has_duplicates = pages.get_search_results(request, rows, term)
            others = others.exclude(pk__in=keys).order_by(column)
            keys += others.values_list("pk", flat=True)[: FOUND - len(keys)]
        found = rows.in_bulk(keys)
        for obj in [found[key] for key in keys if key in found]:
            link = reverse(f"admin:catalogue_{model._meta.model_name}_change", args=[obj.pk])
            results.append(SearchResult(title=str(obj), description=_describe(obj), link=link, icon=icon))
    return sorted(results, key=lambda one: _distance(one.title, term))


def _distance(name: str, term: str) -> int:
    name, term = name.lower(), term.lower()
    if name == term:
        return 0
    return 1 if name.startswith(term) else 2 if term in name else 3


def _describe(obj: Any) -> str:
    if not isinstance(obj, Workflow):
        return f"{obj._meta.verbose_name}, {_('on') if obj.enabled else _('off')}"
    state = _("enabled") if obj.enabled else _("hidden")
    return f"{_('workflow')}, {state}, {obj.source}" + (f": {obj.title}" if obj.title != str(obj) else "")


def page_refused(request: HttpRequest, exception: Exception) -> HttpResponse:
    if not _has_logged_in(request):
        return defaults.permission_denied(request, exception)
    message = str(exception) or "Your account has no permission for this. An administrator can grant it."
    return _say(request, "Not allowed", message, status=403)


def page_missing(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Plain text outside of the admin."""
    if not (request.path.startswith(reverse("admin:index")) and _has_logged_in(request)):
        return HttpResponseNotFound("There is no page at this address.\n", content_type="text/plain")
    return _say(request, "Not found", "This page does not exist, or its object was deleted.", status=404)


def page_failed(request: HttpRequest) -> HttpResponse:
    """500, or 503 without a database: a page for browsers, JSON for all others. Makes no queries."""
    if is_unusable(error := sys.exception()):
        count_outage(error)
        title, message, status = "No database", describe_outage(error, method=request.method), 503
    elif is_taken(error):
        title, message, status = "Already taken", TAKEN, 409
    else:
        title, message, status = "Internal error", "The server's log has the details.", 500
    if (identity := request_id.get()) and status == 500:
        message = f"{message} They are under the request id {identity}."
    if request.get_preferred_type(["application/json", "text/html"]) == "text/html":
        # Neither the user nor the session, which has the messages, can be looked up.
        request.user = AnonymousUser()
        context = admin.site.each_context(request) | {"title": title, "told": message}
        page = SimpleTemplateResponse("catalogue/admin/failed.html", context, status=status)
        response: HttpResponse = page.render()
    else:
        response = JsonResponse({"detail": f"{title}. {message}"}, status=status)
    if status == 503:
        response["Retry-After"] = "5"
    return response


def _has_logged_in(request: HttpRequest) -> bool:
    user = getattr(request, "user", None)
    return user is not None and admin.site.has_permission(request)


def _say(request: HttpRequest, title: str, message: str, *, status: int) -> HttpResponse:
    context = admin.site.each_context(request) | {"title": title, "told": message}
    return TemplateResponse(request, "catalogue/admin/not_shown.html", context, status=status).render()


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return _("on") if value else _("off")
    return f"{value:,}" if isinstance(value, int) else f"{value:,.15g}"


def _label(setting: product_settings.LiveSetting) -> str:
    return _(capfirst(setting.name.replace("_", " ")))


def _help_text(setting: product_settings.LiveSetting) -> str:
    given = _("%s, from the environment") if setting.is_given else _("%s, from the defaults")
    now = _("Changed here; empty: %s") if setting.origin == product_settings.Origin.HERE else _("Now %s")
    told = now % (given % _shown(setting.default))
    return f"{_(setting.description.replace('`', ''))} {told} ({setting.variable})."


def _field(setting: product_settings.LiveSetting) -> forms.Field:
    common: dict[str, Any] = {"required": False, "label": _label(setting), "help_text": _help_text(setting)}
    if setting.type is bool:
        unchanged = _("not changed: %s") % _shown(setting.default)
        choices = [("", unchanged), ("true", _("on")), ("false", _("off"))]
        return forms.TypedChoiceField(
            choices=choices,
            coerce=lambda chosen: chosen == "true",
            empty_value=None,
            widget=widgets.UnfoldAdminSelectWidget,
            **common,
        )
    hint = {"placeholder": f"{setting.default:.15g}"}
    if setting.type is int:
        return forms.IntegerField(widget=widgets.UnfoldAdminIntegerFieldWidget(attrs=hint), **common)
    return forms.FloatField(widget=widgets.UnfoldAdminDecimalFieldWidget(attrs=hint), **common)


class SettingsForm(CatalogueForm):
    """A field for each setting; empty ones restore the environment's value."""

    class Meta:
        model = ProductSettings
        fields: tuple[str, ...] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        changed = product_settings.valid_overrides(self.instance.overrides)
        for name, setting in product_settings.live_settings().items():
            self.fields[name] = _field(setting)
            if name in changed:
                value = changed[name]
                self.initial[name] = str(value).lower() if isinstance(value, bool) else value

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        for name, setting in product_settings.live_settings().items():
            value = cleaned.get(name)
            if value is not None and (problem := setting.problem_with(value)):
                self.add_error(name, problem)
        return cleaned


@admin.register(ProductSettings)
class ProductSettingsAdmin(FixedRowsMixin, CatalogueAdmin):
    form = SettingsForm
    readonly_fields = ("settings_shown",)

    @admin.display(description=gettext_lazy("settings"))
    def settings_shown(self, row: ProductSettings) -> SafeString:
        shown = [
            (_label(setting), _shown(setting.value), _help_text(setting))
            for setting in product_settings.live_settings().values()
        ]
        return rendered("parts/settings_shown", settings=shown)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        row = product_settings.settings_row()
        return HttpResponseRedirect(reverse("admin:catalogue_productsettings_change", args=[row.pk]))

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Creates the row when the page is first opened."""
        product_settings.settings_row()
        return super().get_object(request, object_id, from_field)

    def get_urls(self) -> list[URLPattern]:
        pages = [
            path("as-code/", self.admin_site.admin_view(ConfigurationPage.as_view()), name=AS_CODE),
            path("as-code/export/", self.admin_site.admin_view(download_export), name=f"{AS_CODE}_export"),
        ]
        return pages + super().get_urls()

    def get_fieldsets(self, request: HttpRequest, obj: ProductSettings | None = None) -> Any:
        if not self.has_change_permission(request, obj):
            return [(None, {"fields": ["settings_shown"]})]
        groups: dict[str, list[str]] = {}
        for name, setting in product_settings.live_settings().items():
            groups.setdefault(setting.group, []).append(name)
        return [(_(group), {"fields": names}) for group, names in groups.items()]

    def get_form(
        self, request: HttpRequest, obj: ProductSettings | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        return marked(SettingsForm, request)

    def save_model(self, request: HttpRequest, obj: ProductSettings, form: Any, change: bool) -> None:
        wanted = {name: form.cleaned_data[name] for name in product_settings.live_settings()}
        form.phrases = product_settings.change_settings(wanted, by=f"user {request.user.get_username()}")

    def construct_change_message(
        self, request: HttpRequest, form: Any, formsets: Any, add: bool = False
    ) -> list[dict[str, Any]]:
        return [{"changed": {"fields": form.phrases}}] if form.phrases else []
