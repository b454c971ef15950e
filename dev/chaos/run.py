"""One run, from an empty database to the verdict."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from dev.chaos.clients import Crowd, Story
from dev.chaos.deployment import Deployment, deployed
from dev.chaos.disturbances import Disturbances
from dev.chaos.plan import Call, draw_plan
from dev.chaos.records import Records
from dev.chaos.report import Report
from dev.chaos.stacks import Restart, StackName, own_stack
from dev.chaos.verdict import Verdict, judge

PATIENCE_SECONDS = 600.0
"""How long after the last call clients insist and executions may take to settle; far more than is needed."""
MIN_REQUEST_TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    stack: StackName
    seed: int
    executions: int
    kills: int
    outage: float
    longest: float
    restart: Restart | None
    flush: bool


async def run_chaos(wanted: Wanted, folder: Path) -> Report:
    """Raises stacks.Unavailable where the stack cannot be had. Logs and data stay in the folder."""
    began = time.monotonic()
    plan = draw_plan(
        seed=wanted.seed,
        executions=wanted.executions,
        kills=wanted.kills,
        outage=wanted.outage,
        longest=wanted.longest,
    )
    # So that an engine that hangs is given up before it is killed.
    request_timeout = max(MIN_REQUEST_TIMEOUT_SECONDS, wanted.outage / 6)
    with own_stack(wanted.stack) as stack:
        async with deployed(
            stack,
            folder,
            engines=plan.engines,
            request_timeout=request_timeout,
            limits=dict.fromkeys(plan.engines, plan.limit),
        ) as deployment:
            disturbances = Disturbances(deployment, plan, restart=wanted.restart, flush=wanted.flush)
            stories = await _call_and_disturb(deployment, disturbances)
            verdict = await _look(deployment, stories, limit=plan.limit)
    return Report(
        stack=wanted.stack,
        seed=wanted.seed,
        seconds=time.monotonic() - began,
        stories=stories,
        disturbances=disturbances,
        verdict=verdict,
    )


async def _call_and_disturb(deployment: Deployment, disturbances: Disturbances) -> list[Story]:
    plan = disturbances.plan
    crowd = Crowd(deployment, patience=plan.seconds + PATIENCE_SECONDS)
    watching = asyncio.create_task(disturbances.watch())
    try:
        async with asyncio.TaskGroup() as together:
            together.create_task(disturbances.carry_out())
            living = [together.create_task(_live(crowd, call)) for call in plan.calls]
        return [life.result() for life in living]
    finally:
        watching.cancel()
        await crowd.aclose()


async def _live(crowd: Crowd, call: Call) -> Story:
    await asyncio.sleep(call.at)
    return await crowd.live_through(call)


async def _look(deployment: Deployment, stories: list[Story], *, limit: int) -> Verdict:
    records = Records(deployment)
    try:
        await deployment.wait_until_up()
        # What has not settled by then, the verdict names.
        await records.wait_until_settled(seconds=PATIENCE_SECONDS)
        return judge(stories, await records.executions(), await records.runs(), limit=limit)
    finally:
        await records.aclose()
