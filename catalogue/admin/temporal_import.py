"""Importing a file of Temporal workflows in the admin: choose it, look at what would change, import it."""

from dataclasses import replace
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from unfold.widgets import (
    UnfoldAdminFileFieldWidget,
    UnfoldAdminPasswordWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from catalogue.admin.rendering import badge, chip, table
from catalogue.admin.sealed import seal, unseal
from catalogue.changes import Change, tell_counts
from catalogue.declared_workflows import (
    KIND,
    USUAL_NAME,
    Import,
    ImportRefused,
    ImportRequest,
    import_file,
    permission_to_import,
    plan_import,
)
from catalogue.history import actor_of
from catalogue.models import Source
from connectors.formats.yaml import MAX_BYTES

BADGES = {
    Change.ADDED: "success",
    Change.UPDATED: "info",
    Change.RETURNED: "success",
    Change.REMOVED: "danger",
    Change.KEPT: "",
    Change.UNCHANGED: "",
}
WORDS = {
    Change.REMOVED: "removed: not in the file",
    Change.KEPT: "kept: from an earlier file",
}


class ImportForm(forms.Form):
    file = forms.FileField(
        label="File",
        help_text=f"YAML, at most {MAX_BYTES:,} bytes.",
        widget=UnfoldAdminFileFieldWidget(attrs={"accept": ".yaml,.yml"}),
    )
    source = forms.CharField(
        label="Source",
        max_length=64,
        initial=USUAL_NAME,
        help_text="A source of the kind Temporal that there is, or the name of a new one.",
        widget=UnfoldAdminTextInputWidget(attrs={"list": "known-sources", "autocomplete": "off"}),
    )
    client_secret = forms.CharField(
        label="OAuth client secret",
        required=False,
        help_text="Only if it does not stand in the file. Empty: what is stored is kept.",
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}),
    )
    api_key = forms.CharField(
        label="API key",
        required=False,
        help_text="Likewise.",
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}),
    )
    prune = forms.BooleanField(
        label="Remove workflows that the file has not",
        required=False,
        help_text="Off: those of earlier files stay.",
        widget=UnfoldBooleanSwitchWidget,
    )
    expose_new = forms.BooleanField(
        label="Enable the workflows at once",
        required=False,
        help_text="Of a new source only. Off: agents see none until somebody enables it.",
        widget=UnfoldBooleanSwitchWidget,
    )

    def ask_for_secrets_again(self) -> None:
        """A browser gets neither the file nor secrets back; only the file is asked for without this."""
        for name in ("client_secret", "api_key"):
            if self.data.get(name):
                self.add_error(name, "Enter it again, with the file: it was not kept.")

    @property
    def asked(self) -> ImportRequest:
        given = self.cleaned_data
        secrets = {"clientSecret": given["client_secret"], "apiKey": given["api_key"]}
        return ImportRequest(
            content=given["file"].read(MAX_BYTES + 1),
            source=given["source"],
            secrets={name: value for name, value in secrets.items() if value},
            prune=given["prune"],
            expose_new=given["expose_new"],
        )


def show_import(request: HttpRequest) -> HttpResponse:
    """The form; with a file, what it would change; with what was looked at, the import itself."""
    if request.method == "POST" and "sealed" in request.POST:
        return _import(request, _unseal(request.POST["sealed"]))
    bound = request.method == "POST"
    form = ImportForm(request.POST, request.FILES) if bound else ImportForm(initial=_initial(request))
    plan, sealed, problems = None, "", []
    if bound and form.is_valid():
        asked = form.asked
        try:
            _check_permission(request, asked.source)
            plan, sealed = plan_import(asked), _seal(asked)
        except ImportRefused as refused:
            problems = refused.reasons
    if bound and plan is None:
        form.ask_for_secrets_again()
    return _page(request, form, plan=plan, sealed=sealed, problems=problems)


def tell_of_import(request: HttpRequest, source: Source) -> tuple[str, Any]:
    """For the page of a source: the way here, and where its workflows come from."""
    if source.kind != KIND or not request.user.has_perm("catalogue.change_source"):
        return ("Declared workflows", "")
    address = f"{reverse('admin:catalogue_source_import_temporal')}?{urlencode({'source': source.name})}"
    way = format_html('<a class="text-link" href="{}">Import a file</a>', address)
    path = "" if source.config.get("definitions") else source.config.get("definitions_file")
    return (
        "Declared workflows",
        format_html("{} (read at each refresh); {}", chip(path), way) if path else way,
    )


def _initial(request: HttpRequest) -> dict[str, str]:
    return {"source": request.GET.get("source") or USUAL_NAME}


def _check_permission(request: HttpRequest, name: str) -> None:
    if not request.user.has_perm(needed := permission_to_import(name)):
        what = f"change the source {name}" if "change" in needed else "add sources"
        raise ImportRefused([f"You may not {what}."])


def _import(request: HttpRequest, asked: ImportRequest) -> HttpResponse:
    try:
        _check_permission(request, asked.source)
        outcome = import_file(replace(asked, by=actor_of(request)))
    except ImportRefused as refused:
        return _page(request, ImportForm(initial={"source": asked.source}), problems=refused.reasons)
    _tell(request, outcome)
    source = Source.objects.get(name=outcome.source)
    return HttpResponseRedirect(reverse("admin:catalogue_source_change", args=[source.pk]))


def _tell(request: HttpRequest, outcome: Import) -> None:
    messages.success(request, f"{outcome.source}: {_counts(outcome)}.")
    for note in outcome.notes:
        messages.info(request, note)
    if outcome.health is not None:
        tell = messages.success if outcome.health.ok else messages.warning
        tell(request, outcome.health.message)


def _counts(outcome: Import) -> str:
    """`2 added, 1 updated`"""
    return tell_counts(outcome.count) or "no workflows"


def _page(
    request: HttpRequest,
    form: ImportForm,
    *,
    problems: list[str],
    plan: Import | None = None,
    sealed: str = "",
) -> HttpResponse:
    context = admin.site.each_context(request) | {
        "title": "Import a Temporal file",
        "address": reverse("admin:catalogue_source_import_temporal"),
        "form": form,
        "problems": problems,
        "plan": plan,
        "sealed": sealed,
        "counts": _counts(plan) if plan else "",
        "settings": ", ".join(plan.settings) if plan else "",
        "changes": table(("Workflow", "What becomes of it"), map(_row, plan.changes.items()))
        if plan
        else None,
        "known": Source.objects.filter(kind=KIND).values_list("name", flat=True),
    }
    return TemplateResponse(request, "catalogue/admin/temporal_import.html", context)


def _row(change: tuple[str, Change]) -> list[Any]:
    name, what = change
    return [chip(name), badge(WORDS.get(what, what.value), BADGES[what])]


def _seal(asked: ImportRequest) -> str:
    told = {"source": asked.source, "secrets": asked.secrets}
    return seal(asked.content, told | {"prune": asked.prune, "expose": asked.expose_new})


def _unseal(sealed: str) -> ImportRequest:
    content, told = unseal(sealed)
    return ImportRequest(
        content=content,
        source=told["source"],
        secrets=told["secrets"],
        prune=told["prune"],
        expose_new=told["expose"],
    )
