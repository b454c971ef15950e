"""The client of the language model, a server with the API of chat completions (C9)."""

import asyncio
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, TypedDict
from weakref import WeakKeyDictionary

from django.conf import settings
from loguru import logger
from pydantic import BaseModel, BeforeValidator, Field, SecretStr, ValidationError

from catalogue.secrets import SecretUnavailable, resolve
from connectors.background import finish_at_exit
from connectors.errors import ConnectorError, Misconfigured, Unreachable, backoff_seconds, spread
from connectors.formats.json import UnreadableJSON, as_object, parse_json
from connectors.network.client import NO_CREDENTIALS, Credentials, EngineClient, encode_body
from connectors.network.policy import normalise_base_url
from connectors.network.redaction import extract_error_message, printable, shorten, words_of
from connectors.network.transport import Exchange, HttpLimits, retry_after
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
NOT_ABOUT_PARAMETERS = (401, 403, 408, 429)


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
MAX_MESSAGE_LENGTH = 300  # Characters of the server's message that an error quotes
MAX_TOKENS = 100_000_000  # Of one answer: the sum of a request's answers fits its column


class _Said(BaseModel):
    content: str | list[Any] | None = None
    refusal: str | None = None


class _Choice(BaseModel):
    message: _Said
    finish_reason: str | None = None


def _plausible_tokens(value: Any) -> int:
    """A wrong count must not cost the answer."""
    return value if isinstance(value, int) and 0 <= value <= MAX_TOKENS else 0


Tokens = Annotated[int, BeforeValidator(_plausible_tokens)]


class _Counted(BaseModel):
    prompt_tokens: Tokens = 0
    completion_tokens: Tokens = 0


class _Completion(BaseModel):
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
        words = (
            shorten(extract_error_message(value.get("error")), MAX_MESSAGE_LENGTH)
            if isinstance(value, dict)
            else ""
        )
        problem, sentence = ModelProblem.REFUSED, f"The model server reports an error: {words}"
        if not words:
            problem = ModelProblem.EMPTY
            sentence = "The model server's answer has no choices. Check OPENAI_BASE_URL, or try again."
        raise ModelError(sentence, problem=problem) from None


def _failure(choice: _Choice, text: str, answer_tokens: int) -> tuple[ModelProblem, str] | None:
    if choice.message.refusal:
        words = shorten(printable(choice.message.refusal), MAX_MESSAGE_LENGTH)
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
        formats: dict[str, Any] = {
            "json_schema": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": schema, "strict": False},
            },
            "object_schema": {"type": "json_object", "schema": schema},
            "json_object": {"type": "json_object"},
        }
        if schema is not None and self.format in formats:
            parameters["response_format"] = formats[self.format]
        return parameters

    def fallback_for(self, status: int, words: str, *, asks_for_json: bool) -> tuple["Dialect | None", bool]:
        """Returns the next dialect to try, and whether the refusal names the parameter that it drops, the
        least important first, or that is a guess; None if the refusal has another cause."""
        if status in NOT_ABOUT_PARAMETERS or ABOUT_LENGTH.search(words):
            return None, False
        fallbacks: list[tuple[re.Pattern[str], Dialect]] = []
        if self.temperature:
            fallbacks.append((ABOUT_TEMPERATURE, replace(self, temperature=False)))
        if self.limit:
            renamed = self.limit == "max_tokens"
            fallbacks.append((ABOUT_LIMIT, replace(self, limit="max_completion_tokens" if renamed else "")))
        if asks_for_json and self.format != "text":
            plainer = FORMATS[FORMATS.index(self.format) + 1]
            fallbacks.append((ABOUT_FORMAT, replace(self, format=plainer)))
        named = next((dialect for about, dialect in fallbacks if about.search(words)), None)
        if named is not None or not fallbacks or status not in (400, 422):
            return named, named is not None
        return fallbacks[0][1], False


known_dialects: dict[tuple[str, str], Dialect] = {}  # By base URL and model
forget_dialects = known_dialects.clear


FIRST_WAIT, MAX_WAIT_SECONDS = 0.5, 8.0  # Seconds before a retry if the server names none; doubled each time
NO_QUOTA = b"insufficient_quota"  # A code with status 429 that does not pass with time
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


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[ModelSettings, EngineClient]] = (
    WeakKeyDictionary()
)


async def connect_to_model(wanted: ModelSettings) -> EngineClient:
    """Returns the running loop's client for these settings."""
    loop = asyncio.get_running_loop()
    known, client = _clients.get(loop, (None, None))
    if client is not None and known == wanted:
        return client
    made = EngineClient(base_url=wanted.base_url, limits=HttpLimits.within(wanted.seconds))
    _clients[loop] = (wanted, made)
    if client is not None:
        await client.aclose()
    return made


@finish_at_exit
async def close_model_connection() -> None:
    """Closes the connection of the running loop."""
    _, client = _clients.pop(asyncio.get_running_loop(), (None, None))
    if client is not None:
        await client.aclose()


def _not_configured(sentence: str) -> ModelError:
    return ModelError(sentence, problem=ModelProblem.NOT_CONFIGURED)


async def ask_model(messages: Sequence[Message], *, schema: dict[str, Any] | None = None) -> Reply:
    """Retries. `schema`: of the answer's JSON, as far as the server enforces it. Raises ModelError."""
    wanted = ModelSettings.configured()
    client = await connect_to_model(wanted)
    started = time.perf_counter()
    try:
        async with asyncio.timeout(wanted.seconds) as timeout:
            reply = await _ask(client, wanted, list(messages), schema, deadline=timeout.when() or 0)
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


async def _ask(
    client: EngineClient,
    wanted: ModelSettings,
    messages: list[Message],
    schema: dict[str, Any] | None,
    *,
    deadline: float,
) -> Reply:
    server = wanted.base_url, wanted.model
    dialect = known = known_dialects.get(server, Dialect())
    repeated, asked_the_same_again = 0, False
    while True:
        parameters = dialect.parameters(schema, answer_tokens=wanted.answer_tokens)
        answer = await _send(client, wanted, {"messages": messages, "model": wanted.model, **parameters})
        if isinstance(answer, Exchange):
            if 200 <= answer.status < 300:
                break
            words = shorten(" ".join(words_of(answer.content, client.redactor).split()), MAX_MESSAGE_LENGTH)
            asks_for_json = schema is not None
            plainer, is_named = dialect.fallback_for(answer.status, words, asks_for_json=asks_for_json)
            if plainer is not None:
                # A refusal that names no parameter may be transient: try once more before falling back.
                if is_named or asked_the_same_again:
                    dialect = plainer
                asked_the_same_again = asked_the_same_again or not is_named
                continue
            problem = _passing_problem(answer, words, wanted)
        else:
            problem = answer
        backoff = spread(backoff_seconds(repeated, first=FIRST_WAIT, longest=MAX_WAIT_SECONDS))
        seconds = backoff if problem.retry_after is None else problem.retry_after
        if repeated >= wanted.retries or seconds >= deadline - asyncio.get_running_loop().time():
            raise problem
        logger.debug("{} The model is asked again in {:.1f} s", problem, seconds)
        await asyncio.sleep(seconds)
        repeated += 1
    if dialect != known:
        logger.info("The model server rejects some request parameters; it now gets {}", dialect)
        known_dialects[server] = dialect
    return read_completion(answer.content, model=wanted.model, answer_tokens=wanted.answer_tokens)


async def _send(client: EngineClient, wanted: ModelSettings, body: dict[str, Any]) -> Exchange | ModelError:
    """A problem that may pass is returned. Raises other ModelErrors."""
    headers, content = encode_body(body, None)
    key = wanted.api_key.get_secret_value()
    credentials = Credentials(headers={"authorization": f"Bearer {key}"}) if key else NO_CREDENTIALS
    try:
        return await client.exchange(
            "POST",
            "/chat/completions",
            content=content,
            headers=headers,
            credentials=credentials,
            repeatable=True,
        )
    except Misconfigured as error:
        raise _not_configured(f"OPENAI_BASE_URL: {error}") from None
    except ConnectorError as error:
        # Callers need not know the address, which is before the reason.
        reason = error.message.partition(": ")[2]
        if isinstance(error, Unreachable):
            sentence = f"The model server cannot be reached: {reason} Check OPENAI_BASE_URL."
            return ModelError(sentence, problem=ModelProblem.UNREACHABLE)
        sentence = f"The model server's answer cannot be used: {reason}"
        raise ModelError(sentence, problem=ModelProblem.EMPTY) from None


def _passing_problem(answer: Exchange, words: str, wanted: ModelSettings) -> ModelError:
    """Raises ModelError for a refusal that does not pass."""
    status, wait, has_quota = answer.status, retry_after(answer.headers), NO_QUOTA not in answer.content
    problem, sentence = _meaning(status, words, wanted) if has_quota else (ModelProblem.UNUSABLE, USED_UP)
    quoted = f" It says: {words}" if words and status not in (401, 403) else ""
    refusal = ModelError(sentence + quoted, problem=problem)
    is_passing = status in (408, 409, 429) or (status >= 500 and status != 501)
    if not is_passing or not has_quota:
        raise refusal
    if status != 429 and wait is None:
        return refusal
    seconds = None if wait is None else max(1, round(wait))
    when = "later" if seconds is None else f"in {seconds} s"
    sentence = f"The model server is busy. Try again {when}."
    return ModelError(sentence, problem=ModelProblem.BUSY, retry_after=seconds)


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


MAX_AT_ONCE = 50  # Concurrent calls of one process; each holds a request and most a thread
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

_places = threading.BoundedSemaphore(MAX_AT_ONCE)


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
                f"Busy: this process already has {MAX_AT_ONCE} open requests to the model. Try again in "
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
