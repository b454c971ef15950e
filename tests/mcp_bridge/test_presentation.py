"""How clients see a workflow: hints, icons, schemas, and rows that nobody could serve."""

from collections.abc import Iterator

import pytest
from django.db import connection
from loguru import logger

from catalogue.models import Revision, Workflow
from tests.factories import make_workflow
from tests.icons import PNG
from tests.mcp_bridge.conftest import McpServer
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.test_endpoint import modern

pytestmark = pytest.mark.databases("mcp_bridge.tool_lists")


@pytest.fixture
def logged() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lines.append, level="ERROR", format="{message}")
    yield lines
    logger.remove(sink)


def store(workflow: Workflow, column: str, text: str) -> None:
    """Write to the database past every check of ours."""
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE catalogue_workflow SET {column} = %s WHERE id = %s", [text, workflow.pk])
    Revision.bump()


def listed_tools(server: McpServer, token: str, era: str) -> list[str]:
    body, headers = modern("tools/list")
    if era == "legacy":
        body, headers = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, {}
    answer = server.post(body, headers=headers, token=token)
    assert answer.status_code == 200, answer.text
    return [tool["name"] for tool in answer.json()["result"]["tools"]]


async def test_clients_of_either_era_get_hints_and_icons(connect, era):
    """A3.1: the curator's word, then the engine's; what nobody knows is left out."""
    await in_database(make_workflow)(
        name="report", hints={"destructiveHint": True, "openWorldHint": False}, read_only_hint=True,
        icons=[{"src": PNG, "sizes": ["1x1"], "theme": "dark"}],
    )  # fmt: skip
    await in_database(make_workflow)(name="plain")
    async with connect(mode=era) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    told = tools["report"].annotations.model_dump(exclude_none=True)
    assert told == {"read_only_hint": True, "destructive_hint": False, "open_world_hint": False}
    (icon,) = tools["report"].icons
    assert (icon.src, icon.sizes, icon.theme) == (PNG, ["1x1"], "dark")
    assert (tools["plain"].annotations, tools["plain"].icons) == (None, None)


@pytest.mark.parametrize(
    ("column", "stored"),
    [
        ("hints", '{"readOnlyHint": "perhaps"}'),
        ("hints", "[1]"),
        ("hints", '"text"'),
        ("icons", '[{"src": 5}]'),
        ("icons", '[{"sizes": ["1x1"]}]'),
        ("icons", '{"src": "https://example.com/a.png"}'),
        ("icons", "[7]"),
        ("icons", '[{"src": "https://example.com/a.png", "theme": "pink"}]'),
        ("input_schema", "[]"),
        ("input_schema", "null"),
        ("input_schema", '{"type": "object", "title": "\\ud800"}'),
    ],
)
def test_a_row_that_no_client_could_read_costs_only_its_own_tool(mcp_server, token, logged, column, stored):
    """B6: said once for each revision, in the log, with the tool's name."""
    make_workflow(name="before"), make_workflow(name="later")
    broken = make_workflow(name="broken", execution_type="sync")
    store(broken, column, stored)
    for era in ("2026-07-28", "legacy"):
        names = listed_tools(mcp_server, token, era)
        assert {"before", "later"} <= set(names) and "broken" not in names
    assert [line for line in logged if "broken is left out of lists" in line] == logged
    assert len(logged) == 1
