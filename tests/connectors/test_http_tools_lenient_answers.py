"""What is read of answers that are not as their label says, or do not end: an API's success is no error."""

import codecs
import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest

from connectors.errors import InvalidAnswer, OutcomeUnknown, Unreachable
from connectors.protocol import RunSnapshot, RunState
from tests.connectors.calling import run
from tests.connectors.declared_tools import tool
from tests.connectors.http_tool_hosts import http_tool_hosts
from tests.connectors.scripted import Behaviour, ScriptedEngine, stays_silent_after
from tests.engines.target_api import Reply, TargetApi, running_target_api

SECRET = "api-key-0123456789abcdef"
JSON = "application/json"
HTML = "<html><body>Please log in.</body></html>"


@pytest.fixture
def api() -> Iterator[TargetApi]:
    with running_target_api() as api, http_tool_hosts("127.0.0.1"):
        yield api


async def read(api: TargetApi, body: bytes, media_type: str, **settings: Any) -> RunSnapshot:
    headers = {"Content-Type": media_type} if media_type else {}
    api.tell("GET", "/x", Reply(200, body, headers))
    snapshot = await run(tool("GET", f"{api.base_url}/x"), **settings)
    assert snapshot.state is RunState.COMPLETED and not snapshot.error
    assert snapshot.raw["response"]["body"] == snapshot.output
    return snapshot


def notes_in(snapshot: RunSnapshot) -> str:
    return " ".join(block["text"] for block in snapshot.content or () if "_meta" in block)


GUARDED = {
    "Gerrit": ")]}'\n",
    "Angular": ")]}',\n",
    "on one line": ")]}'",
    "a loop": "for(;;);",
    "a loop with spaces": "for (;;);\n",
    "another loop": "while(1);",
    "a loop in words": "while (true);",
    "a mark": "&&&START&&&",
    "an object": "{}&&",
    "an exception": "throw 1; < don't be evil' >",
    "several": "])}while(1);</x>",
    "a comment": "//",
    "white space": "\r\n \t",
    "a mark of the byte order": "\ufeff",
}


@pytest.mark.parametrize("value", [{"id": "x"}, [1, {"a": []}], "2.15", 42, None])
@pytest.mark.parametrize("guard", GUARDED)
async def test_a_guard_before_json_is_no_part_of_it(api, guard, value):
    """C5.4: the whole value, and nothing to say about it."""
    snapshot = await read(api, (GUARDED[guard] + json.dumps(value)).encode(), JSON)
    assert (snapshot.output, snapshot.content, snapshot.unread) == (value, None, None)


NEARLY: dict[str, tuple[str | bytes, Any]] = {
    "control characters": ('{"a":"line 1\nline 2\ttab\x01"}', {"a": "line 1\nline 2\ttab\x01"}),
    "large whole numbers": ('{"id":18446744073709551616,"a":"\n"}', {"id": 18446744073709551616, "a": "\n"}),
    "half of an emoji": ('{"a":"\\ud83d\n"}', {"a": "?\n"}),
    "names that occur twice": ('{"a":"\n","a":2}', {"a": 2}),
    "Latin-1": ('{"name":"Müller","price":"5 \x80"}'.encode("latin-1"), {"name": "Müller", "price": "5 €"}),
    "a letter cut in the middle": ('{"a":"é ü '.encode() + b'\xe2\x82"}', {"a": "é ü \ufffd"}),
    "UTF-16": ('{"a":"ü"}'.encode("utf-16"), {"a": "ü"}),
    "UTF-16 without a mark": ('{"a":"ü"}'.encode("utf-16-be"), {"a": "ü"}),
    "UTF-32": ('{"a":"ü"}'.encode("utf-32"), {"a": "ü"}),
    "UTF-32 without a mark": ('["ü"]'.encode("utf-32-le"), ["ü"]),
    "a mark of the byte order": (codecs.BOM_UTF8 + b"[1]", [1]),
}


@pytest.mark.parametrize("label", [JSON, "application/json; charset=utf-8", "application/hal+json"])
@pytest.mark.parametrize("case", NEARLY)
async def test_json_that_can_be_read_in_one_way_only_is_read(api, case, label):
    """C5.4."""
    body, value = NEARLY[case]
    snapshot = await read(api, body.encode() if isinstance(body, str) else body, label)
    assert (snapshot.output, snapshot.content, snapshot.unread) == (value, None, None)


NUMBERS: dict[str, tuple[str, Any]] = {
    "NaN": ('{"a":NaN,"b":1.5}', {"a": None, "b": 1.5}),
    "Infinity, -Infinity": ("[Infinity,-Infinity,Infinity]", [None, None, None]),
    "1e400": ('{"a":1e400,"id":9223372036854775807}', {"a": None, "id": 9223372036854775807}),
    f"{'7' * 47}...": (f"[{'7' * 5_000}]", [None]),
}


@pytest.mark.parametrize("numbers", NUMBERS)
async def test_numbers_that_json_cannot_hold_are_null_and_named(api, numbers):
    """C5.4: others stay exact."""
    body, value = NUMBERS[numbers]
    snapshot = await read(api, body.encode(), JSON)
    assert (snapshot.output, snapshot.unread) == (value, None)
    assert notes_in(snapshot) == f"Numbers that JSON cannot hold are null here: {numbers}"


NOT_JSON = {
    "a page": HTML,
    "a page that begins with a comment": f"<!-- {'x' * 60} -->{HTML}",
    "a comma too many": '{"a":[1,2,]}',
    "Python": "{'a': None}",
    "an object that is cut": '{"order": {"id": 7',
    "a date": "2026-11-29",
    "words": "OK",
    "a value and words": '{"a":1} done',
    "a warning before it": '<b>Warning</b>: x\n{"a":1}\n<br>\n',
    "too deep": "[" * 150 + "]" * 150,
    "a lone mark": "\x1e{",
}


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("case", NOT_JSON)
async def test_what_is_labelled_json_and_is_none_is_delivered_as_text(api, case, method):
    """C5.4: nothing failed, and it is not kept as an answer to the same call."""
    api.tell(method, "/x", Reply(200, NOT_JSON[case], {"Content-Type": JSON}))
    snapshot = await run(tool(method, f"{api.base_url}/x"))
    assert (snapshot.state, snapshot.error) == (RunState.COMPLETED, "")
    assert snapshot.output == NOT_JSON[case]
    assert isinstance(snapshot.unread, InvalidAnswer)
    assert str(snapshot.unread).startswith(f"{method} /x: the answer is labelled application/json. The ")
    assert " at at " not in str(snapshot.unread)


ONE, TWO = {"status": "Pulling", "of": {"a": [1]}}, {"errorDetail": {"message": "no such image"}}
LINES: dict[str, str] = {
    "lines": "{}\n{}\n",
    "lines of Windows": "{}\r\n{}\r\n",
    "one after the other": "{}{}",
    "with empty lines": "\n{}\n\n\n{}\n\n",
    "without a last line break": "{}\n{}",
    "a sequence": "\x1e{}\n\x1e{}\n",
    "a sequence without line breaks": "\x1e{}\x1e{}",
}
LABELS = [
    *(JSON, "application/x-ndjson", "application/jsonl", "application/x-jsonlines", "application/json-lines"),
    *("application/json-seq", "application/geo+json-seq", "text/x-ndjson", "application/x-json-stream"),
    *("application/ndjson; charset=utf-8", "application/stream+json"),
]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("written", LINES)
@pytest.mark.parametrize("label", LABELS)
async def test_several_values_are_a_list(api, label, written, indent):
    """C5.4: an error that the stream reports is one of them."""
    body = LINES[written].replace("{}", "{0}").format("{}").replace("{}", "%s")
    body %= json.dumps(ONE, indent=indent), json.dumps(TWO, indent=indent)
    snapshot = await read(api, body.encode(), label)
    assert (snapshot.output, snapshot.content, snapshot.unread) == ([ONE, TWO], None, None)


async def test_of_one_line_the_label_decides_and_lines_may_be_numbers(api):
    assert (await read(api, b'{"a":1}\n', "application/jsonl")).output == [{"a": 1}]
    assert (await read(api, b'{"a":1}\n', JSON)).output == {"a": 1}
    assert (await read(api, b"1\n2.5\nnull\n", JSON)).output == [1, 2.5, None]


@pytest.mark.parametrize("broken", ['{"sta', "Killed", "<html>"])
async def test_a_broken_last_line_leaves_those_before_it(api, broken):
    """C5.4, C9: and is told, without secrets."""
    secret = {"authentication": "api_key", "api_key": SECRET}
    snapshot = await read(api, f'{{"a":1}}\n{{"a":2}}\n{broken} {SECRET}'.encode(), JSON, **secret)
    assert snapshot.output == [{"a": 1}, {"a": 2}]
    assert str(snapshot.unread) == f"GET /x: its last line is not JSON: {broken} ***."


TEXT = "# HELP hits Zugriffe von Köln.\nhits 7\n\x1b[1mbold\x1b[0m\n"
OF_TEXT = [
    *("application/openmetrics-text; version=1.0.0; charset=utf-8", "application/toml", "application/sql"),
    *("application/csv", "application/vnd.oai.openapi+yaml", "application/vnd.docker.raw-stream"),
    *("application/octet-stream", "binary/octet-stream", "application/force-download", "x-a/b"),
    *("application/x-sh", "application/vnd.github.raw", "application/hcl", "application/x-pem-file"),
    *("application/octet-stream; charset=binary", "application/x-tex", "application/ld-patch", "*/*"),
    *("application/vnd.apache.parquet-schema", "application/rtf", "message/rfc822", "json"),
]


@pytest.mark.parametrize("label", OF_TEXT)
async def test_text_is_text_whatever_its_label(api, label):
    """C5.4: models cannot read it in base64."""
    snapshot = await read(api, TEXT.encode(), label)
    assert (snapshot.output, snapshot.content) == (TEXT, None)


@pytest.mark.parametrize("label", ["application/octet-stream", "text/plain"])
async def test_json_that_is_labelled_as_something_else_stays_as_it_was_written(api, label):
    assert (await read(api, b'{"a": 1.0}', label)).output == '{"a": 1.0}'


ENCODED = {
    "application/csv; charset=iso-8859-1": "Käse;3\n".encode("latin-1"),
    "application/csv": "Käse;3\n".encode("cp1252"),
    "application/octet-stream; charset=windows-1252": "Käse;3\n".encode("cp1252"),
    "application/octet-stream": "Käse;3\n".encode("utf-16"),
    "text/plain; charset=us-ascii": "Käse;3\n".encode(),
    "text/csv; charset=utf-8": "Käse;3\n".encode("cp1252"),
}


@pytest.mark.parametrize("label", ENCODED)
async def test_a_text_keeps_its_letters(api, label):
    assert (await read(api, ENCODED[label], label)).output == "Käse;3\n"


FILES = {
    "application/pdf": b"%PDF-1.4 only ASCII",
    "application/pdf; charset=iso-8859-1": b"%PDF-1.4 only ASCII",
    "image/png": b"words",
    "font/woff2": b"words",
    "application/x-protobuf": b"\n\x21words",
    "application/zip": b"PK",
    "application/octet-stream": b"a\0b",
    "application/vnd.docker.multiplexed-stream": b"\x01\0\0\0\0\0\0\x04log\n",
    "application/vnd.ms-excel; charset=iso-8859-1": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
    "application/x-unknown": b"\xff\xfe\xfd",
    "binary/octet-stream": b"A\0B\0",
}


@pytest.mark.parametrize("label", FILES)
async def test_what_is_no_text_stays_a_file(api, label):
    """C5.4."""
    snapshot = await read(api, FILES[label], label)
    assert snapshot.output == f"{len(FILES[label])} bytes of {label.partition(';')[0]}."
    assert snapshot.content and snapshot.content[0]["type"] in ("image", "resource")


LABELLED = ['"application/json"', "application/json, application/json", "text/json", "application/x-json"]


@pytest.mark.parametrize(
    "label", [*LABELLED, "'application/json'; charset=\"utf-8\"", "APPLICATION/JSON", ""]
)
async def test_a_label_of_json_is_known_in_every_spelling(api, label):
    assert (await read(api, b'{"a":1}', label)).output == {"a": 1}


HEAD = "HTTP/1.1 {} OK\r\nContent-Type: {}\r\n{}Transfer-Encoding: chunked\r\n\r\n"


def endless(*parts: bytes, media_type: str = JSON, status: int = 200, more: str = "") -> Behaviour:
    """The head, the parts, and then nothing for longer than a request may take."""
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return stays_silent_after(HEAD.format(status, media_type, more).encode() + chunks, seconds=31)


async def call(behave: Behaviour, method: str = "GET", **settings: Any) -> tuple[RunSnapshot, int]:
    with http_tool_hosts("127.0.0.1"):
        async with ScriptedEngine(behave) as engine:
            snapshot = await run(tool(method, f"{engine.base_url}/watch"), **settings)
            return snapshot, len(engine.received)


EVENTS = (b'{"n":0}\n', b'{"n":1}\n', b'{"n"')
CUT: dict[str, tuple[Behaviour, Any]] = {
    "lines": (endless(*EVENTS), [{"n": 0}, {"n": 1}]),
    "one line": (endless(EVENTS[0]), [{"n": 0}]),
    "a sequence": (endless(b'\x1e{"n":0}\n\x1e{"n"', media_type="application/json-seq"), [{"n": 0}]),
    "an object": (endless(b'{"items":[1,'), '{"items":[1,'),
    "events": (endless(b"data: 1\n\ndata: ", media_type="text/event-stream"), "data: 1\n\ndata: "),
    "a log": (endless("Köl".encode()[:-2], media_type="application/vnd.docker.raw-stream"), "K"),
    "compressed": (endless(gzip.compress(b"".join(EVENTS)), more="Content-Encoding: gzip\r\n"), None),
}


@pytest.mark.parametrize("case", CUT)
async def test_what_has_come_of_an_answer_that_does_not_end_is_the_output(case):
    """C5.3, C5.4: after one request."""
    behave, output = CUT[case]
    snapshot, requests = await call(behave)
    assert (snapshot.state, requests) == (RunState.COMPLETED, 1)
    assert snapshot.output == ([{"n": 0}, {"n": 1}] if output is None else output)
    assert str(snapshot.unread).startswith("GET /watch: the answer had not ended after 30 s; ")


async def test_an_answer_of_which_only_the_head_has_come_says_so():
    """C5.3: a declared output may be promised, and is null."""
    snapshot, requests = await call(endless(media_type="text/event-stream"))
    assert (snapshot.state, snapshot.output, requests) == (RunState.COMPLETED, None, 1)
    assert notes_in(snapshot) == "Status 200 OK"
    assert "the answer had not ended after 30 s; 0 bytes had come" in str(snapshot.unread)


async def test_what_the_cut_answer_of_a_change_leaves_open_is_said():
    """C5.3: not as if nothing had happened, nor as if all had."""
    snapshot, requests = await call(endless(b'{"status":"Pulling"}\n'), "POST")
    assert (snapshot.state, snapshot.output, requests) == (RunState.COMPLETED, [{"status": "Pulling"}], 1)
    assert str(snapshot.unread) == (
        "POST /watch: the answer had not ended after 30 s; 21 bytes had come, and what was asked for may not "
        "be done yet."
    )


async def test_a_refusal_whose_body_does_not_end_is_a_refusal():
    snapshot, requests = await call(endless(b'{"error":"gone', status=410))
    assert (snapshot.state, requests) == (RunState.FAILED, 1)
    assert "the API answered 410 Gone" in snapshot.error


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_of_an_answer_beyond_the_limit_the_beginning_is_the_output(api, method):
    """C5.4: whole lines of JSON are values."""
    body = "".join(f'{{"n":{number}}}\n' for number in range(500))
    api.tell(method, "/x", Reply(200, body, {"Content-Type": "application/x-ndjson"}))
    snapshot = await run(tool(method, f"{api.base_url}/x"), max_response_bytes=1_000)
    assert snapshot.state is RunState.COMPLETED
    assert snapshot.output == [{"n": number} for number in range(len(snapshot.output))] and snapshot.output
    assert "had not ended after 1,000 bytes; 1,000 bytes had come" in str(snapshot.unread)


async def test_an_answer_that_breaks_is_still_asked_for_again(api):
    """C5.3: only a limit makes an answer of a part."""
    with pytest.raises(Unreachable):
        await run(tool("GET", f"{api.base_url}/cut-off"))
    with pytest.raises(OutcomeUnknown):
        await run(tool("POST", f"{api.base_url}/cut-off"))
