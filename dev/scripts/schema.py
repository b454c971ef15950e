"""Write catalogue/schema.sql anew: what the migrations make of an empty SQLite database, as SQL.

An embedded database that is still empty is made from it (`catalogue.database`), without running them.
"""

import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "catalogue" / "schema.sql"
MOMENT = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\.\d+(\+00:00)?")
HEAD = "-- What the migrations make of an empty SQLite database. `make generate` writes it.\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = {key: value for key, value in os.environ.items() if key != "DATABASE_URL"}
        command = [sys.executable, "manage.py", "migrate", "--verbosity=0"]
        subprocess.run(command, cwd=ROOT, env=environment | {"CATALOGUE_DATA_DIR": folder}, check=True)
        SCHEMA.write_text(schema_of(Path(folder, "catalogue.sqlite3")), encoding="utf-8")


def schema_of(database: Path) -> str:
    """The statements that make an equal database, with `{now}` for each point in time."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("VACUUM")  # Which brings them into the order of all others
        return HEAD + MOMENT.sub("{now}", "\n".join(connection.iterdump())) + "\n"


if __name__ == "__main__":
    main()
