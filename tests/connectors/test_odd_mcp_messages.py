"""MCP servers whose messages hold what JSON or the SDK's parser does not allow: it costs that value alone,
and an answer that came whole never leaves the outcome of a call open."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.errors import OutcomeUnknown, Rejected
from connectors.network.policy import StdioCommand, allow_stdio_commands
from connectors.protocol import Progress, RunCaller, RunState, WorkflowRef
from connectors.testing import closing
from connectors.upstream_mcp.config import McpConfig
from connectors.upstream_mcp.connector import McpConnector
from tests.connectors.scripted import ScriptedEngine, response
from tests.engines.hostile_servers import STREAM_HEAD, server
from tests.processes import ROOT

Connect = Callable[..., AbstractAsyncContextManager[McpConnector]]
TOOL = WorkflowRef(id="good", name="good")
DEEP = b"[" * 600 + b"]" * 600
DEEPER = b"[" * 20_000 + b"]" * 20_000


def as_result(result: bytes) -> bytes:
    return b'{"jsonrpc": "2.0", "id": ID, "result": ' + result + b"}"


def structured(value: bytes) -> bytes:
    """A result with this value."""
    return as_result(
        b'{"content": [], "structuredContent": {"odd": ' + value + b', "fine": "\\ud83c\\udf0d"}}'
    )


@asynccontextmanager
async def over_http(*, as_events: bool, **lines: bytes) -> AsyncIterator[McpConnector]:
    def answer(name: str) -> Callable[[Any, asyncio.StreamWriter], None]:
        def send(message: Any, writer: asyncio.StreamWriter) -> None:
            sent = lines[name].replace(b"ID", json.dumps(message["id"]).encode())
            events = b"".join(b"data: " + line + b"\n\n" for line in sent.splitlines())
            writer.write(STREAM_HEAD + events if as_events else response(200, sent))
            writer.close()

        return send

    async with ScriptedEngine(server(**{name: answer(name) for name in lines})) as engine:
        connector = McpConnector(McpConfig(url=f"{engine.base_url}/mcp"))
        async with closing(connector):
            yield connector


@asynccontextmanager
async def over_stdio(**lines: bytes) -> AsyncIterator[McpConnector]:
    answers = {f"tools/{name}": line.hex() for name, line in lines.items()}
    command = [sys.executable, "-m", "tests.engines.scripted_program", json.dumps(answers)]
    allow_stdio_commands({"scripted": StdioCommand(command=command, directory=str(ROOT))})
    connector = McpConnector(McpConfig(transport="stdio", command="scripted"))
    async with closing(connector):
        yield connector


@pytest.fixture(params=["JSON", "events", "stdio"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Answers `list` and `call` with these lines."""
    if request.param == "stdio":
        yield over_stdio
        allow_stdio_commands({})
    else:
        yield lambda **lines: over_http(as_events=request.param == "events", **lines)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (rb'"a\ud83db"', "a?b"),
        (rb'"\udc00"', "?"),
        (rb'"\udf0d\ud83c"', "??"),
        (rb'"\uD83D\uD83D\uDE00"', "?\U0001f600"),
        (rb'{"a\ud83d": ["\ud83d"]}', {"a?": ["?"]}),
        (b"NaN", None),
        (b"[Infinity, -Infinity, 1]", [None, None, 1]),
        (b'{"n": 1e400, "m": -1E+999, "k": 1e-400}', {"n": None, "m": None, "k": 0.0}),
        (b"1" * 5_000, None),
        (b"[-" + b"1" * 400 + b", " + b"1" * 300 + b"]", [None, int("1" * 300)]),
        (b"123456789012345678901234567890", 123456789012345678901234567890),
        (b'"\xff\xfe\xc3"', "\ufffd\ufffd\ufffd"),
        (rb'"a\u0000b"', "a\0b"),
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b"[" * 100 + b"NaN" + b"]" * 100, json.loads("[" * 100 + "null" + "]" * 100)),
    ],
)
async def test_an_odd_value_costs_itself_alone(connect, sent, kept):
    async with connect(call=structured(sent)) as connector:
        snapshot = (await connector.start(TOOL, {}, key=uuid4())).snapshot
    assert snapshot is not None and snapshot.state is RunState.COMPLETED
    assert snapshot.output == {"odd": kept, "fine": "\U0001f30d"}


@pytest.mark.parametrize(
    "line",
    [
        structured(DEEP),
        structured(b"[" * 149 + b"]" * 149),
        structured(DEEPER),
        structured(b'["\\ud83d", NaN, ' + DEEP + b"]"),
        *(as_result(value) for value in (b"[1]", b"7", b"null", b"true", b'"\\ud83d"', b"NaN")),
        b'{"id": ID, "result": {"content": []}}',
        b'{"id": ID, "result": {"content": []}, "error": null}',
    ],
)
async def test_a_call_with_an_answer_that_cannot_be_used_has_failed(connect, line):
    """There is nothing to find out: the tool has ended."""
    async with connect(call=line) as connector:
        snapshot = (await connector.start(TOOL, {}, key=uuid4())).snapshot
    assert snapshot is not None and snapshot.state is RunState.FAILED
    assert snapshot.error.startswith("The tool has ended.")


GOOD = b'"result": {"content": [{"type": "text", "text": "fine"}]}'
NOTE = b'{"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}'
ANSWERS = {  # Other forms of an answer, and whether only HTTP tells which call it answers
    "a batch": (b'[{"jsonrpc": "2.0", "id": ID, ' + GOOD + b"}]", False),
    "a batch with a message": (b"[" + NOTE + b', {"jsonrpc": "2.0", "id": ID, ' + GOOD + b"}]", False),
    "null for an error": (b'{"jsonrpc": "2.0", "id": ID, "error": null, ' + GOOD + b"}", False),
    "null for a method": (
        b'{"jsonrpc": "2.0", "id": ID, "method": null, "params": null, ' + GOOD + b"}",
        False,
    ),
    "null for an id": (b'{"jsonrpc": "2.0", "id": null, ' + GOOD + b"}", True),
    "no id": (b'{"jsonrpc": "2.0", ' + GOOD + b"}", True),
    "a float for an id": (b'{"jsonrpc": "2.0", "id": 1.0, ' + GOOD + b"}", True),
    "a number too large for an id": (b'{"jsonrpc": "2.0", "id": 1e400, ' + GOOD + b"}", True),
    "an object for an id": (b'{"jsonrpc": "2.0", "id": {}, ' + GOOD + b"}", True),
}


@pytest.mark.parametrize(("line", "needs_http"), ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("way", ["JSON", "events", "stdio"])
async def test_a_result_of_an_odd_form_is_one(way, line, needs_http):
    if way == "stdio" and needs_http:
        return
    connection = over_stdio(call=line) if way == "stdio" else over_http(as_events=way == "events", call=line)
    async with connection as connector:
        snapshot = (await connector.start(TOOL, {}, key=uuid4())).snapshot
    allow_stdio_commands({})
    assert snapshot is not None and (snapshot.state, snapshot.output) == (RunState.COMPLETED, "fine")


@pytest.mark.parametrize("status", [200, 201, 206, 400, 500])
@pytest.mark.parametrize("kind", ["", "text/plain", "text/json", "application/json-rpc", "APPLICATION/JSON"])
async def test_an_answer_is_one_whatever_it_is_called(status, kind):
    def send(message: Any, writer: asyncio.StreamWriter) -> None:
        body = as_result(b'{"content": []}').replace(b"ID", json.dumps(message["id"]).encode())
        writer.write(response(status, body, content_type=kind))

    async with ScriptedEngine(server(call=send)) as engine:
        connector = McpConnector(McpConfig(url=f"{engine.base_url}/mcp"))
        async with closing(connector):
            snapshot = (await connector.start(TOOL, {}, key=uuid4())).snapshot
    assert snapshot is not None and snapshot.state is RunState.COMPLETED


@pytest.mark.parametrize("as_events", [False, True])
async def test_the_answer_to_another_call_is_not_taken_for_this_ones(as_events):
    """Servers that mix up their clients' calls exist; one caller must not read what another asked for."""
    mixed = as_result(b'{"content": []}').replace(b"ID", b'"call-' + b"0" * 32 + b'"')
    async with over_http(as_events=as_events, call=mixed) as connector:
        with pytest.raises(OutcomeUnknown):
            await connector.start(TOOL, {}, key=uuid4())


BLOCK = b'{"type": "text", "text": "fine"}'


@pytest.mark.parametrize(
    "odd", [b"null", b"7", b"[]", b'{"text": "x"}', b'{"type": 5}', b'{"type": "text", "text": null}']
)
@pytest.mark.parametrize("failed", [b"false", b"true", b'"true"', b"1"])
async def test_an_odd_part_of_a_result_costs_no_other(connect, odd, failed):
    result = b'{"content": [' + BLOCK + b", " + odd + b'], "isError": ' + failed + b"}"
    async with connect(call=as_result(result)) as connector:
        snapshot = (await connector.start(TOOL, {}, key=uuid4())).snapshot
    assert snapshot is not None and snapshot.content is not None
    assert snapshot.state is (RunState.COMPLETED if failed == b"false" else RunState.FAILED)
    shown, other = snapshot.content
    assert shown == json.loads(BLOCK) and json.loads(other["text"]) == json.loads(odd)


async def test_structured_content_beside_null_is_read(connect):
    async with connect(call=as_result(b'{"content": null, "structuredContent": {"a": 1}}')) as connector:
        snapshot = (await connector.start(TOOL, {}, key=uuid4())).snapshot
    assert snapshot is not None and (snapshot.state, snapshot.output) == (RunState.COMPLETED, {"a": 1})


@pytest.mark.parametrize("line", [b"[1]", b"7", b"null", b"{}", b'"x"', b'{"jsonrpc": "2.0", "method": "x"}'])
@pytest.mark.parametrize("as_events", [False, True])
async def test_json_that_is_no_message_is_an_answer_too(as_events, line):
    async with over_http(as_events=as_events, call=line) as connector:
        if as_events and b"method" in line:
            with pytest.raises(OutcomeUnknown):
                await connector.start(TOOL, {}, key=uuid4())
            return
        snapshot = (await connector.start(TOOL, {}, key=uuid4())).snapshot
    assert snapshot is not None and snapshot.state is RunState.FAILED


@pytest.mark.parametrize("line", [b"", b"<html>", b'{"jsonrpc": "2.0", "result": {"content": [', b"\xff"])
@pytest.mark.parametrize("as_events", [False, True])
async def test_what_is_not_even_json_leaves_the_outcome_open(as_events, line):
    async with over_http(as_events=as_events, call=line) as connector:
        with pytest.raises(OutcomeUnknown):
            await connector.start(TOOL, {}, key=uuid4())


@pytest.mark.parametrize(
    ("message", "words"), [(rb"cut \ud83d", "cut ?"), (b"\xff", "\ufffd"), (rb"a\udc00b", "a?b")]
)
async def test_an_error_with_odd_words_is_heard(connect, message, words):
    error = b'{"code": -32000, "message": "' + message + b'", "data": NaN}'
    async with connect(call=b'{"jsonrpc": "2.0", "id": ID, "error": ' + error + b"}") as connector:
        with pytest.raises(Rejected) as caught:
            await connector.start(TOOL, {}, key=uuid4())
    assert words in caught.value.message


@pytest.mark.parametrize(
    "error",
    [
        b'"disk full"',
        b'["disk full"]',
        b'{"message": "disk full"}',
        b'{"code": "E_FULL", "message": "disk full"}',
        b'{"code": NaN, "message": "disk full"}',
        b'{"code": 1.5, "message": "disk full"}',
        b'{"code": -32000, "message": null, "data": "disk full"}',
        b'{"code": -32000, "message": ["disk full"]}',
        b'{"code": -32000, "message": "disk full", "data": ' + DEEP + b"}",
        b'{"code": NaN, "message": "disk full", "data": [{"a": ' + DEEPER + b"}]}",
    ],
)
@pytest.mark.parametrize("form", [b'{"jsonrpc": "2.0", "id": ID, "error": %s}', b'{"id": ID, "error": %s}'])
async def test_an_error_of_an_odd_form_keeps_its_words(connect, form, error):
    async with connect(call=form % error) as connector:
        with pytest.raises(Rejected) as caught:
            await connector.start(TOOL, {}, key=uuid4())
    assert "disk full" in caught.value.message


@pytest.mark.parametrize("code", [-32700, -32603, -32600])
async def test_an_error_of_the_server_is_not_taken_for_a_broken_connection(connect, code):
    error = json.dumps({"code": code, "message": "Failed to parse the upstream's answer"}).encode()
    async with connect(call=b'{"jsonrpc": "2.0", "id": ID, "error": ' + error + b"}") as connector:
        with pytest.raises(Rejected):
            await connector.start(TOOL, {}, key=uuid4())


@pytest.mark.parametrize(
    ("odd", "is_kept"),
    [
        (rb'"description": "cut \ud83d"', True),
        (rb'"title": "\udc00", "x\ud83d": 1', True),
        (b'"description": "\xff"', True),
        (b'"annotations": {"x": NaN, "y": 1e400}', True),
        *((b'"description": ' + value, True) for value in (b"7", b"NaN", b'["x"]', b"{}", b"true")),
        (b'"_meta": ' + b'{"a": ' * 300 + b"1" + b"}" * 300, False),
        (b'"inputSchema": {"default": ' + DEEPER + b"}", False),
    ],
)
async def test_an_odd_tool_costs_no_other_its_place(connect, odd, is_kept):
    first = b'{"inputSchema": {"type": "object"}, "name": "odd", ' + odd + b"}"
    listed = b'{"tools": [' + first + b', {"name": "good", "inputSchema": {"type": "object"}}]}'
    async with connect(list=as_result(listed)) as connector:
        found = [item async for item in connector.discover()]
    kinds = {item.id: type(item) for item in found}
    assert kinds == {"odd": WorkflowDefinition if is_kept else RejectedDefinition, "good": WorkflowDefinition}


@pytest.mark.parametrize("way", ["events", "stdio"])
async def test_odd_progress_and_questions_come_through(way):
    progress = rb'{"progressToken": ID, "progress": 1, "total": 2, "message": "a\ud83d"}'
    asked = rb'{"message": "b\udc00", "requestedSchema": {"type": "object"}, "x": Infinity}'
    lines = [
        b'{"jsonrpc": "2.0", "method": "notifications/progress", "params": ' + progress + b"}",
        b'{"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": ID, '
        b'"progress": NaN}}',
        b'{"jsonrpc": "2.0", "method": "notifications/progress", "params": [' + DEEP + b"]}",
        b'{"jsonrpc": "2.0", "method": "notifications/progress", "params": 7}',
        b'{"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": ID, '
        b'"progress": 1' + b"0" * 400 + b"}}",
        b'{"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": ' + asked + b"}",
    ]
    told: list[Progress] = []
    questions: list[Any] = []

    async def ask(requests: dict[str, Any]) -> dict[str, Any]:
        questions.extend(requests.values())
        return {key: {"action": "decline"} for key in requests}

    caller = RunCaller(capabilities={"elicitation": {}}, ask=ask, progress=told.append)
    script = b"\n".join([*lines, as_result(b'{"content": []}')])
    connection = over_stdio(call=script) if way == "stdio" else over_http(as_events=True, call=script)
    async with connection as connector:
        snapshot = (await connector.start(TOOL, {}, key=uuid4(), caller=caller)).snapshot
    allow_stdio_commands({})
    assert snapshot is not None and snapshot.state is RunState.COMPLETED
    assert told == [Progress(1, 2, "a?")]
    assert [question["params"] for question in questions] == [
        {"message": "b?", "requestedSchema": {"type": "object"}, "x": None}
    ]
