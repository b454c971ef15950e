"""The language model: one server that speaks the API of chat completions, and the one way to ask it (C9)."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
from loguru import logger

from connectors.backoff import backoff_seconds, spread
from connectors.errors import Misconfigured
from connectors.network.exchange import TRANSPORT_ERRORS, failure_reason, retry_after
from orchestration.language_model.completions import read_completion
from orchestration.language_model.connection import ModelSettings, UnusableAnswer, connect_to_model
from orchestration.language_model.dialect import Dialect, Plainer, known_dialect, remember_dialect
from orchestration.language_model.refusals import busy, may_be_retried, refusal, words_of_refusal
from orchestration.language_model.replies import Message, ModelError, ModelProblem, Reply, TokenUsage

__all__ = ["Message", "ModelError", "ModelProblem", "Reply", "TokenUsage", "ask_model"]

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
            asking = _Asking(client, wanted, list(messages), schema, deadline=timeout.when() or 0)
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
class _Asking:
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
            if (plainer := self._plainer(dialect, answer)) is not None:
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

    def _plainer(self, dialect: Dialect, answer: _Answer) -> Plainer | None:
        words = words_of_refusal(answer.body, self.wanted)
        return dialect.after_refusal(answer.status, words, asks_for_json=self.schema is not None)

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
