"""Input and output schemas as clients read them, and the type words of their parts. Many clients fail on
valid JSON Schema: on `true` and `false` as schemas, a root without `type` or `properties`, members that only
alternatives name, and look-arounds. Arguments are checked with the engine's own."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from catalogue.patterns import is_linear
from catalogue.schema_limits import NAMED, parts_of, subschemas
from connectors.formats.json import write_json
from connectors.formats.json_schema import JSON_TYPES, value_at

ANYTHING = "any"
NOTHING = "never"
TYPES = ("string", "integer", "number", "boolean", "object", "array", "null")
MAX_HOPS = 4  # Nested references and alternatives that are followed for one word
MAX_ALTERNATIVES = 4
HINTS = {  # Keywords that apply to one type only
    "object": ("properties", "additionalProperties", "patternProperties", "minProperties", "maxProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
NO_INPUTS = "No inputs required"
ANY_OBJECT = "any object"  # Where the engine declares no inputs or allows all
MAX_SUMMARISED = 40
OPEN_KEYWORDS = {"$schema", "$id", "type", "title", "description", "additionalProperties"}
MAX_NAME = 80
MAX_PARTS = 500


@dataclass(frozen=True, slots=True)
class Place:
    """A subschema, and the root that its references point into."""

    schema: Any
    root: dict[str, Any]

    def at(self, schema: Any) -> "Place":
        return Place(schema, self.root)

    def each(self, keyword: str) -> list["Place"]:
        parts = self.schema.get(keyword) if isinstance(self.schema, dict) else None
        return [self.at(part) for part in parts] if isinstance(parts, list) else []

    def target(self) -> "Place | None":
        """The target of its reference; None without one, or if it dangles."""
        reference = self.schema.get("$ref") if isinstance(self.schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        try:
            return self.at(value_at(self.root, reference[1:]))
        except (LookupError, ValueError):
            return None

    def chain(self) -> Iterator[dict[str, Any]]:
        place: Place | None = self
        for _ in range(MAX_HOPS):
            if place is None or not isinstance(place.schema, dict):
                return
            yield place.schema
            place = place.target() if "$ref" in place.schema else None


def word_for_type(place: Place, *, hops: int = MAX_HOPS) -> str:
    """`string`, `string or null`, `any`."""
    if place.schema is False:
        return NOTHING
    if not isinstance(place.schema, dict) or not hops:
        return ANYTHING
    stated = place.schema.get("type")
    if isinstance(stated, str) and stated in TYPES:
        return stated
    listed = [word for word in stated if word in TYPES] if isinstance(stated, list) else []
    if words := listed or types_of_values(place.schema):
        return _joined(words)
    if (target := place.target()) is not None:
        return word_for_type(target, hops=hops - 1)
    hinted = (word for word, keywords in HINTS.items() if not place.schema.keys().isdisjoint(keywords))
    return _of_parts(place, hops - 1) or next(hinted, ANYTHING)


def types_of_values(schema: dict[str, Any]) -> list[str]:
    if "const" in schema:
        return [JSON_TYPES[type(schema["const"])]]
    values = schema.get("enum")
    return [JSON_TYPES[type(value)] for value in values] if isinstance(values, list) else []


def _of_parts(place: Place, hops: int) -> str:
    for keyword in ("anyOf", "oneOf"):
        if parts := place.each(keyword):
            words = [word_for_type(part, hops=hops) for part in parts[: MAX_ALTERNATIVES + 1]]
            return _joined(word for word in words if word != NOTHING)
    words = [word_for_type(part, hops=hops) for part in place.each("allOf")[:MAX_ALTERNATIVES]]
    return next((word for word in words if word != ANYTHING), "")


def _joined(words: Iterable[str]) -> str:
    """Each once; `any` if there are too many."""
    different = list(dict.fromkeys(part for word in words for part in word.split(" or ")))
    if ANYTHING in different or not 0 < len(different) <= MAX_ALTERNATIVES:
        return ANYTHING
    return " or ".join(different)


ADDITIONAL = frozenset({"additionalProperties", "unevaluatedProperties", "unevaluatedItems"})
"""Where `false` stays, since clients know it."""


def serve_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy for clients, of the schema of an object."""
    served = spell_out(json.loads(write_json(schema)))
    # Some clients allow only the members that are named here.
    members = members_of_parts(served) | served.get("properties", {})
    return {"type": "object"} | served | {"properties": members}


def spell_out(served: dict[str, Any]) -> dict[str, Any]:
    """The same schema, changed in place."""
    for node in subschemas(served):
        for keyword, key, part in list(parts_of(node, NAMED)):
            if isinstance(part, bool) and keyword not in ADDITIONAL:
                holder: Any = node if key is None else node[keyword]
                holder[keyword if key is None else key] = {} if part else {"not": {}}
        # pydantic, and so most clients in Python, refuses such a pattern.
        if isinstance(pattern := node.get("pattern"), str) and not is_linear(pattern):
            del node["pattern"]
            said = node.get("description")
            addition = f"Must match the regular expression {pattern}"
            node["description"] = f"{said} {addition}" if isinstance(said, str) and said else addition
    return served


def members_of_parts(schema: dict[str, Any]) -> dict[str, Any]:
    """The members that the root's references and alternatives name; several for one name become `anyOf`."""
    found: dict[str, list[Any]] = {}
    for name, inner in _named_by_parts(Place(schema, schema), {id(schema)}):
        known = found.setdefault(name, [])
        if inner not in known:
            known.append(inner)
    return {name: inner[0] if len(inner) == 1 else {"anyOf": inner} for name, inner in found.items()}


def _named_by_parts(place: Place, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Each part once, also if references recur."""
    target = place.target()
    parts = [part for keyword in ("allOf", "anyOf", "oneOf") for part in place.each(keyword)]
    for part in parts if target is None else [target, *parts]:
        if isinstance(part.schema, dict) and id(part.schema) not in seen:
            seen.add(id(part.schema))
            properties = part.schema.get("properties")
            yield from properties.items() if isinstance(properties, dict) else ()
            yield from _named_by_parts(part, seen)


@dataclass(frozen=True, slots=True)
class Input:
    type: str
    description: str
    default: Any
    place: Place


@dataclass(slots=True)
class Inputs:
    properties: dict[str, Input] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)

    def add(self, others: "Inputs") -> None:
        self.properties = others.properties | self.properties
        self.required |= others.required


def summarise_inputs(schema: dict[str, Any] | None) -> str:
    """ "name (type, required|optional), ..." by name, `NO_INPUTS` or `ANY_OBJECT` (D2)."""
    inputs = describe_inputs(schema)
    parts = []
    for name, one in inputs.items():
        line = " ".join(name.split())
        shown = line if len(line) <= MAX_NAME else line[:MAX_NAME] + "..."
        parts.append(f"{shown} ({one['type']}, {'required' if one['required'] else 'optional'})")
    if len(parts) > MAX_SUMMARISED:
        parts[MAX_SUMMARISED:] = [f"and {len(parts) - MAX_SUMMARISED} more"]
    return ", ".join(parts) or (ANY_OBJECT if _is_open(schema) else NO_INPUTS)


def _is_open(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return schema is None or schema is True
    return schema.keys() <= OPEN_KEYWORDS and schema.get("additionalProperties", True) in (True, {})


def describe_inputs(schema: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """`{name: {type, description, required, default}}`, by name; `default` is None where there is none."""
    found = inputs_at(Place(schema, schema)) if isinstance(schema, dict) else Inputs()
    return {
        name: {
            "type": one.type,
            "description": one.description,
            "required": name in found.required,
            "default": one.default,
        }
        for name, one in sorted(found.properties.items())
    }


def describe_outputs(schema: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """`{name: {type, description}}`, by name; empty without an output schema."""
    return {
        name: {"type": one["type"], "description": one["description"]}
        for name, one in describe_inputs(schema).items()
    }


def inputs_at(place: Place) -> Inputs:
    found = _inputs_at(place, {})
    for name in found.required - found.properties.keys():
        found.properties[name] = Input("any", "", None, place.at({}))
    return found


def required_first(names: Iterable[str], required: Collection[str], schema: Mapping[str, Any]) -> list[str]:
    """Otherwise in the engine's order."""
    properties = schema.get("properties")
    order = {name: number for number, name in enumerate(properties if isinstance(properties, dict) else ())}
    return sorted(names, key=lambda name: (name not in required, order.get(name, len(order))))


def _inputs_at(place: Place, known: dict[int, Inputs]) -> Inputs:
    """The inputs of a schema and of all its parts; recursion adds nothing."""
    schema = place.schema
    if not isinstance(schema, dict) or len(known) > MAX_PARTS:
        return Inputs()
    if id(schema) in known:
        return known[id(schema)]
    found = known[id(schema)] = Inputs()
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, dict):
        found.properties = {name: _input(place.at(inner)) for name, inner in properties.items()}
    if isinstance(required, list):
        found.required = {name for name in required if isinstance(name, str)}
    for part in filter(None, (place.target(), *place.each("allOf"))):
        found.add(_inputs_at(part, known))
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            found.add(_inputs_of_alternatives(place.each(keyword), known))
    return found


def _inputs_of_alternatives(alternatives: list[Place], known: dict[int, Inputs]) -> Inputs:
    """All are possible; required is what every alternative requires."""
    found = Inputs()
    each = [_inputs_at(alternative, known) for alternative in alternatives]
    for inputs in each:
        found.add(inputs)
    found.required = set.intersection(*(inputs.required for inputs in each)) if each else set()
    return found


def _input(place: Place) -> Input:
    """The property's own keywords take precedence over those of referenced schemas."""
    description, default = "", None
    for schema in place.chain():
        own = schema.get("description")
        description = description or (own if isinstance(own, str) else "")
        default = schema.get("default") if default is None else default
    return Input(word_for_type(place), description, default, place)
