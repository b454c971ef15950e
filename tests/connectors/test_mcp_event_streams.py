"""Event streams of MCP servers in every legal form, in pieces of every size, and cut at every byte: progress
and questions of a call come through, and no answer is lost that came whole."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest

from connectors.errors import OutcomeUnknown
from connectors.protocol import Progress, RunCaller, RunState, Started, WorkflowRef
from connectors.testing import closing
from connectors.upstream_mcp import http_transport
from connectors.upstream_mcp.config import McpConfig
from connectors.upstream_mcp.connector import McpConnector
from tests.connectors.scripted import Received, ScriptedEngine, response
from tests.engines.hostile_servers import server
from tests.thoroughness import THOROUGH

HEAD = "HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\ncontent-type: "
PROGRESS = [(1, 4, "Begun."), (2, 4, "Größer: \U0001f30d"), (3, 4, "data: 3, id: 9")]
TEXT = "Done: é, \U0001f30d, \u0085, \u2028, \r\n\r\n. " + "All of it has to arrive. " * 30
STEP = 40  # Between two borders of pieces in one stream
Call = dict[str, Any]
Say = Callable[[bytes], Awaitable[None]]
Form = Callable[[int, Any], bytes]
"""Writes a message, which is the so-manieth, as an event."""


def messages_of(call: Call) -> tuple[list[Any], list[Any]]:
    """What the server says until it has the answer to its question, and after that."""

    def progress(value: float, total: float, message: str) -> Any:
        params = {"progressToken": call["id"], "progress": value, "total": total, "message": message}
        return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}

    asked = {"message": "Which seat? " + "Think well. " * 30, "requestedSchema": {"type": "object"}}
    question = {"jsonrpc": "2.0", "id": f"q-{call['id']}", "method": "elicitation/create", "params": asked}
    logged = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "..."}}
    answer = {"jsonrpc": "2.0", "id": call["id"], "result": {"content": [{"type": "text", "text": TEXT}]}}
    first, *others = [progress(*told) for told in PROGRESS]
    return [first, logged, question], [*others, answer]


class Exchange:
    """A call as the server sees it, with the bytes that it answers."""

    def __init__(self, call: Call, form: Form, priming: bytes = b"", last: bytes = b"") -> None:
        before, after = messages_of(call)
        events = [form(number, message) for number, message in enumerate([*before, *after])]
        self.name = str(call["params"]["arguments"]["name"])
        self.answered = asyncio.Event()
        self.ends = [len(priming)]
        for event in events:
            self.ends.append(self.ends[-1] + len(event))
        self.needs_answer = self.ends[len(before)]
        self.bytes = (priming + b"".join(events)).removesuffix(last)

    async def send(
        self, say: Say, *, begin: int = 0, end: int | None = None, borders: Iterable[int] = ()
    ) -> None:
        """The bytes between two positions, in pieces that end at the borders."""
        end = len(self.bytes) if end is None else end
        within = {border for border in (*borders, self.needs_answer) if begin < border < end}
        for start, stop in pairwise(sorted({begin, end, *within})):
            if start >= self.needs_answer:
                await self.answered.wait()
            await say(self.bytes[start:stop])


def plainly(number: int, message: Any) -> bytes:
    return f"data: {json.dumps(message, ensure_ascii=False)}\n\n".encode()


def with_ids(number: int, message: Any) -> bytes:
    return f"event: message\nid: {number + 1}\n".encode() + plainly(number, message)


@asynccontextmanager
async def calling(
    make: Callable[[Call], Exchange],
    send: Callable[[Exchange, Say], Awaitable[None]] = Exchange.send,
    content_type: str = "text/event-stream",
) -> AsyncIterator[McpConnector]:
    """To a server that answers calls like this, and resumes event streams."""
    exchanges: dict[str, Exchange] = {}

    async def say(writer: asyncio.StreamWriter, sends: Callable[[Say], Awaitable[None]]) -> None:
        async def say(piece: bytes) -> None:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if piece else b"")
            await writer.drain()

        writer.write(f"{HEAD}{content_type}\r\n\r\n".encode())
        await sends(say)
        writer.close()
        await writer.wait_closed()  # With everything sent

    async def answer(call: Call, writer: asyncio.StreamWriter) -> None:
        exchange = exchanges[call["id"]] = make(call)
        await say(writer, lambda say: send(exchange, say))

    async def resume(request: Received, writer: asyncio.StreamWriter) -> None:
        call_id, _, number = request.headers.get("last-event-id", "").partition("/")
        if call_id not in exchanges:
            writer.write(response(405))
            return
        exchange = exchanges[call_id]
        await say(writer, lambda say: exchange.send(say, begin=exchange.ends[int(number)]))

    behave = server(call=answer, stream=resume)

    async def behave_and_listen(request: Received, writer: asyncio.StreamWriter) -> None:
        if request.method == "POST" and "result" in request.json:
            exchanges[request.json["id"].removeprefix("q-")].answered.set()
        await behave(request, writer)

    async with ScriptedEngine(behave_and_listen) as engine:
        connector = McpConnector(McpConfig(url=f"{engine.base_url}/mcp"))
        async with closing(connector):
            yield connector


class Client:
    """One caller, which answers its questions, and what it was told."""

    def __init__(self) -> None:
        self.asked = 0
        self.told: list[Progress] = []

    async def call(self, connector: McpConnector, name: Any = "") -> Started:
        caller = RunCaller(
            capabilities={"elicitation": {"form": {}}}, ask=self.ask, progress=self.told.append
        )
        tool = WorkflowRef(id="good", name="good")
        return await connector.start(tool, {"name": name}, key=uuid4(), caller=caller)

    async def ask(self, requests: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        return {key: {"action": "accept", "content": {}} for key in requests}

    async def gets_everything(self, connector: McpConnector, name: Any = "") -> None:
        snapshot = (await self.call(connector, name)).snapshot
        assert snapshot is not None and (snapshot.state, snapshot.output) == (RunState.COMPLETED, TEXT), name
        assert [(told.value, told.total, told.message) for told in self.told] == PROGRESS, name
        assert self.asked == 1, name


def form(
    end: str = "\n", *, field: str = "data: ", before: str = "", after: str = "", spread: bool = False
) -> Form:
    def write(number: int, message: Any) -> bytes:
        text = json.dumps(message, ensure_ascii=False, indent=1 if spread else None)
        lines = [*before.split(), *(field + line for line in text.split("\n")), *after.split()]
        return "".join(line.replace("_", " ") + end for line in [*lines, ""]).encode()

    return write


def mixed(number: int, message: Any) -> bytes:
    return form(["\n", "\r", "\r\n"][number % 3], spread=number % 2 == 0)(number, message)


FORMS: dict[str, tuple[Form, bytes]] = {
    "bare": (plainly, b""),
    "ids": (with_ids, b""),
    "CR": (form("\r"), b""),
    "CRLF": (form("\r\n", before="event:_message"), b""),
    "mixed": (mixed, b""),
    "no space": (form(field="data:"), b""),
    "several lines": (form(spread=True), b""),
    "several lines without a space": (form("\r", field="data:", spread=True), b""),
    "fields after the data": (form(after="id:_7 event:_message"), b""),
    "an empty name": (form(before="event: event"), b""),
    "unknown fields and comments": (form("\r\n", before=": :ping since:_1 data2:_x id2", after="x:"), b""),
    "a BOM": (plainly, b"\xef\xbb\xbf"),
    "a BOM before an id": (with_ids, b"\xef\xbb\xbfid: 0\n\n"),
    "an empty event with an id": (with_ids, b"id: 0\ndata: \n\n"),
    "an empty event without a space": (plainly, b"id: 0\nretry: 1000\ndata:\n\n"),
    "an empty event without data": (plainly, b"id\n\n\n\n\n"),
    "an event of another name": (plainly, b'event: ping\ndata: {"jsonrpc": "2.0"}\n\n'),
    "an odd retry": (plainly, b"retry: soon\n\nretry: -5\n\nretry: %s\n\n" % (b"9" * 400)),
    "what is no message": (plainly, b'data: hello\n\ndata: {}\n\ndata: [1, 2]\n\ndata: "x"\n\n'),
    "a notification of a wrong type": (
        plainly,
        b'data: {"jsonrpc": "2.0", "method": "notifications/x", "params": 7}\n\ndata: {"method": 5}\n\n',
    ),
    "bytes that are not UTF-8": (plainly, b": \xff\xfe\n\ndata: \xc3\n\n"),
}


@pytest.mark.parametrize("name", FORMS)
async def test_progress_questions_and_the_answer_come_through_in_every_form(name):
    written, priming = FORMS[name]

    async def by_byte(exchange: Exchange, say: Say) -> None:
        await exchange.send(say, borders=range(len(exchange.bytes)))

    for send in (Exchange.send, by_byte):
        async with calling(lambda call: Exchange(call, written, priming), send) as connector:
            await Client().gets_everything(connector)


@pytest.mark.parametrize("last", [b"\n", b"\n\n"], ids=["without a blank line", "without the end of a line"])
@pytest.mark.parametrize("written", [plainly, with_ids], ids=["bare", "ids"])
async def test_an_answer_counts_though_the_stream_ends_without_a_new_line(written, last):
    async with calling(lambda call: Exchange(call, written, last=last)) as connector:
        await Client().gets_everything(connector)


@pytest.mark.parametrize(
    "content_type",
    ["text/event-stream; charset=utf-8", "Text/Event-Stream;charset=latin-1", "text/event-stream ; x=y"],
)
async def test_an_event_stream_is_utf_8_whatever_its_type_says(content_type):
    make = lambda call: Exchange(call, plainly)  # noqa: E731
    async with calling(make, content_type=content_type) as connector:
        await Client().gets_everything(connector)


@pytest.mark.parametrize("first", range(0, STEP, 8))
async def test_where_a_stream_is_divided_into_pieces_changes_nothing(first):
    """At every byte, together with some others."""

    async def send(exchange: Exchange, say: Say) -> None:
        await exchange.send(say, borders=range(int(exchange.name), len(exchange.bytes), STEP))

    async with calling(lambda call: Exchange(call, mixed), send) as connector:
        for position in range(first, first + 8):
            await Client().gets_everything(connector, position)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "can_resume", [False, pytest.param(True, marks=pytest.mark.engines)], ids=["for good", "and resumed"]
)
async def test_of_a_stream_that_breaks_anywhere_no_answer_is_lost_and_none_is_wrong(can_resume, monkeypatch):
    """An answer that came whole counts, and where a stream can be resumed, all of it comes."""
    monkeypatch.setattr(http_transport, "SECONDS_BEFORE_RESUMING", 0.0)
    made: dict[int, Exchange] = {}

    def make(call: Call) -> Exchange:
        def numbered(number: int, message: Any) -> bytes:
            return f"id: {call['id']}/{number + 1}\n".encode() + plainly(number, message)

        priming = f"retry: 1\nid: {call['id']}/0\ndata:\n\n".encode()
        exchange = Exchange(call, numbered, priming) if can_resume else Exchange(call, plainly)
        made[int(exchange.name)] = exchange
        return exchange

    async def send(exchange: Exchange, say: Say) -> None:
        await exchange.send(say, end=min(int(exchange.name), len(exchange.bytes)))

    async def call_and_cut(connector: McpConnector, end: int) -> None:
        client, is_whole = Client(), True
        try:
            await client.gets_everything(connector, end)
        except OutcomeUnknown:
            is_whole = False
            told = [(told.value, told.total, told.message) for told in client.told]
            assert told == PROGRESS[: len(told)]
        exchange = made[end]
        assert is_whole == (end >= (exchange.ends[0] if can_resume else exchange.ends[-1] - len("\n\n"))), end

    enough = asyncio.Semaphore(20)

    async def try_one(connector: McpConnector, end: int) -> None:
        async with enough:
            await call_and_cut(connector, end)

    async with calling(make, send) as connector:
        await call_and_cut(connector, 10_000)
        length = len(made[10_000].bytes)
        assert length > 2_000
        async with asyncio.TaskGroup() as tasks:
            for end in range(0, length, 1 if THOROUGH else 7):
                tasks.create_task(try_one(connector, end))
