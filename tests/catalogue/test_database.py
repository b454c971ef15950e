"""The threads that use the embedded database, and their connections."""

import os
import sqlite3
import threading

import pytest
from django.db import connection

from tests.processes import run_python

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL's connections are in a pool"),
]


def test_a_thread_that_ends_closes_its_connection():
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


WAITING_THREAD = """
import threading
from django.db import connection
connected = threading.Event()
def wait():
    connection.ensure_connection()
    connected.set()
    threading.Event().wait()
threading.Thread(target=wait, daemon=True).start()
connected.wait()
"""


@pytest.mark.e2e
def test_a_process_that_ends_while_a_thread_is_connected_says_nothing(tmp_path):
    """B5: a worker printed a traceback at its end, because its heartbeat is such a thread."""
    environment = os.environ | {"CATALOGUE_DATA_DIR": str(tmp_path), "DATABASE_URL": ""}
    done = run_python(["manage.py", "shell", "-c", WAITING_THREAD], environment=environment)
    assert (done.returncode, done.stderr) == (0, "")
