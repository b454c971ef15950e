"""The media types of bodies that can be sent."""

import re
from collections.abc import Set

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
MEDIA_RANGE = re.compile(r"[a-z0-9!#$&^_.+-]+/(?:\*|[a-z0-9!#$&^_.+-]+)|\*/\*")
JSON = frozenset({"application/json", "*/*", "application/*", "*"})
"""Media types that can be sent as application/json."""
JSON_LINES = re.compile(r".*[/.](?:x-)?(?:ndjson|json-?lines?|jsonl)(?:\+json)?")
YAML = re.compile(r".*[/.+-]ya?ml")
JSON_PATCH, MERGE_PATCH = "json-patch+json", "merge-patch+json"
PATCHES = {
    f"strategic-{MERGE_PATCH}": "a merge patch with directives such as $patch, which merges lists "
    "by the keys of their items",
    MERGE_PATCH: "what is left out stays, null deletes a member, a list replaces the whole list",
    "apply-patch+yaml": "server-side apply of all fields that the field manager wants",
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


def plain_name(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()
