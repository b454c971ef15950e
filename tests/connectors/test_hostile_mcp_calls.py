"""Calls of tools at MCP servers that hang, lie, flood and die: each ends, in words, and shows no secret."""

import asyncio
import itertools
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from loguru import logger

from connectors.definitions import RejectedDefinition
from connectors.errors import ConnectorError, InvalidAnswer, OutcomeUnknown, Rejected, Unreachable
from connectors.protocol import RunRef, RunState, Started, WorkflowRef
from connectors.testing import closing, everything_told_by
from connectors.upstream_mcp.config import McpConfig
from connectors.upstream_mcp.connector import McpConnector
from tests.connectors.scripted import Received, ScriptedEngine, response
from tests.engines import hostile_servers as servers
from tests.engines.hostile_servers import Answer, result, server

KEY = "key-that-nobody-may-see-42"
GOOD = WorkflowRef(id="good", name="good")


LIMITS = {"request_timeout_seconds": 5, "call_timeout_seconds": 5, "max_response_bytes": 100_000}


@asynccontextmanager
async def connected(engine: ScriptedEngine, **config: Any) -> AsyncIterator[McpConnector]:
    settings = LIMITS | config
    async with engine:
        url = f"{engine.base_url}/mcp"
        connector = McpConnector(McpConfig(url=url, bearer_token=KEY, **settings))
        async with closing(connector):
            yield connector


def done(message: Any, _: Any = None) -> Any:
    return result(message, {"content": [{"type": "text", "text": "done"}]})


def at_first(answer: Answer) -> Answer:
    """Every further call is answered as it should be."""
    answers = itertools.chain([answer], itertools.repeat(done))
    return lambda message, writer: next(answers)(message, writer)


async def call(connector: McpConnector) -> Started:
    return await connector.start(GOOD, {}, key=uuid4())


@pytest.fixture
def shown(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """All that our code and the libraries below it write, at every level."""
    caplog.set_level(logging.DEBUG)
    lines: list[str] = []
    sink = logger.add(lines.append, level=0, diagnose=False)
    yield lines
    logger.remove(sink)


def deep(text: str, message: Any) -> bytes:
    """The event of a message; DEEP in it stands for what no parser reads."""
    nested = "[" * 5_000 + "]" * 5_000
    body = text.replace("ID", json.dumps(message["id"])).replace("DEEP", nested)
    return f"event: message\ndata: {body}\n\n".encode()


def answers_deeply(message: Any, writer: asyncio.StreamWriter) -> None:
    text = '{"jsonrpc": "2.0", "id": ID, "result": {"content": [], "structuredContent": {"a": DEEP}}}'
    writer.write(servers.STREAM_HEAD + deep(text, message))


def tells_deeply(message: Any, writer: asyncio.StreamWriter) -> None:
    """Notifications, a request and a good answer."""
    told = '{"jsonrpc": "2.0", "method": "notifications/message", "params": {"result": {"error": DEEP}}}'
    asked = '{"jsonrpc": "2.0", "id": "one", "method": "sampling/createMessage", "params": {"a": DEEP}}'
    counted = '{"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": DEEP}}'
    answer = f"data: {json.dumps(done(message))}\n\n".encode()
    writer.write(servers.STREAM_HEAD + b"".join(deep(text, message) for text in (told, asked, counted)))
    writer.write(answer)


async def hang_up(message: Any, writer: asyncio.StreamWriter) -> None:
    """In the middle of the answer."""
    writer.write(servers.STREAM_HEAD + b"event: message\ndata: {")
    await writer.drain()
    writer.transport.abort()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (servers.passing_silence, "no response within 0.3 s"),
        (servers.huge_event, "larger than 100,000 bytes"),
        (servers.huge_body, "larger than 100,000 bytes"),
        (servers.sends_raw(b"<html>Sorry</html>"), "not an MCP message in JSON"),
        (hang_up, "connection broke"),
    ],
    ids=["silence", "50 MB in one event", "50 MB in one body", "HTML", "a broken connection"],
)
async def test_a_call_without_a_usable_answer_may_have_happened(answer, words):
    """A7.2, E5: and the next one is not harmed."""
    engine = ScriptedEngine(server(call=at_first(answer)))
    async with connected(engine, call_timeout_seconds=0.3) as connector:
        await connector.check()
        with pytest.raises(OutcomeUnknown, match=words):
            await call(connector)
        assert (await call(connector)).snapshot


async def test_an_answer_that_is_nested_too_deep_is_said_to_be_so():
    """E5: and the next call is not harmed."""
    engine = ScriptedEngine(server(call=at_first(answers_deeply)))
    async with connected(engine) as connector:
        failed = (await call(connector)).snapshot
        assert failed is not None and failed.state is RunState.FAILED
        assert "nested more than 150 levels deep" in failed.error
        assert (await call(connector)).snapshot


async def test_a_message_of_a_stream_that_is_nested_too_deep_costs_itself_alone():
    """E5: the answer after it is heard, and the server is told that its request is not served."""
    engine = ScriptedEngine(server(call=tells_deeply))
    async with connected(engine) as connector:
        snapshot = (await call(connector)).snapshot
        refusals = lambda: [told.json for told in engine.received if '"one"' in told.body.decode()]  # noqa: E731
        async with asyncio.timeout(5):
            while not refusals():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert snapshot is not None and snapshot.state is RunState.COMPLETED
    assert refusals()[0]["error"]["code"] == -32601


@pytest.mark.parametrize(
    "value",
    [{"content": "done"}, {"content": [7]}, {"content": [{"text": "done"}]}, {"content": {"type": "text"}}],
)
async def test_a_result_of_wrong_types_is_a_failed_run(value):
    """E5: the run has ended, and nobody is given what cannot be read."""
    async with connected(ScriptedEngine(server(call=servers.answers(value)))) as connector:
        snapshot = (await call(connector)).snapshot
    assert snapshot is not None and snapshot.state is RunState.FAILED
    assert "cannot be used" in snapshot.error


async def test_a_flood_of_progress_leaves_the_event_loop_to_the_others():
    """B6, A7.3: a hundred thousand notifications a second, of which few are read; the loop goes round."""
    heard, lags = [], []
    engine = ScriptedEngine(server(call=servers.endless_progress))
    async with connected(engine, max_response_bytes=1_000_000_000) as connector:
        await connector.check()
        flooded = asyncio.create_task(connector.start(GOOD, {}, key=uuid4(), report=heard.append))
        until = time.monotonic() + 2
        while time.monotonic() < until:
            began = time.monotonic()
            await asyncio.sleep(0.005)
            lags.append(time.monotonic() - began)
        assert not flooded.done()
        flooded.cancel()
        await asyncio.wait({flooded})
    assert 0 < len(heard) < 1_000
    assert sorted(lags)[len(lags) // 2] < 0.1, f"{sorted(lags)[-5:]}"


async def test_a_session_that_is_forgotten_before_a_call_begins_is_replaced():
    """A7.2: the server did nothing of the call, so it is sent once more, in another session."""

    def forgets(message: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(response(404, '{"error": "Session not found"}'))

    engine = ScriptedEngine(server(call=at_first(forgets)))
    async with connected(engine) as connector:
        assert (await call(connector)).snapshot
        begun = [asked for asked in engine.received if asked.body and asked.json["method"] == "initialize"]
    assert len(begun) == 2


@pytest.mark.parametrize("as_event", [False, True], ids=["JSON", "event stream"])
async def test_our_key_is_shown_nowhere_though_the_server_repeats_it(shown, caplog, as_event):
    """E6: in a result, in a refusal, and in what nobody could read."""
    texts = [{"type": "text", "text": f"You said {KEY}"}]
    sent = servers.as_event if as_event else (lambda message: message)
    calls: list[Answer] = [
        lambda message, writer: sent(result(message, {"content": texts, "structuredContent": {KEY: [KEY]}})),
        lambda message, writer: sent(servers.error(message, f"No {KEY}", -32000)),
        lambda message, writer: sent({"neither": KEY}),
    ]
    behave = server(call=lambda message, writer: servers.send(calls.pop(0)(message, writer), writer))
    async with connected(ScriptedEngine(behave)) as connector:
        told = [repr(await call(connector))]
        with pytest.raises(ConnectorError) as caught:
            await call(connector)
        told += [everything_told_by(caught.value), repr(await call(connector))]
    assert "You said ***" in told[0]
    assert KEY not in "\n".join([*told, *shown, caplog.text])


async def test_a_server_that_is_gone_says_so_at_every_call():
    """A1.4: also in the middle of a conversation."""
    engine = ScriptedEngine(server())
    async with connected(engine) as connector:
        assert (await call(connector)).snapshot
        await engine.__aexit__(None, None, None)
        with pytest.raises(ConnectorError, match=r"Could not connect|connection broke"):
            await call(connector)


LISTS = {
    "list": ("tools", lambda name: servers.GOOD_TOOL | {"name": name}),
    "prompts": ("prompts", lambda name: {"name": name}),
    "resources": ("resources", lambda name: {"name": name, "uri": f"x://{name}"}),
    "templates": ("resourceTemplates", lambda name: {"name": name, "uriTemplate": f"x://{name}/{{a}}"}),
}
FIRST = object()
PAGES: dict[
    str, tuple[dict[Any, Any], list[str], str]
] = {  # The next cursor by cursor, names, and what is said
    "no cursor": ({}, ["0"], ""),
    "null": ({FIRST: None}, ["0"], ""),
    "an empty one": ({FIRST: "", "": None}, ["0", "1"], ""),
    "an empty one after another": ({FIRST: "a", "a": "", "": "b"}, ["0", "1", "2", "3"], ""),
    "a blank one": ({FIRST: " ", " ": "  "}, ["0", "1", "2"], ""),
    "a long one": ({FIRST: "x" * 50_000, "x" * 50_000: "="}, ["0", "1", "2"], ""),
    "an empty one for ever": ({FIRST: "", "": ""}, ["0"], "the cursor"),
    "the same for ever": ({FIRST: "a", "a": "a"}, [], "links back"),
    "a circle of two": ({FIRST: "", "": "a", "a": ""}, [], "links back"),
    "a number": ({FIRST: 0}, [], "not a string"),
    "an object": ({FIRST: {}}, [], "not a string"),
}


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize(("following", "names", "said"), PAGES.values(), ids=PAGES)
async def test_a_list_ends_where_no_cursor_follows(kind, following, names, said):
    """A1.1: an empty cursor is one, but some servers mean the end by it."""
    key, make = LISTS[kind]
    asked: list[Any] = []

    def page(message: Any, _: Any) -> Any:
        cursor = (message.get("params") or {}).get("cursor", FIRST)
        answer = {key: [make(str(len(asked)))]}
        asked.append(cursor)
        return result(message, answer | ({"nextCursor": following[cursor]} if cursor in following else {}))

    def initialize(message: Any, _: Any) -> Any:
        answer = servers.initialized(message)
        answer["result"]["capabilities"] = {key.replace("resourceTemplates", "resources"): {}}
        return answer

    empty = {"resources": [], "resourceTemplates": []}
    others = dict.fromkeys(("resources", "templates"), servers.answers(empty))
    behave = server(**others | {"initialize": initialize, kind: page})
    async with connected(ScriptedEngine(behave)) as connector:
        listed = connector.discover() if kind == "list" else connector.list_features()
        if said and not names:
            with pytest.raises(InvalidAnswer, match=said):
                _ = [item async for item in listed]
            return
        found = [item async for item in listed]

    rejected = [item.reason for item in found if isinstance(item, RejectedDefinition)]
    assert [item.name for item in found if not isinstance(item, RejectedDefinition)] == names
    assert [said in reason for reason in rejected] == ([True] if said else [])
    assert asked == [FIRST, *dict.fromkeys(cursor for cursor in following.values() if cursor is not None)]


def with_tasks(message: Any, _: Any) -> Any:
    greeting = servers.initialized(message)
    greeting["result"]["capabilities"]["tasks"] = {}
    return greeting


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (response(500, b"{}"), Unreachable),
        (response(200, b"<html>", content_type="text/html"), InvalidAnswer),
        ({"error": {"code": -32603, "message": "lost"}}, Rejected),
        ({"error": {"code": -32602, "message": "no such task"}}, Rejected),
    ],
)
async def test_a_task_that_has_completed_is_completed_without_its_result(answer, error):
    """A2.3: a failed one is not made a completed one by it."""
    usual, status = server(initialize=with_tasks), "completed"

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        message = request.json if request.method == "POST" else {}
        if message.get("method") == "tasks/get":
            servers.send(result(message, {"taskId": "t-1", "status": status}), writer)
        elif message.get("method") == "tasks/result":
            is_raw = isinstance(answer, bytes)
            servers.send(answer if is_raw else {"jsonrpc": "2.0", "id": message["id"]} | answer, writer)
        else:
            await usual(request, writer)

    run = RunRef(workflow=GOOD, run_id="t-1", key=uuid4())
    async with connected(ScriptedEngine(behave)) as connector:
        seen = await connector.poll(run)
        assert (seen.state, seen.output, type(seen.unread)) == (RunState.COMPLETED, None, error)
        status = "failed"
        if error is Rejected:
            assert (await connector.poll(run)).state is RunState.FAILED
