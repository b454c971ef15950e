"""Temporal: workflows declared in YAML, run through Temporal's SDK. The SDK takes a third of a second to
import, so it is imported when a source is used."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from pydantic import BaseModel

from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.errors import Misconfigured
from connectors.formats.json import as_object
from connectors.protocol import (
    Capabilities,
    Health,
    ReportProgress,
    RunFilter,
    RunPage,
    RunRef,
    RunSnapshot,
    Started,
    WorkflowRef,
    health_of,
    ignore_progress,
)
from connectors.settings import state_of_file
from connectors.temporal.config import (
    METADATA_KEY,
    NO_DEFINITIONS,
    TemporalConfig,
    declares_nothing,
    list_declared,
    read_declared,
    settings_of,
)

if TYPE_CHECKING:
    from connectors.temporal.service import TemporalService


class TemporalConnector:
    """Workflows of a Temporal namespace, declared in YAML."""

    kind: ClassVar[str] = "temporal"
    label: ClassVar[str] = "Temporal"
    Config: ClassVar[type[BaseModel]] = TemporalConfig

    def __init__(self, config: TemporalConfig) -> None:
        self._config = config
        self._made: TemporalService | None = None
        self._watch: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"TemporalConnector({self._config.host_port}, {self._config.namespace})"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            idempotent_start=True,
            can_cancel=True,
            can_find_runs=True,
            can_wait=True,
            terminates_after_seconds=self._config.cancel_grace_seconds or None,
            can_query=True,
            can_signal=True,
            can_list_runs=True,
            asks_people=True,
            can_retry=True,
            can_find_retries=True,
            can_pause=self._config.pause_enabled,
            can_terminate=True,
            differ_by_workflow=True,
            reports_listing_changes=bool(self._file),
        )

    def capabilities_for(self, workflow: WorkflowRef) -> Capabilities:
        asks = as_object(workflow.metadata.get(METADATA_KEY)).get("asks")
        return replace(self.capabilities, asks_people=bool(asks))

    async def check(self) -> Health:
        return await health_of(self._greet())

    async def _greet(self) -> str:
        service = await self._service()
        await service.reach()
        unheard = await self._queues_without_workers(service)
        message = f"Temporal answered; namespace {self._config.namespace}."
        if declares_nothing(self._config):
            message += f" There are no definitions: {NO_DEFINITIONS}."
        if unheard:
            message += f" No worker is listening on: {', '.join(unheard)}."
        return message

    async def discover(self) -> AsyncIterator[WorkflowDefinition | RejectedDefinition]:
        """The declared workflows, if the service answers: otherwise none can be started."""
        declared = [found async for found in list_declared(self._config)]
        await (await self._service()).reach()
        for found in declared:
            yield found

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Started:
        return await (await self._service()).start(workflow, arguments, key=key)

    async def find_run(
        self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID
    ) -> Started | None:
        return await (await self._service()).find_run(workflow, arguments, key=key)

    async def poll(self, run: RunRef) -> RunSnapshot:
        return await (await self._service()).poll(run)

    async def wait(self, run: RunRef, *, seconds: float) -> RunSnapshot:
        return await (await self._service()).wait(run, seconds=seconds)

    async def cancel(self, run: RunRef) -> None:
        await (await self._service()).cancel(run)

    async def terminate(self, run: RunRef) -> None:
        await (await self._service()).terminate(run)

    async def pause(self, run: RunRef) -> None:
        await (await self._service()).hold(run, paused=True)

    async def resume(self, run: RunRef) -> None:
        await (await self._service()).hold(run, paused=False)

    async def retry(self, run: RunRef, *, key: UUID) -> Started:
        return await (await self._service()).retry(run, key=key)

    async def find_retry(self, run: RunRef, *, key: UUID) -> Started | None:
        return await (await self._service()).find_retry(run, key=key)

    async def query(self, run: RunRef, name: str, arguments: dict[str, Any]) -> Any:
        return await (await self._service()).query(run, name, arguments)

    async def signal(self, run: RunRef, name: str, arguments: dict[str, Any]) -> None:
        await (await self._service()).signal(run, name, arguments)

    async def answer(self, run: RunRef, question_id: str, content: dict[str, Any]) -> None:
        await (await self._service()).answer(run, question_id, content)

    async def list_runs(self, wanted: RunFilter, *, page_size: int, cursor: str = "") -> RunPage:
        return await (await self._service()).list_runs(wanted, page_size=page_size, cursor=cursor)

    def on_listing_changed(self, listener: Callable[[], None]) -> None:
        seen = state_of_file(self._file)
        self._watch = asyncio.get_running_loop().create_task(_watch_file(self._file, seen, listener))

    async def aclose(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        if self._made is not None:
            await self._made.aclose()

    @property
    def _file(self) -> str:
        return "" if self._config.definitions.strip() else self._config.definitions_file

    async def _service(self) -> "TemporalService":
        if self._made is None:
            # In a thread, so that importing the SDK does not block the event loop.
            module = await asyncio.to_thread(import_module, "connectors.temporal.service")
            if self._made is None:
                self._made = module.TemporalService(self._config)
        return self._made

    async def _queues_without_workers(self, service: "TemporalService") -> list[str]:
        try:
            declared = await asyncio.to_thread(read_declared, self._config)
        except Misconfigured:
            # Discovery reports what is wrong with the definitions.
            return []
        settings = [settings_of(workflow.metadata) for workflow in declared.workflows]
        queues = sorted({one.task_queue or self._config.default_task_queue for one in settings} - {""})
        asked = queues[:20]
        heard = await asyncio.gather(*(service.pollers.listen(queue) for queue in asked))
        return [queue for queue, listened in zip(asked, heard, strict=True) if not listened]


async def _watch_file(path: str, seen: tuple[int, ...], listener: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(2.0)
        state = await asyncio.to_thread(state_of_file, path)
        if state != seen:
            seen = state
            listener()
