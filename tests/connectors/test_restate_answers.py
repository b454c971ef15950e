"""Answers that a healthy Restate does not give at will: odd states, no leaders, the pages of proxies."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from connectors.definitions import WorkflowDefinition
from connectors.errors import InvalidAnswer, NotFound, OutcomeUnknown, Rejected, Unreachable
from connectors.protocol import RunRef, RunState, WorkflowRef
from connectors.restate import RestateConfig, RestateConnector
from connectors.testing import closing
from tests.connectors.scripted import Received, ScriptedEngine, response

KEY = UUID("3f0e4a52-7a37-4d3f-9d0a-3c8e86b4a001")
RUN_ID = "inv_1bEiJFOi79tL29qFCROnd6KzmOT74xYy6O"
SHARED = {"takes": "fields", "type": "Workflow", "shared": {"decide": "value", "stage": "nothing"}}
WORKFLOW = WorkflowRef(id="Approval/run", name="Approval/run", metadata=SHARED)
RUN = RunRef(workflow=WORKFLOW, run_id=RUN_ID, key=KEY)
OUTPUT, STAGE = f"/restate/invocation/{RUN_ID}/output", f"/Approval/{KEY}/stage"
TOKEN = "restate-token-0123456789"
COMPLETED = {"id": RUN_ID, "status": "completed", "completion_result": "success"}
RUNNING = {"id": RUN_ID, "status": "running", "target_service_key": str(KEY)}
OF_RESTATE = {"x_restate_id": RUN_ID}


@asynccontextmanager
async def answering(
    answers: dict[str, bytes], **settings: Any
) -> AsyncIterator[tuple[RestateConnector, ScriptedEngine]]:
    """Both addresses are one engine, which answers 404 to what is not in `answers`."""

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(answers.get(request.target, response(404, '{"message": "nothing there"}')))

    async with ScriptedEngine(behave) as engine:
        given = {"ingress_url": engine.base_url, "admin_url": engine.base_url, "token": TOKEN} | settings
        async with closing(RestateConnector(RestateConfig.model_validate(given))) as connector:
            yield connector, engine


def rows(*found: dict[str, Any]) -> bytes:
    return response(200, json.dumps({"rows": found}))


async def test_one_token_is_for_both_addresses_unless_the_admin_api_has_its_own():
    """A5.1: as bearer tokens."""
    for admin_token, sent in (("", TOKEN), ("admin-token-9876543210", "admin-token-9876543210")):
        answers = {"/query": rows(COMPLETED), OUTPUT: response(200, "7", **OF_RESTATE)}
        async with answering(answers, admin_token=admin_token) as (connector, engine):
            assert (await connector.poll(RUN)).output == 7
        by_target = {request.target: request.headers["authorization"] for request in engine.received}
        assert by_target == {"/query": f"Bearer {sent}", OUTPUT: f"Bearer {TOKEN}"}


async def test_until_partitions_have_leaders_a_run_is_asked_for_again():
    """A7.2: Restate answers 500 to queries then; only an id that is none gets another answer of that kind."""
    for told, raised in (("no leader for partition 1", Unreachable), ("non valid invocation id", NotFound)):
        async with answering({"/query": response(500, json.dumps({"message": told}))}) as (connector, _):
            with pytest.raises(raised):
                await connector.poll(RUN)


@pytest.mark.parametrize("row", [{"status": "dreaming"}, {"status": "completed"}, {"status": 7}, {}])
async def test_a_state_that_is_not_known_is_never_guessed(row):
    """B6: the run is asked for again."""
    async with answering({"/query": rows(row)}) as (connector, _):
        with pytest.raises(InvalidAnswer):
            await connector.poll(RUN)


async def test_a_page_of_a_proxy_is_no_result():
    """B6: all that comes from Restate names an invocation."""
    page = response(200, "<title>Sign in</title>", content_type="text/html")
    async with answering({"/query": rows(COMPLETED), OUTPUT: page}) as (connector, _):
        ended = await connector.poll(RUN)
        assert (ended.state, ended.output, type(ended.unread)) == (RunState.COMPLETED, None, InvalidAnswer)
    async with answering({"/query": rows(RUNNING), f"/Approval/{KEY}/decide": page}) as (connector, _):
        with pytest.raises(OutcomeUnknown):
            await connector.signal(RUN, "decide", {"input": "yes"})


@pytest.mark.parametrize(
    ("output", "error"),
    [
        (response(200, json.dumps("x" * 2_000), **OF_RESTATE), InvalidAnswer),
        (response(200, "{", **OF_RESTATE), InvalidAnswer),
        (response(401), Rejected),
        (response(404), NotFound),
        (response(470, '{"message": "not ready"}'), Rejected),
        (response(500), Unreachable),
        (response(503), Unreachable),
    ],
)
async def test_a_completed_run_whose_result_cannot_be_read_has_completed(output, error):
    """A2.3"""
    told = {"/query": rows(COMPLETED), OUTPUT: output}
    async with answering(told, max_response_bytes=1_500) as (connector, _):
        ended = await connector.poll(RUN)
    assert (ended.state, ended.output, type(ended.unread)) == (RunState.COMPLETED, None, error)


async def test_a_result_that_is_no_text_is_named_instead():
    """A2.3"""
    binary = response(200, b"\xff\xfe", content_type="application/octet-stream", **OF_RESTATE)
    async with answering({"/query": rows(COMPLETED), OUTPUT: binary}) as (connector, _):
        ended = await connector.poll(RUN)
    assert (ended.state, ended.unread) == (RunState.COMPLETED, None)
    assert "2 bytes of application/octet-stream" in ended.output


async def test_a_paused_invocation_without_a_journal_is_told_without_its_reason():
    """A7.3: an older Restate has no journal of events."""
    paused = {"id": RUN_ID, "status": "paused"}
    for event in ({"event_json": "{"}, {"event_json": '{"last_failure": 7}'}, {}):
        async with answering({"/query": rows(paused | event)}) as (connector, _):
            seen = await connector.poll(RUN)
        assert seen.progress_message == "Paused until it is resumed."


@pytest.mark.parametrize(
    ("status", "source", "raised"),
    [
        (500, "invocation", Rejected),
        (404, "invocation", Rejected),
        (500, "ingress", Unreachable),
        (429, "ingress", Unreachable),
        (404, "ingress", NotFound),
        (400, "ingress", Rejected),
        (403, "ingress", Rejected),
    ],
)
async def test_whose_error_it_is_decides_what_it_means(status, source, raised):
    """A8.2: a handler may fail with any status, which then says nothing of Restate."""
    refused = response(status, '{"message": "The kettle is empty."}', x_restate_error_source=source)
    async with answering({"/query": rows(RUNNING), STAGE: refused}) as (connector, _):
        with pytest.raises(raised, match=r"The kettle is empty\."):
            await connector.query(RUN, "stage", {})


async def test_an_object_without_a_key_is_not_called():
    """A2.4: the argument says which object is meant, and is never a part of the path."""
    kettle = WorkflowRef(id="Kettle/boil", name="Kettle/boil", metadata={"type": "VirtualObject"})
    async with answering({}) as (connector, engine):
        for arguments in ({}, {"key": 7}, {"key": ""}, {"key": ".."}):
            with pytest.raises(Rejected):
                await connector.start(kettle, arguments, key=KEY)
    assert not engine.received


async def test_a_listing_of_odd_services_keeps_the_others():
    """B6: each odd one is rejected with a reason."""
    handler = {"name": "boil", "ty": "Exclusive", "input_description": "none"}
    services = [
        7,
        {"name": "NoHandlers"},
        {"name": "Odd", "ty": "Actor", "handlers": [handler]},
        {"name": "Odd", "ty": "Service", "handlers": [None, {"name": 7}]},
        {"name": "Kettle", "ty": "VirtualObject", "handlers": [handler], "metadata": 7},
    ]
    async with answering({"/services": response(200, json.dumps({"services": services}))}) as (connector, _):
        items = [item async for item in connector.discover()]
    assert [getattr(item, "reason", "") == "" for item in items] == [False, False, False, False, False, True]


async def test_a_start_is_repeated_only_while_restate_remembers_its_key():
    """B3: a run may have ended, and been forgotten, long before its timeout."""
    handler = {"name": "boil", "input_description": "none"}
    services = [
        {"name": name, "ty": "Service", "handlers": [handler], "idempotency_retention": told}
        for name, told in (("Half", "30m"), ("Whole", "1h 30m"), ("Days", "2d"), ("Brief", "9m 59s"))
    ]
    async with answering({"/services": response(200, json.dumps({"services": services}))}) as (connector, _):
        found = {item.name: item async for item in connector.discover()}
        kept = {}
        for name in ("Half/boil", "Whole/boil", "Days/boil"):
            metadata = found[name].metadata  # type: ignore[union-attr]
            workflow = WorkflowRef(id=name, name=name, metadata=metadata, timeout_seconds=3_600)
            kept[name] = connector.capabilities_for(workflow).idempotent_start
    assert kept == {"Half/boil": False, "Whole/boil": True, "Days/boil": True}
    assert "for only 599 s" in found["Brief/boil"].reason  # type: ignore[union-attr]


async def test_a_field_that_is_called_key_is_not_taken_for_the_objects_key():
    """A6.1: both reach their places."""
    schema = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
    handler = {"name": "turn", "input_description": "JSON object", "input_json_schema": schema}
    services = [{"name": "Lock", "ty": "VirtualObject", "handlers": [handler]}]
    answers = {
        "/services": response(200, json.dumps({"services": services})),
        "/Lock/door/turn/send": response(202, json.dumps({"invocationId": RUN_ID, "status": "Accepted"})),
    }
    async with answering(answers) as (connector, engine):
        (found,) = [item async for item in connector.discover()]
        assert isinstance(found, WorkflowDefinition)
        assert found.input_schema["required"] == ["key", "input"]
        workflow = WorkflowRef(id=found.id, name=found.name, metadata=found.metadata)
        await connector.start(workflow, {"key": "door", "input": {"key": "K7"}}, key=KEY)
    assert engine.received[-1].json == {"key": "K7"}
    assert engine.received[-1].headers["idempotency-key"] == str(KEY)


async def test_an_input_without_a_schema_may_be_left_out_or_be_any_json():
    """A6.1: SDKs without types describe handlers that take nothing in the same way."""
    handler = {"name": "pour", "input_description": "application/json", "input_json_schema": True}
    services = [{"name": "Pot", "ty": "Service", "handlers": [handler]}]
    answers = {
        "/services": response(200, json.dumps({"services": services})),
        "/Pot/pour/send": response(202, json.dumps({"invocationId": RUN_ID, "status": "Accepted"})),
    }
    async with answering(answers) as (connector, engine):
        (found,) = [item async for item in connector.discover()]
        assert isinstance(found, WorkflowDefinition)
        assert "required" not in found.input_schema
        workflow = WorkflowRef(id=found.id, name=found.name, metadata=found.metadata)
        for arguments in ({}, {"input": "one cup"}, {"input": {"cups": 2}}):
            await connector.start(workflow, arguments, key=KEY)
    bodies = [request.body for request in engine.received if request.method == "POST"]
    assert bodies == [b"", b'"one cup"', b'{"cups":2}']
