"""The threads that use the embedded database, and their connections."""

import sqlite3
import threading

import pytest
from django.db import connection

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL's connections are in a pool"),
]


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
