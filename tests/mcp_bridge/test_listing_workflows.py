"""`list_workflows` and `get_workflow_info` as agents call them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from loguru import logger
from mcp import Client, MCPError

from access.callers import Scope
from catalogue.descriptions import forget_outages
from catalogue.exposure import current_catalogue
from catalogue.models import Source, Toolset
from dev.benchmarks._workflows import fill_catalogue
from dev.benchmarks.context import GOALS, MODES, TYPICAL
from identity.tokens import Access, create_token
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS, DEFAULT_LIMIT, MAX_LISTED, list_for
from mcp_bridge.calls import ToolCall
from telemetry import metrics
from tests.factories import make_source, make_toolset, make_workflow, make_workflows
from tests.mcp_bridge.database import in_database

SCHEMA = {
    "type": "object",
    "properties": {"month": {"type": "string", "description": "YYYY-MM"}, "dry_run": {"type": "boolean"}},
    "required": ["month"],
}
LONG = "Closes the ledger of one company for a month. " * 10


@pytest.fixture
def books(transactional_db: None) -> None:
    """Three workflows of two sources."""
    erp, desk = make_source("erp"), make_source("desk")
    make_workflow(
        erp,
        name="close_month",
        description=LONG,
        tags=["finance", "Monthly"],
        input_schema=SCHEMA,
        author="Ann",
    )
    make_workflow(erp, name="pay_suppliers", description="Transfers what is due.", tags=["finance"])
    make_workflow(desk, name="reset_password", description="For whoever forgot it.", tags=["support"])


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lambda line: lines.append(str(line)), level="WARNING", format="{message} {extra}")
    yield lines
    logger.remove(sink)


async def listing(client: Client, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool("list_workflows", arguments)
    assert not result.is_error, result.content[0].text
    assert json.loads(result.content[0].text) == result.structured_content
    return dict(result.structured_content)


async def names(client: Client, **arguments: Any) -> list[str]:
    return [workflow["name"] for workflow in (await listing(client, **arguments))["workflows"]]


async def refusal(client: Client, **arguments: Any) -> str:
    result = await client.call_tool("list_workflows", arguments)
    assert result.is_error
    return str(result.content[0].text)


async def test_a_list_is_compact_unless_asked_otherwise(connect, books, era):
    """D1, D2"""
    async with connect(mode=era) as client:
        document = await listing(client)
        assert document == await listing(client, mode="compact")
    assert document.keys() == {"workflows", "total"}
    assert document["total"] == 3
    close = document["workflows"][0]
    assert close == {
        "name": "close_month",
        "description": "Closes the ledger of one company for a month. " * 3 + "Closes the...",
        "tags": ["finance", "Monthly"],
        "input_summary": "dry_run (boolean, optional), month (string, required)",
    }
    assert document["workflows"][1]["input_summary"] == "any object"


async def test_standard_has_whole_descriptions_and_detailed_every_input(connect, books):
    """D1"""
    async with connect() as client:
        standard = (await listing(client, mode="standard"))["workflows"][0]
        detailed = (await listing(client, mode="detailed"))["workflows"][0]
        assert standard.keys() == {"name", "description", "tags", "input_summary"}
        assert standard["description"] == detailed["description"] == LONG
        assert detailed.keys() == {"name", "description", "tags", "version", "author", "inputs", "outputs"}
        assert detailed["author"] == "Ann"
        assert detailed["inputs"]["month"] == {
            "type": "string",
            "description": "YYYY-MM",
            "required": True,
            "default": None,
        }


async def test_the_text_that_models_read_is_dense(connect, books):
    """D5"""
    async with connect() as client:
        result = await client.call_tool("list_workflows", {})
        assert result.content[0].text == json.dumps(
            result.structured_content, ensure_ascii=False, separators=(",", ":")
        )


@pytest.mark.parametrize("mode", ["compact", "standard", "detailed"])
async def test_a_workflow_has_to_carry_every_tag(connect, books, mode):
    """D3: the same in all modes."""
    async with connect() as client:
        assert await names(client, mode=mode, tags=["finance"]) == ["close_month", "pay_suppliers"]
        assert await names(client, mode=mode, tags=["FINANCE", "monthly"]) == ["close_month"]
        assert await names(client, mode=mode, tags=["finance", "support"]) == []
        assert len(await names(client, mode=mode, tags=[])) == 3


@pytest.mark.parametrize(
    ("arguments", "mode"),
    [
        ({"detailed": True}, "detailed"),
        ({"detailed": False}, "standard"),
        ({"detailed": True, "mode": "compact"}, "detailed"),
        ({"detailed": False, "mode": "detailed"}, "standard"),
        ({"detailed": True, "mode": None, "tags": None}, "detailed"),
    ],
)
async def test_the_deprecated_argument_still_works_and_warns_once_per_call(
    connect, books, warnings, arguments, mode
):
    """D4: where both are given, `detailed` wins."""
    async with connect() as client:
        assert await listing(client, **arguments) == await listing(client, mode=mode)
        (warning,) = [line for line in warnings if "deprecated" in line]
        assert "docs/migration.md" in warning
        assert "token:" in warning


async def test_the_schema_says_what_is_deprecated_and_what_is_left_out(connect, books):
    """D4"""
    async with connect() as client:
        (tool,) = [tool for tool in (await client.list_tools()).tools if tool.name == "list_workflows"]
        assert tool.input_schema["properties"]["detailed"]["deprecated"] is True
        assert "detailed is deprecated: use mode" in tool.description
        assert "unavailable_sources" in tool.description


async def test_without_the_deprecated_argument_nothing_warns(connect, books, warnings):
    """D4"""
    async with connect() as client:
        await listing(client, mode="detailed")
        assert await listing(client, detailed=None, tags=None) == await listing(client)
        assert warnings == []


async def test_the_log_tells_what_each_list_cost_and_in_which_mode(connect, books):
    """D5, D9: so that the use of the modes, and of the deprecated argument, can be counted."""
    lines: list[dict[str, Any]] = []
    sink = logger.add(
        lambda message: lines.append(message.record["extra"]),  # type: ignore[attr-defined]
        level="INFO",
        filter=lambda record: record["message"] == "Listed workflows",
    )
    counted = [("compact", "none"), ("standard", "mode"), ("detailed", "detailed")]
    before = [metrics.lists_of_workflows.labels(*labels)._value.get() for labels in counted]
    try:
        async with connect() as client:
            texts = [
                (await client.call_tool("list_workflows", arguments)).content[0].text
                for arguments in ({}, {"mode": "standard", "tags": ["finance"]}, {"detailed": True})
            ]
    finally:
        logger.remove(sink)
    assert [(line["mode"], line["workflows"]) for line in lines] == [
        ("compact", 3),
        ("standard", 2),
        ("detailed", 3),
    ]
    assert [line["characters"] for line in lines] == [len(text) for text in texts]
    assert all(line["caller"].startswith("token:") and line["client"] for line in lines)
    after = [metrics.lists_of_workflows.labels(*labels)._value.get() for labels in counted]
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 1, 1]


async def test_a_query_ranks_what_it_finds(connect, books):
    async with connect() as client:
        assert await names(client, query="password") == ["reset_password"]
        assert (await names(client, query="close month"))[0] == "close_month"
        assert await names(client, query="transfers", tags=["support"]) == []
        assert await names(client, query="transfers", source="erp", mode="detailed") == ["pay_suppliers"]


async def test_a_source_narrows_the_list(connect, books):
    async with connect() as client:
        assert await names(client, source="erp") == ["close_month", "pay_suppliers"]
        assert await names(client, source="ERP") == ["close_month", "pay_suppliers"]


async def test_whoever_finds_nothing_is_told_what_there_is(connect, books):
    """So that a model corrects itself instead of giving up."""
    async with connect() as client:
        unknown_tag = await listing(client, tags=["finances"])
        assert unknown_tag == {
            "workflows": [],
            "total": 0,
            "hint": "No workflow has the tag 'finances'.",
            "known_tags": ["finance", "Monthly", "support"],
        }
        unknown_source = await listing(client, source="sap")
        assert unknown_source["hint"] == "No workflow has the source 'sap'."
        assert unknown_source["known_sources"] == ["erp", "desk"]
        no_hits = await listing(client, query="zebra")
        assert no_hits["known_tags"] == ["finance", "Monthly", "support"]
        assert "try fewer or other" in no_hits["hint"]
        together = await listing(client, tags=["finance", "support"])
        assert "use fewer" in together["hint"]


async def test_what_is_named_to_whoever_finds_nothing_is_bounded(connect, transactional_db):
    source = await in_database(make_source)()
    tags = [f"tag-{number}" for number in range(300)]
    await in_database(make_workflow)(source, tags=tags)
    async with connect() as client:
        document = await listing(client, tags=["nothing"])
    assert len(document["known_tags"]) == 50


async def test_an_empty_catalogue_says_so(connect, transactional_db):
    async with connect() as client:
        assert await listing(client) == {
            "workflows": [],
            "total": 0,
            "hint": "No workflow is shown here at present.",
        }


async def test_pages_hold_everything_once_in_the_same_order(connect, transactional_db):
    await in_database(make_workflows)(7, description="One of seven.")
    async with connect() as client:
        for wish in ({}, {"query": "seven"}, {"query": "seven", "tags": []}):
            whole = await names(client, **wish)
            assert len(whole) == 7
            assert await _paged(client, wish) == whole


async def _paged(client: Client, wish: dict[str, Any]) -> list[str]:
    paged: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await listing(client, limit=3, **wish, **cursor)
        assert page["total"] == 7
        paged += [workflow["name"] for workflow in page["workflows"]]
        if "next_cursor" not in page:
            return paged
        cursor = {"cursor": page["next_cursor"]}


async def test_an_ordinary_catalogue_needs_no_pages(connect, transactional_db):
    await in_database(make_workflows)(DEFAULT_LIMIT + 1)
    async with connect() as client:
        first = await listing(client)
        assert (len(first["workflows"]), first["total"]) == (DEFAULT_LIMIT, DEFAULT_LIMIT + 1)
        assert len(await names(client, limit=MAX_LISTED)) == DEFAULT_LIMIT + 1


async def test_a_workflow_that_comes_between_two_pages_moves_nothing(connect, books):
    async with connect() as client:
        page = await listing(client, limit=1)
        await in_database(make_workflow)(name="aaa")
        assert await names(client, cursor=page["next_cursor"]) == ["pay_suppliers", "reset_password"]


async def test_a_cursor_of_another_list_is_refused_in_band(connect, books):
    async with connect() as client:
        by_name = (await listing(client, limit=1))["next_cursor"]
        ranked = (await listing(client, limit=1, query="erp close pay due month"))["next_cursor"]
        for arguments in (
            {"cursor": "nonsense"},
            {"cursor": "é"},
            {"cursor": "A" * 5_000},
            {"cursor": by_name, "query": "pay"},
            {"cursor": ranked},
            {"cursor": ranked, "query": "pay"},
        ):
            assert "/cursor" in await refusal(client, **arguments)


ODD_ARGUMENTS = [
    ({"mode": "tiny"}, "/mode"),
    ({"tags": "finance"}, "/tags"),
    ({"tags": [1]}, "/tags/0"),
    ({"limit": 0}, "/limit"),
    ({"limit": MAX_LISTED + 1}, "/limit"),
    ({"limit": 1.5}, "/limit"),
    ({"cursor": "no cursor"}, "/cursor"),
    ({"query": ["a"]}, "/query"),
    ({"source": 7}, "/source"),
    ({"detailed": "yes"}, "/detailed"),
    ({"search": "x"}, "/search"),
]


async def test_odd_arguments_are_named(connect, books, subtests):
    """A2.5"""
    async with connect() as client:
        for arguments, path in ODD_ARGUMENTS:
            with subtests.test(arguments=arguments):
                assert path in await refusal(client, **arguments)


def _fail(source: Source, *, listed: bool) -> None:
    source.health_state, source.health_message = Source.HealthState.FAILING, "Connection refused."
    source.failing_since = timezone.now()
    source.last_refreshed_at = timezone.now() if listed else None
    source.save()
    forget_outages()


async def test_sources_that_cannot_be_listed_are_told_with_their_last_good_list(connect, books):
    """A1.4"""
    async with connect() as client:
        await in_database(lambda: _fail(Source.objects.get(name="erp"), listed=True))()
        await in_database(lambda: _fail(make_source("new"), listed=False))()
        await in_database(lambda: _fail(make_source("off", enabled=False), listed=True))()
        document = await listing(client)
        told = {entry["source"]: entry for entry in document["unavailable_sources"]}
        assert told.keys() == {"erp", "new"}
        assert told["erp"].keys() == {"source", "since", "reason", "shown"}
        assert told["erp"]["reason"] == "Connection refused."
        assert told["erp"]["shown"] == "the last good list"
        assert told["new"]["shown"] == "nothing"
        assert "close_month" in [workflow["name"] for workflow in document["workflows"]]


async def test_a_token_bound_to_a_toolset_learns_of_nothing_else(connect, books):
    """Neither of workflows, nor of tags and sources, nor of engines that fail."""
    toolset = await in_database(make_toolset)("desk-only", rules=["reset_*"])
    bound = (await in_database(create_token)(name="bound", toolset=toolset))[1]
    await in_database(lambda: _fail(Source.objects.get(name="erp"), listed=True))()
    async with connect(as_token=bound, toolset="desk-only") as client:
        assert await names(client) == ["reset_password"]
        assert await names(client, query="close month finance suppliers") == []
        assert (await listing(client, tags=["finance"]))["known_tags"] == ["support"]
        assert (await listing(client, source="erp"))["known_sources"] == ["desk"]
        assert "unavailable_sources" not in await listing(client)
        unknown = await client.call_tool("get_workflow_info", {"name": "pay_supplier"})
        assert "pay_suppliers" not in unknown.content[0].text
    await in_database(lambda: _fail(Source.objects.get(name="desk"), listed=True))()
    async with connect(toolset="desk-only") as client:
        assert [entry["source"] for entry in (await listing(client))["unavailable_sources"]] == ["desk"]


async def test_without_the_read_scope_nothing_is_listed(connect, books):
    runner = (await in_database(create_token)(name="runner", scopes=[Scope.RUN]))[1]
    async with connect(as_token=runner) as client:
        for tool, arguments in (("list_workflows", {}), ("get_workflow_info", {"name": "close_month"})):
            with pytest.raises(MCPError, match="lacks the scope workflows:read"):
                await client.call_tool(tool, arguments)


async def test_get_workflow_info_tells_everything_about_one(connect, books, era):
    """D7"""
    await in_database(lambda: _fail(Source.objects.get(name="erp"), listed=True))()
    async with connect(mode=era) as client:
        told = (await client.call_tool("get_workflow_info", {"name": "close_month"})).structured_content
        healthy = (await client.call_tool("get_workflow_info", {"name": "reset_password"})).structured_content
    assert told["description"] == LONG
    assert told["input_schema"] == SCHEMA
    assert told.keys() >= {"title", "version", "author", "output_schema", "hints", "icons", "execution_type"}
    assert (told["timeout_seconds"], told["cache_seconds"]) == (300, None)
    assert told["unavailable_source"]["reason"] == "Connection refused."
    assert "unavailable_source" not in healthy


async def test_an_unknown_name_is_answered_with_what_may_be_meant(connect, books):
    async with connect() as client:
        await in_database(make_workflow)(name="close_months_secret", enabled=False)
        for tool, arguments in (
            ("get_workflow_info", {"name": "month_close"}),
            ("execute_workflow", {"name": "closeMonth"}),
        ):
            text = (await client.call_tool(tool, arguments)).content[0].text
            assert "Did you mean close_month?" in text
            assert "secret" not in text
        with pytest.raises(MCPError, match=r"Did you mean pay_suppliers\?"):
            await client.call_tool("pay_supplier", {})


async def test_a_name_like_no_other_is_answered_without_a_guess(connect, books):
    async with connect() as client:
        for name in ("zzz", "x" * 5_000, "é", "🙂"):
            result = await client.call_tool("get_workflow_info", {"name": name})
            assert result.is_error
            assert "Did you mean" not in result.content[0].text


async def test_a_typical_catalogue_is_as_much_smaller_as_promised(connect, transactional_db):
    """D5: what models read of the answer, against what `tools/list` sends for the same workflows."""
    await in_database(fill_catalogue)(TYPICAL)
    async with connect() as client:
        tools = [tool for tool in (await client.list_tools()).tools if tool.name not in BUILT_IN_TOOLS]
        assert len(tools) == TYPICAL
        full = sum(len(tool.model_dump_json(by_alias=True, exclude_none=True)) for tool in tools)
        sizes = {
            mode: len((await client.call_tool("list_workflows", {"mode": mode})).content[0].text)
            for mode in MODES
        }
    for mode, least in GOALS.items():
        assert 1 - sizes[mode] / full >= least, (mode, sizes[mode], full)
    assert sizes["compact"] < sizes["standard"] < sizes["detailed"]


def test_listing_takes_no_query_once_the_catalogue_is_known(db):
    """D6"""
    make_workflows(5, tags=["a"])
    make_toolset("some", rules=["*"])
    call = ToolCall(access=Access.of_local_user(), protocol_version="2026-07-28")
    list_for(call, {})
    current_catalogue()

    with CaptureQueriesContext(connection) as queries:
        for arguments in ({}, {"query": "workflow"}, {"tags": ["a"], "mode": "detailed"}, {"source": "none"}):
            list_for(call, arguments)

    assert len(queries) == 0
    assert Toolset.objects.count() == 1
