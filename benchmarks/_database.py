"""A migrated, empty database of the benchmark's own."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import dj_database_url


@contextmanager
def own_database(url: str = "") -> Iterator[str]:
    """SQLite in the data folder, or a database created beside the one that a PostgreSQL URL names.

    Sets DATABASE_URL for this process and those it starts, so use it before Django is set up.
    """
    if not url.startswith("postgres"):
        os.environ.pop("DATABASE_URL", None)
        _migrate()
        yield "SQLite"
        return
    import psycopg

    name = f"bench_{os.getpid()}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        try:
            os.environ["DATABASE_URL"] = _with_name(url, name)
            _migrate()
            yield "PostgreSQL"
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _with_name(url: str, name: str) -> str:
    known = dj_database_url.parse(url)["NAME"]
    base, _, options = url.partition("?")
    return base.removesuffix(f"/{known}").rstrip("/") + f"/{name}" + (f"?{options}" if options else "")


def _migrate() -> None:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
