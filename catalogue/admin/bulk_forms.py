"""Bulk actions that ask for something before they are done: one page between the list and the change."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from django import forms
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from catalogue.admin.base import CatalogueAdmin
from catalogue.admin.rendering import chip
from catalogue.admin.value_fields import CommasField
from catalogue.curation import known_tags
from catalogue.models import Toolset

SHOWN_NAMES = 20
MOST_SUGGESTED = 500
Form = TypeVar("Form", bound=forms.Form)


class TagsForm(forms.Form):
    tags = CommasField(
        label="Tags",
        help_text="Separated by commas.",
        error_messages={"required": "Name one tag at least."},
        widget=UnfoldAdminTextInputWidget(
            attrs={"autocomplete": "off", "list": "known-tags", "autofocus": True}
        ),
    )
    suggested = staticmethod(lambda: known_tags()[:MOST_SUGGESTED])


class ToolsetForm(forms.Form):
    toolset = forms.ModelChoiceField(
        Toolset.objects.all(),
        label="Toolset",
        help_text="They are picked by hand there; it shows those that are exposed.",
        widget=UnfoldAdminSelectWidget,
        error_messages={"required": "Choose a toolset."},
    )


def ask_for_selected(
    pages: CatalogueAdmin,
    request: HttpRequest,
    queryset: QuerySet[Any],
    form_class: type[Form],
    title: str,
    apply: Callable[[Form], None],
    *,
    note: str = "",
    shown: Iterable[Any] | None = None,
) -> HttpResponse | None:
    """The page with the form, until that is sent and valid; then it is applied, and the list comes again.

    `note` says in place of their number, and `shown` in place of their names, what is selected.
    """
    form = form_class(request.POST) if "post" in request.POST else form_class()
    if form.is_bound and form.is_valid():
        apply(form)
        return None
    count = queryset.count()
    selected = [(ACTION_CHECKBOX_NAME, key) for key in request.POST.getlist(ACTION_CHECKBOX_NAME)]
    across = request.POST.get("select_across", "0")
    context = pages.admin_site.each_context(request) | {
        "title": title,
        "opts": pages.opts,
        "form": form,
        "note": note or f"{count:,} workflow{'' if count == 1 else 's'} selected",
        "shown": shown,
        "names": [] if shown else [chip(str(row)) for row in queryset[:SHOWN_NAMES]],
        "more": 0 if shown else max(0, count - SHOWN_NAMES),
        "sent": [("action", request.POST["action"]), ("select_across", across), ("post", "yes"), *selected],
        "back": request.get_full_path(),
    }
    return TemplateResponse(request, "catalogue/admin/bulk_form.html", context)
