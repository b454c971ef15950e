"""Schemas that are too large for agents, as agents read them: repeated parts named once, without the texts of
inner parts, and with the deepest parts closed, as far as needed; `get_workflow_info` opens a part. What the
whole schema accepts, the reduced one accepts. Arguments are checked with the whole one."""

import re
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any
from urllib.parse import unquote

from catalogue.naming import listed
from catalogue.schema_limits import (
    DEFINITIONS,
    MAX_SERVED,
    NAMED,
    PARTS,
    REFERENCES,
    ExcessiveSchema,
    Places,
    Schema,
    measure_demand,
    parts_of,
    subschemas,
)
from catalogue.served_schemas import members_of_parts, serve_schema, spell_out
from connectors.formats.json import as_object, write_json
from connectors.formats.json_schema import child_of, pointer_of, references_within, steps_of

SPARE = 200
MAX_KEYWORD = 2_000  # Characters of an enumeration, a condition and the like, where parts are closed
MAX_NAME = 60
SHOWN_NAMES = 300
TEXTS = frozenset({"title", "description", "examples", "example", "$comment"})
BESIDE = TEXTS | {"$ref", "default", "deprecated", "readOnly", "writeOnly"}  # A reference stands alone
IDENTIFIERS = frozenset({"$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$schema"})
CONDITIONS = frozenset({"not", "if", "then", "else"})
STRICTER = frozenset({"unevaluatedItems", "unevaluatedProperties", "maxContains"}) | REFERENCES - {"$ref"}
"""Left out where parts are closed: these refuse more the less the others say, or have no fixed target."""
ELSEWHERE = PARTS | IDENTIFIERS | DEFINITIONS | {"$ref"}
HAS_NAMES = re.compile(r'"\$id"|nchor"|draft-04')  # To collect them takes as long as everything else
# Whether parts are closed, the longest text of inner parts and of arguments, and whether the widest are cut.
CLOSED = ((True, 0, MAX_SERVED, False), (True, 0, 200, False), (True, 0, 0, True))
WHOLE = ((False, MAX_SERVED, MAX_SERVED, False), (False, 0, MAX_SERVED, False))


class UnknownPart(LookupError):
    """Says what there is instead."""


class _TooLarge(Exception):
    pass


def serve_reduced(schema: Schema, *, within: str = "") -> Schema:
    """Returns what `serve_schema` does, reduced if too large. `within`: where pointers to it begin."""
    text = write_json(schema)
    if len(text) <= MAX_SERVED:
        served = serve_schema(schema)
        # Served, it has at most a few times as many characters.
        if len(text) <= MAX_SERVED // 4 or len(write_json(served)) <= MAX_SERVED:
            return served
    return _reduced(schema, text, "", within)


def open_part(schema: Schema, part: str, *, within: str = "") -> Schema:
    """The part that a pointer, a reference or a definition's name leads to, as served and with its own
    definitions; reduced if it is too large. Raises UnknownPart."""
    pointer = unquote(part[1:]) if part.startswith("#") else part
    if pointer and not pointer.startswith("/"):
        pointer = pointer_of(["$defs" if "$defs" in schema else "definitions", part])
    follow, found = references_within(schema), ""
    place: Any = schema
    try:
        for step in steps_of(pointer):
            if isinstance(place, dict) and step not in place:
                place, _ = follow(place, "")
            place = child_of(place, step)
            found += pointer_of([step])
        if not any(place is one for one in subschemas(schema)):
            raise LookupError
    except LookupError:
        names = [*place] if isinstance(place, dict) else []
        there = f"{found or 'The whole schema'} has {listed(names, SHOWN_NAMES) or 'no parts'}"
        raise UnknownPart(f"there is no schema at {pointer[:SPARE]!r}. {there}") from None
    except ValueError as error:
        raise UnknownPart(str(error)) from None
    return _reduced(schema, write_json(schema), found, within, place)


def _reduced(schema: Schema, text: str, pointer: str, within: str, node: Schema | None = None) -> Schema:
    """`text`: the JSON of the schema. Without a node the whole."""
    if node is None:
        # As `serve_schema` does, but without what not every alternative demands of them.
        members = {
            name: {key: said for key, said in as_object(inner).items() if key in TEXTS}
            for name, inner in members_of_parts(schema).items()
        }
        node = {"type": "object"} | schema | {"properties": members | schema.get("properties", {})}
    places = Places.of(schema, subschemas(schema)) if HAS_NAMES.search(text) else Places("$id")
    fitting = partial(_fitting, whole=schema, places=places, within=within, node=node, pointer=pointer)
    # Most that are too large do not fit without closed parts, so these come first.
    made = next(filter(None, map(fitting, CLOSED)), None)
    if made is None:
        return {} if pointer else {"type": "object", "properties": {}}
    return made.copy if made.has_closed else next(filter(None, map(fitting, WHOLE)), made).copy


def _fitting(
    step: tuple[bool, int, int, bool], *, node: Schema, pointer: str, **of: Any
) -> "_Reduction | None":
    room = MAX_SERVED - SPARE
    while room > 0:
        reduction = _Reduction(*step, room=room, **of)
        try:
            reduction.make(node, pointer)
            if (excess := len(write_json(reduction.copy)) - MAX_SERVED) <= 0:
                measure_demand(reduction.copy, is_inlined=True)
                return reduction
            room -= excess + SPARE
        except _TooLarge:
            break
        except ExcessiveSchema:
            room //= 2
    return None


@dataclass(slots=True)
class _Part:
    node: Any  # Of a reference, its target
    holder: Any  # The object or list of the copy that has it
    key: Any
    keyword: str  # Of the copy, whose value it is or is part of
    pointer: str
    depth: int
    resource: Schema
    beside: Schema | None = None  # Of a reference, what it says itself
    shown: Any = None  # What stands for it until it is open
    size: int = 0  # Characters of that
    is_open: bool = False
    place: tuple[int, str] = (0, "")  # Its resource and JSON, the same for equal parts
    reference: str = ""  # To it, once it is a definition


@dataclass(slots=True)
class _Reduction:
    """A copy of a part, made breadth first within the room that it has."""

    closes: bool
    longest_inner_text: int
    longest_text: int
    leaves_out: bool
    whole: Schema
    places: Places
    within: str
    room: int  # Characters that are left
    copy: Schema = field(default_factory=dict)
    has_closed: bool = False
    definitions: Schema = field(default_factory=dict)
    _seen: dict[tuple[int, str], _Part] = field(default_factory=dict)
    _texts: dict[int, tuple[Schema, str]] = field(default_factory=dict)  # A target may have many references
    _waiting: deque[_Part] = field(default_factory=deque)

    def make(self, node: Schema, pointer: str) -> None:
        """Raises _TooLarge."""
        made: Schema = {}
        root = _Part(node, made, "root", "", self.within + pointer, 0, self.whole, reference="#")
        self._follow(root)
        for same in (root.node, self.whole) if pointer == "" else (root.node,):
            self._seen[id(root.resource), write_json(same)] = root
        copy, inner, size = self._open(root)
        self._put(root, copy, self._leave_out(root, copy, inner) if size > self.room else inner)
        while self._waiting:
            self._show(self._waiting.popleft())
        dialect = {key: self.whole[key] for key in ("$schema",) if key in self.whole}
        usual = {} if pointer else {"type": "object", "properties": {}}
        definitions = {"$defs": self.definitions} if self.definitions else {}
        self.copy = spell_out(dialect | usual | made["root"] | definitions)

    def _show(self, part: _Part) -> None:
        """Opens it if there is room."""
        copy, inner, size = self._open(part)
        if size - part.size > self.room:
            if not self.closes:
                raise _TooLarge
            self.has_closed = True
            return
        self._put(part, copy, inner)
        if part.beside is not None:
            self._define(part)

    def _put(self, part: _Part, copy: Schema, inner: list[_Part]) -> None:
        part.holder[part.key] = copy
        self.room += part.size - len(write_json(copy))
        for one in inner:
            known = one if one.is_open else self._seen.setdefault(one.place, one)
            if known is one:
                one.holder[one.key] = one.shown
                self.room -= one.size
                self._waiting += [] if one.is_open else [one]
            else:
                self._define(known)
                one.holder[one.key] = said = (one.beside or {}) | {"$ref": known.reference}
                self.room -= len(write_json(said)) + 1

    def _define(self, part: _Part) -> None:
        """Names a part that occurs once more, or that the whole schema names."""
        if part.reference:
            return
        last = next((step for step in reversed(part.pointer.split("/")) if not step.isdigit()), "")
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", last)[:MAX_NAME] or "part"
        names = (f"{plain}_{number}" if number > 1 else plain for number in count(1))
        name = next(name for name in names if name not in self.definitions)
        part.reference = f"#/$defs/{name}"
        self.definitions[name] = part.holder[part.key]
        part.holder[part.key] = said = (part.beside or {}) | {"$ref": part.reference}
        part.holder, part.key = self.definitions, name
        self.room -= len(write_json(said)) + len(name) + len('"":,')

    def _leave_out(self, root: _Part, copy: Schema, inner: list[_Part]) -> list[_Part]:
        """The parts that fit, and first those that are required; the others are gone from the copy."""
        if not self.leaves_out:
            raise _TooLarge
        room, kept, gone = self.room - len(write_json(self._own_keywords(root))), [], 0
        required = root.node.get("required", ())
        for part in sorted(inner, key=lambda one: one.keyword == "properties" and one.key not in required):
            room -= part.size + len(write_json(part.key)) + len(":null,")
            if room > 0:
                kept.append(part)
            elif part.keyword == "properties":
                # What is not named would have to fit this.
                copy.pop("additionalProperties", None)
                del part.holder[part.key]
                gone += 1
            else:
                copy.pop(part.keyword, None)
        if gone:
            names = f"get_workflow_info with part={root.pointer}/properties"
            copy["description"] = f"{gone:,} more arguments: {names} names them"
        return [part for part in kept if part.keyword in copy]

    def _open(self, part: _Part) -> tuple[Schema, list[_Part], int]:
        """A copy of its own keywords, its parts, which are not there yet, and the size of all."""
        copy = self._own_keywords(part)
        resource = part.node if self.places.starts_resource(part.node) else part.resource
        inner: list[_Part] = []
        own = part.node
        references = [("$ref", 0, {"$ref": own["$ref"]})] if "$ref" in own else []
        for keyword, key, node in [*parts_of(own), *references]:
            if self.closes and keyword in CONDITIONS | STRICTER:
                continue
            # Several may fit once they are closed; a reference beside other keywords is one of `allOf`.
            name = {"oneOf": "anyOf" if self.closes else keyword, "$ref": "allOf"}.get(keyword, keyword)
            pointer = f"{part.pointer}/{keyword}" + ("" if key is None else pointer_of([key]))
            holder: Any = copy
            place: Any = key if keyword in NAMED else name
            if keyword in NAMED:
                holder = copy.setdefault(name, {})
            elif key is not None:
                holder, place = copy.setdefault(name, []), len(copy.get(name, ()))
                holder.append(None)
            holder[place] = None
            inner.append(self._stand_in(_Part(node, holder, place, name, pointer, part.depth + 1, resource)))
        size, new = len(write_json(copy)), set[tuple[int, str]]()
        for one in inner:
            is_known = not one.is_open and (one.place in self._seen or one.place in new)
            size += min(MAX_NAME, one.size) if is_known else one.size
            new.add(one.place)
        return copy, inner, size

    def _own_keywords(self, part: _Part) -> Schema:
        kept: Schema = {}
        for keyword, value in part.node.items():
            if keyword in TEXTS:
                kept |= self._text(part, keyword, value)
            elif not self.closes:
                if keyword in STRICTER & REFERENCES:
                    raise _TooLarge
                kept |= {} if keyword in ELSEWHERE else {keyword: value}
            elif keyword in CONDITIONS or keyword not in ELSEWHERE | STRICTER:
                # If what a condition refers to is closed, it refuses more.
                text = write_json(value)
                longest = MAX_KEYWORD if part.depth else MAX_SERVED // 2
                if len(text) <= longest and not (keyword in CONDITIONS and "$" in text):
                    kept[keyword] = value
        return kept

    def _text(self, part: _Part, keyword: str, value: Any) -> Schema:
        longest = self.longest_text if part.depth <= 1 else self.longest_inner_text
        if isinstance(value, str) and 0 < longest < len(value):
            value = f"{value[:longest]}…"
        return {keyword: value} if longest and len(write_json(value)) <= 2 * longest else {}

    def _stand_in(self, part: _Part) -> _Part:
        """Sets what stands for it at first: itself, if that is not longer than the closed part."""
        self._follow(part)
        node, beside = part.node, part.beside or {}
        part.shown, part.is_open = node, True
        if isinstance(node, dict):
            own = self._text(part, "description", node.get("description")) | beside
            said = f"get_workflow_info with part={part.pointer} shows this part"
            closed = {"description": f"{own['description']} ({said})" if own.get("description") else said}
            if (types := node.get("type")) and "$ref" not in node:
                closed |= {"type": types} | ({"items": {}} if "array" in types else {})
            part.shown, part.is_open = beside | closed, False
            if node.keys().isdisjoint(PARTS | REFERENCES):
                copy, _, size = self._open(part)
                if size <= len(write_json(closed)):
                    part.shown, part.is_open = copy | beside, True
            if id(node) not in self._texts:
                self._texts[id(node)] = node, write_json(node)
            part.place = id(part.resource), self._texts[id(node)][1]
        part.size = len(write_json(part.shown)) + 1
        return part

    def _follow(self, part: _Part) -> None:
        """Follows a part that is only a reference; old dialects ignore what is beside one."""
        is_old = "draft-0" in str(self.whole.get("$schema"))
        seen: list[Any] = []
        while isinstance(node := part.node, dict) and "$ref" in node and (is_old or node.keys() <= BESIDE):
            said: Schema = {}
            for keyword, value in node.items():
                if keyword in BESIDE - {"$ref"}:
                    said |= self._text(part, keyword, value) if keyword in TEXTS else {keyword: value}
            part.beside = said | (part.beside or {})
            is_pointer = node["$ref"].startswith("#/") and part.resource is self.whole
            part.pointer = self.within + unquote(node["$ref"][1:]) if is_pointer else part.pointer
            part.node, part.resource = self.places.find(node["$ref"], part.resource)
            if any(part.node is one for one in seen):
                part.node = {}
            seen.append(node)
