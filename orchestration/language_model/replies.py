"""What is said to a model and by it, and what can go wrong with that."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypedDict


class Message(TypedDict):
    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenUsage:
    """As the server counts; 0 where it does not."""

    prompt: int = 0
    completion: int = 0

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        return TokenUsage(prompt=self.prompt + other.prompt, completion=self.completion + other.completion)


NO_TOKENS = TokenUsage()


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What the model said."""

    text: str
    model: str
    """The name that the server gives it."""
    usage: TokenUsage


class ModelProblem(StrEnum):
    NOT_CONFIGURED = "not configured"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    BUSY = "busy"
    REFUSED = "refused"
    """The server refuses this request, or the model declines to answer."""
    UNUSABLE = "unusable"
    """The server refuses us as we are set up: key, quota, the model's name, the prompts' length."""
    CUT_OFF = "cut off"
    EMPTY = "empty"


class ModelError(Exception):
    """No usable answer; the message is a sentence for whoever asked, and shows no key."""

    def __init__(self, message: str, *, problem: ModelProblem, usage: TokenUsage = NO_TOKENS) -> None:
        super().__init__(message)
        self.message = message
        self.problem = problem
        self.usage = usage
        """Spent all the same."""
