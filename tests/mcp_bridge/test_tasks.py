"""The tasks extension (SEP-2663): what clients that declare it get, and what the others do not."""

import json
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from django.utils import timezone
from mcp import MCPError
from mcp_types import CallToolRequest, CallToolRequestParams

from catalogue.access import Scope
from catalogue.exposure import forget_catalogue
from catalogue.models import Workflow
from executions.models import Execution, Retention, State
from mcp_bridge.models import AccessToken
from mcp_bridge.tokens import create_token
from tests.connectors.scripted import replies
from tests.executions.engines import completed, in_thread, status, until, wait_until
from tests.executions.steps import advance_due_executions, let_pass, only
from tests.factories import make_execution, make_workflow
from tests.mcp_bridge.conftest import McpServer
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.tasks_client import TASKS, AnyResult, TasksExtension, ask, start_task

DECLARED = {"extensions": {TASKS: {}}}


def modern(
    method: str, *, capabilities: dict[str, Any] | None = None, header: str | None = None, **params: Any
) -> tuple[dict[str, Any], dict[str, str]]:
    """Body and headers of a request by a client that declares the extension unless told otherwise."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": DECLARED if capabilities is None else capabilities,
    }
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
    mirrored = header if header is not None else params.get("taskId", params.get("name"))
    headers |= {"mcp-name": mirrored} if isinstance(mirrored, str) and mirrored else {}
    return {"jsonrpc": "2.0", "id": 7, "method": method, "params": {"_meta": meta, **params}}, headers


def send(server: McpServer, token: str, method: str, **params: Any) -> httpx2.Response:
    body, headers = modern(method, **params)
    return server.post(body, token=token, headers=headers)


def is_free() -> bool:
    """Whether the one execution runs, and the request that started it holds it no more."""
    execution = only()
    return execution.state == State.RUNNING and not execution.lease_holder


def work_on() -> None:
    """What a worker does with an execution whose next step is due, and which no request holds any more.

    A handle may arrive a moment before its request lets go of the run.
    """
    wait_until(lambda: not only().lease_holder, "the request has let go of the run")
    let_pass(only(), 10)
    advance_due_executions()


def change(**fields: Any) -> None:
    """Of the one workflow; seen at once."""
    Workflow.objects.update(**fields)
    forget_catalogue()


def owned(workflow: Workflow, **fields: Any) -> Execution:
    """An execution of the token `agent`."""
    return make_execution(workflow, caller=AccessToken.objects.get(name="agent").caller.key, **fields)


def test_discovery_advertises_the_extension_and_the_handshake_does_not(mcp_server, token):
    """Each era hears of what is there in it."""
    discovered = send(mcp_server, token, "server/discover").json()["result"]["capabilities"]
    assert discovered["extensions"] == {TASKS: {}}
    info = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "old", "version": "1"},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": info}
    answer = _message_of(mcp_server.post(body, token=token))
    assert answer["result"]["protocolVersion"] == "2025-11-25"
    assert "extensions" not in answer["result"]["capabilities"]


def _message_of(response: httpx2.Response) -> dict[str, Any]:
    """The one message of an answer, which handshake clients get as a stream."""
    if response.headers["content-type"].startswith("application/json"):
        return response.json()
    (line,) = [line for line in response.text.splitlines() if line.startswith("data:")]
    return json.loads(line.removeprefix("data:"))


@pytest.mark.parametrize("tool", ["report", "execute_workflow"])
def test_a_client_that_declares_the_extension_gets_a_task_once_its_wait_is_over(
    mcp_server, token, long_workflow, tool
):
    """A7.1: flat, with everything that the extension requires, and durable; also by `execute_workflow`."""
    arguments = {"name": "report", "arguments": {"n": 1}} if tool == "execute_workflow" else {"n": 1}
    response = send(mcp_server, token, "tools/call", name=tool, arguments=arguments)
    assert response.status_code == 200, response.text
    task = response.json()["result"]
    execution = only()
    assert task.pop("_meta")
    assert task.pop("statusMessage") and task.pop("createdAt") and task.pop("lastUpdatedAt")
    assert task == {
        "resultType": "task",
        "taskId": str(execution.pk),
        "status": "working",
        "ttlMs": None,
        "pollIntervalMs": 1000,
    }
    wait_until(lambda: only().awaited_until is None, "it is noted that the caller has an answer")


def test_a_task_of_a_call_by_a_former_name_says_the_present_one(mcp_server, token, long_workflow):
    """Issue 13, 5: beside what the protocol has there."""
    until_tomorrow = (timezone.now() + timedelta(days=1)).isoformat()
    change(tool_aliases={"summary": until_tomorrow})
    usual = send(mcp_server, token, "tools/call", name="report", arguments={"n": 1}).json()["result"]
    task = send(mcp_server, token, "tools/call", name="summary", arguments={"n": 2}).json()["result"]
    assert task["_meta"] == usual["_meta"] | {"workflow-catalogue/renamed-to": "report"}
    in_progress = Execution.objects.filter(awaited_until__isnull=False)
    wait_until(lambda: not in_progress.exists(), "it is noted that the callers have their answers")


async def test_a_task_comes_after_the_inline_wait_also_where_progress_was_asked_for(connect, long_workflow):
    """A task serves the client better than the patience that progress gives it."""
    extension = TasksExtension()

    async def hear(value: float, total: float | None, message: str | None) -> None:
        pass

    async with connect(extensions=[extension]) as client:
        created = await start_task(client.session, "report", {}, progress_callback=hear)
    assert created.task_id == str((await in_database(only)()).pk)


def test_a_client_that_does_not_declare_the_extension_gets_no_task(mcp_server, token, long_workflow):
    """Whatever it declared on another request: each tells for itself."""
    send(mcp_server, token, "tools/call", name="report", arguments={})
    other = {"extensions": {"com.example/other": {}}}
    for capabilities in ({}, other):
        answer = send(
            mcp_server, token, "tools/call", name="report", arguments={}, capabilities=capabilities
        ).json()
        assert answer["result"]["resultType"] == "complete"
        assert answer["result"]["structuredContent"]["next"]["tool"] == "get_execution_status"


async def test_a_client_of_the_handshake_era_gets_no_task_whatever_it_declares(connect, long_workflow):
    async with connect(mode="legacy", extensions=[TasksExtension()]) as client:
        result = await client.call_tool("report", {})
        assert "execution_id" in result.structured_content
        with pytest.raises(MCPError, match="Method not found") as refusal:
            await ask(client.session, "tasks/get", result.structured_content["execution_id"])
    assert refusal.value.code == -32601


@pytest.mark.parametrize(
    "method", ["tasks/get", "tasks/update", "tasks/cancel", "tasks/list", "tasks/result"]
)
def test_the_extensions_methods_do_not_exist_in_the_handshake_era(mcp_server, token, method):
    """Not even for a malformed request."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"taskId": 5}}
    answer = mcp_server.post(body, token=token, headers={"mcp-protocol-version": "2025-11-25"})
    assert _message_of(answer)["error"]["code"] == -32601


async def test_a_synchronous_workflow_never_gives_a_task(connect, long_workflow, wire_engine):
    """It is waited for whatever the inline wait is, as its output schema promises."""
    wire_engine.on_status = replies(200, completed())
    await in_database(change)(execution_type="sync")
    extension = TasksExtension()
    async with connect(extensions=[extension]) as client:
        result = await client.call_tool("report", {})
    assert result.structured_content == {"answer": 42}
    assert not extension.created


async def test_a_task_goes_from_working_to_the_result_that_the_call_would_have_had(
    connect, long_workflow, wire_engine
):
    """A8.1 to A8.4: progress on the way; the engine ran it once."""
    wire_engine.on_status = replies(200, status(progress=40, progress_message="Counting"))
    async with connect(extensions=[TasksExtension()]) as client:
        created = await start_task(client.session, "report", {"n": 1})
        await until(is_free, "a worker could go on")
        await in_thread(work_on)
        working = await ask(client.session, "tasks/get", created.task_id)
        wire_engine.on_status = replies(200, completed({"sum": [None, 3]}))
        await in_thread(work_on)
        ended = await ask(client.session, "tasks/get", created.task_id)
        await in_database(change)(inline_wait_seconds=None)
        called = await client.session.send_request(
            CallToolRequest(params=CallToolRequestParams(name="report", arguments={"n": 2})), AnyResult
        )
    assert (working["resultType"], working["status"]) == ("complete", "working")
    assert working["statusMessage"] == "40 %: Counting"
    assert (ended["resultType"], ended["status"], ended["taskId"]) == (
        "complete",
        "completed",
        created.task_id,
    )
    assert ended["ttlMs"] >= 30 * 24 * 3600 * 1000 and "pollIntervalMs" not in ended
    assert ended["result"].pop("_meta")["workflow-catalogue/execution-id"] == created.task_id
    assert ended["result"] == {name: value for name, value in called.items() if name != "_meta"}
    assert ended["result"]["structuredContent"] == {"sum": [None, 3]}
    assert wire_engine.count("start") == 2


STATES = {
    State.PENDING: ("working", None),
    State.STARTING: ("working", None),
    State.RUNNING: ("working", None),
    State.COMPLETED: ("completed", False),
    State.FAILED: ("completed", True),
    State.TIMED_OUT: ("completed", True),
    State.UNCONFIRMED: ("completed", True),
    State.CANCELLED: ("cancelled", None),
}


@pytest.mark.parametrize("state", STATES)
def test_each_state_of_an_execution_is_one_of_a_task(mcp_server, token, state):
    """A8.2: what went wrong in a run is a result; `failed` would mean that the protocol failed."""
    why = "" if state in (State.COMPLETED, State.PENDING, State.STARTING, State.RUNNING) else "It broke."
    execution = owned(make_workflow(), state=state, error=why)
    task = send(mcp_server, token, "tasks/get", taskId=str(execution.pk)).json()["result"]
    expected, is_error = STATES[state]
    assert (task["resultType"], task["status"]) == ("complete", expected)
    assert "error" not in task
    assert ("result" in task) == (expected == "completed")
    if is_error is not None:
        assert task["result"].get("isError", False) is is_error
    if why:
        assert task["statusMessage"] == why
    if is_error:
        assert why in task["result"]["content"][0]["text"]


def test_a_task_that_ran_says_an_administrator_ends_with_what_is_known_of_it(mcp_server, token):
    """B8, A7.4: the output that its schema promises is missed in words that do not blame the engine."""
    workflow = make_workflow(output_schema={"type": "object", "required": ["sum"]})
    execution = owned(workflow, state=State.UNCONFIRMED, payload={"output": None})
    assert execution.confirm_ran(None, by="Ada")

    result = send(mcp_server, token, "tasks/get", taskId=str(execution.pk)).json()["result"]["result"]

    promised, told = (block["text"] for block in result["content"])
    assert (result["isError"], promised) == (
        True,
        "The run completed, but the output that its schema promises is unknown.",
    )
    assert "Ada confirmed that " in told and "its output is not known" in told


def test_an_update_is_acknowledged_and_changes_nothing(mcp_server, token):
    """No task of ours asks for input: answers to questions that nobody asked are to be ignored."""
    execution = owned(make_workflow(), state=State.RUNNING)
    given = {"taskId": str(execution.pk), "inputResponses": {"name": {"action": "accept"}}}
    result = send(mcp_server, token, "tasks/update", **given).json()["result"]
    assert result["resultType"] == "complete"
    assert not set(result) - {"resultType", "_meta"}
    refused = send(mcp_server, token, "tasks/update", taskId=str(execution.pk))
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, -32602)


METHODS = {"tasks/get": {}, "tasks/update": {"inputResponses": {}}, "tasks/cancel": {}}


@pytest.mark.parametrize("method", METHODS)
def test_a_foreign_task_is_as_unknown_as_one_that_there_is_not(mcp_server, token, method):
    foreign = str(make_execution(make_workflow(), state=State.RUNNING, caller="token:0").pk)
    answers = [
        send(mcp_server, token, method, taskId=task_id, **METHODS[method])
        for task_id in (foreign, "00000000-0000-4000-8000-000000000000", "nonsense", "1' or 1=1")
    ]
    for answer in answers:
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32602)
        assert "Unknown task" in answer.json()["error"]["message"]
    assert Execution.objects.get().cancel_requested_at is None
    for malformed in (None, 5, ["a"], {}):
        answer = send(mcp_server, token, method, taskId=malformed, **METHODS[method])
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32602)


@pytest.mark.parametrize("method", METHODS)
def test_a_client_that_did_not_declare_the_extension_is_told_what_it_lacks(mcp_server, token, method):
    """Before anything else is looked at, so that nothing can be learned about a task."""
    execution = owned(make_workflow(), state=State.RUNNING)
    for task_id in (str(execution.pk), "nonsense"):
        answer = send(mcp_server, token, method, taskId=task_id, capabilities={}, **METHODS[method])
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32021)
        assert answer.json()["error"]["data"]["requiredCapabilities"] == DECLARED
    assert Execution.objects.get().cancel_requested_at is None


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("header", ["", "00000000-0000-4000-8000-000000000000", "=?base64?!!?="])
def test_the_routing_header_has_to_name_the_task(mcp_server, token, method, header):
    """A load balancer routes by the header what we would do by the body."""
    execution = owned(make_workflow(), state=State.RUNNING)
    answer = send(mcp_server, token, method, taskId=str(execution.pk), header=header, **METHODS[method])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32020)
    assert Execution.objects.get().cancel_requested_at is None


def test_scopes_hold_for_tasks_too(mcp_server, token):
    """One that may only read asks for its tasks and cancels none."""
    token_row, reader = create_token(name="reader", scopes=[Scope.READ])
    execution = make_execution(make_workflow(), state=State.RUNNING, caller=token_row.caller.key)
    seen = send(mcp_server, reader, "tasks/get", taskId=str(execution.pk))
    assert seen.json()["result"]["status"] == "working"
    refused = send(mcp_server, reader, "tasks/cancel", taskId=str(execution.pk))
    assert refused.json()["error"]["code"] == -32602
    assert "lacks the scope workflows:run" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("payloads", "records", "days"), [(None, None, None), (None, 9, 9), (7, 9, 7), (7, 2, 2)]
)
def test_a_task_that_has_ended_says_how_long_its_result_is_kept(mcp_server, token, payloads, records, days):
    """E6: from its creation on; nobody knows that of one that goes on."""
    Retention.objects.create(keep_payloads_days=payloads, keep_records_days=records)
    execution = owned(make_workflow())
    task = send(mcp_server, token, "tasks/get", taskId=str(execution.pk)).json()["result"]
    took = execution.finished_at - execution.created_at
    expected = None if days is None else (took + timedelta(days=days)) // timedelta(milliseconds=1)
    assert task["ttlMs"] == expected


def test_many_readers_of_a_task_cause_one_poll(mcp_server, token):
    """B7: a status that is old is asked for anew, whenever the next poll was planned."""
    now = timezone.now()
    times = {"polled_at": now - timedelta(minutes=1), "next_attempt_at": now + timedelta(minutes=10)}
    execution = owned(make_workflow(), state=State.RUNNING, run_id="run-1", **times)
    for _ in range(2):
        send(mcp_server, token, "tasks/get", taskId=str(execution.pk))
        assert only().next_attempt_at <= timezone.now()
    Execution.objects.update(**times)
    arguments = {"execution_id": str(execution.pk)}
    send(mcp_server, token, "tools/call", name="get_execution_status", arguments=arguments)
    assert only().next_attempt_at <= timezone.now()


def test_a_task_without_a_payload_says_that_its_result_is_gone(mcp_server, token):
    """E6: the retention has removed it."""
    execution = owned(make_workflow(), payload={"output": None}, payload_pruned_at=timezone.now())
    task = send(mcp_server, token, "tasks/get", taskId=str(execution.pk)).json()["result"]
    assert task["status"] == "completed" and task["result"]["isError"]
    assert "removed" in task["result"]["content"][0]["text"]
