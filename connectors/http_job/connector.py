"""Engines with a job API that a YAML document declares."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, ClassVar
from uuid import UUID

from loguru import logger
from pydantic import BaseModel

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
from connectors.http_job import answers
from connectors.http_job.config import PRESETS, HttpJobConfig, declaration_of
from connectors.http_job.declaration import Cancel, Find, One, Seen, Step, find
from connectors.http_job.engine import DeclaredEngine, OnAnswer
from connectors.http_job.template import fill_json
from connectors.http_job.webhook import read_report
from connectors.network.redaction import printable, shorten_error, words_in
from connectors.protocol import (
    Capabilities,
    Delivery,
    Health,
    ReportedEnd,
    ReportProgress,
    RunRef,
    RunSnapshot,
    RunState,
    Started,
    WorkflowRef,
    health_of,
    ignore_progress,
)
from connectors.simplified import MOST_WORKFLOWS, shape_of, walk_listing

LOG_LINES = 20
FIRST_PAGE = {"offset": "0", "cursor": "", "link": ""}


class HttpJobConnector:
    """An engine with a job API over HTTP, which a YAML document declares: how it lists, starts, shows and
    cancels."""

    kind: ClassVar[str] = "http_job"
    label: ClassVar[str] = "Engine with a job API (declared in YAML)"
    Config: ClassVar[type[BaseModel]] = HttpJobConfig

    def __init__(self, config: HttpJobConfig, *, on_answer: OnAnswer | None = None) -> None:
        self._config = config
        self._declared = config.declared
        self._engine = DeclaredEngine(config, self._declared, on_answer=on_answer)
        self._webhook_secret = config.webhook_secret.get_secret_value()
        self._asked = 0
        self._details: dict[str, Any] = {}
        """Answers to second requests of a listing that was broken off, for the next one."""

    def __repr__(self) -> str:
        return f"HttpJobConnector({self._declared.name}, {self._config.base_url})"

    @staticmethod
    def ready_made() -> list[tuple[str, str, dict[str, str]]]:
        """The engines that ship: name, sentence, and the settings that choose each."""
        shipped = [(name, declaration_of(name, "")) for name in PRESETS]
        return [(declared.name, declared.about, {"preset": name}) for name, declared in shipped]

    @property
    def capabilities(self) -> Capabilities:
        declared = self._declared
        terminate = declared.terminate
        return Capabilities(
            idempotent_start=declared.start.one_run_per_key or declared.start.already_started is not None,
            can_cancel=declared.cancel is not None,
            can_find_runs=declared.find is not None,
            min_poll_seconds=self._config.min_poll_seconds,
            terminates_after_seconds=terminate.after_seconds if terminate else None,
            reports_ends=declared.webhook is not None and bool(self._webhook_secret),
        )

    async def check(self) -> Health:
        return await health_of(self._greet())

    async def _greet(self) -> str:
        if self._declared.check is not None:
            await self._engine.ask(self._declared.check, self._engine.values)
            return f"{self._declared.name} answered."
        items, following = await self._page(self._first_page)
        count = f"at least {len(items)}" if following else str(len(items))
        return f"{self._declared.name} answered; workflows listed: {count}."

    # The listing

    async def discover(self) -> AsyncIterator[WorkflowDefinition | RejectedDefinition]:
        listed = walk_listing(
            self._detailed_page,
            self._first_page,
            listing=f"The listing of {self._declared.name}",
            of="workflows",
            most=MOST_WORKFLOWS,
        )
        self._asked = 0
        async with aclosing(listed):
            async for position, (item, detail) in listed:
                if isinstance(detail, ConnectorError):
                    name = answers.id_at(self._declared.list.id, item)
                    reason = f"The second request for it failed: {detail.message}"
                    yield RejectedDefinition(position=position, id=name, name=name, reason=reason)
                else:
                    yield answers.read_workflow(self._declared, item, detail, position=position)
        self._details.clear()

    @property
    def _first_page(self) -> str:
        pages = self._declared.list.pages
        return "" if pages is None else FIRST_PAGE.get(pages.by, str(pages.first))

    async def _page(self, page: str) -> tuple[list[Any], str]:
        pages = self._declared.list.pages
        names = {"offset": "", "page": "", "cursor": "", "limit": pages.size if pages else ""}
        if pages is not None and pages.by != "link":
            names[pages.by] = page
        link = page if pages is not None and pages.by == "link" else ""
        answer = await self._engine.ask(
            self._declared.list, {**self._engine.values, **names}, is_listing=True, link=link
        )
        items = answers.read_items(self._declared, answer)
        return items, answers.next_page(self._declared, answer, page, len(items))

    async def _detailed_page(self, page: str) -> tuple[list[Any], str]:
        items, following = await self._page(page)
        if self._declared.list.detail is None:
            return [(item, None) for item in items], following
        room = asyncio.Semaphore(self._config.details_at_once)

        failures: list[ConnectorError] = []

        async def detailed(item: Any) -> tuple[Any, Any]:
            async with room:
                if not failures:
                    try:
                        return item, await self._detail(item)
                    except ConnectorError as error:
                        # What is under way is heard out, so that nothing is asked for again.
                        failures.append(error)
                return item, None

        pairs = await asyncio.gather(*map(detailed, items))
        if failures:
            raise failures[0]
        return pairs, following

    async def _detail(self, item: Any) -> Any:
        """The answer, or the error that concerns this workflow alone."""
        listing = self._declared.list
        request, identifier = listing.detail, answers.id_at(listing.id, item)
        if request is None or not identifier or not isinstance(item, dict):
            return None
        written = json.dumps(item, sort_keys=True)
        known = hashlib.sha256(f"{identifier} {written}".encode("utf-8", "replace")).hexdigest()
        if known in self._details:
            return self._details[known]
        if self._asked == self._config.details_per_listing:
            raise Unreachable(
                f"This listing asked for {self._asked:,} workflows, as many as the source allows; the next "
                "one goes on there."
            )
        self._asked += 1
        names = {"id": identifier, "name": answers.text_at(listing.name or listing.id, item)}
        try:
            answer = await self._engine.ask(
                request, {**self._engine.values, **names, **answers.kept(listing.keep, item)}
            )
        except (NotFound, InvalidAnswer, Rejected) as error:
            if error.needs_operator:
                raise
            return error
        self._details[known] = answer
        return answer

    # Runs

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Started:
        start = self._declared.start
        names = {**self._names(workflow), "key": str(key), "arguments": arguments}
        own = str(fill_json(start.own_run_id, names)) if start.own_run_id else ""
        if start.location is not None:
            run_id = await self._engine.locate(start, names, location=start.location)
            if not run_id:
                raise OutcomeUnknown("The header Location of the engine's answer to the start names no run.")
            return Started(run_id=run_id)
        try:
            answer = await self._engine.ask(start, names, repeatable=False)
        except Rejected as error:
            if not (own and self._is_started(error)):
                raise
            return await self._confirm(RunRef(workflow=workflow, run_id=own, key=key), error)
        run_id = answers.id_at(start.run_id or "", answer)
        if not run_id:
            raise OutcomeUnknown(f"The engine's answer to the start names no run; it is {shape_of(answer)}.")
        return Started(run_id=run_id, raw=answer if isinstance(answer, dict) else {"answer": answer})

    def _is_started(self, error: Rejected) -> bool:
        already = self._declared.start.already_started
        if already is None or error.details.get("status") not in already.status:
            return False
        return already.saying.lower() in str(error.details.get("answer", "")).lower()

    async def _confirm(self, run: RunRef, refusal: Rejected) -> Started:
        """The run that the engine says it has; the refusal, if it has none."""
        try:
            _, answer = await self._status(run)
        except NotFound:
            raise refusal from None
        except ConnectorError as error:
            raise OutcomeUnknown(
                f"The engine says that this start has a run, which could not be looked at: {error.message}"
            ) from None
        return Started(run_id=run.run_id, raw=answer if isinstance(answer, dict) else {"answer": answer})

    async def find_run(
        self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID
    ) -> Started | None:
        request = self._declared.find
        if request is None:
            raise Unsupported("This engine cannot look a run up by the key of its start.")
        names = {**self._names(workflow), "key": str(key), "arguments": arguments}
        try:
            answer = await self._engine.ask(request, names)
        except NotFound:
            return None
        if request.one is not None:
            answer = one_of(request.one, answer, names)
            if answer is None:
                return None
        return _found(request, answer, workflow_id=workflow.id, key=str(key))

    async def poll(self, run: RunRef) -> RunSnapshot:
        status, answer = await self._status(run)
        seen = answers.read_snapshot(status, self._declared.status.states, answer)
        nothing = dict.fromkeys(self._declared.status.keep)
        names = {**self._of_run(run), **nothing, **answers.kept(status.keep, answer)}
        if seen.state is RunState.RUNNING:
            return await self._with_progress(seen, names)
        if seen.state is RunState.COMPLETED and self._declared.result:
            seen = replace(seen, output=await self._walk(self._declared.result, names))
        if seen.state is RunState.FAILED and self._declared.failure:
            reason = await self._or_nothing(self._declared.failure, names)
            if words := printable(words_in(reason)):
                seen = replace(seen, error=shorten_error(words))
        if self._declared.logs:
            lines = await self._or_nothing(self._declared.logs, names)
            if isinstance(lines, list):
                seen = replace(seen, raw=seen.raw | {"logs": lines[-LOG_LINES:]})
        return seen

    async def _with_progress(self, seen: RunSnapshot, names: dict[str, Any]) -> RunSnapshot:
        request = self._declared.progress
        if request is None:
            return seen
        try:
            answer = await self._engine.ask(request, names)
        except ConnectorError as error:
            logger.debug("{} did not say how far a run is: {}", self._declared.name, error.message)
            return seen
        progress, message = answers.read_progress(request, answer), answers.read_message(request, answer)
        return replace(
            seen,
            progress=seen.progress if progress is None else progress,
            progress_message=message or seen.progress_message,
        )

    async def cancel(self, run: RunRef) -> None:
        if self._declared.cancel is None:
            raise Unsupported("This engine cannot cancel a run.")
        await self._command(self._declared.cancel, run)

    async def terminate(self, run: RunRef) -> None:
        if self._declared.terminate is None:
            raise Unsupported("This engine cannot terminate a run.")
        await self._command(self._declared.terminate, run)

    def read_delivery(self, delivery: Delivery) -> ReportedEnd | None:
        if self._declared.webhook is None or not self._webhook_secret:
            raise Unsupported("This source has no webhook secret, or its declaration no webhook.")
        return read_report(self._declared.webhook, delivery, secret=self._webhook_secret)

    async def aclose(self) -> None:
        await self._engine.aclose()

    async def _command(self, command: Cancel, run: RunRef) -> None:
        names = self._of_run(run)
        if command.unless_ended:
            status, answer = await self._status(run)
            state = answers.read_state(status, self._declared.status.states, answer)
            if state is not RunState.RUNNING:
                raise Rejected(f"The run has ended already: it is {state}.")
            names |= dict.fromkeys(self._declared.status.keep) | answers.kept(status.keep, answer)
        try:
            await self._engine.tell(command, names)
        except NotFound:
            if not command.unless_ended:
                raise
            raise Unsupported(
                "This release of the engine has no such request, and it knows the run."
            ) from None

    async def _status(self, run: RunRef) -> tuple[Seen, Any]:
        """The answer, and what is declared of it."""
        status, names = self._declared.status, self._of_run(run)
        answer = await self._engine.ask(status, names)
        if status.one is None:
            return status, answer
        if (one := one_of(status.one, answer, names)) is not None:
            return status, one
        if status.otherwise is None:
            raise NotFound("The run is not among those that the engine lists.")
        return status.otherwise, await self._engine.ask(status.otherwise, names)

    async def _walk(self, steps: list[Step], names: dict[str, Any]) -> Any:
        """The output of the last step; None where an earlier one finds nothing to go on with."""
        output = None
        for step in steps:
            try:
                answer = await self._engine.ask(step, names)
            except NotFound:
                return None
            output = find(step.output, answer) if step.output is not None else None
            found = answers.kept(step.keep, answer)
            if any(value is None for value in found.values()):
                return None
            names = {**names, **found}
        return output

    async def _or_nothing(self, steps: list[Step], names: dict[str, Any]) -> Any:
        """For what a poll can do without; errors are only logged."""
        try:
            return await self._walk(steps, names)
        except ConnectorError as error:
            logger.debug("{} did not say more about a run: {}", self._declared.name, error.message)
            return None

    def _names(self, workflow: WorkflowRef) -> dict[str, Any]:
        stored = workflow.metadata.get("kept")
        declared = self._declared.list
        names = {*declared.keep, *(declared.detail.keep if declared.detail else ())}
        known = stored if isinstance(stored, dict) else {}
        kept = {name: known.get(name) for name in names}
        return {**self._engine.values, **kept, "id": workflow.id, "name": workflow.name}

    def _of_run(self, run: RunRef) -> dict[str, Any]:
        return {**self._names(run.workflow), "run_id": run.run_id, "key": str(run.key)}


def one_of(wanted: One, answer: Any, names: Mapping[str, Any]) -> Any:
    """None: it is not among them."""
    runs, equals = find(wanted.of, answer), str(fill_json(wanted.equals, names))
    if not isinstance(runs, list):
        raise InvalidAnswer(f"The answer has no list of runs; it is {shape_of(answer)}.")
    return next((run for run in runs if answers.text_at(wanted.where, run) == equals), None)


def _found(request: Find, answer: Any, *, workflow_id: str, key: str) -> Started | None:
    """Raises InvalidAnswer for an answer that leaves it open, since a wrong "none" starts a second run."""
    runs = [answer] if request.runs is None else find(request.runs, answer)
    if not isinstance(runs, list):
        raise InvalidAnswer(f"The answer to the lookup has no list of runs; it is {shape_of(answer)}.")
    if len(runs) > 1:
        raise InvalidAnswer(f"The engine has {len(runs)} runs for the key {key}: it seems not to look at it.")
    for run in runs:
        run_id = answers.id_at(request.run_id, run)
        if not run_id:
            raise InvalidAnswer(f"The run that the engine has for the key has no id; it is {shape_of(run)}.")
        if request.key is not None and answers.text_at(request.key, run) != key:
            raise InvalidAnswer("The engine answered with a run that has another key.")
        if request.workflow is not None and answers.text_at(request.workflow, run) != workflow_id:
            return None
        return Started(run_id=run_id, raw=run if isinstance(run, dict) else {"answer": run})
    return None
