"""Watching the catalogue: every revision is noticed, and many watchers cost one query."""

import asyncio
import logging
import time
from collections.abc import Iterator

import pytest
from django.db import connection, transaction
from loguru import logger

from catalogue import exposure
from catalogue.exposure import RevisionWatch, current_catalogue, watching_revisions
from catalogue.models import Revision
from telemetry import traces
from tests.executions.engines import until
from tests.factories import make_workflow
from tests.mcp_bridge.database import in_database

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("catalogue.exposure"),
]

PATIENCE_SECONDS = 20


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposure, "LOOK_SECONDS", exposure.LOOK_SECONDS / 10)


@pytest.fixture
def lasting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found when a revision was noticed counts until the test has looked at it."""
    monkeypatch.setattr(exposure, "MAX_AGE_SECONDS", 60.0)


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """Each line with the id of the request that it is part of."""
    lines: list[str] = []
    sink = logger.add(lambda line: lines.append(f"{line} {traces.request_id.get()}"), level="WARNING")
    yield lines
    logger.remove(sink)


@transaction.atomic
def make_at_once(name: str) -> None:
    """In one revision, with the source."""
    make_workflow(name=name)


async def news_of(watch: RevisionWatch) -> None:
    """Return at the next revision that is noticed."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not watch.moved:
            await watch.has_changed.wait()
            watch.has_changed.clear()
    watch.moved = False


@pytest.mark.usefixtures("lasting")
async def test_each_revision_is_noticed_and_the_catalogue_is_the_new_one_by_then():
    with watching_revisions(asyncio.Event()) as watch:
        await news_of(watch)
        for name in ("first", "second"):
            await in_database(make_at_once)(name)
            await news_of(watch)
            assert name in (await in_database(current_catalogue)()).workflows


@pytest.mark.usefixtures("lasting")
async def test_a_change_that_is_not_committed_yet_is_none():
    """A watcher that is told too early would look, and see the old catalogue."""

    def change_and_look() -> int:
        with transaction.atomic():
            before = Revision.current()
            make_workflow()
            assert Revision.current() > before
            transaction.set_rollback(True)
        return before

    with watching_revisions(asyncio.Event()) as watch:
        await news_of(watch)
        before = await in_database(change_and_look)()
        await in_database(make_at_once)("kept")
        await news_of(watch)
        catalogue = await in_database(current_catalogue)()
        assert list(catalogue.workflows) == ["kept"]
        assert catalogue.revision > before


async def test_other_news_of_the_same_event_are_no_revision():
    has_changed = asyncio.Event()
    with watching_revisions(has_changed) as watch:
        await news_of(watch)
        has_changed.set()
        assert not watch.moved


async def test_while_nobody_watches_there_is_no_look():
    """Also none by a task that goes on by itself, which would ask the database for ever."""
    before = asyncio.all_tasks()
    with watching_revisions(asyncio.Event()):
        with watching_revisions(asyncio.Event()) as second:
            await news_of(second)
        assert exposure._watchers, "the first still watches"
        looking = asyncio.all_tasks() - before
    assert not exposure._watchers
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.wait(looking)


async def test_a_database_that_cannot_be_asked_is_asked_again(logged):
    """As while it is restarted; and it is said once why nobody hears anything, as part of no request."""
    traces.request_id.set("the-first-request")
    with watching_revisions(asyncio.Event()) as watch:
        await news_of(watch)
        await in_database(_rename_table)("catalogue_revision", "elsewhere")
        try:
            await until(lambda: any("Watching the catalogue failed" in line for line in logged))
        finally:
            await in_database(_rename_table)("elsewhere", "catalogue_revision")
        await in_database(make_workflow)()
        await news_of(watch)
    assert sum("Watching the catalogue failed" in line for line in logged) == 1
    assert any("Watching the catalogue works again" in line for line in logged)
    assert not any("the-first-request" in line for line in logged)


def _rename_table(old: str, new: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f'ALTER TABLE "{old}" RENAME TO "{new}"')


async def test_fifty_watchers_share_one_query_per_look(settings, caplog):
    settings.DEBUG = True
    watches = [watching_revisions(asyncio.Event()) for _ in range(50)]
    entered = [watch.__enter__() for watch in watches]
    for watch in entered:
        await news_of(watch)
    with caplog.at_level(logging.DEBUG, "django.db.backends"):
        began = time.monotonic()
        await until(lambda: len(_selects(caplog)) >= 3, "there were some looks")
        took = time.monotonic() - began
        asked = _selects(caplog)
    for watch in watches:
        watch.__exit__(None, None, None)
    assert len(asked) <= took / exposure.LOOK_SECONDS + 2


def _selects(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "SELECT" in line]
