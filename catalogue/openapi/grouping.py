"""What an import came to, in groups: there may be hundreds of tools, and as many refusals for one reason."""

import re
from collections import Counter
from dataclasses import dataclass

from catalogue.openapi.importing import OpenApiImport
from connectors.http_tools.openapi.refusals import RefusedOperation

QUOTED = re.compile(r'"[^"]*"')
WITHOUT_TAG = "without a tag"


@dataclass(frozen=True, slots=True)
class RefusalGroup:
    """Operations that are refused for reasons which differ in names only."""

    reason: str
    operations: list[RefusedOperation]


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
    """What tools do without, and how many of them, the most frequent first."""
    return Counter(note for tool in outcome.tools for note in tool.notes).most_common()
