"""Reading the answers of a declared engine: workflows, input schemas, the state of runs."""

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from connectors.definitions import RejectedDefinition, WorkflowDefinition, parse_definition
from connectors.errors import InvalidAnswer
from connectors.formats.json import TooDeep, is_number, read_percent, read_time
from connectors.http_job.declaration import Declaration, Described, HowFar, Inputs, Seen, find
from connectors.network.redaction import printable, shorten, shorten_error, words_in
from connectors.protocol import RunSnapshot, RunState
from connectors.simplified import LINE_LIMIT, NO_REASON, identifier, shape_of

MILLISECONDS_FROM = 1e11
"""Unix times beyond it are in milliseconds; in seconds it is the year 5138."""
STATES = {state.value: state for state in RunState}
FRACTION = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")
TEXTS = ("title", "description", "version", "category")


def text_at(expression: str | None, answer: Any) -> str:
    """Empty for anything but a text or a number."""
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
    """`detail`: the answer to the second request, None where there is none."""
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
    """Only what the answer says."""
    said: dict[str, Any] = {
        name: text_at(expression, answer) for name in TEXTS if (expression := getattr(block, name))
    }
    said = {name: text for name, text in said.items() if text.strip()}
    longest = block.timeout_seconds
    if longest is not None:
        seconds = find(longest, answer) if isinstance(longest, str) else longest
        said["timeout_seconds"] = math.ceil(seconds) if is_number(seconds) else None
    if block.tags is not None:
        tags = find(block.tags, answer)
        said["tags"] = [tag for tag in tags if isinstance(tag, str) and tag] if isinstance(tags, list) else []
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
    """An object schema; of an answer without inputs, one that takes any."""
    properties: dict[str, Any] = {}
    required = []
    for name, one in _each(inputs, answer):
        properties[name] = _property(inputs, one)
        if inputs.required is not None and find(inputs.required, one) is True:
            required.append(name)
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return schema | ({"required": required} if required else {})


def _each(inputs: Inputs, answer: Any) -> Iterator[tuple[str, Any]]:
    match find(inputs.each, answer):
        case dict() as by_name:
            yield from by_name.items()
        case list() as listed if inputs.name is not None:
            yield from ((name, one) for one in listed if (name := text_at(inputs.name, one)))


def _property(inputs: Inputs, one: Any) -> dict[str, Any]:
    schema = find(inputs.schema_, one) if inputs.schema_ else None
    made: dict[str, Any] = dict(schema) if isinstance(schema, dict) else {}
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
        expected = f"expected a list at {shorten(declared.list.items, 100)}"
        raise InvalidAnswer(f"The listing cannot be read: {expected}, and it is {shape_of(answer)}.")
    return items if declared.list.newest is None else _newest(items, declared.list.id, declared.list.newest)


def _newest(items: list[Any], of: str, version: str) -> list[Any]:
    """Without older versions of a workflow; items without id or version stay."""
    newest: dict[str, Any] = {}
    known = [(item, id_at(of, item), find(version, item)) for item in items]
    for _, name, number in known:
        if is_number(number) and number > newest.get(name, -math.inf):
            newest[name] = number
    return [
        item for item, name, number in known if not name or not is_number(number) or number == newest[name]
    ]


def next_page(declared: Declaration, answer: Any, page: str, count: int) -> str:
    """The next page's offset, number, cursor or link; empty after the last. `count`: items on this page."""
    pages = declared.list.pages
    if pages is None:
        return ""
    if pages.next is not None:
        found = find(pages.next, answer)
        if found is not None and (isinstance(found, bool) or not isinstance(found, str | int)):
            raise InvalidAnswer("The listing's next page is neither a text nor a number.")
        return str(found or "")
    total = find(pages.total, answer) if pages.total is not None else None
    if pages.total is not None and not is_number(total):
        raise InvalidAnswer("The listing does not say how many items it has.")
    begun = int(page) if pages.by == "offset" else (int(page) - pages.first) * pages.size
    is_last = count < pages.size if total is None else begun + (count or pages.size) >= total
    if is_last:
        return ""
    if not count:
        raise InvalidAnswer(f"The listing announces {total} items and has none from {begun} on.")
    return str(begun + count) if pages.by == "offset" else str(int(page) + 1)


def read_state(seen: Seen, states: Mapping[str, str], answer: Any) -> RunState:
    """Raises InvalidAnswer."""
    told = find(seen.state, answer)
    if isinstance(told, bool):
        told = "true" if told else "false"
    if not isinstance(told, str | int):
        raise InvalidAnswer(f"The status that the engine answers has no state; it is {shape_of(answer)}.")
    state = states.get(str(told))
    if state is None:
        shown = printable(shorten(str(told), 50))
        raise InvalidAnswer(f"The run has the state {shown!r}, which the declaration does not know.")
    return STATES[state]


def read_snapshot(status: Seen, states: Mapping[str, str], answer: Any) -> RunSnapshot:
    """Without what the requests for result, failure and logs find."""
    state = read_state(status, states, answer)
    error = ""
    if state in NO_REASON:
        words = words_in(find(status.error, answer)) if status.error else ""
        error = shorten_error(printable(words)) or NO_REASON[state]
    is_running = state is RunState.RUNNING
    return RunSnapshot(
        state=state,
        output=find(status.output, answer) if status.output and state is RunState.COMPLETED else None,
        error=error,
        progress=read_progress(status, answer) if is_running else None,
        progress_message=read_message(status, answer) if is_running else "",
        created_at=_time(status.created_at, answer),
        started_at=_time(status.started_at, answer),
        updated_at=_time(status.updated_at, answer),
        finished_at=None if is_running else _time(status.finished_at, answer),
        raw=answer if isinstance(answer, dict) else {"answer": answer},
    )


def read_progress(told: HowFar, answer: Any) -> float | None:
    """Percent; None where the answer does not say."""
    if told.done is not None and told.total is not None:
        return _percent_of(find(told.done, answer), find(told.total, answer))
    found = find(told.progress, answer) if told.progress else None
    if isinstance(found, str) and (parts := FRACTION.fullmatch(found)):
        return _percent_of(int(parts[1]), int(parts[2]))
    return read_percent(found)


def _percent_of(done: Any, total: Any) -> float | None:
    return read_percent(100 * done / total) if is_number(done) and is_number(total) and total > 0 else None


def read_message(told: HowFar, answer: Any) -> str:
    line = next(iter(printable(text_at(told.message, answer)).splitlines()), "")
    return shorten(line, LINE_LIMIT)


def _time(expression: str | None, answer: Any) -> datetime | None:
    """ISO 8601, or a Unix time in seconds or milliseconds."""
    value: Any = None if expression is None else find(expression, answer)
    if not is_number(value):
        return read_time(value)
    try:
        return datetime.fromtimestamp(value / 1000 if value > MILLISECONDS_FROM else value, UTC)
    except (ValueError, OverflowError, OSError):
        return None
