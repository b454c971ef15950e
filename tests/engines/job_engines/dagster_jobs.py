"""Real jobs: loaded by the Python of the tests' Dagster environment."""

import sys
import time
from pathlib import Path
from typing import Any

from dagster import (
    AssetMaterialization,
    Definitions,
    Field,
    In,
    Nothing,
    OpExecutionContext,
    in_process_executor,
    job,
    op,
)

PATIENCE_SECONDS = 600.0


@op(config_schema={"cups": Field(int, default_value=2)})
def brew(context: OpExecutionContext) -> None:
    cups = context.op_config["cups"]
    context.log_event(AssetMaterialization(["kitchen", "tea"], metadata={"sort": "Assam", "cups": cups}))


@op(config_schema={"words": Field(str, default_value="The tea went cold.")})
def complain(context: OpExecutionContext) -> None:
    raise ValueError(context.op_config["words"])


@op(config_schema={"until": Field(str, default_value="")})
def wait(context: OpExecutionContext) -> None:
    until, deadline = context.op_config["until"], time.monotonic() + PATIENCE_SECONDS
    while not (until and Path(until).exists()):
        if time.monotonic() > deadline:
            sys.exit("This took too long.")
        time.sleep(0.2)


def step(name: str, **options: Any) -> Any:
    """Leaves a character in its file each time; the third fails until a file is there."""

    @op(name=name, config_schema={"folder": str}, **options)
    def made(context: OpExecutionContext) -> None:
        folder = Path(context.op_config["folder"])
        with (folder / name).open("a") as done:
            done.write("x")
        if name == "three" and not (folder / "fixed").exists():
            raise ValueError("The third step failed.")

    return made


@job(description="Brew tea and say which.", tags={"team": "kitchen"}, executor_def=in_process_executor)
def brew_tea() -> None:
    brew()


@job(executor_def=in_process_executor)
def spill_tea() -> None:
    """Fails with the words that it is given."""
    complain()


@job(executor_def=in_process_executor)
def steep_tea() -> None:
    """Lasts until a file is there."""
    wait()


@job(executor_def=in_process_executor)
def take_three_steps() -> None:
    """Three steps, of which the third fails until a file is there."""
    after: dict[str, Any] = {"ins": {"before": In(Nothing)}}
    step("three", **after)(step("two", **after)(step("one")()))


defs = Definitions(jobs=[brew_tea, spill_tea, steep_tea, take_three_steps])
