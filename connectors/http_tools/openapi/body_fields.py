"""The fields of an object that is a body, as far as they can be told one by one."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from connectors.formats.json_schema import pointer_of
from connectors.http_tools.openapi.arguments import Demand
from connectors.http_tools.openapi.document import Document
from connectors.http_tools.openapi.document_text import Ambiguous
from connectors.http_tools.openapi.refusals import NoTool, quoted
from connectors.http_tools.openapi.schema_keywords import is_left_out

DEEPEST = 8
"""`allOf` within `allOf`."""
MAX_FIELDS = 1_000
OPEN = frozenset(
    ["patternProperties", "unevaluatedProperties", "propertyNames", "dependentSchemas", "if", "not"]
)
"""Keywords of objects of which a list of fields does not say everything."""
CHOICES = ("oneOf", "anyOf")


@dataclass(slots=True)
class Field:
    name: str
    required: bool = False
    schemas: list[tuple[Any, str]] = field(default_factory=list)
    """All of which it has to fit, each with its pointer."""

    @property
    def pointer(self) -> str:
        return self.schemas[0][1]


@dataclass(frozen=True, slots=True)
class Fields:
    """What an object that is a body has."""

    fields: dict[str, Field]
    """By name."""
    demands: list[Demand]


def fields_of(document: Document, raw: Any, pointer: str) -> Fields | None:
    """None for a body that only makes sense as a whole. Raises NoTool."""
    gathered = _Gathered(document)
    if not isinstance(raw, dict) or not gathered.take(raw, pointer) or not gathered.fields:
        return None
    for name in gathered.required & gathered.fields.keys():
        gathered.fields[name].required = True
    # A field that is required and described nowhere takes whatever it is.
    for name in sorted(gathered.required - gathered.fields.keys() - gathered.left_out):
        gathered.fields[name] = Field(name, required=True, schemas=[({}, pointer)])
    if gathered.at_least > 1 and gathered.at_least > len(gathered.required):
        return None
    return Fields(gathered.fields, list(gathered.needed()))


@dataclass(slots=True)
class _Gathered:
    document: Document
    fields: dict[str, Field] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)
    demands: list[Demand] = field(default_factory=list)
    at_least: int = 0
    """How many fields have to be given, whichever."""
    parts: int = 0

    def take(self, raw: Any, pointer: str, depth: int = 0) -> bool:
        """Whether everything that the schema says is in the fields now."""
        schema, pointer = self.document.object_at(raw, pointer)
        self.parts += 1
        if depth > DEEPEST or self.parts > MAX_FIELDS or not _is_plain(schema):
            return False
        if isinstance(names := schema.get("required"), list):
            self.required |= {name for name in names if isinstance(name, str)}
        self._take_demands(schema)
        self._take_properties(schema.get("properties", {}), f"{pointer}/properties")
        return len(self.fields) <= MAX_FIELDS and all(
            self.take(part, f"{pointer}/allOf/{position}", depth + 1)
            for position, part in enumerate(schema.get("allOf", ()))
        )

    def _take_demands(self, schema: dict[str, Any]) -> None:
        fewest = schema.get("minProperties", 0)
        if isinstance(fewest, int) and not isinstance(fewest, bool):
            self.at_least = max(self.at_least, fewest)
        for word in CHOICES:
            groups = [_required_by(one) for one in schema.get(word) or ()]
            if groups:
                self.demands.append(Demand(of=tuple(groups), only_one=word == "oneOf"))

    def needed(self) -> Iterator[Demand]:
        """Those that are not fulfilled by what always has to be given, nor by nothing that can be given."""
        known = self.fields.keys()
        for demand in self.demands:
            possible = tuple(dict.fromkeys(group for group in demand.of if group <= known))
            is_always = any(group <= self.required for group in possible)
            if possible and (demand.only_one or not is_always):
                yield Demand(of=possible, only_one=demand.only_one)
        if self.at_least == 1 and not self.required:
            yield Demand(of=tuple(frozenset([name]) for name in self.fields))

    def _take_properties(self, properties: dict[str, Any], pointer: str) -> None:
        if isinstance(properties, Ambiguous):
            raise NoTool(f"The key {quoted(properties.key)} stands twice in one object.", pointer)
        for name, raw in properties.items():
            at = f"{pointer}{pointer_of([name])}"
            if is_left_out(self.document, raw, at, "request"):
                self.left_out.add(name)
                continue
            known = self.fields.setdefault(name, Field(name))
            if all(raw != other for other, _ in known.schemas):
                known.schemas.append((raw, at))


def _is_plain(schema: dict[str, Any]) -> bool:
    if OPEN & schema.keys() or schema.get("additionalProperties") not in (None, False):
        return False
    named = schema.get("type", "object")
    if named != "object" and named != ["object", "null"]:
        return False
    if not isinstance(schema.get("properties", {}), dict) or not isinstance(schema.get("allOf", []), list):
        return False
    # A base of several kinds of objects, each with further fields.
    if isinstance(said := schema.get("discriminator"), dict) and said.get("mapping"):
        return False
    return all(_only_requires(schema.get(word)) for word in CHOICES)


def _required_by(choice: dict[str, Any]) -> frozenset[str]:
    names = choice.get("required")
    return (
        frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()
    )


def _only_requires(choices: Any) -> bool:
    """Whether they only say which fields go together."""
    return choices is None or (
        isinstance(choices, list)
        and all(
            isinstance(one, dict) and one.keys() <= {"required", "title", "description"} for one in choices
        )
    )
