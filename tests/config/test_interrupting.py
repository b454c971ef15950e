"""Ctrl-C in the middle of a test run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.processes import ROOT

SECONDS = 3.0
TESTS = """
import signal, threading
from pathlib import Path
import pytest
from tests.engines.guarding import guarded
from tests.processes import running_example_engine

HERE = Path(__file__).parent

@pytest.mark.parametrize("number", range(2))
def test_is_in_the_middle_of_something(number):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    shell = ["sh", "-c", "trap '' INT; sleep 600"]
    (HERE / str(number)).mkdir()
    with guarded(shell, log=HERE / "log"), running_example_engine(HERE / str(number)):
        (HERE / f"begun-{number}").touch()
        threading.Event().wait(600)
"""


@pytest.mark.e2e
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("in_the_foreground")
def test_ctrl_c_ends_everything_at_once_though_tests_wait_and_will_not_hear_it(tmp_path: Path) -> None:
    """Issue 11: and neither a process nor a file is left."""
    Path(tmp_path, "test_sample.py").write_text(TESTS)
    Path(tmp_path, "pytest.ini").write_text("[pytest]\n")
    plugins = ["-p", "tests.isolation", "-p", "no:randomly", "-p", "no:django", "-p", "no:cacheprovider"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        *plugins,
        "-n",
        "2",
        "-o",
        "asyncio_default_fixture_loop_scope=function",
    ]
    (tmp_path / "temporary").mkdir()
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    variables |= {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "temporary")}
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=variables,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    ) as run:
        while len(list(tmp_path.glob("begun-*"))) < 2:
            assert run.poll() is None
            time.sleep(0.05)
        started = psutil.Process(run.pid).children(recursive=True)
        assert len(started) > 6
        os.killpg(run.pid, signal.SIGINT)
        interrupted_at = time.monotonic()
        run.wait(60)
        _, left = psutil.wait_procs(started, timeout=SECONDS)
        took = time.monotonic() - interrupted_at
    assert not left
    assert run.returncode == pytest.ExitCode.INTERRUPTED
    assert not list((tmp_path / "temporary").iterdir())
    # Of which a busy machine may take as much again, but not the ten seconds that workers have without us.
    assert took < 2 * SECONDS
