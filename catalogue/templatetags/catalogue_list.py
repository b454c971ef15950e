"""The rows of a list as Unfold renders them; what the rows share is made once."""

from collections.abc import Callable
from datetime import date, time
from typing import Any
from urllib.parse import quote as percent_encoded

from django.contrib.admin.utils import quote
from django.core.exceptions import FieldDoesNotExist, ObjectDoesNotExist
from django.db import models
from django.template import Library
from django.template.context import Context
from django.urls import reverse
from django.utils.html import conditional_escape, escape
from django.utils.safestring import SafeString
from unfold.templatetags import unfold_list
from unfold.utils import display_for_field, display_for_value

register = Library()
KEY = "the-key-of-the-row"
CHECKBOX = "action_checkbox"
CELL_CLASSES, CHECKBOX_CLASSES, LINK_CLASSES = (
    " ".join(classes)
    for classes in (unfold_list.ROW_CLASSES, unfold_list.CHECKBOX_CLASSES, unfold_list.LINK_CLASSES)
)


@register.inclusion_tag("admin/change_list_results.html", takes_context=True)
def catalogue_result_list(context: Context, cl: Any) -> dict[str, Any]:
    """Lists that are edited in place, and pop-ups, are Unfold's."""
    if cl.formset or cl.is_popup:
        unfolds: dict[str, Any] = unfold_list.result_list(context, cl)
        return unfolds
    headers = list(unfold_list.result_headers(cl))
    cells = [
        _cell(cl, name, "Select record" if name == CHECKBOX else header["text"])
        for name, header in zip(cl.list_display, headers, strict=True)
    ]
    return {
        "cl": cl,
        "result_headers": headers,
        "num_sorted_fields": sum(bool(header.get("sorted")) for header in headers),
        "results": [
            unfold_list.UnfoldResultList(row, None, [SafeString("".join(cell(row) for cell in cells))])
            for row in cl.result_list
        ],
        "actions_row": context.get("actions_row"),
    }


def _cell(cl: Any, name: Any, heading: str) -> Callable[[Any], str]:
    value_of = _reader(cl, name)
    linked = cl.list_display_links or ()
    tag = "th" if name in linked[:1] else "td"
    css = CHECKBOX_CLASSES if name == CHECKBOX else f"field-{getattr(name, '__name__', name)} {CELL_CLASSES}"
    begin, label = f'<{tag} class="{css}', f' data-label="{escape(heading)}">'
    query = f"?{cl.preserved_filters}" if cl.preserved_filters else ""
    page = f"admin:{cl.opts.app_label}_{cl.opts.model_name}_change"
    # Not for each row, because resolving an address is slow.
    address_of_rows = reverse(page, args=[KEY]) + query if name in linked else ""

    def show(row: Any) -> str:
        value, is_short = value_of(row)
        shown = conditional_escape(value)
        if name in linked:
            key = percent_encoded(str(quote(getattr(row, cl.pk_attname))))
            address = escape(address_of_rows.replace(KEY, key))
            shown = SafeString(f'<a href="{address}" class="{LINK_CLASSES}">{shown}</a>')
        return f'{begin}{" nowrap" if is_short else ""}"{label}{shown}</{tag}>'

    return show


def _reader(cl: Any, name: Any) -> Callable[[Any], tuple[Any, bool]]:
    """Returns a function from a row to the shown value and whether it must stay on one line."""
    empty = cl.model_admin.get_empty_value_display()
    try:
        field = cl.lookup_opts.get_field(name)
    except FieldDoesNotExist:
        of_admin = None if name == "__str__" else getattr(cl.model_admin, str(name), None)
        compute = name if callable(name) else of_admin
        boolean = getattr(compute, "boolean", False)

        def read_method(row: Any) -> tuple[Any, bool]:
            value = compute(row) if compute else getattr(row, name)
            if not compute and callable(value):
                value = value()
            return display_for_value(value, empty, boolean), isinstance(value, date | time)

        return read_method
    is_short = isinstance(field, models.DateField | models.TimeField | models.ForeignKey)

    def read_field(row: Any) -> tuple[Any, bool]:
        try:
            value = getattr(row, name)
        except ObjectDoesNotExist:
            return empty, is_short
        if field.is_relation:
            return empty if value is None else value, is_short
        return display_for_field(value, field, empty), is_short

    return read_field
