"""The base of all admin pages: lists, histories, buttons that post, and forms for selected rows."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from urllib.parse import parse_qsl

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.exceptions import DisallowedModelAdminLookup
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import quote, unquote
from django.contrib.admin.views.main import ALL_VAR, ERROR_FLAG, ORDER_VAR, PAGE_VAR
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import models, transaction
from django.db.models import Count, Q, QuerySet
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseRedirect,
)
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone, translation
from django.utils.html import escape
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods
from unfold.admin import checkbox
from unfold.contrib.filters.admin import DropdownFilter
from unfold.views import ChangeList

from catalogue import tables
from catalogue.admin import marks
from catalogue.admin.rendering import ago, chip, value_in_full
from catalogue.history import (
    actor_of,
    cut_to_difference,
    record_change,
    record_deletion,
    recorded_model,
    remember_relations,
)
from catalogue.long_lists import BoundedPaginator, read_key, search_newest, search_problem, with_keys
from catalogue.models import HistoryEntry, Revision
from catalogue.models.history import Exposing
from catalogue.naming import counted
from connectors.network.redaction import escaped

SHOWN_CHANGES, SHOWN_VALUE = 4, 50


def describe_changes(entry: HistoryEntry) -> list[str]:
    """`title: empty → Report`, a line for each of the first fields."""
    lines = []
    for label, *values in changes_in_full(entry):
        old, new = (" ".join(value.split()) for value in values)
        lines.append(f"{label}: {' → '.join(cut_to_difference(old, new, shown=SHOWN_VALUE))}")
    more = len(lines) - SHOWN_CHANGES
    return lines[:SHOWN_CHANGES] + ([f"and {more} more"] if more > 0 else [])


def changes_in_full(entry: HistoryEntry) -> list[tuple[str, str, str]]:
    """The label, old and new value of each field, except fields with values that read the same, such as None
    and {}."""
    model = recorded_model(entry.model)
    fields = {} if model is None else {field.name: field for field in model._meta.get_fields()}
    labels = {
        name: getattr(fields.get(name), "verbose_name", name.replace("_", " ")) for name in entry.changes
    }
    in_full = (
        (str(labels[name]), value_in_full(old), value_in_full(new))
        for name, (old, new) in entry.changes.items()
    )
    return [(label, old, new) for label, old, new in in_full if old != new]


HISTORY_PAGE = 100
RELATED = "__id__exact"  # How lists name the filter by a related object
KEY = "the-key-of-the-row"
ASKED = "asked"  # The keys of the rows that `ask_for_selected` asks about

if TYPE_CHECKING:
    UnfoldAdmin = admin.ModelAdmin[Any]
    CatalogueForm = forms.ModelForm[Any]
else:
    from unfold.admin import ModelAdmin as UnfoldAdmin

    CatalogueForm = forms.ModelForm


class Named:
    """An object as pages name it, with escapes for characters that change the direction of the text."""

    def __init__(self, obj: models.Model) -> None:
        self._meta, self.pk, self._name = obj._meta, obj.pk, escaped(str(obj))

    def __str__(self) -> str:
        return self._name


def _all_escaped(found: Any) -> Any:
    """Escapes texts and lists of texts; what is safe HTML remains so."""
    return [_all_escaped(one) for one in found] if isinstance(found, list) else type(found)(escaped(found))


class CatalogueChangeList(ChangeList):  # type: ignore[misc]
    queryset: QuerySet[Any] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.title = capfirst(str(self.opts.verbose_name_plural))

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """Each filter that counts its choices requests the rows without itself, although most are not in
        use."""
        if self.queryset is not None and self.filter_params.keys().isdisjoint(exclude_parameters or ()):
            return self.queryset
        rows: QuerySet[Any] = super().get_queryset(request, exclude_parameters)
        return rows

    @property
    def csv_address(self) -> str:
        """Returns the address for the rows of all pages; empty where they are not offered."""
        address: str = self.model_admin.csv_address
        return address and address + self.get_query_string(remove=[PAGE_VAR, ALL_VAR])


class BoundedChangeList(CatalogueChangeList):
    """The newest first, by the column `model_admin.newest_by`; its last page links to older rows by time."""

    @property
    def older(self) -> str:
        """The address of the rows after the last page; empty if there are none, or in another order."""
        last_page = self.page_num == self.paginator.num_pages
        if not (last_page and self.paginator.has_more) or self.params.get(ORDER_VAR):
            return ""
        last = getattr(list(self.result_list)[-1], self.model_admin.newest_by)
        # Including the last row's own time, which other rows may share.
        older = {f"{self.model_admin.newest_by}__lte": last.isoformat()}
        address: str = self.get_query_string(older, remove=[PAGE_VAR])
        return address


@cache
def _checkbox(language: str) -> str:
    """Renders all rows' with KEY as the key, because Unfold renders two templates for each checkbox. Its
    label is in the reader's language."""
    return str(checkbox.render(ACTION_CHECKBOX_NAME, KEY))


MEANT = {PAGE_VAR: re.compile("[0-9]{0,9}"), ORDER_VAR: re.compile(r"(-?[0-9]{1,3}(\.-?[0-9]{1,3})*)?")}


def _why_not_shown(chosen: Mapping[str, str], wrong: Sequence[str]) -> str:
    """`wrong`: parameters that are not numbers; empty if Django refused the address for another reason."""
    named = wrong or ([PAGE_VAR] if PAGE_VAR in chosen else [name for name in chosen if "__" in name])
    if named == [PAGE_VAR]:
        return f"This list has no page {chosen[PAGE_VAR][:SHOWN_VALUE]}; this is the first page."
    if named == [ORDER_VAR]:
        return f"This list has no order {chosen[ORDER_VAR][:SHOWN_VALUE]}; it is in its default order."
    asked = ", ".join(f"{name}={chosen[name][:SHOWN_VALUE]}" for name in named or chosen)
    return f"This list cannot be filtered by {asked}; it is unfiltered."


class CatalogueAdmin(UnfoldAdmin):
    class Media:
        css: ClassVar[dict[str, tuple[str, ...]]] = {"all": ("catalogue/admin/many_columns.css",)}

    list_filter_submit = True  # Unfold's drop-down filters apply only with a submit button
    # Unused, but Unfold looks for it with each field, and Django lists all attributes where one is missing
    conditional_fields: ClassVar[dict[str, str]] = {}
    when_empty: Any = ""  # What the list says if there are no rows at all
    csv_address = ""  # Below the list's own, if it is offered as CSV
    newest_by = ""  # The column by which a table that grows with every call is sorted, newest first
    history_model: type[models.Model] | None = None  # Shows the history of its object with the same key

    @admin.display(description=UnfoldAdmin.action_checkbox.short_description)  # type: ignore[attr-defined]
    def action_checkbox(self, obj: Any) -> SafeString:
        return SafeString(_checkbox(translation.get_language() or "").replace(KEY, escape(obj.pk)))

    @property
    def show_full_result_count(self) -> bool:  # type: ignore[override]
        return not self.newest_by

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[CatalogueChangeList]:
        return BoundedChangeList if self.newest_by else CatalogueChangeList

    def get_paginator(self, request: HttpRequest, queryset: Any, *args: Any, **kwargs: Any) -> Any:
        bounded = self.newest_by and queryset.model is self.model
        if not bounded:
            return super().get_paginator(request, queryset, *args, **kwargs)
        return BoundedPaginator(queryset, *args, by=self.newest_by, **kwargs)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        if problem := search_problem(search_term):
            messages.error(request, f"{problem} Nothing was searched.")
            return queryset.none(), False
        return self.search_list(request, queryset, search_term)

    def search_list(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Searches a long table only in the newest rows that match the filters, for each word anywhere."""
        if not self.newest_by:
            return super().get_search_results(request, queryset, search_term)
        words = search_term.split()
        return (self.search_rows(queryset, words) if words else queryset), False

    def search_rows(self, rows: QuerySet[Any], words: Sequence[str]) -> QuerySet[Any]:
        return with_keys(rows, search_newest(rows, words, self.search_fields, by=self.newest_by))

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Drops the empty values that browsers send for unused filters."""
        # An empty order means unsorted, a missing one the default; all rows are asked for without a value.
        meant = (ORDER_VAR, ALL_VAR)
        sent = [(name, value) for name, values in request.GET.lists() for value in values]
        pairs = [(name, value) for name, value in sent if value or name in meant]
        chosen = dict(pairs)
        if request.method == "GET" and len(pairs) < len(sent):
            return HttpResponseRedirect(f"{request.path}?{urlencode(pairs)}" if pairs else request.path)
        wrong = [name for name in (PAGE_VAR, ORDER_VAR) if not MEANT[name].fullmatch(chosen.get(name, ""))]
        answer = None
        if not wrong:
            with suppress(DisallowedModelAdminLookup):
                answer = super().changelist_view(request, extra_context)
        if answer is not None and answer.headers.get("Location") != f"{request.path}?{ERROR_FLAG}=1":
            return answer
        messages.error(request, _why_not_shown(chosen, wrong))
        return HttpResponseRedirect(request.path)

    def guarded(
        self, view: Callable[..., HttpResponseBase], may: Callable[[HttpRequest], bool], *methods: str
    ) -> Callable[..., HttpResponseBase]:
        """A view of an address: 403 for users who may not, then 405 for other methods."""
        allowed = require_http_methods(methods)(view)

        def check(request: HttpRequest, **values: Any) -> HttpResponseBase:
            if not may(request):
                raise PermissionDenied
            return allowed(request, **values)

        return self.admin_site.admin_view(check)

    def read_list(self, request: HttpRequest) -> Any:
        """The list with its filters, search and order, but without its rows; None if its address is wrong."""

        class Unread(self.get_changelist(request)):  # type: ignore[misc]
            def get_results(self, request: HttpRequest) -> None:
                """Reads no rows."""

        pages = copy(self)
        pages.get_changelist = lambda *_, **__: Unread  # type: ignore[method-assign]
        try:
            return pages.get_changelist_instance(request)
        except (IncorrectLookupParameters, DisallowedModelAdminLookup):
            return None

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """A list filtered by a related object presets that object for new ones."""
        narrowed = dict(parse_qsl(request.GET.get("_changelist_filters", "")))
        fields = {field.name for field in self.opts.fields if field.many_to_one}
        of_list = {
            name.removesuffix(RELATED): value
            for name, value in narrowed.items()
            if name.endswith(RELATED) and name.removesuffix(RELATED) in fields
        }
        return {**of_list, **super().get_changeform_initial_data(request)}

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any
    ) -> HttpResponse | None:
        """An answer is for the rows that the question was about, not for all that match by then."""
        asked, posted = request.POST.get(ASKED), request.POST.copy()
        sent = posted.getlist(ACTION_CHECKBOX_NAME) if asked is None else asked.split(",")
        keys = list(filter(self._is_key, sent))
        if asked is not None:
            queryset = queryset.filter(pk__in=keys)
        posted.setlist(ACTION_CHECKBOX_NAME, keys)
        request.POST = posted  # type: ignore[assignment]
        return super().response_action(request, queryset, *args, **kwargs)

    def _is_key(self, text: str) -> bool:
        if not isinstance(self.opts.pk, models.UUIDField):
            return read_key(text) is not None
        with suppress(ValidationError):
            return self.opts.pk.to_python(text) is not None
        return False

    # Questions before a deletion and Django's messages name things in the middle of their sentences.

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        found, counts, forbidden, protected = self.find_losses(objs, request)
        return _all_escaped(found), counts, forbidden, _all_escaped(protected)

    def find_losses(self, objs: Any, request: HttpRequest) -> Any:
        """Instead of `get_deleted_objects`: its answer, with names as they are."""
        return super().get_deleted_objects(objs, request)

    def message_user(self, request: HttpRequest, message: Any, *args: Any, **options: Any) -> None:
        super().message_user(request, _all_escaped(message), *args, **options)

    def render_delete_form(self, request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
        return super().render_delete_form(request, context | {"object": Named(context["object"])})

    # What others changed since the form was opened

    change_form_before_template = "catalogue/admin/mark.html"

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        with self.detecting_conflicts(request, object_id):
            return super().changeform_view(request, object_id, form_url, extra_context)

    @contextmanager
    def detecting_conflicts(self, request: HttpRequest, object_id: str | None) -> Iterator[None]:
        """Forms created in this block are compared with the submitted mark, until they are saved."""
        if request.method != "POST" or object_id is None:
            yield
            return
        with transaction.atomic():
            self.lock(request, unquote(object_id))
            vars(request)[marks.MARK] = marks.read_mark(request)
            yield

    def lock(self, request: HttpRequest, key: str) -> None:
        """Until the transaction ends, so that the second of two saves sees the first one's changes."""
        if issubclass(self.model, Exposing):
            Revision.lock()
        with suppress(ValueError, ValidationError):  # The address is not a key
            self.model._base_manager.select_for_update(no_key=True).filter(pk=key).first()

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        return marks.marked(super().get_form(request, obj, change=change, **kwargs), request)

    def get_formsets_with_inlines(self, request: HttpRequest, obj: Any = None) -> Iterator[Any]:
        for formset, inline in super().get_formsets_with_inlines(request, obj):
            if vars(request).get(marks.MARK) is None:
                yield formset, inline
            else:
                rows = {"form": marks.marked(formset.form, request)}
                yield type("Rows", (marks.MarkedFormSet, formset), rows), inline

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        obj = context.get("original")
        if obj is not None and self.has_change_permission(request, obj):
            rows = [
                row for inline in context["inline_admin_formsets"] for row in inline.formset.initial_forms
            ]
            context |= marks.show_mark(request, obj, [context["adminform"].form, *rows])
        return super().render_change_form(request, context, *args, **kwargs)

    # History: changes are recorded like those through REST and commands, not in Django's own log.

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        record_change(actor_of(request), [obj], _in_words(message))

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        record_change(actor_of(request), [obj], _in_words(message))

    def log_deletions(self, request: HttpRequest, queryset: Iterable[Any]) -> Any:
        record_deletion(actor_of(request), queryset)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        obj = super().get_object(request, object_id, from_field)
        if obj is not None and request.method == "POST":
            remember_relations(obj)
        return obj

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        entries = HistoryEntry.of_key(self.history_model or self.model, unquote(object_id))
        paginator = self.get_paginator(request, entries, HISTORY_PAGE)
        page = paginator.get_page(request.GET.get(PAGE_VAR, 1))
        for entry in page:
            entry.told_changes = describe_changes(entry)
        shown = {
            "may_see_entries": request.user.has_perm("catalogue.view_historyentry"),
            "action_list": page,
            "page_range": paginator.get_elided_page_range(page.number),
            "pagination_required": paginator.num_pages > 1,
        }
        return super().history_view(request, object_id, (extra_context or {}) | shown)


def _in_words(message: Any) -> str:
    """Django passes the changes of a form as a structure, which a LogEntry turns into sentences."""
    if isinstance(message, str):
        return message
    with translation.override(None):  # The history is English, whoever made the change
        return LogEntry(action_flag=CHANGE, change_message=json.dumps(message)).get_change_message()


class ColumnFilter(DropdownFilter):  # type: ignore[misc]
    """Shows the rows with the chosen value in `column`."""

    column: ClassVar[str]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(**{self.column: self.value()}) if self.value() else queryset


class OptionsFilter(DropdownFilter):  # type: ignore[misc]
    """Counts the rows of its choices with one query."""

    options: ClassVar[Mapping[str, tuple[Any, Q | Callable[[], Q]]]]
    """By the parameter's value: the label, and the condition for the rows."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(value, label) for value, (label, _) in self.options.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        return queryset.filter(self._condition(chosen)) if chosen in self.options else queryset

    def get_facet_queryset(self, changelist: ChangeList) -> dict[str, int]:
        rows = changelist.get_queryset(self.request, self.expected_parameters())
        # A value may have the name of a column, which its condition would then not find.
        counts = {f"of_{value}": Count("pk", filter=self._condition(value)) for value in self.options}
        found = rows.aggregate(**counts)
        places = enumerate(self.lookup_choices)
        return {f"{place}__c": found.get(f"of_{value}", 0) for place, (value, _) in places}

    def _condition(self, value: str) -> Q:
        _, condition = self.options[value]
        return condition if isinstance(condition, Q) else condition()


def since(column: str, **age: int) -> Callable[[], Q]:
    return lambda: Q(**{f"{column}__gte": timezone.now() - timedelta(**age)})


class SinceFilter(OptionsFilter):
    """Shows rows by the age of their time `at`."""

    title = gettext_lazy("date")
    parameter_name = "since"
    options = {
        "1": (gettext_lazy("the last 24 hours"), since("at", days=1)),
        "7": (gettext_lazy("the last 7 days"), since("at", days=7)),
        "30": (gettext_lazy("the last 30 days"), since("at", days=30)),
        "365": (gettext_lazy("the last year"), since("at", days=365)),
    }


def column(label: Any, field: str, show: Callable[[Any], Any] = ago, *, sorts: bool = True) -> Any:
    """A column that shows a field, such as `workflow__tool_name`, and sorts by it."""
    read = attrgetter(field.replace("__", "."))
    return cell(label, lambda obj: show(read(obj)), sorts_by=field if sorts else None)


def cell(label: Any, show: Callable[[Any], Any], *, sorts_by: str | None = None) -> Any:
    """A column that shows what a function makes of a row."""
    return admin.display(description=label, ordering=sorts_by)(lambda pages, obj: show(obj))


class FixedRowsMixin:
    """People add and delete no rows here: a listing, the product or another page does."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class ReadOnlyMixin(FixedRowsMixin):
    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class PanelOnlyMixin(ReadOnlyMixin):
    """The page of a row has its panel, and no fields."""

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return []


@dataclass(frozen=True, kw_only=True, slots=True)
class Button:
    name: str
    label: Any  # Translated where it is shown
    icon: str
    variant: str = "default"
    confirm: Any = ""  # A question to answer first
    values: tuple[tuple[str, str], ...] = ()
    records: bool = False  # The method records the history itself


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    label: Any
    icon: str  # A Material symbol
    address: str


def button(label: Any, **looks: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a method `(request, obj)` as a button's; it reports its result in messages, or returns a question
    as a page."""

    def mark(method: Callable[..., Any]) -> Callable[..., Any]:
        method.button = Button(name=method.__name__, label=label, **looks)  # type: ignore[attr-defined]
        return method

    return mark


class ButtonsMixin(CatalogueAdmin):
    """Buttons on the change page. They post, unlike Unfold's own actions: a link in a mail must not refresh
    or cancel anything."""

    buttons: Iterable[str] = ()
    why_gone = ""  # A sentence about objects that others have removed since the page was shown

    def get_buttons(self, request: HttpRequest, obj: Any) -> list[Button]:
        """Returns the buttons that apply to the object; none for users who may only view."""
        if not self.may_press_buttons_of(request, obj):
            return []
        return [getattr(self, name).button for name in self.buttons]

    def may_press_buttons(self, request: HttpRequest) -> bool:
        """The model's change permission, also where its rows cannot be edited."""
        return request.user.has_perm(f"{self.opts.app_label}.change_{self.opts.model_name}")

    def may_press_buttons_of(self, request: HttpRequest, obj: Any) -> bool:
        """`obj` is None where others have removed it."""
        return self.may_press_buttons(request)

    def get_urls(self) -> list[URLPattern]:
        views = {name: self.admin_site.admin_view(partial(self._press, name=name)) for name in self.buttons}
        return [
            path(f"<path:object_id>/{name}/", view, name=f"{self._url_name}_{name}")
            for name, view in views.items()
        ] + super().get_urls()

    @property
    def _url_name(self) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}"

    def _press(self, request: HttpRequest, object_id: str, *, name: str) -> HttpResponseBase:
        obj = self.get_object(request, unquote(object_id))
        if not self.may_press_buttons_of(request, obj):
            raise PermissionDenied
        if obj is None:
            gone = f"Nothing was done: this {self.opts.verbose_name} no longer exists. {self.why_gone}"
            messages.warning(request, gone.strip())
            return HttpResponseRedirect(reverse(f"admin:{self._url_name}_changelist"))
        if request.method == "POST":
            method: Any = getattr(self, name)
            answer: HttpResponseBase | None = method(request, obj)
            if answer is not None:
                return answer
            if not method.button.records:
                with translation.override(None):
                    clicked = f"Clicked “{method.button.label}”."
                self.log_change(request, obj, clicked)
        return HttpResponseRedirect(reverse(f"admin:{self._url_name}_change", args=[quote(obj.pk)]))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        obj = context.get("original")
        if obj is not None and request.method == "POST":
            # A refused form has written its values to its own object.
            obj = self.get_object(request, str(obj.pk)) or obj
        if obj is not None:
            context |= {"original": obj, "subtitle": str(obj), "buttons": self.get_buttons(request, obj)}
            context |= {"show_history": self._has_history(obj)} | self.panel(request, obj)
        return super().render_change_form(request, context, *args, **kwargs)

    def _has_history(self, obj: Any) -> bool:
        """Records that are never edited have a history only after a button was pressed."""
        return not isinstance(self, ReadOnlyMixin) or HistoryEntry.of(obj).exists()

    def panel(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        return {}


SHOWN_NAMES = 20
Form = TypeVar("Form", bound=forms.Form)


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
    sent: Iterable[tuple[str, str]] = (),
) -> HttpResponse | None:
    """Shows the page with the form until a valid one is submitted; then `apply` runs and the list is shown
    again. `note` replaces the number of selected rows, and `shown` their names; `sent` is submitted too."""
    form = form_class(request.POST) if "post" in request.POST else form_class()
    if form.is_bound and form.is_valid():
        apply(form)
        return None
    count = queryset.count()
    across = request.POST.get("select_across", "0")
    context = pages.admin_site.each_context(request) | {
        "title": title,
        "opts": pages.opts,
        "form": form,
        "note": note or f"{counted(count, 'workflow')} selected",
        "shown": shown,
        "names": [] if shown else [chip(str(row)) for row in queryset[:SHOWN_NAMES]],
        "more": 0 if shown else max(0, count - SHOWN_NAMES),
        "sent": [
            ("action", request.POST["action"]),
            ("select_across", across),
            ("post", "yes"),
            # In one field, because a form may have a thousand of them at most.
            (ASKED, ",".join(map(str, queryset.values_list("pk", flat=True)))),
            *((ACTION_CHECKBOX_NAME, key) for key in request.POST.getlist(ACTION_CHECKBOX_NAME)[:1]),
            *sent,
        ],
        "back": request.get_full_path(),
    }
    return TemplateResponse(request, "catalogue/admin/bulk_form.html", context)


MAX_UNASKED = 20  # Rows


def ask_if_many(
    pages: CatalogueAdmin,
    request: HttpRequest,
    affected: QuerySet[Any],
    title: str,
    apply: Callable[[], None],
    *,
    note: Callable[[int], str],
    shown: Sequence[Any] = (),
    sent: Iterable[tuple[str, str]] = (),
) -> HttpResponse | None:
    """Asks before what agents notice: with all pages selected, nobody has seen how many rows that is. `note`
    says of their number what happens. With something to be `shown`, it asks about a single row too."""
    if (count := affected.count()) <= MAX_UNASKED and not shown:
        apply()
        return None
    told: dict[str, Any] = {"note": note(count), "shown": shown or None, "sent": sent}
    return ask_for_selected(pages, request, affected, forms.Form, title, lambda _: apply(), **told)


def change_if_sure(
    pages: CatalogueAdmin,
    request: HttpRequest,
    affected: QuerySet[Any],
    title: str,
    change: Callable[[], int],
    *,
    done: str,
    note: str,
    noun: tuple[str, ...] = ("workflow",),
) -> HttpResponse | None:
    """`done` has a place for the number of changed rows, and `note` one for the affected ones."""
    return ask_if_many(
        pages,
        request,
        affected,
        title,
        lambda: messages.success(request, done.format(change())),
        note=lambda count: note.format(counted(count, *noun)),
    )


class TableMixin(CatalogueAdmin):
    """Offers as CSV what the filters and the search leave, of all pages, with the columns of REST's table."""

    csv_address = "csv/"

    def get_urls(self) -> list[URLPattern]:
        view = self.guarded(self._send, self.has_view_permission, "GET")
        name = f"{self.opts.app_label}_{self.opts.model_name}_csv"
        return [path(self.csv_address, view, name=name), *super().get_urls()]

    def _send(self, request: HttpRequest) -> HttpResponseBase:
        if (listed := self.read_list(request)) is None:
            # The list says what is wrong.
            page = reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")
            return HttpResponseRedirect(f"{page}?{request.GET.urlencode()}")
        return tables.send_table(
            listed.get_queryset(request),
            tables.serializers[self.model](context={"request": request}),
            by=actor_of(request),
            filters=request.GET.keys(),
            newest_by=self.newest_by,
        )
