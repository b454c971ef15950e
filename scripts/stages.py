"""Run commands one after the other until one fails, and end with a table of how long each took.

    python3 scripts/stages.py "NAME=COMMAND" ...

Where the environment variable STAGES names a file, the stages are added to it, and the program that made the
file prints the table with `scripts/stages.py` alone. The exit code is that of the stage that failed.
"""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
    for stage in stages:
        name, _, command = stage.partition("=")
        print(f"\n=== {name}", flush=True)
        started = time.monotonic()
        code = run(shlex.split(command))
        outcome = {0: "passed", INTERRUPTED: "interrupted"}.get(code, "failed")
        with table.open("a", encoding="utf-8") as lines:
            lines.write(f"{name}\t{round(time.monotonic() - started)}\t{outcome}\n")
        if code:
            return code
    return 0


def run(command: list[str]) -> int:
    """Ctrl-C from the terminal reaches the command too, so this only waits for it to end."""
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    process = subprocess.Popen(command)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    code = process.wait()
    # An end by a signal has the exit code that a shell would give.
    return INTERRUPTED if interrupts else code if code >= 0 else 128 - code


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
