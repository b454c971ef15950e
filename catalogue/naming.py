"""Tool names: made once from the workflow's name, then stable (A6.4, B8)."""

import hashlib
import re
import unicodedata

MAX_LENGTH = 64
"""Clients are stricter than MCP's own 128."""

RESERVED = frozenset(
    {
        "list_workflows",
        "get_workflow_info",
        "execute_workflow",
        "get_execution_status",
        "cancel_execution",
        "list_executions",
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
    with_id = _joined(plain, _sanitised(upstream_id))
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
