"""Uses of private names of other packages, which change without notice."""

from typing import Any

from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.contrib.messages.storage.base import Message
from django.core.cache.backends.dummy import DummyCache
from django.http import HttpRequest, HttpResponseBase
from unfold import sites


def formsets_of(pages: "ModelAdmin[Any]", request: HttpRequest, row: Any, *, change: bool) -> list[Any]:
    """The bound formsets of a row's inlines."""
    formsets, _ = pages._create_formsets(request, row, change=change)  # type: ignore[attr-defined]
    return list(formsets)


def mark_logged(response: HttpResponseBase) -> None:
    """Keep Django from logging an error response."""
    response._has_been_logged = True  # type: ignore[attr-defined]


def search_without_cache() -> None:
    """Unfold keeps the results of a search for five minutes: what was added since was not found, and what was
    deleted was. It has no setting for that, and Django's cache also serves others."""
    assert sites.cache is not None
    sites.cache = DummyCache("searches", {})


def last_message(request: HttpRequest) -> Message | None:
    """The newest of the messages that this request adds for the next page; iterating over them would take
    them away."""
    added: list[Message] = messages.get_messages(request)._queued_messages  # type: ignore[union-attr]
    return added[-1] if added else None
