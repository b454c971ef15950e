"""Every page, button and action of the admin, opened and posted to by everyone."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client, RequestFactory
from django.urls import URLPattern, reverse

import config.urls  # noqa: F401 - it registers the pages
from executions.admin.executions import SIGNED_OUT
from tests import access_matrix
from tests.access_matrix import NO, PEOPLE, YES
from tests.admin.pages import told, undrawn
from tests.admin.test_rights import OWN_ACCOUNT, _key_for
from tests.admin.window import make_everything, make_http_tool

pytestmark = [pytest.mark.e2e, pytest.mark.django_db, pytest.mark.timeout(300)]

ACTION = "action: "
NO_ROW = "0"
ON_ENGINES = {"catalogue_source_refresh_now": 0, "executions_execution_cancel": uuid.UUID(int=0)}
"""Asked of what does not exist: the engine is not to be asked."""
BUTTONS = tuple(f"_{name}" for its in admin.site._registry.values() for name in getattr(its, "buttons", ()))
ONLY_LOOKED_AT = ("_changelist", "_history", "_usage", "_live")


def pages() -> Iterator[tuple[str, str]]:
    """Names of pages with `open` and `post`, and of lists with their actions."""
    for pattern in _patterns(admin.site.urls[0]):
        name = pattern.name
        if not name or name in OWN_ACCOUNT or "content_type_id" in pattern.pattern.converters:
            continue
        if not name.endswith(BUTTONS):
            yield name, "open"
        if not name.endswith(ONLY_LOOKED_AT) and name != "index":
            yield name, "post"
    request = RequestFactory().get("/")
    request.user = User.objects.get(username="admin")
    for model, its in admin.site._registry.items():
        for action in its.get_actions(request):
            yield f"{model._meta.app_label}_{model._meta.model_name}_changelist", f"{ACTION}{action}"


def _patterns(entries: Any) -> Iterator[URLPattern]:
    for entry in entries:
        if isinstance(entry, URLPattern):
            yield entry
        else:
            yield from _patterns(entry.url_patterns)


def test_every_page_lets_in_whom_the_table_says():
    make_everything(User.objects.create(username="admin", is_superuser=True, is_staff=True))
    make_http_tool()
    clients = {column: Client(raise_request_exception=True) for column in PEOPLE}
    for column, user in access_matrix.make_people().items():
        clients[column].force_login(user)
    converters = {one.name: list(one.pattern.converters) for one in _patterns(admin.site.urls[0]) if one.name}

    def call(page: str, verb: str, caller: str) -> str:
        client, address = clients[caller], _address(page, converters[page])
        with transaction.atomic():
            if verb == "open":
                response: Any = client.get(address)
            elif verb == "post":
                response = client.post(address)
            else:
                # Of a row that does not exist, so that the action has nothing to do.
                client.cookies.pop("messages", None)  # Those of the calls before
                chosen = {"action": verb.removeprefix(ACTION), "index": 0, "_selected_action": NO_ROW}
                response = client.post(address, chosen)
            transaction.set_rollback(True)
        if response.status_code == 403 or response.headers.get("Location", "").startswith("/admin/login"):
            return NO
        if verb.startswith(ACTION):
            # One that is not offered is refused, or, where none is, answered with the list itself.
            shows_list = "cl" in (getattr(response, "context_data", None) or {})
            return NO if shows_list or "No action selected" in told(response) else YES
        assert response.status_code < 500
        return NO if page.endswith("_live") and response.content.decode() == SIGNED_OUT else YES

    with undrawn():
        observed = access_matrix.observe(pages(), PEOPLE, call)
    access_matrix.check("admin", observed)


def _address(page: str, converters: list[str]) -> str:
    if not converters:
        return reverse(f"admin:{page}")
    key = ON_ENGINES[page] if page in ON_ENGINES else _key_for(page)
    if page.startswith(("auth_user_", "auth_group_")):
        # One whom all that may change accounts may change.
        key = User.objects.get(username="member").pk if "user" in page else _own_group()
    return reverse(f"admin:{page}", args=[key, *(["input"] if len(converters) == 2 else [])])


def _own_group() -> int:
    from django.contrib.auth.models import Group

    return Group.objects.get(name="curators").pk
