"""A tool of an MCP server asks its caller during a call, and the client's user or model answers."""

import asyncio
import json
import sys
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp import MCPError
from mcp_types import ElicitResult, ListRootsResult, Root

from catalogue.curation import enable_workflows, override_workflow
from catalogue.discovery import refresh_source
from catalogue.models import Source, Workflow
from connectors.testing import free_port
from executions import advancing
from executions.models import CachedResult, Execution, ExecutionEvent, InputRequest
from executions.run_callers import Asker, answer
from mcp_bridge.tokens import create_token
from tests.engines.asking_server import NO_PAGES, TURNED
from tests.executions.engines import until, wait_until
from tests.factories import make_execution
from tests.mcp_bridge.conftest import McpServer
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.tasks_client import TasksExtension, start_task
from tests.mcp_bridge.tasks_client import ask as ask_task
from tests.mcp_bridge.test_tasks import modern
from tests.processes import _wait_until_it_answers, guarded

pytestmark = pytest.mark.databases("executions.run_callers", "executions.models.execution")


@pytest.fixture(scope="module", params=["2025", "2026"])
def upstream_era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def asking_server(upstream_era: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    log, port = tmp_path_factory.mktemp("asking") / "log", free_port()
    command = [sys.executable, "-m", "tests.engines.asking_server", f"--port={port}", f"--era={upstream_era}"]
    with guarded(command, log=log) as process:
        _wait_until_it_answers(process, f"http://127.0.0.1:{port}/healthz", log)
        yield f"http://127.0.0.1:{port}/mcp"


@pytest.fixture
def airline(asking_server: str) -> Iterator[None]:
    connect_to(asking_server, "elicitation")
    yield
    # A question that is open at the end of a test is withdrawn by its step.
    wait_until(lambda: not advancing._under_way, "the steps under way come to their end")


def connect_to(address: str, passed_on: str) -> None:
    config = {"url": address, "questions": passed_on}
    new = Source.NewWorkflows.EXPOSED
    source = Source.objects.create(name="airline", kind="mcp", config=config, new_workflows=new)
    assert refresh_source(source).outcome == "succeeded"
    enable_workflows(Workflow.objects.filter(source=source))


@pytest.mark.usefixtures("airline")
async def test_a_users_answer_to_a_form_reaches_the_tool(open_client, era):
    questions = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        questions.append(params)
        return ElicitResult(action="accept", content={"seat": f"{len(questions)}A"})

    async with open_client(mode=era, elicitation_callback=answer) as client:
        result = await client.call_tool("dine", {})
    assert json.loads(result.content[0].text) == [["accept", {"seat": "1A"}], ["accept", {"seat": "2A"}]]
    assert [asked.message for asked in questions] == [
        "airline asks: Which seat?",
        "airline asks: Which meal?",
    ]
    execution = await in_database(Execution.objects.get)()
    kinds = await in_database(lambda: list(execution.events.values_list("kind", flat=True)))()
    assert kinds.count("asked") == kinds.count("answered") == 2
    assert not await in_database(InputRequest.objects.exists)()


async def seat(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"seat": "1A"})


async def roots(context: Any) -> ListRootsResult:
    return ListRootsResult(roots=[Root(uri="file:///srv/flights")])


async def test_a_question_is_not_asked_again_while_its_answer_is_on_its_way():
    """The record may be looked at once more before the start takes the answer."""
    execution = await in_database(make_execution)(state="starting", lease_holder="us")
    asker = Asker(asyncio.Event())
    asking = asyncio.create_task(asker.ask({"0": {"method": "roots/list", "params": {}}}))
    await anyio.lowlevel.checkpoint()
    assert await in_database(asker.look)(execution)
    await in_database(answer)(execution, {"0": {"roots": []}})
    for _ in range(2):
        assert not await in_database(asker.look)(execution)
    asker.deliver()
    assert await asking == {"0": {"roots": []}}
    assert not await in_database(InputRequest.objects.exists)()


@pytest.mark.usefixtures("airline")
async def test_a_page_to_visit_and_a_refusal_are_passed_on(connect, era):
    pages = []

    async def decline(context: Any, params: Any) -> ElicitResult:
        pages.append(params.url)
        return ElicitResult(action="decline")

    async with connect(mode=era, elicitation_callback=decline) as client:
        result = await client.call_tool("pay", {})
    assert json.loads(result.content[0].text) == [["decline", None]]
    assert pages == ["https://pay.example/7"]


@pytest.mark.usefixtures("airline")
async def test_a_user_reads_what_a_tool_hides_in_its_question(connect, era):
    """What the answer has to repeat stays as it is."""
    questions = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        questions.append(params)
        return ElicitResult(action="accept", content={"seat": TURNED})

    async with connect(mode=era, elicitation_callback=answer) as client:
        result = await client.call_tool("mislead", {})
    (asked,) = questions
    seat = asked.requested_schema["properties"]["seat"]
    shown = "\\u202e!ereh yaP \\u200b"
    assert (asked.message, seat["title"], seat["description"]) == (f"airline asks: {shown}", shown, shown)
    assert seat["enum"] == [TURNED, "1A"]
    assert json.loads(result.content[0].text) == [["accept", {"seat": TURNED}]]


@pytest.mark.usefixtures("airline")
async def test_no_user_is_led_to_an_address_that_is_no_page_on_the_web(connect, era):
    async def refuse(context: Any, params: Any) -> ElicitResult:
        raise AssertionError(params)

    async with connect(mode=era, elicitation_callback=refuse) as client:
        for number in range(len(NO_PAGES)):
            await client.call_tool(f"lure_{number}", {})


@pytest.mark.parametrize("passed_on", ["all", "elicitation"])
async def test_folders_are_asked_for_only_where_the_source_says_so(passed_on, connect, asking_server, era):
    await in_database(connect_to)(asking_server, passed_on)
    async with connect(mode=era, list_roots_callback=roots) as client:
        result = await client.call_tool("look_around", {})
    assert ("srv/flights" in result.content[0].text) == (passed_on == "all")
    assert result.is_error == (passed_on == "elicitation")


@pytest.mark.usefixtures("airline")
async def test_of_a_client_without_elicitation_no_user_is_asked(connect, era, upstream_era):
    async with connect(mode=era) as client:
        result = await client.call_tool("book", {})
    if upstream_era == "2025":
        # The handshake holds for all callers: the server asks, and hears that no user has seen it.
        assert json.loads(result.content[0].text) == [["cancel", None]]
    else:
        assert result.is_error
        assert "which its caller's client cannot provide" in result.content[0].text


@pytest.mark.usefixtures("airline")
async def test_prompts_and_resources_that_ask_get_the_users_answer(open_client, upstream_era):
    """Only without a handshake on either side: each answer is then a request of its own."""
    questions = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        questions.append(params.message)
        return ElicitResult(action="accept", content={"seat": "1A"})

    async with open_client(mode="2026-07-28", elicitation_callback=answer) as client:
        prompt = await client.get_prompt("plan_a_trip")
        resource = await client.read_resource("seat://mine")
    texts = [prompt.messages[0].content.text, resource.contents[0].text]
    if upstream_era == "2025":
        # It hears that no user has seen it.
        assert [json.loads(text) for text in texts] == [["cancel", None]] * 2
    else:
        assert [json.loads(text) for text in texts] == [["accept", {"seat": "1A"}]] * 2
        assert questions == ["airline asks: Which seat?"] * 2


@pytest.mark.usefixtures("airline")
async def test_a_prompt_that_asks_is_refused_to_a_client_that_cannot_answer(connect, era, upstream_era):
    async with connect(mode=era) as client:
        if upstream_era == "2025":
            assert "cancel" in (await client.get_prompt("plan_a_trip")).messages[0].content.text
        else:
            with pytest.raises(MCPError, match="client cannot provide"):
                await client.get_prompt("plan_a_trip")


@pytest.mark.usefixtures("airline")
def test_the_state_of_a_prompt_that_asks_is_sealed_and_its_callers_own(mcp_server, token, upstream_era):
    def get(as_token: str, **more: Any) -> dict[str, Any]:
        capabilities = {"elicitation": {"form": {}}}
        body, headers = modern("prompts/get", capabilities=capabilities, name="plan_a_trip", **more)
        return dict(mcp_server.post(body, token=as_token, headers=headers).json())

    asked = get(token)["result"]
    if upstream_era == "2025":
        assert asked["resultType"] == "complete"
        return
    assert "known to the server alone" not in str(asked)
    answers = {key: {"action": "accept", "content": {"seat": "3C"}} for key in asked["inputRequests"]}
    continued = {"requestState": asked["requestState"], "inputResponses": answers}
    assert get(create_token(name="other")[1], **continued)["error"]["code"] == -32602
    for state in (asked["requestState"][:-8] + "AAAAAAA=", "", "x"):
        assert get(token, **continued | {"requestState": state})["error"]["code"] == -32602
    assert "3C" in str(get(token, **continued)["result"])
    assert not Execution.objects.exists()


@pytest.mark.usefixtures("airline")
async def test_a_task_asks_for_input_and_takes_it(connect):
    extension = TasksExtension()
    async with connect(extensions=[extension], elicitation_callback=seat) as client:
        created = await start_task(client.session, "book", {})
        task = await task_once(client.session, created.task_id, "input_required")
        request = task["inputRequests"]["question" if "question" in task["inputRequests"] else "0"]
        assert request["params"]["message"] == "airline asks: Which seat?"
        answers = {key: {"action": "accept", "content": {"seat": "3C"}} for key in task["inputRequests"]}
        await ask_task(client.session, "tasks/update", created.task_id, input_responses=answers)
        task = await task_once(client.session, created.task_id, "completed")
    assert json.loads(task["result"]["content"][0]["text"]) == [["accept", {"seat": "3C"}]]


async def task_once(session: Any, task_id: str, status: str) -> dict[str, Any]:
    task: dict[str, Any] = {}
    while task.get("status") != status:
        await anyio.sleep(0.05)  # As clients do.
        task = await ask_task(session, "tasks/get", task_id)
    return task


@pytest.mark.usefixtures("airline")
async def test_an_answer_after_the_handle_is_taken_all_the_same(connect):
    """The user thinks for longer than the call waits; only a handshake leaves a question open."""
    await in_database(override_book)(inline_wait_seconds=1)
    thought = anyio.Event()

    async def think(context: Any, params: Any) -> ElicitResult:
        await thought.wait()
        return ElicitResult(action="accept", content={"seat": "2B"})

    async with connect(mode="legacy", elicitation_callback=think) as client:
        handle = await client.call_tool("book", {})
        status = {"execution_id": handle.structured_content["execution_id"], "wait_seconds": 0}
        waiting = await client.call_tool("get_execution_status", status)
        thought.set()
        ended = await client.call_tool("get_execution_status", status | {"wait_seconds": 20})
    assert "Waits for input: Which seat?" in str(waiting.structured_content)
    assert "2B" in str(ended.structured_content)


@pytest.mark.usefixtures("airline")
async def test_what_depends_on_answers_answers_no_other_call(connect):
    await in_database(override_book)(cache_seconds=600)
    async with connect(elicitation_callback=seat) as client:
        for _ in range(2):
            await client.call_tool("book", {})
    asked = in_database(ExecutionEvent.objects.filter(kind="asked").count)
    assert await asked() == 2
    assert not await in_database(CachedResult.objects.exists)()


def override_book(**settings: Any) -> None:
    override_workflow(Workflow.objects.get(name="book"), **settings)


@pytest.mark.usefixtures("airline")
async def test_answers_reach_the_call_that_they_were_asked_for(connect, era):
    results: dict[str, str] = {}

    async def book(place: str) -> None:
        async def answer(context: Any, params: Any) -> ElicitResult:
            return ElicitResult(action="accept", content={"seat": place})

        async with connect(mode=era, elicitation_callback=answer) as client:
            results[place] = (await client.call_tool("book", {"for": place})).content[0].text

    async with anyio.create_task_group() as tasks:
        for place in ("1A", "2B", "3C", "4D"):
            tasks.start_soon(book, place)
    assert {place: json.loads(said) for place, said in results.items()} == {
        place: [["accept", {"seat": place}]] for place in ("1A", "2B", "3C", "4D")
    }


@pytest.mark.usefixtures("airline")
async def test_nobody_else_can_answer(connect, mcp_server, token):
    other = await in_database(lambda: create_token(name="other")[1])()
    asked = await in_database(call_by_hand)(mcp_server, token, "book")
    answers = {key: {"action": "accept", "content": {"seat": "9Z"}} for key in asked["inputRequests"]}
    continued = {"requestState": asked["requestState"], "inputResponses": answers}
    refused = await in_database(send_by_hand)(mcp_server, other, "book", **continued)
    assert refused["error"]["code"] == -32602
    assert await in_database(InputRequest.objects.filter(responses={}).exists)()
    taken = await in_database(call_by_hand)(mcp_server, token, "book", **continued)
    assert "9Z" in taken["content"][0]["text"]


@pytest.mark.usefixtures("airline")
async def test_an_answer_that_another_process_took_is_found_within_a_second(mcp_server, token):
    asked = await in_database(call_by_hand)(mcp_server, token, "book")
    await in_database(answer_silently)(id_of(asked))
    await until(lambda: Execution.objects.get().state == "completed", "the tool has its answer")
    execution = await in_database(Execution.objects.select_related("payload").get)()
    assert "7G" in str(execution.payload.content)


def answer_silently(execution_id: str) -> None:
    """As another process has it: nothing wakes this one."""
    question = InputRequest.objects.get(execution=execution_id)
    question.responses = {key: {"action": "accept", "content": {"seat": "7G"}} for key in question.requests}
    question.save()
    Execution.objects.filter(pk=execution_id).update(input_request=None)


@pytest.mark.usefixtures("airline")
@pytest.mark.parametrize("ends", ["cancelled", "timed_out"])
async def test_a_question_ends_with_its_run(ends, mcp_server, token):
    if ends == "timed_out":
        await in_database(override_book)(timeout_seconds=2)
    asked = await in_database(call_by_hand)(mcp_server, token, "book")
    if ends == "cancelled":
        arguments = {"execution_id": id_of(asked)}
        await in_database(call_by_hand)(mcp_server, token, "cancel_execution", arguments=arguments)
    await until(lambda: Execution.objects.get().state == ends, "the run is over")
    assert not await in_database(InputRequest.objects.exists)()
    answers = {key: {"action": "accept", "content": {"seat": "1A"}} for key in asked["inputRequests"]}
    continued = {"requestState": asked["requestState"], "inputResponses": answers}
    late = await in_database(call_by_hand)(mcp_server, token, "book", **continued)
    assert late["isError"]


def id_of(asked: dict[str, Any]) -> str:
    return str(asked["_meta"]["workflow-catalogue/execution-id"])


def call_by_hand(
    mcp_server: McpServer, token: str, tool: str, *, arguments: Any = None, **more: Any
) -> dict[str, Any]:
    result: dict[str, Any] = send_by_hand(mcp_server, token, tool, arguments=arguments, **more)["result"]
    return result


def send_by_hand(
    mcp_server: McpServer, token: str, tool: str, *, arguments: Any = None, **more: Any
) -> dict[str, Any]:
    """As a stateless client that can show forms; the official one would answer by itself."""
    capabilities = {"elicitation": {"form": {}}}
    body, headers = modern(
        "tools/call", capabilities=capabilities, name=tool, arguments=arguments or {}, **more
    )
    answer: dict[str, Any] = mcp_server.post(body, token=token, headers=headers).json()
    return answer
