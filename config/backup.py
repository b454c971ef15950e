"""Backups of the embedded database and the files that are needed to read it, as one tar file, which is
restored as the embedded database or into an empty PostgreSQL. docs/deployment.md describes their use, and
backups of PostgreSQL."""

import errno
import fcntl
import io
import json
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from django.apps import apps
from django.conf import settings
from django.contrib.auth.models import Group, Permission
from django.contrib.contenttypes.models import ContentType
from django.db import DatabaseError, IntegrityError, OperationalError, connection, models, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from access.models import Role
from audit.models import Progress
from catalogue.database import MigrationKey, describe_partly_migrated, known_migrations
from config.environment import COMMAND
from config.private_files import COMPANIONS

DATABASE, MANIFEST, KEY = "catalogue.sqlite3", "manifest.json", "secret_key"
DRAFT, LOCK = "backup.tar", "lock"
FILES = (KEY, "quickstart-token", "example-engine.json")  # Of the data folder, where they exist
FORMAT = 1
FILLED_BY_MIGRATIONS: tuple[type[models.Model], ...] = (
    ContentType, Permission, Group, Group.permissions.through, Role, Progress,
)  # fmt: skip
PLACE = re.compile(r"COPY \w+, line (\d+)(?:, column (\w+))?")  # In PostgreSQL's errors
MAX_FILE_BYTES = 1024 * 1024  # Bytes of each file besides the database
DAMAGED = "a file whose header cannot be right"
REPORT_SECONDS = 5.0
OTHER_SESSIONS = """
    SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = session_user
    AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


Report = Callable[[str], None]  # Takes a sentence on the progress
Word = Annotated[str, Field(pattern=r"\A[!-~]{1,64}\z")]


class BackupRefused(Exception):
    """Nothing was changed. The message is for the operator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    format: int
    version: Word  # Of the product
    made_at: Word  # ISO 8601
    migrations: list[str]  # Those applied, as `app.name`

    @property
    def applied(self) -> set[MigrationKey]:
        return {(app, name) for app, _, name in (each.partition(".") for each in self.migrations)}


@contextmanager
def _leaving_no_new_folder() -> Iterator[None]:
    """A process makes its data folder as it starts. If nothing came of it, it would look like a product's."""
    try:
        yield
    except BaseException:
        connection.close()
        if settings.DATA_DIR_IS_NEW and not _has_data(settings.DATA_DIR / DATABASE):
            shutil.rmtree(settings.DATA_DIR, ignore_errors=True)
        raise


@_leaving_no_new_folder()
def make_backup(target: Path, *, replace: bool, report: Report) -> Manifest:
    """Works while others read and write. Raises BackupRefused or OSError."""
    database = _embedded_database()
    if not os.path.getsize(database):
        raise BackupRefused(f"{database} is empty. Is CATALOGUE_DATA_DIR or DATABASE_URL right?")
    if target.is_dir():
        raise BackupRefused(f"{target} is a folder. Name a file in it.")
    if target.exists() and not replace:
        raise BackupRefused(f"{target} already exists; use --force to replace it.")
    with _working_folder(target.absolute().parent, "backup", report) as folder:
        snapshot, draft = folder / DATABASE, folder / DRAFT
        report(f"Copying {database} ...")
        key = _read(settings.DATA_DIR / KEY)
        try:
            applied = _copy_database(database, snapshot)
        except sqlite3.Error as error:
            raise BackupRefused(
                f"{database} cannot be copied to {target.absolute().parent}: {error}."
            ) from None
        if key != _read(settings.DATA_DIR / KEY):
            raise BackupRefused("The secret key changed during the backup; try again.")
        manifest = Manifest(
            format=FORMAT,
            version=settings.VERSION,
            made_at=datetime.now(UTC).isoformat(timespec="seconds"),
            migrations=sorted(applied),
        )
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            with tarfile.open(fileobj=file, mode="w") as archive:
                _add(archive, MANIFEST, json.dumps(asdict(manifest), indent=2).encode())
                for name in FILES:
                    if (content := _read(settings.DATA_DIR / name)) is not None:
                        _add(archive, name, content)
                archive.add(snapshot, DATABASE)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    return manifest


def _copy_database(database: str, snapshot: Path) -> list[str]:
    """Returns the migrations that are applied."""
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(snapshot)) as copy:
        # In one step, which sees one state of the database; writers do not wait for it.
        source.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")
        return [f"{app}.{name}" for app, name in copy.execute("SELECT app, name FROM django_migrations")]


@_leaving_no_new_folder()
def restore_backup(source: Path, *, replace: bool, report: Report) -> Manifest:
    """Into the database of DATABASE_URL. Existing files are kept as `*.before-<time>`. Raises BackupRefused,
    OSError, or DatabaseError if PostgreSQL cannot be used."""
    is_embedded = connection.vendor == "sqlite"
    place = Path(_embedded_database()).parent if is_embedded else settings.DATA_DIR
    if is_embedded and not replace and _has_data(database := Path(_embedded_database())):
        raise BackupRefused(f"{database} already contains data; use --force to replace it with the backup.")
    with _working_folder(place, "restore", report) as folder:
        report(f"Unpacking and checking {source}, {source.stat().st_size:,} bytes ...")
        try:
            manifest, found = _unpack(source, folder)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise BackupRefused(f"The backup cannot be unpacked in {place}: {error.strerror}.") from None
        _require_key(source, folder / KEY)
        if is_embedded:
            _replace_embedded(folder, found)
        else:
            # A pool would hide the server's own message, and count as a session of the product.
            connection.settings_dict["OPTIONS"].pop("pool", None)
            _require_equal_migrations(source, manifest)
            with transaction.atomic():
                _fill_postgresql(folder / DATABASE, report)
                _replace_files(folder, found)
    return manifest


@contextmanager
def _working_folder(place: Path, purpose: str, report: Report) -> Iterator[Path]:
    """A new folder, locked while it is used. What killed commands left, with the key in it, is removed."""
    prefix = f".workflow-catalogue-{purpose}-"
    for left in sorted(place.glob(f"{prefix}*")):
        with suppress(OSError):
            _remove_unused(left)
            report(f"Removed {left}, which an interrupted {purpose} had left.")
    with tempfile.TemporaryDirectory(dir=place, prefix=prefix) as name, Path(name, LOCK).open("w") as lock:
        # Some network file systems have no locks. The folder is then kept if this process is killed.
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield Path(name)


def _remove_unused(left: Path) -> None:
    """Raises OSError if it is in use, or not such a folder. Follows no links: others may write beside it."""
    folder = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        with open(os.open(LOCK, os.O_RDWR | os.O_NOFOLLOW, dir_fd=folder), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            databases = (f"{DATABASE}{companion}" for companion in COMPANIONS)
            for name in (*databases, MANIFEST, DRAFT, *FILES, LOCK):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
        left.rmdir()
    finally:
        os.close(folder)


def is_behind(manifest: Manifest) -> bool:
    """Returns whether this version has migrations that the backup lacks."""
    return bool(known_migrations(MigrationLoader(None)) - manifest.applied)


def _unpack(source: Path, folder: Path) -> tuple[Manifest, list[str]]:
    """Returns the manifest and the names of the other files, which are checked and in the folder."""
    try:
        # Not compressed, so that what is unpacked is no larger than the backup.
        with tarfile.open(source, "r:") as archive:
            members = {member.name: member for member in _plain_files(archive)}
            found = [name for name in FILES if name in members]
            for name in [MANIFEST, DATABASE, *found]:
                _write_member(archive, members[name], folder / name)
        manifest = TypeAdapter(Manifest).validate_json((folder / MANIFEST).read_bytes())
        key = _read(folder / KEY)
        if key is not None and not (key.isascii() and key.split()):
            raise ValueError(f"{KEY} contains no key")  # No process would start with it
        with closing(sqlite3.connect(folder / DATABASE)) as database:
            verdict = database.execute("PRAGMA integrity_check").fetchone()[0]
    except (tarfile.TarError, KeyError, ValueError, TypeError, sqlite3.DatabaseError, EOFError) as error:
        raise BackupRefused(
            f"{source} is not a complete backup of this product ({_reason(error)})."
        ) from None
    if verdict != "ok":
        raise BackupRefused(f"The database in {source} is damaged: {verdict}")
    loader = MigrationLoader(None)
    if manifest.format != FORMAT or (unknown := manifest.applied - known_migrations(loader)):
        known = f" ({'.'.join(min(unknown))} is unknown to this version)" if manifest.format == FORMAT else ""
        raise BackupRefused(
            f"{source} was made by version {manifest.version}, and this is "
            f"{settings.VERSION}{known}. Install that version or a later one and restore the "
            "backup with it."
        )
    if problem := describe_partly_migrated(loader, manifest.applied):
        raise BackupRefused(f"{source}: {problem}")
    return manifest, found


def _plain_files(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Raises tarfile.TarError for a sparse file, which may be of any size, for a negative size, for which
    tarfile of Python 3.11 would read the same header again and again, and for what tarfile cannot read and
    takes for the end."""
    for member in archive:
        if member.size < 0 or member.issparse():
            raise tarfile.ReadError(DAMAGED)
        if member.isfile():
            yield member
    assert archive.fileobj is not None, "it is open"
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
        raise tarfile.ReadError(DAMAGED)


def _write_member(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    if member.name != DATABASE and member.size > MAX_FILE_BYTES:
        raise tarfile.ReadError(f"{member.name} has more than {MAX_FILE_BYTES:,} bytes")
    content = archive.extractfile(member)
    assert content is not None, "it is a file"
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        while part := content.read(1024 * 1024):
            file.write(part)


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False)[0]
        return ": ".join([MANIFEST, *map(str, first["loc"]), first["msg"]])
    return str(error).partition("\n")[0] or type(error).__name__


def _require_key(source: Path, key: Path) -> None:
    """A key from the environment takes precedence over the backup's."""
    if settings.SECRET_KEY_FILE is None and key.exists():
        known = {settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS}
        if not known.issuperset(key.read_text(encoding="ascii").split()):
            raise BackupRefused(
                "SECRET_KEY comes from the environment, and the backup needs the key that it contains. Set "
                f"SECRET_KEY to it, or add it to SECRET_KEY_FALLBACKS: tar -xOf {source} {KEY}"
            )


def _has_data(database: Path) -> bool:
    return database.exists() and bool(database.stat().st_size)


def _replace_embedded(folder: Path, found: list[str]) -> None:
    database = Path(_embedded_database())
    if _has_data(database):
        _require_unused(database)
        _keep(database)
    for companion in COMPANIONS[1:]:
        Path(f"{database}{companion}").unlink(missing_ok=True)
    _replace_files(folder, found)
    # Last: an interrupted restore leaves no database with another one's key.
    (folder / DATABASE).replace(database)


def _replace_files(folder: Path, found: list[str]) -> None:
    for name in found:
        place = settings.DATA_DIR / name
        is_own = name == KEY and settings.SECRET_KEY_IS_NEW  # This process made it, so nothing uses it
        if not is_own and _read(place) not in (None, _read(folder / name)):
            _keep(place)
        (folder / name).replace(place)


def _keep(path: Path) -> None:
    path.rename(path.with_name(f"{path.name}.before-{datetime.now(UTC):%Y%m%d-%H%M%S}"))


def _embedded_database() -> str:
    if connection.vendor != "sqlite":
        raise BackupRefused(
            "This command is for the embedded database. For PostgreSQL, use pg_dump as described in "
            "docs/deployment.md."
        )
    return str(connection.settings_dict["NAME"])


def _require_unused(database: Path) -> None:
    """SQLite leaves the WAL mode only if no other connection has the database open."""
    connection.close()
    with closing(sqlite3.connect(database, timeout=1)) as alone:
        try:
            alone.execute("PRAGMA journal_mode=DELETE")
        except sqlite3.OperationalError:
            raise BackupRefused(f"{database} is in use. Stop all processes of the product first.") from None
        except sqlite3.DatabaseError:
            return  # Damaged, and about to be replaced


def _require_equal_migrations(source: Path, manifest: Manifest) -> None:
    """The rows are copied as they are, so both databases must have this version's tables."""
    known = known_migrations(MigrationLoader(None))
    applied = set(MigrationRecorder(connection).applied_migrations())
    if unknown := applied - known:
        raise BackupRefused(
            f"The database of DATABASE_URL was migrated by a later version than this, {settings.VERSION} "
            f"({'.'.join(min(unknown))} is unknown to it). Use an empty database."
        )
    if applied != known:
        raise BackupRefused(
            "The database of DATABASE_URL is not migrated to this version. Run this first, and then restore "
            f"again: {COMMAND} migrate"
        )
    if is_behind(manifest):
        raise BackupRefused(
            f"{source} was made by version {manifest.version}, which has other tables than this, "
            f"{settings.VERSION}. Upgrade the embedded database to this version, back it up and restore that."
        )


def _fill_postgresql(snapshot: Path, report: Report) -> None:
    """Copies in the caller's transaction: an interrupted copy leaves nothing and can be repeated. All rows
    keep their ids. Content types, permissions and roles, which the migrations made, are replaced too."""
    every = apps.get_models(include_auto_created=True)
    copied = {model._meta.db_table: model for model in every if not model._meta.proxy}
    with connection.cursor() as cursor, closing(sqlite3.connect(snapshot)) as embedded:
        _require_alone(cursor, list(copied))
        added = [m for m in copied.values() if m not in FILLED_BY_MIGRATIONS and m._base_manager.exists()]
        if Group.objects.filter(role=None).exists():
            added.append(Group)
        if added:
            raise BackupRefused(
                f"The database of DATABASE_URL already contains data (in {added[0]._meta.db_table}). Create "
                f"an empty database, prepare it with {COMMAND} migrate, and restore into that."
            )
        for model in FILLED_BY_MIGRATIONS:
            cursor.execute(f"DELETE FROM {_quoted(model._meta.db_table)}")  # noqa: S608 - only names
        # Entries of the audit come before the segments that seal them: its triggers demand that order.
        report("Copying the rows ...")
        for model in copied.values():
            _copy_rows(cursor, embedded, model, report)
        report("Checking and analyzing the database ...")
        # The last id that was ever given: the audit names deleted objects by theirs.
        for table, last in embedded.execute("SELECT name, seq FROM sqlite_sequence WHERE seq > 0"):
            if table in copied:
                key = copied[table]._meta.pk.column
                cursor.execute(
                    "SELECT setval(pg_get_serial_sequence(%s, %s), %s)", [_quoted(table), key, last]
                )
        try:
            connection.check_constraints()
        except IntegrityError as error:
            raise BackupRefused(f"Rows of the backup refer to rows that it lacks: {error}") from None
        cursor.execute("ANALYZE")


def _require_alone(cursor: Any, tables: list[str]) -> None:
    in_use = "The database of DATABASE_URL is in use. Stop all processes of the product first."
    cursor.execute(OTHER_SESSIONS)
    if cursor.fetchone()[0]:
        raise BackupRefused(in_use)
    try:
        cursor.execute(f"LOCK TABLE {_quoted(*tables)} IN ACCESS EXCLUSIVE MODE NOWAIT")
    except OperationalError:
        raise BackupRefused(in_use) from None


def _copy_rows(cursor: Any, embedded: sqlite3.Connection, model: type[models.Model], report: Report) -> None:
    """PostgreSQL reads what Django writes into SQLite (0 and 1, times in UTC, UUIDs without hyphens) as text
    of its own types; columns of JSON are text in both, or JSON that SQLite keeps as text."""
    table, columns = model._meta.db_table, [str(field.column) for field in model._meta.local_concrete_fields]
    selected = f"SELECT {_quoted(*columns)} FROM {_quoted(table)} ORDER BY rowid"  # noqa: S608 - only names
    row: tuple[Any, ...] = ()
    number, reported_at = 0, time.monotonic()
    try:
        with (
            connection.wrap_database_errors,
            cursor.copy(f"COPY {_quoted(table)} ({_quoted(*columns)}) FROM STDIN") as copy,
        ):
            for number, row in enumerate(embedded.execute(selected), start=1):
                copy.write_row(row)
                if number % 1000 == 0 and time.monotonic() - reported_at >= REPORT_SECONDS:
                    reported_at = time.monotonic()
                    report(f"{table}: {number:,} rows so far ...")
    except OperationalError as error:
        raise BackupRefused(f"The database of DATABASE_URL failed: {error}\nRestore again.") from None
    except sqlite3.Error as error:
        raise _refuse_row(embedded, model, number + 1, "", str(error)) from None
    except DatabaseError as error:
        # For a NUL character, psycopg raises the error itself, before it sends the row.
        with_nul = [name for name, value in zip(columns, row, strict=False) if "\0" in str(value)]
        if place := PLACE.search(str(error)):
            number, column = int(place[1]), place[2] or ""
        elif with_nul:
            column = with_nul[0]
        else:
            raise
        raise _refuse_row(embedded, model, number, column, str(error).partition("\n")[0]) from None


def _refuse_row(
    embedded: sqlite3.Connection, model: type[models.Model], number: int, column: str, why: str
) -> BackupRefused:
    """The number is its place in the table, from 1 on."""
    table, key = model._meta.db_table, str(model._meta.pk.column)
    selected = f"SELECT {_quoted(key)} FROM {_quoted(table)} ORDER BY rowid LIMIT 1 OFFSET ?"  # noqa: S608
    (value,) = embedded.execute(selected, [number - 1]).fetchone()
    return BackupRefused(
        f"PostgreSQL cannot store {f'the column {column} of ' if column else ''}the row of {table} with "
        f"{key} {value}: {why}. Correct it in the embedded database, back that up, and restore the backup."
    )


def _quoted(*names: str) -> str:
    return ", ".join(map(connection.ops.quote_name, names))


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member: Any = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o600
    archive.addfile(member, io.BytesIO(content))
