"""Being told that a resource is to be read again."""

from typing import Any

import pytest

from catalogue.access import Scope
from catalogue.curation import disable_workflows
from catalogue.models import Workflow
from executions.models import Execution, State
from mcp_bridge import notifications
from mcp_bridge.tokens import create_token
from tests.executions.engines import in_thread
from tests.factories import make_execution, make_source, make_toolset, make_workflow
from tests.mcp_bridge.conftest import McpServer
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.listening import RESOURCES, TOOLS, Curator, listening, noticed
from tests.mcp_bridge.test_tasks import owned, send

pytestmark = pytest.mark.usefixtures("quick_news")

LIST = "workflow://list"


@pytest.fixture
def workflow(transactional_db: None) -> Workflow:
    return make_workflow(make_source("bank"), name="pay", description="Pays a bill.", tags=["money"])


@pytest.fixture
def running(workflow: Workflow, token: str) -> Execution:
    """A run of the token `agent`."""
    return owned(workflow, state=State.RUNNING, progress=10)


@pytest.fixture
def curator(mcp_server: McpServer) -> Curator:
    return Curator(mcp_server)


async def change(execution: Execution, **fields: Any) -> None:
    """As another process does it."""
    await in_database(lambda: Execution.objects.filter(pk=execution.pk).update(**fields))()


async def test_an_execution_is_told_until_it_has_ended_and_its_result_once_it_is_there(
    mcp_server, token, running
):
    """A8.3: at first as it is, so that nothing is lost between the last reading and the subscription."""
    state, result = f"execution://{running.pk}", f"execution://{running.pk}/result"
    async with listening(mcp_server, token, resourceSubscriptions=[state, result]) as stream:
        assert await stream.honoured() == {"resourceSubscriptions": [state, result]}
        assert await stream.news() == state
        await change(running, progress=60)
        assert await stream.news() == state
        await change(running, state=State.COMPLETED)
        assert [await stream.news(), await stream.news()] == [state, result]
        assert await stream.ends()


async def test_a_resource_is_told_by_the_address_that_was_asked_for(mcp_server, token, running):
    """Clients compare it."""
    asked = [f"EXECUTION://{str(running.pk).upper()}", f"execution://{running.pk}"]
    async with listening(mcp_server, token, resourceSubscriptions=[*asked, asked[0]]) as stream:
        assert await stream.honoured() == {"resourceSubscriptions": asked}
        assert [await stream.news(), await stream.news()] == asked


@pytest.mark.parametrize("address", [LIST, f"{LIST}?tags=money", "workflow://metadata/pay"])
async def test_a_resource_of_the_catalogue_is_told_when_what_it_shows_has_changed(
    mcp_server, token, workflow, curator, address
):
    async with listening(mcp_server, token, resourceSubscriptions=[address]) as stream:
        assert await stream.honoured() == {"resourceSubscriptions": [address]}
        if address == "workflow://metadata/pay":
            await in_thread(lambda: curator.change("workflows/pay", description="Pays at once."))
            assert await stream.news() == address
        await in_database(disable_workflows)(Workflow.objects.all())
        assert await stream.news() == address


async def test_a_resource_that_shows_nothing_of_a_change_is_not_told(mcp_server, token, workflow, curator):
    """Neither the schema nor a list, which has names only, knows of the description."""
    described, schema_of_pay = "workflow://metadata/pay", "workflow://schema/pay"
    addresses = [schema_of_pay, f"{LIST}?tags=money", LIST, described]
    async with listening(mcp_server, token, resourceSubscriptions=addresses) as stream:
        await stream.honoured()
        await in_thread(lambda: curator.change("workflows/pay", description="Pays at once."))
        assert await stream.news() == described
        await noticed()
        schema = {"type": "object", "properties": {"amount": {"type": "integer"}}}
        workflow.input_schema, workflow.content_hash = schema, "f" * 64
        await in_database(workflow.save)(update_fields=["input_schema", "content_hash"])
        assert {await stream.news(), await stream.news()} == {schema_of_pay, described}


async def test_everything_can_be_listened_for_in_one_stream(mcp_server, token, running, curator):
    wanted: dict[str, Any] = {
        "toolsListChanged": True,
        "resourcesListChanged": True,
        "resourceSubscriptions": ["workflow://metadata/pay", f"execution://{running.pk}"],
    }
    async with listening(mcp_server, token, str(running.pk), **wanted) as stream:
        assert await stream.honoured() == wanted | {"taskIds": [str(running.pk)]}
        assert (await stream.task())["taskId"] == str(running.pk)
        assert await stream.news() == f"execution://{running.pk}"
        await change(running, state=State.CANCELLED)
        assert (await stream.task())["status"] == "cancelled"
        assert await stream.news() == f"execution://{running.pk}"
        await in_thread(lambda: curator.change("workflows/pay", title="Pay!"))
        told = [await stream.news() for _ in range(3)]
        assert sorted(told) == sorted((TOOLS, RESOURCES, "workflow://metadata/pay"))


UNKNOWN = [
    "execution://00000000-0000-4000-8000-000000000000",
    "execution://nonsense",
    "execution://{}",
    "workflow://metadata/nothing",
    "workflow://lists",
    "workflow://list?tag=a",
    "https://example.org/",
    "file:///etc/passwd",
    "",
    "\x00",
    "workflow://metadata/" + "x" * 5000,
]


async def test_what_is_unknown_foreign_or_not_of_the_toolset_is_not_honoured(mcp_server, token, running):
    """They are left out alike, so that nobody learns what others have."""
    foreign = await in_database(lambda: make_execution(running.workflow, caller="token:0"))()
    other = await in_database(make_workflow)(name="other")
    await in_database(make_toolset)("finance", picked=[running.workflow])
    addresses = [f"execution://{foreign.pk}", *UNKNOWN, f"workflow://metadata/{other.tool_name}", LIST]
    async with listening(mcp_server, token, toolset="finance", resourceSubscriptions=addresses) as stream:
        assert await stream.honoured() == {"resourceSubscriptions": [LIST]}
    async with listening(mcp_server, token, resourceSubscriptions=addresses[:-2]) as stream:
        assert await stream.honoured() == {}
        assert await stream.ends()


async def test_the_scopes_decide_which_resources_are_honoured(mcp_server, workflow):
    """Whoever may only run has executions and no catalogue."""
    runner = (await in_database(create_token)(name="agent", scopes=[Scope.RUN]))[1]
    mine = await in_database(lambda: owned(workflow, state=State.RUNNING))()
    async with listening(
        mcp_server, runner, resourceSubscriptions=[LIST, f"execution://{mine.pk}"]
    ) as stream:
        assert await stream.honoured() == {"resourceSubscriptions": [f"execution://{mine.pk}"]}


@pytest.mark.parametrize("addresses", ["all", [1], {"a": 1}, [LIST] * (notifications.MOST_RESOURCES + 1)])
def test_malformed_and_too_many_addresses_are_refused(mcp_server, token, addresses):
    wanted = {"resourceSubscriptions": addresses}
    answer = send(mcp_server, token, "subscriptions/listen", notifications=wanted)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32602)
