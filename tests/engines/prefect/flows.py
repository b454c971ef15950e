"""Real flows, and the process that serves them: run by the Python of the tests' Prefect environment."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Literal

from prefect import flow, get_run_logger, pause_flow_run, serve, suspend_flow_run, task
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from prefect.input import RunInput
from prefect.states import Completed, State
from pydantic import BaseModel, Field

RESULT = "catalog-result"
MAX_SECONDS = 600.0


class Address(BaseModel):
    """Where an order goes."""

    street: str
    postcode: str = Field(default="0000", description="As it is written on letters.")


@flow
def place_order(
    order_id: str,
    amount: float = 1.5,
    priority: Literal["low", "normal", "high"] = "normal",
    address: Address | None = None,
) -> None:
    """Take an order and say what became of it.

    Args:
        order_id: What the customer calls it.
        amount: How much of it.
    """
    told = {"order_id": order_id, "amount": amount, "priority": priority}
    told["street"] = address.street if address else None
    create_markdown_artifact(key=RESULT, markdown="Not yet.")
    create_markdown_artifact(key=RESULT, markdown=f"```json\n{json.dumps(told)}\n```")


@flow
def greet(name: str = "nobody") -> State:
    return Completed(message=f"Hello {name}!")


@flow(description="Fails with the words that it is given.")
def fail(words: str) -> None:
    get_run_logger().error("The kettle is empty.")
    raise ValueError(words)


@flow
def last(seconds: float = 600.0, steps: int = 2, until: str = "") -> None:
    """Take a while, in the last step until a file is there, and say how far it is."""
    progress = create_progress_artifact(progress=0.0)
    for step in range(1, steps + 1):
        get_run_logger().info("Step %d of %d.", step, steps)
        update_progress_artifact(progress, progress=100.0 * (step - 1) / steps)
        _sleep(*((MAX_SECONDS, until) if until and step == steps else (seconds / steps, "")))
    create_markdown_artifact(key=RESULT, markdown=json.dumps({"steps": steps}))


@flow
def crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Decision(RunInput):
    approve: bool
    reason: str = Field(default="", description="Why.")


@flow
def ask(asked: Literal["input", "consent", "suspended"] = "input", timeout: int = 600) -> None:
    """Pause until somebody decides, and say what was decided."""
    if asked == "consent":
        pause_flow_run(timeout=timeout, poll_interval=1)
        create_markdown_artifact(key=RESULT, markdown='"resumed"')
        return
    wanted = Decision.with_initial_data(description="Is the \u202etea good?\n**Say so.**")
    if asked == "suspended":
        # The process ends, and another one begins the flow again once it is resumed.
        decided = suspend_flow_run(wait_for_input=wanted, key="once", timeout=timeout)
        create_markdown_artifact(key=RESULT, markdown=json.dumps({"approve": decided.approve}))
        return
    decision = pause_flow_run(wait_for_input=wanted, timeout=timeout, poll_interval=1)
    told = {"approve": decision.approve, "reason": decision.reason}
    create_markdown_artifact(key=RESULT, markdown=json.dumps(told))


@task
def step(name: str, folder: str) -> str:
    """Leaves a character in its file each time; the third fails until a file is there."""
    with (Path(folder) / name).open("a") as done:
        done.write("x")
    if name == "three" and not (Path(folder) / "fixed").exists():
        raise ValueError("The third step failed.")
    return name


@flow
def take_steps(folder: str, persist: bool = True) -> None:
    """Three steps, of which the third fails until a file is there."""
    for name in ("one", "two", "three"):
        step.with_options(persist_result=persist)(name, folder)
    create_markdown_artifact(key=RESULT, markdown='"three steps"')


def _sleep(seconds: float, until: str) -> None:
    """Not beyond the end of whoever serves the flows: Prefect gives each run a session of its own."""
    parent, deadline = os.getppid(), time.monotonic() + seconds
    while time.monotonic() < deadline and not (until and Path(until).exists()):
        if os.getppid() != parent:
            sys.exit("Nobody serves this flow any more.")
        time.sleep(0.2)


if __name__ == "__main__":
    serve(
        place_order.to_deployment("shop", tags=["orders", "tea"], version="2.1"),
        greet.to_deployment("plain"),
        greet.to_deployment("resting", paused=True),
        greet.to_deployment("somebody", parameters={"name": "somebody"}),
        fail.to_deployment("always"),
        last.to_deployment("long"),
        crash.to_deployment("hard"),
        ask.to_deployment("asking"),
        take_steps.to_deployment("steps"),
        print_starting_message=False,
    )
