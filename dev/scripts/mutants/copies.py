"""Copies of the tree for mutants, and the tests that run there."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path

from .operators import Mutant, mutated

ALLOWED_SECONDS = 300.0
ALLOWED_SECONDS_PER_TEST = 3.0
"""For a process that runs tests; pytest-timeout also limits each test."""
PLUGIN = Path(__file__).with_name("mutants_plugin.py")
RUN_BY_TESTS = ("PYTEST_", "COV_", "COVERAGE_", "DJANGO_SETTINGS_MODULE")
"""Variables that test runs set for the processes that they start, such as this one in its own tests."""
NO_TESTS = 5
"""The exit code of pytest if all tests were deselected."""


class Copy:
    """The files that git knows or would add, with uncommitted changes; environments are linked."""

    def __init__(self, tree: Path, folder: Path, expression: str) -> None:
        self.folder, self.expression = folder / "tree", expression
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True)
        self.selection, self.output = folder / "selection.json", folder / "output.txt"
        self.failed = self.selection.with_suffix(".failed")
        shutil.copy(PLUGIN, folder)
        listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listing, cwd=tree, check=True, capture_output=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            if (tree / name).exists():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(tree / name, self.folder / name, follow_symlinks=False)
        for environment in tree.glob(".venv*"):
            link = self.folder / environment.name
            if not link.is_symlink():
                link.symlink_to(environment.resolve())

    def record_contexts(self, file: Path, *, processes: int) -> None:
        """Run all tests, and write which lines each executes."""
        parallel = ["-n", str(processes)] if processes > 1 else []
        self.selection.unlink(missing_ok=True)
        # By its path, since `make test` leaves variants of tests out.
        self.pytest("tests", "--cov", "--cov-context=test", "--cov-report=", *parallel, seconds=None)
        recorded = self.folder / ".coverage"
        if not recorded.exists():
            sys.exit(f"The run of all tests gave no coverage data:\n{self.last_output()}")
        shutil.move(recorded, file)

    def find_killer(self, mutant: Mutant, tests: Sequence[str]) -> str | None:
        """The first test to fail with this mutant, or what else went wrong; None if it survives."""
        original = (self.folder / mutant.path).read_text(encoding="utf-8")
        self.write(mutant.path, mutated(mutant, original))
        try:
            code, failed = self.run_tests(tests, "-x")
        except subprocess.TimeoutExpired:
            return "the time limit"
        finally:
            self.write(mutant.path, original)
        if code in (0, NO_TESTS):
            return None
        return failed[0] if failed else "an error that lets no test start"

    def write(self, path: str, source: str) -> None:
        (self.folder / path).write_text(source, encoding="utf-8")
        # Python considers bytecode current if size and second are the same.
        Path(cache_from_source(str(self.folder / path))).unlink(missing_ok=True)

    def failing(self, tests: Sequence[str]) -> list[str]:
        """The tests that fail without a mutant. Exits if pytest cannot run the tests."""
        code, failed = self.run_tests(tests)
        if code not in (0, 1, NO_TESTS):
            sys.exit(f"The tests do not run:\n{self.last_output()}")
        return failed

    def run_tests(self, tests: Sequence[str], *options: str) -> tuple[int, list[str]]:
        """pytest's exit code and what failed. Raises TimeoutExpired."""
        # By module, because pytest runs none if it does not find one of them.
        modules = dict.fromkeys(test.split("::")[0] for test in tests)
        modules_here = [module for module in modules if (self.folder / module).exists()]
        if not modules_here:
            return NO_TESTS, []
        self.failed.unlink(missing_ok=True)
        self.selection.write_text(json.dumps(tests), encoding="utf-8")
        seconds = ALLOWED_SECONDS + ALLOWED_SECONDS_PER_TEST * len(tests)
        code = self.pytest("-p", "no:randomly", *options, *modules_here, seconds=seconds)
        return code, self.failed.read_text(encoding="utf-8").splitlines() if self.failed.exists() else []

    def pytest(self, *arguments: str, seconds: float | None) -> int:
        python = self.folder / ".venv/bin/python"
        command = [str(python) if python.exists() else sys.executable, "-m", "pytest", "-q", "--tb=short"]
        options = ["-p", PLUGIN.stem, "-p", "no:cacheprovider", "-m", self.expression]
        with self.output.open("wb") as output:
            process = subprocess.Popen(
                [*command, *options, *arguments],
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return process.wait(seconds)
            finally:
                stop_group(process)

    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(RUN_BY_TESTS)}
        ours = {"PYTHONPATH": str(self.selection.parent), "TMPDIR": str(self.temporary)}
        return inherited | ours | {"MUTANTS_SELECTION": str(self.selection)}

    def last_output(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")[-3000:]


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """Including processes that the tests started and left behind."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
