"""Regular expressions from untrusted schemas and filters, in two bounded engines. Most patterns run in linear
time. Look-arounds and back-references need a backtracking engine, with a limit for each search and for all
searches of a check. A text whose search is cut off or that is too long counts as a match: the workflow's
engine validates it anyway."""

import re
import threading
import time
from collections.abc import Callable
from fnmatch import translate
from functools import lru_cache
from typing import Any

import jsonschema_rs

from catalogue.schema_limits import subschemas
from connectors.formats.json_schema import LINEAR

NATIVE = jsonschema_rs.RegexOptions(size_limit=128 * 1024, dfa_size_limit=4 * 1024 * 1024)
"""Of patterns that are searched for in texts of any length: 1 MB takes at most 0.4 s, with LINEAR 100 s."""
BACKTRACKING = jsonschema_rs.FancyRegexOptions(
    backtrack_limit=1_000, size_limit=256 * 1024, dfa_size_limit=4 * 1024 * 1024
)
MAX_SEARCHED = 1_000  # Characters; a backtracking step may scan all of them again
MAX_SECONDS = 0.25  # Of all backtracking searches of one check
MAX_BOUNDED = 20  # Distinct ones per schema: each takes milliseconds and up to 256 KiB
BOUNDED_PATTERN = "x-bounded-pattern"
KINDS = jsonschema_rs.ValidationErrorKind
CLASSES = {"d": "0-9", "w": "A-Za-z0-9_"}  # Their meaning in JavaScript, and so in JSON Schema
ATOM = re.compile(r"\\(?:[pPuk]\{[^}]*\}|.)|\[\^?\]?|\]|.", re.DOTALL)
CLOSED = ("additionalProperties", "unevaluatedProperties")


def leave_out_patterns(schema: dict[str, Any]) -> list[str]:
    """Remove the patterns that neither engine supports from a schema, and name them."""
    gone: dict[str, None] = {}
    tried: set[str] = set()
    for node in subschemas(schema):
        if isinstance(pattern := node.get("pattern"), str) and not _is_usable(pattern, tried):
            gone[node.pop("pattern")] = None
        if not isinstance(named := node.get("patternProperties"), dict):
            continue
        for pattern in [pattern for pattern in named if not _is_native(pattern)]:
            gone[pattern] = None
            del named[pattern]
            # Values that the pattern allowed must not be refused now.
            for keyword in CLOSED:
                node.pop(keyword, None)
    return [f"the pattern {pattern[:100]!r}" for pattern in gone]


def use_bounded_search(schema: dict[str, Any]) -> bool:
    """Replace backtracking and large patterns by the keyword of BOUNDED; whether that makes the schema
    usable."""
    tried: set[str] = set()
    for node in subschemas(schema):
        if not isinstance(pattern := node.get("pattern"), str) or _is_native(pattern):
            continue
        if not _is_usable(pattern, tried):
            return False
        node[BOUNDED_PATTERN] = node.pop("pattern")
    return bool(tried)


class Searches:
    _current = threading.local()

    @classmethod
    def begin(cls) -> None:
        cls._current.until = None

    @classmethod
    def have_time(cls) -> bool:
        """The clock starts with the first search, because most checks have none."""
        now = time.monotonic()
        if cls._current.until is None:
            cls._current.until = now + MAX_SECONDS
        return bool(now < cls._current.until)


class _BoundedPattern:
    """A validator keyword; a pattern that was slow once is not searched for again."""

    def __init__(self, _: dict[str, Any], pattern: Any, __: list[str | int]) -> None:
        self._pattern = pattern
        self._matcher = _compile_bounded(pattern) if isinstance(pattern, str) else None
        self._is_slow = False

    def validate(self, text: Any) -> None:
        if self._matcher is None or not isinstance(text, str) or len(text) > MAX_SEARCHED:
            return
        if self._is_slow or not Searches.have_time():
            return
        started = time.monotonic()
        try:
            self._matcher.validate(text)
        except jsonschema_rs.ValidationError as error:
            if isinstance(error.kind, KINDS.Pattern):
                raise ValueError(f'"{text}" does not match "{self._pattern}"') from None
        finally:
            self._is_slow = time.monotonic() - started > MAX_SECONDS


BOUNDED: dict[str, Any] = {BOUNDED_PATTERN: _BoundedPattern}


def _is_usable(pattern: str, tried: set[str]) -> bool:
    if _is_native(pattern):
        return True
    tried.add(pattern)
    return len(tried) <= MAX_BOUNDED and _compile_bounded(pattern) is not None


@lru_cache(maxsize=2048)
def _is_native(pattern: str) -> bool:
    return _compile(pattern, NATIVE) is not None


@lru_cache(maxsize=2048)
def is_linear(pattern: str) -> bool:
    return _compile(pattern, LINEAR) is not None


def _compile_bounded(pattern: str) -> jsonschema_rs.Validator | None:
    return _compile(pattern, LINEAR) or _compile(_with_ascii_classes(pattern), BACKTRACKING)


def _compile(
    pattern: str, options: jsonschema_rs.RegexOptions | jsonschema_rs.FancyRegexOptions
) -> jsonschema_rs.Validator | None:
    schema = {"type": "string", "pattern": pattern}
    try:
        return jsonschema_rs.validator_for(schema, pattern_options=options, offline=True)
    except (jsonschema_rs.ValidationError, ValueError):
        return None


def _with_ascii_classes(pattern: str) -> str:
    r"""Spell out `\d` and `\w`, which match all scripts in the backtracking engine."""
    written, in_class = [], False
    for atom in ATOM.findall(pattern):
        if atom.startswith("[") and not in_class:
            in_class = True
        elif atom == "]":
            in_class = False
        elif atom[:1] == "\\" and (name := atom[1:]).lower() in CLASSES and not (in_class and name.isupper()):
            members = CLASSES[name.lower()]
            written.append(members if in_class else f"[{'^' if name.isupper() else ''}{members}]")
            continue
        written.append(atom)
    return "".join(written)


def find_pattern_problem(*, syntax: str, pattern: str) -> str:
    """Why no filter can use the pattern; empty for a usable one."""
    try:
        pattern_matcher(syntax=syntax, pattern=pattern)
    except ValueError as error:
        return str(error)
    return ""


def pattern_matcher(*, syntax: str, pattern: str) -> Callable[[str], object]:
    """The result is truthy if it matches. Raises ValueError."""
    if syntax == "glob":
        return re.compile(translate(pattern)).match
    if (matcher := _compile(pattern, LINEAR)) is None:
        raise ValueError(
            f"{pattern!r} is not a valid regular expression (look-arounds and back-references are not "
            "supported)."
        )
    return matcher.is_valid
