import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db.models import QuerySet
from django.forms import HiddenInput
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.contrib.filters.admin import BooleanRadioFilter, ChoicesDropdownFilter
from unfold.decorators import action
from unfold.widgets import UnfoldBooleanWidget

from catalogue.actions.sources import (
    UPDATABLE,
    change_source,
    check_address_is_kept,
    check_candidate,
    check_settings,
    create_source,
    list_now,
    list_soon,
    switch_sources,
)
from catalogue.admin import rendering as html
from catalogue.admin.base import ButtonsMixin, CatalogueForm, button, change_if_sure, column
from catalogue.admin.discovery_runs import RUN_HEADERS, describe_counts, run_row
from catalogue.admin.extensions import added
from catalogue.admin.form_fields import ONLY_IF, SETTING, ReservedForField, setting_field
from catalogue.admin.imports import OpenApiImportPage, TemporalImportPage, import_fact
from catalogue.admin.reviews import held_listing_fact, reviews_fact
from catalogue.admin.sealed_form import KEPT, SealedForm
from catalogue.admin.tools import tools_fact
from catalogue.connections import (
    EMPTY,
    Setting,
    engine_kind,
    find_setting_problems,
    settings_of,
    summary_of,
)
from catalogue.discovery import RefreshRefused
from catalogue.history import actor_of
from catalogue.imports.pipeline import stored_secrets
from catalogue.models import DiscoveryRun, ServerFeature, Source, Workflow
from catalogue.naming import counted
from catalogue.secrets import is_reference
from connectors.errors import Misconfigured
from connectors.protocol import Connector
from connectors.registry import connector_class, connector_kinds, connector_problems, usable_connectors

FORGET = "forget_"
STORED = gettext_lazy("stored")
ENTERED = gettext_lazy("entered; leave empty to keep")
WITHOUT_ONE = re.compile(r"\s*\b(?:Empty:|Leave empty) [^.<]*\.")
TEST = "_test"


class SourceForm(SealedForm, CatalogueForm):
    """Made for one kind by `source_form`; secrets are only written, never shown."""

    settings: ClassVar[dict[str, Setting]] = {}

    class Meta:
        model = Source
        fields = UPDATABLE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stored = stored_secrets(self.instance)
        for name, setting in self.settings.items():
            field = self.fields.get(SETTING + name)
            if field is None:
                continue
            if not setting.secret:
                if name in self.instance.config:
                    self.initial[SETTING + name] = self.instance.config[name]
                continue
            if stored := self._stored.get(name):
                self._expect_no_entry(
                    name, _("%(stored)s; leave empty to keep") % {"stored": _stored_as(stored)}
                )
            else:
                self.fields.pop(FORGET + name, None)
            if name in self.kept:
                self._expect_no_entry(name, ENTERED)

    def _expect_no_entry(self, name: str, placeholder: Any) -> None:
        """An empty field keeps the secret, unlike what the help text of new sources says."""
        field, setting = self.fields[SETTING + name], self.settings[name]
        kept = replace(setting, help=WITHOUT_ONE.sub("", setting.help))
        field.required, field.help_text = False, setting_field(kept, self.settings).help_text
        field.widget.attrs["placeholder"] = placeholder

    def is_valid(self) -> bool:
        """False for a form that is only tested."""
        return super().is_valid() and not self.is_tried

    @property
    def is_tried(self) -> bool:
        return TEST in self.data

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        if not self.settings:
            return cleaned
        for name, problems in find_setting_problems(self.kind, self.config | self.credentials).items():
            field = SETTING + name if SETTING + name in self.fields else None
            if field is None or field not in self.errors:
                self.add_error(field, ValidationError(problems))
        if not self.setting_errors:
            self._check_address()
            try:
                # Well-formed settings may still be unusable, such as a missing file.
                check_settings(self.candidate())
            except ValidationError as error:
                self.add_error(None, error.messages)
        usable = {
            name: value
            for name, setting in self.settings.items()
            if setting.secret and SETTING + name not in self.errors and (value := self._entered(name))
        }
        self.keep(usable)
        for name in usable:
            self._expect_no_entry(name, ENTERED)
        return cleaned

    @cached_property
    def changed_data(self) -> list[str]:
        """Includes secrets typed before the form was refused."""
        changed = {*super().changed_data, *(SETTING + name for name in self.kept)}
        return [name for name in self.fields if name in changed and name != KEPT]

    @property
    def typed_secrets(self) -> list[str]:
        """Names of fields that set or delete a secret, for the comparison with others' changes."""
        secrets = {SETTING + name for name, setting in self.settings.items() if setting.secret}
        return [name for name in self.changed_data if name in secrets or name.startswith(FORGET)]

    @property
    def setting_errors(self) -> dict[str, list[str]]:
        """Returns errors by the field's name in the form, `__all__` for what concerns several."""
        about_settings = (
            name for name in self.errors if name == NON_FIELD_ERRORS or name.startswith(SETTING)
        )
        return {name: [str(message) for message in self.errors[name]] for name in about_settings}

    def _check_address(self) -> None:
        kept = [name for name in self._stored if self.credentials.get(name) and not self._entered(name)]
        try:
            if kept:
                check_address_is_kept(self.instance, self.config)
        except ValidationError as error:
            self.add_error(SETTING + kept[0], error.messages)

    def candidate(self) -> Source:
        candidate = Source(name=self.cleaned_data.get("name", ""), kind=self.kind, config=self.config)
        candidate.credentials = self.credentials
        return candidate

    @property
    def kind(self) -> str:
        return self.instance.kind or str(self.cleaned_data["kind"])

    @property
    def config(self) -> dict[str, Any]:
        """Only differences from the connector's defaults, so that better defaults reach old sources."""
        return {
            name: value
            for name, setting in self.settings.items()
            if not setting.secret
            and self._matters(setting)
            and (value := self._chosen(setting)) != setting.default
        }

    @property
    def credentials(self) -> dict[str, str]:
        names = [name for name, setting in self.settings.items() if setting.secret and self._matters(setting)]
        kept = {name: self._stored[name] for name in names if name in self._stored}
        forgotten = {name for name in kept if self.cleaned_data.get(FORGET + name)}
        entered = {name: value for name in names if (value := self._entered(name))}
        return {name: value for name, value in kept.items() if name not in forgotten} | entered

    def _chosen(self, setting: Setting) -> Any:
        name = SETTING + setting.name
        value = self.cleaned_data.get(name)
        if self.fields[name].widget.value_omitted_from_data(self.data, self.files, self.add_prefix(name)):
            return self.instance.config.get(setting.name, setting.default)
        if value in EMPTY and value is not False:
            return setting.empty if setting.can_be_empty else setting.default
        return value

    def _matters(self, setting: Setting) -> bool:
        """False for settings that another choice disables: they are neither validated nor stored."""
        return all(
            (chosen if isinstance(chosen, str) else json.dumps(chosen)) in values
            for name, values in setting.hints.only_if.items()
            if name in self.settings
            for chosen in [self._chosen(self.settings[name])]
        )

    def _entered(self, name: str) -> str:
        return str(self.cleaned_data.get(SETTING + name) or self.kept.get(name, ""))


def source_form(kind: str, *, sealed_for: str) -> type[SourceForm]:
    settings = known_settings(kind)
    fields: dict[str, Any] = {"settings": settings, "sealed_for": sealed_for}
    for name, setting in settings.items():
        field = fields[SETTING + name] = setting_field(setting, settings)
        if setting.secret and not setting.required:
            conditions = {name: value for name, value in field.widget.attrs.items() if name == ONLY_IF}
            fields[FORGET + name] = forms.BooleanField(
                required=False,
                label=format_lazy(gettext_lazy("Forget {}"), gettext_lazy(setting.title)),
                help_text=_("Delete the stored value."),
                widget=UnfoldBooleanWidget(attrs=conditions),
            )
    return type("SourceForm", (SourceForm,), fields)


def known_settings(kind: str) -> dict[str, Setting]:
    try:
        return settings_of(kind)
    except Misconfigured:
        return {}


def _stored_as(value: str) -> str:
    """A reference is not a secret, so it is shown."""
    return value if is_reference(value) else str(STORED)


def shown_settings(source: Source) -> list[tuple[str, str]]:
    stored = stored_secrets(source)
    rows = []
    for name, setting in known_settings(source.kind).items():
        state = (_stored_as(stored[name]) if stored.get(name) else _("not stored")) if setting.secret else ""
        rows.append((_(setting.title), state or str(source.config.get(name, setting.default))))
    return rows


DISCOVERY_FIELDS = ("new_workflows", "change_policy", "vanishing_share_percent", "refresh_interval")
LIMIT_FIELDS = ("max_concurrent", "reserved_for")


def fieldsets_to_fill_in(kind: str, source: Source | None) -> list[Any]:
    lines: dict[str, list[Any]] = {"": []}
    stored, config = stored_secrets(source), source.config if source else {}
    settings_, filled_in = known_settings(kind), set()
    for name, setting in settings_.items():
        group, field = setting.hints.group, SETTING + name
        may_forget = setting.secret and not setting.required and stored.get(name)
        lines.setdefault(group, []).append((field, FORGET + name) if may_forget else field)
        if name in stored or config.get(name):
            filled_in.add(group)
    introduction = ""
    if source is None and settings_:
        shown = {"summary": summary_of(connector_class(kind)), "is_choice": len(connector_kinds()) > 1}
        introduction = render_to_string("catalogue/admin/sources/introduction.html", shown)
    return [
        (None, {"fields": ["name", "kind_label" if source else "kind", "enabled", KEPT]}),
        (_(label_of(kind)), {"fields": lines.pop(""), "description": introduction}),
        *(
            (_(group), {"fields": fields, "classes": [] if group in filled_in else ["collapse"]})
            for group, fields in lines.items()
        ),
        (_("Discovery"), {"fields": DISCOVERY_FIELDS}),
        (_("Limits"), {"fields": LIMIT_FIELDS}),
    ]


def label_of(kind: str) -> str:
    try:
        return connector_class(kind).label
    except Misconfigured as error:
        return error.message if kind else ""


HEALTH_BADGES = {
    Source.HealthState.UNKNOWN: "",
    Source.HealthState.OK: "success",
    Source.HealthState.FAILING: "danger",
    Source.HealthState.HELD: "warning",
}
RECENT_RUNS = 5
AWAITED = timedelta(minutes=5)  # How long the list looks for the first listing of an added source
NOT_ASKED = gettext_lazy(
    "Its workflows were declared or imported here; the engine itself has not been asked yet."
)


@admin.register(Source)
class SourceAdmin(ButtonsMixin):
    list_display = (
        "name", "kind", "health", "told", "workflow_counts", "last_refresh", "next_refresh", "enabled",
    )  # fmt: skip
    list_filter = (("health_state", ChoicesDropdownFilter), ("enabled", BooleanRadioFilter))
    search_fields = ("name",)
    actions = ("refresh_selected", "enable_selected", "disable_selected")
    actions_list = ("import_temporal", "import_openapi")
    buttons = ("refresh_now",)
    list_after_template = "catalogue/admin/sources/awaited.html"
    change_form_outer_before_template = "catalogue/admin/source_panel.html"
    change_form_after_template = "catalogue/admin/source_test_result.html"

    class Media:
        css: ClassVar[dict[str, tuple[str, ...]]] = {"all": ("catalogue/admin/source_form.css",)}
        js = ("catalogue/admin/source_form.js",)

    # The list

    def get_list_filter(self, request: HttpRequest) -> Any:
        return (*self.list_filter, *added("source_filters"))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Source]:
        return super().get_queryset(request).with_workflow_counts()  # type: ignore[attr-defined,no-any-return]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        added = Source.objects.filter(enabled=True, health_state=Source.HealthState.UNKNOWN)
        recent = added.filter(created_at__gt=timezone.now() - AWAITED, last_refreshed_at=None)
        awaited = recent.exclude(next_refresh_at=None).exists()
        if "HX-Request" in request.headers and self.has_view_permission(request):
            return HttpResponse(status=204, headers={} if awaited else {"HX-Refresh": "true"})
        return super().changelist_view(request, (extra_context or {}) | {"awaited": awaited})

    @admin.display(description=gettext_lazy("health"), ordering="health_state")
    def health(self, source: Source) -> SafeString:
        return html.badge(
            source.get_health_state_display(), HEALTH_BADGES[Source.HealthState(source.health_state)]
        )

    @admin.display(description=gettext_lazy("the engine's answer"))
    def told(self, source: Source) -> str:
        return render_to_string("catalogue/admin/sources/answer.html", {"source": source})

    @admin.display(description=gettext_lazy("enabled / present"), ordering="present_count")
    def workflow_counts(self, source: Any) -> SafeString:
        counts = f"{source.enabled_count} / {source.present_count}"
        return html.link(counts, "catalogue_workflow_changelist", query=f"?source__id__exact={source.pk}")

    kind_label = column(gettext_lazy("kind"), "kind", label_of, sorts=False)
    last_refresh = column(gettext_lazy("last refresh"), "last_refreshed_at")

    @admin.display(description=gettext_lazy("next refresh"), ordering="next_refresh_at")
    def next_refresh(self, source: Source) -> str:
        return html.ago(source.next_refresh_at) if source.enabled else html.DASH

    # The form

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_add_permission(request) or self._kind_to_add(request):
            return super().add_view(request, form_url, extra_context)
        context = self.admin_site.each_context(request) | {
            "title": _("What kind of engine?"),
            "opts": self.opts,
            "kinds": [
                (label, summary, f"?{urlencode({'kind': kind} | chosen)}")
                for kind, connector in usable_connectors().items()
                for label, summary, chosen in _choices_of(connector)
            ],
            "problems": connector_problems(),
        }
        return TemplateResponse(request, "catalogue/admin/choose_kind.html", context)

    def _kind_to_add(self, request: HttpRequest) -> str:
        """Empty until the user has chosen; a single kind needs no choice."""
        kinds = [*usable_connectors()]
        chosen = request.POST.get("kind") or request.GET.get("kind") or (kinds[0] if len(kinds) == 1 else "")
        return chosen if chosen in kinds else ""

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        initial = super().get_changeform_initial_data(request)
        return initial | {"kind": self._kind_to_add(request)}

    def lock(self, request: HttpRequest, key: str) -> None:
        """A form that is only tested takes no lock."""
        if TEST not in request.POST:
            super().lock(request, key)

    def get_form(
        self, request: HttpRequest, obj: Source | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        kind = obj.kind if obj else self._kind_to_add(request)
        kwargs["form"] = source_form(kind, sealed_for=f"{request.user.pk} {kind} {obj and obj.pk}")
        return super().get_form(request, obj, change, **kwargs)

    def get_fieldsets(self, request: HttpRequest, obj: Source | None = None) -> Any:
        if obj is not None and not self.has_change_permission(request, obj):
            fields = ["name", "enabled", *DISCOVERY_FIELDS, *LIMIT_FIELDS, "settings_shown"]
            return [(None, {"fields": fields})]
        return fieldsets_to_fill_in(obj.kind if obj else self._kind_to_add(request), obj)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "kind":
            kwargs["widget"] = HiddenInput()
        if db_field.name == "reserved_for":
            return ReservedForField(label=gettext_lazy("Reserved for"), help_text=db_field.help_text)
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        if db_field.name == "refresh_interval" and field:
            field.widget.attrs["placeholder"] = settings.CATALOGUE.discovery_interval
        return field

    def get_readonly_fields(self, request: HttpRequest, obj: Source | None = None) -> Any:
        return ("kind_label", "settings_shown")

    @admin.display(description=gettext_lazy("engine's settings"))
    def settings_shown(self, source: Source) -> str:
        shown = {"settings": shown_settings(source)}
        return render_to_string("catalogue/admin/sources/settings.html", shown)

    def save_model(self, request: HttpRequest, obj: Source, form: Any, change: bool) -> None:
        """Changed fields only: new settings make a listing due and replace open connections."""
        own = {name: form.cleaned_data[name] for name in UPDATABLE if not change or name in form.changed_data}
        settings_: dict[str, Any] = {"config": form.config, "credentials": form.credentials}
        if not change:
            obj.pk = create_source(kind=form.kind, **own, **settings_).pk
        elif any(name.startswith((SETTING, FORGET)) for name in form.changed_data):
            change_source(obj, **own, **settings_)
        else:
            change_source(obj, **own)

    def response_add(
        self, request: HttpRequest, obj: Source, post_url_continue: str | None = None
    ) -> HttpResponse:
        added = Source.objects.get(pk=obj.pk)
        if added.enabled and added.new_workflows == Source.NewWorkflows.HIDDEN:
            messages.info(request, render_to_string("catalogue/admin/sources/added.html", {"source": added}))
        return super().response_add(request, obj, post_url_continue)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Renders the form, also a refused one, or the outcome of testing its settings."""
        form = context["adminform"].form
        if isinstance(form, SourceForm) and form.is_bound and form.is_tried:
            outcome = _test_settings(form)
            if "HX-Request" in request.headers:
                return TemplateResponse(request, "catalogue/admin/sources/tested.html", outcome)
            notify = messages.success if outcome["ok"] else messages.error
            notify(request, html.paragraphs("\n".join(outcome["told"])))
        return super().render_change_form(request, context, *args, **kwargs)

    # Deleting also deletes everything of the source except the record of its runs.

    def find_losses(
        self, objs: Any, request: HttpRequest
    ) -> tuple[list[Any], dict[str, int], set[str], list[str]]:
        """Counts instead of the names of thousands of workflows."""
        sources = list(objs)
        counts = {
            _("workflows"): Workflow.objects.filter(source__in=sources).count(),
            _("prompts and resources"): ServerFeature.objects.filter(source__in=sources).count(),
            _("discovery runs"): DiscoveryRun.objects.filter(source__in=sources).count(),
        }
        named: list[Any] = [_("Source: %s") % source.name for source in sources]
        losses = filter(None, (describe(sources) for describe in added("source_losses")))
        warnings = [render_to_string("catalogue/admin/loss.html", {"loss": loss}) for loss in losses]
        return named + warnings, {_("sources"): len(sources)} | counts, set(), []

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Source]) -> None:
        for source in queryset:
            source.delete()

    # Buttons and actions

    @button(gettext_lazy("Refresh now"), icon="refresh", variant="primary", records=True)
    def refresh_now(self, request: HttpRequest, source: Source) -> None:
        _refresh(request, source)

    @admin.action(description=gettext_lazy("Refresh now"), permissions=["refresh"])
    def refresh_selected(self, request: HttpRequest, queryset: QuerySet[Source]) -> None:
        """A single one now; several by the worker, as one hanging engine would block the page."""
        if queryset.count() == 1:
            _refresh(request, queryset.get())
        elif asked := list_soon(queryset, by=actor_of(request)):
            messages.success(
                request,
                f"{counted(asked, 'listing starts', 'listings start')} within seconds. "
                "The discovery runs show their progress.",
            )
        else:
            messages.warning(request, _("Nothing to list: the sources are disabled, or discovery is."))

    @action(  # type: ignore[untyped-decorator]
        description=gettext_lazy("Import Temporal file"),
        url_path="import-temporal",
        icon="upload_file",
        permissions=["import"],
    )
    def import_temporal(self, request: HttpRequest) -> HttpResponseBase:
        return TemporalImportPage.as_view()(request)

    @action(  # type: ignore[untyped-decorator]
        description=gettext_lazy("Import OpenAPI document"),
        url_path="import-openapi",
        icon="upload_file",
        permissions=["import"],
    )
    def import_openapi(self, request: HttpRequest) -> HttpResponseBase:
        return OpenApiImportPage.as_view()(request)

    def may_press_buttons(self, request: HttpRequest) -> bool:
        return self.has_change_permission(request) or request.user.has_perm("catalogue.refresh_source")

    has_refresh_permission = may_press_buttons  # Of the action for selected rows

    def has_import_permission(self, request: HttpRequest) -> bool:
        return self.has_add_permission(request) or self.has_change_permission(request)

    @admin.action(description=gettext_lazy("Enable"), permissions=["change"])
    def enable_selected(self, request: HttpRequest, queryset: QuerySet[Source]) -> HttpResponse | None:
        return self._switch(request, queryset, "Agents see the enabled workflows of {} again.", enabled=True)

    @admin.action(description=gettext_lazy("Disable"), permissions=["change"])
    def disable_selected(self, request: HttpRequest, queryset: QuerySet[Source]) -> HttpResponse | None:
        return self._switch(request, queryset, "Agents no longer see the tools of {}.", enabled=False)

    def _switch(
        self, request: HttpRequest, queryset: QuerySet[Source], told: str, *, enabled: bool
    ) -> HttpResponse | None:
        affected, verb = queryset.filter(enabled=not enabled), "Enable" if enabled else "Disable"
        switch = partial(switch_sources, queryset, enabled=enabled, by=actor_of(request))
        words: dict[str, Any] = {"done": f"{verb}d: {{:,}}.", "note": told, "noun": ("source",)}
        return change_if_sure(self, request, affected, f"{verb} sources", switch, **words)

    def panel(self, request: HttpRequest, obj: Source) -> dict[str, Any]:
        runs = list(obj.discovery_runs.for_lists()[:RECENT_RUNS])
        is_untried = obj.health_state == Source.HealthState.UNKNOWN
        return {
            "headline": [
                self.health(obj),
                obj.health_message and html.paragraphs(obj.health_message),
                NOT_ASKED if is_untried and runs else "",
            ],
            "facts": [
                (f"{obj.get_health_state_display().capitalize()} since", html.exactly(obj.failing_since)),
                (_("Last good listing"), html.exactly(obj.last_refreshed_at)),
                (
                    _("Next listing"),
                    html.exactly(obj.next_refresh_at) if obj.enabled else _("none while disabled"),
                ),
                (_("Workflows enabled / present"), self.workflow_counts(obj)),
                (_("Prompts and resources"), _features_of(request, obj)),
                held_listing_fact(request, obj),
                reviews_fact(request, obj),
                import_fact(request, obj),
                tools_fact(request, obj),
                *(fact(request, obj) for fact in added("source_facts")),
            ],
            "runs": html.table([*map(str, RUN_HEADERS)], (run_row(request, run) for run in runs)),
            "all_runs": html.link_if_allowed(
                request,
                _("All discovery runs"),
                "catalogue_discoveryrun_changelist",
                query=f"?source__id__exact={obj.pk}",
                otherwise="",
            ),
            "kind_problem": engine_kind(obj.kind).problem,
        }


def _features_of(request: HttpRequest, source: Source) -> Any:
    """`2 / 5`, enabled and present; empty if it has none."""
    present = source.features.filter(missing_since=None)
    if not (number := present.count()):
        return ""
    shown = f"{present.filter(enabled=True).count():,} / {number:,}"
    page = "catalogue_serverfeature_changelist"
    return html.link_if_allowed(request, shown, page, query=f"?source__id__exact={source.pk}")


def _choices_of(connector: type[Connector]) -> Iterator[tuple[str, str, dict[str, str]]]:
    """The purposes of a source of the kind: label, sentence, and initial values of the form."""
    ready_made: Any = getattr(connector, "ready_made", tuple)
    for label, summary, settings_ in ready_made():
        yield _(label), _(summary), {SETTING + name: value for name, value in settings_.items()}
    yield _(connector.label), _(summary_of(connector)), {}


def _refresh(request: HttpRequest, source: Source) -> None:
    try:
        run = list_now(source, by=actor_of(request))
    except RefreshRefused as error:
        messages.warning(request, str(error))
        return
    if run.outcome == DiscoveryRun.Outcome.SUCCEEDED:
        notify, answer = messages.warning if run.missing else messages.success, f"{describe_counts(run)}."
    else:
        kept = "" if run.outcome == DiscoveryRun.Outcome.HELD else "The last good list is kept."
        notify, answer = messages.error, f"{run.error} {kept}"
    shown = {"run": run, "answer": answer}
    notify(request, render_to_string("catalogue/admin/sources/listed.html", shown, request))


def _test_settings(form: SourceForm) -> dict[str, Any]:
    if form.setting_errors:
        labels = {name: f"{field.label}: " for name, field in form.fields.items()}
        problems = form.setting_errors.items()
        return {
            "ok": False,
            "told": [f"{labels.get(name, '')}{message}" for name, told in problems for message in told],
        }
    health = check_candidate(form.candidate())
    seconds = health.latency_seconds
    took = "" if seconds is None else f" ({html.duration(round(seconds * 1000))})"
    return {"ok": health.ok, "told": [f"{health.message}{took}"]}
