"""How a transition changes the row: one compare-and-set UPDATE with its events and payload."""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from django.db import models, transaction
from django.utils import timezone

from connectors.network.redaction import printable
from connectors.protocol import RunSnapshot, RunState
from executions.models.payload import ExecutionPayload, size_of
from executions.models.record import ExecutionEvent, ExecutionRecord
from executions.models.result_cache import keep_result
from executions.models.states import ACTIVE, FINAL, Aftermath, ErrorKind, State
from executions.models.usage import count_end

Event = tuple[str, str]
"""A line for the timeline: its kind and what it says."""


class Transitions(ExecutionRecord):
    class Meta(ExecutionRecord.Meta):
        abstract = True

    def _finish_as_reported(
        self,
        allowed: Iterable[str],
        snapshot: RunSnapshot,
        *events: Event,
        payload: dict[str, Any],
        **changes: Any,
    ) -> bool:
        state, why = State.FAILED, snapshot.error or "The engine gave no reason."
        if snapshot.state == RunState.COMPLETED:
            state, why = State.COMPLETED, ""
        elif snapshot.state == RunState.CANCELLED:
            state, why = State.CANCELLED, snapshot.error or "The run was cancelled at the engine."
        kind = ErrorKind.CONFIGURATION if snapshot.needs_operator else ErrorKind.EXECUTION
        is_to_be_cached = bool(self.cache_key) and state == State.COMPLETED
        with transaction.atomic(savepoint=False) if is_to_be_cached else contextlib.nullcontext():
            moved = self._move(
                allowed,
                *events,
                *_lines_of(_aftermath_of(snapshot) if state == State.FAILED else None),
                (state.value, why),
                payload={**_result_of(snapshot), **payload},
                **self._end(state, kind=kind if why else None, why=why, snapshot=snapshot),
                **changes,
            )
            if moved and is_to_be_cached:
                keep_result(self, snapshot.output, snapshot.content)
        return moved

    def _finish(
        self,
        state: State,
        *,
        kind: ErrorKind | None = None,
        why: str,
        snapshot: RunSnapshot | None = None,
        payload: dict[str, Any] | None = None,
        allowed: Iterable[str] = ACTIVE,
        aftermath: Aftermath | None = None,
    ) -> bool:
        told = {} if snapshot is None else {**_result_of(snapshot), "status_answer": snapshot.raw}
        return self._move(
            allowed,
            *_lines_of(aftermath),
            (state.value, why),
            ours=True,
            payload={**told, **(payload or {})},
            **self._end(state, kind=kind, why=why, snapshot=snapshot),
        )

    def _end(
        self, state: State, *, kind: ErrorKind | None, why: str, snapshot: RunSnapshot | None
    ) -> dict[str, Any]:
        changes: dict[str, Any] = {} if snapshot is None else engine_times(snapshot)
        if snapshot is not None and snapshot.progress is not None:
            changes |= {"progress": snapshot.progress, "progress_message": progress_message(snapshot)}
        ended = {
            "state": state,
            "finished_at": timezone.now(),
            "error_kind": kind or "",
            "error": printable(why),
        }
        return {**changes, **ended, **self._answer(), **no_lease()}

    def _answer(self) -> dict[str, Any]:
        """Whoever waits for it in this process answers with what it has become."""
        return {"awaited_until": _unless_past("awaited_until")} if self.awaited_here else {}

    def _move(
        self,
        allowed: Iterable[str],
        *events: Event,
        when: models.Q | None = None,
        ours: bool = False,
        payload: dict[str, Any] | None = None,
        **changes: Any,
    ) -> bool:
        """Apply `changes`, events and payload if the row is still in an `allowed` state; True if so.

        `ours`: only under the lease that the row was read with. Afterwards the instance has the changes.
        """
        rows = type(self)._default_manager
        matching = rows.filter(when or models.Q(), pk=self.pk, state__in=list(allowed))
        if ours:
            matching = matching.filter(lease_holder=self.lease_holder)
        payload = payload or {}
        sizes = {name: size_of(value) for name, value in payload.items()}
        if changes.get("state") in FINAL:
            changes["output_characters"] = _result_size(payload, sizes)
        # A single UPDATE needs no transaction, and a savepoint in another one costs time.
        several = transaction.atomic(savepoint=False) if events or payload else contextlib.nullcontext()
        with several:
            if matching.update(**changes) != 1:
                return False
            self._record_move(events, payload, sizes, changes)
        for name, value in changes.items():
            if name != "state" and not isinstance(value, models.expressions.Combinable):
                setattr(self, name, value)
        # The state last: a waiting request may read the instance while this thread writes it.
        self.state = changes.get("state", self.state)
        return True

    def _record_move(
        self,
        events: Iterable[Event],
        payload: Mapping[str, Any],
        sizes: Mapping[str, int],
        changes: Mapping[str, Any],
    ) -> None:
        if payload:
            ExecutionPayload.record(self, sizes, **payload)
        if events:
            ExecutionEvent.objects.bulk_create(
                [
                    ExecutionEvent(execution_id=self.pk, kind=kind, message=printable(message))
                    for kind, message in events
                ]
            )
        if changes.get("state") in FINAL:
            count_end(self, changes)


def _result_of(snapshot: RunSnapshot) -> dict[str, Any]:
    content = {} if snapshot.content is None else {"content": list(snapshot.content)}
    return {"output": snapshot.output, **content}


def _result_size(payload: Mapping[str, Any], sizes: Mapping[str, int]) -> int:
    """Of what callers read: the content if there is any."""
    if payload.get("content") is not None:
        return sizes["content"]
    return 0 if payload.get("output") is None else sizes["output"]


def _aftermath_of(snapshot: RunSnapshot) -> Aftermath | None:
    if snapshot.may_have_effect:
        return Aftermath.MAY_HAVE_EFFECT
    return None if snapshot.depends_on_arguments else Aftermath.NO_OTHER_ARGUMENTS


def _lines_of(aftermath: Aftermath | None) -> list[Event]:
    return [] if aftermath is None else [(aftermath.value, str(aftermath.label))]


def _unless_past(field: str) -> models.Case:
    """Empty from now on, except where its caller has gone away in the meantime."""
    future = models.When(models.Q(**{f"{field}__gt": timezone.now()}), then=models.Value(None))
    return models.Case(future, default=models.F(field), output_field=models.DateTimeField())


def no_lease() -> dict[str, Any]:
    return {"lease_holder": "", "lease_expires_at": None}


def progress_message(snapshot: RunSnapshot) -> str:
    return printable(snapshot.progress_message)[:500]


def engine_times(snapshot: RunSnapshot) -> dict[str, Any]:
    return {
        "engine_created_at": snapshot.created_at,
        "engine_started_at": snapshot.started_at,
        "engine_updated_at": snapshot.updated_at,
        "engine_finished_at": snapshot.finished_at,
    }
