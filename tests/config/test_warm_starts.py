"""Programs that are forked from a server are what executing them would have made."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

import psutil
import pytest

from tests.processes import ROOT
from tests.warm_starts import LIBRARIES, STARTS_COLD, run_warm

pytestmark = pytest.mark.usefixtures("warm_starts", "in_the_foreground")

ABOUT_ITSELF = """
import json, os, pathlib, signal, sys, threading
status = dict(line.split(":\\t") for line in pathlib.Path("/proc/self/status").read_text().splitlines())
print(json.dumps({
    "arguments": sys.argv,
    "environment": dict(os.environ),
    "folder": os.getcwd(),
    "umask": status["Umask"],
    "parent": os.getppid(),
    "open": sorted(os.listdir("/proc/self/fd"))[:3],
    "interrupted by": str(signal.getsignal(signal.SIGINT)),
    "ignored": status["SigIgn"],
    "blocked": status["SigBlk"],
    "threads": threading.active_count(),
    "said": sys.stdin.read(),
    "main": __name__,
    "unbuffered": sys.stdout.write_through,
}))
"""
PRODUCT = {"config", "catalogue", "executions", "mcp_bridge", "orchestration"}


def about_itself(**variables: str) -> dict[str, Any]:
    environment = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"} | variables
    outcome = run_warm(["-c", ABOUT_ITSELF, "one", "two words"], environment=environment, umask=0o027)
    assert outcome.returncode == 0, outcome.stderr
    told: dict[str, Any] = json.loads(outcome.stdout)
    # Python's own, where the locale says nothing of UTF-8.
    told["environment"].pop("LC_CTYPE", None)
    return told


def test_a_program_has_the_surroundings_that_executing_it_gives() -> None:
    warm, cold = about_itself(), about_itself(**{STARTS_COLD: "1"})
    assert cold["environment"].pop(STARTS_COLD)
    assert warm == cold
    assert warm["parent"] == os.getpid()


@pytest.mark.parametrize(
    "ignored",
    [{signal.SIGHUP}, {signal.SIGINT, signal.SIGQUIT}],
    ids=["by nohup", "in a shell's background"],
)
def test_a_program_ignores_the_signals_that_its_starter_ignores(ignored: set[signal.Signals]) -> None:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    try:
        warm, cold = about_itself(), about_itself(**{STARTS_COLD: "1"})
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    found = int(warm["ignored"], 16)
    assert all(found >> (number - 1) & 1 for number in ignored)
    assert (warm["ignored"], warm["interrupted by"]) == (cold["ignored"], cold["interrupted by"])


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit('in words')", 1),
        ("1 / 0", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import threading, time; threading.Timer(0.1, print, ['later']).start()", 0),
        ("import atexit; atexit.register(print, 'later')", 0),
    ],
)
def test_a_program_ends_as_if_it_had_been_executed(program: str, code: int) -> None:
    outcome = run_warm(["-c", program], environment=os.environ)
    assert outcome.returncode == code
    assert outcome.stdout == ("later\n" if "later" in program else "")
    assert ("in words" in program) == (outcome.stderr == "in words\n")
    assert ("ZeroDivisionError" in outcome.stderr) == (program == "1 / 0")


def test_a_program_is_a_child_with_its_own_name_and_session_that_can_be_killed() -> None:
    command = [sys.executable, "manage.py", "shell", "--no-imports", "--command=import time; time.sleep(60)"]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:
        seen = psutil.Process(process.pid)
        assert seen.ppid() == os.getpid()
        assert [word for word in seen.cmdline() if word] == command
        assert os.getsid(process.pid) == process.pid
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL


def test_the_libraries_are_there_and_nothing_of_what_reads_the_environment() -> None:
    loaded = run_warm(["-c", "import sys; print(*sys.modules)"], environment=os.environ).stdout.split()
    assert set(LIBRARIES) <= set(loaded)
    assert not PRODUCT & {name.partition(".")[0] for name in loaded}
