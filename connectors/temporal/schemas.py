"""Declared fields as JSON Schema, and checks of their bounds, defaults and examples."""

from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs

from connectors.formats.yaml import Path
from connectors.temporal.declarations import FieldDeclaration, Fields, keys_of

Note = Callable[[Path, str], None]
"""Called with the path of a problem and its description."""

NUMERIC = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
KEYWORDS = {
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": NUMERIC,
    "integer": NUMERIC,
    "boolean": set[str](),
    "array": {"items", "minItems", "maxItems", "uniqueItems"},
    "object": {"properties", "additionalProperties"},
}
EVERYWHERE = {"type", "title", "description", "required", "nullable", "default", "enum", "examples"}
COPIED = ("title", "description", "default", "enum", "examples")
BOUNDS = (
    ("minimum", "maximum"),
    ("minimum", "exclusiveMaximum"),
    ("exclusiveMinimum", "maximum"),
    ("exclusiveMinimum", "exclusiveMaximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
)
OPTIONS = jsonschema_rs.RegexOptions(size_limit=1024 * 1024, dfa_size_limit=4 * 1024 * 1024)

Schema = dict[str, Any]


def object_schema(fields: Fields, *, title: str | None, place: Path, note: Note) -> Schema:
    """The schema of a closed object with these fields."""
    properties: dict[str, Schema] = {}
    required = []
    for name, declared, at in _each(fields, place):
        if name in properties:
            note(at, "the field stands twice")
        properties[name] = field_schema(declared, place=at, note=note)
        if _is_required(declared):
            required.append(name)
    schema: Schema = {"title": title} if title else {}
    schema |= {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": required} if required else {})


def field_schema(declared: FieldDeclaration, *, place: Path, note: Note) -> Schema:
    """The declaration's keywords without `required`, which belongs to the parent object."""
    said = _said(declared)
    schema = _type_of(declared) | {name: said[name] for name in COPIED if name in said}
    known = EVERYWHERE.union(*KEYWORDS.values()) if declared.type == "any" else KEYWORDS[declared.type]
    for name in said.keys() - EVERYWHERE:
        if name not in known:
            note((*place, name), f"means nothing for the type {declared.type}")
        elif name not in ("items", "properties"):
            schema[name] = said[name]
    if declared.items is not None:
        schema["items"] = field_schema(declared.items, place=(*place, "items"), note=note)
    if declared.properties is not None:
        schema |= _properties(declared.properties, (*place, "properties"), note)
    _check_bounds(schema, place, note)
    _check_values(schema, place, note)
    return schema


def _each(fields: Fields, place: Path) -> Iterator[tuple[str, FieldDeclaration, Path]]:
    for position, item in enumerate(fields):
        for name, declared in item.items():
            yield name, declared, (*place, position, name)


def _said(declared: FieldDeclaration) -> dict[str, Any]:
    """The declared keywords under the file's keys, without empty ones, except for a default."""
    values = {name: getattr(declared, name) for name in declared.model_fields_set}
    keys = keys_of(FieldDeclaration)
    return {keys[name]: value for name, value in values.items() if value is not None or name == "default"}


def _is_required(declared: FieldDeclaration) -> bool:
    if declared.required is not None:
        return declared.required
    return "default" not in declared.model_fields_set


def _type_of(declared: FieldDeclaration) -> Schema:
    if declared.type == "any":
        return {}
    return {"type": [declared.type, "null"] if declared.nullable else declared.type}


def _properties(properties: dict[str, FieldDeclaration], place: Path, note: Note) -> Schema:
    schemas = {
        name: field_schema(inner, place=(*place, name), note=note) for name, inner in properties.items()
    }
    required = [name for name, inner in properties.items() if _is_required(inner)]
    return {"properties": schemas} | ({"required": required} if required else {})


def _check_bounds(schema: Schema, place: Path, note: Note) -> None:
    """Bounds that exclude every value would make an unusable tool."""
    for lower, upper in BOUNDS:
        if lower not in schema or upper not in schema:
            continue
        is_exclusive = "exclusive" in (lower + upper)
        if schema[lower] > schema[upper] or (is_exclusive and schema[lower] == schema[upper]):
            note((*place, upper), f"leaves no value together with {lower}")


def _check_values(schema: Schema, place: Path, note: Note) -> None:
    """A default, choice or example that its own field refuses would mislead agents."""
    if not schema.keys() & {"pattern", "default", "enum", "examples"}:
        return
    bare = {name: value for name, value in schema.items() if name not in ("default", "examples")}
    try:
        choices = jsonschema_rs.validator_for(_without(bare, "enum"), pattern_options=OPTIONS, offline=True)
        validator = jsonschema_rs.validator_for(bare, pattern_options=OPTIONS, offline=True)
    except (jsonschema_rs.ValidationError, ValueError):
        # Types have been checked already: only the pattern can be unusable.
        if "pattern" in schema:
            note((*place, "pattern"), "is no usable regular expression; look-arounds are not known")
        return
    given = [
        *(((*place, "enum", position), value, choices) for position, value in _listed(schema, "enum")),
        *(
            ((*place, "examples", position), value, validator)
            for position, value in _listed(schema, "examples")
        ),
        *([((*place, "default"), schema["default"], validator)] if "default" in schema else []),
    ]
    for at, value, fits in given:
        if not fits.is_valid(value):
            note(at, "does not fit the field itself")


def _listed(schema: Schema, name: str) -> Iterator[tuple[int, Any]]:
    return enumerate(schema.get(name, []))


def _without(schema: Schema, name: str) -> Schema:
    return {key: value for key, value in schema.items() if key != name}
