"""Importing an OpenAPI document in the admin: choose it, look at what would come, import it."""

from collections.abc import Iterator
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.widgets import (
    UnfoldAdminFileFieldWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from catalogue.admin.rendering import chip, table
from catalogue.admin.sealed import seal, unseal
from catalogue.changes import tell_counts
from catalogue.history import actor_of
from catalogue.http_tools.configs import KIND
from catalogue.models import Source
from catalogue.openapi.grouping import group_refusals, rank_notes, tools_by_tag
from catalogue.openapi.importing import (
    ImportRefused,
    ImportRequest,
    OpenApiImport,
    Selection,
    import_document,
    permissions_to_import,
)
from connectors.http_tools.openapi.document import MAX_BYTES

SHOWN = 8


class OpenApiImportForm(forms.Form):
    file = forms.FileField(
        label="Document",
        widget=UnfoldAdminFileFieldWidget(attrs={"accept": ".json,.yaml,.yml"}),
    )
    source = forms.CharField(
        label="Source",
        max_length=64,
        required=False,
        help_text="A source of the kind HTTP, or the name of a new one. Empty: by the API's host.",
        widget=UnfoldAdminTextInputWidget(attrs={"list": "known-sources", "autocomplete": "off"}),
    )
    base_url = forms.CharField(
        label="Base URL",
        max_length=2_000,
        required=False,
        help_text="Only where it is another than the document's first server.",
        widget=UnfoldAdminTextInputWidget,
    )
    only = forms.CharField(
        label="Only these operations",
        required=False,
        help_text='Patterns of ids or paths, one per line, such as "issues/*" or "GET /repos/*". Empty: all.',
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3}),
    )
    tags = forms.CharField(
        label="Only these tags",
        required=False,
        help_text="One per line. Empty: all.",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3}),
    )
    deprecated = forms.BooleanField(
        label="Deprecated operations, too", required=False, widget=UnfoldBooleanSwitchWidget
    )
    expose = forms.BooleanField(
        label="Enable new tools at once",
        required=False,
        help_text="Off: agents see none until somebody enables it.",
        widget=UnfoldBooleanSwitchWidget,
    )
    prune = forms.BooleanField(
        label="Remove tools that this import does not bring",
        required=False,
        help_text="Of the same source. Off: they stay.",
        widget=UnfoldBooleanSwitchWidget,
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        largest = min(MAX_BYTES, settings.CATALOGUE["max_request_bytes"])
        told = f"JSON or YAML, at most {largest:,} bytes; larger ones by manage.py import_openapi."
        self.fields["file"].help_text = told

    @property
    def asked(self) -> dict[str, Any]:
        """All but the document, as JSON values."""
        given = self.cleaned_data
        lines = {name: [*filter(None, map(str.strip, given[name].splitlines()))] for name in ("only", "tags")}
        switches = {name: given[name] for name in ("deprecated", "expose", "prune")}
        return {"source": given["source"], "base_url": given["base_url"]} | lines | switches


def show_openapi_import(request: HttpRequest) -> HttpResponse:
    """The form; with a document, what it would bring; with what was looked at, the import itself."""
    if request.method == "POST" and "sealed" in request.POST:
        return _import(request, *unseal(request.POST["sealed"]))
    bound = request.method == "POST"
    initial = {"source": request.GET.get("source", "")}
    form = OpenApiImportForm(request.POST, request.FILES) if bound else OpenApiImportForm(initial=initial)
    plan, sealed, problems = None, "", []
    if bound and form.is_valid():
        content = form.cleaned_data["file"].read(MAX_BYTES + 1)
        try:
            plan = _carry_out(request, content, form.asked, dry_run=True)
            sealed = seal(content, form.asked) if plan.tools else ""
        except ImportRefused as refused:
            problems = refused.reasons
    return _page(request, form, plan=plan, sealed=sealed, problems=problems)


def _carry_out(
    request: HttpRequest, content: bytes, asked: dict[str, Any], *, dry_run: bool
) -> OpenApiImport:
    """Raises ImportRefused."""
    if any(not request.user.has_perm(needed) for needed in permissions_to_import(asked["source"])):
        what = f"change the source {asked['source']}" if asked["source"] else "add and change sources"
        raise ImportRefused([f"You may not {what}."])
    return import_document(
        ImportRequest(
            content=content,
            source=asked["source"],
            base_url=asked["base_url"],
            selection=Selection(
                only=tuple(asked["only"]), tags=tuple(asked["tags"]), deprecated=asked["deprecated"]
            ),
            expose=asked["expose"],
            prune=asked["prune"],
            dry_run=dry_run,
            by=actor_of(request),
        )
    )


def _import(request: HttpRequest, content: bytes, asked: dict[str, Any]) -> HttpResponse:
    try:
        outcome = _carry_out(request, content, asked, dry_run=False)
    except ImportRefused as refused:
        return _page(request, OpenApiImportForm(), problems=refused.reasons)
    messages.success(request, f"{outcome.source}: {_counts(outcome)}.")
    for note in outcome.notes:
        messages.info(request, note)
    source = Source.objects.get(name=outcome.source)
    return HttpResponseRedirect(reverse("admin:catalogue_source_change", args=[source.pk]))


def _counts(outcome: OpenApiImport) -> str:
    """`120 added, 3 refused`"""
    counts = [tell_counts(outcome.count)] if outcome.tools or outcome.removed else []
    counts += [f"{len(outcome.refused)} refused"] if outcome.refused else []
    counts += [f"{outcome.deprecated} deprecated"] if outcome.deprecated else []
    return ", ".join(counts) or "nothing"


def _page(
    request: HttpRequest,
    form: OpenApiImportForm,
    *,
    problems: list[str],
    plan: OpenApiImport | None = None,
    sealed: str = "",
) -> HttpResponse:
    context = admin.site.each_context(request) | {
        "title": "Import an OpenAPI document",
        "address": reverse("admin:catalogue_source_import_openapi"),
        "form": form,
        "problems": problems,
        "plan": plan,
        "sealed": sealed,
        "known": Source.objects.filter(kind=KIND).values_list("name", flat=True),
    }
    if plan is not None:
        context |= {
            "counts": _counts(plan),
            "tokens": f"{plan.tokens:,}",
            "tools": table(("Tag", "Tools", "Such as"), _tool_rows(plan)) if plan.tools else None,
            "refused": table(("Refused", "Why", "Which"), _refusal_rows(plan)) if plan.refused else None,
            "left_out": [f"{note} ({count})" for note, count in rank_notes(plan)],
        }
    return TemplateResponse(request, "catalogue/admin/openapi_import.html", context)


def _tool_rows(plan: OpenApiImport) -> Iterator[list[Any]]:
    for tag, names in tools_by_tag(plan).items():
        yield [chip(tag), len(names), _some(names)]


def _refusal_rows(plan: OpenApiImport) -> Iterator[list[Any]]:
    for group in group_refusals(plan.refused):
        which = [f"{one.method} {one.path}" for one in group.operations]
        yield [len(which), group.reason, _some(which)]


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
