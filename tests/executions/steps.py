"""What these tests do again and again: call, look, and let time pass."""

from datetime import timedelta
from typing import Any

from django.db.models import F
from django.utils import timezone

from catalogue.database import run_in_database
from catalogue.models import Source, Workflow
from executions.callers import Caller
from executions.cancelling import Cancellation, cancel_execution
from executions.models import Execution, ExecutionPayload, State
from executions.starting import StartRequest
from executions.waiting import start_and_wait
from tests.factories import make_execution, make_source
from tests.processes import ExampleEngine

ALICE = Caller(key="token:1", name="Alice")
BOB = Caller(key="token:2", name="Bob")
ADMIN = Caller(key="user:1", name="admin", sees_everything=True)
TIMES = (
    "created_at",
    "progress_noted_at",
    "started_at",
    "polled_at",
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
    Source.objects.update(updated_at=F("updated_at") - ago)


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


def expire_lease(execution: Execution, holder: str = "a process that was killed") -> None:
    """As a killed process leaves it, once its lease has run out."""
    past = timezone.now() - timedelta(seconds=1)
    Execution.objects.filter(pk=execution.pk).update(lease_holder=holder, lease_expires_at=past)


def payload_of(execution: Execution) -> ExecutionPayload:
    return ExecutionPayload.objects.get(pk=execution.pk)


in_database = run_in_database
