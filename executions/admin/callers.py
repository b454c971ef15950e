"""Who acts in the admin, and the pages of those who call."""

from typing import Any

from django.http import HttpRequest

from catalogue.admin.rendering import link_if_allowed
from executions.callers import Caller


def caller_of(request: HttpRequest) -> Caller:
    """Whoever may see the admin's executions sees all of them."""
    return Caller(key=f"user:{request.user.pk}", name=request.user.get_username(), sees_everything=True)


caller_pages = {"user": "auth_user_change"}
"""By what a caller's key begins with: the admin's page of such a caller; the rooms above add theirs."""


def show_caller(request: HttpRequest, *, key: str, name: str) -> Any:
    """As a link where it has a page that the person may see."""
    told = f"{name} ({key})"
    kind, _, number = key.partition(":")
    if kind not in caller_pages or not number.isdecimal():
        return told
    return link_if_allowed(request, told, caller_pages[kind], number)
