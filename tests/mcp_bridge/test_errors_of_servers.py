"""Errors of an MCP server behind the product: the page that a person must open first, and their data."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from mcp import MCPError
from mcp_types import URL_ELICITATION_REQUIRED, ElicitResult

from catalogue.models import Source
from executions.models import Execution, FailureEffect
from tests.engines import hostile_servers as servers
from tests.engines.hostile_servers import hostile, server
from tests.factories import make_feature
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.test_server_features import connect_source, expose

PAGE = "https://auth.example.com/connect?id=e-1"
KEY = "key-that-nobody-may-see-42"
ASKED = {"mode": "url", "elicitationId": "e-1", "url": PAGE, "message": "Sign in first."}
REQUIRED = {"elicitations": [ASKED]}


class Refusing:
    """A server that answers with one error until somebody has opened the page."""

    def __init__(self) -> None:
        self.code, self.message, self.data = URL_ELICITATION_REQUIRED, "It needs more.", Any
        self.data: Any = REQUIRED
        self.opened, self.asked, self.streams = False, 0, False

    def answer(self, message: Any, _: Any) -> Any:
        self.asked += 1
        if self.opened:
            text = {"type": "text", "text": "done"}
            contents = [{"uri": "x://1", "text": "done"}]
            messages = [{"role": "user", "content": text}]
            return servers.result(message, {"content": [text], "contents": contents, "messages": messages})
        refused = servers.error(message, self.message, self.code)
        refused["error"] |= {} if self.data is None else {"data": self.data}
        return servers.as_event(refused) if self.streams else refused


@pytest.fixture
def refusing(db: None) -> Iterator[Refusing]:
    refusing = Refusing()
    answer = refusing.answer
    with hostile(server(call=answer, prompt=answer, resource=answer)) as engine:
        source = connect_source("bank", f"{engine.base_url}/mcp")
        source.credentials = {"bearer_token": KEY}
        source.save()
        expose(source)
        make_feature(source, "greet")
        make_feature(source, "x://1", kind="resource")
        yield refusing


async def accept(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept")


@pytest.mark.parametrize("streams", [False, True], ids=["json", "sse"])
async def test_a_client_with_a_handshake_gets_the_servers_own_error(connect, refusing, streams):
    """MCP 2025-11-25: its client opens the page and calls again."""
    refusing.streams = streams
    async with connect(mode="legacy", elicitation_callback=accept) as client:
        for refused in (
            client.call_tool("good", {}), client.get_prompt("greet"), client.read_resource("x://1"),
        ):  # fmt: skip
            with pytest.raises(MCPError) as error:
                await refused
            assert error.value.code == URL_ELICITATION_REQUIRED
            assert error.value.data == {"elicitations": [ASKED | {"message": "bank asks: Sign in first."}]}
        refusing.opened = True
        assert not (await client.call_tool("good", {})).is_error


async def test_a_client_without_a_handshake_is_asked_and_gets_the_result(connect, refusing):
    """MCP 2026-07-28 has no such error."""
    pages = []

    async def open_page(context: Any, params: Any) -> ElicitResult:
        pages.append((params.url, params.message))
        refusing.opened = True
        return ElicitResult(action="accept")

    async with connect(mode="2026-07-28", elicitation_callback=open_page) as client:
        result = await client.call_tool("good", {})
        refusing.opened = False
        prompt = await client.get_prompt("greet")
        refusing.opened = False
        resource = await client.read_resource("x://1")

    texts = [result.content[0].text, prompt.messages[0].content.text, resource.contents[0].text]
    assert texts == ["done"] * 3
    assert pages == [(PAGE, "bank asks: Sign in first.")] * 3


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_user_who_refuses_reads_why_it_failed(connect, refusing, action):
    async def refuse(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action=action)

    async with connect(mode="2026-07-28", elicitation_callback=refuse) as client:
        result = await client.call_tool("good", {})

    assert result.is_error and PAGE in result.content[0].text and refusing.asked == 1


async def test_any_other_client_reads_the_address(connect, refusing, era, admin_client):
    async with connect(mode=era) as client:
        result = await client.call_tool("good", {})
        assert result.is_error and PAGE in result.content[0].text
        assert "Sign in first" in result.content[0].text
        for refused in (client.get_prompt("greet"), client.read_resource("x://1")):
            with pytest.raises(MCPError, match="bank: ") as error:
                await refused
            assert PAGE in error.value.message and error.value.code != URL_ELICITATION_REQUIRED

    execution = await in_database(Execution.objects.get)()
    address = f"/admin/executions/execution/{execution.pk}/change/"
    shown = (await in_database(admin_client.get)(address)).content.decode()
    assert await in_database(lambda: execution.aftermath)() == FailureEffect.NO_OTHER_ARGUMENTS
    assert execution.error in shown or PAGE.replace("&", "&amp;") in shown


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_source_that_may_not_ask_only_gets_its_words_through(connect, refusing, mode):
    source = await in_database(Source.objects.get)(name="bank")
    source.config |= {"questions": "none"}
    await in_database(source.save)()
    async with connect(mode=mode, elicitation_callback=accept) as client:
        result = await client.call_tool("good", {})

    assert result.is_error and PAGE in result.content[0].text


SECOND = "http://auth_server:8000/a?b=c#d"
ODD: dict[str, tuple[Any, list[str]]] = {  # The data, and the addresses that may be shown
    "several": ({"elicitations": [ASKED, ASKED | {"url": SECOND}]}, [PAGE, SECOND]),
    "only an address": ({"elicitations": [{"url": PAGE}]}, [PAGE]),
    "null members": ({"elicitations": [{**dict.fromkeys(ASKED), "mode": "url", "url": PAGE}]}, [PAGE]),
    "odd members": ({"elicitations": [ASKED | {"message": {"a": 1}, "elicitationId": 7, "x": []}]}, [PAGE]),
    "another mode": ({"elicitations": [ASKED | {"mode": "form"}]}, []),
    "a script": ({"elicitations": [ASKED | {"url": "javascript:alert(1)"}]}, []),
    "data": ({"elicitations": [ASKED | {"url": "data:text/html,x"}]}, []),
    "a user name": ({"elicitations": [ASKED | {"url": "https://a@evil.example/"}]}, []),
    "a hidden turn": ({"elicitations": [ASKED | {"url": "https://a.example/\u202egpj"}]}, []),
    "a script beside a page": ({"elicitations": [ASKED | {"url": "javascript:alert(1)"}, ASKED]}, [PAGE]),
    "no list": ({"elicitations": ASKED}, []),
    "texts": ({"elicitations": [PAGE, None, 5]}, []),
    "thousands": ({"elicitations": [ASKED] * 5_000}, [PAGE]),
    "nothing": (None, []),
    "an empty list": ([], []),
    "a number": (5, []),
}


async def test_only_addresses_of_pages_are_shown_whatever_the_data(connect, refusing, era, subtests):
    async with connect(mode=era) as client:
        for name, (data, pages) in ODD.items():
            refusing.data = data
            with subtests.test(name):
                result = await client.call_tool("good", {})
                with pytest.raises(MCPError) as error:
                    await client.get_prompt("greet")
                structured = json.dumps(result.structured_content)
                for words in (result.content[0].text, error.value.message, structured):
                    assert [page for page in (PAGE, SECOND) if page in words] == pages
                    assert "javascript:" not in words and "evil.example" not in words
                    assert len(words) < 10_000
    aftermaths = await in_database(lambda: {one.aftermath for one in Execution.objects.all()})()
    assert aftermaths == {FailureEffect.NO_OTHER_ARGUMENTS}


DATA: dict[str, tuple[Any, str]] = {  # The data of another error, and what is read of it
    "an object": ({"field": "x", "hint": "try y"}, '{"field": "x", "hint": "try y"}'),
    "a text": ("see the manual", "see the manual"),
    "a list": (["a", {"b": 1}], '["a", {"b": 1}]'),
    "a number": (7, "7"),
    "our own keys": ({"code": 1, "required": 5, "elicitations": "x"}, '"required": 5'),
    "a key": ({"token": KEY, "in": {KEY: [KEY]}}, '{"token": "***", "in": {"***": ["***"]}}'),
    "controls": ({"\x00\u202e": "\x1b[31m"}, "["),
    "huge": ({"rows": ["x" * 100] * 900}, '{"rows": ["xxx'),
    "deep": (json.loads('{"a": ' * 90 + "1" + "}" * 90), '{"a": {"a": '),
    "null": (None, "bad x"),
    "false": (False, "bad x"),
}


@pytest.mark.parametrize("code", [-32602, -32000, -32601])
async def test_the_data_of_an_error_is_read_by_agents_and_people(connect, refusing, code, subtests):
    def last_run() -> tuple[str, str]:
        execution = Execution.objects.latest("created_at")
        return execution.error, json.dumps(execution.payload.start_answer)

    refusing.code, refusing.message = code, "bad x"
    async with connect() as client:
        for name, (data, read) in DATA.items():
            refusing.data = data
            with subtests.test(name):
                result = await client.call_tool("good", {})
                with pytest.raises(MCPError) as error:
                    await client.read_resource("x://1")
                stored, kept = await in_database(last_run)()
                for words in (result.content[0].text, error.value.message, stored):
                    assert "bad x" in words and read in words and str(code) in words
                    assert KEY not in words and "\x1b" not in words and len(words) < 2_000
                assert KEY not in kept and "bad x" in kept and len(kept) < 5_000
