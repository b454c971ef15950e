"""The tools in words for the model: one text, as long as the context allows (C3.1 to C3.3)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from catalogue.exposure import ExposedCatalogue
from catalogue.http_tools.configs import declared_output_schema, is_http_tool
from catalogue.models import Workflow
from catalogue.search import rank_for_instructions
from catalogue.token_estimates import CHARACTERS_PER_TOKEN
from connectors.http_tools.tool import HttpOperation
from orchestration.choosing.schema_lines import Detail, one_line, schema_lines

LONGEST_TITLE = 200
LONGEST_SHOWN_TITLE = 80
"""Of a tool that is told by name and title only."""
NAMES_SHARE = 0.5
"""Of the room, for names and titles."""
LONGEST_ENDPOINT = 2_000
BETWEEN = "\n\n"
REMEMBERED_ENTRIES = 2_000
"""Texts of a tool, of at most some kilobytes each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolContext:
    text: str
    described: Sequence[str]
    """Tool names, the likeliest first where not all fit."""
    named: Sequence[str] = ()
    """Those of which only name and title are told, since their descriptions do not fit."""
    left_out: Sequence[str]
    """What did not fit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Depth:
    """How much is told of each tool."""

    description: int
    """Characters."""
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
"""Less and less; only what does not even fit with the least is left out."""


def describe_tools(
    workflows: Sequence[Workflow],
    *,
    instructions: str,
    tokens: int,
    catalogue: ExposedCatalogue,
    first: str = "",
) -> ToolContext:
    """Name, description, endpoint, parameters and expected output of each, in at most so many tokens.

    Where not all fit they are ranked by the instructions, with the tool called `first` before all others;
    of those whose descriptions do not fit only name and title are told.
    """
    *longer, shortest = DEPTHS
    for depth in longer:
        context = _describe(workflows, depth, tokens)
        if context is not None:
            return context
        workflows = _ranked(workflows, instructions, catalogue, first)
    return _describe_or_name(workflows, shortest, tokens)


def _describe(workflows: Sequence[Workflow], depth: _Depth, tokens: int) -> ToolContext | None:
    """All of them; None where they do not fit."""
    left = tokens * CHARACTERS_PER_TOKEN
    entries: dict[str, str] = {}
    for workflow in workflows:
        entry = entries[workflow.tool_name] = _entry(workflow, depth)
        left -= len(entry) + len(BETWEEN)
        if left < 0:
            return None
    return ToolContext(text=BETWEEN.join(entries.values()), described=list(entries), left_out=[])


def _describe_or_name(workflows: Sequence[Workflow], depth: _Depth, tokens: int) -> ToolContext:
    """All that fit, in this order: names and titles first, which may take half of the room."""
    room = tokens * CHARACTERS_PER_TOKEN
    lines: dict[str, str] = {}
    named_size = len(BETWEEN)
    for workflow in workflows:
        line = _name_line(workflow)
        if named_size + len(line) + 1 <= room * NAMES_SHARE:
            named_size += len(line) + 1
            lines[workflow.tool_name] = line
    entries: dict[str, str] = {}
    left = room - named_size
    for workflow in workflows:
        entry = _entry(workflow, depth)
        # What is described is not named as well.
        size = len(entry) + len(BETWEEN) - len(lines.get(workflow.tool_name, "")) - 1
        if size <= left:
            left -= size
            entries[workflow.tool_name] = entry
            lines.pop(workflow.tool_name, None)
    left_out = [one.tool_name for one in workflows if one.tool_name not in entries.keys() | lines.keys()]
    parts = [*entries.values(), *(["\n".join(lines.values())] if lines else [])]
    return ToolContext(
        text=BETWEEN.join(parts), described=list(entries), named=list(lines), left_out=left_out
    )


def _name_line(workflow: Workflow) -> str:
    title = "" if workflow.title == workflow.tool_name else one_line(workflow.title, LONGEST_SHOWN_TITLE)
    return f"name only: {workflow.tool_name}" + (f" ({title})" if title else "")


def _ranked(
    workflows: Sequence[Workflow], instructions: str, catalogue: ExposedCatalogue, first: str
) -> list[Workflow]:
    """Those that the instructions speak of first; the others as they were."""
    found = rank_for_instructions(catalogue, instructions, [workflow.tool_name for workflow in workflows])
    rank = {name: place for place, name in enumerate(found)} | {first: -1}
    return sorted(workflows, key=lambda workflow: rank.get(workflow.tool_name, len(rank)))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Told:
    """What is told of one tool. Its content hash and the changes stand for the schemas, slow to compare."""

    name: str
    title: str
    description: str
    endpoint: str
    content_hash: str
    argument_overrides: str
    input_schema: dict[str, Any] = field(compare=False, repr=False)
    output_schema: dict[str, Any] | None = field(compare=False, repr=False)


def _entry(workflow: Workflow, depth: _Depth) -> str:
    told = _Told(
        name=workflow.tool_name,
        title="" if workflow.title == workflow.tool_name else workflow.title,
        description=workflow.shown_description,
        endpoint=_endpoint(workflow),
        content_hash=workflow.content_hash,
        argument_overrides=json.dumps(workflow.argument_overrides),
        input_schema=workflow.offered_input_schema,
        output_schema=declared_output_schema(workflow),
    )
    return _written(told, depth)


# Going through the schemas of a hundred tools takes longer than all that is ours of a request.
@lru_cache(maxsize=REMEMBERED_ENTRIES)
def _written(told: _Told, depth: _Depth) -> str:
    facts = {
        "name": told.name,
        "title": one_line(told.title, LONGEST_TITLE),
        "description": one_line(told.description, depth.description),
        "endpoint": one_line(told.endpoint, LONGEST_ENDPOINT),
    }
    lines = [f"{name}: {value}" for name, value in facts.items() if value]
    parameters = schema_lines(told.input_schema, depth.parameters, says_required=True)
    output = schema_lines(told.output_schema, depth.output, says_required=False)
    lines += ["parameters:", *parameters] if parameters else ["parameters: none"]
    lines += ["output:", *output] if output else []
    return "\n".join(lines)


def _endpoint(workflow: Workflow) -> str:
    """`GET https://api.example.com/orders/{order_id}`; empty for what is no HTTP tool."""
    if not is_http_tool(workflow):
        return ""
    operation = HttpOperation.of(workflow.ref)
    return f"{operation.method} {workflow.source.config.get('base_url', '')}{operation.path}"
