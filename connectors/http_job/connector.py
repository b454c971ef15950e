"""Engines with a job API, declared in a YAML document: their operations, and reading their answers."""

import asyncio
import base64
import hashlib
import hmac
import json
import math
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar
from urllib.parse import parse_qs
from uuid import UUID

from loguru import logger
from pydantic import BaseModel

from connectors.definitions import RejectedDefinition, WorkflowDefinition, parse_definition, usable_tags
from connectors.errors import (
    ConnectorError,
    InvalidAnswer,
    NotFound,
    NotGenuine,
    OutcomeUnknown,
    Rejected,
    Unreachable,
    Unsupported,
)
from connectors.formats.json import (
    TooDeep,
    UnreadableJSON,
    as_object,
    is_number,
    parse_json,
    read_percent,
    read_time,
    read_unix_time,
)
from connectors.formats.lists import split_list
from connectors.http_job.declaration import (
    Cancel,
    Declaration,
    Described,
    Find,
    HowFar,
    Inputs,
    One,
    Questions,
    Seen,
    Signature,
    Step,
    Webhook,
    find,
)
from connectors.http_job.engine import PRESETS, DeclaredEngine, HttpJobConfig, OnAnswer, declaration_of
from connectors.http_job.template import PART, fill_json
from connectors.network.headers import signing_key
from connectors.network.redaction import extract_error_message, first_line, printable, shorten, shorten_error
from connectors.protocol import (
    DETAILS_SECONDS,
    Capabilities,
    Delivery,
    Health,
    Question,
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
from connectors.questions import MAX_QUESTIONS, read_question
from connectors.simplified import (
    MAX_WORKFLOWS,
    NO_REASON,
    identifier,
    refuse_incomplete,
    shape_of,
    walk_listing,
)

PAUSED = "paused"
STATES = {state.value: state for state in RunState} | {PAUSED: RunState.RUNNING}
SECONDS_UNTIL_SEEN = 15.0
"""How long an engine may take to show in a run's status that it has accepted a retry."""
FRACTION = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")
TEXTS = ("title", "description", "version", "category")


class HttpJobConnector:
    """An engine with a job API over HTTP, declared in a YAML document."""

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
        """Answers to the detail requests of an interrupted listing, for the next one."""

    def __repr__(self) -> str:
        return f"HttpJobConnector({self._declared.name}, {self._config.base_url})"

    @staticmethod
    def ready_made() -> list[tuple[str, str, dict[str, str]]]:
        """The supported engines: name, description, and the settings that select each."""
        shipped = [(name, declaration_of(name, "")) for name in PRESETS]
        return [(declared.name, declared.about, {"preset": name}) for name, declared in shipped]

    @property
    def capabilities(self) -> Capabilities:
        declared = self._declared
        terminate, retry = declared.terminate, declared.retry
        return Capabilities(
            idempotent_start=declared.start.one_run_per_key or declared.start.already_started is not None,
            can_cancel=declared.cancel is not None,
            can_find_runs=declared.find is not None,
            min_poll_seconds=self._config.min_poll_seconds,
            terminates_after_seconds=terminate.after_seconds if terminate else None,
            asks_people=declared.questions is not None,
            reports_ends=declared.webhook is not None and bool(self._webhook_secret),
            can_retry=retry is not None,
            idempotent_retry=retry is not None and retry.one_run_per_key,
            can_find_retries=retry is not None and retry.find is not None,
            can_pause=declared.pause is not None,
            can_terminate=terminate is not None,
        )

    async def check(self) -> Health:
        return await health_of(self._greet())

    async def _greet(self) -> str:
        if self._declared.check is not None:
            await self._engine.ask(self._declared.check, self._engine.values)
            return f"{self._declared.name} answered."
        items, following = await self._page(self._first_page, 0)
        found = sum(is_workflow(self._declared, item) for item in items)
        count = f"at least {found}" if following else str(found)
        return f"{self._declared.name} answered; workflows listed: {count}."

    # The listing

    async def discover(self) -> AsyncIterator[WorkflowDefinition | RejectedDefinition]:
        listed = walk_listing(
            self._detailed_page,
            self._first_page,
            listing=f"The listing of {self._declared.name}",
            of="workflows",
            most=MAX_WORKFLOWS,
        )
        self._asked = 0
        async with aclosing(listed):
            async for position, (item, detail) in listed:
                if not is_workflow(self._declared, item):
                    continue
                if isinstance(detail, ConnectorError):
                    name = id_at(self._declared.list.id, item)
                    reason = f"Its detail request failed: {detail.message}"
                    yield RejectedDefinition(position=position, id=name, name=name, reason=reason)
                else:
                    yield read_workflow(self._declared, item, detail, position=position)
        self._details.clear()

    @property
    def _first_page(self) -> str:
        pages = self._declared.list.pages
        first = {"offset": "0", "cursor": "", "link": ""}
        return "" if pages is None else first.get(pages.by, str(pages.first))

    async def _page(self, page: str, before: int) -> tuple[list[Any], str]:
        pages = self._declared.list.pages
        names = {"offset": "", "page": "", "cursor": "", "limit": pages.size if pages else ""}
        if pages is not None and pages.by != "link":
            names[pages.by] = page
        link = page if pages is not None and pages.by == "link" else ""
        answer = await self._engine.ask(
            self._declared.list, {**self._engine.values, **names}, is_listing=True, link=link
        )
        items = read_items(self._declared, answer)
        return items, next_page(self._declared, answer, page, before=before, count=len(items))

    async def _detailed_page(self, page: str, before: int) -> tuple[list[Any], str]:
        items, following = await self._page(page, before)
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
                        # The running requests still finish, so that they need not be repeated.
                        failures.append(error)
                return item, None

        pairs = await asyncio.gather(*map(detailed, items))
        if failures:
            raise failures[0]
        return pairs, following

    async def _detail(self, item: Any) -> Any:
        """The answer, or an error that affects this workflow only."""
        listing = self._declared.list
        request, identifier = listing.detail, id_at(listing.id, item)
        if request is None or not identifier or not is_workflow(self._declared, item):
            return None
        written = json.dumps(item, sort_keys=True)
        known = hashlib.sha256(f"{identifier} {written}".encode("utf-8", "replace")).hexdigest()
        if known in self._details:
            return self._details[known]
        if self._asked == self._config.details_per_listing:
            raise Unreachable(
                f"This listing made {self._asked:,} detail requests, the maximum of the source; the next one "
                "continues from there."
            )
        self._asked += 1
        names = {"id": identifier, "name": text_at(listing.name or listing.id, item)}
        try:
            answer = await self._engine.ask(
                request, {**self._engine.values, **names, **kept(listing.keep, item)}
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
                raise OutcomeUnknown("The Location header of the engine's answer to the start has no run id.")
            return Started(run_id=run_id)
        try:
            answer = await self._engine.ask(start, names, repeatable=False)
        except Rejected as error:
            already, words = start.already_started, str(error.details.get("answer", ""))
            if not own or already is None or error.details.get("status") not in already.status:
                raise
            if already.saying.lower() not in words.lower():
                raise
            return await self._confirm(RunRef(workflow=workflow, run_id=own, key=key), error)
        run_id = id_at(start.run_id or "", answer)
        if not run_id:
            raise OutcomeUnknown(f"The engine's answer to the start has no run id; it is {shape_of(answer)}.")
        return Started(run_id=run_id, raw=_kept_whole(answer))

    async def _confirm(self, run: RunRef, refusal: Rejected) -> Started:
        """The run that the engine reports as already started. Raises `refusal` if it does not exist."""
        try:
            _, answer = await self._status(run)
        except NotFound:
            raise refusal from None
        except ConnectorError as error:
            raise OutcomeUnknown(
                f"The engine reports that the run already exists, but its status is unknown: {error.message}"
            ) from None
        return Started(run_id=run.run_id, raw=_kept_whole(answer))

    async def find_run(
        self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID
    ) -> Started | None:
        request = self._declared.find
        if request is None:
            raise Unsupported("This engine cannot look up a run by its key.")
        names = {**self._names(workflow), "key": str(key), "arguments": arguments}
        return await self._look_up(request, names, workflow)

    async def _look_up(self, request: Find, names: dict[str, Any], workflow: WorkflowRef) -> Started | None:
        try:
            answer = await self._engine.ask(request, names)
        except NotFound:
            return None
        if request.one is not None:
            answer = one_of(request.one, answer, names)
            if answer is None:
                return None
        return _found(request, answer, workflow_id=workflow.id, key=names["key"])

    async def retry(self, run: RunRef, *, key: UUID) -> Started:
        retry = self._declared.retry
        if retry is None:
            raise Unsupported("The declaration of this engine has no request for that.")
        status, answer = await self._status(run)
        state, before = self._state_in(status, answer), self._attempt_in(status, answer)
        if state != RunState.FAILED:
            raise Rejected(f"Only a failed run can go on from its failed step: its state is {state}.")
        names = self._known(run, status, answer) | {"key": str(key)}
        try:
            told = await self._engine.send_retry(retry, names)
        except NotFound as error:
            # Its status was there a moment ago.
            raise Rejected(f"The engine cannot run the failed steps again: {error.message}") from None
        if retry.run_id is None:
            await self._until_seen(run, before)
            return Started(run_id=run.run_id, raw=_kept_whole(told))
        if not (run_id := id_at(retry.run_id, told)):
            raise OutcomeUnknown(f"The engine's answer to the retry has no run id; it is {shape_of(told)}.")
        return Started(run_id=run_id, raw=_kept_whole(told))

    async def _until_seen(self, run: RunRef, before: Any) -> None:
        """Otherwise, the next poll would take the failure before the retry for its end."""
        give_up_at = asyncio.get_running_loop().time() + SECONDS_UNTIL_SEEN
        while asyncio.get_running_loop().time() < give_up_at:
            with suppress(ConnectorError):
                status, answer = await self._status(run)
                is_failed = self._state_in(status, answer) == RunState.FAILED
                if not is_failed or self._attempt_in(status, answer) != before:
                    return
            await asyncio.sleep(0.5)
        raise OutcomeUnknown("The engine has accepted the retry, but still reports the failure before it.")

    def _state_in(self, status: Seen, answer: Any) -> str:
        return read_state(status, self._declared.status.states, answer)

    def _attempt_in(self, status: Seen, answer: Any) -> Any:
        retry = self._declared.retry
        expression = (retry and retry.attempt) or status.finished_at
        return find(expression, answer) if expression else None

    async def find_retry(self, run: RunRef, *, key: UUID) -> Started | None:
        retry = self._declared.retry
        if retry is None or retry.find is None:
            raise Unsupported("This engine cannot look up a retry by its key.")
        return await self._look_up(retry.find, self._of_run(run) | {"key": str(key)}, run.workflow)

    async def poll(self, run: RunRef) -> RunSnapshot:
        until = asyncio.get_running_loop().time() + DETAILS_SECONDS
        status, answer = await self._status(run)
        seen = read_snapshot(status, self._declared.status.states, answer)
        names = self._known(run, status, answer)
        if seen.state is RunState.RUNNING:
            seen, reported = await self._with_progress(seen, answer, names)
            return replace(seen, questions=await self._questions(reported, names))
        if seen.state is RunState.COMPLETED:
            output, unread = await self._walk(self._declared.result, names, until, output=seen.output)
            seen = replace(seen, output=output, unread=unread)
        if seen.state is RunState.FAILED:
            reason, _ = await self._walk(self._declared.failure, names, until)
            if words := printable(extract_error_message(reason)):
                seen = replace(seen, error=shorten_error(words))
        if self._declared.logs:
            lines, _ = await self._walk(self._declared.logs, names, until)
            if isinstance(lines, list):
                seen = replace(seen, raw=seen.raw | {"logs": lines[-20:]})
        return seen

    async def _with_progress(
        self, seen: RunSnapshot, status: Any, names: dict[str, Any]
    ) -> tuple[RunSnapshot, Any]:
        """Returns also the engine's answer to the request for progress, else `status`; None: it failed."""
        request = self._declared.progress
        if request is None:
            return seen, status
        try:
            answer = await self._engine.ask(request, names)
        except ConnectorError as error:
            logger.debug("{} did not report the progress of a run: {}", self._declared.name, error.message)
            return seen, None
        progress, message = read_progress(request, answer), first_line(text_at(request.message, answer))
        seen = replace(
            seen,
            progress=seen.progress if progress is None else progress,
            progress_message=message or seen.progress_message,
        )
        return seen, answer

    async def _questions(self, reported: Any, names: dict[str, Any]) -> list[Question] | None:
        """`reported`: what tells whether the run may ask; None: unknown. An engine without such a request
        asks nothing; None if it refuses to say. Any other error is the poll's."""
        declared = self._declared.questions
        if declared is None or (declared.when and reported is not None and not find(declared.when, reported)):
            return []
        try:
            answer = await self._engine.ask(declared, names)
        except (NotFound, Rejected, Unsupported) as error:
            logger.debug("{} did not say what a run asks: {}", self._declared.name, error.message)
            return None if isinstance(error, Rejected) else []
        return [read_declared_question(declared, item) for item in read_questions(declared, answer)]

    async def answer(self, run: RunRef, question_id: str, content: dict[str, Any]) -> None:
        declared = self._declared.questions
        if declared is None:
            raise Unsupported("The declaration of this engine has no questions.")
        status, answer = await self._status(run)
        if STATES[self._state_in(status, answer)] is not RunState.RUNNING:
            raise NotFound("The run has ended, so it asks nothing any more.")
        names = self._known(run, status, answer)
        # Listed anew: a task that asks again may be found at the same address as before.
        listed = read_questions(declared, await self._engine.ask(declared, names))
        asked = next((item for item in listed if id_at(declared.id, item) == question_id), None)
        if asked is None:
            raise NotFound("The run does not ask this any more.")
        inputs = dict(each_input(declared.inputs, asked)) if declared.inputs else {}
        names |= kept(declared.keep, asked) | kept(declared.answer.keep, content)
        names |= {"arguments": content, "inputs": {name: content[name] for name in content if name in inputs}}
        await self._engine.send_answer(declared.answer, names)

    async def cancel(self, run: RunRef) -> None:
        await self._command(self._declared.cancel, run)

    async def terminate(self, run: RunRef) -> None:
        await self._command(self._declared.terminate, run)

    async def pause(self, run: RunRef) -> None:
        await self._command(self._declared.pause, run, unless=PAUSED)

    async def resume(self, run: RunRef) -> None:
        await self._command(self._declared.resume, run, unless=RunState.RUNNING)

    def read_delivery(self, delivery: Delivery) -> ReportedEnd | None:
        if self._declared.webhook is None or not self._webhook_secret:
            raise Unsupported("The source has no webhook secret, or its declaration has no webhook.")
        return read_report(self._declared.webhook, delivery, secret=self._webhook_secret)

    async def aclose(self) -> None:
        await self._engine.aclose()

    async def _command(self, command: Cancel | None, run: RunRef, *, unless: str = "") -> None:
        """Sends nothing to a run in the state `unless`."""
        if command is None:
            raise Unsupported("The declaration of this engine has no request for that.")
        names = self._of_run(run)
        if command.unless_ended:
            status, answer = await self._status(run)
            state = self._state_in(status, answer)
            if STATES[state] is not RunState.RUNNING:
                raise Rejected(f"The run has already ended: its state is {state}.")
            if state == unless:
                return
            names = self._known(run, status, answer)
        try:
            await self._engine.tell(command, names)
        except NotFound:
            if not command.unless_ended:
                raise
            raise Unsupported(
                "The engine knows the run, but this version of it does not support the request."
            ) from None

    async def _status(self, run: RunRef) -> tuple[Seen, Any]:
        """Returns what is declared of the answer, and the answer."""
        status, names = self._declared.status, self._of_run(run)
        answer = await self._engine.ask(status, names)
        if status.one is None:
            return status, answer
        if (one := one_of(status.one, answer, names)) is not None:
            return status, one
        if status.otherwise is None:
            raise NotFound("The engine does not list the run.")
        return status.otherwise, await self._engine.ask(status.otherwise, names)

    async def _walk(
        self, steps: list[Step], names: dict[str, Any], until: float, *, output: Any = None
    ) -> tuple[Any, ConnectorError | None]:
        """The output of the last step that has one, and the error that ended the steps early, which is not
        the run's."""
        for step in steps:
            try:
                async with asyncio.timeout_at(until):
                    answer = await self._engine.ask(step, names)
            except ConnectorError as error:
                logger.debug("{} answered no further: {}", self._declared.name, error.message)
                return output, error
            except TimeoutError:
                return output, Unreachable(f"{step.method} {step.path}: the engine did not answer in time.")
            if step.output is not None:
                output = find(step.output, answer)
            found = kept(step.keep, answer)
            if any(value is None for value in found.values()):
                break
            names = {**names, **found}
        return output, None

    def _names(self, workflow: WorkflowRef) -> dict[str, Any]:
        declared = self._declared.list
        names = {*declared.keep, *(declared.detail.keep if declared.detail else ())}
        known = as_object(workflow.metadata.get("kept"))
        kept = {name: known.get(name) for name in names}
        return {**self._engine.values, **kept, "id": workflow.id, "name": workflow.name}

    def _of_run(self, run: RunRef) -> dict[str, Any]:
        return {**self._names(run.workflow), "run_id": run.run_id, "key": str(run.key)}

    def _known(self, run: RunRef, status: Seen, answer: Any) -> dict[str, Any]:
        """Returns the names of a run with what its status keeps."""
        nothing = dict.fromkeys(self._declared.status.keep)
        return {**self._of_run(run), **nothing, **kept(status.keep, answer)}


def one_of(wanted: One, answer: Any, names: Mapping[str, Any]) -> Any:
    """The matching run, or None."""
    runs, equals = find(wanted.of, answer), str(fill_json(wanted.equals, names))
    if not isinstance(runs, list):
        raise InvalidAnswer(f"The answer has no list of runs; it is {shape_of(answer)}.")
    return next((run for run in runs if text_at(wanted.where, run) == equals), None)


def _found(request: Find, answer: Any, *, workflow_id: str, key: str) -> Started | None:
    """Raises InvalidAnswer for an ambiguous answer, since a wrong None starts a second run."""
    runs = [answer] if request.runs is None else find(request.runs, answer)
    if not isinstance(runs, list):
        raise InvalidAnswer(f"The answer to the lookup has no list of runs; it is {shape_of(answer)}.")
    if len(runs) > 1:
        raise InvalidAnswer(f"The engine returned {len(runs)} runs for the key {key}: it seems to ignore it.")
    for run in runs:
        run_id = id_at(request.run_id, run)
        if not run_id:
            raise InvalidAnswer(
                f"The engine returned a run without an id for the key; it is {shape_of(run)}."
            )
        if request.key is not None and text_at(request.key, run) != key:
            raise InvalidAnswer("The engine answered with a run that has another key.")
        if request.workflow is not None and text_at(request.workflow, run) != workflow_id:
            return None
        return Started(run_id=run_id, raw=_kept_whole(run))
    return None


def _kept_whole(answer: Any) -> dict[str, Any]:
    return answer if isinstance(answer, dict) else {"answer": answer}


def text_at(expression: str | None, answer: Any) -> str:
    """Empty for anything but a string or a number."""
    value = None if expression is None else find(expression, answer)
    return value if isinstance(value, str) else str(value) if is_number(value) else ""


def kept(keep: dict[str, str], answer: Any) -> dict[str, Any]:
    return {name: find(expression, answer) for name, expression in keep.items()}


def id_at(expression: str, answer: Any) -> str:
    """Empty for anything that cannot be an id."""
    return identifier(find(expression, answer))


def read_workflow(
    declared: Declaration, item: Any, detail: Any, *, position: int
) -> WorkflowDefinition | RejectedDefinition:
    """`detail`: the answer to the detail request, if any."""
    listing = declared.list
    if not isinstance(item, dict) or isinstance(item, TooDeep):
        return parse_definition(item, position=position)
    named = {"id": find(listing.id, item), "name": find(listing.name or listing.id, item)}
    described, metadata = _described(listing, item), kept(listing.keep, item)
    if listing.detail is not None and detail is not None:
        described |= _described(listing.detail, detail)
        metadata |= kept(listing.detail.keep, detail)
    name = named["name"] if isinstance(named["name"], str) else named["id"]
    without_words = f"Runs {name} at {declared.name}, which does not say what it does."
    return parse_definition(
        {"description": without_words} | named | described | {"metadata": {"kept": metadata}},
        position=position,
    )


def _described(block: Described, answer: Any) -> dict[str, Any]:
    """Fields that the answer does not have are left out."""
    said: dict[str, Any] = {
        name: text_at(expression, answer) for name in TEXTS if (expression := getattr(block, name))
    }
    said = {name: text for name, text in said.items() if text.strip()}
    longest = block.timeout_seconds
    if longest is not None:
        seconds = find(longest, answer) if isinstance(longest, str) else longest
        said["timeout_seconds"] = math.ceil(seconds) if is_number(seconds) else None
    if block.tags is not None:
        said["tags"] = usable_tags(find(block.tags, answer))
    if isinstance(block.input_schema, dict):
        said["inputSchema"] = block.input_schema
    elif block.input_schema is not None:
        said["inputSchema"] = find(block.input_schema, answer)
    if block.output_schema is not None:
        said["outputSchema"] = find(block.output_schema, answer)
    if block.inputs is not None and said.get("inputSchema") is None:
        said["inputSchema"] = read_inputs(block.inputs, answer)
    return said


def read_inputs(inputs: Inputs, answer: Any) -> dict[str, Any]:
    """An object schema; without inputs, it allows any arguments."""
    properties: dict[str, Any] = {}
    required = []
    for name, one in each_input(inputs, answer):
        properties[name] = _property(inputs, one)
        if inputs.required is not None and find(inputs.required, one) is True:
            required.append(name)
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return schema | ({"required": required} if required else {})


def each_input(inputs: Inputs, answer: Any) -> Iterator[tuple[str, Any]]:
    match find(inputs.each, answer):
        case dict() as by_name:
            yield from by_name.items()
        case list() as listed if inputs.name is not None:
            yield from ((name, one) for one in listed if (name := text_at(inputs.name, one)))
        case list() as listed if inputs.numbered is not None:
            yield from ((f"{inputs.numbered}{number}", one) for number, one in enumerate(listed))


def _property(inputs: Inputs, one: Any) -> dict[str, Any]:
    made = dict(as_object(find(inputs.schema_, one))) if inputs.schema_ else {}
    if (kind := inputs.types.get(text_at(inputs.type, one))) is not None:
        made["type"] = kind
    if description := text_at(inputs.description, one).strip():
        made["description"] = description
    if inputs.choices and isinstance(choices := find(inputs.choices, one), list) and choices:
        made["enum"] = choices
    if inputs.default and (default := find(inputs.default, one)) is not None:
        made["default"] = default
    return made


def read_items(declared: Declaration, answer: Any) -> list[Any]:
    items = find(declared.list.items, answer)
    if not isinstance(items, list):
        place = shorten(declared.list.items, 100)
        raise InvalidAnswer(f"The listing has no list at {place}; it is {shape_of(answer)}.")
    newest = declared.list.newest
    if newest is None:
        return items
    # Without older versions of a workflow; items without id or version stay.
    greatest: dict[str, Any] = {}
    known = [(item, id_at(declared.list.id, item), find(newest, item)) for item in items]
    for _, name, number in known:
        if is_number(number) and number > greatest.get(name, -math.inf):
            greatest[name] = number
    return [
        item for item, name, number in known if not name or not is_number(number) or number == greatest[name]
    ]


def is_workflow(declared: Declaration, item: Any) -> bool:
    """Accepts an item without an id, which is then skipped with a reason instead of left out."""
    only = declared.list.only
    return only is None or not id_at(declared.list.id, item) or bool(find(only, item))


def next_page(declared: Declaration, answer: Any, page: str, *, before: int, count: int) -> str:
    """The next page's offset, number, cursor or link; empty after the last. `count`: items on this page;
    `before`: those of earlier pages. Raises InvalidAnswer for a listing that ends early."""
    pages = declared.list.pages
    if pages is None:
        refuse_incomplete(answer, listed=count)
        return ""
    total = find(pages.total, answer) if pages.total is not None else None
    if pages.total is not None and not is_number(total):
        raise InvalidAnswer("The listing has no total number of items.")
    if pages.next is not None:
        link = find(pages.next, answer)
        if link is not None and (isinstance(link, bool) or not isinstance(link, str | int)):
            raise InvalidAnswer("The listing's next page is neither a string nor a number.")
        following = str(link or "")
    elif (count < pages.size) if total is None else (before + count >= total or not count):
        following = ""
    else:
        following = str(before + count) if pages.by == "offset" else str(int(page) + 1)
    if not following and total is not None and before + count < total:
        raise InvalidAnswer(
            f"The listing announces {total:,} items, but has none from {before + count:,} on."
        )
    return following


def read_questions(declared: Questions, answer: Any) -> list[Any]:
    items = find(declared.items, answer)
    if not isinstance(items, list):
        raise InvalidAnswer(f"The answer has no list of questions; it is {shape_of(answer)}.")
    return items[:MAX_QUESTIONS]


def read_declared_question(declared: Questions, item: Any) -> Question:
    schema = as_object(find(declared.schema_, item)) if declared.schema_ else {}
    if declared.inputs is not None:
        further, required = read_inputs(declared.inputs, item), schema.get("required")
        properties = as_object(schema.get("properties"))
        schema = schema | {
            "properties": properties | further["properties"],
            "required": [*(required if isinstance(required, list) else []), *further.get("required", [])],
        }
    return read_question(
        id=id_at(declared.id, item),
        message=text_at(declared.message, item),
        schema=schema or None,
        url=text_at(declared.url, item),
        until=find(declared.until, item) if declared.until else None,
    )


def read_state(seen: Seen, states: Mapping[str, str], answer: Any) -> str:
    """A key of STATES. Raises InvalidAnswer."""
    found = find(seen.state, answer)
    if isinstance(found, bool):
        found = "true" if found else "false"
    if not isinstance(found, str | int):
        raise InvalidAnswer(f"The status that the engine returned has no state; it is {shape_of(answer)}.")
    state = states.get(str(found))
    if state is None:
        shown = printable(shorten(str(found), 50))
        raise InvalidAnswer(f"The run has the state {shown!r}, which the declaration does not list.")
    return state


def read_snapshot(status: Seen, states: Mapping[str, str], answer: Any) -> RunSnapshot:
    """Leaves out what the requests for result, failure and logs find."""
    told = read_state(status, states, answer)
    state, error = STATES[told], ""
    if state in NO_REASON:
        words = extract_error_message(find(status.error, answer)) if status.error else ""
        error = shorten_error(printable(words)) or NO_REASON[state]
    is_running = state is RunState.RUNNING
    return RunSnapshot(
        state=state,
        output=find(status.output, answer) if status.output and state is RunState.COMPLETED else None,
        error=error,
        progress=read_progress(status, answer) if is_running else None,
        progress_message=first_line(text_at(status.message, answer)) if is_running else "",
        is_paused=told == PAUSED,
        created_at=_time(status.created_at, answer),
        started_at=_time(status.started_at, answer),
        updated_at=_time(status.updated_at, answer),
        finished_at=None if is_running else _time(status.finished_at, answer),
        raw=_kept_whole(answer),
    )


def read_progress(declared: HowFar, answer: Any) -> float | None:
    """Percent; None if unknown."""
    if declared.done is not None and declared.total is not None:
        return _percent_of(find(declared.done, answer), find(declared.total, answer))
    found = find(declared.progress, answer) if declared.progress else None
    if isinstance(found, str) and (parts := FRACTION.fullmatch(found)):
        return _percent_of(int(parts[1]), int(parts[2]))
    return read_percent(found)


def _percent_of(done: Any, total: Any) -> float | None:
    return read_percent(100 * done / total) if is_number(done) and is_number(total) and total > 0 else None


def _time(expression: str | None, answer: Any) -> datetime | None:
    """ISO 8601, or a Unix time in seconds or milliseconds."""
    value: Any = None if expression is None else find(expression, answer)
    if not is_number(value):
        return read_time(value)
    # Unix times beyond 1e11 are in milliseconds; in seconds it is the year 5138.
    return read_unix_time(value, per_second=1000 if value > 1e11 else 1)


FORM = "application/x-www-form-urlencoded"
TIMESTAMP = re.compile(r"[0-9]{1,12}")


def read_report(webhook: Webhook, delivery: Delivery, *, secret: str) -> ReportedEnd | None:
    """None for a genuine delivery that reports no end. Raises NotGenuine, InvalidAnswer."""
    if webhook.signature is not None:
        _check_signature(webhook.signature, delivery, secret)
    if webhook.secret is not None:
        expected = (webhook.secret.prefix + secret).encode()
        if not hmac.compare_digest(_header(delivery, webhook.secret.header).encode(), expected):
            raise NotGenuine(f"The secret in {webhook.secret.header} does not match.")
    return find_end(webhook, _read_body(delivery, form=webhook.form))


def find_end(webhook: Webhook, report: Any) -> ReportedEnd | None:
    """`report`: the JSON of a delivery. Raises InvalidAnswer."""
    if webhook.ended is not None and not find(webhook.ended, report):
        return None
    run_id = identifier(find(webhook.run_id, report))
    if not run_id:
        place = shorten(webhook.run_id, 100)
        raise InvalidAnswer(f"The body has no run id at {place}; it is {shape_of(report)}.")
    if webhook.workflow_id is None:
        return ReportedEnd(run_id=run_id)
    workflow_id = identifier(find(webhook.workflow_id, report))
    if not workflow_id:
        raise InvalidAnswer(f"The body has no workflow id at {shorten(webhook.workflow_id, 100)}.")
    return ReportedEnd(run_id=run_id, workflow_id=workflow_id)


def _header(delivery: Delivery, name: str) -> str:
    value = delivery.headers.get(name.lower(), "")
    if not value:
        raise NotGenuine(f"The request has no header {name}.")
    return value


def _check_signature(declared: Signature, delivery: Delivery, secret: str) -> None:
    parts = _header(delivery, declared.header)
    listed = split_list(parts) if declared.timestamp_prefix else parts.split()
    timestamp = ""
    if declared.timestamp is not None:
        timestamp = _header(delivery, declared.timestamp)
    elif declared.timestamp_prefix is not None:
        timestamp = next(_after(declared.timestamp_prefix, listed), "")
    names = {"body": delivery.body, "timestamp": timestamp.encode()}
    if declared.id is not None:
        names["id"] = _header(delivery, declared.id).encode()
    signed = _fill(declared.signs, names)
    keys = [secret.encode()]
    with suppress(ValueError):
        keys.append(signing_key(secret))  # The bytes that a secret in Base64 stands for
    expected = [_encoded(hmac.digest(key, signed, "sha256"), declared.encoding) for key in keys]
    given = [one.encode() for one in _after(declared.prefix, listed)][:10]
    if declared.encoding == "hex":
        given = [one.lower() for one in given]
    # All are compared, so that the time does not reveal which one matches.
    if not sum(hmac.compare_digest(one, other) for one in given for other in expected):
        raise NotGenuine(f"The signature in {declared.header} does not match the body and the secret.")
    if declared.timestamp is not None or declared.timestamp_prefix is not None:
        _check_age(timestamp, delivery.received_at, declared.tolerance_seconds)


def _check_age(timestamp: str, received_at: datetime, tolerance: int) -> None:
    if not TIMESTAMP.fullmatch(timestamp):
        raise NotGenuine("The timestamp is not in seconds since 1970.")
    apart = received_at.timestamp() - int(timestamp)
    if abs(apart) > tolerance:
        when = "old" if apart > 0 else "ahead of this server's clock"
        raise NotGenuine(f"The timestamp is {abs(apart):,.0f} s {when}; {tolerance:,} s are allowed.")


def _after(prefix: str, listed: list[str]) -> Iterator[str]:
    return (part.removeprefix(prefix) for part in listed if part.startswith(prefix))


def _fill(template: str, names: Mapping[str, bytes]) -> bytes:
    """Inserts the raw body, whose contents are neither decoded nor filled in."""
    filled, end = [], 0
    for found in PART.finditer(template):
        filled += [
            template[end : found.start()].encode(),
            found[1][:1].encode() if found[1] else names[found[2]],
        ]
        end = found.end()
    return b"".join([*filled, template[end:].encode()])


def _encoded(digest: bytes, encoding: str) -> bytes:
    return base64.b64encode(digest) if encoding == "base64" else digest.hex().encode()


def _read_body(delivery: Delivery, *, form: str | None) -> Any:
    content_type = delivery.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = delivery.body
    if content_type == FORM and form is not None:
        try:
            fields = parse_qs(body.decode("ascii"), max_num_fields=100)
        except ValueError:
            raise InvalidAnswer("The body is not a valid form.") from None
        body = fields.get(form, [""])[-1].encode("utf-8", "replace")
    elif content_type != "application/json" and not content_type.endswith("+json"):
        raise InvalidAnswer(
            f"The body must be application/json; it is {shorten(content_type, 50) or 'of no type'}."
        )
    try:
        return parse_json(body)
    except UnreadableJSON as error:
        raise InvalidAnswer(f"The body cannot be read: {error}") from None
