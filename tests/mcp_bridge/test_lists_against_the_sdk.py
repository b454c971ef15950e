"""`tools/list` from memory against the SDK's own answers: the same results, and the same refusals."""

import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from django.conf import settings as product
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import ListToolsResult, PaginatedRequestParams, Tool
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.routing import Mount

from catalogue.exposure import confirmed_catalogue, forget_catalogue
from catalogue.models import Source, Workflow
from mcp_bridge.models import AccessToken
from mcp_bridge.tokens import Access
from mcp_bridge.tool_lists import visible_tools
from tests import plain_http
from tests.factories import make_source, make_workflow
from tests.mcp_bridge.conftest import McpServer
from tests.mcp_bridge.serving import serving
from tests.thoroughness import examples

MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}
VERSIONS = [None, *HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS]
"""None: no header, as the first clients of Streamable HTTP have it."""


class SdkServer:
    """The SDK's server without anything of ours, which lists the tools that it is told to."""

    def __init__(self) -> None:
        self.tools: list[Tool] = []
        self.base_url = ""
        self._server: Server[Any] = Server(
            "workflow-catalogue",
            version=product.VERSION,
            title="Workflow Catalogue",
            description="Workflows of the company's engines, curated, as tools.",
            on_list_tools=self._list,
        )
        self._sessions = StreamableHTTPSessionManager(self._server, stateless=True)

    def application(self) -> Starlette:
        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            async with self._sessions.run():
                yield

        return Starlette(routes=[Mount("/", self._sessions.handle_request)], lifespan=lifespan)

    async def _list(self, _: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        ttl = round(product.CATALOGUE.list_ttl * 1000)
        return ListToolsResult(tools=self.tools, ttl_ms=ttl, cache_scope="private")


@pytest.fixture(scope="module")
def sdk_server() -> Iterator[SdkServer]:
    server = SdkServer()
    with serving(server.application()) as server.base_url:
        yield server


@dataclass(frozen=True)
class Both:
    """Sends the same bytes to the product and to the SDK's server."""

    product_url: str
    sdk_url: str
    http: httpx2.Client

    def answers(
        self, message: Any, headers: list[tuple[str, str]] | dict[str, str]
    ) -> tuple[httpx2.Response, httpx2.Response]:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        ours, theirs = (
            self.http.post(url, content=body, headers=headers) for url in (self.product_url, self.sdk_url)
        )
        return ours, theirs


@pytest.fixture
def both(mcp_server: McpServer, sdk_server: SdkServer, token: str) -> Iterator[Both]:
    with plain_http.Client(headers={"authorization": f"Bearer {token}"}, timeout=20) as http:
        yield Both(mcp_server.url, f"{sdk_server.base_url}/mcp", http)


def usual_headers(version: str | None = MODERN) -> dict[str, str]:
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    headers |= {"mcp-protocol-version": version} if version else {}
    return headers | ({"mcp-method": "tools/list"} if version in MODERN_PROTOCOL_VERSIONS else {})


def listing(version: str | None = MODERN, **members: Any) -> dict[str, Any]:
    params = {"params": {"_meta": META}} if version in MODERN_PROTOCOL_VERSIONS else {}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/list", **params, **members}


def message_of(response: httpx2.Response) -> Any:
    """The JSON-RPC message, from JSON or from an event stream with just that; None for an empty answer."""
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        return response.json() if response.content.startswith(b"{") else None
    (data,) = [line for line in response.text.split("\r\n") if line.startswith("data: {")]
    return json.loads(data.removeprefix("data: "))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
schemas = st.fixed_dictionaries(
    {"type": st.just("object")},
    optional={
        "properties": st.dictionaries(
            texts,
            st.fixed_dictionaries(
                {},
                optional={
                    "type": st.sampled_from(["string", "integer", ["null", "array"]]),
                    "default": json_values,
                    "enum": st.lists(json_values, max_size=3),
                    "description": texts,
                },
            ),
            max_size=3,
        ),
        "required": st.lists(texts, max_size=2),
        "$schema": st.just("https://json-schema.org/draft/2020-12/schema"),
        "x-own": json_values,
    },
)
hints = st.dictionaries(
    st.sampled_from(["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"]), st.booleans()
)
icons = st.lists(
    st.fixed_dictionaries(
        {"src": st.sampled_from(["https://example.com/ä.png", "data:image/png;base64,aWNvbg=="])},
        optional={"mimeType": st.just("image/png"), "sizes": st.just(["48x48", "any"])},
    ),
    max_size=2,
)
catalogues = st.dictionaries(
    st.from_regex(r"\A[A-Za-z0-9_.-]{1,64}\Z"),
    st.fixed_dictionaries(
        {
            "name": texts.filter(bool),
            "description": texts,
            "title_override": texts,
            "description_override": texts,
            "execution_type": st.sampled_from(Workflow.ExecutionType.values),
            "input_schema": schemas,
            "output_schema": st.none() | schemas,
            "hints": hints,
            "icons": icons,
            "read_only_hint": st.none() | st.booleans(),
        }
    ),
    max_size=4,
)


@pytest.mark.parametrize("version", VERSIONS)
def test_whatever_the_catalogue_holds_the_list_is_what_the_sdk_makes_of_it(both, sdk_server, version):
    source, access = make_source(), Access.by_token(AccessToken.objects.get(name="agent"))

    @settings(
        derandomize=True,
        database=None,
        max_examples=examples(25),
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(catalogues)
    def check(catalogue: dict[str, dict[str, Any]]) -> None:
        expose(catalogue, source)
        sdk_server.tools = visible_tools(confirmed_catalogue(), access)
        ours, theirs = both.answers(listing(version), usual_headers(version))
        assert (ours.status_code, theirs.status_code) == (200, 200)
        assert message_of(ours) == message_of(theirs)

    check()


def expose(catalogue: dict[str, dict[str, Any]], source: Source) -> None:
    Workflow.objects.all().delete()
    for tool_name, fields in catalogue.items():
        fields = {name: _without_nul(value) for name, value in fields.items()}
        make_workflow(source, tool_name=tool_name, upstream_id=tool_name, **fields)
    forget_catalogue()


def _without_nul(value: Any) -> Any:
    """PostgreSQL takes none in a text; discovery leaves it out."""
    return value.replace("\0", "") if isinstance(value, str) else value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "half an emoji: \ud83d"])
def test_a_row_that_is_no_json_leaves_the_list_readable(both, value):
    """No engine's answer brings such values in, but one of them would make the whole list unreadable."""
    make_workflow(name="broken", input_schema={"type": "object", "default": value})
    make_workflow(name="whole")
    ours, _ = both.answers(listing(), usual_headers())
    names = [tool["name"] for tool in json.loads(ours.text, parse_constant=pytest.fail)["result"]["tools"]]
    assert "whole" in names


def test_the_answer_has_no_session_and_may_be_kept_by_nobody_on_the_way(both):
    ours, _ = both.answers(listing(), usual_headers())
    assert ours.headers["content-type"] == "application/json"
    assert ours.headers["cache-control"] == "no-store"
    assert "mcp-session-id" not in ours.headers


def with_headers(**changed: str | None) -> Callable[[str | None], tuple[Any, Any]]:
    """The usual request with these headers instead, or without them."""

    def made(version: str | None) -> tuple[Any, Any]:
        headers = usual_headers(version) | {name.replace("_", "-"): value for name, value in changed.items()}
        return listing(version), {name: value for name, value in headers.items() if value is not None}

    return made


def with_header_twice(
    *added: tuple[str, str], first: bool = False
) -> Callable[[str | None], tuple[Any, Any]]:
    def made(version: str | None) -> tuple[Any, Any]:
        pairs = list(usual_headers(version).items())
        return listing(version), [*added, *pairs] if first else [*pairs, *added]

    return made


def with_members(**members: Any) -> Callable[[str | None], tuple[Any, Any]]:
    return lambda version: (listing(version, **members), usual_headers(version))


def with_params(**params: Any) -> Callable[[str | None], tuple[Any, Any]]:
    return lambda version: (
        listing(version, params={"_meta": META, **params}),
        usual_headers(version),
    )


def as_bytes(body: bytes) -> Callable[[str | None], tuple[Any, Any]]:
    return lambda version: (body, usual_headers(version))


ODD_REQUESTS = {
    "accepts with weights": with_headers(accept="text/event-stream;q=0.5, APPLICATION/JSON;q=0.9"),
    "another version": with_headers(mcp_protocol_version="2031-01-01"),
    "a version of before Streamable HTTP": with_headers(mcp_protocol_version="2024-11-05"),
    "no version": with_headers(mcp_protocol_version=None),
    "an empty version": with_headers(mcp_protocol_version=""),
    "no method header": with_headers(mcp_method=None),
    "another method in the header": with_headers(mcp_method="tools/call"),
    "the method header in other letters": with_headers(mcp_method="TOOLS/LIST"),
    "the version twice": with_header_twice(("mcp-protocol-version", MODERN)),
    "the version twice, an old one last": with_header_twice(("mcp-protocol-version", "2025-06-18")),
    "the version twice, an old one first": with_header_twice(
        ("mcp-protocol-version", "2025-06-18"), first=True
    ),
    "the method header twice": with_header_twice(("mcp-method", "tools/list")),
    "a name that lists have none of": with_headers(mcp_name="x"),
    "a session that there is not": with_headers(mcp_session_id="1234"),
    "no params": with_members(params=None),
    "empty params": with_members(params={}),
    "a _meta that is none": with_params(_meta=7),
    "an empty _meta": with_params(_meta={}),
    "a _meta of another version": with_params(_meta=META | {next(iter(META)): "2025-06-18"}),
    "a _meta without capabilities": with_params(_meta={next(iter(META)): MODERN}),
    "capabilities that are none": with_params(_meta=META | {list(META)[1]: []}),
    "a client that has no name": with_params(_meta=META | {"io.modelcontextprotocol/clientInfo": {}}),
    "more params than there are": with_params(verbose=True),
    "a progress token": with_params(_meta=META | {"progressToken": 3}),
    "a progress token that is none": with_params(_meta=META | {"progressToken": [3]}),
    "a cursor that is no text": with_params(cursor=7),
    "a cursor that is null": with_params(cursor=None),
    "an id that is a text": with_members(id="ä\x00\U0001f600"),
    "a long id": with_members(id="x" * 10_000),
    "an empty id": with_members(id=""),
    "a huge id": with_members(id=10**40),
    "a negative id": with_members(id=-1),
    "another method in the body": with_members(method="Tools/List"),
    "more members than there are": with_members(extra={"a": 1}),
    "nested deeply": as_bytes(
        b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":' + b"[" * 150 + b"]" * 150 + b"}}"
    ),
    "a notification": as_bytes(b'{"jsonrpc":"2.0","method":"notifications/initialized"}'),
    "a listing that is a notification": as_bytes(b'{"jsonrpc":"2.0","method":"tools/list","params":{}}'),
    "a response": as_bytes(b'{"jsonrpc":"2.0","id":1,"result":{}}'),
}


NO_IDS = {"a boolean": True, "a fraction": 1.0, "null": None, "an array": [1], "an object": {"a": 1}}
ONE_OF_EACH_ERA = (None, "2025-11-25", MODERN)


def test_an_odd_request_gets_the_sdks_own_answer(both, sdk_server, subtests):
    """Twice, since what is well-formed is remembered by its bytes; the first time no list is remembered."""
    sdk_server.tools = visible_tools(
        confirmed_catalogue(), Access.by_token(AccessToken.objects.get(name="agent"))
    )
    for name, version in itertools.product(ODD_REQUESTS, ONE_OF_EACH_ERA):
        with subtests.test(f"{name} ({version})"):
            forget_catalogue()
            message, headers = ODD_REQUESTS[name](version)
            for _ in range(2):
                ours, theirs = both.answers(message, headers)
                assert ours.status_code == theirs.status_code, (ours.text, theirs.text)
                assert without_faults(message_of(ours)) == message_of(theirs)


def without_faults(message: Any) -> Any:
    """What is wrong with the parameters the SDK does not say."""
    error = message.get("error", {}) if isinstance(message, dict) else {}
    if not error.get("message", "").startswith("Invalid parameters of "):
        return message
    return message | {"error": error | {"message": "Invalid request parameters", "data": ""}}


def test_a_request_whose_id_cannot_be_one_is_refused(both, subtests):
    """The SDK takes it for a notification of the handshake era, and its sender would wait for ever."""
    for name, version in itertools.product(NO_IDS, ONE_OF_EACH_ERA):
        with subtests.test(f"{name} ({version})"):
            ours, _ = both.answers(listing(version, id=NO_IDS[name]), usual_headers(version))
            assert (ours.status_code, message_of(ours)["error"]["code"]) == (400, -32600)
