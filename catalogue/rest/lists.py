"""Lists: pages of a bounded size, and filters that are never ignored in silence."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from django import forms
from django.db.models import QuerySet
from django_filters import BooleanFilter, ChoiceFilter, FilterSet, OrderingFilter  # type: ignore[import-untyped]
from django_filters.rest_framework import DjangoFilterBackend  # type: ignore[import-untyped]
from rest_framework.pagination import PageNumberPagination
from rest_framework.request import Request
from rest_framework.views import APIView

from catalogue.rest.errors import Problem, Refusal

REFUSED = "The list cannot be filtered like this; `errors` names each offending parameter."
BOOLEANS = {"": None, "true": True, "1": True, "false": False, "0": False}


FIELDS = "fields"
"""The parameter that names the fields of an answer."""
FIELDS_DESCRIPTION = (
    "The fields that the answer is to have, such as `id,state`; all without it. Single objects take it, too."
)


class Pages(PageNumberPagination):
    page_size = 50
    page_size_query_param = "page_size"
    max_page_size = 200
    page_size_query_description = f"Rows per page, from 1 to {max_page_size}."

    def get_schema_operation_parameters(self, view: APIView) -> list[dict[str, Any]]:
        return [*super().get_schema_operation_parameters(view), text_parameter(FIELDS, FIELDS_DESCRIPTION)]


def text_parameter(name: str, description: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "query",
        "required": False,
        "description": description,
        "schema": {"type": "string"},
    }


def keep_fields(serializer: Any, request: Request) -> Any:
    """Leave the others out, of one object or of each of a list. Raises Refusal."""
    shown = getattr(serializer, "child", serializer)
    wanted = {name.strip() for name in ",".join(request.query_params.getlist(FIELDS)).split(",")} - {""}
    if unknown := sorted(wanted - shown.fields.keys()):
        told = f"There is no field {unknown[0][:100]}; there are {', '.join(shown.fields)}."
        raise Refusal(400, REFUSED, kind="validation", errors=[Problem(f"?{FIELDS}", told)])
    if not wanted:
        raise Refusal(400, REFUSED, kind="validation", errors=[Problem(f"?{FIELDS}", "Name some fields.")])
    for name in shown.fields.keys() - wanted:
        del shown.fields[name]
    return serializer


class StableOrdering(OrderingFilter):  # type: ignore[misc]
    """Rows that are equal by the chosen order keep one order, so that no page repeats or misses any."""

    def filter(self, qs: QuerySet[Any], value: Any) -> QuerySet[Any]:
        ordered: QuerySet[Any] = super().filter(qs, value)
        return ordered.order_by(*ordered.query.order_by, "pk") if value else ordered


class StrictBooleanField(forms.Field):
    """Django's NullBooleanField takes whatever it does not know for no answer."""

    def to_python(self, value: Any) -> bool | None:
        text = (value or "").strip().lower()
        if text not in BOOLEANS:
            raise forms.ValidationError("Say true or false.")
        return BOOLEANS[text]


class StrictBooleanFilter(BooleanFilter):  # type: ignore[misc]
    field_class = StrictBooleanField


class StrictFilterBackend(DjangoFilterBackend):  # type: ignore[misc]
    """Refuses parameters that it does not know: a misspelt filter must not answer with everything."""

    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: APIView) -> QuerySet[Any]:
        filterset: FilterSet | None = self.get_filterset(request, queryset, view)
        if filterset is None:
            return queryset
        problems = [
            *_unknown_parameters(request, filterset, getattr(view, "further_parameters", ())),
            *_bad_page_size(request),
            *_empty_choices(request, filterset),
            *_bad_values(filterset),
        ]
        if problems:
            raise Refusal(400, REFUSED, kind="validation", errors=problems)
        narrowed: QuerySet[Any] = filterset.qs
        return narrowed


def _unknown_parameters(request: Request, filterset: FilterSet, further: Iterable[str]) -> list[Problem]:
    known = [*filterset.filters, Pages.page_query_param, Pages.page_size_query_param, FIELDS, *further]
    message = f"There is no such parameter; there are {', '.join(known)}."
    return [Problem(f"?{name[:100]}", message) for name in request.query_params if name not in known]


def _bad_page_size(request: Request) -> list[Problem]:
    name, largest = Pages.page_size_query_param, Pages.max_page_size
    size = request.query_params.get(name, str(largest))
    if re.fullmatch("[0-9]{1,9}", size) and 1 <= int(size) <= largest:
        return []
    return [Problem(f"?{name}", f"Say a whole number from 1 to {largest}.")]


def _empty_choices(request: Request, filterset: FilterSet) -> Iterator[Problem]:
    """Nothing chosen would be everything, which whoever sends it may not mean."""
    for name, one in filterset.filters.items():
        if isinstance(one, ChoiceFilter) and "" in request.query_params.getlist(name):
            yield Problem(f"?{name}", "Choose a value, or leave the parameter out.")


def _bad_values(filterset: FilterSet) -> list[Problem]:
    if filterset.is_valid():
        return []
    return [
        Problem(f"?{name}", str(message))
        for name, messages in filterset.errors.items()
        for message in messages
    ]
