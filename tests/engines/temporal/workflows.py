"""What the worker of the tests can run; its sandbox would load product code anew for each workflow."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

SHORT = timedelta(seconds=30)
ONCE = RetryPolicy(maximum_attempts=1)


@activity.defn
async def brew(kind: str) -> str:
    """Fails in a way that has a cause, a type and details."""
    try:
        raise ValueError(f"No {kind} tea is left.")
    except ValueError as error:
        raise ApplicationError(
            "The kettle cannot help.", {"tea": kind, "cups": 0}, type="OutOfTea", non_retryable=True
        ) from error


@activity.defn
async def heartbeat(steps: list[Any]) -> str:
    """Sends each step as the details of a heartbeat, and goes on sending the last one."""
    for step in steps:
        activity.heartbeat(step)
        await asyncio.sleep(0.05)
    while True:
        activity.heartbeat(steps[-1])
        await asyncio.sleep(0.2)


@activity.defn
async def fail_often(words: str) -> None:
    raise ApplicationError(words, type="StillBroken")


@activity.defn
async def step(told: dict[str, str]) -> str:
    """Leaves a character in its file each time; the third step fails until a file is there."""
    folder = Path(told["folder"])
    with (folder / told["name"]).open("a") as done:
        done.write("x")
    if told["name"] == "three" and not (folder / "fixed").exists():
        raise ApplicationError("The third step failed.", non_retryable=True)
    return told["name"]


@dataclass
class Report:
    total: int
    notes: list[str]


@workflow.defn
class Echo:
    """Completes at once with its single input."""

    @workflow.run
    async def run(self, message: Any = None) -> Any:
        return message


@workflow.defn
class Positional:
    """Completes at once with its inputs, in their order."""

    @workflow.run
    async def run(self, first: Any = None, second: Any = None) -> list[Any]:
        return [first, second]


@workflow.defn
class Later:
    """Completes after `seconds`, with them."""

    @workflow.run
    async def run(self, message: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(message["seconds"])
        return {"slept": message["seconds"]}


@workflow.defn
class Fail:
    """Fails because its activity did, which had a cause of its own."""

    @workflow.run
    async def run(self, message: dict[str, Any] | None = None) -> None:
        await workflow.execute_activity(
            brew, (message or {}).get("tea", "black"), start_to_close_timeout=SHORT, retry_policy=ONCE
        )


@workflow.defn
class Steps:
    """Takes three steps, or the last two of them `together`, or all of them `locally`."""

    @workflow.run
    async def run(self, message: dict[str, Any]) -> list[str]:
        async def take(name: str) -> str:
            told = {"name": name, "folder": message["folder"]}
            locally = message.get("locally")
            execute = workflow.execute_local_activity if locally else workflow.execute_activity
            taken: str = await execute(step, told, start_to_close_timeout=SHORT, retry_policy=ONCE)
            return taken

        if message.get("together"):
            return [await take("one"), *await asyncio.gather(take("two"), take("three"))]
        return [await take(name) for name in ("one", "two", "three")]


@workflow.defn
class FailAlone:
    """Fails by itself, with a type and details."""

    @workflow.run
    async def run(self, message: dict[str, Any] | None = None) -> None:
        raise ApplicationError("There is no more.", {"code": 7}, "second detail", type="Boom")


@workflow.defn
class FailInChild:
    """Fails because a workflow that it started did."""

    @workflow.run
    async def run(self, message: Any = None) -> None:
        await workflow.execute_child_workflow(FailAlone.run, {})


@workflow.defn
class Lasting:
    """Lasts until it is told `finish`; answers `progress`, `notes` and `add`, and hears `note`."""

    def __init__(self) -> None:
        self._done = False
        self._percent: Any = {"progress": 10, "message": "waiting for the signal"}
        self._notes: list[str] = []

    @workflow.run
    async def run(self, message: Any = None) -> Report:
        await workflow.wait_condition(lambda: self._done)
        return Report(total=len(self._notes), notes=self._notes)

    @workflow.signal
    def finish(self) -> None:
        self._done = True

    @workflow.signal
    def note(self, message: dict[str, Any]) -> None:
        self._notes.append(message["text"])

    @workflow.signal
    def advance(self, message: Any) -> None:
        """What `progress` answers from now on."""
        self._percent = message

    @workflow.query
    def progress(self) -> Any:
        return self._percent

    @workflow.query
    def notes(self) -> list[str]:
        return self._notes

    @workflow.query
    def add(self, message: dict[str, Any]) -> int:
        return int(message["a"] + message["b"])

    @workflow.query
    def refuse(self) -> None:
        raise ApplicationError("That is nobody's business.", type="Secretive")


@workflow.defn
class Asking:
    """Asks its `questions`, or one of its own, and completes with the answers, in their order."""

    def __init__(self) -> None:
        approve = {"type": "object", "properties": {"approve": {"type": "boolean"}}, "required": ["approve"]}
        self._open: list[Any] = [{"message": "Is the \u202etea good?", "schema": approve}]
        self._answers: list[Any] = []
        self._keeps = False

    @workflow.run
    async def run(self, message: dict[str, Any] | None = None) -> dict[str, Any]:
        self._open = (message or {}).get("questions", self._open)
        self._keeps = (message or {}).get("keeps", False)
        wanted = len(self._open)
        seconds = (message or {}).get("seconds")
        with suppress(TimeoutError):
            await workflow.wait_condition(lambda: len(self._answers) >= wanted, timeout=seconds)
        await workflow.wait_condition(workflow.all_handlers_finished)
        return {"answers": self._answers}

    @workflow.query
    def open_questions(self) -> Any:
        if len(self._open) == 1:
            return self._open[0]
        return self._open or None

    @workflow.query
    def refuse(self) -> None:
        raise ApplicationError("That is nobody's business.", type="Secretive")

    @workflow.update
    async def decide(self, told: dict[str, Any]) -> None:
        self._take(told)

    @decide.validator
    def _is_decision(self, told: dict[str, Any]) -> None:
        if not isinstance(told["answer"].get("approve"), bool):
            raise ApplicationError("approve must be \u202etrue or false.", type="Undecided")

    @workflow.signal
    def hear(self, told: dict[str, Any]) -> None:
        self._take(told)

    def _take(self, told: dict[str, Any]) -> None:
        if not self._keeps:
            self._open = [one for one in self._open if one.get("id", told["id"]) != told["id"]]
        self._answers.append(told["answer"])


@workflow.defn
class Stubborn:
    """Goes on whatever it is asked to."""

    @workflow.run
    async def run(self, message: Any = None) -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue


@workflow.defn
class Heartbeating:
    """Lasts, while its activity tells its `steps`."""

    @workflow.run
    async def run(self, message: dict[str, Any]) -> None:
        await workflow.execute_activity(
            heartbeat,
            message["steps"],
            start_to_close_timeout=timedelta(hours=1),
            heartbeat_timeout=timedelta(seconds=20),
        )


@workflow.defn
class Retrying:
    """Lasts, since its activity fails again and again."""

    @workflow.run
    async def run(self, message: dict[str, Any] | None = None) -> None:
        await workflow.execute_activity(
            fail_often, "The oven is cold.", start_to_close_timeout=timedelta(hours=1)
        )


@workflow.defn
class Stuck:
    """Its worker cannot get on with it, and tries again and again."""

    @workflow.run
    async def run(self, message: Any = None) -> None:
        raise RuntimeError("A mistake in the workflow's code.")


@workflow.defn
class SlowActivity:
    """Fails because its activity took too long."""

    @workflow.run
    async def run(self, message: Any = None) -> None:
        await workflow.execute_activity(
            heartbeat,
            [1],
            start_to_close_timeout=timedelta(milliseconds=200),
            retry_policy=ONCE,
        )


@workflow.defn
class Rounds:
    """Continues as new until no `rounds` are left; rests `seconds` in each."""

    @workflow.run
    async def run(self, message: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(message.get("seconds", 0))
        if message["rounds"] > 0:
            workflow.continue_as_new(message | {"rounds": message["rounds"] - 1})
        return {"rounds_left": message["rounds"]}


@workflow.defn
class Binary:
    """Completes with bytes, which are no JSON."""

    @workflow.run
    async def run(self, message: Any = None) -> bytes:
        return b"\x00\x01tea"


@workflow.defn
class Large:
    """Completes with a text of so many `characters`."""

    @workflow.run
    async def run(self, message: dict[str, Any]) -> str:
        return "x" * message["characters"]


WORKFLOWS = [
    Echo,
    Positional,
    Later,
    Fail,
    Steps,
    FailAlone,
    FailInChild,
    Lasting,
    Asking,
    Stubborn,
    Heartbeating,
    Retrying,
    Stuck,
    SlowActivity,
    Rounds,
    Binary,
    Large,
]
ACTIVITIES = [brew, heartbeat, fail_often, step]
