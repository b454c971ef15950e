"""Calls of HTTP tools as executions: one request, one record, whatever the API answers."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from catalogue.models import Source, Workflow
from connectors.http_tools.checks import definition_of
from connectors.http_tools.tool import ToolConfig, connection_of
from executions.models import ErrorKind, Execution, State
from tests.connectors.declared_tools import TEXT, tool
from tests.connectors.http_tool_hosts import http_tool_hosts
from tests.connectors.scripted import ScriptedEngine, stays_silent_after
from tests.engines.hostile_servers import hostile
from tests.engines.target_api import Reply, TargetApi, running_target_api
from tests.executions.steps import call, in_database, read, timeline
from tests.factories import make_workflow
from tests.logs import shown_lines

pytestmark = pytest.mark.django_db(transaction=True)
KEY = "api-key-0123456789abcdef"


@pytest.fixture
def api() -> Iterator[TargetApi]:
    with running_target_api(required_headers={"x-key": KEY}) as api, http_tool_hosts("127.0.0.1"):
        yield api


async def keep(api: TargetApi | ScriptedEngine, method: str, path: str, **declared: Any) -> None:
    await in_database(_keep, api, method, path, **declared)


def _keep(api: TargetApi | ScriptedEngine, method: str, path: str, **declared: Any) -> Workflow:
    """The tool `call_api`, as the catalogue keeps it."""
    authentication = {"type": "api_key", "in": "header", "name": "X-Key", "key": KEY}
    config: ToolConfig = tool(method, f"{api.base_url}{path}", authentication=authentication, **declared)
    connection = connection_of(config)
    source = Source(name="api", kind="http", config={"base_url": connection.base_url, **connection.settings})
    source.credentials = connection.secrets
    source.save()
    definition = definition_of(config, base_url=connection.base_url)
    return make_workflow(
        source,
        name="call_api",
        upstream_id=definition.id,
        input_schema=definition.input_schema,
        execution_type=definition.execution_type,
        metadata=definition.metadata,
    )


async def run(**arguments: Any) -> Execution:
    execution = await call("call_api", arguments)
    return await in_database(read, execution)


async def test_the_answer_of_the_api_is_the_result_and_is_kept_as_it_came(api):
    """C5.1, C5.2, C5.4, B3: the record has the request and the response."""
    await keep(api, "POST", "/orders", properties={"note": TEXT}, output={"id": "/order/id"})
    execution = await run(note="Two.")
    assert (execution.state, execution.payload.output) == (State.COMPLETED, {"id": 1})
    assert execution.payload.status_answer["request"]["body"] == {"note": "Two."}
    response = execution.payload.status_answer["response"]
    assert (response["status_code"], response["headers"]["location"]) == (201, "/orders/1")
    assert response["body"]["order"]["asked"] == {"note": "Two."}
    assert execution.run_id == str(execution.pk)
    assert execution.engine_started_at is not None


async def test_an_error_of_the_api_is_a_failed_execution_with_its_raw_answer(api):
    """C5.3, C8.3, A7.4: told in the API's words."""
    await keep(api, "POST", "/status/500")
    execution = await run()
    assert (execution.state, execution.error_kind) == (State.FAILED, ErrorKind.EXECUTION)
    assert execution.error == (
        "POST /status/500: the API answered 500 Internal Server Error: This is status 500."
    )
    assert execution.payload.status_answer["response"]["status_code"] == 500
    assert execution.payload.status_answer["response"]["body"] == {"error": "This is status 500."}
    assert len(api.arrived) == 1


async def test_a_value_that_cannot_be_sent_fails_its_call_and_no_operator_is_alarmed(api):
    """C5.3: the agent's mistake is told to the agent."""
    await keep(api, "GET", "/orders/{id}", properties={"id": TEXT}, required=["id"])
    with shown_lines() as lines:
        execution = await run(id="../admin")
    assert (execution.state, api.arrived, lines) == (State.FAILED, [], [])
    assert "The value of id contains a slash" in execution.error


async def test_a_request_whose_answer_is_lost_is_not_sent_again_where_it_could_happen_twice(api):
    """C5.3: an admin decides."""
    await keep(api, "POST", "/hang-up")
    execution = await run()
    assert execution.state == State.UNCONFIRMED
    assert len(api.arrived) == 1


async def test_the_request_whose_answer_is_lost_is_in_the_record(api):
    """C5.3, B3: without credentials, so that whoever decides knows what was sent."""
    await keep(api, "POST", "/hang-up", properties={"note": TEXT})
    execution = await run(note="Two.")
    assert execution.payload.start_answer == {
        "request": {
            "method": "POST",
            "url": f"{api.base_url}/hang-up",
            "headers": {},
            "query_params": {},
            "body": {"note": "Two."},
        }
    }


async def test_a_call_that_may_not_be_sent_twice_is_waited_for_until_its_deadline(api):
    """C5.3, A7.2: no longer, although the API may take longer; what was sent is in the record."""
    await keep(api, "POST", "/slow", properties={"note": TEXT})
    await in_database(Workflow.objects.update, timeout_seconds=1)
    async with asyncio.timeout(10):
        execution = await run(note="Two.")
    assert execution.state == State.UNCONFIRMED
    assert "POST /slow: no complete response within" in execution.error
    assert execution.payload.start_answer["request"]["body"] == {"note": "Two."}


async def test_a_call_that_may_be_repeated_ends_with_its_deadline_too(api):
    """C5.3, A7.2: there is no time left to repeat it in."""
    await keep(api, "PUT", "/slow")
    await in_database(Workflow.objects.update, timeout_seconds=1)
    async with asyncio.timeout(10):
        execution = await run()
    assert execution.state == State.UNCONFIRMED
    assert "its timeout passed before this could be determined" in execution.error
    assert execution.payload.start_answer["request"]["method"] == "PUT"
    assert len(api.arrived) == 1


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_what_a_stream_has_sent_by_the_deadline_is_the_result(method):
    """C5.3, A7.2, E4: of one request, and not kept for the next call."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
    behave = stays_silent_after(head + b'8\r\n{"n":0}\n\r\n4\r\n{"n"\r\n')
    with hostile(behave) as stream, http_tool_hosts("127.0.0.1"):
        await keep(stream, method, "/watch")
        await in_database(Workflow.objects.update, timeout_seconds=1, cache_seconds=60)
        executions = [await run() for _ in range(2)]
    assert len(stream.received) == 2
    for execution in executions:
        assert (execution.state, execution.payload.output) == (State.COMPLETED, [{"n": 0}])
        assert f"{method} /watch: the answer had not ended after" in execution.error
        assert execution.payload.status_answer["response"]["body"] == [{"n": 0}]


@pytest.mark.usefixtures("quick_repeats")
async def test_a_request_that_only_reads_is_sent_again(api):
    """C5.3: what a busy API asks for is done."""
    await keep(api, "GET", "/text")
    api.tell("GET", "/text", Reply(429, None, {"Retry-After": "0"}), Reply(200, {"done": True}))
    execution = await run()
    assert (execution.state, execution.payload.output) == (State.COMPLETED, {"done": True})
    assert "start_postponed" in await in_database(timeline, execution)


async def test_a_picture_is_kept_as_content(api):
    """C5.4: and is said in words for who reads text."""
    await keep(api, "GET", "/png")
    execution = await run()
    assert execution.payload.output == "70 bytes of image/png."
    assert execution.payload.content[0]["type"] == "image"
    assert KEY not in repr((execution.payload.content, execution.payload.status_answer))
