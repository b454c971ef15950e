"""Engines, callers and rows for the tests of executions."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from catalogue.connections import close_connectors
from catalogue.models import Source, Workflow
from connectors.background import run_in_background_loop
from connectors.errors import backoff_seconds
from connectors.protocol import Capabilities
from connectors.simplified import SimplifiedConnector
from executions import change_feed, waiting
from executions.runner import schedule, start
from tests.executions.engines import WORKFLOW_ID, WireEngine, running_wire_engine, until
from tests.executions.steps import is_nothing_under_way
from tests.factories import make_source, make_workflow
from tests.processes import ExampleEngine, running_example_engine

QUICKER = 20


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
    """Rows are read and runs first polled after a twentieth of the usual time."""
    monkeypatch.setattr(waiting, "LOOK_AGAIN_SECONDS", waiting.LOOK_AGAIN_SECONDS / QUICKER)
    monkeypatch.setattr(change_feed, "LOOK_SECONDS", change_feed.LOOK_SECONDS / QUICKER)
    monkeypatch.setattr(start, "LOOK_SECONDS", start.LOOK_SECONDS / QUICKER)
    monkeypatch.setattr(start, "FIRST_POLL", start.FIRST_POLL / QUICKER)


@pytest.fixture
def quick_repeats(quick_looks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls, failed starts and lookups are repeated after a twentieth of the usual time as well."""
    usual = SimplifiedConnector.capabilities.fget
    assert usual is not None

    def capabilities(connector: SimplifiedConnector) -> Capabilities:
        promised = usual(connector)
        return replace(promised, min_poll_seconds=promised.min_poll_seconds / QUICKER)

    def pause(repeated: int, *, first: float, longest: float) -> float:
        return backoff_seconds(repeated, first=first, longest=longest) / QUICKER

    monkeypatch.setattr(SimplifiedConnector, "capabilities", property(capabilities))
    monkeypatch.setattr(schedule, "backoff_seconds", pause)
    monkeypatch.setattr(start, "backoff_seconds", pause)


@pytest.fixture
def configured(settings: Any) -> Any:
    """Change the product's settings for one test: `configured(retry_attempts=1)`."""

    def change(**values: Any) -> None:
        settings.CATALOGUE = settings.CATALOGUE | values

    return change
