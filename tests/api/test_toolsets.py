"""/api/toolsets/, and what a token that is bound to a toolset gets of the rest."""

import pytest

from catalogue.models import Revision, Toolset
from identity.tokens import create_token
from tests.api.clients import administrator, agent, problem_paths
from tests.factories import make_source, make_toolset, make_workflow

pytestmark = pytest.mark.django_db
ADDRESS = "/api/toolsets/"
LOOK_AROUND = {"pattern": "(?=x)", "syntax": "regex"}


def make_bound_client(toolset):
    client = agent()
    type(client.token).objects.filter(pk=client.token.pk).update(toolset=toolset)
    return client


def test_a_toolset_is_made_of_rules_and_picks_and_shows_what_they_choose():
    """A4.2"""
    for name in ("a1", "a2", "b"):
        make_workflow(name=name)

    response = administrator().post(
        ADDRESS,
        {
            "slug": "finance",
            "title": "Finance",
            "description": "For accounting.",
            "picked": ["b"],
            "rules": [{"action": "exclude", "pattern": "a2"}, {"pattern": "a*", "note": "all of a"}],
            "token_budget": 1_000_000,
        },
    )

    assert response.status_code == 201, response.json()
    shown = response.json()
    assert (shown["slug"], shown["mode"], shown["enabled"]) == ("finance", "full", True)
    assert shown["url"].endswith("/mcp/finance")
    assert (shown["picked"], shown["workflows"], shown["workflow_count"]) == (["b"], ["a1", "b"], 2)
    assert [
        (rule["action"], rule["subject"], rule["syntax"], rule["pattern"]) for rule in shown["rules"]
    ] == [
        ("exclude", "name", "glob", "a2"),
        ("include", "name", "glob", "a*"),
    ]
    assert shown["cost"]["full"]["tools"] == shown["cost"]["compact"]["tools"] + 2
    assert (shown["cost"]["over_budget"], shown["cost"]["warning"]) == (False, "")
    assert administrator().get(f"{ADDRESS}finance/").json() == shown


def test_a_slug_is_all_that_a_toolset_needs():
    shown = administrator().post(ADDRESS, {"slug": "empty"}).json()

    assert (shown["workflows"], shown["picked"], shown["rules"]) == ([], [], [])
    assert shown["token_budget"] is None and shown["cards"]


def test_what_is_not_named_in_a_change_stays():
    """A4.4"""
    workflow = make_workflow(name="a")
    make_toolset("finance", picked=[workflow], rules=["a*"], title="Finance")
    before = Revision.current()

    change = {"mode": "compact", "token_budget": 1, "inline_wait_seconds": 4, "cards": False}
    shown = administrator().patch(f"{ADDRESS}finance/", change).json()

    assert (shown["mode"], shown["title"], shown["picked"]) == ("compact", "Finance", ["a"])
    assert (shown["inline_wait_seconds"], shown["cards"]) == (4, False)
    assert len(shown["rules"]) == 1
    assert shown["cost"]["over_budget"] is True
    assert "raise the budget" in shown["cost"]["warning"]
    assert Revision.current() > before


@pytest.mark.databases("catalogue.actions.workflows")
def test_rules_and_picks_are_each_replaced_as_a_whole():
    made = [make_workflow(name=name) for name in "abc"]
    make_toolset("finance", picked=made[:2], rules=["a", "b"])
    client = administrator()

    replaced = client.patch(f"{ADDRESS}finance/", {"rules": [{"pattern": "c"}], "picked": ["b", "b"]}).json()
    emptied = client.patch(f"{ADDRESS}finance/", {"rules": [], "picked": []}).json()

    assert (replaced["picked"], replaced["workflows"]) == (["b"], ["b", "c"])
    assert (emptied["picked"], emptied["workflows"], emptied["rules"]) == ([], [], [])


def test_a_renamed_toolset_has_a_new_address():
    make_toolset("old")
    client = administrator()

    assert client.patch(f"{ADDRESS}old/", {"slug": "new"}).json()["url"].endswith("/mcp/new")
    assert client.get(f"{ADDRESS}old/").status_code == 404


@pytest.mark.parametrize(
    ("sent", "paths"),
    [
        ({}, ["/slug"]),
        ({"slug": "Has Spaces"}, ["/slug"]),
        ({"slug": "-x"}, ["/slug"]),
        ({"slug": "x" * 65}, ["/slug"]),
        ({"slug": "a\x00b"}, ["/slug"]),
        ({"slug": "taken"}, ["/slug"]),
        ({"slug": "x", "mode": "tiny"}, ["/mode"]),
        ({"slug": "x", "token_budget": 0}, ["/token_budget"]),
        ({"slug": "x", "token_budget": 10**30}, ["/token_budget"]),
        ({"slug": "x", "inline_wait_seconds": 0}, ["/inline_wait_seconds"]),
        ({"slug": "x", "inline_wait_seconds": 3601}, ["/inline_wait_seconds"]),
        ({"slug": "x", "enabled": None}, ["/enabled"]),
        ({"slug": "x", "title": "x" * 256}, ["/title"]),
        ({"slug": "x", "title": "a\nb"}, ["/title"]),
        ({"slug": "x", "picked": "a"}, ["/picked"]),
        ({"slug": "x", "picked": ["known", "unknown"]}, ["/picked/1"]),
        ({"slug": "x", "picked": [{"a": 1}]}, ["/picked/0"]),
        ({"slug": "x", "rules": {"pattern": "a"}}, ["/rules"]),
        ({"slug": "x", "rules": [{}]}, ["/rules/0/pattern"]),
        ({"slug": "x", "rules": ["a*"]}, ["/rules/0"]),
        ({"slug": "x", "rules": [{"pattern": "a"}, LOOK_AROUND]}, ["/rules/1/pattern"]),
        ({"slug": "x", "rules": [{"pattern": "a", "subject": "owner"}]}, ["/rules/0/subject"]),
        ({"slug": "x", "rules": [{"pattern": "a", "colour": 1}]}, ["/rules/0/colour"]),
        ({"slug": "x", "rules": [{"pattern": "a"}] * 201}, ["/rules"]),
        ({"slug": "x", "workflows": ["a"]}, ["/workflows"]),
    ],
)  # fmt: skip
def test_a_toolset_that_cannot_be_is_refused_by_field(sent, paths):
    """B4, B5: and nothing of it is kept."""
    make_toolset("taken")
    make_workflow(name="known")

    response = administrator().post(ADDRESS, sent)

    assert response.status_code == 400, response.json()
    assert (problem_paths(response), response.json()["kind"]) == (paths, "validation")
    assert Toolset.objects.count() == 1


@pytest.mark.parametrize(
    ("change", "paths"),
    [
        ({"slug": "taken", "title": "new"}, ["/slug"]),
        ({"rules": [{"action": "exclude"}], "title": "new"}, ["/rules/0/pattern"]),
        ({"picked": ["unknown"], "title": "new"}, ["/picked/0"]),
        ({"rules": None}, ["/rules"]),
    ],
)
@pytest.mark.databases("catalogue.actions.workflows")
def test_a_change_is_made_as_a_whole_or_not_at_all(change, paths):
    make_toolset("taken")
    make_toolset("mine", rules=["a*"])

    response = administrator().patch(f"{ADDRESS}mine/", change)

    assert (response.status_code, problem_paths(response)) == (400, paths)
    kept = Toolset.objects.get(slug="mine")
    assert (kept.title, kept.rules.count()) == ("", 1)


@pytest.mark.databases("identity.tokens")
def test_a_toolset_with_tokens_is_kept_until_they_are_revoked():
    toolset = make_toolset("finance")
    token, _ = create_token(name="accounting's agent", toolset=toolset)
    client = administrator()

    refused = client.delete(f"{ADDRESS}finance/")
    assert refused.status_code == 409
    assert "accounting's agent" in refused.json()["detail"]
    assert "Revoke them first" in refused.json()["detail"]
    token.revoke()
    assert client.delete(f"{ADDRESS}finance/").status_code == 204
    assert not Toolset.objects.exists()
    token.refresh_from_db()
    assert token.revoked_at is not None


@pytest.mark.parametrize(
    ("query", "expected"),
    [("", ["a", "b"]), ("enabled=true", ["a"]), ("mode=compact", ["b"]), ("ordering=-slug", ["b", "a"])],
)
@pytest.mark.databases("mcp_bridge.rest")
def test_the_list_is_filtered_and_ordered(query, expected):
    make_toolset("a")
    make_toolset("b", enabled=False, mode="compact")

    listed = administrator().get(f"{ADDRESS}?{query}").json()["results"]

    assert [toolset["slug"] for toolset in listed] == expected
    assert all("workflows" not in toolset and "workflow_count" in toolset for toolset in listed)


def test_a_switched_off_toolset_shows_what_it_would_show():
    make_toolset("off", picked=[make_workflow(name="a")], enabled=False, rules=["b"])
    make_workflow(name="b")

    assert administrator().get(f"{ADDRESS}off/").json()["workflows"] == ["a", "b"]


def test_a_bound_token_reads_and_starts_only_what_its_toolset_shows():
    """A4.2: REST is no way around the toolset."""
    source = make_source()
    mine, other = (make_workflow(source, name=name) for name in ("mine", "other"))
    client = make_bound_client(make_toolset("part", picked=[mine]))

    listed = client.get("/api/workflows/").json()
    assert [workflow["tool_name"] for workflow in listed["results"]] == ["mine"]
    assert client.get("/api/workflows/?exposed=true").json()["count"] == 1
    assert client.get("/api/workflows/?exposed=false").json()["count"] == 0
    assert client.get("/api/workflows/mine/").status_code == 200
    assert client.get("/api/workflows/other/").status_code == 404
    assert client.post("/api/executions/", {"tool": "other", "arguments": {}}).status_code == 404
    assert client.post("/api/executions/", {"tool": "mine", "arguments": {}}).status_code == 202
    assert other.executions.count() == 0
