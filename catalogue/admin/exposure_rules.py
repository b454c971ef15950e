"""Exposure rules with what they change for agents."""

import hashlib
import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Max, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.widgets import UnfoldAdminIntegerFieldWidget

from catalogue.admin.base import (
    ButtonsMixin,
    CatalogueChangeList,
    CatalogueForm,
)
from catalogue.admin.marks import MARK, marked, read_mark, show_mark
from catalogue.admin.rendering import SHOWN_NAMES, Group, badge, group_of, side_by_side
from catalogue.exposure import (
    FilterPreview,
    effect_of_replacing,
    match_rule,
    preview_filters,
)
from catalogue.models import Revision, WorkflowFilter
from catalogue.naming import counted, listed

SHOWN, HIDDEN = _("would be let through"), _("would be hidden")
HELP = {
    "subject": _(
        "What the pattern is compared with. The name is the engine's, not the tool's name. For tags, a "
        "single matching tag is enough."
    ),
    "syntax": _("A glob must match the whole value; a regular expression may match anywhere in it."),
    "pattern": _("Case-sensitive."),
}

SAVE = "_save"  # Django's name of the button below a list that is edited
ROW = re.compile(r"form-([0-9]{1,6})-id")  # How the list names the field with the key of a row
SEEN = "seen"  # The field with the digest of the effect on display; without it nothing is saved

if TYPE_CHECKING:
    FilterModelFormSet = forms.BaseModelFormSet[WorkflowFilter, Any]
else:
    from django.forms import BaseModelFormSet as FilterModelFormSet


class WorkflowFilterForm(CatalogueForm):
    """Saved only after the page has shown its effect on agents."""

    seen = forms.CharField(label=_("Seen"), required=False, widget=forms.HiddenInput)
    effect: FilterPreview | None = None
    question = ""

    class Meta:
        model = WorkflowFilter
        fields = ("action", "subject", "syntax", "pattern", "position", "enabled", "note")

    def is_valid(self) -> bool:
        if not super().is_valid():
            return False
        self.effect, seen, self.question = _review([self.instance], seen=self.data.get(SEEN))
        data: Any = self.data
        self.data = data = data.copy()
        data[SEEN] = seen
        return not self.question

    @property
    def proposal(self) -> list[Group] | None:
        if self.effect is None:
            return None
        return _effect_groups(self.effect, shown=str(SHOWN), hidden=str(HIDDEN))


def sent_keys(request: HttpRequest) -> list[str]:
    """The keys of the submitted rows, in their order in the list."""
    rows = {int(row[1]): str(key) for name, key in request.POST.items() if (row := ROW.fullmatch(name))}
    return [rows[place] for place in sorted(rows)]


class FilterChangeList(CatalogueChangeList):
    result_list: Any

    def get_results(self, request: HttpRequest) -> None:
        """The submitted rows in the submitted order, because others may have moved rows meanwhile."""
        super().get_results(request)
        if SAVE in request.POST:
            rows = {str(rule.pk): rule for rule in self.root_queryset}
            self.result_list = [rows[key] for key in sent_keys(request) if key in rows]


class FilterFormSet(FilterModelFormSet):
    seen = question = ""

    @cached_property
    def forms(self) -> list[Any]:
        """Without the rows that others have deleted."""
        return [form for form in super().forms if form.instance.pk]

    @property
    def errors(self) -> list[Any]:
        """Empty if no form has errors, because the page shows even a list of empty ones as errors."""
        found = super().errors
        return found if any(found) else []

    def is_valid(self) -> bool:
        return super().is_valid() and not self.question

    def add_fields(self, form: Any, index: int | None) -> None:
        """Labels for screen readers, which do not see the column headings."""
        super().add_fields(form, index)
        for name in ("position", "enabled"):
            form.fields[name].widget.attrs["aria-label"] = gettext("%(field)s of %(rule)s") % {
                "field": gettext(name.capitalize()),
                "rule": form.instance,
            }

    def clean(self) -> None:
        super().clean()
        if any(self.errors):
            return
        instances = [form.instance for form in self.forms]
        _, self.seen, self.question = _review(instances, seen=self.data.get(SEEN))


@admin.register(WorkflowFilter)
class WorkflowFilterAdmin(ButtonsMixin):
    list_display = ("rule", "position", "action", "subject", "syntax", "pattern", "enabled", "note")
    list_display_links = ("rule",)
    list_editable = ("position", "enabled")
    ordering = ("position", "pk")
    form = WorkflowFilterForm
    when_empty = _("Without a rule, agents see every workflow that is enabled.")
    list_before_template = "catalogue/admin/filter_preview.html"
    change_form_outer_before_template = "catalogue/admin/filter_question.html"
    change_form_outer_after_template = "catalogue/admin/filter_effect.html"
    fieldsets = (
        (None, {"fields": ("action", "subject", "syntax", "pattern", "position", "enabled", "note", SEEN)}),
    )

    def get_urls(self) -> list[URLPattern]:
        preview = self.admin_site.admin_view(self._preview)
        return [
            path("preview/", preview, name="catalogue_workflowfilter_preview_new"),
            path("<int:key>/preview/", preview, name="catalogue_workflowfilter_preview"),
            *super().get_urls(),
        ]

    def _preview(self, request: HttpRequest, key: int | None = None) -> HttpResponse:
        if not (self.has_change_permission(request) or self.has_add_permission(request)):
            raise PermissionDenied
        stored = None if key is None else WorkflowFilter.objects.filter(pk=key).first()
        form = WorkflowFilterForm(request.POST, instance=stored)
        form.is_valid()
        shown: dict[str, Any] = {"form": form, "is_empty": not request.POST.get("pattern")}
        shown["warning"] = _warning([form.instance])
        if form.effect is not None:
            matched, disabled = match_rule(form.instance)
            of_disabled = [group_of("matched but not enabled", disabled)] if disabled else []
            enabled = group_of("matched, regardless of other rules", matched)
            shown |= {"groups": [enabled, *of_disabled, *(form.proposal or [])]}
        return TemplateResponse(request, "catalogue/admin/filter_live_preview.html", shown)

    @admin.display(description=_("rule"))
    def rule(self, rule: WorkflowFilter) -> str:
        if not (problem := rule.pattern_problem):
            return str(rule)
        return side_by_side(
            [str(rule), badge("invalid: hides each workflow that reaches it", "danger", title=problem)]
        )

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[WorkflowFilter]) -> None:
        for rule in queryset:
            rule.delete()

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "position":
            kwargs["widget"] = UnfoldAdminIntegerFieldWidget(attrs={"style": "max-width: 6rem"})
        if db_field.name in HELP:
            kwargs["help_text"] = HELP[db_field.name]
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        last = WorkflowFilter.objects.aggregate(last=Max("position"))["last"]
        return {"position": (last or 0) + 10} | super().get_changeform_initial_data(request)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[FilterChangeList]:
        return FilterChangeList

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if SAVE not in request.POST:
            return self._list(request, extra_context)
        with transaction.atomic():
            Revision.lock()
            present = WorkflowFilter.objects.select_for_update(no_key=True).values_list("pk", flat=True)
            vars(request)[MARK] = read_mark(request)
            if deleted := len(set(sent_keys(request)) - set(map(str, present))):
                were = "A rule was" if deleted == 1 else f"{deleted} rules were"
                messages.warning(
                    request, f"{were} deleted since the list was opened; the others count as sent."
                )
            return self._list(request, extra_context)

    def _list(self, request: HttpRequest, extra_context: dict[str, Any] | None) -> HttpResponse:
        preview = preview_filters(WorkflowFilter.objects.all())
        groups = _effect_groups(preview, shown=gettext("let through"), hidden=gettext("hidden"))
        answer: Any = super().changelist_view(request, (extra_context or {}) | {"preview": groups})
        formset = getattr((getattr(answer, "context_data", None) or {}).get("cl"), "formset", None)
        if formset is not None:
            answer.context_data |= show_mark(request, None, formset.forms)
        listed: HttpResponse = answer
        return listed

    def get_changelist_formset(self, request: HttpRequest, **kwargs: Any) -> Any:
        formset: Any = super().get_changelist_formset(request, formset=FilterFormSet, **kwargs)
        formset.form = marked(formset.form, request)
        return formset

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        form, stored = context["adminform"].form, context.get("original")
        context |= {"proposal": getattr(form, "proposal", None), "question": getattr(form, "question", "")}
        if self.has_change_permission(request, stored) or (
            stored is None and self.has_add_permission(request)
        ):
            key = [] if stored is None else [stored.pk]
            view = "preview" if key else "preview_new"
            context |= {"preview_url": reverse(f"admin:catalogue_workflowfilter_{view}", args=key)}
        return super().render_change_form(request, context, *args, **kwargs)

    def find_losses(
        self, objs: Any, request: HttpRequest
    ) -> tuple[list[Any], dict[str, int], set[str], list[str]]:
        deleted, counts, forbidden, protected = super().find_losses(objs, request)
        effect = _effect_of([], without=objs)
        lines = [
            render_to_string("catalogue/admin/loss.html", {"loss": line})
            for line in _effect_sentences(effect)
        ]
        return [*deleted, *lines], counts, forbidden, protected

    def panel(self, request: HttpRequest, obj: WorkflowFilter) -> dict[str, Any]:
        rules = list(WorkflowFilter.objects.all())
        others = [rule for rule in rules if rule.pk != obj.pk]
        for rule in rules:
            rule.enabled = rule.enabled or rule.pk == obj.pk
        # What is shown or hidden only because of it, or would be if it were enabled.
        effect = effect_of_replacing(others, rules)
        groups = _effect_groups(
            effect, shown=gettext("let through because of it"), hidden=gettext("hidden because of it")
        )
        return {"effect": groups}


def _effect_of(changed: Iterable[WorkflowFilter], without: Iterable[WorkflowFilter] = ()) -> FilterPreview:
    stored = list(WorkflowFilter.objects.all())
    replaced = {rule.pk for rule in [*changed, *without]}
    return effect_of_replacing(stored, [*(rule for rule in stored if rule.pk not in replaced), *changed])


def _review(changed: list[WorkflowFilter], *, seen: str | None) -> tuple[FilterPreview, str, str]:
    """Returns the effect of the changed rules, its digest, and a question, empty if it changes nothing for
    agents or was `seen` before."""
    effect = _effect_of(changed)
    digest = hashlib.sha256(json.dumps([effect.shown, effect.hidden]).encode()).hexdigest()
    if digest == seen or not (effect.shown or effect.hidden):
        return effect, digest, ""
    told = [_warning(changed), "Not saved yet.", *_effect_sentences(effect), "Save again to confirm."]
    return effect, digest, " ".join(filter(None, told))


def _effect_sentences(effect: FilterPreview) -> list[str]:
    sentences = []
    for what, names in ((HIDDEN, effect.hidden), (SHOWN, effect.shown)):
        if names:
            shown = listed(names, SHOWN_NAMES)
            sentences.append(f"{counted(len(names), 'workflow')} {what}: {shown}.")
    return sentences


def _effect_groups(preview: FilterPreview, *, shown: str, hidden: str) -> list[Group]:
    return [group_of(shown, preview.shown), group_of(hidden, preview.hidden)]


def _warning(changed: Iterable[WorkflowFilter]) -> str:
    """The first include rule excludes everything that it does not name."""
    includes = WorkflowFilter.objects.filter(enabled=True, action=WorkflowFilter.Action.INCLUDE)
    if includes.exists() or not any(rule.enabled and rule.action == rule.Action.INCLUDE for rule in changed):
        return ""
    return "The first include rule hides every workflow that no include rule matches."
