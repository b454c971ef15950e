"""Tool names and input schemas that every model provider accepts. A portable schema has only types,
descriptions, choices of strings, lists, and objects that name all their members by plain keys; descriptions
state other constraints. Free objects and recursion become JSON text. Arguments are translated back and then
checked against the engine's own schema."""

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from keyword import iskeyword
from typing import Any

from catalogue.naming import RESERVED, listed
from catalogue.schema_limits import REFERENCES, BrokenSchema, Places, UnsafeSchema, measure_demand, subschemas
from catalogue.schemas import ArgumentProblem
from catalogue.served_schemas import TYPES, types_of_values
from connectors.formats.json_schema import JSON_TYPES, pointer_of, steps_of

PORTABLE_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")  # For Vertex AI; pydantic: no leading _
PORTABLE_TOOL = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")  # OpenAI: no dots; Gemini: no leading digit
# LangChain in Python drops the first three at the root of a tool, and fails on `self` like LlamaIndex, which
# cannot list any tool if one has an argument of the others: it makes pydantic's classes of schemas.
LIBRARY_KEYS = frozenset({
    "config", "run_manager", "runtime", "self", "model_config", "model_dump", "model_dump_json",
    "model_validate", "model_validate_json", "model_validate_strings",
})  # fmt: skip
MAX_KEY = 64
SERVER_NAME = "workflow-catalogue"
MAX_WITH_SERVER = 57  # With the server's name: Cursor shows fewer than 60, `mcp__server__tool` has 64
MIN_LIMIT = 24  # For servers with long names; the built-in tools need nearly as much
DIGEST = 6


def server_name(toolset: str | None) -> str:
    """The name in clients' configurations; a client may have several toolsets."""
    return f"{SERVER_NAME}-{toolset}" if toolset else SERVER_NAME


def limit_for_tools(toolset: str | None) -> int:
    return max(MAX_WITH_SERVER - len(server_name(toolset)), MIN_LIMIT)


def is_portable_tool(name: str, *, limit: int) -> bool:
    return PORTABLE_TOOL.fullmatch(name) is not None and len(name) <= limit


def alias_keys(keys: Iterable[str]) -> dict[str, str]:
    known = set(keys)
    odd = {key: _mangled(key) for key in known if not PORTABLE_KEY.fullmatch(key) or _is_reserved(key)}
    plain = {key: f"{alias}_" if _is_reserved(alias) else alias for key, alias in odd.items()}
    return _told_apart(plain, taken=known, limit=MAX_KEY)


def _is_reserved(key: str) -> bool:
    return iskeyword(key) or key in LIBRARY_KEYS


def alias_tools(names: Iterable[str], *, limit: int) -> dict[str, str]:
    known = set(names)
    odd = {name: _mangled(name, also="-") for name in known if not is_portable_tool(name, limit=limit)}
    return _told_apart(odd, taken=known | RESERVED, limit=limit)


def _told_apart(plain: dict[str, str], *, taken: Set[str], limit: int) -> dict[str, str]:
    """Long, repeated or taken aliases get a digest of the name."""
    used, told_apart = Counter(plain.values()), dict(plain)
    for name, alias in plain.items():
        if len(alias) > limit or used[alias] > 1 or alias in taken:
            digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:DIGEST]
            told_apart[name] = f"{alias[: limit - DIGEST - 1].rstrip('_-')}_{digest}"
    return told_apart


def _mangled(name: str, also: str = "") -> str:
    """`page[size]` -> `page_size`, with a letter in front."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode("ascii")
    words = re.sub(rf"[^A-Za-z0-9_{also}]+", "_", plain).strip("_-")
    return words if words[:1].isalpha() else f"n_{words}".rstrip("_")


MAX_PARTS = 2_000  # Nodes after inlining references; further nodes are given as JSON
MAX_LEVELS = 4  # Levels of objects and lists; OpenAI's strict mode used to take five, and takes ten now
MAX_CHOICES = 250
MAX_WORDS = 20_000
SHOWN_KEYS = 3
MAX_SHOWN = 40
OTHERS = "other_arguments"
Schema = dict[str, Any]
OWN_TYPE = {  # The likely type of a schema without one
    "properties": "object", "required": "object", "additionalProperties": "object",
    "patternProperties": "object",
    "items": "array", "prefixItems": "array", "minItems": "array", "maxItems": "array",
    "pattern": "string", "format": "string", "minLength": "string", "maxLength": "string",
    "minimum": "number", "maximum": "number", "multipleOf": "number",
}  # fmt: skip
WORDS = {
    "format": "format {}", "pattern": "matches {}", "minLength": "at least {} characters",
    "maxLength": "at most {} characters", "minimum": "at least {}", "exclusiveMinimum": "more than {}",
    "maximum": "at most {}", "exclusiveMaximum": "less than {}", "multipleOf": "a multiple of {}",
    "minItems": "at least {} items", "maxItems": "at most {} items", "default": "default {}",
    "minProperties": "at least {} members", "maxProperties": "at most {} members", "examples": "such as {}",
}  # fmt: skip
NOTHING: Schema = {"type": []}
CLAUDE_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
CUT = "x-cut"  # Marks recursion, and parts that are too large to inline


@dataclass(slots=True)
class Plan:
    """Says how to read a value written by a portable schema."""

    members: dict[str, tuple[str, "Plan"]] = field(default_factory=dict)  # The keys by their aliases
    others: str = ""  # The alias of the member with further members as JSON
    items: "Plan | None" = None
    is_json: bool = False
    is_text: bool = False  # A text may stand for itself
    is_anything: bool = False  # JSON other than an object or a list is possible too
    null_is_nothing: bool = False  # Only for clients that leave nothing out: the schema does not allow null

    @property
    def _is_object(self) -> bool:
        return bool(self.members or self.others)

    def add(self, other: "Plan") -> None:
        for alias, (key, plan) in other.members.items():
            if alias in self.members:
                self.members[alias][1].add(plan)
            else:
                self.members[alias] = (key, plan)
        if self.items and other.items:
            self.items.add(other.items)
        self.others, self.items = self.others or other.others, self.items or other.items
        self.is_json |= other.is_json
        self.is_text |= other.is_text
        self.is_anything |= other.is_anything
        self.null_is_nothing &= other.null_is_nothing

    def read(self, value: Any, place: tuple[str | int, ...], wrong: list[ArgumentProblem]) -> Any:
        if isinstance(value, str) and self.is_json:
            return self._read_json(value, place, wrong)
        if isinstance(value, dict) and self._is_object:
            return self._read_members(value, place, wrong)
        if isinstance(value, list) and self.items:
            return [self.items.read(item, (*place, number), wrong) for number, item in enumerate(value)]
        return value

    def _read_json(self, text: str, place: tuple[str | int, ...], wrong: list[ArgumentProblem]) -> Any:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            if not self.is_text:
                wrong.append(ArgumentProblem(pointer_of(place), "this must be JSON text"))
            return text
        if self.is_text and not self.is_anything and not isinstance(value, (dict, list)):
            return text
        return value

    def _read_members(
        self, value: dict[str, Any], place: tuple[str | int, ...], wrong: list[ArgumentProblem]
    ) -> dict[str, Any]:
        """Members may have their own keys too."""
        plans = dict(self.members.values())
        read: dict[str, Any] = {}
        for name, inner in value.items():
            if name == self.others and name not in plans:
                continue
            key, plan = self.members.get(name) or (name, plans.get(name))
            if inner is None and plan is not None and plan.null_is_nothing:
                continue
            read[key] = inner if plan is None else plan.read(inner, (*place, name), wrong)
        others = value.get(self.others) if self.others and self.others not in plans else None
        if others not in (None, ""):
            others = Plan(is_json=True).read(others, (*place, self.others), wrong)
            if isinstance(others, dict):
                read = others | read
            elif not wrong:
                there = pointer_of([*place, self.others])
                wrong.append(ArgumentProblem(there, "this must be an object, as JSON text"))
        return read

    def write(self, value: Any) -> Any:
        """The inverse of `read`, for examples."""
        if isinstance(value, dict) and self._is_object:
            aliases = {key: (alias, plan) for alias, (key, plan) in self.members.items()}
            known = {
                aliases[key][0]: aliases[key][1].write(inner)
                for key, inner in value.items()
                if key in aliases
            }
            others = {key: inner for key, inner in value.items() if key not in aliases}
            return known | ({self.others: _json(others)} if others and self.others else others)
        if isinstance(value, list) and self.items:
            return [self.items.write(item) for item in value]
        if not self.is_json or (isinstance(value, str) and self.is_text and not self.is_anything):
            return value
        return _json(value)

    def name_place(self, pointer: str) -> str:
        """A JSON Pointer into the arguments, with the aliases that the caller knows."""
        plan: Plan | None = self
        steps = []
        for key in steps_of(pointer):
            alias, following = key, None
            if plan is not None and plan.members:
                named = {key: (alias, inner) for alias, (key, inner) in plan.members.items()}
                alias, following = named.get(key, (key, None))
            elif plan is not None and plan.items and key.isdigit():
                following = plan.items
            steps.append(alias)
            plan = following
        return pointer_of(steps)


@dataclass(frozen=True, slots=True)
class PortableSchema:
    schema: Schema
    plan: Plan

    def read(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], list[ArgumentProblem]]:
        """The arguments by the engine's names, and what cannot be read."""
        wrong: list[ArgumentProblem] = []
        return self.plan.read(arguments, (), wrong), wrong


def make_portable(schema: Schema) -> PortableSchema:
    return _make_portable(json.dumps(schema))


@lru_cache(maxsize=1024)
def _make_portable(schema: str) -> PortableSchema:
    try:
        return _write(_Inliner(json.loads(schema)).tree())
    except RecursionError:
        # Too deep to follow: all arguments are given as JSON.
        return _write({})


def _write(tree: Schema) -> PortableSchema:
    keys = {key for node in subschemas(tree) for key in _members_of(node)}
    return _Writer(alias_keys(keys)).root(tree)


class _Inliner:
    """Inlines references and merges `allOf`."""

    def __init__(self, schema: Schema) -> None:
        self._root = schema
        self._places = Places.of(schema, subschemas(schema))
        self._parts = count()

    def tree(self) -> Schema:
        return self._inline(self._root, self._root, frozenset({id(self._root)}))

    def _inline(self, node: Any, resource: Schema, trail: frozenset[int]) -> Schema:
        if not isinstance(node, dict):
            return {} if node is not False else NOTHING
        if node == {"not": {}}:
            return NOTHING
        if next(self._parts) > MAX_PARTS:
            return {CUT: True}
        if self._places.starts_resource(node):
            resource = node
        own = {
            keyword: self._inline_keyword(keyword, value, resource, trail) for keyword, value in node.items()
        }
        for part in own.pop("allOf", []):
            own = _both(own, part)
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            if isinstance(reference := own.pop(keyword, None), str):
                own = _both(own, self._follow(reference, resource, trail))
        return own

    def _inline_keyword(self, keyword: str, value: Any, resource: Schema, trail: frozenset[int]) -> Any:
        if keyword in ("properties", "patternProperties") and isinstance(value, dict):
            return {name: self._inline(inner, resource, trail) for name, inner in value.items()}
        if keyword in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
            return [self._inline(inner, resource, trail) for inner in value]
        if keyword == "items" and isinstance(value, list):
            return [self._inline(inner, resource, trail) for inner in value]
        if keyword in ("items", "additionalProperties") and isinstance(value, dict):
            return self._inline(value, resource, trail)
        return value

    def _follow(self, reference: str, resource: Schema, trail: frozenset[int]) -> Schema:
        try:
            place, owner = self._places.find(reference, resource)
        except (BrokenSchema, UnsafeSchema, KeyError):
            return {}
        if id(place) in trail:
            kinds = _types(place) or _own_types(place) if isinstance(place, dict) else []
            return {CUT: True, "type": kinds[0] if len(kinds) == 1 else None}
        return self._inline(place, owner, trail | {id(place)})


def _both(first: Schema, second: Schema) -> Schema:
    """The conjunction of two schemas, as far as one schema can express it."""
    if CUT in first or CUT in second:
        return {**second, **first, CUT: True}
    merged = {**second, **first}
    for keyword in first.keys() & second.keys() & TAKEN_TOGETHER.keys():
        merged[keyword] = TAKEN_TOGETHER[keyword](first[keyword], second[keyword])
    for keyword in first.keys() & second.keys() & {"anyOf", "oneOf"}:
        merged[f"x-{keyword}"] = second[keyword]
    return merged


TAKEN_TOGETHER: dict[str, Callable[[Any, Any], Any]] = {
    "properties": lambda first, second: (
        second | first | {name: _both(first[name], second[name]) for name in first.keys() & second.keys()}
    ),
    "required": lambda first, second: list(dict.fromkeys([*second, *first])),
    "type": lambda first, second: [
        kind for kind in _types({"type": first}) if kind in _types({"type": second})
    ],
    "additionalProperties": lambda first, second: first and second,
}


def _types(node: Schema) -> list[str]:
    stated = node.get("type")
    return [kind for kind in (stated if isinstance(stated, list) else [stated]) if kind in TYPES]


def _members_of(node: Schema) -> Iterator[str]:
    if isinstance(properties := node.get("properties"), dict):
        yield from properties
    if isinstance(required := node.get("required"), list):
        yield from (name for name in required if isinstance(name, str))


class _Writer:
    def __init__(self, aliases: dict[str, str]) -> None:
        self._aliases = aliases

    def root(self, tree: Schema) -> PortableSchema:
        node = _object_of(tree)
        is_open = node.get("additionalProperties") is not False and not node.get("properties")
        schema, plan = self._object(node, 0, is_open=is_open or _is_open(node))
        return PortableSchema(schema, plan)

    def _schema(self, node: Schema, depth: int) -> tuple[Schema, Plan]:
        """A schema of one type, or of several in `anyOf`, with one description."""
        plan, described = Plan(), _described(node)
        written: dict[str, Schema] = {}
        for variant in _variants(node):
            schema, its_plan = self._variant(variant, depth)
            plan.add(its_plan)
            if (own := _described(variant)) != described:
                _describe(schema, own, schema.pop("description", ""))
            kind = json.dumps(schema) if schema["type"] in ("object", "array") else schema["type"]
            written[kind] = _either(written[kind], schema) if kind in written else schema
        parts = list(written.values()) or [{"type": "null"}]
        whole: Schema = parts[0] if len(parts) == 1 else {"anyOf": parts}
        if _alternatives(node):
            whole = _with_words(whole, {key: node[key] for key in ("default", "examples") if key in node})
        return _describe(whole, described, whole.pop("description", "")), plan

    def _variant(self, node: Schema, depth: int) -> tuple[Schema, Plan]:
        kind = node.get("type")
        if CUT in node or kind is None or (depth > MAX_LEVELS and kind in ("object", "array")):
            return self._as_json(node, kind)
        if kind == "object":
            node = _object_of(node)
            if not any(_members_of(node)):
                return self._as_json(node, kind)
            return self._object(node, depth, is_open=_is_open(node))
        if kind == "array":
            items, plan = self._schema(_items_of(node), depth + 1)
            return _with_words({"type": "array", "items": items}, node), Plan(items=plan)
        if kind == "null":
            return {"type": "null"}, Plan()
        written: Schema = {"type": kind}
        values = _values(node, kind)
        # Gemini takes only texts, and not the empty one.
        if kind == "string" and values and len(values) <= MAX_CHOICES and "" not in values:
            written["enum"] = values
        return _with_words(written, node), Plan(is_text=kind == "string")

    def _as_json(self, node: Schema, kind: str | list[str] | None) -> tuple[Schema, Plan]:
        what = {"object": "An object", "array": "A list"}.get(str(kind), "Any value")
        if isinstance(values := node.get("additionalProperties"), dict) and (types := _types(values)):
            what += f" with members of type {' or '.join(types)}"
        is_anything = kind not in ("object", "array")
        written = _with_words({"type": "string", "description": f"{what}, as JSON text."}, node)
        return written, Plan(is_json=True, is_text=is_anything, is_anything=is_anything)

    def _object(self, node: Schema, depth: int, *, is_open: bool) -> tuple[Schema, Plan]:
        plan = Plan()
        required = [name for name in dict.fromkeys(node.get("required", ())) if isinstance(name, str)]
        members = {name: inner for name, inner in node.get("properties", {}).items() if inner != NOTHING}
        for name in required:
            members.setdefault(name, {})
        properties: dict[str, Schema] = {}
        for name, inner in members.items():
            alias = self._aliases.get(name, name)
            schema, its_plan = self._schema(inner, depth + 1)
            if alias != name:
                _describe(schema, f"Stands for {name!r}.", schema.get("description", ""))
            if name not in required:
                takes_null = any(part.get("type") == "null" for part in schema.get("anyOf", [schema]))
                its_plan.null_is_nothing = not its_plan.is_anything and not takes_null
            properties[alias] = schema if name in required else _or_null(schema)
            plan.members[alias] = (name, its_plan)
        if is_open:
            plan.others = _free_name(OTHERS, {*members, *properties})
            description = "An object with further members, which have no name here, as JSON text."
            properties[plan.others] = _or_null({"type": "string", "description": description})
        written: Schema = {"type": "object", "properties": properties}
        if required:
            written["required"] = [self._aliases.get(name, name) for name in required]
        return _with_words(written | {"additionalProperties": False}, node, aliases=self._aliases), plan


def _variants(node: Schema) -> list[Schema]:
    """One schema for each type, also of those in `anyOf` and `oneOf`."""
    if CUT in node:
        return [node]
    types = _types(node) or _own_types(node)
    alternatives = _alternatives(node)
    if not alternatives or types == ["object"]:
        if "type" in node and not types:
            return []
        return [{**node, "type": kind} for kind in types] or [{**node, "type": None}]
    inner = [variant for part in alternatives for variant in _variants(part)]
    return [variant for variant in inner if not types or variant.get("type") in (None, *types)]


def _alternatives(node: Schema) -> list[Schema]:
    return [part for keyword in ("anyOf", "oneOf") for part in node.get(keyword) or ()]


def _either(first: Schema, second: Schema) -> Schema:
    """The union of two schemas of the same scalar type."""
    both: Schema = {"type": first["type"]}
    if "enum" in first and "enum" in second:
        both["enum"] = list(dict.fromkeys([*first["enum"], *second["enum"]]))
    descriptions = dict.fromkeys(filter(None, (first.get("description"), second.get("description"))))
    return _describe(both, "; or ".join(descriptions))


def _own_types(node: Schema) -> list[str]:
    if "const" in node or isinstance(node.get("enum"), list):
        return list(dict.fromkeys(types_of_values(node)))
    return [kind for keyword, kind in OWN_TYPE.items() if keyword in node][:1]


def _object_of(node: Schema) -> Schema:
    """One object with the members of all alternatives; required are those that each requires."""
    found = {key: value for key, value in node.items() if key not in ("anyOf", "oneOf")}
    for keyword in ("anyOf", "oneOf", "x-anyOf", "x-oneOf"):
        parts = [
            _object_of(part)
            for part in node.get(keyword) or ()
            if CUT not in part and "object" in (_types(part) or _own_types(part) or ["object"])
        ]
        if not parts:
            continue
        properties: dict[str, Schema] = {}
        for part in parts:
            for name, inner in part.get("properties", {}).items():
                properties[name] = _or_else(properties.get(name), inner)
        sets = [part.get("required", []) for part in parts]
        common = [name for name in sets[0] if all(name in others for others in sets)]
        found["properties"] = properties | found.get("properties", {})
        found["required"] = list(dict.fromkeys([*found.get("required", []), *common]))
        for name in (name for names in sets for name in names):
            found["properties"].setdefault(name, {})
        if any(set(names) != set(common) for names in sets):
            found.setdefault("x-sets", []).append(sets)
        if any(_is_open(part) for part in parts):
            found.setdefault("additionalProperties", True)
    return found


def _or_else(first: Schema | None, second: Schema) -> Schema:
    if first is None or first == second:
        return second
    return {"anyOf": [*(first["anyOf"] if first.keys() == {"anyOf"} else [first]), second]}


def _is_open(node: Schema) -> bool:
    """Returns whether it announces unnamed members; most schemas that do not forbid them have none."""
    return bool(node.get("additionalProperties") or node.get("patternProperties"))


def _items_of(node: Schema) -> Schema:
    items, first = node.get("items"), node.get("prefixItems")
    parts = [*(first if isinstance(first, list) else []), *(items if isinstance(items, list) else [])]
    if isinstance(items, dict):
        parts.append(items)
    return parts[0] if len(parts) == 1 else {"anyOf": parts} if parts else {}


def _values(node: Schema, kind: str) -> list[Any]:
    values = [node["const"]] if "const" in node else node.get("enum")
    fitting = (
        [value for value in values if JSON_TYPES[type(value)] == kind] if isinstance(values, list) else []
    )
    return [value for number, value in enumerate(fitting) if value not in fitting[:number]]


def _or_null(schema: Schema) -> Schema:
    """Allows null, for clients that make every member required."""
    if schema.get("type") == "null":
        return schema
    inner = dict(schema)
    described = {"description": inner.pop("description")} if "description" in inner else {}
    parts = inner.pop("anyOf", None) or [inner]
    return {"anyOf": [part for part in parts if part != {"type": "null"}] + [{"type": "null"}]} | described


def _describe(schema: Schema, *parts: str) -> Schema:
    if said := " ".join(filter(None, parts)):
        schema["description"] = said
    return schema


def _described(node: Schema) -> str:
    description = node.get("description") or node.get("title")
    return description if isinstance(description, str) else ""


def _with_words(written: Schema, node: Schema, *, aliases: dict[str, str] | None = None) -> Schema:
    """Describe the constraints that the portable schema has no keyword for."""
    words = [
        form.format(_json(node[keyword])) for keyword, form in WORDS.items() if node.get(keyword) is not None
    ]
    if node.get("uniqueItems") is True:
        words.append("no item twice")
    kind = node.get("type")
    if isinstance(kind, str) and "enum" not in written and (values := _values(node, kind)):
        words.append(f"one of {', '.join(map(_json, values))}")
    for sets in node.get("x-sets", ()):
        named = [" and ".join((aliases or {}).get(name, name) for name in names) or "none" for names in sets]
        words.append(f"give one of these sets of arguments: {'; or '.join(dict.fromkeys(named))}")
    constraints = f"({'; '.join(words)[:MAX_WORDS]})" if words else ""
    return _describe(dict(written), written.get("description", ""), constraints)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _free_name(name: str, taken: Iterable[str]) -> str:
    used = set(taken)
    return next(
        free for number in count(1) if (free := f"{name}_{number}" if number > 1 else name) not in used
    )


def find_refusals(name: str, schema: Schema, *, limit: int) -> list[str]:
    """Why a provider or a client refuses the tool, for curators. `limit`: from `limit_for_tools`."""
    return [*_refusals_of_schema(schema), *_refusals_of_name(name, limit)]


def _refusals_of_schema(schema: Schema) -> Iterator[str]:
    nodes = subschemas(schema)
    if combined := [keyword for keyword in ("oneOf", "anyOf", "allOf") if keyword in schema]:
        yield f"{' and '.join(combined)} at the root of the schema"
    if any(not REFERENCES.isdisjoint(node) for node in nodes):
        recursive = measure_demand(schema)
        yield "recursion, on which LlamaIndex fails" if recursive else "references"
    if odd := sorted({key for node in nodes for key in _members_of(node) if not CLAUDE_KEY.fullmatch(key)}):
        shown = listed([f'"{key[:MAX_SHOWN]}"' for key in odd], SHOWN_KEYS)
        reference = ", which LangChain in Python takes for a reference" if odd == ["$ref"] else ""
        yield f"arguments called {shown}{reference}"
    if reserved := sorted(LIBRARY_KEYS.intersection(_members_of(schema))):
        shown = listed([f'"{key}"' for key in reserved], SHOWN_KEYS)
        yield f"arguments called {shown}, which LangChain in Python or LlamaIndex use themselves"


def _refusals_of_name(name: str, limit: int) -> Iterator[str]:
    if "." in name:
        yield f'the name "{name}", which contains a dot'
    elif not is_portable_tool(name, limit=len(name)):
        yield f'the name "{name}", which does not begin with a letter'
    if len(name) > limit:
        yield f"a name of {len(name)} characters; with the server's name before it, at most {limit} fit"
