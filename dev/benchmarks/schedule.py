"""When runs are polled: the learnt schedule beside the plain one and fixed intervals, in simulated time."""

import math
import random
import statistics
from collections.abc import Callable

from dev.benchmarks._figures import table
from executions.runner.schedule import LatestRuns

RUNS = 300
LEARNING = 100
"""Of these the first, which are not measured."""
DEFAULT_SECONDS = (0.005, 0.05, 0.3, 3.0, 60.0, 1200.0)
SPREAD = 0.3
"""Of the logarithms of a workflow's durations."""
SHORTEST = 1.0
"""The engine's minimum between two polls (B2)."""
FIRST, WAITED_FOR = 0.2, 50.0
Schedule = Callable[[float], float]
"""The age of a run, in seconds, to that of the next poll; 0 is the start."""


def plain(age: float) -> float:
    """Without history: each second while a caller waits for the run, then after a tenth of its age."""
    if not age:
        return FIRST
    return age + (SHORTEST if age < WAITED_FOR else min(max(5.0, age / 10), 60.0))


def every(seconds: float) -> Schedule:
    return lambda age: age + seconds


def learnt_from(known: LatestRuns) -> Schedule:
    def schedule(age: float) -> float:
        pause = known.pause(age, shortest=SHORTEST)
        return plain(age) if pause is None else age + pause

    return schedule


def poll(duration: float, schedule: Schedule) -> tuple[float, float, int]:
    """How long the run waited for its last poll, its age at the one before, and how many there were."""
    before, age, polls = 0.0, schedule(0.0), 1
    while age < duration:
        before, age, polls = age, max(schedule(age), age + SHORTEST), polls + 1
    return age - duration, before, polls


def simulate(usual_seconds: float, *, tells_times: bool) -> list[list[str]]:
    chance, known = random.Random(7), LatestRuns()
    plans: dict[str, Schedule] = {"plain": plain} | {
        f"every {each:g} s": every(each) for each in (1, 2, 5, 10, 30)
    }
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in ("learnt", *plans)}
    for number in range(RUNS):
        duration = usual_seconds * math.exp(chance.gauss(0, SPREAD))
        waited, before, polls = poll(duration, learnt_from(known))
        known.add(*((duration, duration) if tells_times else (before, duration + waited)))
        if number < LEARNING:
            continue
        found["learnt"].append((waited, polls))
        for name, plan in plans.items():
            waited, _, polls = poll(duration, plan)
            found[name].append((waited, polls))
    return [
        [
            f"{usual_seconds:g} s" if name == "learnt" else "",
            name,
            f"{statistics.median(waited for waited, _ in each):.3f} s",
            f"{statistics.median(waited for waited, _ in each) / usual_seconds:.0%}",
            f"{statistics.mean(polls for _, polls in each):.1f}",
        ]
        for name, each in found.items()
    ]


def main() -> None:
    header = ["runs take", "polled", "median wait", "of the run", "polls"]
    for tells_times in (True, False):
        print(f"  The engine says {'when' if tells_times else 'only that'} a run ended.")
        rows = [row for seconds in DEFAULT_SECONDS for row in simulate(seconds, tells_times=tells_times)]
        table(header, *rows)


if __name__ == "__main__":
    main()
