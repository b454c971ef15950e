"""What an API has against a request, for whoever has to make a better one."""

import json
from http.client import responses
from typing import Any

from connectors.formats.json import UnreadableJSON, parse_json
from connectors.network.redaction import Redactor, printable, shorten, words_of

COMPLAINT_LIMIT = 1_000
"""Characters that are told: room for what is wrong with each of some arguments."""
LARGEST_BODY = 64_000
"""Bytes; what is larger is no complaint that an agent could read, and only its message is looked for."""
MESSAGE_KEYS = ("error", "message", "detail", "msg", "reason", "exception_message")
"""Of texts; a list or a title with such a name may as well be about an argument of that name."""
ENVELOPES = ("error", "detail")


def complaint_of(status: int, body: bytes, redactor: Redactor) -> str:
    """The message of a JSON body and then all else that it says, as JSON: `Invalid: {"field":"amount"}`.

    Bounded and without secrets; of what is no JSON, the text. APIs name the argument that is wrong in a
    hundred ways, so nothing is chosen from what they say.
    """
    phrase = responses.get(status, "")
    try:
        value = parse_json(body) if len(body) <= LARGEST_BODY else None
    except UnreadableJSON:
        value = None
    if not isinstance(value, dict | list):
        # Redacted before it is cut, so that no half of a secret remains.
        words = shorten(redactor.text(words_of(body)), COMPLAINT_LIMIT)
        return "" if words.lower() == phrase.lower() else words
    message, rest = _told_apart(_without_status(_fit_to_be_told(value, redactor), status, phrase))
    if not rest:
        return shorten(message, COMPLAINT_LIMIT)
    # Once more, for a secret that is a number there.
    written = redactor.text(json.dumps(rest, ensure_ascii=False, separators=(",", ":")))
    return shorten(f"{message.removesuffix('.')}: {written}" if message else written, COMPLAINT_LIMIT)


def _fit_to_be_told(value: Any, redactor: Redactor) -> Any:
    """Each text by itself: in JSON a secret could be spelled in a way that nobody looks for."""
    match value:
        case str():
            return printable(redactor.text(value))
        case list():
            return [_fit_to_be_told(item, redactor) for item in value]
        case dict():
            return {
                printable(redactor.text(name)): _fit_to_be_told(item, redactor)
                for name, item in value.items()
            }
    return value


def _without_status(value: Any, status: int, phrase: str) -> Any:
    """The line that quotes it begins with that."""
    if not isinstance(value, dict):
        return value
    said = {str(status), phrase.lower()}
    return {
        name: item
        for name, item in value.items()
        if not (isinstance(item, str | int) and str(item).lower() in said)
    }


def _told_apart(value: Any) -> tuple[str, Any]:
    """The message in it, and the rest; nothing that is empty."""
    if not isinstance(value, dict):
        return "", value
    for key in MESSAGE_KEYS:
        said = value.get(key)
        if isinstance(said, str) and said:
            return said, _without_empty({**value, key: None})
        if isinstance(said, dict) and key in ENVELOPES:
            message, rest = _told_apart(said)
            if message:
                return message, _without_empty({**value, key: rest})
    return "", _without_empty(value)


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: item for name, item in fields.items() if item not in (None, "", [], {})}
