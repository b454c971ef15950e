"""What pydantic finds wrong with a file, by the file's lines and keys, and never with a value in it."""

from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from connectors.formats.yaml import Document, Path, Problem, name_of
from connectors.temporal.declarations import keys_at

WORDS = {
    "missing": "required, but missing",
    "string_type": "has to be a text; put it in quotes",
    "bool_type": "has to be true or false",
    "int_type": "has to be a whole number",
    "float_type": "has to be a number",
    "model_type": "has to be a mapping of keys and values",
    "dict_type": "has to be a mapping of keys and values",
    "list_type": "has to be a list, each item after '-'",
    "greater_than": "has to be more than {gt:g}",
    "greater_than_equal": "has to be at least {ge:g}",
    "less_than_equal": "has to be at most {le:g}",
    "string_too_long": "has at most {max_length:,} characters",
    "string_too_short": "must not be empty",
    "too_long": "has at most {max_length:,} of them",
    "too_short": "must not be empty",
}
WITH_SECRETS: Path = ("temporal", "auth")
OTHER_NAMES = {
    "int": "integer",
    "int32": "integer",
    "int64": "integer",
    "long": "integer",
    "float": "number",
    "float32": "number",
    "float64": "number",
    "double": "number",
    "bool": "boolean",
    "str": "string",
    "text": "string",
    "list": "array",
    "slice": "array",
    "map": "object",
    "dict": "object",
    "struct": "object",
}


def problems_of(error: ValidationError, document: Document) -> list[Problem]:
    """In the words of the file. Its model must be `DefinitionsFile`."""
    found = error.errors(include_url=False)
    return [_problem(one, tuple(one["loc"]), document) for one in found]


def _problem(one: Any, place: Path, document: Document) -> Problem:
    if one["type"] == "extra_forbidden":
        return _unknown_key(place, document)
    return Problem(document.line_of(place), name_of(place), _choices(one) or message_of(one))


def message_of(one: Any) -> str:
    """One of pydantic's errors in words that continue a sentence."""
    if words := WORDS.get(one["type"]):
        return words.format(**one.get("ctx", {}))
    message: str = one["msg"].removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _unknown_key(place: Path, document: Document) -> Problem:
    *outer, key = place
    known = keys_at(tuple(outer))
    line = document.line_of(place)
    # Where secrets stand, what looks like a key may be one.
    shown = WITH_SECRETS if place[:2] == WITH_SECRETS else place
    if suggested := suggest(str(key), known):
        return Problem(line, name_of(shown), f"unknown key; did you mean {suggested}?")
    return Problem(line, name_of(shown), f"unknown key; known are {', '.join(known)}")


def _choices(one: Any) -> str:
    if one["type"] != "literal_error":
        return ""
    expected = one["ctx"]["expected"]
    known = [word.strip("'") for word in expected.replace(" or ", ", ").split(", ")]
    given = one["input"]
    suggested = suggest(OTHER_NAMES.get(given, given), known) if isinstance(given, str) else ""
    return f"has to be {expected}" + (f"; did you mean {suggested}?" if suggested else "")


def suggest(word: str, known: list[str]) -> str:
    """The known word that somebody may have meant; empty where none is near."""
    by_letters = {_letters(name): name for name in known}
    near = get_close_matches(_letters(word[:100]), list(by_letters), n=1, cutoff=0.6)
    return by_letters[near[0]] if near else ""


def _letters(word: str) -> str:
    return word.replace("_", "").replace("-", "").lower()
