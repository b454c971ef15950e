"""MCP servers that hang, lie, flood and die: the source says why, and nothing else is harmed."""

import json
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from functools import reduce
from typing import Any

import pytest

from catalogue.connections import close_connectors
from catalogue.discovery import refresh_source
from catalogue.models import DiscoveryRun, Source
from connectors.background import run_in_background_loop
from tests.catalogue.engine import definitions
from tests.catalogue.test_simultaneous_listings import helper
from tests.connectors.scripted import ScriptedEngine
from tests.engines import hostile_servers as servers
from tests.engines.hostile_servers import GOOD_TOOL, hostile, server
from tests.executions.engines import wait_until
from tests.factories import make_source

__all__ = ["helper"]

NO_MESSAGE = "not an MCP message in JSON"
KEY = "key-that-nobody-may-see-42"
TIMEOUT_SECONDS = 1.0
PATIENCE_SECONDS = 60.0
MAX_BYTES = 1_000_000
MAX_MEMORY_BYTES = 40_000_000
DEEP: dict[str, Any] = reduce(lambda inside, _: {"properties": {"a": inside}}, range(60), {})
UNFOLDING = {
    "$defs": {"l0": {"type": "string"}}
    | {
        f"l{level}": {"properties": {str(n): {"$ref": f"#/$defs/l{level - 1}"} for n in range(10)}}
        for level in range(1, 9)
    },
    "properties": {"a": {"$ref": "#/$defs/l8"}},
}


@pytest.fixture(autouse=True)
def _nothing_open(db: None) -> Iterator[None]:
    yield
    run_in_background_loop(close_connectors())


def source_of(engine: ScriptedEngine, *, name: str = "hostile", **config: Any) -> Source:
    settings = {
        "url": f"{engine.base_url}/mcp",
        "request_timeout_seconds": TIMEOUT_SECONDS,
        "max_response_bytes": MAX_BYTES,
    } | config
    source = Source(name=name, kind="mcp", config=settings)
    source.credentials = {"bearer_token": KEY}
    source.save()
    return source


@pytest.mark.parametrize(
    ("behave", "words"),
    [
        (server(initialize=servers.passing_silence), "no response within 1 s"),
        (server(list=servers.passing_silence), "no response within 1 s"),
        (server(list=servers.cursors_for_ever()), "more than 10,000 tools"),
        (server(list=servers.huge_event), "larger than 1,000,000 bytes"),
        (server(list=servers.huge_body), "larger than 1,000,000 bytes"),
        (server(list=servers.endless_progress), "larger than 1,000,000 bytes|no response within 1 s"),
        (
            server(list=servers.sends_raw(b'{"jsonrpc": "2.0", "id": 1, "res')),
            NO_MESSAGE,
        ),
        (server(list=servers.sends_raw(b"[" * 100_000)), NO_MESSAGE),
        (server(list=servers.sends_raw(b"")), NO_MESSAGE),
        (server(list=servers.answers([])), "cannot be used"),
        (server(list=servers.answers(None)), "cannot be used"),
        (server(list=servers.answers({"tools": {"good": GOOD_TOOL}})), "no array of tools"),
        (server(list=servers.answers({"tools": [], "nextCursor": 7})), "cursor"),
        (server(initialize=servers.answers({"protocolVersion": {"a": 1}})), "which is not supported"),
        (server(initialize=servers.answers("yes")), "cannot be used"),
        (server(list=lambda message, _: servers.error(message, f"Bad key {KEY}")), "Bad key ***"),
    ],
    ids=[
        "never answers initialize",
        "never answers the list",
        "new cursors for ever",
        "50 MB in one event",
        "50 MB in one body",
        "progress without end",
        "half a message",
        "brackets",
        "nothing",
        "a list as result",
        "null as result",
        "tools as object",
        "a number as cursor",
        "an object as version",
        "a text as result",
        "our key in its words",
    ],
)
def test_a_listing_that_cannot_be_used_is_said_at_the_source_in_bounded_time_and_memory(behave, words):
    """A1.4, A5.1, B6, B10: whatever the server does, no longer than its timeout allows."""
    limit = TIMEOUT_SECONDS if "no response" in words else PATIENCE_SECONDS
    with hostile(behave) as engine:
        source = source_of(engine, request_timeout_seconds=limit)
        tracemalloc.start()
        began = time.monotonic()
        run = refresh_source(source)
        seconds, (_, peak) = time.monotonic() - began, tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert run.outcome == DiscoveryRun.Outcome.FAILED
    assert any(expected in run.error for expected in words.split("|")), run.error
    source.refresh_from_db()
    assert source.health_message == run.error and KEY not in json.dumps(run.error)
    assert peak < MAX_MEMORY_BYTES, f"{peak:,} bytes"
    assert seconds < PATIENCE_SECONDS


BAD_TOOLS = {
    "a schema like a bomb": (GOOD_TOOL | {"name": "deep", "inputSchema": DEEP}, "nested deeper than 40"),
    "a schema that unfolds": (GOOD_TOOL | {"name": "unfolding", "inputSchema": UNFOLDING}, "100,000 parts"),
    "a name of 10,000 characters": (GOOD_TOOL | {"name": "n" * 10_000}, "at most 255 characters"),
    "no name": (GOOD_TOOL | {"name": ""}, "at least 1 character"),
    "a name that another has": (GOOD_TOOL, "an earlier object of this listing has the same id"),
    "a text instead of a tool": ("good", "expected an object"),
    "a number as name": (GOOD_TOOL | {"name": {"a": 1}}, "id: Input should be a valid string"),
}


def test_bad_tools_cost_nobody_but_themselves():
    """A5.3, B6, B8: each is skipped with its reason, and the good one is there."""
    behave = server(list=servers.lists(GOOD_TOOL, *(tool for tool, _ in BAD_TOOLS.values())))
    with hostile(behave) as engine:
        source = source_of(engine)
        run = refresh_source(source)
    assert run.outcome == DiscoveryRun.Outcome.SUCCEEDED, run.error
    assert [workflow.name for workflow in source.workflows.all()] == ["good"]
    reasons = [skipped["reason"] for skipped in run.skipped]
    assert len(reasons) == len(BAD_TOOLS)
    for (_, words), reason in zip(BAD_TOOLS.values(), reasons, strict=True):
        assert words in reason


@pytest.mark.parametrize(("levels", "streamed"), [(85, False), (1_000, False), (85, True), (1_000, True)])
def test_a_tool_that_is_nested_too_deep_to_be_read_costs_itself_alone(levels, streamed):
    """B6"""
    schema = '{"properties": {"a": ' * levels + "{}" + "}}" * levels
    deep = '{"name": "deep", "description": "Deep.", "inputSchema": ' + schema + "}"

    def answer(message: Any, writer: Any) -> None:
        body = json.dumps(servers.result(message, {"tools": ["DEEP", GOOD_TOOL]})).replace('"DEEP"', deep)
        if streamed:
            writer.write(servers.STREAM_HEAD + f"event: message\ndata: {body}\n\n".encode())
        else:
            servers.sends_raw(body.encode())(message, writer)

    with hostile(server(list=answer)) as engine:
        source = source_of(engine)
        run = refresh_source(source)
    assert run.outcome == DiscoveryRun.Outcome.SUCCEEDED, run.error
    assert [workflow.name for workflow in source.workflows.all()] == ["good"]
    (skipped,) = run.skipped
    assert (skipped["name"], skipped["reason"]) == ("deep", "nested too deep to be read")


def seconds_to_list(source: Source) -> float:
    began = time.monotonic()
    assert refresh_source(source).outcome == DiscoveryRun.Outcome.SUCCEEDED
    return time.monotonic() - began


@pytest.mark.django_db(transaction=True)
def test_while_some_hang_and_flood_the_others_are_listed_as_ever(engine, helper):
    """B6: four servers that keep their listings waiting, each in its way, and one good engine."""
    engine.workflows = definitions(20)
    good = make_source("good", base_url=engine.base_url)
    alone = sorted(seconds_to_list(good) for _ in range(3))[1]
    behaviours = [
        server(initialize=servers.silence),
        server(list=servers.silence),
        server(list=servers.endless_progress),
        server(list=servers.huge_event),
    ]
    with ExitStack() as stack:
        running = [stack.enter_context(hostile(behave)) for behave in behaviours]
        patience = {"request_timeout_seconds": PATIENCE_SECONDS, "max_response_bytes": 1_000_000_000}
        bad = [source_of(server, **patience, name=f"bad-{server.port}") for server in running]
        listings = [helper.start(refresh_source, source) for source in bad]
        for server_asked in running:
            wait_until(lambda asked=server_asked: asked.received, "the bad server is asked")
        beside = sorted(seconds_to_list(good) for _ in range(5))[2]
        assert not any(listing.done() for listing in listings)
    # Their servers are gone now, which ends the listings.
    assert {listing.result(PATIENCE_SECONDS).outcome for listing in listings} == {"failed"}
    assert beside < 10 * alone + 0.5, f"{beside:.3f} s beside {alone:.3f} s"
