"""The audit without its triggers: for those who may do anything to the database, and for clearing up."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from django.db import connection, transaction

triggers = import_module("audit.migrations.0001_squashed_0003")


@contextmanager
def opened_audit() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM audit_entry UNION ALL SELECT 1 FROM audit_segment LIMIT 1")
        is_empty = cursor.fetchone() is None
    if is_empty:
        yield
        return
    with transaction.atomic():
        triggers.remove(connection)
        yield
        triggers.install(connection)
