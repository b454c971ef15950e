"""An API's answer: the end of a run, or a reason to retry."""

import base64
import codecs
import json
from dataclasses import dataclass
from datetime import datetime
from email.message import Message
from functools import lru_cache
from http.client import responses
from typing import Any

from connectors.errors import ConnectorError, OutcomeUnknown, Unreachable
from connectors.formats.json import UnreadableJSON, parse_json
from connectors.formats.json_schema import value_at
from connectors.http_tools.tool import HttpOperation, HTTPRequestSpec, HTTPResponseSpec
from connectors.network.client import Answer
from connectors.network.redaction import MASK, Redactor, printable, shorten, words_of
from connectors.network.transport import WORDS_LIMIT, retry_after
from connectors.protocol import RunSnapshot, RunState

MOST_HEADERS = 60
LONGEST_HEADER = 1_000
NEVER_SHOWN = frozenset({"set-cookie", "set-cookie2"})
TEXT_TYPES = frozenset(
    {"application/xml", "application/javascript", "application/x-www-form-urlencoded", "image/svg+xml"}
    | {"application/yaml", "application/x-yaml", "application/x-ndjson", "application/graphql"}
)
Block = dict[str, Any]
COMPLAINT_LIMIT = 1_000  # Characters: enough for a message about each of several arguments
LARGEST_BODY = 64_000  # Bytes; of a larger body only the message is shown
MESSAGE_KEYS = ("error", "message", "detail", "msg", "reason", "exception_message")
"""For texts only: a list or title with such a name may describe an argument of that name."""
ENVELOPES = ("error", "detail")
GATEWAY_GAVE_UP = frozenset({408, 502, 504})  # The server behind the gateway may still carry the request out
REFUSED_CREDENTIALS = frozenset({401, 403})
MOVED_AFTERWARDS = frozenset({300, 301, 302, 303})
"""Usual answers to a form that was processed; after 307 and 308 it is still to be sent."""
SAME_WHEN_REPEATED = frozenset({"PUT", "DELETE"})  # RFC 9110, 9.2.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """An answer's body, with secrets masked."""

    body: Any = None  # The JSON value, else the text, else a sentence that describes it; None: no body
    block: Block | None = None  # MCP's content block of a body that is neither JSON nor text
    objection: str = ""


def read_body(answer: Answer, redactor: Redactor) -> Received:
    if not answer.body:
        return Received()
    media_type, charset = _content_type(str(answer.headers.get("content-type", ""))[:LONGEST_HEADER])
    if media_type.endswith(("/json", "+json")):
        return _json_body(answer.body, charset, redactor)
    if media_type.startswith("text/") or media_type in TEXT_TYPES or media_type.endswith("+xml"):
        return Received(body=redactor.text(_decoded(answer.body, charset)))
    return _binary(answer, media_type, redactor) if media_type else _guessed(answer, redactor)


def _json_body(body: bytes, charset: str, redactor: Redactor) -> Received:
    text = body if charset == "utf-8" else _decoded(body, charset).encode("utf-8", "replace")
    try:
        return Received(body=redactor.answer(parse_json(text), text))
    except UnreadableJSON as error:
        return Received(body=redactor.text(_decoded(body, charset)), objection=str(error))


def _guessed(answer: Answer, redactor: Redactor) -> Received:
    if not (read := _json_body(answer.body, "utf-8", redactor)).objection:
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


@lru_cache(maxsize=100)
def _content_type(header: str) -> tuple[str, str]:
    """The lower-case media type, and the name of a known encoding."""
    message = Message()
    message["content-type"] = header
    said = message.get_content_type() if message["content-type"].strip() else ""
    charset = message.get_param("charset")
    return said, _known_encoding(charset if isinstance(charset, str) else "")


def _known_encoding(name: str) -> str:
    """UTF-8 in place of codecs that are not for text (zip) or fail on arbitrary bytes (idna)."""
    try:
        found = codecs.lookup(name).name
        b"\xff ".decode(found, "replace")
    except (LookupError, ValueError):
        return "utf-8"
    return found if found != "utf-7" else "utf-8"


def _decoded(body: bytes, charset: str) -> str:
    return body.decode(charset, "replace").removeprefix("\ufeff")


def _shown_headers(answer: Answer, redactor: Redactor) -> dict[str, str]:
    names = list(answer.headers)[:MOST_HEADERS]
    values = [MASK if name in NEVER_SHOWN else str(answer.headers[name]) for name in names]
    masked = redactor.texts([*names, *values])
    cut = [text if len(text) <= LONGEST_HEADER else shorten(text, LONGEST_HEADER) for text in masked]
    return dict(zip(cut[: len(names)], cut[len(names) :], strict=True))


def complaint_of(status: int, body: bytes, redactor: Redactor) -> str:
    """A JSON body's message, then its rest as JSON: `Invalid: {"field":"amount"}`. Bounded and without
    secrets; of other bodies the text. APIs name a wrong argument in too many ways to choose from what they
    say."""
    phrase = responses.get(status, "")
    try:
        value = parse_json(body) if len(body) <= LARGEST_BODY else None
    except UnreadableJSON:
        value = None
    if not isinstance(value, dict | list):
        # Redacted before it is cut, so that no half of a secret remains.
        words = shorten(redactor.text(words_of(body)), COMPLAINT_LIMIT)
        return "" if words.lower() == phrase.lower() else words
    message, rest = _split_message(_without_status(_masked(value, redactor), status, phrase))
    if not rest:
        return shorten(message, COMPLAINT_LIMIT)
    # Redacted again, since a secret may be a number.
    written = redactor.text(json.dumps(rest, ensure_ascii=False, separators=(",", ":")))
    return shorten(f"{message.removesuffix('.')}: {written}" if message else written, COMPLAINT_LIMIT)


def _masked(value: Any, redactor: Redactor) -> Any:
    """String by string: JSON may escape a secret in ways that the mask does not know."""
    match value:
        case str():
            return printable(redactor.text(value))
        case list():
            return [_masked(item, redactor) for item in value]
        case dict():
            return {printable(redactor.text(name)): _masked(item, redactor) for name, item in value.items()}
    return value


def _without_status(value: Any, status: int, phrase: str) -> Any:
    """The message already begins with the status."""
    if not isinstance(value, dict):
        return value
    said = {str(status), phrase.lower()}
    return {
        name: item
        for name, item in value.items()
        if not (isinstance(item, str | int) and str(item).lower() in said)
    }


def _split_message(value: Any) -> tuple[str, Any]:
    """The message, and the rest without empty values."""
    if not isinstance(value, dict):
        return "", value
    for key in MESSAGE_KEYS:
        said = value.get(key)
        if isinstance(said, str) and said:
            return said, _without_empty({**value, key: None})
        if isinstance(said, dict) and key in ENVELOPES:
            message, rest = _split_message(said)
            if message:
                return message, _without_empty({**value, key: rest})
    return "", _without_empty(value)


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: item for name, item in fields.items() if item not in (None, "", [], {})}


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    operation: HttpOperation
    spec: HTTPRequestSpec
    answer: Answer
    redactor: Redactor
    started_at: datetime
    finished_at: datetime

    def snapshot(self) -> RunSnapshot:
        received = read_body(self.answer, self.redactor)
        if error := self._to_be_tried_again(received):
            raise error
        failure = self._failure(received)
        return RunSnapshot(
            state=RunState.FAILED if failure else RunState.COMPLETED,
            output=None if failure else _output(self.operation, received),
            error=failure,
            content=None if failure or received.block is None else [received.block],
            needs_operator=self.answer.status in REFUSED_CREDENTIALS,
            may_have_effect=bool(failure) and self._may_have_effect,
            started_at=self.started_at,
            finished_at=self.finished_at,
            raw=self._raw(received),
        )

    def _to_be_tried_again(self, received: Received) -> ConnectorError | None:
        if self.answer.carried_out:
            return None
        status = self.answer.status
        wait = retry_after(self.answer.headers) if status in (429, 503) else None
        if status == 429 or (status == 503 and wait is not None):
            return Unreachable(self._line(), retry_after=wait, details=self._raw(received))
        if status in GATEWAY_GAVE_UP and not self.operation.is_safe:
            reason = f"{_unended(self._line())}. The API may have carried it out."
            return OutcomeUnknown(reason, details=self._raw(received))
        return None

    @property
    def _may_have_effect(self) -> bool:
        """Whether a repetition could act twice; it would have another idempotency key."""
        if self.operation.is_safe:
            return False
        status = self.answer.status
        if self.answer.carried_out or 200 <= status < 300:
            return True
        is_open = status >= 500 or status in MOVED_AFTERWARDS
        return is_open and self.operation.method not in SAME_WHEN_REPEATED

    def _failure(self, received: Received) -> str:
        """Empty: success."""
        failure = self._status_failure(received)
        carried_out = " The request itself was carried out." if failure and self.answer.carried_out else ""
        return f"{_unended(failure)}.{carried_out}" if carried_out else failure

    def _status_failure(self, received: Received) -> str:
        status = self.answer.status
        if self.answer.not_followed:
            return f"{self._place()}: {self.answer.not_followed}"
        if status in REFUSED_CREDENTIALS:
            advice = "The source's credentials, or what they allow, have to be looked at."
            return f"{_unended(self._line())}. {advice}"
        if not 200 <= status < 300:
            return self._line()
        if received.objection:
            objection = received.objection[:1].lower() + received.objection[1:]
            return f"{self._line(words=False)}, so it was carried out, but {objection}"
        return ""

    def _line(self, *, words: bool = True) -> str:
        """`GET /orders/7: the API answered 404 Not Found: no such order`."""
        phrase = responses.get(self.answer.status, "")
        line = f"{self._place()}: the API answered {self.answer.status} {phrase}".rstrip()
        said = self._words() if words else ""
        return f"{line}: {said}" if said and said.lower() != phrase.lower() else line

    def _words(self) -> str:
        """The API's message, redacted before it is cut so that no half of a secret remains."""
        if 400 <= self.answer.status < 500:
            return complaint_of(self.answer.status, self.answer.body, self.redactor)
        return shorten(self.redactor.text(words_of(self.answer.body)), WORDS_LIMIT)

    def _place(self) -> str:
        path = "/" + self.spec.url.split("/", 3)[3] if self.spec.url.count("/") > 2 else "/"
        return shorten(self.redactor.text(f"{self.spec.method} {path}"), WORDS_LIMIT)

    def _raw(self, received: Received) -> dict[str, Any]:
        # For the record: bounded and without secrets.
        response = HTTPResponseSpec(
            status_code=self.answer.status,
            headers=_shown_headers(self.answer, self.redactor),
            body=received.body,
            execution_time_ms=round(self.answer.seconds * 1000, 3),
        )
        return {"request": self.spec.model_dump(mode="json"), "response": response.model_dump(mode="json")}


def _unended(sentence: str) -> str:
    """Some APIs end their message with a full stop."""
    return sentence.removesuffix(".")


def _output(operation: HttpOperation, received: Received) -> Any:
    """Missing fields are left out; the output schema says whether they may be missing."""
    if not operation.output:
        return received.body
    output = {}
    for field, pointer in operation.output.items():
        try:
            output[field] = value_at(received.body, pointer)
        except LookupError:
            continue
    return output
