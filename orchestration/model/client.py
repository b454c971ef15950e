"""The language model: one server that speaks the API of chat completions, and the one way to ask it (C9)."""

import asyncio
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
from loguru import logger

from connectors.backoff import backoff_seconds, spread
from connectors.errors import Misconfigured
from connectors.network.exchange import TRANSPORT_ERRORS, failure_reason, retry_after
from connectors.network.redaction import Redactor, shorten, words_of
from orchestration.model.connection import ModelSettings, UnusableAnswer, connect_to_model
from orchestration.model.dialects import ABOUT_LENGTH, Dialect, Fallback, known_dialect, remember_dialect
from orchestration.model.replies import Message, ModelError, ModelProblem, Reply, TokenUsage, read_completion
from orchestration.stages import Failure, StageFailed

FIRST_WAIT, LONGEST_WAIT = 0.5, 8.0
"""Seconds before a request is repeated, where the server does not say; doubled each time."""
NOT_CONNECTED = 0
"""In place of a status: nothing came, or not all of it."""


async def ask_model(messages: Sequence[Message], *, schema: dict[str, Any] | None = None) -> Reply:
    """One answer of the configured model, with `schema` JSON of that shape as far as the server can force it.

    Retries what may be retried. Raises ModelError.
    """
    wanted = ModelSettings.configured()
    client = await connect_to_model(wanted)
    started = time.perf_counter()
    try:
        async with asyncio.timeout(wanted.seconds) as timeout:
            asking = _Question(client, wanted, list(messages), schema, deadline=timeout.when() or 0)
            reply = await asking.until_answered()
    except TimeoutError:
        raise ModelError(
            f"The model did not answer within {wanted.seconds:g} s. Ask for less, "
            "or raise CATALOGUE_MODEL_TIMEOUT.",
            problem=ModelProblem.TIMEOUT,
        ) from None
    seconds, usage = time.perf_counter() - started, reply.usage
    logger.debug(
        "{} answered in {:.2f} s: {} + {} tokens", reply.model, seconds, usage.prompt, usage.completion
    )
    return reply


@dataclass(slots=True)
class _Answer:
    """Of one attempt."""

    status: int
    body: bytes = b""
    headers: httpx2.Headers | None = None
    failure: str = ""

    @property
    def wait(self) -> float | None:
        return None if self.headers is None else retry_after(self.headers)


@dataclass(slots=True)
class _Question:
    """One question, asked until there is an answer, or no use in asking again."""

    client: Any
    wanted: ModelSettings
    messages: list[Message]
    schema: dict[str, Any] | None
    deadline: float
    """By the loop's clock."""

    async def until_answered(self) -> Reply:
        dialect = known = known_dialect(self.wanted.base_url, self.wanted.model)
        repeated, asked_the_same_again = 0, False
        while True:
            answer = await self._attempt(dialect)
            if 200 <= answer.status < 300:
                break
            if (plainer := self._fallbacks(dialect, answer)) is not None:
                # What names nothing may have been a hiccup, for which nothing is given up for good.
                if plainer.is_named or asked_the_same_again:
                    dialect = plainer.dialect
                asked_the_same_again = asked_the_same_again or not plainer.is_named
                continue
            await self._wait_or_give_up(answer, repeated)
            repeated += 1
        if dialect != known:
            logger.info("The model server takes less than was sent; from now on it gets {}", dialect)
            remember_dialect(self.wanted.base_url, self.wanted.model, dialect)
        wanted = self.wanted
        return read_completion(answer.body, model=wanted.model, answer_tokens=wanted.answer_tokens)

    async def _attempt(self, dialect: Dialect) -> _Answer:
        from openai import APIConnectionError, APIStatusError

        parameters = dialect.parameters(self.schema, answer_tokens=self.wanted.answer_tokens)
        completions = self.client.chat.completions.with_raw_response
        # What is raised from here on is raised "from None": these errors hold what was sent.
        try:
            raw = await completions.create(model=self.wanted.model, messages=self.messages, **parameters)
        except APIStatusError as error:
            response = error.response
            return _Answer(response.status_code, response.content, response.headers)
        except UnusableAnswer as error:
            raise ModelError(f"The model server's answer {error}.", problem=ModelProblem.EMPTY) from None
        except Misconfigured as error:
            raise ModelError(f"OPENAI_BASE_URL: {error}", problem=ModelProblem.NOT_CONFIGURED) from None
        except TRANSPORT_ERRORS as error:
            return _Answer(NOT_CONNECTED, failure=failure_reason(error, self.wanted.limits))
        except APIConnectionError:
            return _Answer(NOT_CONNECTED, failure="the connection failed")
        return _Answer(raw.status_code, raw.content)

    def _fallbacks(self, dialect: Dialect, answer: _Answer) -> Fallback | None:
        words = words_of_refusal(answer.body, self.wanted)
        return dialect.fallback_for(answer.status, words, asks_for_json=self.schema is not None)

    async def _wait_or_give_up(self, answer: _Answer, repeated: int) -> None:
        """Raises ModelError where asking again is of no use, or would come too late."""
        lost = answer.status == NOT_CONNECTED
        if not lost and not may_be_retried(answer.status, answer.body):
            raise refusal(answer.status, answer.body, self.wanted)
        seconds = answer.wait
        if seconds is None:
            seconds = spread(backoff_seconds(repeated, first=FIRST_WAIT, longest=LONGEST_WAIT))
        left = self.deadline - asyncio.get_running_loop().time()
        if repeated >= self.wanted.retries or seconds >= left:
            raise self._gave_up(answer)
        logger.debug("{} asked again in {:.1f} s", answer.failure or answer.status, seconds)
        await asyncio.sleep(seconds)

    def _gave_up(self, answer: _Answer) -> ModelError:
        if answer.status == NOT_CONNECTED:
            sentence = (
                f"The model server cannot be reached: {answer.failure}. OPENAI_BASE_URL says where it is."
            )
            return ModelError(sentence, problem=ModelProblem.UNREACHABLE)
        if answer.status == 429 or answer.wait is not None:
            return busy(answer.wait)
        return refusal(answer.status, answer.body, self.wanted)


WORDS_LIMIT = 300
"""Characters of the server's own words that an error quotes."""
NO_QUOTA = "insufficient_quota"
"""A code that comes as 429 but does not pass with time."""

USED_UP = "The quota at the model server is used up. Whoever pays for OPENAI_API_KEY has to look at it."
ABOUT_MODEL = re.compile(
    r"\b(?:invalid|unknown|no such) model\b|\bmodel\b.{0,100}\b(?:does not exist|not found)", re.IGNORECASE
)


def words_of_refusal(body: bytes, wanted: ModelSettings) -> str:
    """The server's, without our key."""
    words = Redactor([wanted.api_key.get_secret_value()]).text(words_of(body))
    return shorten(" ".join(words.split()), WORDS_LIMIT)


def may_be_retried(status: int, body: bytes) -> bool:
    """Whether the same request may succeed a moment later."""
    return (status in (408, 409, 429) or (status >= 500 and status != 501)) and NO_QUOTA.encode() not in body


def refusal(status: int, body: bytes, wanted: ModelSettings) -> ModelError:
    """The error for a status that is no success."""
    words = words_of_refusal(body, wanted)
    has_quota = NO_QUOTA.encode() not in body
    problem, sentence = _meaning(status, words, wanted) if has_quota else (ModelProblem.UNUSABLE, USED_UP)
    quoted = f" It says: {words}" if words and status not in (401, 403) else ""
    return ModelError(sentence + quoted, problem=problem)


def busy(seconds: float | None) -> ModelError:
    when = "later" if seconds is None else f"in {max(1, round(seconds))} s"
    return ModelError(f"The model server is busy. Try again {when}.", problem=ModelProblem.BUSY)


def _meaning(status: int, words: str, wanted: ModelSettings) -> tuple[ModelProblem, str]:
    unusable, unreachable = ModelProblem.UNUSABLE, ModelProblem.UNREACHABLE
    if 300 <= status < 400:
        return unreachable, "The model server redirects to elsewhere. Correct OPENAI_BASE_URL."
    if status in (401, 403):
        # Its words are left out: OpenAI's quote parts of the key.
        return unusable, f"The model server refuses our key ({status}). Check OPENAI_API_KEY."
    if status == 404 or (status in (400, 422) and ABOUT_MODEL.search(words)):
        return unusable, (
            f"The model server does not know the model {wanted.model}, or the address is wrong ({status}). "
            "Check OPENAI_MODEL and OPENAI_BASE_URL."
        )
    if ABOUT_LENGTH.search(words) or status == 413:
        return unusable, (
            "The prompt is longer than the model takes. Name fewer tools, "
            "or lower CATALOGUE_MODEL_CONTEXT_TOKENS or CATALOGUE_MODEL_ANSWER_TOKENS."
        )
    if status >= 500:
        return unreachable, f"The model server fails ({status}). Try again later."
    return ModelProblem.REFUSED, f"The model server refuses the request ({status})."


MOST_AT_ONCE = 50
"""Questions to the model that one process has open: each keeps a request waiting, and most a thread."""
BUSY_SECONDS = 5

FAILURES = {
    ModelProblem.NOT_CONFIGURED: Failure.MODEL_UNAVAILABLE,
    ModelProblem.UNUSABLE: Failure.MODEL_UNAVAILABLE,
    ModelProblem.UNREACHABLE: Failure.MODEL_UNAVAILABLE,
    ModelProblem.BUSY: Failure.MODEL_UNAVAILABLE,
    ModelProblem.TIMEOUT: Failure.MODEL_TIMEOUT,
    ModelProblem.REFUSED: Failure.MODEL_ANSWER,
    ModelProblem.CUT_OFF: Failure.MODEL_ANSWER,
    ModelProblem.EMPTY: Failure.MODEL_ANSWER,
}

_places = threading.BoundedSemaphore(MOST_AT_ONCE)


class MeteredModel:
    """Asks the model on behalf of one request, and adds up the tokens, those of failures included."""

    def __init__(self) -> None:
        self.usage = TokenUsage()
        self.model = ""
        """The name that the model's server gives it; empty until it has answered."""

    async def ask(self, messages: Sequence[Message], *, schema: dict[str, Any] | None = None) -> Reply:
        """Raises StageFailed."""
        if not _places.acquire(blocking=False):
            raise StageFailed(
                f"Busy: this process asks the model {MOST_AT_ONCE} questions already. Try again in "
                f"{BUSY_SECONDS} s.",
                failure=Failure.BUSY,
                retry_after=BUSY_SECONDS,
            )
        try:
            reply = await ask_model(messages, schema=schema)
        except ModelError as error:
            self.usage += error.usage
            raise StageFailed(error.message, failure=FAILURES[error.problem]) from error
        finally:
            _places.release()
        self.usage += reply.usage
        self.model = reply.model
        return reply
