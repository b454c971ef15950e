"""Which database and broker the product runs on, and what can happen to them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import redis
from kombu import Connection

from config.celery import queue_name
from dev.chaos.programs import ROOT

REDIS_DATABASES = range(1, 12)
"""Those that a run may take if they are empty; tests use the higher ones."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class StackName(StrEnum):
    SQLITE = "sqlite"
    POSTGRES_REDIS = "postgres-redis"
    POSTGRES_RABBITMQ = "postgres-rabbitmq"


class Restart(StrEnum):
    SERVER = "server"
    CONNECTIONS = "connections"


class Unavailable(Exception):
    """The stack cannot be had here; the message says what is missing."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A database of this run's own, and a broker."""

    name: StackName
    database_url: str = field(default="", repr=False)
    broker_url: str = field(default="", repr=False)

    @property
    def variables(self) -> dict[str, str]:
        named = {"DATABASE_URL": self.database_url, "CELERY_BROKER_URL": self.broker_url}
        return {name: url for name, url in named.items() if url}

    def flush_broker(self, *, data_dir: Path, secret_key: str) -> None:
        """Lose every message."""
        match self.name:
            case StackName.SQLITE:
                for message in (data_dir / "broker" / "messages").glob("*.msg"):
                    message.unlink(missing_ok=True)
            case StackName.POSTGRES_REDIS:
                redis.Redis.from_url(self.broker_url).flushdb()
            case StackName.POSTGRES_RABBITMQ:
                with Connection(self.broker_url) as broker:
                    channel: Any = broker.default_channel
                    channel.queue_purge(queue_name(secret_key))

    def restart_database(self, how: Restart) -> str:
        """Restart the server, or what the product sees of that; returns which it was."""
        if self.name is StackName.SQLITE:
            raise Unavailable("SQLite has no server that could be restarted.")
        if how is Restart.SERVER and (restart := _restart_of_server(self.database_url)):
            subprocess.run(restart, check=True, capture_output=True)
            return f"the server was restarted ({' '.join(restart)})"
        ended = _end_connections(self.database_url)
        return f"{ended} connections were terminated"


def choose_name() -> StackName:
    """The stack that DATABASE_URL and CELERY_BROKER_URL name."""
    if not os.environ.get("DATABASE_URL", "").startswith("postgres"):
        return StackName.SQLITE
    broker = os.environ.get("CELERY_BROKER_URL", "")
    return StackName.POSTGRES_RABBITMQ if broker.startswith("amqp") else StackName.POSTGRES_REDIS


@contextmanager
def own_stack(name: StackName) -> Iterator[Stack]:
    """The stack with a new, empty database, which is dropped in the end. Raises Unavailable."""
    if name is StackName.SQLITE:
        yield Stack(name=name)
        return
    server, broker = _find_servers(name)
    if name is StackName.POSTGRES_REDIS:
        broker = _empty_redis_database(broker)
    with _own_database(server) as database:
        stack = Stack(name=name, database_url=database, broker_url=broker)
        try:
            yield stack
        finally:
            _clean_up(stack)


def _find_servers(name: StackName) -> tuple[str, str]:
    """Of the environment if it names this stack, else those that this machine runs for tests."""
    if choose_name() is name and os.environ.get("CELERY_BROKER_URL"):
        return os.environ["DATABASE_URL"], os.environ["CELERY_BROKER_URL"]
    command = [sys.executable, "dev/scripts/find_services.py", name.value]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        raise Unavailable(found.stderr.strip())
    urls = dict(line.split("=", 1) for line in found.stdout.split())
    return urls["DATABASE_URL"], urls["CELERY_BROKER_URL"]


@contextmanager
def _own_database(server: str) -> Iterator[str]:
    name = f"catalogue_chaos_{os.getpid()}"
    with psycopg.connect(_beside(server, "postgres"), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    try:
        yield _beside(server, name)
    finally:
        # Another connection: that one may be gone since the server was restarted.
        with psycopg.connect(_beside(server, "postgres"), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _beside(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def _empty_redis_database(url: str) -> str:
    """Marked as taken: of two runs that begin together each gets its own."""
    for number in REDIS_DATABASES:
        candidate = _beside(url, str(number))
        with redis.Redis.from_url(candidate, socket_timeout=5) as client:
            if not client.dbsize() and client.set("taken-by-chaos", os.getpid(), nx=True):
                return candidate
    raise Unavailable(f"None of Redis's databases {REDIS_DATABASES[0]} to {REDIS_DATABASES[-1]} is empty.")


def _clean_up(stack: Stack) -> None:
    if stack.name is StackName.POSTGRES_REDIS:
        redis.Redis.from_url(stack.broker_url).flushdb()


def _restart_of_server(url: str) -> list[str]:
    """The command that restarts it; empty where this user may not, or where it is not of this machine."""
    parts = urlsplit(url)
    if os.geteuid() or parts.hostname not in LOOPBACK or not shutil.which("pg_lsclusters"):
        return []
    listed = subprocess.run(["pg_lsclusters", "--no-header"], capture_output=True, text=True, check=True)
    for version, cluster, port, status, *_ in map(str.split, listed.stdout.splitlines()):
        if int(port) == (parts.port or 5432) and status.startswith("online"):
            options = ["--skip-systemctl-redirect", version, cluster, "restart", "-m", "fast"]
            return ["pg_ctlcluster", *options]
    return []


def _end_connections(url: str) -> int:
    name = urlsplit(url).path.strip("/")
    with psycopg.connect(_beside(url, "postgres"), autocommit=True) as connection:
        ended = connection.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s", [name]
        ).fetchone()
    return int(ended[0]) if ended else 0
