"""The API's description."""

from pathlib import Path

import pytest
import yaml
from django.core.management import call_command

from tests.api.clients import administrator, agent

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "openapi.yaml"
COMMAND = "python manage.py spectacular --fail-on-warn --validate --file docs/openapi.yaml"


def test_the_committed_document_is_current(tmp_path):
    """And it is valid, and made without a warning."""
    fresh = tmp_path / "openapi.yaml"

    call_command("spectacular", file=str(fresh), validate=True, fail_on_warn=True)

    assert fresh.read_text() == DOCUMENT.read_text(), f"docs/openapi.yaml is out of date; run: {COMMAND}"


@pytest.mark.django_db
def test_the_document_is_served_to_everyone_who_is_let_in():
    served = yaml.safe_load(agent().get("/api/schema/").content)

    assert served == yaml.safe_load(DOCUMENT.read_text())


@pytest.mark.django_db
def test_the_document_shows_no_way_to_read_credentials():
    schemas = yaml.safe_load(administrator().get("/api/schema/").content)["components"]["schemas"]

    assert "credentials" not in schemas["Source"]["properties"]
    assert schemas["NewSourceRequest"]["properties"]["credentials"]["writeOnly"] is True


def test_every_operation_says_what_it_answers_when_it_refuses():
    operations = [
        (f"{method} {path}", operation)
        for path, methods in yaml.safe_load(DOCUMENT.read_text())["paths"].items()
        for method, operation in methods.items()
    ]

    assert len(operations) >= 18
    for name, operation in operations:
        assert {"401", "403"} <= operation["responses"].keys(), name
        assert ("404" in operation["responses"]) or "{" not in name, name
        assert operation["summary"], name
