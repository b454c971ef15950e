"""Prefect's own list of flow runs: what is asked for, and how a run of it reads."""

from datetime import datetime
from typing import Any
from uuid import UUID

from connectors.errors import Rejected
from connectors.formats.json import UnreadableJSON, parse_json
from connectors.prefect.deployments import name_of
from connectors.prefect.states import STATES, first_line, message_of, moment, type_of
from connectors.protocol import ListedRun, RunFilter

BOTH_NAMES = 2


def wanted_runs(wanted: RunFilter) -> dict[str, Any]:
    """The body of Prefect's filter. Raises Rejected for what it cannot be asked."""
    conditions: dict[str, Any] = {}
    if wanted.run:
        conditions["id"] = {"any_": [_whole_id(wanted.run)]}
    if wanted.states:
        types = [kind for kind, state in STATES.items() if state in wanted.states]
        conditions["state"] = {"type": {"any_": types}}
    if times := _times(wanted.started_after, wanted.started_before):
        conditions["start_time"] = times
    if wanted.engine_query:
        conditions = _with_query(conditions, wanted.engine_query)
    return {"sort": "START_TIME_DESC", "flow_runs": conditions, **_of_workflow(wanted.workflow)}


def read_listed(
    run: dict[str, Any], deployments: dict[str, dict[str, Any]], flow_names: dict[str, str]
) -> ListedRun:
    told = type_of(run)
    return ListedRun(
        run_id=str(run.get("id", "")),
        workflow=_workflow_of(run, deployments, flow_names),
        state=STATES[told],
        told_state=str(run.get("state_name") or told),
        key=_key(run.get("idempotency_key")),
        started_at=moment(run.get("start_time")),
        finished_at=moment(run.get("end_time")),
        details={
            "name": run.get("name"),
            "tags": run.get("tags"),
            "message": first_line(message_of(run)),
            "expected_start_time": run.get("expected_start_time"),
        },
    )


def offset_of(cursor: str) -> int:
    if not cursor:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= len("1000000000")):
        raise Rejected("This is no cursor of this listing.")
    return int(cursor)


def _workflow_of(
    run: dict[str, Any], deployments: dict[str, dict[str, Any]], flow_names: dict[str, str]
) -> str:
    """The deployment's name; the flow's for a run that somebody started without one."""
    deployment = deployments.get(str(run.get("deployment_id")))
    if deployment is not None:
        return str(name_of(deployment, flow_names))
    flow = str(run.get("flow_id", ""))
    return flow_names.get(flow, flow)


def _key(told: Any) -> UUID | None:
    """Ours are UUIDs; Prefect's schedules use keys of another form."""
    try:
        return UUID(told) if isinstance(told, str) else None
    except ValueError:
        return None


def _whole_id(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise Rejected("Prefect finds a run by its whole id only, not by how it begins.") from None


def _times(after: datetime | None, before: datetime | None) -> dict[str, str]:
    told = {"after_": after, "before_": before}
    return {name: moment.isoformat() for name, moment in told.items() if moment}


def _of_workflow(name: str) -> dict[str, Any]:
    """A deployment's id, `flow/deployment`, or a part of either name."""
    if not name:
        return {}
    try:
        return {"deployments": {"id": {"any_": [str(UUID(name))]}}}
    except ValueError:
        parts = name.split("/")
    if len(parts) == BOTH_NAMES and all(parts):
        return {"flows": {"name": {"any_": parts[:1]}}, "deployments": {"name": {"any_": parts[1:]}}}
    return {"deployments": {"flow_or_deployment_name": {"like_": name}}}


def _with_query(conditions: dict[str, Any], query: str) -> dict[str, Any]:
    """Prefect has no query language: its filter's own JSON takes the place of one."""
    try:
        added = parse_json(query.encode("utf-8", "replace"))
    except UnreadableJSON as error:
        raise Rejected(f"A condition for Prefect is JSON such as {EXAMPLE}. {error}") from None
    if not isinstance(added, dict):
        raise Rejected(f"A condition for Prefect is a JSON object such as {EXAMPLE}.")
    if twice := conditions.keys() & added.keys():
        raise Rejected(f"The condition names {min(twice)}, which the other filters set already.")
    return conditions | added


EXAMPLE = '{"tags": {"all_": ["nightly"]}}'
