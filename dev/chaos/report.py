"""What a run prints: what was done, what was found, and one line with the figures."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dev.chaos.clients import Story
from dev.chaos.disturbances import Disturbances
from dev.chaos.plan import Persistence
from dev.chaos.stacks import StackName
from dev.chaos.verdict import Kind, Unconfirmed, Verdict

SHOWN = 20
"""Of a kind, so that the figures stay in sight."""


@dataclass(frozen=True, kw_only=True)
class Report:
    stack: StackName
    seed: int
    seconds: float
    stories: Sequence[Story]
    disturbances: Disturbances
    verdict: Verdict

    def lines(self) -> Iterator[str]:
        """The last one holds the figures."""
        yield from self._disturbances()
        yield from self._clients()
        yield from self._unconfirmed()
        for kind in Kind:
            yield from self._violations(kind)
        yield self._figures()

    def _disturbances(self) -> Iterator[str]:
        killed = ", ".join(f"{name} x{count}" for name, count in sorted(self.disturbances.kills.items()))
        yield f"Killed: {killed}"
        yield from (f"Meanwhile {done}." for done in self.disturbances.done)
        for name, count in sorted(self.disturbances.ended_by_themselves.items()):
            yield f"Ended by itself and was started again: {name} x{count}"

    def _clients(self) -> Iterator[str]:
        reasons = sum((story.breaks for story in self.stories), Counter[str]())
        counted = ", ".join(f"{reason} x{count}" for reason, count in reasons.most_common())
        yield f"Attempts without an answer: {counted or 'none'}"
        for persistence in Persistence:
            broken = [
                story for story in self.stories if story.breaks and story.call.persistence is persistence
            ]
            answered = sum(story.answer is not None for story in broken)
            yield f"Broken off: {len(broken)} who {_plural(persistence)}; in the end {answered} had an answer"
        yield f"Second executions of calls repeated without a key: {self.verdict.second_executions}"

    def _unconfirmed(self) -> Iterator[str]:
        for doubt in self.verdict.unconfirmed:
            yield _tell_unconfirmed(doubt)

    def _violations(self, kind: Kind) -> Iterator[str]:
        found = [violation for violation in self.verdict.violations if violation.kind is kind]
        for violation in found[:SHOWN]:
            yield f"{kind.upper()} {violation.mark}: {violation.what}"
        if len(found) > SHOWN:
            yield f"... and {len(found) - SHOWN} more {kind}."

    def _figures(self) -> str:
        states, verdict = self.verdict.states, self.verdict
        figures = {
            "seed": self.seed,
            "started": states.total(),
            **{state: states[state] for state in ("completed", "failed", "cancelled", "unconfirmed")},
            **{kind.value: verdict.count(kind) for kind in Kind},
            "kills": self.disturbances.kills.total(),
            "seconds": round(self.seconds),
        }
        return " ".join([self.stack.value, *(f"{name}={value}" for name, value in figures.items())])


def _tell_unconfirmed(doubt: Unconfirmed) -> str:
    execution = doubt.execution
    fate = "ran it" if doubt.ran else "did not run it"
    return f"Unconfirmed: {execution.id}, {execution.mark}; engine {execution.source} {fate}"


def _plural(persistence: Persistence) -> str:
    return {
        Persistence.KEY: "repeat with their key",
        Persistence.REPEAT: "repeat the same call",
        Persistence.GIVE_UP: "gave up",
    }[persistence]
