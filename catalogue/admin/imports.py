"""Imports in the admin: choose a file, review its plan, and import exactly that."""

from typing import TYPE_CHECKING, Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.generic import FormView
from unfold import widgets

from catalogue import configuration, http_tools
from catalogue.admin.form_fields import LinesField, switch, text_field
from catalogue.admin.rendering import badge, side_by_side, table, wrapped
from catalogue.admin.reviews import COMMANDING
from catalogue.admin.sealed_form import KEPT, SealedForm
from catalogue.audit import record_export
from catalogue.history import actor_of
from catalogue.imports import openapi, temporal
from catalogue.imports.configuration import (
    CatalogueImportRequest,
    Plan,
    PlanChanged,
    import_catalogue,
    rights_of,
)
from catalogue.imports.pipeline import ImportRefused, permissions_to_import
from catalogue.imports.temporal import TemporalImport, TemporalImportRequest, import_file
from catalogue.models import Source
from catalogue.naming import listed
from catalogue.reconciliation import Change
from catalogue.secrets import seal, unseal
from connectors.formats import yaml
from connectors.http_tools.openapi import document

SHOWN = 8
SHOWN_UPDATES = 50
SHOWN_NAMES = 50  # Of changed tools; those of a first import are examples of their tags

if TYPE_CHECKING:
    FormPage = FormView["ImportForm"]
else:
    FormPage = FormView


class ImportForm(SealedForm):
    """A refused form keeps its input, and its secrets as `asked` has them."""

    file_help = gettext_lazy("YAML, at most {:,} bytes.")
    file = forms.FileField(
        label=gettext_lazy("File"),
        error_messages={"required": "Choose a file."},
        widget=widgets.UnfoldAdminFileFieldWidget(attrs={"accept": ".yaml,.yml"}),
    )

    def __init__(self, *args: Any, sealed_for: str, most_bytes: int, **kwargs: Any) -> None:
        self.sealed_for = sealed_for
        super().__init__(*args, **kwargs)
        self.fields["file"].help_text = self.file_help.format(most_bytes)

    @property
    def asked(self) -> dict[str, Any]:
        """The fields other than the file, as JSON values."""
        return {name: value for name, value in self.cleaned_data.items() if name not in ("file", KEPT)}

    def show_again(self, *, had_file: bool, refused: ImportRefused | None) -> None:
        if had_file:
            if self.has_error("file", "required"):
                del self.errors["file"]
            self.add_error("file", "Choose the file again; browsers do not keep it.")
        if refused is not None and refused.about in self.fields:
            self.add_error(refused.about, refused.reasons)
        self.keep(self.secrets_to_keep())

    def secrets_to_keep(self) -> dict[str, Any]:
        return self.kept


class ImportPage(FormPage):
    """The form; after an upload its plan; after confirmation the import of exactly that."""

    title: Any = ""
    url = ""
    form_class: type[ImportForm]
    largest_file = yaml.MAX_BYTES

    @property
    def most_bytes(self) -> int:
        return min(self.largest_file, settings.CATALOGUE.max_request_bytes)

    def get_initial(self) -> dict[str, Any]:
        return {"source": source} if (source := self.request.GET.get("source")) else {}

    def get_form(self, form_class: Any = None) -> ImportForm:
        return self.make_form(**self.get_form_kwargs())

    def make_form(self, **options: Any) -> ImportForm:
        sealed_for = f"{self.request.user.pk} {self.url}"
        return self.form_class(sealed_for=sealed_for, most_bytes=self.most_bytes, **options)

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if "sealed" in request.POST:
            return self.import_planned(*unseal(request.POST["sealed"]))
        return super().post(request, *args, **kwargs)

    def form_valid(self, form: ImportForm) -> HttpResponse:
        return self.show_plan(form, form.cleaned_data["file"].read(self.most_bytes + 1), form.asked)

    def form_invalid(self, form: ImportForm, refused: ImportRefused | None = None) -> HttpResponse:
        had_file = "sealed" in self.request.POST or "file" in self.request.FILES
        form.show_again(had_file=had_file, refused=refused)
        about_file = refused is not None and refused.about not in form.fields
        problems = refused.reasons if refused is not None and about_file else []
        return self.render_to_response(self.get_context_data(form=form, problems=problems))

    def show_plan(self, form: ImportForm, content: bytes, asked: dict[str, Any]) -> HttpResponse:
        try:
            plan = self.carry_out(content, asked, dry_run=True)
        except ImportRefused as refused:
            return self.form_invalid(form, refused)
        shown = {"form": form, "plan": plan, "sealed": self.seal(plan, content, asked)}
        return self.render_to_response(self.get_context_data(**shown, **self.plan_context(plan)))

    def import_planned(self, content: bytes, asked: dict[str, Any]) -> HttpResponse:
        try:
            outcome = self.carry_out(content, asked, dry_run=False)
        except ImportRefused as refused:
            return self.form_invalid(self.form_of(asked), refused)
        return self.finish(outcome)

    def form_of(self, asked: dict[str, Any]) -> ImportForm:
        lines = {name: "\n".join(value) for name, value in asked.items() if isinstance(value, list)}
        data = {name: value for name, value in (asked | lines).items() if name != "secrets"}
        form = self.make_form(data=data)
        form.kept = asked.get("secrets", {})
        return form

    def get_context_data(self, **shown: Any) -> dict[str, Any]:
        page = {"title": self.title, "address": reverse(f"admin:{self.url}")}
        return admin.site.each_context(self.request) | page | super().get_context_data(**shown)

    def carry_out(self, content: bytes, asked: dict[str, Any], *, dry_run: bool) -> Any:
        """`asked` has the form's other fields as JSON values. Raises ImportRefused."""
        raise NotImplementedError

    def seal(self, plan: Any, content: bytes, asked: dict[str, Any]) -> str:
        """Empty for a plan that imports nothing."""
        return seal(content, asked)

    def plan_context(self, plan: Any) -> dict[str, Any]:
        raise NotImplementedError

    def finish(self, outcome: Any) -> HttpResponse:
        raise NotImplementedError


class SourceImportPage(ImportPage):
    kind = ""

    def counts(self, outcome: Any) -> str:
        return outcome.counts or "no workflows"

    def get_context_data(self, **shown: Any) -> dict[str, Any]:
        known = Source.objects.filter(kind=self.kind).values_list("name", flat=True)
        return super().get_context_data(known=known, **shown)

    def check_permission(self, source: str) -> None:
        needed = permissions_to_import(source)
        if not all(map(self.request.user.has_perm, needed)):
            added = "add sources" if source else "add and change sources"
            what = f"change the source {source}" if needed == ["catalogue.change_source"] else added
            raise ImportRefused([f"You may not {what}."], about="source")

    def finish(self, outcome: Any) -> HttpResponse:
        messages.success(self.request, f"{outcome.source}: {self.counts(outcome)}.")
        for note in outcome.notes:
            messages.info(self.request, note)
        source = Source.objects.get(name=outcome.source)
        return HttpResponseRedirect(reverse("admin:catalogue_source_change", args=[source.pk]))


# Temporal files


BADGES = {
    Change.ADDED: "success",
    Change.UPDATED: "info",
    Change.RETURNED: "success",
    Change.REMOVED: "danger",
}
SECRETS = {"clientSecret": "client_secret", "apiKey": "api_key"}  # The form's fields, by the file's names


def _secret(label: Any) -> forms.CharField:
    return forms.CharField(
        label=label,
        required=False,
        help_text=gettext_lazy("Only if the file does not have it. Empty: the stored one is kept."),
        widget=widgets.UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}),
    )


class TemporalImportForm(ImportForm):
    source = text_field(
        gettext_lazy("Source"),
        gettext_lazy("An existing source of the kind Temporal, or the name of a new one."),
        required=True,
        length=64,
        offers="known-sources",
        initial=temporal.DEFAULT_SOURCE,
    )
    client_secret = _secret(gettext_lazy("OAuth client secret"))
    api_key = _secret(gettext_lazy("API key"))
    prune = switch(
        gettext_lazy("Remove workflows that are not in the file"),
        gettext_lazy("Off: workflows from earlier files are kept."),
    )
    expose = switch(
        gettext_lazy("Enable the workflows immediately"),
        gettext_lazy("For a new source only. Off: agents see no workflow until a curator enables it."),
    )

    @property
    def asked(self) -> dict[str, Any]:
        given = {name: self.cleaned_data[name] for name in ("source", "prune", "expose")}
        return given | {"secrets": self.secrets_to_keep()}

    def secrets_to_keep(self) -> dict[str, Any]:
        typed = {name: self.cleaned_data.get(field) for name, field in SECRETS.items()}
        return self.kept | {name: value for name, value in typed.items() if value}

    def show_again(self, **options: Any) -> None:
        super().show_again(**options)
        for name in self.secrets_to_keep():
            self[SECRETS[name]].help_text = "Stored encrypted for an hour. Enter it only to replace it."


class TemporalImportPage(SourceImportPage):
    title = gettext_lazy("Import a Temporal file")
    template_name = "catalogue/admin/temporal_import.html"
    url = "catalogue_source_import_temporal"
    kind = temporal.KIND
    form_class = TemporalImportForm

    def carry_out(self, content: bytes, asked: dict[str, Any], *, dry_run: bool) -> TemporalImport:
        self.check_permission(asked["source"])
        by = actor_of(self.request)
        return import_file(TemporalImportRequest(content=content, dry_run=dry_run, by=by, **asked))

    def plan_context(self, plan: TemporalImport) -> dict[str, Any]:
        return {"counts": self.counts(plan), "settings": ", ".join(plan.settings)}

    def finish(self, outcome: TemporalImport) -> HttpResponse:
        response = super().finish(outcome)
        if outcome.health is not None:
            notify = messages.success if outcome.health.ok else messages.warning
            notify(self.request, outcome.health.message)
        return response


def import_fact(request: HttpRequest, source: Source) -> tuple[str, Any]:
    if source.kind != temporal.KIND or not request.user.has_perm("catalogue.change_source"):
        return (_("Declared workflows"), "")
    path = "" if source.config.get("definitions") else source.config.get("definitions_file")
    shown = {"source": source, "path": path}
    return (_("Declared workflows"), render_to_string("catalogue/admin/sources/import_fact.html", shown))


# OpenAPI documents


THREE_ROWS = widgets.UnfoldAdminTextareaWidget(attrs={"rows": 3})


class OpenApiImportForm(ImportForm):
    file_help = gettext_lazy(
        "JSON or YAML, at most {:,} bytes. Import larger ones with manage.py import_openapi."
    )
    file = forms.FileField(
        label=gettext_lazy("Document"),
        error_messages={"required": "Choose a file."},
        widget=widgets.UnfoldAdminFileFieldWidget(attrs={"accept": ".json,.yaml,.yml"}),
    )
    source = text_field(
        gettext_lazy("Source"),
        gettext_lazy("An existing source of the kind HTTP, or the name of a new one. Empty: the API's host."),
        length=64,
        offers="known-sources",
    )
    base_url = text_field(
        gettext_lazy("Base URL"),
        gettext_lazy("Only if it differs from the first server in the document."),
        length=2_000,
    )
    only = LinesField(
        label=gettext_lazy("Only these operations"),
        required=False,
        help_text=gettext_lazy(
            'Patterns of ids or paths, one a line, such as "issues/*" or "GET /repos/*". Empty: all.'
        ),
        widget=THREE_ROWS,
    )
    tags = LinesField(
        label=gettext_lazy("Only these tags"),
        required=False,
        help_text=gettext_lazy("One per line. Empty: all."),
        widget=THREE_ROWS,
    )
    deprecated = switch(gettext_lazy("Include deprecated operations"))
    expose = switch(
        gettext_lazy("Enable new tools immediately"),
        gettext_lazy("Off: agents see no tool until a curator enables it."),
    )
    prune = switch(
        gettext_lazy("Remove tools that this import does not contain"),
        gettext_lazy("Of the same source. Off: they are kept."),
    )


class OpenApiImportPage(SourceImportPage):
    title = gettext_lazy("Import an OpenAPI document")
    template_name = "catalogue/admin/openapi_import.html"
    url = "catalogue_source_import_openapi"
    kind = http_tools.KIND
    form_class = OpenApiImportForm
    largest_file = document.MAX_BYTES

    def carry_out(self, content: bytes, asked: dict[str, Any], *, dry_run: bool) -> openapi.OpenApiImport:
        self.check_permission(asked["source"])
        by = actor_of(self.request)
        if not dry_run:
            return openapi.import_planned(content, by=by)
        request = openapi.OpenApiImportRequest(content=content, dry_run=True, by=by, **asked)
        return openapi.import_document(request)

    def seal(self, plan: openapi.OpenApiImport, content: bytes, asked: dict[str, Any]) -> str:
        return super().seal(plan, openapi.PLAN.dump_json(plan), asked) if plan.tools else ""

    def counts(self, outcome: openapi.OpenApiImport) -> str:
        """`120 added, 3 refused`"""
        counts = [outcome.counts] if outcome.tools or outcome.removed else []
        counts += [f"{len(outcome.refused)} refused"] if outcome.refused else []
        counts += [f"{outcome.deprecated} deprecated"] if outcome.deprecated else []
        return ", ".join(counts) or "nothing"

    def plan_context(self, plan: openapi.OpenApiImport) -> dict[str, Any]:
        refused = (
            [len(operations), reason, listed([f"{one.method} {one.path}" for one in operations], SHOWN)]
            for reason, operations in openapi.group_refusals(plan.refused)
        )
        by_tag = openapi.tools_by_tag(plan)
        tools = ([wrapped(tag), len(names), listed(names, SHOWN)] for tag, names in by_tag.items())
        changes = (
            [badge(change, BADGES[change]), len(names), listed(names, SHOWN_NAMES)]
            for change, names in openapi.tools_by_change(plan).items()
        )
        updated = [tool.stored for tool in plan.tools if tool.stored.differences]
        updated.sort(key=lambda one: not one.warning)
        differences = []
        for one in updated[:SHOWN_UPDATES]:
            warning = [badge(COMMANDING, "danger"), f"{one.warning}:"] if one.warning else []
            differences.append([wrapped(one.tool_id), side_by_side([*warning, one.differences])])
        return {
            "counts": self.counts(plan),
            "tokens": f"{plan.tokens:,}",
            # A new source has only additions, which the tags group.
            "changes": None if plan.is_new else table(("Change", "Tools", "Which"), changes),
            "differences": table(("Updated tool", "What changes"), differences),
            "unshown": max(0, len(updated) - SHOWN_UPDATES),
            "tools": table(("Tag", "Tools", "Examples"), tools) if plan.tools else None,
            "unfolded": plan.is_new and len(by_tag) <= 12,  # The button must stay in sight.
            "refused": table(("Refused", "Why", "Which"), refused) if plan.refused else None,
            "left_out": [f"{note} ({len(tools)})" for note, tools in openapi.group_notes(plan)],
        }


# Configuration as code


AS_CODE = "catalogue_productsettings_as_code"
SHOWN_CHANGES = 500


class SecretsField(forms.CharField):
    """Lines of `source.setting=value`, as `{source: {setting: value}}`."""

    widget = widgets.UnfoldAdminTextareaWidget(
        attrs={
            "rows": 3,
            "autocomplete": "off",
            "spellcheck": "false",
            "placeholder": gettext_lazy("orders.api_key=..."),
        }
    )

    def clean(self, value: Any) -> dict[str, dict[str, str]]:
        secrets: dict[str, dict[str, str]] = {}
        for line in filter(None, map(str.strip, (value or "").splitlines())):
            place, equals, secret = line.partition("=")
            source, dot, setting = place.strip().rpartition(".")
            if not (equals and dot and source and setting and secret):
                # The message must not repeat the line, which may be a secret.
                raise forms.ValidationError(_("Write each as source.setting=value, one per line."))
            secrets.setdefault(source, {})[setting] = secret.strip()
        return secrets


class CatalogueImportForm(ImportForm):
    secrets = SecretsField(
        label=gettext_lazy("Secrets"),
        required=False,
        help_text=gettext_lazy(
            "Secrets that are not stored yet, one per line: source.setting=value. Others are kept."
        ),
    )
    prune = switch(
        gettext_lazy("Remove objects that are not in the file"),
        gettext_lazy(
            "Only in the file's sections. Off: other sources, exposure rules, toolsets and groups are kept."
        ),
    )

    @property
    def asked(self) -> dict[str, Any]:
        typed, secrets = self.cleaned_data["secrets"], dict(self.kept)
        for source, settings_typed in typed.items():
            secrets[source] = secrets.get(source, {}) | settings_typed
        return {"secrets": secrets, "prune": self.cleaned_data["prune"]}

    def show_again(self, **options: Any) -> None:
        super().show_again(**options)
        if names := [f"{source}.{name}" for source, kept in self.kept.items() for name in kept]:
            self["secrets"].help_text += f" Stored encrypted for an hour: {', '.join(names)}."


def download_export(request: HttpRequest) -> HttpResponse:
    sections = _visible(request)
    record_export(actor_of(request), "configuration", sections=sections)
    export = configuration.export_catalogue(sections)
    response = HttpResponse(export, content_type=f"{configuration.MEDIA_TYPE}; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{configuration.FILE_NAME}"'
    return response


def _visible(request: HttpRequest) -> list[str]:
    sections = configuration.sections_for(request.user)
    if "sources" not in sections:
        raise PermissionDenied
    return sections


class ConfigurationPage(ImportPage):
    title = gettext_lazy("Configuration as code")
    template_name = "catalogue/admin/configuration.html"
    url = AS_CODE
    form_class = CatalogueImportForm
    largest_file = configuration.LIMITS.bytes

    def setup(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().setup(request, *args, **kwargs)
        self.sections = _visible(request)

    def carry_out(self, content: bytes, asked: dict[str, Any], *, dry_run: bool) -> Plan:
        return import_catalogue(
            CatalogueImportRequest(
                file=configuration.CatalogueFile.read(content),
                secrets=asked["secrets"],
                prune=asked["prune"],
                secret_hint=lambda source, secret: f"enter {source}.{secret}=... under Secrets",
                by=actor_of(self.request),
                rights=rights_of(self.request.user),
                dry_run=dry_run,
                expected="" if dry_run else asked["expected"],
            )
        )

    def seal(self, plan: Plan, content: bytes, asked: dict[str, Any]) -> str:
        return super().seal(plan, content, asked | {"expected": plan.digest}) if plan else ""

    def import_planned(self, content: bytes, asked: dict[str, Any]) -> HttpResponse:
        try:
            return super().import_planned(content, asked)
        except PlanChanged:
            told = "Something changed since you saw the plan. This is what the import would change now."
            messages.warning(self.request, told)
            return self.show_plan(self.form_of(asked), content, asked)

    def get_context_data(self, **shown: Any) -> dict[str, Any]:
        engines = _("the engines' listings")
        shown["sections"] = [engines if name == "listed" else name for name in self.sections]
        shown["form_title"] = _("Import")
        if "plan" in shown:
            # A plan without changes is false.
            shown |= {"plan": True, "form": self.make_form(), "form_title": _("Another file")}
        return super().get_context_data(**shown)

    def plan_context(self, plan: Plan) -> dict[str, Any]:
        changes = plan.changes[:SHOWN_CHANGES]
        return {
            "counts": plan.counts,
            "changes": changes,
            "more": len(plan.changes) - len(changes),
        }

    def finish(self, outcome: Plan) -> HttpResponse:
        messages.success(self.request, f"Imported: {outcome.counts}")
        return HttpResponseRedirect(reverse(f"admin:{AS_CODE}"))
