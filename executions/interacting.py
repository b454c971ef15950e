"""Sends queries and signals (E10) to a running execution, and cancels it."""

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.conf import settings
from django.db import DatabaseError, InterfaceError

from access.callers import Caller
from catalogue.connections import connector_for
from catalogue.database import run_in_database
from catalogue.descriptions import DeclaredInteraction, InteractionKind, interactions_of
from catalogue.naming import find_similar_names
from catalogue.schemas import ArgumentProblem, check_arguments
from connectors.errors import ConnectorError, InvalidAnswer, Misconfigured, OutcomeUnknown, Unreachable
from connectors.protocol import Connector
from executions.advancing import advance_and_release, begin, hold_and_read
from executions.approvals import cancel_unapproved
from executions.models import Execution, State
from executions.models.transitions import Event
from executions.reading import find_execution
from executions.runner.engine_calls import (
    READ_SECONDS,
    ask,
    capabilities_of,
    connector_of,
    log_of,
    read_capabilities,
)
from executions.runner.follow import cannot_cancel
from executions.wakeups import wake

KNOWN_NAMES = 20


class InteractionRefused(Exception):
    """Nothing was sent to the run, except for SignalUncertain; the message says what to do."""


class UnknownInteraction(InteractionRefused):
    def __init__(self, execution: Execution, kind: InteractionKind, name: str, known: Sequence[str]) -> None:
        similar = find_similar_names(name, known)
        meant = f" Did you mean {' or '.join(similar)}?" if similar else ""
        listed = f"It has {', '.join(known[:KNOWN_NAMES])}." if known else "It declares none."
        super().__init__(f"{execution.tool_name} has no {kind} {name[:100]!r}.{meant} {listed}")


class UnfitArguments(InteractionRefused):
    def __init__(self, wanted: DeclaredInteraction, problems: Sequence[ArgumentProblem]) -> None:
        listed = "\n".join(f"- {problem}" for problem in problems)
        super().__init__(f"Invalid arguments for the {wanted.kind} {wanted.name}:\n{listed}")
        self.problems = problems


class NotNow(InteractionRefused):
    """No run can answer yet, or any longer."""


class NotSupported(InteractionRefused):
    def __init__(self, execution: Execution, what: str) -> None:
        super().__init__(f"Not supported: runs at the engine behind {execution.source_name} cannot {what}.")


class EngineRefused(InteractionRefused):
    pass


class EngineUnavailable(InteractionRefused):
    """It could not be asked; trying again is safe."""


class SignalUncertain(InteractionRefused):
    """The engine may have taken what was sent; it is not sent again."""

    def __init__(self, name: str, why: str, *, is_harmless: bool) -> None:
        then = "Do not send it again unless receiving it twice is harmless; first check what the run does."
        if is_harmless:
            then = "Sending it again is harmless."
        super().__init__(f"It is not known whether the run received {name}: {why} {then}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    execution: Execution
    query: str
    value: Any


async def query_execution(
    execution_id: str, name: str, arguments: dict[str, Any], *, caller: Caller
) -> Answer:
    """Raises UnknownExecution or InteractionRefused."""
    execution, meant = await _admit(execution_id, InteractionKind.QUERY, name, arguments, caller)

    async def query() -> Any:
        async with connector_of(execution) as connector:
            answered = await connector.query(execution.run, name, meant)
        try:
            size = len(json.dumps(answered, allow_nan=False))
        except (TypeError, ValueError):
            raise InvalidAnswer("The run's answer is not JSON.") from None
        if size > (limit := settings.CATALOGUE.max_payload_bytes):
            raise InvalidAnswer(
                f"The run's answer is too large: {size:,} bytes exceed the limit of {limit:,}."
            )
        return answered

    try:
        value = await ask(query(), seconds=READ_SECONDS, otherwise=Unreachable)
    except ConnectorError as error:
        log_of(execution).warning("Query {} of {} failed: {}", name, caller.key, error.message)
        raise _refusal(error, name) from None
    log_of(execution).info("Query {} of {} answered", name, caller.key)
    return Answer(execution=execution, query=name, value=value)


async def signal_execution(
    execution_id: str, name: str, arguments: dict[str, Any], *, caller: Caller
) -> Execution:
    """Sends the signal once, even if cancelled meanwhile. Raises UnknownExecution or InteractionRefused."""
    execution, meant = await _admit(execution_id, InteractionKind.SIGNAL, name, arguments, caller)

    async def signal(connector: Connector) -> None:
        await connector.signal(execution.run, name, meant)

    event = ("signalled", f"{caller.name} sent {name}.")
    refusal = await asyncio.shield(begin(send_and_note(execution, signal, name, event, caller, "signal")))
    if refusal is not None:
        raise refusal
    return execution


async def send_and_note(
    execution: Execution,
    send: Callable[[Connector], Awaitable[None]],
    name: str,
    event: Event,
    caller: Caller,
    kind_of_thing: str = "",
) -> InteractionRefused | None:
    """`event`: of its success. Without the kind of thing, `name` is a request that may be sent twice."""

    async def connect_and_send() -> None:
        async with connector_of(execution) as connector:
            await send(connector)

    refusal, (kind, message) = None, event
    try:
        await ask(connect_and_send(), seconds=READ_SECONDS, otherwise=OutcomeUnknown)
    except ConnectorError as error:
        refusal = _refusal(error, name, is_harmless=not kind_of_thing)
        message = f"{name} by {caller.name}: {error.message}"
        kind = f"{kind_of_thing or name}_{'unknown' if isinstance(error, OutcomeUnknown) else 'failed'}"
    log = log_of(execution).bind(caller=caller.key)
    log.log("INFO" if refusal is None else "WARNING", "{}: {}", kind, message)
    try:
        await run_in_database(execution.note, kind, message)
    except (DatabaseError, InterfaceError) as error:
        # The engine has taken the signal all the same.
        log.warning("Adding it to the timeline failed: {}", error)
    return refusal


async def _admit(
    execution_id: str, kind: InteractionKind, name: str, arguments: dict[str, Any], caller: Caller
) -> tuple[Execution, dict[str, Any]]:
    """Returns the execution and the checked arguments. Raises InteractionRefused."""
    execution = await run_in_database(find_execution, execution_id, caller=caller)
    if execution.workflow is None:
        raise NotNow("Its workflow was deleted, so the engine can no longer be asked about the run.")
    try:
        capabilities = await read_capabilities(execution)
    except ConnectorError as error:
        raise EngineUnavailable(error.message) from None
    if not (capabilities.can_query if kind == InteractionKind.QUERY else capabilities.can_signal):
        what = "answer queries" if kind == InteractionKind.QUERY else "receive signals"
        raise NotSupported(execution, what)
    declared = {one.name: one for one in interactions_of(execution.workflow, kind)}
    if (wanted := declared.get(name)) is None:
        raise UnknownInteraction(execution, kind, name, list(declared))
    if why_not := why_not_now(execution, kind):
        raise NotNow(why_not)
    try:
        json.dumps(arguments, allow_nan=False)
    except ValueError:
        problem = ArgumentProblem("", "JSON has no infinite numbers and no NaN")
        raise UnfitArguments(wanted, [problem]) from None
    checked = check_arguments(wanted.schema, arguments)
    if checked.problems:
        raise UnfitArguments(wanted, checked.problems)
    return execution, checked.arguments


def why_not_now(execution: Execution, kind: InteractionKind) -> str:
    """Returns why the execution's state rules it out; empty if it does not."""
    if execution.state == State.UNCONFIRMED:
        return "It is not known whether it is running; an administrator must find out."
    if execution.run_id:
        is_too_late = kind == InteractionKind.SIGNAL and execution.is_settled
        return f"It is {execution.get_state_display()} and no longer accepts signals." if is_too_late else ""
    if execution.is_queued:
        return "It waits in the queue and has not been started; try again when it runs."
    if execution.is_unapproved:
        return "It waits for approval and has not been started."
    if not execution.is_settled:
        return "It is being started, and the engine has not returned a run id yet; try again in a moment."
    if execution.cached_at is not None:
        return "It was answered from the result cache, without a run."
    return f"It is {execution.get_state_display()} and never ran."


def _refusal(error: ConnectorError, name: str, *, is_harmless: bool = False) -> InteractionRefused:
    """`is_harmless`: to send it twice."""
    match error:
        case OutcomeUnknown():
            return SignalUncertain(name, error.message, is_harmless=is_harmless)
        case Unreachable() | Misconfigured():
            return EngineUnavailable(error.message)
        case _:
            return EngineRefused(error.message)


class CancelOutcome(StrEnum):
    CANCELLED = "cancelled"
    REQUESTED = "cancel requested"
    ALREADY_FINISHED = "already finished"
    NOT_SUPPORTED = "not supported"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Cancellation:
    outcome: CancelOutcome
    message: str
    execution: Execution


async def cancel_execution(
    execution_id: str, *, caller: Caller, by: str = "", terminates: bool = False
) -> Cancellation:
    """Requests the cancellation, immediately if the lease is free; `by` is recorded instead of the caller.
    `terminates`: the engine ends a run at once, without a cancellation before it."""
    execution = await run_in_database(find_execution, execution_id, caller=caller)
    if execution.is_settled:
        return _finished_before(execution)
    if execution.is_unapproved:
        if await run_in_database(cancel_unapproved, execution, by=by or caller.name):
            return _cancellation_of(await run_in_database(find_execution, execution_id, caller=caller))
        # It was decided in the meantime.
        return await cancel_execution(execution_id, caller=caller, by=by, terminates=terminates)
    if execution.is_queued:
        if await run_in_database(execution.cancel_queued, by or caller.name):
            wake(execution.pk)
            return _cancellation_of(execution)
        # It was admitted or ended in the meantime.
        return await cancel_execution(execution_id, caller=caller, by=by, terminates=terminates)
    if why_not := await why_not_cancellable(execution, terminates=terminates):
        log_of(execution).warning("The run is not cancelled: {}", why_not)
        if not terminates:
            await run_in_database(execution.mark_not_cancellable, why_not)
        return Cancellation(CancelOutcome.NOT_SUPPORTED, f"{why_not} {_goes_on(execution)}", execution)
    request = execution.request_terminate if terminates else execution.request_cancel
    await run_in_database(request, by or caller.name)
    wake(execution.pk)
    await asyncio.shield(begin(_try_now(execution)))
    return _cancellation_of(await run_in_database(find_execution, execution_id, caller=caller))


async def why_not_cancellable(execution: Execution, *, terminates: bool = False) -> str:
    """Empty if it can be cancelled, as one that no engine has yet always can."""
    if execution.state == State.PENDING or execution.workflow is None:
        return ""
    try:
        async with connector_for(execution.workflow.source) as connector:
            capabilities = capabilities_of(connector, execution)
            if (capabilities.can_terminate if terminates else capabilities.can_cancel) or (
                execution.state == State.STARTING and capabilities.cancellable_start
            ):
                return ""
    except ConnectorError as error:
        return error.message
    return str(NotSupported(execution, "be terminated")) if terminates else cannot_cancel(execution)


def _goes_on(execution: Execution) -> str:
    return f"The run continues until it ends or its timeout of {execution.timeout_seconds} s passes."


async def _try_now(execution: Execution) -> None:
    holder = uuid.uuid4().hex
    fresh = await run_in_database(hold_and_read, execution, holder=holder)
    if fresh.lease_holder == holder:
        await advance_and_release(fresh, waited_for=True)


def _cancellation_of(execution: Execution) -> Cancellation:
    if execution.state == State.CANCELLED:
        return Cancellation(CancelOutcome.CANCELLED, "The run was cancelled.", execution)
    if execution.is_settled:
        return _finished_before(execution)
    if execution.cancel_refusal:
        message = f"{' '.join(execution.problems)} {_goes_on(execution)}"
        return Cancellation(CancelOutcome.REFUSED, message, execution)
    return Cancellation(
        CancelOutcome.REQUESTED,
        "Cancellation was requested; the execution's status shows when the engine has cancelled the run.",
        execution,
    )


def _finished_before(execution: Execution) -> Cancellation:
    message = f"Nothing to cancel: the execution is already {execution.get_state_display()}."
    if execution.state == State.UNCONFIRMED:
        message = "Nothing was cancelled: an administrator must find out whether it is running."
        if execution.run_id and execution.workflow_id is None:
            message = "Nothing was cancelled: the run may continue, and the engine can no longer be asked."
    return Cancellation(CancelOutcome.ALREADY_FINISHED, message, execution)
