"""Real flows, and the process that serves them: run by the Python of the tests' Prefect environment."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Literal

from prefect import flow, get_run_logger, serve
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
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
        print_starting_message=False,
    )
