"""Workflow Catalogue as an installed package. The product's own packages are in this folder, so that an
environment gets one top-level name and not `config`; only this program finds them by their short names."""

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    """The command `workflow-catalogue`, which takes the same words as `manage.py`."""
    sys.path.insert(0, str(HERE))
    runpy.run_path(str(HERE / "manage.py"))["main"]()  # Not as `__main__`: its help would say `manage.py`


def example_engine() -> None:
    """The command `workflow-catalogue-example-engine`: something to connect to."""
    sys.path.insert(0, str(HERE))
    runpy.run_module("examples.engine", run_name="__main__", alter_sys=True)
