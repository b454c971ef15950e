"""An upgrade expands the database first, so that old processes go on while new ones start; what the old ones
use goes in a later release. docs/deployment.md says it to operators,
docs/decisions/0004-installing-and-upgrading.md why."""

import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest
from django.apps import apps
from django.db import models
from django.db.migrations import Migration
from django.db.migrations import operations as ops
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from config.environment import MIGRATE_FIRST
from connectors.testing import free_port
from tests.e2e.product import place_for_one
from tests.executions.engines import wait_until
from tests.processes import running

BEFORE_THE_FIRST_RELEASE = {
    "audit": "0001_squashed_0003",
    "catalogue": "0001_squashed_0019",
    "executions": "0001_squashed_0019",
    "mcp_bridge": "0001_squashed_0012",
    "orchestration": "0001_squashed_0007",
}
"""Up to here nobody has to upgrade without a pause."""
CONTRACTING: set[str] = set()
"""Migrations, as `app.name`, that take away what the release before no longer used."""

REMOVALS = (ops.RemoveField, ops.RenameField, ops.DeleteModel, ops.RenameModel, ops.AlterModelTable)


def refused_by_old_code(operation: Operation, app: str, state: ProjectState) -> str | None:
    """Why processes of the release before would fail after it; `state` is that before it."""
    if isinstance(operation, ops.SeparateDatabaseAndState):
        inner = (refused_by_old_code(part, app, state) for part in operation.database_operations)
        return next(filter(None, inner), None)
    if isinstance(operation, REMOVALS):
        return "they still use what it removes or renames"
    if isinstance(operation, ops.AddField) and _is_required(operation.field):
        return "they add rows without the new column: give it null=True or db_default"
    if isinstance(operation, ops.AlterField):
        return _narrowed(
            state.models[app, operation.model_name_lower].fields[operation.name], operation.field
        )
    if isinstance(operation, ops.AddConstraint | ops.AlterUniqueTogether):
        return "they may write rows that it forbids"
    return None


def _is_required(field: models.Field) -> bool:
    return not (field.many_to_many or field.null) and field.db_default is models.NOT_PROVIDED


def _narrowed(before: models.Field, after: models.Field) -> str | None:
    if before.null and not after.null:
        return "they write NULL into that column"
    if before.get_internal_type() != after.get_internal_type():
        return "they read and write another type"
    if (after.max_length or 0) < (before.max_length or 0) or (after.max_length and not before.max_length):
        return "they write longer texts"
    if after.unique and not before.unique:
        return "they may write rows that it forbids"
    return None


def later_migrations() -> Iterator[tuple[Migration, ProjectState]]:
    """Ours, after those of the first release, each with the state before it."""
    loader = MigrationLoader(None)
    for app, last in BEFORE_THE_FIRST_RELEASE.items():
        for key, migration in loader.disk_migrations.items():
            if key[0] == app and key[1] > last:
                yield migration, loader.project_state(key, at_end=False)


def test_old_processes_go_on_after_each_migration():
    problems = []
    for migration, state in later_migrations():
        name = f"{migration.app_label}.{migration.name}"
        for operation in migration.operations:
            why = refused_by_old_code(operation, migration.app_label, state)
            if why and name not in CONTRACTING:
                problems.append(f"{name}: {operation.describe()}: {why}")
            operation.state_forwards(migration.app_label, state)
    assert not problems, "\n".join(problems)


def test_each_app_with_tables_is_looked_at():
    disk = MigrationLoader(None).disk_migrations
    ours = {app for app, _ in disk if "site-packages" not in apps.get_app_config(app).path}
    assert ours == BEFORE_THE_FIRST_RELEASE.keys()
    assert all((app, name) in disk for app, name in BEFORE_THE_FIRST_RELEASE.items())


@pytest.mark.parametrize(
    ("operation", "refused"),
    [
        (ops.AddField("thing", "new", models.IntegerField(null=True)), False),
        (ops.AddField("thing", "new", models.IntegerField(db_default=0)), False),
        (ops.AddField("thing", "new", models.IntegerField(default=0)), True),
        (ops.AlterField("thing", "text", models.CharField(max_length=30)), False),
        (ops.AlterField("thing", "text", models.CharField(max_length=20, null=True)), False),
        (ops.AlterField("thing", "text", models.CharField(max_length=10)), True),
        (ops.AlterField("thing", "text", models.IntegerField()), True),
        (ops.AlterField("thing", "text", models.CharField(max_length=20, unique=True)), True),
        (ops.AlterField("thing", "maybe", models.IntegerField(default=0)), True),
        (ops.RemoveField("thing", "text"), True),
        (ops.RenameField("thing", "text", "words"), True),
        (ops.DeleteModel("thing"), True),
        (ops.SeparateDatabaseAndState(database_operations=[ops.DeleteModel("thing")]), True),
        (ops.SeparateDatabaseAndState(state_operations=[ops.DeleteModel("thing")]), False),
        (ops.CreateModel("other", [("id", models.AutoField(primary_key=True))]), False),
        (ops.AddIndex("thing", models.Index("text", name="by_text")), False),
    ],
    ids=lambda value: value.describe() if isinstance(value, Operation) else str(value),
)
def test_what_old_code_would_fail_on_is_found(operation, refused):
    state = ProjectState()
    fields = [("text", models.CharField(max_length=20)), ("maybe", models.IntegerField(null=True))]
    ops.CreateModel("thing", fields).state_forwards("shop", state)
    assert bool(refused_by_old_code(operation, "shop", state)) == refused


@pytest.mark.e2e
@pytest.mark.databases("catalogue.database")
def test_a_process_says_at_its_start_that_its_database_was_not_migrated(tmp_path):
    """It said nothing, and answered requests as if the database were away."""
    address, log = f"127.0.0.1:{free_port()}", tmp_path / "log"
    with place_for_one(tmp_path) as variables:
        if "DATABASE_URL" not in variables:
            with closing(sqlite3.connect(tmp_path / "catalogue.sqlite3")) as database, database:
                database.execute("DELETE FROM django_migrations WHERE name = '0008_request_toolset'")
        expected = rf"The database is not up to date: \d+ migrations? (is|are) not applied. {MIGRATE_FIRST}"
        environment = {"DATABASE_URL": "", **variables, "CATALOGUE_METRICS_ADDRESS": address}
        beat = [sys.executable, "manage.py", "beat"]
        with running(beat, answers_at=f"http://{address}/metrics", log=log, environment=environment):
            wait_until(lambda: re.search(expected, log.read_text()), expected)
