"""Real DAGs: loaded by the Python of the tests' Airflow environment."""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLEntryOperator, HITLOperator
from airflow.sdk import Param, dag, get_current_context, task

PATIENCE_SECONDS = 600.0


def conf() -> dict[str, Any]:
    return dict(get_current_context()["params"])


@dag(
    schedule=None,
    tags=["orders", "tea"],
    description="Take an order and say what became of it.",
    params={
        "order_id": Param(type="string", minLength=1, description="What the customer calls it."),
        "cups": Param(2, type="integer", minimum=1, description="How many."),
        "milk": Param(None, type=["null", "string"]),
    },
)
def place_order() -> None:
    @task
    def boil() -> str:
        return "hot"

    @task
    def brew(water: str) -> dict[str, Any]:
        return conf() | {"water": water}

    brew(boil())


@dag(schedule=None, params={"words": Param("The tea went cold.", type="string")})
def fail() -> None:
    """Fails with the words that it is given."""

    @task
    def complain() -> None:
        raise ValueError(conf()["words"])

    complain()


@dag(schedule=None, params={"until": Param("", type="string")})
def last() -> None:
    """Lasts until a file is there."""

    @task(retries=1, retry_delay=timedelta(0))
    def wait() -> dict[str, str]:
        until, parent, deadline = conf()["until"], os.getppid(), time.monotonic() + PATIENCE_SECONDS
        while not (until and Path(until).exists()):
            if os.getppid() != parent or time.monotonic() > deadline:
                sys.exit("This task is not supervised any more.")
            time.sleep(0.2)
        return {"until": until}

    wait()


@dag(schedule=None, params={"folder": Param(type="string")})
def take_steps() -> None:
    """Three steps, of which the third fails until a file is there."""

    @task
    def step(name: str) -> str:
        folder = Path(conf()["folder"])
        with (folder / name).open("a") as done:
            done.write("x")
        if name == "three" and not (folder / "fixed").exists():
            raise ValueError("The third step failed.")
        return name

    one, two, three = (step.override(task_id=name)(name) for name in ("one", "two", "three"))
    one >> two >> three


@dag(schedule=None, is_paused_upon_creation=True)
def resting() -> None:
    """Is paused, so that Airflow starts none of its runs."""

    @task
    def rest() -> None: ...

    rest()


@dag(schedule=None)
def ask() -> None:
    """Asks for an approval, and returns what was decided."""
    ApprovalOperator(task_id="approve", subject="Is the \u202etea good?", body="**Taste** it.")


@dag(schedule=None, default_args={"retries": 3, "retry_delay": timedelta(0)})
def ask_much() -> None:
    """Asks for choices twice at once, in a mapped task, and then for inputs."""
    cups = {"cups": Param(2, type="integer", minimum=1, description="How many.")}
    choose = HITLOperator.partial(task_id="choose", options=["Assam", "Mint"], multiple=True, params=cups)
    entry = HITLEntryOperator(
        task_id="enter",
        subject="Your name?",
        params={"name": Param("", type="string"), "milk": Param(False, type="boolean")},
        response_timeout=timedelta(minutes=5),
    )
    choose.expand(subject=["Which for me?", "Which for you?"]) >> entry


for made in (ask, ask_much, place_order, fail, last, resting, take_steps):
    made()
