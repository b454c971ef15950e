"""A curator's changes to a workflow's arguments: `{name: {description?, constant? | default?}}`. A constant
is sent with each call and hidden from callers. A default makes the argument optional. Callers see the offered
schema; `settle_arguments` completes their arguments and checks them with the engine's own."""

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

from catalogue.schemas import (
    ArgumentProblem,
    CheckedArguments,
    check_arguments,
    find_argument_problems,
    find_schema_problem,
)
from catalogue.served_schemas import describe_inputs, members_of_parts
from connectors.formats.json import as_object
from connectors.formats.json_schema import pointer_of

Schema = dict[str, Any]
Overrides = Mapping[str, Mapping[str, Any]]
MEMBERS = {"description", "constant", "default"}
MAX_DESCRIPTION = 4_000
MAX_VALUE = 10_000  # Characters of the JSON
LEFT_TO_THE_CATALOGUE = "is set by the catalogue; leave it out"
ABOUT_THE_WHOLE = {
    *("required", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref"),
    *("dependencies", "dependentRequired", "dependentSchemas", "minProperties", "maxProperties"),
    *("propertyNames", "patternProperties", "additionalProperties", "unevaluatedProperties"),
}


def offer_schema(schema: Schema, overrides: Overrides) -> Schema:
    if not overrides:
        return schema
    offered = copy.deepcopy(schema)
    members = _members(offered)
    for name, override in overrides.items():
        if "constant" in override:
            # `_fix` may add parts during the loop.
            for part in _parts(offered):
                _fix(part, name, override["constant"], root=schema, is_whole=part is offered)
        elif name in members:
            member = members[name]
            shown = dict(member) if isinstance(member, dict) else ({} if member else {"not": {}})
            shown |= {key: override[key] for key in ("description", "default") if key in override}
            offered["properties"] = _properties(offered) | {name: shown}
            if "default" in override:
                for part in _parts(offered):
                    _require_no_more(part, name)
    return offered


def complete_arguments(overrides: Overrides, arguments: dict[str, Any]) -> dict[str, Any]:
    """Add the constants, and the defaults of missing arguments."""
    if not overrides:
        return arguments
    defaults = {name: override["default"] for name, override in overrides.items() if "default" in override}
    return defaults | arguments | constants_of(overrides)


def constants_of(overrides: Overrides) -> dict[str, Any]:
    """The arguments that callers neither see nor set."""
    return {name: override["constant"] for name, override in overrides.items() if "constant" in override}


def settle_arguments(schema: Schema, overrides: Overrides, arguments: dict[str, Any]) -> CheckedArguments:
    """The arguments for the engine, or the errors in the caller's."""
    if not overrides:
        return check_arguments(schema, arguments)
    constants = constants_of(overrides)
    if fixed := [name for name in arguments if name in constants]:
        problems = [ArgumentProblem(pointer_of([name]), LEFT_TO_THE_CATALOGUE) for name in fixed]
        return CheckedArguments(arguments, problems)
    checked = check_arguments(offer_schema(schema, overrides), arguments)
    if checked.problems:
        return checked
    settled = complete_arguments(overrides, checked.arguments)
    ours = {pointer_of([name]) for name in settled.keys() - checked.arguments.keys()}
    problems = [_blamed(problem, ours) for problem in find_argument_problems(schema, settled)]
    return CheckedArguments(settled, problems)


def check_form(given: Any) -> str:
    """The first error in the form of the overrides, regardless of the schema; empty without one."""
    if not isinstance(given, dict):
        return 'This must be an object, such as {"region": {"constant": "eu"}}.'
    for name, override in given.items():
        if not isinstance(override, dict) or not override or override.keys() - MEMBERS:
            return f"{name}: must have a description, a constant or a default, and nothing else."
        if {"constant", "default"} <= override.keys():
            return f"{name}: cannot have both a constant and a default."
        described = override.get("description", "-")
        if not isinstance(described, str) or not 0 < len(described) <= MAX_DESCRIPTION:
            return f"{name}: the description must be a string of at most {MAX_DESCRIPTION:,} characters."
        if problem := _value_problem(override.get("constant", override.get("default"))):
            return f"{name}: {problem}"
    return ""


def find_override_problems(schema: Schema, overrides: Overrides) -> dict[str, str]:
    """Errors by argument where the overrides no longer fit the engine's schema."""
    if not overrides:
        return {}
    inputs, members = describe_inputs(schema), _members(schema)
    still_named = describe_inputs(offer_schema(schema, overrides))
    problems = {}
    for name, override in overrides.items():
        if name not in inputs:
            problems[name] = "The engine's schema has no such argument."
        elif "constant" in override and name in still_named:
            problems[name] = "It cannot be hidden, because other parts of the engine's schema refer to it."
        else:
            values = [override[kind] for kind in ("constant", "default") if kind in override]
            misfits = (_misfit(schema, members.get(name, {}), value) for value in values)
            if misfit := "; ".join(filter(None, misfits)):
                problems[name] = misfit
    return problems


def _value_problem(value: Any) -> str:
    try:
        written = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return "the value is not valid JSON."
    if len(written) > MAX_VALUE:
        return f"the value cannot have more than {MAX_VALUE:,} characters."
    return ""


def _blamed(problem: ArgumentProblem, ours: set[str]) -> ArgumentProblem:
    """A caller cannot correct a value that the curator set."""
    if not any(problem.path == place or problem.path.startswith(f"{place}/") for place in ours):
        return problem
    message = f"the value that the catalogue sets no longer fits the engine's schema: {problem.message}"
    return ArgumentProblem(problem.path, f"{message}. A curator must change it")


def _members(schema: Schema) -> dict[str, Any]:
    return members_of_parts(schema) | _properties(schema)


def _properties(schema: Schema) -> dict[str, Any]:
    return as_object(schema.get("properties"))


def _parts(schema: Any) -> Iterator[Schema]:
    """The schema and its parts for the same value, except targets of references, which may be shared."""
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword in ("allOf", "anyOf", "oneOf"):
        if isinstance(parts := schema.get(keyword), list):
            for part in parts:
                yield from _parts(part)
    for keyword in ("if", "then", "else", "not"):
        yield from _parts(schema.get(keyword))


def _fix(part: Schema, name: str, value: Any, *, root: Schema, is_whole: bool) -> None:
    """Reduce the part to what it demands of the other arguments, given this one's value."""
    unnamed = True if "patternProperties" in part else part.get("additionalProperties", True)
    inner = _properties(part).pop(name, unnamed)
    if not is_whole and (part.get("maxProperties") == 0 or _misfit(root, inner, value)):
        part.clear()
        part["not"] = {}
        return
    _require_no_more(part, name)
    _apply_dependencies(part, name)
    for keyword in ("minProperties", "maxProperties"):
        if isinstance(part.get(keyword), int):
            part[keyword] = max(0, part[keyword] - 1)


def _require_no_more(part: Schema, name: str) -> None:
    if name in (required := _required(part)):
        part["required"] = [other for other in required if other != name]
        if not part["required"]:
            del part["required"]
    for keyword in ("dependentRequired", "dependencies"):
        if isinstance(dependent := part.get(keyword), dict):
            for other, names in dependent.items():
                if isinstance(names, list):
                    dependent[other] = [each for each in names if each != name]


def _apply_dependencies(part: Schema, name: str) -> None:
    """The conditions of an argument that is always present always hold."""
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        dependent = part.get(keyword)
        if not isinstance(dependent, dict) or name not in dependent:
            continue
        demanded = dependent.pop(name)
        if isinstance(demanded, list):
            part["required"] = list(dict.fromkeys([*_required(part), *demanded]))
        else:
            part["allOf"] = [*part.get("allOf", []), demanded]


def _required(part: Schema) -> list[Any]:
    required = part.get("required")
    return required if isinstance(required, list) else []


def _misfit(root: Schema, inner: Any, value: Any) -> str:
    """Why the argument cannot have the value; empty if it can."""
    problems = find_part_problems(root, inner, value)
    return "; ".join(f"{one.path} {one.message}".strip() for one in problems)


def find_part_problems(root: Schema, inner: Any, value: Any) -> list[ArgumentProblem]:
    """The errors in the value of one part of a schema, with paths within the value."""
    alone = {keyword: root[keyword] for keyword in root if keyword not in ABOUT_THE_WHOLE}
    alone["properties"] = _properties(root) | {"value": inner}
    if find_schema_problem(alone):
        # A reference into the omitted keywords: each call is checked with the whole schema anyway.
        return []
    problems = find_argument_problems(alone, {"value": value})
    return [ArgumentProblem(one.path.removeprefix("/value"), one.message) for one in problems]
