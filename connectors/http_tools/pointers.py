"""JSON Pointers (RFC 6901): how a field of a body is named."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

BAD_ESCAPE = re.compile(r"~(?![01])")
INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


def steps_of(pointer: str) -> tuple[str, ...]:
    """The fields that lead to the place; none: the whole. Raises ValueError with a sentence."""
    if not pointer:
        return ()
    if not pointer.startswith("/"):
        raise ValueError('A JSON Pointer begins with "/", such as "/payment/amount".')
    if BAD_ESCAPE.search(pointer):
        raise ValueError('In a JSON Pointer "~" is written "~0", and "/" within a name "~1".')
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/"))


def pointer_of(steps: Iterable[str | int]) -> str:
    return "".join(["/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps])


def value_at(document: Any, pointer: str) -> Any:
    """Raises LookupError where there is nothing."""
    for step in steps_of(pointer):
        document = _field(document, step)
    return document


def _field(document: Any, step: str) -> Any:
    match document:
        case Mapping():
            return document[step]
        case str():
            raise LookupError(step)
        case Sequence() if INDEX.fullmatch(step):
            return document[int(step)]
    raise LookupError(step)
