"""The tables of a database: made and changed by the product itself where nobody else is there to do so."""

import fcntl
import sys
from collections.abc import Callable

from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from loguru import logger


def bring_up_to_date(say: Callable[[str], None]) -> None:
    """Make the tables that the database lacks, silently where it lacks none.

    `say` hears of it before. Processes of one data folder take turns. Raises OperationalError.
    """
    with (settings.DATA_DIR / "migrations.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        executor = MigrationExecutor(connection)
        if executor.migration_plan(executor.loader.graph.leaf_nodes()):
            say("Bringing the database up to date ...")
            # Standard output may be a client's.
            call_command("migrate", verbosity=0, interactive=False, stdout=sys.stderr)


def make_embedded_database() -> None:
    """Make the tables of an SQLite database that has none; one that has some may belong to other code."""
    if connection.vendor == "sqlite" and not connection.introspection.table_names():
        bring_up_to_date(logger.info)


def prepare_embedded_database() -> None:
    """Bring an SQLite database up to date, as nobody else may be there to do so; servers have operators."""
    if connection.vendor == "sqlite":
        bring_up_to_date(logger.info)
