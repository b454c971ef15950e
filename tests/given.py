"""What every test gets."""

import asyncio
import fcntl
import math
import shutil
import sqlite3
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from django.conf import settings
from django.core.management.commands import migrate as migrate_command
from django.db import connection, transaction
from django.template import Context, RequestContext, Template
from django.test import TransactionTestCase
from django.test.utils import instrumented_test_render, override_settings
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased
from pytest_django import DjangoDbBlocker
from whitenoise.middleware import WhiteNoiseMiddleware

from access.rates import forget_rates
from catalogue import connections
from catalogue.descriptions import forget_outages
from catalogue.exposure import forget_catalogue
from catalogue.product_settings import keep_settings
from config.monitoring import forget_measures
from executions.asking import end_readers
from executions.failure_spikes import find_spikes
from executions.runner.schedule import forget_runs
from executions.starting import forget_admissions
from executions.statistics import forget_past_days
from identity import doorkeeper
from identity.authentication import forget_pauses
from identity.bearers import forget_bearers
from identity.external_tokens import forget_outside
from identity.tokens import forget_uses
from mcp_bridge.card_tools import find_usual_seconds, has_pages, summarise_past
from telemetry import traces
from telemetry.sampling import AtMost
from tests.audit.opened import opened_audit
from tests.engines.job_engines.servers import job_engine_servers
from tests.engines.prefect.server import prefect_server
from tests.engines.temporal.server import temporal_server
from tests.migrated import keep, kept_database
from tests.processes import ExampleEngine, running_example_engine

# A module that imports such a fixture has a server of its own, whatever its scope.
__all__ = ["job_engine_servers", "prefect_server", "temporal_server"]

# How long an example takes says more of the machine than of the code.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    """Processes remember the catalogue, tokens and what runs for a moment; tests come faster than that."""
    forget_catalogue()
    _forget()
    yield
    _forget()
    _close_connectors()


def _forget() -> None:
    forget_catalogue()
    forget_past_days()
    find_spikes.cache_clear()
    for remembered in (summarise_past, find_usual_seconds, has_pages):
        remembered.cache_clear()
    forget_measures()
    forget_runs()
    # Not read again: tests count queries, and many of them have no database.
    keep_settings({}, seconds=math.inf)
    forget_outages()
    forget_bearers()
    forget_uses()
    end_readers()
    forget_rates()
    forget_outside()
    forget_pauses()
    doorkeeper.doorkeeper.forget()
    # Who guesses in a test is not what it waits for.
    doorkeeper.HOLD_SECONDS = doorkeeper.PACE_SECONDS = doorkeeper.REFUSAL_SECONDS = 0.0
    forget_admissions()


def _close_connectors() -> None:
    """Those of the background loop and of servers in this process, which would outlive the test's engine."""
    for loop in list(connections._connectors):
        if loop.is_running():
            closing = asyncio.run_coroutine_threadsafe(connections.close_connectors(), loop)
            closing.result(connections.CLOSING_SECONDS)


KEPT_TABLES = {"django_migrations", "django_content_type", "auth_permission", "catalogue_role"}
"""Written by migrations; the same for every test."""
OF_ROLES = {
    "auth_group": "id NOT IN (SELECT group_id FROM catalogue_role)",
    "auth_group_permissions": "group_id NOT IN (SELECT group_id FROM catalogue_role)",
}
"""The rows to delete of the tables that also have rows of roles."""


@cache
def _deletions() -> list[str]:
    tables = sorted(set(connection.introspection.django_table_names(only_existing=False)) - KEPT_TABLES)
    return [
        f"DELETE FROM {connection.ops.quote_name(table)} WHERE {OF_ROLES.get(table, '1 = 1')}"
        for table in tables
    ]


def _delete_rows(_: TransactionTestCase) -> None:
    """What Django does by `flush`, whose `post_migrate` writes permissions and content types anew each time.

    On small tables DELETE is also much faster than PostgreSQL's TRUNCATE: 2 ms instead of 130. Sent to it
    together they take a third of the time that they take one by one. SQLite executes one statement at a time,
    and takes half as long without Django's cursors.
    """
    with opened_audit(), transaction.atomic():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("; ".join(_deletions()))
        else:
            for statement in _deletions():
                connection.connection.execute(statement)


def _is_reset_by_reconnecting(_: TransactionTestCase) -> bool:
    """Connections to SQLite have no state that a rollback could change; a new one costs each test 2 ms."""
    return connection.vendor != "sqlite"


TransactionTestCase._fixture_teardown = _delete_rows  # type: ignore[method-assign]
TransactionTestCase._should_reload_connections = _is_reset_by_reconnecting  # type: ignore[method-assign]


@pytest.fixture(scope="session", autouse=True)
def _static_files_found_once() -> Iterator[None]:
    """WhiteNoise looks for static files once in each process that serves; tests make many clients."""
    search = WhiteNoiseMiddleware.add_files_from_finders
    found: dict[str, object] = {}

    def search_once(middleware: WhiteNoiseMiddleware) -> None:
        if not found:
            search(middleware)
            found.update(middleware.files)
        middleware.files.update(found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WhiteNoiseMiddleware, "add_files_from_finders", search_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def _quick_passwords(django_test_environment: None) -> Iterator[None]:
    """Hashing one as the product does takes 0.3 s of CPU; one that was hashed so can still be checked."""
    quick = "django.contrib.auth.hashers.MD5PasswordHasher"
    with override_settings(PASSWORD_HASHERS=[quick, *settings.PASSWORD_HASHERS]):
        yield


@pytest.fixture(scope="session", autouse=True)
def _contexts_of_pages_only(django_test_environment: None) -> Iterator[None]:
    """The test client copies every template's context: a sixth of the time of a page of the admin."""

    def render(template: Template, context: Context) -> str:
        if isinstance(context, RequestContext) and context.template is template:
            return instrumented_test_render(template, context)
        return template.nodelist.render(context)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Template, "_render", render)
        yield


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> InMemorySpanExporter:
    """What a collector of traces would get: all, or a parameter's number of new traces a second."""
    sampler = ParentBased(AtMost(request.param)) if hasattr(request, "param") else None
    exporter, provider = InMemorySpanExporter(), TracerProvider(sampler)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(traces, "_tracer", provider.get_tracer(traces.SERVICE))
    monkeypatch.setattr(traces, "_exporting", [provider])
    return exporter


@pytest.fixture(scope="session")
def example_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExampleEngine]:
    """The engine of examples/engine as a process; it keeps the runs of earlier tests."""
    with running_example_engine(tmp_path_factory.mktemp("engine")) as engine:
        yield engine


OTHER_SESSIONS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.fixture(scope="session")
def _migrated_once() -> Iterator[None]:
    """Each worker's database is a copy of the one that an earlier run has made as a first start does."""
    migrate = migrate_command.Command.handle

    def migrate_or_copy(command: migrate_command.Command, *args: Any, **options: Any) -> None:
        database = Path(connection.settings_dict["NAME"])
        kept_database().parent.mkdir(parents=True, exist_ok=True)
        with kept_database().with_name("lock").open("w") as lock:
            # Of several workers one makes it, and the others wait for its result.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if kept_database().exists():
                shutil.copyfile(kept_database(), database)
                return
            migrate(command, *args, **options)
            keep(database)

    with pytest.MonkeyPatch.context() as patch:
        if connection.vendor == "sqlite":
            patch.setattr(migrate_command.Command, "handle", migrate_or_copy)
        yield


@pytest.fixture(scope="session")
def django_db_setup(
    _migrated_once: None, django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> Iterator[None]:
    """PostgreSQL drops no database that the connections of servers and their threads are open to."""
    yield
    if connection.vendor == "postgresql":
        with django_db_blocker.unblock(), connection.cursor() as cursor:
            cursor.execute(OTHER_SESSIONS)
        connection.close()
        connection.close_pool()


@pytest.fixture
def few_parameters(db: None) -> Iterator[int]:
    """How many a statement on SQLite may have during the test: hardly more than Django uses for many rows."""
    most = 1_000
    if connection.vendor != "sqlite":
        yield most
        return
    connection.ensure_connection()
    before = connection.connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, most)
    yield most
    connection.connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, before)
