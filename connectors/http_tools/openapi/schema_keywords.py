"""One schema object of OpenAPI as one of JSON Schema 2020-12, keyword by keyword."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from connectors.formats.json_schema import pointer_of
from connectors.http_tools.openapi.document import Document
from connectors.http_tools.openapi.document_text import Ambiguous
from connectors.http_tools.openapi.loosening import loosen
from connectors.http_tools.openapi.nullable import accept_null
from connectors.http_tools.openapi.refusals import NoTool, quoted

MAX_PARTS = 5_000
MAX_DEPTH = 60
LONGEST_EXAMPLE = 100
MAX_LOOKED_AT = 50
"""Parts of a schema that are looked at for what it says of itself."""

ONE = frozenset(
    {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"}
    | {"unevaluatedItems", "unevaluatedProperties", "contentSchema"}
)
"""Keywords with a schema."""
SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
"""Keywords with a list of them."""
NAMED = frozenset({"properties", "patternProperties", "dependentSchemas"})
"""Keywords with schemas by names."""
BOUNDS = frozenset(
    {"pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minContains", "maxContains"}
    | {"minProperties", "maxProperties", "dependentRequired", "contentEncoding", "contentMediaType"}
)
KEPT = BOUNDS | {"type", "enum", "const", "default", "title", "description", "required", "deprecated"}
"""Keywords that are taken as they are; every other one is dropped."""
DYNAMIC = frozenset({"$dynamicRef", "$recursiveRef"})
REFERENCES = DYNAMIC | {"$ref"}
FLAGS = {"request": "readOnly", "response": "writeOnly"}


@dataclass(slots=True)
class Reading:
    """What is gathered while one schema is converted."""

    document: Document
    direction: str
    usable_pattern: Callable[[str], bool]
    name_of: Callable[[str], str]
    """Of the definition at a pointer."""
    needs: set[str] = field(default_factory=set)
    """Pointers of definitions."""
    anchors: dict[str, str] = field(default_factory=dict)
    """Pointers of the schemas that a dynamic reference may mean, by anchor; that of 2019-09 has no name."""
    parts: int = 0


def convert(raw: Any, pointer: str, reading: Reading, depth: int = 0) -> Any:
    """Raises NoTool for what cannot be said, or for too much of it."""
    reading.parts += 1
    if reading.parts > MAX_PARTS or depth > MAX_DEPTH:
        raise NoTool(f"Its schema has more than {MAX_PARTS:,} parts or {MAX_DEPTH} levels.", pointer)
    if isinstance(raw, bool):
        return raw
    if raw is None:
        raise NoTool("Its schema is null. For anything at all leave the key out, or write {}.", pointer)
    if not isinstance(raw, dict):
        raise NoTool("There is something else where a schema has to be.", pointer)
    if isinstance(raw, Ambiguous):
        raise NoTool(f"The key {quoted(raw.key)} stands twice in one object.", pointer)
    _note_anchors(raw, pointer, reading)
    if "$ref" in raw:
        _, target = reading.document.follow(raw["$ref"], pointer)
        return _reference(raw, target, pointer, reading, depth)
    if DYNAMIC & raw.keys():
        return _reference(raw, _dynamic_target(raw, pointer, reading), pointer, reading, depth)
    return _keywords(raw, pointer, reading, depth)


def _note_anchors(raw: dict[str, Any], pointer: str, reading: Reading) -> None:
    """The outermost schema of a name is the one that counts."""
    if raw.get("$recursiveAnchor") is True:
        reading.anchors.setdefault("", pointer)
    if isinstance(name := raw.get("$dynamicAnchor"), str):
        reading.anchors.setdefault(name, pointer)


def _dynamic_target(raw: dict[str, Any], pointer: str, reading: Reading) -> str:
    """Only within the same definition; where it may be any other one, nothing can be said."""
    named = raw.get("$dynamicRef", raw.get("$recursiveRef"))
    target = reading.anchors.get(named.removeprefix("#")) if isinstance(named, str) else None
    if target is None:
        raise NoTool("Its schema has a dynamic reference that leads out of its definition.", pointer)
    return target


def _reference(raw: dict[str, Any], target: str, pointer: str, reading: Reading, depth: int) -> Any:
    reading.needs.add(target)
    reference = {"$ref": f"#/$defs/{reading.name_of(target)}"}
    if reading.document.minor == 0:
        # 3.0 ignores what stands beside a reference; a description does no harm, and many write one.
        said = raw.get("description")
        return reference | ({"description": said} if isinstance(said, str) else {})
    beside = {key: value for key, value in raw.items() if key not in REFERENCES}
    return _keywords(beside, pointer, reading, depth) | reference


def _keywords(raw: dict[str, Any], pointer: str, reading: Reading, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for key, value in raw.items():
        at = f"{pointer}{pointer_of([key])}"
        if key in NAMED:
            schema[key] = _named(value, at, reading, depth, leave_out=key == "properties")
        elif key in SEVERAL or (key == "items" and isinstance(value, list)):
            # Lists of items were said by `items` before 2020-12.
            schema["prefixItems" if key == "items" else key] = _several(value, at, reading, depth)
        elif key in ONE:
            schema[key] = convert(value, at, reading, depth + 1)
        elif key in KEPT:
            schema[key] = value
    _mend(schema, raw, pointer, reading)
    schema = accept_null(schema, raw)
    return schema if reading.direction == "request" else loosen(schema)


def _several(raw: Any, pointer: str, reading: Reading, depth: int) -> list[Any]:
    if not isinstance(raw, list):
        raise NoTool("There is something else where a list of schemas has to be.", pointer)
    return [convert(one, f"{pointer}/{position}", reading, depth + 1) for position, one in enumerate(raw)]


def _named(raw: Any, pointer: str, reading: Reading, depth: int, *, leave_out: bool) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise NoTool("There is something else where schemas by their names have to be.", pointer)
    if isinstance(raw, Ambiguous):
        raise NoTool(f"The key {quoted(raw.key)} stands twice in one object.", pointer)
    return {
        name: convert(value, f"{pointer}{pointer_of([name])}", reading, depth + 1)
        for name, value in raw.items()
        if not (leave_out and is_left_out(reading.document, value, pointer, reading.direction))
    }


def is_left_out(document: Document, schema: Any, pointer: str, direction: str) -> bool:
    """Whether a property is none of what goes in this direction, by itself or by what it refers to."""
    flag, waiting, seen = FLAGS[direction], [schema], 0
    while waiting and seen < MAX_LOOKED_AT:
        raw, seen = waiting.pop(), seen + 1
        if not isinstance(raw, dict):
            continue
        if raw.get(flag) is True:
            return True
        if isinstance(parts := raw.get("allOf"), list):
            waiting += parts
        if "$ref" in raw:
            # One that leads nowhere is told where the schema itself is read.
            with suppress(NoTool):
                waiting.append(document.follow(raw["$ref"], pointer)[0])
    return False


def _mend(schema: dict[str, Any], raw: dict[str, Any], pointer: str, reading: Reading) -> None:
    """What 3.0 says differently, and what documents often get wrong without meaning harm."""
    _mend_required(schema, raw, pointer, reading)
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(flag := schema.get(exclusive), bool):
            del schema[exclusive]
            if flag and bound in schema:
                schema[exclusive] = schema.pop(bound)
    if isinstance(pattern := schema.get("pattern"), str) and not reading.usable_pattern(pattern):
        del schema["pattern"]
    if (example := _example(raw)) is not None:
        schema["examples"] = [example]


def _mend_required(schema: dict[str, Any], raw: dict[str, Any], pointer: str, reading: Reading) -> None:
    required, properties = schema.get("required"), raw.get("properties")
    if required is None:
        return
    if not isinstance(required, list):
        # `required: true` at the property itself is how Swagger 1 said it.
        del schema["required"]
        return
    if isinstance(properties, dict):
        left_out = {
            name
            for name in properties.keys() - schema.get("properties", {}).keys()
            if is_left_out(reading.document, properties[name], pointer, reading.direction)
        }
        schema["required"] = [name for name in dict.fromkeys(map(str, required)) if name not in left_out]
    if not schema["required"]:
        del schema["required"]


def _example(raw: dict[str, Any]) -> Any:
    """A short one, which tells more than a format does."""
    examples = raw.get("examples")
    example = examples[0] if isinstance(examples, list) and examples else raw.get("example")
    fits = isinstance(example, str | int | float) and not isinstance(example, bool)
    return example if fits and len(str(example)) <= LONGEST_EXAMPLE else None
