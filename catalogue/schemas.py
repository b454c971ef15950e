"""What an engine's JSON Schema is worth: used as it is, replaced by the generic one, or refused.

Compiled by jsonschema-rs with the linear-time regular expression engine and without retrieval, so that no
schema can hang us or make us fetch anything.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import jsonschema_rs

from catalogue.schema_limits import BrokenSchema, Demand, UnsafeSchema, bounded_copy, measure_demand
from connectors.redaction import printable

GENERIC_SCHEMA: dict[str, Any] = {"type": "object", "additionalProperties": True}
MAX_PROBLEMS = 50
MAX_ARGUMENT_DEPTH = 128
"""Recursive schemas make the validator recurse with the arguments, until its stack is full."""
AFFORDABLE = 50_000
"""Errors that may come of one call; each takes some microseconds and kilobytes."""
KINDS = jsonschema_rs.ValidationErrorKind
REGEX_OPTIONS = jsonschema_rs.RegexOptions(size_limit=1024 * 1024, dfa_size_limit=4 * 1024 * 1024)


@dataclass(frozen=True, slots=True)
class CheckedSchema:
    """A schema that can be served, and what was wrong with the engine's own."""

    schema: dict[str, Any]
    problem: str = ""


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
    if problem := _compile_problem(schema):
        return CheckedSchema(GENERIC_SCHEMA, f"Invalid input schema: {problem}")
    return CheckedSchema(schema)


def check_output_schema(raw: Any) -> dict[str, Any] | None:
    """The schema that results may be promised to follow, or None when it is none or unusable."""
    if not isinstance(raw, dict) or raw.get("type") != "object":
        return None
    return None if find_schema_problem(raw) else bounded_copy(raw)


def find_schema_problem(raw: dict[str, Any]) -> str:
    """Why this is no JSON Schema that can be used; empty for one that is, whatever it describes."""
    try:
        return _compile_problem(bounded_copy(raw))
    except (UnsafeSchema, BrokenSchema) as error:
        return printable(str(error))


def find_argument_problems(schema: dict[str, Any], arguments: Any) -> list[ArgumentProblem]:
    """Every offending path of the arguments, at most 50; empty when they are valid (A2.5).

    Of arguments too large to be searched for every problem only the first one is told.
    """
    parts, depth = _extent(arguments)
    if depth > MAX_ARGUMENT_DEPTH:
        return [ArgumentProblem("", f"nested deeper than {MAX_ARGUMENT_DEPTH} levels")]
    compiled = _compiled(json.dumps(schema))
    try:
        if compiled.validator.is_valid(arguments):
            return []
        problems = compiled.problems(arguments, parts=parts, depth=depth)
        return list(dict.fromkeys(islice(problems, MAX_PROBLEMS)))
    except UnicodeEncodeError:
        return [ArgumentProblem("", "a text contains half of a surrogate pair, which is no character")]


@dataclass(frozen=True, slots=True)
class _Compiled:
    validator: jsonschema_rs.Validator
    demand: Demand

    def problems(self, arguments: Any, *, parts: int, depth: int) -> Iterator[ArgumentProblem]:
        """What is wrong with invalid arguments, as far as finding it out is affordable.

        The library makes a list of all errors before it gives the first, so their number has to be foreseen.
        """
        recursive, expanded = self.demand.recursive, self.demand.expanded
        if expanded * max(parts, recursive**depth) <= AFFORDABLE:
            for error in self.validator.iter_errors(arguments):
                yield from _argument_problems(error)
            return
        if recursive < 2:
            yield from self._first_problem(arguments)
        yield ArgumentProblem("", "does not fit the schema, and is too large to be told every reason")

    def _first_problem(self, arguments: Any) -> list[ArgumentProblem]:
        try:
            self.validator.validate(arguments)
        except jsonschema_rs.ValidationError as error:
            return _argument_problems(error)
        return []


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


def compile_pattern(pattern: str) -> jsonschema_rs.Validator:
    """A linear-time matcher that searches strings for `pattern`. Raises ValueError."""
    try:
        return _validator(json.dumps({"type": "string", "pattern": pattern}))
    except jsonschema_rs.ValidationError:
        raise ValueError(
            f"{pattern!r} is no usable regular expression (look-arounds and back-references are not known)."
        ) from None


@lru_cache(maxsize=2048)
def _compiled(schema: str) -> _Compiled:
    return _Compiled(_validator(schema), measure_demand(json.loads(schema)))


@lru_cache(maxsize=2048)
def _validator(schema: str) -> jsonschema_rs.Validator:
    loaded = json.loads(schema, object_hook=_with_properties)
    return jsonschema_rs.validator_for(loaded, pattern_options=REGEX_OPTIONS, offline=True)


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
    return [ArgumentProblem(path, error.message[:300])]


def _pointer(path: list[str | int]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
