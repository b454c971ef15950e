"""All that the protocol's own test server can answer comes out of our endpoint as it went in."""

import base64
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CallToolResult,
    CreateMessageResult,
    ElicitResult,
    ListRootsResult,
    PromptReference,
    Root,
    TextContent,
)

from tests import plain_http
from tests.e2e.node_tools import node
from tests.e2e.product import AGENT, Product, Rest, environment, place_for_one, started
from tests.engines.everything import Everything, everything
from tests.processes import ROOT

__all__ = ["everything", "node"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ERAS = ["2025-11-25", "2026-07-28"]
OURS = "workflow-catalogue/"
STAMPS = (OURS, "io.modelcontextprotocol/")
"""How the names begin of entries in `_meta` that a server adds of its own."""
DATA = "data:text/plain;base64,SGVsbG8="
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("echo", {"message": "Hello, \U0001f30d!"}),
    ("get-sum", {"a": 2, "b": 3.5}),
    ("get-tiny-image", {}),
    ("get-annotated-message", {"messageType": "error", "includeImage": True}),
    ("get-annotated-message", {"messageType": "success"}),
    ("get-annotated-message", {"messageType": "debug", "includeImage": True}),
    ("get-resource-links", {"count": 4}),
    ("get-resource-reference", {"resourceType": "Text", "resourceId": 1}),
    ("get-resource-reference", {"resourceType": "Blob", "resourceId": 2}),
    ("get-structured-content", {"location": "Chicago"}),
    ("gzip-file-as-resource", {"name": "hello.gz", "data": DATA, "outputType": "resource"}),
    ("gzip-file-as-resource", {"name": "hello.gz", "data": DATA, "outputType": "resourceLink"}),
    ("trigger-long-running-operation", {"duration": 0.2, "steps": 2}),
]
PROMPTS: list[tuple[str, dict[str, str]]] = [
    ("simple-prompt", {}),
    ("args-prompt", {"city": "Oslo", "state": "Norway"}),
    ("resource-prompt", {"resourceType": "Text", "resourceId": "1"}),
]
OF_A_PROCESS = "get-env"
"""Tells the environment of the server's process; over stdio each client has one of its own."""
OF_A_SESSION = {"toggle-simulated-logging", "toggle-subscriber-updates"}
"""Turn on what a session's client is then told; they answer with the session's id."""
NEEDS_A_TASK = "simulate-research-query"
ASK_THEIR_USER = {
    "trigger-elicitation-request": {},
    "trigger-url-elicitation": {"url": "https://pay.example/7"},
}
NEED_THE_CLIENT = {
    "get-roots-list",
    "trigger-elicitation-request-async",
    "trigger-sampling-request",
    "trigger-sampling-request-async",
}
"""Ask their client for its folders, a model's answer, or input for a task. The source does not offer these,
so that the server does not list the tools to it."""
ASKS = "everything-asking asks: "
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
CLOCK = re.compile(r"\d{1,2}:\d\d:\d\d(?:\s[AP]M)?")


@pytest.fixture(scope="module")
def bare_product(everything: Everything, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """One whose operator allows its sources to start the server."""
    allowed = {"everything": {"command": list(everything.command)}}
    with place_for_one(tmp_path_factory.mktemp("product")) as place:
        place["CATALOGUE_STDIO_COMMANDS"] = json.dumps(allowed)
        with started(place) as running:
            running.wait_until_up()
            yield running


@pytest.fixture(scope="module")
def rest(bare_product: Product) -> Rest:
    return Rest(bare_product, bare_product.manage("create_mcp_token", "admin", "--scope", "catalogue:admin"))


@pytest.fixture(scope="module")
def product(bare_product: Product, rest: Rest, everything: Everything) -> Product:
    """One whose sources are the server over HTTP and the same over stdio."""
    add_source(rest, "everything", url=everything.url)
    add_source(rest, "everything-stdio", transport="stdio", command="everything")
    return bare_product


def add_source(rest: Rest, name: str, **config: str) -> None:
    policy = {"new_workflows": "exposed", "refresh_interval": 0}
    rest.post("/sources/", name=name, kind="mcp", config=config, **policy)
    assert rest.post(f"/sources/{name}/refresh/")["outcome"] == "succeeded"


def named(rest: Rest, source: str) -> dict[str, str]:
    """What each tool of a source is called at our endpoint."""
    workflows = rest.get("/workflows/", source=source)["results"]
    return {workflow["upstream"]["id"]: workflow["tool_name"] for workflow in workflows}


@asynccontextmanager
async def over_http(url: str, *, mode: str, token: str = "", **options: Any) -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with plain_http.AsyncClient(headers=headers, timeout=30) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=mode, cache=None, client_info=AGENT, **options) as client:
            yield client


def ours(product: Product, era: str, **options: Any) -> Any:
    mode = "legacy" if era == "2025-11-25" else era
    return over_http(f"{product.url}/mcp", token=product.token, mode=mode, **options)


def directly(everything: Everything, **options: Any) -> Any:
    return over_http(everything.url, mode="legacy", **options)


def as_json(model: Any) -> dict[str, Any]:
    """Without what is ours, and without the time of day, which the server writes into its resources."""
    document: dict[str, Any] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    meta = {name: told for name, told in document.pop("_meta", {}).items() if not name.startswith(STAMPS)}
    return without_clock(document | ({"_meta": meta} if meta else {}))


def without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_clock(opened(name, held)) for name, held in value.items()}
    if isinstance(value, list):
        return [without_clock(held) for held in value]
    return CLOCK.sub("(time)", value) if isinstance(value, str) else value


def opened(name: str, value: Any) -> Any:
    """The words in the server's binary resources, which are texts."""
    if name != "blob":
        return value
    data = base64.b64decode(value, validate=True)
    return data.decode() if data.isascii() else value


@pytest.mark.parametrize("era", ERAS)
async def test_every_answer_comes_out_as_it_went_in(product, everything, era):
    """A2.2, A2.3, B10: text, pictures, annotations, links, embedded resources, structured content."""
    async with ours(product, era) as client, directly(everything) as upstream:
        assert (client.protocol_version, upstream.protocol_version) == (era, "2025-11-25")
        await client.list_tools()
        for tool, arguments in [*CALLS, (OF_A_PROCESS, {})]:
            told = await client.call_tool(tool, arguments)
            assert as_json(told) == as_json(await upstream.call_tool(tool, arguments)), tool


async def test_our_stdio_carries_the_same(product, everything):
    """E8: as a desktop client gets it, which starts the product's command."""
    command = StdioServerParameters(
        command=sys.executable,
        args=[str(ROOT / "manage.py"), "mcp_stdio"],
        env=environment(product.variables),
        cwd=str(ROOT),
    )
    local = Client(command, mode="2026-07-28", cache=None)
    async with local as client, directly(everything) as upstream:
        for tool, arguments in CALLS:
            told = await client.call_tool(tool, arguments)
            assert as_json(told) == as_json(await upstream.call_tool(tool, arguments)), tool


@pytest.mark.parametrize("era", ERAS)
async def test_every_tool_is_listed_as_the_server_lists_it(product, rest, everything, era):
    """A1.2, A2.1: name, title, description, schemas, hints."""
    answers = {"elicitation_callback": agree}
    async with ours(product, era) as client, directly(everything, **answers) as upstream:
        shown = {tool.name: as_json(tool) for tool in (await client.list_tools()).tools}
        listed = {tool.name: as_json(tool) for tool in (await upstream.list_tools()).tools}
    others = {OF_A_PROCESS, NEEDS_A_TASK} | OF_A_SESSION | ASK_THEIR_USER.keys()
    assert listed.keys() == {tool for tool, _ in CALLS} | others
    for name, tool in listed.items():
        # How a client may call it as a task is the business of each connection: our tasks are an extension.
        tool.pop("execution", None)
        assert shown[name] == tool
    assert named(rest, "everything").items() == {(name, name) for name in listed}


@pytest.mark.parametrize("era", ERAS)
async def test_prompts_and_resources_come_out_as_they_went_in(product, everything, era):
    """Also the links to resources in a tool's result can be followed."""
    async with ours(product, era) as client, directly(everything) as upstream:
        for kind, key in (("prompts", "name"), ("resources", "uri"), ("resource_templates", "uri_template")):
            shown = {getattr(one, key): one for one in getattr(await lister(client, kind)(), kind)}
            listed = {getattr(one, key): one for one in getattr(await lister(upstream, kind)(), kind)}
            assert listed, kind
            for name, one in listed.items():
                # A title of ours is the name where the server has none.
                assert described(shown[name]) == described(one), name
        links = await client.call_tool("get-resource-links", {"count": 4})
        addresses = [block.uri for block in links.content if block.type == "resource_link"]
        assert addresses
        for uri in [*[one.uri for one in (await upstream.list_resources()).resources], *addresses]:
            assert as_json(await client.read_resource(uri)) == as_json(await upstream.read_resource(uri)), uri
        for name, arguments in PROMPTS:
            told = await client.get_prompt(name, arguments)
            assert as_json(told) == as_json(await upstream.get_prompt(name, arguments)), name
        asked = (PromptReference(name="completable-prompt"), {"name": "department", "value": "E"})
        assert (await client.complete(*asked)).completion == (await upstream.complete(*asked)).completion


def lister(client: Client, kind: str) -> Callable[[], Any]:
    method: Callable[[], Any] = getattr(client, f"list_{kind}")
    return method


def described(one: Any) -> dict[str, Any]:
    known = {"name", "title", "description", "mime_type", "arguments"} & type(one).model_fields.keys()
    document: dict[str, Any] = one.model_dump(mode="json", include=known, exclude_none=True)
    for argument in document.get("arguments", []):
        argument.setdefault("required", False)
    return document | {"title": document.get("title", document["name"])}


async def agree(context: Any, params: Any) -> ElicitResult:
    """What a user says to any form."""
    fields = {} if params.mode == "url" else params.requested_schema["properties"]
    text = next((name for name, field in fields.items() if field.get("type") == "string"), "")
    return ElicitResult(action="accept", content={text: "agreed"} if text else {})


def texts(result: CallToolResult) -> list[str]:
    """Without the ids that the server draws."""
    return [UUID.sub("...", block.text) for block in result.content]


async def test_the_tools_that_need_a_model_or_folders_are_not_offered(product, everything):
    """They are listed to clients that can be asked for these; the source says that it cannot."""

    async def never(*_: Any) -> Any:
        raise AssertionError("nothing is asked")

    asked: dict[str, Callable[..., Any]] = {
        f"{what}_callback": never for what in ("sampling", "elicitation", "list_roots")
    }
    async with directly(everything, **asked) as upstream, ours(product, "2026-07-28") as client:
        capable = {tool.name for tool in (await upstream.list_tools()).tools}
        shown = {tool.name for tool in (await client.list_tools()).tools}
        with pytest.raises(MCPError, match="get-roots-list"):
            await client.call_tool("get-roots-list", {})
    assert not NEED_THE_CLIENT & shown
    assert capable - shown <= NEED_THE_CLIENT
    assert capable & NEED_THE_CLIENT


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("seconds", "steps"), [(0.5, 10)])
async def test_progress_is_heard_as_at_the_server_itself(product, everything, era, seconds, steps):
    """A7.1, A7.3: each step once, in percent, and while the operation runs."""
    arguments = {"duration": seconds, "steps": steps}
    async with ours(product, era) as client, directly(everything) as upstream:
        heard, ended_after = await hear(client, arguments)
        expected, _ = await hear(upstream, arguments)
    assert [total for _, total, _ in heard] == [100.0] * steps
    assert [value for value, *_ in heard] == [100 * value / total for value, total, _ in expected]
    assert heard[0][2] < ended_after - seconds / 2


async def hear(client: Client, arguments: dict[str, Any]) -> tuple[list[tuple[float, float, float]], float]:
    """Each progress notification of a long operation, with its time, and when that ended."""
    heard: list[tuple[float, float, float]] = []

    async def note(value: float, total: float | None, message: str | None) -> None:
        heard.append((value, total or 0.0, time.monotonic()))

    result = await client.call_tool("trigger-long-running-operation", arguments, progress_callback=note)
    assert not result.is_error
    return heard, time.monotonic()


@pytest.fixture
def all_named(product: Product, rest: Rest, everything: Everything) -> Iterator[dict[str, str]]:
    """What each tool is called at our endpoint, of a source that passes on all requests to callers."""
    add_source(rest, "everything-asking", url=everything.url, questions="all")
    yield named(rest, "everything-asking")
    rest.delete("/sources/everything-asking/")


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("trigger-sampling-request", {"prompt": "What is the capital?", "maxTokens": 50}),
        ("get-roots-list", {}),
        ("trigger-elicitation-request", {}),
    ],
)
async def test_a_model_folders_and_a_user_are_asked_as_by_the_server_itself(
    product, everything, all_named, era, tool, arguments
):
    """B10: with the very request, but for the name of the source before a question to a user."""

    def answering(asked: list[Any]) -> dict[str, Any]:
        async def sample(context: Any, params: Any) -> CreateMessageResult:
            asked.append(params)
            content = TextContent(type="text", text="Oslo \U0001f1f3\U0001f1f4")
            return CreateMessageResult(role="assistant", content=content, model="small")

        async def elicit(context: Any, params: Any) -> ElicitResult:
            asked.append(params.model_copy(update={"message": params.message.removeprefix(ASKS)}))
            return await agree(context, params)

        async def list_roots(context: Any) -> ListRootsResult:
            return ListRootsResult(roots=[Root(uri="file:///srv/tides", name="tides")])

        return {
            "sampling_callback": sample,
            "elicitation_callback": elicit,
            "list_roots_callback": list_roots,
        }

    asked: list[Any] = []
    expected: list[Any] = []
    async with (
        ours(product, era, **answering(asked)) as client,
        directly(everything, **answering(expected)) as upstream,
    ):
        told = await client.call_tool(all_named[tool], arguments)
        said = await upstream.call_tool(tool, arguments)
    assert texts(told) == texts(said)
    assert [as_json(params) for params in asked] == [as_json(params) for params in expected]
