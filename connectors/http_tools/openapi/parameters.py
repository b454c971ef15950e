"""Parameters and the body of an operation, and the arguments that they become."""

import re
from collections.abc import Container, Iterable, Iterator, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any
from urllib.parse import parse_qsl, quote

from connectors.formats.json import as_object
from connectors.formats.json_schema import (
    MAX_LOOKED_AT,
    NESTED,
    item_types_of,
    parts_of,
    pointer_of,
    steps_of,
    types_of,
)
from connectors.http_tools.openapi.document import (
    MAX_ARGUMENT_DESCRIPTION,
    MAX_LISTED,
    SEVERAL_BODIES,
    Document,
    Located,
    MissingTarget,
    NoTool,
    checked_object,
    mapping_of,
    plain_text,
    quoted,
)
from connectors.http_tools.openapi.schemas import (
    CHOICES,
    COMPOSITIONS,
    Converted,
    Schemas,
    accept_nulls,
    is_exclusive,
    is_left_out,
    only_requires,
    or_null,
    required_by,
    spelt_out,
)
from connectors.http_tools.request import (
    MERGE_PATCH,
    PATCHES,
    SENT_AS_JSON,
    can_hold,
    choose_media_type,
    is_form,
    is_json,
    is_json_lines,
    is_multipart,
    is_raw,
    is_yaml,
    patch_of,
    plain_name,
)
from connectors.http_tools.tool import MAX_PATH_LENGTH, ArgumentPlace, BodyFormat, Constant, Separator
from connectors.network.headers import CONSTANT_ONLY, TOKEN, objection_to_name

Named = dict[tuple[str, str], tuple[str, str]]
"""By place and name: `+` if the value has one or more segments, `*` if it has any number; and its pattern."""
BRACES = re.compile(r"\{((?:[^{}]|\{[^{}]*\})*+)\}")
OTHERS = (  # Flask's `<path:name>` and `<name>`, and `:name` and `*name`, in braces
    (re.compile(r"<path:([^<>{}/:]+)>"), r"{\1+}"),
    (re.compile(r"<(?:[^<>{}/:]+:)?([^<>{}/:]+)>"), r"{\1}"),
    (re.compile(r"(?<=/):(\w+[*+?]?)(?=/|\Z)"), r"{\1}"),
    (re.compile(r"(?<=/)(\*\w+)(?=/|\Z)"), r"{\1}"),
)
PARAMETER = re.compile(r"(\+|\*{1,2})?([^:=?*+/]+?)(\+|\*|\.{2,3})?([:=?].*)?", re.DOTALL)
SEVERAL = {"+": "+", "*": "*", "**": "*", "..": "*", "...": "*", "path": "*"}
CONSTRAINT = re.compile(r"\Z|\w+(?:[(:?=]|\Z)")  # Such as `int` and `min(1)` of ASP.NET
ANY_TEXT = re.compile(r"\^?\(?(?:\.|\[[^\]]+\])\*\??\)?\$?")
# Parts of regular expressions, which are not compiled: they may be hostile.
NO_SLASH = re.compile(r"\[\^[^\[\]/]*+/[^\[\]]*+\]|\[(?!\^)[^\[\]/]*+\]|\\[^SDW]")
CLASS = re.compile(r"\[[^\[\]]*+\]")
SLASH = re.compile(r"[/.]|\\[SDW]|\[\^")


def read_path(path: str, pointer: str) -> tuple[str, list[Constant], Named]:
    """The path with plain names in braces, the constants of its query, and its parameters. Raises NoTool."""
    text = path[: MAX_PATH_LENGTH + 1]  # A longer one is refused later.
    for form, braces in OTHERS:
        text = form.sub(braces, text)
    named: Named = {}
    written, end = "", 0
    for found in BRACES.finditer(text):
        written, end = written + text[end : found.start()], found.end()
        operator, inner = found[1][:1], found[1][1:]
        before = operator if operator in ("/", ".") else ""
        if operator in ("?", "&"):
            names = (name.strip(" *").partition(":")[0] for name in inner.split(","))
            named |= {("query", name): ("", "") for name in names if name}
        elif operator == ";" or (before and "," in inner):
            raise NoTool(f"Its path {quoted(path)} has {found[0]}, which is not supported.", pointer)
        elif operator != "#":
            name, mark, pattern = read_parameter(found[1].removeprefix(before))
            named["path", name] = mark, pattern
            written += f"{before}{{{name}}}"
    return *_split_query(written + text[end:], pointer), named


def _split_query(path: str, pointer: str) -> tuple[str, list[Constant]]:
    """A fragment distinguishes operations of one address and is never sent."""
    plain, _, query = path.partition("#")[0].partition("?")
    if "{" in query:
        raise NoTool(f"Its path {quoted(path)} has a parameter after the '?'.", pointer)
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=20)
    except ValueError:
        raise NoTool(f"Its path {quoted(path)} has an invalid query after the '?'.", pointer) from None
    return plain, [Constant(place="query", name=name, value=value) for name, value in pairs if name]


def read_parameter(text: str) -> tuple[str, str, str]:
    """The plain name, whether the value has several segments, and otherwise its regular expression."""
    if (found := PARAMETER.fullmatch(text.strip())) is None:
        return text, "", ""
    before, name, after, rest = found.groups(default="")
    pattern = rest[1:].strip() if rest.startswith(":") else ""
    mark = SEVERAL.get(before or after or pattern, "")
    if rest.startswith("=") and "*" in rest:  # Google's `{name=projects/*}`
        mark = "+"
    elif CONSTRAINT.match(pattern):
        pattern = ""
    elif not mark and SLASH.search(NO_SLASH.sub("", pattern.replace("\\/", "/"))):
        mark = "*" if ANY_TEXT.fullmatch(pattern) else "+"
    return name.strip(), mark, "" if mark else pattern


def slashes_in(pattern: str) -> str:
    """Reads a schema's pattern: `segments` for `projects/[^/]+`, `characters` for `[a-z/]+`; else empty."""
    if pattern.startswith("/") or "(?!" in pattern:  # Such as `/^a$/`, and what is no slash
        return ""
    rest = NO_SLASH.sub("", pattern[:MAX_PATH_LENGTH].replace("\\/", "/"))
    return "segments" if "/" in CLASS.sub("", rest) else "characters" if "/" in rest else ""


UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")
SIGNS = {"<": "lt", ">": "gt", "=": "eq", "!": "not", "+": "plus"}
MAX_NAME_LENGTH = 64  # Characters of an argument's name; model APIs allow no more, and no others
WITH_SEGMENTS = ("x-multi-segment", "allowReserved", "x-ms-skip-url-encoding")  # GitHub, OpenAPI 3.2, Azure
IGNORED_HEADERS = frozenset({"accept", "content-type", "authorization"})
"""OpenAPI ignores parameters of these names; some servers still check `accept`."""
MEDIA_TYPE = re.compile(r"[\w!#$&^.+*-]{1,100}/[\w!#$&^.+*-]{1,100}", re.ASCII)
DEFAULT_STYLE = {"path": "simple", "query": "form", "header": "simple", "cookie": "form"}
SEPARATED: dict[str, Separator] = {"pipeDelimited": "|", "spaceDelimited": " "}
MAX_PARAMETERS = 500
MAX_PARAMETER_NAME = 490  # Of the 500 of a declaration: brackets may follow it
MAX_ALL_OF_DEPTH = 8  # `allOf` within `allOf`
MAX_FIELDS = 1_000
OPEN = frozenset(  # Keywords of objects that a list of fields cannot express
    ["patternProperties", "unevaluatedProperties", "propertyNames", "dependentSchemas", "if", "not"]
)
TWO_LINES = re.compile(r"\{.*\}[ \t]*\n[ \t]*\{")  # Of JSON lines
MAX_ALTERNATIVES = MAX_MEDIA_TYPES = 50
NOT_LISTED = OPEN | {"additionalProperties", "discriminator", *COMPOSITIONS}
WHOLE = "body"
DEEP = "deepObject"
DEFAULT_BRACKETS = (
    "OpenAPI does not say how a list of objects such as the query parameter {} is sent; brackets are used: {}"
)
ENCODED_OTHERWISE = "which has an unsupported encoding"
HOW_TO_GIVE = "{}: its text, or for anything else a data: URI in base64, such as data:image/png;{}base64,..."
ANY_BODY: dict[str, Any] = {"content": {"application/json": {"schema": {}}}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Argument:
    """An argument without its final name."""

    place: ArgumentPlace
    wanted: str
    converted: Converted
    description: str = ""  # Replaces the schema's
    required: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RequiredGroup:
    """Fields of an object that are needed together or alternatively."""

    of: tuple[frozenset[str], ...]  # Groups of fields that go together
    only_one: bool = False  # Exactly one of the groups; else at least one


def collect_arguments(
    arguments: list[Argument], schemas: Schemas, body: "Body", notes: list[str]
) -> tuple[dict[str, Any], dict[str, ArgumentPlace]]:
    """The input schema, and where its arguments go, those of the body among them. Adds to `notes`. Raises
    NoTool for schemas that cannot be given."""
    properties: dict[str, Any] = {}
    places: dict[str, ArgumentPlace] = {}
    required, needs, parts, found = [], set[str](), 1, list[str]()
    # A name that the API has is kept for its owner.
    taken = {argument.wanted for argument in (*arguments, *body.arguments)}
    for argument in (*arguments, *body.arguments):
        if argument.wanted not in properties:
            taken.discard(argument.wanted)
        name = _free_name(argument, taken)
        taken.add(name)
        properties[name] = _described(argument, name)
        if body.is_merge_patch and argument.place.place == "body":
            taking = accept_nulls(properties[name])
            properties[name] = or_null(taking) if argument.place.name else taking
        places[name] = argument.place
        required += [name] if argument.required else []
        needs |= argument.converted.needs
        parts += argument.converted.parts
        found += argument.converted.notes
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    schema |= {"required": required} if required else {}
    schema |= _demanding(body.demands, places) | ({"description": body.remark} if body.remark else {})
    definitions = schemas.definitions_for(frozenset(needs), found, parts=parts)
    notes += [*dict.fromkeys(found)][:50]
    if body.is_merge_patch:
        definitions = {name: accept_nulls(one) for name, one in definitions.items()}
    return schema | ({"$defs": definitions} if definitions else {}), places


def _demanding(demands: Iterable[RequiredGroup], places: dict[str, ArgumentPlace]) -> dict[str, Any]:
    """A schema that enforces the demands. It uses `not`, since some model APIs refuse tools with `anyOf` at
    their root."""
    argument_of = {
        steps[0]: name
        for name, place in places.items()
        if place.place == "body" and len(steps := steps_of(place.name)) == 1
    }
    broken: list[dict[str, Any]] = []
    for demand in demands:
        groups = [sorted(argument_of[one] for one in group if one in argument_of) for group in demand.of]
        if not all(groups):
            continue
        if demand.only_one or any(len(group) > 1 for group in groups):
            word = "oneOf" if demand.only_one else "anyOf"
            broken.append({"not": {word: [{"required": group} for group in groups]}})
        else:
            broken.append({"properties": {group[0]: False for group in groups}})
    if not broken:
        return {}
    return {"not": broken[0] if len(broken) == 1 else {"anyOf": broken}}


def with_an_item(converted: Converted) -> Converted:
    schema = {} if converted.schema is True else converted.schema
    return replace(converted, schema=schema | {"minItems": schema.get("minItems") or 1})


def _free_name(argument: Argument, taken: Container[str]) -> str:
    """`id`, else `id_query`, else with a number."""
    plain = UNFIT.sub(_in_words, argument.wanted).strip("_")[:MAX_NAME_LENGTH] or argument.place.place
    placed = f"{plain[: MAX_NAME_LENGTH - 8]}_{argument.place.place}"
    numbered = (f"{placed[: MAX_NAME_LENGTH - 4]}_{number}" for number in range(2, 1_000))
    for name in chain((plain, placed), numbered):
        if name not in taken:
            return name
    raise NoTool("Too many of its parameters have the same name.")


def _in_words(unfit: re.Match[str]) -> str:
    """`Begin>=` is `Begin_gt_eq`."""
    return "_".join(["", *(SIGNS[sign] for sign in unfit[0] if sign in SIGNS), ""])


def _described(argument: Argument, name: str) -> Any:
    schema = argument.converted.schema
    description = argument.description
    if name not in (argument.wanted, f"{argument.wanted}_{argument.place.place}"):
        inner = schema.get("description") if isinstance(schema, dict) else None
        known = description or (inner if isinstance(inner, str) else "")
        description = f"Called {quoted(argument.wanted)} in the API. {known}".strip()
    if not description:
        return schema
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    rest = {key: value for key, value in schema.items() if key != "description"}
    return {"description": description} | rest


@dataclass(frozen=True, slots=True)
class Parameter:
    raw: dict[str, Any]
    pointer: str
    where: str
    name: str

    @property
    def is_required(self) -> bool:
        return self.raw.get("required") is True or self.where == "path"


@dataclass(slots=True)
class Field:
    name: str
    required: bool = False
    schemas: list[tuple[Any, str]] = field(default_factory=list)  # All must match; each with its pointer

    @property
    def pointer(self) -> str:
        return self.schemas[0][1]


@dataclass(slots=True)
class Parameters:
    document: Document
    schemas: Schemas
    keys: Set[tuple[str, str]] = frozenset()  # Places that the source fills, so they are not arguments
    notes: list[str] = field(default_factory=list)  # What is left out, in sentences
    known: dict[tuple[str, str], Argument] = field(default_factory=dict)
    """By pointer and description: arguments shared with other operations."""
    constants: list[Constant] = field(default_factory=list)

    def arguments(self, named: Named, lists: Iterable[tuple[Any, str]]) -> list[Argument]:
        """Reads the lists of the path items and the operation, of which later ones take precedence; `named`
        in the path. Raises NoTool."""
        found: dict[tuple[str, str], Parameter] = {}
        for raw, pointer in lists:
            found |= {(one.where, _folded(one)): one for one in self._read(raw, pointer)}
        undescribed = [at for at in named if at not in found and at not in self.keys]
        self.notes += [
            f"The document does not describe the {where} parameter {{{name}}}; it is taken as a string."
            for where, name in undescribed
        ]
        found = {at: Parameter({"schema": {"type": "string"}}, "", *at) for at in undescribed} | found
        objects = {
            at: fields.fields.values()
            for at, one in found.items()
            if self._types_of_several(one)[0] == {"object"}
            and (fields := fields_of(self.document, one.raw.get("schema"), f"{one.pointer}/schema"))
        }
        others = found.keys() - objects.keys()
        arguments: list[Argument] = []
        for at, one in found.items():
            if one.where == "path" and at not in named:
                note = f"The path parameter {quoted(one.name)} is ignored: the path does not contain it."
                self.notes.append(note)
            elif at in objects:
                # A parameter of its own describes its place better than an object's field.
                own = (each for each in objects[at] if ("query", each.name) not in others | self.keys)
                arguments += self._spread(one, own)
            elif (argument := self._argument(one)) is not None:
                if argument.place.brackets and _style_of(one) != DEEP:
                    self.notes.append(DEFAULT_BRACKETS.format(quoted(one.name), f"{one.name}[0][...]=..."))
                if one.where == "path":
                    argument = self._in_path(argument, at[1], *named[at])
                arguments.append(argument)
        return arguments

    def _in_path(self, argument: Argument, name: str, mark: str, pattern: str) -> Argument:
        """Adds what the path says: `+` or `*` for several segments, or the value's pattern."""
        place, converted = argument.place, argument.converted
        if mark:
            place = place.model_copy(update={"name": f"{mark}{name}", "slashes": True})
        if pattern and isinstance(schema := converted.schema, dict) and schema.get("type") == "string":
            of_path = self.schemas.convert({"type": "string", "pattern": f"^(?:{pattern})$"}, "").schema
            converted = replace(converted, schema=of_path | schema)
        return replace(argument, place=place, wanted=name, converted=converted)

    def _types_of_several(self, one: Parameter) -> tuple[set[str], set[str]]:
        """The types of a value whose entries are query parameters of their own, and of its items; else none.
        No style says how to send lists of objects, but web frameworks (PHP, Rails, Express, ASP.NET) and
        their clients have brackets for them."""
        if one.where != "query" or _style_of(one) != "form" or one.raw.get("explode") is False:
            return set(), set()
        return types_and_items(self.document, [(one.raw.get("schema"), f"{one.pointer}/schema")])

    def _spread(self, one: Parameter, fields: Iterable[Field]) -> Iterator[Argument]:
        """Raises NoTool. A field is required only with its object."""
        for each in fields:
            subject, required = f"query parameter {quoted(each.name)}", one.is_required and each.required
            objection = text_encoding_error(self.document, each.schemas)
            if leaves_out(subject, objection, each.pointer, self.notes, needed=required):
                continue
            yield Argument(
                place=ArgumentPlace(place="query", name=each.name),
                wanted=each.name,
                converted=convert_field(self.schemas, each, as_text=True, needed=required),
                required=required,
            )

    def _read(self, raw: Any, pointer: str) -> Iterator[Parameter]:
        if raw is None:
            return
        if not isinstance(raw, list) or len(raw) > MAX_PARAMETERS:
            raise NoTool(f"Its parameters must be a list of at most {MAX_PARAMETERS}.", pointer)
        for position, one in enumerate(raw):
            try:
                value, at = self.document.described_at(one, f"{pointer}/{position}")
            except MissingTarget as missing:
                target = quoted(f"#{missing.target}")
                self.notes.append(f"{target} does not exist; this parameter is left out.")
                continue
            where, name = value.get("in"), value.get("name")
            if not isinstance(where, str) or not isinstance(name, str):
                raise NoTool("A parameter must have the keys name and in.", at)
            schema = self.document.object_or_nothing(value.get("schema"), f"{at}/schema", self.notes)
            value = value if schema is value.get("schema") else value | {"schema": schema}
            yield Parameter(value, at, where, name)

    def _argument(self, one: Parameter) -> Argument | None:
        """None if it is left out. Raises NoTool for a required one that is unusable."""
        key = one.pointer or f"{one.where} {one.name}", str(one.raw.get("description"))
        if key in self.known:
            return self.known[key]
        if (one.where, _folded(one)) in self.keys:
            return None
        if one.where == "header" and one.name.lower() in IGNORED_HEADERS | CONSTANT_ONLY:
            if one.name.lower() == "accept":
                self.constants += self._accepted(one)
            return None
        subject, needed = f"{one.where} parameter {quoted(one.name)}", one.is_required
        if leaves_out(subject, self._objection(one), one.pointer, self.notes, needed=needed):
            return None
        argument = self.known[key] = Argument(
            place=self._place(one),
            wanted=one.name,
            converted=self._converted(one),
            description=plain_text(one.raw.get("description"), MAX_ARGUMENT_DESCRIPTION),
            required=one.is_required,
        )
        return argument

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
        plain = Field(one.name, schemas=[(one.raw.get("schema", {}), f"{one.pointer}/schema")])
        return convert_field(self.schemas, plain, as_text=True, needed=one.is_required)

    def _objection(self, one: Parameter) -> str:
        """`which is an object`; empty for a usable one."""
        if one.where not in DEFAULT_STYLE:
            return f"and parameters in {quoted(one.where)} are not supported"
        if _json_content(one) is None or one.where == "cookie":
            if "content" in one.raw:
                return "which has a media type that is not supported"
            if objection := self._objection_to_value(one):
                return objection
        if one.where == "header" and (objection := objection_to_name(one.name)):
            return f"which {objection}"
        if one.where == "cookie" and not TOKEN.fullmatch(one.name):
            return "which is not a valid name of a cookie"
        return "" if 0 < len(one.name) <= MAX_PARAMETER_NAME else "which has an empty or too long name"

    def _objection_to_value(self, one: Parameter) -> str:
        style, raw, at = _style_of(one), one.raw.get("schema"), f"{one.pointer}/schema"
        if style != DEFAULT_STYLE[one.where] and not (one.where == "query" and style in {DEEP, *SEPARATED}):
            return f"which has the unsupported style {quoted(style)}"
        if one.where == "cookie" and types_of(raw, self.document.object_at, at) in ({"array"}, {"object"}):
            return "which is a list or object, and cookies are strings"
        types, items = self._types_of_several(one)
        if style == DEEP or (types == {"array"} and items == {"object"}):
            return objection_to_brackets(self.document, [(raw, at)])
        if types == {"object"}:
            schema, at = self.document.object_at(raw, at)
            raw, at = schema.get("additionalProperties"), f"{at}/additionalProperties"
        return text_encoding_error(self.document, [(raw, at)])

    def _place(self, one: Parameter) -> ArgumentPlace:
        as_json, style, name = _json_content(one) is not None, _style_of(one), one.name
        located = one.raw.get("schema"), f"{one.pointer}/schema"
        if one.where == "path":
            schema, _ = self.document.object_at(located[0] or {}, located[1])
            slashes = slashes_in(str(schema.get("pattern")))
            # Swagger 2 has the words in the schema.
            has_segments = slashes == "segments" or True in map((schema | one.raw).get, WITH_SEGMENTS)
            name, is_wide = f"{'+' if has_segments else ''}{_folded(one)}", has_segments or bool(slashes)
            return ArgumentPlace(place="path", name=name, slashes=is_wide, as_json=as_json)
        if one.where != "query":
            return ArgumentPlace(place=one.where, name=name, as_json=as_json)  # type: ignore[arg-type]
        is_deep, (types, items) = style == DEEP and not as_json, self._types_of_several(one)
        is_list = is_deep and is_list_of_scalars(self.document, [located])
        return ArgumentPlace(
            place="query",
            name=f"{name}[]" if is_list else name,
            explode=is_deep or one.raw.get("explode", style not in SEPARATED) is not False,
            separator=SEPARATED.get(style, ","),
            as_json=as_json,
            brackets=is_deep != is_list or (types == {"array"} and items == {"object"}),
            spread=types == {"object"},
        )


def _style_of(one: Parameter) -> str:
    return str(one.raw.get("style", DEFAULT_STYLE[one.where]))


def _json_content(one: Parameter) -> tuple[Any, str] | None:
    """The schema of a parameter that is written as JSON, and its pointer below `content`."""
    for name, media in as_object(one.raw.get("content")).items():
        if is_json(name) and isinstance(media, dict):
            return media.get("schema", {}), pointer_of([name])
    return None


def _folded(one: Parameter) -> str:
    if one.where == "path":
        return read_parameter(one.name)[0]
    return one.name.lower() if one.where == "header" else one.name


def convert_field(schemas: Schemas, one: Field, *, as_text: bool, needed: bool) -> Converted:
    """Raises NoTool. `needed` lists outside of JSON have items, as an empty one would be an omitted one."""
    parts = []
    for raw, pointer in one.schemas:
        part = schemas.convert_text(raw, pointer) if as_text else schemas.convert(raw, pointer)
        is_list = as_text and needed and "array" in types_of(raw, schemas.document.object_at, pointer)
        parts.append(with_an_item(part) if is_list else part)
    if len(parts) == 1:
        return parts[0]
    return Converted(
        {"allOf": [part.schema for part in parts]},
        frozenset().union(*(part.needs for part in parts)),
        1 + sum(part.parts for part in parts),
        tuple(note for part in parts for note in part.notes),
    )


def _alternatives(document: Document, raw: Any, pointer: str, seen: list[str]) -> list[list[dict[str, Any]]]:
    """The parts of an object's schema, for each of its alternatives, without what a list of fields cannot
    express. Raises NoTool."""
    schema, pointer = document.object_at(raw, pointer)
    plain = {key: value for key, value in schema.items() if key not in NOT_LISTED}
    found, too_many = [[plain]], NoTool("Its body is a form with too many alternatives.", pointer)
    seen.append(pointer)
    if len(seen) > MAX_ALTERNATIVES:
        raise too_many
    for word in COMPOSITIONS:
        if word in CHOICES and only_requires(schema.get(word)):
            plain |= {word: schema[word]} if word in schema else {}
            continue
        choices = [_alternatives(document, *part, seen) for part in parts_of(schema, word, pointer)]
        for choice in choices if word == "allOf" else [list(chain.from_iterable(choices))]:
            found = [parts + more for parts in found for more in choice]
            if len(found) > MAX_ALTERNATIVES:
                raise too_many
    return found


def fields_of(document: Document, raw: Any, pointer: str) -> "Fields | None":
    """None for a body that makes sense only as a whole. Raises NoTool."""
    gathered = Fields(document)
    if not isinstance(raw, dict) or not gathered.collect(raw, pointer):
        return None
    if not gathered.fields and gathered.left_out:
        # Without its read-only fields, the body would always be {}.
        gathered = Fields(document, with_read_only=True)
        gathered.collect(raw, pointer)
    if not gathered.fields:
        return None
    for name in gathered.required & gathered.fields.keys():
        gathered.fields[name].required = True
    # A field that is required but not described takes any value.
    for name in sorted(gathered.required - gathered.fields.keys() - gathered.left_out):
        gathered.fields[name] = Field(name, required=True, schemas=[({}, pointer)])
    if gathered.at_least > 1 and gathered.at_least > len(gathered.required):
        return None
    if (longest := max(len(pointer_of([name])) for name in gathered.fields)) > MAX_PARAMETER_NAME:
        told = f"A field's name has {longest:,} characters; at most {MAX_PARAMETER_NAME} can be sent."
        raise NoTool(told, pointer)
    gathered.demands = [*gathered.needed()]
    return gathered


@dataclass(slots=True)
class Fields:
    document: Document
    fields: dict[str, Field] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)
    demands: list[RequiredGroup] = field(default_factory=list)
    at_least: int = 0  # How many fields are required, no matter which
    parts: int = 0
    with_read_only: bool = False
    is_subtype: bool = False

    def collect(self, raw: Any, pointer: str, depth: int = 0) -> bool:
        """Returns True if the fields express the whole schema."""
        reference = pointer
        try:
            schema, pointer = self.document.object_at(raw, pointer)
        except MissingTarget:
            return False
        self.parts += 1
        if depth > MAX_ALL_OF_DEPTH or self.parts > MAX_FIELDS or not _is_plain(schema):
            return False
        self.required |= required_by(schema)
        fewest = schema.get("minProperties", 0)
        if isinstance(fewest, int) and not isinstance(fewest, bool):
            self.at_least = max(self.at_least, fewest)
        for word in CHOICES:
            groups = [required_by(one) for one in schema.get(word) or ()]
            if groups:
                only_one = word == "oneOf" and is_exclusive(schema[word])
                self.demands.append(RequiredGroup(of=tuple(groups), only_one=only_one))
        self._collect_properties(schema.get("properties", {}), f"{pointer}/properties")
        if len(self.fields) > MAX_FIELDS or not all(
            self.collect(part, at, depth + 1) for part, at in parts_of(schema, "allOf", pointer)
        ):
            return False
        is_alone = self.is_subtype or self.document.is_own_base(pointer, reference)
        subtypes = [] if is_alone else self.document.subtypes_of(pointer)
        named = schema.get("discriminator")
        name = as_object(named).get("propertyName") if isinstance(named, dict) else named
        # Some documents have the field that tells subtypes apart only there.
        if subtypes and isinstance(name, str) and name not in self.left_out:
            self.fields.setdefault(name, Field(name, schemas=[({"type": "string"}, pointer)]))
        return self._collect_subtypes(subtypes)

    def _collect_subtypes(self, subtypes: Iterable[str]) -> bool:
        """Adds their fields, which are optional and say whose they are."""
        others: dict[str, list[tuple[str, Any, str]]] = {}
        for one in subtypes:
            kind = replace(Fields(self.document), parts=self.parts, is_subtype=True)
            if not kind.collect(*self.document.follow(f"#{quote(one)}", one)):
                return False
            self.parts = kind.parts
            for each in kind.fields.values():
                if each.name not in self.fields:
                    others.setdefault(each.name, []).extend((one, *located) for located in each.schemas)
        for name, found in others.items():
            raws = [*{repr(raw): raw for _, raw, _ in found}.values()]
            raw = raws[0] if len(raws) == 1 and isinstance(raws[0], dict) else {"anyOf": raws}
            kinds = ", ".join(dict.fromkeys(steps_of(one)[-1] for one, _, _ in found))[:MAX_NAME_LENGTH]
            said = plain_text(raw.get("description"), MAX_ARGUMENT_DESCRIPTION)
            described = raw | {"description": f"Of {kinds}. {said}".strip()}
            self.fields[name] = Field(name, schemas=[(described, found[0][2])])
        return True

    def needed(self) -> Iterator[RequiredGroup]:
        """Demands that required fields do not meet, without impossible alternatives."""
        known = self.fields.keys()
        for demand in self.demands:
            possible = tuple(dict.fromkeys(group for group in demand.of if group <= known))
            is_always = any(group <= self.required for group in possible)
            if possible and (demand.only_one or not is_always):
                yield RequiredGroup(of=possible, only_one=demand.only_one)
        if self.at_least == 1 and not self.required:
            yield RequiredGroup(of=tuple(frozenset([name]) for name in self.fields))

    def _collect_properties(self, properties: dict[str, Any], pointer: str) -> None:
        for name, raw in checked_object(properties, pointer, "An object with named schemas").items():
            at = f"{pointer}{pointer_of([name])}"
            if not self.with_read_only and is_left_out(self.document, raw, "request"):
                self.left_out.add(name)
                continue
            known = self.fields.setdefault(name, Field(name))
            if all(raw != other for other, _ in known.schemas):
                known.schemas.append((raw, at))


def _is_plain(schema: dict[str, Any]) -> bool:
    if OPEN & schema.keys() or schema.get("additionalProperties") not in (None, False):
        return False
    named = schema.get("type", "object")
    if named != "object" and spelt_out(named) != ["object", "null"]:
        return False
    if not isinstance(schema.get("properties", {}), dict) or not isinstance(schema.get("allOf", []), list):
        return False
    # A base schema of several kinds of objects, each with further fields.
    return not mapping_of(schema) and all(only_requires(schema.get(word)) for word in CHOICES)


def has_inner_lists(document: Document, raw: Any) -> bool:
    """Returns True if a list that may contain strings is below the outermost value. Raises NoTool."""
    waiting, seen = [(raw, False)], set[tuple[int, bool]]()
    while waiting:
        raw, is_inner = waiting.pop()
        for one in document.for_the_same_value(raw, COMPOSITIONS):
            if (id(one), is_inner) in seen:
                continue
            seen.add((id(one), is_inner))
            is_list = is_inner and "array" in types_of({"type": one.get("type")}, document.object_at)
            items = item_types_of(one, document.object_at) if is_list else frozenset()
            # A schema that is too large to search may have some.
            if len(seen) > MAX_LOOKED_AT or (is_list and not (items and items <= NESTED)):
                return True
            waiting += [(inner, True) for inner in as_object(one.get("properties")).values()]
            waiting += [(one.get(word), True) for word in ("items", "additionalProperties")]
    return False


def types_and_items(document: Document, schemas: list[Located]) -> tuple[set[str], set[str]]:
    """The types of the value, and of a list's items."""
    types = {found for raw, at in schemas for found in types_of(raw, document.object_at, at)}
    return types, {found for raw, at in schemas for found in item_types_of(raw, document.object_at, at)}


def is_list_of_scalars(document: Document, schemas: list[Located]) -> bool:
    """A list that needs brackets: `expand[]=a&expand[]=b`."""
    types, items = types_and_items(document, schemas)
    return types == {"array"} and not items & NESTED


def objection_to_brackets(document: Document, schemas: list[Located]) -> str:
    """Brackets are written as `a[b]=1` and `a[0][b]=1`, but inner lists of strings as `a[b]=1&a[b]=2`."""
    if any(has_inner_lists(document, raw) for raw, _ in schemas):
        return "which has lists of strings inside objects, and those cannot be expressed with brackets"
    types, items = types_and_items(document, schemas)
    # Objects are written with numbers, strings under another name; a list of both, or of unknown types,
    # has no notation that is right for all items.
    is_plain = types == {"array"} and bool(items) and not items & NESTED
    is_of_objects = bool(items) and items <= NESTED
    if "array" in types and not is_plain and not is_of_objects:
        return "which is a list of strings or other types, and those are written in different ways"
    return ""


def text_encoding_error(document: Document, schemas: list[Located]) -> str:
    """Returns why a value cannot be written outside of JSON without brackets; empty if it can."""
    types, items = types_and_items(document, schemas)
    kind = "an object" if types == {"object"} else ""
    if types == {"array"} and items & NESTED:
        kind = "a list of lists or objects"
    otherwise = "can only be sent as JSON; if the API reads JSON there, describe it with application/json"
    return f"which is {kind}, and those {otherwise}" if kind else ""


def leaves_out(subject: str, objection: str, pointer: str, notes: list[str], *, needed: bool) -> bool:
    """Returns True, and adds a note, if there is an objection. Raises NoTool if the subject is needed."""
    if objection and needed:
        raise NoTool(f"It requires the {subject}, {objection}.", pointer)
    notes += [f"The {subject} is left out, {objection}."] if objection else []
    return bool(objection)


@dataclass(slots=True)
class Body:
    arguments: list[Argument] = field(default_factory=list)
    body_format: BodyFormat = "json"
    constants: list[Constant] = field(default_factory=list)
    demands: list[RequiredGroup] = field(default_factory=list)  # On its fields
    is_merge_patch: bool = False
    remark: str = ""  # For agents


@dataclass(slots=True)
class Bodies:
    document: Document
    schemas: Schemas
    notes: list[str] = field(default_factory=list)

    def body(self, raw: Any, pointer: str) -> Body:
        """Raises NoTool."""
        is_usable = self.document.object_or_nothing(raw, pointer, self.notes) is raw
        described, pointer = self.document.described_at(raw if is_usable else ANY_BODY, pointer)
        content, at = self.document.object_at(described.get("content", {}), f"{pointer}/content")
        if not content:
            return Body()
        in_parts = any(map(is_multipart, content))
        offered = {
            name: self._types_in(media, f"{at}{pointer_of([name])}", beside_parts=in_parts)
            for name, media in list(content.items())[:MAX_MEDIA_TYPES]
        }
        if not (media_type := choose_media_type(offered)):
            listed = ", ".join(map(quoted, [*offered][:MAX_LISTED])) + ", ..." * (len(offered) > MAX_LISTED)
            raise NoTool(f"Its body is {listed}; only JSON, forms, text and files can be sent.", at)
        media, at = self.document.object_at(content[media_type], f"{at}{pointer_of([media_type])}")
        if is_raw(media_type, offered[media_type]):
            return self._raw(described, media, at, [name for name in offered if is_raw(name, offered[name])])
        if isinstance(names := described.get(SEVERAL_BODIES), list):
            listed = ", ".join(map(quoted, names[:MAX_LISTED]))
            self.notes.append(f"The document describes several bodies, {listed}; they are sent as one.")
        if is_form(media_type) or is_multipart(media_type):
            return self._form_body(described, media, media_type, f"{at}/schema")
        kinds = [name for name, types in offered.items() if patch_of(name) and can_hold(name, types)]
        kinds = sorted(kinds, key=media_type.__ne__) if media_type in kinds else [media_type]
        schemas = [as_object(content[name]).get("schema", {}) for name in kinds]
        if any(one != schemas[0] for one in schemas):
            media = media | {"schema": {"anyOf": schemas}}
        return self._json_body(described, media, kinds, offered[media_type], f"{at}/schema")

    def _types_in(self, raw: Any, pointer: str, *, beside_parts: bool) -> Set[str]:
        """Returns the types of a media type's values, as `can_hold` takes them."""
        with suppress(NoTool):
            media, at = self.document.object_at(raw, pointer)
            schema, at = media.get("schema"), f"{at}/schema"
            if self._is_file(schema):
                return {"file"}
            found = fields_of(self.document, schema, at) if beside_parts else None
            fields = found.fields.values() if found else ()
            if any(self._is_file(raw) for field in fields for raw, _ in field.schemas):
                return {"files"}
            return types_of(schema, self.document.object_at, at)
        return frozenset()

    def _json_body(
        self, described: dict[str, Any], media: dict[str, Any], kinds: list[str], types: Set[str], at: str
    ) -> Body:
        """`kinds`: its media type, or several that mean different things."""
        schema = media.get("schema", {})
        found = fields_of(self.document, schema, at)
        if SEVERAL_BODIES in described:
            found = found or self._fields_of_all(schema, at)
        examples = [as_object(one).get("value") for one in as_object(media.get("examples")).values()]
        examples += [one.get("example") for one in (media, *self.document.for_the_same_value(schema, ()))]
        # Elasticsearch's document has such examples, and calls them application/json.
        lines = types == {"array"} and any(isinstance(one, str) and TWO_LINES.match(one) for one in examples)
        if is_json_lines(kinds[0]):
            lines = True
            if types != {"array"}:
                schema = {"anyOf": [schema, {"type": "array", "items": schema}]}
        body = Body(constants=_constants(kinds[0]) if len(kinds) == 1 else [])
        if any(patch_of(name).endswith(MERGE_PATCH) for name in kinds):
            body.is_merge_patch, body.remark = True, "In a merge patch, null deletes what is there."
        # A body that may be omitted, but only as a whole, must be one argument; directives have no names.
        needed = found and (bool(found.demands) or any(one.required for one in found.fields.values()))
        as_whole = lines or len(kinds) > 1 or "strategic" in patch_of(kinds[0])
        if not found or as_whole or (needed and described.get("required") is False):
            body.arguments = [self._whole(schema, at, described, lines=lines), *_choice_of(kinds)]
            return body
        for name in {name for one in examples for name, value in as_object(one).items() if value is None}:
            if one := found.fields.get(name):
                one.schemas = [({"anyOf": [raw, {"type": "null"}]}, where) for raw, where in one.schemas]
        body.arguments = [self._field(one) for one in found.fields.values()]
        body.demands = found.demands
        return body

    def _form_body(
        self, described: dict[str, Any], media: dict[str, Any], media_type: str, pointer: str
    ) -> Body:
        schema, in_parts = media.get("schema"), is_multipart(media_type)
        if described.get("required") is not True:
            said = self.document.object_at(schema, pointer)[0] if isinstance(schema, dict) else {}
            known = {"type", "title", "description", "additionalProperties", "properties"}
            is_closed = said.get("additionalProperties") in (None, False)
            if said.get("properties") == {} and is_closed and said.keys() <= known:
                return Body()
        body = Body(body_format="multipart" if in_parts else "form")
        if found := fields_of(self.document, schema, pointer) or self._fields_of_all(schema, pointer):
            fields = self._form_fields(found.fields.values(), media.get("encoding"), in_parts=in_parts)
            body.arguments, body.demands = [*fields], found.demands
            return body
        raw, at = self.document.object_at(schema, pointer)
        entries = raw.get("additionalProperties"), f"{at}/additionalProperties"
        if types_of(raw, self.document.object_at, at) != {"object"}:
            raise NoTool("Its body is a form, but its schema is not an object.", pointer)
        if not in_parts and types_of(entries[0], self.document.object_at, entries[1]) == {"object"}:
            raise NoTool("Its body is a form whose fields are objects, with any names.", pointer)
        place = ArgumentPlace(place="body", name="", file=in_parts and self._is_file(entries[0]))
        converted = self.schemas.convert_text(schema, pointer)
        body.arguments = [replace(self._whole(schema, pointer, described), place=place, converted=converted)]
        return body

    def _fields_of_all(self, raw: Any, pointer: str) -> Fields | None:
        """The fields of a form that takes further fields, or has alternatives, with a note."""
        parts = _alternatives(self.document, raw, pointer, []) if isinstance(raw, dict) else []
        kinds = [found for one in parts if (found := fields_of(self.document, {"allOf": one}, pointer))]
        if len(kinds) < 2:
            self.notes += ["The body takes fields that the document does not list." for _ in kinds]
            return kinds[0] if kinds else None
        self.notes.append("The body has alternatives; the tool has the fields of all of them.")
        needed = [frozenset(one.name for one in kind.fields.values() if one.required) for kind in kinds]
        always, fields = frozenset.intersection(*needed), dict[str, Field]()
        for one in (one for kind in kinds for one in kind.fields.values()):
            own = one.schemas[0][0] if len(one.schemas) == 1 else {"allOf": [raw for raw, _ in one.schemas]}
            known = fields.setdefault(one.name, Field(one.name, one.name in always))
            known.schemas += [] if (own, one.pointer) in known.schemas else [(own, one.pointer)]
        for one in fields.values():
            if any(raw != one.schemas[0][0] for raw, _ in one.schemas):
                one.schemas = [({"anyOf": [raw for raw, _ in one.schemas]}, one.pointer)]
            one.schemas = one.schemas[:1]
        demands = [] if always in needed else [RequiredGroup(of=tuple(needed))]
        return Fields(self.document, fields, demands=demands)

    def _raw(
        self, described: dict[str, Any], media: dict[str, Any], pointer: str, offered: list[str]
    ) -> Body:
        """A text or file that is the whole body."""
        schema = self.document.object_or_nothing(media.get("schema"), f"{pointer}/schema", self.notes)
        told = (described, *self.document.for_the_same_value(schema, ()))
        words = (plain_text(one.get("description"), MAX_ARGUMENT_DESCRIPTION) for one in told)
        said = next(filter(None, words), "")
        named = [one for one in offered if "*" not in one]
        first = named[0] if named else ""
        if first.startswith("text/") and "charset" not in first:
            first += "; charset=utf-8"
        # A file can say which of several types it is.
        is_fixed = bool(first) and len(offered) == 1
        how = HOW_TO_GIVE.format(f"The whole body ({', '.join(offered[:3])})", "")
        example = media.get("example")
        if isinstance(example, str) and 0 < len(example) <= MAX_ARGUMENT_DESCRIPTION:
            how += f" An example: {example}"
        argument = Argument(
            place=ArgumentPlace(place="body", name="", media_type="" if is_fixed else first),
            wanted=WHOLE,
            converted=Converted({"type": "string"}, frozenset(), 1),
            description=f"{said} {how}".strip(),
            required=described.get("required") is True,
        )
        return Body([argument], body_format="raw", constants=_constants(first) if is_fixed else [])

    def _whole(
        self, schema: Any, pointer: str, described: dict[str, Any], *, lines: bool = False
    ) -> Argument:
        said = plain_text(described.get("description"), MAX_ARGUMENT_DESCRIPTION)
        return Argument(
            place=ArgumentPlace(place="body", name="", lines=lines),
            wanted=WHOLE,
            converted=self.schemas.convert(schema, pointer),
            description=f"{said} Each item is sent on a line of its own.".strip() if lines else said,
            required=described.get("required") is True,
        )

    def _form_fields(self, fields: Iterable[Field], encoding: Any, *, in_parts: bool) -> Iterator[Argument]:
        for one in fields:
            said, subject = as_object(as_object(encoding).get(one.name)), f"form field {quoted(one.name)}"
            as_json = not in_parts and self._is_json_field(one, said)
            objects = self._part_objection if in_parts else self._form_objection
            objection = "" if as_json else objects(one, said)
            if leaves_out(subject, objection, one.pointer, self.notes, needed=one.required):
                continue
            if in_parts:
                yield self._part(one, said)
                continue
            is_list = said.get("style") == DEEP and is_list_of_scalars(self.document, one.schemas)
            name, explode = f"{one.name}[]" if is_list else one.name, said.get("explode") is not False
            yield self._field(one, form_name=name, as_json=as_json, explode=explode)

    def _part_objection(self, one: Field, said: dict[str, Any]) -> str:
        """Since 3.1 a style applies to parts, too; strings and, by default, lists of them stay the same."""
        if self.document.minor == 0 or not said.keys() & {"style", "explode"}:
            return ""
        types, items = types_and_items(self.document, one.schemas)
        is_usual = said.get("style", "form") == "form" and said.get("explode") is not False
        fits = not types & NESTED or (is_usual and "object" not in types and not items & NESTED)
        return "" if fits else ENCODED_OTHERWISE

    def _part(self, one: Field, said: dict[str, Any]) -> Argument:
        """A file, a string or JSON; by default, a list has a part per item."""
        media_type = str(said.get("contentType") or "").partition(",")[0].strip()
        types, items = types_and_items(self.document, one.schemas)
        is_file = any(self._is_file(raw) for raw, _ in one.schemas)
        as_json = is_json(media_type) or (is_yaml(media_type) and bool(types & NESTED))
        is_other = bool(media_type) and not as_json and not media_type.startswith("text/plain")
        argument = self._field(one, form_name=one.name, as_json=as_json and "*" not in media_type)
        if is_file or (is_other and types | items <= {"string", *NESTED}):
            # The schema of the bytes does not describe the text that represents them.
            converted = Converted(self._file_schema(one, is_list="array" in types), frozenset(), 2)
            converted = with_an_item(converted) if one.required and "array" in types else converted
            place = ArgumentPlace(place="body", name=pointer_of([one.name]), file=True)
            argument = replace(argument, place=place, converted=converted)
        for name, header in as_object(said.get("headers")).items():
            if as_object(header).get("required") is True and name.lower() != "content-type":
                told = f"The form field {quoted(one.name)} is sent without its header {quoted(name)}."
                self.notes.append(told)
        known = "" if "*" in media_type else media_type
        return replace(argument, place=argument.place.model_copy(update={"media_type": known}))

    def _is_file(self, raw: Any) -> bool:
        """`format: binary`, also of items, or its equivalent in 3.1."""
        return any(
            one.get("format") == "binary"
            or ("contentEncoding" not in one and not is_json(str(one.get("contentMediaType", "*"))))
            for one in self.document.for_the_same_value(raw, (*CHOICES, "items"))
        )

    def _file_schema(self, one: Field, *, is_list: bool) -> dict[str, Any]:
        """Tells the document's description, and how to give a file."""
        raw, _ = self.document.object_at(*one.schemas[0])
        said = plain_text(raw.get("description"), MAX_ARGUMENT_DESCRIPTION)
        described = {"description": f"{said} {HOW_TO_GIVE.format('A file', 'name=photo.png;')}".strip()}
        if not is_list:
            return {"type": "string"} | described
        bounds = {key: raw[key] for key in ("minItems", "maxItems") if isinstance(raw.get(key), int)}
        return {"type": "array"} | described | bounds | {"items": {"type": "string"}}

    def _is_json_field(self, one: Field, said: dict[str, Any]) -> bool:
        """A field of a form that is written as JSON: an object without a style, or what the document says."""
        if said.keys() & {"style", "explode"}:
            return False
        types, _ = types_and_items(self.document, one.schemas)
        named = str(said.get("contentType") or "")
        return is_json(named) if named else types == {"object"}

    def _form_objection(self, one: Field, said: dict[str, Any]) -> str:
        is_odd = said.get("contentType") or said.get("style", "form") not in ("form", DEEP)
        is_joined = said.get("explode") is False
        if is_odd or (is_joined and not is_list_of_scalars(self.document, one.schemas)):
            return ENCODED_OTHERWISE
        if said.get("style") == DEEP:
            return objection_to_brackets(self.document, one.schemas)
        return text_encoding_error(self.document, one.schemas)

    def _field(
        self, one: Field, *, form_name: str = "", as_json: bool = False, explode: bool = True
    ) -> Argument:
        as_text = bool(form_name) and not as_json
        converted = convert_field(self.schemas, one, as_text=as_text, needed=one.required)
        name = pointer_of([form_name or one.name])
        place = ArgumentPlace(place="body", name=name, as_json=as_json, explode=explode)
        return Argument(place=place, wanted=one.name, converted=converted, required=one.required)


def _choice_of(kinds: list[str]) -> list[Argument]:
    """The argument that says what a body means, where the API takes several kinds of patches."""
    meanings = "; ".join(f"{patch_of(one)}: {PATCHES[patch_of(one)]}" for one in kinds if patch_of(one))
    choice = Argument(
        place=ArgumentPlace(place="header", name="Content-Type", media_types=kinds),
        wanted="content_type",
        converted=Converted({"type": "string", "enum": kinds}, frozenset(), 1),
        description=f"The kind of patch, by default the first that fits the body. {meanings}",
    )
    return [choice] if len(kinds) > 1 else []


def _constants(media_type: str) -> list[Constant]:
    """A content-type for APIs that name JSON differently."""
    if plain_name(media_type) in SENT_AS_JSON or "*" in media_type:
        return []
    return [Constant(place="header", name="Content-Type", value=media_type)]
