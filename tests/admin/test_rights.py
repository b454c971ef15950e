"""Who may look and who may decide: every address of the admin, asked and posted to."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.core import serializers
from django.db import models
from django.test import Client
from django.urls import URLPattern, reverse

import config.urls  # noqa: F401 - it registers the pages
from catalogue.models import HistoryEntry, SavedView, Source, Workflow
from tests.admin.pages import list_url
from tests.admin.window import make_everything, make_http_tool

pytestmark = [pytest.mark.e2e, pytest.mark.django_db]

OWN_ACCOUNT = {
    "logout",
    "login",
    "password_change",
    "password_change_done",
    "jsi18n",
    "autocomplete",
    "app_list",
}
"""Of whoever is logged in, and what changes nothing of the product's."""
OF_A_SOURCE = {"executions_engine_runs"}
OF_A_WORKFLOW = {"executions_run", "catalogue_workflow_switch", "catalogue_workflow_tool"}
ANSWERS = {200, 302, 400, 403, 404, 405}
"""A page may lead elsewhere or be none for this object; 200 is a form that shows itself again."""


@pytest.fixture
def viewer() -> Client:
    """Somebody who may look at everything, over rows of every kind."""
    make_everything(User.objects.create(username="admin", is_superuser=True, is_staff=True))
    make_http_tool()
    user = User.objects.create(username="viewer", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__startswith="view_"))
    client = Client()
    client.force_login(user)
    return client


def addresses() -> Iterator[str]:
    """Every one, for an object that there is."""
    for pattern in _patterns(admin.site.urls[0]):
        name, names = pattern.name, list(pattern.pattern.converters)
        if not name or name in OWN_ACCOUNT:
            continue
        if not names:
            yield reverse(f"admin:{name}")
        elif names == ["content_type_id", "object_id"]:
            continue
        elif (key := _key_for(name)) is not None:
            further = ["input"] if len(names) == 2 else []
            yield reverse(f"admin:{name}", args=[key, *further])


def _patterns(entries: Any) -> Iterator[URLPattern]:
    for entry in entries:
        if isinstance(entry, URLPattern):
            yield entry
        else:
            yield from _patterns(entry.url_patterns)


def _key_for(name: str) -> Any:
    if name in OF_A_SOURCE:
        return Source.objects.get(name="good").pk
    if name in OF_A_WORKFLOW:
        return Workflow.objects.get(tool_name="get_order").pk
    if name == "catalogue_historyentry_undo":
        return HistoryEntry.objects.exclude(batch=None).values_list("batch", flat=True).first() or uuid4()
    app = next(one.label for one in apps.get_app_configs() if name.startswith(f"{one.label}_"))
    model = apps.get_model(app, name.removeprefix(f"{app}_").split("_")[0])
    return model._default_manager.order_by("pk").values_list("pk", flat=True).first()


def everything() -> str:
    """All rows of the product's own tables, and the accounts; the audit grows by what is looked at."""
    ours = [
        model
        for model in admin.site._registry
        if model._meta.managed and not model._meta.proxy and model._meta.app_label != "audit"
    ]
    further = [
        model
        for app in ("catalogue", "executions", "mcp_bridge")
        for model in apps.get_app_config(app).get_models()
        if model is not SavedView  # Each user's own
    ]
    rows: list[models.Model] = []
    for model in dict.fromkeys([*ours, *further]):
        rows += model._default_manager.order_by("pk")
    for row in rows:
        if isinstance(row, User):
            row.last_login = None
    return str(serializers.serialize("json", rows))


def test_somebody_who_may_only_look_sees_every_page(viewer):
    """B8: what is there to change something is refused, and not a mistake."""
    lists = {list_url(model) for model in admin.site._registry}
    for address in addresses():
        status = viewer.get(address).status_code
        is_to_look_at = address in lists or address.endswith(("/change/", "/history/", "/usage/", "/live/"))
        assert status in ({200, 302} if is_to_look_at else ANSWERS), (address, status)


def test_somebody_who_may_only_look_changes_nothing(viewer):
    """B8: whatever is posted to any address."""
    before = everything()
    for address in addresses():
        for sent in ({}, {"_save": "Save", "name": "changed", "enabled": "on", "tool_name": "changed"}):
            status = viewer.post(address, sent).status_code
            assert status in ANSWERS, (address, status)
    for model, pages in admin.site._registry.items():
        rows = list(model._default_manager.values_list("pk", flat=True))
        for action in ("delete_selected", *pages.actions):
            viewer.post(list_url(model), {"action": action, "_selected_action": rows, "post": "yes"})
    assert everything() == before
