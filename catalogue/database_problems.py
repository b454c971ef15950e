"""Decides what a request is answered with, and what the log says, when the database cannot be queried: its
server is away, or it lacks a table or column because this version was started before `migrate`."""

import re

from django.conf import settings
from django.db import connection
from django.db.utils import DatabaseError, IntegrityError, InterfaceError, OperationalError
from loguru import logger

from telemetry import metrics

EXHAUSTED = "Busy: all of this process's connections to its database are in use. Try again in a few seconds."
NO_DATABASE = "The catalogue's database is unavailable at present: try again in a few seconds."
NOT_READY = "The catalogue is not ready: its administrator has yet to finish its installation or update."
TAKEN = "Another request used the same name or key at the same moment. Look at the list, and try again."
LOOK_FIRST = "It is not known whether this request changed or started anything. Check before you repeat it."
MORE_CONNECTIONS = (
    "All connections of this process are in use: look for slow or blocked queries in pg_stat_activity, raise "
    "CATALOGUE_DATABASE_CONNECTIONS, or run more processes"
)
UNDEFINED = ("42P01", "42703")  # PostgreSQL's codes of missing tables and columns

IS_RIGHT = "Is DATABASE_URL right, and is its server running?"
PROBLEMS = (  # In the words of SQLite, PostgreSQL and libpq; what they mean, and what helps
    ("Connection refused", "the connection was refused", IS_RIGHT),
    ("No such file", "no server listens on that socket", IS_RIGHT),
    ("resolve host|translate host", "the host is unknown", "Correct it in DATABASE_URL, or in the DNS."),
    ("timeout expired|timed out|closed the|unreachable", "the server does not respond", IS_RIGHT),
    ('database ".*" does not exist', "the server does not have it", "Create it, or correct DATABASE_URL."),
    ("password|authentication", "the user or its password is wrong", "Correct it in DATABASE_URL."),
    ('role ".*"|user ".*"', "the server does not admit this user", "See its roles and its pg_hba.conf."),
    ("too many|connection slots", "the server has no connection left", "See its max_connections."),
    ("starting up|shutting down", "the server is starting or stopping", "Try again in a moment."),
    ("disk is full", "the disk is full", "Make space on the disk."),
    ("disk I/O", "the disk is full or broken", "Look for space on it, and for errors in the system's log."),
    ("readonly", "it is read-only", "Make the file and its folder writable for this user."),
)


def describe_problem(error: BaseException) -> str:
    """Names the database, the cause and what helps."""
    reason, database = str(error).partition("\n")[0], connection.settings_dict
    name, advice = database["NAME"], IS_RIGHT
    if connection.vendor == "sqlite":
        advice = f"Is {name} the right file, and can this user write it and its folder?"
    else:
        name += f" at {database['HOST'] or 'the local socket'}:{database['PORT'] or 5432}"
    for words, cause, helps in PROBLEMS:
        if re.search(words, reason):
            return f"The database cannot be used: {cause} ({name}). {helps} The error was: {reason}"
    return f"The database cannot be used: {reason} ({name}). {advice} {settings.MIGRATE_FIRST}"


def is_not_migrated(error: BaseException | None) -> bool:
    if not isinstance(error, DatabaseError):
        return False
    sqlstate, reason = getattr(error.__cause__, "sqlstate", ""), str(error)
    begins, contains = ("no such table", "no such column"), "has no column named"  # Of SQLite
    return sqlstate in UNDEFINED or reason.startswith(begins) or contains in reason


def is_taken(error: BaseException | None) -> bool:
    """Returns whether another transaction made a row with the same name or key first."""
    if not isinstance(error, IntegrityError):
        return False
    return str(error).startswith("UNIQUE constraint") or getattr(error.__cause__, "sqlstate", "") == "23505"


def is_exhausted(error: BaseException | None) -> bool:
    """No connection of the pool became free in time, and the server is not away."""
    # By name: with SQLite, importing the class would take megabytes for nothing.
    return error is not None and type(error.__cause__).__name__ == "PoolTimeout"


def is_unusable(error: BaseException | None) -> bool:
    """Returns whether the error is of the database, and no bug that the same request would meet again."""
    return isinstance(error, OperationalError | InterfaceError) or is_not_migrated(error)


def describe_outage(error: BaseException | None, *, method: str | None) -> str:
    """Returns the answer to a request of this HTTP method."""
    reason = NOT_READY if is_not_migrated(error) else EXHAUSTED if is_exhausted(error) else NO_DATABASE
    return reason if method in ("GET", "HEAD", "OPTIONS") else f"{reason} {LOOK_FIRST}"


def count_outage(error: BaseException | None) -> None:
    cause = "not_migrated" if is_not_migrated(error) else "exhausted" if is_exhausted(error) else "away"
    metrics.database_refusals.labels(cause).inc()


def log_outage(request: str, error: BaseException) -> None:
    count_outage(error)
    reason = str(error).partition("\n")[0]
    advice = (
        settings.MIGRATE_FIRST if is_not_migrated(error) else MORE_CONNECTIONS if is_exhausted(error) else ""
    )
    log = logger.bind(recurring=reason)
    log.error("{} cannot be answered without the database: {}{}", request, reason, advice and f". {advice}")
