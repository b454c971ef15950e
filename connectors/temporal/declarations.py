"""The blocks of a Temporal definitions file, and messages for their mistakes."""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args

import jsonschema_rs
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)
from pydantic.alias_generators import to_camel

from connectors.definitions import MAX_SECONDS
from connectors.formats.json import is_number
from connectors.formats.json_schema import LINEAR, empty_ranges
from connectors.formats.yaml import Path

MAX_WORKFLOWS = 5_000
MAX_NAME_LENGTH = 255
MAX_TEXT_LENGTH = 9_000
SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
PART = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h)"
WHOLE = re.compile(rf"\+?(?:{PART})+\Z")
PARTS = re.compile(r"([0-9.]+)([a-zµμ]+)")
EXPECTED = "must be a duration such as 5s, 100ms or 1h30m"
WITH_SECRETS: Path = ("temporal", "auth")
OTHER_NAMES = {
    "int": "integer",
    "int32": "integer",
    "int64": "integer",
    "long": "integer",
    "float": "number",
    "float32": "number",
    "float64": "number",
    "double": "number",
    "bool": "boolean",
    "str": "string",
    "text": "string",
    "list": "array",
    "slice": "array",
    "map": "object",
    "dict": "object",
    "struct": "object",
}
ReusePolicy = Literal["AllowDuplicate", "AllowDuplicateFailedOnly", "RejectDuplicate"]
ConflictPolicy = Literal["Fail", "UseExisting", "TerminateExisting"]


def read_duration(text: object) -> float:
    """Seconds. Raises ValueError."""
    if text == "0" or (text == 0 and not isinstance(text, bool)):
        return 0.0
    if not isinstance(text, str):
        raise ValueError(EXPECTED)
    if len(text) > 64 or not WHOLE.match(text):
        days = re.fullmatch(r"([0-9]{1,4})d", text)
        raise ValueError(EXPECTED + (f"; the longest unit is h: {int(days[1]) * 24}h" if days else ""))
    return sum(float(number) * SECONDS[unit] for number, unit in PARTS.findall(text))


class Block(BaseModel):
    """A mapping that refuses unknown keys, which are camelCase in the file."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, hide_input_in_errors=True, alias_generator=to_camel
    )


def _some_seconds(value: Any) -> float:
    seconds = read_duration(value)
    if not 1 <= seconds <= MAX_SECONDS:
        raise ValueError(f"must be between 1s and {MAX_SECONDS // 3600}h")
    return seconds


def _said(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _number(value: Any) -> Any:
    if not is_number(value):
        raise ValueError("must be a number")
    return value


def _policy(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    letters = value.replace("_", "").lower()
    known = (*get_args(ReusePolicy), *get_args(ConflictPolicy))
    return next((name for name in known if name.lower() == letters), value)


def _description_only(value: Any) -> Any:
    """`name: "what it is"` is short for `name: {description: "what it is"}`."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, str):
        raise ValueError("must be its description in quotes, or a mapping such as {type: number}")
    return {"description": value}


def _one_field(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError('must be one field, such as - doc_id: "What it is."')
    if len(value) != 1:
        raise ValueError("must be one field; put '-' before each field")
    return value


def _false_or_mapping(value: Any) -> Any:
    if value is None or isinstance(value, dict):
        return value
    if value is not False:
        raise ValueError("must be false or a mapping such as {ttl: 24h}")
    return {"enabled": False}


Text = Annotated[str, Field(max_length=MAX_TEXT_LENGTH), AfterValidator(_said)]
Name = Annotated[str, Field(max_length=MAX_NAME_LENGTH), AfterValidator(_said)]
Label = Annotated[str, Field(max_length=100), AfterValidator(_said)]
Number = Annotated[Any, BeforeValidator(_number)]
Duration = Annotated[float, BeforeValidator(read_duration)]
Seconds = Annotated[float, BeforeValidator(_some_seconds)]


class FieldDeclaration(Block):
    """A property of an input or output: JSON Schema keywords, and whether it is required."""

    type: Literal["string", "number", "integer", "boolean", "array", "object", "any"] = "string"
    title: str | None = None
    description: str | None = Field(default=None, max_length=MAX_TEXT_LENGTH)
    required: bool | None = None
    nullable: bool = False
    default: Any = None
    enum: list[Any] | None = Field(default=None, min_length=1)
    examples: list[Any] | None = None
    format: str | None = None
    pattern: str | None = None
    min_length: int | None = Field(default=None, ge=0)
    max_length: int | None = Field(default=None, ge=0)
    minimum: Number | None = None
    maximum: Number | None = None
    exclusive_minimum: Number | None = None
    exclusive_maximum: Number | None = None
    multiple_of: Annotated[Number, Field(gt=0)] | None = None
    items: "FieldOrDescription | None" = None
    min_items: int | None = Field(default=None, ge=0)
    max_items: int | None = Field(default=None, ge=0)
    unique_items: bool | None = None
    properties: "dict[str, FieldOrDescription] | None" = None
    additional_properties: bool | None = None


FieldOrDescription = Annotated[FieldDeclaration, BeforeValidator(_description_only)]
Fields = list[Annotated[dict[str, FieldOrDescription], BeforeValidator(_one_field)]]


class InputDeclaration(Block):
    type: Name | None = None  # The input type's name; `none`: no input
    fields: Fields | None = None
    positional: bool = False  # Each field is a separate argument, in order, instead of one object


class OutputDeclaration(Block):
    type: Name | None = None
    description: str | None = Field(default=None, max_length=MAX_TEXT_LENGTH)
    fields: Fields | None = None  # The result's fields, which the author guarantees


class InteractionDeclaration(Block):
    description: str = Field(default="", max_length=2_000)
    fields: Fields | None = None


class WorkflowCache(Block):
    """`cache: false`, or how long a result is reused."""

    enabled: bool = True
    ttl: Seconds | None = None


class AsksDeclaration(Block):
    """The handlers by which a run asks people."""

    query: Name  # Returns null, a question, or a list of questions
    update: Name | None = None  # Takes {"id", "answer"}, as does the signal
    signal: Name | None = None

    @model_validator(mode="after")
    def _takes_answers(self) -> "AsksDeclaration":
        if (self.update is None) == (self.signal is None):
            raise ValueError("must have update or signal, which takes the answer")
        return self


Interactions = dict[Name, Annotated[InteractionDeclaration, BeforeValidator(_description_only)]]


class WorkflowDeclaration(Block):
    purpose: Text
    input: InputDeclaration | None = None
    output: OutputDeclaration | None = None
    task_queue: Name | None = None
    title: Name | None = None
    tags: list[Label] = []
    version: Label | None = None
    category: Label | None = None
    timeout: Seconds | None = None
    cache: Annotated[WorkflowCache | None, BeforeValidator(_false_or_mapping)] = None
    workflow_id: Name | None = None
    id_reuse_policy: Annotated[ReusePolicy, BeforeValidator(_policy)] | None = None
    id_conflict_policy: Annotated[ConflictPolicy, BeforeValidator(_policy)] | None = None
    progress_query: Name | None = None
    asks: AsksDeclaration | None = None
    queries: Interactions = {}
    signals: Interactions = {}


class RetryOptions(Block):
    initial_interval: Duration | None = None
    maximum_interval: Duration | None = None
    maximum_attempts: int | None = None
    backoff_coefficient: float | None = None


class Auth(Block):
    client_id: Name | None = Field(default=None, alias="clientID")
    client_secret: SecretStr | None = None
    audience: str | None = None
    scope: str | None = None
    oauth2_url: Name | None = Field(default=None, alias="oauth2URL")
    api_key: SecretStr | None = None


class Tls(Block):
    cert_path: str | None = None
    key_path: str | None = None
    ca_path: str | None = None
    server_name: str | None = None
    insecure_skip_verify: bool | None = None


class TemporalBlock(Block):
    """The connection; `ServiceSettings` validates its values."""

    host_port: Name
    namespace: Name | None = None
    environment: Literal["local", "remote"] | None = None
    timeout: Duration | None = None
    retry_options: RetryOptions | None = None
    auth: Auth | None = None
    tls: Tls | None = None


class CacheBlock(Block):
    enabled: bool
    database_path: str | None = None
    ttl: Seconds | None = None
    max_cache_size: int | None = Field(default=None, ge=1024)
    cleanup_interval: Seconds | None = None

    @model_validator(mode="after")
    def _says_how_long(self) -> "CacheBlock":
        if self.enabled and self.ttl is None:
            raise ValueError("must have a ttl, such as 24h, if it is enabled")
        return self


class DefinitionsFile(Block):
    temporal: TemporalBlock | None = None
    cache: CacheBlock | None = None
    workflows: dict[str, WorkflowDeclaration] = Field(max_length=MAX_WORKFLOWS)


Note = Callable[[Path, str], None]
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
Schema = dict[str, Any]


def object_schema(fields: Fields, *, title: str | None, place: Path, note: Note) -> Schema:
    properties: dict[str, Schema] = {}
    required = []
    each = ((position, *named) for position, item in enumerate(fields) for named in item.items())
    for position, name, declared in each:
        at = (*place, position, name)
        if name in properties:
            note(at, "the field occurs twice")
        properties[name] = field_schema(declared, place=at, note=note)
        if _is_required(declared):
            required.append(name)
    schema: Schema = {"title": title} if title else {}
    schema |= {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": required} if required else {})


def field_schema(declared: FieldDeclaration, *, place: Path, note: Note) -> Schema:
    """Leaves out `required`, which belongs to the parent object."""
    # By the file's keys, without empty values except a default.
    stated = declared.model_dump(by_alias=True, exclude_unset=True)
    said = {key: value for key, value in stated.items() if value is not None or key == "default"}
    schema: Schema = {"type": [declared.type, "null"] if declared.nullable else declared.type}
    schema = {} if declared.type == "any" else schema
    copied = ("title", "description", "default", "enum", "examples")
    schema |= {name: said[name] for name in copied if name in said}
    known = EVERYWHERE.union(*KEYWORDS.values()) if declared.type == "any" else KEYWORDS[declared.type]
    for name in said.keys() - EVERYWHERE:
        if name not in known:
            note((*place, name), f"cannot be used with the type {declared.type}")
        elif name not in ("items", "properties"):
            schema[name] = said[name]
    if declared.items is not None:
        schema["items"] = field_schema(declared.items, place=(*place, "items"), note=note)
    if declared.properties is not None:
        schema |= _properties(declared.properties, (*place, "properties"), note)
    for lower, upper in empty_ranges(schema):  # A tool with such a field cannot be used
        note((*place, upper), f"allows no value together with {lower}")
    _check_values(schema, place, note)
    return schema


def _is_required(declared: FieldDeclaration) -> bool:
    if declared.required is not None:
        return declared.required
    return "default" not in declared.model_fields_set


def _properties(properties: dict[str, FieldDeclaration], place: Path, note: Note) -> Schema:
    schemas = {
        name: field_schema(inner, place=(*place, name), note=note) for name, inner in properties.items()
    }
    required = [name for name, inner in properties.items() if _is_required(inner)]
    return {"properties": schemas} | ({"required": required} if required else {})


def _check_values(schema: Schema, place: Path, note: Note) -> None:
    """An invalid default, choice or example would mislead agents."""
    if not schema.keys() & {"pattern", "default", "enum", "examples"}:
        return
    bare = {name: value for name, value in schema.items() if name not in ("default", "examples")}
    try:
        any_of_the_type = {name: value for name, value in bare.items() if name != "enum"}
        choices = jsonschema_rs.validator_for(any_of_the_type, pattern_options=LINEAR, offline=True)
        validator = jsonschema_rs.validator_for(bare, pattern_options=LINEAR, offline=True)
    except (jsonschema_rs.ValidationError, ValueError):
        # Types have been checked already: only the pattern can be unusable.
        if "pattern" in schema:
            note((*place, "pattern"), "is not a valid regular expression; look-arounds are not supported")
        return
    given: list[tuple[Path, Any, Any]] = []
    for name, fits in (("enum", choices), ("examples", validator)):
        given += [((*place, name, at), value, fits) for at, value in enumerate(schema.get(name, []))]
    given += [((*place, "default"), schema["default"], validator)] if "default" in schema else []
    for at, value, fits in given:
        if not fits.is_valid(value):
            note(at, "is not valid for the field")
