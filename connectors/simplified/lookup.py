"""Reading the answer of the simplified workflow API to a lookup by key: a run, or a list of runs."""

from typing import Any

from connectors.errors import InvalidAnswer
from connectors.protocol import Started
from connectors.simplified.answers import find_items, identifier, shape_of, snapshot_beside

RUN_KEYS = ("runs", "run")
RUN_ID_KEYS = ("run_id", "runId", "id")
KEY_KEYS = ("idempotency_key", "idempotencyKey", "key")


def read_found_run(answer: Any, keys: list[str], *, workflow_id: str, key: str) -> Started | None:
    """The one run that the engine has for the key; None where it says that there is none.

    Raises InvalidAnswer for what leaves that open: a wrong "none" would let somebody start a second run.
    """
    runs = _runs_in(answer, keys, workflow_id)
    if len(runs) > 1:
        raise InvalidAnswer(f"The engine has {len(runs)} runs for the key {key}: it seems not to look at it.")
    return _read_run(runs[0], workflow_id=workflow_id, key=key) if runs else None


def _runs_in(answer: Any, keys: list[str], workflow_id: str) -> list[Any]:
    if isinstance(answer, dict) and run_id_of(answer, workflow_id):
        return [answer]
    if isinstance(answer, dict) and isinstance(answer.get("run"), dict):
        return [answer["run"]]
    runs, _ = find_items(answer, [*RUN_KEYS, *keys])
    return runs


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
    """`workflow_id` is the run's in the answer to a start, and the workflow's own in a status."""
    named = next(filter(None, (identifier(run.get(name)) for name in RUN_ID_KEYS)), "")
    if named:
        return named
    receipt = identifier(run.get("workflow_id"))
    return "" if receipt == workflow_id else receipt
