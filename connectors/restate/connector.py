"""Restate: handlers are workflows, invocations are runs."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, ClassVar
from uuid import UUID

from loguru import logger
from pydantic import BaseModel, SecretStr

from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.errors import (
    ConnectorError,
    InvalidAnswer,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unreachable,
    Unsupported,
)
from connectors.formats.json import UnreadableJSON, parse_json
from connectors.network.client import Answer, EngineClient, encode_body, fill_path
from connectors.network.redaction import shorten, words_of
from connectors.network.transport import HttpLimits
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
from connectors.restate import handlers, invocations
from connectors.restate.config import RestateConfig

LISTING_DEPTH = 250  # Above the limit of one schema, so that a deep one does not fail the listing
MOST_WORKFLOWS = 10_000
MOST_ROWS = 200
WORDS_LIMIT = 500
OUTPUT = "/restate/invocation/{id}/output"
ATTACH = "/restate/invocation/{id}/attach"


class RestateConnector:
    """Services, virtual objects and workflows of a Restate server."""

    kind: ClassVar[str] = "restate"
    label: ClassVar[str] = "Restate"
    Config: ClassVar[type[BaseModel]] = RestateConfig

    def __init__(self, config: RestateConfig) -> None:
        self._config = config
        self._ingress = self._client(config.ingress_url, config.token)
        # Of its own, so that those who wait for runs do not take the connections of starts.
        self._waiting = self._client(config.ingress_url, config.token)
        self._admin = self._client(config.admin_url, config.admin_token or config.token)

    def _client(self, url: str, token: SecretStr) -> EngineClient:
        config, secret = self._config, token.get_secret_value()
        return EngineClient(
            base_url=url,
            headers={"authorization": f"Bearer {secret}"} if secret else {},
            secrets=[config.token.get_secret_value(), config.admin_token.get_secret_value()],
            limits=HttpLimits.within(
                config.request_timeout_seconds, max_response_bytes=config.max_response_bytes
            ),
            verify_tls=config.verify_tls,
            ca_file=config.ca_file,
        )

    def __repr__(self) -> str:
        return f"RestateConnector({self._config.ingress_url}, {self._config.admin_url})"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            idempotent_start=True,
            can_cancel=True,
            can_find_runs=True,
            can_wait=True,
            can_query=True,
            can_signal=True,
            can_list_runs=True,
            differ_by_workflow=True,
            terminates_after_seconds=self._config.cancel_grace_seconds or None,
            min_poll_seconds=self._config.min_poll_seconds,
        )

    def capabilities_for(self, workflow: WorkflowRef) -> Capabilities:
        """Only the run of a workflow can be talked to."""
        is_workflow = handlers.type_of(workflow) == handlers.WORKFLOW
        return replace(
            self.capabilities,
            idempotent_start=handlers.remembers_keys_of(workflow),
            can_query=is_workflow,
            can_signal=is_workflow,
        )

    async def check(self) -> Health:
        return await health_of(self._greet())

    async def _greet(self) -> str:
        services, _ = await asyncio.gather(self._services(), self._ingress.request("GET", "/restate/health"))
        return f"Restate answered at both addresses; services: {len(services)}."

    async def _services(self) -> list[Any]:
        answer = await self._admin.request_json("GET", "/services", max_depth=LISTING_DEPTH, is_listing=True)
        services = answer.get("services") if isinstance(answer, dict) else None
        if not isinstance(services, list):
            raise InvalidAnswer("Restate's list of services is no list.")
        return services

    async def discover(self) -> AsyncIterator[WorkflowDefinition | RejectedDefinition]:
        longest = self._config.workflow_timeout_seconds
        found = handlers.read_services(await self._services(), workflow_timeout_seconds=longest)
        for position, definition in enumerate(found):
            if position == MOST_WORKFLOWS:
                raise InvalidAnswer(f"Restate lists more than {MOST_WORKFLOWS:,} handlers.")
            yield definition

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Started:
        path, body, headers = handlers.start_request(workflow, arguments, key)
        answer = await self._ingress.request_json("POST", path, body=body, headers=headers, repeatable=False)
        run_id = answer.get("invocationId") if isinstance(answer, dict) else None
        if not isinstance(run_id, str) or not invocations.ID.fullmatch(run_id):
            raise OutcomeUnknown("Restate's answer to the start names no invocation.")
        return Started(run_id=run_id, raw=answer)

    async def find_run(
        self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID
    ) -> Started | None:
        rows = await self._rows(invocations.query_by_key(workflow, key))
        if len(rows) > 1:
            raise InvalidAnswer(f"Restate has several invocations for the key {key}.")
        return Started(run_id=_id_in(rows[0]), raw=rows[0]) if rows else None

    async def poll(self, run: RunRef) -> RunSnapshot:
        row = await self._row(invocations.query_by_id(run.run_id))
        seen = invocations.snapshot_of(row)
        if seen.state is RunState.COMPLETED:
            return replace(seen, output=await self._output(run.run_id))
        if row.get("status") == "paused":
            return replace(seen, progress_message=await self._why_paused(row))
        return seen

    async def wait(self, run: RunRef, *, seconds: float) -> RunSnapshot:
        path = fill_path(ATTACH, id=invocations.checked_id(run.run_id))
        try:
            async with asyncio.timeout(seconds):
                await self._waiting.exchange("GET", path, repeatable=True)
        except (TimeoutError, Unreachable, InvalidAnswer) as error:
            # Whatever kept the answer away, the status tells.
            logger.debug("Attaching to {} ended with {}", run.run_id, type(error).__name__)
        return await self.poll(run)

    async def cancel(self, run: RunRef) -> None:
        await self._end(run, "cancel")

    async def terminate(self, run: RunRef) -> None:
        await self._end(run, "kill")

    async def _end(self, run: RunRef, how: str) -> None:
        path = fill_path("/invocations/{id}/{how}", id=invocations.checked_id(run.run_id), how=how)
        await self._admin.request("PATCH", path)

    async def query(self, run: RunRef, name: str, arguments: dict[str, Any]) -> Any:
        row = await self._whereabouts(run)
        return await self._call(run.workflow, row, name, arguments, repeatable=True)

    async def signal(self, run: RunRef, name: str, arguments: dict[str, Any]) -> None:
        row = await self._whereabouts(run)
        if invocations.state_of(row) is not RunState.RUNNING:
            # Restate would take it: the state of a workflow outlives its run.
            raise Rejected("The run has ended, so nothing listens any more.")
        await self._call(run.workflow, row, name, arguments, repeatable=False)

    async def _whereabouts(self, run: RunRef) -> dict[str, Any]:
        if handlers.type_of(run.workflow) != handlers.WORKFLOW:
            raise Unsupported("At Restate only the run of a workflow can be talked to.")
        return await self._row(invocations.query_whereabouts(run.run_id))

    async def list_runs(self, wanted: RunFilter, *, page_size: int, cursor: str = "") -> RunPage:
        if cursor and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= len("1000000000")):
            raise Rejected("This is no cursor of this listing.")
        offset, size = int(cursor or 0), min(page_size, MOST_ROWS)
        rows = await self._rows(invocations.query_listed(wanted, size=size, offset=offset))
        return RunPage(
            runs=[invocations.read_listed(row) for row in rows if _id_in(row)],
            next_cursor=str(offset + size) if len(rows) == size else "",
        )

    async def aclose(self) -> None:
        for client in (self._ingress, self._waiting, self._admin):
            await client.aclose()

    async def _rows(self, sql: str) -> list[dict[str, Any]]:
        answer = await self._admin.request_json("POST", "/query", body={"query": sql})
        rows = answer.get("rows") if isinstance(answer, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise InvalidAnswer("Restate's answer to a query has no rows.")
        return rows

    async def _row(self, sql: str) -> dict[str, Any]:
        try:
            rows = await self._rows(sql)
        except Unreachable as error:
            # Restate's answer to an id that only looks like one is a 500.
            if "non valid invocation id" not in str(error.details.get("answer")):
                raise
            rows = []
        if not rows:
            raise NotFound("Restate does not know the invocation, or has forgotten it after its retention.")
        return rows[0]

    async def _why_paused(self, row: dict[str, Any]) -> str:
        """The invocation itself does not say; without its journal the reason is left out."""
        try:
            events = await self._rows(invocations.query_last_pause(_id_in(row)))
        except ConnectorError as error:
            logger.debug("Restate did not say why an invocation is paused: {}", error.message)
            events = []
        reason = invocations.failure_in(events[0].get("event_json")) if events else ""
        return invocations.progress_of(row, reason)

    async def _output(self, run_id: str) -> Any:
        path = fill_path(OUTPUT, id=run_id)
        try:
            answer = await self._ingress.exchange("GET", path, repeatable=True)
        except InvalidAnswer as error:
            if not error.details.get("truncated"):
                raise
            limit = f"{self._config.max_response_bytes:,} bytes"
            return f"The result is larger than {limit}. Restate has it as the output of {run_id}."
        if not 200 <= answer.status < 300:
            raise self._refusal(answer, repeatable=True)
        return self._value(answer)

    async def _call(
        self,
        workflow: WorkflowRef,
        row: dict[str, Any],
        name: str,
        arguments: dict[str, Any],
        *,
        repeatable: bool,
    ) -> Any:
        """The answer of a workflow's shared handler."""
        key = row.get("target_service_key")
        if not isinstance(key, str) or not key:
            raise InvalidAnswer("Restate does not say which workflow the invocation belongs to.")
        path, body = handlers.shared_request(workflow, key, name, arguments)
        headers, content = encode_body(body, None)
        answer = await self._ingress.exchange(
            "POST", path, content=content, headers=headers, repeatable=repeatable
        )
        if not 200 <= answer.status < 300:
            raise self._refusal(answer, repeatable=repeatable)
        try:
            return self._value(answer)
        except InvalidAnswer as error:
            raise error if repeatable else OutcomeUnknown(error.message) from None

    def _value(self, answer: Answer) -> Any:
        """JSON, or the text of another type."""
        if "x-restate-id" not in answer.headers:
            # The page of a proxy, such as a login, must not pass for a result.
            raise InvalidAnswer("The answer names no invocation, so it is not Restate's.")
        if not answer.body:
            return None
        media_type = str(answer.headers.get("content-type", "")).partition(";")[0].strip().lower()
        if media_type.endswith("json"):
            try:
                return self._ingress.redactor.answer(parse_json(answer.body), answer.body)
            except UnreadableJSON as error:
                raise InvalidAnswer(f"The handler's answer cannot be read. {error}") from None
        try:
            return self._ingress.redactor.text(answer.body.decode())
        except UnicodeDecodeError:
            return f"{len(answer.body):,} bytes of {media_type or 'no type'}, which are no text."

    def _refusal(self, answer: Answer, *, repeatable: bool) -> ConnectorError:
        """A handler fails with any status of its choice; Restate says in a header whose it is."""
        words = shorten(self._ingress.redactor.text(words_of(answer.body)), WORDS_LIMIT)
        message = (
            f"Restate answered {answer.status}: {words}" if words else f"Restate answered {answer.status}."
        )
        details = {"status": answer.status, "answer": words}
        if answer.headers.get("x-restate-error-source") == "invocation":
            return Rejected(f"The handler refused: {words}", details=details)
        if answer.status in (401, 403):
            return Rejected(message, details=details, needs_operator=True)
        if answer.status == 404:
            return NotFound(message, details=details)
        if answer.status == 429:
            return Unreachable(message, details=details)
        if 400 <= answer.status < 500 and answer.status != 408:
            return Rejected(message, details=details)
        return (Unreachable if repeatable else OutcomeUnknown)(message, details=details)


def _id_in(row: dict[str, Any]) -> str:
    run_id = row.get("id")
    if not isinstance(run_id, str) or not invocations.ID.fullmatch(run_id):
        raise InvalidAnswer("Restate's answer names no invocation.")
    return run_id
