"""What it means when the model server says no."""

import re

from connectors.network.redaction import Redactor, shorten, words_of
from orchestration.language_model.connection import ModelSettings
from orchestration.language_model.dialect import ABOUT_LENGTH
from orchestration.language_model.replies import ModelError, ModelProblem

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
