"""A call that needs approval, as clients see it: a handle, a task, or a question to their user."""

import asyncio
import json
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from django.contrib.auth.models import User
from django.test import Client as Browser
from django.utils import timezone
from mcp import Client
from mcp_types import CallToolResult, ElicitResult

from catalogue.access import Scope
from catalogue.curation import override_workflow
from catalogue.models import Toolset, Workflow
from connectors.testing.harness import eventually
from executions.approvals import decide, end_expired
from executions.models import Approval, Execution, State
from executions.queue import admit_queued
from mcp_bridge.tokens import create_token
from tests.connectors.scripted import replies
from tests.executions.engines import WireEngine, completed, until
from tests.executions.steps import advance_due_executions
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.tasks_client import TASKS
from tests.mcp_bridge.test_tasks import change, send

URL_ONLY = {"elicitation": {"url": {}}}


@pytest.fixture
def guarded(long_workflow: Workflow, wire_engine: WireEngine) -> Workflow:
    wire_engine.on_start = replies(200, completed())
    return override_workflow(long_workflow, approval_required=True, inline_wait_seconds=5)


@pytest.fixture
def anna() -> User:
    return User.objects.create_superuser("anna", "anna@example.com")


@in_database
def answer(verdict: str, user: User, words: str = "") -> None:
    decide(Approval.objects.get().pk, user=user, verdict=verdict, words=words)


def text_of(result: CallToolResult) -> str:
    return "\n".join(getattr(block, "text", "") for block in result.content)


async def test_a_handle_says_until_when_it_waits_and_a_refusal_is_a_tool_error(
    connect, guarded, anna, era, wire_engine
):
    async with connect(mode=era) as client:
        handle = await client.call_tool("report", {"amount": 7})
        assert not handle.is_error
        assert "waits for approval until" in text_of(handle) and "take hours" in text_of(handle)
        status = await client.call_tool(
            "get_execution_status", handle.structured_content["next"]["arguments"] | {"wait_seconds": 0}
        )
        assert status.structured_content["state"] == "unapproved"
        assert "requested at" in status.structured_content["approval"]
        assert "take hours" in status.structured_content["note"]
        await answer("refuse", anna, "Not before the audit.")
        again = await client.call_tool(
            "get_execution_status", {"execution_id": handle.structured_content["execution_id"]}
        )
    assert "anna refused it: Not before the audit." in again.structured_content["error"]
    assert wire_engine.count("start") == 0


PROMISED = {"output_schema": {"type": "object", "required": ["sum"]}, "execution_type_override": "sync"}


@pytest.mark.parametrize(
    "needed",
    [
        {"approval_required": True},
        {"approval_rules": [{"argument": "/amount", "is": "over", "value": 5}]},
    ],
)
async def test_a_client_that_validates_results_gets_the_handle_too(connect, long_workflow, era, needed):
    """It compares structured content with the output schema that it was shown, which no handle fits."""
    await in_database(change)(**PROMISED | needed)
    async with connect(mode=era) as client:
        assert "report" in [tool.name for tool in (await client.list_tools()).tools]
        handle = await client.call_tool("report", {"amount": 7})
    assert "waits for approval until" in text_of(handle)


async def test_a_tool_has_no_output_schema_while_its_toolset_requires_approval(connect, long_workflow):
    await in_database(change)(**PROMISED)
    toolset = await in_database(Toolset.objects.create)(slug="finance", title="Finance")
    await in_database(toolset.picked.add)(long_workflow)
    for requires in (False, True, False):
        toolset.approval_required = requires
        await in_database(toolset.save)()
        async with connect() as client:
            await eventually(partial(offers_output, client, is_offered=not requires), seconds=10)


async def offers_output(client: Client, *, is_offered: bool) -> bool:
    tools = (await client.list_tools(cache_mode="bypass")).tools
    return [tool.output_schema is not None for tool in tools if tool.name == "report"] == [is_offered]


@pytest.fixture
def hers(anna: User, settings: Any) -> str:
    """A token of a user who may approve her own calls."""
    settings.CATALOGUE = settings.CATALOGUE | {"approve_own_calls": True}
    return create_token(name="hers", created_by=anna)[1]


async def call_by_hand(
    mcp_server: Any, token: str, capabilities: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """As a client that may be asked; the official one would answer by itself."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    }
    params = {"name": "report", "arguments": {"amount": 7}, "_meta": meta} | more
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "report"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    response = await in_database(mcp_server.post)(body, token=token, headers=headers)
    told: dict[str, Any] = response.json()
    return told


def id_of(asked: dict[str, Any]) -> str:
    return str(asked["_meta"]["workflow-catalogue/execution-id"])


async def test_the_user_of_a_client_gets_the_page_and_the_same_call_goes_on(
    mcp_server, token, guarded, anna, wire_engine
):
    asked = (await call_by_hand(mcp_server, token, URL_ONLY))["result"]
    assert asked["resultType"] == "input_required"
    question = asked["inputRequests"]["approval"]["params"]
    assert question["mode"] == "url"
    assert question["url"].endswith(f"/admin/executions/approval/{id_of(asked)}/change/")

    continued = {"requestState": asked["requestState"], "inputResponses": {"approval": {"action": "accept"}}}
    other = await call_by_hand(mcp_server, token, URL_ONLY, **continued, arguments={"amount": 8})
    assert "other arguments" in str(other["result"]["content"])

    await answer("approve", anna)
    await in_database(admit_queued)()
    await in_database(advance_due_executions)()
    result = (await call_by_hand(mcp_server, token, URL_ONLY, **continued))["result"]
    assert result["structuredContent"] == {"answer": 42}
    assert wire_engine.count("start") == 1


@pytest.fixture
def patient(settings: Any) -> None:
    """Longer than the clients of the tests wait: an answer comes of what happens, not of the time."""
    settings.CATALOGUE = settings.CATALOGUE | {"inline_wait": 60}


APPROVES = {"action": "accept", "content": {"approve": True}}
MODES = [{"form": {}}, {"url": {}}, {"form": {}, "url": {}}, {}]


@pytest.mark.usefixtures("patient", "quick_news")
async def test_what_a_client_answers_approves_nothing_without_a_person(
    era, connect, guarded, hers, wire_engine
):
    """H5: also for the token of a user who may approve her own calls."""
    modes: list[str] = []

    async def ask(context: Any, params: Any) -> ElicitResult:
        modes.append(params.mode)
        return ElicitResult(action="accept", content={"approve": True})

    async with connect(as_token=hers, mode=era, elicitation_callback=ask) as client:
        with anyio.move_on_after(3):
            await client.call_tool("report", {"amount": 7})
    await in_database(admit_queued)()
    await in_database(advance_due_executions)()
    approval = await in_database(Approval.objects.get)()
    assert set(modes) == {"url"}
    assert (approval.state, wire_engine.count("start")) == (Approval.State.WAITING, 0)


@pytest.mark.parametrize("declared", MODES)
async def test_responses_sent_with_a_repeated_call_approve_nothing(
    declared, mcp_server, hers, guarded, settings
):
    settings.CATALOGUE = settings.CATALOGUE | {"inline_wait": 0.1}
    await in_database(override_workflow)(guarded, inline_wait_seconds=None)
    capabilities = {"elicitation": declared}
    responses = {"approval": APPROVES}
    asked = await call_by_hand(mcp_server, hers, capabilities, inputResponses=responses)
    approval = await in_database(Approval.objects.get)()
    is_asked = asked["result"]["resultType"] == "input_required"
    assert is_asked == ("url" in declared)
    for state in (asked["result"].get("requestState"), f"{approval.pk}.0"):
        more = {"requestState": state, "inputResponses": responses}
        await call_by_hand(mcp_server, hers, capabilities, **more)
    await in_database(approval.refresh_from_db)()
    assert approval.state == Approval.State.WAITING


async def test_the_user_may_approve_her_own_call_on_its_page_where_that_is_allowed(
    mcp_server, hers, anna, guarded, wire_engine
):
    asked = (await call_by_hand(mcp_server, hers, URL_ONLY))["result"]

    def approve_in_the_admin() -> int:
        (browser := Browser()).force_login(anna)
        page = urlsplit(asked["inputRequests"]["approval"]["params"]["url"]).path
        assert browser.get(page).status_code == 200
        return browser.post(page.replace("/change/", "/approve/")).status_code

    assert await in_database(approve_in_the_admin)() == 302
    await in_database(admit_queued)()
    await in_database(advance_due_executions)()
    assert (await in_database(Execution.objects.get)()).state == State.COMPLETED


@pytest.mark.usefixtures("quick_news")
async def test_a_client_with_a_handshake_shows_the_page_while_its_call_waits(
    open_client, guarded, anna, wire_engine
):
    shown: list[str] = []

    async def open_page(context: Any, params: Any) -> ElicitResult:
        shown.append(params.url)
        await answer("approve", anna)
        await in_database(admit_queued)()
        await in_database(advance_due_executions)()
        return ElicitResult(action="accept")

    async with open_client(mode="legacy", elicitation_callback=open_page) as client:
        result = await client.call_tool("report", {"amount": 7})
    execution = await in_database(Execution.objects.get)()
    assert [url.partition("/admin/")[2] for url in shown] == [f"executions/approval/{execution.pk}/change/"]
    assert result.structured_content == {"answer": 42}
    assert wire_engine.count("start") == 1


async def test_a_synchronous_workflow_keeps_no_client_waiting_for_people(
    mcp_server, token, guarded, settings
):
    """It ends soon once it runs, which says nothing of when it is approved."""
    settings.CATALOGUE = settings.CATALOGUE | {"inline_wait": 0.1}
    await in_database(override_workflow)(guarded, execution_type_override="sync", inline_wait_seconds=None)
    asked = (await call_by_hand(mcp_server, token, URL_ONLY))["result"]
    accepted = {"requestState": asked["requestState"], "inputResponses": {"approval": {"action": "accept"}}}
    result = (await call_by_hand(mcp_server, token, URL_ONLY, **accepted))["result"]
    assert result["structuredContent"]["state"] == "unapproved"
    assert result["structuredContent"]["next"]["tool"] == "get_execution_status"


@pytest.mark.usefixtures("patient", "quick_news")
@pytest.mark.parametrize(
    ("action", "ends_as", "told"),
    [("decline", State.CANCELLED, "cancelled it before"), ("cancel", State.UNAPPROVED, "waits for approval")],
)
async def test_declining_with_a_handshake_cancels_and_putting_aside_gives_the_handle(
    action, ends_as, told, open_client, guarded, wire_engine
):
    async def ask(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action=action)

    async with open_client(mode="legacy", elicitation_callback=ask) as client:
        result = await client.call_tool("report", {"amount": 7})
    assert told in text_of(result)
    assert (await in_database(Execution.objects.get)()).state == ends_as
    assert wire_engine.count("start") == 0


@pytest.mark.usefixtures("patient", "quick_news")
@pytest.mark.parametrize(
    ("policy", "ends_as", "told"),
    [("cancel", State.CANCELLED, "This cancels runs"), ("continue", State.UNAPPROVED, "before it received")],
)
async def test_a_client_that_gives_up_its_call_while_people_decide_leaves_what_its_workflow_says(
    policy, ends_as, told, open_client, guarded, wire_engine
):
    """A7.5: approvers were asked to start what its caller had given up; the record said nothing of it."""
    await in_database(override_workflow)(guarded, on_disconnect=policy)
    asked = asyncio.Event()

    async def ask(context: Any, params: Any) -> ElicitResult:
        asked.set()
        await asyncio.Event().wait()
        return ElicitResult(action="accept")

    def left() -> bool:
        events = Execution.objects.get().events.filter(kind="caller_gone", message__contains=told)
        return events.exists() and Execution.objects.get().state == ends_as

    async with open_client(mode="legacy", elicitation_callback=ask) as client:
        call = asyncio.create_task(client.call_tool("report", {"amount": 7}))
        await asked.wait()
        call.cancel()
        await until(left, "what became of it is recorded")
    execution = await in_database(Execution.objects.select_related("approval").get)()
    assert execution.approval.is_waiting == (policy == "continue")
    assert execution.is_unanswered == (policy == "continue")
    assert wire_engine.count("start") == 0


async def test_an_answer_in_a_message_of_its_own_declines_but_does_not_approve(
    mcp_server, connect, token, hers, guarded
):
    """In any process, and only of the caller who was asked."""
    async with connect(as_token=hers, mode="legacy") as client:
        await client.call_tool("report", {"amount": 7})
    approval = await in_database(Approval.objects.get)()
    states = []
    for answering, said in ((hers, APPROVES), (token, {"action": "decline"}), (hers, {"action": "decline"})):
        body = {"jsonrpc": "2.0", "id": f"approval:{approval.pk}", "result": said}
        response = await in_database(mcp_server.post)(body, token=answering)
        assert (response.status_code, response.content) == (202, b"")
        await in_database(approval.refresh_from_db)()
        states.append(approval.state)
    assert states == [Approval.State.WAITING, Approval.State.WAITING, Approval.State.CANCELLED]


@pytest.mark.parametrize(
    ("decision", "status", "told"),
    [
        ("approve", "completed", "42"),
        ("refuse", "completed", "anna refused it: Not before the audit."),
        ("expire", "completed", "It was not approved by"),
        ("cancel", "cancelled", "cancelled it before it was approved"),
    ],
)
def test_a_task_that_waits_for_approval_ends_as_it_is_decided(
    decision, status, told, mcp_server, token, guarded, anna, wire_engine
):
    asked = send(mcp_server, token, "tools/call", name="report", arguments={"amount": 7})
    task = asked.json()["result"]
    key = task["taskId"]
    assert (task["resultType"], task["status"]) == ("task", "working")
    assert task["statusMessage"] == "waiting for approval"
    assert get_task(mcp_server, token, key)["status"] == "working"
    if decision == "expire":
        Approval.objects.update(expires_at=timezone.now())
        assert end_expired() == 1
    elif decision == "cancel":
        assert send(mcp_server, token, "tasks/cancel", taskId=key).status_code == 200
    else:
        decide(key, user=anna, verdict=decision, words="Not before the audit.")
    admit_queued()
    advance_due_executions()
    ended = get_task(mcp_server, token, key)
    assert ended["status"] == status
    assert told in json.dumps(ended)
    if status == "completed":
        assert ended["result"].get("isError", False) == (decision != "approve")
    assert wire_engine.count("start") == (decision == "approve")


BOTH = {"extensions": {TASKS: {}}, "elicitation": {"form": {}, "url": {}}}
FORM = {"approval": APPROVES}


@pytest.mark.parametrize(
    ("responses", "status"),
    [
        (FORM, "input_required"),
        ({"approval": {"action": "accept", "content": {"approve": False}}}, "input_required"),
        ({"approval": {"action": "accept", "content": {"approve": ["yes"]}}}, "input_required"),
        ({"approval": {"action": "accept"}}, "input_required"),
        ({"approval": {"action": "decline"}}, "cancelled"),
        ({"approval": {"action": "cancel"}}, "input_required"),
        ({"approval": {"action": "shrug"}}, "input_required"),
        ({"approval": [1]}, "input_required"),
        ({"other": FORM["approval"]}, "input_required"),
    ],
)
def test_a_task_asks_the_user_of_a_client_that_takes_questions(
    mcp_server, hers, guarded, wire_engine, responses, status
):
    """SEP-2663: `input_required` with the question, and `tasks/update` with what the user said (H5)."""
    call = {"name": "report", "arguments": {"amount": 7}, "capabilities": BOTH}
    key = send(mcp_server, hers, "tools/call", **call).json()["result"]["taskId"]
    asked = get_task(mcp_server, hers, key, capabilities=BOTH)
    question = asked["inputRequests"]["approval"]
    assert (asked["status"], question["method"]) == ("input_required", "elicitation/create")
    assert question["params"]["mode"] == "url"
    assert get_task(mcp_server, hers, key)["status"] == "working", "of a client that takes no questions"
    said = send(mcp_server, hers, "tasks/update", taskId=key, inputResponses=responses, capabilities=BOTH)
    assert said.json()["result"]["resultType"] == "complete"
    admit_queued()
    advance_due_executions()
    assert get_task(mcp_server, hers, key, capabilities=BOTH)["status"] == status
    assert wire_engine.count("start") == 0


def test_a_task_asks_the_caller_alone(mcp_server, token, hers, guarded, anna):
    """Another of the same user's tokens, with rights over everything, is neither asked nor heard."""
    call = {"name": "report", "arguments": {"amount": 7}, "capabilities": BOTH}
    key = send(mcp_server, hers, "tools/call", **call).json()["result"]["taskId"]
    others = create_token(name="others", scopes=[Scope.ADMIN], created_by=anna)[1]
    assert get_task(mcp_server, others, key, capabilities=BOTH)["status"] == "working"
    for foreign in (token, others):
        send(mcp_server, foreign, "tasks/update", taskId=key, inputResponses=FORM, capabilities=BOTH)
        declined = {"approval": {"action": "decline"}}
        send(mcp_server, foreign, "tasks/update", taskId=key, inputResponses=declined, capabilities=BOTH)
    assert Approval.objects.get().state == Approval.State.WAITING


def get_task(mcp_server: Any, token: str, key: str, **more: Any) -> dict[str, Any]:
    task: dict[str, Any] = send(mcp_server, token, "tasks/get", taskId=key, **more).json()["result"]
    return task
