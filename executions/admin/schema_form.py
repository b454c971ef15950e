"""A form for the values of a JSON Schema. `SchemaForm` makes a tree of parts from the schema and the value so
far, or what the browser posted; the template `schema_part.html` shows it, and `read` is the way back. What no
part can show, such as values of an unexpected type, is a part with JSON."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote

import jsonschema_rs
from django.conf import settings
from django.utils import timezone
from django.utils.translation import gettext as _
from unfold import widgets

from catalogue.admin.form_fields import NotReadable, read_value, write_value
from catalogue.argument_overrides import find_part_problems
from catalogue.schemas import ArgumentProblem
from catalogue.served_schemas import Inputs, Place, inputs_at, required_first, word_for_type
from connectors.formats.json import UnreadableJSON, parse_json
from connectors.formats.json_schema import pointer_of, steps_of

MISSING: Final = object()
MAX_DEPTH = 6  # Objects, arrays and choices within one another
MAX_PARTS = 400  # Django refuses requests with 1,000 fields
MAX_ROWS = 50
MAX_CHOICES = 1_000
MAX_ALTERNATIVES = 12
LISTED = 15  # More choices than these are searched in
SHORT = 100  # Longest text with a single-line control
SCALARS = {"string", "integer", "number", "boolean"}
OTHERS = ""  # The step of what an object has beside its declared members
CHOICE = "choice"
BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} rows",
    "maxItems": "at most {} rows",
}
EXAMPLES = {  # By format
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00+00:00",
    "time": "12:00:00Z",
    "email": "someone@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "uri": "https://example.com",
    "url": "https://example.com",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "byte": "ZXhhbXBsZQ==",
    "data-url": "data:text/plain;base64,ZXhhbXBsZQ==",
}


class Typed(str):
    """The text of a control."""


class Json(str):
    """The text of a part that is written as JSON."""


class Posted(dict[str, Any]):
    """What the browser sent of an object, an array or a choice, by the steps in the names of its controls.
    Rows are in the order of the page."""


KINDS = {"argument": Typed, "json": Json}


def read_posted(data: Mapping[str, Any]) -> Any:
    """Names such as `argument/rows/0/name` become nested `Posted`. A name that ends with a slash only says
    that the object is there."""
    whole = Posted()
    for name, text in data.items():
        word, slash, pointer = name.partition("/")
        if word not in KINDS:
            continue
        if not slash:
            return Json(text)
        try:
            *outer, last = steps_of(slash + pointer)
        except ValueError:
            continue
        holder = whole
        for step in outer:
            if not isinstance(inner := holder.get(step), Posted):
                inner = holder[step] = Posted()
            holder = inner
        if last != OTHERS or word == "json":
            holder[last] = KINDS[word](text)
    return whole


@dataclass(slots=True, kw_only=True)
class Part:
    key: str  # The member of the object, or the row's number
    name: str  # Where its control is, as a pointer: also choices have a step
    place: Place
    required: bool
    outer: "Part | None" = None
    description: str = ""
    is_row: bool = False
    kind: str = "json"
    text: str = ""
    options: list[tuple[str, str]] = field(default_factory=list)  # The controls' texts with their labels
    values: list[Any] = field(default_factory=list)
    parts: list["Part"] = field(default_factory=list)
    kept: list[tuple[str, str]] = field(default_factory=list)  # What was typed in the other alternatives
    problems: list[str] = field(default_factory=list)
    value: Any = MISSING
    has_focus: bool = False
    schema: dict[str, Any] = field(init=False)  # Merged with what it refers to
    type: str = field(init=False)

    def __post_init__(self) -> None:
        self.schema, self.type = merge(self.place), word_for_type(self.place)

    @property
    def control(self) -> str:
        return f"{'json' if self.kind in ('json', 'others') else 'argument'}{self.name}"

    @property
    def id(self) -> str:
        return quote(f"argument{self.name}")

    @property
    def title(self) -> str:
        if self.is_row:
            return _("Row %(number)d") % {"number": int(self.key) + 1}
        return self.key or _("Arguments")

    @property
    def place_shown(self) -> str:
        outer = self.outer
        while outer is not None and outer.kind == CHOICE:
            outer = outer.outer  # Which has the same title
        return self.title if outer is None or not outer.name else f"{outer.place_shown}, {self.title}"

    @property
    def about(self) -> str:
        bounds = [(words, self.schema[word]) for word, words in BOUNDS.items() if word in self.schema]
        said = [words.format(bound) for words, bound in bounds if isinstance(bound, int | float)]
        required = [_("required")] if self.required and not self.is_row else []
        return ", ".join([self.type, *required, *said])

    @property
    def help(self) -> str:
        default, said = self.schema.get("default"), [self.description]
        if default is not None:
            shown = json.dumps(default, ensure_ascii=False)[:SHORT]
            said.append(_("Default: %(value)s.") % {"value": shown})
        if self.kind == "moment":
            said.append(_("Time zone: %(zone)s.") % {"zone": timezone.get_current_timezone_name()})
        if self.kind == "mixed":
            may_be_text = {"string", "any"}.intersection(self.type.split(" or "))
            text_or_json = _("Enter text as it is, and all other values as JSON.")
            said.append(text_or_json if may_be_text else _("Enter JSON."))
        return " ".join(filter(None, said))

    @property
    def input_type(self) -> str:
        return {"date": "date", "moment": "datetime-local"}.get(self.kind, "text")

    @property
    def css(self) -> str:
        area = widgets.TEXTAREA_CLASSES if self.kind in ("json", "others", "mixed") else widgets.INPUT_CLASSES
        return " ".join(widgets.SELECT_CLASSES if self.kind in ("select", CHOICE) else area)

    @property
    def encoding(self) -> str:
        """How the text holds a file: `base64`, `data-url` or `text`."""
        if (named := self.schema.get("format")) == "data-url":
            return "data-url"
        encoded = self.schema.get("contentEncoding", named)
        return "base64" if encoded in ("base64", "byte", "binary") else "text"

    @property
    def max_bytes(self) -> int:
        """Of a file; base64 takes a third more."""
        return int(settings.CATALOGUE.max_payload_bytes * 0.7)

    @property
    def media_type(self) -> str:
        named = self.schema.get("contentMediaType")
        return named if isinstance(named, str) else ""

    def each(self) -> Iterator["Part"]:
        yield self
        for part in self.parts:
            yield from part.each()

    def read(self) -> Any:
        """The value, MISSING if it is left out; parts that cannot be read have a problem."""
        self.problems.clear()
        try:
            self.value = self._read()
        except (NotReadable, UnreadableJSON) as problem:
            self.value = MISSING
            self.problems.append(str(problem))
        return self.value

    def _read(self) -> Any:
        match self.kind:
            case "absent":
                return MISSING
            case "fixed":
                return self.values[0]
            case "choice":
                return self.parts[0].read() if self.parts else MISSING
            case "object":
                return self._read_members()
            case "array":
                rows = [part.read() for part in self.parts]
                return rows if rows or self.required else MISSING
        return self._read_text() if self.text else self._read_nothing()

    def _read_members(self) -> dict[str, Any]:
        read = [(part, part.read()) for part in self.parts]
        given = [(part, value) for part, value in read if value is not MISSING]
        others: dict[str, Any] = next((value for part, value in given if part.kind == "others"), {})
        return {**others, **{part.key: value for part, value in given if part.kind != "others"}}

    def _read_nothing(self) -> Any:
        if self.required and _word(self.place) != self.type:
            return None
        if not self.is_row:
            return MISSING
        if self.type == "string" and self.kind in ("text", "line", "file"):
            return ""
        raise NotReadable(_("Enter a value, or remove the row."))

    def _read_text(self) -> Any:
        match self.kind:
            case "json" | "others":
                return _read_json(self.text, only_object=self.kind == "others" or not self.name)
            case "select" | "suggest":
                known = dict(zip((text for text, _label in self.options), self.values, strict=True))
                return known.get(self.text, self.text)
            case "moment":
                return _read_moment(self.text)
        return read_value(self.text, self.type)

    def find_format_problem(self) -> str:
        """Engines decide whether a format is a rule, so other doors do not refuse what lacks it."""
        named = self.schema.get("format")
        if self.kind == "json" or not (isinstance(named, str) and isinstance(self.value, str)):
            return ""
        return next((error.message for error in _format_validator(named).iter_errors(self.value)), "")


class SchemaForm:
    """`given`: the value so far, or what `read_posted` returns."""

    def __init__(self, schema: dict[str, Any], given: Any = MISSING) -> None:
        self.place = Place(schema, schema)
        self.given = {} if given is MISSING else given
        self.problems: list[str] = []  # Of the whole
        self._inputs: dict[int, Inputs] = {}
        self._show()

    def _show(self) -> None:
        self._left, self._depth = MAX_PARTS, 0
        self.root = self._part(self.given, key="", name="", place=self.place, required=True)

    def read(self) -> Any:
        return self.root.read()

    @property
    def is_json(self) -> bool:
        return self.root.kind == "json"

    @property
    def wrong(self) -> list[Part]:
        return [part for part in self.root.each() if part.problems]

    def blame(self, path: str, message: str) -> None:
        """Add the problem to the part of this path in the value, or to the part around it."""
        part, steps = self.root, steps_of(path)
        while True:
            if part.kind == CHOICE and part.parts:
                part = part.parts[0]
                if not steps and (within := self._problems_within(part)):
                    for problem in within:
                        self.blame(path + problem.path, problem.message)
                    return
            elif inner := next((one for one in part.parts if steps and one.key == steps[0]), None):
                part, steps = inner, steps[1:]
            else:
                break
        problems = self.problems if part is self.root and not self.is_json else part.problems
        place = pointer_of(steps) if part is self.root else pointer_of(steps)[1:]
        problems.append(f"{place}: {message}" if place else message)

    def _problems_within(self, part: Part) -> list[ArgumentProblem]:
        """The validator says only that no alternative fits; these are about members of the chosen one."""
        problems = find_part_problems(self.place.schema, part.place.schema, part.value)
        return [problem for problem in problems if problem.path]

    def check_formats(self) -> None:
        for part in self.root.each():
            if problem := part.find_format_problem():
                part.problems.append(problem)

    def change(self, what: str) -> None:
        """Carry out what a button of the form says, such as `add /rows`. A step that is not there, as a
        forged request may name, changes nothing."""
        word, _space, name = what.partition(" ")
        if word in ("add", "open") and self._left <= 0:
            self.problems.append(_("The form cannot show more fields. Write further values as JSON."))
            return
        top = Posted(root=self.given)
        try:
            *outer, last = "root", *steps_of(name)
            holder = top
            for step in outer:
                holder = holder[step]
            focused = self._change(word, name, holder, last)
        except (LookupError, TypeError, ValueError, AttributeError):
            return
        if self.wrong:
            return
        self.given = top.get("root", {})
        self._show()
        if (part := self._named(focused)) is None:
            return
        self.focus_on(part)
        if word == "fields" and part.kind == "json" and part.text:
            part.problems.append(_("The fields cannot show this value."))

    def _change(self, word: str, name: str, holder: Any, last: str) -> str:
        """Returns the name of the part that the user goes on with."""
        outer = name.rpartition("/")[0]
        if word == "open":
            holder[last] = Posted()
        elif word == "add":
            rows = holder.setdefault(last, Posted())
            rows[str(len(rows))] = Posted()
            return f"{name}/{len(rows) - 1}"
        elif word == "remove":
            del holder[last]
            return outer
        elif word in ("up", "down"):
            rows, at = list(holder.items()), list(holder).index(last)
            to = min(max(at + (1 if word == "down" else -1), 0), len(rows) - 1)
            rows.insert(to, rows.pop(at))
            holder.clear()
            holder.update(rows)
            return f"{outer}/{to}"
        elif word in ("json", "fields") and (part := self._named(name)) is not None:
            value = part.read()
            holder[last] = value if word == "fields" else Json(_as_json(value))
            if value is MISSING and word == "fields":
                del holder[last]
        else:
            raise ValueError(word)
        return name

    def _named(self, name: str) -> Part | None:
        return next((part for part in self.root.each() if part.name == name), None)

    def focus_on(self, part: Part) -> None:
        part = next((one for one in part.each() if one.kind not in ("object", "fixed")), part)
        part.has_focus = True

    def fill_in_example(self) -> None:
        """What is typed stays."""
        value, self._left = self.read(), MAX_PARTS
        if not self.wrong:
            self.given = _lay_over(self._example(self.place, frozenset()), value)
            self._show()
            self.focus_on(self.root)

    def _example(self, place: Place, within: frozenset[int]) -> Any:
        """The schema's own example, default or first value, else a placeholder of its type. MISSING if there
        is none, for a schema within itself, and for what would be too much."""
        schema, here = merge(place), frozenset(map(id, place.chain()))
        self._left -= 1
        if self._left < 0 or here & within:
            return MISSING
        examples = schema.get("examples")
        stated = [schema[word] for word in ("example", "default", "const") if schema.get(word) is not None]
        if isinstance(examples, list) and examples:
            return examples[0]
        if values := stated or _choices(place, schema)[0]:
            return values[0]
        within |= here
        match _structure(place, schema):
            case "choice":
                return self._example(alternatives_of(place)[0], within)
            case "array":
                item = self._example(place.at(schema["items"]), within)
                return MISSING if item is MISSING else [item]
            case "object":
                inputs = self._inputs_of(place).properties
                members = {key: self._example(one.place, within) for key, one in inputs.items()}
                filled = {key: value for key, value in members.items() if value is not MISSING}
                return filled or MISSING
        return _placeholder(schema, _word(place).partition(" or ")[0])

    def _part(self, given: Any, **looks: Any) -> Part:
        part = Part(**looks)
        if isinstance(given, Json):
            part.text = given
            return part
        part.kind = self._kind_of(part, given)
        fill = {"object": self._fill_object, "array": self._fill_array, CHOICE: self._fill_choice}
        self._depth += 1
        if not fill.get(part.kind, self._fill_leaf)(part, given):
            # The kind of control cannot show the value.
            part.kind, part.parts, part.text = "json", [], _as_json(given)
        self._depth -= 1
        return part

    def _inputs_of(self, place: Place) -> Inputs:
        """Once for each schema: many members may refer to one with as many members."""
        schemas = list(place.chain())
        schema = next((one for one in schemas if one.keys() != {"$ref"}), schemas[-1])
        if id(schema) not in self._inputs:
            self._inputs[id(schema)] = inputs_at(place.at(schema))
        return self._inputs[id(schema)]

    def _kind_of(self, part: Part, given: Any) -> str:
        """`mixed` takes text or JSON."""
        schema = part.schema
        if not isinstance(given, Posted) and (self._left <= 0 or self._depth > MAX_DEPTH):
            return "mixed"
        if part.required and not part.is_row and "const" in schema:
            part.values, part.text = [schema["const"]], _shown(schema["const"])
            return "fixed"
        part.values, part.options = _choices(part.place, schema)
        if part.values:
            return "select" if len(part.values) <= LISTED else "suggest"
        # The whole is always an object.
        return _structure(part.place, schema) or (_scalar(part.place, schema) if part.name else "object")

    def _fill_object(self, part: Part, given: Any) -> bool:
        if given is MISSING and not part.required:
            part.kind = "absent"
            return True
        members, inputs = {} if given is MISSING else given, self._inputs_of(part.place)
        known, is_posted = inputs.properties, isinstance(given, Posted)
        if not known and part.name:
            part.kind = "mixed"
            return self._fill_leaf(part, given)
        if not isinstance(members, dict) or OTHERS in known or (len(known) > self._left and not is_posted):
            return False
        self._left -= len(known)
        for key in required_first(known, inputs.required, part.schema):
            looks = {"key": key, "name": part.name + pointer_of([key]), "outer": part}
            looks |= {"required": key in inputs.required, "description": known[key].description}
            part.parts.append(self._part(members.get(key, MISSING), place=known[key].place, **looks))
        others: Any = members.get(OTHERS)
        if not is_posted and (unknown := {key: members[key] for key in members if key not in known}):
            others = Json(_as_json(unknown))
        if isinstance(others, Json):
            name, place = f"{part.name}/{OTHERS}", part.place.at({"type": "object"})
            one = Part(key=_("Other members"), name=name, place=place, required=False, outer=part)
            one.kind, one.text = "others", others
            part.parts.append(one)
        return True

    def _fill_array(self, part: Part, given: Any) -> bool:
        if given is MISSING:
            rows = []
        elif isinstance(given, Posted):
            rows = list(given.values())
        elif isinstance(given, list) and (given or part.required) and len(given) <= MAX_ROWS:
            rows = given
        else:
            return False
        self._left -= len(rows)
        items = part.place.at(part.schema["items"])
        for at, row in enumerate(rows):
            looks = {"key": str(at), "name": f"{part.name}/{at}", "required": True, "outer": part}
            part.parts.append(self._part(row, place=items, is_row=True, **looks))
        return True

    def _fill_choice(self, part: Part, given: Any) -> bool:
        alternatives = alternatives_of(part.place)
        part.options = [(str(at), _name_of(one)) for at, one in enumerate(alternatives)]
        inner = given
        if isinstance(given, Posted):
            part.text = str(given.get(CHOICE, ""))
            inner = given.get(part.text, MISSING)
            for at, _label in part.options:
                if at != part.text and at in given:
                    part.kept.extend(_flat(given[at], f"{part.name}/{at}"))
        elif given is not MISSING:
            part.text = self._alternative_of(_plain(given), alternatives)
            if not part.text:
                return False
        if part.text in dict(part.options):
            looks = {"key": part.key, "name": f"{part.name}/{part.text}", "required": True, "outer": part}
            part.parts = [self._part(inner, place=alternatives[int(part.text)], **looks)]
        return True

    def _alternative_of(self, value: Any, alternatives: list[Place]) -> str:
        root = self.place.schema
        fits = (not find_part_problems(root, one.schema, value) for one in alternatives)
        return next((str(at) for at, does_fit in enumerate(fits) if does_fit), "")

    def _fill_leaf(self, part: Part, given: Any) -> bool:
        if given is MISSING or isinstance(given, Posted):
            return True
        if isinstance(given, Typed):
            part.text = given.replace("\r\n", "\n")
            return True
        part.text = _write(part, given)
        try:
            read = part.read()
        except ValueError:
            return False
        part.problems.clear()
        is_same_moment = part.kind == "moment" and read is not MISSING and _moment(read) == _moment(given)
        return is_same_moment or _as_json(read) == _as_json(given)


def merge(place: Place, seen: set[int] | None = None) -> dict[str, Any]:
    """The schema with what it refers to; its own keywords win."""
    whole, seen = dict[str, Any](), set[int]() if seen is None else seen
    for schema in place.chain():
        seen.add(id(schema))
        whole = schema | whole
    here = place.at(whole)
    alternatives = alternatives_of(here)
    for part in [*here.each("allOf"), *(alternatives if len(alternatives) == 1 else [])]:
        if id(part.schema) not in seen:
            whole = merge(part, seen) | whole
    return whole


def _word(place: Place) -> str:
    """The type without null."""
    words = word_for_type(place).split(" or ")
    return " or ".join(word for word in words if word != "null") or "null"


def alternatives_of(place: Place) -> list[Place]:
    """Those of `oneOf` or `anyOf` that are more than null."""
    schemas = list(place.chain())
    found = (place.at(schema).each(word) for schema in schemas for word in ("oneOf", "anyOf"))
    return [one for one in next(filter(None, found), []) if word_for_type(one) != "null"]


def _structure(place: Place, schema: dict[str, Any]) -> str:
    alternatives = alternatives_of(place)
    if len(alternatives) == 1:
        place = alternatives[0]
    is_choice = 1 < len(alternatives) <= MAX_ALTERNATIVES and "properties" not in schema
    if is_choice and any(word_for_type(one) not in SCALARS for one in alternatives):
        return CHOICE
    word = _word(place)
    return word if word == "object" or (word == "array" and isinstance(schema.get("items"), dict)) else ""


def _scalar(place: Place, schema: dict[str, Any]) -> str:
    word = _word(place)
    if word in ("integer", "number"):
        return "number"
    if word != "string":
        return "mixed"
    named, longest = schema.get("format"), schema.get("maxLength")
    if named in ("date", "date-time"):
        return "date" if named == "date" else "moment"
    if "contentEncoding" in schema or "contentMediaType" in schema or named in ("binary", "byte", "data-url"):
        return "file"
    is_short = isinstance(longest, int) and longest <= SHORT
    return "line" if is_short or named or "pattern" in schema else "text"


def _choices(place: Place, schema: dict[str, Any]) -> tuple[list[Any], list[tuple[str, str]]]:
    """The values with the texts and labels of their options; none if the schema does not list them."""
    listed, titles = schema.get("enum"), list[str]()
    alternatives = [merge(one) for one in alternatives_of(place)]
    if alternatives and all("const" in one for one in alternatives):
        listed = [one["const"] for one in alternatives]
        titles = [str(one.get("title", _shown(one["const"]))) for one in alternatives]
    elif "const" in schema:
        listed = [schema["const"]]
    elif _word(place) == "boolean" and listed is None:
        listed = [True, False]
    if not isinstance(listed, list) or not 0 < len(listed) <= MAX_CHOICES:
        return [], []
    titles = titles or [_shown(value) for value in listed]
    are_few = len(listed) <= LISTED
    texts = [json.dumps(value) for value in listed] if are_few else titles
    return listed, list(zip(texts, titles, strict=True))


def _name_of(place: Place) -> str:
    """Its title, its constant members, the name of what it refers to, or its type."""
    schema = merge(place)
    if isinstance(title := schema.get("title"), str) and title:
        return title
    constants = {
        key: merged["const"]
        for key, one in inputs_at(place).properties.items()
        if "const" in (merged := merge(one.place))
    }
    if constants:
        return ", ".join(f"{key}: {_shown(value)}" for key, value in constants.items())
    reference = place.schema.get("$ref") if isinstance(place.schema, dict) else None
    return reference.rpartition("/")[2] if isinstance(reference, str) else word_for_type(place)


def _flat(given: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(given, Posted):
        yield f"argument{name}/", ""
        for step, inner in given.items():
            yield from _flat(inner, name + pointer_of([step]))
    elif isinstance(given, str):
        yield f"{'json' if isinstance(given, Json) else 'argument'}{name}", given


def _write(part: Part, value: Any) -> str:
    if part.kind in ("select", "suggest"):
        known = zip(part.options, part.values, strict=True)
        return next((text for (text, _label), one in known if _as_json(one) == _as_json(value)), "")
    if value is None:
        return ""
    if part.kind == "moment":
        moment = _moment(value)
        return "" if moment is None else timezone.localtime(moment).replace(tzinfo=None).isoformat()
    if part.kind == "mixed" and isinstance(value, dict | list):
        return _as_json(value)
    return write_value(value, part.type)


def _moment(value: Any) -> datetime | None:
    """None if it is none, or has no offset."""
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return moment if moment.tzinfo else None


def _read_moment(text: str) -> str:
    """A time in the product's time zone; the schema gets it with its offset."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise NotReadable(_("Enter a valid date and time.")) from None
    return (moment if moment.tzinfo else timezone.make_aware(moment)).isoformat()


def _read_json(text: str, *, only_object: bool) -> Any:
    if not text.strip():
        return {} if only_object else MISSING
    try:
        value = parse_json(text.encode(errors="replace"), given=True)
    except UnreadableJSON as error:
        raise NotReadable(_("The JSON cannot be read. %(why)s") % {"why": error}) from None
    if only_object and not isinstance(value, dict):
        raise NotReadable(_('Enter a JSON object, such as {"text": "Hello"}.'))
    return value


@lru_cache(maxsize=32)
def _format_validator(named: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for({"format": named}, validate_formats=True)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _as_json(value: Any) -> str:
    return "" if value is MISSING else json.dumps(_plain(value), indent=2, ensure_ascii=False)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Typed) else value


def _lay_over(example: Any, value: Any) -> Any:
    if example is MISSING or value is MISSING:
        return value if example is MISSING else example
    if not (isinstance(example, dict) and isinstance(value, dict)):
        return example if value == [] else value
    return {
        key: _lay_over(example.get(key, MISSING), value.get(key, MISSING))
        for key in [*example, *(key for key in value if key not in example)]
    }


def _placeholder(schema: dict[str, Any], word: str) -> Any:
    if word in ("integer", "number"):
        stated = {key: number for key, number in schema.items() if isinstance(number, int | float)}
        return min(
            stated.get("minimum", stated.get("exclusiveMinimum", 0) + 1), stated.get("maximum", math.inf)
        )
    if word == "string" and "pattern" not in schema:
        named = "byte" if "contentEncoding" in schema else str(schema.get("format"))
        return EXAMPLES.get(named, "text")
    return MISSING
