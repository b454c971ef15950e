"""One running product for the tests that only use it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.product import Product, Rest, place_for_one, started
from tests.processes import ROOT

INLINE_WAIT_SECONDS = 2
"""Short, so that a run nobody waits for is soon there; a call with progress waits on all the same."""


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with place_for_one(tmp_path_factory.mktemp("product")) as variables:
        yield variables | {
            "CATALOGUE_INLINE_WAIT": str(INLINE_WAIT_SECONDS),
            "CATALOGUE_STATUS_CHECK_INTERVAL": "1",
        }


@pytest.fixture(scope="session")
def product(place: dict[str, str]) -> Iterator[Product]:
    with started(place) as running:
        running.wait_until_up()
        yield running


@pytest.fixture(scope="session")
def rest(product: Product) -> Rest:
    """REST as an administrator, who sees everybody's executions."""
    return Rest(product, product.manage("create_mcp_token", "e2e", "--scope", "catalogue:admin"))


@pytest.fixture(scope="session")
def python_of_2025() -> Path:
    """The interpreter of an environment with the client as it was; `make install-all` has made it already."""
    environment = ROOT / ".venv-mcp1"
    lock = "requirements/mcp1.lock"
    install = [sys.executable, "dev/scripts/install.py", str(environment), lock]
    subprocess.run(install, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return environment / "bin" / "python"
