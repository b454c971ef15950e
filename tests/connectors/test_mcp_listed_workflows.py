"""What a server that lists workflows offers beside its tools, and in which words it may answer (B10, A6)."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from pydantic import ValidationError

from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.errors import ConnectorError, OutcomeUnknown, Rejected
from connectors.protocol import RunRef, WorkflowRef, capabilities_for
from connectors.testing import closing
from connectors.upstream_mcp.config import McpConfig
from connectors.upstream_mcp.connector import McpConnector
from tests.engines.workflow_server import CANCEL, LIST, START, STATUS, WorkflowServer, workflow


@pytest.fixture(scope="module")
def running_server() -> Iterator[WorkflowServer]:
    with WorkflowServer().running() as server:
        yield server


@pytest.fixture
def server(running_server: WorkflowServer) -> WorkflowServer:
    running_server.forget_everything()
    return running_server


@asynccontextmanager
async def connected(server: WorkflowServer, **config: Any) -> AsyncIterator[McpConnector]:
    async with closing(McpConnector(McpConfig(url=server.url, **config))) as connector:
        yield connector


async def found(server: WorkflowServer, **config: Any) -> dict[str, WorkflowDefinition | RejectedDefinition]:
    async with connected(server, **config) as connector:
        return {item.id: item async for item in connector.discover()}


QUICK, BROKEN, ENDLESS = "workflow:quick", "workflow:broken", "workflow:endless"


@pytest.mark.parametrize(
    ("config", "offered"),
    [
        ({"cancel_tool": CANCEL}, [QUICK, BROKEN, ENDLESS, "echo"]),
        ({}, [QUICK, BROKEN, ENDLESS, CANCEL, "echo"]),
        ({"offer": "workflows"}, [QUICK, BROKEN, ENDLESS]),
        ({"offer": "tools"}, [LIST, START, STATUS, CANCEL, "echo"]),
        ({"list_tool": ""}, [LIST, START, STATUS, CANCEL, "echo"]),
        ({"list_tool": "another"}, [LIST, START, STATUS, CANCEL, "echo"]),
    ],
    ids=[
        "both",
        "both, no cancel tool named",
        "workflows",
        "tools",
        "no list tool",
        "a list tool of another name",
    ],
)
async def test_a_source_offers_listed_workflows_tools_or_both(server, config, offered):
    """B10: the tools that list and run workflows are none themselves where they do that."""
    assert list(await found(server, **config)) == offered


async def test_a_workflow_and_a_tool_of_one_name_are_both_there_and_run_each_in_its_way(server):
    """A6.4, B10: the metadata says which is which."""
    server.workflows = [workflow("echo", "echo")]
    async with connected(server) as connector:
        both = [item async for item in connector.discover() if isinstance(item, WorkflowDefinition)]
        listed, tool = (
            WorkflowRef(id=item.id, name=item.name, metadata=item.metadata)
            for item in both
            if item.name == "echo"
        )
        started = await connector.start(listed, {"message": "as a workflow"}, key=uuid4())
        answered = await connector.start(tool, {"message": "as a tool"}, key=uuid4())
        assert not capabilities_for(connector, listed).cancellable_start
        assert capabilities_for(connector, tool).cancellable_start
    assert (listed.id, tool.id) == ("workflow:echo", "echo")
    assert server.runs[started.run_id].arguments == {"message": "as a workflow"}
    assert answered.snapshot and answered.snapshot.output == {"message": "as a tool"}


async def test_what_the_tools_are_asked_is_what_is_documented(server):
    """B1, B2, B10: with our key only where the settings say that it is known."""
    key, quick = uuid4(), WorkflowRef(id=QUICK, name="quick", metadata={"mcp": {"offered_as": "workflow"}})
    for knows_keys in (False, True):
        async with connected(server, idempotent_starts=knows_keys, cancel_tool=CANCEL) as connector:
            started = await connector.start(quick, {"seconds": 60}, key=key)
            run = RunRef(workflow=quick, run_id=started.run_id, key=key)
            await connector.poll(run)
            await connector.cancel(run)
        asked = dict(server.calls)
        wanted = {"workflow_id": "quick", "input": {"seconds": 60}}
        assert asked[START] == wanted | ({"idempotency_key": str(key)} if knows_keys else {})
        assert asked[STATUS] == asked[CANCEL] == {"workflow_id": "quick", "run_id": started.run_id}
        assert started.correlation_id == f"c_{started.run_id}"


LISTINGS = [
    [workflow("a", "A")],
    {"items": [workflow("a", "A")]},
    {"data": {"workflows": [workflow("a", "A")]}},
    {"result": [workflow("a", "A")]},
    {"result": {"workflows": [workflow("a", "A")]}},
]


@pytest.mark.parametrize("as_text", [False, True], ids=["structured", "text"])
@pytest.mark.parametrize("listing", LISTINGS, ids=json.dumps)
async def test_a_list_is_read_in_each_of_the_usual_envelopes(server, listing, as_text):
    """B10, A6.1: as structured content or as JSON in a text."""
    server.listing, server.as_text = listing, as_text
    assert list(await found(server, offer="workflows")) == ["workflow:a"]


async def test_pages_follow_each_other_by_their_cursor(server):
    """A1.1"""
    server.workflows, server.page_size = [workflow(str(n), f"W{n}") for n in range(5)], 2
    assert list(await found(server, offer="workflows")) == [f"workflow:{n}" for n in range(5)]
    assert [arguments for _, arguments in server.calls] == [{}, {"cursor": "2"}, {"cursor": "4"}]


async def test_an_object_that_is_no_workflow_is_rejected_and_the_others_stay(server):
    """A6.2, B6"""
    server.workflows = [{"id": "x"}, "nonsense", workflow("y" * 250, "Y"), workflow("z", "Z")]
    async with connected(server, offer="workflows") as connector:
        items = [item async for item in connector.discover()]
    assert [type(item) for item in items] == [RejectedDefinition] * 3 + [WorkflowDefinition]
    assert [item.position for item in items if isinstance(item, RejectedDefinition)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("listing", "words"),
    [
        ({"error": "no"}, "has no array under"),
        ("nothing", "no array under"),
        ({"workflows": [], "next_cursor": True}, "next page is a boolean"),
        ({"workflows": [], "next_cursor": "again"}, "links back"),
    ],
    ids=["no array", "a text", "a strange cursor", "a circle"],
)
async def test_a_list_that_cannot_be_read_says_why(server, listing, words):
    """A5.1"""
    server.listing, server.as_text = listing, True
    with pytest.raises(ConnectorError, match=words):
        await found(server, offer="workflows")


async def test_a_server_without_the_list_tool_is_told_apart_where_workflows_are_wanted(server):
    """B10"""
    del server.tools[LIST]
    with pytest.raises(Rejected, match=f"Unknown tool: {LIST}"):
        await found(server, offer="workflows")


async def test_a_start_tool_may_call_the_run_by_its_own_name(server):
    """B1: where workflow_id is the workflow's in every answer."""
    server.start_answer = {"workflow_id": "quick", "run_id": "r-1"}
    quick = WorkflowRef(id=QUICK, name="quick", metadata={"mcp": {"offered_as": "workflow"}})
    async with connected(server) as connector:
        assert (await connector.start(quick, {}, key=uuid4())).run_id == "r-1"


async def test_an_answer_to_a_start_that_names_no_run_leaves_it_open(server):
    """A7.2: the tool was carried out, so there may be a run."""
    quick = WorkflowRef(id=QUICK, name="quick", metadata={"mcp": {"offered_as": "workflow"}})
    server.start_answer = {"workflow_id": "quick", "status": "queued"}
    async with connected(server) as connector:
        with pytest.raises(OutcomeUnknown, match="has no run id"):
            await connector.start(quick, {}, key=uuid4())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"offer": "workflows", "list_tool": ""}, "requires a list tool"),
        ({"start_tool": LIST}, "different tools"),
        ({"status_tool": ""}, "require a start tool and a status tool"),
        ({"rest_base_url": "ftp://engine"}, "http:// or https://"),
        ({"rest_api_key": "kéy"}, "printable ASCII"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_words(config, words):
    """B4, B5"""
    with pytest.raises(ValidationError, match=words):
        McpConfig(url="http://127.0.0.1/mcp", **config)
