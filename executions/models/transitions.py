"""Changes the row by one compare-and-set UPDATE with its events and payload."""

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import DatabaseError, InterfaceError, models, transaction
from django.db.models.expressions import RawSQL
from django.utils import timezone

from connectors.network.redaction import printable
from connectors.protocol import RunSnapshot, RunState
from executions.models.execution import (
    ACTIVE,
    EVENT_COLUMNS,
    FINAL,
    ErrorKind,
    ExecutionEvent,
    ExecutionPayload,
    ExecutionRecord,
    FailureEffect,
    InputRequest,
    State,
    prove_end,
    size_of,
)
from executions.models.result_cache import keep_result
from executions.models.statements import (
    ONE_STATEMENT,
    ONLY_IF_CHANGED,
    Statement,
    adapt_key,
    adapt_time,
    carry_out,
    change_and,
    insertion,
    update,
)
from executions.models.usage import end_of, usage_insertion

MESSAGE_CHARACTERS = 500  # Of a progress message
NO_LEASE: Mapping[str, Any] = {"lease_holder": "", "lease_expires_at": None}
ASKING = (State.STARTING, State.RUNNING)
ONE_POLL: Mapping[str, Any] = {"polls": RawSQL("polls + 1", [])}
Event = tuple[str, str]  # A line for the timeline: its kind and text


class _Before(threading.local):
    """Holds the values of instances before this thread changed them, oldest first; None: not recorded."""

    changed: list[tuple[dict[str, Any], dict[str, Any]]] | None = None


_before = _Before()


@contextlib.contextmanager
def instances_restored_on_failure() -> Iterator[None]:
    """Around a transaction of several executions: if the database fails it, their instances are again what
    their rows are."""
    changed = _before.changed = []
    try:
        yield
    except (DatabaseError, InterfaceError):
        for attributes, values in reversed(changed):
            attributes.update(values)
        raise
    finally:
        _before.changed = None


def _keep_before(instance: models.Model) -> None:
    if _before.changed is not None:
        _before.changed.append((vars(instance), dict(vars(instance))))


class Transitions(ExecutionRecord):
    class Meta(ExecutionRecord.Meta):
        abstract = True

    def _finish_as_reported(
        self,
        allowed: Iterable[str],
        snapshot: RunSnapshot,
        *events: Event,
        payload: dict[str, Any],
        now: datetime | None = None,
        **changes: Any,
    ) -> bool:
        state, why = State.FAILED, snapshot.error or "The engine gave no reason."
        needs_operator = snapshot.needs_operator
        if snapshot.state == RunState.COMPLETED:
            state, why = State.COMPLETED, ""
            if snapshot.unread is not None:
                missing = "its result" if snapshot.output is None else "a part of its result"
                why = f"The run completed, but {missing} could not be read: {snapshot.unread.message}"
                needs_operator = snapshot.unread.needs_operator
        elif snapshot.state == RunState.CANCELLED:
            state, why = State.CANCELLED, snapshot.error or "The run was cancelled at the engine."
        aftermath = None if snapshot.depends_on_arguments else FailureEffect.NO_OTHER_ARGUMENTS
        if snapshot.may_have_effect:
            aftermath = FailureEffect.MAY_HAVE_EFFECT
        kind = ErrorKind.CONFIGURATION if needs_operator else ErrorKind.EXECUTION
        is_to_be_cached = bool(self.cache_key) and state == State.COMPLETED and not why
        with transaction.atomic(savepoint=False) if is_to_be_cached else contextlib.nullcontext():
            moved = self._transition(
                allowed,
                *events,
                *(_lines_of(aftermath) if state == State.FAILED else ()),
                (state.value, why),
                payload={**_result_of(snapshot), **payload},
                **self._end(state, kind=kind if why else None, why=why, snapshot=snapshot, now=now),
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
        aftermath: FailureEffect | None = None,
        polled: bool = False,
    ) -> bool:
        """`polled`: a poll shows the end."""
        told = {} if snapshot is None else {**_result_of(snapshot), "status_answer": snapshot.raw}
        return self._transition(
            allowed,
            *_lines_of(aftermath),
            (state.value, why),
            ours=True,
            payload={**told, **(payload or {})},
            **(ONE_POLL if polled else {}),
            **self._end(state, kind=kind, why=why, snapshot=snapshot),
        )

    def _end(
        self,
        state: State,
        *,
        kind: ErrorKind | None,
        why: str,
        snapshot: RunSnapshot | None,
        now: datetime | None = None,
    ) -> dict[str, Any]:
        now = now or timezone.now()
        changes: dict[str, Any] = {} if snapshot is None else engine_times(self, snapshot)
        if snapshot is not None and snapshot.progress is not None:
            changes |= {"progress": snapshot.progress, "progress_message": progress_message(snapshot)}
        ended = {
            "state": state,
            "finished_at": now,
            "error_kind": kind or "",
            "error": printable(why),
        }
        return {**changes, **ended, **self._answer(now), **NO_LEASE}

    def _answer(self, now: datetime) -> dict[str, Any]:
        """A request of this process that waits for it answers with its new state."""
        if not self.awaited_here:
            return {}
        # Cleared, unless its caller has disconnected in the meantime.
        unless_past = "CASE WHEN awaited_until > %s THEN NULL ELSE awaited_until END"
        return {"awaited_until": RawSQL(unless_past, [adapt_time(now)])}  # noqa: S611 - names

    def _transition(
        self,
        allowed: Iterable[str],
        *events: Event,
        when: models.Q | None = None,
        ours: bool = False,
        payload: dict[str, Any] | None = None,
        **changes: Any,
    ) -> bool:
        """Applies `changes`, events and payload if the row is still in an `allowed` state; True if so.

        `ours`: only under the lease that the row was read with. Afterwards the instance has the changes.
        """
        payload = payload or {}
        sizes = dict(zip(payload, map(size_of, payload.values()), strict=True))
        is_final = changes.get("state") in FINAL
        if is_final:
            # Of what callers read: the content may be all of it, or a note
            given = [sizes[name] for name in ("output", "content") if payload.get(name) is not None]
            changes["output_characters"] = max(given, default=0)
        if max(sizes.values(), default=0) > settings.CATALOGUE.max_payload_bytes:
            payload, lines = ExecutionPayload.leave_out_too_large(self, sizes, payload)
            events = (*lines, *events)
        is_one = ONE_STATEMENT and when is None
        now = changes.get("finished_at") or timezone.now()
        payload |= prove_end(vars(self) | changes, payload)
        others = self._statements(payload, events, now, only_if_changed=is_one)
        if is_final and self.is_counted:
            others.append(usage_insertion([end_of(self, changes)], only_if_changed=is_one))
        others += self._withdraw_questions(changes, only_if_changed=is_one)
        moved = self._change(allowed, changes, others, when=when, ours=ours)
        if not moved:
            return False
        _keep_before(self)
        if (known := self._state.fields_cache.get("payload")) is not None:
            _keep_before(known)
            vars(known).update(payload)
        for name, value in changes.items():
            if name != "state" and not isinstance(value, models.expressions.Combinable):
                setattr(self, name, value)
        # The state last: a waiting request may read the instance while this thread writes it.
        self.state = changes.get("state", self.state)
        return True

    @property
    def has_asked(self) -> bool:
        return self.input_request is not None or self.question_answered_at is not None

    def _withdraw_questions(self, changes: dict[str, Any], *, only_if_changed: bool) -> list[Statement]:
        if not self.has_asked or changes.get("state", self.state) in ASKING:
            return []
        changes |= {"input_request": None, "question_answered_at": None}
        condition = "execution_id = %s" + (f" AND {ONLY_IF_CHANGED}" if only_if_changed else "")
        return [(f"DELETE FROM {InputRequest._meta.db_table} WHERE {condition}", [adapt_key(self.pk)])]  # noqa: S608

    def _change(
        self,
        allowed: Iterable[str],
        changes: Mapping[str, Any],
        others: Sequence[Statement],
        *,
        when: models.Q | None,
        ours: bool,
    ) -> bool:
        states = list(map(str, allowed))
        if when is None:
            condition = f"id = %s AND state IN ({', '.join(['%s'] * len(states))})"
            parameters = [adapt_key(self.pk), *states]
            if ours:
                condition += " AND lease_holder = %s"
                parameters.append(self.lease_holder)
            return change_and(update(type(self), changes, condition, parameters), *others)
        matching = type(self)._default_manager.filter(when, pk=self.pk, state__in=states)
        # A single UPDATE needs no transaction, and a savepoint in another one costs time.
        with transaction.atomic(savepoint=False) if others else contextlib.nullcontext():
            if matching.update(**changes) != 1:
                return False
            if others:
                carry_out(*others)
        return True

    def _statements(
        self, payload: Mapping[str, Any], events: Sequence[Event], now: datetime, *, only_if_changed: bool
    ) -> list[Statement]:
        statements = []
        if payload:
            condition = "execution_id = %s" + (f" AND {ONLY_IF_CHANGED}" if only_if_changed else "")
            statements.append(update(ExecutionPayload, payload, condition, [adapt_key(self.pk)]))
        if events:
            rows = [(self.pk, now, kind, printable(message)) for kind, message in events]
            statements.append(insertion(ExecutionEvent, EVENT_COLUMNS, rows, only_if_changed=only_if_changed))
        return statements


def _result_of(snapshot: RunSnapshot) -> dict[str, Any]:
    content = {} if snapshot.content is None else {"content": list(snapshot.content)}
    return {"output": snapshot.output, **content}


def _lines_of(aftermath: FailureEffect | None) -> list[Event]:
    return [] if aftermath is None else [(aftermath.value, str(aftermath.label))]


def progress_message(snapshot: RunSnapshot) -> str:
    return printable(snapshot.progress_message)[:MESSAGE_CHARACTERS]


def engine_times(execution: ExecutionRecord, snapshot: RunSnapshot) -> dict[str, Any]:
    begun = snapshot.started_at
    if execution.from_failed_step and begun is not None and begun < execution.created_at:
        begun = None  # Of the attempt before, whose time is not this one's
    return {
        "engine_created_at": snapshot.created_at,
        "engine_started_at": begun,
        "engine_updated_at": snapshot.updated_at,
        "engine_finished_at": snapshot.finished_at,
    }
