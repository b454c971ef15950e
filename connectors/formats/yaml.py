"""YAML as JSON values, each with its line; an unusable text gets every reason. Scalars follow YAML 1.2: `no`
and `12:30` are texts, and numbers are those of JSON. Tags are never resolved, so no text constructs
objects."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Annotated, Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from connectors.formats.json import ObjectOf

NULLS = frozenset({"", "~", "null", "Null", "NULL"})
BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
INTEGER = re.compile(r"[-+]?[0-9]+\Z")
OTHER_INTEGER = re.compile(r"0(?:x[0-9A-Fa-f]+|o[0-7]+)\Z")
NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
NO_NUMBER = re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z")
MAX_PROBLEMS = 20
UNCLOSED = "the quote that begins here is never closed"
SYNTAX = (  # By PyYAML's messages, which may quote the text
    (r"found character '\t'", "a tab; YAML wants spaces there"),
    ("found character", "this character cannot begin a value; put the text in quotes"),
    ("mapping values are not allowed", "unexpected ':'; check the indentation, or put the text in quotes"),
    ("could not find expected ':'", "expected a key, ':' and its value"),
    ("expected <block end>", "the indentation does not match the lines above"),
    ("found unexpected end of stream", UNCLOSED),
    ("expected ',' or ']'", "expected ',' or ']'"),
    ("expected ',' or '}'", "expected ',' or '}'"),
    ("found unknown escape", "unknown escape sequence after '\\'; in single quotes '\\' is literal"),
    ("expected alphabetic or numeric", "'&' and '*' begin the name of an anchor; put the text in quotes"),
    ("expected the node content", "a value is missing"),
    # Messages of libyaml.
    ("did not find expected ',' or ']'", "expected ',' or ']'"),
    ("did not find expected ',' or '}'", "expected ',' or '}'"),
    ("did not find expected", "the indentation does not match the lines above"),
)
MAX_BYTES = 1_048_576
FREE_VALUES = 10_000  # With its aliases expanded, a text may have so many, or as many as it has bytes
SHOWN_KEY = 80
Path = tuple[str | int, ...]
WORDS = {
    "missing": "required, but missing",
    "string_type": "must be a string; put it in quotes",
    "bool_type": "must be true or false",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "model_type": "must be a mapping of keys and values",
    "dict_type": "must be a mapping of keys and values",
    "list_type": "must be a list, with '-' before each item",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
    "string_too_long": "must have at most {max_length:,} characters",
    "string_too_short": "must not be empty",
    "too_long": "must have at most {max_length:,} items",
    "too_short": "must not be empty",
}


@dataclass(frozen=True, slots=True)
class Problem:
    line: int  # From 1
    place: str  # Keys from the root, such as `workflows.ChatWorkflow.taskQueue`; empty: the document
    message: str

    def __str__(self) -> str:
        where = f"line {self.line}, {self.place}" if self.place else f"line {self.line}"
        return f"{where}: {self.message}" + ("" if self.message.endswith(("?", ".")) else ".")


class UnusableText(ValueError):
    """Each line of the message is a reason with its line and key, up to a limit."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        ordered = sorted(dict.fromkeys(problems), key=lambda problem: problem.line)
        self.problems = ordered[:MAX_PROBLEMS]
        self.reasons = [str(problem) for problem in self.problems]
        if more := len(ordered) - len(self.problems):
            self.reasons.append(f"And {more} more.")
        super().__init__("\n".join(self.reasons))


class TooManyValues(UnusableText):
    """More values than the limit allows."""


@dataclass(slots=True)
class Scalar:
    line: int
    text: str
    plain: bool  # Not quoted, so that it may be a number or a word such as `true`


@dataclass(slots=True)
class ListNode:
    line: int
    items: list["Node"] = field(default_factory=list)


@dataclass(slots=True)
class Mapping:
    line: int
    entries: list[tuple["Node", "Node"]] = field(default_factory=list)

    @property
    def values(self) -> list["Node"]:
        return [value for _, value in self.entries]


Node = Scalar | ListNode | Mapping
"""An alias is its anchor's node, so that a short text may stand for very many values."""


def compose(content: bytes, limits: "Limits", *, fast: bool) -> tuple[Node, list[Problem]]:
    """The text's document, and problems such as unsupported tags. Raises UnusableText, and TooManyValues if
    aliases stand for more values than the limit. `fast`: by libyaml, whose errors are less specific."""
    if len(content) > limits.bytes:
        raise _stop(1, f"larger than the maximum of {limits.bytes:,} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _stop(line, "a byte is not UTF-8; save the text as UTF-8") from None
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text) if fast else yaml.SafeLoader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _stop(line, "a control character or an invalid character") from None
    try:
        composer = _Composer(loader, limits.depth)
        root = composer.document()
    finally:
        loader.dispose()
    # Before they are expanded: reading and checking values costs far more than counting them.
    if composer.has_aliases:
        if (weight := _weigh(root, {})) > limits.parts:
            message = f"more than {limits.parts:,} values, or more than {limits.depth} levels"
            raise TooManyValues([Problem(1, "", message)])
        if weight > max(FREE_VALUES, len(content)):
            raise _stop(1, "its aliases ('*') repeat too much; write out what differs")
    return root, composer.problems


def is_number(text: str) -> bool:
    return any(kind.match(text) for kind in (INTEGER, OTHER_INTEGER, NUMBER))


def _stop(line: int, message: str) -> UnusableText:
    return UnusableText([Problem(line, "", message)])


class _Composer:
    def __init__(self, loader: Any, max_depth: int) -> None:
        self.problems: list[Problem] = []
        self._loader = loader
        self._max_depth = max_depth
        self._anchors: dict[str, Node] = {}
        self.has_aliases = False
        self._braces: list[Any] = []
        self._line = 1

    def document(self) -> Node:
        self._next()
        if isinstance(self._next(), yaml.StreamEndEvent):
            raise _stop(1, "the document is empty")
        root = self._node(self._next(), depth=1)
        self._next()
        if not isinstance(further := self._next(), yaml.StreamEndEvent):
            raise _stop(_line_of(further), "only one document is allowed")
        return root

    def _next(self) -> Any:
        try:
            event = self._loader.get_event()
        except yaml.MarkedYAMLError as error:
            raise _syntax_error(error, self._braces) from None
        except yaml.reader.ReaderError:
            raise _stop(self._line, "a control character or an invalid character, from here on") from None
        except (ValueError, OverflowError):
            # PyYAML passes an escape such as "\UFFFFFFFF" to Python unchecked.
            line = getattr(self._loader, "line", self._line - 1)
            raise _stop(line + 1, "an invalid character") from None
        self._line = _line_of(event)
        return event

    def _node(self, event: Any, *, depth: int) -> Node:
        if depth > self._max_depth:
            raise _stop(_line_of(event), f"nested deeper than {self._max_depth} levels")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise _stop(_line_of(event), "'*' refers to an unknown anchor; put the text in quotes")
            self.has_aliases = True
            return self._anchors[event.anchor]
        if event.tag is not None:
            message = "tags such as '!' are not supported; put the text in quotes"
            self.problems.append(Problem(_line_of(event), "", message))
        node = self._inner(event, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _inner(self, event: Any, depth: int) -> Node:
        line = _line_of(event)
        if isinstance(event, yaml.ScalarEvent):
            # libyaml has no style for plain ones.
            return Scalar(line, event.value, plain=not event.style)
        if isinstance(event, yaml.SequenceStartEvent):
            items = self._within(event, yaml.SequenceEndEvent)
            return ListNode(line, [self._node(item, depth=depth + 1) for item in items])
        entries = [
            (self._node(key, depth=depth + 1), self._node(self._next(), depth=depth + 1))
            for key in self._within(event, yaml.MappingEndEvent)
        ]
        return Mapping(line, entries)

    def _within(self, start: Any, end: type) -> Iterator[Any]:
        if start.flow_style:
            self._braces.append(start)
        while not isinstance(event := self._next(), end):
            yield event
        if start.flow_style:
            self._braces.pop()


def _line_of(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _syntax_error(error: yaml.MarkedYAMLError, braces: Sequence[Any]) -> UnusableText:
    problem = error.problem or ""
    if braces and problem.endswith("'<stream end>'"):
        brace = "[" if isinstance(braces[-1], yaml.SequenceStartEvent) else "{"
        return _stop(_line_of(braces[-1]), f"a '{brace}' here is never closed")
    known = (ours for theirs, ours in SYNTAX if problem.startswith(theirs))
    message = next(known, "invalid YAML")
    mark = error.context_mark if message == UNCLOSED else error.problem_mark
    return _stop((mark.line if mark else 0) + 1, message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    bytes: int = MAX_BYTES
    depth: int = 30
    parts: int = 100_000  # Values, with an alias counted like what it repeats
    integer: int = 2**63 - 1


DEFAULT_LIMITS = Limits()


@dataclass(slots=True)
class Document:
    value: Any
    lines: dict[Path, int]  # By the keys and indexes of a value; for a key's value the line of the key
    problems: list[Problem] = field(default_factory=list)
    """Omissions from `value`: duplicate keys, numbers that are too large."""

    def line_of(self, path: Path) -> int:
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]

    def problem(self, loc: Path, message: str) -> Problem:
        """`loc` may have parts that pydantic adds, which are left out."""
        place: Path = ()
        value = self.value
        for position, part in enumerate(loc):
            inside_list = isinstance(value, list) and isinstance(part, int) and part < len(value)
            if inside_list or (isinstance(value, dict) and part in value):
                place, value = (*place, part), value[part]
            elif position == len(loc) - 1 and isinstance(value, dict) and isinstance(part, str):
                place = (*place, part)
        return Problem(self.line_of(place), name_of(place), message)


def read_document(
    content: bytes, *, private: Path = (), limits: Limits = DEFAULT_LIMITS, fast: bool = False
) -> Document:
    """Read one YAML document. Raises UnusableText for text that is not usable YAML. Problems do not name keys
    below `private`, which may be a misplaced secret. `fast`: by libyaml, whose errors are less
    specific."""
    root, problems = compose(content, limits, fast=fast)
    return _Reader(problems, private, limits).document(root)


def read_values(content: bytes, *, limits: Limits, object_of: ObjectOf) -> Any:
    """The values of a third party's text, without lines, by libyaml. `object_of` makes objects from pairs,
    also with duplicate keys; `<<` merges; numbers unknown to JSON stay texts. Raises UnusableText, and
    TooManyValues before it reads more than the limit."""
    root, _ = compose(content, limits, fast=True)
    return _LenientReader(limits, object_of).document(root).value


def _weigh(node: Node, known: dict[int, int]) -> int:
    """Values and keys, and each 100 characters of them; an alias counts like what it repeats."""
    if isinstance(node, Scalar):
        return 1 + len(node.text) // 100
    if id(node) not in known:
        # In the order of the text, in which an anchor precedes its aliases: a chain of them is no recursion.
        inner = node.items if isinstance(node, ListNode) else [one for pair in node.entries for one in pair]
        known[id(node)] = 1 + sum(_weigh(one, known) for one in inner)
    return known[id(node)]


def write_document(value: Any, *, in_blocks: bool = False) -> str:
    """YAML that `read_document` reads as this value; `in_blocks`: multi-line strings as blocks."""
    dumper: Any = _BlockDumper if in_blocks else _Dumper
    return yaml.dump(value, Dumper=dumper, allow_unicode=True, sort_keys=False, width=100)


def name_of(path: Path) -> str:
    """`workflows.ChatWorkflow.input.fields[0]`"""
    written = "".join(f"[{part}]" if isinstance(part, int) else f".{_shown(part)}" for part in path)
    return written.removeprefix(".")


def _shown(key: str) -> str:
    plain = " ".join("".join(char if char.isprintable() else " " for char in key).split())
    return plain if len(plain) <= SHOWN_KEY else plain[: SHOWN_KEY - 3].rstrip() + "..."


class _Reader:
    def __init__(self, problems: list[Problem], private: Path, limits: Limits) -> None:
        self._problems = problems
        self._private = private
        self._limits = limits
        self._lines: dict[Path, int] = {}
        self._parts = 0

    def document(self, root: Node) -> Document:
        self._lines[()] = root.line
        return Document(self._value(root, ()), self._lines, self._problems)

    def _value(self, node: Node, path: Path) -> Any:
        self._parts += 1
        if self._parts > self._limits.parts or len(path) >= self._limits.depth:
            message = f"more than {self._limits.parts:,} values, or more than {self._limits.depth} levels"
            raise UnusableText([Problem(node.line, "", message)])
        if isinstance(node, Scalar):
            text = node.text
            if not node.plain:
                return text
            if text in NULLS:
                return None
            if text in BOOLEANS:
                return BOOLEANS[text]
            if NO_NUMBER.match(text):
                return self._unusable(node, path, "infinite and undefined numbers are not allowed")
            return self._number(node, path) if is_number(text) else text
        if isinstance(node, ListNode):
            return [self._at(item.line, item, (*path, index)) for index, item in enumerate(node.items)]
        return self._mapping(node, path)

    def _at(self, line: int, node: Node, path: Path) -> Any:
        self._lines[path] = line
        return self._value(node, path)

    def _mapping(self, node: Mapping, path: Path) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for key, inner in node.entries:
            if not isinstance(key, Scalar) or (key.plain and key.text in NULLS):
                self._note(key.line, path, "a key must be a string")
            elif key.plain and key.text == "<<":
                self._note(key.line, path, "'<<' is not supported here; write the keys out")
            elif key.text in value:
                first = self._lines[(*path, key.text)]
                self._note(key.line, (*path, key.text), f"the key occurs twice; first on line {first}")
            else:
                value[key.text] = self._at(key.line, inner, (*path, key.text))
        return value

    def _number(self, node: Scalar, path: Path) -> Any:
        text, largest = node.text, self._limits.integer
        if NUMBER.match(text) and not INTEGER.match(text):
            number: int | float = float(text)
        else:
            # Python refuses to read decimal numbers of thousands of digits.
            number = int(text, 10 if INTEGER.match(text) else 0) if len(text) < 50 else largest + 1
        if not math.isfinite(number) or (isinstance(number, int) and abs(number) > largest):
            return self._unusable(node, path, "the number is too large; put a text in quotes")
        return number

    def _unusable(self, node: Scalar, path: Path, message: str) -> Any:
        self._note(node.line, path, message)

    def _note(self, line: int, path: Path, message: str) -> None:
        hidden = bool(self._private) and path[: len(self._private)] == self._private
        self._problems.append(Problem(line, name_of(self._private if hidden else path), message))


class _LenientReader(_Reader):
    """Reads texts of third parties, which the reader of an error cannot correct."""

    def __init__(self, limits: Limits, object_of: ObjectOf) -> None:
        super().__init__([], (), limits)
        self._object_of = object_of

    def _at(self, line: int, node: Node, path: Path) -> Any:
        return self._value(node, path)

    def _mapping(self, node: Mapping, path: Path) -> dict[str, Any]:
        pairs: list[tuple[str, Any]] = []
        merged: dict[str, Any] = {}
        for key, inner in node.entries:
            if not isinstance(key, Scalar):
                raise _stop(key.line, "a key must be a string")
            if key.plain and key.text == "<<":
                merged |= self._merged(inner, path)
            else:
                pairs.append((key.text, self._value(inner, (*path, key.text))))
        own = {key for key, _ in pairs}
        return self._object_of([*((key, value) for key, value in merged.items() if key not in own), *pairs])

    def _merged(self, node: Node, path: Path) -> dict[str, Any]:
        """The fields of `<<`; of several mappings the first one wins."""
        value = self._value(node, (*path, "<<"))
        found: dict[str, Any] = {}
        for one in value if isinstance(value, list) else [value]:
            if not isinstance(one, dict):
                raise _stop(node.line, "'<<' must be followed by a mapping")
            found = dict(one) | found
        return found

    def _unusable(self, node: Scalar, path: Path, message: str) -> Any:
        return node.text


class _Dumper(yaml.SafeDumper):
    """Quotes every text that YAML 1.1 or 1.2 could read as another type."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # In a block, other characters that YAML 1.1 takes for line breaks would not come back.
    is_block = isinstance(dumper, _BlockDumper) and "\n" in text
    if is_block and all(line.isprintable() for line in text.split("\n")):
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|")
    is_word = text in NULLS or text in BOOLEANS or text == "<<"
    means_something = is_word or is_number(text) or NO_NUMBER.match(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if means_something else None)


_Dumper.add_representer(str, _represent_text)


class _BlockDumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Writes multi-line strings as blocks, too, for readable diffs."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_BlockDumper.add_representer(str, _represent_text)


def message_of(one: Any, *, other_names: dict[str, str] | None = None) -> str:
    """One of pydantic's errors as a clause. `other_names`: other names of choices that people use."""
    if one["type"] == "literal_error":
        expected, given = one["ctx"]["expected"], one.get("input")
        known = [word.strip("'") for word in expected.replace(" or ", ", ").split(", ")]
        word = (other_names or {}).get(given, given) if isinstance(given, str) else ""
        suggested = suggest(word, known) if word else ""
        return f"must be {expected}" + (f"; did you mean {suggested}?" if suggested else "")
    if words := WORDS.get(one["type"]):
        return words.format(**one.get("ctx", {}))
    message: str = one["msg"].removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def problems_of(
    error: ValidationError,
    document: Document,
    model: type[BaseModel],
    *,
    private: Path = (),
    other_names: dict[str, str] | None = None,
) -> Iterator[Problem]:
    """Yields what `model` refuses in the document. Keys in the block at `private` are not named, since an
    unknown one may be a misplaced secret."""
    for one in error.errors(include_url=False):
        loc = tuple(one["loc"])
        if one["type"] != "extra_forbidden":
            yield document.problem(loc, message_of(one, other_names=other_names))
            continue
        problem = document.problem(loc, unknown_key(str(loc[-1]), keys_at(model, loc[:-1])))
        is_private = bool(private) and loc[: len(private)] == private
        yield replace(problem, place=name_of(private)) if is_private else problem


def keys_of(model: type[BaseModel]) -> dict[str, str]:
    """Returns the key in a text by the field's name."""
    # Fields with quoted types lose the alias that the generator made.
    alias: Any = model.model_config.get("alias_generator", str)
    return {name: info.alias or alias(name) for name, info in model.model_fields.items()}


def keys_at(model: type[BaseModel], place: Path) -> list[str]:
    annotation: Any = model
    for part in place:
        annotation = _plain(annotation)
        if get_origin(annotation) in (dict, list):
            annotation = get_args(annotation)[-1]
        elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
            names = (name for name, key in keys_of(annotation).items() if key == part)
            annotation = next((annotation.model_fields[name].annotation for name in names), None)
    annotation = _plain(annotation)
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return list(keys_of(annotation).values()) if is_model else []


def _plain(annotation: Any) -> Any:
    """X of `Annotated[X, ...]` and `X | None`."""
    while get_origin(annotation) is Annotated or type(None) in get_args(annotation):
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    return annotation


def unknown_key(key: str, known: list[str]) -> str:
    if suggested := suggest(key, known):
        return f"unknown key; did you mean {suggested}?"
    return f"unknown key; known keys: {', '.join(known)}"


def suggest(word: str, known: list[str]) -> str:
    """The closest known word, or empty."""
    by_letters = {_bare_letters(name): name for name in known}
    near = get_close_matches(_bare_letters(word[:100]), list(by_letters), n=1, cutoff=0.6)
    return by_letters[near[0]] if near else ""


def _bare_letters(word: str) -> str:
    return word.replace("_", "").replace("-", "").lower()
