"""Run commands one after the other until one fails, and end with a table of how long each took.

    python3 scripts/stages.py [--together] "NAME=COMMAND" ...

With --together all run at the same time, and what the first does not print is printed after it.

Where the environment variable STAGES names a file, the stages are added to it, and the program that made the
file prints the table with `scripts/stages.py` alone. The exit code is that of the stage that failed.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, NamedTuple

VARIABLE = "STAGES"
INTERRUPTED = 130


def main() -> int:
    if VARIABLE in os.environ:
        table = Path(os.environ[VARIABLE])
        return run_all(sys.argv[1:], table) if sys.argv[1:] else show(table)
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "stages"
        os.environ[VARIABLE] = str(table)
        code = run_all(sys.argv[1:], table)
        show(table)
    return code


def run_all(stages: list[str], table: Path) -> int:
    together = stages[0] == "--together"
    for group in [stages[1:]] if together else [[stage] for stage in stages]:
        if code := run(group, table):
            return code
    return 0


def run(stages: list[str], table: Path) -> int:
    """At the same time; returns the code of the first in their order that failed. Ctrl-C from the terminal
    reaches the commands too, so this only waits for them to end."""
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    running: list[Running] = []
    for stage in stages:
        name, _, command = stage.partition("=")
        output = tempfile.TemporaryFile() if running else None  # noqa: SIM115 - closed once it is printed
        if output is None:
            print(f"\n=== {name}", flush=True)
        process = subprocess.Popen(shlex.split(command), stdout=output, stderr=output and subprocess.STDOUT)
        running.append(Running(name, process, output))

    def end_all(*_: object) -> None:
        for each in running:
            each.process.terminate()

    signal.signal(signal.SIGTERM, end_all)
    codes = []
    with ThreadPoolExecutor(len(running)) as waiting:
        waits = [(each, waiting.submit(seconds_until_ended, each.process)) for each in running]
        for each, seconds in waits:
            codes.append(end(each, seconds.result(), table, interrupted=bool(interrupts)))
    return next(filter(None, codes), 0)


class Running(NamedTuple):
    name: str
    process: "subprocess.Popen[bytes]"
    output: IO[bytes] | None
    """What is printed at the end; None: it is printed at once."""


def seconds_until_ended(process: "subprocess.Popen[bytes]") -> float:
    started = time.monotonic()
    process.wait()
    return time.monotonic() - started


def end(stage: Running, seconds: float, table: Path, *, interrupted: bool) -> int:
    """Print what is left of it, and add its line. Returns its exit code."""
    if stage.output is not None:
        print(f"\n=== {stage.name}", flush=True)
        stage.output.seek(0)
        shutil.copyfileobj(stage.output, sys.stdout.buffer)
        stage.output.close()
    code = stage.process.returncode
    # An end by a signal has the exit code that a shell would give.
    code = INTERRUPTED if interrupted else code if code >= 0 else 128 - code
    outcome = {0: "passed", INTERRUPTED: "interrupted"}.get(code, "failed")
    with table.open("a", encoding="utf-8") as lines:
        lines.write(f"{stage.name}\t{round(seconds)}\t{outcome}\n")
    return code


def show(table: Path) -> int:
    lines = table.read_text(encoding="utf-8").splitlines() if table.exists() else []
    stages = [line.split("\t") for line in lines]
    width = max((len(name) for name, _, _ in stages), default=0)
    print(flush=True)
    for name, seconds, outcome in stages:
        print(f"{name:{width}}  {int(seconds) // 60:2}:{int(seconds) % 60:02}  {outcome}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
