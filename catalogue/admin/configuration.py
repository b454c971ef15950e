"""Configuration as code in the admin: download the file, upload one, see what it would change, import it."""

from collections.abc import Iterable
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.widgets import UnfoldAdminFileFieldWidget, UnfoldAdminTextareaWidget, UnfoldBooleanSwitchWidget

from catalogue.admin.rendering import badge, chip
from catalogue.admin.sealed import seal, unseal
from catalogue.configuration.document import LIMITS, CatalogueFile, ConfigurationRefused
from catalogue.configuration.exporting import FILE_NAME, MEDIA_TYPE, export_catalogue, sections_for
from catalogue.configuration.importing import (
    ImportRequest,
    PlanChanged,
    import_catalogue,
    plan_import,
    rights_of,
)
from catalogue.configuration.plan import Plan, PlannedChange, Verb
from catalogue.history import actor_of

AS_CODE = "catalogue_productsettings_as_code"
SHOWN_CHANGES = 500
SHOWN_FIELDS = 6
"""Of one object; more are folded away."""
BADGES = {Verb.ADD: "success", Verb.CHANGE: "info", Verb.REMOVE: "danger"}
CHANGED_MEANWHILE = "Something has changed since you looked: this is what the import would change now."


def _most_bytes() -> int:
    return min(LIMITS.bytes, int(settings.CATALOGUE["max_request_bytes"]))


class SecretsField(forms.CharField):
    """A secret a line, as `{source: {setting: value}}`."""

    widget = UnfoldAdminTextareaWidget(
        attrs={"rows": 3, "autocomplete": "off", "spellcheck": "false", "placeholder": "orders.api_key=..."}
    )

    def clean(self, value: Any) -> dict[str, dict[str, str]]:
        secrets: dict[str, dict[str, str]] = {}
        for line in filter(None, map(str.strip, (value or "").splitlines())):
            place, equals, secret = line.partition("=")
            source, dot, setting = place.strip().rpartition(".")
            if not (equals and dot and source and setting and secret):
                # Without the line: it may be a secret.
                raise forms.ValidationError("Write each as source.setting=value, a line for each.")
            secrets.setdefault(source, {})[setting] = secret.strip()
        return secrets


class CatalogueImportForm(forms.Form):
    file = forms.FileField(label="File", widget=UnfoldAdminFileFieldWidget(attrs={"accept": ".yaml,.yml"}))
    secrets = SecretsField(
        label="Secrets",
        required=False,
        help_text="Those that are not stored here yet, a line for each: source.setting=value. Others stay.",
    )
    prune = forms.BooleanField(
        label="Remove what the file does not have",
        required=False,
        help_text="Of the sections that it has. Off: other sources, filters, toolsets and groups stay.",
        widget=UnfoldBooleanSwitchWidget,
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["file"].help_text = f"YAML, at most {_most_bytes():,} bytes."


def download_export(request: HttpRequest) -> HttpResponse:
    """The sections that one may see, as a file."""
    response = HttpResponse(export_catalogue(_visible(request)), content_type=f"{MEDIA_TYPE}; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{FILE_NAME}"'
    return response


def show_configuration(request: HttpRequest) -> HttpResponse:
    """The form; with a file, what it would change; with what was looked at, the import itself."""
    sections = _visible(request)
    if request.method == "POST" and "sealed" in request.POST:
        return _import(request, request.POST["sealed"], sections)
    form = CatalogueImportForm(*([request.POST, request.FILES] if request.method == "POST" else []))
    if not form.is_bound or not form.is_valid():
        return _page(request, form, sections)
    content = form.cleaned_data["file"].read(_most_bytes() + 1)
    told = {"secrets": form.cleaned_data["secrets"], "prune": form.cleaned_data["prune"]}
    return _show_plan(request, form, sections, content, told)


def _visible(request: HttpRequest) -> list[str]:
    sections = sections_for(request.user)
    if "sources" not in sections:
        raise PermissionDenied
    return sections


def _show_plan(
    request: HttpRequest, form: CatalogueImportForm, sections: list[str], content: bytes, told: dict[str, Any]
) -> HttpResponse:
    try:
        plan = plan_import(_request(content, told), by=actor_of(request), rights=rights_of(request.user))
    except ConfigurationRefused as refused:
        return _page(request, form, sections, problems=refused.reasons)
    sealed = seal(content, told | {"expected": plan.digest}) if plan else ""
    return _page(request, CatalogueImportForm(), sections, plan=plan, sealed=sealed)


def _import(request: HttpRequest, sealed: str, sections: list[str]) -> HttpResponse:
    content, told = unseal(sealed)
    try:
        plan = import_catalogue(
            _request(content, told),
            by=actor_of(request),
            rights=rights_of(request.user),
            expected=told.pop("expected"),
        )
    except PlanChanged:
        messages.warning(request, CHANGED_MEANWHILE)
        return _show_plan(request, CatalogueImportForm(), sections, content, told)
    except ConfigurationRefused as refused:
        return _page(request, CatalogueImportForm(), sections, problems=refused.reasons)
    messages.success(request, f"Imported: {plan.counts}")
    return HttpResponseRedirect(reverse(f"admin:{AS_CODE}"))


def _request(content: bytes, told: dict[str, Any]) -> ImportRequest:
    return ImportRequest(
        file=CatalogueFile.read(content),
        secrets=told["secrets"],
        prune=told["prune"],
        tell_where=lambda source, secret: f"enter {source}.{secret}=... under Secrets",
    )


def _page(
    request: HttpRequest,
    form: CatalogueImportForm,
    sections: list[str],
    *,
    plan: Plan | None = None,
    sealed: str = "",
    problems: Iterable[str] = (),
) -> HttpResponse:
    changes = plan.changes[:SHOWN_CHANGES] if plan is not None else []
    context = admin.site.each_context(request) | {
        "title": "Configuration as code",
        "address": reverse(f"admin:{AS_CODE}"),
        "form": form,
        "form_title": "Import" if plan is None else "Another file",
        "problems": list(problems),
        # A plan that changes nothing is false.
        "plan": plan is not None,
        "counts": "" if plan is None else plan.counts,
        "sealed": sealed,
        "changes": [_row(change) for change in changes],
        "more": 0 if plan is None else len(plan.changes) - len(changes),
        "sections": ["what engines list" if name == "listed" else name for name in sections],
    }
    return TemplateResponse(request, "catalogue/admin/configuration.html", context)


def _row(change: PlannedChange) -> dict[str, Any]:
    is_change = change.verb is Verb.CHANGE
    return {
        "badge": badge(change.verb.value, BADGES[change.verb]),
        "kind": change.kind,
        "name": chip(change.name),
        "fields": [(one.name, f"{one.old} → {one.new}" if is_change else one.new) for one in change.fields],
        "folded": len(change.fields) > SHOWN_FIELDS,
    }
