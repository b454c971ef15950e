"""An engine that retries, pauses and ends runs, on the wire: the simplified API with these requests."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

from connectors.network.client import fill_path
from connectors.protocol import Capabilities, RunRef, RunSnapshot, Started
from connectors.simplified import SimplifiedConnector, read_found_run, read_started
from tests.connectors.scripted import Received, replies, response
from tests.executions.engines import WireEngine, completed, receipt, status

KEY_HEADER = "Idempotency-Key"
KEYED: dict[str, Any] = {"idempotency_header": KEY_HEADER}
FOUND: dict[str, Any] = {"run_lookup_path": "/runs?key={key}"}


class ControlledConnector(SimplifiedConnector):
    """What its settings promise of starts holds for retries."""

    kind: ClassVar[str] = "controlled"
    label: ClassVar[str] = "Controlled"

    @property
    def capabilities(self) -> Capabilities:
        usual = super().capabilities
        return replace(
            usual,
            can_retry=True,
            idempotent_retry=usual.idempotent_start,
            can_find_retries=usual.can_find_runs,
            can_pause=True,
            can_terminate=True,
            min_poll_seconds=0.0,
        )

    async def poll(self, run: RunRef) -> RunSnapshot:
        snapshot = await super().poll(run)
        return replace(snapshot, is_paused=snapshot.raw.get("paused") is True)

    async def retry(self, run: RunRef, *, key: UUID) -> Started:
        path = fill_path("/runs/{run_id}/retry", run_id=run.run_id)
        body = {"started_with": str(run.key)}
        answer = await self._client.request_json(
            "POST", path, body=body, headers={KEY_HEADER: str(key)}, repeatable=False
        )
        return read_started(answer)

    async def find_retry(self, run: RunRef, *, key: UUID) -> Started | None:
        path = fill_path("/runs/{run_id}/retries?idempotency_key={key}", run_id=run.run_id, key=str(key))
        answer = await self._client.request_json("GET", path)
        return read_found_run(answer, ["runs"], workflow_id=run.workflow.id, key=str(key))

    async def pause(self, run: RunRef) -> None:
        await self._tell(run, "pause")

    async def resume(self, run: RunRef) -> None:
        await self._tell(run, "resume")

    async def terminate(self, run: RunRef) -> None:
        await self._tell(run, "terminate")

    async def _tell(self, run: RunRef, what: str) -> None:
        path = fill_path("/runs/{run_id}/" + what, run_id=run.run_id)
        await self._client.request("POST", path, repeatable=False)


class Controlled:
    """Its runs by id, and what came for them. A retry continues the run."""

    def __init__(self, wire: WireEngine) -> None:
        self.wire = wire
        self.states: dict[str, str] = {}
        self.by_key: dict[str, str] = {}
        self.takes_keys = False
        self.paused: set[str] = set()
        self.retried: list[tuple[str, str]] = []
        """The run and the key that it was started with, of each retry that was carried out."""
        self.reply: Callable[[], bytes | None] | None = None
        """What it answers to a request that it has carried out; None: it hangs up."""
        self.refusal: bytes | None = None
        """What it answers instead of carrying out a request."""
        wire.on_status = self._status
        names = ("retry", "retries", "pause", "resume", "terminate", "cancel")
        wire.others = {name: getattr(self, f"_{name}") for name in names}

    async def _status(self, request: Received, writer: asyncio.StreamWriter) -> None:
        run = request.target.split("/")[-2]
        state = self.states.get(run, "RUNNING")
        told = completed({"run": run}) if state == "COMPLETED" else status(state, paused=run in self.paused)
        await replies(200, told)(request, writer)

    async def _retry(self, request: Received, writer: asyncio.StreamWriter) -> None:
        run, key = request.target.split("/")[-2], request.headers["idempotency-key"]

        def act() -> None:
            if key not in self.by_key or not self.takes_keys:
                self.retried.append((run, json.loads(request.body)["started_with"]))
            self.by_key[key] = run
            self.states[run] = "COMPLETED"

        self._carry_out(writer, act, receipt(run))

    async def _retries(self, request: Received, writer: asyncio.StreamWriter) -> None:
        key = parse_qs(urlsplit(request.target).query)["idempotency_key"][0]
        found = [self.by_key[key]] if key in self.by_key else []
        await replies(200, {"runs": [{"run_id": run} for run in found]})(request, writer)

    async def _pause(self, request: Received, writer: asyncio.StreamWriter) -> None:
        self._carry_out(writer, lambda: self.paused.add(request.target.split("/")[-2]))

    async def _resume(self, request: Received, writer: asyncio.StreamWriter) -> None:
        self._carry_out(writer, lambda: self.paused.discard(request.target.split("/")[-2]))

    async def _terminate(self, request: Received, writer: asyncio.StreamWriter) -> None:
        run = request.target.split("/")[-2]
        self._carry_out(writer, lambda: self.states.update({run: "CANCELLED"}))

    async def _cancel(self, request: Received, writer: asyncio.StreamWriter) -> None:
        """It takes note, and the run goes on."""
        self._carry_out(writer, lambda: None)

    def _carry_out(self, writer: asyncio.StreamWriter, act: Callable[[], Any], answer: Any = None) -> None:
        if self.refusal is not None:
            writer.write(self.refusal)
            return
        act()
        usual = response(200, json.dumps(answer or {}))
        said = usual if self.reply is None else self.reply()
        if said is None:
            writer.close()
        else:
            writer.write(said)
