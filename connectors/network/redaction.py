"""Masking secrets and control characters in messages, logs and records."""

import base64
import html
import json
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

from connectors.formats.json import UnreadableJSON, parse_json

MASK = "***"
MIN_IN_VALUES_LENGTH = 8  # A shorter secret may be part of an id or a result, which must not change
WORD_KEYS = (
    *("error", "message", "detail", "msg", "reason", "title", "description", "errors"),
    "exception_message",
)
ERROR_LIMIT = 4_000  # Characters of an error; the raw answer is complete
LINE_LIMIT = 500
TAG = re.compile(r"<[^<>]*>")


class Redactor:
    """Masks secrets in every encoding in which an engine may echo them."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._know({secret for secret in secrets if secret})

    def learn(self, secret: str) -> None:
        if secret and secret not in self._known:
            self._know(self._known | {secret})

    def also(self, secrets: Iterable[str]) -> "Redactor":
        """Makes one for an exchange with further secrets, such as a token to validate."""
        return Redactor(self._known | set(secrets))

    def _know(self, known: set[str]) -> None:
        self._known = known
        self._anywhere = _pattern_of(known)
        long_ones = {secret for secret in known if len(secret) >= MIN_IN_VALUES_LENGTH}
        self._in_values = _pattern_of(long_ones)
        # The longest part of each that no JSON writer escapes (some escape "/" and non-ASCII characters).
        self._probes = {
            max(re.findall(r"[A-Za-z0-9]+", spelling), key=len, default="").encode()
            for secret in long_ones
            for spelling in (secret, *_in_base64(secret))
        }

    def __repr__(self) -> str:
        return "Redactor()"

    def text(self, text: str) -> str:
        """Masks every secret, for messages."""
        return self._anywhere.sub(MASK, text) if self._anywhere else text

    def answer(self, value: Any, body: bytes) -> Any:
        """Masks long secrets in the strings of the value parsed from `body`."""
        return self._masked(value) if any(probe in body for probe in self._probes) else value

    def _masked(self, value: Any) -> Any:
        match value:
            case str() if self._in_values:
                return self._in_values.sub(MASK, value)
            case list():
                return [self._masked(item) for item in value]
            case dict():  # Or TooDeep
                return type(value)({self._masked(key): self._masked(item) for key, item in value.items()})
        return value


_used: set[str] = set()


def remember_credentials(secrets: Iterable[str]) -> None:
    """Keeps what a connector of this process is made with, for `mask_credentials`."""
    _used.update(secret for secret in secrets if len(secret) >= MIN_IN_VALUES_LENGTH)


def mask_credentials(text: str) -> str:
    """Masks texts that no connector has masked, such as the traceback of its own error."""
    return Redactor(_used).text(text)


def printable(text: str) -> str:
    """Replaces control, direction-changing and unassigned characters; line breaks stay."""
    if not text.isprintable():
        text = "".join(char if char.isprintable() or char == "\n" else " " for char in text)
    return text.strip()


def escaped(text: str, *, but: str = "") -> str:
    """Escapes line breaks, control sequences and characters that change the direction."""
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char in but or unicodedata.category(char) == "Zs"
        else char.encode("unicode_escape").decode()
        for char in text
    )


def extract_error_message(value: Any) -> str:
    """The message in an engine's error of any shape, or empty."""
    match value:
        case str():
            return printable(value)
        case list():
            return "; ".join(filter(None, map(extract_error_message, value[:5])))
        case dict():
            inner = (value[key] for key in WORD_KEYS if key in value)
            return next(
                filter(None, (extract_error_message(one) or _words_by_field(one) for one in inner)), ""
            )
    return ""


def _words_by_field(value: Any) -> str:
    """The messages of an object that lists problems by field."""
    fields = list(value.items())[:5] if isinstance(value, dict) else []
    said = [(name, extract_error_message(one)) for name, one in fields if isinstance(one, str | list)]
    return "; ".join(f"{name}: {words}" for name, words in said if words)


def _has_text(value: Any) -> bool:
    match value:
        case str():
            return bool(value.strip())
        case list():
            return any(map(_has_text, value))
        case dict():
            return any(map(_has_text, value.values()))
    return False


def words_of(body: bytes, redactor: Redactor) -> str:
    """The message in a body: that of its JSON, else all of it, or the text without markup. Masks secrets
    before anything is cut off or taken out, so that no part of one remains."""
    try:
        value = parse_json(body)
        words = extract_error_message(value) or _words_by_field(value)
        if not words and _has_text(value):
            words = printable(json.dumps(value, ensure_ascii=False))  # An error of an unknown shape
        return redactor.text(words)
    except UnreadableJSON:
        text = redactor.text(body[:65_536].decode("utf-8", "replace"))  # Much less is shown
        return " ".join(printable(TAG.sub(" ", text[:ERROR_LIMIT])).split())


def first_line(text: str) -> str:
    return shorten(next(iter(printable(text).splitlines()), ""), LINE_LIMIT)


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3].rstrip() + "..."


def shorten_error(text: str) -> str:
    """Keep the beginning and three times as much of the end, where a traceback has the error."""
    if len(text) <= ERROR_LIMIT:
        return text
    note = f"\n[... {len(text) - ERROR_LIMIT:,} characters left out ...]\n"
    beginning = ERROR_LIMIT // 4
    return f"{text[:beginning].rstrip()}{note}{text[beginning - ERROR_LIMIT :].lstrip()}"


def _pattern_of(secrets: set[str]) -> re.Pattern[str] | None:
    longest_first = sorted(secrets, key=len, reverse=True)
    spellings = [
        spelling
        for secret in longest_first
        for spelling in (_in_any_escape(secret), *map(re.escape, _in_base64(secret)))
    ]
    return re.compile("|".join(spellings)) if spellings else None


def _in_any_escape(secret: str) -> str:
    """A pattern of the secret as it is, and escaped for URLs, HTML, JSON and Python, also in part or twice.
    Its parts never match in two ways and its repetitions are bounded: a search takes linear time."""
    parts = re.findall(r"\\+|[^\\]", secret, re.DOTALL)
    return "".join(
        rf"(?:\\{{{len(part)},{8 * len(part)}}}+|(?i:%5c){{{len(part)}}})"
        if part[0] == "\\"
        else _char_in_any_escape(part)
        for part in parts
    )


def _char_in_any_escape(char: str) -> str:
    if char.isascii() and char.isalnum():
        return char
    code, in_json = f"{ord(char):x}", json.dumps(char)[1:-1].lstrip("\\")
    spellings = {
        re.escape(char),
        re.escape(html.escape(char)),
        f"(?i:{''.join(f'%{byte:02x}' for byte in char.encode('utf-8', 'replace'))})",
        f"(?i:&#(?:x0*{code}|0*{ord(char)});)",
        f"(?i:u0*{code})",
    }
    if in_json not in (char, f"u{code:>04}"):  # Nothing may match twice
        spellings.add(f"(?i:{re.escape(in_json)})")
    if char == " ":
        spellings.add(r"\+")
    return rf"\\{{0,7}}+(?:{'|'.join(sorted(spellings))})"


def _in_base64(secret: str) -> set[str]:
    """Leaves out the padding of a long secret, as some do."""
    encoded = base64.b64encode(secret.encode("utf-8", "replace")).decode()
    if len(secret) >= MIN_IN_VALUES_LENGTH:
        encoded = encoded.rstrip("=")
    return {encoded, encoded.replace("+", "-").replace("/", "_")}
