"""What a card in a chat reads about a run, and how it answers its questions, through the MCP door."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from mcp.client.extension import advertise
from mcp.server.apps import APP_MIME_TYPE, EXTENSION_ID
from mcp_types import CallToolResult

from catalogue.actions.workflows import override_workflow
from catalogue.models import Workflow
from executions.approvals import change_arguments, decide
from executions.models import Approval, Execution, ExecutionPayload, Retention
from executions.retention import prune
from executions.run_callers import Asker
from identity.models import AccessToken
from identity.tokens import Access, create_token
from mcp_bridge.calls import ToolCall
from mcp_bridge.card_tools import _read
from tests.connectors.scripted import replies
from tests.content_blocks import PNG, in_base64, picture, text
from tests.engines.asking_server import FORM, ODD, PAGE, TURNED
from tests.executions.engines import WireEngine, completed
from tests.factories import make_event, make_execution, make_toolset
from tests.mcp_bridge.conftest import Connect
from tests.mcp_bridge.database import in_database

pytestmark = pytest.mark.databases("mcp_bridge.card_tools", "executions.models.statements")

CARDS: dict[str, Any] = {"extensions": [advertise(EXTENSION_ID, {"mimeTypes": [APP_MIME_TYPE]})]}
KEYS = {
    "execution_id", "tool", "title", "source", "state", "state_label", "is_over", "succeeded", "progress",
    "message", "problems", "created_at", "started_at", "ended_at", "now", "usual_seconds", "timeline",
    "can_cancel", "cancel_requested", "questions", "approval", "error", "advice", "result", "url",
}  # fmt: skip


def own(token: str = "agent", **fields: Any) -> Execution:
    """An execution of the caller."""
    return make_execution(caller=AccessToken.objects.get(name=token).caller.key, **fields)


async def send(connect: Connect, tool: str, execution: Execution, **given: Any) -> CallToolResult:
    async with connect() as client:
        return await client.call_tool(tool, {"execution_id": str(execution.pk)} | given)


async def show(connect: Connect, execution: Execution, **given: Any) -> dict[str, Any]:
    result = await send(connect, "show_execution", execution, **given)
    assert not result.is_error, result.content[0].text
    document: dict[str, Any] = result.structured_content
    assert document.keys() == KEYS
    assert json.loads(result.content[0].text) == document
    return document


async def test_a_running_one_shows_how_far_it_is_and_how_long_it_usually_takes(connect, source, settings):
    @in_database
    def make() -> Execution:
        workflow = Workflow.objects.filter(source=source).first()
        for seconds in (10, 12, 14):
            begun = timezone.now() - timedelta(seconds=seconds)
            own(workflow=workflow, created_at=begun, finished_at=timezone.now())
        running = own(
            workflow=workflow, state="running", run_id="7", progress=40.0, progress_message="Halfway"
        )
        for number in range(9):
            make_event(running, "progress", f"Step {number}")
        return running

    execution = await make()
    shown = await show(connect, execution)
    assert (shown["state"], shown["progress"], shown["message"]) == ("running", 40.0, "Halfway")
    assert (shown["is_over"], shown["succeeded"], shown["can_cancel"]) == (False, False, True)
    assert shown["usual_seconds"] == pytest.approx(12, rel=0.2)
    assert [line["text"] for line in shown["timeline"]] == [f"Step {number}" for number in range(1, 9)]
    assert shown["created_at"] <= shown["now"] and shown["ended_at"] is None
    assert shown["url"] == f"{settings.PUBLIC_URL}/admin/executions/execution/{execution.pk}/change/"
    assert (shown["questions"], shown["approval"], shown["result"], shown["error"]) == ({}, None, None, None)


async def test_what_a_poll_cannot_find_out_and_a_refused_cancellation_are_problems(connect, token):
    execution = await in_database(own)(
        state="running", run_id="7", poll_failure="No route.", cancel_refusal="Too far.",
        cancel_requested_at=timezone.now(),
    )  # fmt: skip
    shown = await show(connect, execution)
    assert [problem.rpartition(": ")[2] for problem in shown["problems"]] == ["No route.", "Too far."]
    assert shown["cancel_requested"]


async def test_a_queued_one_can_be_cancelled_and_has_not_begun(connect, token):
    @in_database
    def make() -> Execution:
        execution = own(state="pending")
        Execution.objects.update(admitted_at=None)
        return execution

    shown = await show(connect, await make())
    assert (shown["state_label"], shown["started_at"]) == ("waiting in the queue", None)
    assert shown["can_cancel"] and not shown["is_over"]


@in_database
def ask(*asked: dict[str, Any]) -> Execution:
    """An execution of the caller that asks this while it is being started."""
    execution = own(state="starting", lease_holder="us")
    requests = {
        str(number): {"method": "elicitation/create", "params": one} for number, one in enumerate(asked)
    }
    asking = Asker(asyncio.Event())
    asking._requests = requests
    assert asking.look(execution)
    return execution


async def test_a_form_is_answered_in_the_card(connect, token):
    execution = await ask(FORM)
    shown = await show(connect, execution)
    ((key, question),) = shown["questions"].items()
    assert question == {
        "message": f"{execution.source_name} asks: Which seat?",
        "schema": FORM["requestedSchema"],
    }
    said = {key: {"action": "accept", "content": {"seat": "1A"}}}
    answered = await send(connect, "answer_execution", execution, answers=said)
    assert answered.structured_content["questions"] == {}
    assert await in_database(lambda: Execution.objects.get().asked_input.responses)() == {
        "0": {"action": "accept", "content": {"seat": "1A"}}
    }
    again = await send(connect, "answer_execution", execution, answers=said)
    assert again.is_error and "asks nothing at present" in again.content[0].text


async def test_an_answer_that_does_not_fit_is_refused_and_the_question_stays_open(connect, token):
    execution = await ask(FORM)
    (key,) = (await show(connect, execution))["questions"]
    for answers, why in (
        ({key: {"action": "accept", "content": {"seat": 7}}}, f"/answers/{key}/content/seat: 7 is not of"),
        ({key: {"action": "accept"}}, f"/answers/{key}/content/seat: required, but missing"),
        ({"0": {"action": "accept", "content": {"seat": "1A"}}}, "/answers/0: no open question"),
        ({key: {"action": "please"}}, f"/answers/{key}/action"),
        ({}, "/answers"),
    ):
        refused = await send(connect, "answer_execution", execution, answers=answers)
        assert refused.is_error and why in refused.content[0].text
    assert (await show(connect, execution))["questions"].keys() == {key}


async def test_a_page_to_visit_is_declined_and_the_next_question_has_another_key(connect, token):
    execution = await ask(PAGE, FORM)
    first, second = (await show(connect, execution))["questions"].items()
    assert first[1] == {"message": f"{execution.source_name} asks: Pay here.", "url": "https://pay.example/7"}
    said = {first[0]: {"action": "decline", "content": {"ignored": True}}}
    left = await send(connect, "answer_execution", execution, answers=said)
    assert left.structured_content["questions"].keys() == {second[0]}
    later = await ask(FORM)
    assert not {first[0], second[0]} & (await show(connect, later))["questions"].keys()


async def test_what_a_question_hides_is_shown_and_a_result_stays_as_it_is(connect, token):
    shown = await show(connect, await ask(ODD))
    (question,) = shown["questions"].values()
    seat = question["schema"]["properties"]["seat"]
    assert "\\u202e" in question["message"] and "\\u202e" in seat["title"]
    assert seat["enum"] == [TURNED, "1A"]
    ended = await in_database(own)(payload={"output": TURNED})
    assert (await show(connect, ended))["result"]["part"] == TURNED


async def test_only_the_caller_answers_and_nobody_else_sees_the_run(connect, token):
    execution = await ask(FORM)
    (key,) = (await show(connect, execution))["questions"]
    stranger = (await in_database(create_token)(name="stranger"))[1]
    admin = (await in_database(create_token)(name="admin", scopes=["catalogue:admin", "workflows:run"]))[1]
    answers = {key: {"action": "decline"}}
    for bearer, tool, given in (
        (stranger, "show_execution", {}),
        (stranger, "answer_execution", {"answers": answers}),
        (admin, "answer_execution", {"answers": answers}),
    ):
        async with connect(as_token=bearer) as client:
            refused = await client.call_tool(tool, {"execution_id": str(execution.pk)} | given)
        assert refused.is_error and "Unknown execution" in refused.content[0].text
    async with connect(as_token=admin) as client:
        seen = await client.call_tool("show_execution", {"execution_id": str(execution.pk)})
    assert seen.structured_content["questions"] == {}


@pytest.fixture
def people(settings: Any) -> list[User]:
    return [User.objects.create_superuser(name, f"{name}@example.com") for name in ("anna", "ben", "cleo")]


@pytest.fixture
def guarded(long_workflow: Workflow, wire_engine: WireEngine) -> Workflow:
    wire_engine.on_start = replies(200, completed())
    Workflow.objects.update(input_schema={"type": "object", "properties": {"amount": {}, "secret": {}}})
    long_workflow.refresh_from_db()
    overrides = {"secret": {"constant": "hidden"}}
    return override_workflow(
        long_workflow, approval_required=True, approvers_needed=2, argument_overrides=overrides
    )


async def call_guarded(connect: Connect) -> Execution:
    async with connect() as client:
        handle = await client.call_tool("report", {"amount": 7, "note": "x" * 500_000})
    assert not handle.is_error, handle.content[0].text
    return await in_database(Execution.objects.get)()


async def test_an_approval_shows_what_will_be_sent_and_who_has_agreed(connect, guarded, people, settings):
    execution = await call_guarded(connect)
    before = (await show(connect, execution))["approval"]
    large = "(500,000 characters, which the page of the approval shows.)"
    assert before["arguments"] == {"amount": 7, "note": large}
    assert (before["needed"], before["agreed"], before["asked_by"]) == (2, 0, "agent")
    assert before["url"] == f"{settings.PUBLIC_URL}/admin/executions/approval/{execution.pk}/change/"
    assert before["before"] == {"runs": 0, "succeeded": 0, "last_at": None}
    assert before["requested_at"] < before["expires_at"] and "needs approval" in before["reason"]

    @in_database
    def agree() -> None:
        approval = Approval.objects.get()
        changed = {"amount": 8, "note": "x", "secret": "hidden"}
        approval = change_arguments(approval.pk, user=people[0], arguments=changed, seen=approval.binding)
        decide(approval.pk, user=people[1], verdict="approve", seen=approval.binding)

    await agree()
    shown = await show(connect, execution)
    after = shown["approval"]
    assert (shown["state"], shown["is_over"], shown["can_cancel"]) == ("unapproved", False, True)
    assert (after["arguments"], after["agreed"]) == ({"amount": 8, "note": "x"}, 1)
    assert after["changed"] == {"by": "anna", "names": ["amount", "note"]}


async def test_a_rejected_one_says_why_and_that_nothing_was_started(connect, guarded, people):
    execution = await call_guarded(connect)
    await in_database(decide)(execution.pk, user=people[0], verdict="refuse", words="Too much.")
    shown = await show(connect, execution)
    assert (shown["state"], shown["is_over"], shown["approval"]) == ("failed", True, None)
    assert "anna refused it: Too much." in shown["error"]
    assert "Do not repeat a refused call" in shown["advice"]


async def test_results_come_as_they_are_in_parts_with_their_pictures(connect, token):
    as_json = await show(connect, await in_database(own)(payload={"output": {"sum": 5}}))
    assert as_json["result"] == {
        "media_type": "application/json", "characters": 10, "offset": 0, "part": '{"sum": 5}',
        "next_offset": None,
    }  # fmt: skip
    assert (as_json["progress"], as_json["is_over"], as_json["succeeded"]) == (100.0, True, True)
    assert (as_json["can_cancel"], as_json["advice"]) == (False, None)
    plain = await show(connect, await in_database(own)(payload={"output": "Five."}))
    assert (plain["result"]["media_type"], plain["result"]["part"]) == ("text/plain", "Five.")

    pictured = await in_database(own)(payload={"output": None, "content": [text("Here."), picture()]})
    result = await send(connect, "show_execution", pictured)
    document, image = result.content
    assert (image.mime_type, image.data) == ("image/png", in_base64(PNG))
    assert json.loads(document.text)["result"]["part"].startswith("Here.")


async def test_five_megabytes_arrive_part_by_part(connect, token):
    whole = "5 MB…" * 1_000_000
    execution = await in_database(own)(payload={"output": whole})
    read, offset = "", 0
    while offset is not None:
        result = (await show(connect, execution, output_offset=offset))["result"]
        assert (result["characters"], result["offset"]) == (len(whole), len(read))
        assert len(result["part"]) <= 400_000
        read, offset = read + result["part"], result["next_offset"]
    assert read == whole
    past = await send(connect, "show_execution", execution, output_offset=len(whole))
    assert past.is_error and "past the end" in past.content[0].text


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({"state": "failed", "error": "Out of paper.", "error_kind": "execution"}, "try again with others"),
        ({"state": "cancelled", "error": "Somebody cancelled it."}, "if the result is still needed"),
        ({"state": "timed_out", "error": "It took too long.", "error_kind": "timeout"}, "longer timeout"),
        ({"state": "unconfirmed", "error": "No answer.", "error_kind": "execution"}, "may be running"),
    ],
    ids=lambda value: value.get("state", "") if isinstance(value, dict) else "",
)
async def test_one_that_did_not_succeed_says_why_and_what_to_do(connect, token, fields, advice):
    shown = await show(connect, await in_database(own)(payload={"output": None}, **fields))
    assert (shown["state"], shown["error"]) == (fields["state"], fields["error"])
    assert shown["is_over"] and not shown["succeeded"] and not shown["can_cancel"]
    assert advice in shown["advice"] and shown["result"] is None


async def test_a_removed_output_is_said_to_be_removed(connect, token):
    @in_database
    def make() -> Execution:
        Retention.objects.create(keep_payloads_days=1, keep_events_days=1)
        old = timezone.now() - timedelta(days=3)
        execution = own(created_at=old)
        prune()
        assert ExecutionPayload.objects.get(pk=execution.pk).output is None
        return execution

    shown = await show(connect, await make())
    assert shown["result"] is None and shown["timeline"] == []
    assert "output is no longer stored" in shown["problems"][0]


@pytest.mark.parametrize("has_pages", [True, False])
async def test_only_people_who_have_pages_get_the_link(connect, has_pages):
    user = await in_database(User.objects.create_user)("dora", is_superuser=True, is_staff=has_pages)
    hers = (await in_database(create_token)(name="hers", created_by=user))[1]
    execution = await in_database(own)("hers")
    async with connect(as_token=hers) as client:
        result = await client.call_tool("show_execution", {"execution_id": str(execution.pk)})
    assert (result.structured_content["url"] is not None) == has_pages


def call_of_agent(**fields: Any) -> ToolCall:
    agent = AccessToken.objects.get(name="agent")
    access = Access(caller=agent.caller, scopes=frozenset(agent.scopes))
    return ToolCall(access=access, protocol_version="2026-07-28", **fields)


def test_a_poll_of_a_running_one_takes_two_queries(token):
    execution = own(state="running", run_id="7", polled_at=timezone.now())
    call = call_of_agent()
    _read(call, str(execution.pk), 0)
    with CaptureQueriesContext(connection) as queries:
        _read(call, str(execution.pk), 0)
    assert len(queries) == 2, [query["sql"] for query in queries]


NEEDY = {
    "type": "object",
    "properties": {"month": {"type": "string"}, "note": {"type": "string"}, "region": {"type": "string"}},
    "required": ["month", "region"],
}


@pytest.fixture
def needy(long_workflow: Workflow, token: str) -> Workflow:
    Workflow.objects.update(input_schema=NEEDY)
    long_workflow.refresh_from_db()
    return override_workflow(long_workflow, argument_overrides={"region": {"constant": "eu"}})


async def execute(connect: Connect, options: dict[str, Any], **given: Any) -> CallToolResult:
    async with connect(**options) as client:
        return await client.call_tool("execute_workflow", given)


async def test_missing_arguments_are_asked_for_in_a_form_where_a_card_can_show_it(connect, needy, era):
    shows_cards = CARDS | {"mode": era}
    for given in ({}, {"note": "soon"}):
        asked = await execute(connect, shows_cards, name="report", arguments=given)
        form = asked.structured_content["form"]
        assert (form["name"], form["title"], form["given"]) == ("report", needy.title, given)
        assert form["schema"]["required"] == ["month"] and "region" not in form["schema"]["properties"]
        assert not asked.is_error and "do not call it again" in asked.content[0].text
    assert not await in_database(Execution.objects.exists)()

    refused = await execute(connect, {"mode": era}, name="report", arguments={})
    assert refused.is_error and "/month: required, but missing" in refused.content[0].text
    unknown = await execute(connect, shows_cards, name="nothing")
    assert unknown.is_error and "Unknown or disabled tool" in unknown.content[0].text
    await execute(connect, shows_cards, name="report", arguments={"month": "May"})
    started = await in_database(Execution.objects.select_related("payload").get)()
    assert started.payload.input == {"month": "May", "region": "eu"}


async def test_a_form_has_the_name_of_the_call(connect, needy):
    later = (timezone.now() + timedelta(days=1)).isoformat()
    await in_database(Workflow.objects.update)(tool_aliases={"monthly": later})
    asked = await execute(connect, CARDS, name="monthly")
    assert asked.structured_content["form"]["name"] == "monthly"


async def test_a_workflow_that_needs_nothing_runs_without_a_form(connect, long_workflow):
    await execute(connect, CARDS, name="report")
    assert await in_database(Execution.objects.count)() == 1


async def test_a_form_of_a_portable_toolset_has_the_workflows_own_arguments(connect, needy):
    schema = NEEDY | {"properties": {"page[size]": {"type": "integer"}, "month": {"$ref": "#/$defs/month"}}}
    schema |= {"required": ["month"], "$defs": {"month": {"type": "object"}}}
    await in_database(Workflow.objects.update)(input_schema=schema, argument_overrides={})
    await in_database(make_toolset)("some", picked=[needy], portable=True)
    portable = CARDS | {"toolset": "some"}
    asked = await execute(connect, portable, name="report", arguments={"page_size": 5})
    form = asked.structured_content["form"]
    assert (form["given"], form["schema"]["required"]) == ({"page[size]": 5}, ["month"])
    filled_in = form["given"] | {"month": {"name": "May"}}
    await execute(connect, portable, name=form["name"], arguments=filled_in)
    started = await in_database(Execution.objects.select_related("payload").get)()
    assert started.payload.input == filled_in


async def test_a_toolset_without_cards_has_neither_forms_nor_their_count(connect, needy):
    await in_database(make_toolset)("plain", picked=[needy], cards=False)
    for toolset in (None, "plain"):
        options = CARDS | {"toolset": toolset}
        await execute(connect, options, name="report", arguments={"month": "May"})
        answer = await execute(connect, options, name="report")
        assert answer.is_error == (toolset == "plain")
    made = await in_database(lambda: dict(Execution.objects.values_list("toolset", "had_card")))()
    assert made == {"": True, "plain": False}
