"""Uses of private names of other packages; tests/config/test_private_names.py fails when one is gone."""

from typing import Any

from django.contrib.admin import ModelAdmin
from django.http import HttpRequest, HttpResponseBase


def formsets_of(pages: "ModelAdmin[Any]", request: HttpRequest, row: Any, *, change: bool) -> list[Any]:
    """The bound formsets of a row's inlines."""
    formsets, _ = pages._create_formsets(request, row, change=change)  # type: ignore[attr-defined]
    return list(formsets)


def mark_logged(response: HttpResponseBase) -> None:
    """Keep Django from logging an error response."""
    response._has_been_logged = True  # type: ignore[attr-defined]
