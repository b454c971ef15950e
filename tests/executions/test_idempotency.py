"""Idempotency keys: what one caller asks for twice with one key is run once, and both get its result."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.utils import timezone

from catalogue.exposure import forget_catalogue
from catalogue.models import Workflow
from connectors.background import run_in_background_loop
from connectors.protocol import RunSnapshot, RunState
from executions.models import Execution, State
from executions.refusals import Busy, IdempotencyConflict, InvalidArguments, InvalidIdempotencyKey
from executions.starting import create_execution, prepare_execution, read_idempotency_key
from tests.connectors.scripted import replies, sends_and_hangs_up
from tests.executions.engines import Gate, completed, in_turn, receipt, status, until
from tests.executions.steps import (
    ALICE,
    BOB,
    call,
    disconnect,
    in_database,
    make_active,
    only,
    read,
    request_for,
    timeline,
)
from tests.factories import make_workflow
from tests.threads import together

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("quick_looks"),
    pytest.mark.databases("executions.starting"),
]

COMPLETED_SNAPSHOT = RunSnapshot(state=RunState.COMPLETED)
KEY = "2ad4b6b8-9d0f-4a53-8d1d-5a3f2a6b0c11"


async def ask(arguments: dict[str, Any] | None = None, *, tool: str = "report", **fields: Any) -> Execution:
    options = {"seconds": fields.pop("seconds")} if "seconds" in fields else {}
    return await call(tool, arguments, request={"idempotency_key": KEY} | fields, **options)


def record(arguments: dict[str, Any] | None = None, **fields: Any) -> Execution:
    """As REST does it without waiting."""
    return create_execution(request_for("report", arguments, **{"idempotency_key": KEY} | fields))


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (replies(200, completed() | receipt()), State.COMPLETED),
        (replies(400, {"error": "no such year"}), State.FAILED),
        (sends_and_hangs_up(), State.UNCONFIRMED),
    ],
    ids=["completed", "failed", "unconfirmed"],
)
async def test_the_same_request_is_the_same_execution_however_it_ended(engine, workflow, answer, state):
    """Never a second start; the result as often as it is asked for."""
    engine.on_start = answer
    first = await ask({"year": 2026})
    assert first.state == state
    for _ in range(2):
        again = await ask({"year": 2026})
        assert (again.pk, again.state) == (first.pk, state)
    assert engine.count("start") == 1


@pytest.mark.parametrize(
    "lose", [lambda: Workflow.objects.update(enabled=False), Workflow.objects.all().delete]
)
async def test_also_where_its_workflow_was_disabled_or_deleted_since(engine, workflow, lose):
    engine.on_start = replies(200, completed() | receipt())
    first = await ask()
    await in_database(lose)
    await in_database(forget_catalogue)
    again = await ask()
    assert (again.pk, again.succeeded) == (first.pk, True)


def test_other_arguments_are_refused_and_the_execution_is_named(workflow):
    first = record({"year": 2026})
    with pytest.raises(IdempotencyConflict, match=f"{first.pk}, a call of report, with other arguments"):
        record({"year": 2025})
    assert Execution.objects.count() == 1


def test_another_tool_is_refused_too(workflow):
    first = record()
    make_workflow(name="invoice")
    other = request_for("invoice", idempotency_key=KEY)
    with pytest.raises(IdempotencyConflict, match=f"{first.pk}, a call of report, not of "):
        create_execution(other)
    assert Execution.objects.count() == 1


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}, True),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": 1}, {"a": 1.0}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": None}, {}, False),
    ],
    ids=["order of names", "order of items", "1 and 1.0", "1 and true", "null and absent"],
)
def test_arguments_are_the_same_if_they_are_the_same_json(workflow, one, other, same):
    """An engine may tell 1 from 1.0, so they are told apart; a conflict is the harmless side to err on."""
    first = record(one)
    if same:
        assert record(other).pk == first.pk
    else:
        with pytest.raises(IdempotencyConflict):
            record(other)


def test_another_callers_key_is_another_key(workflow):
    mine, theirs = record({"year": 2026}), record({"year": 2025}, caller=BOB)
    assert mine.pk != theirs.pk
    assert record({"year": 2026}).pk == mine.pk


def test_a_key_can_be_used_again_after_its_time(workflow, configured):
    configured(idempotency_hours=2.0)
    first = record({"year": 2026})
    almost = timezone.now() - timedelta(hours=1.9)
    Execution.objects.update(created_at=almost)
    assert record({"year": 2026}).pk == first.pk

    Execution.objects.update(created_at=timezone.now() - timedelta(hours=2.1))
    second = record({"year": 2025})

    assert second.pk != first.pk
    assert read(first).idempotency_key == "" and read(second).idempotency_key == KEY
    assert record({"year": 2025}).pk == second.pk


@pytest.mark.parametrize(
    "sent",
    ["", "   ", "x" * 256, "a\nb", "a\x00b", "a\x7fb", "clé", None, 7, ["a"]],
    ids=["empty", "spaces", "long", "line", "NUL", "DEL", "letters", "null", "number", "list"],
)
def test_a_malformed_key_is_refused_in_clear_words_and_no_door_gets_past_that(workflow, sent):
    with pytest.raises(InvalidIdempotencyKey, match="must consist of 1 to 255 printable ASCII characters"):
        read_idempotency_key(sent)
    if isinstance(sent, str) and sent.strip():
        with pytest.raises(InvalidIdempotencyKey):
            record(idempotency_key=sent)
    assert not Execution.objects.exists()


def test_the_longest_key_and_every_printable_character_are_taken(workflow):
    printable = "".join(chr(code) for code in range(0x20, 0x7F))
    for key in ("x" * 255, printable):
        assert record(idempotency_key=key).pk == record(idempotency_key=key).pk


def test_a_refused_request_does_not_use_its_key_up(workflow):
    workflow.input_schema = {"type": "object", "required": ["year"]}
    workflow.save()
    with pytest.raises(InvalidArguments):
        record({})
    assert record({"year": 2026}).idempotency_key == KEY


def test_neither_does_one_for_which_there_was_no_room(workflow, configured):
    configured(max_queued_executions=0)
    workflow.max_concurrent = 1
    workflow.save()
    running = make_active(workflow, State.RUNNING)
    with pytest.raises(Busy):
        record({"year": 2026})
    assert running.finish_as_reported(COMPLETED_SNAPSHOT)
    assert record({"year": 2025}).idempotency_key == KEY


def test_requests_in_the_same_instant_are_one_execution(workflow):
    """The database decides, so that it holds for several processes as for several threads."""

    def record_together(holder: str) -> Execution:
        return prepare_execution(request_for("report", {"year": 2026}, idempotency_key=KEY), holder)()

    found = together(*(partial(record_together, str(number)) for number in range(8)))

    assert {execution.pk for execution in found} == {only().pk}
    assert timeline(only()) == ["created"]


def test_of_different_requests_in_the_same_instant_one_is_refused(workflow):

    def record_together(year: int) -> Execution | None:
        try:
            return record({"year": year})
        except IdempotencyConflict as conflict:
            return conflict.execution

    found = together(*(partial(record_together, year) for year in range(4)))

    assert {execution and execution.pk for execution in found} == {only().pk}


async def test_callers_in_the_same_instant_get_the_same_result_of_one_start(engine, workflow):
    """On several event loops, as in several processes."""
    engine.on_start = gate = Gate(replies(200, completed({"sum": 3}) | receipt()))
    with ThreadPoolExecutor(5) as threads:
        here = [asyncio.create_task(ask()) for _ in range(5)]
        there = [threads.submit(run_in_background_loop, ask()) for _ in range(5)]
        await gate.request()
        gate.open()
        results = await asyncio.gather(*here, *map(asyncio.wrap_future, there))

    assert {(execution.pk, execution.state) for execution in results} == {(results[0].pk, State.COMPLETED)}
    assert engine.count("start") == 1
    assert await in_database(Execution.objects.count) == 1


@pytest.mark.usefixtures("quick_repeats")
async def test_the_second_request_waits_for_the_same_result_and_may_leave(engine, workflow):
    """Its going changes nothing for the first, also where that cancels the run."""
    await in_database(Workflow.objects.update, on_disconnect=Workflow.OnDisconnect.CANCEL)
    waiting = asyncio.create_task(ask())
    await until(lambda: Execution.objects.filter(polls__gte=1).exists())
    second = asyncio.create_task(ask())
    await asyncio.sleep(0)
    third = asyncio.create_task(ask(seconds=0))
    assert (await third).pk == (await in_database(only)).pk

    await disconnect(second)

    engine.on_status = replies(200, completed({"sum": 3}))
    assert (await waiting).succeeded
    execution = await in_database(only)
    assert await in_database(timeline, execution) == ["created", "started", "completed"]
    assert execution.awaited_until is None and engine.count("cancel") == 0


@pytest.mark.usefixtures("quick_repeats")
async def test_a_repeat_goes_on_with_what_the_first_has_left(engine, workflow):
    """A7.5: it polls, since nobody else does."""
    first = asyncio.create_task(ask())
    await until(lambda: Execution.objects.filter(polls__gte=1).exists())
    await disconnect(first)
    engine.on_status = in_turn(replies(200, status()), replies(200, completed({"sum": 3})))
    again = await ask()
    assert again.succeeded
    assert engine.count("start") == 1


async def test_a_repeat_that_waits_drives_what_the_first_left_to_a_worker(engine, workflow):
    """No worker is needed for a request that waits."""
    engine.on_start = replies(200, completed() | receipt())
    first = await in_database(record)
    assert first.state == State.PENDING
    again = await ask()
    assert (again.pk, again.succeeded) == (first.pk, True)


async def test_the_key_is_the_callers_and_not_the_engines(engine, keyed_workflow):
    """The engine gets a key of ours: two callers' keys may be alike."""
    engine.on_start = replies(200, completed() | receipt())
    executions = await asyncio.gather(ask(caller=ALICE), ask(caller=BOB))
    assert {request.key for request in engine.asked("start")} == {str(one.pk) for one in executions}
