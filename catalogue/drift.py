"""Differences between the accepted and the offered layer of a workflow; harmless only by a rule here."""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from catalogue.naming import listed
from connectors.formats.json import as_object

ABSENT: Any = None
Layer = Mapping[str, Any]  # The upstream fields of a workflow
MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    field: str  # Such as `description` or `input_schema`; this field can be accepted alone
    text: str  # Such as "new required argument `password`"
    old: Any = ABSENT  # Any JSON; None where there was none
    new: Any = ABSENT
    harmless: bool = False
    warning: str = ""  # Excerpts of new texts that may be instructions to agents


def find_differences(accepted: Layer, offered: Layer, *, starts_by_metadata: bool = True) -> list[Difference]:
    """Without `starts_by_metadata` the engine's starts do not depend on the workflow's metadata."""
    # A cached answer runs nothing, so that a shorter cache time is harmless.
    caches_less = (offered["upstream_cache_seconds"] or 0) <= (accepted["upstream_cache_seconds"] or 0)
    found = [
        *_of_text("name", "name", accepted, offered, typos=not starts_by_metadata),
        *_of_text("upstream_title", "title", accepted, offered),
        *_of_text("description", "description", accepted, offered),
        *_of_findings(accepted, offered),
        *_of_schema("input_schema", accepted, offered, INPUT),
        *_of_schema("output_schema", accepted, offered, OUTPUT),
        *_of_hints(accepted, offered),
        *_of_interactions("queries", "question", accepted, offered),
        *_of_interactions("signals", "signal", accepted, offered),
        *_of_value("execution_type", "execution type", accepted, offered),
        *_of_value("upstream_cache_seconds", "cache time", accepted, offered, harmless=caches_less),
        *_of_metadata(accepted, offered, starts_by_metadata=starts_by_metadata),
        *(
            difference
            for name, label in HARMLESS_FIELDS.items()
            for difference in _of_value(name, label, accepted, offered, harmless=True)
        ),
    ]
    return [_with_warning(difference) for difference in found]


def is_harmless(differences: list[Difference]) -> bool:
    return all(difference.harmless for difference in differences)


def describe_differences(differences: list[Difference]) -> str:
    """On one line, the harmful differences first."""
    ordered = sorted(differences, key=lambda difference: difference.harmless)
    shown = [difference.text for difference in ordered[:MOST_NAMED]]
    more = len(ordered) - len(shown)
    return ", ".join([*shown, f"{more} more"] if more else shown)


# Plain values


HARMLESS_FIELDS = {
    "category": "category",
    "version": "version",
    "author": "author",
    "tags": "tags",
    "icons": "icons",
    "upstream_timeout_seconds": "timeout",
}
NOTHING: tuple[Any, ...] = ("", None, [], {})


def _of_value(
    field: str, label: str, accepted: Layer, offered: Layer, *, harmless: bool = False
) -> Iterator[Difference]:
    old, new = accepted[field], offered[field]
    if old != new:
        yield Difference(
            field=field, text=f"{_changed(old, new)} {label}", old=old, new=new, harmless=harmless
        )


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
    if problem and not accepted["schema_problem"]:
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
    """Connectors start workflows by it: an address, a queue, the code that runs."""
    old, new = accepted["metadata"], offered["metadata"]
    for name in old | new:
        if old.get(name) == new.get(name) and (name in old) == (name in new):
            continue
        harmless = not starts_by_metadata and name != "output_is_promised"
        message = f"metadata `{name}`" + ("" if harmless else ", by which it is run")
        yield Difference(
            field="metadata",
            text=f"{_changed(old.get(name), new.get(name))} {message}",
            old=old.get(name),
            new=new.get(name),
            harmless=harmless,
        )


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
        yield Difference(field=field, text=message, old=before, new=after, harmless=before is None)


UNREAD = {"icons", "upstream_timeout_seconds", "upstream_cache_seconds"}


def _with_warning(difference: Difference) -> Difference:
    """A text that may instruct agents is not harmless, unless it was there before."""
    if difference.field in UNREAD or (difference.field == "metadata" and difference.harmless):
        return difference
    before = find_suspicious(difference.old)
    found = [excerpt for excerpt in find_suspicious(difference.new) if excerpt not in before]
    if not found:
        return difference
    return replace(difference, harmless=False, warning=", ".join(found[:MOST_NAMED]))


# Texts


def _of_text(
    field: str, label: str, accepted: Layer, offered: Layer, *, typos: bool = True
) -> Iterator[Difference]:
    old, new = accepted[field], offered[field]
    if old != new:
        yield _text_difference(field, label, old, new, typos=typos)


def _text_difference(field: str, label: str, old: Any, new: Any, *, typos: bool = True) -> Difference:
    if typos and is_typo(old, new):
        return Difference(field=field, text=f"a typo in the {label}", old=old, new=new, harmless=True)
    return Difference(field=field, text=f"{_changed(old, new)} {label}", old=old, new=new)


PUNCTUATION = re.compile(r"[\s.,;:!'\"\u2018\u2019\u201c\u201d-]+")
MOST_TYPOS = 2
SHORTEST_WORD = 5  # In a shorter word one letter changes the meaning: now and not


def is_typo(old: Any, new: Any) -> bool:
    """Whether only spaces, punctuation, case, or one letter in each of at most two longer words differ."""
    if not (isinstance(old, str) and isinstance(new, str)):
        return False
    before, after = PUNCTUATION.sub(" ", old).split(), PUNCTUATION.sub(" ", new).split()
    if len(before) != len(after):
        return False
    differing = [pair for pair in zip(before, after, strict=True) if pair[0].casefold() != pair[1].casefold()]
    return len(differing) <= MOST_TYPOS and all(_is_misspelt(*pair) for pair in differing)


def _is_misspelt(old: str, new: str) -> bool:
    """One letter added, removed or replaced, or two swapped, and never the first one."""
    old, new = old.casefold(), new.casefold()
    if min(len(old), len(new)) < SHORTEST_WORD or old[0] != new[0]:
        return False
    if not (old.isalpha() and new.isalpha()):
        return False
    start = next((at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), None)
    if start is None:
        return abs(len(old) - len(new)) == 1
    rest, other = old[start:], new[start:]
    swapped = len(rest) == len(other) and rest[:2] == other[1::-1] and rest[2:] == other[2:]
    return swapped or rest[1:] == other[1:] or rest[1:] == other or rest == other[1:]


# JSON Schema


@dataclass(frozen=True, slots=True)
class _Side:
    """Inputs may become wider without harm, outputs narrower."""

    field: str
    noun: str
    whole: str
    is_output: bool = False

    def named(self, path: str) -> str:
        return f"{self.noun} `{path}`" if path else self.whole


INPUT = _Side("input_schema", "argument", "the argument object")
OUTPUT = _Side("output_schema", "result field", "the result", is_output=True)


def _of_schema(field: str, accepted: Layer, offered: Layer, side: _Side) -> Iterator[Difference]:
    old, new = accepted[field], offered[field]
    if old is None or new is None:
        message = "new output schema" if old is None else "the output schema is gone"
        if old != new:
            yield Difference(field=field, text=message, old=old, new=new, harmless=old is None)
        return
    yield from _compare_schemas(old, new, "", side)


HIGHEST = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains"}
LOWEST = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains"}
NESTED = {"$defs", "definitions", "items", "properties", "required"}


def _compare_schemas(old: Any, new: Any, path: str, side: _Side) -> Iterator[Difference]:
    if _same(old, new):
        return
    if not (isinstance(old, dict) and isinstance(new, dict)):
        message = f"{side.named(path)} has another schema"
        yield Difference(field=side.field, text=message, old=old, new=new)
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
    return bool(old == new) and isinstance(old, bool) == isinstance(new, bool)


def _compare_properties(
    old: dict[str, Any], new: dict[str, Any], path: str, side: _Side
) -> Iterator[Difference]:
    before, after = as_object(old.get("properties")), as_object(new.get("properties"))
    needed_before, needed_after = _names(old.get("required")), _names(new.get("required"))
    unnamed = (needed_before | needed_after) - before.keys() - after.keys()
    for name in [*before | after, *sorted(unnamed)]:
        inner = f"{path}.{name}" if path else name
        was, is_now = name in needed_before, name in needed_after
        if name in before and name not in after:
            message = f"{side.named(inner)} is gone"
            yield Difference(field=side.field, text=message, old=before[name])
        elif name in after and name not in before:
            yield _new_property(inner, after[name], side, required=is_now)
        else:
            if was != is_now:
                yield _other_necessity(inner, side, required=is_now)
            yield from _compare_schemas(before.get(name, {}), after.get(name, {}), inner, side)


def _new_property(path: str, schema: Any, side: _Side, *, required: bool) -> Difference:
    kind = "" if side.is_output else "required " if required else "optional "
    return Difference(
        field=side.field,
        text=f"new {kind}{side.named(path)}",
        new=schema,
        harmless=side.is_output or not required,
    )


def _other_necessity(path: str, side: _Side, *, required: bool) -> Difference:
    if side.is_output:
        message = f"{side.named(path)} is {'promised now' if required else 'no longer promised'}"
    else:
        message = f"{side.named(path)} is {'required now' if required else 'no longer required'}"
    old, new = ("optional", "required") if required else ("required", "optional")
    return Difference(field=side.field, text=message, old=old, new=new, harmless=required == side.is_output)


def _compare_definitions(old: dict[str, Any], new: dict[str, Any], side: _Side) -> Iterator[Difference]:
    """New definitions are harmless; the places that refer to them are compared separately."""
    for keyword in ("$defs", "definitions"):
        before, after = as_object(old.get(keyword)), as_object(new.get(keyword))
        for name in before | after:
            path = f"{keyword}/{name}"
            if name not in after:
                yield Difference(
                    field=side.field, text=f"definition `{name}` is gone", old=before[name], harmless=True
                )
            elif name not in before:
                message = f"new definition `{name}`"
                yield Difference(field=side.field, text=message, new=after[name], harmless=True)
            else:
                yield from _compare_schemas(before[name], after[name], path, side)


def _keyword_difference(
    keyword: str, old: dict[str, Any], new: dict[str, Any], path: str, side: _Side
) -> Difference:
    before, after = old.get(keyword), new.get(keyword)
    named = side.named(path)
    if keyword in ("description", "title"):
        return _text_difference(side.field, f"{keyword} of {named}", before, after)
    rule = {"type": _type_change, "enum": _enum_change}.get(keyword, _other_change)
    message, widens, narrows = rule(keyword, old, new)
    harmless = narrows if side.is_output else widens
    return Difference(field=side.field, text=f"{named} {message}", old=before, new=after, harmless=harmless)


Change = tuple[str, bool, bool]  # Its description; whether it widens, and narrows, the allowed values


def _type_change(keyword: str, old: dict[str, Any], new: dict[str, Any]) -> Change:
    before, after = _types(old.get("type")), _types(new.get("type"))
    widens = not after or bool(before and before <= after | ({"integer"} if "number" in after else set()))
    narrows = not before or bool(after and after <= before | ({"integer"} if "number" in before else set()))
    message = f"changed its type from {_listed(before) or 'any'} to {_listed(after) or 'any'}"
    return message, widens, narrows


def _enum_change(keyword: str, old: dict[str, Any], new: dict[str, Any]) -> Change:
    if "enum" not in new:
        return "takes any value now", True, False
    if "enum" not in old:
        return f"takes only {_quoted(new['enum'])} now", False, True
    gone = [value for value in old["enum"] if value not in new["enum"]]
    more = [value for value in new["enum"] if value not in old["enum"]]
    parts = [f"no longer takes {_quoted(gone)}"] if gone else []
    parts += [f"takes {_quoted(more)} as well"] if more else []
    return " and ".join(parts) or "lists its values in another order", not gone, not more


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
    if keyword == "additionalProperties" and not (isinstance(before, dict) or isinstance(after, dict)):
        takes_more = after is not False
        return f"takes {'further' if takes_more else 'no further'} fields now", takes_more, not takes_more
    return message, False, False


def _is_above(value: Any, other: Any, sign: int) -> bool:
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (value, other))
    return numbers and value * sign >= other * sign


def _types(value: Any) -> set[str]:
    if isinstance(value, list):
        return {one for one in value if isinstance(one, str)}
    return {value} if isinstance(value, str) else set()


def _listed(types: set[str]) -> str:
    return " or ".join(sorted(types))


def _quoted(values: list[Any]) -> str:
    return listed([f"`{value}`" for value in values], MOST_NAMED)


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
LONGEST_EXCERPT = 80
UNSEEN = frozenset({"Cf", "Co", "Cn", "Cs"})  # Zero width, direction, tags, private use


def find_suspicious(value: Any) -> dict[str, None]:
    """Excerpts of the value's texts that may be instructions to agents, in order."""
    found: dict[str, None] = {}
    for text in texts_in(value):
        if unseen := sorted({f"U+{ord(char):04X}" for char in text if unicodedata.category(char) in UNSEEN}):
            found[f"unseen characters ({', '.join(unseen[:5])})"] = None
        readable = unicodedata.normalize("NFKC", text)
        readable = "".join(char for char in readable if unicodedata.category(char) not in UNSEEN)
        for pattern in PATTERNS:
            for match in pattern.finditer(readable):
                line = " ".join(match[0].split())
                shown = line if len(line) <= LONGEST_EXCERPT else f"{line[:LONGEST_EXCERPT]}..."
                found[f"\u201c{shown}\u201d"] = None
    return found


READ_BY_AGENTS = (
    "name", "upstream_title", "description", "category", "version", "author", "tags", "input_schema",
    "output_schema", "queries", "signals",
)  # fmt: skip


def warning_of(layer: Layer) -> str:
    """Excerpts of all that agents can read, which may be instructions to them; empty if there are none. An
    address alone, such as a schema's dialect, is none."""
    texts = dict.fromkeys(texts_in([layer.get(name) for name in READ_BY_AGENTS]))
    addresses = {f"\u201c{text}\u201d" for text in texts if text.startswith(("http://", "https://"))}
    found = [excerpt for excerpt in find_suspicious(list(texts)) if excerpt not in addresses]
    return ", ".join(found[:MOST_NAMED])


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
