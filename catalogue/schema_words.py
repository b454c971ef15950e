"""A word for the type of what a JSON Schema allows: always one, also for what has no type."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

ANYTHING = "any"
NOTHING = "never"
TYPES = ("string", "integer", "number", "boolean", "object", "array", "null")
MOST_HOPS = 4
"""References and alternatives within each other that are followed for one word."""
MOST_ALTERNATIVES = 4
HINTS = {
    "object": ("properties", "additionalProperties", "patternProperties", "minProperties", "maxProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""Keywords that say something about one type only."""


@dataclass(frozen=True, slots=True)
class Place:
    """A subschema and the whole that its references point into."""

    schema: Any
    root: dict[str, Any]

    def at(self, schema: Any) -> "Place":
        return Place(schema, self.root)

    def each(self, keyword: str) -> list["Place"]:
        """The subschemas in a keyword's list."""
        parts = self.schema.get(keyword) if isinstance(self.schema, dict) else None
        return [self.at(part) for part in parts] if isinstance(parts, list) else []

    def target(self) -> "Place | None":
        """What it refers to, by a pointer into the whole; None without one or where it leads nowhere."""
        reference = self.schema.get("$ref") if isinstance(self.schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found: Any = self.root
        for step in reference[1:].split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or key not in found:
                return None
            found = found[key]
        return self.at(found)

    def chain(self) -> Iterator[dict[str, Any]]:
        """It and what its references lead to, one after another."""
        place: Place | None = self
        for _ in range(MOST_HOPS):
            if place is None or not isinstance(place.schema, dict):
                return
            yield place.schema
            place = place.target() if "$ref" in place.schema else None


def word_for_type(place: Place, *, hops: int = MOST_HOPS) -> str:
    """`string`, `string or null`, `any`: what a reader needs to know of the type."""
    if place.schema is False:
        return NOTHING
    if not isinstance(place.schema, dict) or not hops:
        return ANYTHING
    stated = place.schema.get("type")
    if isinstance(stated, str) and stated in TYPES:
        return stated
    if words := _of_list(stated) or _of_values(place.schema):
        return _joined(words)
    if (target := place.target()) is not None:
        return word_for_type(target, hops=hops - 1)
    return _of_parts(place, hops - 1) or _hinted(place.schema)


def _of_list(stated: Any) -> list[str]:
    return [word for word in stated if word in TYPES] if isinstance(stated, list) else []


def _of_values(schema: dict[str, Any]) -> list[str]:
    """The types of the values that are allowed, where they are counted up."""
    if "const" in schema:
        return [_type_of(schema["const"])]
    values = schema.get("enum")
    return [_type_of(value) for value in values] if isinstance(values, list) else []


def _type_of(value: Any) -> str:
    kinds: tuple[tuple[type, str], ...] = (
        (bool, "boolean"),  # before int, which it is to Python
        (int, "integer"),
        (float, "number"),
        (str, "string"),
        (list, "array"),
        (dict, "object"),
    )
    return next((word for kind, word in kinds if isinstance(value, kind)), "null")


def _of_parts(place: Place, hops: int) -> str:
    for keyword in ("anyOf", "oneOf"):
        if parts := place.each(keyword):
            words = [word_for_type(part, hops=hops) for part in parts[: MOST_ALTERNATIVES + 1]]
            return _joined(word for word in words if word != NOTHING)
    words = [word_for_type(part, hops=hops) for part in place.each("allOf")[:MOST_ALTERNATIVES]]
    return next((word for word in words if word != ANYTHING), "")


def _hinted(schema: dict[str, Any]) -> str:
    return next(
        (word for word, keywords in HINTS.items() if not schema.keys().isdisjoint(keywords)), ANYTHING
    )


def _joined(words: Iterable[str]) -> str:
    """Each once; anything where it is too many to be of use."""
    different = list(dict.fromkeys(part for word in words for part in word.split(" or ")))
    if ANYTHING in different or not 0 < len(different) <= MOST_ALTERNATIVES:
        return ANYTHING
    return " or ".join(different)


def words_for_demand(broken: Any) -> str:
    """What has to be given, where `not` forbids that it is not: `at least one of a, b`.

    Empty for any other schema. Imported tools say so what a body's minProperties, anyOf and oneOf do.
    """
    match broken:
        case {"properties": dict() as absent, **others} if not others and all(
            schema is False for schema in absent.values()
        ):
            return f"at least one of {', '.join(absent)} has to be given"
        case {"not": {"anyOf": list() as groups}}:
            return _words_for_groups("one or more", groups)
        case {"not": {"oneOf": list() as groups}}:
            return _words_for_groups("exactly one", groups)
        case {"anyOf": list() as several}:
            told = [words_for_demand(one) for one in several]
            return "; ".join(told) if all(told) else ""
    return ""


def _words_for_groups(how_many: str, groups: list[Any]) -> str:
    if not all(isinstance(group, dict) and group.keys() == {"required"} for group in groups):
        return ""
    told = " / ".join(" with ".join(map(str, group["required"])) for group in groups)
    return f"{how_many} of these has to be given: {told}"
