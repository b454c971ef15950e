"""Provides what requests and responses share: caller, headers, refusals, limits on waiting."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema_field
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from access.callers import Caller
from access.permissions import is_administrator
from catalogue.rest.base import Problem, Refusal
from catalogue.rest.views import ApiViewSet, Row
from connectors.errors import ConnectorError, Rejected, Unsupported
from connectors.formats.lists import split_list
from executions import approvals, asking, engine_runs, interacting, questions, refusals
from executions.reading import UnknownExecution
from executions.starting import read_idempotency_key

ANY_JSON: dict[str, Any] = {}


def caller_of(request: Request) -> Caller:
    token: Any = request.auth
    if token is None:
        return Caller.of_user(request.user, sees_everything=is_administrator(request))
    caller: Caller = token.caller
    return replace(caller, sees_everything=is_administrator(request))


def header(name: str, description: str, **options: Any) -> OpenApiParameter:
    return OpenApiParameter(name, location=OpenApiParameter.HEADER, description=description, **options)


IDEMPOTENCY_KEY = header(
    "Idempotency-Key",
    "A key that the caller chooses: 1 to 255 printable ASCII characters, such as a UUID. For "
    "CATALOGUE_IDEMPOTENCY_HOURS the same request with the same key is answered as the first one was, and "
    "runs nothing again. Requests are the same if they are the same JSON, whatever the order of names; `1` "
    "and `1.0` differ. One that was refused, or failed before a tool was started, does not use the key up.",
)
CACHE_CONTROL = header(
    "Cache-Control",
    "`no-cache`: the workflow runs even if a result is cached; its result takes the place of that one.",
)
REPLAYED = ("Idempotent-Replayed", "`true` if this is the answer to an earlier request with the key.")
RETRY_AFTER = ("Retry-After", "Seconds.")


def idempotency_key_of(request: Request) -> str:
    """Empty if none was sent. Raises InvalidIdempotencyKey."""
    sent = request.headers.get(IDEMPOTENCY_KEY.name)
    return "" if sent is None else read_idempotency_key(sent)


def wants_fresh(request: Request) -> bool:
    return "no-cache" in split_list(request.headers.get(CACHE_CONTROL.name, "").lower())


class ExecutionsViewSet(ApiViewSet[Row]):
    def handle_exception(self, error: Exception) -> Response:
        return super().handle_exception(as_refusal(error))


# Of the closest class that is named here.
CODES: dict[type[Exception], int] = {
    UnknownExecution: 404,
    approvals.UnknownApproval: 404,
    approvals.NotAllowed: 403,
    approvals.NotDecided: 409,
    approvals.UnfitChange: 400,
    refusals.StartRefused: 400,
    refusals.UnknownTool: 404,
    refusals.IdempotencyConflict: 409,
    refusals.KeyOfOtherToolset: 409,
    refusals.AlreadyRetried: 409,
    refusals.Busy: 503,
    refusals.TooManyCalls: 429,
    questions.AnswerRefused: 409,
    questions.NotAllowedToAnswer: 403,
    questions.UnfitAnswer: 400,
    asking.NotAnswered: 400,
    asking.NothingToAsk: 409,
    asking.TooManyQuestions: 503,
    interacting.InteractionRefused: 409,
    interacting.UnknownInteraction: 400,
    interacting.UnfitArguments: 400,
    interacting.EngineUnavailable: 503,
    interacting.SignalUncertain: 504,
    engine_runs.ResolutionRefused: 409,
    engine_runs.UnknownRun: 400,
    engine_runs.EngineSilent: 503,
    ConnectorError: 503,
    Rejected: 400,
    Unsupported: 409,
}
PLACES = {
    refusals.UnusableNotice: "/notify",
    asking.NotAnswered: "?query",
    interacting.UnknownInteraction: "/name",
    engine_runs.UnknownRun: "/run_id",
}


def as_refusal(error: Exception) -> Exception:
    """Converts refusals of the product or an engine to a Refusal; returns other errors as they are."""
    code = next((CODES[one] for one in type(error).__mro__ if one in CODES), None)
    if code is None:
        return error
    message, is_start = str(error), isinstance(error, refusals.StartRefused)
    if isinstance(error, refusals.UnknownTool):
        message += " GET /api/workflows/ lists the available ones."
    member = "/content" if isinstance(error, questions.UnfitAnswer) else "/arguments"
    problems = [Problem(f"{member}{one.path}", one.message) for one in getattr(error, "problems", ())]
    if place := PLACES.get(type(error)):
        problems = [Problem(place, message)]
    kind = "execution" if code >= status.HTTP_409_CONFLICT and not is_start else ""
    refusal = Refusal(code, message, kind=kind, errors=problems)
    if isinstance(error, refusals.Busy):
        refusal.wait = error.retry_after
    if isinstance(error, refusals.IdempotencyConflict):
        refusal.more["execution_id"] = str(error.execution.pk)
    return refusal


MAX_WAITS = 128  # Concurrent waits of one web process, which has twice as many threads
MAX_WAITS_OF_ONE = 64  # Of one caller


class WaitingPlaces:
    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._taken: Counter[str] = Counter()

    @contextmanager
    def one_for(self, caller: str) -> Iterator[bool]:
        """Returns whether there was a place, which is held for the block."""
        with self._turn:
            has_place = self._taken.total() < MAX_WAITS and self._taken[caller] < MAX_WAITS_OF_ONE
            if has_place:
                self._taken[caller] += 1
        try:
            yield has_place
        finally:
            if has_place:
                with self._turn:
                    self._taken -= Counter([caller])  # Without those that have none left


waiting_places = WaitingPlaces()


@extend_schema_field(ANY_JSON)
class AnyJSONField(serializers.JSONField):
    pass
