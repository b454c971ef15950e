"""The pytest plugin of a run on a mutant. It is copied out of the package, as older trees do not have it."""

import json
import os
import re
from pathlib import Path

import pytest

SELECTION = Path(os.environ["MUTANTS_SELECTION"])
"""The node ids to run, as JSON; all if there is none. Those that fail are written beside it."""


def pytest_configure(config: pytest.Config) -> None:
    for word in re.findall(r"\w+", config.option.markexpr):
        # Older trees lack some of the markers that `-m` names, which pytest takes for a mistake.
        config.addinivalue_line("markers", f"{word}: named by -m")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not SELECTION.exists():
        return
    chosen = set(json.loads(SELECTION.read_text(encoding="utf-8")))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
    items[:] = [item for item in items if item.nodeid in chosen]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        with SELECTION.with_suffix(".failed").open("a", encoding="utf-8") as failed:
            failed.write(f"{report.nodeid}\n")
