"""Backups of the embedded database and the files that are needed to read it, as one tar file.
docs/deployment.md describes their use, and the alternatives for PostgreSQL."""

import io
import json
import os
import sqlite3
import tarfile
import tempfile
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from catalogue.database import MigrationKey, describe_partly_migrated, known_migrations
from config.private_files import COMPANIONS

DATABASE, MANIFEST, KEY = "catalogue.sqlite3", "manifest.json", "secret_key"
FILES = (KEY, "quickstart-token", "example-engine.json")  # Of the data folder, where they exist
FORMAT = 1


class BackupRefused(Exception):
    """Nothing was changed. The message is for the operator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    format: int
    version: str  # Of the product
    made_at: str  # ISO 8601
    migrations: list[str]  # Those applied, as `app.name`

    @property
    def applied(self) -> set[MigrationKey]:
        return {(app, name) for app, _, name in (each.partition(".") for each in self.migrations)}


def make_backup(target: Path, *, replace: bool) -> Manifest:
    """Works while others read and write. Raises BackupRefused or OSError."""
    database = _embedded_database()
    if target.exists() and not replace:
        raise BackupRefused(f"{target} already exists; use --force to replace it.")
    with tempfile.TemporaryDirectory(dir=target.absolute().parent, prefix=".backup-") as folder:
        snapshot, draft = Path(folder, DATABASE), Path(folder, "backup.tar")
        key = _read(settings.DATA_DIR / KEY)
        with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(snapshot)) as copy:
            # In one step, which sees one state of the database; writers do not wait for it.
            source.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
            applied = [
                f"{app}.{name}" for app, name in copy.execute("SELECT app, name FROM django_migrations")
            ]
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


def restore_backup(source: Path, *, replace: bool) -> Manifest:
    """Existing files are kept as `*.before-<time>`. Raises BackupRefused or OSError."""
    database = Path(_embedded_database())
    settings.DATA_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=database.parent, prefix=".restore-") as folder:
        manifest, found = _unpack(source, Path(folder))
        is_new = not database.exists() or not database.stat().st_size
        if not is_new and not replace:
            raise BackupRefused(
                f"{database} already contains data; use --force to replace it with the backup."
            )
        if not is_new:
            _require_unused(database)
        before = f"before-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        for place in [database, *(settings.DATA_DIR / name for name in found)]:
            if place.exists() and not (is_new and place == database):
                place.rename(place.with_name(f"{place.name}.{before}"))
        for companion in COMPANIONS[1:]:
            Path(f"{database}{companion}").unlink(missing_ok=True)
        for name in found:
            Path(folder, name).replace(settings.DATA_DIR / name)
        # Last: an interrupted restore leaves no database with another one's key.
        Path(folder, DATABASE).replace(database)
    return manifest


def is_behind(manifest: Manifest) -> bool:
    """Whether this version has migrations that the backup lacks."""
    return bool(known_migrations(MigrationLoader(None)) - manifest.applied)


def _unpack(source: Path, folder: Path) -> tuple[Manifest, list[str]]:
    """Returns the manifest and the names of the other files, which are checked and in the folder."""
    try:
        with tarfile.open(source) as archive:
            members = {member.name: member for member in archive if member.isfile()}
            found = [name for name in FILES if name in members]
            for name in [MANIFEST, DATABASE, *found]:
                content = archive.extractfile(members[name])
                assert content is not None, "it is a file"
                with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                    while part := content.read(1024 * 1024):
                        file.write(part)
        manifest = Manifest(**json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
        with closing(sqlite3.connect(folder / DATABASE)) as database:
            verdict = database.execute("PRAGMA integrity_check").fetchone()[0]
    except (tarfile.TarError, KeyError, ValueError, TypeError, sqlite3.DatabaseError, EOFError) as error:
        # For a file that is not a tar file, tarfile lists every compression that it tried.
        why = str(error).partition("\n")[0].rstrip(":") or type(error).__name__
        raise BackupRefused(f"{source} is not a complete backup of this product ({why}).") from None
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


def _embedded_database() -> str:
    if connection.vendor != "sqlite":
        raise BackupRefused(
            "This command is for the embedded database. For PostgreSQL, use pg_dump and "
            "pg_restore as described in docs/deployment.md."
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


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member: Any = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o600
    archive.addfile(member, io.BytesIO(content))
