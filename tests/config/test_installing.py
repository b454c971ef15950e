"""`scripts/install_node.py`: what `make install-dev` does where npm is missing, or has nothing to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT

NO_PROGRAMS = {**os.environ, "PATH": ""}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("package.json", "package-lock.json", ".npmrc"):
        (tmp_path / name).write_text("{}" if name.endswith("json") else "")
    return tmp_path


def install(folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/install_node.py", str(folder)]
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)


def test_without_npm_it_says_what_is_left_out_and_how_to_get_it(folder: Path) -> None:
    outcome = install(folder, NO_PROGRAMS)
    assert outcome.returncode == 1
    assert "npm is missing" in outcome.stderr
    assert not (folder / "node_modules").exists()


def test_what_is_installed_already_takes_no_npm(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    programs = tmp_path_factory.mktemp("programs")
    (programs / "npm").write_text('#!/bin/sh\n[ "$1" = ci ] && mkdir node_modules\n')
    (programs / "npm").chmod(0o755)
    first = install(folder, {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"})
    again = install(folder, NO_PROGRAMS)
    (folder / "package-lock.json").write_text('{"changed": true}')
    changed = install(folder, NO_PROGRAMS)
    assert [first.returncode, again.returncode, changed.returncode] == [0, 0, 1], first.stderr
    assert again.stdout == ""
