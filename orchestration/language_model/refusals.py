"""What it means when the model server says no."""

from connectors.redaction import Redactor, shorten, words_of
from orchestration.language_model.connection import ModelSettings
from orchestration.language_model.dialect import ABOUT_LENGTH
from orchestration.language_model.replies import ModelError, ModelProblem

WORDS_LIMIT = 300
"""Characters of the server's own words that an error quotes."""
NO_QUOTA = "insufficient_quota"
"""A code that comes as 429 but does not pass with time."""


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
    problem, sentence = _meaning(status, words, wanted)
    quoted = f" It says: {words}" if words and status not in (401, 403) else ""
    return ModelError(sentence + quoted, problem=problem)


def busy(seconds: float | None) -> ModelError:
    when = "later" if seconds is None else f"in {max(1, round(seconds))} s"
    return ModelError(f"The model server is busy. Try again {when}.", problem=ModelProblem.BUSY)


def _meaning(status: int, words: str, wanted: ModelSettings) -> tuple[ModelProblem, str]:
    refused, unreachable = ModelProblem.REFUSED, ModelProblem.UNREACHABLE
    if 300 <= status < 400:
        return unreachable, "The model server redirects to elsewhere. Correct OPENAI_BASE_URL."
    if status in (401, 403):
        # Its words are left out: OpenAI's quote parts of the key.
        return refused, f"The model server refuses our key ({status}). Check OPENAI_API_KEY."
    if status == 404:
        return refused, (
            f"The model server does not know the model {wanted.model}, or the address is wrong (404). "
            "Check OPENAI_MODEL and OPENAI_BASE_URL."
        )
    if ABOUT_LENGTH.search(words) or status == 413:
        return refused, (
            "The prompt is longer than the model takes. Name fewer tools, "
            "or lower CATALOGUE_MODEL_CONTEXT_TOKENS or CATALOGUE_MODEL_ANSWER_TOKENS."
        )
    if status >= 500:
        return unreachable, f"The model server fails ({status}). Try again later."
    return refused, f"The model server refuses the request ({status})."
