"""The media types of bodies that can be sent."""

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
JSON = frozenset({"application/json", "*/*", "application/*"})
"""Media types that can be sent as application/json."""


def is_json(media_type: str) -> bool:
    plain = plain_name(media_type)
    return plain in JSON or plain.endswith(("+json", "/json"))


def is_form(media_type: str) -> bool:
    return plain_name(media_type) == FORM


def is_multipart(media_type: str) -> bool:
    return plain_name(media_type) == MULTIPART


def plain_name(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()
