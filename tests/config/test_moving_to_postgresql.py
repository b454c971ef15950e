"""A backup of the embedded database in PostgreSQL: every row as it was, and what is refused."""

import io
import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.apps import apps
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import Group, Permission, User
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.utils import timezone
from oauth2_provider.models import AccessToken, Application, Grant, RefreshToken

from catalogue.models import Source
from executions.models import Execution
from tests.admin.window import make_everything
from tests.config.test_backup import manage
from tests.e2e.product import scratch_database
from tests.migrated import copy_migrated
from tests.processes import ExampleEngine, run_python

pytestmark = [
    pytest.mark.timeout(300),  # Its fixture migrates two databases
    pytest.mark.databases("config.backup"),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="for PostgreSQL"),
]
PASSWORD = "correct horse battery"
WRITTEN_ALIKE = {
    *("AutoField", "BigAutoField", "BigIntegerField", "IntegerField", "FloatField", "BooleanField"),
    *("PositiveBigIntegerField", "PositiveIntegerField", "PositiveSmallIntegerField"),
    *("CharField", "TextField", "JSONField", "UUIDField", "DateTimeField", "ForeignKey", "OneToOneField"),
}
"""Types of fields whose SQLite form PostgreSQL reads. Durations, decimals and bytes are not among them."""


@dataclass(frozen=True)
class Filled:
    """An embedded product in which everything has happened, and its backup."""

    folder: Path
    backup: Path
    url: str
    """Of a PostgreSQL database that was migrated, for copies of it."""
    session: str
    token: str
    last_user: int
    """Was deleted."""


def within(
    program: Callable[..., None], folder: Path, *arguments: Any, url: str = "", **variables: str
) -> Any:
    """What the function prints as JSON, in a process of the product with that database."""
    words = f"import django; django.setup(); from {__name__} import {program.__name__} as program; "
    own = {"CATALOGUE_DATA_DIR": str(folder), "DATABASE_URL": url, "CELERY_BROKER_URL": "", "SECRET_KEY": ""}
    outcome = run_python(
        ["-c", f"{words} program(*{arguments!r})"],
        environment=os.environ | own | variables | {"DJANGO_SETTINGS_MODULE": "config.settings"},
    )
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)


def fill(base_url: str) -> None:
    """Whatever `make_everything` has, what only Django and the library for OAuth write, and a call.

    Prints a session, a token, and the id of a user who is gone.
    """
    user = User.objects.create_superuser("admin", password=PASSWORD)
    make_everything(user)
    browser = Client()
    browser.force_login(user)
    clerk = User.objects.get(username="clerk")
    clerk.user_permissions.add(Permission.objects.get(codename="view_source"))
    LogEntry.objects.create(
        user=user,
        content_type=ContentType.objects.get_for_model(Source),
        object_id="1",
        object_repr='"good", \\N\t\r\n\u2028\U0001f600',
        action_flag=CHANGE,
    )
    application, expires = Application.objects.first(), timezone.now()
    owned = {"user": user, "application": application, "scope": "workflows:read"}
    access = AccessToken.objects.create(
        **owned, token="a", expires=expires, resource=["https://a.example/mcp"]
    )
    RefreshToken.objects.create(user=user, application=application, token="r", access_token=access)
    Grant.objects.create(**owned, code="c", expires=expires, redirect_uri="https://a.example/")
    Execution.objects.filter(state="completed").update(progress=99.5)
    leaver = User.objects.create(username="last")
    last_user = leaver.pk
    leaver.delete()
    config, secret = json.dumps({"base_url": base_url}), ["--secret-env", "api_key=ENGINE_KEY"]
    quietly("add_source", "engine", "simplified", "--config", config, *secret)
    quietly("refresh_sources", "engine")
    quietly("enable_workflows", "--source", "engine", "--all")
    quietly("call_tool", "text_statistics", '{"text": "before \\u0000"}')
    token = quietly("create_mcp_token", "mover", "--scope", "catalogue:read").split()[0]
    quietly("seal_audit")
    print(json.dumps([browser.cookies["sessionid"].value, token, last_user]))


def quietly(*words: str) -> str:
    output = io.StringIO()
    call_command(*words, stdout=output, stderr=io.StringIO())
    return output.getvalue()


def dump() -> None:
    """Each table's rows as the product reads them."""
    models = apps.get_models(include_auto_created=True)
    rows = {model._meta.db_table: model._base_manager.values_list() for model in models}
    print(json.dumps({table: sorted(map(repr, found)) for table, found in rows.items()}))


def look(session: str, token: str) -> None:
    """What a browser and an agent with what they had before are answered, and the ids of new rows."""
    before, anew = Client(headers={"host": "localhost"}), Client(headers={"host": "localhost"})
    before.cookies["sessionid"] = session
    agent = Client(headers={"host": "localhost", "authorization": f"Bearer {token}"})
    role = Group.objects.get(role__name="curator")
    answers = {
        "session": before.get("/admin/catalogue/source/").status_code,
        "login": anew.login(username="admin", password=PASSWORD),
        "token": agent.get("/api/workflows/").status_code,
        "of a curator": sorted(role.permissions.values_list("codename", flat=True)),
        "of the clerk": [*User.objects.get(username="clerk").get_user_permissions()],
        "of the log": str(LogEntry.objects.get().content_type),
        "new user": User.objects.create(username="new").pk,
        "new group": Group.objects.create(name="new").pk,
    }
    print(json.dumps(answers))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, example_engine: ExampleEngine) -> Iterator[Filled]:
    folder = tmp_path_factory.mktemp("embedded")
    copy_migrated(folder / "catalogue.sqlite3")
    key = {"ENGINE_KEY": example_engine.api_key}
    session, token, last_user = within(fill, folder, example_engine.base_url, **key)
    manage(folder, "backup", str(folder / "b.tar"))
    with scratch_database(os.environ["DATABASE_URL"]) as url:
        manage(folder, "migrate", "--verbosity=0", DATABASE_URL=url)
        yield Filled(folder, folder / "b.tar", url, session, token, last_user)


@pytest.fixture
def empty(filled: Filled) -> Iterator[str]:
    """The URL of a PostgreSQL database that was migrated and nothing else."""
    with scratch_database(os.environ["DATABASE_URL"], template=filled.url.rpartition("/")[2]) as url:
        yield url


def refused(filled: Filled, folder: Path, url: str, *words: str, **variables: str) -> str:
    told = manage(folder, "restore", str(filled.backup), *words, fails=True, DATABASE_URL=url, **variables)
    assert "Nothing was changed" in told and "Traceback" not in told
    return told


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as database:
        for statement in statements:
            database.execute(statement)


def rows(url: str) -> dict[str, list[str]]:
    with psycopg.connect(url) as database:
        return {
            model._meta.db_table: sorted(map(repr, database.execute(f"SELECT * FROM {model._meta.db_table}")))
            for model in apps.get_models(include_auto_created=True)
        }


def edited(filled: Filled, folder: Path, *statements: str) -> Path:
    """A backup of the embedded database with other rows."""
    folder.mkdir()
    shutil.copy(filled.folder / "secret_key", folder)
    with closing(sqlite3.connect(filled.folder / "catalogue.sqlite3")) as source:
        source.execute("VACUUM INTO ?", [str(folder / "catalogue.sqlite3")])
    with closing(sqlite3.connect(folder / "catalogue.sqlite3")) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
    manage(folder, "backup", str(folder / "b.tar"))
    return folder / "b.tar"


def test_each_column_is_of_a_type_that_both_databases_write_alike():
    types = {
        field.get_internal_type()
        for model in apps.get_models(include_auto_created=True)
        for field in model._meta.local_concrete_fields
    }
    assert types <= WRITTEN_ALIKE


def test_everything_is_in_postgresql_after_a_backup_and_a_restore(filled, empty, tmp_path):
    commands = [f"backup {tmp_path}/all.tar", "migrate", f"restore {tmp_path}/all.tar", "verify_audit"]
    # Content types and permissions have the ids that each database gave them, and servers their own clocks.
    execute(
        empty,
        f"ALTER DATABASE {empty.rpartition('/')[2]} SET timezone TO 'Asia/Kolkata'",
        "BEGIN; UPDATE django_content_type SET id = id + 1000; UPDATE auth_permission SET id = id + 1000, "
        "content_type_id = content_type_id + 1000; UPDATE auth_group_permissions SET permission_id = "
        "permission_id + 1000; COMMIT",
    )
    outputs = []
    for number, command in enumerate(commands):
        outputs.append(manage(filled.folder, *command.split(), DATABASE_URL=empty if number else ""))
    assert "The audit holds." in outputs[-1]
    assert outputs[-1] == manage(filled.folder, "verify_audit")
    before, after = within(dump, filled.folder), within(dump, filled.folder, url=empty)
    assert {table for table in before if before[table] != after[table]} == set()
    assert len(before["executions_execution"]) > 10 and before["django_session"]
    answers = within(look, filled.folder, filled.session, filled.token, url=empty)
    assert answers == answers | {
        "session": 200,
        "login": True,
        "token": 200,
        "of the clerk": ["catalogue.view_source"],
        "of the log": "Catalogue | source",
    }
    assert "change_workflow" in answers["of a curator"] and "add_user" not in answers["of a curator"]
    assert answers["new user"] > filled.last_user
    called = manage(filled.folder, "call_tool", "text_statistics", '{"text": "after"}', DATABASE_URL=empty)
    assert '"characters": 5' in called
    assert not list(filled.folder.glob("*.before-*"))


def test_a_database_with_other_rows_than_those_of_migrations_is_refused(filled, empty, tmp_path, subtests):
    for table, values in {
        "auth_group": "DEFAULT, 'ours'",
        "catalogue_revision": "DEFAULT, 1",
        "django_session": "'k', 'v', now()",
    }.items():
        with subtests.test(table):
            execute(empty, f"INSERT INTO {table} VALUES ({values})")
            told = refused(filled, tmp_path, empty, "--force")
            assert f"already contains data (in {table})" in told and "empty database" in told
            execute(empty, f"DELETE FROM {table} WHERE ctid = (SELECT max(ctid) FROM {table})")


def test_databases_of_other_migrations_are_refused(filled, empty, tmp_path):
    last = "app = 'admin' AND name = '0003_logentry_add_action_flag_choices'"
    behind = edited(filled, tmp_path / "behind", f"DELETE FROM django_migrations WHERE {last}")
    told = manage(tmp_path, "restore", str(behind), fails=True, DATABASE_URL=empty)
    assert "other tables" in told and "Upgrade the embedded database to this version" in told
    execute(empty, f"DELETE FROM django_migrations WHERE {last}")
    assert "is not migrated to this version" in refused(filled, tmp_path, empty)
    execute(empty, "INSERT INTO django_migrations (app, name, applied) VALUES ('audit', '0999_later', now())")
    assert "audit.0999_later is unknown to it" in refused(filled, tmp_path, empty)


def test_a_database_in_use_is_refused(filled, empty, tmp_path):
    """By a process of the product, which keeps a connection; or by the transaction of another user."""
    with psycopg.connect(empty):
        assert "Stop all processes" in refused(filled, tmp_path, empty)
    other = "other_" + empty.rpartition("_")[2]
    execute(empty, f"CREATE ROLE {other} LOGIN PASSWORD 'x'", f"GRANT SELECT ON auth_user TO {other}")
    try:
        with psycopg.connect(empty, user=other, password="x") as reader:
            reader.execute("SELECT FROM auth_user")
            assert "Stop all processes" in refused(filled, tmp_path, empty)
    finally:
        execute(empty, f"DROP OWNED BY {other}", f"DROP ROLE {other}")


def test_a_row_that_postgresql_cannot_store_is_named(filled, empty, tmp_path, subtests):
    before = rows(empty)
    user, grant = "last_name of the row of auth_user with id 2: ", "oauth2_provider_grant"
    for number, (change, told) in enumerate(
        {
            "auth_user SET last_name = 'a' || char(0) WHERE id = 2": f"{user}PostgreSQL text fields cannot",
            "auth_user SET last_name = printf('%.200c', 'x') WHERE id = 2": f"{user}value too long for type",
            "auth_user SET last_name = CAST(x'ff' AS text) WHERE id = 2": "with id 2: Could not decode",
            f"""{grant} SET resource = '"\\u0000"'""": f"column resource of the row of {grant}",
            "auth_user_groups SET group_id = 77": "Rows of the backup refer to rows that it lacks",
        }.items()
    ):
        with subtests.test(change):
            backup = edited(filled, tmp_path / str(number), f"UPDATE {change}")
            output = manage(tmp_path, "restore", str(backup), fails=True, DATABASE_URL=empty)
            assert told in output and "Nothing was changed" in output and "Traceback" not in output
    assert rows(empty) == before


def test_a_restore_that_was_interrupted_leaves_nothing_and_can_be_repeated(filled, empty, tmp_path):
    before = rows(empty)
    execute(
        empty,
        "CREATE FUNCTION cut_off() RETURNS trigger LANGUAGE plpgsql AS $$ "
        "BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$",
        "CREATE TRIGGER cut_off BEFORE INSERT ON orchestration_workflowrequest FOR EACH ROW "
        "EXECUTE FUNCTION cut_off()",
    )
    assert "Restore again." in refused(filled, tmp_path, empty)
    assert rows(empty) == before
    execute(empty, "DROP TRIGGER cut_off ON orchestration_workflowrequest")
    assert "Restored the backup" in manage(tmp_path, "restore", str(filled.backup), DATABASE_URL=empty)
    assert rows(empty)["orchestration_workflowrequest"]


def test_a_server_that_cannot_be_reached_is_told_at_once(filled, tmp_path):
    nowhere = "postgres://someone@127.0.0.1:9/nothing"
    told = manage(tmp_path, "restore", str(filled.backup), fails=True, DATABASE_URL=nowhere)
    assert "Connection refused" in told and "Is DATABASE_URL right" in told


def test_the_key_of_the_environment_has_to_be_that_of_the_backup(filled, empty, tmp_path):
    """With another, credentials and seals would be unreadable."""
    other = {"SECRET_KEY": "another-key-of-the-environment-0123456789"}
    told = refused(filled, tmp_path, empty, **other)
    show = told.partition("SECRET_KEY_FALLBACKS: ")[2].strip()
    key = subprocess.run(show.split(), check=True, capture_output=True, text=True).stdout.strip()
    fallback = other | {"SECRET_KEY_FALLBACKS": key}
    variables: Any = fallback | {"DATABASE_URL": empty}
    manage(tmp_path, "restore", str(filled.backup), **variables)
    called = manage(tmp_path, "call_tool", "text_statistics", '{"text": "now"}', **variables)
    assert '"characters": 3' in called
