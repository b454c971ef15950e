"""The body of a request that somebody else wrote."""

import json
from typing import Any

from connectors.errors import Rejected
from connectors.formats.json import UnreadableJSON, parse_json
from connectors.formats.json_schema import pointer_of, references_within, steps_of, types_of
from connectors.http_tools.reading_pairs import read_pairs
from connectors.http_tools.reading_values import argument_of
from connectors.http_tools.refusing import NotThisTool, listed, shown
from connectors.http_tools.request import NoText, form_name, form_pairs, scalars_of
from connectors.http_tools.tool import HttpOperation

NOTHING: tuple[Any, ...] = (None, {}, "")
Tree = dict[str, Any]
"""By field: another tree, or the pointer of what stands there."""


def read_body(operation: HttpOperation, body: Any, input_schema: dict[str, Any]) -> dict[str, Any]:
    """The arguments in the body."""
    arguments = {place.name: name for name, place in operation.arguments.items() if place.place == "body"}
    constants = {
        constant.name: constant.value for constant in operation.constants if constant.place == "body"
    }
    if "" in arguments:
        return _whole(arguments[""], body, input_schema)
    pointers = [*arguments, *constants]
    is_form_text = operation.body_format == "form" and isinstance(body, str) and not body.startswith("{")
    fields = _form_fields(body, pointers) if is_form_text else _fields(body, pointers)
    for pointer in fields.keys() & constants.keys():
        if not _is_same(operation, fields[pointer], constants[pointer]):
            raise NotThisTool(f"{shown(pointer)} in the body always has the value that the tool gives it.")
    return {
        argument: _value(operation, argument, fields[pointer], input_schema)
        for pointer, argument in arguments.items()
        if pointer in fields
    }


def _whole(argument: str, body: Any, input_schema: dict[str, Any]) -> dict[str, Any]:
    if body is None:
        return {}
    types = types_of(input_schema.get("properties", {}).get(argument), references_within(input_schema))
    return {argument: _unquoted(body) if isinstance(body, str) and types and "string" not in types else body}


def _fields(body: Any, pointers: list[str]) -> dict[str, Any]:
    """What stands at the pointers, as far as it is given."""
    body = {} if body in NOTHING else _unquoted(body) if isinstance(body, str) else body
    if not isinstance(body, dict):
        raise NotThisTool("The body is no object with the tool's fields.")
    found: dict[str, Any] = {}
    if strangers := _take(body, _tree(pointers), (), found):
        where = "The tool's body has no" if pointers else "The tool sends no body, so it has no"
        raise NotThisTool(f"{where} {listed(strangers)}.")
    return found


def _form_fields(text: str, pointers: list[str]) -> dict[str, Any]:
    """The same of a form as it is sent; objects that are arguments are not put together again."""
    names = {form_name(steps_of(pointer)): pointer for pointer in pointers}
    pairs = read_pairs(text, "The form")
    if strangers := pairs.keys() - names.keys():
        raise NotThisTool(f"The tool's form has no {listed(strangers)}.")
    return {names[name]: value for name, value in pairs.items()}


def _tree(pointers: list[str]) -> Tree:
    tree: Tree = {}
    for pointer in pointers:
        *outer, last = steps_of(pointer)
        inner = tree
        for step in outer:
            inner = inner.setdefault(step, {})
        inner[last] = pointer
    return tree


def _take(body: dict[str, Any], tree: Tree, steps: tuple[str, ...], found: dict[str, Any]) -> list[str]:
    """Fills `found`; the pointers of what has no place in the tree."""
    strangers = []
    for name, value in body.items():
        match tree.get(name), value:
            case str() as pointer, _:
                found[pointer] = value
            case dict() as inner, dict():
                strangers += _take(value, inner, (*steps, name), found)
            case _:
                strangers.append(pointer_of([*steps, name]))
    return strangers


def _value(operation: HttpOperation, argument: str, value: Any, input_schema: dict[str, Any]) -> Any:
    """A form knows only texts; JSON says itself of which type a value is."""
    if operation.body_format == "json" or isinstance(value, dict):
        return value
    try:
        place = operation.arguments[argument]
        return argument_of(argument, place, scalars_of(value), input_schema, commas=False)
    except NoText:
        return value


def _unquoted(text: str) -> Any:
    """JSON that was written as a text."""
    try:
        return parse_json(text.encode("utf-8", "replace"))
    except UnreadableJSON:
        raise NotThisTool("The body is a text, and not one of JSON.") from None


def _is_same(operation: HttpOperation, said: Any, constant: Any) -> bool:
    # Not by comparison: to Python, 1 and True are the same.
    if operation.body_format == "json":
        return json.dumps(said, sort_keys=True) == json.dumps(constant, sort_keys=True)
    try:
        return form_pairs({"": said}) == form_pairs({"": constant})
    except Rejected:
        return False
