"""A document's schemas as JSON Schema 2020-12 with their own definitions."""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, count, permutations
from typing import Any, Literal
from urllib.parse import quote

import jsonschema_rs

from connectors.formats.json import UnreadableJSON, as_object, parse_json, write_json
from connectors.formats.json_schema import JSON_TYPES, LINEAR, empty_ranges, parts_of, pointer_of
from connectors.http_tools.openapi.document import (
    Document,
    MissingTarget,
    NoTool,
    checked_object,
    mapping_of,
    note_on_missing,
    quoted,
)

KEPT_IN_RESPONSES = frozenset(
    {"type", "properties", "items", "allOf", "anyOf", "$ref", "title", "description", "default", "examples"}
)
CHOICES = ("anyOf", "oneOf")
COMPOSITIONS = ("allOf", *CHOICES)
CLOSINGS = ("additionalProperties", "unevaluatedProperties")
OPEN = "~open"  # After a pointer, of which it is no part: the definition as a part of others
CLEARS = r"(?:clear|remov|delet|unset|reset|eras|detach|unassign)"
NULL_CLEARS = re.compile(rf"\bnull\b[^.]{{0,40}}\b{CLEARS}|\b{CLEARS}[^.]{{0,40}}\bnull\b", re.IGNORECASE)
"""In a description, such as "Omit to leave unchanged, send null to clear"."""
NULLABLE = "x-nullable"  # Of Swagger 2.0, which had no `nullable`
MAX_PARTS = 20_000  # Subschemas of a schema with all its definitions; the catalogue's limit
MAX_DEPTH = 60
ONE = frozenset(
    {"items", "additionalProperties", "then", "else", "contains", "propertyNames"}
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
KEPT_IN_PARTS = KEPT - {"maxProperties"}  # Meant to count the fields of the part alone
DYNAMIC = frozenset({"$dynamicRef", "$recursiveRef"})
REFERENCES = DYNAMIC | {"$ref"}
MENDED = (BOUNDS - {"format"}) | {"required", "examples", "example", "oneOf", "enum", "const"}
INT = r"(?:int(?:eger)?\d*|number)"
INT_OR_STRING = re.compile(rf"{INT}orstr(?:ing)?|str(?:ing)?or{INT}|quantity")
INT_OR_STRING_FLAGS = ("x-kubernetes-int-or-string", "x-int-or-string")
LITERAL = re.compile(
    r"""([/#~@%!`'";,])((?:\\.|\[(?:\\.|[^]\\])*\]|(?!\1)[^\\\[])*)\1[a-zA-Z]{0,8}""", re.DOTALL
)
"""A pattern between the delimiters of JavaScript or PHP, with its flags."""
IN_LITERALS = re.compile(r"^\^|\$$|[\\\[(*+?.{|]")
TEXTS = {True: ("true", "yes", "on"), False: ("false", "no", "off")}  # YAML 1.1 makes booleans of these
NO_JAVASCRIPT = re.compile(r"(?<!\\)(?:\\\\)*(?:\(\?(?:-?[A-Za-z][A-Za-z-]*[:)]|P[<=>]|[>#])|\\[AZzG])")
"""Flags such as `(?i)`, groups of Python and Java, and anchors of Ruby, which JavaScript does not have."""
TYPES = (*JSON_TYPES.values(),)
Schema = dict[str, Any]


def spelt_out(types: Any) -> Any:
    """The value of `type`. In YAML, `[array, null]` has no text "null", but null itself."""
    return ["null" if one is None else one for one in types] if isinstance(types, list) else types


def accept_null(schema: Schema, raw: dict[str, Any]) -> Schema:
    """The schema, which allows null if `raw` does, also if it gives null as a value. An `example: null` is
    what generators write without an example."""
    if isinstance(says := raw.get("nullable", raw.get(NULLABLE)), bool):
        return or_null(schema) if says else schema
    given = [raw.get(word) for word in ("enum", "examples")]
    is_value = raw.get("default", 0) is None or any(isinstance(one, list) and None in one for one in given)
    return or_null(schema) if is_value or NULL_CLEARS.search(str(raw.get("description", ""))) else schema


def or_null(schema: Any) -> Any:
    if isinstance(schema, bool) or {"type": "null"} in schema.get("anyOf", ()):
        return schema
    if "type" in schema and not schema.keys() & {"allOf", "anyOf", "oneOf", "const", "$ref"}:
        if isinstance(values := schema.get("enum"), list) and None not in values:
            schema = schema | {"enum": [*values, None]}
        return schema | {"type": _unique([*_types_in(schema), "null"])}
    if not schema.keys() & {"type", "allOf", "anyOf", "oneOf", "enum", "const", "not", "$ref"}:
        return schema
    return _or(schema, {"type": "null"})


def _or(schema: Schema, other: Schema) -> Schema:
    """Makes alternatives of both, with the annotations of the first."""
    about = {"title", "description", "default", "deprecated"}
    kept = {key: value for key, value in schema.items() if key not in about}
    return {key: schema[key] for key in schema if key in about} | {"anyOf": [kept, other]}


def _types_in(schema: Schema) -> list[Any]:
    named = schema.get("type", [])
    return named if isinstance(named, list) else [named]


def _unique(values: list[Any]) -> list[Any]:
    """Each once, as JSON Schema compares them: 1 is 1.0, and not true."""
    found: dict[str, Any] = {}
    for value in values:
        is_whole = isinstance(value, float) and value.is_integer()
        found.setdefault(write_json(int(value) if is_whole else value), value)
    return [*found.values()]


def accept_nulls(schema: Any) -> Any:
    """The schema of a merge patch: null is a value of every member, at every depth."""
    if isinstance(schema, list):
        return [accept_nulls(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = schema | {word: accept_nulls(schema[word]) for word in schema.keys() & (SEVERAL | {"items"})}
    for word in schema.keys() & {"properties", "patternProperties"}:
        made[word] = {name: or_null(accept_nulls(one)) for name, one in schema[word].items()}
    if "additionalProperties" in schema:
        made["additionalProperties"] = or_null(accept_nulls(schema["additionalProperties"]))
    return made


def response_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The names and types of a response's fields, each of which may be missing or null. MCP clients treat a
    result that violates its output schema as a failure, and few APIs respond exactly as documented: fields
    are missing or null, and enumerations have new values."""
    loose = {key: value for key, value in schema.items() if key in KEPT_IN_RESPONSES}
    if isinstance(extra := schema.get("additionalProperties"), dict):
        loose["additionalProperties"] = extra
    if isinstance(values := schema.get("enum"), list):
        loose["examples"] = [value for value in values if value is not None][:10]
    if "type" in schema and schema["type"] != "null":
        loose["type"] = _unique([*_types_in(schema), "null"])
    return loose


def strip_null(schema: Any) -> Any:
    """Removes null at every depth; a schema of null alone stays, and so do references."""
    if not isinstance(schema, dict):
        return schema
    stripped = {key: value for key, value in schema.items() if not (key == "default" and value is None)}
    for word in stripped.keys() & {"items", "additionalProperties"}:
        stripped[word] = strip_null(stripped[word])
    if isinstance(fields := stripped.get("properties"), dict):
        stripped["properties"] = {name: strip_null(field) for name, field in fields.items()}
    for word in stripped.keys() & COMPOSITIONS:
        parts = [strip_null(one) for one in stripped[word] if as_object(one).get("type") != "null"]
        stripped[word] = parts or stripped[word]
    if isinstance(types := stripped.get("type"), list) and (left := [one for one in types if one != "null"]):
        stripped["type"] = left[0] if len(left) == 1 else left
    if isinstance(values := stripped.get("enum"), list):
        stripped["enum"] = [one for one in values if one is not None] or values
    # Models read a plain schema better than a single choice.
    beside, choices = {key: stripped[key] for key in stripped if key != "anyOf"}, stripped.get("anyOf", [])
    about = {"title", "description", "examples"}
    if len(choices) == 1 and isinstance(choices[0], dict) and beside.keys() <= about:
        return choices[0] | beside
    return stripped


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
    notes: list[str] = field(default_factory=list)
    loosened: int = 0  # Places where more values are accepted than the document says
    in_condition: bool = False

    def tell(self, note: str, pointer: str) -> None:
        self.loosened += 1
        self.notes.append(note.format(quoted(f"#{pointer}")))


def convert_schema(
    raw: Any, pointer: str, reading: Conversion, depth: int = 0, *, is_part: bool = False
) -> Any:
    """Raises NoTool. A part of another schema with further fields is open."""
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
    # Beside fields, a reference is a part like those of `allOf`.
    has_fields = reading.document.minor > 0 and not {"properties", "additionalProperties"}.isdisjoint(raw)
    if has_fields and "$ref" in raw and "allOf" not in raw:
        raw = {key: value for key, value in raw.items() if key != "$ref"} | {"allOf": [{"$ref": raw["$ref"]}]}
        return _keywords(raw, pointer, reading, depth, is_part=is_part)
    if target := _target_of(raw, pointer, reading, is_part=is_part):
        return _reference(raw, target, pointer, reading, depth)
    return _keywords(raw, pointer, reading, depth, is_part=is_part)


def _target_of(raw: dict[str, Any], pointer: str, reading: Conversion, *, is_part: bool) -> str:
    """Empty without a reference, and for a dynamic one out of its definition: each use has another target."""
    if "$ref" in raw:
        try:
            target = reading.document.follow(raw["$ref"], pointer)[1]
        except MissingTarget as missing:
            return missing.target  # Its definition accepts any value.
        is_own_base = reading.document.is_own_base(target, pointer)
        return f"{target}{OPEN}" if is_part or is_own_base else target
    if DYNAMIC.isdisjoint(raw):
        return ""
    named = raw.get("$dynamicRef", raw.get("$recursiveRef"))
    known = reading.anchors.get(named.removeprefix("#")) if isinstance(named, str) else None
    if known is None:
        reading.tell("{} is a dynamic reference out of its definition; any value is accepted.", pointer)
    return known or ""


def _reference(raw: dict[str, Any], target: str, pointer: str, reading: Conversion, depth: int) -> Any:
    reading.needs.add(target)
    reading.loosened += 1  # Perhaps in its definition
    reference: Schema = {"$ref": f"#/$defs/{reading.name_of(target)}"}
    if reading.document.minor == 0:
        # 3.0 ignores everything else beside a reference; a description is common and harmless.
        said = raw.get("description")
        reference |= {"description": said} if isinstance(said, str) else {}
    else:
        beside = {key: value for key, value in raw.items() if key not in REFERENCES}
        reference = _keywords(beside, pointer, reading, depth) | reference
    return accept_null(reference, raw)


def _keywords(
    raw: dict[str, Any], pointer: str, reading: Conversion, depth: int, *, is_part: bool = False
) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    has_closed_part = not is_part and _has_a_closed_part(raw, reading)
    is_open = is_part or has_closed_part
    kept = KEPT_IN_PARTS if is_part and "properties" in raw else KEPT
    for key, value in raw.items():
        at = f"{pointer}/{key}"
        if key in kept:
            schema[key] = spelt_out(value) if key == "type" else value
        elif key in NAMED:
            schema[key] = {
                name: convert_schema(one, f"{at}{pointer_of([name])}", reading, depth + 1)
                for name, one in checked_object(value, at, "An object with named schemas").items()
                if key != "properties" or not is_left_out(reading.document, one, reading.direction)
            }
        elif key in SEVERAL or (key == "items" and isinstance(value, list)):
            # Before 2020-12, `items` also held lists.
            schema["prefixItems" if key == "items" else key] = [
                convert_schema(one, f"{at}/{n}", reading, depth + 1, is_part=is_open and key in COMPOSITIONS)
                for n, one in enumerate(_checked_list(value, at))
            ]
        elif key in ONE and not (is_open and key in CLOSINGS and value is False):
            schema[key] = convert_schema(value, at, reading, depth + 1)
    if has_closed_part:
        is_closed = _is_closed(reading.document, raw, ("allOf",))
        schema |= {"unevaluatedProperties": False} if is_closed else {}
        reading.tell(
            "A closed or limited part of {} has further fields beside it; both are accepted.", pointer
        )
    _take_conditions(schema, raw, pointer, reading, depth)
    schema = _with_items(_with_known_type(schema, raw, reading))
    if not MENDED.isdisjoint(raw):
        _mend(schema, raw, pointer, reading)
        schema = _with_possible_values(schema, raw, pointer, reading)
    schema = _with_fitting_default(accept_null(schema, raw))
    return schema if reading.direction == "request" else response_schema(schema)


def _take_conditions(
    schema: Schema, raw: dict[str, Any], pointer: str, reading: Conversion, depth: int
) -> None:
    """Leaves out what accepts more values in a `not` or `if`, and so refuses more outside of it."""
    for key in ("not", "if"):
        if key not in raw:
            continue
        before, outer, needs = reading.loosened, reading.in_condition, set(reading.needs)
        reading.in_condition = True
        schema[key] = convert_schema(raw[key], f"{pointer}/{key}", reading, depth + 1)
        reading.in_condition = outer
        if reading.loosened > before:
            reading.needs = needs
            reading.tell("{} is left to the API.", f"{pointer}/{key}")
            del schema[key]
            # What is not evaluated is known only with `if`.
            for word in ("then", "else", "unevaluatedProperties", "unevaluatedItems") if key == "if" else ():
                schema.pop(word, None)


def _has_a_closed_part(raw: dict[str, Any], reading: Conversion) -> bool:
    """Returns True if several parts describe the fields of one object, and one of them refuses all others, or
    limits how many there are."""
    if reading.direction == "response" or raw.keys().isdisjoint(COMPOSITIONS):
        return False
    parts = [one for one, _ in parts_of(raw, "allOf", "")]
    parts += [{word: raw[word]} for word in CHOICES if word in raw]
    parts.append({key: raw[key] for key in ("properties", CLOSINGS[0]) if key in raw})
    describing, closed = 0, 0
    for part in parts if len(parts) > 2 or parts[-1] else ():
        inner = list(reading.document.for_the_same_value(part, COMPOSITIONS))
        is_limited = any({"properties", "maxProperties"} <= one.keys() for one in inner)
        is_closed = is_limited or _is_closed(reading.document, part, COMPOSITIONS)
        describing += is_closed or any("properties" in one for one in inner)
        closed += is_closed
    return closed > 0 and describing > 1


def _is_closed(document: Document, raw: Any, words: Iterable[str]) -> bool:
    inner = document.for_the_same_value(raw, words)
    return any(one.get(word) is False for one in inner for word in CLOSINGS)


def _with_known_type(schema: Schema, raw: dict[str, Any], reading: Conversion) -> Schema:
    """Drops a `type` such as `date-time` or `int`: documents often have a format or a word of a programming
    language there. The API decides which values it accepts."""
    types = _types_in(schema)
    form = re.sub(r"[^a-z0-9]", "", str(raw["format"]).lower()) if "format" in raw else ""
    reading.loosened += "format" in raw
    if INT_OR_STRING.fullmatch(form) or any(raw.get(flag) is True for flag in INT_OR_STRING_FLAGS):
        number = "number" if "number" in form or form == "quantity" else "integer"
        return schema | {"type": _unique([number, "string", *types])}
    if "type" not in schema or schema["type"] in TYPES:
        return schema
    if all(one in TYPES for one in types):
        return schema | {"type": _unique(types)}
    reading.loosened += 1
    return {key: value for key, value in schema.items() if key != "type"}


def _with_fitting_default(schema: dict[str, Any]) -> dict[str, Any]:
    """Documents often have `default: "false"` for a boolean, or `default: 10` for a string."""
    types, value = _types_in(schema), schema.get("default")
    if "default" not in schema or not types or _fits(value, types):
        return schema
    rest = {key: value for key, value in schema.items() if key != "default"}
    # Clear is only what was a text or becomes one; 1.1 may have been the text 1.10.
    read = _readings(value, types) if isinstance(value, str | int) else []
    is_clear = bool(read) and str in (type(value), type(read[0]))
    return rest | {"default": read[0]} if is_clear else rest


def _fits(value: Any, types: list[Any]) -> bool:
    is_whole = isinstance(value, float) and value.is_integer()
    return JSON_TYPES.get(type(value), "object") in types or (
        not isinstance(value, bool)
        and ("number" in types if isinstance(value, int) else "integer" in types and is_whole)
    )


def _with_items(schema: dict[str, Any]) -> dict[str, Any]:
    """Model APIs refuse lists that do not describe their items."""
    is_list = "array" in _types_in(schema) and not schema.keys() & {"items", "prefixItems"}
    return schema | {"items": {}} if is_list else schema


def _tell_apart(alternatives: list[Any], raw: dict[str, Any], pointer: str, reading: Conversion) -> None:
    """Adds each alternative's values of the discriminating property, if the mapping has them. Alternatives
    often describe each other's objects, so `oneOf` would refuse values that the API accepts."""
    name, values = as_object(raw["discriminator"]).get("propertyName"), dict[str, list[str]]()
    if not isinstance(name, str) or reading.direction == "response":
        return
    for value, reference in mapping_of(raw).items():
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
    own = as_object(as_object(target.get("properties")).get(name))
    return not {"const", "enum"}.isdisjoint(own)


def _checked_list(raw: Any, pointer: str) -> list[Any]:
    if not isinstance(raw, list):
        raise NoTool("A list of schemas is required here.", pointer)
    return raw


def is_left_out(document: Document, schema: Any, direction: str) -> bool:
    """Returns True if a property, or its reference, is only for the other direction."""
    flag = "readOnly" if direction == "request" else "writeOnly"
    return any(one.get(flag) is True for one in document.for_the_same_value(schema, ("allOf",)))


def _mend(schema: Schema, raw: dict[str, Any], pointer: str, reading: Conversion) -> None:
    """Differences of 3.0, and common harmless mistakes."""
    _mend_required(schema, raw, pointer, reading)
    _mend_bounds(schema, pointer, reading)
    if "oneOf" in schema and not reading.in_condition:
        _mend_choices(schema, raw, pointer, reading)
    examples = raw.get("examples")
    example = examples[0] if isinstance(examples, list) and examples else raw.get("example")
    fits = isinstance(example, str | int | float) and not isinstance(example, bool)
    if fits and len(str(example)) <= 100:
        schema["examples"] = [example]


def _mend_bounds(schema: Schema, pointer: str, reading: Conversion) -> None:
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(flag := schema.get(exclusive), bool):
            del schema[exclusive]
            if flag and bound in schema:
                schema[exclusive] = schema.pop(bound)
    for low, high in empty_ranges(schema):
        del schema[low], schema[high]
        reading.tell(f"The {low} and {high} of {{}} exclude each other and are left to the API.", pointer)
    if isinstance(pattern := schema.get("pattern"), str) and not _is_for_all(pattern, pointer, reading):
        reading.loosened += 1
        del schema["pattern"]


def _is_for_all(pattern: str, pointer: str, reading: Conversion) -> bool:
    """Clients compile the patterns of a tool as JavaScript, and drop the tool if they cannot."""
    if (found := LITERAL.fullmatch(pattern.strip())) and IN_LITERALS.search(found[2]):
        reading.tell("The pattern of {} has delimiters around it and is left to the API.", pointer)
        return False
    return not NO_JAVASCRIPT.search(pattern) and reading.usable_pattern(pattern)


def _mend_choices(schema: Schema, raw: dict[str, Any], pointer: str, reading: Conversion) -> None:
    """Alternatives often accept the same values, and then exactly one of them accepts none."""
    if "discriminator" in raw:
        _tell_apart(schema["oneOf"], raw, pointer, reading)
    if reading.direction == "response" or not is_exclusive(raw["oneOf"]):
        choices, reading.loosened = {"anyOf": schema.pop("oneOf")}, reading.loosened + 1
        schema |= {"allOf": [*schema.get("allOf", []), choices]} if "anyOf" in schema else choices


def _with_possible_values(schema: Schema, raw: dict[str, Any], pointer: str, reading: Conversion) -> Schema:
    """An `enum` or `const` of which a value can fit the rest: documents list numbers for a string, or beside
    a list the values of its items. Both readings are accepted."""
    word = "enum" if isinstance(schema.get("enum"), list) else "const"
    if word not in schema:
        return schema
    values = _unique(schema["enum"]) if word == "enum" else [schema["const"]]
    rest = {key: value for key, value in schema.items() if key != word}
    if not values:
        reading.tell("The enum of {} is empty; any value is accepted.", pointer)
        return rest
    if (rules := {key: rest[key] for key in rest if key in BOUNDS}) and _refuse_all(rules, values):
        rest = {key: value for key, value in rest.items() if key not in rules}
        reading.tell(f"{', '.join(rules)} of {{}} refuse all listed values and are left to the API.", pointer)
    types = _types_in(rest) or [*TYPES]
    fitting, others = list[Any](), list[Any]()
    for one in values:
        fits = _fits(one, types) or (one is None and raw.get("nullable", raw.get(NULLABLE)) is True)
        (fitting if fits else others).append(one)
    if not others:
        return rest | {word: values if word == "enum" else values[0]}
    if "array" in types and not any(isinstance(one, list) for one in values):
        reading.tell("The enum of {} is that of its items.", pointer)
        items = as_object(rest.get("items")) | {"enum": [one for one in values if one is not None]}
        return rest | {"items": _with_possible_values(items, {}, f"{pointer}/items", reading)}
    reading.tell("Listed values of {} are not of its type; both readings are accepted.", pointer)
    read = [*fitting, *(other for one in others for other in _readings(one, types))]
    if not read:
        return _or(rest, {"enum": values})
    named = [*_types_in(rest), *(JSON_TYPES.get(type(one), "object") for one in others)]
    return rest | {"type": _unique(named), "enum": _unique([*read, *others])}


def _readings(value: Any, types: list[Any]) -> list[Any]:
    """The value in one of the types, as YAML and generators may have changed it."""
    read: list[Any] = ["null"] if value is None else []
    if isinstance(value, str):
        read = [truth for truth, texts in TEXTS.items() if value.lower() in texts]
        with suppress(UnreadableJSON):
            read.append(parse_json(value.encode()))
    elif isinstance(value, bool):
        read = [*TEXTS[value], int(value)]
    elif isinstance(value, int | float):
        text = write_json(value)
        read = [text, f"{text}0", text.removesuffix(".0")] if "." in text else [text]
        read += [bool(value)] if value in (0, 1) else []
    return [one for one in read if _fits(one, types)]


def _refuse_all(rules: Schema, values: list[Any]) -> bool:
    try:
        validator = jsonschema_rs.validator_for(rules, pattern_options=LINEAR, offline=True)
        return not any(validator.is_valid(one) for one in values)
    except (jsonschema_rs.ValidationError, ValueError):
        return False


def required_by(schema: dict[str, Any]) -> frozenset[str]:
    names = schema.get("required")
    return frozenset(one for one in names if isinstance(one, str)) if isinstance(names, list) else frozenset()


def only_requires(choices: Any) -> bool:
    known, listed = {"required", "title", "description"}, [] if choices is None else choices
    return isinstance(listed, list) and all(isinstance(one, dict) and one.keys() <= known for one in listed)


def is_exclusive(choices: Any) -> bool:
    """Returns True if `oneOf` is meant literally: each alternative only requires fields, and none those of
    another."""
    if not only_requires(choices) or len(choices) > 50:  # Each is compared with each other.
        return False
    return not any(one <= other for one, other in permutations(map(required_by, choices), 2))


def _mend_required(schema: dict[str, Any], raw: dict[str, Any], pointer: str, reading: Conversion) -> None:
    required, properties = schema.get("required"), raw.get("properties")
    if required is None:
        return
    if not isinstance(required, list):
        # Swagger 1 had `required: true` at the property itself.
        del schema["required"]
        return
    known = schema.get("properties", {})
    left_out = as_object(properties).keys() - known.keys()
    required = [name for name in dict.fromkeys(map(str, required)) if name not in left_out]
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    if is_closed and (unknown := [name for name in required if name not in known]):
        schema["properties"] = known | {name: {} for name in unknown}
        required = [name for name in required if name in known]
        reading.tell("{} requires fields that it does not have; they are optional.", pointer)
    schema["required"] = required
    if not required:
        del schema["required"]


@dataclass(frozen=True, slots=True)
class Converted:
    """A schema that refers to definitions by their pointers."""

    schema: Any
    needs: frozenset[str]  # Pointers of its own references
    parts: int
    notes: tuple[str, ...] = ()  # Where the document is not followed by the letter, in sentences
    has_subtypes: bool = False


@dataclass(slots=True)
class Schemas:
    """Converts a document's schemas, each definition once for all operations."""

    document: Document
    direction: Literal["request", "response"]  # Requests lack read-only properties, responses write-only ones
    usable_pattern: Callable[[str], bool]
    answers: dict[str, Schema | None] = field(default_factory=dict)
    """By pointer: a response that operations share is converted once. None: not an object, or too large."""
    _definitions: dict[str, Converted | NoTool] = field(default_factory=dict)
    _missing: set[str] = field(default_factory=set)  # Pointers of definitions that do not exist
    _sizes: dict[str, int] = field(default_factory=dict)  # Of definitions, by name
    _names: dict[str, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def convert(self, raw: Any, pointer: str, *, is_part: bool = False) -> Converted:
        """Converts one schema, and keeps references. Raises NoTool."""
        reading = Conversion(self.document, self.direction, self.usable_pattern, self._name_of)
        schema = convert_schema(raw, pointer, reading, is_part=is_part)
        return Converted(schema, frozenset(reading.needs), reading.parts, tuple(reading.notes))

    def convert_text(self, raw: Any, pointer: str) -> Converted:
        """Converts for values that are written as text, so null is not allowed. Raises NoTool."""
        converted = self.convert(raw, pointer)
        if isinstance(converted.schema, dict) and "$ref" in converted.schema:
            # The definition is shared with JSON bodies; where it allows null, this argument has a copy.
            target = self.convert(*self.document.object_at(raw, pointer))
            if (plain := strip_null(target.schema)) == target.schema:
                return converted
            beside = {key: value for key, value in converted.schema.items() if key != "$ref"}
            return replace(target, schema=plain | beside)
        return replace(converted, schema=strip_null(converted.schema))

    def definitions_for(
        self, needs: frozenset[str], notes: list[str], *, parts: int, most: int = 1_000
    ) -> Schema:
        """`$defs` of everything reachable; `parts`: of the schema that refers to it. Adds to `notes` what
        does not exist. Subtypes are left out of a schema that has more than `most` parts with them. Raises
        NoTool."""
        found: Schema = {}
        first, has_subtypes, own_notes = parts, False, list[str]()
        sizes: dict[str, int] = {}
        waiting = sorted(needs, reverse=True)
        while waiting:
            pointer = waiting.pop()
            if (name := self._name_of(pointer)) in found:
                continue
            definition = self._definition(pointer)
            if definition.has_subtypes:
                has_subtypes = True
                definition = definition if most else self._definition(f"{pointer}{OPEN}")
            found[name] = definition.schema
            own_notes += [note_on_missing(pointer)] if pointer in self._missing else definition.notes
            parts, sizes[pointer] = parts + definition.parts, definition.parts
            if has_subtypes and most and parts > most:
                return self.definitions_for(needs, notes, parts=first, most=0)
            if parts > MAX_PARTS:
                raise NoTool(
                    f"Its schema has more than {MAX_PARTS:,} parts, including everything that it refers to, "
                    "most in this definition. Shorten it, or leave the operation out with --only.",
                    max(sizes, key=lambda one: sizes[one]),
                )
            waiting += sorted(definition.needs, reverse=True)
        notes += own_notes
        return found

    def size_of_definitions(self, definitions: Schema) -> int:
        """Counts bytes. A definition is part of many schemas, most of which are too large."""
        for name in definitions.keys() - self._sizes.keys():
            self._sizes[name] = len(write_json(definitions[name]))
        members = sum(len(f'"{name}":,') + self._sizes[name] for name in definitions)
        return len(',"$defs":{}') - len(",") + members

    def _definition(self, pointer: str) -> Converted:
        if pointer not in self._definitions:
            try:
                is_part = pointer.endswith(OPEN)
                value, at = self.document.follow(f"#{quote(pointer.removesuffix(OPEN))}", pointer)
                if is_part and at in self.document.extensions and "discriminator" in as_object(value):
                    # The alternatives of a base are its subtypes, which would be within themselves.
                    value = {key: one for key, one in value.items() if key not in CHOICES}
                is_base = self.direction == "request" and self.document.subtypes_of(pointer)
                self._definitions[pointer] = (
                    self._with_subtypes(value, at)
                    if is_base and value.keys().isdisjoint(CHOICES)
                    else self.convert(value, at, is_part=is_part)
                )
            except MissingTarget:
                self._missing.add(pointer)
                self._definitions[pointer] = Converted({}, frozenset(), 1)
            except NoTool as refusal:
                self._definitions[pointer] = refusal
        definition = self._definitions[pointer]
        if isinstance(definition, NoTool):
            raise definition
        return definition

    def _with_subtypes(self, base: dict[str, Any], pointer: str) -> Converted:
        subtypes = [{"$ref": f"#{quote(one)}"} for one in self.document.subtypes_of(pointer)]
        raw = {"oneOf": subtypes, "discriminator": base.get("discriminator")}
        converted, own = self.convert(raw, pointer), f"{pointer}{OPEN}"
        converted.schema["anyOf"].append({"$ref": f"#/$defs/{self._name_of(own)}"})
        needs = converted.needs | {own}
        return replace(converted, needs=needs, parts=converted.parts + 1, has_subtypes=True)

    def _name_of(self, pointer: str) -> str:
        """The same in all operations of the document."""
        if pointer not in self._names:
            last = pointer.rpartition("/")[2]
            plain = re.sub(r"[^A-Za-z0-9]", "_", last)[:60] or "_"
            names = chain([plain], (f"{plain}_{number}" for number in count(2)))
            name = next(one for one in names if one not in self._taken)
            self._taken.add(name)
            self._names[pointer] = name
        return self._names[pointer]
