"""Engines, callers and rows for the tests of executions."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from catalogue.connections import close_connectors
from catalogue.models import Source, Workflow
from connectors.background import run_in_background_loop
from executions import waiting
from tests.executions.engines import WORKFLOW_ID, WireEngine, running_wire_engine, until
from tests.executions.steps import is_nothing_under_way
from tests.factories import make_source, make_workflow
from tests.processes import ExampleEngine, running_example_engine


@pytest.fixture(scope="session")
def forgetful_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExampleEngine]:
    """The example engine, starting a new run whatever the key."""
    with running_example_engine(tmp_path_factory.mktemp("forgetful"), "--no-idempotency") as engine:
        yield engine


@pytest.fixture(autouse=True)
async def _nothing_left_under_way() -> AsyncIterator[None]:
    """Steps go on when nobody waits for them; they must not meet the rows of the next test."""
    yield
    await until(is_nothing_under_way, "the steps under way come to their end")
    await close_connectors()
    run_in_background_loop(close_connectors())


@pytest.fixture
def engine() -> Iterator[WireEngine]:
    with running_wire_engine() as engine:
        yield engine


@pytest.fixture
def source(engine: WireEngine) -> Source:
    """The wire engine, configured as one that promises nothing about keys."""
    return make_source(base_url=engine.base_url)


@pytest.fixture
def workflow(source: Source) -> Workflow:
    return make_workflow(source, upstream_id=WORKFLOW_ID, name="report")


@pytest.fixture
def keyed_workflow(engine: WireEngine) -> Workflow:
    """A workflow of the wire engine, configured as one that starts a single run per key."""
    keyed = make_source(base_url=engine.base_url, config={"idempotency_header": "Idempotency-Key"})
    return make_workflow(keyed, upstream_id=WORKFLOW_ID, name="report")


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting requests read their row ten times as often as usual."""
    monkeypatch.setattr(waiting, "LOOK_AGAIN_SECONDS", waiting.LOOK_AGAIN_SECONDS / 10)


@pytest.fixture
def configured(settings: Any) -> Any:
    """Change the product's settings for one test: `configured(retry_attempts=1)`."""

    def change(**values: Any) -> None:
        settings.CATALOGUE = settings.CATALOGUE | values

    return change
