"""Workflow filters with what they change for agents, and the filters of the list of workflows."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Count, Max, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from unfold.contrib.filters.admin import BooleanRadioFilter, RelatedDropdownFilter
from unfold.widgets import UnfoldAdminIntegerFieldWidget

from catalogue.actions.workflows import known_tags
from catalogue.admin.base import (
    ButtonsMixin,
    CatalogueChangeList,
    CatalogueForm,
    ColumnFilter,
    CountingFilter,
    OptionsFilter,
    since,
)
from catalogue.admin.marks import MARK, leave_out_deleted, marked, read_mark, show_mark
from catalogue.admin.rendering import SHOWN_NAMES, Group, badge, group_of, side_by_side
from catalogue.exposure import (
    Explanation,
    FilterPreview,
    Visibility,
    effect_of_replacing,
    explain_all,
    match_rule,
    members_of_toolsets,
    preview_filters,
)
from catalogue.long_lists import search_problem
from catalogue.models import Review, Revision, Toolset, Workflow, WorkflowFilter
from catalogue.models.workflow import is_hinted, is_overridden
from catalogue.naming import counted, listed
from catalogue.presentation import CURATORS_HINTS

SHOWN, HIDDEN = "would be let through", "would be hidden"
HELP = {
    "subject": "What the pattern is compared with. The name is the engine's, not the tool's "
    "name. For tags, a single matching tag is enough.",
    "syntax": "A glob must match the whole value; a regular expression may match anywhere in it.",
    "pattern": "Case-sensitive.",
}

SAVE = "_save"  # Django's name of the button below a list that is edited
SEEN = "seen"  # The field with the digest of the effect on display; without it nothing is saved
PREVIEW = "_preview"

if TYPE_CHECKING:
    FilterModelFormSet = forms.BaseModelFormSet[WorkflowFilter, Any]
else:
    from django.forms import BaseModelFormSet as FilterModelFormSet


class WorkflowFilterForm(CatalogueForm):
    """Saved only after the page has shown its effect on agents."""

    seen = forms.CharField(required=False, widget=forms.HiddenInput)
    effect: FilterPreview | None = None
    question = warning = ""

    class Meta:
        model = WorkflowFilter
        fields = ("action", "subject", "syntax", "pattern", "position", "enabled", "note")

    def is_valid(self) -> bool:
        if not super().is_valid():
            return False
        self.effect = _effect_of([self.instance])
        is_seen = not _differs(self.effect) or self.data.get(SEEN) == _fingerprint(self.effect)
        self.warning = _warning([self.instance])
        data: Any = self.data
        self.data = data = data.copy()
        data[SEEN] = _fingerprint(self.effect)
        if PREVIEW in self.data:
            return False
        if not is_seen:
            self.question = _question(self.effect)
        return is_seen

    @property
    def proposal(self) -> list[Group] | None:
        return None if self.effect is None else _effect_groups(self.effect, shown=SHOWN, hidden=HIDDEN)


class FilterChangeList(CatalogueChangeList):
    result_list: Any

    def get_results(self, request: HttpRequest) -> None:
        """The submitted rows in the submitted order, because others may have moved rows meanwhile."""
        super().get_results(request)
        if SAVE in request.POST:
            rows = {str(rule.pk): rule for rule in self.root_queryset}
            sent = (request.POST.get(f"form-{place}-id") for place in range(len(rows)))
            self.result_list = [rows[key] for key in sent if key in rows]


class FilterFormSet(FilterModelFormSet):
    seen = question = ""

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
            form.fields[name].widget.attrs["aria-label"] = f"{name.capitalize()} of {form.instance}"

    def clean(self) -> None:
        super().clean()
        if any(self.errors):
            return
        effect = _effect_of([form.instance for form in self.forms])
        self.seen = _fingerprint(effect)
        if _differs(effect) and self.data.get(SEEN) != self.seen:
            warning = _warning([form.instance for form in self.forms])
            self.question = f"{warning} {_question(effect)}".strip()


@admin.register(WorkflowFilter)
class WorkflowFilterAdmin(ButtonsMixin):
    list_display = ("rule", "position", "action", "subject", "syntax", "pattern", "enabled", "note")
    list_display_links = ("rule",)
    list_editable = ("position", "enabled")
    ordering = ("position", "pk")
    form = WorkflowFilterForm
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
        form = WorkflowFilterForm({**request.POST.dict(), PREVIEW: "1"}, instance=stored)
        form.is_valid()
        shown: dict[str, Any] = {"form": form, "is_empty": not request.POST.get("pattern")}
        if form.effect is not None:
            matched, disabled = match_rule(form.instance)
            of_disabled = [group_of("matched but not enabled", disabled)] if disabled else []
            enabled = group_of("matched, regardless of other filters", matched)
            shown |= {"groups": [enabled, *of_disabled, *(form.proposal or [])]}
        return TemplateResponse(request, "catalogue/admin/filter_live_preview.html", shown)

    @admin.display(description="rule")
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
            if deleted := leave_out_deleted(request, set(map(str, present))):
                were = "A filter was" if deleted == 1 else f"{deleted} filters were"
                messages.warning(
                    request, f"{were} deleted since the list was opened; the others count as sent."
                )
            return self._list(request, extra_context)

    def _list(self, request: HttpRequest, extra_context: dict[str, Any] | None) -> HttpResponse:
        preview = preview_filters(WorkflowFilter.objects.all())
        groups = _effect_groups(preview, shown="let through", hidden="hidden")
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
        lines = [format_html("<b>{}</b>", line) for line in _effect_sentences(effect)]
        return [*deleted, *lines], counts, forbidden, protected

    def panel(self, request: HttpRequest, obj: WorkflowFilter) -> dict[str, Any]:
        rules = list(WorkflowFilter.objects.all())
        others = [rule for rule in rules if rule.pk != obj.pk]
        for rule in rules:
            rule.enabled = rule.enabled or rule.pk == obj.pk
        # What is shown or hidden only because of it, or would be if it were enabled.
        effect = effect_of_replacing(others, rules)
        groups = _effect_groups(effect, shown="let through because of it", hidden="hidden because of it")
        return {"effect": groups}


def _effect_of(changed: Iterable[WorkflowFilter], without: Iterable[WorkflowFilter] = ()) -> FilterPreview:
    stored = list(WorkflowFilter.objects.all())
    replaced = {rule.pk for rule in [*changed, *without]}
    return effect_of_replacing(stored, [*(rule for rule in stored if rule.pk not in replaced), *changed])


def _differs(effect: FilterPreview) -> bool:
    return bool(effect.shown or effect.hidden)


def _fingerprint(effect: FilterPreview) -> str:
    return hashlib.sha256(json.dumps([effect.shown, effect.hidden]).encode()).hexdigest()


def _question(effect: FilterPreview) -> str:
    return f"Not saved yet. {' '.join(_effect_sentences(effect))} Save again to confirm."


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
    """The first include filter excludes everything that it does not name."""
    includes = WorkflowFilter.objects.filter(enabled=True, action=WorkflowFilter.Action.INCLUDE)
    if includes.exists() or not any(rule.enabled and rule.action == rule.Action.INCLUDE for rule in changed):
        return ""
    return "The first include filter hides every workflow that no include filter matches."


# The list of workflows

HINT_WORDS = {
    "readOnlyHint": ("read-only", "changes things"),
    "destructiveHint": ("destructive", "not destructive"),
    "idempotentHint": ("idempotent", "not idempotent"),
    "openWorldHint": ("open world", "closed world"),
}


def _awaiting(kind: str) -> Callable[[], Q]:
    return lambda: Q(pk__in=Review.objects.awaiting().filter(kind=kind).values("pk"))


def _none_of(*conditions: Q) -> Callable[[], Q]:
    """Returns a condition by key. Unknown ones, such as those of a column without a value, are false."""
    return lambda: ~Q(pk__in=Workflow.objects.filter(Q(*conditions, _connector=Q.OR)).order_by().values("pk"))


def _cached() -> Q:
    return Q(pk__in=Workflow.objects.cached().order_by().values("pk"))


class VisibilityFilter(CountingFilter):
    title = "visibility"
    parameter_name = "visibility"
    HIDDEN, UNMATCHED, BY_FILTER = "hidden", "no-filter", "filter-"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        rules = WorkflowFilter.objects.filter(enabled=True)
        return [
            (Visibility.EXPOSED.name.lower(), "exposed"),
            (self.HIDDEN, "not visible, for any reason"),
            *((one.name.lower(), one.value) for one in Visibility if one != Visibility.EXPOSED),
            (self.UNMATCHED, "hidden because no filter includes it"),
            *((f"{self.BY_FILTER}{rule.pk}", f"hidden by: {rule}") for rule in rules),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> QuerySet[Workflow]:
        if not (wanted := self.value()):
            return queryset
        return queryset.filter(
            pk__in=[key for key, verdict in explain_all().items() if wanted in self._choices_of(verdict)]
        )

    def count_choices(self, rows: QuerySet[Workflow]) -> Mapping[str, int]:
        verdicts, keys = explain_all(), rows.order_by().values_list("pk", flat=True)
        # Those that were added meanwhile have no verdict.
        return Counter(
            choice for key in keys if key in verdicts for choice in self._choices_of(verdicts[key])
        )

    def _choices_of(self, verdict: Explanation) -> list[str]:
        choices = [verdict.visibility.name.lower()]
        if verdict.visibility != Visibility.EXPOSED:
            choices.append(self.HIDDEN)
        if verdict.visibility == Visibility.FILTERED:
            rule = verdict.deciding_filter
            choices.append(self.UNMATCHED if rule is None else f"{self.BY_FILTER}{rule.pk}")
        return choices


class ToolsetFilter(CountingFilter):
    title = "toolset"
    parameter_name = "toolset"
    IN_NONE = "-"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        slugs = Toolset.objects.values_list("slug", flat=True)
        return [*((slug, slug) for slug in slugs), (self.IN_NONE, "in no toolset")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> QuerySet[Workflow]:
        if not (wanted := self.value()):
            return queryset
        members = members_of_toolsets()
        if wanted == self.IN_NONE:
            return queryset.exclude(pk__in=set().union(*members.values()))
        return queryset.filter(pk__in=members.get(wanted, ()))

    def count_choices(self, rows: QuerySet[Workflow]) -> Mapping[str, int]:
        members, keys = members_of_toolsets(), set(rows.order_by().values_list("pk", flat=True))
        counts = {slug: len(keys & of_toolset) for slug, of_toolset in members.items()}
        return counts | {self.IN_NONE: len(keys.difference(*members.values()))}


class TagFilter(CountingFilter):
    title = "tag"
    parameter_name = "tag"
    MOST = 1_000

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(tag, tag) for tag in known_tags()[: self.MOST]]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> QuerySet[Workflow]:
        if not (tag := self.value()):
            return queryset
        if problem := search_problem(tag):
            raise IncorrectLookupParameters(problem)
        return queryset.filter(pk__in=Workflow.objects.tagged(tag).order_by().values("pk"))

    def count_choices(self, rows: Any) -> Mapping[str, int]:
        counts: dict[str, int] = rows.count_by_tag(tag for tag, _ in self.lookup_choices)
        return counts


class HintFilter(OptionsFilter):
    title = "hint"
    parameter_name = "hint"
    options = {
        **{hint: (words[0], is_hinted(hint)) for hint, words in HINT_WORDS.items()},
        "none": ("none of these", _none_of(*map(is_hinted, HINT_WORDS))),
    }


class OverriddenFilter(OptionsFilter):
    title = "curated"
    parameter_name = "overridden"
    options = {
        "any": ("anything", is_overridden()),
        "title": ("title", is_overridden("title_override")),
        "description": ("description", is_overridden("description_override")),
        "tags": ("tags", is_overridden("tags_override")),
        "name": ("tool name", is_overridden("former_tool_names")),
        "hints": ("hints", is_overridden(*CURATORS_HINTS)),
        "limits": ("limits", is_overridden("timeout_seconds", "max_concurrent", "cache_seconds")),
        "nothing": ("nothing: all values are the engine's", _none_of(is_overridden())),
    }


class ChangedFilter(OptionsFilter):
    title = "changed upstream"
    parameter_name = "changed"
    options = {
        "day": ("changed in the last 24 hours", since("changed_at", days=1)),
        "week": ("changed in the last 7 days", since("changed_at", days=7)),
        "month": ("changed in the last 30 days", since("changed_at", days=30)),
        "new-day": ("new in the last 24 hours", since("first_seen_at", days=1)),
        "new-week": ("new in the last 7 days", since("first_seen_at", days=7)),
        "new-month": ("new in the last 30 days", since("first_seen_at", days=30)),
    }


class AvailabilityFilter(OptionsFilter):
    title = "presence in the engine's list"
    parameter_name = "available"
    options = {
        "missing": ("missing", ~Q(missing_since=None)),
        "present": ("present", Q(missing_since=None)),
    }


class LimitFilter(OptionsFilter):
    title = "concurrent runs"
    parameter_name = "limit"
    options = {
        "own": ("limited for the workflow", ~Q(max_concurrent=None)),
        "none": ("without a limit of its own", Q(max_concurrent=None)),
    }


class CacheFilter(OptionsFilter):
    title = "results"
    parameter_name = "cache"
    options = {
        "cached": ("cached", _cached),
        "never": ("never cached", lambda: ~_cached()),
    }


class SchemaFilter(OptionsFilter):
    title = "input schema"
    parameter_name = "schema"
    options = {
        "own": ("the engine's own", Q(schema_problem="")),
        "replaced": ("replaced, because invalid", ~Q(schema_problem="")),
    }


class LookalikeFilter(OptionsFilter):
    title = "name and title"
    parameter_name = "lookalike"
    options = {"yes": ("can be mistaken for another tool", ~Q(resembles=""))}


class WarningFilter(OptionsFilter):
    title = "texts"
    parameter_name = "warning"
    options = {"yes": ("may try to command agents", ~Q(warning=""))}


class DescriptionFilter(OptionsFilter):
    title = "description"
    parameter_name = "description"
    options = {"none": ("needs one", Q(description="", description_override=""))}


class ReviewFilter(OptionsFilter):
    title = "review"
    parameter_name = "review"
    options = {
        "changed": ("a change is held", _awaiting("changed")),
        "new": ("new and held", _awaiting("new")),
    }


class SourceFilter(RelatedDropdownFilter):  # type: ignore[misc]
    def get_facet_queryset(self, changelist: Any) -> dict[str, int]:
        rows = changelist.get_queryset(self.request, self.expected_parameters())
        counts = dict(rows.order_by().values_list("source").annotate(Count("pk")))
        return {f"{key}__c": counts.get(key, 0) for key, _ in self.lookup_choices}


class CategoryFilter(ColumnFilter, CountingFilter):
    title = parameter_name = column = "category"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterator[tuple[str, str]]:
        categories = Workflow.objects.order_by("category").values_list("category", flat=True).distinct()
        return ((category, category) for category in categories)

    def count_choices(self, rows: QuerySet[Workflow]) -> Mapping[str, int]:
        return dict(rows.order_by().values_list("category").annotate(Count("pk")))


LIST_FILTERS = (
    VisibilityFilter, ReviewFilter, ("source", SourceFilter), TagFilter, HintFilter,
    ToolsetFilter, CategoryFilter, OverriddenFilter, ChangedFilter, ("enabled", BooleanRadioFilter),
    AvailabilityFilter, DescriptionFilter, SchemaFilter, LookalikeFilter, WarningFilter, LimitFilter,
    CacheFilter, ("offered_as_prompt", BooleanRadioFilter),
)  # fmt: skip
