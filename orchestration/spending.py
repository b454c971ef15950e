"""What one request asks of the model, and what that costs."""

import threading
from collections.abc import Sequence
from typing import Any

from orchestration.language_model.client import (
    Message,
    ModelError,
    ModelProblem,
    Reply,
    TokenUsage,
    ask_model,
)
from orchestration.stages import Failure, StageFailed

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


class Spending:
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
