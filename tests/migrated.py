"""An SQLite database as a first start makes it, which later runs and products copy.

The migrations take some 3 s of CPU.
"""

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from functools import cache
from hashlib import sha256
from pathlib import Path

from django.apps import apps

from tests.processes import run_python

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".cache" / "migrated"


@cache
def kept_database() -> Path:
    """Where it is, or has to come to."""
    folders = [Path(app.path, "migrations") for app in apps.get_app_configs()]
    made_of = sorted(path for folder in folders for path in folder.glob("*.py"))
    return FOLDER / f"{sha256(b''.join(path.read_bytes() for path in made_of)).hexdigest()}.sqlite3"


def keep(database: Path) -> None:
    """Others may be at the same; the new name it gets once it is whole."""
    kept = kept_database()
    kept.parent.mkdir(parents=True, exist_ok=True)
    for outdated in kept.parent.glob("*.sqlite3"):
        if outdated != kept:
            outdated.unlink(missing_ok=True)
    draft = kept.with_suffix(f".{os.getpid()}")
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("VACUUM INTO ?", [str(draft)])
    draft.replace(kept)


def copy_migrated(database: Path) -> None:
    """Make it first where no test has done so."""
    if not kept_database().exists():
        with tempfile.TemporaryDirectory() as folder:
            _start(folder)
            keep(Path(folder, "catalogue.sqlite3"))
    shutil.copyfile(kept_database(), database)


FIRST_START = """
import django; django.setup()
from catalogue import database
database.bring_up_to_date(print)
"""


def _start(folder: str) -> None:
    names = ("DATABASE_URL", "CELERY_BROKER_URL")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"CATALOGUE_DATA_DIR": folder, "DJANGO_SETTINGS_MODULE": "config.settings"}
    outcome = run_python(["-c", FIRST_START], environment=environment)
    assert outcome.returncode == 0, outcome.stderr
