"""Lines on standard input that are no messages: their client learns so instead of waiting."""

import pytest

from tests.mcp_bridge.pipes import PING, answers_to

pytestmark = pytest.mark.django_db(transaction=True)
NOT_JSON, NO_REQUEST = -32700, -32600
UNREADABLE = {
    "nested deeply": b"[" * 900 + b"]" * 900,
    "an integer of 5,000 digits": b"9" * 5_000,
    "a control character": b'"a\x01b"',
    "an unknown escape": b'"\\x41"',
    "two values": b'"a" "b"',
}


@pytest.mark.parametrize(
    ("line", "code", "identity"),
    [
        (b"hello", NOT_JSON, None),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "tools/list"', NOT_JSON, None),
        (b"\xff\xfe", NOT_JSON, None),
        (b"[" * 100_000, NOT_JSON, None),
        (b"[" + PING + b"]", NO_REQUEST, None),
        (b'"ping"', NO_REQUEST, None),
        (b'{"jsonrpc": "2.0", "id": 7}', NO_REQUEST, 7),
        (b'{"id": "a", "method": "tools/list"}', NO_REQUEST, "a"),
        (b'{"jsonrpc": "2.0", "id": 7, "method": 5}', NO_REQUEST, 7),
        (b'{"jsonrpc": "1.0", "id": true, "method": "ping"}', NO_REQUEST, None),
    ],
    ids=["words", "cut", "bytes", "deep", "batch", "text", "no method", "no version", "number", "true"],
)
async def test_a_line_that_is_no_message_is_answered_as_such(line, code, identity):
    (refused,) = await answers_to(line)
    assert (refused["id"], refused["error"]["code"]) == (identity, code)


CALL = b'{"jsonrpc": "2.0", "id": "call-7", "method": "ping", "params": {"_meta": {"a": %b}}}'


@pytest.mark.parametrize("value", UNREADABLE)
async def test_what_cannot_be_read_is_said_to_its_request(value):
    (refused,) = await answers_to(CALL % UNREADABLE[value])
    assert (refused["id"], refused["error"]["code"]) == ("call-7", NOT_JSON)


@pytest.mark.parametrize("value", [rb'"\ud83d"', rb'"\udc4d\ud83d"', rb'"a\\\uD83D"', rb'{"\ud83d": 1}'])
async def test_half_a_character_becomes_a_whole_one(value):
    (answer,) = await answers_to(CALL % value)
    assert (answer["id"], answer["result"]) == ("call-7", {})


@pytest.mark.parametrize(
    ("before", "after"),
    [(b"\xef\xbb\xbf", b""), (b"\xef\xbb\xbf", b"\r"), (b"", b"\r"), (b"\r\n \n", b"\r\n")],
)
async def test_marks_and_line_breaks_around_a_message_are_no_part_of_it(before, after):
    (answer,) = await answers_to(before + CALL % b"1" + after)
    assert answer["id"] == "call-7"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"  \r",
        b'{"jsonrpc": "2.0", "id": 7, "result": 5}',
        b'{"jsonrpc": "2.0", "id": 7, "error": "no"}',
    ],
    ids=["empty", "blank", "result", "error"],
)
async def test_empty_lines_and_malformed_responses_are_not_answered(line):
    """The id of a response is that of a request of ours. An answer would pass for one to theirs."""
    assert await answers_to(line) == []
