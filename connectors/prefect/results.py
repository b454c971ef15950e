"""What a run leaves behind besides its state: the artifact with its result, its progress, its logs."""

import re
from typing import Any

from connectors.formats.json import UnreadableJSON, parse_json
from connectors.network.redaction import printable, shorten
from connectors.prefect.api import ERROR
from connectors.prefect.states import first_line, moment

FENCED = re.compile(r"\s*```(?:json)?[ \t]*\n(.*)\n[ \t]*```\s*", re.DOTALL)
MESSAGE_LIMIT = 2_000
ENGINES_OWN_WORDS = ("Traceback (most recent call last)", "Finished in state ")
"""Lines in which Prefect repeats how the run ended."""


def read_result(data: Any) -> Any:
    """An artifact's data, in which a text that is JSON, also as a block of code, counts as what it says."""
    if not isinstance(data, str):
        return data
    block = FENCED.fullmatch(data)
    try:
        return parse_json((block[1] if block else data).encode("utf-8", "replace"))
    except UnreadableJSON:
        return data


def read_progress(artifact: dict[str, Any] | None) -> float | None:
    """Percent, from an artifact of Prefect's type progress."""
    data = artifact.get("data") if artifact else None
    if isinstance(data, bool) or not isinstance(data, int | float):
        return None
    return float(min(max(data, 0), 100))


def newest_line(logs: list[dict[str, Any]]) -> str:
    return next((line for line in map(_line, logs) if line), "")


def last_error(logs: list[dict[str, Any]]) -> str:
    """What the flow itself logged as an error last; empty when it did not."""
    for entry in logs:
        level, message = entry.get("level"), entry.get("message")
        if not isinstance(level, int) or level < ERROR or not isinstance(message, str):
            continue
        if not any(words in message for words in ENGINES_OWN_WORDS):
            return first_line(message)
    return ""


def kept_lines(logs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For the record, the oldest first."""
    return [
        {"time": str(entry.get("timestamp")), "level": entry.get("level"), "message": _message(entry)}
        for entry in reversed(logs)
        if moment(entry.get("timestamp"))
    ]


def _message(entry: dict[str, Any]) -> str:
    message = entry.get("message")
    return shorten(printable(message), MESSAGE_LIMIT) if isinstance(message, str) else ""


def _line(entry: dict[str, Any]) -> str:
    message = entry.get("message")
    return first_line(message) if isinstance(message, str) else ""
