"""Takes as long as its input says."""

import asyncio
import math
from functools import partial

from examples.engine.clock import iso_timestamp, now_ms
from examples.engine.progress import Progress, Report
from examples.engine.runs import JsonObject
from examples.engine.workflows.definition import ExecutionType, Workflow, WorkflowError
from examples.engine.workflows.schema import boolean, number, record, text

MAX_SECONDS = 86_400


async def count_down(given: JsonObject, progress: Progress) -> JsonObject:
    seconds: float = given["seconds"]
    ends_at = progress.started_at + round(seconds * 1000)
    progress.derive_from(partial(read_clock, progress.started_at, seconds))
    # The loop's clock is not the one that reports progress: it may wake up a moment before the time.
    while (left := ends_at - now_ms()) > 0:  # noqa: ASYNC110 - time is all there is to wait for
        await asyncio.sleep(left / 1000)
    if given.get("fail", False):
        raise WorkflowError(
            given.get("message") or f"The countdown of {seconds:g} s ended in the failure asked for."
        )
    times = {"started_at": iso_timestamp(progress.started_at), "finished_at": iso_timestamp(now_ms())}
    note = {"message": given["message"]} if "message" in given else {}
    return {"seconds": seconds, **times, **note}


def read_clock(started_at: int, seconds: float) -> Report:
    """Progress in whole seconds, from the clock alone, so that thousands of countdowns cost nothing."""
    elapsed = (now_ms() - started_at) / 1000
    passed = seconds if elapsed >= seconds else math.floor(max(elapsed, 0))
    percent = 100 * passed / seconds if seconds else 100
    return Report(round(percent, 1), f"{passed:g} of {seconds:g} s", started_at + round(passed * 1000))


WORKFLOW = Workflow(
    id="1003",
    name="countdown",
    description=(
        "Waits for a number of seconds, reporting progress each second, then succeeds, or fails if told to. "
        "Use it to delay something or to try out how long runs, their progress, their cancellation and their "
        "failure are shown. It keeps its time across a restart of the engine. Returns when it started and "
        "finished."
    ),
    category="Testing",
    execution_type=ExecutionType.ASYNC,
    tags=("timer", "delay", "progress"),
    input_schema=record(
        "How long to wait, and what then.",
        {
            "seconds": number(
                "How long to wait, fractions allowed.", minimum=0, maximum=MAX_SECONDS, examples=[5]
            ),
            "fail": boolean("Whether the run fails once the time is up.", default=False),
            "message": text("A note to return with the result, or the error if the run is to fail."),
        },
        optional=["fail", "message"],
    ),
    output_schema=record(
        "When the countdown ran.",
        {
            "seconds": number("How long it was to wait."),
            "started_at": text("When it started.", format="date-time"),
            "finished_at": text("When it finished.", format="date-time"),
            "message": text("The note from the input."),
        },
        optional=["message"],
    ),
    example={"seconds": 3, "message": "Tea is ready"},
    execute=count_down,
)
