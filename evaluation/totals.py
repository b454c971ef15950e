"""What all attempts come to."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from evaluation.marking import Attempt
from orchestration.stages import Failure


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """Counts of attempts; times in seconds."""

    attempts: int
    right: int
    right_tool: int
    with_arguments: int
    """Attempts at instructions for which a tool has to be called."""
    right_arguments: int
    """Of these."""
    no_tool_fits: int
    refused_by_guard: int
    no_usable_answer: int
    not_answered: int
    """The model was away, busy or too slow."""
    unasked: int
    """Requests that would have been sent and that nobody asked for."""
    repair_rounds: int
    prompt_tokens: int
    completion_tokens: int
    p50: float
    p95: float

    @classmethod
    def of(cls, attempts: Sequence[Attempt]) -> "Totals":
        seconds = sorted(attempt.seconds for attempt in attempts)
        failures = [attempt.failure for attempt in attempts]
        return cls(
            attempts=len(attempts),
            right=sum(attempt.right for attempt in attempts),
            right_tool=sum(attempt.right_tool for attempt in attempts),
            with_arguments=sum(attempt.instruction.tool is not None for attempt in attempts),
            right_arguments=sum(attempt.right_arguments for attempt in attempts),
            no_tool_fits=failures.count(Failure.NO_TOOL_FITS),
            refused_by_guard=failures.count(Failure.PROPOSAL_REFUSED),
            no_usable_answer=failures.count(Failure.MODEL_ANSWER),
            not_answered=failures.count(Failure.MODEL_UNAVAILABLE) + failures.count(Failure.MODEL_TIMEOUT),
            unasked=sum(attempt.unasked for attempt in attempts),
            repair_rounds=sum(max(0, attempt.questions - 1) for attempt in attempts),
            prompt_tokens=sum(attempt.prompt_tokens for attempt in attempts),
            completion_tokens=sum(attempt.completion_tokens for attempt in attempts),
            p50=statistics.median(seconds),
            p95=seconds[round(0.95 * (len(seconds) - 1))],
        )
