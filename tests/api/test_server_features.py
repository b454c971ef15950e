"""/api/server-features/: prompts and resources of MCP servers."""

import pytest

from catalogue.models import HistoryEntry, Revision, ServerFeature
from tests.api.clients import administrator, problem_paths
from tests.factories import make_feature, make_source

pytestmark = [pytest.mark.django_db, pytest.mark.databases("catalogue.rest.server_features")]


@pytest.fixture
def prompt() -> ServerFeature:
    return make_feature(make_source("library"), "greet", enabled=False)


def address(feature: ServerFeature, action: str = "") -> str:
    return f"/api/server-features/{feature.pk}/{action}"


@pytest.mark.usefixtures("prompt")
@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", ["greet", "note://1", "note://{id}"]),
        ("source=library", ["greet"]),
        ("kind=template", ["note://{id}"]),
        ("enabled=false", ["greet"]),
        ("missing=true", ["note://1"]),
        ("missing=false", ["greet", "note://{id}"]),
        ("changed=true", ["note://{id}"]),
        ("ordering=-served_as", ["note://{id}", "note://1", "greet"]),
    ],
)
def test_they_are_listed_by_source_kind_and_state(query, shown):
    notes = make_source("notes")
    make_feature(notes, "note://1", kind="resource", missing_since="2026-11-01T00:00Z")
    make_feature(notes, "note://{id}", kind="template", offered={"name": "New"})
    answer = administrator().get(f"/api/server-features/?{query}")
    assert [one["served_as"] for one in answer.json()["results"]] == shown


def test_a_curators_decisions_are_written_and_recorded(prompt):
    client, revision = administrator(), Revision.current()
    body = {"enabled": True, "served_as": "hello", "title": "Hello", "description": ""}
    answer = client.patch(address(prompt), body, format="json")
    assert answer.status_code == 200, answer.json()
    assert answer.json()["title"] == "Hello"
    assert answer.json()["description"] == "What greet is for."
    prompt.refresh_from_db()
    assert (prompt.enabled, prompt.served_as) == (True, "hello") and Revision.current() > revision
    (entry,) = HistoryEntry.of(prompt)
    assert entry.message == "Changed description, enabled, served_as, title."
    assert entry.changes["enabled"] == [False, True]


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"served_as": "two words"}, "/served_as"),
        ({"enabled": "yes"}, "/enabled"),
        ({"definition": {}}, "/definition"),
        ({"title": "t" * 256}, "/title"),
    ],
)
def test_what_cannot_be_decided_is_refused(prompt, body, place):
    answer = administrator().patch(address(prompt), body, format="json")
    assert (answer.status_code, problem_paths(answer)) == (400, [place])
    prompt.refresh_from_db()
    assert (prompt.served_as, prompt.enabled) == ("greet", False)


def test_a_change_is_accepted_as_it_was_reviewed(prompt):
    client = administrator()
    ServerFeature.objects.update(offered={"name": "greet", "description": "Greets anew."})
    offer = client.get(address(prompt)).json()["offer"]
    refused = client.post(address(prompt, "accept/"), {"offer": "0" * 64}, format="json")
    assert refused.status_code == 409
    answer = client.post(address(prompt, "accept/"), {"offer": offer}, format="json").json()
    assert (answer["description"], answer["offered"], answer["offer"]) == ("Greets anew.", None, "")
    assert client.post(address(prompt, "accept/"), {"offer": offer}, format="json").status_code == 409
