"""The media types of bodies that can be sent."""

import re

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
MEDIA_RANGE = re.compile(r"[a-z0-9!#$&^_.+-]+/(?:\*|[a-z0-9!#$&^_.+-]+)|\*/\*")
JSON = frozenset({"application/json", "*/*", "application/*", "*"})
"""Media types that can be sent as application/json."""


def is_json(media_type: str) -> bool:
    plain = plain_name(media_type)
    return plain in JSON or plain.endswith(("+json", "/json"))


def is_form(media_type: str) -> bool:
    return plain_name(media_type) == FORM


def is_multipart(media_type: str) -> bool:
    return plain_name(media_type) == MULTIPART


def is_sent_raw(media_type: str) -> bool:
    """Also a range such as `image/*`; not a multipart type, whose boundary only its writer knows."""
    plain = plain_name(media_type)
    return bool(MEDIA_RANGE.fullmatch(plain)) and not plain.startswith("multipart/")


def plain_name(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()
