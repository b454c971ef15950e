"""Bodies of the type multipart/form-data (RFC 7578): texts, JSON and files as fields of a form."""

import base64
import binascii
import mimetypes
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, unquote_to_bytes

from connectors.errors import Rejected
from connectors.formats.json_schema import steps_of
from connectors.http_tools.operation import HttpOperation
from connectors.http_tools.texts import NoText, scalar_of, text_of, written_json
from connectors.http_tools.tool_config import ArgumentPlace

MAX_BYTES = 20_000_000
DATA_URI = re.compile(r"data:(?P<type>[^;,]*)(?P<parameters>(?:;[^;,]*)*),(?P<data>.*)", re.DOTALL)
MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(?:; ?[A-Za-z0-9-]+=[A-Za-z0-9_.-]+)*")
LONGEST_NAME = 200
BINARY = "application/octet-stream"
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    content: bytes
    media_type: str
    name: str


def write_multipart(operation: HttpOperation, body: Any) -> tuple[bytes, str]:
    """The body's bytes and the boundary between its parts. Raises Rejected for what it cannot say."""
    if not isinstance(body, dict):
        raise Rejected("The body is a form, so it has to be an object. Nothing was sent.")
    boundary = secrets.token_hex(16)
    places = {
        steps[0]: place
        for place in operation.arguments.values()
        if place.place == "body" and len(steps := steps_of(place.name)) == 1
    }
    try:
        parts = [part for name, value in body.items() for part in _parts(name, value, places.get(name))]
    except NoText as error:
        raise Rejected(f"A field of the form {error}. Nothing was sent.") from None
    content = b"".join([*(f"--{boundary}\r\n".encode() + part + b"\r\n" for part in parts)])
    content += f"--{boundary}--\r\n".encode()
    if len(content) > MAX_BYTES:
        raise Rejected(f"The files are larger than {MAX_BYTES:,} bytes together. Nothing was sent.")
    return content, boundary


def read_file(text: str, *, field: str, media_type: str = "") -> File:
    """What a `data:` URI or a text stands for. Raises Rejected for a URI that cannot be read.

    `data:image/png;name=cat.png;base64,...`: the name is for APIs that go by it.
    """
    if not text.startswith("data:"):
        return _named(text.encode("utf-8", "replace"), media_type or TEXT, "", field)
    found = DATA_URI.fullmatch(text)
    if found is None:
        raise Rejected(
            f"{field} is no readable data: URI, which has a comma before the data. Nothing was sent."
        )
    *parameters, last = found["parameters"].split(";")
    is_base64 = last.strip().lower() == "base64"
    named = [one.partition("=") for one in (parameters if is_base64 else [*parameters, last])]
    given = {name.strip().lower(): unquote(value) for name, _, value in named}
    content = _decoded(found["data"], field) if is_base64 else unquote_to_bytes(found["data"])
    said = found["type"].strip()
    charset = f"; charset={given['charset']}" if said and given.get("charset") else ""
    name = given.get("name") or given.get("filename") or ""
    return _named(content, f"{said}{charset}" or media_type or BINARY, name, field)


def _decoded(text: str, field: str) -> bytes:
    try:
        return base64.b64decode("".join(unquote(text).split()), validate=True)
    except (binascii.Error, ValueError):
        raise Rejected(f"The base64 of {field} is broken. Nothing was sent.") from None


def _named(content: bytes, media_type: str, name: str, field: str) -> File:
    if not MEDIA_TYPE.fullmatch(media_type):
        raise Rejected(f"The media type of {field} is none. Nothing was sent.")
    # A path in the name would be the server's, if anybody's.
    plain = re.split(r"[/\\]", name)[-1][:LONGEST_NAME].strip()
    if not plain.strip("."):
        plain = field + (mimetypes.guess_extension(media_type.partition(";")[0]) or ".bin")
    return File(content=content, media_type=media_type, name=plain)


def _parts(name: str, value: Any, place: ArgumentPlace | None) -> Iterator[bytes]:
    """A list is one part for each of its items."""
    if place is not None and place.as_json:
        yield _part(name, str(value).encode("utf-8", "replace"), media_type=JSON)
    elif isinstance(value, list):
        for item in value:
            yield from _parts_of_item(name, item, place)
    else:
        yield from _parts_of_item(name, value, place)


def _parts_of_item(name: str, value: Any, place: ArgumentPlace | None) -> Iterator[bytes]:
    if place is not None and place.file:
        if not isinstance(value, str):
            raise NoText("is a file, and so a text or a data: URI")
        file = read_file(value, field=name, media_type=place.media_type)
        yield _part(name, file.content, media_type=file.media_type, filename=file.name)
    elif isinstance(value, dict | list):
        yield _part(name, written_json(value).encode(), media_type=JSON)
    else:
        yield _part(name, text_of(scalar_of(value)).encode("utf-8", "replace"))


def _part(name: str, content: bytes, *, media_type: str = "", filename: str = "") -> bytes:
    disposition = f'Content-Disposition: form-data; name="{_escaped(name)}"'
    if filename:
        disposition += f'; filename="{_escaped(filename)}"'
    kind = f"Content-Type: {media_type}\r\n" if media_type else ""
    return f"{disposition}\r\n{kind}\r\n".encode() + content


def _escaped(name: str) -> str:
    """As browsers write it (WHATWG, HTML 4.10.21.8)."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
