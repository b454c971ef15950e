"""The media types of bodies that can be sent."""

import re
from collections.abc import Mapping, Set

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
MEDIA_RANGE = re.compile(r"[a-z0-9!#$&^_.+-]+/(?:\*|[a-z0-9!#$&^_.+-]+)|\*/\*")
JSON = frozenset({"application/json", "*/*", "application/*", "*"})
"""Media types that can be sent as application/json."""
JSON_LINES = re.compile(r".*[/.](?:x-)?(?:ndjson|json-?lines?|jsonl)(?:\+json)?")
YAML = re.compile(r".*[/.+-]ya?ml")
JSON_PATCH, MERGE_PATCH = "json-patch+json", "merge-patch+json"
PATCHES = {
    f"strategic-{MERGE_PATCH}": "merges lists by their items' keys, with directives such as $patch",
    MERGE_PATCH: "null deletes a member, a list replaces the whole list",
    "apply-patch+yaml": "server-side apply of all that the field manager wants",
    JSON_PATCH: 'a list of operations, such as {"op": "remove", "path": "/a"}',
}
"""What a body means, by the end of its media type."""


def is_json(media_type: str) -> bool:
    plain = plain_name(media_type)
    return plain in JSON or plain.endswith(("+json", "/json"))


def is_form(media_type: str) -> bool:
    return plain_name(media_type) == FORM


def is_multipart(media_type: str) -> bool:
    return plain_name(media_type) == MULTIPART


def is_json_lines(media_type: str) -> bool:
    return bool(JSON_LINES.fullmatch(plain_name(media_type)))


def is_yaml(media_type: str) -> bool:
    return bool(YAML.fullmatch(plain_name(media_type)))


def patch_of(media_type: str) -> str:
    """The key of PATCHES; empty for other types."""
    return next((kind for kind in PATCHES if plain_name(media_type).endswith(kind)), "")


def can_hold(media_type: str, types: Set[str]) -> bool:
    """Whether a value of one of these JSON types, a "file" or an object with "files" can be such a body. No
    types: any."""
    kind, plain = patch_of(media_type), plain_name(media_type)
    held = {"string", "number", "integer", "boolean", "array", "object"}
    if is_multipart(plain):
        held = {"object", "files"}
    elif kind or is_form(plain):
        held = {"array"} if kind == JSON_PATCH else {"object"}
    elif not is_json(plain) or "*" in plain:
        held = {"string", "file"} if plain.startswith("text/") and not is_yaml(plain) else held | {"file"}
    return not types or not types.isdisjoint(held)


def is_sent_raw(media_type: str) -> bool:
    """Also a range such as `image/*`; not a multipart type, whose boundary only its writer knows."""
    plain = plain_name(media_type)
    return bool(MEDIA_RANGE.fullmatch(plain)) and not plain.startswith("multipart/")


def is_raw(media_type: str, types: Set[str]) -> bool:
    """Whether values of these types are given as the text or file that is the body."""
    if is_json(media_type):
        return "*" in media_type and "file" in types
    is_text = not types or not types.isdisjoint({"string", "file"})
    is_written = (is_yaml(media_type) or is_json_lines(media_type)) and not is_text
    return not (is_form(media_type) or is_multipart(media_type) or is_written)


def choose_media_type(offered: Mapping[str, Set[str]]) -> str:
    """Of those that can hold the types of their values: the one that says most precisely what is meant, else
    JSON, else a form, else a multipart one, else the first. Empty if none can be sent."""
    names = [name for name, types in offered.items() if can_hold(name, types)] or list(offered)
    for fits in (
        lambda name: offered[name] == {"string"} and name.startswith("text/") and not is_json(name),
        lambda name: offered[name] == {"array"} and is_json_lines(name),
        lambda name: patch_of(name) == MERGE_PATCH,
        lambda name: plain_name(name) == "application/json",
        lambda name: is_json(name) and patch_of(name) != JSON_PATCH,
        is_json,
        is_form,
        is_multipart,
        is_sent_raw,
    ):
        if chosen := next((name for name in names if fits(name)), None):
            return chosen
    return ""


def plain_name(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()
