"""Differences between the accepted and the offered layer of a workflow. A difference is harmless only by a
rule here: it adds no text that agents can read, and breaks no call."""

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from catalogue.naming import listed
from catalogue.schemas import GENERIC_SCHEMA
from catalogue.served_schemas import TYPES
from connectors.definitions import META, METADATA_KEY, presentation_of
from connectors.formats.json import as_object
from connectors.formats.mcp_apps import audiences_of

ABSENT: Any = None
Layer = Mapping[str, Any]  # The upstream fields of a workflow
MAX_NAMED = 5
SIDES = {"input_schema": "argument", "output_schema": "result"}
ASPECTS = ("added", "required", "gone", "text", "values", "default", "bounds", "schema")


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    field: str  # Such as `description` or `input_schema`; this field can be accepted alone
    text: str  # Such as "new required argument `password`"
    old: Any = ABSENT  # Any JSON; None where there was none
    new: Any = ABSENT
    harmless: bool = False
    warning: str = ""  # Excerpts of new texts that may be instructions to agents
    aspect: str = "schema"  # Of a schema, one of ASPECTS

    @property
    def kind(self) -> str:
        """The field, or of a schema: `argument-added`, `result-text`."""
        return f"{SIDES[self.field]}-{self.aspect}" if self.field in SIDES else self.field


def find_differences(accepted: Layer, offered: Layer, *, starts_by_metadata: bool = True) -> list[Difference]:
    """Compares layers. Without `starts_by_metadata` the engine's starts do not depend on the metadata."""
    found = [
        *(one for name, label in LABELS.items() for one in _of_value(name, label, accepted, offered)),
        *_of_findings(accepted, offered),
        *_of_schema("input_schema", accepted, offered),
        *_of_schema("output_schema", accepted, offered),
        *_of_hints(accepted, offered),
        *_of_interactions("queries", "question", accepted, offered),
        *_of_interactions("signals", "signal", accepted, offered),
        *_of_metadata(accepted, offered, starts_by_metadata=starts_by_metadata),
    ]
    return [_with_warning(difference) for difference in found]


def is_harmless(differences: list[Difference]) -> bool:
    return all(difference.harmless for difference in differences)


def kinds_held(differences: list[Difference]) -> list[str]:
    """The kinds that need a decision: of the differences that are not harmless, else of all."""
    held = [difference for difference in differences if not difference.harmless]
    return sorted({difference.kind for difference in held or differences})


def describe_differences(differences: list[Difference]) -> str:
    """Describes them on one line, the harmful differences first."""
    ordered = sorted(differences, key=lambda difference: difference.harmless)
    shown = [difference.text for difference in ordered[:MAX_NAMED]]
    more = len(ordered) - len(shown)
    return ", ".join([*shown, f"{more} more"] if more else shown)


# New texts


HIGHEST = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains"}
LOWEST = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains"}
STANDARD = {
    *HIGHEST, *LOWEST, "type", "enum", "items", "properties", "required", "additionalProperties",
    "deprecated", "uniqueItems", "multipleOf", "description", "title", "inputSchema",
}  # fmt: skip
"""Keys that are no texts of the engine; all others are."""
PROSE = ("description", "title", "upstream_title")
WHITE_SPACE = re.compile(r"[ \t\r\n]{1,40}")
"""In prose as good as one space; a longer run is as good as several, so that nothing grows unnoticed."""
WITHOUT_WORDS = {  # By key, the values that tell agents nothing
    "type": re.compile("|".join(TYPES)),
    "category": re.compile("workflow"),  # Where the engine gives none
    "version": re.compile(
        r"(?=.{1,24}\Z)v?[0-9]+(?:[.+-](?:[0-9]+|(?:alpha|beta|build|dev|rc)(?:\.?[0-9]+)?)){0,4}"
    ),
}
MAX_NUMBER = 2**64  # A longer one can spell a text
Place = tuple[str, ...]  # The keys that lead to a text


def new_texts(key: str, old: Any, new: Any) -> set[tuple[Place, str]]:
    """The keys and strings of the new value of `key` that the old one does not have at the same place, or of
    a list in none of its members as they are."""
    if isinstance(old, list) and isinstance(new, list):
        old, new = [], _missing_from(old, new)
    return set(_texts(new, (key,))) - set(_texts(old, (key,)))


def _texts(value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    match value:
        case str():
            text = WHITE_SPACE.sub(" ", value).strip() if place[-1] in PROSE else value
            if text and not (place[-1] in WITHOUT_WORDS and WITHOUT_WORDS[place[-1]].fullmatch(text)):
                yield place, text
        case int() if abs(value) > MAX_NUMBER:
            yield place, hex(value)
        case list():
            for item in value:
                yield from _texts(item, place)
        case dict():
            # Names that are required repeat those that are described.
            described = as_object(value.get("properties"))
            yield from ((place, key) for key in value if key not in STANDARD)
            for key, item in value.items():
                inner = _texts(item, (*place, key))
                yield from (one for one in inner if not (key == "required" and one[1] in described))


# Plain values


LABELS = {
    "name": "name", "upstream_title": "title", "description": "description", "category": "category",
    "version": "version", "author": "author", "tags": "tags", "icons": "icons",
    "execution_type": "execution type", "upstream_cache_seconds": "cache time",
    "upstream_timeout_seconds": "timeout",
}  # fmt: skip
NOTHING: tuple[Any, ...] = ("", None, [], {})


def _of_value(field: str, label: str, accepted: Layer, offered: Layer) -> Iterator[Difference]:
    old, new = accepted[field], offered[field]
    if old != new:
        text = f"{_changed(old, new)} {label}"
        # Agents choose by the description. A cached answer runs nothing, so that a shorter time is harmless.
        caches_more = field == "upstream_cache_seconds" and (new or 0) > (old or 0)
        is_held = caches_more or (field == "description" and not new) or bool(new_texts(field, old, new))
        yield Difference(field=field, text=text, old=old, new=new, harmless=not is_held)


def _changed(old: Any, new: Any) -> str:
    if old in NOTHING:
        return "new"
    return "no" if new in NOTHING else "another"


def _of_findings(accepted: Layer, offered: Layer) -> Iterator[Difference]:
    new = offered.get("resembles", "")
    if new and new != accepted["resembles"]:
        is_of_title = accepted["upstream_title"] != offered["upstream_title"]
        yield Difference(
            field="upstream_title" if is_of_title else "name",
            text=f"its name or title can be mistaken for {new}",
            old=accepted["resembles"],
            new=new,
        )

    problem = offered["schema_problem"]
    is_lost = offered["input_schema"] == GENERIC_SCHEMA != accepted["input_schema"]
    if is_lost or (problem and not accepted["schema_problem"]):
        message = "its input schema cannot be used and would be replaced by one that takes any object"
        yield Difference(field="input_schema", text=message, new=problem)


HINTS = {
    "readOnlyHint": "changes nothing",
    "destructiveHint": "is destructive",
    "idempotentHint": "can be repeated",
    "openWorldHint": "deals with other systems",
}


def _of_hints(accepted: Layer, offered: Layer) -> Iterator[Difference]:
    """A claim to be safer is not harmless, because clients then ask for fewer confirmations."""
    for name, meaning in HINTS.items():
        old, new = accepted["hints"].get(name), offered["hints"].get(name)
        if old != new:
            says = {True: f"it {meaning}", False: f"not that it {meaning}", None: "nothing of that"}
            message = f"hint `{name}`: the engine says {says[new]}, before: {says[old]}"
            yield Difference(field="hints", text=message, old=old, new=new)


def _of_metadata(accepted: Layer, offered: Layer, *, starts_by_metadata: bool) -> Iterator[Difference]:
    """Connectors start workflows by it: an address, a queue, the code that runs. Agents do not see it."""
    old, new = (_metadata_without_presentation(layer) for layer in (accepted, offered))
    yield from _of_presentation(presentation_of(accepted["metadata"]), presentation_of(offered["metadata"]))
    for name in old | new:
        if old.get(name) == new.get(name) and (name in old) == (name in new):
            continue
        harmless = name == "notes" or (not starts_by_metadata and name != "output_is_promised")
        message = f"metadata `{name}`" + ("" if harmless else ", by which it is run")
        yield Difference(
            field="metadata",
            text=f"{_changed(old.get(name), new.get(name))} {message}",
            old=old.get(name),
            new=new.get(name),
            harmless=harmless,
        )


def _metadata_without_presentation(layer: Layer) -> dict[str, Any]:
    metadata: dict[str, Any] = layer["metadata"]
    if not presentation_of(metadata):
        return metadata
    needed = {name: value for name, value in metadata[METADATA_KEY].items() if name != META}
    return metadata | {METADATA_KEY: needed}


def _of_presentation(old: dict[str, Any], new: dict[str, Any]) -> Iterator[Difference]:
    """Clients get it; a tool that it hides from models must not come to light unnoticed."""
    if old != new:
        harmless = not new and "model" in audiences_of(old)
        text = f"{_changed(old, new)} presentation `_meta`"
        yield Difference(field="metadata", text=text, old=old or None, new=new or None, harmless=harmless)


def _of_interactions(field: str, noun: str, accepted: Layer, offered: Layer) -> Iterator[Difference]:
    old = {one["name"]: one for one in accepted[field]}
    new = {one["name"]: one for one in offered[field]}
    for name in old | new:
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        message = f"new {noun} `{name}`" if before is None else f"{noun} `{name}` is another"
        if after is None:
            message = f"{noun} `{name}` is gone"
        is_reworded = before and after and before | {"description": after.get("description")} == after
        harmless = bool(is_reworded) and not new_texts(field, before, after)
        yield Difference(field=field, text=message, old=before, new=after, harmless=harmless)


def _with_warning(difference: Difference) -> Difference:
    """Marks a text that may instruct agents, unless it was there before."""
    if difference.harmless:
        return difference
    before = find_suspicious(difference.old)
    found = [excerpt for excerpt in find_suspicious(difference.new) if excerpt not in before]
    return replace(difference, warning=", ".join(found[:MAX_NAMED]))


# JSON Schema


Side = Literal["input_schema", "output_schema"]
"""Inputs may become wider without harm, outputs narrower."""
OUTPUT: Side = "output_schema"


def _named(side: Side, path: str) -> str:
    if side == OUTPUT:
        return f"result field `{path}`" if path else "the result"
    return f"argument `{path}`" if path else "the argument object"


def _differs(
    side: Side, aspect: str, text: str, old: Any = ABSENT, new: Any = ABSENT, *, harmless: bool = False
) -> Difference:
    return Difference(field=side, aspect=aspect, text=text, old=old, new=new, harmless=harmless)


def _of_schema(side: Side, accepted: Layer, offered: Layer) -> Iterator[Difference]:
    old, new = accepted[side], offered[side]
    if old is None and new is not None:
        harmless = not new_texts(side, old, new)
        yield _differs(side, "added", "new output schema", old, new, harmless=harmless)
    elif new is None and old is not None:
        yield _differs(side, "gone", "the output schema is gone", old, new)
    elif old is not None:
        found = list(_compare_schemas(old, new, "", side))
        yield from found
        # The comparison overlooks what is no valid schema, such as `$defs` of an older dialect.
        if is_harmless(found) and (added := new_texts(side, old, new)):
            shown = _quoted(sorted(text for _, text in added))
            yield _differs(side, "schema", f"{_named(side, '')} has new texts: {shown}", old, new)


NESTED = {"$defs", "definitions", "items", "properties", "required"}


def _compare_schemas(old: Any, new: Any, path: str, side: Side) -> Iterator[Difference]:
    if _same(old, new):
        return
    if not (isinstance(old, dict) and isinstance(new, dict)):
        yield _differs(side, "schema", f"{_named(side, path)} has another schema", old, new)
        return
    yield from _compare_properties(old, new, path, side)
    if "items" in old or "items" in new:
        yield from _compare_schemas(old.get("items", {}), new.get("items", {}), f"{path}[]", side)
    yield from _compare_definitions(old, new, side)
    for keyword in old | new:
        if keyword in NESTED or (keyword in old and keyword in new and _same(old[keyword], new[keyword])):
            continue
        yield _keyword_difference(keyword, old, new, path, side)


def _same(old: Any, new: Any) -> bool:
    """Python considers 1 equal to true."""
    return bool(old == new) and (repr(old) == repr(new) or _written(old) == _written(new))


_written = json.JSONEncoder(sort_keys=True).encode


def _compare_properties(
    old: dict[str, Any], new: dict[str, Any], path: str, side: Side
) -> Iterator[Difference]:
    before, after = as_object(old.get("properties")), as_object(new.get("properties"))
    needed_before, needed_after = _names(old.get("required")), _names(new.get("required"))
    unnamed = (needed_before | needed_after) - before.keys() - after.keys()
    is_output = side == OUTPUT
    for name in [*before | after, *sorted(unnamed)]:
        inner = f"{path}.{name}" if path else name
        was, is_now = name in needed_before, name in needed_after
        if name in before and name not in after:
            harmless = not is_output and was >= is_now
            yield _differs(side, "gone", f"{_named(side, inner)} is gone", before[name], harmless=harmless)
        elif name in after and name not in before:
            necessity = "" if is_output else "required " if is_now else "optional "
            aspect = "required" if is_now and not is_output else "added"
            yield _differs(side, aspect, f"new {necessity}{_named(side, inner)}", new=after[name])
        else:
            if was != is_now:
                verb = "promised" if is_output else "required"
                message = f"{_named(side, inner)} is {f'{verb} now' if is_now else f'no longer {verb}'}"
                before_and_after = ("optional", "required") if is_now else ("required", "optional")
                harmless = is_now == is_output
                yield _differs(side, "required", message, *before_and_after, harmless=harmless)
            yield from _compare_schemas(before.get(name, {}), after.get(name, {}), inner, side)


def _compare_definitions(old: dict[str, Any], new: dict[str, Any], side: Side) -> Iterator[Difference]:
    """The places that refer to definitions are compared separately."""
    for keyword in ("$defs", "definitions"):
        before, after = as_object(old.get(keyword)), as_object(new.get(keyword))
        for name in before | after:
            if name not in after:
                yield _differs(side, "gone", f"definition `{name}` is gone", before[name], harmless=True)
            elif name not in before:
                yield _differs(side, "added", f"new definition `{name}`", new=after[name])
            else:
                yield from _compare_schemas(before[name], after[name], f"{keyword}/{name}", side)


NOTES = ("$comment", "example", "examples", "readOnly", "writeOnly", "contentMediaType", "contentEncoding")
ASSERTIONS = ("pattern", "format", "multipleOf", "uniqueItems", "propertyNames", "dependentRequired")
"""Keywords without which a schema is wider."""
ASPECT_OF = {
    **dict.fromkeys((*HIGHEST, *LOWEST, *ASSERTIONS, "type", "enum", "additionalProperties"), "bounds"),
    **dict.fromkeys((*NOTES, *PROSE), "text"),
    **dict.fromkeys(("default", "const"), "default"),
}


def _keyword_difference(
    keyword: str, old: dict[str, Any], new: dict[str, Any], path: str, side: Side
) -> Difference:
    before, after = old.get(keyword), new.get(keyword)
    aspect = "text" if keyword.startswith("x-") else ASPECT_OF.get(keyword, "schema")
    if keyword in PROSE:
        message = f"{_changed(before, after)} {keyword} of {_named(side, path)}"
        widens = narrows = True
    else:
        rule = {"type": _type_change, "enum": _enum_change}.get(keyword, _other_change)
        said, widens, narrows = rule(keyword, old, new)
        message = f"{_named(side, path)} {said}"
    if keyword == "enum" and widens:
        aspect = "values"
    harmless = (narrows if side == OUTPUT else widens) and not new_texts(keyword, before, after)
    return _differs(side, aspect, message, before, after, harmless=harmless)


Change = tuple[str, bool, bool]  # Its description; whether it widens, and narrows, the allowed values


def _type_change(keyword: str, old: dict[str, Any], new: dict[str, Any]) -> Change:
    before, after = _types(old.get("type")), _types(new.get("type"))
    widens = not after or bool(before and before <= after | ({"integer"} if "number" in after else set()))
    narrows = not before or bool(after and after <= before | ({"integer"} if "number" in before else set()))
    was, is_now = (" or ".join(sorted(types)) or "any" for types in (before, after))
    return f"changed its type from {was} to {is_now}", widens, narrows


def _enum_change(keyword: str, old: dict[str, Any], new: dict[str, Any]) -> Change:
    before, after = old.get(keyword, []), new.get(keyword, [])
    if not (isinstance(before, list) and isinstance(after, list)):
        return "has another `enum`", False, False
    if keyword not in new:
        return "takes any value now", True, False
    if keyword not in old:
        return f"takes only {_quoted(after)} now", False, True
    gone, more = _missing_from(after, before), _missing_from(before, after)
    parts = [f"no longer takes {_quoted(gone)}"] if gone else []
    parts += [f"takes {_quoted(more)} as well"] if more else []
    return " and ".join(parts) or "lists its values in another order", not gone, not more


def _missing_from(values: list[Any], others: list[Any]) -> list[Any]:
    """Returns those of the others that the values lack."""
    known = set(map(_written, values))
    return [value for value in others if _written(value) not in known]


def _other_change(keyword: str, old: dict[str, Any], new: dict[str, Any]) -> Change:
    before, after = old.get(keyword), new.get(keyword)
    if keyword == "default":
        return ("has another default" if keyword in old else "has a default now"), False, False
    if keyword == "deprecated":
        return "is deprecated" if after else "is no longer deprecated", True, True
    message = f"has another `{keyword}`"
    if keyword in HIGHEST | LOWEST:
        sign = 1 if keyword in HIGHEST else -1
        widens = keyword not in new or _is_above(after, before, sign)
        narrows = keyword not in old or _is_above(before, after, sign)
        return message, widens, narrows
    if keyword in ASSERTIONS:
        return message, not after, not before
    if keyword in NOTES or keyword.startswith("x-"):
        says_less = keyword not in new or (
            isinstance(before, list) and isinstance(after, list) and not _missing_from(before, after)
        )
        return message, says_less, says_less
    if keyword == "additionalProperties" and not (isinstance(before, dict) or isinstance(after, dict)):
        takes_more = after is not False
        return f"takes {'further' if takes_more else 'no further'} fields now", takes_more, not takes_more
    return message, False, False


def _is_above(value: Any, other: Any, sign: int) -> bool:
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (value, other))
    return numbers and value * sign >= other * sign


def _types(value: Any) -> set[str]:
    return {value} if isinstance(value, str) else _names(value)


def _quoted(values: list[Any]) -> str:
    return listed([f"`{value}`" for value in values], MAX_NAMED)


def _names(value: Any) -> set[str]:
    return {one for one in value if isinstance(one, str)} if isinstance(value, list) else set()


PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        r"\b(?:ignore|disregard|forget|override|bypass)\b.{0,40}?"
        r"\b(?:previous|prior|above|earlier|preceding|system|instructions?|prompts?|rules?|guidelines?)\b",
        r"\b(?:do not|don['\u2019]t|never|without)\b.{0,20}?"
        r"\b(?:tell|mention|inform|notif|reveal|show|report|ask|disclos|warn)\w*",
        r"\b(?:send|forward|post|upload|transmit|e-?mail|bcc|leak|exfiltrate|copy)\b.{0,60}?\b(?:to|at)\b",
        r"\b(?:before|after|prior to|instead of|when(?:ever)?|each time)\b.{0,20}?"
        r"\b(?:call|us|invok|run|execut)(?:e|es|ing|s)?\b",
        r"\b(?:you|the (?:agent|assistant|model))\s+(?:must|should|shall|have to|has to|need to|are to)\b",
        r"\b(?:always|must|first)\s+(?:call|use|include|pass|send|read|fetch|run|execute|provide|add)\b",
        r"</?\s*(?:important|critical|system|instructions?|secret|admin|assistant|user|prompt|tool)\b"
        r"[^>]{0,80}>",
        r"\b(?:system prompt|new instructions|hidden instruction|jailbreak|developer mode)\b",
        r"\b(?:(?:api|private)[ _-]?keys?|passwords?|credentials?|access[ _-]?tokens?|secrets?|id_rsa)\b",
        r"(?:~|\$HOME|%USERPROFILE%)[/\\]|\.ssh\b|\.env\b|\bmcp\.json\b|/etc/passwd",
        r"\b(?:https?|ftp|data|javascript|file)\s?:[^\s<>\"']{1,200}|\bwww\.[^\s<>\"']{1,200}",
        r"[A-Za-z0-9+/]{100,}={0,2}",
    )
)
MAX_EXCERPT = 80
UNSEEN = frozenset({"Cf", "Co", "Cn", "Cs"})  # Zero width, direction, tags, private use


def find_suspicious(value: Any) -> dict[str, None]:
    """Excerpts of the value's texts that may be instructions to agents, in order."""
    return {excerpt: None for text in texts_in(value) for excerpt in _excerpts_of(text)}


@lru_cache(maxsize=10_000)
def _excerpts_of(text: str) -> tuple[str, ...]:
    """Cached, because the tools of an API repeat the texts of its definitions."""
    found, readable = [], text
    if not text.isascii():
        if unseen := sorted({f"U+{ord(char):04X}" for char in text if unicodedata.category(char) in UNSEEN}):
            found.append(f"unseen characters ({', '.join(unseen[:5])})")
        readable = unicodedata.normalize("NFKC", text)
        readable = "".join(char for char in readable if unicodedata.category(char) not in UNSEEN)
    for pattern in PATTERNS:
        for match in pattern.finditer(readable):
            line = " ".join(match[0].split())
            shown = line if len(line) <= MAX_EXCERPT else f"{line[:MAX_EXCERPT]}..."
            found.append(f"\u201c{shown}\u201d")
    return tuple(found)


READ_BY_AGENTS = (
    "name", "upstream_title", "description", "category", "version", "author", "tags", "input_schema",
    "output_schema", "queries", "signals",
)  # fmt: skip


def warning_of(layer: Layer) -> str:
    """Excerpts of all that agents can read, which may be instructions to them; empty if there are none. An
    address alone, such as a schema's dialect, is none."""
    shown = [*(layer.get(name) for name in READ_BY_AGENTS), presentation_of(layer.get("metadata") or {})]
    texts = dict.fromkeys(texts_in(shown))
    addresses = {f"\u201c{text}\u201d" for text in texts if text.startswith(("http://", "https://"))}
    found = [excerpt for excerpt in find_suspicious(list(texts)) if excerpt not in addresses]
    return ", ".join(found[:MAX_NAMED])


def show_unseen(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(f"[U+{ord(char):04X}]" if unicodedata.category(char) in UNSEEN else char for char in text)


def texts_in(value: Any) -> Iterator[str]:
    """Every text of a JSON value, including the keys of objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from texts_in(item)
