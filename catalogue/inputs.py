"""What a workflow takes and gives, told from its JSON Schemas, however odd these are.

The words are for readers; `catalogue.schemas` is what arguments are checked with.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from catalogue.schema_words import Place, word_for_type

NO_INPUTS = "No inputs required"
ANY_OBJECT = "any object"
"""Of a workflow whose engine says nothing of its inputs, or allows all."""
MOST_SUMMARISED = 40
"""Inputs in a summary; more say how many they are."""
OPEN_KEYWORDS = {"$schema", "$id", "type", "title", "description", "additionalProperties"}
LONGEST_NAME = 80
MOST_PARTS = 500
"""Places of one schema that are looked at for inputs."""


@dataclass(frozen=True, slots=True)
class Input:
    """One property of the arguments, or of a result."""

    type: str
    description: str
    default: Any
    place: Place
    """Its schema."""


@dataclass(slots=True)
class Inputs:
    """The properties of an object, and which of them it must have."""

    properties: dict[str, Input] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)

    def add(self, others: "Inputs") -> None:
        self.properties = others.properties | self.properties
        self.required |= others.required


def summarise_inputs(schema: dict[str, Any] | None) -> str:
    """ "name (type, required|optional), ..." by name, or that there are none, or none that are known (D2)."""
    inputs = describe_inputs(schema)
    told = [
        f"{_short(name)} ({told['type']}, {'required' if told['required'] else 'optional'})"
        for name, told in inputs.items()
    ]
    if len(told) > MOST_SUMMARISED:
        told[MOST_SUMMARISED:] = [f"and {len(told) - MOST_SUMMARISED} more"]
    return ", ".join(told) or (ANY_OBJECT if _is_open(schema) else NO_INPUTS)


def _is_open(schema: Any) -> bool:
    """Whether it takes any object, as it names no property at all: not even that there are none."""
    if not isinstance(schema, dict):
        return schema is None or schema is True
    return schema.keys() <= OPEN_KEYWORDS and schema.get("additionalProperties", True) in (True, {})


def describe_inputs(schema: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """`{name: {type, description, required, default}}`, by name; without a default it is None."""
    found = _find_inputs(schema)
    return {
        name: {
            "type": told.type,
            "description": told.description,
            "required": name in found.required,
            "default": told.default,
        }
        for name, told in sorted(found.properties.items())
    }


def describe_outputs(schema: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """`{name: {type, description}}`, by name; empty where the engine promises nothing."""
    found = _find_inputs(schema)
    return {
        name: {"type": told.type, "description": told.description}
        for name, told in sorted(found.properties.items())
    }


def inputs_at(place: Place) -> Inputs:
    """Those of a schema and of all that it is composed of."""
    found = _inputs_at(place, {})
    for name in found.required - found.properties.keys():
        found.properties[name] = Input("any", "", None, place.at({}))
    return found


def _short(name: str) -> str:
    line = " ".join(name.split())
    return line if len(line) <= LONGEST_NAME else line[:LONGEST_NAME] + "..."


def _find_inputs(schema: dict[str, Any] | None) -> Inputs:
    return inputs_at(Place(schema, schema)) if isinstance(schema, dict) else Inputs()


def _inputs_at(place: Place, known: dict[int, Inputs]) -> Inputs:
    """Those of a schema and of all that it is composed of; a part that leads back to itself adds nothing."""
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
    for part in _parts_that_all_apply(place):
        found.add(_inputs_at(part, known))
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            found.add(_inputs_of_alternatives(place.each(keyword), known))
    return found


def _parts_that_all_apply(place: Place) -> Iterator[Place]:
    if (target := place.target()) is not None:
        yield target
    yield from place.each("allOf")


def _inputs_of_alternatives(alternatives: list[Place], known: dict[int, Inputs]) -> Inputs:
    """Any of them may be given; required is only what each of them requires."""
    found = Inputs()
    each = [_inputs_at(alternative, known) for alternative in alternatives]
    for inputs in each:
        found.add(inputs)
    found.required = set.intersection(*(inputs.required for inputs in each)) if each else set()
    return found


def _input(place: Place) -> Input:
    """Its own words count before those of what it refers to."""
    description, default = "", None
    for schema in place.chain():
        own = schema.get("description")
        description = description or (own if isinstance(own, str) else "")
        default = schema.get("default") if default is None else default
    return Input(word_for_type(place), description, default, place)
