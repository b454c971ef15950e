"""The inputs and outputs of a workflow for readers, from its JSON Schemas; `catalogue.schemas` validates."""

from dataclasses import dataclass, field
from typing import Any

from catalogue.served_schemas import Place, word_for_type

NO_INPUTS = "No inputs required"
ANY_OBJECT = "any object"  # Where the engine declares no inputs or allows all
MOST_SUMMARISED = 40
OPEN_KEYWORDS = {"$schema", "$id", "type", "title", "description", "additionalProperties"}
LONGEST_NAME = 80
MOST_PARTS = 500


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
        shown = line if len(line) <= LONGEST_NAME else line[:LONGEST_NAME] + "..."
        parts.append(f"{shown} ({one['type']}, {'required' if one['required'] else 'optional'})")
    if len(parts) > MOST_SUMMARISED:
        parts[MOST_SUMMARISED:] = [f"and {len(parts) - MOST_SUMMARISED} more"]
    return ", ".join(parts) or (ANY_OBJECT if _is_open(schema) else NO_INPUTS)


def _is_open(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return schema is None or schema is True
    return schema.keys() <= OPEN_KEYWORDS and schema.get("additionalProperties", True) in (True, {})


def describe_inputs(schema: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """`{name: {type, description, required, default}}`, by name; `default` is None where there is none."""
    found = _find_inputs(schema)
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
    found = _find_inputs(schema)
    return {
        name: {"type": one.type, "description": one.description}
        for name, one in sorted(found.properties.items())
    }


def inputs_at(place: Place) -> Inputs:
    found = _inputs_at(place, {})
    for name in found.required - found.properties.keys():
        found.properties[name] = Input("any", "", None, place.at({}))
    return found


def _find_inputs(schema: dict[str, Any] | None) -> Inputs:
    return inputs_at(Place(schema, schema)) if isinstance(schema, dict) else Inputs()


def _inputs_at(place: Place, known: dict[int, Inputs]) -> Inputs:
    """The inputs of a schema and of all its parts; recursion adds nothing."""
    schema = place.schema
    if not isinstance(schema, dict) or len(known) > MOST_PARTS:
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
