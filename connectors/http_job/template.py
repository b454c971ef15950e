"""Placeholders such as `{run_id}` in the strings of a declared request."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from connectors.errors import Rejected
from connectors.network.headers import objection_to_value

PART = re.compile(r"(\{\{|\}\})|\{([a-z_][a-z0-9_]*(?:\.[^{}\s]+)?)\}")
"""A doubled brace is a literal one."""
WHOLE = re.compile(r"\{([a-z_][a-z0-9_]*(?:\.[^{}\s]+)?)\}")
ARGUMENT = "arguments."
EACH = ("argument.name", "argument.value")
"""In an item of a list, which is repeated for each argument."""
MEMBER = "{argument.name}"
"""As a key: the member is repeated for each argument."""
MISSING: Any = object()
"""The value of an argument that the caller left out."""
EMPTY = (MISSING, None, "")


def placeholders_in(value: Any, *, in_lists: bool = True, in_members: bool = True) -> Iterator[str]:
    """`in_members`: also in members that are repeated for each argument."""
    match value:
        case str():
            yield from (name for _, name in PART.findall(value) if name)
        case dict():
            for key, inner in value.items():
                if key != MEMBER or in_members:
                    yield from (EACH[0],) if key == MEMBER else ()
                    yield from placeholders_in(inner, in_lists=in_lists, in_members=in_members)
        case list() if in_lists:
            for inner in value:
                yield from placeholders_in(inner, in_lists=in_lists, in_members=in_members)


def unknown_placeholder(value: Any, known: Collection[str]) -> str:
    """The first placeholder that is not known; empty if all are."""
    for name in placeholders_in(value):
        if name not in known and not ((name.startswith(ARGUMENT) or name in EACH) and "arguments" in known):
            return name
    return ""


def fill_json(value: Any, names: Mapping[str, Any]) -> Any:
    """A string that consists of one placeholder takes the type of its value. Members with a missing argument
    are left out."""
    match value:
        case str():
            whole = WHOLE.fullmatch(value)
            return _value_of(whole[1], names) if whole else _fill_text(value, names, _plain)
        case dict():
            filled = dict(member for pair in value.items() for member in _fill_member(*pair, names))
            return {key: inner for key, inner in filled.items() if inner is not MISSING}
        case list():
            items = []
            for item in value:
                is_repeated = not {*EACH}.isdisjoint(placeholders_in(item, in_members=False))
                items += [
                    fill_json(item, known) for known in (_each_argument(names) if is_repeated else [names])
                ]
            return [item for item in items if item is not MISSING]
    return value


def _fill_member(key: str, value: Any, names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if key != MEMBER:
        yield key, fill_json(value, names)
        return
    for argument in _each_argument(names):
        yield argument[EACH[0]], fill_json(value, argument)


def _each_argument(names: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for argument in names["arguments"].items():
        yield {**names, **dict(zip(EACH, argument, strict=True))}


def fill_path(path: str, names: Mapping[str, Any]) -> str:
    """Fills in percent-encoded values. Raises Rejected for a value that changes the path."""
    path, question, query = path.partition("?")
    return _fill_text(path, names, _path_step) + question + _fill_text(query, names, _encoded)


def fill_pairs(pairs: Mapping[str, Any], names: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns pairs for a query or a form, not yet encoded."""
    return to_pairs(fill_json(dict(pairs), names))


def to_pairs(given: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Values that are missing, null or empty are left out."""
    listed = ((name, value if isinstance(value, list) else [value]) for name, value in given.items())
    return [
        (name, _text_of(name, one))
        for name, values in listed
        for one in values
        if one is not MISSING and one is not None and one != ""
    ]


def fill_headers(headers: Mapping[str, str], names: Mapping[str, Any]) -> dict[str, str]:
    """A header whose placeholders are all empty is left out. Raises Rejected for a value that HTTP does not
    allow."""
    filled = {}
    for name, template in headers.items():
        used = set(placeholders_in(template))
        if used and all(_value_of(one, names) in EMPTY for one in used):
            continue
        filled[name] = _fill_text(template, names, _plain)
        if why := objection_to_value(filled[name]):
            raise Rejected(f"The value of the header {name} {why}. Nothing was sent.")
    return filled


def _fill_text(template: str, names: Mapping[str, Any], write: Callable[[str, Any], str]) -> str:
    def fill(found: re.Match[str]) -> str:
        return found[1][0] if found[1] else write(found[2], _value_of(found[2], names))

    return PART.sub(fill, template)


def _value_of(name: str, names: Mapping[str, Any]) -> Any:
    if name.startswith(ARGUMENT):
        return names["arguments"].get(name.removeprefix(ARGUMENT), MISSING)
    return names[name]


def _plain(name: str, value: Any) -> str:
    return _text_of(name, "" if value is MISSING or value is None else value)


def _encoded(name: str, value: Any) -> str:
    return quote(_plain(name, value), safe="")


def _path_step(name: str, value: Any) -> str:
    text = _plain(name, value)
    # Proxies resolve these even when they are percent-encoded, and so would reach another path.
    if text in ("", ".", "..") or not text.isprintable() or "\\" in text:
        raise Rejected(f"{text!r} cannot be used as {name} in the engine's address. Nothing was sent.")
    return quote(text, safe="")


def _text_of(name: str, value: Any) -> str:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
    raise Rejected(f"{name} must not be a list or an object here. Nothing was sent.")
