"""The first stage: the tools of a request (C1), and their description for the model (C3)."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from access.callers import Caller
from catalogue.descriptions import CHARACTERS_PER_TOKEN
from catalogue.exposure import ExposedCatalogue, current_catalogue
from catalogue.http_tools import is_http_tool
from catalogue.models import Workflow
from catalogue.naming import find_similar_names
from catalogue.search import rank_for_instructions
from catalogue.served_schemas import Input, Place, inputs_at
from connectors.http_tools.tool import HttpOperation
from connectors.network.redaction import printable, shorten
from orchestration.models import Failure, StageFailed

MAX_TITLE_LENGTH = 200
MAX_SHOWN_TITLE = 80  # Where only names and titles are given
MAX_LIKELY = 40  # Tools that are described once the model has said what it looks for
MAX_ENDPOINT = 2_000
BETWEEN = "\n\n"
SHOWN_ID = 100
MAX_NAME = 120
MAX_VALUE = 80  # Characters of a default and of each value of an enumeration
MAX_VALUES = 20
LIMITS = ("format", "pattern", "minimum", "maximum", "maxLength")
"""Keywords that models tend to violate unless they are stated."""


def find_tools(tool_ids: list[str], *, caller: Caller) -> dict[str, Workflow]:
    """Returns tools by name, in the given order, without duplicates. Raises StageFailed for invalid ids."""
    shown = current_catalogue().seen_within(caller.bounds)
    wanted = list(dict.fromkeys(tool_ids))
    if invalid := [tool_id for tool_id in wanted if tool_id not in shown]:
        listed = []
        for tool_id in invalid:
            similar = " or ".join(find_similar_names(tool_id, shown))
            meant = f" (did you mean {similar}?)" if similar else ""
            listed.append(f"{printable(tool_id[:SHOWN_ID])}{meant}")
        raise StageFailed(
            f"No such tools, or they are disabled: {'; '.join(listed)}. "
            "GET /api/workflows/ lists the available ones.",
            failure=Failure.UNKNOWN_TOOLS,
            invalid_tool_ids=invalid,
        )
    return {tool_id: shown[tool_id] for tool_id in wanted}


@dataclass(frozen=True, kw_only=True, slots=True)
class Detail:
    description: int  # Characters of each description
    depth: int  # Levels of nesting
    lines: int  # Required ones come first


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolContext:
    text: str
    described: Sequence[str]  # Tool names, in the order in which they are described


@dataclass(frozen=True, kw_only=True, slots=True)
class _Depth:
    description: int  # Characters
    parameters: Detail
    output: Detail


DEPTHS = (
    _Depth(
        description=2_000,
        parameters=Detail(description=400, depth=4, lines=200),
        output=Detail(description=200, depth=3, lines=60),
    ),
    _Depth(
        description=400,
        parameters=Detail(description=100, depth=3, lines=60),
        output=Detail(description=0, depth=1, lines=20),
    ),
    _Depth(
        description=150,
        parameters=Detail(description=40, depth=2, lines=20),
        output=Detail(description=0, depth=1, lines=5),
    ),
)
"""In decreasing detail, tried until all tools fit."""


def describe_all(workflows: Sequence[Workflow], *, tokens: int) -> ToolContext | None:
    """Name, description, endpoint, parameters and expected output of each, as fully as all of them fit.

    None if they take more than that many tokens even in their shortest form.
    """
    for depth in DEPTHS:
        entries = _entries(workflows, depth, tokens)
        if len(entries) == len(workflows):
            return ToolContext(text=BETWEEN.join(entries.values()), described=list(entries))
    return None


def describe_likeliest(ranked: Sequence[Workflow], *, tokens: int) -> ToolContext:
    """Returns the same of the first `MAX_LIKELY`, or of as many of them as fit in their shortest form."""
    likeliest = ranked[:MAX_LIKELY]
    if (context := describe_all(likeliest, tokens=tokens)) is not None:
        return context
    entries = _entries(likeliest, DEPTHS[-1], tokens)
    return ToolContext(text=BETWEEN.join(entries.values()), described=list(entries))


def _entries(workflows: Sequence[Workflow], depth: _Depth, tokens: int) -> dict[str, str]:
    """Returns entries by tool name, up to the first that does not fit."""
    entries = ((workflow.tool_name, _entry(workflow, depth)) for workflow in workflows)
    return _as_many_as_fit(entries, BETWEEN, tokens)


def _as_many_as_fit(named: Iterable[tuple[str, str]], between: str, tokens: int) -> dict[str, str]:
    left = tokens * CHARACTERS_PER_TOKEN
    fitting: dict[str, str] = {}
    for name, text in named:
        left -= len(text) + len(between)
        if left < 0:
            break
        fitting[name] = text
    return fitting


def name_tools(ranked: Sequence[Workflow], *, tokens: int) -> dict[str, str]:
    """A line with name and title of each, by tool name, as many as fit."""

    def line_of(workflow: Workflow) -> str:
        title = "" if workflow.title == workflow.tool_name else one_line(workflow.title, MAX_SHOWN_TITLE)
        return f"{workflow.tool_name} ({title})" if title else workflow.tool_name

    lines = ((workflow.tool_name, line_of(workflow)) for workflow in ranked)
    return _as_many_as_fit(lines, "\n", tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Holds what the model looks for, after it has read the tools' names."""

    words: str = ""
    tools: Sequence[str] = ()  # Names, the likeliest first


def rank_tools(
    workflows: Sequence[Workflow], instructions: str, catalogue: ExposedCatalogue, wanted: Wanted
) -> list[Workflow]:
    """Returns the likeliest first: those wanted by name, then by the wanted words and by the instructions in
    turn."""
    names = [workflow.tool_name for workflow in workflows]
    by_words = rank_for_instructions(catalogue, wanted.words, names)
    by_instructions = rank_for_instructions(catalogue, instructions, names)
    in_turn = chain.from_iterable(zip_longest(by_words, by_instructions))
    order = {name: place for place, name in enumerate(dict.fromkeys(chain(wanted.tools, in_turn)))}
    return sorted(workflows, key=lambda workflow: order.get(workflow.tool_name, len(order)))


def _entry(workflow: Workflow, depth: _Depth) -> str:
    endpoint = ""
    if is_http_tool(workflow):
        # Such as `GET https://api.example.com/orders/{order_id}`
        operation = HttpOperation.of(workflow.ref)
        endpoint = f"{operation.method} {workflow.source.config.get('base_url', '')}{operation.path}"
    title = "" if workflow.title == workflow.tool_name else workflow.title
    facts = {
        "name": workflow.tool_name,
        "title": one_line(title, MAX_TITLE_LENGTH),
        "description": one_line(workflow.shown_description, depth.description),
        "endpoint": one_line(endpoint, MAX_ENDPOINT),
    }
    lines = [f"{name}: {value}" for name, value in facts.items() if value]
    parameters = schema_lines(workflow.offered_input_schema, depth.parameters, says_required=True)
    output = schema_lines(workflow.declared_output_schema, depth.output, says_required=False)
    lines += ["parameters:", *parameters] if parameters else ["parameters: none"]
    lines += ["output:", *output] if output else []
    return "\n".join(lines)


def schema_lines(schema: dict[str, Any] | None, detail: Detail, *, says_required: bool) -> list[str]:
    """`- order.lines[].sku (string, required): The article's number.`"""
    if not isinstance(schema, dict):
        return []
    lines: list[str] = []
    if schema.get("type", "object") != "object":
        definitions: dict[str, Any] = {
            name: schema[name] for name in ("$defs", "definitions") if name in schema
        }
        schema = {"type": "object", "properties": {"result": schema}, **definitions}
    for line in _lines(Place(schema, schema), "", detail.depth, detail, says_required):
        if len(lines) == detail.lines:
            return [*lines, "- and more"]
        lines.append(line)
    return lines


def one_line(text: str, limit: int) -> str:
    """Cannot forge lines of the prompt."""
    line = " ".join(text.split())
    return shorten(line if line.isprintable() else " ".join(printable(line).split()), limit)


def _lines(place: Place, prefix: str, depth: int, detail: Detail, says_required: bool) -> Iterator[str]:
    found = inputs_at(place)
    for name, given in sorted(found.properties.items(), key=lambda item: item[0] not in found.required):
        path = f"{prefix}{one_line(name, MAX_NAME)}"
        need = "required" if name in found.required else "optional"
        yield _line(path, given, detail, need if says_required else "")
        if depth > 1:
            # The items of a list, or the place itself
            items = _stated(given.place).get("items")
            inner, mark = (given.place.at(items), "[]") if isinstance(items, dict) else (given.place, "")
            yield from _lines(inner, f"{path}{mark}.", depth - 1, detail, says_required)


def _line(path: str, given: Input, detail: Detail, need: str) -> str:
    stated = _stated(given.place)
    default = "" if given.default is None else f"default {_as_json(given.default)}"
    facts = [given.type, need, _values(stated), default, *_limits(stated)]
    line = f"- {path} ({', '.join(filter(None, facts))})"
    description = one_line(given.description, detail.description) if detail.description else ""
    return f"{line}: {description}" if description else line


def _stated(place: Place) -> dict[str, Any]:
    """Its keywords and those of its references."""
    stated: dict[str, Any] = {}
    for schema in place.chain():
        stated = schema | stated
    return stated


def _limits(stated: dict[str, Any]) -> Iterator[str]:
    for keyword in LIMITS:
        if isinstance(limit := stated.get(keyword), str | int | float):
            yield f"{keyword} {one_line(str(limit), MAX_VALUE)}"


def _values(stated: dict[str, Any]) -> str:
    listed = stated.get("enum")
    values = [stated["const"]] if "const" in stated else listed if isinstance(listed, list) else []
    if not values:
        return ""
    more = f" and {len(values) - MAX_VALUES} more" if len(values) > MAX_VALUES else ""
    return f"one of {' | '.join(map(_as_json, values[:MAX_VALUES]))}{more}"


def _as_json(value: Any) -> str:
    return one_line(json.dumps(value, ensure_ascii=False), MAX_VALUE)
