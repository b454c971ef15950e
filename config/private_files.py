"""Files that only the product's account may read, regardless of the folder's permissions."""

import os
import uuid
from contextlib import suppress
from pathlib import Path

OTHERS = 0o007  # A group may have been given access on purpose
COMPANIONS = ("", "-wal", "-shm", "-journal")  # SQLite makes them beside a database, with its permissions


def write_secret(path: Path, text: str) -> None:
    """Replace a file that only its owner may read."""
    _write_beside(path, text).replace(path)


def write_secret_once(path: Path, text: str) -> bool:
    """Like `write_secret`, but an existing file stays; whether there was none."""
    fresh = _write_beside(path, text)
    try:
        path.hardlink_to(fresh)
    except FileExistsError:
        return False
    except OSError:
        # A file system without links.
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    return True


def _write_beside(path: Path, text: str) -> Path:
    fresh = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    return fresh


def keep_private(folder: Path) -> None:
    """Create the folder for its owner alone, or withdraw others' access to an existing one."""
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
    _shut_others_out(folder)


def keep_private_database(name: str) -> None:
    """The same for the files of an SQLite database."""
    if not name or name == ":memory:":
        return
    # If it cannot be created, the first connection reports this better.
    with suppress(OSError):
        os.close(os.open(name, os.O_RDWR | os.O_CREAT, mode=0o600))
    for companion in COMPANIONS:
        _shut_others_out(Path(name + companion))


def _shut_others_out(path: Path) -> None:
    # It may belong to another account.
    with suppress(OSError):
        mode = path.stat().st_mode & 0o777
        if mode & OTHERS:
            path.chmod(mode & ~OTHERS)
