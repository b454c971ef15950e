"""The simplified workflow API: list, start, status and optionally cancel over HTTP."""

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, ClassVar
from uuid import UUID

import httpx2
from pydantic import BaseModel

from connectors.definitions import RejectedDefinition, WorkflowDefinition, parse_definition
from connectors.errors import ConnectorError, NotFound, Unsupported
from connectors.network.client import EngineClient, fill_path
from connectors.network.transport import HttpLimits
from connectors.protocol import (
    Capabilities,
    Health,
    ReportProgress,
    RunRef,
    RunSnapshot,
    Started,
    WorkflowRef,
    health_of,
    ignore_progress,
)
from connectors.simplified import answers
from connectors.simplified.config import USUAL_KEY_HEADER, SimplifiedConfig

LISTING_DEPTH = 250  # Above the limit of one schema, so that a deep one does not fail the listing
NO_SUCH_OPERATION = (405, 501)


class SimplifiedConnector:
    """An engine that lists, starts, shows and cancels workflows by the simplified API over HTTP."""

    kind: ClassVar[str] = "simplified"
    label: ClassVar[str] = "Simplified workflow API (HTTP)"
    Config: ClassVar[type[BaseModel]] = SimplifiedConfig
    starts_by_metadata: ClassVar[bool] = False

    def __init__(self, config: SimplifiedConfig) -> None:
        self._config = config
        key = config.api_key.get_secret_value()
        authorization = f"{config.authorization_scheme} {key}".strip()
        self._client = EngineClient(
            base_url=config.base_url,
            headers={"accept-language": "en"} | ({"authorization": authorization} if key else {}),
            secrets=[key],
            limits=HttpLimits.within(
                config.request_timeout_seconds, max_response_bytes=config.max_response_bytes
            ),
            verify_tls=config.verify_tls,
            ca_file=config.ca_file,
        )

    def __repr__(self) -> str:
        return f"SimplifiedConnector({self._config.base_url})"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            idempotent_start=bool(self._config.idempotency_header),
            can_cancel=bool(self._config.cancel_path),
            can_find_runs=bool(self._config.run_lookup_path),
            min_poll_seconds=self._config.min_poll_seconds,
            status_is_optional=True,
        )

    async def check(self) -> Health:
        return await health_of(self._greet())

    async def _greet(self) -> str:
        items, following = await self._page(self._config.list_path)
        count = f"at least {len(items)}" if following else str(len(items))
        return f"The engine answered; workflows listed: {count}."

    async def discover(self) -> AsyncIterator[WorkflowDefinition | RejectedDefinition]:
        items = answers.walk_listing(
            self._page,
            self._config.list_path,
            listing="The engine's listing",
            of="workflows",
            most=answers.MOST_WORKFLOWS,
        )
        async with aclosing(items):
            async for position, item in items:
                yield parse_definition(item, position=position)

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Started:
        header = self._config.idempotency_header
        if not header and self._config.run_lookup_path:
            header = self._config.key_header or USUAL_KEY_HEADER
        answer = await self._client.request_json(
            "POST",
            fill_path(self._config.start_path, workflow_id=workflow.id),
            body={"input": arguments, "source": self._config.source},
            headers={header: str(key)} if header else None,
            repeatable=False,
        )
        return answers.read_started(answer)

    async def poll(self, run: RunRef) -> RunSnapshot:
        if not self._config.status_path:
            raise Unsupported("Its settings name no status path.")
        with _unsupported_where_the_engine_says_so():
            answer = await self._client.request_json("GET", _run_path(self._config.status_path, run))
        return answers.read_snapshot(answer)

    async def cancel(self, run: RunRef) -> None:
        if not self._config.cancel_path:
            raise Unsupported("This engine cannot cancel a run.")
        with _unsupported_where_the_engine_says_so():
            await self._client.request("POST", _run_path(self._config.cancel_path, run))

    async def find_run(
        self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID
    ) -> Started | None:
        if not self._config.run_lookup_path:
            raise Unsupported("This engine cannot look a run up by the key of its start.")
        path = fill_path(self._config.run_lookup_path, workflow_id=workflow.id, key=str(key))
        try:
            answer = await self._client.request_json("GET", path, max_depth=LISTING_DEPTH)
        except NotFound:
            return None
        return answers.read_found_run(answer, self._config.list_keys, workflow_id=workflow.id, key=str(key))

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _page(self, target: str) -> tuple[list[Any], str]:
        answer = await self._client.request_json("GET", target, max_depth=LISTING_DEPTH, is_listing=True)
        items, link = answers.read_listing(answer, self._config.list_keys)
        if not link or "://" in link or link.startswith(("/", "?")):
            return items, link and self._client.follow(link, found_at=target)
        current = httpx2.URL(self._client.follow("", found_at=target))
        return items, str(current.copy_set_param(self._config.cursor_parameter, link))


@contextmanager
def _unsupported_where_the_engine_says_so() -> Iterator[None]:
    try:
        yield
    except ConnectorError as error:
        if error.details.get("status") in NO_SUCH_OPERATION:
            raise Unsupported(error.message, details=error.details) from None
        raise


def _run_path(path: str, run: RunRef) -> str:
    return fill_path(path, workflow_id=run.workflow.id, run_id=run.run_id)
