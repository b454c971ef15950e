"""Retrying, pausing and terminating runs by MCP and by the command."""

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from access.callers import Scope
from catalogue.descriptions import tokens_for
from catalogue.models import Workflow
from connectors.registry import BUILT_IN
from executions.models import Execution, State
from executions.rerunning import rerun_id
from identity.models import AccessToken
from identity.tokens import create_token
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS
from mcp_bridge.request_meta import EXECUTION_ID
from mcp_bridge.tool_lists import serialise_tool
from tests.executions.caching import at_once
from tests.executions.controlled_engine import Controlled
from tests.executions.engines import RUN_ID, WORKFLOW_ID, WireEngine
from tests.executions.steps import read
from tests.factories import make_execution, make_source, make_workflow
from tests.mcp_bridge.database import in_database

pytestmark = pytest.mark.databases("executions.control")
RUN = "run-1"


@pytest.fixture
def controlled(wire_engine: WireEngine) -> Controlled:
    return Controlled(wire_engine)


@pytest.fixture
def workflow(controlled: Controlled, monkeypatch: pytest.MonkeyPatch, transactional_db: None) -> Workflow:
    monkeypatch.setitem(BUILT_IN, "controlled", "tests.executions.controlled_engine:ControlledConnector")
    source = make_source("erp", base_url=controlled.wire.base_url, kind="controlled")
    return make_workflow(source, upstream_id=WORKFLOW_ID, name="report", inline_wait_seconds=20)


@pytest.fixture
def made(workflow: Workflow, token: str) -> Any:
    """Makes a run of the client in a state."""
    caller = AccessToken.objects.get().caller

    def make(state: State, **fields: Any) -> Execution:
        payload = {"input": {"amount": 7}, "output": None}
        given = {"caller": caller.key, "caller_name": caller.name, "run_id": RUN, "payload": payload}
        return make_execution(workflow, state=state, **given | fields)

    return in_database(make)


async def control(client: Any, execution: Execution, action: str) -> Any:
    return await client.call_tool("control_execution", {"execution_id": str(execution.pk), "action": action})


@pytest.mark.parametrize(("action", "output"), [("retry", {"answer": 42}), ("retry_failed", {"run": RUN})])
async def test_a_retry_answers_as_the_call_does(connect, era, made, controlled, action, output):
    failed = await made(State.FAILED)
    controlled.wire.on_start = at_once()
    async with connect(mode=era) as client:
        result = await control(client, failed, action)
    assert not result.is_error, result.content
    assert json.loads(result.content[0].text) == output
    assert result.meta[EXECUTION_ID] == str(rerun_id(failed.pk))


async def test_a_long_retry_answers_with_a_handle_and_both_attempts_are_linked(connect, made, workflow):
    failed = await made(State.FAILED)
    await in_database(Workflow.objects.update)(inline_wait_seconds=0)
    async with connect() as client:
        handle = (await control(client, failed, "retry")).structured_content
        assert (handle["execution_id"], handle["retry_of"]) == (str(rerun_id(failed.pk)), str(failed.pk))
        assert (handle["attempt"], handle["next"]["tool"]) == (2, "get_execution_status")
        former = await client.call_tool("get_execution_status", {"execution_id": str(failed.pk)})
        assert former.structured_content["retried_as"] == handle["execution_id"]
        again = (await control(client, failed, "retry")).structured_content
        assert again["execution_id"] == handle["execution_id"]
        refused = await control(client, failed, "retry_failed")
        assert refused.is_error and handle["execution_id"] in refused.content[0].text


async def test_a_paused_run_is_shown_as_paused(connect, made, controlled):
    run = await made(State.RUNNING)
    async with connect() as client:
        told = await control(client, run, "pause")
        assert told.structured_content["action"] == "pause" and not told.is_error
        assert controlled.paused == {RUN}
        await in_database(Execution.objects.update)(is_held=True)
        status = await client.call_tool("get_execution_status", {"execution_id": str(run.pk)})
        assert status.structured_content["paused"] is True
        ended = await control(client, run, "terminate")
    assert not ended.is_error
    assert controlled.wire.count("terminate") == 1


async def test_what_is_refused_is_an_error_that_the_model_reads(connect, made):
    completed = await made(State.COMPLETED)
    async with connect() as client:
        for action in ("retry", "retry_failed", "pause", "terminate"):
            assert (await control(client, completed, action)).is_error
        unknown = await client.call_tool("control_execution", {"execution_id": RUN_ID, "action": "retry"})
        assert unknown.is_error and "list_executions" in unknown.content[0].text


async def test_it_takes_the_scope_that_starts(connect, made):
    failed = await made(State.FAILED)
    reader = await in_database(lambda: create_token(name="reader", scopes=[Scope.READ])[1])()
    async with connect(as_token=reader) as client:
        assert "control_execution" not in {tool.name for tool in (await client.list_tools()).tools}
        with pytest.raises(Exception, match=Scope.RUN):
            await control(client, failed, "retry")
    assert not await in_database(Execution.objects.filter(retries=1).exists)()


def test_the_tool_costs_at_most_120_tokens_and_says_that_it_may_destroy():
    tool = BUILT_IN_TOOLS["control_execution"].tool
    assert tokens_for(len(serialise_tool(tool, "2026-07-28"))) <= 120
    assert tool.annotations.destructive_hint and tool.annotations.read_only_hint is None


def test_the_command_retries_any_callers_execution_and_prints_the_result(workflow, controlled):
    failed = make_execution(workflow, state=State.FAILED, payload={"input": {}}, run_id=RUN)
    controlled.wire.on_start = at_once()
    out = StringIO()
    call_command("control_execution", str(failed.pk), "retry", stdout=out)
    assert json.loads(out.getvalue()) == {"answer": 42}
    attempt = Execution.objects.get(retry_of=failed)
    assert (attempt.door, attempt.caller[:6]) == ("command", "local:")


def test_the_command_fails_for_what_is_refused(workflow, controlled):
    ended = make_execution(workflow)
    with pytest.raises(CommandError, match="completed"):
        call_command("control_execution", str(ended.pk), "retry")
    running = make_execution(workflow, state=State.RUNNING, run_id=RUN)
    call_command("control_execution", str(running.pk), "pause", stdout=StringIO())
    assert controlled.paused == {RUN} and read(running).state == State.RUNNING
