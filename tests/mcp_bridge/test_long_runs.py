"""Runs that outlast their client's patience: giving up, coming back, asking later, in both eras."""

import asyncio
import itertools
import json
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import httpx2
import pytest
from django.utils import timezone
from mcp import Client, MCPError

from catalogue.models import Source
from executions import change_feed
from executions.models import Execution, RunNotice, State
from executions.runner.follow import CANCELLATION_GRACE
from executions.wakeups import waits
from identity.tokens import create_token
from mcp_bridge import tasks
from tests.admin.conftest import admin_client
from tests.admin.pages import page_url, text_of
from tests.api.clients import administrator
from tests.connectors.scripted import Received, replies
from tests.executions.engines import WireEngine, completed, in_thread, in_turn, receipt, status, until
from tests.executions.steps import after, let_pass, let_waits_pass, only, reach_deadline, timeline
from tests.factories import make_toolset
from tests.logs import shown_lines
from tests.mcp_bridge.conftest import McpServer
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.pipes import over_pipes
from tests.mcp_bridge.tasks_client import TasksExtension, ask, start_task
from tests.mcp_bridge.test_tasks import change, is_free, work_on

__all__ = ["admin_client"]
ERAS = ("2026-07-28", "legacy")


async def hear_progress(value: float, total: float | None, message: str | None) -> None:
    """For calls that ask for progress, as clients do that wait on while there is some."""


def is_abandoned() -> bool:
    """Whether the one execution's caller is known to be gone without an answer."""
    awaited_until = only().awaited_until
    return awaited_until is not None and awaited_until < timezone.now()


def let_client_wait(seconds: float) -> None:
    """As if that much time had passed for what runs in the test's event loop."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    loop.time = lambda: clock() + seconds  # type: ignore[method-assign]


async def time_out(client: Client, engine: WireEngine, arguments: dict[str, Any]) -> None:
    """A call whose client gives up while the run is under way."""
    call = asyncio.create_task(client.call_tool("report", arguments, read_timeout_seconds=10))
    await until(lambda: engine.count("status"), "the run is under way")
    let_client_wait(10)
    with pytest.raises(MCPError, match=r"[Tt]imed out"):
        await call


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_that_its_client_gave_up_goes_on_and_the_same_call_gets_its_result(
    open_client, long_workflow, wire_engine, era
):
    """A7.5: the client's timeout ends its wait, not the run; what it sends again attaches to it."""
    await in_database(change)(inline_wait_seconds=None)
    async with open_client(mode=era) as client:
        await time_out(client, wire_engine, {"n": 1})
        await until(lambda: Execution.objects.exists() and is_abandoned(), "the server knows that it is gone")
        wire_engine.on_status = replies(200, completed())
        result = await client.call_tool("report", {"n": 1})
        other = await client.call_tool("report", {"n": 2})
    # Some clients show a model no text beside structured content.
    assert result.structured_content is None
    assert json.loads(result.content[0].text) == other.structured_content == {"answer": 42}
    execution = await in_database(Execution.objects.earliest)("created_at")
    assert result.meta["workflow-catalogue/reattached-to"] == execution.created_at.isoformat()
    told = f"An identical call at {execution.created_at:%Y-%m-%d %H:%M:%S} UTC, which got no response"
    assert (
        told in result.content[-1].text
        and f"{execution.finished_at:%H:%M:%S} UTC.)" in result.content[-1].text
    )
    assert "workflow-catalogue/reattached-to" not in other.meta and len(other.content) == 1
    assert wire_engine.count("start") == 2
    assert "reattached" in await in_database(timeline)(execution)


@pytest.mark.parametrize("era", ERAS)
async def test_a_workflow_that_is_cancelled_on_disconnect_is_cancelled_at_the_engine(
    open_client, long_workflow, wire_engine, era
):
    """A7.5: where the curator decided so."""
    await in_database(change)(inline_wait_seconds=None, on_disconnect="cancel")
    async with open_client(mode=era) as client:
        call = asyncio.create_task(client.call_tool("report", {}))
        await until(lambda: wire_engine.count("status"), "the run is under way")
        call.cancel()
        await until(lambda: wire_engine.count("cancel"), "the engine is told")
        wire_engine.on_status = replies(200, status("CANCELLED"))
        await until(lambda: only().cancel_requested_at, "and it is recorded")


async def test_of_two_clients_with_one_token_only_the_one_that_gave_up_loses_its_wait(
    connect, long_workflow, wire_engine
):
    """In the handshake era both count their requests from the same number: which one is meant is unclear."""
    await in_database(change)(inline_wait_seconds=None)
    async with connect(mode="legacy") as one, connect(mode="legacy") as other:
        given_up = asyncio.create_task(one.call_tool("report", {"n": 1}))
        kept = asyncio.create_task(other.call_tool("report", {"n": 2}))
        await until(
            lambda: wire_engine.count("start") == 2 and wire_engine.count("status"), "both are under way"
        )
        given_up.cancel()
        await asyncio.wait({given_up})
        wire_engine.on_status = replies(200, completed())
        assert (await kept).structured_content == {"answer": 42}


async def test_a_call_is_kept_when_another_client_gives_up_the_call_that_had_the_same_number(
    connect, long_workflow, wire_engine
):
    """The connection may close before the notification arrives, so that only one call is left."""
    await in_database(change)(inline_wait_seconds=None)
    async with connect(mode="legacy") as late, connect(mode="legacy") as other:
        async with connect(mode="legacy") as one:
            given_up = asyncio.create_task(one.call_tool("report", {"n": 1}))
            kept = asyncio.create_task(other.call_tool("report", {"n": 2}))
            await until(
                lambda: wire_engine.count("start") == 2 and wire_engine.count("status"), "both are under way"
            )
            given_up.cancel()
            await asyncio.wait({given_up})
        for request_id in range(10):
            await late.session._dispatcher.notify("notifications/cancelled", {"requestId": request_id})
        assert (await late.list_tools()).tools, "the notifications have arrived"
        wire_engine.on_status = replies(200, completed())
        assert (await kept).structured_content == {"answer": 42}


async def test_a_call_of_another_token_cannot_be_given_up(connect, long_workflow, wire_engine):
    await in_database(change)(inline_wait_seconds=None)
    charlie = (await in_database(create_token)(name="charlie"))[1]
    async with connect(mode="legacy") as mine, connect(mode="legacy", as_token=charlie) as foreign:
        call = asyncio.create_task(mine.call_tool("report", {}))
        await until(lambda: wire_engine.count("status"), "the run is under way")
        for request_id in range(10):
            await foreign.session._dispatcher.notify("notifications/cancelled", {"requestId": request_id})
        assert (await foreign.list_tools()).tools, "the notifications have arrived"
        wire_engine.on_status = replies(200, completed())
        assert (await call).structured_content == {"answer": 42}


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_without_tasks_gets_the_result_of_a_run_that_outlasts_its_timeout(
    connect, long_workflow, wire_engine, era
):
    """A7.2, A8.4: each of its requests is answered within its timeout, which the run as a whole exceeds."""
    async with connect(mode=era, read_timeout_seconds=10) as client:
        handle = (await client.call_tool("report", {})).structured_content
        assert handle["next"]["arguments"] == {"execution_id": handle["execution_id"], "wait_seconds": 25}
        await until(is_free, "a worker could go on")
        asking = {"execution_id": handle["execution_id"], "wait_seconds": 0.1}
        waited = (await client.call_tool(handle["next"]["tool"], asking)).structured_content
        assert waited["state"] == "running" and waited["next"] == handle["next"]
        wire_engine.on_status = replies(200, completed())
        await in_thread(work_on)
        ended = (await client.call_tool(handle["next"]["tool"], asking)).structured_content
    assert (ended["state"], ended["output"]) == ("completed", {"answer": 42})
    assert "next" not in ended


async def test_a_client_of_the_handshake_era_gets_its_handle_also_where_it_asked_for_progress(
    connect, long_workflow
):
    """A8.3, A8.4: many of these clients give up after 60 s whatever they hear meanwhile."""

    async with connect(mode="legacy") as client:
        handle = await client.call_tool("report", {}, progress_callback=hear_progress)
    assert handle.structured_content["next"]["tool"] == "get_execution_status"


async def all_at_once(hold: Callable[..., Awaitable[None]], *of_each: Iterable[Any]) -> None:
    """Waits that are seconds long overlap. An error says for which combination it does not hold."""

    async def hold_for(*combination: Any) -> None:
        try:
            await hold(*combination)
        except (AssertionError, MCPError) as error:
            error.add_note(f"for {combination}")
            raise

    async with asyncio.TaskGroup() as group:
        for combination in itertools.product(*of_each):
            group.create_task(hold_for(*combination))


async def test_a_client_of_little_patience_gets_its_handle_in_time_and_is_told_to_wait_no_longer(
    connect, long_workflow
):
    """A8.4: for clients that give up after 5, 10 or 30 s; asked to wait longer, the product does not."""
    await in_database(change)(inline_wait_seconds=None)

    tokens: dict[str, str] = {}
    for decided_for in ("token", "toolset", "both"):
        toolsets_wait = {"toolset": 1, "both": 3600}.get(decided_for)
        await in_database(make_toolset)(decided_for, rules=["*"], inline_wait_seconds=toolsets_wait)
        for era, asks in itertools.product(ERAS, (False, True)):
            name = f"{decided_for}-{era}-{asks}"
            tokens_wait = None if decided_for == "toolset" else 1
            made = await in_database(create_token)(name=name, inline_wait_seconds=tokens_wait)
            tokens[name] = made[1]

    def all_run() -> bool:
        return Execution.objects.filter(polls__gt=0).count() == len(tokens)

    def all_wait() -> bool:
        return len(waits.timeouts) == len(tokens)

    async def holds(era: str, asks: bool, decided_for: str) -> None:
        options = {"progress_callback": hear_progress} if asks else {}
        token = tokens[f"{decided_for}-{era}-{asks}"]
        async with connect(mode=era, as_token=token, toolset=decided_for) as client:
            handle = (await after(1, client.call_tool("report", {}, **options), all_run)).structured_content
            assert handle["next"]["arguments"]["wait_seconds"] == 1
            asking = {"execution_id": handle["execution_id"], "wait_seconds": 50}
            call = client.call_tool("get_execution_status", asking, **options)
            waited = (await after(1, call, all_wait)).structured_content
        assert waited["state"] == "running" and waited["next"] == handle["next"]

    await all_at_once(holds, ERAS, (False, True), ("token", "toolset", "both"))


DEFAULT_NAME = {"client_info": None}
"""What the Python SDK says where its user says nothing."""


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("execution_type", ["sync", "async"])
async def test_a_client_without_a_name_of_its_own_waits_like_any_other(
    open_client, long_workflow, wire_engine, era, execution_type
):
    """A7.1: longer than OpenAI Agents, which has no name either, waits by default."""
    await in_database(change)(inline_wait_seconds=None, execution_type=execution_type)
    async with open_client(mode=era, **DEFAULT_NAME) as client:
        call = asyncio.create_task(client.call_tool("report", {}))
        await until(lambda: waits.timeouts and wire_engine.count("status"), "the call waits")
        let_waits_pass(45)
        wire_engine.on_status = replies(200, completed())
        assert (await call).structured_content == {"answer": 42}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("info", [{}, DEFAULT_NAME], ids=["named", "unnamed"])
async def test_every_client_gets_its_handle_after_50_seconds(open_client, long_workflow, era, info):
    """A7.1, A8.4"""
    await in_database(change)(inline_wait_seconds=None)
    async with open_client(mode=era, **info) as client:
        handle = (await after(50, client.call_tool("report", {}))).structured_content
    assert handle["next"]["arguments"] == {"execution_id": handle["execution_id"], "wait_seconds": 25}


PROMISED = {"output_schema": {"type": "object", "required": ["answer"]}, "execution_type": "sync"}


@pytest.mark.parametrize("era", ERAS)
async def test_only_a_client_that_waits_to_the_end_is_shown_an_output_schema(connect, long_workflow, era):
    """A8.3: clients compare results with it, and no handle fits it."""
    await in_database(change)(**PROMISED)
    shown = {}
    for name, of_token, of_toolset in (("none", None, None), ("token", 30, None), ("toolset", None, 30)):
        _, text = await in_database(create_token)(name=name, inline_wait_seconds=of_token)
        await in_database(make_toolset)(name, rules=["*"], inline_wait_seconds=of_toolset)
        for kind, info in (("named", {}), ("unnamed", DEFAULT_NAME)):
            async with connect(mode=era, as_token=text, toolset=name, **info) as client:
                (tool,) = [tool for tool in (await client.list_tools()).tools if tool.name == "report"]
                shown[name, kind] = tool.output_schema is not None
    assert {key for key, has_schema in shown.items() if has_schema} == {
        ("none", "named"),
        ("none", "unnamed"),
    }


def introduce(server: McpServer, token: str, name: Any, **capabilities: Any) -> httpx2.Response:
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": capabilities,
        "clientInfo": {"name": name, "version": "0.1.0"},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    return server.post(body, token=token)


def test_only_a_client_that_can_be_asked_gets_a_session_id_and_any_that_is_sent_is_taken(mcp_server, token):
    """It tells of the client and opens nothing: no process keeps it, and none asks for it."""
    ids = [introduce(mcp_server, token, "mcp", roots={}).headers["mcp-session-id"] for _ in range(2)]
    assert ids[0] != ids[1] and all(re.fullmatch(r"[!-~]{20,60}", one) for one in ids)
    for name in ("mcp", "agent", "", 1):
        assert "mcp-session-id" not in introduce(mcp_server, token, name).headers
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    for sent in (*ids, "unnamed-0123", "made-up", "x" * 4000):
        answer = mcp_server.post(listing, token=token, headers={"mcp-session-id": sent})
        assert answer.status_code == 200 and answer.json()["result"]["tools"]
        assert mcp_server.post(listing, headers={"mcp-session-id": sent}).status_code == 401


async def test_a_workflow_that_nobody_is_to_wait_for_is_not_waited_for_by_patient_clients_either(
    connect, long_workflow
):
    """The shorter of what the curator and the token say."""
    made = await in_database(create_token)(name="patient", inline_wait_seconds=3600)
    async with connect(as_token=made[1]) as client:
        handle = (await client.call_tool("report", {})).structured_content
    assert handle["next"]["arguments"]["wait_seconds"] == 25


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("answer", "told_at_last"),
    [
        (completed() | receipt(), (100.0, 100.0, "completed")),
        (status("FAILED", error="no paper") | receipt(), (1.0, None, "failed")),
    ],
    ids=["completed", "failed"],
)
async def test_a_run_that_ends_before_the_first_poll_sends_progress_too(
    connect, long_workflow, wire_engine, era, answer, told_at_last
):
    """A7.3: whoever asks for progress hears of it, however fast the tool is."""
    wire_engine.on_start = replies(200, answer)
    await in_database(change)(inline_wait_seconds=None)
    told: list[tuple[float, float | None, str | None]] = []

    async def hear(value: float, total: float | None, message: str | None) -> None:
        told.append((value, total, message))

    async with connect(mode=era) as client:
        await client.call_tool("report", {}, progress_callback=hear)
    assert told == [told_at_last]


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("No worker is listening on the queue.", ": No worker is listening on the queue. It goes on"),
        ("weighing the letters", ": weighing the letters. It goes on"),
    ],
)
async def test_a_handle_says_in_its_text_what_the_run_is_at(connect, long_workflow, wire_engine, word, told):
    """A7.5, A8.3: models read the text, not the structured content."""
    wire_engine.on_status = replies(200, status(progress=40, progress_message=word))
    await in_database(change)(inline_wait_seconds=2)
    async with connect() as client:
        handle = await after(2, client.call_tool("report", {}), lambda: wire_engine.count("status") > 1)
    assert f"report is still running, 40 % done{told}" in handle.content[0].text


async def test_a_timeout_says_what_the_run_was_at_last(connect, long_workflow, wire_engine):
    """A7.2, B5: more time helps nobody who waits for a worker."""
    word = "No worker is listening on the queue."
    waits, ended = (status(state, progress=0, progress_message=word) for state in ("RUNNING", "CANCELLED"))

    async def is_asked(request: Received, writer: asyncio.StreamWriter) -> None:
        await replies(200, ended if wire_engine.count("cancel") else waits)(request, writer)

    wire_engine.on_status = is_asked
    await in_database(change)(inline_wait_seconds=None, timeout_seconds=60)
    async with connect() as client:
        call = asyncio.create_task(client.call_tool("report", {}))
        await until(lambda: wire_engine.count("status"), "the run is under way")
        await in_thread(lambda: reach_deadline(only()))
        result = await call
    assert result.is_error
    assert "It took longer than its timeout of 60 s" in result.content[0].text
    assert f"Its last message: {word}\n" in result.content[0].text


async def test_a_client_that_waits_for_progress_hears_what_becomes_of_a_run_after_its_timeout(
    connect, long_workflow, wire_engine
):
    """A7.2, A7.3: it waits as long as the run is followed, here where a cancellation does nothing."""
    await in_database(change)(inline_wait_seconds=None, timeout_seconds=60)
    grace = CANCELLATION_GRACE.total_seconds()

    async with connect() as client:
        call = asyncio.create_task(client.call_tool("report", {}, progress_callback=hear_progress))
        await until(lambda: wire_engine.count("status"), "the run is under way")
        await in_thread(lambda: reach_deadline(only()))
        await until(lambda: only().cancel_sent_at, "it is cancelled")
        let_waits_pass(60 + grace)
        await in_thread(lambda: let_pass(only(), grace))
        result = await call
    assert result.is_error and "it may still be running there" in result.content[0].text


async def test_a_run_that_completes_shows_all_of_it_done_at_every_door(
    connect, admin_client, long_workflow, wire_engine
):
    """A8.2: though the engine said last that it was at 90 %."""
    wire_engine.on_status = in_turn(replies(200, status(progress=90)), replies(200, completed()))
    async with connect() as client:
        handle = (await client.call_tool("report", {})).structured_content
        await in_thread(work_on)
        running = await in_thread(lambda: administrator().get(f"/api/executions/{handle['execution_id']}/"))
        await in_thread(work_on)
        asking = {"execution_id": handle["execution_id"]}
        shown = (await client.call_tool("get_execution_status", asking)).structured_content
    assert running.json()["progress"] == 90
    assert (shown["state"], shown["progress"]) == ("completed", 100)
    execution = await in_database(only)()
    rest = await in_thread(lambda: administrator().get(f"/api/executions/{execution.pk}/"))
    assert rest.json()["progress"] == 100
    page = await in_thread(lambda: text_of(admin_client.get(page_url(execution))))
    assert "100 %" in page


async def test_of_an_engine_that_does_not_tell_how_runs_are_every_door_says_not_supported(
    connect, admin_client, long_workflow, wire_engine
):
    """A8.5: why it says nothing while it is asked again, and what has become of the run then."""
    wire_engine.on_status = replies(501, {"error": "not implemented"})
    async with connect() as client:
        handle = (await client.call_tool("report", {})).structured_content
        asking = {"execution_id": handle["execution_id"]}
        await in_thread(work_on)
        doubtful = (await client.call_tool("get_execution_status", asking)).structured_content
        rest = await in_thread(lambda: administrator().get(f"/api/executions/{handle['execution_id']}/"))
        page = await in_thread(lambda: text_of(admin_client.get(page_url(only()))))
        for told in (doubtful["status_problem"], rest.json()["poll_failure"], page):
            assert "501 Not Implemented" in told
        for _ in range(3):
            await in_thread(work_on)
        shown = (await client.call_tool("get_execution_status", asking)).structured_content
    assert (doubtful["state"], shown["state"]) == ("running", "unconfirmed")
    rest = await in_thread(lambda: administrator().get(f"/api/executions/{handle['execution_id']}/"))
    page = await in_thread(lambda: text_of(admin_client.get(page_url(only()))))
    for told in (shown["error"], rest.json()["error"]["message"], page):
        assert "Status is not supported" in told
    assert "The engine accepted it as" in page and "It ran: mark as completed" in page


ENDS = {
    "failed": ("FAILED", {"pages": 3}),
    "failed without output": ("FAILED", None),
    "cancelled": ("CANCELLED", {"pages": 3}),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("era", ERAS)
async def test_a_run_that_fails_answers_with_its_input_and_what_output_there_is(
    connect, long_workflow, wire_engine, era, end
):
    """B3, A2.4: in the answer to the call and in the status, without what curators hide from agents."""
    state, output = ENDS[end]
    ended = status(state, output=output, **({"error": "no paper"} if state == "FAILED" else {}))
    wire_engine.on_start = replies(200, ended | receipt())
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "key": {"type": "string"}}}
    overrides = {"key": {"constant": "secret-of-the-curator"}}
    await in_database(change)(input_schema=schema, argument_overrides=overrides, inline_wait_seconds=None)
    async with connect(mode=era) as client:
        result = await client.call_tool("report", {"n": 1})
        told = result.structured_content
        asking = {"execution_id": told["execution_id"]}
        shown = (await client.call_tool("get_execution_status", asking)).structured_content
    assert result.is_error and "report" in result.content[0].text
    assert (told["state"], told["input"], told.get("output")) == (state.lower(), {"n": 1}, output)
    assert told["error"] and told == shown
    assert "secret-of-the-curator" not in str(result)


async def test_a_failed_run_with_a_promised_output_gives_its_document_as_text(
    connect, long_workflow, wire_engine
):
    """B3, A2.3: the TypeScript SDK compares the structured content of errors with the output schema too."""
    wire_engine.on_start = replies(200, status("FAILED", error="no paper", output={"pages": 3}) | receipt())
    await in_database(change)(**PROMISED)
    async with connect() as client:
        result = await client.call_tool("report", {"n": "x" * 200_000})
    assert result.is_error and result.structured_content is None
    told = json.loads(result.content[1].text)
    assert (told["output"], "input" in told, told["input_characters"]) == ({"pages": 3}, False, 200_009)


REFUSALS = {
    "404": (replies(404, {"error": "no such path"}), "refused", "Not supported"),
    "405": (replies(405), "refused", "Not supported"),
    "501": (replies(501), "refused", "Not supported"),
    "403": (replies(403, {"error": "not yours"}), "refused", "not yours"),
    "409": (replies(409, {"error": "too late"}), "refused", "too late"),
    "422": (replies(422, {"error": "never"}), "refused", "never"),
    "no path": (None, "not supported", "Not supported"),
}


@pytest.mark.databases("executions.interacting")
@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_cancellation_that_the_engine_refuses_is_refused_at_every_door(
    connect, long_workflow, wire_engine, refusal
):
    """A8.5, A7.5: asked again, the answer is the same; the log has it once, and the run goes on."""
    answer, outcome, why = REFUSALS[refusal]
    if answer is None:
        config = long_workflow.source.config | {"cancel_path": ""}
        await in_database(Source.objects.update)(config=config)
    else:
        wire_engine.on_cancel = answer
    with shown_lines() as logged:
        async with connect() as client:
            handle = (await client.call_tool("report", {})).structured_content
            asking = {"execution_id": handle["execution_id"]}
            await until(is_free, "a worker could go on")
            for _ in range(2):
                told = (await client.call_tool("cancel_execution", asking)).structured_content
                shown = (await client.call_tool("get_execution_status", asking)).structured_content
                assert told["outcome"] == outcome and why in told["message"]
                assert told["execution"] | {"next": handle["next"]} == shown
                assert (shown["state"], shown["cancel_progress"]) == ("running", "refused")
                assert why in shown["cancel_refusal"]
            listed = (await client.call_tool("list_executions", {})).structured_content["executions"]
    assert wire_engine.count("cancel") == (0 if answer is None else 1)
    assert listed[0]["cancel_progress"] == "refused"
    assert [why in line for line in logged if "cancel" in line] == [True] * (2 if answer is None else 1)
    url = f"/api/executions/{handle['execution_id']}/"
    rest = await in_thread(lambda: administrator().get(url).json())
    again = await in_thread(lambda: administrator().post(f"{url}cancel/"))
    assert (rest["cancel_progress"], why in rest["cancel_refusal"]) == ("refused", True)
    assert (again.status_code, again.json()["outcome"]) == (409, outcome)


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_task_that_the_engine_does_not_cancel_says_why(connect, long_workflow, wire_engine, refusal):
    """A8.5: `tasks/cancel` only acknowledges."""
    answer, _, why = REFUSALS[refusal]
    if answer is None:
        config = long_workflow.source.config | {"cancel_path": ""}
        await in_database(Source.objects.update)(config=config)
    else:
        wire_engine.on_cancel = answer
    async with connect(extensions=[TasksExtension()]) as client:
        created = await start_task(client.session, "report", {})
        await until(is_free, "a worker could go on")
        for _ in range(2):
            assert (await ask(client.session, "tasks/cancel", created.task_id))["resultType"] == "complete"
            task = await ask(client.session, "tasks/get", created.task_id)
            assert task["status"] == "working" and why in task["statusMessage"]
            assert "requested" not in task["statusMessage"]


async def test_a_client_with_tasks_gets_the_result_of_a_run_that_outlasts_its_timeout(
    open_client, long_workflow, wire_engine, monkeypatch
):
    """A7.2, A8.4: its own code calls a tool and gets a result; tasks are between its library and us."""
    monkeypatch.setattr(tasks, "MIN_POLL_MS", 50)
    extension = TasksExtension()
    async with open_client(mode="2026-07-28", read_timeout_seconds=10, extensions=[extension]) as client:
        call = asyncio.create_task(client.call_tool("report", {}))
        await until(lambda: Execution.objects.exists() and is_free(), "the call has given a task")
        wire_engine.on_status = replies(200, completed())
        await in_thread(work_on)
        result = await call
    assert result.structured_content == {"answer": 42}
    assert [created.task_id for created in extension.created] == [str((await in_database(only)()).pk)]


async def test_tasks_can_be_cancelled_and_progress_is_told_over_stdio(long_workflow, wire_engine):
    """E8: the extension's methods have no headers there."""
    heard: list[float] = []

    async def hear(value: float, total: float | None, message: str | None) -> None:
        heard.append(value)

    wire_engine.on_status = replies(200, status(progress=40))
    await in_database(change)(inline_wait_seconds=2)
    async with Client(over_pipes(), mode="2026-07-28", extensions=[TasksExtension()]) as client:
        created = await after(
            2, start_task(client.session, "report", {}, progress_callback=hear), lambda: heard
        )
        await until(is_free, "nobody holds it")
        assert (await ask(client.session, "tasks/cancel", created.task_id))["resultType"] == "complete"
        assert wire_engine.count("cancel") == 1
        wire_engine.on_status = replies(200, status("CANCELLED"))
        await in_thread(work_on)
        assert (await ask(client.session, "tasks/get", created.task_id))["status"] == "cancelled"
    assert heard and heard == sorted(set(heard))


@pytest.mark.usefixtures("quick_news")
@pytest.mark.parametrize("era", ERAS)
async def test_waiting_for_a_status_ends_with_the_run(connect, long_workflow, wire_engine, era):
    """A8.3: long before the time that was given to it is over; progress is told on the way."""
    heard: list[float] = []

    async def hear(value: float, total: float | None, message: str | None) -> None:
        heard.append(value)

    async with connect(mode=era) as client:
        execution_id = (await client.call_tool("report", {})).structured_content["execution_id"]
        await until(is_free, "a worker could go on")
        asking = {"execution_id": execution_id, "wait_seconds": 50}
        waiting = asyncio.create_task(
            client.call_tool("get_execution_status", asking, progress_callback=hear)
        )
        await until(lambda: change_feed._watchers, "the request waits")
        wire_engine.on_status = replies(200, status(progress=40))
        await in_thread(work_on)
        await until(lambda: heard, "the client hears of the progress")
        wire_engine.on_status = replies(200, completed())
        await in_thread(work_on)
        async with asyncio.timeout(30):
            ended = (await waiting).structured_content
    assert (ended["state"], ended["output"]) == ("completed", {"answer": 42})
    assert heard[0] == 40


@pytest.mark.parametrize("era", ERAS)
async def test_whoever_gives_up_waiting_for_a_status_ends_the_wait_only(
    connect, long_workflow, wire_engine, era
):
    await in_database(change)(on_disconnect="cancel")
    async with connect(mode=era) as client:
        execution_id = (await client.call_tool("report", {})).structured_content["execution_id"]
        await until(is_free, "a worker could go on")
        asking = {"execution_id": execution_id, "wait_seconds": 50}
        waiting = asyncio.create_task(client.call_tool("get_execution_status", asking))
        await until(lambda: change_feed._watchers, "the request waits")
        waiting.cancel()
        await until(lambda: not change_feed._watchers, "nobody waits any more")
    execution = await in_database(only)()
    assert (execution.state, execution.cancel_requested_at) == (State.RUNNING, None)
    assert wire_engine.count("cancel") == 0


async def test_waiting_longer_than_clients_do_is_refused(connect, long_workflow):
    async with connect() as client:
        for seconds in (50.5, -1, "long"):
            refused = await client.call_tool(
                "get_execution_status", {"execution_id": "x", "wait_seconds": seconds}
            )
            assert refused.is_error and "/wait_seconds" in refused.content[0].text
        unknown = await client.call_tool("get_execution_status", {"execution_id": "x", "wait_seconds": 50})
    assert unknown.is_error and "Unknown execution" in unknown.content[0].text


KEY = "workflow-catalogue/idempotency-key"


@pytest.mark.parametrize("era", ERAS)
async def test_calls_with_one_idempotency_key_are_one_execution(connect, long_workflow, wire_engine, era):
    async with connect(mode=era) as client:
        first = await client.call_tool("report", {"n": 1}, meta={KEY: "order-7"})
        by_name = {"name": "report", "arguments": {"n": 1}}
        second = await client.call_tool("execute_workflow", by_name, meta={KEY: "order-7"})
        conflict = await client.call_tool("report", {"n": 2}, meta={KEY: "order-7"})
        too_long = await client.call_tool("report", {"n": 1}, meta={KEY: "k" * 256})
        for malformed in (7, "", ["order-7"], {"a": 1}):
            with pytest.raises(MCPError, match="An idempotency key must consist of 1 to 255") as refusal:
                await client.call_tool("report", {"n": 1}, meta={KEY: malformed})
            assert refusal.value.code == -32602
    assert first.structured_content["execution_id"] == second.structured_content["execution_id"]
    assert conflict.is_error
    assert (
        "belongs to execution" in conflict.content[0].text
        and "nothing was started" in conflict.content[0].text
    )
    assert too_long.is_error and "1 to 255 printable" in too_long.content[0].text
    await until(lambda: wire_engine.count("start"), "a start")  # Nobody waited for it
    assert wire_engine.count("start") == 1
    assert (await in_database(only)()).idempotency_key == "order-7"


@pytest.mark.parametrize("era", ERAS)
async def test_the_record_says_which_client_called(open_client, long_workflow, era):
    """B3: over HTTP a client of the handshake era is known by its library only: there are no sessions."""
    from mcp_types import Implementation

    info = Implementation(name="inspector " + "x" * 200, version="1.2.3")
    async with open_client(mode=era, client_info=info) as client:
        await client.call_tool("report", {})
    told = (await in_database(only)()).payload.metadata["client"]
    assert told["protocol_version"] == ("2026-07-28" if era == "2026-07-28" else "2025-11-25")
    if "name" in told:
        assert (told["name"], told["version"]) == (info.name[:100], "1.2.3")
    else:
        assert era == "legacy" and told["user_agent"]


async def test_an_agent_that_lost_an_id_finds_its_run(connect, long_workflow):
    """B3: its own ones only, the newest first, a page at a time, by state and by tool."""
    charlie = (await in_database(create_token)(name="charlie"))[1]
    async with connect(as_token=charlie) as client:
        await client.call_tool("report", {})
    async with connect() as client:
        started = [(await client.call_tool("report", {"n": n})).structured_content for n in range(5)]
        ids = [handle["execution_id"] for handle in reversed(started)]
        seen: list[str] = []
        cursor: dict[str, str] = {}
        for _ in range(3):
            page = (await client.call_tool("list_executions", {"limit": 2.0, **cursor})).structured_content
            seen += [execution["execution_id"] for execution in page["executions"]]
            cursor = {"cursor": page["next_cursor"]}
        none = (await client.call_tool("list_executions", {"state": "failed"})).structured_content
        other = (await client.call_tool("list_executions", {"tool": "countdown"})).structured_content
        refused = await client.call_tool("list_executions", {"state": "lost", "limit": 51, "cursor": 1})
        for made_up in ("x", "AAAA", "MjAyNi0xMS0yMQ=="):
            unknown = await client.call_tool("list_executions", {"cursor": made_up})
            assert unknown.is_error and "begin again without a cursor" in unknown.content[0].text
    assert seen == ids
    assert page["next_cursor"] is None
    assert "output" not in page["executions"][0]
    assert (none["executions"], other["executions"]) == ([], [])
    assert all(path in refused.content[0].text for path in ("/state", "/limit", "/cursor"))


@pytest.mark.parametrize("by", ["its own tool", "execute_workflow"])
async def test_a_call_over_mcp_names_where_its_run_is_told(connect, source, era, by):
    meta: Any = {"workflow-catalogue/notify": {"webhook": "https://8.8.8.8/", "format": "slack"}}
    forbidden: Any = {"workflow-catalogue/notify": {"webhook": "http://169.254.169.254/"}}
    name, arguments = "text_statistics", {"text": "a"}
    if by == "execute_workflow":
        name, arguments = by, {"name": name, "arguments": arguments}
    async with connect(mode=era) as client:
        refused = await client.call_tool(name, arguments, meta=forbidden)
        assert refused.is_error and "Nothing was started" in refused.content[0].text
        assert not await in_database(Execution.objects.exists)()
        assert not (await client.call_tool(name, arguments, meta=meta)).is_error
    row = await in_database(RunNotice.objects.select_related("execution").get)()
    assert (row.medium, row.receiver, row.execution.succeeded) == ("slack", "8.8.8.8", True)
