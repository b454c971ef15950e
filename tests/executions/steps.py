"""What these tests do again and again: call, look, and let time pass."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import F
from django.utils import timezone

from access.callers import Caller
from catalogue.actions.sources import change_source
from catalogue.database import THREADS, run_in_database
from catalogue.models import Source, Workflow
from connectors.background import run_in_background_loop
from executions import advancing
from executions.interacting import Cancellation, cancel_execution
from executions.models import Execution, ExecutionPayload, InputRequest, State
from executions.models.lifecycle import StartRequest
from executions.runner.lease import claim_due_executions
from executions.waiting import start_and_wait
from executions.wakeups import waits
from tests.executions.engines import until
from tests.factories import make_execution, make_source
from tests.processes import ExampleEngine

ALICE = Caller(key="token:1", name="Alice")
BOB = Caller(key="token:2", name="Bob")
ALICE_IN_FINANCE = replace(ALICE, toolset="finance", is_confined=True)
ADMIN = Caller(key="user:1", name="admin", sees_everything=True)
TIMES = (
    "created_at",
    "admitted_at",
    "progress_noted_at",
    "overdue_since",
    "cancel_requested_at",
    "cancel_sent_at",
    "terminate_sent_at",
    "question_answered_at",
    "started_at",
    "polled_at",
    "end_reported_at",
    "looked_up_since",
    "deadline_at",
    "next_attempt_at",
    "lease_expires_at",
)


async def call(tool_name: str, arguments: dict[str, Any] | None = None, **options: Any) -> Execution:
    return await start_and_wait(request_for(tool_name, arguments, **options.pop("request", {})), **options)


def request_for(tool_name: str, arguments: dict[str, Any] | None = None, **fields: Any) -> StartRequest:
    fields = {"caller": ALICE, "door": Execution.Door.MCP} | fields
    return StartRequest(tool_name=tool_name, arguments=arguments or {}, **fields)


async def cancel(execution: Execution, caller: Caller = ALICE) -> Cancellation:
    return await cancel_execution(str(execution.pk), caller=caller)


def source_of(engine: ExampleEngine, *, keyed: bool = True) -> Source:
    """The example engine as a source, whose keys we make use of or not."""
    config = {"idempotency_header": "Idempotency-Key"} if keyed else {}
    return make_source(base_url=engine.base_url, api_key=engine.api_key, config=config)


def read(execution: Execution) -> Execution:
    """The record as it stands in the database, with its payload."""
    return Execution.objects.select_related("payload").get(pk=execution.pk)


def only() -> Execution:
    """The one execution that there is."""
    return Execution.objects.select_related("payload").get()


def timeline(execution: Execution) -> list[str]:
    return list(execution.events.values_list("kind", flat=True))


def told(execution: Execution, kind: str) -> list[str]:
    """The messages of the events of one kind."""
    return list(execution.events.filter(kind=kind).values_list("message", flat=True))


def let_pass(execution: Execution, seconds: float) -> None:
    """As if that much time had gone by since everything that the row, and its source, tell of."""
    ago = timedelta(seconds=seconds)
    Execution.objects.filter(pk=execution.pk).update(**{name: F(name) - ago for name in TIMES})
    Source.objects.update(configured_at=F("configured_at") - ago)
    for row in InputRequest.objects.filter(execution=execution.pk).exclude(answers=None):
        for given in row.answers.values():
            given["at"] = (datetime.fromisoformat(given["at"]) - ago).isoformat()
        row.save()


def let_waits_pass(seconds: float) -> None:
    """As if every request that waits for a run had already waited that much longer."""

    def shift(timeout: asyncio.Timeout) -> None:
        if timeout in waits.timeouts and (ends_at := timeout.when()) is not None:
            timeout.reschedule(ends_at - seconds)

    for timeout, loop in tuple(waits.timeouts.items()):
        loop.call_soon_threadsafe(shift, timeout)


async def after(
    seconds: float, call: Coroutine[Any, Any, Any], once: Callable[[], Any] = lambda: waits.timeouts
) -> Any:
    """What the call gives as if it, and all that wait, had waited so long from when that holds."""
    waiting = asyncio.create_task(call)
    await until(lambda: once() or waiting.done(), "the call waits")
    let_waits_pass(seconds)
    return await waiting


def reconfigure(source: Source) -> None:
    """As an administrator saves its settings, which may be those of another engine."""
    change_source(source, config=source.config)


def reach_deadline(execution: Execution) -> None:
    """As if the run had taken until now all the time that it has."""
    let_pass(execution, (read(execution).deadline_at - timezone.now()).total_seconds())


def make_active(workflow: Workflow, state: State, **fields: Any) -> Execution:
    """An execution of Alice's that nobody holds and that is due, as a worker finds it after a while."""
    execution = make_execution(
        workflow,
        state=state,
        caller=ALICE.key,
        caller_name=ALICE.name,
        payload={"input": {"text": "To be"}, "output": None},
        **{"run_id": "" if state == State.PENDING else "run-1"} | fields,
    )
    let_pass(execution, 10)
    return read(execution)


def advance_due_executions() -> int:
    """As a worker does it, but until the steps have ended. Returns how many there were."""

    async def advance() -> int:
        claimed = await run_in_database(claim_due_executions, limit=advancing.MAX_IN_FLIGHT)
        await asyncio.gather(*(advancing.advance_and_release(execution) for execution in claimed))
        return len(claimed)

    return run_in_background_loop(advance())


def expire_lease(execution: Execution, holder: str = "a process that was killed") -> None:
    """As a killed process leaves it, once its lease has run out."""
    past = timezone.now() - timedelta(seconds=1)
    Execution.objects.filter(pk=execution.pk).update(lease_holder=holder, lease_expires_at=past)


def forget_caller(execution: Execution) -> None:
    """As a web process that was killed leaves it, once its heartbeat has been missing for long enough."""
    expire_lease(execution)
    past = timezone.now() - timedelta(seconds=1)
    Execution.objects.filter(pk=execution.pk).update(awaited_until=past)


def is_abandoned(execution: Execution) -> bool:
    until = read(execution).awaited_until
    return until is not None and until < timezone.now()


def is_nothing_under_way() -> bool:
    """A loop that was closed in the middle of a step will not go on with it."""
    return all(task.get_loop().is_closed() for task in advancing._under_way.copy())


async def disconnect(waiting: asyncio.Task[Execution]) -> None:
    """Cancel the request as a server does it when its client is gone."""
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting


@contextlib.contextmanager
def wrapping_statements(wrapper: Any) -> Iterator[None]:
    """Have Django pass every statement of the database threads through the wrapper."""

    async def on_every_thread(unit: Any) -> None:
        meeting = threading.Barrier(THREADS)

        def together() -> None:
            meeting.wait()
            unit()

        await asyncio.gather(*(in_database(together) for _ in range(THREADS)))

    asyncio.run(on_every_thread(lambda: connection.execute_wrappers.append(wrapper)))
    try:
        yield
    finally:
        asyncio.run(on_every_thread(lambda: connection.execute_wrappers.remove(wrapper)))


def payload_of(execution: Execution) -> ExecutionPayload:
    return ExecutionPayload.objects.get(pk=execution.pk)


in_database = run_in_database
