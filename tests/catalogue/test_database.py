"""The threads that use the embedded database: their turns, and their connections."""

import asyncio
import sqlite3
import threading

import pytest
from django.db import connection, transaction

from catalogue.database import in_turn, run_in_database

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "sqlite", reason="Only SQLite has a single writer"),
]


async def test_writers_take_turns() -> None:
    """E7: who waits for the writer is woken when it ends, and does not try again and again."""
    begun, may_end, written = threading.Event(), threading.Event(), threading.Event()

    @in_turn
    def first() -> None:
        begun.set()
        may_end.wait()

    one = run_in_database(first)
    await asyncio.to_thread(begun.wait)
    two = run_in_database(in_turn(written.set))
    try:
        assert not await asyncio.to_thread(written.wait, 0.1)
    finally:
        may_end.set()
        await asyncio.gather(one, two)
    assert written.is_set()


async def test_a_transaction_that_is_open_already_waits_for_nobodys_turn() -> None:
    """It may have the writer's lock, for which whoever has the turn would wait for ever."""
    begun, may_end = threading.Event(), threading.Event()

    @in_turn
    def with_the_turn() -> None:
        begun.set()
        may_end.wait()

    def within_a_transaction() -> str:
        with transaction.atomic():
            return in_turn(lambda: "written")()

    one = run_in_database(with_the_turn)
    await asyncio.to_thread(begun.wait)
    try:
        assert await run_in_database(within_a_transaction) == "written"
    finally:
        may_end.set()
        await one


def test_a_thread_that_ends_closes_its_connection() -> None:
    """B7: the web process's threads come and go, and full collections of garbage are rare."""
    opened: list[sqlite3.Connection] = []

    def connect() -> None:
        connection.ensure_connection()
        opened.append(connection.connection)

    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        opened[0].execute("SELECT 1")
