"""The client of the language model, a server with the API of chat completions (C9)."""

import asyncio
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypedDict
from weakref import WeakKeyDictionary

import httpx2
from django.conf import settings
from loguru import logger
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError

from catalogue.secrets import SecretUnavailable, resolve
from connectors.background import finish_at_exit
from connectors.errors import Misconfigured, backoff_seconds, spread
from connectors.formats.json import UnreadableJSON, as_object, parse_json
from connectors.network import transport
from connectors.network.client import USER_AGENT
from connectors.network.policy import normalise_base_url
from connectors.network.redaction import Redactor, printable, shorten, words_in, words_of
from orchestration.models import Failure, StageFailed
from telemetry import metrics

SchemaFormat = Literal["json_schema", "object_schema", "json_object", "text"]
FORMATS: tuple[SchemaFormat, ...] = ("json_schema", "object_schema", "json_object", "text")
"""The strictest first. `object_schema` is for older servers of llama.cpp."""

ABOUT_FORMAT = re.compile(
    r"response_?format|json_?schema|json_?object|structured|grammar|guided", re.IGNORECASE
)
ABOUT_LIMIT = re.compile(r"max_(?:completion_)?tokens", re.IGNORECASE)
ABOUT_TEMPERATURE = re.compile(r"temperature", re.IGNORECASE)
ABOUT_LENGTH = re.compile(r"context[ _-]?(?:length|window|size)|prompt is too long", re.IGNORECASE)
"""Such messages name parameters that are not the cause."""
NOT_ABOUT_PARAMETERS = (0, 401, 403, 408, 429)


class Message(TypedDict):
    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenUsage:
    """0 if the server does not count."""

    prompt: int = 0
    completion: int = 0

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        return TokenUsage(prompt=self.prompt + other.prompt, completion=self.completion + other.completion)


NO_TOKENS = TokenUsage()


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    text: str
    model: str  # As the server names it
    usage: TokenUsage


class ModelProblem(StrEnum):
    NOT_CONFIGURED = "not configured"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    BUSY = "busy"
    REFUSED = "refused"  # The server refuses this request, or the model declines to answer
    UNUSABLE = "unusable"  # The configuration is wrong: key, quota, model name, prompt length
    CUT_OFF = "cut off"
    EMPTY = "empty"


class ModelError(Exception):
    """The message is a sentence for the caller, without the key."""

    def __init__(
        self,
        message: str,
        *,
        problem: ModelProblem,
        usage: TokenUsage = NO_TOKENS,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.problem = problem
        self.usage = usage
        self.retry_after = retry_after  # Seconds


THOUGHTS = re.compile(r"\A\s*<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)
LONGEST_WORDS = 300  # Characters of the server's message that an error quotes
MOST_TOKENS = 100_000_000  # Of one answer: the sum of a request's answers fits its column


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)


class _Said(_Lenient):
    content: str | list[Any] | None = None
    refusal: str | None = None


class _Choice(_Lenient):
    message: _Said
    finish_reason: str | None = None


def _plausible_tokens(value: Any) -> int:
    """A wrong count must not cost the answer."""
    return value if isinstance(value, int) and 0 <= value <= MOST_TOKENS else 0


Tokens = Annotated[int, BeforeValidator(_plausible_tokens)]


class _Counted(_Lenient):
    prompt_tokens: Tokens = 0
    completion_tokens: Tokens = 0


class _Completion(_Lenient):
    choices: list[_Choice] = Field(min_length=1)
    model: str | None = None
    usage: Annotated[_Counted, BeforeValidator(as_object)] = _Counted()


def read_completion(body: bytes, *, model: str, answer_tokens: int) -> Reply:
    """`model`: the name if the server gives none. Raises ModelError."""
    completion = _parse(body)
    counted, choice = completion.usage, completion.choices[0]
    usage = TokenUsage(prompt=counted.prompt_tokens, completion=counted.completion_tokens)
    content = choice.message.content or ""
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
        content = "".join(text for part in parts if isinstance(text := part.get("text"), str))
    text = THOUGHTS.sub("", content).strip()
    if failure := _failure(choice, text, answer_tokens):
        problem, sentence = failure
        raise ModelError(sentence, problem=problem, usage=usage)
    return Reply(text=text, model=completion.model or model, usage=usage)


def _parse(body: bytes) -> _Completion:
    # "from None": these errors hold what the server sent.
    try:
        value = parse_json(body)
    except UnreadableJSON:
        sentence = "The response of the model server is not JSON. Check OPENAI_BASE_URL."
        raise ModelError(sentence, problem=ModelProblem.UNREACHABLE) from None
    try:
        return _Completion.model_validate(value)
    except ValidationError:
        # Some servers report errors with a success status.
        words = shorten(words_in(value.get("error")), LONGEST_WORDS) if isinstance(value, dict) else ""
        problem, sentence = ModelProblem.REFUSED, f"The model server reports an error: {words}"
        if not words:
            problem = ModelProblem.EMPTY
            sentence = "The model server's answer has no choices. Check OPENAI_BASE_URL, or try again."
        raise ModelError(sentence, problem=problem) from None


def _failure(choice: _Choice, text: str, answer_tokens: int) -> tuple[ModelProblem, str] | None:
    if choice.message.refusal:
        words = shorten(printable(choice.message.refusal), LONGEST_WORDS)
        return ModelProblem.REFUSED, f"The model declines: {words}"
    if choice.finish_reason == "content_filter":
        return (
            ModelProblem.REFUSED,
            "The model server's content filter withheld the answer. Rephrase the request.",
        )
    if choice.finish_reason == "length":
        sentence = f"The model's answer was cut off at {answer_tokens:,} tokens. "
        return ModelProblem.CUT_OFF, sentence + "Ask for less, or raise CATALOGUE_MODEL_ANSWER_TOKENS."
    if not text:
        return ModelProblem.EMPTY, "The model's answer is empty. Try again, or rephrase the request."
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    format: SchemaFormat = "json_schema"
    temperature: bool = True
    limit: Literal["max_tokens", "max_completion_tokens", ""] = "max_tokens"
    """Newer servers refuse `max_tokens`; older ones ignore its successor silently."""

    def parameters(self, schema: dict[str, Any] | None, *, answer_tokens: int) -> dict[str, Any]:
        parameters: dict[str, Any] = {"temperature": 0} if self.temperature else {}
        if self.limit:
            parameters[self.limit] = answer_tokens
        if schema is not None and self.format != "text":
            parameters["response_format"] = self._format_of(schema)
        return parameters

    def _format_of(self, schema: dict[str, Any]) -> dict[str, Any]:
        if self.format == "json_object":
            return {"type": "json_object"}
        if self.format == "object_schema":
            return {"type": "json_object", "schema": schema}
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": False}}

    def fallback_for(self, status: int, words: str, *, asks_for_json: bool) -> "Fallback | None":
        """The next dialect to try; None if the refusal has another cause.

        If a refusal names no parameter, drops them one after another, the least important first.
        """
        if status in NOT_ABOUT_PARAMETERS or ABOUT_LENGTH.search(words):
            return None
        fallbacks = list(self._fallbacks(asks_for_json=asks_for_json))
        named = [Fallback(dialect, is_named=True) for about, dialect in fallbacks if about.search(words)]
        if not named and status in (400, 422):
            named = [Fallback(dialect, is_named=False) for _, dialect in fallbacks]
        return next(iter(named), None)

    def _fallbacks(self, *, asks_for_json: bool) -> Iterator[tuple[re.Pattern[str], "Dialect"]]:
        if self.temperature:
            yield ABOUT_TEMPERATURE, replace(self, temperature=False)
        if self.limit:
            renamed = self.limit == "max_tokens"
            yield ABOUT_LIMIT, replace(self, limit="max_completion_tokens" if renamed else "")
        if asks_for_json and self.format != "text":
            yield ABOUT_FORMAT, replace(self, format=FORMATS[FORMATS.index(self.format) + 1])


@dataclass(frozen=True, slots=True)
class Fallback:
    dialect: Dialect
    is_named: bool  # Whether the refusal names the dropped parameter; otherwise that is a guess


known_dialects: dict[tuple[str, str], Dialect] = {}  # By base URL and model
forget_dialects = known_dialects.clear


if TYPE_CHECKING:
    from openai import AsyncOpenAI


SENT_HEADERS = ("host", "accept", "content-type", "content-length")
CONNECT_SECONDS = 5.0
NO_KEY = "the transport has it"  # The SDK requires one
FIRST_WAIT, LONGEST_WAIT = 0.5, 8.0  # Seconds before a retry if the server names none; doubled each time
NOT_CONNECTED = 0  # In place of a status: no complete answer
NO_QUOTA = "insufficient_quota"  # A code with status 429 that does not pass with time
USED_UP = "The quota at the model server is used up. The owner of OPENAI_API_KEY must check it."
ABOUT_MODEL = re.compile(
    r"\b(?:invalid|unknown|no such) model\b|\bmodel\b.{0,100}\b(?:does not exist|not found)", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSettings:
    base_url: str
    api_key: SecretStr
    model: str
    seconds: float  # For one answer, including retries
    retries: int
    answer_tokens: int

    @classmethod
    def configured(cls) -> Self:
        """Raises ModelError."""
        configured = settings.CATALOGUE
        if not (model := configured.openai_model):
            raise _not_configured(
                "No model is configured. Set OPENAI_MODEL, and OPENAI_BASE_URL for a server."
            )
        try:
            key = resolve(configured.openai_api_key.get_secret_value().strip())
        except SecretUnavailable as error:
            raise _not_configured(f"OPENAI_API_KEY cannot be used: {error}") from None
        if not (key.isascii() and key.isprintable()):
            raise _not_configured(
                "OPENAI_API_KEY cannot be used: it must consist of printable ASCII characters."
            )
        try:
            base_url = normalise_base_url(configured.openai_base_url)
        except ValueError as error:
            raise _not_configured(f"OPENAI_BASE_URL cannot be used. {error}") from None
        return cls(
            base_url=base_url,
            api_key=SecretStr(key),
            model=model,
            seconds=configured.model_timeout,
            retries=configured.model_retries,
            answer_tokens=configured.model_answer_tokens,
        )

    @property
    def limits(self) -> transport.HttpLimits:
        connect = min(CONNECT_SECONDS, self.seconds)
        return transport.HttpLimits(
            connect_seconds=connect, read_seconds=self.seconds, total_seconds=self.seconds
        )


class UnusableAnswer(Exception):
    """The message is the end of a sentence about the answer."""


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[ModelSettings, "AsyncOpenAI"]] = (
    WeakKeyDictionary()
)


async def connect_to_model(wanted: ModelSettings) -> "AsyncOpenAI":
    """The running loop's client for these settings."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        # The import takes half a second, which should delay neither start-up nor other requests.
        await asyncio.to_thread(import_module, "openai.resources.chat.completions")
        # OPENAI_LOG would enable logging that the product does not configure.
        logging.getLogger("openai").setLevel(logging.WARNING)
    # Only now: another request may have connected during the import.
    known = _clients.get(loop)
    if known is not None and known[0] == wanted:
        return known[1]
    client = _make_client(wanted)
    _clients[loop] = (wanted, client)
    if known is not None:
        await known[1].close()
    return client


@finish_at_exit
async def close_model_connection() -> None:
    """Of the running loop."""
    _, client = _clients.pop(asyncio.get_running_loop(), (None, None))
    if client is not None:
        await client.close()


def _make_client(wanted: ModelSettings) -> "AsyncOpenAI":
    from openai import AsyncOpenAI

    seconds = wanted.limits.connect_seconds
    # `ask_model` limits the total time, including retries.
    timeout = httpx2.Timeout(None, connect=seconds, pool=seconds)
    return AsyncOpenAI(
        base_url=wanted.base_url,
        api_key=NO_KEY,
        max_retries=0,
        timeout=timeout,
        http_client=httpx2.AsyncClient(transport=_ModelTransport(wanted), trust_env=False, timeout=timeout),
    )


class _ModelTransport(transport.GuardedTransport):
    """Adds the key, drops the SDK's own headers, and limits the answer's size."""

    def __init__(self, wanted: ModelSettings) -> None:
        is_https = wanted.base_url.startswith("https:")
        tls = transport.tls_context(verify=True, ca_file="") if is_https else None
        super().__init__(limits=wanted.limits, tls=tls)
        self._most_bytes = wanted.limits.max_response_bytes
        self._key = wanted.api_key

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        headers = {name: request.headers[name] for name in SENT_HEADERS if name in request.headers}
        headers |= {"user-agent": USER_AGENT, "accept-encoding": "identity"}
        if key := self._key.get_secret_value():
            headers["authorization"] = f"Bearer {key}"
        sent = httpx2.Request(
            request.method, request.url, headers=headers, stream=request.stream, extensions=request.extensions
        )
        received = await super().handle_async_request(sent)
        response = httpx2.Response(
            received.status_code, headers=received.headers, stream=_BoundedBody(received, self._most_bytes)
        )
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            await response.aclose()
            raise UnusableAnswer("is compressed, although an uncompressed one was requested")
        return response


class _BoundedBody(httpx2.AsyncByteStream):
    def __init__(self, received: httpx2.Response, most_bytes: int) -> None:
        self._received = received
        self._most_bytes = most_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        length = 0
        async for chunk in self._received.aiter_raw():
            length += len(chunk)
            if length > self._most_bytes:
                raise UnusableAnswer(f"is larger than {self._most_bytes:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._received.aclose()


def _not_configured(sentence: str) -> ModelError:
    return ModelError(sentence, problem=ModelProblem.NOT_CONFIGURED)


async def ask_model(messages: Sequence[Message], *, schema: dict[str, Any] | None = None) -> Reply:
    """With retries. `schema`: of the answer's JSON, as far as the server enforces it. Raises ModelError."""
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
    status: int
    body: bytes = b""
    headers: httpx2.Headers | None = None
    failure: str = ""

    @property
    def wait(self) -> float | None:
        return None if self.headers is None else transport.retry_after(self.headers)


@dataclass(slots=True)
class _Question:
    client: Any
    wanted: ModelSettings
    messages: list[Message]
    schema: dict[str, Any] | None
    deadline: float  # By the event loop's clock

    async def until_answered(self) -> Reply:
        server = self.wanted.base_url, self.wanted.model
        dialect = known = known_dialects.get(server, Dialect())
        repeated, asked_the_same_again = 0, False
        while True:
            answer = await self._attempt(dialect)
            if 200 <= answer.status < 300:
                break
            words = words_of_refusal(answer.body, self.wanted)
            plainer = dialect.fallback_for(answer.status, words, asks_for_json=self.schema is not None)
            if plainer is not None:
                # A refusal that names no parameter may be transient: try once more before falling back.
                if plainer.is_named or asked_the_same_again:
                    dialect = plainer.dialect
                asked_the_same_again = asked_the_same_again or not plainer.is_named
                continue
            await self._wait_or_give_up(answer, repeated)
            repeated += 1
        if dialect != known:
            logger.info("The model server rejects some request parameters; it now gets {}", dialect)
            known_dialects[server] = dialect
        wanted = self.wanted
        return read_completion(answer.body, model=wanted.model, answer_tokens=wanted.answer_tokens)

    async def _attempt(self, dialect: Dialect) -> _Answer:
        from openai import APIConnectionError, APIStatusError

        parameters = dialect.parameters(self.schema, answer_tokens=self.wanted.answer_tokens)
        completions = self.client.chat.completions.with_raw_response
        # "from None": these errors hold what was sent.
        try:
            raw = await completions.create(model=self.wanted.model, messages=self.messages, **parameters)
        except APIStatusError as error:
            response = error.response
            return _Answer(response.status_code, response.content, response.headers)
        except UnusableAnswer as error:
            raise ModelError(f"The model server's answer {error}.", problem=ModelProblem.EMPTY) from None
        except Misconfigured as error:
            raise ModelError(f"OPENAI_BASE_URL: {error}", problem=ModelProblem.NOT_CONFIGURED) from None
        except APIConnectionError as error:
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            return _Answer(NOT_CONNECTED, failure=transport.failure_reason(cause, self.wanted.limits))
        return _Answer(raw.status_code, raw.content)

    async def _wait_or_give_up(self, answer: _Answer, repeated: int) -> None:
        """Raises ModelError if a retry is of no use or too late."""
        status = answer.status
        is_passing = status in (NOT_CONNECTED, 408, 409, 429) or (status >= 500 and status != 501)
        if not is_passing or NO_QUOTA.encode() in answer.body:
            raise refusal(status, answer.body, self.wanted)
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
            sentence = f"The model server cannot be reached: {answer.failure}. Check OPENAI_BASE_URL."
            return ModelError(sentence, problem=ModelProblem.UNREACHABLE)
        if answer.status == 429 or answer.wait is not None:
            wait = None if answer.wait is None else max(1, round(answer.wait))
            sentence = f"The model server is busy. Try again {'later' if wait is None else f'in {wait} s'}."
            return ModelError(sentence, problem=ModelProblem.BUSY, retry_after=wait)
        return refusal(answer.status, answer.body, self.wanted)


def words_of_refusal(body: bytes, wanted: ModelSettings) -> str:
    """Without the key."""
    words = words_of(body, Redactor([wanted.api_key.get_secret_value()]))
    return shorten(" ".join(words.split()), LONGEST_WORDS)


def refusal(status: int, body: bytes, wanted: ModelSettings) -> ModelError:
    words = words_of_refusal(body, wanted)
    has_quota = NO_QUOTA.encode() not in body
    problem, sentence = _meaning(status, words, wanted) if has_quota else (ModelProblem.UNUSABLE, USED_UP)
    quoted = f" It says: {words}" if words and status not in (401, 403) else ""
    return ModelError(sentence + quoted, problem=problem)


def _meaning(status: int, words: str, wanted: ModelSettings) -> tuple[ModelProblem, str]:
    unusable, unreachable = ModelProblem.UNUSABLE, ModelProblem.UNREACHABLE
    if 300 <= status < 400:
        return unreachable, "The model server redirects to another address. Correct OPENAI_BASE_URL."
    if status in (401, 403):
        # Without its message: OpenAI's quote parts of the key.
        return unusable, f"The model server rejects the API key ({status}). Check OPENAI_API_KEY."
    if status == 404 or (status in (400, 422) and ABOUT_MODEL.search(words)):
        return unusable, (
            f"The model server does not know the model {wanted.model}, or the address is wrong ({status}). "
            "Check OPENAI_MODEL and OPENAI_BASE_URL."
        )
    if ABOUT_LENGTH.search(words) or status == 413:
        return unusable, (
            "The prompt is longer than the model accepts. Name fewer tools, "
            "or lower CATALOGUE_MODEL_CONTEXT_TOKENS or CATALOGUE_MODEL_ANSWER_TOKENS."
        )
    if status >= 500:
        return unreachable, f"The model server fails ({status}). Try again later."
    return ModelProblem.REFUSED, f"The model server refuses the request ({status})."


MOST_AT_ONCE = 50  # Concurrent calls of one process; each holds a request and most a thread
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


def _count(outcome: str, usage: TokenUsage) -> None:
    metrics.model_requests.labels(outcome).inc()
    metrics.model_tokens.labels("prompt").inc(usage.prompt)
    metrics.model_tokens.labels("completion").inc(usage.completion)


class MeteredModel:
    """The model for one request; adds up the tokens, including those of failures."""

    def __init__(self, usage: TokenUsage = NO_TOKENS, model: str = "") -> None:
        self.usage = usage
        self.model = model  # As the server names it; empty before its answer

    async def ask(self, messages: Sequence[Message], *, schema: dict[str, Any] | None = None) -> Reply:
        """Raises StageFailed."""
        if not _places.acquire(blocking=False):
            raise StageFailed(
                f"Busy: this process already has {MOST_AT_ONCE} open requests to the model. Try again in "
                f"{BUSY_SECONDS} s.",
                failure=Failure.BUSY,
                retry_after=BUSY_SECONDS,
            )
        try:
            reply = await ask_model(messages, schema=schema)
        except ModelError as error:
            self.usage += error.usage
            _count(error.problem.value.replace(" ", "_"), error.usage)
            raise StageFailed(
                error.message, failure=FAILURES[error.problem], retry_after=error.retry_after
            ) from error
        finally:
            _places.release()
        self.usage += reply.usage
        _count("ok", reply.usage)
        self.model = reply.model
        return reply
