"""A document's schemas as JSON Schema 2020-12 with their own definitions."""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

from connectors.formats.json import UnreadableJSON, as_object, parse_json, write_json
from connectors.formats.json_schema import JSON_TYPES, pointer_of
from connectors.http_tools.openapi.document import (
    Document,
    MissingTarget,
    NoTool,
    checked_object,
    note_on_missing,
)

KEPT_IN_RESPONSES = frozenset(
    {"type", "properties", "items", "allOf", "anyOf", "$ref", "title", "description", "default", "examples"}
)
SHOWN_VALUES = 10
CHOICES = ("anyOf", "oneOf")
INNER = ("items", "additionalProperties")
NULLABLE = "x-nullable"  # Of Swagger 2.0, which had no `nullable`
MAX_PARTS = 20_000  # Subschemas of a schema with all its definitions; the catalogue's limit
MAX_DEPTH = 60
LONGEST_EXAMPLE = 100
MAX_LOOKED_AT = 50  # Subschemas inspected for one property
ONE = frozenset(
    {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"}
    | {"unevaluatedItems", "unevaluatedProperties", "contentSchema"}
)
SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
NAMED = frozenset({"properties", "patternProperties", "dependentSchemas"})
BOUNDS = frozenset(
    {"pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minContains", "maxContains"}
    | {"minProperties", "maxProperties", "dependentRequired", "contentEncoding", "contentMediaType"}
)
KEPT = BOUNDS | {"type", "enum", "const", "default", "title", "description", "required", "deprecated"}
"""Keywords kept as they are; all others are dropped."""
DYNAMIC = frozenset({"$dynamicRef", "$recursiveRef"})
REFERENCES = DYNAMIC | {"$ref"}
EXCLUSIVE = (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
MENDED = frozenset({"required", "exclusiveMinimum", "exclusiveMaximum", "pattern", "examples", "example"})
NO_JAVASCRIPT = re.compile(r"(?<!\\)(?:\\\\)*(?:\(\?(?:-?[A-Za-z][A-Za-z-]*[:)]|P[<=>]|[>#])|\\[AZzG])")
"""Flags such as `(?i)`, groups of Python and Java, and anchors of Ruby, which JavaScript does not have."""
FLAGS = {"request": "readOnly", "response": "writeOnly"}
LONGEST_NAME = 60
SPELT = {"True": "true", "False": "false"}
TYPES = (*JSON_TYPES.values(),)
Schema = dict[str, Any]
Direction = Literal["request", "response"]


def spelt_out(types: Any) -> Any:
    """The value of `type`. In YAML, `[array, null]` has no text "null", but null itself."""
    return ["null" if one is None else one for one in types] if isinstance(types, list) else types


def accept_null(schema: dict[str, Any], raw: dict[str, Any]) -> dict[str, Any]:
    """The schema, which allows null if `raw` does."""
    if raw.get("nullable", raw.get(NULLABLE)) is not True:
        return schema
    if isinstance(schema.get("type"), str) and not schema.keys() & {"allOf", "anyOf", "oneOf", "const"}:
        if isinstance(values := schema.get("enum"), list) and None not in values:
            schema = schema | {"enum": [*values, None]}
        return schema | {"type": [schema["type"], "null"]}
    if "type" not in schema and not schema.keys() & {"allOf", "anyOf", "oneOf", "enum", "const", "not"}:
        return schema
    annotations = {
        key: schema[key] for key in ("title", "description", "default", "deprecated") if key in schema
    }
    kept = {key: value for key, value in schema.items() if key not in annotations}
    return annotations | {"anyOf": [kept, {"type": "null"}]}


def response_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The names and types of a response's fields, each of which may be missing or null. MCP clients treat a
    result that violates its output schema as a failure, and few APIs respond exactly as documented: fields
    are missing or null, and enumerations have new values."""
    loose = {key: value for key, value in schema.items() if key in KEPT_IN_RESPONSES}
    if isinstance(extra := schema.get("additionalProperties"), dict):
        loose["additionalProperties"] = extra
    if "anyOf" not in loose and isinstance(choices := schema.get("oneOf"), list):
        loose["anyOf"] = choices
    if isinstance(values := schema.get("enum"), list):
        loose["examples"] = [value for value in values if value is not None][:SHOWN_VALUES]
    if isinstance(named := schema.get("type"), str) and named != "null":
        loose["type"] = [named, "null"]
    return loose


def strip_null(schema: Any) -> Any:
    """Without null at every depth; a schema of null alone stays, and so do references."""
    if not isinstance(schema, dict):
        return schema
    stripped = {key: value for key, value in schema.items() if not (key == "default" and value is None)}
    stripped |= {key: strip_null(stripped[key]) for key in INNER if key in stripped}
    if isinstance(fields := stripped.get("properties"), dict):
        stripped["properties"] = {name: strip_null(field) for name, field in fields.items()}
    if isinstance(parts := stripped.get("allOf"), list):
        stripped["allOf"] = [strip_null(part) for part in parts]
    for word in CHOICES:
        stripped = _without_choice(stripped, word)
    return _without_type(stripped)


def _without_type(schema: dict[str, Any]) -> dict[str, Any]:
    stripped = dict(schema)
    if isinstance(types := schema.get("type"), list) and (left := [one for one in types if one != "null"]):
        stripped["type"] = left[0] if len(left) == 1 else left
    if isinstance(values := schema.get("enum"), list) and (
        some := [one for one in values if one is not None]
    ):
        stripped["enum"] = some
    return stripped


def _without_choice(schema: dict[str, Any], word: str) -> dict[str, Any]:
    choices = schema.get(word)
    if not isinstance(choices, list):
        return schema
    left = [
        strip_null(choice)
        for choice in choices
        if not (isinstance(choice, dict) and choice.get("type") in ("null", ["null"]))
    ]
    if not left:
        return schema
    beside = {key: value for key, value in schema.items() if key != word}
    # Models read a plain schema better than a single choice.
    if len(left) == 1 and isinstance(left[0], dict) and beside.keys() <= {"title", "description", "examples"}:
        return left[0] | beside
    return beside | {word: left}


def size_of(schema: Any) -> int:
    """Characters."""
    return len(write_json(schema))


@dataclass(slots=True)
class Conversion:
    document: Document
    direction: str
    usable_pattern: Callable[[str], bool]
    name_of: Callable[[str], str]  # Of the definition at a pointer
    needs: set[str] = field(default_factory=set)
    anchors: dict[str, str] = field(default_factory=dict)
    """Pointers of possible targets of dynamic references, by anchor; in 2019-09 without a name."""
    parts: int = 0


def convert_schema(raw: Any, pointer: str, reading: Conversion, depth: int = 0) -> Any:
    """Raises NoTool for a schema that is too large or cannot be converted."""
    reading.parts += 1
    if reading.parts > MAX_PARTS or depth > MAX_DEPTH:
        raise NoTool(f"Its schema has more than {MAX_PARTS:,} parts or {MAX_DEPTH} levels.", pointer)
    if isinstance(raw, bool):
        return raw
    if raw is None:
        raise NoTool("Its schema is null. To allow any value, omit the key or use {}.", pointer)
    if checked_object(raw, pointer, "A schema").get("$recursiveAnchor") is True:
        reading.anchors.setdefault("", pointer)
    if isinstance(name := raw.get("$dynamicAnchor"), str):
        reading.anchors.setdefault(name, pointer)
    if "$ref" in raw:
        return _reference(raw, _target_of(raw, pointer, reading), pointer, reading, depth)
    if DYNAMIC & raw.keys():
        return _reference(raw, _dynamic_target(raw, pointer, reading), pointer, reading, depth)
    return _keywords(raw, pointer, reading, depth)


def _target_of(raw: dict[str, Any], pointer: str, reading: Conversion) -> str:
    try:
        return reading.document.follow(raw["$ref"], pointer)[1]
    except MissingTarget as missing:
        return missing.target  # Its definition accepts any value.


def _dynamic_target(raw: dict[str, Any], pointer: str, reading: Conversion) -> str:
    """Only within the same definition; a reference to any other has no fixed target."""
    named = raw.get("$dynamicRef", raw.get("$recursiveRef"))
    target = reading.anchors.get(named.removeprefix("#")) if isinstance(named, str) else None
    if target is None:
        raise NoTool("Its schema has a dynamic reference that points outside its definition.", pointer)
    return target


def _reference(raw: dict[str, Any], target: str, pointer: str, reading: Conversion, depth: int) -> Any:
    reading.needs.add(target)
    reference = {"$ref": f"#/$defs/{reading.name_of(target)}"}
    if reading.document.minor == 0:
        # 3.0 ignores everything beside a reference; a description is common and harmless.
        said = raw.get("description")
        return reference | ({"description": said} if isinstance(said, str) else {})
    beside = {key: value for key, value in raw.items() if key not in REFERENCES}
    return _keywords(beside, pointer, reading, depth) | reference


def _keywords(raw: dict[str, Any], pointer: str, reading: Conversion, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for key, value in raw.items():
        if key in KEPT:
            schema[key] = spelt_out(value) if key == "type" else value
        elif key in NAMED:
            schema[key] = _named(value, f"{pointer}/{key}", reading, depth, leave_out=key == "properties")
        elif key in SEVERAL or (key == "items" and isinstance(value, list)):
            # Before 2020-12, `items` also held lists.
            several = _several(value, f"{pointer}/{key}", reading, depth)
            schema["prefixItems" if key == "items" else key] = several
        elif key in ONE:
            schema[key] = convert_schema(value, f"{pointer}/{key}", reading, depth + 1)
    if not MENDED.isdisjoint(raw):
        _mend(schema, raw, pointer, reading)
    if "discriminator" in raw and "oneOf" in schema and "anyOf" not in schema:
        schema["anyOf"] = schema.pop("oneOf")
        _tell_apart(schema["anyOf"], raw, pointer, reading)
    schema = _with_fitting_default(accept_null(_with_items(_with_known_type(schema)), raw))
    return schema if reading.direction == "request" else response_schema(schema)


def _with_known_type(schema: dict[str, Any]) -> dict[str, Any]:
    """Without a `type` such as `date-time` or `int`: documents often have a format or a word of a programming
    language there. The API decides which values it accepts."""
    types = schema.get("type")
    if types is None or all(one in TYPES for one in (types if isinstance(types, list) else [types])):
        return schema
    return {key: value for key, value in schema.items() if key != "type"}


def _with_fitting_default(schema: dict[str, Any]) -> dict[str, Any]:
    """Documents often have `default: "false"` for a boolean, or `default: 10` for a string."""
    types = schema.get("type")
    types = types if isinstance(types, list) else [types]
    if "default" not in schema or types == [None] or _fits(schema["default"], types):
        return schema
    value = schema["default"]
    other: Any = None
    if isinstance(value, str):
        with suppress(UnreadableJSON):
            other = parse_json(SPELT.get(value, value).encode())
    elif isinstance(value, bool | int):
        other = write_json(value)
    rest = {key: value for key, value in schema.items() if key != "default"}
    return rest | {"default": other} if other is not None and _fits(other, types) else rest


def _fits(value: Any, types: list[Any]) -> bool:
    is_whole = isinstance(value, float) and value.is_integer()
    return JSON_TYPES[type(value)] in types or (
        not isinstance(value, bool)
        and ("number" in types if isinstance(value, int) else "integer" in types and is_whole)
    )


def _with_items(schema: dict[str, Any]) -> dict[str, Any]:
    """Model APIs refuse lists that do not describe their items."""
    types = schema.get("type")
    is_list = "array" in (types if isinstance(types, list) else [types])
    return schema | {"items": {}} if is_list and not schema.keys() & {"items", "prefixItems"} else schema


def _tell_apart(alternatives: list[Any], raw: dict[str, Any], pointer: str, reading: Conversion) -> None:
    """Adds each alternative's values of the discriminating property, if the mapping has them. Alternatives
    often describe each other's objects, so `oneOf` would refuse values that the API accepts."""
    said = as_object(raw["discriminator"])
    name, mapping = said.get("propertyName"), said.get("mapping")
    if not isinstance(name, str) or not isinstance(mapping, dict) or reading.direction == "response":
        return
    values: dict[str, list[str]] = {}
    for value, target in mapping.items():
        reference = str(target) if "/" in str(target) else f"#/components/schemas/{target}"
        values.setdefault(reference, []).append(value)
    for alternative, one in zip(alternatives, raw["oneOf"], strict=True):
        own = values.get(one.get("$ref", "")) if isinstance(one, dict) else None
        if own and not _names_itself(one, name, pointer, reading):
            alternative["properties"] = alternative.get("properties", {}) | {name: {"enum": own}}


def _names_itself(reference: dict[str, Any], name: str, pointer: str, reading: Conversion) -> bool:
    try:
        target, _ = reading.document.object_at(reference, pointer)
    except MissingTarget:
        return True  # It accepts any value.
    properties = target.get("properties")
    own = properties.get(name) if isinstance(properties, dict) else None
    return isinstance(own, dict) and not {"const", "enum"}.isdisjoint(own)


def _several(raw: Any, pointer: str, reading: Conversion, depth: int) -> list[Any]:
    if not isinstance(raw, list):
        raise NoTool("A list of schemas is required here.", pointer)
    return [
        convert_schema(one, f"{pointer}/{position}", reading, depth + 1) for position, one in enumerate(raw)
    ]


def _named(raw: Any, pointer: str, reading: Conversion, depth: int, *, leave_out: bool) -> dict[str, Any]:
    return {
        name: convert_schema(value, f"{pointer}{pointer_of([name])}", reading, depth + 1)
        for name, value in checked_object(raw, pointer, "An object with named schemas").items()
        if not (leave_out and is_left_out(reading.document, value, pointer, reading.direction))
    }


def is_left_out(document: Document, schema: Any, pointer: str, direction: str) -> bool:
    """Whether a property, or its reference, is only for the other direction."""
    flag = FLAGS[direction]
    if isinstance(schema, dict) and not (flag in schema or "allOf" in schema or "$ref" in schema):
        return False  # As most are
    waiting, seen = [schema], 0
    while waiting and seen < MAX_LOOKED_AT:
        raw, seen = waiting.pop(), seen + 1
        if not isinstance(raw, dict):
            continue
        if raw.get(flag) is True:
            return True
        if isinstance(parts := raw.get("allOf"), list):
            waiting += parts
        if "$ref" in raw:
            # A broken reference is reported where the schema itself is converted.
            with suppress(NoTool):
                waiting.append(document.follow(raw["$ref"], pointer)[0])
    return False


def _mend(schema: dict[str, Any], raw: dict[str, Any], pointer: str, reading: Conversion) -> None:
    """Differences of 3.0, and common harmless mistakes."""
    _mend_required(schema, raw, pointer, reading)
    for bound, exclusive in EXCLUSIVE:
        if isinstance(flag := schema.get(exclusive), bool):
            del schema[exclusive]
            if flag and bound in schema:
                schema[exclusive] = schema.pop(bound)
    if isinstance(pattern := schema.get("pattern"), str) and not _is_for_all(pattern, reading):
        del schema["pattern"]
    examples = raw.get("examples")
    example = examples[0] if isinstance(examples, list) and examples else raw.get("example")
    fits = isinstance(example, str | int | float) and not isinstance(example, bool)
    if fits and len(str(example)) <= LONGEST_EXAMPLE:
        schema["examples"] = [example]


def _is_for_all(pattern: str, reading: Conversion) -> bool:
    """Clients compile the patterns of a tool as JavaScript, and drop the tool if they cannot."""
    return not NO_JAVASCRIPT.search(pattern) and reading.usable_pattern(pattern)


def _mend_required(schema: dict[str, Any], raw: dict[str, Any], pointer: str, reading: Conversion) -> None:
    required, properties = schema.get("required"), raw.get("properties")
    if required is None:
        return
    if not isinstance(required, list):
        # Swagger 1 had `required: true` at the property itself.
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


@dataclass(frozen=True, slots=True)
class Converted:
    """A schema that refers to definitions by their pointers."""

    schema: Any
    needs: frozenset[str]  # Pointers of its own references
    parts: int


@dataclass(slots=True)
class Schemas:
    """Converts a document's schemas, each definition once for all operations."""

    document: Document
    direction: Direction  # Requests lack read-only properties, responses write-only ones
    usable_pattern: Callable[[str], bool]
    answers: dict[str, Schema | None] = field(default_factory=dict)
    """By pointer: a response that operations share is converted once. None: not an object, or too large."""
    _definitions: dict[str, Converted | NoTool] = field(default_factory=dict)
    _missing: set[str] = field(default_factory=set)  # Pointers of definitions that do not exist
    _sizes: dict[str, int] = field(default_factory=dict)  # Of definitions, by name
    _names: dict[str, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def convert(self, raw: Any, pointer: str) -> Converted:
        """One schema, references kept. Raises NoTool."""
        reading = Conversion(self.document, self.direction, self.usable_pattern, self._name_of)
        schema = convert_schema(raw, pointer, reading)
        return Converted(schema, frozenset(reading.needs), reading.parts)

    def convert_text(self, raw: Any, pointer: str) -> Converted:
        """For values that are written as text, so null is not allowed. Raises NoTool."""
        converted = self.convert(raw, pointer)
        if isinstance(converted.schema, dict) and "$ref" in converted.schema:
            # The definition is shared with JSON bodies; where it allows null, this argument has a copy.
            target = self.convert(*self.document.object_at(raw, pointer))
            if (plain := strip_null(target.schema)) == target.schema:
                return converted
            beside = {key: value for key, value in converted.schema.items() if key != "$ref"}
            return Converted(plain | beside, target.needs, target.parts)
        return Converted(strip_null(converted.schema), converted.needs, converted.parts)

    def definitions_for(self, needs: frozenset[str], *, parts: int, notes: list[str] | None = None) -> Schema:
        """`$defs` of everything reachable; `parts`: of the schema that refers to it. Adds to `notes` what
        does not exist. Raises NoTool."""
        found: Schema = {}
        sizes: dict[str, int] = {}
        waiting = sorted(needs, reverse=True)
        while waiting:
            pointer = waiting.pop()
            if (name := self._name_of(pointer)) in found:
                continue
            definition = self._definition(pointer)
            found[name] = definition.schema
            if notes is not None and pointer in self._missing:
                notes.append(note_on_missing(pointer))
            parts, sizes[pointer] = parts + definition.parts, definition.parts
            if parts > MAX_PARTS:
                raise NoTool(
                    f"Its schema has more than {MAX_PARTS:,} parts, including everything that it refers to, "
                    "most in this definition. Shorten it, or leave the operation out with --only.",
                    max(sizes, key=lambda one: sizes[one]),
                )
            waiting += sorted(definition.needs, reverse=True)
        return found

    def size_of_definitions(self, definitions: Schema) -> int:
        """In a schema. A definition is part of many schemas, most of which are too large."""
        for name in definitions.keys() - self._sizes.keys():
            self._sizes[name] = size_of(definitions[name])
        members = sum(len(f'"{name}":,') + self._sizes[name] for name in definitions)
        return len(',"$defs":{}') - len(",") + members

    def _definition(self, pointer: str) -> Converted:
        if pointer not in self._definitions:
            try:
                value, at = self.document.follow(f"#{quote(pointer)}", pointer)
                self._definitions[pointer] = self.convert(value, at)
            except MissingTarget:
                self._missing.add(pointer)
                self._definitions[pointer] = Converted({}, frozenset(), 1)
            except NoTool as refusal:
                self._definitions[pointer] = refusal
        definition = self._definitions[pointer]
        if isinstance(definition, NoTool):
            raise definition
        return definition

    def _name_of(self, pointer: str) -> str:
        """The same in all operations of the document."""
        if pointer not in self._names:
            last = pointer.rpartition("/")[2]
            plain = (
                "".join(char if char.isascii() and char.isalnum() else "_" for char in last)[:LONGEST_NAME]
                or "_"
            )
            name, number = plain, 2
            while name in self._taken:
                name, number = f"{plain}_{number}", number + 1
            self._taken.add(name)
            self._names[pointer] = name
        return self._names[pointer]
