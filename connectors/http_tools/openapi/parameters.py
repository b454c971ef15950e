"""Parameters of an operation, and the arguments that they and the fields of its body become."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from connectors.formats.json_schema import NESTED, item_types_of, pointer_of, steps_of, types_of
from connectors.http_tools.openapi.document import (
    LONGEST_ARGUMENT_DESCRIPTION,
    Document,
    NoTool,
    is_json,
    plain_text,
    quoted,
)
from connectors.http_tools.openapi.schemas import Converted, Schemas
from connectors.http_tools.tool import ArgumentPlace, Constant, parameters_in
from connectors.network.headers import CONSTANT_ONLY, objection_to_name

UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")
LONGEST_NAME = 64  # Characters of an argument's name; model APIs allow no more, and no others
IGNORED_HEADERS = frozenset({"accept", "content-type", "authorization"})
"""OpenAPI ignores parameters of these names; some servers still check `accept`."""
MEDIA_TYPE = re.compile(r"[\w!#$&^.+*-]{1,100}/[\w!#$&^.+*-]{1,100}", re.ASCII)
USUAL_STYLE = {"path": "simple", "query": "form", "header": "simple"}
MAX_PARAMETERS = 500
LONGEST_PARAMETER_NAME = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Argument:
    """An argument without its final name."""

    place: ArgumentPlace
    wanted: str
    converted: Converted
    description: str = ""  # Replaces the schema's
    required: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """Fields of an object that are needed together or alternatively."""

    of: tuple[frozenset[str], ...]  # Groups of fields that go together
    only_one: bool = False  # Exactly one of the groups; else at least one


@dataclass(frozen=True, slots=True)
class Arguments:
    schema: dict[str, Any]
    places: dict[str, ArgumentPlace]


def collect_arguments(
    arguments: Iterable[Argument], schemas: Schemas, demands: Iterable[Demand] = ()
) -> Arguments:
    """`demands`: on the body's fields. Raises NoTool for schemas that cannot be given."""
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
    """A schema that enforces the demands. It uses `not`, since some model APIs refuse tools with `anyOf` at
    their root."""
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
    """The schema of a value that is not written as JSON. Raises NoTool. `needed` lists have items, as an
    empty list would be an omitted one."""
    converted = schemas.convert_text(raw, pointer)
    is_list = needed and "array" in types_of(raw, schemas.document.object_at, pointer)
    return with_an_item(converted) if is_list else converted


def with_an_item(converted: Converted) -> Converted:
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
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    rest = {key: value for key, value in schema.items() if key != "description"}
    return {"description": argument.description} | rest


@dataclass(frozen=True, slots=True)
class Parameter:
    raw: dict[str, Any]
    pointer: str

    @property
    def name(self) -> str:
        return str(self.raw["name"])

    @property
    def where(self) -> str:
        return str(self.raw["in"])

    @property
    def is_required(self) -> bool:
        return self.raw.get("required") is True or self.where == "path"


@dataclass(slots=True)
class Parameters:
    document: Document
    schemas: Schemas
    key: tuple[str, str] | None = None  # Where the product puts the API key, which is therefore no argument
    notes: list[str] = field(default_factory=list)  # What is left out, in sentences
    known: dict[str, Argument] = field(default_factory=dict)
    """By pointer: arguments shared with other operations."""
    constants: list[Constant] = field(default_factory=list)

    def arguments(self, path: str, lists: Iterable[tuple[Any, str]]) -> list[Argument]:
        """Of the path item's list and the operation's, which wins. Raises NoTool."""
        found: dict[tuple[str, str], Parameter] = {}
        for raw, pointer in lists:
            found |= {(one.where, _folded(one)): one for one in self._read(raw, pointer)}
        named = parameters_in(path)
        arguments = []
        for name in (name for name in named if ("path", name) not in found):
            self.notes.append(
                f"The document does not describe {{{name}}} of the path; it is taken as a text."
            )
            place = ArgumentPlace(place="path", name=name)
            converted = self.schemas.convert({"type": "string"}, "")
            arguments.append(Argument(place=place, wanted=name, converted=converted, required=True))
        for one in found.values():
            if one.where == "path" and one.name not in named:
                note = f"The path parameter {quoted(one.name)} is ignored: the path does not name it."
                self.notes.append(note)
            elif (argument := self._argument(one)) is not None:
                arguments.append(argument)
        return arguments

    def _read(self, raw: Any, pointer: str) -> Iterator[Parameter]:
        if raw is None:
            return
        if not isinstance(raw, list) or len(raw) > MAX_PARAMETERS:
            raise NoTool(f"Its parameters are no list of at most {MAX_PARAMETERS}.", pointer)
        for position, one in enumerate(raw):
            value, at = self.document.object_at(one, f"{pointer}/{position}")
            if not isinstance(value.get("name"), str) or not isinstance(value.get("in"), str):
                raise NoTool("A parameter has no name, or does not say where it goes.", at)
            yield Parameter(value, at)

    def _argument(self, one: Parameter) -> Argument | None:
        """None if it is left out. Raises NoTool for a required one that is unusable."""
        if one.pointer in self.known:
            return self.known[one.pointer]
        if (one.where, _folded(one)) == self.key:
            return None
        if one.where == "header" and one.name.lower() in IGNORED_HEADERS | CONSTANT_ONLY:
            if one.name.lower() == "accept":
                self.constants += self._accepted(one)
            return None
        if objection := self._objection(one):
            subject = f"{one.where} parameter {quoted(one.name)}"
            if one.is_required:
                raise NoTool(f"It needs the {subject}, {objection}.", one.pointer)
            self.notes.append(f"The {subject} is left out, {objection}.")
            return None
        if one.pointer not in self.known:
            self.known[one.pointer] = Argument(
                place=self._place(one),
                wanted=one.name,
                converted=self._converted(one),
                description=plain_text(one.raw.get("description"), LONGEST_ARGUMENT_DESCRIPTION),
                required=one.is_required,
            )
        return self.known[one.pointer]

    def _accepted(self, one: Parameter) -> list[Constant]:
        """JSON, else the first listed media type, if any."""
        raw = one.raw.get("schema")
        schema = self.document.object_at(raw, one.pointer)[0] if isinstance(raw, dict) else {}
        listed = schema.get("enum", [schema.get("const")])
        texts = [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else []
        names = sorted(filter(MEDIA_TYPE.fullmatch, texts), key=lambda name: "*" in name)
        chosen = [name for name in names if is_json(name)] or names
        return [Constant(place="header", name="Accept", value=name) for name in chosen[:1]]

    def _converted(self, one: Parameter) -> Converted:
        if media := _json_content(one):
            return self.schemas.convert(media[0], f"{one.pointer}/content{media[1]}/schema")
        raw, pointer = one.raw.get("schema", {}), f"{one.pointer}/schema"
        return convert_as_text(self.schemas, raw, pointer, needed=one.is_required)

    def _objection(self, one: Parameter) -> str:
        """`which is a cookie`; empty for a usable one."""
        if one.where == "cookie":
            return "and cookies are not sent"
        if one.where not in USUAL_STYLE:
            return f"and parameters in {quoted(one.where)} are not supported"
        if _json_content(one) is None:
            if "content" in one.raw:
                return "which is written by a media type of its own, and that is not supported"
            style = one.raw.get("style", USUAL_STYLE[one.where])
            if style != USUAL_STYLE[one.where]:
                return f"whose style {quoted(style)} is not supported"
            if objection := self._objection_to_schema(one):
                return objection
        if one.where == "header" and (objection := objection_to_name(one.name)):
            return f"which {objection}"
        return "" if 0 < len(one.name) <= LONGEST_PARAMETER_NAME else "whose name is empty or too long"

    def _objection_to_schema(self, one: Parameter) -> str:
        raw, at = one.raw.get("schema"), f"{one.pointer}/schema"
        types = types_of(raw, self.document.object_at, at)
        if types == {"object"}:
            return "which is an object, and those are sent in bodies only"
        if types == {"array"} and item_types_of(raw, self.document.object_at, at) & NESTED:
            return "which is a list of more than texts, and those are sent in bodies only"
        return ""

    def _place(self, one: Parameter) -> ArgumentPlace:
        as_json = _json_content(one) is not None
        if one.where == "query":
            explode = one.raw.get("explode") is not False
            return ArgumentPlace(place="query", name=one.name, explode=explode, as_json=as_json)
        if one.where == "header":
            return ArgumentPlace(place="header", name=one.name, as_json=as_json)
        # GitHub's word, and OpenAPI 3.2's, for a value with slashes in it.
        slashes = one.raw.get("x-multi-segment") is True or one.raw.get("allowReserved") is True
        return ArgumentPlace(place="path", name=one.name, slashes=slashes, as_json=as_json)


def _json_content(one: Parameter) -> tuple[Any, str] | None:
    """The schema of a parameter that is written as JSON, and the step that leads there."""
    content = one.raw.get("content")
    for name, media in content.items() if isinstance(content, dict) else ():
        if is_json(name) and isinstance(media, dict):
            return media.get("schema", {}), pointer_of([name])
    return None


def _folded(one: Parameter) -> str:
    return one.name.lower() if one.where == "header" else one.name
