"""What was lost, repeated or reported wrongly: the product's record against those of engines and callers."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from dev.chaos.clients import Story
from dev.chaos.plan import ASKED, KEYED, PLAIN, Call, Persistence
from dev.chaos.records import ACTIVE, Execution, Run

NOT_STARTED = "The start did not happen"
ENDED_AS = {"completed": "COMPLETED", "failed": "FAILED", "cancelled": "CANCELLED"}


class Kind(StrEnum):
    LOST = "lost"
    DOUBLED = "doubled"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Violation:
    kind: Kind
    mark: str
    what: str


@dataclass(frozen=True, kw_only=True)
class Unconfirmed:
    """An execution of which the product says that it does not know whether the engine runs it."""

    execution: Execution
    ran: bool


@dataclass(frozen=True, kw_only=True)
class Verdict:
    violations: list[Violation]
    unconfirmed: list[Unconfirmed]
    second_executions: int
    """Of repeated calls without a key, which cannot be distinguished from intended ones."""
    states: Counter[str]

    def count(self, kind: Kind) -> int:
        return sum(violation.kind is kind for violation in self.violations)


def judge(
    stories: Iterable[Story], executions: Iterable[Execution], runs: Iterable[Run], *, limit: int
) -> Verdict:
    """`limit`: how many runs of one source there may be at a time."""
    case = _Case(list(stories), list(executions), list(runs))
    checks = (case.check_executions, case.check_runs, case.check_calls, case.check_answers)
    violations = [violation for check in checks for violation in check()]
    return Verdict(
        violations=violations + list(case.check_limit(limit)),
        unconfirmed=case.list_unconfirmed(),
        second_executions=case.count_second_executions(),
        states=Counter(execution.state for execution in case.executions),
    )


class _Case:
    def __init__(self, stories: list[Story], executions: list[Execution], runs: list[Run]) -> None:
        self.stories, self.executions, self.runs = stories, executions, runs
        self._by_id = {execution.id: execution for execution in executions}
        self._by_mark: dict[str, list[Execution]] = defaultdict(list)
        for execution in executions:
            self._by_mark[execution.mark].append(execution)
        self._run_by_id = {(run.source, run.run_id): run for run in runs}
        named = {(execution.source, execution.run_id) for execution in executions}
        self._unnamed_runs: dict[str, Run] = {}
        self._stray: list[Run] = []
        self._attribute([run for run in runs if (run.source, run.run_id) not in named])

    def check_executions(self) -> Iterator[Violation]:
        """Each has ended as its run did, and no two of them share a run."""
        for execution in self.executions:
            yield from self._check_execution(execution)
        named = Counter(
            (execution.source, execution.run_id) for execution in self.executions if execution.run_id
        )
        for (source, run_id), count in named.items():
            if count > 1:
                mark = self._run_by_id[source, run_id].mark if (source, run_id) in self._run_by_id else ""
                yield Violation(Kind.WRONG, mark, f"{count} executions name run {run_id} of {source}")

    def _check_execution(self, execution: Execution) -> Iterator[Violation]:
        run = self._run_by_id.get((execution.source, execution.run_id))
        if lost := _why_lost(execution, run):
            yield _violation_of(execution, Kind.LOST, lost)
        elif wrong := _find_difference(execution, run):
            yield _violation_of(execution, Kind.WRONG, wrong)

    def check_runs(self) -> Iterator[Violation]:
        """Each run is that of one execution, or may be that of an unconfirmed one."""
        yield from self._check_keys()
        for run in self._stray:
            known = self._by_mark[run.mark]
            kind = Kind.DOUBLED if any(execution.run_id for execution in known) else Kind.LOST
            stories = "\n".join(f"{execution.id} {execution.state}\n{execution.story}" for execution in known)
            what = f"no execution knows run {run.run_id} of {run.source} ({run.status}, key {run.key or '-'})"
            yield Violation(kind, run.mark, f"{what}\n{stories}")

    def _check_keys(self) -> Iterator[Violation]:
        keys = Counter(run.key for run in self.runs if run.key)
        for key, count in keys.items():
            if count > 1:
                mark = self._by_id[key].mark if key in self._by_id else ""
                yield Violation(Kind.DOUBLED, mark, f"the engine has {count} runs for execution {key}")

    def check_calls(self) -> Iterator[Violation]:
        """As many executions as the call allows: one for a key, at most one for each attempt without."""
        planned = {story.call.mark: story for story in self.stories}
        for mark in self._by_mark.keys() - planned.keys():
            yield Violation(Kind.WRONG, mark, "an execution without a call")
        for mark, story in planned.items():
            count, allowed = len(self._by_mark[mark]), _most_executions(story)
            if count > allowed:
                ids = ", ".join(execution.id for execution in self._by_mark[mark])
                words = f"{count} executions, {allowed} allowed: {ids} ({_tell(story.call)})"
                yield Violation(Kind.DOUBLED, mark, words)
            if story.answer is not None and not count:
                yield Violation(Kind.LOST, mark, f"answered, but there is no execution ({_tell(story.call)})")

    def check_answers(self) -> Iterator[Violation]:
        """Answers to clients are on record."""
        for story in self.stories:
            for refusal in story.refusals:
                yield Violation(Kind.WRONG, story.call.mark, f"refused ({_tell(story.call)}): {refusal}")
            if story.answer is not None:
                yield from self._check_answer(story)
            elif not story.gave_up and not story.refusals:
                tried = ", ".join(f"{reason} x{count}" for reason, count in story.breaks.items())
                yield Violation(Kind.LOST, story.call.mark, f"never answered ({_tell(story.call)}): {tried}")

    def _check_answer(self, story: Story) -> Iterator[Violation]:
        mark, answer = story.call.mark, story.answer
        assert answer is not None, "only stories with an answer are checked for it"
        execution = self._by_id.get(answer.execution_id)
        if answer.execution_id and (execution is None or execution.mark != mark):
            yield Violation(
                Kind.LOST, mark, f"execution {answer.execution_id} was acknowledged, and is not there"
            )
        if answer.completed and answer.output not in [
            known.output for known in self._by_mark[mark] if known.state == "completed"
        ]:
            yield Violation(Kind.WRONG, mark, "the result that was returned is not on record")
        if story.cancelled and (execution is None or execution.state != "cancelled"):
            yield Violation(Kind.WRONG, mark, f"execution {answer.execution_id} was said to be cancelled")

    def check_limit(self, limit: int) -> Iterator[Violation]:
        """Only of runs whose state is certain; a run that ended in the same ms made room."""
        doubtful = {run.run_id for run in self._unnamed_runs.values()}
        runs = [run for run in self.runs if run.source == KEYED and run.run_id not in doubtful]
        moments = sorted([(run.started_at, 1) for run in runs] + [(run.ended_at, -1) for run in runs])
        most = max(accumulate(change for _, change in moments), default=0)
        if most > limit:
            yield Violation(Kind.WRONG, "", f"engine {KEYED} had {most} runs at a time, {limit} are allowed")

    def list_unconfirmed(self) -> list[Unconfirmed]:
        return [
            Unconfirmed(execution=execution, ran=execution.id in self._unnamed_runs)
            for execution in self.executions
            if execution.state == "unconfirmed"
        ]

    def count_second_executions(self) -> int:
        """Of calls without a key that were repeated."""
        return sum(len(executions) - 1 for executions in self._by_mark.values())

    def _attribute(self, unnamed: list[Run]) -> None:
        """Each run that no execution names may be that of an unconfirmed one of the same call."""
        waiting = defaultdict(list)
        for execution in self.executions:
            if execution.state == "unconfirmed" and not execution.run_id:
                waiting[execution.source, execution.mark].append(execution)
        for run in unnamed:
            if candidates := waiting[run.source, run.mark]:
                self._unnamed_runs[candidates.pop().id] = run
            else:
                self._stray.append(run)


def _violation_of(execution: Execution, kind: Kind, what: str) -> Violation:
    return Violation(kind, execution.mark, f"execution {execution.id} {what}\n{execution.story}")


def _why_lost(execution: Execution, run: Run | None) -> str:
    """Empty where it is not."""
    if execution.state in ACTIVE:
        return f"never settled: {execution.state}"
    if execution.run_id and run is None:
        return f"names run {execution.run_id}, which the engine does not have"
    if execution.source == ASKED and execution.state == "failed" and NOT_STARTED in execution.error:
        return ""  # Where there is such a run all the same, it is one that no execution knows.
    if run is None and execution.state not in ("cancelled", "unconfirmed"):
        return f"is {execution.state} without a run: {execution.error}"
    return ""


def _find_difference(execution: Execution, run: Run | None) -> str:
    """Between what is on record and what happened; empty where there is none."""
    if execution.state == "unconfirmed":
        # A cancelled start is not sent again, even where that would tell.
        is_dropped = execution.source == KEYED and execution.cancel_requested
        ambiguous = execution.source == PLAIN or is_dropped
        return "" if ambiguous else "is unconfirmed, though its engine could have been asked again"
    if run is None:
        return ""
    if run.mark != execution.mark:
        return f"names a run that was started with other arguments ({run.mark})"
    if run.status != ENDED_AS.get(execution.state):
        return f"is {execution.state}, but its run is {run.status}: {execution.error}"
    if execution.state == "completed" and execution.output != run.output:
        return "has another output than its run"
    if execution.state == "failed" and execution.error != run.error:
        return f"failed with {execution.error!r}, but the engine says {run.error!r}"
    return ""


def _most_executions(story: Story) -> int:
    if story.call.persistence is Persistence.KEY:
        return 1
    return max(1, story.attempts)


def _tell(call: Call) -> str:
    return f"{call.workflow} at {call.source}, {call.door}, {call.persistence}"
