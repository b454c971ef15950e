"""/api/executions/"""

from contextlib import ExitStack
from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from catalogue import long_lists
from catalogue.discovery import refresh_source
from catalogue.models import Source
from executions.models import Execution, RunNotice, State
from executions.rest.shared import MAX_WAITS_OF_ONE, waiting_places
from executions.retention import prune
from tests import plain_http
from tests.api.clients import administrator, agent, problem_paths, staff_session
from tests.content_blocks import EVERY_KIND
from tests.executions.steps import advance_due_executions
from tests.factories import make_event, make_execution, make_source, make_workflow
from tests.mcp_bridge.conftest import quick_polls
from tests.processes import ExampleEngine

__all__ = ["quick_polls"]

pytestmark = pytest.mark.django_db

GREETING = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "times": {"type": "integer", "minimum": 1}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.fixture
def engine(example_engine: ExampleEngine) -> Source:
    """A source whose engine runs, discovered, with everything enabled."""
    source = make_source(
        "example", base_url=example_engine.base_url, api_key=example_engine.api_key, new_workflows="exposed"
    )
    refresh_source(source)
    return source


# Reading


def test_a_record_shows_everything_that_is_known_of_a_run():
    """B3, A8.2, A8.4"""
    begun = timezone.now() - timedelta(minutes=1)
    execution = make_execution(
        run_id="run-1",
        correlation_id="corr-1",
        created_at=begun,
        started_at=begun,
        engine_started_at=begun,
        engine_finished_at=begun + timedelta(milliseconds=1500),
        payload={
            "input": {"a": "\x00", "big": 10**30},
            "output": [1, None],
            "start_answer": {"workflow_id": "run-1"},
            "status_answer": {"status": "COMPLETED"},
        },
    )
    make_event(execution, "completed")

    shown = administrator().get(f"/api/executions/{execution.pk}/").json()

    assert (shown["input"], shown["output"]) == ({"a": "\x00", "big": 10**30}, [1, None])
    assert (shown["start_answer"], shown["status_answer"]) == (
        {"workflow_id": "run-1"},
        {"status": "COMPLETED"},
    )
    assert (shown["run_id"], shown["correlation_id"], shown["workflow_id"]) == (
        "run-1",
        "corr-1",
        execution.upstream_id,
    )
    assert (shown["state"], shown["success"], shown["error"], shown["duration_ms"]) == (
        "completed",
        True,
        None,
        1500,
    )
    assert datetime.fromisoformat(shown["finished_at"]) == begun + timedelta(milliseconds=1500)
    assert [event["kind"] for event in shown["events"]] == ["created", "completed"]


def test_a_record_shows_content_blocks_as_the_engine_gave_them():
    """B3, A8.4: pictures and files included; null from engines that answer with JSON."""
    with_blocks = make_execution(payload={"output": None, "content": EVERY_KIND})
    without = make_execution()
    shown = administrator().get(f"/api/executions/{with_blocks.pk}/").json()
    assert (shown["content"], shown["output"]) == (EVERY_KIND, None)
    assert administrator().get(f"/api/executions/{without.pk}/").json()["content"] is None


def test_a_running_execution_shows_its_progress_and_no_verdict():
    """A8.1, A8.2"""
    execution = make_execution(state=State.RUNNING, progress=40.0, progress_message="4 of 10")

    shown = administrator().get(f"/api/executions/{execution.pk}/").json()

    assert (shown["state"], shown["progress"], shown["progress_message"]) == ("running", 40.0, "4 of 10")
    assert (shown["success"], shown["finished_at"], shown["duration_ms"]) == (None, None, None)


@pytest.mark.databases("executions.rest.executions")
def test_a_caller_sees_only_what_it_started():
    """404, not 403: that there is such an execution is nobody else's business."""
    client, other = agent(), agent()
    own = make_execution(caller=client.token.caller.key)
    foreign = make_execution(caller=other.token.caller.key)

    assert [row["id"] for row in client.get("/api/executions/").json()["results"]] == [str(own.pk)]
    assert client.get(f"/api/executions/{own.pk}/").status_code == 200
    assert client.get(f"/api/executions/{foreign.pk}/").status_code == 404
    assert client.post(f"/api/executions/{foreign.pk}/cancel/").status_code == 404
    for query in (f"caller={other.token.caller.key}", f"search={foreign.pk}"):
        assert client.get(f"/api/executions/?{query}").json()["count"] == 0


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("state=failed", "b"),
        ("state=failed&state=running", "bc"),
        ("tool=alpha", "a"),
        ("source=east", "ab"),
        ("caller=token:9", "c"),
        ("door=rest", "b"),
        ("created_after=2026-01-02T00:00:00Z", "bc"),
        ("created_before=2026-01-02T00:00:00Z", "a"),
        ("created_after=2026-01-02T00:00:00Z&created_before=2026-01-03T00:00:00%2B00:00", "b"),
        ("ordering=created_at", "abc"),
        ("ordering=-tool", "cab"),
        ("", "cba"),
    ],
)
@pytest.mark.databases("executions.rest.executions")
def test_the_list_is_filtered_and_ordered(query, expected):
    days = [timezone.datetime(2026, 1, day, tzinfo=timezone.get_default_timezone()) for day in (1, 2, 3)]
    a = make_execution(tool_name="alpha", source_name="east", created_at=days[0])
    b = make_execution(
        state=State.FAILED, tool_name="aleph", source_name="east", door="rest", created_at=days[1]
    )
    c = make_execution(
        state=State.RUNNING, tool_name="beta", source_name="west", caller="token:9", created_at=days[2]
    )
    letters = {str(a.pk): "a", str(b.pk): "b", str(c.pk): "c"}

    rows = administrator().get(f"/api/executions/?{query}").json()["results"]

    found = "".join(letters[row["id"]] for row in rows)
    assert found == expected if "ordering" in query or not query else sorted(found) == sorted(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ALPHA", "a"),
        ("east", "ab"),
        ("refused the card", "b"),
        ("card%20%25", ""),
        ("run-7", "c"),
        ("Ada", "c"),
        ("order-4", "a"),
        ("east&state=failed", "b"),
        ("nowhere", ""),
        ("", "abc"),
    ],
)
@pytest.mark.databases("executions.rest.executions", "executions.models.execution")
def test_runs_are_found_by_text(text, expected):
    """E10: by names, ids, keys and what went wrong, together with the other filters."""
    a = make_execution(tool_name="alpha", source_name="east", idempotency_key="order-4")
    b = make_execution(
        state=State.FAILED, tool_name="aleph", source_name="east", error="The bank REFUSED the card."
    )
    c = make_execution(state=State.RUNNING, source_name="west", run_id="run-77", caller_name="Ada's agent")
    letters = {str(a.pk): "a", str(b.pk): "b", str(c.pk): "c"}

    response = administrator().get(f"/api/executions/?search={text}")

    assert sorted(letters[row["id"]] for row in response.json()["results"]) == sorted(expected)


@pytest.mark.databases("executions.models.execution")
def test_a_search_looks_at_the_newest_only_but_finds_whole_ids_among_all(monkeypatch):
    """E10: so that it takes no longer, the more there are; `created_before` leads to older ones."""
    monkeypatch.setattr(long_lists, "SEARCHED", 3)
    monkeypatch.setattr(long_lists, "MAX_FOUND", 2)
    days = [timezone.now() - timedelta(days=day) for day in range(5)]
    made = [
        make_execution(tool_name="same", run_id=f"run-{day}", created_at=at) for day, at in enumerate(days)
    ]
    client = administrator()

    def found(**query):
        return [row["id"] for row in client.get("/api/executions/", query).json()["results"]]

    newest = [str(execution.pk) for execution in made]
    assert found(search="same") == newest[:2]
    assert found(search="same", ordering="created_at") == newest[1::-1]
    assert found(search="same", created_before=days[2].isoformat()) == newest[3:5]
    assert found(search="run-4") == found(search=newest[4]) == found(search=newest[4].upper()) == [newest[4]]
    assert found(search="run-") == newest[:2]


@pytest.mark.databases("catalogue.long_lists")
def test_a_search_that_finds_as_much_as_it_may_does_not_call_its_count_exact(monkeypatch):
    """Or a dashboard shows 1,000 where there are 14,000."""
    monkeypatch.setattr(long_lists, "MAX_FOUND", 2)
    made = [make_execution(tool_name="same", run_id=f"run-{number}") for number in range(3)]
    client = administrator()

    def counted(**query):
        page = client.get("/api/executions/", query).json()
        return page["count"], page["count_is_exact"], page["next"]

    assert counted(search="run-") == counted(search="run-", ordering="tool") == (2, False, None)
    assert counted(search=made[0].run_id) == (1, True, None)


# Starting


def test_every_offending_argument_is_named_and_nothing_is_recorded():
    """A2.5, B5"""
    make_workflow(tool_name="greet", input_schema=GREETING)

    response = agent().post(
        "/api/executions/", {"tool": "greet", "arguments": {"times": "twice", "colour": "red"}}
    )

    assert response.status_code == 400
    assert sorted(problem_paths(response)) == ["/arguments/colour", "/arguments/name", "/arguments/times"]
    assert response.json()["kind"] == "validation"
    assert not Execution.objects.exists()


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "/tool"),
        ({"tool": ["greet"]}, "/tool"),
        ({"tool": "a\x00"}, "/tool"),
        ({"tool": "greet", "arguments": "text"}, "/arguments"),
        ({"tool": "greet", "arguments": [1]}, "/arguments"),
        ({"tool": "greet", "wait_seconds": 51}, "/wait_seconds"),
        ({"tool": "greet", "wait_seconds": -1}, "/wait_seconds"),
        ({"tool": "greet", "wait_seconds": "nan"}, "/wait_seconds"),
        ({"tool": "greet", "wait_seconds": 10**400}, "/wait_seconds"),
        ({"tool": "greet", "argument": {}}, "/argument"),
    ],
)
def test_a_start_that_is_not_well_formed_is_refused_by_field(body, path):
    make_workflow(tool_name="greet")

    response = agent().post("/api/executions/", body)

    assert (response.status_code, problem_paths(response)) == (400, [path])


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("wait_seconds", [0, 5])
def test_a_disabled_tool_is_as_unknown_as_one_that_never_was(wait_seconds):
    make_workflow(tool_name="off", enabled=False)

    for client in (agent(), administrator()):
        for tool in ("off", "never", "list_workflows"):
            response = client.post("/api/executions/", {"tool": tool, "wait_seconds": wait_seconds})
            assert response.status_code == 404
            assert response.json()["detail"] == (
                f"Unknown or disabled tool: {tool}. GET /api/workflows/ lists the available ones."
            )


def test_a_start_is_recorded_before_any_engine_is_asked():
    """B8: there is nobody at this engine's address, and no worker."""
    make_workflow(tool_name="greet", input_schema=GREETING)
    client = agent()

    response = client.post("/api/executions/", {"tool": "greet", "arguments": {"name": "Ada"}})

    assert response.status_code == 202
    assert (response.json()["state"], response.json()["success"]) == ("pending", None)
    assert (response.json()["door"], response.json()["caller"]) == ("rest", client.token.caller.key)
    assert response["Location"].endswith(f"/api/executions/{response.json()['id']}")
    assert client.get(response["Location"]).json()["input"] == {"name": "Ada"}


def test_a_member_of_staff_starts_in_their_own_name():
    make_workflow(tool_name="greet")
    client = staff_session("add_execution")

    shown = client.post("/api/executions/", {"tool": "greet"}).json()

    assert shown["caller"].startswith("user:")
    assert shown["caller_name"].startswith("curator-")


VALUES = {
    "huge": 10**4000,
    "tiny": -(10**4000),
    "float": 1e308,
    "NUL": "\x00",
    "long": "x" * 100_000,
    "empty names": {"": {"": []}},
    "null": None,
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
@pytest.mark.databases("executions.models.execution")
def test_arguments_are_kept_exactly_whatever_json_they_are(value):
    make_workflow(tool_name="anything")
    client = agent()

    response = client.post("/api/executions/", {"tool": "anything", "arguments": {"value": value}})

    assert response.status_code == 202
    assert response.json()["input"] == {"value": value}


@pytest.mark.databases("executions.models.execution")
@pytest.mark.parametrize("filler", ["", "x" * 300_000], ids=["small", "large"])
def test_a_body_that_gives_a_value_twice_is_refused(filler):
    """Only the last counted, without a word, and which of them the caller meant nobody knows."""
    make_workflow(tool_name="transfer")
    body = (
        '{"tool": "transfer", "arguments": {"to": {"amount": 5, "amount": 5000, "note": "' + filler + '"}}}'
    )

    response = agent().post("/api/executions/", body.encode(), content_type="application/json")

    assert (response.status_code, response.json()["kind"]) == (400, "validation")
    assert 'the name "amount" more than once' in response.json()["detail"]
    assert not Execution.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_worker_runs_what_was_started_without_waiting(engine):
    """A2.2, A8.3, A8.4"""
    client = agent()
    started = client.post(
        "/api/executions/", {"tool": "text_statistics", "arguments": {"text": "To be or not"}}
    )

    advance_due_executions()

    shown = client.get(started["Location"]).json()
    assert (shown["state"], shown["success"], shown["output"]["words"]) == ("completed", True, 4)
    assert shown["run_id"] and shown["start_answer"] and shown["started_at"] and shown["finished_at"]


@pytest.mark.django_db(transaction=True)
def test_waiting_brings_the_result_with_the_answer(engine, example_engine):
    """A2.2, A7.1, B3: and our record agrees with the engine's own."""
    response = agent().post(
        "/api/executions/",
        {"tool": "csv_profile", "arguments": {"csv": "a,b\n1,2\n3,4\n"}, "wait_seconds": 30},
    )

    assert response.status_code == 201
    shown = response.json()
    assert (shown["state"], shown["output"]["rows"]) == ("completed", 2)
    assert shown["run_id"] in [run["run_id"] for run in example_engine.runs()]
    assert shown["status_answer"]["status"] == "COMPLETED"


@pytest.mark.django_db(transaction=True)
def test_a_run_that_fails_while_waited_for_is_a_record_with_the_engines_reason(engine):
    """A7.4, A5.2"""
    response = agent().post(
        "/api/executions/", {"tool": "csv_profile", "arguments": {"csv": "a,b\n1\n"}, "wait_seconds": 30}
    )

    assert response.status_code == 201
    assert (response.json()["success"], response.json()["error"]["kind"]) == (False, "execution")
    assert response.json()["error"]["message"]


@pytest.mark.django_db(transaction=True)
def test_a_caller_whose_requests_wait_already_is_answered_at_once(engine):
    """E7, A7.1: the run goes on, and everybody else's requests have threads left."""
    client = agent()
    body = {"tool": "countdown", "arguments": {"seconds": 30}, "wait_seconds": 50}
    with ExitStack() as stack:
        for _ in range(MAX_WAITS_OF_ONE):
            assert stack.enter_context(waiting_places.one_for(client.token.caller.key))
        response = client.post("/api/executions/", body)
    assert (response.status_code, response.json()["state"]) == (202, "pending")


# Idempotency keys


def start(client, arguments=None, *, key="a key", tool="greet", **body):
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post(
        "/api/executions/", {"tool": tool, "arguments": arguments or {}} | body, headers=headers
    )


@pytest.mark.databases("executions.starting")
def test_a_repeated_key_gives_the_execution_that_there_is_and_says_so():
    make_workflow(tool_name="greet")
    client = agent()

    first, again = start(client), start(client)

    assert (first.status_code, again.status_code) == (202, 202)
    assert (again.json()["id"], again["Location"]) == (first.json()["id"], first["Location"])
    assert ("Idempotent-Replayed" in first, again["Idempotent-Replayed"]) == (False, "true")
    assert Execution.objects.count() == 1


def test_a_key_that_was_used_for_something_else_is_a_conflict_that_names_the_execution():
    make_workflow(tool_name="greet")
    client = agent()
    first = start(client, {"name": "Ada"})

    refused = start(client, {"name": "Grace"})

    assert refused.status_code == 409
    assert refused.json()["execution_id"] == first.json()["id"]
    assert first.json()["id"] in refused.json()["detail"]
    assert start(agent(), {"name": "Grace"}).status_code == 202


@pytest.mark.parametrize("key", ["", "   ", "x" * 256, "cl\u00e9"])
def test_a_key_that_cannot_be_used_is_refused_in_clear_words(key):
    """Whoever sends one relies on it: leaving it out would be worse."""
    make_workflow(tool_name="greet")

    refused = start(agent(), key=key)

    assert (refused.status_code, refused.json()["kind"]) == (400, "validation")
    assert "1 to 255 printable ASCII characters" in refused.json()["detail"]
    assert not Execution.objects.exists()


def test_a_request_that_there_is_no_room_for_says_when_to_come_again_and_keeps_its_key(settings):
    """B7"""
    settings.CATALOGUE = settings.CATALOGUE | {"max_queued_executions": 0}
    running = make_execution(make_workflow(tool_name="greet", max_concurrent=1), state=State.RUNNING)
    client = agent()

    refused = start(client)

    assert refused.status_code == 503
    assert int(refused["Retry-After"]) >= 1
    assert "Nothing was started" in refused.json()["detail"]
    running.cancel("to make room")
    assert start(client, {"name": "other"}).status_code == 202


# Cancelling


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("state", "config", "status", "outcome"),
    [
        (State.PENDING, {}, 200, "cancelled"),
        (State.RUNNING, {}, 202, "cancel requested"),
        (State.RUNNING, {"cancel_path": ""}, 409, "not supported"),
        (State.COMPLETED, {}, 409, "already finished"),
    ],
)
def test_the_status_tells_what_came_of_cancelling(state, config, status, outcome):
    """A7.5, A8.5: nobody is at the address of this engine."""
    execution = make_execution(make_workflow(make_source(config=config)), state=state, run_id="run-1")

    response = administrator().post(f"/api/executions/{execution.pk}/cancel/")

    assert (response.status_code, response.json()["outcome"]) == (status, outcome)
    assert response.json()["execution"]["id"] == str(execution.pk)
    assert ("detail" in response.json()) == (status == 409)


@pytest.mark.django_db(transaction=True)
def test_a_running_workflow_is_cancelled_at_the_engine(engine, example_engine):
    """A7.5"""
    client = agent()
    started = client.post("/api/executions/", {"tool": "countdown", "arguments": {"seconds": 60}})
    advance_due_executions()

    response = client.post(f"/api/executions/{started.json()['id']}/cancel/")

    assert (response.status_code, response.json()["outcome"]) == (200, "cancelled")
    run_id = response.json()["execution"]["run_id"]
    assert [run["status"] for run in example_engine.runs() if run["run_id"] == run_id] == ["CANCELLED"]


# What is new in the record


def make_queued(**fields) -> Execution:
    execution = make_execution(state=State.PENDING, **fields)
    Execution.objects.filter(pk=execution.pk).update(admitted_at=None)
    return execution


def test_a_record_tells_of_the_queue_the_key_the_waiting_caller_and_what_ran():
    """B3, B7"""
    metadata = {"version": "2.1", "content_hash": "ab" * 32, "client": {"name": "claude"}}
    execution = make_queued(
        idempotency_key="order-7",
        awaited_until=timezone.now() - timedelta(minutes=1),
        payload={"metadata": metadata},
    )

    shown = administrator().get(f"/api/executions/{execution.pk}/").json()

    assert (shown["state"], shown["queued"], shown["admitted_at"]) == ("pending", True, None)
    assert (shown["idempotency_key"], shown["metadata"]) == ("order-7", metadata)
    assert (shown["awaited"], shown["unanswered"]) == (False, True)
    assert shown["cancel_progress"] is None


@pytest.mark.parametrize(
    ("query", "expected"), [("queued=true", "q"), ("queued=false", "p"), ("idempotency_key=order-7", "q")]
)
@pytest.mark.databases("executions.rest.executions")
def test_the_list_is_filtered_by_queue_and_key(query, expected):
    """B7"""
    queued = make_queued(idempotency_key="order-7")
    make_execution(state=State.PENDING)

    rows = administrator().get(f"/api/executions/?{query}").json()["results"]

    assert ["q" if row["id"] == str(queued.pk) else "p" for row in rows] == [expected]


def test_what_came_of_cancelling_is_told_as_it_is():
    """A7.5"""
    now = timezone.now()
    execution = make_execution(
        state=State.RUNNING, cancel_requested_at=now, cancel_sent_at=now, cancel_refusal="No way."
    )

    shown = administrator().get(f"/api/executions/{execution.pk}/").json()

    assert (shown["cancel_progress"], shown["cancel_refusal"]) == ("refused", "No way.")


def test_what_the_retention_removed_is_null_and_says_when():
    """E6, B7"""
    ended = timezone.now() - timedelta(days=31)
    execution = make_execution(created_at=ended, finished_at=ended)
    prune()

    shown = administrator().get(f"/api/executions/{execution.pk}/").json()

    assert [shown[name] for name in ("input", "output", "start_answer", "status_answer")] == [None] * 4
    assert shown["payload_removed_at"] and shown["events_removed_at"]
    assert (shown["state"], shown["events"]) == ("completed", [])


# Resolving


@pytest.mark.django_db(transaction=True)
def test_an_administrator_names_the_run_that_the_engine_has(engine, example_engine):
    """B8: the engine is asked, and a worker follows the run to its result."""
    execution = make_execution(engine.workflows.get(name="countdown"), state=State.UNCONFIRMED)
    client = administrator()
    receipt = plain_http.post(
        f"{example_engine.base_url}/api/v1/service/workflows/{execution.upstream_id}/start",
        json={"input": {"seconds": 0}, "source": "application"},
        headers={"authorization": f"Api-Key {example_engine.api_key}"},
    ).json()

    response = client.post(
        f"/api/executions/{execution.pk}/resolve/", {"ran": True, "run_id": receipt["workflow_id"]}
    )

    assert (response.status_code, response.json()["state"]) == (200, "running")
    Execution.objects.update(next_attempt_at=timezone.now())
    advance_due_executions()
    assert client.get(f"/api/executions/{execution.pk}/").json()["state"] == "completed"


@pytest.mark.django_db(transaction=True)
def test_a_run_that_the_engine_does_not_know_is_refused_with_its_words(engine):
    execution = make_execution(engine.workflows.get(name="countdown"), state=State.UNCONFIRMED)

    response = administrator().post(
        f"/api/executions/{execution.pk}/resolve/", {"ran": True, "run_id": "mistyped"}
    )

    assert (response.status_code, problem_paths(response)) == (400, ["/run_id"])
    assert "has no run mistyped" in response.json()["detail"]
    assert Execution.objects.get().state == State.UNCONFIRMED


@pytest.mark.django_db(transaction=True)
def test_an_engine_that_cannot_be_asked_about_a_run_is_told_apart():
    execution = make_execution(state=State.UNCONFIRMED)

    response = administrator().post(
        f"/api/executions/{execution.pk}/resolve/", {"ran": True, "run_id": "run-1"}
    )

    assert (response.status_code, Execution.objects.get().state) == (503, State.UNCONFIRMED)
    assert "could not be asked" in response.json()["detail"]


def test_what_did_not_run_has_failed_and_cannot_be_resolved_again():
    """B8"""
    execution = make_execution(state=State.UNCONFIRMED)
    client = administrator()

    response = client.post(f"/api/executions/{execution.pk}/resolve/", {"ran": False})

    assert (response.status_code, response.json()["state"]) == (200, "failed")
    assert client.token.name in response.json()["error"]["message"]
    again = client.post(f"/api/executions/{execution.pk}/resolve/", {"ran": False})
    assert (again.status_code, again.json()["kind"]) == (409, "execution")
    assert "the execution is failed" in again.json()["detail"]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "/ran"),
        ({"ran": "perhaps"}, "/ran"),
        ({"ran": None}, "/ran"),
        ({"ran": True, "run_id": "x" * 256}, "/run_id"),
        ({"ran": False, "run_id": "run-1"}, "/run_id"),
        ({"ran": False, "output": {"a": 1}}, "/output"),
        ({"ran": True, "run_id": "run-1", "output": {"a": 1}}, "/output"),
        ({"ran": False, "why": "I looked"}, "/why"),
    ],
)
def test_a_resolution_that_is_not_well_formed_is_refused_by_field(body, path):
    execution = make_execution(state=State.UNCONFIRMED)

    response = administrator().post(f"/api/executions/{execution.pk}/resolve/", body)

    assert (response.status_code, problem_paths(response)) == (400, [path])
    assert Execution.objects.get().state == State.UNCONFIRMED


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("body", [{"ran": True}, {"ran": True, "run_id": " "}, {"ran": True, "output": 1}])
def test_a_run_at_an_engine_that_keeps_runs_has_to_be_named(body):
    """B8: it is not taken on trust what the engine can be asked."""
    execution = make_execution(state=State.UNCONFIRMED)

    response = administrator().post(f"/api/executions/{execution.pk}/resolve/", body)

    assert (response.status_code, problem_paths(response)) == (400, ["/run_id"])
    assert Execution.objects.get().state == State.UNCONFIRMED


def test_a_call_over_rest_names_where_its_run_is_told(engine):
    client, hook = agent(), {"webhook": "https://8.8.8.8/hook?sig=planted", "secret": f"whsec_{'a' * 32}"}
    started = client.post(
        "/api/executions/", {"tool": "countdown", "arguments": {"seconds": 0}, "notify": hook}
    )
    assert started.status_code == 202
    row = RunNotice.objects.get(execution=started.json()["id"])
    assert (row.medium, row.target) == ("webhook", {"address": hook["webhook"], "secret": hook["secret"]})
    shown = client.get(f"/api/executions/{row.execution_id}/").content.decode()
    assert "planted" not in shown and hook["secret"] not in shown


@pytest.mark.parametrize(
    ("notify", "path"),
    [
        ({"webhook": "http://10.0.0.7/"}, "/notify"),
        ({"email": True}, "/notify"),
        ({}, "/notify"),
        ({"webhook": "https://8.8.8.8/", "format": "fax"}, "/notify/format"),
        ({"webhook": "https://8.8.8.8/", "secret": "x" * 201}, "/notify/secret"),
        ({"webhook": "https://8.8.8.8/", "to": "eve@example.com"}, "/notify/to"),
        ("https://8.8.8.8/", "/notify"),
    ],
)
def test_a_call_that_could_not_be_told_is_refused_over_rest(engine, notify, path):
    refused = agent().post(
        "/api/executions/", {"tool": "countdown", "arguments": {"seconds": 0}, "notify": notify}
    )
    assert (refused.status_code, problem_paths(refused)) == (400, [path])
    assert not Execution.objects.exists()
