"""What a client of the handshake era is told over standard input and output, where it has a session."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client, MCPError

from catalogue.models import Workflow
from executions.models import Execution, State
from mcp_bridge.tokens import Access
from tests.factories import make_execution, make_source, make_toolset, make_workflow
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.listening import PATIENCE_SECONDS, PROMPTS, RESOURCES, TOOLS
from tests.mcp_bridge.pipes import over_pipes

# Its handshake era is not over for the servers that such clients meet.
pytestmark = [
    pytest.mark.usefixtures("quick_news"),
    pytest.mark.filterwarnings("ignore:resources/:mcp.shared.exceptions.MCPDeprecationWarning"),
]


class Told:
    """The notifications of one client, by method or by the resource's address."""

    def __init__(self) -> None:
        self._heard: asyncio.Queue[str] = asyncio.Queue()

    async def hear(self, message: Any) -> None:
        self._heard.put_nowait(getattr(message.params, "uri", None) or message.method)

    async def next(self) -> str:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return str(await self._heard.get())


@pytest.fixture
def workflow(transactional_db: None) -> Workflow:
    return make_workflow(make_source("bank"), name="pay")


@asynccontextmanager
async def connected(*, toolset: str | None = None) -> AsyncIterator[tuple[Client, Told]]:
    told = Told()
    async with Client(
        over_pipes(toolset=toolset), mode="legacy", cache=None, message_handler=told.hear
    ) as client:
        yield client, told


async def save(workflow: Workflow, **fields: Any) -> None:
    for name, value in fields.items():
        setattr(workflow, name, value)
    await in_database(workflow.save)()


async def test_a_changed_list_is_told_without_asking(workflow):
    """E8: each list of which it is true; the new one is served by then."""
    async with connected() as (client, told):
        assert "pay" in [tool.name for tool in (await client.list_tools()).tools]
        await save(workflow, offered_as_prompt=True)
        assert await told.next() == PROMPTS
        await save(workflow, enabled=False)
        assert {await told.next() for _ in range(3)} == {TOOLS, PROMPTS, RESOURCES}
        assert "pay" not in [tool.name for tool in (await client.list_tools()).tools]


async def test_a_toolset_that_is_switched_off_and_on_is_told_both_times(workflow):
    """Whoever cannot listen anew must not be left alone."""
    toolset = await in_database(make_toolset)("finance", picked=[workflow])
    async with connected(toolset="finance") as (client, told):
        assert "pay" in [tool.name for tool in (await client.list_tools()).tools]
        for is_enabled in (False, True):
            toolset.enabled = is_enabled
            await in_database(toolset.save)()
            assert {await told.next(), await told.next()} == {TOOLS, RESOURCES}
            assert ("pay" in [tool.name for tool in (await client.list_tools()).tools]) is is_enabled


async def test_a_resource_is_told_from_subscribing_to_unsubscribing(workflow):
    """Twice is once; afterwards only the lists are told."""
    address = "workflow://metadata/pay"
    async with connected() as (client, told):
        await client.subscribe_resource(address)
        await client.subscribe_resource(address)
        await save(workflow, version="2")
        assert await told.next() == address
        await client.unsubscribe_resource(address)
        await client.subscribe_resource(address)
        await client.unsubscribe_resource(address)
        await client.unsubscribe_resource(address)
        await save(workflow, version="3")
        await save(workflow, offered_as_prompt=True)
        assert await told.next() == PROMPTS


async def test_an_execution_is_told_until_it_has_ended(workflow):
    """A8.3: of the local user, who is the caller here."""
    mine = await in_database(make_execution)(
        workflow, state=State.RUNNING, caller=Access.of_local_user().caller.key
    )
    address = f"execution://{mine.pk}"
    async with connected() as (client, told):
        await client.subscribe_resource(address)
        assert await told.next() == address
        await in_database(Execution.objects.update)(state=State.COMPLETED)
        assert await told.next() == address
        await client.subscribe_resource(address)
        assert await told.next() == address, "it can be asked for again"


@pytest.mark.parametrize("address", ["workflow://metadata/nothing", "execution://x", "https://example.org/"])
async def test_what_is_not_there_cannot_be_subscribed_to(address):
    async with connected() as (client, _):
        with pytest.raises(MCPError, match="no resource") as refused:
            await client.subscribe_resource(address)
    assert refused.value.code == -32002


async def test_subscriptions_of_one_client_are_bounded(workflow):
    """Each is a stream, of which a caller may have twenty; the lists take the first."""
    async with connected() as (client, _):
        await client.list_tools()
        for number in range(19):
            await client.subscribe_resource(f"workflow://list?tags={number}")
        with pytest.raises(MCPError, match="20 open notification streams"):
            await client.subscribe_resource("workflow://list")
        await client.unsubscribe_resource("workflow://list?tags=0")
        await client.subscribe_resource("workflow://list")


async def test_a_client_without_the_handshake_hears_of_nothing_that_it_did_not_ask_for(workflow):
    """The present revision forbids it: only its own subscription brings news, and those of one list."""
    told = Told()
    async with (
        Client(over_pipes(), mode="2026-07-28", cache=None, message_handler=told.hear) as client,
        client.listen(prompts_list_changed=True) as subscription,
    ):
        await save(workflow, enabled=False)
        await save(workflow, enabled=True, offered_as_prompt=True)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await anext(subscription)
        assert await told.next() == PROMPTS, "the tools were hidden before"


@pytest.mark.parametrize(("mode", "version"), [("auto", "2026-07-28"), ("legacy", "2025-11-25")])
async def test_what_is_promised_over_stdio(mode, version):
    """In both eras a client learns of lists and resources here."""
    async with Client(over_pipes(), mode=mode) as client:
        assert client.protocol_version == version
        capabilities = client.server_capabilities
    assert capabilities is not None
    assert capabilities.tools and capabilities.tools.list_changed
    assert capabilities.prompts and capabilities.prompts.list_changed
    assert capabilities.resources and capabilities.resources.list_changed and capabilities.resources.subscribe
