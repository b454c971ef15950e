"""Loaded before Django's settings (`-p tests.isolation`): tests get a data folder of their own.

Only DATABASE_URL and CELERY_BROKER_URL are taken over: they choose the stack that the tests run on.
"""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PRODUCT_VARIABLES = ("SECRET_KEY", "PORT", "LOG_LEVEL", "LOG_FORMAT")
PREFIXES = ("CATALOGUE_", "OPENAI_")
"""Whoever has a model configured must not have it asked by tests."""


def _folder() -> str:
    """Of the whole run, for all that it writes; removed at its end, since pytest-xdist kills its workers."""
    if "PYTEST_DEBUG_TEMPROOT" not in os.environ:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.mkdtemp(prefix="workflow-catalogue-tests-")
        atexit.register(shutil.rmtree, os.environ["PYTEST_DEBUG_TEMPROOT"], ignore_errors=True)
    return os.environ["PYTEST_DEBUG_TEMPROOT"]


def isolate() -> None:
    for name in list(os.environ):
        if name in PRODUCT_VARIABLES or name.startswith(PREFIXES):
            del os.environ[name]
    # Without bytecode every process that a test starts compiles the product anew: 2 s of CPU.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    os.environ["CATALOGUE_DATA_DIR"] = tempfile.mkdtemp(prefix="data-", dir=_folder())
    # What hypothesis works out of Unicode and of our modules takes it 2 s of CPU without this.
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(ROOT / ".cache" / "hypothesis")
    os.environ["LOG_LEVEL"] = "WARNING"


isolate()
pytest.register_assert_rewrite("connectors.testing")
