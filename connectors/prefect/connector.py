"""Prefect: deployments are workflows, flow runs are runs."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from loguru import logger
from pydantic import BaseModel

from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.errors import InvalidAnswer, NotFound, OutcomeUnknown, Rejected, Unreachable
from connectors.formats.json import read_percent
from connectors.prefect import runs
from connectors.prefect.api import INFO, MOST_ROWS, PrefectApi
from connectors.prefect.config import PrefectConfig
from connectors.protocol import (
    Capabilities,
    Health,
    ReportProgress,
    RunFilter,
    RunPage,
    RunRef,
    RunSnapshot,
    RunState,
    Started,
    WorkflowRef,
    health_of,
    ignore_progress,
)

MAX_WORKFLOWS = 10_000
TAG = "workflow-catalogue"
Answer = TypeVar("Answer")


class PrefectConnector:
    """Deployments of a Prefect server or of a workspace in Prefect Cloud."""

    kind: ClassVar[str] = "prefect"
    label: ClassVar[str] = "Prefect"
    Config: ClassVar[type[BaseModel]] = PrefectConfig

    def __init__(self, config: PrefectConfig) -> None:
        self._config = config
        self._api = PrefectApi(config)

    def __repr__(self) -> str:
        return f"PrefectConnector({self._config.base_url})"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            idempotent_start=True,
            can_cancel=True,
            can_find_runs=True,
            can_list_runs=True,
            min_poll_seconds=self._config.min_poll_seconds,
        )

    async def check(self) -> Health:
        return await health_of(self._greet())

    async def _greet(self) -> str:
        """Counting needs valid credentials; the version may be public."""
        count = await self._api.count_deployments()
        version = await _or_else("", self._api.version())
        return f"Prefect {version} answered; deployments: {count}.".replace("  ", " ")

    async def discover(self) -> AsyncIterator[WorkflowDefinition | RejectedDefinition]:
        position = 0
        flow_names: dict[str, str] = {}
        while page := await self._api.deployments(offset=position):
            ids = {str(raw.get("flow_id")) for raw in page if isinstance(raw, dict)} - flow_names.keys()
            flow_names |= await self._api.flow_names(ids) if ids else {}
            for raw in page:
                if position == MAX_WORKFLOWS:
                    raise InvalidAnswer(f"Prefect lists more than {MAX_WORKFLOWS:,} deployments.")
                yield runs.read_deployment(raw, flow_names, position=position)
                position += 1

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Started:
        runs.refuse_evaluated(arguments)
        wanted = {"parameters": arguments, "idempotency_key": str(key), "name": f"{TAG}-{key}", "tags": [TAG]}
        started = _read_started(await self._api.create_run(workflow.id, wanted))
        if started is None:
            raise OutcomeUnknown("Prefect's answer to the start names no flow run.")
        return started

    async def poll(self, run: RunRef) -> RunSnapshot:
        flow_run = await self._api.run(run.run_id)
        seen = runs.snapshot_of(flow_run)
        if seen.state is not RunState.RUNNING:
            return await self._ended(run.run_id, flow_run, seen)
        return await self._under_way(run.run_id, seen) if runs.type_of(flow_run) == "RUNNING" else seen

    async def cancel(self, run: RunRef) -> None:
        asked = {"type": "CANCELLING", "message": f"Cancelled by {TAG}."}
        answer = await self._api.set_state(run.run_id, asked)
        details, state = answer.get("details"), answer.get("state")
        details = details if isinstance(details, dict) else {}
        reason = str(details.get("reason") or "Prefect gave no reason.")
        match answer.get("status"):
            case "ACCEPT":
                return
            # A run that has not started is cancelled at once.
            case "REJECT" if isinstance(state, dict) and state.get("type") in ("CANCELLING", "CANCELLED"):
                return
            case "WAIT":
                seconds = details.get("delay_seconds")
                wait = float(seconds) if isinstance(seconds, int) else None
                raise Unreachable(f"Prefect cannot cancel the run just now: {reason}", retry_after=wait)
            case "REJECT" | "ABORT":
                raise Rejected(f"Prefect does not cancel the run: {reason}")
        raise InvalidAnswer("Prefect does not say what came of the cancellation.")

    async def find_run(
        self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID
    ) -> Started | None:
        wanted = {"limit": 2, "flow_runs": {"idempotency_key": {"any_": [str(key)]}}}
        found = await self._api.runs(wanted)
        for run in found:
            started = _read_started(run)
            # A version that ignores the condition would list other runs.
            if started is None or run.get("idempotency_key") != str(key):
                raise InvalidAnswer("Prefect answered with a flow run that has another key.")
            # Runs of a deleted deployment lose its id.
            if run.get("deployment_id") in (workflow.id, None):
                return started
        return None

    async def list_runs(self, wanted: RunFilter, *, page_size: int, cursor: str = "") -> RunPage:
        offset, size = runs.offset_of(cursor), min(page_size, MOST_ROWS)
        found = await self._api.runs(runs.wanted_runs(wanted) | {"limit": size, "offset": offset})
        flows = {str(run["flow_id"]) for run in found if run.get("flow_id")}
        deployments = {str(run["deployment_id"]) for run in found if run.get("deployment_id")}
        flow_names, named = await asyncio.gather(
            self._api.flow_names(flows), self._api.deployments_by_id(deployments)
        )
        by_id = {str(deployment.get("id")): deployment for deployment in named}
        return RunPage(
            runs=[runs.read_listed(run, by_id, flow_names) for run in found],
            next_cursor=str(offset + size) if len(found) == size else "",
        )

    async def aclose(self) -> None:
        await self._api.aclose()

    async def _under_way(self, run_id: str, seen: RunSnapshot) -> RunSnapshot:
        """Missing logs or progress do not fail the poll."""
        logs, artifact = await asyncio.gather(
            self._last_logs(run_id, lines=min(1, self._config.log_lines)),
            _or_else(None, self._api.newest_artifact(run_id, type="progress")),
        )
        newest = next(filter(None, (runs.first_line(runs.message_in(entry)) for entry in logs)), "")
        percent = read_percent(artifact.get("data")) if artifact else None
        return replace(seen, progress=percent, progress_message=newest)

    async def _ended(self, run_id: str, flow_run: dict[str, Any], seen: RunSnapshot) -> RunSnapshot:
        logs = await self._last_logs(run_id, lines=self._config.log_lines)
        raw = seen.raw | {"logs": runs.kept_lines(logs)}
        if seen.state is RunState.COMPLETED:
            return replace(seen, output=await self._result(run_id, flow_run), raw=raw)
        logged = runs.last_error(logs) if seen.state is RunState.FAILED else ""
        words = f"{seen.error}\nThe last error that it logged: {logged}" if logged else seen.error
        return replace(seen, error=words, raw=raw)

    async def _result(self, run_id: str, flow_run: dict[str, Any]) -> Any:
        """The artifact's data, else the state's message, else None."""
        key = self._config.result_artifact_key
        try:
            artifact = await self._api.newest_artifact(run_id, key=key)
        except InvalidAnswer as error:
            if not error.details.get("truncated"):
                raise
            limit = f"{self._config.max_response_bytes:,} bytes"
            return f"The result is larger than {limit}. It is the artifact {key} of the flow run {run_id}."
        if artifact is None:
            return runs.message_of(flow_run) or None
        return runs.read_result(artifact.get("data"))

    async def _last_logs(self, run_id: str, *, lines: int) -> list[dict[str, Any]]:
        return await _or_else([], self._api.last_logs(run_id, lines=lines, level=INFO)) if lines else []


async def _or_else(otherwise: Answer, asked: Coroutine[Any, Any, Answer]) -> Answer:
    """For optional requests, whose errors are only logged."""
    try:
        return await asked
    except (Rejected, NotFound, InvalidAnswer, Unreachable) as error:
        logger.debug("An optional request to Prefect failed: {}", error.message)
        return otherwise


def _read_started(answer: Any) -> Started | None:
    """None without a run. For a run that has ended `poll` makes the snapshot."""
    run_id = answer.get("id") if isinstance(answer, dict) else None
    if not isinstance(run_id, str) or not run_id:
        return None
    try:
        seen = runs.snapshot_of(answer)
    except InvalidAnswer:
        return Started(run_id=run_id, raw=runs.without_storage(answer))
    under_way = seen.state is RunState.RUNNING
    return Started(run_id=run_id, snapshot=seen if under_way else None, raw=seen.raw)
