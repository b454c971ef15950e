"""Configuration as code in the admin: the file down, the file up, its plan, and then the import."""

import re
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from catalogue.models import HistoryEntry, Source, Toolset, Workflow
from tests.admin.pages import errors_in, shown_in, text_of, told
from tests.factories import make_source, make_toolset, make_workflow

pytestmark = pytest.mark.django_db

PAGE = "admin:catalogue_productsettings_as_code"
CURATOR = (
    "view_source", "change_source", "add_source", "view_workflow", "change_workflow", "view_toolset",
    "add_toolset", "change_toolset", "delete_toolset",
)  # fmt: skip


def upload(client: Client, text: str, **fields: Any) -> Any:
    file = SimpleUploadedFile("catalogue.yaml", text.encode())
    return client.post(reverse(PAGE), {"file": file, **fields})


def confirm(client: Client, page: Any) -> Any:
    sealed = re.search(r'name="sealed" value="([^"]+)"', page.content.decode())
    assert sealed, text_of(page)
    return client.post(reverse(PAGE), {"sealed": sealed[1]})


def test_a_curator_carries_the_curation_from_one_catalogue_to_another(staff_with):
    """Download, upload, see the plan, confirm; the rights of a curator are enough."""
    curator = staff_with(*CURATOR)
    report = make_workflow(make_source("orders"), tool_name="report", title_override="Report")
    make_toolset("finance", picked=[report])
    exported = curator.get(reverse(f"{PAGE}_export"))
    assert exported["Content-Type"] == "application/yaml; charset=utf-8"
    assert "attachment" in exported["Content-Disposition"]
    text = exported.content.decode()
    assert "example-key" not in text
    assert "groups:" not in text

    Source.objects.all().delete()
    Toolset.objects.all().delete()
    missing = upload(curator, text)
    assert "enter orders.api_key=... under Secrets" in text_of(missing)
    page = upload(curator, text, secrets="orders.api_key=another-key-0123456789")
    assert "1 source to add" in text_of(page)
    assert "another-key" not in page.content.decode()
    assert not Source.objects.exists()

    done = confirm(curator, page)
    assert done.status_code == 302
    assert "1 source added" in told(done)
    assert Source.objects.get().credentials == {"api_key": "another-key-0123456789"}
    assert list(Toolset.objects.get().picked.all()) == [Workflow.objects.get(tool_name="report")]
    assert {(entry.door, entry.actor_name) for entry in HistoryEntry.objects.all()} == {("admin", "member")}
    assert "Nothing differs." in text_of(upload(curator, text))


def test_what_has_changed_since_the_plan_was_seen_is_shown_again(admin_client):
    """Nobody confirms what they have not seen."""
    make_toolset("finance", title="Old")
    page = upload(admin_client, "version: 1\ntoolsets: {finance: {title: New}}")
    Toolset.objects.update(title="Other")
    again = confirm(admin_client, page)
    assert again.status_code == 200
    assert "Other" in text_of(again) and "Something changed since you saw the plan" in text_of(again)
    assert Toolset.objects.get().title == "Other"
    confirm(admin_client, again)
    assert Toolset.objects.get().title == "New"


def test_a_file_that_is_refused_leaves_what_was_typed(admin_client):
    """B8: also at the last step, where secrets stay encrypted."""
    config = "config: {base_url: 'http://127.0.0.1:9'}, secrets: [api_key]"
    text = f"version: 1\nsources: {{orders: {{kind: simplified, {config}}}}}"
    typed = "orders.api_key=key-0123456789"
    refused = upload(admin_client, "version: 0", secrets=typed, prune="on")
    assert errors_in(refused) == {"file": "Choose the file again; browsers do not keep it."}
    assert (shown_in(refused)["secrets"], bool(shown_in(refused)["prune"])) == (typed, True)
    assert "source.setting=value" in errors_in(upload(admin_client, text, secrets="key"))["secrets"]
    page = upload(admin_client, text, secrets=typed)
    assert "1 source to add" in text_of(page)
    User.objects.update(is_superuser=False)
    User.objects.get().user_permissions.add(Permission.objects.get(codename="view_source"))
    refused = confirm(admin_client, page)
    assert "catalogue.add_source" in text_of(refused)
    assert "Stored encrypted for an hour: orders.api_key." in text_of(refused)
    assert "key-0123456789" not in refused.content.decode()
    User.objects.update(is_superuser=True)
    kept = {"kept_entries": shown_in(refused)["kept_entries"]}
    confirm(admin_client, upload(admin_client, text, **kept))
    assert Source.objects.get().credentials == {"api_key": "key-0123456789"}


def test_nobody_imports_what_they_may_not_change(staff_with):
    """A file is no way around the permissions, nor to more of them."""
    make_toolset("finance")
    client = staff_with("view_source", "change_toolset", "change_group", "view_group")
    added = upload(client, "version: 1\ntoolsets:\n  other: {}\n")
    assert "line 3, toolsets.other: this needs the permission catalogue.add_toolset" in text_of(added)
    pruned = upload(client, "version: 1\ntoolsets: {}", prune="on")
    assert "catalogue.delete_toolset" in text_of(pruned)
    groups = upload(client, "version: 1\ngroups: {all: [auth.change_user]}")
    assert "only superusers in the admin" in text_of(groups)
    assert not Group.objects.filter(role=None).exists()
    assert list(Toolset.objects.values_list("slug", flat=True)) == ["finance"]
