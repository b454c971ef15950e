"""Values that Prefect evaluates instead of passing them on: templates, and variables of the workspace."""

from typing import Any

from connectors.errors import Rejected

MARK = "__prefect_kind"


def is_evaluated(value: Any) -> bool:
    """Whether Prefect would find something to evaluate in it, however deep."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case dict() as found if MARK in found:
                return True
            case dict() as found:
                waiting.extend(found.values())
            case list() as found:
                waiting.extend(found)
    return False


def refuse_evaluated(arguments: dict[str, Any]) -> None:
    """Raises Rejected: whoever may call a workflow must not read the workspace's variables that way."""
    if is_evaluated(arguments):
        raise Rejected(
            f"The arguments contain the key {MARK}, whose value Prefect would evaluate as a template or a "
            "variable instead of passing it on. Give the value itself."
        )
