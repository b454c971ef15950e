"""A workflow that is exposed only in its toolsets: what each caller sees and runs of it, at each door."""

import pytest
from mcp import MCPError
from rest_framework.test import APIClient

from access.callers import UNBOUNDED, Bounds
from catalogue.actions.toolsets import write_toolset
from catalogue.actions.workflows import override_workflow
from catalogue.exposure import confirmed_catalogue, count_switched, load_exposed_catalogue
from catalogue.models import Toolset, Workflow
from catalogue.search import search_workflows
from executions.models import Execution
from identity.tokens import create_token
from tests.factories import make_source, make_toolset, make_workflow
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.test_toolsets import bound_token, found_by, workflows_of

pytestmark = pytest.mark.databases("catalogue.exposure")

CALLERS: dict[str, tuple[str | None, str | None, bool]] = {
    "of everything, at /mcp": (None, None, False),
    "of everything, at the toolset that shows it": (None, "team", True),
    "of everything, at a toolset that does not": (None, "other", False),
    "of the toolset that shows it, at /mcp": ("team", None, True),
    "of the toolset that shows it, at its address": ("team", "team", True),
    "of a toolset that does not": ("other", None, False),
}
"""The toolset of the token, the address, and whether the workflow is there."""


def make_rooms() -> None:
    source = make_source()
    pay, plain = (make_workflow(source, name=name, offered_as_prompt=True) for name in ("pay", "plain"))
    override_workflow(pay, only_in_toolsets=True)
    make_toolset("team", picked=[pay, plain])
    make_toolset("other", picked=[plain])
    make_toolset("off", picked=[pay], enabled=False)


def token_bound_to(slug: str | None) -> str:
    if slug is None:
        return create_token(name="of everything")[1]
    return bound_token(Toolset.objects.get(slug=slug))


@pytest.mark.parametrize("caller", CALLERS)
async def test_it_is_seen_and_called_where_a_toolset_shows_it_and_nowhere_else(connect, era, caller):
    bound_to, address, is_there = CALLERS[caller]
    await in_database(make_rooms)()
    expected = ["pay", "plain"] if is_there else ["plain"]
    text = await in_database(token_bound_to)(bound_to)
    async with connect(as_token=text, toolset=address, mode=era) as client:
        assert await workflows_of(client) == await found_by(client) == expected
        assert [prompt.name for prompt in (await client.list_prompts()).prompts] == expected
        searched = (await client.call_tool("list_workflows", {"query": "pay"})).structured_content
        assert [one["name"] for one in searched["workflows"]] == (["pay"] if is_there else [])
        info = await client.call_tool("get_workflow_info", {"name": "pay"})
        assert info.is_error is not is_there
        by_name = await client.call_tool("execute_workflow", {"name": "pay", "arguments": {}})
        assert ("Unknown or disabled" in str(by_name.content)) is not is_there
        listed = {str(resource.uri) for resource in (await client.list_resources()).resources}
        assert any(uri.endswith("/pay") for uri in listed) is is_there
        for refused in (
            lambda: client.read_resource("workflow://metadata/pay"),
            lambda: client.get_prompt("pay", {}),
            lambda: client.call_tool("pay", {}),
        ):
            if is_there:
                await refused()
            else:
                with pytest.raises(MCPError):
                    await refused()
    assert await in_database(Execution.objects.filter(tool_name="pay").exists)() is is_there


@pytest.mark.parametrize(("slug", "is_there"), [(None, False), ("team", True), ("other", False)])
def test_rest_and_words_show_and_start_it_with_the_tokens_of_its_toolsets_only(db, slug, is_there):
    make_rooms()
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {token_bound_to(slug)}")
    listed = client.get("/api/workflows/").json()["results"]
    assert [one["tool_name"] for one in listed] == (["pay", "plain"] if is_there else ["plain"])
    assert client.get("/api/workflows/pay/").status_code == (200 if is_there else 404)
    started = client.post("/api/executions/", {"tool": "pay"}, format="json").status_code
    assert started == (202 if is_there else 404)
    asked = client.post("/workflow", {"user_instructions": "Pay it.", "tool_ids": ["pay"]}, format="json")
    assert ("pay" in str(asked.json()) and asked.status_code == 404) is not is_there


def test_administrators_see_it_by_rest_with_its_own_visibility(db, admin_client):
    make_rooms()
    shown = admin_client.get("/api/workflows/pay/").json()
    assert (shown["exposed"], shown["visibility"]) == (True, "exposed only in toolsets")
    assert shown["curator"]["only_in_toolsets"] is True
    assert len(admin_client.get("/api/workflows/?exposed=true").json()["results"]) == 2


def test_a_former_name_is_refused_outside_of_its_toolsets_as_well(db):
    make_rooms()
    override_workflow(Workflow.objects.get(tool_name="pay"), tool_name="pay_now", alias_days=30)
    client = APIClient()
    for slug, status in ((None, 404), ("team", 202)):
        client.credentials(HTTP_AUTHORIZATION=f"Bearer {token_bound_to(slug)}")
        assert client.post("/api/executions/", {"tool": "pay"}, format="json").status_code == status


def test_a_workflow_without_the_decision_costs_no_second_list(db):
    make_rooms()
    override_workflow(Workflow.objects.get(tool_name="pay"), only_in_toolsets=False)
    catalogue = confirmed_catalogue()
    assert catalogue.outside is catalogue.workflows is catalogue.seen_within(UNBOUNDED)


def test_the_decision_changes_one_object_of_the_catalogue_and_keeps_the_others(db):
    make_rooms()
    before = load_exposed_catalogue()
    override_workflow(Workflow.objects.get(tool_name="pay"), only_in_toolsets=False)
    after = load_exposed_catalogue(before)
    assert list(before.seen_within(UNBOUNDED)) == ["plain"]
    assert list(after.seen_within(UNBOUNDED)) == ["pay", "plain"]
    assert after.workflows["plain"] is before.workflows["plain"]
    assert search_workflows(before, "pay", Bounds("team")) == ["pay"]
    assert search_workflows(before, "pay") == []


def test_enabling_counts_it_as_newly_visible_only_if_a_toolset_shows_it(db):
    make_rooms()
    Workflow.objects.update(enabled=False)
    keys = list(Workflow.objects.values_list("pk", flat=True))
    assert count_switched(keys, enabled=True) == 2
    write_toolset(Toolset.objects.get(slug="team"), picked=["plain"])
    assert count_switched(keys, enabled=True) == 1  # The toolset that is off does not show it
