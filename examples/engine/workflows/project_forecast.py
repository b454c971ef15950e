"""Simulates how long a project may take."""

import math
import random
import statistics
from array import array as number_array
from bisect import bisect_right

from examples.engine.progress import Progress
from examples.engine.runs import JsonObject
from examples.engine.workflows.definition import ExecutionType, Workflow, WorkflowError
from examples.engine.workflows.schema import array, integer, number, record, text

DRAWS_PER_REPORT = 20_000
PERCENTILES = (10, 50, 80, 90, 95)
BARS = 20

Estimate = tuple[float, float, float]


def forecast(given: JsonObject, progress: Progress) -> JsonObject:
    trials, seed = given.get("trials", 100_000), given.get("seed", 1)
    estimates = [read_estimate(task) for task in given["tasks"]]
    totals = simulate(estimates, trials, random.Random(seed), progress)  # noqa: S311 - no secret
    return {
        "trials": trials,
        "seed": seed,
        "mean": round(statistics.fmean(totals), 4),
        "standard_deviation": round(statistics.pstdev(totals), 4),
        "percentiles": {f"p{percent}": round(percentile(totals, percent), 4) for percent in PERCENTILES},
        "chance_to_meet_deadline": chance(totals, given.get("deadline")),
        "histogram": histogram(totals),
    }


def read_estimate(task: JsonObject) -> Estimate:
    low, likely, high = task["optimistic"], task["likely"], task["pessimistic"]
    if not low <= likely <= high:
        raise WorkflowError(
            f"Task {task['name']!r} must have optimistic ≤ likely ≤ pessimistic, not {low}, {likely}, {high}."
        )
    return low, likely, high


def simulate(
    estimates: list[Estimate], trials: int, generator: random.Random, progress: Progress
) -> list[float]:
    """The totals of all trials, in ascending order."""
    totals = number_array("d")
    batch = max(1, DRAWS_PER_REPORT // len(estimates))
    while len(totals) < trials:
        progress.report(100 * len(totals) / trials, f"{len(totals)} of {trials} trials")
        for _ in range(min(batch, trials - len(totals))):
            totals.append(sum(generator.triangular(low, high, likely) for low, likely, high in estimates))
    return sorted(totals)


def percentile(ascending: list[float], percent: int) -> float:
    """The smallest total that at least this share of the trials does not exceed."""
    return ascending[math.ceil(len(ascending) * percent / 100) - 1]


def chance(ascending: list[float], deadline: float | None) -> float | None:
    return None if deadline is None else round(bisect_right(ascending, deadline) / len(ascending), 4)


def histogram(ascending: list[float]) -> list[JsonObject]:
    lowest, highest = ascending[0], ascending[-1]
    edges = [lowest + (highest - lowest) * bar / BARS for bar in range(BARS)] + [highest]
    below = [0] + [bisect_right(ascending, edge) for edge in edges[1:]]
    return [
        {"from": round(edges[bar], 4), "to": round(edges[bar + 1], 4), "count": below[bar + 1] - below[bar]}
        for bar in range(BARS)
    ]


def effort(description: str) -> JsonObject:
    return number(description, minimum=0, maximum=1_000_000)


WORKFLOW = Workflow(
    id="1007",
    name="project_forecast",
    description=(
        "Forecasts how long a project of tasks done one after the other takes, by simulating it many times "
        "(Monte Carlo) with a three-point estimate per task. Use it to give a date with a "
        "probability rather than a single guess. Any unit of time will do as long as it is the same "
        "throughout. Returns the mean, the spread, percentiles (the project takes at most p80 in 80 % of the "
        "trials), the chance to meet a deadline and a histogram. A million trials take some seconds."
    ),
    category="Planning",
    execution_type=ExecutionType.ASYNC,
    tags=("simulation", "planning", "statistics"),
    input_schema=record(
        "The tasks and how to simulate them.",
        {
            "tasks": array(
                "The tasks of the project.",
                record(
                    "A task and its three-point estimate.",
                    {
                        "name": text("What the task is called.", minLength=1),
                        "optimistic": effort("How long it takes if all goes well."),
                        "likely": effort("How long it most likely takes."),
                        "pessimistic": effort("How long it takes if much goes wrong."),
                    },
                ),
                minItems=1,
                maxItems=200,
            ),
            "deadline": effort("The time available, to get the chance that it suffices."),
            "trials": integer("How often to simulate.", minimum=1, maximum=2_000_000, default=100_000),
            "seed": integer("The same seed gives the same result.", minimum=0, maximum=2**53, default=1),
        },
        optional=["deadline", "trials", "seed"],
    ),
    output_schema=record(
        "The forecast, in the unit of the estimates.",
        {
            "trials": integer("How often the project was simulated."),
            "seed": integer("The seed that was used."),
            "mean": number("Mean duration."),
            "standard_deviation": number("Standard deviation of the duration."),
            "percentiles": record(
                "Durations that a share of the trials does not exceed.",
                {
                    f"p{percent}": number(f"{percent} % of the trials take no longer.")
                    for percent in PERCENTILES
                },
            ),
            "chance_to_meet_deadline": {
                "type": ["number", "null"],
                "description": "Share of the trials within the deadline, 0 to 1; null without a deadline.",
            },
            "histogram": array(
                f"The durations in {BARS} bars of equal width.",
                record(
                    "A bar.",
                    {
                        "from": number("Lower edge, excluded save in the first bar."),
                        "to": number("Upper edge, included."),
                        "count": integer("How many trials fall in it."),
                    },
                ),
            ),
        },
    ),
    example={
        "tasks": [
            {"name": "Design", "optimistic": 3, "likely": 5, "pessimistic": 12},
            {"name": "Build", "optimistic": 8, "likely": 10, "pessimistic": 25},
        ],
        "deadline": 20,
        "trials": 20_000,
    },
    execute=forecast,
)
