"""Watching executions that other processes change: nothing gets lost, and many watchers cost one query."""

import asyncio
import logging
import time
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from catalogue.long_lists import UnknownCursor
from catalogue.models import Workflow
from executions import change_feed as rooms
from executions.change_feed import Watch, watch_until_settled, watching
from executions.models import Execution, State
from executions.reading import UnknownExecution, list_own_executions
from tests.connectors.scripted import replies
from tests.executions.engines import completed, in_thread, until
from tests.executions.steps import ALICE, BOB, advance_due_executions, in_database, make_active, read
from tests.factories import make_execution

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("quick_looks"),
    pytest.mark.databases("executions.change_feed", "executions.reading"),
]

PATIENCE_SECONDS = 20


@pytest.fixture
def running(workflow: Workflow) -> Execution:
    return make_active(workflow, State.RUNNING)


async def change(execution: Execution, **fields: Any) -> None:
    """As another process does it: nobody here is woken."""
    await in_database(Execution.objects.filter(pk=execution.pk).update, **fields)


async def changes_of(watch: Watch) -> list[uuid.UUID]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (changed := await watch.changes()):
            pass
    return changed


async def test_whoever_waits_learns_of_the_end_that_another_process_recorded(running):
    """A8.3, A8.4."""
    heard: list[float | None] = []

    async def hear(execution: Execution) -> None:
        heard.append(execution.progress)
        await change(running, state=State.COMPLETED)

    waiting = asyncio.create_task(
        watch_until_settled(str(running.pk), caller=ALICE, seconds=PATIENCE_SECONDS, on_progress=hear)
    )
    await until(lambda: rooms._watchers, "it is watched")
    await change(running, progress=40.0)

    assert (await waiting).succeeded
    assert heard[-1:] == [40.0]
    assert not rooms._watchers, "nobody watches any more"


@pytest.mark.parametrize("moment", ["before the watch", "before it is read", "after it was read"])
async def test_a_change_at_any_moment_is_noticed(running, moment):
    """The watcher's own reading and the shared look may overtake each other."""
    if moment == "before the watch":
        await change(running, progress=40.0)
    with watching([running.pk]) as watch:
        if moment == "before it is read":
            await change(running, progress=40.0)
        assert await changes_of(watch) == [running.pk]
        seen = await in_database(read, running)
        if moment == "after it was read":
            await change(running, progress=40.0)
        assert watch.saw(seen)
        if moment == "after it was read":
            assert await changes_of(watch) == [running.pk]
            seen = await in_database(read, running)
            assert watch.saw(seen)
        assert not watch.saw(seen), "the same again is no news"
    assert seen.progress == 40.0


async def test_a_look_that_is_older_than_what_the_watcher_knows_costs_a_reading_at_most(running):
    """It was under way while the watcher read a newer state: no news comes of it, and none is lost."""
    old = await in_database(rooms._look_at, [running.pk], refresh=False)
    await change(running, progress=40.0)
    with watching([running.pk]) as watch:
        watch.saw(await in_database(read, running))
        watch.compare(old)
        assert await changes_of(watch) == [running.pk]
        assert not watch.saw(await in_database(read, running))


async def test_an_execution_that_is_removed_while_it_is_watched_is_told_as_unknown(running):
    waiting = asyncio.create_task(
        watch_until_settled(str(running.pk), caller=ALICE, seconds=PATIENCE_SECONDS)
    )
    await until(lambda: rooms._watchers, "it is watched")
    await in_database(running.delete)
    with pytest.raises(UnknownExecution):
        await waiting


async def test_nobody_waits_for_the_execution_of_another_caller(running):
    with pytest.raises(UnknownExecution):
        await watch_until_settled(str(running.pk), caller=BOB, seconds=PATIENCE_SECONDS)
    assert not rooms._watchers


async def test_when_the_time_is_up_the_answer_is_how_far_it_is(running):
    execution = await watch_until_settled(str(running.pk), caller=ALICE, seconds=0.05)
    assert execution.state == State.RUNNING
    assert not rooms._watchers


async def test_an_end_that_a_poll_of_this_process_finds_is_heard_at_once(engine, running, monkeypatch):
    """As over stdio, where the process that answers also does the work. The next look is an hour away."""
    monkeypatch.setattr(rooms, "LOOK_SECONDS", 3600.0)
    engine.on_status = replies(200, completed({"answer": 42}))
    waiting = asyncio.create_task(
        watch_until_settled(str(running.pk), caller=ALICE, seconds=PATIENCE_SECONDS)
    )
    await until(lambda: rooms._watchers, "it is watched")
    assert await in_thread(advance_due_executions) == 1
    assert (await waiting).succeeded


async def test_what_is_watched_is_polled_before_its_turn(running):
    """B7: old runs are polled seldom as long as nobody waits for them; somebody waits for this one."""
    now = timezone.now()
    await change(running, polled_at=now - timedelta(minutes=1), next_attempt_at=now + timedelta(minutes=10))
    with watching([running.pk]):
        await until(lambda: read(running).next_attempt_at <= timezone.now(), "a poll is asked for")


async def test_fifty_watchers_share_one_query_per_look(workflow, running, settings, caplog):
    """B7: however many they are, and however many executions each of them watches."""
    others = [await in_database(make_execution, workflow, state=State.RUNNING) for _ in range(3)]
    keys = [running.pk, *(other.pk for other in others)]
    settings.DEBUG = True
    began = time.monotonic()
    with caplog.at_level(logging.DEBUG, "django.db.backends"):
        waiting = [
            asyncio.create_task(watch_until_settled(str(running.pk), caller=ALICE, seconds=PATIENCE_SECONDS))
            for _ in range(50)
        ]
        with watching(keys) as watch:
            for execution in (running, *others):
                watch.saw(execution)
            await changes_after(watch, running)
            await changes_after(watch, running)
            looks = [
                line
                for line in caplog.messages
                if "SELECT" in line and "payload" not in line and " IN (" in line
            ]
            took = time.monotonic() - began
            await change(running, state=State.COMPLETED)
            assert all(execution.succeeded for execution in await asyncio.gather(*waiting))
    assert 0 < len(looks) <= 2 * took / rooms.LOOK_SECONDS + 3


async def changes_after(watch: Watch, execution: Execution) -> None:
    """Of one whole look, at least."""
    before = await in_database(read, execution)
    await change(execution, progress=(before.progress or 0.0) + 1)
    await changes_of(watch)
    watch.saw(await in_database(read, execution))


def test_a_page_of_a_callers_executions_costs_one_query(workflow, django_assert_num_queries):
    """B3: without payloads, however many there are; nobody else's, whatever the caller may see besides."""
    mine = [make_execution(workflow, caller=ALICE.key) for _ in range(5)]
    Execution.objects.update(created_at=mine[0].created_at)
    make_execution(workflow, caller=BOB.key)
    with django_assert_num_queries(1):
        first = list_own_executions(ALICE, limit=3)
    assert first.next_cursor is not None
    with django_assert_num_queries(1):
        second = list_own_executions(ALICE, limit=3, cursor=first.next_cursor)
    assert second.next_cursor is None
    listed = [execution.pk for execution in (*first.rows, *second.rows)]
    assert sorted(listed) == sorted(execution.pk for execution in mine), "also those of one moment"
    with pytest.raises(UnknownCursor):
        list_own_executions(ALICE, cursor=first.next_cursor[:-4])
