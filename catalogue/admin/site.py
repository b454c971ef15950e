"""Pages beyond the lists: the search over all of them, and 403 and 404."""

from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse, HttpResponseNotFound
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views import defaults
from unfold.dataclasses import SearchResult

from catalogue.models import Source, Toolset, Workflow

FOUND = 20
SEARCHED = {Workflow: "account_tree", Source: "hub", Toolset: "widgets"}  # By Ctrl-K, with symbols


def search_everything(request: HttpRequest, term: str) -> list[SearchResult]:
    return [result for model, icon in SEARCHED.items() for result in _search(request, model, term, icon)]


def _search(request: HttpRequest, model: Any, term: str, icon: str) -> Iterator[SearchResult]:
    pages = admin.site.get_model_admin(model)
    if not pages.has_view_permission(request):
        return
    found, _ = pages.get_search_results(request, pages.get_queryset(request), term)
    name = f"{model._meta.app_label}_{model._meta.model_name}"
    for obj in found[:FOUND]:
        yield SearchResult(
            title=str(obj),
            description=_described(obj),
            link=reverse(f"admin:{name}_change", args=[obj.pk]),
            icon=icon,
        )


def _described(obj: Any) -> str:
    if isinstance(obj, Workflow):
        return f"workflow of {obj.source}: {obj.title}"
    return str(obj._meta.verbose_name)


def page_refused(request: HttpRequest, exception: Exception) -> HttpResponse:
    if not _has_logged_in(request):
        return defaults.permission_denied(request, exception)
    message = str(exception) or "Your account has no permission for this. An administrator can grant it."
    return _say(request, "Not allowed", message, status=403)


def page_missing(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Plain text outside of the admin."""
    if not (request.path.startswith(reverse("admin:index")) and _has_logged_in(request)):
        return HttpResponseNotFound("There is nothing at this address.\n", content_type="text/plain")
    return _say(request, "Not found", "There is no such page, or what it showed is gone.", status=404)


def _has_logged_in(request: HttpRequest) -> bool:
    user = getattr(request, "user", None)
    return user is not None and admin.site.has_permission(request)


def _say(request: HttpRequest, title: str, message: str, *, status: int) -> HttpResponse:
    context = admin.site.each_context(request) | {"title": title, "told": message}
    return TemplateResponse(request, "catalogue/admin/not_shown.html", context, status=status).render()
