"""The stages of a workflow request, in their order (C7.7), and how it can fail there."""

import uuid
from datetime import datetime
from typing import Any

from django.db import models


class Stage(models.TextChoices):
    TOOL_RETRIEVAL = "tool_retrieval", "finding the tools"
    LLM_SELECTION = "llm_selection", "choosing tool and arguments"
    API_EXECUTION = "api_execution", "running the tool"
    RESPONSE_FORMATTING = "response_formatting", "putting the answer into words"


class StageState(models.TextChoices):
    RUNNING = "running", "going on"
    DONE = "done", "done"
    FAILED = "failed", "failed"
    SKIPPED = "skipped", "left out"


def started_stage(stage: Stage, at: datetime) -> dict[str, Any]:
    """A running stage, as the record of a request stores it."""
    entry = {"stage": stage.value, "state": StageState.RUNNING.value, "started_at": at.isoformat()}
    return {**entry, "seconds": None, "message": ""}


class Failure(models.TextChoices):
    """Why a request failed."""

    UNKNOWN_TOOLS = "unknown_tools", "unknown tools"
    NO_TOOL_FITS = "no_tool_fits", "no tool fits"
    PROPOSAL_REFUSED = "proposal_refused", "the proposal was refused"
    MODEL_ANSWER = "model_answer", "the model gave no usable answer"
    MODEL_UNAVAILABLE = "model_unavailable", "the model cannot be asked"
    MODEL_TIMEOUT = "model_timeout", "the model took too long"
    BUSY = "busy", "too much is going on"
    RUN_FAILED = "run_failed", "the run failed"
    RUN_TIMED_OUT = "run_timed_out", "the run took too long"
    UNCONFIRMED = "unconfirmed", "it is not known whether it ran"
    INTERRUPTED = "interrupted", "interrupted"
    INTERNAL = "internal", "an error of ours"


class StageFailed(Exception):
    """A stage failed; the message is a sentence for the caller."""

    def __init__(
        self,
        message: str,
        *,
        failure: Failure,
        invalid_tool_ids: list[str] | None = None,
        retry_after: int | None = None,
        execution_id: uuid.UUID | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.failure = failure
        self.invalid_tool_ids = invalid_tool_ids or []
        self.retry_after = retry_after
        """Seconds."""
        self.execution_id = execution_id
        """Where there is a run."""

    def preceded_by(self, sentence: str) -> "StageFailed":
        """The same failure, with a sentence about what preceded it."""
        return StageFailed(
            f"{self.message} {sentence}",
            failure=self.failure,
            invalid_tool_ids=self.invalid_tool_ids,
            retry_after=self.retry_after,
            execution_id=self.execution_id,
        )
