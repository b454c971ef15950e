"""Reading an engine's question to people; its parts are an engine's or a workflow's, and may be anything."""

import hashlib
from typing import Any

from connectors.errors import InvalidAnswer
from connectors.formats.json import as_object, read_time, write_json
from connectors.network.redaction import printable, shorten
from connectors.protocol import Question

MAX_QUESTIONS = 50
MESSAGE_LIMIT = 2_000
ID_LIMIT = 200
NO_SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
"""Consent is enough."""


def read_question(*, id: Any, message: Any, schema: Any, url: Any = None, until: Any = None) -> Question:
    """Leaves out an unusable message, url or time. Raises InvalidAnswer without an id, and for a schema that
    is not an object's."""
    if not isinstance(id, str) or not id or len(id) > ID_LIMIT:
        raise InvalidAnswer(f"A question of the run has no id of 1 to {ID_LIMIT} characters.")
    schema = NO_SCHEMA if schema is None else schema
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise InvalidAnswer(
            f"The answer to the question {shorten(printable(id), 100)!r} must have a JSON Schema of the type "
            "object."
        )
    return Question(
        id=id,
        message=shorten(printable(message), MESSAGE_LIMIT) if isinstance(message, str) else "",
        schema=schema | {"type": "object"},
        url=url if isinstance(url, str) else "",
        until=read_time(until),
    )


def read_told(told: Any) -> list[Question]:
    """What a workflow's own code answers: null, a question, or a list of them, each with `message`, and
    perhaps `id`, `schema`, `url` and `until`. Without an id, other words are another question."""
    listed = told if isinstance(told, list) else [] if told is None else [told]
    if len(listed) > MAX_QUESTIONS or not all(
        isinstance(as_object(one).get("message"), str) for one in listed
    ):
        raise InvalidAnswer(
            f"What the run asks must be null, an object with a message, or a list of at most {MAX_QUESTIONS} "
            "of them."
        )
    keys = ("message", "schema", "url", "until")
    return [
        read_question(id=one.get("id") or digest_of(one), **{key: one.get(key) for key in keys})
        for one in listed
    ]


def digest_of(value: Any) -> str:
    return hashlib.sha256(write_json(value).encode("utf-8", "replace")).hexdigest()[:32]
