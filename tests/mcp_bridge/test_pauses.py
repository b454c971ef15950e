"""A run that the engine pauses for a person, through the MCP door: forms, pages, handles, tasks and cards."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group
from mcp_types import ElicitResult

from catalogue.actions.workflows import override_workflow
from catalogue.models import Workflow
from connectors.registry import BUILT_IN
from tests.connectors.scripted import response
from tests.executions.asking_engine import CONSENT, NESTED, Asking
from tests.executions.engines import WORKFLOW_ID, WireEngine
from tests.executions.steps import advance_due_executions, only, told
from tests.factories import make_source, make_workflow
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.tasks_client import TasksExtension, start_task
from tests.mcp_bridge.tasks_client import ask as ask_task
from tests.mcp_bridge.test_card_tools import CARDS

pytestmark = pytest.mark.databases("executions.questions", "mcp_bridge.elicitation")


@pytest.fixture
def asking(wire_engine: WireEngine) -> Asking:
    return Asking(wire_engine)


@pytest.fixture
def paused(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> Workflow:
    monkeypatch.setitem(BUILT_IN, "asking", "tests.executions.asking_engine:AskingConnector")
    source = make_source("erp", base_url=asking.wire.base_url, kind="asking")
    asking.ask()
    return make_workflow(source, upstream_id=WORKFLOW_ID, name="report", inline_wait_seconds=20)


@pytest.fixture(autouse=True)
def worker(transactional_db: None) -> Iterator[None]:
    """Does what is due, as another process."""
    ended = threading.Event()

    def work() -> None:
        from django.db import connection

        while not ended.wait(0.05):
            advance_due_executions()
        connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    yield
    ended.set()
    thread.join()


@pytest.fixture
def override(paused: Workflow) -> Any:
    return in_database(lambda **settings: override_workflow(paused, **settings))


async def test_a_users_answer_to_a_form_reaches_the_engine_during_the_call(open_client, era, paused, asking):
    questions = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        questions.append(params)
        return ElicitResult(action="accept", content={"amount": 7})

    async with open_client(mode=era, elicitation_callback=answer) as client:
        result = await client.call_tool("report", {})
    assert not result.is_error, result.content[0].text
    assert [asked.message for asked in questions] == ["erp asks: How much?"]
    assert questions[0].requested_schema["properties"]["amount"] == {"type": "integer", "minimum": 1}
    assert asking.sent == [("q1", {"amount": 7})]
    (line,) = await in_database(lambda: told(only(), "answered"))()
    assert line.endswith(" answered through MCP: “How much?”")


async def test_a_refused_answer_is_asked_again_in_the_same_call(connect, era, paused, asking):
    refusals = iter([response(400, '{"error": "Too much."}')])
    asking.on_answer = lambda: next(refusals, None)
    amounts = iter([9, 1])
    messages = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        messages.append(params.message)
        return ElicitResult(action="accept", content={"amount": next(amounts)})

    async with connect(mode=era, elicitation_callback=answer) as client:
        result = await client.call_tool("report", {})
    assert not result.is_error, result.content[0].text
    assert asking.taken == [("q1", {"amount": 1})]
    assert messages[0] == "erp asks: How much?" and "Too much." in messages[1]


async def test_who_declines_gets_a_handle_that_says_who_answers_where(connect, era, paused, override, asking):
    await override(inline_wait_seconds=1)

    async def decline(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="decline")

    async with connect(mode=era, elicitation_callback=decline) as client:
        result = await client.call_tool("report", {})
    execution = await in_database(only)()
    page = f"/admin/executions/execution/{execution.pk}/change/"
    text = result.content[0].text
    assert "report is still waiting for a person's answer" in text and page in text
    (question,) = result.structured_content["questions"]
    assert (question["message"], question["answered_by"]) == ("How much?", None)
    assert execution.input_request is not None
    assert asking.sent == []


async def test_a_client_that_cannot_be_asked_gets_the_handle_at_once(connect, era, paused, asking):
    """And later the whole question, with the engine's own page and when it gives up."""
    asking.ask(url="https://erp.example/7", until="2027-01-01T00:00:00+00:00")
    asking.questions["q1"]["until"] = None
    async with connect(mode=era) as client:
        result = await client.call_tool("report", {})
        arguments = {"execution_id": result.structured_content["execution_id"]}
        status = (await client.call_tool("get_execution_status", arguments)).structured_content
    (question,) = status["questions"]
    assert question["schema"]["required"] == ["amount"]
    assert question["url"] == "https://erp.example/7"
    assert "https://erp.example/7" in status["waits_for"]
    assert not result.is_error


async def test_what_no_form_can_express_is_asked_by_the_address_of_the_page(
    connect, era, paused, override, asking
):
    await override(inline_wait_seconds=1)
    asking.ask(schema=NESTED)
    pages = []

    async def open_page(context: Any, params: Any) -> ElicitResult:
        pages.append(params.url)
        return ElicitResult(action="accept")

    async with connect(mode=era, elicitation_callback=open_page) as client:
        await client.call_tool("report", {})
    execution = await in_database(only)()
    assert len(pages) == 1 and pages[0].endswith(f"/admin/executions/execution/{execution.pk}/change/")
    assert execution.input_request is not None, "to open the page is no answer"


async def test_consent_needs_no_fields(connect, era, paused, asking):
    asking.ask(schema=CONSENT, message="")

    async def consent(context: Any, params: Any) -> ElicitResult:
        assert params.message == "erp asks: report waits for your consent."
        return ElicitResult(action="accept", content={})

    async with connect(mode=era, elicitation_callback=consent) as client:
        await client.call_tool("report", {})
    assert asking.sent == [("q1", {})]


@pytest.mark.parametrize(
    ("override_by", "who"),
    [({"answered_by": "approvers"}, "An approver"), ({"answer_group": "Tea"}, "A member of the group Tea")],
)
async def test_others_answer_and_the_callers_client_is_not_asked(
    connect, era, paused, override, asking, override_by, who
):
    await in_database(Group.objects.create)(name="Tea")
    await override(**override_by)

    async def never(context: Any, params: Any) -> ElicitResult:
        raise AssertionError(params)

    async with connect(mode=era, elicitation_callback=never) as client:
        result = await client.call_tool("report", {})
    assert f"{who} answers on the run's page" in result.content[0].text


async def test_a_task_asks_and_takes_the_answer(connect, paused, override, asking):
    await override(inline_wait_seconds=0, execution_type_override="async")

    async def nobody(context: Any, params: Any) -> ElicitResult:
        raise AssertionError(params)

    async with connect(extensions=[TasksExtension()], elicitation_callback=nobody) as client:
        created = await start_task(client.session, "report", {})
        asked: dict[str, Any] = {}
        while asked.get("status") != "input_required":
            asked = await ask_task(client.session, "tasks/get", created.task_id)
        (key,) = asked["inputRequests"]
        answers = {key: {"action": "accept", "content": {"amount": 3}}}
        await ask_task(client.session, "tasks/update", created.task_id, input_responses=answers)
        while asked["status"] != "completed":
            asked = await ask_task(client.session, "tasks/get", created.task_id)
    assert asking.sent == [("q1", {"amount": 3})]


async def test_a_card_asks_and_answers_and_tells_the_loser(connect, paused, override, asking):
    await override(inline_wait_seconds=0)
    async with connect(**CARDS) as client:
        handle = await client.call_tool("report", {})
        given = {"execution_id": handle.structured_content["execution_id"]}
        shown: dict[str, Any] = {}
        while not shown.get("questions"):
            shown = (await client.call_tool("show_execution", given)).structured_content
        ((key, question),) = shown["questions"].items()
        assert question["message"] == "erp asks: How much?"
        assert question["schema"]["required"] == ["amount"]
        asking.on_answer = lambda: response(503, "{}", retry_after="30")
        answers = {"answers": {key: {"action": "accept", "content": {"amount": 5}}}}
        await client.call_tool("answer_execution", given | answers)
        late = await client.call_tool("answer_execution", given | answers)
    assert late.is_error and "asks nothing" in late.content[0].text


async def test_an_answer_that_does_not_fit_is_asked_again_three_times_at_most(
    connect, era, paused, override, asking
):
    """A program that answers without a person would go on for ever."""
    await override(inline_wait_seconds=3)
    asked = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"amount": 0})

    async with connect(mode=era, elicitation_callback=answer) as client:
        result = await client.call_tool("report", {})
    assert len(asked) == 3 and "does not fit" in asked[1]
    assert result.structured_content["questions"][0]["refusals"]
    assert asking.sent == []
