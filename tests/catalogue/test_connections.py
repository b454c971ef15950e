"""One connector per source and event loop, made anew when the settings change, closed when unused."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import certifi
import pytest

from catalogue import connections
from catalogue.connections import close_connectors, connector_for
from catalogue.models import Source
from catalogue.secrets import encrypt_credentials
from connectors.errors import Misconfigured
from connectors.simplified import SimplifiedConnector
from tests.executions.engines import until
from tests.factories import NOWHERE


def a_source(number: int = 1, **fields: Any) -> Source:
    """Never saved: connections need its key and its settings only."""
    given = {"kind": "simplified", "config": {"base_url": NOWHERE}} | fields
    return Source(pk=number, name=f"engine-{number}", **given)


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> list[SimplifiedConnector]:
    """Connectors in the order in which they were closed."""
    closed: list[SimplifiedConnector] = []
    close = SimplifiedConnector.aclose

    async def note(connector: SimplifiedConnector) -> None:
        closed.append(connector)
        await close(connector)

    monkeypatch.setattr(SimplifiedConnector, "aclose", note)
    return closed


@pytest.fixture(autouse=True)
async def _nothing_open() -> AsyncIterator[None]:
    yield
    await close_connectors()


async def test_all_users_of_a_source_share_one_connector(closed):
    """B7"""
    async with connector_for(a_source()) as first, connector_for(a_source()) as second:
        assert first is second
    async with connector_for(a_source()) as later:
        assert later is first
    assert closed == []


async def test_a_renewed_ca_file_takes_effect_with_the_next_call(tmp_path, closed):
    """A connector in use would otherwise refuse the engine's new certificate until a restart."""
    path = tmp_path / "authorities.pem"
    path.write_text(certifi.contents())
    source = a_source(config={"base_url": "https://127.0.0.1:1", "ca_file": str(path)})
    async with connector_for(source) as first:
        pass
    async with connector_for(source) as unchanged:
        assert unchanged is first
    path.write_text(f"{certifi.contents()}# renewed\n")
    async with connector_for(source) as renewed:
        assert renewed is not first
    await until(lambda: closed == [first], "the former one is closed")


async def test_sources_do_not_share_even_with_equal_settings():
    async with connector_for(a_source(1)) as first, connector_for(a_source(2)) as second:
        assert first is not second


@pytest.mark.parametrize(
    "change",
    [{"config": {"base_url": NOWHERE, "min_poll_seconds": 9}}, {"encrypted_credentials": "key"}],
    ids=["settings", "credentials"],
)
async def test_changed_settings_get_a_new_connector_and_an_unused_old_one_is_closed(closed, change):
    """A4.4"""
    if "encrypted_credentials" in change:
        change = {"encrypted_credentials": encrypt_credentials({"api_key": "a-new-key"})}
    async with connector_for(a_source()) as old:
        pass
    async with connector_for(a_source(**change)) as new:
        await asyncio.sleep(0)
        assert new is not old and closed == [old]


async def test_an_old_connector_is_closed_by_the_last_of_its_users(closed):
    """A4.4: a run that is being waited for goes on."""
    changed = a_source(config={"base_url": NOWHERE + "/new"})
    async with connector_for(a_source()) as old:
        async with connector_for(a_source()), connector_for(changed) as new:
            assert closed == []
        assert closed == []
    assert closed == [old]
    async with connector_for(changed) as still:
        assert still is new


async def test_a_user_that_fails_or_is_cancelled_counts_as_done(closed):
    using = asyncio.Event()

    async def wait_for_ever() -> None:
        async with connector_for(a_source()):
            using.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(wait_for_ever())
    await using.wait()
    async with connector_for(a_source(config={"base_url": NOWHERE + "/new"})):
        assert closed == []
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(closed) == 1


async def test_settings_that_cannot_work_leave_the_working_connector_alone(closed):
    """A4.4, B5"""
    async with connector_for(a_source()) as working:
        pass
    with pytest.raises(Misconfigured, match="engine-1 cannot be used: base_url"):
        await connector_for(a_source(config={})).__aenter__()
    with pytest.raises(Misconfigured, match="Unknown kind of source 'none'"):
        await connector_for(a_source(kind="none")).__aenter__()

    async with connector_for(a_source()) as again:
        assert again is working and closed == []


async def test_each_event_loop_has_connectors_of_its_own():
    """B7: a client's connections belong to the loop that opened them."""

    async def identity() -> int:
        try:
            async with connector_for(a_source()) as connector:
                return id(connector)
        finally:
            await close_connectors()

    async with connector_for(a_source()) as ours:
        assert await asyncio.to_thread(asyncio.run, identity()) != id(ours)
        async with connector_for(a_source()) as still_ours:
            assert still_ours is ours


async def test_a_connector_that_nobody_uses_any_more_is_closed(monkeypatch, closed):
    """B7: its source may have been disabled or deleted, and its secrets need not stay in memory."""
    monkeypatch.setattr(connections, "UNUSED_SECONDS", 0.05)
    async with connector_for(a_source(1)) as used:
        async with connector_for(a_source(2)) as unused:
            pass
        await until(lambda: closed, "the unused one is closed")
        assert closed == [unused]
        async with connector_for(a_source(1)) as still:
            assert still is used
    await until(lambda: len(closed) == 2, "the other one is closed once it is unused, too")
    async with connector_for(a_source(2)) as another:
        assert another is not unused


async def test_closing_closes_every_connector_of_the_loop(closed):
    for number in (1, 2, 3):
        async with connector_for(a_source(number)):
            pass

    await close_connectors()

    assert len(closed) == 3
    await close_connectors()
    assert len(closed) == 3


async def test_closing_waits_for_a_former_connector_that_is_being_closed(monkeypatch):
    """Else the program that it started outlives a process that ends right after a change of settings."""
    begun, ended = asyncio.Event(), asyncio.Event()

    class _SlowToClose(SimplifiedConnector):
        async def aclose(self) -> None:
            begun.set()
            for _ in range(100):
                await asyncio.sleep(0)
            await super().aclose()
            ended.set()

    with monkeypatch.context() as patched:
        patched.setattr(connections, "connector_class", lambda _: _SlowToClose)
        async with connector_for(a_source()):
            pass
    async with connector_for(a_source(config={"base_url": NOWHERE + "/new"})):
        pass
    await begun.wait()
    await close_connectors()
    assert ended.is_set()
