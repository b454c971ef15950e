"""Running workflows by the tools of the server that lists them."""

from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, Protocol
from uuid import UUID

from connectors.errors import InvalidAnswer, OutcomeUnknown, Unsupported
from connectors.protocol import Capabilities, RunRef, RunSnapshot, Started, WorkflowRef
from connectors.simplified.answers import read_snapshot, read_started, run_id_of
from connectors.upstream_mcp.listed_config import McpSourceConfig
from connectors.upstream_mcp.tool_answers import read_answer


class CallTool(Protocol):
    """Calls a tool of the server."""

    def __call__(
        self, name: str, arguments: dict[str, Any], *, repeatable: bool
    ) -> Awaitable[dict[str, Any]]:
        """The result as it is on the wire: content, structuredContent, isError.

        With `repeatable=False` whatever leaves open if the server acted is OutcomeUnknown.
        """
        ...


class RunsByTools:
    """Answers as the simplified workflow API does, whose questions it asks by calling tools."""

    def __init__(self, config: McpSourceConfig, call: CallTool) -> None:
        self._config = config
        self._call = call

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            idempotent_start=self._config.idempotent_starts,
            can_cancel=bool(self._config.cancel_tool),
            min_poll_seconds=self._config.min_poll_seconds,
        )

    async def start(self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID) -> Started:
        tool, wanted = self._config.start_tool, {"workflow_id": workflow.id, "input": arguments}
        if self._config.idempotent_starts:
            wanted["idempotency_key"] = str(key)
        result = await self._call(tool, wanted, repeatable=False)
        try:
            return _read_started(read_answer(result, tool=tool), workflow.id)
        except InvalidAnswer as error:
            raise OutcomeUnknown(error.message) from None

    async def poll(self, run: RunRef) -> RunSnapshot:
        return read_snapshot(await self._ask(self._config.status_tool, run))

    async def cancel(self, run: RunRef) -> None:
        if not self._config.cancel_tool:
            raise Unsupported("This server cannot cancel a run.")
        result = await self._call(self._config.cancel_tool, _named(run), repeatable=True)
        if result.get("isError"):
            read_answer(result, tool=self._config.cancel_tool)

    async def aclose(self) -> None:
        """The session belongs to whoever calls the tools."""

    async def _ask(self, tool: str, run: RunRef) -> Any:
        return read_answer(await self._call(tool, _named(run), repeatable=True), tool=tool)


def _read_started(answer: Any, workflow_id: str) -> Started:
    """Tools that call the run `run_id` have the workflow's own id under `workflow_id`."""
    if not isinstance(answer, dict):
        return read_started(answer)
    named = answer | {"workflow_id": run_id_of(answer, workflow_id)}
    return replace(read_started(named), raw=answer)


def _named(run: RunRef) -> dict[str, Any]:
    return {"workflow_id": run.workflow.id, "run_id": run.run_id}
