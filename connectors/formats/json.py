"""Reading untrusted JSON within bounds of depth and size, and the values that engines write in it."""

import json
import math
import re
import sys
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, NoReturn
from uuid import UUID, uuid4

from pydantic_core import to_json

from connectors.errors import Rejected
from connectors.formats.json_schema import pointer_of

STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""Possessive, so that an unclosed string is scanned once; unrolled, which halves the time."""
LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
HALF = re.compile("[\ud800-\udfff]")
HEX = r"[0-9a-fA-F]{2}"
OTHER_TEXT = r"(?:[^\\]|\\(?!u[dD][89a-fA-F]).)++"  # One match: a call for each escape is slow
PAIR_OR_HALF = re.compile(
    rf"{OTHER_TEXT}|\\(?:u[dD][89abAB]{HEX}\\u[dD][c-fC-F]{HEX}|(u[dD][89a-fA-F]{HEX})|.)".encode(), re.DOTALL
)
NO_CHARACTER = "half of a surrogate pair, which is not a character"
NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
STEP = [1 if byte in b"[{" else -1 for byte in range(256)]
MAX_DEPTH = 100
LISTING_DEPTH = 250  # Above the limit of one schema, so that a deep one does not fail the listing
TOKEN = re.compile(STRING.pattern + rb"|[\[\]{}]", re.DOTALL)
MAX_VALUES = 100_000  # In one text: reading them takes about a second
BEYOND_ASCII = re.compile(r"[^\t\n -~]")
WITHOUT_SHAPE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\ufe00-\ufe0e\uffa0\U000e0100-\U000e01ef]"
)
"""Invisible letters, marks and symbols that `str.isprintable` accepts."""
GUARD = re.compile(
    r"(?:\s|\)\]\}'?,?|\]\)\}|&&&START&&&|\{\}\s*&&|//(?:OK)?|(?:for|while)\s*\([^()\n]{0,10}\)\s*;?"
    r"|throw\b[^;\n]{0,40};|<[^<>\n]{0,40}>)*+"
)
"""What some servers put before JSON, so that no page can run it as a script."""
BETWEEN_VALUES = re.compile(r"[\s\x1e]*+")
END_OF_LINE = re.compile(r"[ \t\r]*+(?:[\n\x1e]|\Z)")
ObjectOf = Callable[[list[tuple[str, Any]]], dict[str, Any]]


class UnreadableJSON(ValueError):
    """The message is a sentence."""


class HalfCharacters(UnreadableJSON):
    """`places`: the JSON Pointer of each string, and its problem."""

    def __init__(self, places: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{place or 'The whole'} {fault}" for place, fault in places[:5]) + ".")
        self.places = places


class TooDeep(dict[str, Any]):
    """The top level of an object of a listing that was nested too deep."""


def parse_json(
    data: bytes,
    *,
    max_depth: int = MAX_DEPTH,
    object_of: ObjectOf | None = None,
    given: bool = False,
    lenient: bool = False,
) -> Any:
    """Read UTF-8 JSON with finite numbers, nested at most `max_depth` deep. Raises UnreadableJSON only. Half
    a surrogate pair, which nothing can store or send, becomes "?" in an engine's text, and is refused with
    HalfCharacters if the text is `given` by a caller, who can correct it; so are names that an object has
    twice, of which only the last would count. `object_of` makes objects from pairs, so that duplicate keys
    can be noticed. `lenient`: numbers that JSON cannot hold
    are null, as JavaScript writes them, and bytes that are not UTF-8 become U+FFFD."""
    if not data.strip():
        raise UnreadableJSON("The text is empty where JSON was expected.")
    if is_nested_deeper(data, max_depth):
        raise UnreadableJSON(f"The JSON is nested more than {max_depth} levels deep.")
    if lenient:
        data = data.decode("utf-8", "replace").encode()
    if given:
        object_of = _object_without_repetition
    decoder = json.JSONDecoder(**(LENIENT if lenient else STRICT), object_pairs_hook=object_of)
    parsed = _decode(data if given else mend(data, "?"), decoder)
    if given and LONE_SURROGATE.search(data) and (halves := list(find_halves(parsed))):
        raise HalfCharacters(halves)
    return parsed


def parse_values(text: str, *, max_depth: int = MAX_DEPTH) -> tuple[list[Any], str, list[str]]:
    """The values of a text that is nearly JSON, the rest from the first part on that is none, and the numbers
    that JSON cannot hold, which are null in the values. Never raises. What can be read in one way only is: a
    guard before the first value, several values (lines, or a sequence by RFC 7464), and control characters in
    strings."""
    text = mend(text.encode("utf-8", "replace"), "?").decode()
    if is_nested_deeper(text.encode(), max_depth):
        return [], text, []
    numbers: list[str] = []
    decoder = json.JSONDecoder(**_lenient(numbers.append), strict=False)
    values: list[Any] = []
    at = GUARD.match(text).end()  # type: ignore[union-attr]
    while (at := BETWEEN_VALUES.match(text, at).end()) < len(text):  # type: ignore[union-attr]
        if len(values) == MAX_VALUES:
            break
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        # 2026-11-29 is not three numbers.
        if not isinstance(value, dict | list) and not END_OF_LINE.match(text, end):
            break
        values.append(value)
        at = end
    return values, text[at:], list(dict.fromkeys(numbers))


def _decode(data: bytes, decoder: json.JSONDecoder) -> Any:
    # "from None" throughout: these errors carry the whole text, which may hold secrets.
    try:
        return decoder.decode(data.decode("utf-8-sig"))
    except UnreadableJSON:
        raise
    except UnicodeDecodeError as error:
        raise UnreadableJSON(f"The text is not UTF-8: bad byte at position {error.start}.") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise UnreadableJSON(
            f"The text is not valid JSON: {error.msg.removesuffix(' at')} at {where}."
        ) from None
    except ValueError:
        raise UnreadableJSON("The JSON contains a whole number with too many digits.") from None
    except RecursionError:
        raise UnreadableJSON("The JSON is nested too deep to be read.") from None


def _object_without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        repeated = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise UnreadableJSON(f"An object has the name {json.dumps(repeated[:100])} more than once.")
    return made


def find_repetition(data: bytes) -> str:
    """A sentence if an object of the valid JSON has a name twice; else empty."""
    try:
        NOTICING.decode(data.decode())
    except UnreadableJSON as problem:
        return str(problem)
    except (ValueError, RecursionError):
        pass  # Whoever reads it says so.
    return ""


def mend(data: bytes, mark: str) -> bytes:
    """Valid JSON with `mark` for each half of a surrogate pair, such as of a text that was cut in the middle
    of an emoji, and without a byte order mark: strict parsers refuse both."""
    text = data.removeprefix(BOM_UTF8)
    if not LONE_SURROGATE.search(text):
        return text
    return PAIR_OR_HALF.sub(lambda found: mark.encode() if found[1] else found[0], text)


def find_halves(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """The JSON Pointer of each string with half of a surrogate pair, and the problem. A name that has one
    cannot be part of a pointer."""
    if isinstance(value, str):
        if HALF.search(value):
            yield place, f"contains {NO_CHARACTER}"
    elif isinstance(value, dict):
        for name, inner in value.items():
            if HALF.search(name):
                yield place, f"has a name that contains {NO_CHARACTER}"
            else:
                yield from find_halves(inner, f"{place}{pointer_of([name])}")
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from find_halves(inner, f"{place}/{position}")


def is_nested_deeper(data: bytes, max_depth: int) -> bool:
    """Takes linear time; of broken JSON only the part before the first error counts."""
    if data.count(b"[") + data.count(b"{") <= max_depth:
        return False
    brackets = STRING.sub(b"", data).translate(None, NOT_BRACKETS)
    return max(accumulate(STEP[byte] for byte in brackets), default=0) > max_depth


def parse_top_level(data: bytes, *, depth: int = 1) -> dict[str, Any]:
    """An object's members, with null for objects and arrays below `depth`. Raises UnreadableJSON."""
    if (cut := _without_deep_values(data, depth)) is None:
        raise UnreadableJSON("The JSON is not an object that contains objects or arrays.")
    mark, shallow = cut
    shallow = shallow.replace(json.dumps(mark).encode(), b"null")
    members = parse_json(shallow, max_depth=depth, lenient=True)
    if not isinstance(members, dict):
        raise UnreadableJSON("The JSON is not an object.")
    return members


def parse_listing(data: bytes, *, max_depth: int, lenient: bool = False) -> Any:
    """Works like `parse_json`, but objects of the outermost array that are nested deeper become TooDeep."""
    try:
        return parse_json(data, max_depth=max_depth, lenient=lenient)
    except UnreadableJSON:
        # Brackets and strings: a search for deep values in so many takes about a second.
        tokens = (data.count(b"[") + data.count(b"{")) * 2 + data.count(b'"') // 2
        if tokens > 500_000 or not (cut := _without_deep_values(data, max_depth)):
            raise
    mark, shallow = cut
    listing = _marked(parse_json(shallow, max_depth=max_depth, lenient=lenient), mark)
    if _contains(listing, mark):
        raise UnreadableJSON(f"The JSON is nested more than {max_depth} levels deep.")
    return listing


def _without_deep_values(data: bytes, max_depth: int) -> tuple[str, bytes] | None:
    """The text with a mark instead of each value below `max_depth`; None without such values."""
    mark, kept, depth, copied = f"too deep {uuid4()}", [], 0, 0
    for token in TOKEN.finditer(data):
        match token.group()[:1]:
            case b"[" | b"{":
                depth += 1
                if depth == max_depth + 1:
                    kept += [data[copied : token.start()], json.dumps(mark).encode()]
            case b"]" | b"}":
                if depth == max_depth + 1:
                    copied = token.end()
                depth -= 1
    return (mark, b"".join(kept) + data[copied:]) if kept and depth == 0 else None


def _marked(value: Any, mark: str) -> Any:
    """Replace objects of the outermost arrays that contain the mark by TooDeep."""
    if isinstance(value, dict):
        return {name: _marked(inner, mark) for name, inner in value.items()}
    if isinstance(value, list):
        return [
            TooDeep({name: kept for name, kept in inner.items() if not isinstance(kept, dict | list)})
            if isinstance(inner, dict) and _contains(inner, mark)
            else inner
            for inner in value
        ]
    return value


def _contains(value: Any, mark: str) -> bool:
    return json.dumps(mark) in write_json(value)


def _refuse_constant(name: str) -> NoReturn:
    raise UnreadableJSON(f"The text is not valid JSON: {name} is not a JSON number.")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise UnreadableJSON("The JSON contains a number that is too large.")
    return number


ENCODE = json.JSONEncoder(separators=(",", ":")).encode
NOTICING = json.JSONDecoder(object_pairs_hook=_object_without_repetition)
STRICT: dict[str, Any] = {"parse_constant": _refuse_constant, "parse_float": _finite}


def _lenient(unheld: Callable[[str], None]) -> dict[str, Any]:
    """`unheld` gets each number that JSON cannot hold."""
    return {
        "parse_constant": unheld,
        "parse_float": lambda digits: number if math.isfinite(number := float(digits)) else unheld(digits),
        "parse_int": lambda digits: (
            int(digits) if len(digits) <= sys.float_info.max_10_exp else unheld(digits)
        ),
    }


LENIENT = _lenient(lambda digits: None)


def write_json(value: Any) -> str:
    """A JSON value without white space, in ASCII."""
    # This writer takes a fifth to a half of the time of Python's, but supports neither \u, nor halves of
    # surrogate pairs, nor values nested deeper than 200 levels.
    try:
        text = to_json(value).decode()
    except ValueError:
        return ENCODE(value)
    return text if text.isascii() else ENCODE(value)


def write_arguments(value: Any, *, ascii_only: bool = False) -> str:
    """Raises Rejected for what JSON cannot express."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=ascii_only, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        raise Rejected("The arguments cannot be written as JSON, so nothing was sent.") from None


def readable_json(value: Any) -> str:
    """Writes for people who must see everything: invisible characters and those that change the direction of
    the text are escaped."""
    return with_escapes(json.dumps(value, ensure_ascii=False, indent=2))


def with_escapes(text: str) -> str:
    return BEYOND_ASCII.sub(lambda one: one[0] if is_visible(one[0]) else json.dumps(one[0])[1:-1], text)


def is_visible(char: str) -> bool:
    return char.isprintable() and not WITHOUT_SHAPE.match(char)


def as_object(value: Any) -> dict[str, Any]:
    """Empty for anything else."""
    return value if isinstance(value, dict) else {}


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_percent(value: Any) -> float | None:
    """Returns 0 to 100; None for anything but a number."""
    return float(min(max(value, 0), 100)) if is_number(value) else None


def read_time(text: Any) -> datetime | None:
    """An ISO 8601 time, in UTC unless it has another zone; None for anything else."""
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found.replace(tzinfo=found.tzinfo or UTC) if found else None


def read_unix_time(value: Any, *, per_second: int) -> datetime | None:
    """None for 0 ("not yet") and anything else that is no time."""
    if not is_number(value) or value <= 0:
        return None
    try:
        return datetime.fromtimestamp(value / per_second, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def read_uuid(text: Any) -> UUID | None:
    """Returns such as the key of a start; None for anything else, such as the keys of other clients."""
    try:
        return UUID(text) if isinstance(text, str) else None
    except ValueError:
        return None
