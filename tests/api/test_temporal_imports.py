"""/api/temporal-imports/"""

from pathlib import Path

import pytest

from catalogue.models import Source, Workflow
from tests.api.clients import administrator, agent, problem_paths, staff_session

pytestmark = pytest.mark.django_db

EXAMPLE = (Path(__file__).parents[1] / "connectors" / "temporal_files" / "source_document.yaml").read_text()
PATH = "/api/temporal-imports/"
SECRET = "hunter2-hunter2"
TEXT = "temporal: {hostPort: '127.0.0.1:9', timeout: 1s}\nworkflows: {A: {purpose: Does A., taskQueue: q}}\n"


def test_a_file_is_imported_after_a_dry_run_has_told_the_same():
    """E1, B4: the example of the specification."""
    client = administrator()
    planned = client.post(PATH, {"file": EXAMPLE, "dry_run": True}).json()
    assert not Source.objects.exists()
    done = client.post(PATH, {"file": EXAMPLE}).json()

    assert (planned["health"]["ok"], done["health"]["ok"]) == (False, False)
    assert planned | {"health": None} == done | {"health": None}
    assert (done["source"], done["is_new"], done["settings"]) == ("temporal", True, [])
    assert done["workflows"][0] == {"workflow": "IngestWorkflow", "change": "added"}
    assert len(done["workflows"]) == Workflow.objects.count() == 5
    assert "cache.databasePath has no effect" in " ".join(done["notes"])


def test_mistakes_are_told_by_line_and_key():
    """E5: one problem each, and no secret among them."""
    text = TEXT.replace("taskQueue", "taskQeue") + f"cache: {{enabled: {SECRET}}}"
    refused = administrator().post(PATH, {"file": text})
    assert (refused.status_code, refused.json()["kind"]) == (400, "configuration")
    assert [problem["message"] for problem in refused.json()["errors"]] == [
        "line 2, workflows.A.taskQeue: unknown key; did you mean taskQueue?",
        "line 3, cache.enabled: must be true or false.",
    ]
    assert problem_paths(refused) == ["/file", "/file"] and SECRET not in refused.content.decode()


def test_secrets_are_stored_encrypted_and_never_answered():
    """E6."""
    auth = "  auth: {clientID: me, oauth2URL: 'https://auth.example.com/token'}"
    text = f"temporal:\n  hostPort: 127.0.0.1:9\n  timeout: 1s\n{auth}\nworkflows: {{}}\n"
    done = administrator().post(PATH, {"file": text, "secrets": {"clientSecret": SECRET}})
    assert done.status_code == 200 and SECRET not in done.content.decode()
    assert Source.objects.get().credentials == {"oauth_client_secret": SECRET}


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "/file"),
        ({"file": TEXT, "prone": True}, "/prone"),
        ({"file": TEXT, "secrets": {"clientSecret": {}}}, "/secrets/clientSecret"),
    ],
)
def test_bad_requests_are_refused_by_field(body, path):
    """A2.5."""
    refused = administrator().post(PATH, body)
    assert refused.status_code == 400 and problem_paths(refused) == [path]


def test_only_who_may_write_sources_imports():
    """B4, D5: staff need the permission to add, or to change the one that there is."""
    assert agent().post(PATH, {"file": TEXT}).status_code == 403
    client = staff_session("view_source", "add_source")
    assert client.post(PATH, {"file": TEXT}).status_code == 200
    assert client.post(PATH, {"file": TEXT, "dry_run": True}).status_code == 403
    assert client.post(PATH, {"file": TEXT, "source": "other"}).status_code == 200
