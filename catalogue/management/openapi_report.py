"""What an import of an OpenAPI document came to, for a terminal."""

from collections.abc import Iterator

from catalogue.changes import Change
from catalogue.openapi.grouping import group_notes, group_refusals, tools_by_tag
from catalogue.openapi.importing import OpenApiImport

SHOWN = 3


def report_lines(outcome: OpenApiImport, *, all_names: bool) -> Iterator[str]:
    """`all_names`: every tool and refusal instead of the first few of a kind."""
    shown = None if all_names else SHOWN
    # Where no tool comes of it, no source is added either.
    known = "there already" if outcome.tools or outcome.removed else "no tool for it"
    state = "new" if outcome.is_new else known
    yield f"Source {outcome.source}: {state}, {outcome.base_url}, authentication {outcome.authentication}"
    yield from _tools(outcome, shown)
    yield from _refusals(outcome, shown)
    yield from _notes(outcome, shown)
    if outcome.deprecated:
        yield f"Deprecated, and so not imported without --deprecated: {outcome.deprecated}"
    if outcome.not_chosen:
        yield f"Not chosen: {outcome.not_chosen}"
    if outcome.tools:
        yield f"In tools/list: about {outcome.characters:,} characters, {outcome.tokens:,} tokens"
    yield from outcome.notes
    if outcome.count(Change.ADDED) and not any(tool.stored.exposed for tool in outcome.tools):
        yield "Agents see the added tools once somebody enables them (enable_workflows, or --expose)."


def _tools(outcome: OpenApiImport, shown: int | None) -> Iterator[str]:
    counts = ", ".join(f"{number} {change}" for change in Change if (number := outcome.count(change)))
    yield f"{'Tools that would be' if outcome.dry_run else 'Tools'}: {counts or 'none'}"
    groups = tools_by_tag(outcome)
    width = max(map(len, groups), default=0)
    for tag, names in groups.items():
        yield f"  {tag:<{width}}  {len(names):>4}  {_some(names, shown)}"
    if outcome.removed:
        yield f"  removed: {_some([tool.tool_id for tool in outcome.removed], shown)}"


def _refusals(outcome: OpenApiImport, shown: int | None) -> Iterator[str]:
    if outcome.refused:
        yield f"Refused: {len(outcome.refused)}"
    for group in group_refusals(outcome.refused):
        yield f"  {len(group.operations)} x {group.reason}"
        for one in group.operations[:shown]:
            name = f" ({one.operation_id})" if one.operation_id else ""
            yield f"      {one.method} {one.path}{name} at {one.pointer}"
        if more := len(group.operations) - len(group.operations[:shown]):
            yield f"      and {more} more (-v 2 shows all)"


def _notes(outcome: OpenApiImport, shown: int | None) -> Iterator[str]:
    groups = group_notes(outcome)
    if groups:
        yield f"Left out of tools: {sum(len(group.tools) for group in groups)}"
    for group in groups[:shown]:
        yield f"  {len(group.tools)} x {group.note}"
        for one in group.tools[:shown]:
            yield f"      {one.method} {one.path} ({one.stored.name})"
        if more := len(group.tools) - len(group.tools[:shown]):
            yield f"      and {more} more (-v 2 shows all)"
    if more := len(groups) - len(groups[:shown]):
        yield f"  and {more} more of other kinds (-v 2 shows all)"


def _some(names: list[str], shown: int | None) -> str:
    more = len(names) - len(names[:shown])
    return ", ".join(names[:shown]) + (f" and {more} more" if more else "")
