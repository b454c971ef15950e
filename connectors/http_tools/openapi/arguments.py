"""Parameters and body fields of an operation as the arguments of one tool."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from connectors.formats.json_schema import steps_of, types_of
from connectors.http_tools.openapi.document import NoTool
from connectors.http_tools.openapi.schemas import Converted, Schemas
from connectors.http_tools.tool import ArgumentPlace

UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")
LONGEST_NAME = 64
"""Of an argument; models' own interfaces take no longer ones, and no other characters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Argument:
    """One argument, before it has a name that no other has."""

    place: ArgumentPlace
    wanted: str
    """What it would be called."""
    converted: Converted
    description: str = ""
    """Instead of the one in its schema."""
    required: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """That some of an object's fields have to be given together or in part."""

    of: tuple[frozenset[str], ...]
    """Fields that go together."""
    only_one: bool = False
    """Of these groups one and no other; else one or more."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a tool."""

    schema: dict[str, Any]
    """JSON Schema of an object."""
    places: dict[str, ArgumentPlace]


def collect_arguments(
    arguments: Iterable[Argument], schemas: Schemas, demands: Iterable[Demand] = ()
) -> Arguments:
    """`demands`: on the fields of the body. Raises NoTool where their schemas cannot be given."""
    properties: dict[str, Any] = {}
    places: dict[str, ArgumentPlace] = {}
    required, needs, parts = [], set[str](), 1
    for argument in arguments:
        name = _free_name(argument, properties.keys())
        properties[name] = _described(argument)
        places[name] = argument.place
        required += [name] if argument.required else []
        needs |= argument.converted.needs
        parts += argument.converted.parts
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    schema |= {"required": required} if required else {}
    schema |= _demanding(demands, places)
    definitions = schemas.definitions_for(frozenset(needs), parts=parts)
    return Arguments(schema | ({"$defs": definitions} if definitions else {}), places)


def _demanding(demands: Iterable[Demand], places: dict[str, ArgumentPlace]) -> dict[str, Any]:
    """What keeps arguments from breaking the demands.

    Written as what must not be, since some models' interfaces refuse tools with `anyOf` at their root.
    """
    argument_of = {
        steps[0]: name
        for name, place in places.items()
        if place.place == "body" and len(steps := steps_of(place.name)) == 1
    }
    broken: list[dict[str, Any]] = []
    for demand in demands:
        groups = [
            sorted(argument_of[field] for field in group if field in argument_of) for group in demand.of
        ]
        if not all(groups):
            continue
        if demand.only_one:
            broken.append({"not": {"oneOf": [{"required": group} for group in groups]}})
        elif all(len(group) == 1 for group in groups):
            broken.append({"properties": {group[0]: False for group in groups}})
        else:
            broken.append({"not": {"anyOf": [{"required": group} for group in groups]}})
    if not broken:
        return {}
    return {"not": broken[0] if len(broken) == 1 else {"anyOf": broken}}


def convert_as_text(schemas: Schemas, raw: Any, pointer: str, *, needed: bool) -> Converted:
    """The schema of what is not written as JSON: `needed` lists have items, as empty ones would not be there.

    Raises NoTool.
    """
    converted = schemas.convert_text(raw, pointer)
    is_list = needed and "array" in types_of(raw, schemas.document.object_at, pointer)
    return with_an_item(converted) if is_list else converted


def with_an_item(converted: Converted) -> Converted:
    """The same, of lists only those that have some."""
    schema = {} if converted.schema is True else converted.schema
    fewest = schema.get("minItems")
    if isinstance(fewest, int) and fewest > 0:
        return converted
    return Converted(schema | {"minItems": 1}, converted.needs, converted.parts)


def _free_name(argument: Argument, taken: Iterable[str]) -> str:
    """`id`, else `id_query`, else with a number."""
    plain = UNFIT.sub("_", argument.wanted).strip("_")[:LONGEST_NAME] or argument.place.place
    taken, placed = set(taken), f"{plain[: LONGEST_NAME - 8]}_{argument.place.place}"
    name, number = plain, 2
    if name in taken:
        name = placed
    while name in taken:
        name, number = f"{placed[: LONGEST_NAME - 4]}_{number}", number + 1
        if number > 999:
            raise NoTool("Too many of its parameters have the same name.")
    return name


def _described(argument: Argument) -> Any:
    schema = argument.converted.schema
    if not argument.description:
        return schema
    return {"description": argument.description} | ({} if schema is True else _without_description(schema))


def _without_description(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, dict):
        return {"not": {}}
    return {key: value for key, value in schema.items() if key != "description"}
