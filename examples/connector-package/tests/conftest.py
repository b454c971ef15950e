"""One Redis with workers for all tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

pytest.register_assert_rewrite("connectors.testing")

from engine import RqEngine, running_rq  # noqa: E402


@pytest.fixture(scope="session")
def rq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RqEngine]:
    with running_rq(tmp_path_factory.mktemp("rq")) as engine:
        yield engine
