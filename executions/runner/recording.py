"""Batches execution writes into one database call, and on SQLite into one transaction."""

import asyncio
import contextvars
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from django.db import DatabaseError, InterfaceError, close_old_connections, connection, transaction

from catalogue.database import THREADS, run_in_database
from executions.models.transitions import instances_restored_on_failure

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
LINGER_SECONDS = 0.02  # How long records that no request waits for are collected
MAX_HOPS = THREADS // 2  # Per event loop; claims and requests need threads too
WRITTEN_TOGETHER = 16 if connection.vendor == "sqlite" else 1
"""In one transaction, during which no other process can write. On SQLite a COMMIT takes half of a record's
time, and for several little more. PostgreSQL needs no transaction for a record, and several rows that are
locked in any order would deadlock."""
AT_A_TIME = 16 if connection.vendor == "sqlite" else 8
"""In one hop. All of them wait for its end: with 50 on PostgreSQL, one thread had most of the records while
the others had none, and the slowest calls of 64 took three times as long as half of them."""


def record(
    unit: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> asyncio.Future[Result]:
    """Like `run_in_database`, batched: each unit fails alone, and may share its transaction with others."""
    within = contextvars.copy_context()  # The request that caused it
    return _put(partial(within.run, unit, *args, **kwargs))


def record_prepared(prepare: Callable[[], Callable[[], Result]]) -> asyncio.Future[Result]:
    """Like `record`, of the function that `prepare` returns. No transaction is open during `prepare`."""
    return _put(_Prepared(contextvars.copy_context(), prepare))


async def record_together(unit: Callable[..., None], item: Any, **arguments: Any) -> None:
    """Calls `unit` once with all waiting items of the same arguments; if that fails, once for each."""
    await _put(_Shared(unit, tuple(arguments.items()), item))


@dataclass(frozen=True, slots=True)
class _Shared:
    unit: Callable[..., None]
    arguments: tuple[tuple[str, Any], ...]
    item: Any


@dataclass(frozen=True, slots=True)
class _Prepared:
    within: contextvars.Context
    prepare: Callable[[], Callable[[], Any]]


Unit = Callable[[], Any] | _Shared | _Prepared


@dataclass(frozen=True, slots=True)
class _Failure:
    error: Exception


class _Queue:
    def __init__(self) -> None:
        self.waiting: deque[tuple[Unit, asyncio.Future[Any]]] = deque()
        self.hops: set[asyncio.Task[None]] = set()
        self.lingers = False

    def end_lingering(self) -> None:
        self.lingers = False
        if self.waiting and len(self.hops) < MAX_HOPS:
            self.hops.add(asyncio.get_running_loop().create_task(self.carry_out_all()))

    async def carry_out_all(self) -> None:
        try:
            while self.waiting:
                units, futures = list[Unit](), list[asyncio.Future[Any]]()
                while self.waiting and len(units) < AT_A_TIME:
                    unit, future = self.waiting.popleft()
                    units.append(unit)
                    futures.append(future)
                try:
                    outcomes: Sequence[Any] = await run_in_database(_carry_out, units)
                except Exception as error:  # noqa: BLE001 - each step gets it
                    outcomes = [_Failure(error)] * len(units)
                for future, outcome in zip(futures, outcomes, strict=True):
                    if future.done():
                        continue  # The caller was cancelled.
                    if isinstance(outcome, _Failure):
                        future.set_exception(outcome.error)
                    else:
                        future.set_result(outcome)
        finally:
            # Not in a callback of the task, which runs later: a unit added in between would wait for ever.
            if (hop := asyncio.current_task()) is not None:
                self.hops.discard(hop)


_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue] = WeakKeyDictionary()


def _put(unit: Unit) -> asyncio.Future[Any]:
    loop = asyncio.get_running_loop()
    if (queue := _queues.get(loop)) is None:
        queue = _queues[loop] = _Queue()
    future: asyncio.Future[Any] = loop.create_future()
    queue.waiting.append((unit, future))
    if not isinstance(unit, _Shared):
        if len(queue.hops) < MAX_HOPS:
            queue.hops.add(loop.create_task(queue.carry_out_all()))
    elif not queue.lingers:
        queue.lingers = True
        loop.call_later(LINGER_SECONDS, queue.end_lingering)
    return future


def _carry_out(units: Sequence[Unit]) -> list[Any]:
    outcomes: dict[int, Any] = {}
    shared: dict[Any, dict[int, Any]] = defaultdict(dict)
    single: list[int] = []
    for number, unit in enumerate(units):
        if isinstance(unit, _Shared):
            shared[unit.unit, unit.arguments][number] = unit.item
        else:
            single.append(number)
    for first in range(0, len(single), WRITTEN_TOGETHER):
        outcomes |= _write({number: units[number] for number in single[first : first + WRITTEN_TOGETHER]})
    for (call, arguments), items in shared.items():
        write = partial(call, **dict(arguments))
        outcome = _outcome_of(partial(write, list(items.values())))
        for number, item in items.items():
            # One item may fail the batch.
            is_doubtful = isinstance(outcome, _Failure) and len(items) > 1
            outcomes[number] = _outcome_of(partial(write, [item])) if is_doubtful else outcome
    return [outcomes[number] for number in range(len(units))]


def _write(units: Mapping[int, Any]) -> dict[int, Any]:
    """Returns the outcomes by the numbers of the units."""
    outcomes: dict[int, Any] = {}
    writes: dict[int, Callable[[], Any]] = {}
    for number, unit in units.items():
        if not isinstance(unit, _Prepared):
            writes[number] = unit
            continue
        write = _outcome_of(partial(unit.within.run, unit.prepare))
        if isinstance(write, _Failure):
            outcomes[number] = write
        else:
            writes[number] = partial(unit.within.run, write)
    done = _write_together(list(writes.values())) if len(writes) > 1 else None
    if done is None:
        done = [_outcome_of(write) for write in writes.values()]
    return outcomes | dict(zip(writes, done, strict=True))


def _write_together(writes: Sequence[Callable[[], Any]]) -> list[Any] | None:
    """Writes all in one transaction. Returns None if the database fails one of them or the COMMIT, so that
    nothing was written."""
    outcomes: list[Any] = []
    has_begun = False
    try:
        with instances_restored_on_failure(), transaction.atomic():
            has_begun = True
            for write in writes:
                try:
                    outcomes.append(write())
                except (DatabaseError, InterfaceError):
                    raise
                except Exception as error:  # noqa: BLE001 - the step that it belongs to gets it
                    outcomes.append(_Failure(error))
                if connection.needs_rollback:
                    raise transaction.TransactionManagementError("a unit broke the transaction")
    except (DatabaseError, InterfaceError) as error:
        # If the transaction could not begin, each would wait for the database as long as all did.
        return None if has_begun else [_failure_of(error)] * len(writes)
    return outcomes


def _outcome_of(unit: Callable[[], Any]) -> Any:
    try:
        return unit()
    except Exception as error:  # noqa: BLE001 - the steps that it belongs to get it
        return _failure_of(error)


def _failure_of(error: Exception) -> _Failure:
    # A broken connection would fail the other units.
    close_old_connections()
    return _Failure(error)
