"""What is wrong with a value, in words that let a model correct it: allowed values are listed whole."""

import json
from collections.abc import Sequence
from typing import Any

import jsonschema_rs

LONGEST_VALUE = 200
"""Characters of the offending value that are repeated; who sent it has the rest."""
LONGEST_ENUMERATION = 10_000
"""Characters of allowed values; of a longer list, as many as fit."""
LONGEST_REASON = 1_000
"""Of what the validator itself says: first the value, whatever its length, then the reason."""
MOST_ALTERNATIVES = 10
KINDS = jsonschema_rs.ValidationErrorKind


def describe_validation_error(error: jsonschema_rs.ValidationError) -> str:
    """One problem, without its path."""
    kind = error.kind
    if isinstance(kind, KINDS.Enum):
        return f"{_shown(error.instance)} is not one of {_listed(kind.options)}"
    if isinstance(kind, (KINDS.AnyOf, KINDS.OneOfNotValid)) and (told := _alternatives(error, kind.context)):
        return f"{_shown(error.instance)} fits no alternative: {told}"
    message = error.message
    if len(message) <= LONGEST_VALUE + LONGEST_REASON:
        return message
    return f"{message[:LONGEST_VALUE]}… {message[-LONGEST_REASON:]}"


def _alternatives(error: jsonschema_rs.ValidationError, context: Any) -> str:
    """Why it fits none of them, where each has a reason that is about the value itself; else nothing."""
    reasons = []
    for problems in context[:MOST_ALTERNATIVES]:
        own = [problem for problem in problems if problem.instance_path == error.instance_path]
        if not own:
            return ""
        reasons.append(describe_validation_error(own[0]))
    if left := len(context) - len(reasons):
        reasons.append(f"and {left} alternatives more")
    return "; ".join(reasons)


def _listed(allowed: Sequence[Any]) -> str:
    told: list[str] = []
    room = LONGEST_ENUMERATION
    for value in allowed:
        text = _written(value)
        room -= len(text) + len(", ")
        if told and room < 0:
            return f"{', '.join(told)} and {len(allowed) - len(told):,} more, which the schema lists"
        told.append(_cut(text, LONGEST_ENUMERATION))
    return ", ".join(told)


def _shown(value: Any) -> str:
    return _cut(_written(value), LONGEST_VALUE)


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
