"""Which of the media types of a body or an answer can be written and read."""

from collections.abc import Iterable

from connectors.http_tools.openapi.refusals import NoTool, quoted

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
JSON = frozenset({"application/json", "*/*", "application/*"})
"""Where the usual name of JSON will do."""
SHOWN = 3


def is_json(media_type: str) -> bool:
    plain = plain_name(media_type)
    return plain in JSON or plain.endswith(("+json", "/json"))


def choose_media_type(offered: Iterable[str], pointer: str) -> str:
    """The one that says most: JSON, else a form, else one with files. Raises NoTool where there is none."""
    names = list(offered)
    for fits in (_is_usual_json, is_json, is_form, is_multipart):
        if chosen := next((name for name in names if fits(name)), None):
            return chosen
    told = ", ".join(quoted(name) for name in names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    raise NoTool(f"Its body is {told}; only JSON and forms can be sent.", pointer)


def _is_usual_json(media_type: str) -> bool:
    return plain_name(media_type) == "application/json"


def is_form(media_type: str) -> bool:
    return plain_name(media_type) == FORM


def is_multipart(media_type: str) -> bool:
    return plain_name(media_type) == MULTIPART


def plain_name(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()
