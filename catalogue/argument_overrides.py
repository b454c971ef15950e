"""What a curator changes of a workflow's arguments: `{name: {description?, constant? | default?}}`.

A constant is sent with each call, and callers never see the argument. A default stands in where a caller
leaves the argument out, which then is optional. Everything that is told to callers shows the offered schema;
the engine gets what `settle_arguments` makes of a call, checked with the engine's own schema.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

from catalogue.inputs import describe_inputs
from catalogue.schemas import (
    ArgumentProblem,
    CheckedArguments,
    check_arguments,
    find_argument_problems,
    find_schema_problem,
)
from catalogue.served_schemas import members_of_parts

Schema = dict[str, Any]
Overrides = Mapping[str, Mapping[str, Any]]

MEMBERS = {"description", "constant", "default"}
LONGEST_DESCRIPTION = 4_000
LONGEST_VALUE = 10_000
"""Characters of a value as JSON."""
LEFT_TO_THE_CATALOGUE = "is set by the catalogue; leave it out"
ABOUT_THE_WHOLE = {
    *("required", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref"),
    *("dependencies", "dependentRequired", "dependentSchemas", "minProperties", "maxProperties"),
    *("propertyNames", "patternProperties", "additionalProperties", "unevaluatedProperties"),
}
"""Keywords that say nothing of what one argument may be."""


def offer_schema(schema: Schema, overrides: Overrides) -> Schema:
    """What callers may give, by the engine's schema and the curator's changes to it."""
    if not overrides:
        return schema
    offered = copy.deepcopy(schema)
    members = _members(offered)
    for name, override in overrides.items():
        if "constant" in override:
            # Not a list: what hangs on the argument is moved into the parts that are still to come.
            for part in _parts(offered):
                _fix(part, name, override["constant"], root=schema, is_whole=part is offered)
        elif name in members:
            offered["properties"] = _properties(offered) | {name: _reworded(members[name], override)}
            if "default" in override:
                for part in _parts(offered):
                    _require_no_more(part, name)
    return offered


def complete_arguments(overrides: Overrides, arguments: dict[str, Any]) -> dict[str, Any]:
    """With the constants, and the defaults for what is left out."""
    if not overrides:
        return arguments
    constants = {name: told["constant"] for name, told in overrides.items() if "constant" in told}
    defaults = {name: told["default"] for name, told in overrides.items() if "default" in told}
    return defaults | arguments | constants


def settle_arguments(schema: Schema, overrides: Overrides, arguments: dict[str, Any]) -> CheckedArguments:
    """What the engine gets for a caller's arguments, or what is wrong with these."""
    if not overrides:
        return check_arguments(schema, arguments)
    fixed = [name for name in arguments if "constant" in overrides.get(name, {})]
    if fixed:
        problems = [ArgumentProblem(_pointer(name), LEFT_TO_THE_CATALOGUE) for name in fixed]
        return CheckedArguments(arguments, problems)
    checked = check_arguments(offer_schema(schema, overrides), arguments)
    if checked.problems:
        return checked
    settled = complete_arguments(overrides, checked.arguments)
    ours = {_pointer(name) for name in settled.keys() - checked.arguments.keys()}
    problems = [_blamed(problem, ours) for problem in find_argument_problems(schema, settled)]
    return CheckedArguments(settled, problems)


def visible_arguments(overrides: Overrides, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Of what a run was given, what a caller may give again."""
    return {name: value for name, value in arguments.items() if "constant" not in overrides.get(name, {})}


def check_form(given: Any) -> str:
    """What is wrong with how changes are written, whatever the schema is; empty if nothing."""
    if not isinstance(given, dict):
        return 'This has to be an object, such as {"region": {"constant": "eu"}}.'
    for name, override in given.items():
        if not isinstance(override, dict) or not override or override.keys() - MEMBERS:
            return f"{name}: give a description, and a constant or a default; nothing else."
        if {"constant", "default"} <= override.keys():
            return f"{name}: give a constant or a default, not both."
        described = override.get("description", "-")
        if not isinstance(described, str) or not 0 < len(described) <= LONGEST_DESCRIPTION:
            return f"{name}: a description is a text of at most {LONGEST_DESCRIPTION:,} characters."
        if problem := _value_problem(override.get("constant", override.get("default"))):
            return f"{name}: {problem}"
    return ""


def find_override_problems(schema: Schema, overrides: Overrides) -> dict[str, str]:
    """What no longer fits the engine's schema, by the argument's name."""
    if not overrides:
        return {}
    inputs, members = describe_inputs(schema), _members(schema)
    still_named = describe_inputs(offer_schema(schema, overrides))
    problems = {}
    for name, override in overrides.items():
        if name not in inputs:
            problems[name] = "The engine's schema names no such argument."
        elif "constant" in override and name in still_named:
            problems[name] = "The engine's schema refers to it in a way that it cannot be hidden."
        elif misfit := _misfit_of(schema, members.get(name, {}), override):
            problems[name] = misfit
    return problems


def _misfit_of(schema: Schema, member: Any, override: Mapping[str, Any]) -> str:
    values = [override[kind] for kind in ("constant", "default") if kind in override]
    return "; ".join(filter(None, (_misfit(schema, member, value) for value in values)))


def _value_problem(value: Any) -> str:
    try:
        written = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return "this value is not JSON."
    return f"at most {LONGEST_VALUE:,} characters." if len(written) > LONGEST_VALUE else ""


def _blamed(problem: ArgumentProblem, ours: set[str]) -> ArgumentProblem:
    """The caller can do nothing about a value that the curator gave."""
    if not any(problem.path == place or problem.path.startswith(f"{place}/") for place in ours):
        return problem
    told = f"the value that the catalogue sets no longer fits the engine's schema: {problem.message}"
    return ArgumentProblem(problem.path, f"{told}. A curator has to change it")


def _members(schema: Schema) -> dict[str, Any]:
    return members_of_parts(schema) | _properties(schema)


def _properties(schema: Schema) -> dict[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _reworded(member: Any, override: Mapping[str, Any]) -> Schema:
    shown = dict(member) if isinstance(member, dict) else ({} if member else {"not": {}})
    return shown | {name: override[name] for name in ("description", "default") if name in override}


def _parts(schema: Any) -> Iterator[Schema]:
    """It and what it is composed of in its own place; what is referred to may be meant elsewhere, too."""
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
    """Say of the other arguments what the part says of them once this one has the value."""
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
    """What depends on an argument that is always given always holds."""
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
    """Why one argument cannot have the value; empty if it can."""
    alone = {keyword: told for keyword, told in root.items() if keyword not in ABOUT_THE_WHOLE}
    alone["properties"] = _properties(root) | {"value": inner}
    if find_schema_problem(alone):
        # Something refers to what was left out; the engine's whole schema has the last word at each call.
        return ""
    problems = find_argument_problems(alone, {"value": value})
    return "; ".join(
        f"{problem.path.removeprefix('/value')} {problem.message}".strip() for problem in problems
    )


def _pointer(name: str) -> str:
    return "/" + name.replace("~", "~0").replace("/", "~1")
