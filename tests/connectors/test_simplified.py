"""What the simplified connector sends, and how it reads what comes back."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import ValidationError

from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.errors import InvalidAnswer, Misconfigured, OutcomeUnknown, Rejected, Unsupported
from connectors.protocol import RunRef, RunState, Started, WorkflowRef
from connectors.simplified import SimplifiedConfig, SimplifiedConnector, read_snapshot, read_started
from connectors.testing import everything_told_by
from tests.connectors.scripted import Received, ScriptedEngine, replies, response, routes
from tests.processes import ExampleEngine

LIST = "/api/v1/service/workflows"
KEY = UUID("11111111-2222-3333-4444-555555555555")
REPORT = WorkflowRef(id="2724", name="report")
RUN = RunRef(workflow=REPORT, run_id="8f496b6a-c905-41bb-b7b7-200a8982ab30", key=KEY)
STARTED = {"correlation_id": "2724_9a92222c2ca34fffbfd00e8767dd22d0", "workflow_id": RUN.run_id}
RUNNING = {"status": "RUNNING", "workflow_id": "2724"}


def listed(*ids: str) -> list[dict[str, str]]:
    return [{"id": id_, "name": f"workflow {id_}", "description": "Does something."} for id_ in ids]


@asynccontextmanager
async def connected(
    engine: ScriptedEngine | ExampleEngine, **settings: Any
) -> AsyncIterator[SimplifiedConnector]:
    settings = {"base_url": engine.base_url, "api_key": "key-0123456789", **settings}
    connector = SimplifiedConnector(SimplifiedConfig.model_validate(settings))
    try:
        yield connector
    finally:
        await connector.aclose()


async def discovered(
    engine: ScriptedEngine | ExampleEngine, **settings: Any
) -> list[WorkflowDefinition | RejectedDefinition]:
    async with connected(engine, **settings) as connector:
        return [item async for item in connector.discover()]


async def sent(
    call: Callable[[SimplifiedConnector], Awaitable[object]], answer: Any, **settings: Any
) -> Received:
    """The one request that a call makes."""
    async with ScriptedEngine(replies(200, answer)) as engine, connected(engine, **settings) as connector:
        await call(connector)
    (request,) = engine.received
    return request


# --- requests ---


async def test_a_start_is_sent_as_the_api_wants_it():
    """B1: path, header and body of a start."""
    request = await sent(lambda connector: connector.start(REPORT, {"year": 2024}, key=KEY), STARTED)
    assert (request.method, request.target) == ("POST", "/api/v1/service/workflows/2724/start")
    assert request.headers["authorization"] == "Api-Key key-0123456789"
    assert request.headers["content-type"] == "application/json"
    assert request.json == {"input": {"year": 2024}, "source": "application"}
    assert "idempotency-key" not in request.headers


async def test_a_status_request_is_sent_as_the_api_wants_it():
    """B2: path and headers of a status request."""
    request = await sent(lambda connector: connector.poll(RUN), RUNNING)
    assert (request.method, request.target) == ("GET", f"{LIST}/2724/runs/{RUN.run_id}/status")
    assert request.headers["authorization"] == "Api-Key key-0123456789"
    assert (request.headers["accept"], request.headers["accept-language"]) == ("application/json", "en")


async def test_a_cancel_goes_to_the_path_configured():
    """A7.5: the engine's own cancel endpoint."""
    request = await sent(lambda connector: connector.cancel(RUN), {}, cancel_path="/stop?run={run_id}")
    assert (request.method, request.target) == ("POST", f"/stop?run={RUN.run_id}")


async def test_the_key_is_sent_where_the_engine_honours_it():
    """B1: the execution's id makes a start repeatable."""
    request = await sent(
        lambda connector: connector.start(REPORT, {}, key=KEY), STARTED, idempotency_header="X-Once"
    )
    assert request.headers["x-once"] == str(KEY)


@pytest.mark.parametrize(
    ("settings", "header"),
    [
        ({"api_key": ""}, None),
        ({"authorization_scheme": ""}, "key-0123456789"),
        ({"authorization_scheme": "Bearer"}, "Bearer key-0123456789"),
        ({"api_key": " padded \n"}, "Api-Key padded"),
    ],
)
async def test_the_authorization_header_follows_the_settings(settings, header):
    """B1, B10: engines differ in how they want to be asked."""
    request = await sent(lambda connector: connector.check(), [], **settings)
    assert request.headers.get("authorization") == header


async def test_ids_cannot_change_the_address():
    """B8: whatever an id contains, it stays one part of the path."""
    ref = WorkflowRef(id="a/../b?c#d é{run_id}", name="x")
    request = await sent(lambda connector: connector.start(ref, {}, key=KEY), STARTED)
    assert request.target == f"{LIST}/a%2F..%2Fb%3Fc%23d%20%C3%A9%7Brun_id%7D/start"


@pytest.mark.parametrize("id_", ["..", ".", ""])
async def test_an_id_that_would_change_the_path_is_not_sent(id_):
    """B8: no encoding protects these."""
    async with ScriptedEngine(replies(200, STARTED)) as engine, connected(engine) as connector:
        with pytest.raises(Rejected, match="cannot be used as workflow_id"):
            await connector.start(WorkflowRef(id=id_, name="x"), {}, key=KEY)
    assert engine.received == []


# --- looking a run up by its key ---


LOOKUP = "/runs?of={workflow_id}&key={key}"


async def found_for(answer: Any, status: int = 200) -> Started | None:
    async with (
        ScriptedEngine(replies(status, answer)) as engine,
        connected(engine, run_lookup_path=LOOKUP) as connector,
    ):
        return await connector.find_run(REPORT, {}, key=KEY)


async def test_a_lookup_is_sent_as_configured_and_the_start_carries_the_key():
    """B10: without the promise of an idempotency header, the key goes into a header of its own."""
    request = await sent(
        lambda connector: connector.find_run(REPORT, {}, key=KEY), {"runs": []}, run_lookup_path=LOOKUP
    )
    assert (request.method, request.target) == ("GET", f"/runs?of=2724&key={KEY}")
    settings: list[tuple[dict[str, str], str]] = [
        ({}, "idempotency-key"),
        ({"key_header": "X-Our-Key"}, "x-our-key"),
        ({"idempotency_header": "X-Once"}, "x-once"),
    ]
    for setting, header in settings:
        request = await sent(
            lambda connector: connector.start(REPORT, {}, key=KEY),
            STARTED,
            run_lookup_path=LOOKUP,
            **setting,
        )
        assert request.headers[header] == str(KEY)


def test_an_engine_that_looks_runs_up_promises_nothing_about_starts():
    """B3."""
    config = {"base_url": "http://engine.example", "run_lookup_path": LOOKUP}
    capabilities = SimplifiedConnector(SimplifiedConfig.model_validate(config)).capabilities
    assert (capabilities.can_find_runs, capabilities.idempotent_start) == (True, False)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"run_lookup_path": "/runs"}, "must contain {key}"),
        ({"run_lookup_path": "/runs?run={run_id}&key={key}"}, "must not contain {run_id}"),
        ({"run_lookup_path": LOOKUP, "key_header": "Our Key"}, "letters, digits"),
    ],
)
def test_a_lookup_that_could_not_work_is_refused(settings, why):
    """B4."""
    with pytest.raises(ValidationError, match=re.escape(why)):
        SimplifiedConfig.model_validate({"base_url": "http://engine.example"} | settings)


@pytest.mark.parametrize(
    "answer",
    [
        {"runs": [{"run_id": RUN.run_id, "workflow_id": "2724", "idempotency_key": str(KEY)}]},
        [{"id": RUN.run_id}],
        {"data": {"items": [{"runId": RUN.run_id}]}},
        {"run_id": RUN.run_id, "status": "RUNNING", "results": []},
        {"run": {"run_id": RUN.run_id}},
        STARTED,
    ],
    ids=["list", "array", "nested", "run", "wrapped", "receipt"],
)
async def test_a_run_is_found_in_every_usual_answer_to_a_lookup(answer):
    """B10."""
    found = await found_for(answer)
    assert found is not None and found.run_id == RUN.run_id


async def test_a_run_that_is_found_keeps_the_engines_own_correlation_id():
    """B10."""
    answer = [{"id": RUN.run_id, "correlation_id": "2724_8f496b6a"}]
    found = await found_for(answer)
    assert found is not None and found.correlation_id == "2724_8f496b6a"


@pytest.mark.parametrize(
    ("status", "answer"), [(200, []), (200, {"runs": [], "total": 0}), (404, {"error": "no such key"})]
)
async def test_an_empty_list_and_a_404_say_that_there_is_no_run(status, answer):
    """B10."""
    assert await found_for(answer, status) is None


@pytest.mark.parametrize(
    "answer",
    [
        {},
        "none",
        {"ok": True},
        [{"name": "report"}],
        ["8f496b6a"],
        [{"run_id": "a"}, {"run_id": "b"}],
        [{"run_id": "a", "idempotency_key": "another key"}],
        {"workflow_id": "2724", "status": "RUNNING"},
    ],
)
async def test_an_answer_that_leaves_it_open_is_an_error_and_not_a_none(answer):
    """A5.2: an engine that ignores the key must not make us follow a stranger's run, or start another."""
    with pytest.raises(InvalidAnswer):
        await found_for(answer)


# --- listing ---


@pytest.mark.parametrize(
    "answer",
    [
        listed("1", "2"),
        {"workflows": listed("1", "2")},
        {"items": listed("1", "2"), "total": 2},
        {"data": {"workflows": listed("1", "2")}},
        {"results": listed("1", "2"), "next": None},
    ],
)
async def test_the_array_is_found_in_every_usual_envelope(answer):
    """B10, A1.1: engines wrap their listings differently."""
    async with ScriptedEngine(replies(200, answer)) as engine:
        assert [getattr(item, "id", None) for item in await discovered(engine)] == ["1", "2"]


async def test_a_listing_without_an_array_names_the_keys_it_has():
    """A5.1: an admin sees which key to configure."""
    async with ScriptedEngine(replies(200, {"flows": listed("1"), "count": 1})) as engine:
        with pytest.raises(InvalidAnswer, match="object with the keys flows, count"):
            await discovered(engine)
        assert len(await discovered(engine, list_keys=["flows"])) == 1


@pytest.mark.parametrize(
    ("first_next", "second_target"),
    [
        (f"{LIST}?page=2", f"{LIST}?page=2"),
        ("?page=2", f"{LIST}?page=2"),
        ("abc/= 1", f"{LIST}?cursor=abc%2F%3D+1"),
        (7, f"{LIST}?cursor=7"),
    ],
)
async def test_pages_are_followed_by_link_or_cursor(first_next, second_target):
    """B10, A1.1: a listing in pages is read to its end."""
    pages = {
        LIST: {"workflows": listed("1"), "next": first_next},
        second_target: {"workflows": listed("2"), "next": None},
    }
    async with ScriptedEngine(routes(pages)) as engine:
        assert [getattr(item, "id", None) for item in await discovered(engine)] == ["1", "2"]


async def test_an_absolute_link_to_the_same_engine_is_followed():
    """B10: engines like to write whole URLs."""

    async def behave(request: Received, writer: Any) -> None:
        link = f'"http://{request.headers["host"]}{LIST}?page=2"' if "?" not in request.target else '""'
        writer.write(response(200, f'{{"workflows": [], "next": {link}}}'))

    async with ScriptedEngine(behave) as engine:
        assert await discovered(engine) == []
    assert [request.target for request in engine.received] == [LIST, f"{LIST}?page=2"]


async def test_the_example_engines_pages_are_all_read(example_engine):
    """B10, A1.1: over the wire, page by page, the same as at once."""
    at_once = await discovered(example_engine, api_key=example_engine.api_key)
    in_pages = await discovered(example_engine, api_key=example_engine.api_key, list_path=f"{LIST}?limit=3")
    assert in_pages == at_once
    assert len(at_once) >= 3


@pytest.mark.parametrize(
    ("link", "complaint"),
    [
        (LIST, "links back to an earlier page"),
        ("https://evil.example.com/steal", "not on http://127"),
        ({"href": "?page=2"}, "an object, not a string"),
        (True, "a boolean, not a string"),
    ],
)
async def test_a_listing_that_leads_nowhere_good_is_invalid(link, complaint):
    """A1.4, E6: neither loops nor other hosts are followed."""
    async with ScriptedEngine(replies(200, {"workflows": [], "next": link})) as engine:
        with pytest.raises(InvalidAnswer, match=complaint):
            await discovered(engine)


@pytest.mark.parametrize("name", ["next", "next_cursor", "nextCursor"])
async def test_the_next_page_goes_by_any_of_three_names(name):
    """B10, A1.1."""
    pages = {LIST: {"workflows": listed("1"), name: "?page=2"}, f"{LIST}?page=2": {"workflows": listed("2")}}
    async with ScriptedEngine(routes(pages)) as engine:
        assert [getattr(item, "id", None) for item in await discovered(engine)] == ["1", "2"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"has_more": True, "next": None}, "has_more"),
        ({"page": 1, "next_page": 2}, "next_page"),
        ({"nextPageToken": "abc"}, "nextPageToken"),
        ({"links": {"self": LIST, "next": f"{LIST}?page=2"}}, "links.next"),
        ({"_links": {"next": {"href": "?page=2"}}}, "_links.next"),
    ],
)
async def test_a_first_page_is_not_taken_for_the_whole_listing(more, said):
    """A1.1, A5.1: the workflows of the other pages would be missing, and nothing would say why."""
    async with ScriptedEngine(replies(200, {"workflows": listed("1")} | more)) as engine:
        with pytest.raises(InvalidAnswer, match=rf"announces more items \({said}\)"):
            await discovered(engine)
        engine.behave = replies(200, {"workflows": listed("1"), "has_more": False, "links": {"next": None}})
        assert len(await discovered(engine)) == 1


@pytest.mark.parametrize("name", ["total", "total_count", "totalItems"])
async def test_a_listing_with_fewer_workflows_than_it_announces_is_no_whole_listing(name):
    """A1.1, A5.1: all pages count, and the engine's check says so too."""
    second = f"{LIST}?page=2"
    pages: dict[str, Any] = {
        LIST: {"workflows": listed("1", "2"), name: 3, "next": "?page=2"},
        second: {"workflows": listed("3"), name: 3},
    }
    why = rf"announces 3 items \({name}\), but has only 2 and no next page"
    async with ScriptedEngine(routes(pages)) as engine:
        assert len(await discovered(engine)) == 3
        engine.behave = routes(pages | {second: {"workflows": [], name: 3}})
        with pytest.raises(InvalidAnswer, match=why):
            await discovered(engine)
        engine.behave = routes({LIST: {"data": {"workflows": listed("1", "2")}, name: 3}})
        with pytest.raises(InvalidAnswer, match=why):
            await discovered(engine)
        async with connected(engine) as connector:
            health = await connector.check()
        assert not health.ok and "announces 3 items" in health.message
        assert health.message.endswith('set "Ignore the listing\'s total".')
        assert len(await discovered(engine, ignores_total=True)) == 2


async def test_endless_pages_end(monkeypatch):
    """B8: a listing has a bounded number of pages."""
    monkeypatch.setattr("connectors.simplified.MAX_PAGES", 5)

    async def behave(request: Received, writer: Any) -> None:
        writer.write(response(200, f'{{"workflows": [], "next": "{uuid4()}"}}'))

    async with ScriptedEngine(behave) as engine:
        with pytest.raises(InvalidAnswer, match="more than 5 pages"):
            await discovered(engine)


async def test_a_listing_beyond_every_measure_is_invalid(monkeypatch):
    """B8: so many workflows are an error and not silently a part of them."""
    monkeypatch.setattr("connectors.simplified.MAX_WORKFLOWS", 3)
    async with ScriptedEngine(replies(200, listed("1", "2", "3"))) as engine:
        assert len(await discovered(engine)) == 3
        engine.behave = replies(200, listed("1", "2", "3", "4"))
        with pytest.raises(InvalidAnswer, match="more than 3 workflows"):
            await discovered(engine)


async def test_one_bad_object_does_not_end_the_listing():
    """A6.2, B6: what is usable is yielded, the rest with its reason and place."""
    answer = [*listed("1"), {"id": "2", "name": "no description"}, "nonsense", *listed("3")]
    async with ScriptedEngine(replies(200, answer)) as engine:
        first, second, third, fourth = await discovered(engine)
    assert isinstance(first, WorkflowDefinition)
    assert isinstance(fourth, WorkflowDefinition)
    assert isinstance(second, RejectedDefinition)
    assert isinstance(third, RejectedDefinition)
    assert (second.position, second.id, third.position) == (1, "2", 2)


async def test_what_is_listed_twice_is_yielded_twice():
    """A5.3: which of them counts is for the catalogue to decide, whatever the engine."""
    pages = {
        LIST: {"workflows": listed("1", "2"), "next": "?page=2"},
        f"{LIST}?page=2": {"workflows": listed("2", "3")},
    }
    async with ScriptedEngine(routes(pages)) as engine:
        assert [item.id for item in await discovered(engine)] == ["1", "2", "2", "3"]


async def test_check_says_how_many_workflows_there_are():
    """B9: the cheapest proof that address and key work."""
    async with ScriptedEngine(replies(200, listed("1", "2"))) as engine, connected(engine) as connector:
        assert "workflows listed: 2" in (await connector.check()).message
        engine.behave = replies(200, {"workflows": listed("1"), "next": "?page=2"})
        assert "at least 1" in (await connector.check()).message
    assert len(engine.received) == 2


# --- runs ---


def test_the_answer_to_a_start_names_the_run():
    """B1, B3: `workflow_id` is the run's id there."""
    started = read_started(STARTED)
    assert (started.run_id, started.correlation_id) == (STARTED["workflow_id"], STARTED["correlation_id"])
    assert started.snapshot is None
    assert started.raw == STARTED


def test_a_synchronous_start_brings_its_result_along():
    """A2.3, B1: no poll is needed where the answer says it all."""
    started = read_started(STARTED | {"status": "COMPLETED", "output": {"words": 3}})
    assert started.snapshot is not None
    assert (started.snapshot.state, started.snapshot.output) == (RunState.COMPLETED, {"words": 3})


async def test_a_synchronous_workflow_of_the_example_engine_is_finished_at_once(example_engine):
    """A2.3, B1: the same over the wire."""
    async with connected(example_engine, api_key=example_engine.api_key) as connector:
        definitions = [item async for item in connector.discover() if isinstance(item, WorkflowDefinition)]
        (found,) = [definition for definition in definitions if definition.name == "text_statistics"]
        assert found.execution_type == "sync"
        ref = WorkflowRef(id=found.id, name=found.name)
        started = await connector.start(ref, {"text": "three short words"}, key=uuid4())
    assert started.snapshot is not None
    assert started.snapshot.state is RunState.COMPLETED
    assert started.snapshot.finished_at is not None


@pytest.mark.parametrize(
    "answer", [None, [], "x", {}, {"workflow_id": None}, {"workflow_id": ["a"]}, {"workflow_id": True}]
)
def test_a_start_answer_that_names_no_run_has_an_unknown_outcome(answer):
    """B1: the run may exist all the same."""
    with pytest.raises(OutcomeUnknown):
        read_started(answer)


def test_a_strange_status_beside_a_run_id_does_not_lose_the_run():
    """B1: the run is known, and polling will tell about its status."""
    started = read_started(STARTED | {"status": "DREAMING", "correlation_id": ["odd"]})
    assert (started.run_id, started.correlation_id, started.snapshot) == (STARTED["workflow_id"], "", None)


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("RUNNING", RunState.RUNNING),
        ("COMPLETED", RunState.COMPLETED),
        ("FAILED", RunState.FAILED),
        ("CANCELLED", RunState.CANCELLED),
        ("completed", RunState.COMPLETED),
        ("Canceled", RunState.CANCELLED),
    ],
)
def test_each_status_of_the_api_has_its_state(status, state):
    """B2, A8.2: in whatever case it is written."""
    assert read_snapshot({"status": status}).state is state


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ({"status": "PAUSED"}, "'PAUSED', which this connector does not know"),
        ({"status": None}, "null, not a string"),
        ({}, "null, not a string"),
        ([], "status request is an array"),
    ],
)
def test_a_status_that_means_nothing_is_an_error_that_names_it(answer, complaint):
    """B2: never silently taken for running."""
    with pytest.raises(InvalidAnswer, match=complaint):
        read_snapshot(answer)


def test_a_whole_status_is_read():
    """B2, B3, A7.3: times, progress, output and the raw answer."""
    answer = {
        "create_time": 1_700_000_000_000,
        "start_time": 1_700_000_000_250,
        "update_time": 1_700_000_001_000,
        "end_time": 1_700_000_002_000,
        "status": "COMPLETED",
        "workflow_id": "2724",
        "input": {"year": 2024, "context": {}},
        "output": [1, 2],
        "progress": 100,
        "progress_message": "2 of 2",
    }
    snapshot = read_snapshot(answer)
    assert snapshot.created_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert snapshot.started_at == datetime(2023, 11, 14, 22, 13, 20, 250_000, tzinfo=UTC)
    assert snapshot.updated_at == datetime(2023, 11, 14, 22, 13, 21, tzinfo=UTC)
    assert snapshot.finished_at == datetime(2023, 11, 14, 22, 13, 22, tzinfo=UTC)
    assert (snapshot.output, snapshot.progress, snapshot.progress_message) == ([1, 2], 100.0, "2 of 2")
    assert snapshot.raw == answer


@pytest.mark.parametrize("time", [None, 0, -1, "soon", True, [], 10**18, 10**400, 1e300])
def test_a_time_that_is_none_is_left_out(time):
    """B2, B3: nonsense in one field does not cost the status."""
    assert read_snapshot({"status": "RUNNING", "end_time": time}).finished_at is None


@pytest.mark.parametrize(
    ("progress", "percent"),
    [(0, 0), (42.5, 42.5), (250, 100), (-1, 0), (10**400, 100), ("7", None), (True, None)],
)
def test_progress_is_a_percentage_or_absent(progress, percent):
    """A7.3: what an engine reports is kept within 0 to 100."""
    assert read_snapshot({"status": "RUNNING", "progress": progress}).progress == percent


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"error": "no paper"}, "no paper"),
        ({"error": {"message": "no paper"}, "output": {"error": "other"}}, "no paper"),
        ({"output": {"error": "no paper"}}, "no paper"),
        ({"output": {"message": "no paper"}}, "no paper"),
        ({"reasonForIncompletion": "no paper"}, "no paper"),
        ({"output": {"reasonForIncompletion": "no paper"}}, "no paper"),
        ({"error": "", "output": {"rows": 3}}, "The workflow failed and the engine gave no reason."),
        ({"output": "text"}, "The workflow failed and the engine gave no reason."),
        ({"error": "no\x1b[31mpaper\x00"}, "no [31mpaper"),
    ],
)
def test_a_failure_is_told_in_the_engines_words(answer, words):
    """A2.4, A7.4: wherever the engine put them."""
    assert read_snapshot(answer | {"status": "FAILED"}).error == words


def test_a_long_failure_is_shortened_and_kept_whole_in_the_raw_answer():
    """A7.4, B3: a message stays a message."""
    snapshot = read_snapshot({"status": "FAILED", "error": "x" * 5_000 + "!"})
    assert len(snapshot.error) < 4_100 and snapshot.error.endswith("x!")
    assert snapshot.raw["error"] == "x" * 5_000 + "!"


def test_only_failures_and_cancellations_have_an_error():
    """A8.2: a running or completed run shows none."""
    assert read_snapshot({"status": "COMPLETED", "error": "ignored"}).error == ""
    assert read_snapshot({"status": "CANCELLED"}).error == "The workflow was cancelled at the engine."


# --- settings ---


def config(**settings: Any) -> SimplifiedConfig:
    return SimplifiedConfig.model_validate({"base_url": "https://engine.example.com"} | settings)


def test_the_capabilities_follow_the_settings():
    """A8.5, B2: what is not configured is not promised."""
    sparse = SimplifiedConnector(config(cancel_path="", min_poll_seconds=2)).capabilities
    assert (sparse.idempotent_start, sparse.can_cancel, sparse.min_poll_seconds) == (False, False, 2)
    rich = SimplifiedConnector(config(idempotency_header="Idempotency-Key")).capabilities
    assert (rich.idempotent_start, rich.can_cancel, rich.min_poll_seconds) == (True, True, 1)


async def test_an_engine_without_a_cancel_path_says_unsupported_and_sends_nothing():
    """A8.5: an explicit answer."""
    async with ScriptedEngine(replies(200)) as engine, connected(engine, cancel_path="") as connector:
        with pytest.raises(Unsupported):
            await connector.cancel(RUN)
    assert engine.received == []


@pytest.mark.parametrize(
    ("setting", "value", "complaint"),
    [
        ("base_url", "engine", "http:// or https://"),
        ("base_url", "http://169.254.169.254", "link-local"),
        ("min_poll_seconds", 0.5, "greater than or equal to 1"),
        ("request_timeout_seconds", 0, "greater than 0"),
        ("list_path", "workflows", "start with '/'"),
        ("list_path", "/{workflow_id}", "must not contain {workflow_id}"),
        ("start_path", "/start", "must contain {workflow_id}"),
        ("start_path", "/{workflow_id}/{run_id}", "must not contain {run_id}"),
        ("start_path", "/{workflow_id.__class__}", "must contain {workflow_id}"),
        ("start_path", "/x/{workflow_id!r:>9}", "only names between braces"),
        ("start_path", "/x/{workflow_id:}{workflow_id!s}", "only names between braces"),
        ("status_path", "/{workflow_id}", "must contain {run_id}"),
        ("status_path", "/{run_id", "brace"),
        ("cancel_path", "/cancel", "must contain {run_id}"),
        ("cancel_path", "/{run_id} x", "spaces"),
        ("authorization_scheme", "Api Key", "letters, digits"),
        ("idempotency_header", "Key\r\nX: y", "letters, digits"),
        ("idempotency_header", "Host", "a header that only the product sets"),
        ("idempotency_header", "authorization", "a header that only the product sets"),
        ("key_header", "Content-Type", "a header that can be a constant"),
        ("list_keys", [], "at least 1"),
        ("colour", "red", "Extra inputs"),
    ],
)
def test_unusable_settings_are_refused_with_the_reason(setting, value, complaint):
    """B4: all settings are validated, with clear errors."""
    with pytest.raises(ValidationError, match=setting) as caught:
        config(**{setting: value})
    assert complaint in str(caught.value)


@pytest.mark.parametrize("key", ["schlüssel-geheim", "hunter2\r\nX: y"])
def test_an_unusable_key_is_refused_without_being_quoted(key):
    """B4, E6: not even a wrong key is shown."""
    with pytest.raises(ValidationError, match="printable ASCII") as caught:
        config(api_key=key)
    assert key.partition("\r")[0] not in f"{caught.value}{caught.value!r}"


def test_every_setting_has_a_title_and_a_description():
    """A4.4: the admin's form explains itself."""
    fields = SimplifiedConfig.model_json_schema()["properties"]
    assert all(field.get("title") and field.get("description") for field in fields.values())
    assert fields["api_key"]["format"] == "password"


def test_a_missing_ca_file_is_a_matter_of_configuration():
    """B4, B5: told apart from an engine that is down."""
    with pytest.raises(Misconfigured, match="CA file") as caught:
        SimplifiedConnector(config(ca_file="/no/such/file.pem", api_key="key-0123456789"))
    assert "key-0123456789" not in everything_told_by(caught.value).replace('api_key="key-0123456789"', "")
