"""An engine that says that its listing changed is listed anew, at once, but not as often as it likes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone
from loguru import logger

from catalogue import connections
from catalogue.actions.sources import change_source, switch_sources
from catalogue.connections import (
    MIN_SECONDS,
    MIN_SECONDS_WHILE_FAILING,
    close_connectors,
    connector_for,
    make_due_after_change,
)
from catalogue.discovery import due_sources, refresh_source
from catalogue.models import DiscoveryRun, Source
from tests.engines.workflow_server import WorkflowServer
from tests.executions.engines import in_thread, until
from tests.factories import make_source

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("catalogue.connections"),
]
SECOND = timedelta(seconds=1)


@pytest.fixture
def server() -> Iterator[WorkflowServer]:
    with WorkflowServer().running() as server:
        yield server


@pytest.fixture
def source(server: WorkflowServer) -> Source:
    """Listed a moment ago; the next listing is in minutes."""
    source = Source(name="tools", kind="mcp", config={"url": server.url})
    source.credentials = {}
    source.save()
    return source


@pytest.fixture(autouse=True)
async def _nothing_open() -> AsyncIterator[None]:
    yield
    await close_connectors()


def planned(source: Source) -> datetime | None:
    return Source.objects.get(pk=source.pk).next_refresh_at


def seconds_until_due(source: Source) -> float:
    at = planned(source)
    assert at is not None
    return (at - timezone.now()) / SECOND


def listed(source: Source, *, seconds_ago: float, **fields: Any) -> Source:
    """As a good listing leaves it."""
    at = timezone.now() - seconds_ago * SECOND
    Source.objects.filter(pk=source.pk).update(
        last_refreshed_at=at, next_refresh_at=at + timedelta(minutes=5), **fields
    )
    return source


def test_a_change_makes_the_source_due_at_once():
    """A4.3"""
    source = listed(make_source(), seconds_ago=60)
    assert make_due_after_change(source.pk)
    assert due_sources() == [source.pk]


def test_a_second_change_soon_after_a_listing_waits_a_little():
    """A4.3, B6: whatever an engine tells, it is listed only every few seconds."""
    source = listed(make_source(), seconds_ago=1)
    for _ in range(3):
        assert make_due_after_change(source.pk)
        assert due_sources() == []
        assert MIN_SECONDS - 2 < seconds_until_due(source) <= MIN_SECONDS


def test_a_source_whose_listing_fails_is_not_hastened_beyond_its_first_pause():
    """A5.4: an engine that always tells and never lists is tried every quarter of a minute at most."""
    source = listed(make_source(), seconds_ago=60, failures=5)
    make_due_after_change(source.pk)
    first = planned(source)
    make_due_after_change(source.pk)
    assert planned(source) == first
    assert 0 < seconds_until_due(source) <= MIN_SECONDS_WHILE_FAILING


@pytest.mark.parametrize(
    "prepare",
    [
        lambda source, settings: switch_sources(Source.objects.filter(pk=source.pk), enabled=False),
        lambda source, settings: Source.objects.filter(pk=source.pk).update(refresh_interval=0),
        lambda source, settings: setattr(
            settings, "CATALOGUE", settings.CATALOGUE | {"discovery_enabled": False}
        ),
        lambda source, settings: source.delete(),
    ],
    ids=["switched off", "listed by hand only", "discovery off", "deleted"],
)
def test_what_is_not_listed_by_itself_is_not_listed_because_of_a_change_either(settings, prepare):
    """A4.1"""
    source = listed(make_source(), seconds_ago=60)
    pk, before = source.pk, planned(source)
    prepare(source, settings)
    assert not make_due_after_change(pk)
    assert list(Source.objects.filter(pk=pk).values_list("next_refresh_at", flat=True)) in ([before], [])


def test_a_change_during_a_listing_brings_about_another_one(server, source):
    """A1.1: the listing may have read what changed before it changed."""
    server.before_listing = lambda: make_due_in_thread(source)
    assert refresh_source(source).outcome == DiscoveryRun.Outcome.SUCCEEDED
    assert due_sources() == [source.pk]
    server.before_listing = lambda: None
    assert refresh_source(source).outcome == DiscoveryRun.Outcome.SUCCEEDED
    assert due_sources() == []


def make_due_in_thread(source: Source) -> None:
    """From the server's own thread, whose connection is closed with the change."""
    try:
        with transaction.atomic():
            make_due_after_change(source.pk)
    finally:
        connection.close()


@pytest.mark.parametrize("stateless", [True, False], ids=["2026-07-28", "2025-11-25"])
async def test_a_process_that_has_the_connector_open_hears_of_a_change(stateless):
    """A4.3, B10: whichever process that is."""
    with WorkflowServer(stateless=stateless).running() as server:
        source = await in_thread(saved, server)
        async with connector_for(source) as connector:
            assert (await connector.check()).ok
            await until(lambda: server.is_listened_to, "the server is listened to")
            server.change_tools(added="Added.")
            await until(lambda: due_sources() == [source.pk], "the source is due")
        await close_connectors()


def saved(server: WorkflowServer) -> Source:
    source = Source(name="changing", kind="mcp", config={"url": server.url})
    source.credentials = {}
    source.save()
    return listed(source, seconds_ago=60)


@pytest.mark.parametrize("change", ["switched off", "configured", "deleted"])
async def test_a_source_that_is_switched_off_changed_or_gone_is_listened_to_no_longer(
    monkeypatch, server, source, change
):
    """A4.1, A4.4: though nobody uses it."""
    monkeypatch.setattr(connections, "LOOK_SECONDS", 0.1)
    async with connector_for(source):
        await until(lambda: server.is_listened_to, "the server is listened to")
    changes: dict[str, Callable[[], object]] = {
        "switched off": lambda: switch_sources(Source.objects.filter(pk=source.pk), enabled=False),
        "configured": lambda: change_source(source, config={"url": server.url + "/new"}),
        "deleted": source.delete,
    }
    await in_thread(changes[change])
    await until(lambda: not server.is_listened_to, "the server is let go")
    assert not [task for task in asyncio.all_tasks() if "_retire_after" in repr(task)]


async def test_a_database_that_is_away_for_a_while_is_logged_once_and_is_no_change(monkeypatch, source):
    """A4.1, B9: every process with a connection to the engine looks whether its source is still there."""
    monkeypatch.setattr(connections, "LOOK_SECONDS", 0.05)
    before, lines = await in_thread(planned, source), list[str]()
    sink = logger.add(lines.append, level="INFO")
    try:
        async with connector_for(source):
            await in_thread(rename_sources, "catalogue_source", "elsewhere")
            try:
                await until(lambda: any("Listening to changes" in line for line in lines), "it is logged")
            finally:
                await in_thread(rename_sources, "elsewhere", "catalogue_source")
            await until(lambda: any("works again" in line for line in lines), "its end is logged")
        assert len([line for line in lines if "Listening to changes" in line]) == 2
        assert await in_thread(planned, source) == before
    finally:
        logger.remove(sink)


def rename_sources(old: str, new: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f'ALTER TABLE "{old}" RENAME TO "{new}"')
