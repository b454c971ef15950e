"""Backups of the embedded database: what is in them, and what is refused."""

import gzip
import io
import json
import os
import re
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from django.db import connection

from tests.e2e.product import scratch_database
from tests.factories import make_workflow
from tests.migrated import copy_migrated
from tests.processes import ROOT, database_url, run_python

pytestmark = pytest.mark.e2e


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with a database."""
    folder = tmp_path / "data"
    folder.mkdir()
    copy_migrated(folder / "catalogue.sqlite3")
    return folder


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup; the data folder, which has no sources, lies beside it."""
    folder = tmp_path_factory.mktemp("good")
    (folder / "data").mkdir()
    copy_migrated(folder / "data" / "catalogue.sqlite3")
    manage(folder / "data", "backup", str(folder / "b.tar"))
    return folder / "b.tar"


def environment_of(data: Path) -> dict[str, str]:
    own = {"CATALOGUE_DATA_DIR": str(data), "DATABASE_URL": "", "CELERY_BROKER_URL": "", "SECRET_KEY": ""}
    return os.environ | own


def manage(data: Path, *words: str, fails: bool = False, **variables: str) -> str:
    """What the command prints, on both streams."""
    outcome = run_python(["manage.py", *words], environment=environment_of(data) | variables)
    assert (outcome.returncode == 1) == fails, outcome.stderr
    return outcome.stdout + outcome.stderr


def add_source(data: Path, name: str) -> None:
    config = json.dumps({"base_url": "https://erp.example.com"})
    secret = ["--secret-env", "api_key=ENGINE_KEY"]
    manage(data, "add_source", name, "simplified", "--config", config, *secret, ENGINE_KEY="engine-secret")


def test_a_restored_product_reads_the_credentials_that_the_first_one_stored(data, tmp_path):
    """E10: the key is in the backup, and only its owner may read that."""
    add_source(data, "erp")
    manage(data, "backup", str(tmp_path / "b.tar"))
    assert (tmp_path / "b.tar").stat().st_mode & 0o777 == 0o600
    elsewhere = tmp_path / "elsewhere"
    assert "Restored the backup of 20" in manage(elsewhere, "restore", str(tmp_path / "b.tar"))
    assert not list(elsewhere.glob("*.before-*")), "the key that the command made itself is of no use"
    show = "from catalogue.models import Source; print(Source.objects.get(name='erp').credentials)"
    assert "engine-secret" in manage(elsewhere, "shell", "--verbosity=0", "-c", show)
    assert (elsewhere / "catalogue.sqlite3").stat().st_mode & 0o077 == 0


def test_existing_data_is_replaced_only_when_told_to_and_kept(data, tmp_path):
    manage(data, "backup", str(tmp_path / "b.tar"))
    add_source(data, "later")
    refused = manage(data, "restore", str(tmp_path / "b.tar"), fails=True)
    assert "Nothing was changed" in refused and "--force" in refused and "Unpacking" not in refused
    manage(data, "restore", str(tmp_path / "b.tar"), "--force")
    (kept,) = data.glob("*.before-*")
    for database, count in ((data / "catalogue.sqlite3", 0), (kept, 1)):
        with closing(sqlite3.connect(database)) as opened:
            assert opened.execute("SELECT count(*) FROM catalogue_source").fetchone() == (count,)


def test_another_key_that_was_there_before_is_kept(good, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    manage(elsewhere, "shell", "--verbosity=0", "-c", "0")
    key = (elsewhere / "secret_key").read_text()
    manage(elsewhere, "restore", str(good))
    (kept,) = elsewhere.glob("secret_key.before-*")
    assert kept.read_text() == key
    assert (elsewhere / "secret_key").read_text() == (good.parent / "data" / "secret_key").read_text()


def test_a_backup_whose_key_the_environment_lacks_is_refused(good, tmp_path):
    """The product would use the environment's key, which reads none of the credentials."""
    own = {"SECRET_KEY": "another-key-of-the-environment-0123456789"}
    refused = manage(tmp_path / "elsewhere", "restore", str(good), fails=True, **own)
    assert f"tar -xOf {good} secret_key" in refused
    own["SECRET_KEY_FALLBACKS"] = (good.parent / "data" / "secret_key").read_text()
    assert "Restored" in manage(tmp_path / "elsewhere", "restore", str(good), **own)


def test_what_a_killed_restore_left_is_removed_by_the_next_one_and_what_a_running_one_uses_is_not(
    good, tmp_path
):
    """It holds a copy of everything with its key, for ever: nothing removed or named it."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    os.mkfifo(tmp_path / "waits.tar")
    command = [sys.executable, "manage.py", "restore", str(tmp_path / "waits.tar")]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment_of(elsewhere), stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stderr is not None
            assert "Unpacking and checking" in running.stderr.readline()
            (left,) = elsewhere.glob(".workflow-catalogue-restore-*")
            (left / "catalogue.sqlite3").write_text("half of it")
            assert "Removed" not in manage(elsewhere, "restore", str(good))
            assert left.exists()
        finally:
            running.kill()
    told = manage(elsewhere, "restore", str(good), "--force")
    assert f"Removed {left}, which an interrupted restore had left." in told
    assert not list(elsewhere.glob(".workflow-catalogue-*"))


@pytest.mark.parametrize("kind", ["a link", "somebody's own"])
def test_other_folders_of_such_a_name_stay_as_they_are(data, tmp_path, kind):
    """Others may write where backups are kept."""
    left = tmp_path / ".workflow-catalogue-backup-x"
    if kind == "a link":
        (data / "lock").touch()
        left.symlink_to(data)
    else:
        left.mkdir()
        (left / "lock").touch()
        (left / "thesis").touch()
    assert "Removed" not in manage(data, "backup", str(tmp_path / "b.tar"))
    assert (left / ("secret_key" if kind == "a link" else "thesis")).exists()


def test_a_database_in_use_is_not_replaced(data, tmp_path):
    manage(data, "backup", str(tmp_path / "b.tar"))
    with closing(sqlite3.connect(data / "catalogue.sqlite3")) as running:
        running.execute("PRAGMA journal_mode=WAL")
        running.execute("SELECT count(*) FROM catalogue_source").fetchone()
        refused = manage(data, "restore", str(tmp_path / "b.tar"), "--force", fails=True)
    assert "Stop all processes" in refused
    assert not list(data.glob("*.before-*"))


def test_a_backup_of_a_later_version_is_refused(data, tmp_path):
    """An older version would run on tables that it does not know."""
    with closing(sqlite3.connect(data / "catalogue.sqlite3")) as database:
        database.execute(
            "INSERT INTO django_migrations (app, name, applied) VALUES ('audit', '0999_later', 0)"
        )
        database.commit()
    manage(data, "backup", str(tmp_path / "b.tar"))
    refused = manage(tmp_path / "elsewhere", "restore", str(tmp_path / "b.tar"), fails=True)
    assert "audit.0999_later is unknown to this version" in refused and "Install that version" in refused


def forget_migrations(data: Path, condition: str) -> None:
    with closing(sqlite3.connect(data / "catalogue.sqlite3")) as database:
        assert database.execute(f"DELETE FROM django_migrations WHERE {condition}").rowcount
        database.commit()


def test_a_backup_from_before_the_squash_of_migrations_is_restored_and_needs_none(data, tmp_path):
    """E10: `migrate` only notes that."""
    add_source(data, "erp")
    forget_migrations(data, "name LIKE '0001_squashed_%'")
    manage(data, "backup", str(tmp_path / "b.tar"))
    elsewhere = tmp_path / "elsewhere"
    assert "Migrate the database before you start" in manage(elsewhere, "restore", str(tmp_path / "b.tar"))
    assert "No migrations to apply." in manage(elsewhere, "migrate")
    shown = manage(elsewhere, "showmigrations", "catalogue")
    assert "[X] 0001_squashed_0019 (19 squashed migrations)" in shown and "[ ]" not in shown
    show = "from catalogue.models import Source; print(Source.objects.get(name='erp').credentials)"
    assert "engine-secret" in manage(elsewhere, "shell", "--verbosity=0", "-c", show)


def test_a_backup_with_some_of_the_squashed_migrations_is_refused_as_migrate_refuses_it(data, tmp_path):
    """E10: with the code that can apply the others."""
    forget_migrations(data, "app = 'executions' AND name = '0019_plain_words'")
    manage(data, "backup", str(tmp_path / "b.tar"))
    sentence = "The database has the migrations of executions up to 0018_webhooks only"
    assert sentence in manage(tmp_path / "elsewhere", "restore", str(tmp_path / "b.tar"), fails=True)
    assert sentence in manage(data, "migrate", fails=True)


def header(name: str, *, size: int) -> bytes:
    """Of a member, also with a negative size, which Python's own does not write."""
    member = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    member[124:136] = (size % 2**96).to_bytes(12, "big") if size < 0 else b"%011o\0" % size
    return signed(member)


def sparse_header(name: str, *, size: int) -> bytes:
    """Of a file of nothing but holes."""
    member = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    member[156:157], member[386:410] = tarfile.GNUTYPE_SPARSE, b"%011o\0%011o\0" % (size, 0)
    member[483:495] = b"%011o\0" % size
    return signed(member)


def signed(member: bytearray) -> bytes:
    member[148:156] = b"%06o\0 " % (sum(member) - sum(member[148:156]) + 8 * ord(" "))
    return bytes(member)


def in_archive(name: str, content: bytes) -> bytes:
    return header(name, size=len(content)) + content + bytes(-len(content) % 512)


HOSTILE = {  # Appended to a good backup, and why it is refused
    "a sparse file": (sparse_header("secret_key", size=5_000_000), "header cannot be right"),
    "a negative size": (header("any", size=0) + header("manifest.json", size=-512), "header cannot be right"),
    "a damaged header": (header("quickstart-token", size=5)[:-1] + b"?", "header cannot be right"),
    "a large key": (in_archive("secret_key", b"k" * 2_000_000), "secret_key has more than 1,048,576 bytes"),
    "no key": (in_archive("secret_key", b"\xff\n"), "secret_key contains no key"),
    "a deep manifest": (in_archive("manifest.json", b"[" * 100_000), "recursion limit exceeded"),
    "other types": (
        in_archive(
            "manifest.json", b'{"format": 1, "version": "1", "made_at": "2026-11-26", "migrations": [1]}'
        ),
        "manifest.json: migrations: 0: Input should be a valid string",
    ),
    "escape sequences": (
        in_archive(
            "manifest.json", b'{"format": 2, "version": "\\u001b[2J", "made_at": "x", "migrations": []}'
        ),
        "manifest.json: version: String should match",
    ),
}


REPEATED = """
import sys, manage
for backup in sys.argv[1:]:
    sys.argv = ["manage.py", "restore", backup]
    try:
        manage.main()
    except SystemExit as refusal:
        assert refusal.code == 1
    print("ENDED", backup, file=sys.stderr)
"""


def test_what_is_no_good_backup_is_refused_in_a_sentence(good, tmp_path):
    """Some filled memory and disk, did not end, ended in a traceback or brought an unusable key; unpacked, a
    compressed one may be a thousand times as large."""
    whole = good.read_bytes()
    with tarfile.open(good) as archive:
        last = archive.getmembers()[-1]
        end = last.offset_data + last.size + -last.size % 512
    other = io.BytesIO()
    with tarfile.open(fileobj=other, mode="w") as archive:
        archive.add(__file__, "../../manifest.json")
    bad = {
        "cut off": (whole[:100_000], ""),
        "no tar": (b"not a backup", ""),
        "another tar": (other.getvalue(), ""),
        "compressed": (gzip.compress(whole, compresslevel=1), ""),
        **{what: (whole[:end] + appended + bytes(1024), why) for what, (appended, why) in HOSTILE.items()},
    }
    backups = {what: tmp_path / f"{what}.tar" for what in bad}
    for what, backup in backups.items():
        backup.write_bytes(bad[what][0])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = ["-c", REPEATED, *map(str, backups.values())]
    told = run_python(command, environment=environment_of(elsewhere)).stderr
    for what, backup in backups.items():
        refused, _, told = told.partition(f"ENDED {backup}\n")
        assert f"Nothing was changed. {backup} is not a complete backup of this product" in refused, what
        assert bad[what][1] in refused, what
        assert "Traceback" not in refused, what
    assert told == ""
    assert not list(elsewhere.glob(".workflow-catalogue-*"))


def test_a_file_that_exists_is_not_overwritten(data, tmp_path):
    (tmp_path / "b.tar").write_text("last week's")
    assert "--force" in manage(data, "backup", str(tmp_path / "b.tar"), fails=True)
    assert (tmp_path / "b.tar").read_text() == "last week's"


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.argv[:2] = ["manage.py"]
import manage
manage.main()
"""


def test_a_disk_without_space_is_named_and_nothing_is_left(good, data, tmp_path):
    """`backup` ended in a traceback, and `restore` named its file, and a first start ended as `backup`."""
    target, elsewhere = tmp_path / "target", tmp_path / "elsewhere"
    target.mkdir()
    for folder, limit, words, told in (
        (data, 100_000, ["backup", str(target / "c.tar")], f"cannot be copied to {target}: "),
        (
            elsewhere,
            100_000,
            ["restore", str(good)],
            f"cannot be unpacked in {elsewhere}: File",
        ),
        (tmp_path / "new", 10, ["list_tools"], f"{tmp_path / 'new' / 'secret_key'} cannot be used: File"),
    ):
        outcome = run_python(["-c", LIMITED, str(limit), *words], environment=environment_of(folder))
        assert outcome.returncode == 1 and told in outcome.stderr and "Traceback" not in outcome.stderr
    assert not list(target.iterdir()) and not list(elsewhere.glob(".workflow-catalogue-*"))
    assert not list((tmp_path / "new").glob("secret_key*"))


def test_a_database_without_space_names_its_disk(data):
    """It asked whether this was the right file, and whether to migrate."""
    fill = "from django.db import connection; cursor = connection.cursor(); "
    fill += "cursor.execute('PRAGMA max_page_count=1'); "
    fill += "cursor.execute('CREATE TABLE t AS SELECT zeroblob(9000000)')"
    told = manage(data, "shell", "--verbosity=0", "-c", fill, fails=True)
    assert f"the disk is full ({data / 'catalogue.sqlite3'})" in told and "migrate" not in told


def test_a_folder_without_data_is_not_backed_up(tmp_path):
    refused = manage(tmp_path / "wrong", "backup", str(tmp_path / "b.tar"), fails=True)
    assert "is empty. Is CATALOGUE_DATA_DIR" in refused
    assert not (tmp_path / "b.tar").exists() and not (tmp_path / "wrong").exists()


def test_a_refused_restore_leaves_no_data_folder_behind_that_it_has_made(good, tmp_path):
    (tmp_path / "bad.tar").write_text("not a backup")
    missing = tmp_path / "not mounted" / "data"
    for backup in ("bad.tar", "no such.tar"):
        manage(missing, "restore", str(tmp_path / backup), fails=True)
        assert not missing.exists(), backup
    (missing / "notes").mkdir(parents=True)
    manage(missing, "restore", str(tmp_path / "bad.tar"), fails=True)
    assert (missing / "notes").exists()
    assert "Restored" in manage(missing, "restore", str(good))


def test_a_folder_is_no_file_to_back_up_to(data, tmp_path):
    """`--force`, which was the advice, does not replace one either."""
    refused = manage(data, "backup", str(tmp_path), fails=True)
    assert "is a folder. Name a file in it." in refused and "--force" not in refused


def test_a_key_file_without_a_key_is_told_in_a_sentence(data):
    (data / "secret_key").write_text("\n")
    told = manage(data, "list_tools", fails=True)
    assert f"{data / 'secret_key'} cannot be used: it contains no key." in told and "Traceback" not in told


def test_another_database_server_has_tools_of_its_own(data, tmp_path):
    nowhere = "postgres://someone@127.0.0.1:9/nothing"
    refused = manage(data, "backup", str(tmp_path / "b.tar"), fails=True, DATABASE_URL=nowhere)
    assert "pg_dump" in refused


def test_a_new_key_for_a_database_that_processes_share_is_told_of_once(tmp_path):
    """Another folder may have the key that the data was encrypted with, or the other processes use."""
    other, command = "postgres://someone@127.0.0.1:9/nothing", ["shell", "--verbosity=0", "-c", "0"]
    told = manage(tmp_path / "new", *command, DATABASE_URL=other)
    assert f"a new key was made in {tmp_path / 'new' / 'secret_key'}" in told and "set SECRET_KEY" in told
    assert manage(tmp_path / "new", *command, DATABASE_URL=other) == ""
    assert manage(tmp_path / "embedded", *command) == ""


@pytest.mark.databases("config.backup")
@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="for PostgreSQL")
def test_the_documented_commands_back_up_and_restore_postgresql(tmp_path):
    """E10"""
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    dump, restore = re.findall(r"^\$ (pg_\w+ .*)$", pages, re.MULTILINE)
    make_workflow(name="kept")
    with scratch_database(os.environ["DATABASE_URL"]) as url:
        for command, database in ((dump, database_url()), (restore, url)):
            subprocess.run(
                ["sh", "-c", command],
                cwd=tmp_path,
                env=os.environ | {"DATABASE_URL": database.replace("postgres://", "postgresql://", 1)},
                check=True,
                capture_output=True,
            )
        with psycopg.connect(url) as restored:
            names = restored.execute("SELECT name FROM catalogue_workflow").fetchall()
    assert names == [("kept",)]
