"""What becomes of an API's answer: the end of a run, or the reason to ask again."""

from dataclasses import dataclass
from datetime import datetime
from http.client import responses
from typing import Any

from connectors.errors import ConnectorError, OutcomeUnknown, Unreachable
from connectors.formats.json_schema import value_at
from connectors.http_tools.complaints import complaint_of
from connectors.http_tools.operation import HttpOperation
from connectors.http_tools.received import Received, read_body, response_spec
from connectors.http_tools.specs import HTTPRequestSpec
from connectors.network.client import Answer
from connectors.network.exchange import WORDS_LIMIT, retry_after
from connectors.network.redaction import Redactor, shorten, words_of
from connectors.protocol import RunSnapshot, RunState

GATEWAY_GAVE_UP = frozenset({408, 502, 504})
"""Whatever is behind the gateway may go on with the request, or have done it."""
REFUSED_CREDENTIALS = frozenset({401, 403})
MOVED_AFTERWARDS = frozenset({300, 301, 302, 303})
"""Many APIs say so once they have done what a form asked for; 307 and 308 say that it is still to be done."""
SAME_WHEN_REPEATED = frozenset({"PUT", "DELETE"})
"""RFC 9110, 9.2.2."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One request of a tool that has been answered."""

    operation: HttpOperation
    spec: HTTPRequestSpec
    answer: Answer
    redactor: Redactor
    started_at: datetime
    finished_at: datetime

    def snapshot(self) -> RunSnapshot:
        """How the run ended. Raises Unreachable or OutcomeUnknown where it has not."""
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
        status, wait = self.answer.status, retry_after(self.answer.headers)
        if status == 429 or (status == 503 and wait is not None):
            return Unreachable(self._line(), retry_after=wait, details=self._raw(received))
        if status in GATEWAY_GAVE_UP and not self.operation.is_safe:
            reason = f"{_unended(self._line())}. The API may have carried it out."
            return OutcomeUnknown(reason, details=self._raw(received))
        return None

    @property
    def _may_have_effect(self) -> bool:
        """Whether the same call again could do something twice; its idempotency key would be another."""
        if self.operation.is_safe:
            return False
        status = self.answer.status
        if self.answer.carried_out or 200 <= status < 300:
            return True
        is_open = status >= 500 or status in MOVED_AFTERWARDS
        return is_open and self.operation.method not in SAME_WHEN_REPEATED

    def _failure(self, received: Received) -> str:
        """Empty for a success."""
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
            return f"{self._line(words=False)}, so it was carried out, but {_inner(received.objection)}"
        return ""

    def _line(self, *, words: bool = True) -> str:
        """`GET /orders/7: the API answered 404 Not Found: no such order`."""
        phrase = responses.get(self.answer.status, "")
        line = f"{self._place()}: the API answered {self.answer.status} {phrase}".rstrip()
        said = self._words() if words else ""
        return f"{line}: {said}" if said and said.lower() != phrase.lower() else line

    def _words(self) -> str:
        """The API's own, redacted before they are cut so that no half of a secret remains."""
        if 400 <= self.answer.status < 500:
            return complaint_of(self.answer.status, self.answer.body, self.redactor)
        return shorten(self.redactor.text(words_of(self.answer.body)), WORDS_LIMIT)

    def _place(self) -> str:
        path = "/" + self.spec.url.split("/", 3)[3] if self.spec.url.count("/") > 2 else "/"
        return shorten(self.redactor.text(f"{self.spec.method} {path}"), WORDS_LIMIT)

    def _raw(self, received: Received) -> dict[str, Any]:
        response = response_spec(self.answer, received, self.redactor)
        return {
            "request": self.spec.model_dump(mode="json"),
            "response": response.model_dump(mode="json"),
        }


def _unended(sentence: str) -> str:
    """APIs end their words with a full stop or without one."""
    return sentence.removesuffix(".")


def _output(operation: HttpOperation, received: Received) -> Any:
    """A field that the answer lacks is left out; whether it may be is for the output schema to say."""
    if not operation.output:
        return received.body
    output = {}
    for field, pointer in operation.output.items():
        try:
            output[field] = value_at(received.body, pointer)
        except LookupError:
            continue
    return output


def _inner(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
