"""Finds what changed between two JSON documents."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from examples.engine.progress import Progress
from examples.engine.runs import JsonObject
from examples.engine.workflows.definition import ExecutionType, Workflow, pointer
from examples.engine.workflows.schema import array, boolean, integer, record, text

Path = list[str | int]


def compare_documents(given: JsonObject, progress: Progress) -> JsonObject:
    changes = list(find_changes(given["before"], given["after"], []))
    counts = Counter(change["op"] for change in changes)
    return {
        "identical": not changes,
        "added": counts["add"],
        "removed": counts["remove"],
        "replaced": counts["replace"],
        "changes": changes,
    }


def find_changes(before: Any, after: Any, path: Path) -> Iterator[JsonObject]:
    if isinstance(before, dict) and isinstance(after, dict):
        yield from find_member_changes(before, after, path)
    elif isinstance(before, list) and isinstance(after, list):
        yield from find_item_changes(before, after, path)
    elif kind_of(before) != kind_of(after) or before != after:
        yield {"op": "replace", "path": pointer(path), "before": before, "after": after}


def find_member_changes(before: JsonObject, after: JsonObject, path: Path) -> Iterator[JsonObject]:
    for name in before:
        if name in after:
            yield from find_changes(before[name], after[name], [*path, name])
        else:
            yield {"op": "remove", "path": pointer([*path, name]), "before": before[name]}
    for name in after:
        if name not in before:
            yield {"op": "add", "path": pointer([*path, name]), "after": after[name]}


def find_item_changes(before: list[Any], after: list[Any], path: Path) -> Iterator[JsonObject]:
    common = min(len(before), len(after))
    for position in range(common):
        yield from find_changes(before[position], after[position], [*path, position])
    # Removed from the end, so that the positions hold when the changes are applied one after the other.
    for position in reversed(range(common, len(before))):
        yield {"op": "remove", "path": pointer([*path, position]), "before": before[position]}
    for position in range(common, len(after)):
        yield {"op": "add", "path": pointer([*path, position]), "after": after[position]}


def kind_of(value: Any) -> str:
    """A value's JSON type: to Python true equals 1, to JSON it does not, while 1 and 1.0 are the same."""
    return (
        "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
    )


ANYTHING = ["object", "array", "string", "number", "boolean", "null"]

WORKFLOW = Workflow(
    id="1004",
    name="json_diff",
    description=(
        "Compares two JSON documents and lists every difference with the JSON Pointer of where it is. Use it "
        "to review a configuration change or to check an API's answer against the expected one. The order of "
        "object members does not matter; arrays are compared position by position. Returns how many values "
        "were added, removed and replaced, and the changes in an order in which a JSON Patch can apply them."
    ),
    category="Data",
    execution_type=ExecutionType.SYNC,
    tags=("json", "comparison"),
    input_schema=record(
        "The two documents.",
        {
            "before": {"type": ANYTHING, "description": "The old document, any JSON value."},
            "after": {"type": ANYTHING, "description": "The new document, any JSON value."},
        },
    ),
    output_schema=record(
        "The differences.",
        {
            "identical": boolean("Whether there is no difference."),
            "added": integer("How many values exist only in the new document."),
            "removed": integer("How many values exist only in the old document."),
            "replaced": integer("How many values differ."),
            "changes": array(
                "Every difference.",
                record(
                    "One difference.",
                    {
                        "op": text("What happened.", enum=["add", "remove", "replace"]),
                        "path": text("JSON Pointer (RFC 6901) of the value; empty for the whole document."),
                        "before": {"description": "The old value, unless added."},
                        "after": {"description": "The new value, unless removed."},
                    },
                    optional=["before", "after"],
                ),
            ),
        },
    ),
    example={
        "before": {"port": 80, "hosts": ["a", "b"]},
        "after": {"port": 443, "hosts": ["a"], "tls": True},
    },
    execute=compare_documents,
)
