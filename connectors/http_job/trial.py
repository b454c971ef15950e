"""Trying a declaration against an engine, or showing its requests without one."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_type_hints
from uuid import uuid4

from pydantic import BaseModel

from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.errors import ConnectorError, Rejected
from connectors.formats.yaml import name_of
from connectors.http_job.connector import HttpJobConnector, find_end, one_of
from connectors.http_job.declaration import (
    Declaration,
    Expression,
    Find,
    Inputs,
    List,
    Questions,
    Request,
    RunStatus,
    Webhook,
    find,
)
from connectors.http_job.engine import HttpJobConfig, content_of, target_of
from connectors.http_job.template import fill_headers, placeholders_in
from connectors.network.redaction import shorten
from connectors.protocol import Question, RunRef, RunState, WorkflowRef

SHOWN = 200
"""Characters of a value or an answer."""
KEY = "00000000-0000-4000-8000-000000000000"


class Trial:
    """Writes each step as lines to `tell`. Raises ConnectorError. Close it with `aclose`."""

    def __init__(self, config: HttpJobConfig, tell: Callable[[str], None]) -> None:
        self._config, self._tell = config, tell
        self._places = {id(request): name_of(place) for place, request, _ in config.declared.requests}
        self._told: dict[str, str] = {}
        self._connector = HttpJobConnector(config, on_answer=self._show)

    async def aclose(self) -> None:
        await self._connector.aclose()

    async def find_workflows(self) -> list[WorkflowDefinition]:
        found = [item async for item in self._connector.discover()]
        self._tell(f"\nWorkflows found: {len(found)}.")
        for item in found:
            if isinstance(item, RejectedDefinition):
                self._tell(f"  skipped {item.id or item.position}: {item.reason}")
                continue
            named = item.id if item.id == item.name else f"{item.id} ({item.name})"
            self._tell(f"  {named}: {shorten(item.description, 100)}")
            inputs = item.input_schema or {}
            for name, schema in inputs.get("properties", {}).items():
                must = " (required)" if name in inputs.get("required", []) else ""
                self._tell(f"    {name}{must}: {_written(schema)}")
        return [item for item in found if isinstance(item, WorkflowDefinition)]

    async def run(self, workflow: WorkflowDefinition, arguments: dict[str, Any], *, cancel: bool) -> RunState:
        """Starts a run and polls it until it ends; with `cancel`, cancels it once it is running."""
        of = WorkflowRef(id=workflow.id, name=workflow.name, metadata=workflow.metadata)
        key = uuid4()
        started = await self._connector.start(of, arguments, key=key)
        run = RunRef(workflow=of, run_id=started.run_id, key=key)
        self._tell(f"\nStarted run {run.run_id}.")
        if self._connector.capabilities.can_find_runs:
            looked_up = await self._connector.find_run(of, arguments, key=key)
            same = looked_up is not None and looked_up.run_id == run.run_id
            self._tell(f"\nThe lookup by key finds {'that run' if same else f'{looked_up}, not that run'}.")
        told = None
        while True:
            seen = await self._connector.poll(run)
            if (seen.state, seen.progress_message) != told:
                message = f": {seen.progress_message}" if seen.progress_message else "."
                self._tell(f"\nThe run is {seen.state}{message}")
                told = (seen.state, seen.progress_message)
            self._show_questions(seen.questions or ())
            if seen.state is not RunState.RUNNING:
                break
            if cancel:
                cancel = not await self._ends(run)
            await asyncio.sleep(self._config.min_poll_seconds)
        self._tell(f"  output: {_written(seen.output)}")
        self._tell(f"  error: {_written(seen.error or None)}")
        for name in ("created_at", "started_at", "finished_at"):
            self._tell(f"  {name}: {getattr(seen, name) or 'nothing'}")
        self._tell(f"  logs: {_written(seen.raw.get('logs'))}")
        if seen.unread is not None:
            raise seen.unread
        return seen.state

    def _show_questions(self, questions: Sequence[Question]) -> None:
        """Each once: the run goes on when it is answered at the engine."""
        for question in questions:
            if question.id not in self._told:
                self._told[question.id] = question.message
                self._tell(f"\nThe run asks {question.id}: {question.message or 'nothing in words'}")
                self._tell(f"  answer: {_written(question.schema)}")
                self._tell("  Answer it at the engine, and this command goes on.")

    async def _ends(self, run: RunRef) -> bool:
        """Requests cancellation. Returns False for any error but a rejection."""
        try:
            await self._connector.cancel(run)
        except Rejected:
            return True
        except ConnectorError as error:
            self._tell(f"\nNot cancelled: {error.message}")
            return False
        self._tell("\nCancellation was requested.")
        return True

    def _show(self, request: Request, names: Mapping[str, Any], answer: Any) -> None:
        """Shows each request of the document once, and again if its findings differ."""
        place = self._places.get(id(request), "")
        has_failed = isinstance(answer, ConnectorError)
        lines = [f"fails: {answer.message}"] if has_failed else list(_findings(request, names, answer))
        text = "\n".join(lines)
        is_detail = request is self._config.declared.list.detail
        if self._told.get(place) == text or (is_detail and place in self._told):
            return
        self._told[place] = text
        self._tell(f"\n{place}\n  {request.method} {target_of(request, names)}")
        if not has_failed:
            self._tell(f"  answers {_written(answer)}")
        for line in lines:
            self._tell(f"  {line}")


def _findings(request: Request, names: Mapping[str, Any], answer: Any) -> Iterator[str]:
    if isinstance(request, List | Questions):
        items = find(request.items, answer)
        yield f"items: {len(items)} found" if isinstance(items, list) else f"items: {_written(items)}"
        if isinstance(request, List) and request.pages:
            yield from _expressions(request.pages, answer, "pages.")
        answer = items[0] if isinstance(items, list) and items else None
        if answer is not None:
            yield "of the first item:"
    if isinstance(request, Find) and request.runs is not None:
        runs = find(request.runs, answer)
        yield f"runs: {_written(runs)}"
        answer = runs[0] if isinstance(runs, list) and runs else None
    if isinstance(request, RunStatus | Find) and request.one is not None:
        answer = one_of(request.one, answer, names)
        yield f"one: {_written(answer)}"
    yield from _expressions(request, answer, "", without={"items", "runs", "when"})
    inputs: Inputs | None = getattr(request, "inputs", None)
    if inputs is not None:
        each = find(inputs.each, answer)
        yield f"inputs.each: {len(each) if isinstance(each, list | dict) else 'nothing'} found"
        first = next(iter(each.values() if isinstance(each, dict) else each or []), None)
        if first is not None:
            yield "of the first input:"
            yield from _expressions(inputs, first, "inputs.", without={"each"})


def _expressions(
    block: BaseModel, value: Any, prefix: str, without: frozenset[str] | set[str] = frozenset()
) -> Iterator[str]:
    """Yields what each declared expression of a block finds."""
    for name, hint in get_type_hints(type(block), include_extras=True).items():
        declared = getattr(block, name)
        if name == "keep":
            for key, expression in declared.items():
                yield f"{prefix}keep.{key}: {_written(find(expression, value))}"
        elif name not in without and isinstance(declared, str) and Expression in (hint, *get_args(hint)):
            yield f"{prefix}{name.rstrip('_')}: {_written(find(declared, value))}"


def _written(value: Any) -> str:
    return "nothing" if value is None else shorten(json.dumps(value, ensure_ascii=False), SHOWN)


def describe_requests(declared: Declaration, arguments: dict[str, Any]) -> Iterator[str]:
    """Each request as text, with names in capitals for values of the engine or of a source's settings."""
    for place, request, known in declared.requests:
        values: dict[str, Any] = {name: name.upper() for name in known}
        values |= {name: value for name, value in declared.values.items() if name in known}
        values |= {"key": KEY} if "key" in known else {}
        values |= {"arguments": arguments} if "arguments" in known else {}
        if place == ("list",):
            first, size = (pages.first, pages.size) if (pages := declared.list.pages) else ("", "")
            values |= {"offset": 0, "page": first, "cursor": "", "limit": size}
        yield f"{name_of(place)}\n{_describe(declared, request, values)}"


def describe_webhook(webhook: Webhook, report: Any) -> str:
    """Tells what the engine must send, and what is read from `report`, if given. Raises InvalidAnswer."""
    lines = ["webhook", "  the engine sends: POST /hooks/SOURCE"]
    if (signature := webhook.signature) is not None:
        signed = f"HMAC-SHA256 of {signature.signs} in {signature.encoding}"
        lines.append(f"  {signature.header}: {signature.prefix}<{signed}>")
    if (secret := webhook.secret) is not None:
        lines.append(f"  {secret.header}: {secret.prefix}<the webhook secret>")
    if report is not None:
        end = find_end(webhook, report)
        of = f" of workflow {end.workflow_id}" if end and end.workflow_id else ""
        lines.append(
            f"  the delivery reports the end of run {end.run_id}{of}"
            if end
            else "  the delivery reports no end"
        )
    return "\n".join(lines)


def _describe(declared: Declaration, request: Request, values: dict[str, Any]) -> str:
    headers = fill_headers(dict(declared.headers), declared.values) | fill_headers(request.headers, values)
    content = content_of(request, values)
    lines = [f"  {request.method} {target_of(request, values)}"]
    lines += [f"  {name}: {value}" for name, value in headers.items()]
    lines += [f"  {name}: {template}" for name, template in declared.login.headers.items()]
    if "body" in content:
        lines += ["  " + line for line in json.dumps(content["body"], indent=2).splitlines()]
    if "form" in content:
        lines += [f"  {name}={value}" for name, value in content["form"].items()]
    named = {name for _, template in request.templates for name in placeholders_in(template)}
    arguments = {name.removeprefix("arguments.") for name in named if name.startswith("arguments.")}
    missing = sorted(arguments.difference(values.get("arguments", {})))
    lines += [f"  (without an argument {name})" for name in missing]
    return "\n".join(lines)
