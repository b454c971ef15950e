"""What an import came to, in groups: there may be hundreds of tools, and as many refusals for one reason."""

import re
from dataclasses import dataclass

from catalogue.openapi.importing import ImportedTool, OpenApiImport
from connectors.http_tools.openapi.document import RefusedOperation

QUOTED = re.compile(r'"[^"]*"')
WITHOUT_TAG = "without a tag"


@dataclass(frozen=True, slots=True)
class RefusalGroup:
    """Operations that are refused for reasons which differ in names only."""

    reason: str
    operations: list[RefusedOperation]


@dataclass(frozen=True, slots=True)
class NoteGroup:
    """Tools that do without the same."""

    note: str
    tools: list[ImportedTool]


def tools_by_tag(outcome: OpenApiImport) -> dict[str, list[str]]:
    """The tools' ids by the first tag of their operations, in the document's order."""
    groups: dict[str, list[str]] = {}
    for tool in outcome.tools:
        groups.setdefault(tool.tags[0] if tool.tags else WITHOUT_TAG, []).append(tool.stored.tool_id)
    return groups


def group_refusals(refused: list[RefusedOperation]) -> list[RefusalGroup]:
    """The largest group first."""
    by_kind: dict[str, list[RefusedOperation]] = {}
    for one in refused:
        by_kind.setdefault(QUOTED.sub('"..."', one.reason), []).append(one)
    groups = [
        RefusalGroup(kind if len({one.reason for one in alike}) > 1 else alike[0].reason, alike)
        for kind, alike in by_kind.items()
    ]
    return sorted(groups, key=lambda group: -len(group.operations))


def rank_notes(outcome: OpenApiImport) -> list[tuple[str, int]]:
    """The same without the tools."""
    return [(group.note, len(group.tools)) for group in group_notes(outcome)]


def group_notes(outcome: OpenApiImport) -> list[NoteGroup]:
    """What tools do without, the most frequent first."""
    groups: dict[str, list[ImportedTool]] = {}
    for tool in outcome.tools:
        for note in tool.notes:
            groups.setdefault(note, []).append(tool)
    found = [NoteGroup(note, tools) for note, tools in groups.items()]
    return sorted(found, key=lambda group: -len(group.tools))
