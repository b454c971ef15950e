"""Messages for mistakes in a file that a pydantic model describes."""

from difflib import get_close_matches
from typing import Any

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


def message_of(one: Any, *, other_names: dict[str, str] | None = None) -> str:
    """One of pydantic's errors as a clause. `other_names`: what people write for one of several choices."""
    if one["type"] == "literal_error":
        return _choices(one, other_names or {})
    if words := WORDS.get(one["type"]):
        return words.format(**one.get("ctx", {}))
    message: str = one["msg"].removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _choices(one: Any, other_names: dict[str, str]) -> str:
    expected = one["ctx"]["expected"]
    known = [word.strip("'") for word in expected.replace(" or ", ", ").split(", ")]
    given = one.get("input")
    suggested = suggest(other_names.get(given, given), known) if isinstance(given, str) else ""
    return f"has to be {expected}" + (f"; did you mean {suggested}?" if suggested else "")


def unknown_key(key: str, known: list[str]) -> str:
    if suggested := suggest(key, known):
        return f"unknown key; did you mean {suggested}?"
    return f"unknown key; known are {', '.join(known)}"


def suggest(word: str, known: list[str]) -> str:
    """The closest known word, or empty."""
    by_letters = {_bare_letters(name): name for name in known}
    near = get_close_matches(_bare_letters(word[:100]), list(by_letters), n=1, cutoff=0.6)
    return by_letters[near[0]] if near else ""


def _bare_letters(word: str) -> str:
    return word.replace("_", "").replace("-", "").lower()
