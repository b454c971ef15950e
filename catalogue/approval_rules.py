"""Rules that require approval of a call by its arguments: `[{argument, is, value}]`, where `argument` is a
JSON Pointer, such as `/order/amount`, or `/items/*/price` for each item. One matching rule is enough. A call
that a rule cannot judge also needs approval: an argument is missing, or its value has another type."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from catalogue.served_schemas import Place, inputs_at, word_for_type
from connectors.formats.json import is_number
from connectors.formats.json_schema import steps_of

Rule = Mapping[str, Any]
MEMBERS = {"argument", "is", "value"}
MAX_RULES = 20
MAX_VALUES = 100
MAX_VALUE = 1_000  # Characters of the JSON
MAX_STEPS = 10
EACH = "*"
NUMBERS = ("number", "integer")


def _is_number(value: Any) -> bool:
    """A finite number: all comparisons with NaN are false."""
    return is_number(value) and (isinstance(value, int) or math.isfinite(value))


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def _kind_of(value: Any) -> str:
    """The JSON type; `1` and `1.0` are both numbers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return "number" if _is_number(value) else "string" if isinstance(value, str) else "other"


def _typed(value: Any) -> tuple[str, Any]:
    """For comparisons, as Python takes 1 for true."""
    return _kind_of(value), value


def _is_odd(value: Any, listed: Iterable[Any]) -> bool:
    return not _is_scalar(value) or _kind_of(value) not in {_kind_of(other) for other in listed}


# Whether the call needs approval; it does if the comparison does not apply to the type of the value.
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "over": lambda value, bound: not _is_number(value) or value > bound,
    "at_least": lambda value, bound: not _is_number(value) or value >= bound,
    "under": lambda value, bound: not _is_number(value) or value < bound,
    "at_most": lambda value, bound: not _is_number(value) or value <= bound,
    "equal_to": lambda value, other: _is_odd(value, [other]) or _typed(value) == _typed(other),
    "other_than": lambda value, other: _typed(value) != _typed(other),
    "one_of": lambda value, listed: _is_odd(value, listed) or _typed(value) in map(_typed, listed),
    "none_of": lambda value, listed: _typed(value) not in map(_typed, listed),
}
OF_NUMBERS = ("over", "at_least", "under", "at_most")
OF_LISTS = ("one_of", "none_of")


def reason_for_approval(rule: Rule, arguments: Mapping[str, Any]) -> str:
    """A phrase if the rule requires approval, else empty. `arguments` are those that the engine would get."""
    try:
        steps, compare = steps_of(rule["argument"]), COMPARISONS[rule["is"]]
        values = _values_at(arguments, steps)
        if values is None:
            return f"{describe_rule(rule)}, and the call has no such argument"
        needs = any(compare(value, rule["value"]) for value in values)
    except (KeyError, TypeError, ValueError):
        # Written by a newer version, or without validation.
        return f"a rule cannot be read: {json.dumps(rule, default=str)[:200]}"
    return describe_rule(rule) if needs else ""


def describe_rule(rule: Rule) -> str:
    words = str(rule["is"]).replace("_", " ")
    return f"{rule['argument']} {words} {json.dumps(rule['value'], ensure_ascii=False)}"


def _values_at(document: Any, steps: Iterable[str]) -> list[Any] | None:
    """All values at the path; None if a part of it is missing."""
    found = [document]
    for step in steps:
        below: list[Any] = []
        for value in found:
            if isinstance(value, list) and step == EACH:
                below += value
            elif isinstance(value, dict) and step in value and step != EACH:
                below.append(value[step])
            else:
                return None
        found = below
    return found


def check_form(given: Any) -> str:
    """The first error in the form of the rules, regardless of the schema; empty without one."""
    if not isinstance(given, list):
        return 'This must be a list, such as [{"argument": "/amount", "is": "over", "value": 1000}].'
    if len(given) > MAX_RULES:
        return f"At most {MAX_RULES} rules."
    for number, rule in enumerate(given, start=1):
        if problem := _form_problem(rule):
            return f"Rule {number}: {problem}"
    return ""


def _form_problem(rule: Any) -> str:
    if not isinstance(rule, dict) or rule.keys() != MEMBERS:
        return "it must have `argument`, `is` and `value`, and nothing else."
    argument, comparison, value = rule["argument"], rule["is"], rule["value"]
    if not isinstance(argument, str) or not argument.startswith("/") or argument == "/":
        return "`argument` must be a path that begins with a slash, such as /amount or /items/*/price."
    if len(steps_of(argument)) > MAX_STEPS:
        return f"`argument` cannot have more than {MAX_STEPS} steps."
    if comparison not in [*COMPARISONS]:  # Anything JSON can be, also what has no hash
        return f"the comparison {comparison!r} must be one of {', '.join(COMPARISONS)}."
    return _value_problem(comparison, value)


def _value_problem(comparison: str, value: Any) -> str:
    if comparison in OF_NUMBERS and not _is_number(value):
        return f"`{comparison}` requires a number."
    if comparison in OF_LISTS:
        if not isinstance(value, list) or not 0 < len(value) <= MAX_VALUES or not all(map(_is_scalar, value)):
            return f"`{comparison}` requires a list of 1 to {MAX_VALUES} strings, numbers, booleans or null."
    elif not _is_scalar(value):
        return f"`{comparison}` requires a string, a number, a boolean or null."
    try:
        written = json.dumps(value, allow_nan=False)
    except ValueError:
        return "`value` cannot be infinite or NaN."
    if len(written) > MAX_VALUE:
        return f"`value` cannot have more than {MAX_VALUE:,} characters."
    return ""


def find_rule_problems(schema: dict[str, Any], rules: Iterable[Rule]) -> list[str]:
    """Returns why rules no longer fit the engine's schema; with these, each call needs approval."""
    whole = Place(schema, schema)
    return [problem for rule in rules if (problem := _misfit(whole, rule))]


def _misfit(place: Place, rule: Rule) -> str:
    argument = rule["argument"]
    for step in steps_of(argument):
        below = _below(place, step)
        if below is None:
            return ""
        if isinstance(below, str):
            return f"{argument}: {below}"
        place = below
    known = set(word_for_type(place).split(" or "))
    if "any" in known:
        return ""
    if rule["is"] in OF_NUMBERS:
        fits = bool(known & set(NUMBERS))
        return "" if fits else f"{argument}: {word_for_type(place)} cannot be compared with a number."
    values = rule["value"] if rule["is"] in OF_LISTS else [rule["value"]]
    for value in values:
        kinds = set(NUMBERS) if _kind_of(value) == "number" else {_kind_of(value)}
        if not known & kinds:
            return f"{argument}: {json.dumps(value)} is never {word_for_type(place)}."
    return ""


def _below(place: Place, step: str) -> "Place | str | None":
    """The schema at the step, an error, or None if the engine's schema does not say."""
    if step == EACH:
        for schema in place.chain():
            if "items" in schema:
                return place.at(schema["items"])
        words = word_for_type(place)
        return None if words in ("any", "array") else f"{words} has no items; `*` means each item of a list."
    inputs = inputs_at(place)
    if step in inputs.properties:
        return inputs.properties[step].place
    if not inputs.properties:
        words = word_for_type(place)
        return None if words in ("any", "object") else f"{words} has no argument {step}."
    return f"the engine's schema has no {step}; it has {', '.join(sorted(inputs.properties)[:20])}."


def write_rules(rules: Iterable[Rule]) -> str:
    """One line per rule, in the format of `read_rules`."""
    lines = []
    for rule in rules:
        value = rule["value"]
        is_plain = isinstance(value, str) and value and value == value.strip() == _read_value(value)
        written = value if is_plain else json.dumps(value, ensure_ascii=False)
        lines.append(f"{rule['argument']} {rule['is']} {written}")
    return "\n".join(lines)


def read_rules(text: str) -> list[dict[str, Any]]:
    """Parse lines such as `/amount over 1000`. Raises ValueError with the number of the invalid line."""
    rules = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        argument, _, rest = line.strip().partition(" ")
        comparison, _, value = rest.strip().partition(" ")
        if not value.strip():
            raise ValueError(f"Line {number}: must look like /amount over 1000.")
        rules.append({"argument": argument, "is": comparison, "value": _read_value(value.strip())})
        if problem := _form_problem(rules[-1]):
            raise ValueError(f"Line {number}: {problem}")
    return rules


def _read_value(written: str) -> Any:
    """The JSON value, or else the text itself."""
    try:
        return json.loads(written)
    except ValueError:
        return written
