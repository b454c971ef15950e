"""What came of the attempts, for people and as JSON."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dev.evaluation.attempts import Attempt
from orchestration.models import Failure


def line_of(attempt: Attempt) -> str:
    """One line of the running report; a second one says what would have been right."""
    mark = "ok   " if attempt.right else "WRONG"
    told = f"{mark} {attempt.instruction.id:<22} {attempt.seconds:6.1f} s  {_chosen(attempt)}"
    return told if attempt.right else f"{told}\n{'':39}expected: {_expected(attempt)}"


def summary(attempts: Sequence[Attempt]) -> Iterator[str]:
    """Its lines."""
    totals = Totals.of(attempts)
    yield _line(
        "right", _share(totals.right, totals.attempts), "the call that was asked for, or rightly none"
    )
    yield _line("  tool", _share(totals.right_tool, totals.attempts))
    needed = "of the instructions for which a tool is to be called"
    yield _line("  arguments", _share(totals.right_arguments, totals.with_arguments), needed)
    for about in dict.fromkeys(attempt.instruction.about for attempt in attempts):
        group = [attempt.right for attempt in attempts if attempt.instruction.about == about]
        yield _line(f"  {about}", _share(sum(group), len(group)))
    yield _line("no tool fits", f"{totals.no_tool_fits:>4}")
    yield _line("refused by the guard", f"{totals.refused_by_guard:>4}", "nothing would have been sent")
    yield _line("no usable answer", f"{totals.no_usable_answer:>4}", "nothing would have been sent")
    yield _line("not answered", f"{totals.not_answered:>4}", "the model was away, busy or too slow")
    yield _line(
        "unasked calls", f"{totals.unasked:>4}", "valid calls of one of the tools, but others than asked for"
    )
    yield _line("repair rounds", f"{totals.repair_rounds:>4}")
    yield _line("tokens in", f"{totals.prompt_tokens:>9,}", _each(totals.prompt_tokens, totals.attempts))
    yield _line(
        "tokens out", f"{totals.completion_tokens:>9,}", _each(totals.completion_tokens, totals.attempts)
    )
    yield _line("latency", f"p50 {totals.p50:.2f} s, p95 {totals.p95:.2f} s")


def as_json(attempts: Sequence[Attempt], *, model: str) -> dict[str, Any]:
    return {
        "model": model,
        "totals": asdict(Totals.of(attempts)),
        "attempts": [_written(attempt) for attempt in attempts],
    }


def _written(attempt: Attempt) -> dict[str, Any]:
    instruction = attempt.instruction
    return {
        "id": instruction.id,
        "about": instruction.about,
        "say": instruction.say,
        "expected": {
            "tool": instruction.tool,
            "any_of": instruction.right_answers if instruction.tool else [],
        },
        "tool": attempt.tool,
        "arguments": attempt.arguments,
        "right": attempt.right,
        "right_tool": attempt.right_tool,
        "right_arguments": attempt.right_arguments,
        "failure": attempt.failure,
        "message": attempt.message,
        "questions": attempt.questions,
        "prompt_tokens": attempt.prompt_tokens,
        "completion_tokens": attempt.completion_tokens,
        "seconds": round(attempt.seconds, 3),
    }


def _chosen(attempt: Attempt) -> str:
    if attempt.failure is None:
        return f"{attempt.tool} {attempt.arguments}"
    return (
        f"{attempt.failure.label}: {attempt.tool or 'none'}" if attempt.tool else str(attempt.failure.label)
    )


def _expected(attempt: Attempt) -> str:
    instruction = attempt.instruction
    return f"{instruction.tool} {instruction.arguments}" if instruction.tool else "no tool"


def _line(label: str, value: str, note: str = "") -> str:
    return f"{label:<22}{value:<20}{note}".rstrip()


def _each(tokens: int, attempts: int) -> str:
    return f"{tokens // attempts:,} for each attempt"


def _share(some: int, all_: int) -> str:
    percent = f"{100 * some / all_:.0f} %" if all_ else "-"
    return f"{some:>4} of {all_:<4} {percent:>5}"


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
