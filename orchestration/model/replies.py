"""Messages to the model, its replies and its errors."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from connectors.formats.json import UnreadableJSON, parse_json
from connectors.network.redaction import printable, shorten, words_in


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

    def __init__(self, message: str, *, problem: ModelProblem, usage: TokenUsage = NO_TOKENS) -> None:
        super().__init__(message)
        self.message = message
        self.problem = problem
        self.usage = usage


THOUGHTS = re.compile(r"\A\s*<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)
LONGEST_WORDS = 300


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)


class _Said(_Lenient):
    content: str | list[Any] | None = None
    refusal: str | None = None


class _Choice(_Lenient):
    message: _Said
    finish_reason: str | None = None


class _Counted(_Lenient):
    prompt_tokens: int = Field(default=0, ge=0)
    completion_tokens: int = Field(default=0, ge=0)


class _Completion(_Lenient):
    choices: list[_Choice] = Field(min_length=1)
    model: str | None = None
    usage: _Counted | None = None


def read_completion(body: bytes, *, model: str, answer_tokens: int) -> Reply:
    """`model`: the name if the server gives none. Raises ModelError."""
    completion = _parse(body)
    counted, choice = completion.usage or _Counted(), completion.choices[0]
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
        sentence = "What answers is no model server: it sends no JSON. Check OPENAI_BASE_URL."
        raise ModelError(sentence, problem=ModelProblem.UNREACHABLE) from None
    try:
        return _Completion.model_validate(value)
    except ValidationError:
        raise _no_completion(value) from None


def _no_completion(value: Any) -> ModelError:
    """Some servers report errors with a success status."""
    words = shorten(words_in(value.get("error")), LONGEST_WORDS) if isinstance(value, dict) else ""
    if words:
        return ModelError(f"The model server reports an error: {words}", problem=ModelProblem.REFUSED)
    sentence = "The model server's answer has no choices. Check OPENAI_BASE_URL, or ask once more."
    return ModelError(sentence, problem=ModelProblem.EMPTY)


def _failure(choice: _Choice, text: str, answer_tokens: int) -> tuple[ModelProblem, str] | None:
    if choice.message.refusal:
        words = shorten(printable(choice.message.refusal), LONGEST_WORDS)
        return ModelProblem.REFUSED, f"The model declines: {words}"
    if choice.finish_reason == "content_filter":
        return (
            ModelProblem.REFUSED,
            "The model server's content filter withheld the answer. Ask in other words.",
        )
    if choice.finish_reason == "length":
        sentence = f"The model's answer was cut off at {answer_tokens:,} tokens. "
        return ModelProblem.CUT_OFF, sentence + "Ask for less, or raise CATALOGUE_MODEL_ANSWER_TOKENS."
    if not text:
        return ModelProblem.EMPTY, "The model's answer is empty. Ask once more, or in other words."
    return None
