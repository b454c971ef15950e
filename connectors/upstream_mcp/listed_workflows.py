"""Workflows that one tool of an MCP server lists, and others or an HTTP API run (B10)."""

from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol
from uuid import UUID

from connectors.definitions import RejectedDefinition, WorkflowDefinition, parse_definition
from connectors.errors import InvalidAnswer, NotFound, OutcomeUnknown, Rejected, Unsupported
from connectors.formats.json import UnreadableJSON, parse_json, parse_listing
from connectors.network.redaction import printable, shorten, words_in
from connectors.protocol import (
    Capabilities,
    ReportProgress,
    RunRef,
    RunSnapshot,
    Started,
    WorkflowRef,
    ignore_progress,
)
from connectors.simplified.answers import read_listing, read_snapshot, read_started, run_id_of, walk_listing
from connectors.simplified.connector import SimplifiedConnector
from connectors.upstream_mcp.config import McpSourceConfig
from connectors.upstream_mcp.tools import METADATA_KEY

PREFIX = "workflow:"
"""Of listed workflows' ids; tools' ids are their names, which contain no colon."""
LONGEST_ID = 255
LISTED = {"offered_as": "workflow"}
LISTING_KEYS = ["workflows", "items", "data", "results", "result"]
WORDS_LIMIT = 500
DEPTH = 250
"""As in listings over HTTP, so that a deep schema does not fail the listing."""
UNKNOWN = {"not_found", "notfound", "404"}
"""Lower-case error codes for an unknown workflow or run."""


class CallTool(Protocol):
    def __call__(
        self, name: str, arguments: dict[str, Any], *, repeatable: bool
    ) -> Awaitable[dict[str, Any]]:
        """The result as received: content, structuredContent, isError.

        With `repeatable=False`, an error after which the server may have acted is OutcomeUnknown.
        """
        ...


class ListedWorkflows:
    def __init__(self, config: McpSourceConfig, call: CallTool) -> None:
        self._config = config
        self._call = call
        api = config.runs_api
        self._runner = RunsByTools(config, call) if api is None else SimplifiedConnector(api)

    @property
    def capabilities(self) -> Capabilities:
        """Of runs of listed workflows only."""
        return self._runner.capabilities

    @property
    def tools(self) -> frozenset[str]:
        """The tools that list and run workflows, which are no workflows themselves."""
        config = self._config
        return frozenset({config.list_tool, config.start_tool, config.status_tool, config.cancel_tool})

    async def discover(self) -> AsyncGenerator[WorkflowDefinition | RejectedDefinition]:
        items = walk_listing(self._page, listing="The list of workflows", of="workflows")
        async with aclosing(items):
            async for position, item in items:
                yield _as_ours(parse_definition(item, position=position), position)

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Started:
        return await self._runner.start(_as_theirs(workflow), arguments, key=key)

    async def poll(self, run: RunRef) -> RunSnapshot:
        return await self._runner.poll(replace(run, workflow=_as_theirs(run.workflow)))

    async def cancel(self, run: RunRef) -> None:
        await self._runner.cancel(replace(run, workflow=_as_theirs(run.workflow)))

    async def aclose(self) -> None:
        await self._runner.aclose()

    async def find_run(
        self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID
    ) -> Started | None:
        raise Unsupported("A listed workflow's run cannot be looked up by the key of its start.")

    async def _page(self, cursor: str) -> tuple[list[Any], str]:
        tool = self._config.list_tool
        result = await self._call(tool, {"cursor": cursor} if cursor else {}, repeatable=True)
        return read_listing(read_answer(result, tool=tool), LISTING_KEYS)


def is_listed(workflow: WorkflowRef) -> bool:
    """Otherwise the workflow is a tool."""
    return workflow.metadata.get(METADATA_KEY) == LISTED and workflow.id.startswith(PREFIX)


def _as_ours(
    item: WorkflowDefinition | RejectedDefinition, position: int
) -> WorkflowDefinition | RejectedDefinition:
    if isinstance(item, RejectedDefinition):
        return item
    ours = PREFIX + item.id
    if len(ours) > LONGEST_ID:
        reason = f"id: longer than {LONGEST_ID - len(PREFIX)} characters"
        return RejectedDefinition(position=position, id=item.id, name=item.name, reason=reason)
    return item.model_copy(update={"id": ours, "metadata": item.metadata | {METADATA_KEY: LISTED}})


def _as_theirs(workflow: WorkflowRef) -> WorkflowRef:
    return replace(workflow, id=workflow.id.removeprefix(PREFIX))


class RunsByTools:
    """The simplified workflow API by calls of tools."""

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
        """The session belongs to the connector."""

    async def _ask(self, tool: str, run: RunRef) -> Any:
        return read_answer(await self._call(tool, _named(run), repeatable=True), tool=tool)


def _read_started(answer: Any, workflow_id: str) -> Started:
    """If a tool names the run `run_id`, `workflow_id` is the workflow's own id."""
    if not isinstance(answer, dict):
        return read_started(answer)
    named = answer | {"workflow_id": run_id_of(answer, workflow_id)}
    return replace(read_started(named), raw=answer)


def _named(run: RunRef) -> dict[str, Any]:
    return {"workflow_id": run.workflow.id, "run_id": run.run_id}


def read_answer(result: dict[str, Any], *, tool: str) -> Any:
    """A result's data. Raises Rejected or NotFound for an error, InvalidAnswer for a result without data."""
    if result.get("isError"):
        raise _refusal(result, tool)
    if (structured := result.get("structuredContent")) is not None:
        # Some SDKs wrap a function's return value in `result`.
        is_wrapped = isinstance(structured, dict) and list(structured) == ["result"]
        return structured["result"] if is_wrapped else structured
    texts = _texts(result)
    try:
        # Some SDKs put each item of a list into a separate block.
        answers = [parse_listing(text.encode("utf-8", "replace"), max_depth=DEPTH) for text in texts]
    except UnreadableJSON as error:
        raise InvalidAnswer(f"The tool {tool} answered with text that is not JSON: {error}") from None
    if not answers:
        raise InvalidAnswer(f"The tool {tool} answered with neither structured content nor text.")
    return answers[0] if len(answers) == 1 else answers


def _refusal(result: dict[str, Any], tool: str) -> Rejected | NotFound:
    texts = _texts(result)
    said: Any = result.get("structuredContent")
    if said is None and len(texts) == 1:
        said = _as_json(texts[0])
    words = words_in(said) or printable(" ".join(texts)) or "it gave no reason"
    refused = NotFound if _is_unknown(said) else Rejected
    return refused(f"The tool {tool} answered with an error: {shorten(words, WORDS_LIMIT)}")


def _is_unknown(said: Any) -> bool:
    """By `code` or `status`, in the answer or its `error`."""
    if not isinstance(said, dict):
        return False
    codes = (said.get(key) for key in ("code", "status"))
    return any(str(code).lower() in UNKNOWN for code in codes) or _is_unknown(said.get("error"))


def _texts(result: dict[str, Any]) -> list[str]:
    blocks = result.get("content") or []
    texts = (block.get("text") for block in blocks if isinstance(block, dict) and block.get("type") == "text")
    return [text for text in texts if isinstance(text, str)]


def _as_json(text: str) -> Any:
    try:
        return parse_json(text.encode("utf-8", "replace"))
    except UnreadableJSON:
        return None
