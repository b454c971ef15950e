"""What clients that show cards of MCP Apps get, and that no other client gets any of it."""

import asyncio
import json
from typing import Any

import pytest
from mcp import Client
from mcp.client.extension import advertise
from mcp.server.apps import APP_MIME_TYPE, EXTENSION_ID
from mcp.shared.subscriptions import ResourcesListChanged, ToolsListChanged
from mcp_types import CallToolResult, ElicitResult

from catalogue.actions.toolsets import write_toolset
from catalogue.actions.workflows import override_workflow
from executions.models import Execution
from identity.models import AccessToken
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS
from mcp_bridge.cards import CARD_URI, CARD_WAIT_SECONDS, card_html
from tests.connectors.scripted import replies
from tests.executions.engines import completed
from tests.executions.steps import after
from tests.factories import make_toolset, make_workflow
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.tasks_client import TasksExtension
from tests.mcp_bridge.test_prompts import arguments_asked_for, offered, refusal
from tests.mcp_bridge.test_questions import airline, asking_server, connect_to, override_book, upstream_era
from tests.mcp_bridge.test_tasks import modern

__all__ = ["airline", "asking_server", "connect_to", "offered", "upstream_era"]
APPS = {EXTENSION_ID: {"mimeTypes": [APP_MIME_TYPE]}}
CARDS: dict[str, Any] = {"extensions": [advertise(EXTENSION_ID, APPS[EXTENSION_ID])]}
OTHER = {"extensions": [advertise(EXTENSION_ID, {"mimeTypes": ["text/html"]})]}
OUR_CARD = {"ui": {"resourceUri": CARD_URI}}
PROMISED = {"output_schema": {"type": "object", "required": ["sum"]}, "execution_type_override": "sync"}


async def tools_of(client: Client) -> dict[str, dict[str, Any]]:
    listed = (await client.list_tools()).tools
    return {tool.name: tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in listed}


@pytest.mark.parametrize("mode", ["full", "portable", "compact"])
async def test_tools_have_the_card_for_clients_that_show_it_and_are_the_same_for_others(
    open_client, connect, era, mode
):
    workflow = await in_database(make_workflow)(name="sum", **PROMISED)
    options: dict[str, Any] = {}
    if mode != "full":
        fields = {"portable": True} if mode == "portable" else {"mode": mode}
        await in_database(make_toolset)("some", picked=[workflow], **fields)
        open_client, options = connect, {"toolset": "some"}
    found = []
    for extensions in ({}, CARDS, OTHER, CARDS, {}):
        async with open_client(mode=era, **options, **extensions) as client:
            found.append(await tools_of(client))
    plain, with_cards = found[:2]
    assert found[2:] == [plain, with_cards, plain]
    app_only = {name for name, tool in BUILT_IN_TOOLS.items() if tool.app_only}
    assert with_cards.keys() - plain.keys() == app_only
    if mode == "portable":
        assert (
            with_cards["answer_execution"]["inputSchema"] == BUILT_IN_TOOLS["answer_execution"].input_schema
        )
    shown = {name: tool.pop("_meta") for name, tool in with_cards.items() if "_meta" in tool}
    with_ours = [
        "execute_workflow",
        "get_execution_status",
        "control_execution",
        *(["sum"] if mode != "compact" else []),
    ]
    hidden = {"ui": {"visibility": ["app"]}}
    assert shown == dict.fromkeys(with_ours, OUR_CARD) | dict.fromkeys(app_only, hidden)
    if mode == "full":
        assert plain["sum"].pop("outputSchema")["required"] == ["sum"]
    assert {name: with_cards[name] for name in plain} == plain


@pytest.mark.usefixtures("quick_news")
async def test_a_toolset_without_cards_has_none_and_says_when_that_changes(connect, long_workflow, era):
    toolset = await in_database(make_toolset)("some", picked=[long_workflow], cards=False)
    await in_database(override_workflow)(long_workflow, inline_wait_seconds=None)
    async with connect(mode=era, toolset="some") as client:
        plain = await tools_of(client)
    async with connect(mode=era, toolset="some", **CARDS) as client:
        assert await tools_of(client) == plain
        assert EXTENSION_ID not in (client.server_capabilities.extensions or {})
        assert CARD_URI not in {one.uri for one in (await client.list_resources()).resources}
        if era != "legacy":
            listening = client.listen(tools_list_changed=True, resources_list_changed=True)
            async with listening as subscription, asyncio.timeout(20):
                await in_database(write_toolset)(toolset, cards=True)
                told = {str(await anext(subscription)) for _ in range(2)}
                assert told == {str(ToolsListChanged()), str(ResourcesListChanged())}
            assert (await tools_of(client))["report"]["_meta"] == OUR_CARD


def test_the_bytes_of_a_list_do_not_depend_on_who_asked_before(mcp_server, token):
    make_workflow(name="sum", **PROMISED)

    def listed(**extensions: Any) -> bytes:
        body, headers = modern("tools/list", capabilities={"extensions": extensions})
        return mcp_server.post(body, token=token, headers=headers).content

    def listed_with_handshake(session: str) -> bytes:
        headers = {"mcp-protocol-version": "2025-11-25", "mcp-session-id": session}
        return mcp_server.post(modern("tools/list")[0], token=token, headers=headers).content

    before = listed(), listed_with_handshake("form-1234")
    with_cards = listed(**APPS), listed_with_handshake("form-cards-1234")
    assert all(CARD_URI.encode() in one for one in with_cards)
    assert (listed(), listed_with_handshake("form-1234")) == before
    assert all(b"ui://" not in one for one in before)
    assert (listed(**APPS), listed_with_handshake("cards-1")) == with_cards


@pytest.mark.parametrize("as_json", [True, False])
def test_a_handshake_is_remembered_by_the_session_and_answered_by_the_extension(mcp_server, token, as_json):
    """Also for a client that takes JSON alone, which nobody asks questions."""

    def post(method: str, session: str = "", **params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {"accept": "application/json"} if as_json else {}
        headers |= {"mcp-session-id": session} if session else {}
        return mcp_server.post(body, token=token, headers=headers)

    def shake_hands(**capabilities: Any) -> Any:
        info = {"name": "host", "version": "1"}
        given = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": info}
        return post("initialize", **given)

    plain, shows = shake_hands(), shake_hands(elicitation={}, extensions=APPS)
    assert "mcp-session-id" not in plain.headers
    assert '"io.modelcontextprotocol/ui":{}' in shows.text.replace(" ", "")
    assert "io.modelcontextprotocol/ui" not in plain.text
    session = shows.headers["mcp-session-id"]
    assert session.startswith("form-cards-")
    assert CARD_URI in post("tools/list", session).text
    assert CARD_URI in post("resources/list", session).text
    assert CARD_URI not in post("resources/list").text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_extension_is_offered_to_those_who_have_it(open_client, mode):
    async with open_client(mode=mode, **CARDS) as client:
        assert client.server_capabilities.extensions[EXTENSION_ID] == {}
    async with open_client(mode=mode) as client:
        assert EXTENSION_ID not in (client.server_capabilities.extensions or {})


async def test_every_token_reads_the_card(open_client, era):
    async with open_client(mode=era, **CARDS) as client:
        listed = {one.uri: one for one in (await client.list_resources()).resources}
        (content,) = (await client.read_resource(CARD_URI)).contents
    assert (content.mime_type, content.text) == (APP_MIME_TYPE, card_html())
    assert content.meta == listed[CARD_URI].meta
    assert content.meta["ui"] == {"csp": {}, "permissions": {"clipboardWrite": {}}, "prefersBorder": True}
    async with open_client(mode=era) as client:
        assert CARD_URI not in {one.uri for one in (await client.list_resources()).resources}
        assert (await client.read_resource(CARD_URI)).contents == [content]


async def test_a_card_takes_over_after_five_seconds(open_client, long_workflow, wire_engine, era):
    await in_database(override_workflow)(long_workflow, inline_wait_seconds=None)
    async with open_client(mode=era, **CARDS) as client:
        async with asyncio.timeout(CARD_WAIT_SECONDS):  # Instead of the usual wait
            calling = client.call_tool("report", {"amount": 7})
            handle = await after(CARD_WAIT_SECONDS, calling, lambda: wire_engine.count("status"))
        arguments = handle.structured_content["next"]["arguments"]
        assert arguments["wait_seconds"] == 25
        wire_engine.on_status = replies(200, completed())
    execution = await in_database(Execution.objects.select_related("payload").get)()
    assert execution.payload.metadata["client"]["cards"] is True


async def test_a_card_begins_with_the_handle_also_where_there_are_tasks(connect, long_workflow):
    tasks = TasksExtension()
    async with connect(extensions=[*CARDS["extensions"], tasks]) as client:
        assert "next" in (await client.call_tool("report", {"amount": 7})).structured_content
    assert not tasks.created


@pytest.mark.parametrize("of", ["token", "workflow", "product"])
async def test_a_shorter_wait_counts(connect, long_workflow, wire_engine, settings, of):
    if of == "token":
        await in_database(AccessToken.objects.update)(inline_wait_seconds=1)
    if of == "product":
        settings.CATALOGUE = settings.CATALOGUE | {"inline_wait": 1.0}
    set_wait = 1 if of == "workflow" else None
    await in_database(override_workflow)(long_workflow, inline_wait_seconds=set_wait)
    async with connect(**CARDS) as client, asyncio.timeout(CARD_WAIT_SECONDS - 1):
        assert "next" in (await client.call_tool("report", {"amount": 7})).structured_content


async def test_a_client_that_waits_for_progress_is_answered_as_soon(connect, long_workflow, wire_engine, era):
    await in_database(override_workflow)(long_workflow, inline_wait_seconds=None, timeout_seconds=60)

    async def hear(*progress: Any) -> None: ...

    async with connect(mode=era, **CARDS) as client, asyncio.timeout(CARD_WAIT_SECONDS):
        calling = client.call_tool("report", {"amount": 7}, progress_callback=hear)
        handle = await after(CARD_WAIT_SECONDS, calling, lambda: wire_engine.count("status"))
    assert "next" in handle.structured_content


async def test_the_card_shows_an_approval_and_nobody_is_asked(connect, long_workflow, era):
    await in_database(override_workflow)(long_workflow, approval_required=True, inline_wait_seconds=20)

    async def ask(context: Any, params: Any) -> ElicitResult:
        raise AssertionError(params)

    async with connect(mode=era, elicitation_callback=ask, **CARDS) as client:
        async with asyncio.timeout(CARD_WAIT_SECONDS):
            handle = await client.call_tool("report", {"amount": 7})
    assert "waits for approval" in handle.content[0].text


async def answer_on_the_card(client: Client, handle: CallToolResult) -> str:
    """As the card does; the result that the run then has."""
    run = {"execution_id": handle.meta["workflow-catalogue/execution-id"]}
    shown = (await client.call_tool("show_execution", run)).structured_content
    (key,) = shown["questions"]
    assert shown["questions"][key]["message"] == "airline asks: Which seat?"
    answers = {key: {"action": "accept", "content": {"seat": "1A"}}}
    await client.call_tool("answer_execution", run | {"answers": answers})
    await client.call_tool("get_execution_status", run | {"wait_seconds": 20})
    shown = (await client.call_tool("show_execution", run)).structured_content
    assert shown["succeeded"]
    return str(shown["result"]["part"])


@pytest.mark.usefixtures("airline")
async def test_a_run_asks_on_the_card_where_the_client_cannot_ask(open_client, era):
    async with open_client(mode=era, **CARDS) as client:
        async with asyncio.timeout(CARD_WAIT_SECONDS):
            handle = await client.call_tool("book", {})
        assert handle.structured_content["progress_message"] == "Waits for input: Which seat?"
        assert "1A" in await answer_on_the_card(client, handle)


@pytest.mark.usefixtures("airline")
async def test_of_a_client_that_answers_only_other_questions_the_card_asks_the_rest(connect, era):
    async def never(*_: Any) -> Any:
        raise AssertionError

    async with connect(mode=era, list_roots_callback=never, **CARDS) as client:
        async with asyncio.timeout(CARD_WAIT_SECONDS):
            handle = await client.call_tool("book", {})
        assert "1A" in await answer_on_the_card(client, handle)


@pytest.mark.usefixtures("airline")
async def test_a_client_that_asks_its_user_does_so_beside_the_card(open_client, era):
    """The question stays for as long as without a card."""

    async def choose(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"seat": "2B"})

    async with open_client(mode=era, elicitation_callback=choose, **CARDS) as client:
        result = await client.call_tool("book", {})
    assert json.loads(result.content[0].text) == [["accept", {"seat": "2B"}]]


@pytest.mark.usefixtures("airline")
async def test_an_unanswered_question_of_a_client_is_left_for_the_card(connect):
    """Only with a handshake is a call that asks under way."""
    await in_database(override_book)(inline_wait_seconds=1)

    async def think(context: Any, params: Any) -> ElicitResult:
        await asyncio.sleep(60)
        raise AssertionError

    async with connect(mode="legacy", elicitation_callback=think, **CARDS) as client:
        handle = await client.call_tool("book", {})
        assert "1A" in await answer_on_the_card(client, handle)


async def test_a_prompt_leaves_missing_arguments_to_the_form(connect, offered, era):
    async with connect(mode=era, **CARDS) as client:
        sent = {"name": "report", "arguments": {"copies": 3}}
        assert await arguments_asked_for(client, {"copies": "3", "period": ""}) == sent
        assert await arguments_asked_for(client, {}) == {"name": "report", "arguments": {}}
        form = (await client.call_tool("execute_workflow", sent)).structured_content["form"]
        assert (form["name"], form["given"]) == ("report", {"copies": 3})
        assert (await arguments_asked_for(client, {"copies": "3", "period": "year"}))["period"] == "year"
        assert "not of type" in str(await refusal(client, "report", {"copies": "many"}))
    async with connect(mode=era) as client:
        assert "missing" in str(await refusal(client, "report", {"copies": "3"}))
