"""Importing a file of Temporal workflows in the admin: first what would change, then the import."""

import html
import re
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from catalogue.imports.temporal import TemporalImportRequest, import_file
from catalogue.models import Source, Workflow
from tests.admin.pages import errors_in, list_url, page_url, shown_in, text_of, told
from tests.factories import make_source

pytestmark = pytest.mark.django_db

EXAMPLE = Path(__file__).parents[1] / "connectors" / "temporal_files" / "source_document.yaml"
TEXT = "temporal: {hostPort: '127.0.0.1:9', timeout: 1s}\nworkflows: {A: {purpose: Does A., taskQueue: q}}\n"
SECRET = "hunter2-hunter2"


def url() -> str:
    return reverse("admin:catalogue_source_import_temporal")


def upload(client: Client, text: str = TEXT, **fields: str) -> Any:
    file = SimpleUploadedFile("workflows.yaml", text.encode())
    return client.post(url(), {"file": file, "source": "temporal"} | fields)


def sealed_in(page: Any) -> str:
    found = re.search(r'name="sealed" value="([^"]+)"', page.content.decode())
    return html.unescape(found[1]) if found else ""


def confirm(client: Client, page: Any) -> Any:
    return client.post(url(), {"sealed": sealed_in(page)})


def test_the_example_is_looked_at_and_then_imported(admin_client):
    """E1, B4: nothing is written before; afterwards the source's page says what was done."""
    page = upload(admin_client, EXAMPLE.read_text())
    assert "Source temporal , which is new: 5 added." in text_of(page)
    assert "ChatWorkflow added" in text_of(page) and "cache.databasePath has no effect" in text_of(page)
    assert not Source.objects.exists()

    done = confirm(admin_client, page)
    source = Source.objects.get()
    assert done.headers["location"] == page_url(source)
    assert "temporal: 5 added." in told(done) and "once a curator enables them" in told(done)
    assert Workflow.objects.filter(source=source).count() == 5
    history = text_of(admin_client.get(reverse("admin:catalogue_source_history", args=[source.pk])))
    assert "Imported a Temporal file: 5 added." in history
    assert "Import a file" in text_of(admin_client.get(page_url(source)))


def test_what_is_imported_is_what_was_looked_at(admin_client):
    """E1: with all that was chosen, though the second form has none of it; its secrets are never shown."""
    import_file(TemporalImportRequest(content=TEXT.replace("A", "B").encode(), source="orders"))
    auth = "  auth: {clientID: me, oauth2URL: 'https://auth.example.com/token'}\n"
    text = f"temporal:\n  hostPort: 127.0.0.1:9\n{auth}workflows: {{A: {{purpose: Does A., taskQueue: q}}}}"

    page = upload(admin_client, text, source="orders", prune="on", client_secret=SECRET)
    assert "B removed (not in the file)" in text_of(page) and "auth.clientSecret" in text_of(page)
    assert SECRET not in page.content.decode()
    confirm(admin_client, page)

    assert Source.objects.get().credentials == {"oauth_client_secret": SECRET}
    assert set(Workflow.objects.present().values_list("name", flat=True)) == {"A"}


def test_a_new_source_may_show_its_workflows_at_once(admin_client):
    """E1."""
    confirm(admin_client, upload(admin_client, expose="on"))
    assert Workflow.objects.get().enabled


def test_mistakes_are_told_by_line_and_key(admin_client):
    """E5: all of them, escaped, and nothing can be imported."""
    page = upload(admin_client, TEXT.replace("taskQueue", "<b>") + "cache: {enabled: yes}\n")
    shown = text_of(page)
    assert "The file cannot be imported. Nothing was changed." in shown
    assert "line 2, workflows.A.<b>: unknown key; known keys: purpose" in shown
    assert "line 3, cache.enabled: must be true or false." in shown
    assert not sealed_in(page)


AUTH = (
    "temporal: {hostPort: '127.0.0.1:9', auth: {clientID: me, oauth2URL: 'https://auth.example.com/token'}}\n"
)
WITH_SECRET = AUTH + "workflows: {A: {purpose: Does A., taskQueue: q}}\n"


def kept_in(page: Any) -> dict[str, str]:
    return {"kept_entries": shown_in(page)["kept_entries"]}


def test_a_secret_typed_with_a_file_that_is_refused_is_kept_encrypted(admin_client):
    """B4, E1: the browser gets it back in no form that it could read."""
    page = upload(admin_client, "temporal: [", client_secret=SECRET, prune="on")
    assert errors_in(page) == {"file": "Choose the file again; browsers do not keep it."}
    assert "Stored encrypted for an hour. Enter it only to replace it." in text_of(page)
    assert shown_in(page)["prune"] and SECRET not in page.content.decode()
    again = upload(admin_client, "temporal: [", **kept_in(page))
    confirm(admin_client, upload(admin_client, WITH_SECRET, **kept_in(again)))
    assert Source.objects.get().credentials == {"oauth_client_secret": SECRET}


def test_an_import_that_is_refused_at_the_last_step_keeps_what_was_typed(admin_client):
    """E1, E5: its secrets, too; another secret that is typed now counts instead."""
    page = upload(admin_client, WITH_SECRET, client_secret=SECRET, expose="on")
    other = make_source("temporal")
    refused = confirm(admin_client, page)
    assert "Source temporal is of the kind simplified" in errors_in(refused)["source"]
    assert (shown_in(refused)["source"], shown_in(refused)["expose"]) == ("temporal", True)
    assert SECRET not in refused.content.decode()
    other.delete()
    confirm(admin_client, upload(admin_client, WITH_SECRET, **kept_in(refused), client_secret="another-one"))
    assert Source.objects.get().credentials == {"oauth_client_secret": "another-one"}


def test_secrets_that_are_no_longer_kept_are_asked_for_again(admin_client, staff_with):
    """E6: nobody else can use them."""
    page = upload(admin_client, "temporal: [", client_secret=SECRET)
    colleague = staff_with("add_source", "view_source", "change_source")
    for kept in (kept_in(page), {"kept_entries": "gAAAAAB"}):
        refused = upload(colleague, WITH_SECRET, **kept)
        assert "The secrets that you entered have expired. Enter them again." in text_of(refused)
        assert not sealed_in(refused) and not shown_in(refused)["kept_entries"]


def test_what_changed_since_it_was_looked_at_is_checked_again(admin_client):
    """E5."""
    page = upload(admin_client)
    make_source("temporal")
    assert "Source temporal is of the kind simplified" in text_of(confirm(admin_client, page))
    assert not Workflow.objects.exists()


def test_only_what_was_made_here_is_imported(admin_client):
    """E6: nor anything else that was encrypted for another purpose."""
    source = make_source()
    for sealed in ("gAAAAAB", source.encrypted_credentials):
        assert admin_client.post(url(), {"sealed": sealed}).status_code == 403


def test_the_way_to_the_page(admin_client):
    """B4: from the list, and from a source that is to get more."""
    import_file(TemporalImportRequest(content=TEXT.encode(), source="orders"))
    assert "Import Temporal file" in text_of(admin_client.get(list_url(Source)))
    shown = admin_client.get(page_url(Source.objects.get())).content.decode()
    assert f"{url()}?source=orders" in shown
    assert 'value="orders"' in admin_client.get(url(), {"source": "orders"}).content.decode()
