"""What an engine's JSON Schema is worth: used as it is, replaced by the generic one, or refused.

Compiled by jsonschema-rs without retrieval and with the linear-time regular expression engine, so that no
schema can hang us or make us fetch anything. Patterns that engine does not know are `catalogue.patterns`'.
"""

import copy
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jsonschema_rs

from catalogue.patterns import BOUNDED, LINEAR, Searches, leave_out_patterns, use_bounded_search
from catalogue.schema_limits import BrokenSchema, Demand, UnsafeSchema, bounded_copy, measure_demand
from catalogue.schema_words import words_for_demand
from catalogue.validation_messages import describe_validation_error
from connectors.network.redaction import printable

GENERIC_SCHEMA: dict[str, Any] = {"type": "object", "additionalProperties": True}
MAX_PROBLEMS = 50
MAX_NULL_ROUNDS = 100
"""How often arguments are looked at again for null; once for all, unless only one problem can be afforded."""
MAX_ARGUMENT_DEPTH = 128
"""Recursive schemas make the validator recurse with the arguments, until its stack is full."""
AFFORDABLE = 50_000
"""Errors that may come of one call; each takes some microseconds and kilobytes."""
KINDS = jsonschema_rs.ValidationErrorKind
COMPOSED = (KINDS.AnyOf, KINDS.OneOfNotValid)
Place = tuple[str | int, ...]
"""The names and numbers that lead to a value."""


@dataclass(frozen=True, slots=True)
class CheckedSchema:
    """A schema that can be served, and what was wrong with the engine's own."""

    schema: dict[str, Any]
    problem: str = ""
    """Why the generic schema stands in its place; empty where it is the engine's own."""
    left_out: str = ""
    """What of the engine's own cannot be used, where the rest of it is."""

    @property
    def remark(self) -> str:
        return self.problem or self.left_out


@dataclass(frozen=True, slots=True)
class ArgumentProblem:
    """One offending place in the arguments."""

    path: str
    """JSON Pointer; empty for the arguments as a whole."""
    message: str

    def __str__(self) -> str:
        return f"{self.path or '(arguments)'}: {self.message}"


def check_input_schema(raw: Any) -> CheckedSchema:
    """Decide on an engine's input schema (A3.5, A6.3). Raises UnsafeSchema."""
    if raw is None:
        return CheckedSchema(GENERIC_SCHEMA)
    if not isinstance(raw, dict):
        return CheckedSchema(GENERIC_SCHEMA, f"The input schema is no object but {type(raw).__name__}.")
    try:
        schema = bounded_copy(raw)
    except BrokenSchema as error:
        return CheckedSchema(GENERIC_SCHEMA, f"Invalid input schema: {printable(str(error))}")
    if schema.setdefault("type", "object") != "object":
        return CheckedSchema(
            GENERIC_SCHEMA, f'The input schema\'s type is {schema["type"]!r} instead of "object".'
        )
    if not _compile_problem(schema):
        return CheckedSchema(schema)
    left_out = leave_out_patterns(schema)
    if problem := _compile_problem(schema):
        return CheckedSchema(GENERIC_SCHEMA, f"Invalid input schema: {problem}")
    return CheckedSchema(schema, left_out=f"Left out of the input schema: {left_out}")


def check_output_schema(raw: Any) -> dict[str, Any] | None:
    """The schema that results may be promised to follow, or None when it is none or unusable."""
    if not isinstance(raw, dict) or raw.get("type") != "object":
        return None
    return _usable_output(json.dumps(raw))


@lru_cache(maxsize=500)
def _usable_output(text: str) -> dict[str, Any] | None:
    """Remembered, since many operations of an API answer the same."""
    try:
        schema = bounded_copy(json.loads(text))
    except (UnsafeSchema, BrokenSchema):
        return None
    if _compile_problem(schema):
        leave_out_patterns(schema)
        return None if _compile_problem(schema) else schema
    return schema


def find_schema_problem(raw: dict[str, Any]) -> str:
    """Why this is no JSON Schema that can be used; empty for one that is, whatever it describes."""
    try:
        return _compile_problem(bounded_copy(raw))
    except (UnsafeSchema, BrokenSchema) as error:
        return printable(str(error))


@dataclass(frozen=True, slots=True)
class CheckedArguments:
    """Arguments as they are meant, and what is wrong with them."""

    arguments: dict[str, Any]
    problems: list[ArgumentProblem] = field(default_factory=list)


def check_arguments(schema: dict[str, Any], arguments: dict[str, Any]) -> CheckedArguments:
    """Find every problem (A2.5). null for what is optional, and cannot be null, counts as left out.

    Many clients and models write null for every argument that they leave out, at any depth.
    """
    problems = find_argument_problems(schema, arguments)
    if not problems or _extent(arguments)[1] > MAX_ARGUMENT_DEPTH or not _has_null_member(arguments):
        return CheckedArguments(arguments, problems)
    try:
        meant = _Nulls(_compiled(json.dumps(schema)), arguments).left_out()
    except UnicodeEncodeError:
        return CheckedArguments(arguments, problems)
    return CheckedArguments(meant, find_argument_problems(schema, meant))


def find_argument_problems(schema: dict[str, Any], arguments: Any) -> list[ArgumentProblem]:
    """Every offending path of the arguments, at most 50; empty when they are valid (A2.5).

    Of arguments too large to be searched for every problem only the first one is told.
    """
    try:
        found = _compiled(json.dumps(schema)).check(arguments)
    except TooDeep:
        return [ArgumentProblem("", f"nested deeper than {MAX_ARGUMENT_DEPTH} levels")]
    except UnicodeEncodeError:
        return [ArgumentProblem("", "a text contains half of a surrogate pair, which is no character")]
    problems = [problem for error in found.errors for problem in _argument_problems(error)]
    if not found.are_all:
        problems.append(
            ArgumentProblem("", "does not fit the schema, and is too large to be told every reason")
        )
    return list(dict.fromkeys(problems))[:MAX_PROBLEMS]


class TooDeep(Exception):
    """The arguments are nested deeper than a validator can follow them."""


@dataclass(frozen=True, slots=True)
class _Errors:
    """What a validator finds, as far as finding it out is affordable."""

    errors: list[jsonschema_rs.ValidationError]
    are_all: bool = True


@dataclass(frozen=True, slots=True)
class _Compiled:
    validator: jsonschema_rs.Validator
    demand: Demand

    def check(self, arguments: Any) -> _Errors:
        """Raises TooDeep, and UnicodeEncodeError for what is no text.

        The library makes a list of all errors before it gives the first, so their number has to be foreseen.
        """
        parts, depth = _extent(arguments)
        if depth > MAX_ARGUMENT_DEPTH:
            raise TooDeep
        with Searches.limited():
            if self.validator.is_valid(arguments):
                return _Errors([])
            recursive, expanded = self.demand.recursive, self.demand.expanded
            if expanded * max(parts, recursive**depth) <= AFFORDABLE:
                return _Errors(list(self.validator.iter_errors(arguments)))
            return _Errors(self._first_error(arguments) if recursive < 2 else [], are_all=False)

    def _first_error(self, arguments: Any) -> list[jsonschema_rs.ValidationError]:
        try:
            self.validator.validate(arguments)
        except jsonschema_rs.ValidationError as error:
            return [error]
        return []


class _Nulls:
    """The members of arguments that are null, and whether they stand for nothing."""

    def __init__(self, compiled: _Compiled, arguments: dict[str, Any]) -> None:
        self._compiled = compiled
        self._arguments = copy.deepcopy(arguments)
        self._left_out: set[Place] = set()
        self._required: set[Place] = set()

    def left_out(self) -> dict[str, Any]:
        """The arguments without those that the schema refuses and does not require."""
        for _ in range(MAX_NULL_ROUNDS):
            errors = self._compiled.check(self._arguments).errors
            if not (self._put_back(errors) or self._leave_out(errors)):
                break
        return self._arguments

    def _put_back(self, errors: Iterable[jsonschema_rs.ValidationError]) -> bool:
        """Those that turn out to be required: what is wrong with these is that they are null."""
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

    def _leave_out(self, errors: Iterable[jsonschema_rs.ValidationError]) -> bool:
        refused = {place for error in errors for place in self._cure(error) or ()}
        for *path, name in refused:
            del _follow(self._arguments, path)[name]
        self._left_out |= refused
        return bool(refused)

    def _cure(self, error: jsonschema_rs.ValidationError) -> set[Place] | None:
        """The places without which there would be no such error; None if there is no help."""
        place = tuple(error.instance_path)
        if error.instance is None and place and isinstance(place[-1], str):
            return None if place in self._required else {place}
        if not isinstance(error.kind, COMPOSED):
            return None
        for alternative in error.kind.context:
            cures = [self._cure(inner) for inner in alternative]
            if cures and all(cures):
                return {place for cure in cures for place in cure or ()}
        return None


def _each(errors: Iterable[jsonschema_rs.ValidationError]) -> Iterator[jsonschema_rs.ValidationError]:
    """They, and those of the alternatives within them."""
    for error in errors:
        yield error
        if isinstance(error.kind, COMPOSED):
            for alternative in error.kind.context:
                yield from _each(alternative)


def _follow(value: Any, path: Iterable[str | int]) -> Any:
    for step in path:
        value = value[step]
    return value


def _has_null_member(arguments: Any) -> bool:
    level = [arguments]
    while level:
        if any(isinstance(value, dict) and None in value.values() for value in level):
            return True
        level = [inner for value in level for inner in _inside(value)]
    return False


def _extent(arguments: Any) -> tuple[int, int]:
    """How many values there are, and how deep they are nested (counted no further than allowed)."""
    parts, depth, level = 0, 0, [arguments]
    while level and depth <= MAX_ARGUMENT_DEPTH:
        parts, depth = parts + len(level), depth + 1
        level = [inner for value in level for inner in _inside(value)]
    return parts, depth


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


@lru_cache(maxsize=2048)
def _compiled(schema: str) -> _Compiled:
    return _Compiled(_validator(schema), measure_demand(json.loads(schema)))


@lru_cache(maxsize=2048)
def _validator(schema: str) -> jsonschema_rs.Validator:
    loaded = json.loads(schema, object_hook=_with_properties)
    try:
        return jsonschema_rs.validator_for(loaded, pattern_options=LINEAR, offline=True)
    except jsonschema_rs.ValidationError:
        if not use_bounded_search(loaded):
            raise
    return jsonschema_rs.validator_for(loaded, pattern_options=LINEAR, keywords=BOUNDED, offline=True)


def _with_properties(schema: dict[str, Any]) -> dict[str, Any]:
    """Without `properties` the library does not name those that `additionalProperties: false` forbids."""
    return {"properties": {}} | schema if schema.get("additionalProperties") is False else schema


def _compile_problem(schema: dict[str, Any]) -> str:
    try:
        _validator(json.dumps(schema))
    except jsonschema_rs.ValidationError as error:
        return printable(f"{_pointer(error.instance_path) or '/'}: {error.message}")[:300]
    except ValueError as error:
        return str(error)[:300]
    return ""


def _argument_problems(error: jsonschema_rs.ValidationError) -> list[ArgumentProblem]:
    """Missing and unknown properties are named by their own paths."""
    path, kind = _pointer(error.instance_path), error.kind
    if isinstance(kind, KINDS.Required):
        return [ArgumentProblem(f"{path}{_pointer([kind.property])}", "required, but missing")]
    if isinstance(kind, (KINDS.AdditionalProperties, KINDS.UnevaluatedProperties)):
        return [
            ArgumentProblem(f"{path}{_pointer([name])}", "no such argument")
            for name in kind.unexpected[:MAX_PROBLEMS]
        ]
    if isinstance(kind, KINDS.Not) and (told := words_for_demand(kind.schema)):
        return [ArgumentProblem(path, told)]
    return [ArgumentProblem(path, describe_validation_error(error))]


def _pointer(path: list[str | int]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
