"""A row of the list of workflows: what it shows, its switch, and its texts edited in place."""

from collections.abc import Sequence
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from unfold import widgets

from catalogue.actions import workflows as actions
from catalogue.admin import marks
from catalogue.admin.base import CatalogueAdmin, CatalogueForm
from catalogue.admin.extensions import added
from catalogue.admin.reviews import note_reviews
from catalogue.admin.workflow_page import DEFAULT_ALIAS_DAYS, SEEN, VISIBILITY_BADGES, WARNED, TagsField
from catalogue.exposure import Visibility, enabled_filters, explain_exposure
from catalogue.history import actor_of, changed_fields
from catalogue.models import Workflow

SWITCH = " ".join(widgets.SWITCH_CLASSES)
VISIBILITY_ICONS = {
    Visibility.SOURCE_OFF: "power_off",
    Visibility.MISSING: "link_off",
    Visibility.FILTERED: "filter_alt_off",
}
SHOWN_TEXT = 300  # Characters; the window cuts what does not fit on a line


def prepare_rows(rows: Sequence[Any], *, may_change: bool) -> None:
    """Sets on the rows of a page what their template shows, with a constant number of queries."""
    chain = enabled_filters()
    note_reviews(list(rows))
    for prepare in added("prepare_workflows"):
        prepare(rows)
    columns = added("workflow_columns")
    for row in rows:
        row.may_be_changed, row.switch_classes = may_change, SWITCH
        row.visibility = explain_exposure(row, chain).visibility
        row.visibility_kind = f"is-{VISIBILITY_BADGES[row.visibility] or 'plain'}"
        row.visibility_icon = VISIBILITY_ICONS.get(row.visibility, "")
        row.cells = [(column.__name__, column(row)) for column in columns]
        # The first line of an imported description is its summary, which is also the title.
        heading, _newline, rest = row.shown_description.partition("\n")
        row.words = (rest.strip() if heading == row.title else row.shown_description)[:SHOWN_TEXT]


class RowForm(CatalogueForm):
    tags_override = TagsField()

    class Meta:
        model = Workflow
        fields = ("tool_name", "title_override", "description_override", "tags_override")
        widgets = {
            "tool_name": widgets.UnfoldAdminTextInputWidget(attrs={"autofocus": True}),
            "title_override": widgets.UnfoldAdminTextInputWidget,
            "description_override": widgets.UnfoldAdminTextareaWidget(attrs={"rows": 3}),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        row = self.instance
        engines = {
            "title_override": row.upstream_title or row.name,
            "description_override": row.description,
            "tags_override": ", ".join(row.tags),
        }
        for name, text in engines.items():
            self.fields[name].widget.attrs["placeholder"] = text[:SHOWN_TEXT]
        for name, field in self.fields.items():
            field.widget.attrs["id"] = f"edit-{row.pk}-{name}"


class RowsMixin(CatalogueAdmin):
    def get_urls(self) -> list[URLPattern]:
        switch = self.guarded(self._switch, self.has_change_permission, "POST")
        row = self.guarded(self._edit, self.has_change_permission, "GET", "POST")
        return [
            path("<int:key>/switch/", switch, name="catalogue_workflow_switch"),
            path("<int:key>/row/", row, name="catalogue_workflow_row"),
            *super().get_urls(),
        ]

    def _read_row(self, key: int) -> Any:
        return get_object_or_404(Workflow.objects.for_lists().select_related("source"), pk=key)

    def _switch(self, request: HttpRequest, key: int) -> HttpResponse:
        """Enable or disable one row of the list; returns its state and marks as they are then."""
        enabled, seen = None, request.POST.get(SEEN, "")
        rows, wanted = Workflow.objects.filter(pk=key), request.POST.get("enabled") == "true"
        # The next click, beside the warning, enables it.
        asks = wanted and WARNED not in request.POST and rows.exclude(warning="").exists()
        if not wanted:
            actions.disable_workflows(rows, by=actor_of(request))
        elif not asks:
            enabled = actions.enable_if_unchanged({key: seen}, by=actor_of(request))
        workflow = self._read_row(key)
        workflow.asks = asks
        if enabled and enabled.changed_since:
            # The rest of the row still shows the old content, so its switch still refers to that.
            workflow.content_hash, workflow.has_changed = seen, True
        prepare_rows([workflow], may_change=True)
        return TemplateResponse(request, "catalogue/admin/workflows/state.html", {"workflow": workflow})

    def _edit(self, request: HttpRequest, key: int) -> HttpResponse:
        """The row's texts as a form, or with `?shown` the row again; saves what is posted."""
        if request.method == "GET" and "shown" in request.GET:
            return self._show_row(request, key)
        with self.detecting_conflicts(request, str(key)):
            workflow = get_object_or_404(Workflow.objects.select_related("source"), pk=key)
            form = marks.marked(RowForm, request)(request.POST or None, instance=workflow)
            if form.is_valid() and self._save_texts(request, form):
                return self._show_row(request, key)
        context = {
            "form": form,
            "key": key,
            "name": form.initial["tool_name"],
            "mark": marks.write_mark([form]),
        }
        return TemplateResponse(request, "catalogue/admin/workflows/edit_row.html", context)

    def _save_texts(self, request: HttpRequest, form: Any) -> bool:
        decisions = {name: form.cleaned_data[name] for name in form.changed_data}
        if not decisions:
            return True
        if "tool_name" in decisions:
            decisions["alias_days"] = DEFAULT_ALIAS_DAYS
        try:
            with transaction.atomic():
                actions.override_workflow(form.instance, **decisions)
        except ValidationError as error:
            form.add_error(None, error)
            return False
        self.log_change(request, form.instance, changed_fields(form.changed_data))
        return True

    def _show_row(self, request: HttpRequest, key: int) -> HttpResponse:
        workflow = self._read_row(key)
        prepare_rows([workflow], may_change=True)
        return TemplateResponse(request, "catalogue/admin/workflows/row.html", {"workflow": workflow})
