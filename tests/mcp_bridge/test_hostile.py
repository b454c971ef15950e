"""Whatever is sent to the endpoint: a clean refusal, nothing of our insides, and the next is served."""

import gzip
import itertools
import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loguru import logger

from tests import plain_http
from tests.mcp_bridge.conftest import McpServer
from tests.mcp_bridge.hostile_messages import HostileRequest, hostile_requests
from tests.mcp_bridge.test_endpoint import modern
from tests.thoroughness import examples

INSIDES = re.compile(
    r"Traceback|site-packages|File \\?\"|/home/|/root/|pydantic|django|sqlite|psycopg|object at 0x",
    re.IGNORECASE,
)
FUZZ = settings(
    derandomize=True,
    database=None,
    max_examples=examples(400),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
MAX_ANSWER_LENGTH = 100_000
"""Beside what was sent, which an answer may repeat."""


@contextmanager
def no_error_logged() -> Iterator[None]:
    """A fault that the client does not see is one, too."""
    logged: list[str] = []
    sink = logger.add(lambda line: logged.append(str(line)), level="ERROR")
    try:
        yield
    finally:
        logger.remove(sink)
    assert not logged, logged[0]


@pytest.fixture(autouse=True)
def _no_error_logged() -> Iterator[None]:
    with no_error_logged():
        yield


@pytest.fixture
def client(mcp_server: McpServer, token: str) -> Iterator[httpx2.Client]:
    headers = {
        "authorization": f"Bearer {token}",
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
    }
    with plain_http.Client(headers=headers, timeout=20) as opened:
        yield opened


@pytest.mark.parametrize("era", ["2026-07-28", "2025-06-18"])
@pytest.mark.usefixtures("long_workflow")
def test_no_message_gets_more_than_a_clean_refusal(mcp_server, client, era):
    @FUZZ
    @given(hostile_requests(modern=era == "2026-07-28"))
    def send(request: HostileRequest) -> None:
        status, text = exchange(client, mcp_server.url, request)
        assert status < 500, text
        check_text(text, sent=len(request.body))
        for message in messages_of(text):
            check_message(message)

    send()
    assert_serves(mcp_server, client)


def exchange(client: httpx2.Client, url: str, request: HostileRequest) -> tuple[int, str]:
    """The answer; of a stream that stays open its first message."""
    with client.stream("POST", url, content=request.body, headers=request.headers) as response:
        text = ""
        for piece in response.iter_text():
            text += piece
            if request.method == "subscriptions/listen" and text.endswith("\r\n\r\n"):
                break
        return response.status_code, text


def messages_of(text: str) -> list[dict[str, Any]]:
    if text.startswith("{"):
        return [json.loads(text)]
    return [json.loads(line[5:]) for line in re.split(r"\r\n|\n|\r", text) if re.match(r"data: *\S", line)]


def check_text(text: str, *, sent: int) -> None:
    assert not INSIDES.search(text), text[:2_000]
    assert len(text) < sent + MAX_ANSWER_LENGTH


def check_message(message: dict[str, Any]) -> None:
    assert message["jsonrpc"] == "2.0"
    if "method" not in message:
        assert ("result" in message) != ("error" in message)
    if "error" in message:
        assert message["error"]["message"]
        assert message["error"]["code"] != -32603, message


def assert_serves(mcp_server: McpServer, client: httpx2.Client) -> None:
    body, headers = modern("tools/list")
    answer = client.post(mcp_server.url, json=body, headers=headers)
    assert "list_workflows" in [tool["name"] for tool in answer.json()["result"]["tools"]]


header_values = st.one_of(
    st.binary(max_size=40).map(lambda value: re.sub(rb"[\x00-\x08\x0a-\x1f\x7f]", b"", value)),
    st.sampled_from(
        [
            b"",
            b"\xff\xfe",
            b"a" * 8_000,
            b"=?base64?////?=",
            b"=?base64?" + b"A" * 5_000 + b"?=",
            b"2026-07-28",
            b"2025-06-18",
            b"tools/list",
            b"tools/call",
            b"Bearer",
            b"Bearer " + b"x" * 5_000,
            b"text/event-stream",
            b"*/*;q=0",
            b"application/json, text/event-stream",
            b"http://localhost",
            b"null",
            b"${jndi:ldap://x}",
            b"chunked",
            b"100-continue",
            b"websocket",
        ]
    ),
)
header_names = st.sampled_from(
    [
        *("MCP-Protocol-Version", "Mcp-Method", "Mcp-Name", "Mcp-Session-Id", "Mcp-Param-X", "Last-Event-ID"),
        *("Host", "Origin", "Authorization", "Accept", "Content-Type", "Content-Encoding", "User-Agent"),
        *("X-Forwarded-Proto", "X-Forwarded-For", "Forwarded", "Cookie", "Upgrade", "Connection", "Expect"),
        *("Idempotency-Key", "If-None-Match", "Range", "X-HTTP-Method-Override", "Content-Language"),
    ]
)


@pytest.mark.usefixtures("long_workflow")
def test_no_headers_get_more_than_a_clean_refusal(mcp_server, client, token):
    usual = [
        ("Host", b"localhost"),
        ("Authorization", f"Bearer {token}".encode()),
        ("Accept", b"application/json, text/event-stream"),
        ("Content-Type", b"application/json"),
        ("MCP-Protocol-Version", b"2026-07-28"),
        ("Mcp-Method", b"tools/list"),
    ]

    @FUZZ
    @given(
        st.sampled_from(["POST", "POST", "POST", "GET", "DELETE", "OPTIONS"]),
        st.lists(st.tuples(header_names, header_values), max_size=3),
        st.lists(header_names, max_size=2),
    )
    def send(method: str, added: list[tuple[str, bytes]], left_out: list[str]) -> None:
        headers = [header for header in usual if header[0] not in left_out] + added
        status, text = send_raw(
            mcp_server, method, "/mcp", headers, json.dumps(modern("tools/list")[0]).encode()
        )
        assert 200 <= status < 500, text
        check_text(text, sent=sum(len(value) for _, value in headers))

    send()
    assert_serves(mcp_server, client)


def send_raw(
    server: McpServer, method: str, target: str, headers: list[tuple[str, bytes]], body: bytes = b""
) -> tuple[int, str]:
    """Exactly these bytes on a connection of its own; of a stream that stays open only its head."""
    lines = [f"{method} {target} HTTP/1.1".encode(), b"Connection: close"]
    lines += [name.encode() + b": " + value for name, value in headers]
    lines += [b"Content-Length: %d" % len(body)]
    return answer_to(server, b"\r\n".join(lines) + b"\r\n\r\n" + body)


def answer_to(server: McpServer, sent: bytes) -> tuple[int, str]:
    parts = urlsplit(server.base_url)
    with socket.create_connection((str(parts.hostname), int(parts.port or 0)), timeout=20) as connection:
        connection.sendall(sent)
        received = b""
        while piece := connection.recv(65536):
            received += piece
            if b"\r\n\r\n" in received and b"content-type: text/event-stream" in received.lower():
                break
    head, _, text = received.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), text.decode()


PATHS = [
    *("/mcp//x", "/mcp/%2e%2e/api", "/mcp/../api/", "/mcp/..%2fadmin/", "/mcp/%00", "/mcp/%ff", "/mcp/\\x"),
    *("/mcp/%0d%0aX-Evil:%201", "/mcp/%22%3e%3cscript%3e", "/mcp/%F0%9F%98%80", "/mcp/'%20OR%201=1--"),
    *(
        "/mcp/" + "a" * 10_000,
        "/mcp/" + "%F0%9F%98%80" * 1_000,
        "/mcp?" + "a" * 30_000,
        "/mcp/a/b/c",
        "//mcp",
    ),
    *(
        "/mcp;x=1",
        "/mcp%2f",
        "/mcp/%25%30%30",
        "/mcp/sales?token=1",
        "/MCP",
        "http://localhost/mcp",
        "/mcp#x",
    ),
]


def test_no_address_breaks_out_of_the_endpoint(mcp_server, client, token, subtests):
    usual = [("Host", b"localhost"), ("Content-Type", b"application/json")]
    callers = {"with a token": [("Authorization", f"Bearer {token}".encode())], "without": []}
    for target, (caller, credentials) in itertools.product(PATHS, callers.items()):
        with subtests.test(caller, target=target), no_error_logged():
            status, text = send_raw(mcp_server, "POST", target, usual + credentials, b"{}")
            assert 400 <= status < 500
            check_text(text, sent=0)
            assert_serves(mcp_server, client)


def test_no_address_breaks_the_description_of_the_resource(mcp_server, subtests):
    for path in [path for path in PATHS if path.startswith("/mcp/")][:13]:
        with subtests.test(path=path), no_error_logged():
            target = f"/.well-known/oauth-protected-resource{path}"
            status, text = send_raw(mcp_server, "GET", target, [("Host", b"localhost")])
            assert status == 404
            check_text(text, sent=0)


LISTING = json.dumps(modern("tools/list")[0])
VERSIONS = ("2026-07-28", "2025-06-18")
WRONG_BODIES: dict[str, tuple[dict[str, str], bytes]] = {
    "plain text": ({"content-type": "text/plain"}, LISTING.encode()),
    "a form": ({"content-type": "application/x-www-form-urlencoded"}, LISTING.encode()),
    "something like JSON": ({"content-type": "application/jsonx"}, LISTING.encode()),
    "another kind of JSON": ({"content-type": "application/json-patch+json"}, LISTING.encode()),
    "two types": ({"content-type": "application/json, text/plain"}, LISTING.encode()),
    "no type": ({"content-type": ""}, LISTING.encode()),
    "compressed": ({"content-encoding": "gzip"}, gzip.compress(LISTING.encode())),
    "compressed twice": ({"content-encoding": "gzip, br"}, gzip.compress(LISTING.encode())),
}


def test_a_body_that_is_not_json_by_its_headers_is_refused(mcp_server, client, subtests):
    for name, version in itertools.product(WRONG_BODIES, VERSIONS):
        with subtests.test(f"{name} ({version})"), no_error_logged():
            changed, body = WRONG_BODIES[name]
            headers = modern("tools/list")[1] | {"mcp-protocol-version": version} | changed
            response = client.post(mcp_server.url, content=body, headers=headers)
            assert response.status_code == 415
            assert response.json()["error"]["message"].endswith(
                ("as Content-Type: application/json.", "Send the body without it.")
            )


@pytest.mark.parametrize(
    "content_type", ["Application/JSON", "application/json;charset=UTF-8", "application/json ;x"]
)
def test_the_content_type_may_be_written_otherwise(mcp_server, client, content_type):
    headers = modern("tools/list")[1] | {"content-type": content_type}
    assert client.post(mcp_server.url, content=LISTING, headers=headers).status_code == 200


ENCODED_BODIES = {
    "with a byte order mark": b"\xef\xbb\xbf" + LISTING.encode(),
    "as UTF-16": LISTING.encode("utf-16"),
    "as UTF-32": LISTING.encode("utf-32"),
    "as Latin-1": '{"jsonrpc":"2.0","id":"ä","method":"tools/list"}'.encode("latin-1"),
    "compressed without saying so": gzip.compress(LISTING.encode()),
    "with NUL behind it": LISTING.encode() + b"\0",
    "with another one behind it": LISTING.encode() * 2,
    "of blanks": b" " * 100_000,
    "as NDJSON": LISTING.encode() + b"\n" + LISTING.encode(),
}


def test_a_body_in_another_encoding_is_no_fault(mcp_server, client, subtests):
    """The SDK reads some of them in the present era, and refuses the others."""
    for name, version in itertools.product(ENCODED_BODIES, VERSIONS):
        with subtests.test(f"{name} ({version})"), no_error_logged():
            headers = modern("tools/list")[1] | {"mcp-protocol-version": version}
            response = client.post(mcp_server.url, content=ENCODED_BODIES[name], headers=headers)
            assert response.status_code in (200, 400)
            check_text(response.text, sent=0)


@pytest.mark.parametrize("name", ["Host", "Authorization", "Origin", "Content-Type"])
def test_a_header_that_decides_may_come_only_once(mcp_server, token, name):
    """Whoever stands before us may have looked at the other one."""
    headers = [
        ("Host", b"localhost"),
        ("Authorization", f"Bearer {token}".encode()),
        ("Origin", b"http://localhost"),
        ("Content-Type", b"application/json"),
    ]
    again = next(header for header in headers if header[0] == name)
    status, text = send_raw(mcp_server, "POST", "/mcp", [*headers, again], LISTING.encode())
    assert status == 400
    assert name.lower() in json.loads(text)["error"]["message"]


POST = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
CHUNKED = b"%x\r\n" % len(LISTING) + LISTING.encode() + b"\r\n0\r\n\r\n"
SMUGGLED = {
    "two lengths": POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
    "a length and chunks": POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED,
    "chunks that are none": POST + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKED,
    "chunks that are not last": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKED,
    "chunks in two headers": POST
    + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n"
    + CHUNKED,
    "a chunk of a negative size": POST + b"Transfer-Encoding: chunked\r\n\r\n-5\r\n{}\r\n0\r\n\r\n",
    "a chunk of no size": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "a chunk of an enormous size": POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n{}",
    "a negative length": POST + b"Content-Length: -1\r\n\r\n{}",
    "an enormous length": POST + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n{}",
    "a length that is no number": POST + b"Content-Length: 0x10\r\n\r\n{}",
    "a header over two lines": POST + b"X-A: a\r\n b\r\n\r\n",
    "a blank before the colon": POST + b"Content-Length : 2\r\n\r\n{}",
    "lines that end in LF": POST.replace(b"\r\n", b"\n") + b"Content-Length: 2\n\n{}",
    "a NUL in a header": POST + b"X-A: a\0b\r\nContent-Length: 2\r\n\r\n{}",
    "a method that there is not": POST.replace(b"POST", b"GRAB") + b"\r\n",
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no address": b"POST HTTP/1.1\r\n\r\n",
}


def test_what_is_no_clear_http_is_refused(mcp_server, client, subtests):
    """Two readings of one request are how requests are smuggled past a proxy."""
    for name, sent in SMUGGLED.items():
        with subtests.test(name), no_error_logged():
            status, text = answer_to(mcp_server, sent)
            assert status == 400
            check_text(text, sent=0)
            assert_serves(mcp_server, client)


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1"])
def test_old_http_is_served_too(mcp_server, token, version):
    head = POST.replace(b"HTTP/1.1", version) + f"Authorization: Bearer {token}\r\nAccept: */*\r\n".encode()
    status, _ = answer_to(mcp_server, head + b"Content-Length: %d\r\n\r\n" % len(LISTING) + LISTING.encode())
    assert status == 200


def test_a_client_that_hangs_up_in_the_middle_of_its_message_is_no_fault(mcp_server, client, token):
    parts = urlsplit(mcp_server.base_url)
    head = POST + f"Authorization: Bearer {token}\r\nAccept: */*\r\n".encode()
    for version in (b"", b"MCP-Protocol-Version: 2026-07-28\r\n"):
        for body in (b"Content-Length: 10\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"):
            with socket.create_connection((str(parts.hostname), int(parts.port or 0)), timeout=20) as half:
                half.sendall(head + version + body)
    assert_serves(mcp_server, client)


def test_a_question_about_the_whole_server_is_no_fault(mcp_server):
    sent = b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    status, text = answer_to(mcp_server, sent)
    assert status == 404, text
