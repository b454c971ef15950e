"""An engine whose listing the test writes, a source for it, and what was logged."""

from collections.abc import Callable, Iterator

import pytest
from loguru import logger

from catalogue.models import Source
from tests.catalogue.engine import Engine
from tests.factories import make_source

Logged = list[str]


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine


@pytest.fixture
def source(db: None, engine: Engine) -> Source:
    return make_source("erp", base_url=engine.base_url)


@pytest.fixture
def logged() -> Iterator[Logged]:
    """Every line of level WARNING and above, with the exception where there is one."""
    lines: Logged = []
    sink = logger.add(lines.append, level="WARNING", format="{level} {message} {extra}", diagnose=False)
    yield lines
    logger.remove(sink)


@pytest.fixture
def revision_of() -> Callable[[Callable[[], object]], int]:
    """By how much doing something moves the revision."""
    from catalogue.models import Revision

    def moved(act: Callable[[], object]) -> int:
        before = Revision.current()
        act()
        return Revision.current() - before

    return moved
