"""What the product's own backend of PostgreSQL changes."""

import copy
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from django.db import OperationalError, connection

from catalogue.database_problems import describe_outage, is_exhausted
from config.postgresql import base
from config.postgresql.base import DatabaseWrapper
from config.settings import POSTGRES_OPTIONS
from connectors.testing import free_port

WAIT_SECONDS = 7.0  # For the pool, which gives up after five


class Gateway:
    """Between the product and the server: what is away for the product runs on for the other tests."""

    def __init__(self, host: str, port: int) -> None:
        self._server, self._sockets = (host, port), []
        self.port = free_port()

    def open(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client = listener.accept()[0]
                server = socket.create_connection(self._server)
                self._sockets += [client, server]
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)

    def close(self) -> None:
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._sockets = []


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite is no server")
    settings = connection.settings_dict
    made = Gateway(settings["HOST"] or "127.0.0.1", int(settings["PORT"] or 5432))
    made.open()
    yield made
    made.close()


@pytest.fixture
def database(gateway: Gateway) -> Iterator[DatabaseWrapper]:
    """Through the gateway."""
    settings = copy.deepcopy(connection.settings_dict)
    settings |= {"HOST": "127.0.0.1", "PORT": gateway.port, "CONN_HEALTH_CHECKS": True}
    settings["OPTIONS"] |= {"pool": POSTGRES_OPTIONS["pool"] | {"timeout": WAIT_SECONDS}}
    made = DatabaseWrapper(settings, f"through port {gateway.port}")
    yield made
    made.close_pool()


def query(database: DatabaseWrapper) -> tuple[float, str]:
    """How many seconds it took, and the error."""
    started = time.monotonic()
    try:
        with database.cursor() as cursor:
            cursor.execute("SELECT 1")
    except OperationalError as error:
        return time.monotonic() - started, str(error)
    finally:
        database.close()
    return time.monotonic() - started, ""


@pytest.mark.databases("config.postgresql")
@pytest.mark.django_db
def test_a_server_that_is_away_is_told_at_once_and_used_at_once_when_it_is_back(
    gateway, database, monkeypatch
):
    assert query(database)[1] == ""
    gateway.close()
    query(database)  # The pool tries for some seconds, as while a server restarts

    away = [query(database) for _ in range(5)]
    gateway.open()
    monkeypatch.setattr(base, "RETRY_SECONDS", 0.0)
    back = query(database)

    assert max(seconds for seconds, _ in away) < WAIT_SECONDS / 2
    assert all("refused" in problem for _, problem in away)
    assert back[1] == ""
    assert back[0] < WAIT_SECONDS / 2


@pytest.mark.databases("config.postgresql")
@pytest.mark.django_db
def test_a_dead_connection_that_a_thread_still_holds_does_not_hide_that_the_server_is_away(gateway, database):
    """In workers, one usually does."""
    holder = database.copy()
    holder.ensure_connection()
    assert query(database)[1] == ""
    gateway.close()
    query(database)

    away = [query(database) for _ in range(2)]
    holder.close()

    assert max(seconds for seconds, _ in away) < WAIT_SECONDS / 2


@pytest.mark.databases("config.postgresql")
@pytest.mark.django_db
def test_a_pool_whose_connections_are_all_in_use_is_not_taken_for_a_server_that_is_away(gateway):
    settings = copy.deepcopy(connection.settings_dict) | {"HOST": "127.0.0.1", "PORT": gateway.port}
    settings["OPTIONS"] |= {"pool": POSTGRES_OPTIONS["pool"] | {"timeout": 0.2, "max_size": 1}}
    waiting = DatabaseWrapper(settings, f"exhausted, through port {gateway.port}")
    holder = waiting.copy()

    def refusal() -> OperationalError:
        with pytest.raises(OperationalError) as refused:
            waiting.ensure_connection()
        return refused.value

    try:
        holder.ensure_connection()
        busy = refusal()
        holder.close()
        gateway.close()
        waiting.settings_dict["OPTIONS"]["pool"]["timeout"] = WAIT_SECONDS
        waiting.close_pool()
        away = refusal()
    finally:
        holder.close()
        waiting.close_pool()

    assert is_exhausted(busy) and not is_exhausted(away)
    assert describe_outage(busy, method="GET") != describe_outage(away, method="GET")
