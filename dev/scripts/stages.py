"""Run commands one after the other until one fails, and end with a table of how long each took.

    python3 dev/scripts/stages.py "NAME=COMMAND" "+NAME=COMMAND" ...

One that begins with + runs at the same time as the one before it, and what it prints comes afterwards. An
argument may have several, each on a line of its own.

The exit code is that of the stage that failed.
"""

import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import IO, NamedTuple

INTERRUPTED = 130


class Stage(NamedTuple):
    name: str
    seconds: float
    code: int

    def __str__(self) -> str:
        outcome = {0: "passed", INTERRUPTED: "interrupted"}.get(self.code, "failed")
        minutes, seconds = divmod(round(self.seconds), 60)
        return f"{minutes:2}:{seconds:02}  {outcome}"


def main() -> int:
    groups: list[list[str]] = []
    for stage in "\n".join(sys.argv[1:]).split("\n"):
        if stage.startswith("+") and groups:
            groups[-1].append(stage[1:])
        elif stage:
            groups.append([stage])
    ended: list[Stage] = []
    for group in groups:
        ended += run(group)
        if any(stage.code for stage in ended):
            break
    width = max((len(stage.name) for stage in ended), default=0)
    print("", *(f"{stage.name:{width}}  {stage}" for stage in ended), sep="\n", flush=True)
    return next((stage.code for stage in ended if stage.code), 0)


def run(stages: list[str]) -> list[Stage]:
    """At the same time. Ctrl-C from the terminal reaches the commands too, so this only waits for them to
    end."""
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
    with ThreadPoolExecutor(len(running)) as waiting:
        waits = [(each, waiting.submit(seconds_until_ended, each.process)) for each in running]
        return [end(each, seconds.result(), interrupts) for each, seconds in waits]


class Running(NamedTuple):
    name: str
    process: "subprocess.Popen[bytes]"
    output: IO[bytes] | None
    """What is printed at the end; None: it is printed at once."""


def seconds_until_ended(process: "subprocess.Popen[bytes]") -> float:
    started = time.monotonic()
    process.wait()
    return time.monotonic() - started


def end(running: Running, seconds: float, interrupts: list[int]) -> Stage:
    """Print what is left of it."""
    if running.output is not None:
        print(f"\n=== {running.name}", flush=True)
        running.output.seek(0)
        shutil.copyfileobj(running.output, sys.stdout.buffer)
        running.output.close()
    code = running.process.returncode
    # An end by a signal has the exit code that a shell would give.
    return Stage(running.name, seconds, INTERRUPTED if interrupts else code if code >= 0 else 128 - code)


if __name__ == "__main__":
    sys.exit(main())
