"""Validation of engines' JSON Schemas, and of arguments against them. A schema is used unchanged, replaced by
the generic one, or refused. jsonschema-rs compiles it without retrieval and with linear-time regular
expressions, so no schema can hang the process or fetch anything; other patterns are in
`catalogue.patterns`."""

import copy
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import Any
from urllib.parse import quote

import jsonschema_rs
from cachetools import LRUCache, cached
from pydantic_core import to_json

from catalogue.patterns import BOUNDED, NATIVE, Searches, leave_out_patterns, use_bounded_search
from catalogue.schema_limits import (
    DIALECTS,
    NAMED,
    REFERENCES,
    BrokenSchema,
    Places,
    UnsafeSchema,
    count_visits,
    measure_demand,
    read_bounded,
    subschemas,
    too_large,
)
from connectors.formats.json import NO_CHARACTER, UnreadableJSON, find_halves, parse_json, write_json
from connectors.formats.json_schema import JSON_TYPES, NESTED, pointer_of
from connectors.network.redaction import printable

GENERIC_SCHEMA: dict[str, Any] = {"type": "object", "additionalProperties": True}
MAX_PROBLEMS = 50
NAMED_PARTS = 5  # Of a schema, of those that were left out
MAX_ROUNDS = 100  # Of reading what arguments mean; each cures all errors, or one if it can afford no more
MAX_ARGUMENT_DEPTH = 128  # For recursive schemas the validator's stack grows with the arguments
AFFORDABLE = 50_000  # Possible errors of one call, at some microseconds and kilobytes each
MAX_COMPILED = 8 * 1024 * 1024  # Characters of schemas whose validators are kept, at 13 bytes each
KINDS = jsonschema_rs.ValidationErrorKind
COMPILED = re.compile(r'"(?:\$|pattern)|\\ud')
"""In the JSON of a schema with references, names, patterns or halves of surrogate pairs."""
ADDRESSES = jsonschema_rs.validator_for({"format": "uri-reference"}, validate_formats=True)
COMPOSED = (KINDS.AnyOf, KINDS.OneOfNotValid)
Place = tuple[str | int, ...]  # Keys and indexes that lead to a value


@dataclass(frozen=True, slots=True)
class CheckedSchema:
    schema: dict[str, Any]
    problem: str = ""  # Why the generic schema replaces the engine's; empty if it does not
    left_out: str = ""  # The parts of the engine's schema that cannot be used

    @property
    def remark(self) -> str:
        return self.problem or self.left_out


@dataclass(frozen=True, slots=True)
class ArgumentProblem:
    path: str  # JSON Pointer; empty for the whole
    message: str

    def __str__(self) -> str:
        return self.of("(arguments)")

    def of(self, whole: str) -> str:
        """Names what was validated where the problem is not within it."""
        return f"{self.path or whole}: {self.message}"


def check_input_schema(raw: Any) -> CheckedSchema:
    """Use, replace or refuse an engine's input schema (A3.5, A6.3). Raises UnsafeSchema."""
    if raw is None:
        return CheckedSchema(GENERIC_SCHEMA)
    if not isinstance(raw, dict):
        return CheckedSchema(GENERIC_SCHEMA, f"The input schema is not an object but {type(raw).__name__}.")
    try:
        schema, left_out = _usable(_text_of(raw if "type" in raw else raw | {"type": "object"}), mends=True)
    except BrokenSchema as error:
        return CheckedSchema(GENERIC_SCHEMA, f"Invalid input schema: {printable(str(error))}")
    if schema["type"] != "object":
        return CheckedSchema(
            GENERIC_SCHEMA, f'The input schema\'s type is {schema["type"]!r} instead of "object".'
        )
    if not left_out:
        return CheckedSchema(schema)
    named = ", ".join(left_out[:NAMED_PARTS])
    more = f", {len(left_out) - NAMED_PARTS} more" if len(left_out) > NAMED_PARTS else ""
    return CheckedSchema(schema, left_out=printable(f"Left out of the input schema: {named}{more}"))


@lru_cache(maxsize=1_000)  # Many operations of an API have the same schemas
def _usable(text: str, *, mends: bool) -> tuple[dict[str, Any], list[str]]:
    """A schema without the parts that cannot be used, and their names: only patterns unless it `mends`.
    Raises UnsafeSchema and BrokenSchema."""
    try:
        schema, text = read_bounded(text)
    except BrokenSchema:
        schema = json.loads(text)
    else:
        if not _find_problem(schema, text):
            return schema, []
    left_out = (_leave_out_keywords(schema) if mends else []) + leave_out_patterns(schema)
    schema, text = read_bounded(write_json({"type": "object"} | schema))
    if problem := _find_problem(schema, text):
        raise BrokenSchema(problem)
    return schema, left_out


def _leave_out_keywords(schema: dict[str, Any]) -> list[str]:
    """Remove what the dialect does not allow, and name it."""
    dialect = schema["$schema"] if isinstance(schema.get("$schema"), str) else DIALECTS[-1]
    scheme = "https" if "/draft/" in dialect else "http"  # Of the metaschema's own address
    url, gone = f"{scheme}://{dialect.partition('://')[2]}", []
    metaschema = jsonschema_rs.validator_for({"$schema": url, "$ref": url}, offline=True)
    while places := _faults(metaschema, schema):
        for *path, name in sorted(places, key=len, reverse=True):
            part = _follow(schema, path)
            # An argument without its schema stays an argument.
            if path and path[-1] in NAMED and part[name] != {}:
                part[name] = {}
            else:
                del part[name]
            gone.append(pointer_of([*path, name]))
    return gone + _mend_addresses(schema)


def _mend_addresses(schema: dict[str, Any]) -> list[str]:
    """Remove names of schemas that are no URIs, and references that lead nowhere; name them."""
    nodes = subschemas(schema)
    gone = [
        f"{key} {node.pop(key)[:100]!r}"
        for node in nodes
        for key in ("$id", "id")
        if not ADDRESSES.is_valid(node.get(key))
    ]
    targets = Places.of(schema, nodes)
    for node, key in [(node, key) for node in nodes for key in REFERENCES if key in node]:
        try:
            targets.find(node[key], schema)
            node[key] = quote(node[key], safe="%:/?#@!$&'()*+,;=~")  # As for a type `List<Row>`
        except (BrokenSchema, AttributeError):
            gone.append(f"{key} {str(node.pop(key))[:100]!r}")
    return gone


def _faults(metaschema: jsonschema_rs.Validator, schema: dict[str, Any]) -> set[Place]:
    """The keywords and members whose values are wrong, the innermost ones."""
    found = set()
    # `$defs` is newer than the dialect of many schemas that have it.
    for root, whole in (("", schema), ("$defs", {"definitions": schema.get("$defs", {})})):
        for error in metaschema.iter_errors(whole):
            place = max((tuple(one.instance_path) for one in _each([error])), key=len)
            if isinstance(error.kind, KINDS.Required):  # In draft 4 `exclusiveMinimum` requires `minimum`
                place = (*place, f"exclusive{error.kind.property.capitalize()}")
            while place and isinstance(place[-1], int):
                place = place[:-1]
            found.add((root, *place[1:]) if root else place)
    return found - {()}


def check_output_schema(raw: Any) -> dict[str, Any] | None:
    """The schema that results can promise to follow; None if there is none or it cannot be used. It is not
    mended: a server that writes a wrong schema may not keep to it either."""
    if not isinstance(raw, dict) or raw.get("type") != "object":
        return None
    try:
        return _usable(_text_of(raw), mends=False)[0]
    except (UnsafeSchema, BrokenSchema):
        return None


def find_schema_problem(raw: dict[str, Any]) -> str:
    """Why this cannot be used as JSON Schema; empty if it can."""
    try:
        return _find_problem(*read_bounded(_text_of(raw)))
    except (UnsafeSchema, BrokenSchema) as error:
        return printable(str(error))


def _text_of(raw: dict[str, Any]) -> str:
    try:
        return write_json(raw)
    except RecursionError:
        raise too_large() from None


@dataclass(frozen=True, slots=True)
class CheckedArguments:
    arguments: dict[str, Any]
    problems: list[ArgumentProblem] = field(default_factory=list)


def check_arguments(schema: dict[str, Any], arguments: dict[str, Any]) -> CheckedArguments:
    """Find all errors (A2.5). null counts as omitted if a member is optional and cannot be null, because many
    clients and models write null for members that they omit, at any depth; others write objects and arrays
    as JSON text, which is read where the schema allows no text."""
    problems = find_argument_problems(schema, arguments)
    if not problems or _depth_of(arguments) > MAX_ARGUMENT_DEPTH:
        return CheckedArguments(arguments, problems)
    try:
        meant = _Meant(_compiled(write_json(schema)), arguments).read()
    except UnicodeEncodeError:
        return CheckedArguments(arguments, problems)
    return CheckedArguments(meant, find_argument_problems(schema, meant))


def find_argument_problems(schema: dict[str, Any], arguments: Any) -> list[ArgumentProblem]:
    """All errors in the arguments, at most 50 (A2.5); only the first one if all would cost too much."""
    try:
        errors, are_all = _compiled(write_json(schema)).check(arguments)
    except TooDeep:
        return [ArgumentProblem("", f"nested deeper than {MAX_ARGUMENT_DEPTH} levels")]
    except UnicodeEncodeError:
        halves = list(find_halves(arguments)) or [("", f"contains {NO_CHARACTER}")]
        return [ArgumentProblem(place, fault) for place, fault in halves[:MAX_PROBLEMS]]
    problems = [problem for error in errors for problem in _argument_problems(error)]
    if not are_all:
        problems.append(
            ArgumentProblem("", "does not fit the schema, and is too large to report every reason")
        )
    return list(dict.fromkeys(problems))[:MAX_PROBLEMS]


class TooDeep(Exception):
    """The arguments are nested too deep for a validator."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    validator: jsonschema_rs.Validator
    text: str  # The schema's JSON

    def check(self, arguments: Any) -> tuple[list[jsonschema_rs.ValidationError], bool]:
        """The errors, and whether they are all. Raises TooDeep, and UnicodeEncodeError for lone surrogates.
        The library collects all errors before it returns the first, so their number is estimated first."""
        if _depth_of(arguments) > MAX_ARGUMENT_DEPTH:
            raise TooDeep
        Searches.begin()
        if self.validator.is_valid(arguments):
            try:
                to_json(arguments)
            except ValueError:
                # A half character raises, in a text that no rule of the schema has the validator read.
                json.dumps(arguments, ensure_ascii=False).encode()
            return [], True
        schema = json.loads(self.text)
        if count_visits(schema, arguments, most=AFFORDABLE) <= AFFORDABLE:
            return list(self.validator.iter_errors(arguments)), True
        try:
            if measure_demand(schema) < 2:
                self.validator.validate(arguments)
        except jsonschema_rs.ValidationError as error:
            return [error], False
        return [], False


class _Meant:
    """The arguments as their writer meant them: without some members that are null, and with JSON texts
    read."""

    def __init__(self, compiled: _Compiled, arguments: dict[str, Any]) -> None:
        self._compiled = compiled
        self._arguments = copy.deepcopy(arguments)
        self._left_out: set[Place] = set()
        self._required: set[Place] = set()

    def read(self) -> dict[str, Any]:
        for _ in range(MAX_ROUNDS):
            errors, _ = self._compiled.check(self._arguments)
            if not (self._put_back(errors) or self._change(errors)):
                break
        return self._arguments

    def _put_back(self, errors: Iterable[jsonschema_rs.ValidationError]) -> bool:
        """Restore members that turn out to be required; the error is that they are null."""
        missing = {
            (*error.instance_path, error.kind.property)
            for error in _each(errors)
            if isinstance(error.kind, KINDS.Required)
        }
        required = missing & self._left_out
        for *path, name in required:
            _follow(self._arguments, path)[name] = None
        self._left_out -= required
        self._required |= required
        return bool(required)

    def _change(self, errors: Iterable[jsonschema_rs.ValidationError]) -> bool:
        changes = {place: value for error in errors for place, value in (self._cure(error) or {}).items()}
        for (*path, name), value in changes.items():
            if value is None:
                del _follow(self._arguments, path)[name]
                self._left_out.add((*path, name))
            else:
                _follow(self._arguments, path)[name] = value
        return bool(changes)

    def _cure(self, error: jsonschema_rs.ValidationError) -> dict[Place, Any] | None:
        """Other values that prevent the error, None for members to leave out; None if nothing does."""
        place = tuple(error.instance_path)
        if error.instance is None and place and isinstance(place[-1], str):
            return None if place in self._required else {place: None}
        if isinstance(error.kind, KINDS.Type):
            read = _read_text(error.instance, error.kind.types)
            return None if read is None else {place: read}
        if not isinstance(error.kind, COMPOSED):
            return None
        for alternative in error.kind.context:
            cures = [self._cure(inner) for inner in alternative]
            if cures and all(cures):
                return {place: value for cure in cures for place, value in (cure or {}).items()}
        return None


def _read_text(text: Any, wanted: Sequence[str]) -> dict[str, Any] | list[Any] | None:
    """The object or array of a JSON text if such a type is wanted."""
    try:
        read = parse_json(text.encode(), given=True) if isinstance(text, str) else None
    except UnreadableJSON:
        return None
    return read if isinstance(read, dict | list) and JSON_TYPES[type(read)] in wanted else None


def _each(errors: Iterable[jsonschema_rs.ValidationError]) -> Iterator[jsonschema_rs.ValidationError]:
    """The errors, with those of their alternatives."""
    for error in errors:
        yield error
        if isinstance(error.kind, COMPOSED):
            for alternative in error.kind.context:
                yield from _each(alternative)


def _follow(value: Any, path: Iterable[str | int]) -> Any:
    for step in path:
        value = value[step]
    return value


def _depth_of(arguments: Any) -> int:
    """Counted up to the limit."""
    depth, level = 0, [arguments]
    while level and depth <= MAX_ARGUMENT_DEPTH:
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below.extend(value.values())
            elif isinstance(value, list):
                below.extend(value)
        depth, level = depth + 1, below
    return depth


@cached(LRUCache(MAX_COMPILED, getsizeof=lambda compiled: len(compiled.text)), lock=Lock())
def _compiled(schema: str) -> _Compiled:
    return _Compiled(_validator(schema), schema)


def _validator(schema: str) -> jsonschema_rs.Validator:
    # Without `properties` the library does not name members that `additionalProperties: false` forbids.
    loaded = json.loads(schema, object_hook=_with_properties if '"additionalProperties"' in schema else None)
    try:
        return jsonschema_rs.validator_for(
            loaded, pattern_options=NATIVE, offline=True, validate_formats=False
        )
    except jsonschema_rs.ValidationError:
        if not use_bounded_search(loaded):
            raise
    return jsonschema_rs.validator_for(
        loaded, pattern_options=NATIVE, keywords=BOUNDED, offline=True, validate_formats=False
    )


def _with_properties(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("additionalProperties") is False:
        part.setdefault("properties", {})
    return part


def _find_problem(schema: dict[str, Any], text: str) -> str:
    """Why the schema cannot be compiled; `text` is its JSON."""
    # The metaschema takes a quarter of the time, and without these keywords nothing else can be wrong.
    if not COMPILED.search(text) and jsonschema_rs.meta.is_valid(schema):
        return ""
    try:
        _compiled(text)
    except jsonschema_rs.ValidationError as error:
        return printable(f"{pointer_of(error.instance_path) or '/'}: {error.message}")[:300]
    except ValueError as error:
        return str(error)[:300]
    return ""


def _argument_problems(error: jsonschema_rs.ValidationError) -> list[ArgumentProblem]:
    """Missing and unknown members have paths of their own."""
    path, kind = pointer_of(error.instance_path), error.kind
    if isinstance(kind, KINDS.Required):
        return [ArgumentProblem(f"{path}{pointer_of([kind.property])}", "required, but missing")]
    if isinstance(kind, (KINDS.AdditionalProperties, KINDS.UnevaluatedProperties)):
        return [
            ArgumentProblem(f"{path}{pointer_of([name])}", "no such argument")
            for name in kind.unexpected[:MAX_PROBLEMS]
        ]
    if isinstance(kind, KINDS.Not) and (demand := words_for_demand(kind.schema)):
        return [ArgumentProblem(path, demand)]
    return [ArgumentProblem(path, describe_validation_error(error))]


MAX_VALUE = 200  # Characters of the offending value in a message
MAX_ENUMERATION = 10_000  # Characters of allowed values, or of reasons, in a message
MAX_REASON = 1_000  # Characters of the end of a long message, where the validator states the reason
MAX_ALTERNATIVES = 10
MAX_REASONS = 3  # For one alternative
MAX_ALTERNATIVE_LEVELS = 2  # Alternatives within alternatives would multiply the message


def describe_validation_error(
    error: jsonschema_rs.ValidationError, levels: int = MAX_ALTERNATIVE_LEVELS
) -> str:
    """The message without the path."""
    kind = error.kind
    if isinstance(kind, KINDS.Enum):
        return f"{_shown(error.instance)} is not one of {_listed(kind.options)}"
    if levels and isinstance(kind, (KINDS.AnyOf, KINDS.OneOfNotValid)) and all(kind.context):
        reasons = _alternatives(len(error.instance_path), kind.context, levels - 1)
        return f"{_shown(error.instance)} fits no alternative: {reasons}"
    message = error.message
    if len(message) > MAX_VALUE + MAX_REASON:
        message = f"{message[:MAX_VALUE]}… {message[-MAX_REASON:]}"
    wanted = sorted(NESTED.intersection(kind.types)) if isinstance(kind, KINDS.Type) else []
    return f"{message}; send an {' or '.join(wanted)}" if wanted else message


def _alternatives(depth: int, context: Any, levels: int) -> str:
    """Why no alternative fits. First those that are for a value of this type and kind."""
    closest = sorted(context, key=lambda problems: any(_is_of_another_kind(one, depth) for one in problems))
    reasons: list[str] = []
    room = MAX_ENUMERATION
    for problems in closest[:MAX_ALTERNATIVES]:
        if room > 0:
            reasons.append(" and ".join(_reason(one, depth, levels) for one in problems[:MAX_REASONS]))
            room -= len(reasons[-1])
    if left := len(closest) - len(reasons):
        reasons.append(f"and {left} more")
    return "; ".join(reasons)


def _is_of_another_kind(problem: jsonschema_rs.ValidationError, depth: int) -> bool:
    """The value has another type, or a member has another value than the alternative's objects have there."""
    within = len(problem.instance_path) - depth
    is_other_value = isinstance(problem.kind, (KINDS.Constant, KINDS.Enum))
    return (within == 0 and isinstance(problem.kind, KINDS.Type)) or (within == 1 and is_other_value)


def _reason(problem: jsonschema_rs.ValidationError, depth: int, levels: int) -> str:
    message = describe_validation_error(problem, levels)
    place = pointer_of(problem.instance_path[depth:])
    return f"{place}: {message}" if place else message


def _listed(allowed: Sequence[Any]) -> str:
    listed: list[str] = []
    room = MAX_ENUMERATION
    for value in allowed:
        text = _written(value)
        room -= len(text) + len(", ")
        if listed and room < 0:
            return f"{', '.join(listed)} and {len(allowed) - len(listed):,} more, which the schema lists"
        listed.append(_cut(text, MAX_ENUMERATION))
    return ", ".join(listed)


def _shown(value: Any) -> str:
    return _cut(_written(value), MAX_VALUE)


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"


def words_for_demand(broken: Any) -> str:
    """Says what a `not` of the OpenAPI importer demands: `at least one of a, b`; empty for other schemas."""
    match broken:
        case {"properties": dict() as absent, **others} if not others and all(
            schema is False for schema in absent.values()
        ):
            return f"at least one of {', '.join(absent)} is required"
        case {"not": {"anyOf": list() as groups}}:
            return _words_for_groups("one or more", groups)
        case {"not": {"oneOf": list() as groups}}:
            return _words_for_groups("exactly one", groups)
        case {"anyOf": list() as several}:
            demands = [words_for_demand(one) for one in several]
            return "; ".join(demands) if all(demands) else ""
    return ""


def _words_for_groups(how_many: str, groups: list[Any]) -> str:
    if not all(isinstance(group, dict) and group.keys() == {"required"} for group in groups):
        return ""
    alternatives = " / ".join(" with ".join(map(str, group["required"])) for group in groups)
    return f"{how_many} of these is required: {alternatives}"
