"""Recording the results of many steps together: what arrives during one hop goes into the next."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from django.db import close_old_connections

from catalogue.database import THREADS, run_in_database

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

AT_A_TIME = 50  # Bounded, so that no step waits long for others
LINGER_SECONDS = 0.02  # How long records that no request waits for are collected
MOST_HOPS = THREADS // 2  # Per event loop; claims and requests need threads too


async def record(
    unit: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """Like `run_in_database`, batched: each unit is a transaction of its own and fails alone."""
    outcome: Result = await _queue().put(partial(unit, *args, **kwargs))
    return outcome


async def record_together(unit: Callable[..., None], item: Any, **arguments: Any) -> None:
    """Call `unit` once with all waiting items of the same arguments; if that fails, once for each."""
    await _queue().put(_Shared(unit, tuple(arguments.items()), item))


@dataclass(frozen=True, slots=True)
class _Shared:
    unit: Callable[..., None]
    arguments: tuple[tuple[str, Any], ...]
    item: Any


Unit = Callable[[], Any] | _Shared


@dataclass(frozen=True, slots=True)
class _Failure:
    error: Exception


class _Queue:
    """The pending units of one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Unit, asyncio.Future[Any]]] = deque()
        self._hops: set[asyncio.Task[None]] = set()
        self._lingers = False

    def put(self, unit: Unit) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((unit, future))
        if not isinstance(unit, _Shared):
            self._begin_hop()
        elif not self._lingers:
            self._lingers = True
            loop.call_later(LINGER_SECONDS, self._end_lingering)
        return future

    def _end_lingering(self) -> None:
        self._lingers = False
        self._begin_hop()

    def _begin_hop(self) -> None:
        if self._waiting and len(self._hops) < MOST_HOPS:
            self._hops.add(asyncio.get_running_loop().create_task(self._carry_out_all()))

    async def _carry_out_all(self) -> None:
        try:
            while self._waiting:
                together = [self._waiting.popleft() for _ in range(min(AT_A_TIME, len(self._waiting)))]
                await _carry_out_and_tell(together)
        finally:
            # Not in a callback of the task, which runs later: a unit added in between would wait for ever.
            if (hop := asyncio.current_task()) is not None:
                self._hops.discard(hop)


async def _carry_out_and_tell(together: list[tuple[Unit, asyncio.Future[Any]]]) -> None:
    try:
        outcomes: Sequence[Any] = await run_in_database(_carry_out, [unit for unit, _ in together])
    except Exception as error:  # noqa: BLE001 - each step gets it
        outcomes = [_Failure(error)] * len(together)
    for (_, future), outcome in zip(together, outcomes, strict=True):
        _tell(future, outcome)


_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue] = WeakKeyDictionary()


def _queue() -> _Queue:
    return _queues.setdefault(asyncio.get_running_loop(), _Queue())


def _carry_out(units: Sequence[Unit]) -> list[Any]:
    outcomes: dict[int, Any] = {}
    shared: dict[Any, dict[int, Any]] = defaultdict(dict)
    for number, unit in enumerate(units):
        if isinstance(unit, _Shared):
            shared[unit.unit, unit.arguments][number] = unit.item
        else:
            outcomes[number] = _outcome_of(unit)
    for (call, arguments), items in shared.items():
        outcomes |= _outcomes_of(partial(call, **dict(arguments)), items)
    return [outcomes[number] for number in range(len(units))]


def _outcomes_of(call: Callable[[Sequence[Any]], None], items: Mapping[int, Any]) -> dict[int, Any]:
    outcome = _outcome_of(partial(call, list(items.values())))
    if isinstance(outcome, _Failure) and len(items) > 1:
        # One item may spoil the batch.
        return {number: _outcome_of(partial(call, [item])) for number, item in items.items()}
    return dict.fromkeys(items, outcome)


def _outcome_of(unit: Callable[[], Any]) -> Any:
    try:
        return unit()
    except Exception as error:  # noqa: BLE001 - the step that it belongs to gets it
        # A broken connection would fail the other units.
        close_old_connections()
        return _Failure(error)


def _tell(future: asyncio.Future[Any], outcome: Any) -> None:
    if future.done():
        return  # Whoever asked was cancelled.
    if isinstance(outcome, _Failure):
        future.set_exception(outcome.error)
    else:
        future.set_result(outcome)
