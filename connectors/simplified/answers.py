"""Reading the simplified workflow API's answers: listings, starts, statuses, lookups by key."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from connectors.errors import InvalidAnswer, OutcomeUnknown
from connectors.formats.json import is_number, read_percent
from connectors.network.redaction import printable, shorten, shorten_error, words_in
from connectors.protocol import RunSnapshot, RunState, Started

MAX_PAGES = 1_000
MAX_ITEMS = 10_000
MOST_WORKFLOWS = 50_000
NEXT_KEYS = ("next", "next_cursor", "nextCursor")
STATES = {
    "RUNNING": RunState.RUNNING,
    "COMPLETED": RunState.COMPLETED,
    "FAILED": RunState.FAILED,
    "CANCELLED": RunState.CANCELLED,
    "CANCELED": RunState.CANCELLED,
}
LINE_LIMIT = 500
NO_REASON = {
    RunState.FAILED: "The workflow failed and the engine gave no reason.",
    RunState.CANCELLED: "The workflow was cancelled at the engine.",
}
RUN_KEYS = ("runs", "run")
RUN_ID_KEYS = ("run_id", "runId", "id")
KEY_KEYS = ("idempotency_key", "idempotencyKey", "key")


async def walk_listing(
    fetch_page: Callable[[str], Awaitable[tuple[list[Any], str]]],
    first: str = "",
    *,
    listing: str,
    of: str,
    most: int = MAX_ITEMS,
) -> AsyncGenerator[tuple[int, Any]]:
    """The items of all pages with their positions. Raises InvalidAnswer for an endless listing. `fetch_page`
    returns a page's items and the next page, empty on the last. `listing` and `of` name them in errors."""
    target, visited, position = first, set[str](), 0
    while True:
        if target in visited:
            raise InvalidAnswer(f"{listing} leads back to a page that was read before.")
        if len(visited) == MAX_PAGES:
            raise InvalidAnswer(f"{listing} has more than {MAX_PAGES:,} pages.")
        visited.add(target)
        items, target = await fetch_page(target)
        for item in items:
            if position == most:
                raise InvalidAnswer(f"{listing} has more than {most:,} {of}.")
            yield position, item
            position += 1
        if not target:
            return


def read_listing(answer: Any, keys: list[str]) -> tuple[list[Any], str]:
    """A page's workflows and the link or cursor to the next, empty on the last. Raises InvalidAnswer with the
    keys seen."""
    items, envelope = find_items(answer, keys)
    return items, _next_of(envelope) or _next_of(answer)


def find_items(answer: Any, keys: list[str]) -> tuple[list[Any], Any]:
    """A listing's array and the object that holds it."""
    envelopes = [answer] if isinstance(answer, dict) else []
    # Such as {"data": {"workflows": []}}.
    envelopes += [one[key] for one in envelopes for key in keys if isinstance(one.get(key), dict)]
    for envelope in envelopes:
        for key in keys:
            if isinstance(envelope.get(key), list):
                return envelope[key], envelope
    if isinstance(answer, list):
        return answer, None
    raise InvalidAnswer(f"The listing has no array under {', '.join(keys)}; it is {shape_of(answer)}.")


def shape_of(answer: Any) -> str:
    if not isinstance(answer, dict):
        return _json_type(answer)
    keys = ", ".join(printable(shorten(key, 50)) for key in list(answer)[:20])
    return f"an object with the keys {keys}" if keys else "an empty object"


def _json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a text"
        case int() | float():
            return "a number"
        case list():
            return "an array"
    return "an object"


def _next_of(envelope: Any) -> str:
    if not isinstance(envelope, dict):
        return ""
    link = next((envelope[key] for key in NEXT_KEYS if envelope.get(key)), "")
    if isinstance(link, bool) or not isinstance(link, str | int):
        raise InvalidAnswer(f"The listing's link to the next page is {_json_type(link)}, not a text.")
    return str(link)


def read_started(answer: Any) -> Started:
    """Raises OutcomeUnknown for an answer without a run's id, as there may still be a run."""
    if not isinstance(answer, dict):
        raise OutcomeUnknown(f"The engine answered the start with {_json_type(answer)} instead of an object.")
    run_id = identifier(answer.get("workflow_id"))
    if not run_id:
        raise OutcomeUnknown(f"The engine's answer to the start names no run; it is {shape_of(answer)}.")
    return Started(
        run_id=run_id,
        correlation_id=identifier(answer.get("correlation_id")),
        snapshot=snapshot_beside(answer),
        raw=answer,
    )


def identifier(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    text = str(value)
    return text if len(text) <= 255 and text.isprintable() else ""


def snapshot_beside(answer: dict[str, Any]) -> RunSnapshot | None:
    """The status in a start's answer; None if unreadable, since `poll` can ask again."""
    try:
        return read_snapshot(answer) if "status" in answer else None
    except InvalidAnswer:
        return None


def read_snapshot(answer: Any) -> RunSnapshot:
    """Raises InvalidAnswer for an unknown status."""
    if not isinstance(answer, dict):
        raise InvalidAnswer(f"The engine answered the status request with {_json_type(answer)}.")
    state = _state_of(answer.get("status"))
    return RunSnapshot(
        state=state,
        output=answer.get("output"),
        error=_error_of(answer, state),
        progress=read_percent(answer.get("progress")),
        progress_message=_text(answer.get("progress_message")),
        created_at=_time(answer.get("create_time")),
        started_at=_time(answer.get("start_time")),
        updated_at=_time(answer.get("update_time")),
        finished_at=_time(answer.get("end_time")),
        raw=answer,
    )


def _state_of(status: Any) -> RunState:
    if not isinstance(status, str):
        raise InvalidAnswer(f"The run's status is {_json_type(status)}, not a text.")
    state = STATES.get(status.strip().upper())
    if state is None:
        shown = printable(shorten(status, 50))
        raise InvalidAnswer(f"The run has the status {shown!r}, which this connector does not know.")
    return state


def _time(milliseconds: Any) -> datetime | None:
    """A Unix time in milliseconds; None for 0 ("not yet") and anything else."""
    if not is_number(milliseconds) or milliseconds <= 0:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _text(value: Any) -> str:
    return shorten(printable(value), LINE_LIMIT) if isinstance(value, str) else ""


def _error_of(answer: dict[str, Any], state: RunState) -> str:
    if state not in NO_REASON:
        return ""
    output = answer.get("output")
    output = output if isinstance(output, dict) else {}
    candidates = (
        answer.get("error"),
        output.get("error"),
        output.get("message"),
        answer.get("reasonForIncompletion"),
        output.get("reasonForIncompletion"),
    )
    words = next(filter(None, map(words_in, candidates)), NO_REASON[state])
    return shorten_error(words)


def read_found_run(answer: Any, keys: list[str], *, workflow_id: str, key: str) -> Started | None:
    """The engine's run for the key, or None. Raises InvalidAnswer for an answer that leaves this open, since
    a wrong "none" starts a second run."""
    if isinstance(answer, dict) and run_id_of(answer, workflow_id):
        runs = [answer]
    elif isinstance(answer, dict) and isinstance(answer.get("run"), dict):
        runs = [answer["run"]]
    else:
        runs, _ = find_items(answer, [*RUN_KEYS, *keys])
    if len(runs) > 1:
        raise InvalidAnswer(f"The engine has {len(runs)} runs for the key {key}: it seems not to look at it.")
    return _read_run(runs[0], workflow_id=workflow_id, key=key) if runs else None


def _read_run(run: Any, *, workflow_id: str, key: str) -> Started:
    if not isinstance(run, dict) or not (run_id := run_id_of(run, workflow_id)):
        raise InvalidAnswer(f"The run that the engine has for the key has no id; it is {shape_of(run)}.")
    if others := {run[name] for name in KEY_KEYS if isinstance(run.get(name), str)} - {key}:
        raise InvalidAnswer(
            f"Asked for the key {key}, the engine answered with a run of {min(others)[:100]}."
        )
    return Started(
        run_id=run_id,
        correlation_id=identifier(run.get("correlation_id")),
        snapshot=snapshot_beside(run),
        raw=run,
    )


def run_id_of(run: dict[str, Any], workflow_id: str) -> str:
    """`workflow_id` is the run's id in the answer to a start, and the workflow's in a status."""
    named = next(filter(None, (identifier(run.get(name)) for name in RUN_ID_KEYS)), "")
    if named:
        return named
    receipt = identifier(run.get("workflow_id"))
    return "" if receipt == workflow_id else receipt
