"""What an API answered, read: JSON, text or something else."""

import base64
import codecs
from dataclasses import dataclass
from email.message import Message
from typing import Any

from connectors.formats.json import UnreadableJSON, parse_json
from connectors.http_tools.specs import HTTPResponseSpec
from connectors.network.client import Answer
from connectors.network.redaction import MASK, Redactor, shorten

MOST_HEADERS = 60
LONGEST_HEADER = 1_000
NEVER_SHOWN = frozenset({"set-cookie", "set-cookie2"})
"""They let whoever has them act in our name."""
TEXT_TYPES = frozenset(
    {
        "application/xml",
        "application/javascript",
        "application/x-www-form-urlencoded",
        "application/yaml",
        "application/x-yaml",
        "application/x-ndjson",
        "application/graphql",
        "image/svg+xml",
    }
)
Block = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """The body of an answer, with secrets masked."""

    body: Any = None
    """The JSON value, else the text; of anything else a sentence that says what it is; None: nothing."""
    block: Block | None = None
    """MCP's content block of what is neither JSON nor text."""
    objection: str = ""
    """Why it is not what it says it is; a sentence."""


def read_body(answer: Answer, redactor: Redactor) -> Received:
    if not answer.body:
        return Received()
    media_type, charset = _content_type(answer)
    if media_type.endswith(("/json", "+json")):
        return _json(answer.body, charset, redactor)
    if media_type.startswith("text/") or media_type in TEXT_TYPES or media_type.endswith("+xml"):
        return Received(body=redactor.text(_decoded(answer.body, charset)))
    return _binary(answer, media_type, redactor) if media_type else _guessed(answer, redactor)


def response_spec(answer: Answer, received: Received, redactor: Redactor) -> HTTPResponseSpec:
    """For the record: as it came, but bounded and without secrets."""
    return HTTPResponseSpec(
        status_code=answer.status,
        headers=_shown_headers(answer, redactor),
        body=received.body,
        execution_time_ms=round(answer.seconds * 1000, 3),
    )


def _json(body: bytes, charset: str, redactor: Redactor) -> Received:
    text = body if charset == "utf-8" else _decoded(body, charset).encode("utf-8", "replace")
    try:
        return Received(body=redactor.answer(parse_json(text), text))
    except UnreadableJSON as error:
        return Received(body=redactor.text(_decoded(body, charset)), objection=str(error))


def _guessed(answer: Answer, redactor: Redactor) -> Received:
    """Of what does not say what it is."""
    if not (read := _json(answer.body, "utf-8", redactor)).objection:
        return read
    try:
        return Received(body=redactor.text(answer.body.decode("utf-8")))
    except UnicodeDecodeError:
        return _binary(answer, "application/octet-stream", redactor)


def _binary(answer: Answer, media_type: str, redactor: Redactor) -> Received:
    kind = media_type.partition("/")[0]
    encoded = base64.b64encode(answer.body).decode("ascii")
    block: Block = {"type": kind, "data": encoded, "mimeType": media_type}
    if kind not in ("image", "audio"):
        resource = {"uri": redactor.text(answer.url), "mimeType": media_type, "blob": encoded}
        block = {"type": "resource", "resource": resource}
    return Received(body=f"{len(answer.body):,} bytes of {media_type}.", block=block)


def _content_type(answer: Answer) -> tuple[str, str]:
    """The media type in lower case, and the name of an encoding that there is."""
    message = Message()
    message["content-type"] = shorten(str(answer.headers.get("content-type", "")), LONGEST_HEADER)
    said = message.get_content_type() if message["content-type"].strip() else ""
    charset = message.get_param("charset")
    return said, _known_encoding(charset if isinstance(charset, str) else "")


def _known_encoding(name: str) -> str:
    try:
        found = codecs.lookup(name)
    except (LookupError, ValueError):
        return "utf-8"
    # Codecs such as "zip" and "rot13" are none of text.
    return found.name if found._is_text_encoding and found.name != "utf-7" else "utf-8"


def _decoded(body: bytes, charset: str) -> str:
    return body.decode(charset, "replace").removeprefix("\ufeff")


def _shown_headers(answer: Answer, redactor: Redactor) -> dict[str, str]:
    shown = {}
    for name in list(dict.fromkeys(name.lower() for name in answer.headers))[:MOST_HEADERS]:
        value = MASK if name in NEVER_SHOWN else redactor.text(str(answer.headers[name]))
        shown[shorten(redactor.text(name), LONGEST_HEADER)] = shorten(value, LONGEST_HEADER)
    return shown
