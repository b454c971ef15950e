"""The list of workflows: its columns, search, switch and actions."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.templatetags.admin_list import result_headers
from django.contrib.admin.views.main import ALL_VAR, ERROR_FLAG, ORDER_VAR, PAGE_VAR
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotFound, HttpResponseRedirect, QueryDict
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext_lazy as _
from unfold import widgets

from catalogue.actions import workflows as actions
from catalogue.actions.toolsets import add_to_toolset, write_toolset
from catalogue.admin.base import (
    CatalogueAdmin,
    CatalogueChangeList,
    FixedRowsMixin,
    TableMixin,
    ask_for_selected,
    ask_if_many,
    change_if_sure,
)
from catalogue.admin.extensions import added
from catalogue.admin.facets import FACETS, MOVED, Choice, Facet, OptionsFacet, count_options
from catalogue.admin.form_fields import CommasField
from catalogue.admin.rendering import rendered
from catalogue.admin.reviews import accept_for_workflows
from catalogue.admin.workflow_page import SEEN, WorkflowPage
from catalogue.admin.workflow_rows import RowsMixin, prepare_rows
from catalogue.exposure import count_switched
from catalogue.history import actor_of
from catalogue.long_lists import KeyPaginator, among
from catalogue.models import SavedView, Toolset, Workflow
from catalogue.models.saved_view import MAX_QUERY
from catalogue.models.workflow import SEARCHED, WorkflowQuerySet
from catalogue.naming import counted
from catalogue.search_terms import MARKS, search_workflows

MAX_SUGGESTED, MAX_WARNED = 500, 500
MAX_SELECTED = 2_000  # Rows that a selection keeps while filters and pages change
MAX_VIEWS = 50  # Of a user, and shared ones
LIST = "admin:catalogue_workflow_changelist"
COUNTED_AT_ONCE = 2_000  # Rows of the table, up to which a page has its facets at once
CHOSEN = "chosen"  # The keys and content hashes of such a selection
HASHES = re.compile("([0-9]{1,18}):([0-9A-Za-z]*)")


def read_hashes(text: str) -> dict[int, str]:
    """Reads content hashes by key, as `12:5f1d…,13:09c2…`."""
    return {int(key): content_hash for key, content_hash in HASHES.findall(text)}


def write_hashes(hashes: Mapping[int, str]) -> str:
    return ",".join(f"{key}:{content_hash}" for key, content_hash in hashes.items())


def plain_query(text: str) -> str:
    """Leaves out the page, so that the address of a list is the same on each."""
    query = QueryDict(text, mutable=True)
    for name in (PAGE_VAR, ALL_VAR, ERROR_FLAG):
        query.pop(name, None)
    return query.urlencode()


class TagsForm(forms.Form):
    tags = CommasField(
        label=_("Tags"),
        help_text=_("Separated by commas."),
        error_messages={"required": "Enter at least one tag."},
        widget=widgets.UnfoldAdminTextInputWidget(
            attrs={"autocomplete": "off", "list": "known-tags", "autofocus": True}
        ),
    )
    suggested = staticmethod(lambda: actions.known_tags()[:MAX_SUGGESTED])


class ToolsetForm(forms.Form):
    toolset = forms.ModelChoiceField(
        Toolset.objects.all(),
        label=_("Toolset"),
        required=False,
        help_text=_("Adds them by hand. The toolset shows those that are exposed."),
        widget=widgets.UnfoldAdminSelectWidget,
    )

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if not self.errors and bool(cleaned.get("toolset")) == bool(cleaned.get("slug")):
            self.add_error("toolset", _("Choose a toolset, or name a new one."))
        if cleaned.get("slug") and not self.errors:
            try:
                Toolset(slug=cleaned["slug"], title=cleaned["title"]).full_clean()
            except ValidationError as error:
                self.add_error(None, error)
        return cleaned


class AnyToolsetForm(ToolsetForm):
    slug = forms.CharField(
        label=_("Or a new toolset"),
        required=False,
        help_text=_("Its address ends with this name, such as billing."),
        widget=widgets.UnfoldAdminTextInputWidget(attrs={"autocomplete": "off"}),
    )
    title = forms.CharField(
        label=_("Title of the new toolset"), required=False, widget=widgets.UnfoldAdminTextInputWidget
    )


class ViewForm(forms.Form):
    name = forms.CharField(max_length=60)
    query = forms.CharField(max_length=MAX_QUERY, required=False)
    shared = forms.BooleanField(required=False)


@dataclass(frozen=True, slots=True)
class Chip:
    facet: Any
    label: Any
    is_excluded: bool
    removal: str  # The address without it


class WorkflowChangeList(CatalogueChangeList):
    """Reads the facets once, counts their values, and prepares what the rows show."""

    result_list: Any
    title: Any
    filter_specs: Any

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().__init__(request, *args, **kwargs)
        self.title = _("Workflows")

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[Workflow]:
        workflows: Any = super().get_queryset(request, *args, **kwargs)
        listed: WorkflowQuerySet = workflows.for_lists()
        return listed

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        may_change = self.model_admin.has_change_permission(request)
        prepare_rows(self.result_list, may_change=may_change)

    def count_facets(self, request: HttpRequest) -> None:
        """Each facet counts the rows that the search and the other facets leave."""
        facets = self.filter_specs
        together = [one for one in facets if isinstance(one, OptionsFacet) and not one.is_active]
        for facet, counts in zip(together, count_options(together, self.queryset), strict=True):
            facet.counts = counts
        for facet in facets:
            if facet not in together:
                facet.counts = facet.count(self.get_queryset(request, facet.expected_parameters()))
        self.filter_specs = facets  # Django's method makes others

    @property
    def counts_later(self) -> bool:
        """Whether the page asks for the facets when it is shown. For each 10,000 rows, counting takes as long
        as the rest of the page."""
        rows: Any = self.queryset
        return bool(self.full_result_count > COUNTED_AT_ONCE and not rows.query.is_empty())

    @cached_property
    def facets(self) -> list[tuple[Facet, list[Choice]]]:
        return [(facet, list(facet.choices(self))) for facet in self.filter_specs]

    @property
    def chips(self) -> list[Chip]:
        return [
            Chip(facet.title, choice.label, choice.is_unwanted, removal)
            for facet, choices in self.facets
            for choice in choices
            if (removal := choice.removal)
        ]

    @property
    def without_filters(self) -> str:
        names = [name for facet in self.filter_specs for name in facet.expected_parameters()]
        address: str = self.get_query_string(dict.fromkeys(names))
        return address

    @property
    def headers(self) -> list[dict[str, Any]]:
        """Those after the checkbox, with plain names of classes instead of Django's HTML attribute."""
        names = [getattr(one, "__name__", one) for one in self.list_display]
        shown = zip(names, result_headers(self), strict=True)
        return [header | {"class_names": f"column-{name}"} for name, header in shown][1:]

    @property
    def seen(self) -> str:
        return write_hashes({row.pk: row.content_hash for row in self.result_list})


class SavedViewsMixin(CatalogueAdmin):
    """The filters, the search and the order of the list under a name."""

    def get_urls(self) -> list[URLPattern]:
        save = self.guarded(self._save_this_view, self.has_view_permission, "POST")
        delete = self.guarded(self._remove_saved_view, self.has_view_permission, "POST")
        return [
            path("views/", save, name="catalogue_workflow_view_save"),
            path("views/<int:key>/delete/", delete, name="catalogue_workflow_view_delete"),
            *super().get_urls(),
        ]

    def _save_this_view(self, request: HttpRequest) -> HttpResponse:
        """Saves it under a new name, or replaces the view of that name."""
        form = ViewForm(request.POST)
        if not form.is_valid():
            messages.error(request, " ".join(str(one) for told in form.errors.values() for one in told))
            return HttpResponseRedirect(reverse(LIST))
        given, query = form.cleaned_data, plain_query(form.cleaned_data["query"])
        if given["shared"] and not self.has_change_permission(request):
            raise PermissionDenied
        owner: Any = None if given["shared"] else request.user
        views = SavedView.objects.filter(user=owner)
        with transaction.atomic():
            views.filter(name=given["name"]).delete()
            if views.count() < MAX_VIEWS:
                SavedView.objects.create(user=owner, name=given["name"], query=query[:MAX_QUERY])
            else:
                messages.error(request, _("There are %s views: delete one first.") % MAX_VIEWS)
        return HttpResponseRedirect(f"{reverse(LIST)}?{query}")

    def _remove_saved_view(self, request: HttpRequest, key: int) -> HttpResponse:
        view = get_object_or_404(SavedView.objects.visible_to(request.user), pk=key)
        if view.user_id is None and not self.has_change_permission(request):
            raise PermissionDenied
        view.delete()
        return HttpResponseRedirect(reverse(LIST))


class WorkflowList(RowsMixin, SavedViewsMixin, TableMixin):
    class Media:
        css: ClassVar[dict[str, tuple[str, ...]]] = {"all": ("catalogue/admin/workflow_list.css",)}
        js = ("catalogue/admin/workflow_list.js",)

    change_list_template = "catalogue/admin/workflows/list.html"
    list_display = ("enabled", "tool_name", "source", "changed_at")
    list_select_related = ("source",)
    list_per_page = 50
    list_fullwidth = True
    paginator = KeyPaginator
    search_fields = SEARCHED
    marks = tuple(MARKS)
    search_help_text = _("Words, tag:billing, source:erp, -excluded, billing_*")
    actions = (
        "enable_selected", "disable_selected", "accept_selected", "tag_selected", "untag_selected",
        "add_selected_to_toolset", "mark_selected_read_only", "clear_selected_hints",
        "remove_selected",
    )  # fmt: skip

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[WorkflowChangeList]:
        return WorkflowChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Workflow]:
        workflows: QuerySet[Workflow] = super().get_queryset(request)
        for orders in added("workflow_orders") if ORDER_VAR in request.GET else ():
            workflows = workflows.alias(**orders())
        return workflows

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        offered = [action for offer in added("workflow_actions") if (action := offer(request))]
        further = {one.__name__: (one, one.__name__, one.short_description) for one in offered}
        return super().get_actions(request) | further

    def get_list_display(self, request: HttpRequest) -> tuple[Any, ...]:
        *first, changed = self.list_display
        return (*first, *added("workflow_columns"), changed)

    def get_list_filter(self, request: HttpRequest) -> Any:
        facets = (*FACETS, *added("workflow_filters"))
        return [one for one in facets if not one.may_see or request.user.has_perm(one.may_see)]

    def search_list(
        self, request: HttpRequest, queryset: QuerySet[Workflow], search_term: str
    ) -> tuple[QuerySet[Workflow], bool]:
        try:
            found = search_workflows(cast("WorkflowQuerySet", queryset), search_term)
            # Each query for the page would search the texts again.
            keys = found.order_by().values_list("pk", flat=True) if search_term else None
            return found if keys is None else queryset.filter(among(keys)), False
        except ValidationError as error:
            messages.error(request, f"{error.messages[0]} {_('Nothing was searched.')}")
            return queryset.none(), False

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        pairs = request.META["QUERY_STRING"].split("&")
        request.META["QUERY_STRING"] = "&".join(MOVED.get(pair, pair) for pair in pairs)
        request.GET = QueryDict(request.META["QUERY_STRING"])
        chosen = read_hashes(request.POST.get(CHOSEN, ""))
        if len(chosen) > MAX_SELECTED:
            messages.error(request, _("Nothing was done: select at most %s workflows.") % f"{MAX_SELECTED:,}")
            return HttpResponseRedirect(request.get_full_path())
        if chosen:
            posted = request.POST.copy()
            keys = {*posted.getlist(ACTION_CHECKBOX_NAME), *map(str, chosen)}
            posted.setlist(ACTION_CHECKBOX_NAME, list(keys))
            request.POST = posted  # type: ignore[assignment]
        answer = super().changelist_view(request, extra_context)
        context = getattr(answer, "context_data", None) or {}
        if (shown := context.get("cl")) is not None:
            if not shown.counts_later:
                shown.count_facets(request)
            shown.here = plain_query(request.META["QUERY_STRING"])
            shown.may_share = self.has_change_permission(request)
            shown.views = list(SavedView.objects.visible_to(request.user))
            for one in shown.views:
                one.is_here = one.query == shown.here
                one.may_be_deleted = one.user_id is not None or shown.may_share
        return answer

    def get_urls(self) -> list[URLPattern]:
        view = self.guarded(self._show_facets, self.has_view_permission, "GET")
        return [path("facets/", view, name="catalogue_workflow_facets"), *super().get_urls()]

    def _show_facets(self, request: HttpRequest) -> HttpResponse:
        """For a page that the list has left without them."""
        if (listed := self.read_list(request)) is None:
            return HttpResponseNotFound()
        listed.count_facets(request)
        return TemplateResponse(request, "catalogue/admin/workflows/facets.html", {"cl": listed})

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Workflow], *args: Any, **kwargs: Any
    ) -> HttpResponse | None:
        """A selection may have rows that the filters no longer leave."""
        if request.POST.get("select_across") != "1":
            queryset = self.get_queryset(request).select_related("source")
        return super().response_action(request, queryset, *args, **kwargs)

    @admin.action(description=_("Enable: agents may see and call them"), permissions=["change"])
    def enable_selected(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> HttpResponse | None:
        """As the page showed them; rows of other pages, selected with all, as they are now."""
        by, keys = actor_of(request), list(queryset.values_list("pk", flat=True))
        shown = read_hashes(request.POST.get(SEEN, "")) | read_hashes(request.POST.get(CHOSEN, ""))
        seen = {key: shown[key] for key in keys if key in shown}

        def enable() -> None:
            enabled = actions.enable_if_unchanged(seen, by=by)
            others = Workflow.objects.filter(pk__in=[key for key in keys if key not in seen])
            changed = enabled.changed + actions.enable_workflows(others, by=by)
            messages.success(request, f"Enabled: {changed:,}.")
            if message := enabled.refusal():
                messages.warning(request, message)

        def note(count: int) -> str:
            tools = counted(count_switched(keys, enabled=True), "tool")
            selected = counted(len(keys), "selected workflow")
            warning = f" Texts of {len(asked):,} may try to command agents:" if asked else ""
            return f"Enables {count:,} of {selected}. Newly visible to agents: {tools}.{warning}"

        hidden = queryset.filter(enabled=False)
        warned = hidden.exclude(warning="").select_related(None).only("tool_name", "warning", "content_hash")
        asked = [] if "post" in request.POST else list(warned[:MAX_WARNED])
        # Others with a warning than the page showed stay hidden.
        unseen = dict.fromkeys(warned.values_list("pk", flat=True), "")
        seen = unseen | {row.pk: row.content_hash for row in asked} | seen
        sent = [(SEEN, write_hashes({key: shown for key, shown in seen.items() if shown}))]
        told = [f"{row.tool_name}: {row.warning}" for row in asked]
        return ask_if_many(
            self, request, hidden, "Enable workflows", enable, note=note, shown=told, sent=sent
        )

    @admin.action(description=_("Disable"), permissions=["change"])
    def disable_selected(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> HttpResponse | None:
        def disable() -> None:
            disabled = actions.disable_workflows(queryset, by=actor_of(request))
            messages.success(request, f"Disabled: {disabled:,}.")

        def note(count: int) -> str:
            keys = list(queryset.values_list("pk", flat=True))
            tools = counted(count_switched(keys, enabled=False), "tool")
            selected = counted(len(keys), "selected workflow")
            return f"Disables {count:,} of {selected}. No longer visible to agents: {tools}."

        shown = queryset.filter(enabled=True)
        return ask_if_many(self, request, shown, "Disable workflows", disable, note=note)

    @admin.action(description=_("Accept changes…"), permissions=["change"])
    def accept_selected(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> HttpResponse | None:
        return accept_for_workflows(self, request, queryset)

    @admin.action(
        description=_("Mark as read-only: clients may call them without asking"), permissions=["change"]
    )
    def mark_selected_read_only(
        self, request: HttpRequest, queryset: QuerySet[Workflow]
    ) -> HttpResponse | None:
        mark = partial(actions.mark_read_only, queryset, by=actor_of(request))
        done, note = "Marked as read-only: {:,}.", "Clients may call {} without asking."
        return change_if_sure(self, request, queryset, "Mark as read-only", mark, done=done, note=note)

    @admin.action(description=_("Restore the engine's hints"), permissions=["change"])
    def clear_selected_hints(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> HttpResponse | None:
        clear = partial(actions.clear_hints, queryset, by=actor_of(request))
        done, note = "Restored the engine's hints: {:,}.", "Your hints of {} are removed."
        return change_if_sure(self, request, queryset, "Restore hints", clear, done=done, note=note)

    @admin.action(description=_("Add tags…"), permissions=["change"])
    def tag_selected(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> HttpResponse | None:
        def add(form: TagsForm) -> None:
            changed = actions.change_tags(queryset, add=form.cleaned_data["tags"], by=actor_of(request))
            messages.success(request, f"Tagged: {changed}.")

        return ask_for_selected(self, request, queryset, TagsForm, "Add tags", add)

    @admin.action(description=_("Remove tags…"), permissions=["change"])
    def untag_selected(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> HttpResponse | None:
        def remove(form: TagsForm) -> None:
            changed = actions.change_tags(queryset, remove=form.cleaned_data["tags"], by=actor_of(request))
            messages.success(request, f"Removed tags from: {changed}.")

        return ask_for_selected(self, request, queryset, TagsForm, "Remove tags", remove)

    @admin.action(description=_("Add to toolset…"), permissions=["toolset"])
    def add_selected_to_toolset(
        self, request: HttpRequest, queryset: QuerySet[Workflow]
    ) -> HttpResponse | None:
        def add(form: ToolsetForm) -> None:
            toolset = form.cleaned_data["toolset"]
            if toolset is None:
                given = {name: form.cleaned_data[name] for name in ("slug", "title")}
                toolset = write_toolset(Toolset(), **given)
                self.log_addition(request, toolset, "Added.")
            count = add_to_toolset(toolset, queryset, by=actor_of(request))
            page = reverse("admin:catalogue_toolset_change", args=[toolset.pk])
            told = rendered("parts/added_to_toolset", toolset=toolset, page=page, count=count)
            messages.success(request, told)

        may_add = request.user.has_perm("catalogue.add_toolset")
        form = AnyToolsetForm if may_add else ToolsetForm
        return ask_for_selected(self, request, queryset, form, "Add to a toolset", add)

    @admin.action(description=_("Remove, if the engine no longer lists them…"), permissions=["change"])
    def remove_selected(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> HttpResponse | None:
        def remove(_: forms.Form) -> None:
            outcome = actions.remove_missing(queryset, by=actor_of(request))
            messages.success(request, f"Removed: {outcome.removed:,}.")
            if message := outcome.kept_message():
                messages.warning(request, message)

        note = (
            f"Of {counted(queryset.count(), 'workflow')}, those that their engine no longer lists are "
            "removed with your texts, settings and picks for toolsets. Those with executions are kept."
        )
        return ask_for_selected(self, request, queryset, forms.Form, "Remove workflows", remove, note=note)

    def has_toolset_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("catalogue.change_toolset"))


@admin.register(Workflow)
class WorkflowAdmin(FixedRowsMixin, WorkflowList, WorkflowPage):  # type: ignore[misc]  # Both have Media
    """The list of workflows and the page of each."""
