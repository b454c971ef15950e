"""What the tests of engines do without one."""

import os
import subprocess
import sys

import pytest

from tests.processes import ROOT


def do_without(reason: str) -> None:
    """Skip the test for want of an engine; where CI has installed them all, fail it."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def install(what: str, *script: str) -> None:
    """`make install-all` has done it already where that was possible."""
    outcome = subprocess.run([sys.executable, *script], cwd=ROOT, capture_output=True, text=True, check=False)
    if outcome.returncode:
        told = f"{outcome.stdout}{outcome.stderr}".strip()[-1000:]
        do_without(f"{what} is missing; install it with: make install-all\n{told}")
