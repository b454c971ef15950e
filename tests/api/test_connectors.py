"""The kinds of engines by REST: enough for a script to fill in a source, or to build a form for it."""

from typing import Any

import pytest
from jsonschema_rs import validator_for

from catalogue.models import Source
from tests.admin.conftest import ledger_kind
from tests.api.clients import administrator, problem_paths

__all__ = ["ledger_kind"]

pytestmark = pytest.mark.django_db


def described(kind: str) -> dict[str, Any]:
    answer: dict[str, Any] = administrator().get(f"/api/connectors/{kind}/").json()
    return answer


def test_the_kinds_are_listed_with_their_settings(ledger_kind):
    """B10: those of other packages too."""
    listed = {kind["kind"]: kind for kind in administrator().get("/api/connectors/").json()["results"]}
    assert {"simplified", "ledger"} <= listed.keys()
    assert listed["ledger"]["label"] == "Ledger"
    assert listed["ledger"]["summary"] == "Keeps the books; knows no workflows."
    assert listed["ledger"]["problem"] == ""
    without_summary = {kind for kind, told in listed.items() if not told["summary"]}
    assert not without_summary, (
        "the admin and add_source show the first paragraph of the connector's docstring"
    )
    assert listed["ledger"] == described("ledger")


def test_a_schema_says_what_a_form_has_to_know(ledger_kind):
    """B4, B10: titles, help, defaults, bounds, secrets, and what the admin's own form goes by."""
    kind = described("ledger")
    settings = kind["config_schema"]["properties"]
    assert kind["secret_settings"] == ["password", "token", "seal", "place_key"]
    assert settings["password"]["writeOnly"] is True
    assert settings["currency"] == {
        "default": "EUR", "minLength": 3, "title": "Currency", "type": "string",
    }  # fmt: skip
    assert settings["seal_seconds"]["maximum"] == 86_400
    assert settings["seal_seconds"]["group"] == "Sealing"
    assert settings["rules"]["multiline"] is True
    assert settings["place"]["address"] is True
    assert settings["place"]["only_if"] == {"storage": ["there"]}


def test_what_fits_the_schema_makes_a_source(ledger_kind):
    """B10: a script needs to know nothing but the kind's description."""
    kind = described("ledger")
    settings = {"address": "https://ledger.example.com", "password": "long-password", "retries": 1}
    assert validator_for(kind["config_schema"]).is_valid(settings)
    secrets = {name: settings.pop(name) for name in kind["secret_settings"] if name in settings}
    given = {"name": "books", "kind": "ledger", "config": settings, "credentials": secrets}
    assert administrator().post("/api/sources/", given).status_code == 201


def test_an_unknown_kind_is_not_found_and_the_known_ones_are_named():
    """B5"""
    answer = administrator().get("/api/connectors/nonsense/")
    assert answer.status_code == 404
    assert "simplified" in answer.json()["detail"]


def test_settings_can_be_checked_before_they_are_saved(example_engine):
    """B9: with the engine's own words of refusal."""
    given = {
        "config": {"base_url": example_engine.base_url},
        "credentials": {"api_key": example_engine.api_key},
    }
    good = administrator().post("/api/connectors/simplified/check/", given)
    assert (good.status_code, good.json()["ok"]) == (200, True)
    wrong = administrator().post(
        "/api/connectors/simplified/check/", given | {"credentials": {"api_key": "wrong-key-wrong-key"}}
    )
    assert (wrong.status_code, wrong.json()["ok"]) == (200, False)
    assert "401" in wrong.json()["message"]
    assert not Source.objects.exists()


def test_settings_that_cannot_be_used_are_refused(ledger_kind):
    """B4: as when a source is added."""
    given = {"config": {"address": "https://ledger.example.com", "password": "in the wrong place"}}
    refused = administrator().post("/api/connectors/ledger/check/", given)
    assert refused.status_code == 400
    assert problem_paths(refused) == ["/config"]
    assert refused.json()["kind"] == "configuration"
