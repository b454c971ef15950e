"""What the admin pages of all rooms share: reading without writing, and buttons that post."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from django import forms
from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote, unquote
from django.contrib.admin.views.main import ORDER_VAR, PAGE_VAR
from django.core.exceptions import PermissionDenied
from django.db import models
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.http import urlencode

from catalogue.history import actor_of, record_change
from catalogue.models import HistoryEntry

HISTORY_PAGE = 100
RELATED = "__id__exact"
"""How lists name the filter by another object."""

if TYPE_CHECKING:
    UnfoldAdmin = admin.ModelAdmin[Any]
    CatalogueForm = forms.ModelForm[Any]
else:
    from unfold.admin import ModelAdmin as UnfoldAdmin

    CatalogueForm = forms.ModelForm


class CatalogueAdmin(UnfoldAdmin):
    """What all lists and forms share."""

    list_filter_submit = True
    """Filters are chosen together and then applied; unfold's drop-downs do nothing without that button."""
    history_model: type[models.Model] | None = None
    """Whose history the page shows, where that of another object with the same key says more."""

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Browsers send filters that were left open as empty values: the address names the others only."""
        # Without a column to sort by is not the same as sorted by the usual one.
        chosen = {name: str(value) for name, value in request.GET.items() if value or name == ORDER_VAR}
        if request.method == "GET" and len(chosen) < len(request.GET):
            return HttpResponseRedirect(f"{request.path}?{urlencode(chosen)}" if chosen else request.path)
        return super().changelist_view(request, extra_context)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """An object that is added from a list of those of one other object belongs to that one, too."""
        narrowed = dict(parse_qsl(request.GET.get("_changelist_filters", "")))
        fields = {field.name for field in self.opts.fields if field.many_to_one}
        of_list = {
            name.removesuffix(RELATED): value
            for name, value in narrowed.items()
            if name.endswith(RELATED) and name.removesuffix(RELATED) in fields
        }
        return {**of_list, **super().get_changeform_initial_data(request)}

    # History: what Django's admin would note for itself goes where the other doors note theirs.

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        record_change(actor_of(request), [obj], _in_words(message))

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        record_change(actor_of(request), [obj], _in_words(message))

    def log_deletions(self, request: HttpRequest, queryset: Iterable[Any]) -> Any:
        record_change(actor_of(request), queryset, "Deleted.")

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        entries = HistoryEntry.of_key(self.history_model or self.model, unquote(object_id))
        paginator = self.get_paginator(request, entries, HISTORY_PAGE)
        page = paginator.get_page(request.GET.get(PAGE_VAR, 1))
        shown = {
            "action_list": page,
            "page_range": paginator.get_elided_page_range(page.number),
            "pagination_required": paginator.num_pages > 1,
        }
        return super().history_view(request, object_id, (extra_context or {}) | shown)


def _in_words(message: Any) -> str:
    """Django tells changes of a form as a structure, from which a LogEntry makes sentences."""
    if isinstance(message, str):
        return message
    return LogEntry(action_flag=CHANGE, change_message=json.dumps(message)).get_change_message()


class ReadOnlyMixin:
    """Records are made by what happens, never by hand."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class Button:
    """One thing that can be done to one object."""

    name: str
    label: str
    icon: str
    """A Material symbol."""
    variant: str = "default"
    confirm: str = ""
    """A question to answer before it is done."""
    values: tuple[tuple[str, str], ...] = ()
    """What is sent with it, by name."""
    records: bool = False
    """The method keeps the history itself."""


def button(label: str, **looks: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Mark a method `(request, obj) -> None` as what a button does; it tells its result in messages."""

    def mark(method: Callable[..., None]) -> Callable[..., None]:
        method.button = Button(name=method.__name__, label=label, **looks)  # type: ignore[attr-defined]
        return method

    return mark


class ButtonsMixin(CatalogueAdmin):
    """Buttons on the change page.

    They post, unlike unfold's own actions: a link in somebody's mail must not refresh or cancel anything.
    """

    buttons: Iterable[str] = ()

    def get_buttons(self, request: HttpRequest, obj: Any) -> list[Button]:
        """Those that make sense for the object; none for people who may only look."""
        if not self.may_press_buttons(request):
            return []
        return [getattr(self, name).button for name in self.buttons]

    def may_press_buttons(self, request: HttpRequest) -> bool:
        """The model's own permission, also where its rows cannot be edited."""
        return request.user.has_perm(f"{self.opts.app_label}.change_{self.opts.model_name}")

    def get_urls(self) -> list[URLPattern]:
        return [self._button_url(name) for name in self.buttons] + super().get_urls()

    def _button_url(self, name: str) -> URLPattern:
        view = self.admin_site.admin_view(partial(self._press, name=name))
        return path(f"<path:object_id>/{name}/", view, name=f"{self._url_name}_{name}")

    @property
    def _url_name(self) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}"

    def _press(self, request: HttpRequest, object_id: str, *, name: str) -> HttpResponseBase:
        if not self.may_press_buttons(request):
            raise PermissionDenied
        obj = self.get_object(request, unquote(object_id))
        if obj is None:
            return HttpResponseRedirect(reverse(f"admin:{self._url_name}_changelist"))
        if request.method == "POST":
            method = getattr(self, name)
            method(request, obj)
            if not method.button.records:
                self.log_change(request, obj, f"Pressed “{method.button.label}”.")
        return HttpResponseRedirect(reverse(f"admin:{self._url_name}_change", args=[quote(obj.pk)]))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        if (obj := self._stored(request, context.get("original"))) is not None:
            context |= {"original": obj, "subtitle": str(obj), "buttons": self.get_buttons(request, obj)}
            context |= {"show_history": self._has_history(obj)} | self.panel(request, obj)
        return super().render_change_form(request, context, *args, **kwargs)

    def _stored(self, request: HttpRequest, obj: Any) -> Any:
        """Of a refused form, the object as it still is: the form has written its values to its own."""
        if obj is None or request.method != "POST":
            return obj
        return self.get_object(request, str(obj.pk)) or obj

    def _has_history(self, obj: Any) -> bool:
        """Of a record that nobody edits there is one only if somebody pressed a button of its page."""
        if not isinstance(self, ReadOnlyMixin):
            return True
        return HistoryEntry.of(obj).exists()

    def panel(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        """What the template above the form shows of the object."""
        return {}
