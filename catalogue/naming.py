"""Tool names: made once from the workflow's name, then stable (A6.4, B8)."""

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from heapq import nsmallest

MAX_LENGTH = 64
"""Clients are stricter than MCP's own 128."""
SIMILAR = 0.55
"""The share of letter pairs that two names have in common from which one may be meant by the other."""
MOST_SIMILAR = 3

RESERVED = frozenset(
    {
        "list_workflows",
        "get_workflow_info",
        "execute_workflow",
        "get_execution_status",
        "cancel_execution",
        "list_executions",
        "query_execution",
        "signal_execution",
        "ClearCache",
        "enable",
        "disable",
    }
)
"""Names that stand for something else: MCP's built-in tools, and REST's addresses beside the tools'.

A workflow of such a name gets its id added.
"""


def make_tool_name(*, name: str, upstream_id: str, source_name: str, taken: set[str]) -> str:
    """The first free one of: name, name_id, name_id_source, name_id_digest, then with a number."""
    plain = _sanitised(name)[:MAX_LENGTH] or "workflow"
    # Where the engine knows workflows by their names, the source's tells them apart.
    with_id = plain if upstream_id == name else _joined(plain, _sanitised(upstream_id))
    with_source = _joined(with_id, _sanitised(source_name))
    # For ids that differ only in what a name cannot hold: counting up would take ever longer.
    digest = hashlib.sha256(f"{source_name} {upstream_id}".encode()).hexdigest()[:8]
    for candidate in (plain, with_id, with_source, _joined(with_id, digest)):
        if candidate not in taken and candidate not in RESERVED:
            return candidate
    number = 2
    while (candidate := _joined(with_source, str(number))) in taken:
        number += 1
    return candidate


def _sanitised(text: str) -> str:
    """`Kündigung prüfen!` -> `Kundigung_prufen`; empty where no letter or digit can be kept."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", plain).strip("_.-")


def _joined(start: str, end: str) -> str:
    """Both parts, cut where they do not fit; of the second the end stays, where long ids differ."""
    end = end[-MAX_LENGTH // 2 :].lstrip("_.-")
    return f"{start[: MAX_LENGTH - len(end) - 1]}_{end}" if end else start


def find_similar_names(name: str, among: Iterable[str]) -> list[str]:
    """What whoever wrote `name` may have meant, the likeliest first; its words may be in another order."""
    # Longer than any name that there is: nobody's slip of the pen.
    if len(name) > 2 * MAX_LENGTH:
        return []
    wanted = _letter_pairs(name)
    scored = ((_likeness(wanted, _letter_pairs(other)), other) for other in among)
    close = nsmallest(MOST_SIMILAR, ((-score, other) for score, other in scored if score >= SIMILAR))
    return [other for _, other in close]


def _letter_pairs(name: str) -> set[str]:
    folded = name.casefold()
    return {folded[start : start + 2] for start in range(len(folded) - 1)}


def _likeness(some: set[str], others: set[str]) -> float:
    """From 0 to 1 (Dice's coefficient)."""
    return 2 * len(some & others) / ((len(some) + len(others)) or 1)
