"""What the product writes is for the account that runs it, in whatever folder."""

import os
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from tests.migrated import copy_migrated
from tests.processes import run_python

pytestmark = pytest.mark.e2e


def run(folder: Path, *words: str, **variables: str) -> str:
    """A command of the product on SQLite and the embedded broker, in a shell with the usual umask."""
    environment = {name: value for name, value in os.environ.items() if name != "CELERY_BROKER_URL"}
    environment |= {
        "CATALOGUE_DATA_DIR": str(folder),
        "DATABASE_URL": f"sqlite:///{folder / 'catalogue.sqlite3'}",
    }
    outcome = run_python(words, environment=environment | variables)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


USE = """
import django
django.setup()
from django.db import connection
from config.celery import app
connection.cursor().execute("CREATE TABLE IF NOT EXISTS used (id INTEGER)")
connection.cursor().execute("INSERT INTO used VALUES (1)")
app.send_task("nothing.to_do")
from pathlib import Path
from django.conf import settings
for path in sorted(Path(settings.DATA_DIR).rglob("*")):
    print(f"{path.stat().st_mode & 0o777:o}", path.relative_to(settings.DATA_DIR))
"""


def modes(folder: Path) -> dict[str, int]:
    written = run(folder, "-c", USE, DJANGO_SETTINGS_MODULE="config.settings").splitlines()
    return {name: int(mode, 8) for mode, name in (line.split(" ", 1) for line in written)}


@pytest.mark.parametrize("mode", [0o755, 0o775])
def test_a_folder_that_is_open_to_everybody_keeps_database_and_broker_private(tmp_path, mode):
    """E6: also where they were made by an earlier version."""
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(mode)
    fresh = modes(folder)
    assert {fresh[name] for name in ("catalogue.sqlite3", "catalogue.sqlite3-wal", "secret_key")} == {0o600}
    assert fresh["broker"] == 0o700
    for name in ("catalogue.sqlite3", "broker"):
        (folder / name).chmod(0o755 if name == "broker" else 0o644)
    again = modes(folder)
    assert not any(again[name] & 0o007 for name in ("broker", "catalogue.sqlite3", "catalogue.sqlite3-wal"))
    assert folder.stat().st_mode & 0o777 == mode


def test_a_key_in_the_data_folder_is_changed_in_three_steps(tmp_path):
    """E6: no credentials have to be entered again, and each step says what comes next."""
    copy_migrated(tmp_path / "catalogue.sqlite3")
    credentials = ("--config", '{"base_url": "http://127.0.0.1:9"}', "--secret-env", "api_key=ENGINE_KEY")
    run(tmp_path, "manage.py", "add_source", "erp", "simplified", *credentials, ENGINE_KEY="engine-secret")
    file = tmp_path / "secret_key"
    old = file.read_text()
    assert "Restart all processes" in run(tmp_path, "manage.py", "rotate_secret_key", "--new")
    new, *former = file.read_text().split()
    assert former == [old] and new != old
    assert "Encrypted 1 stored secret with" in run(tmp_path, "manage.py", "rotate_secret_key")
    assert file.read_text() == new
    assert file.stat().st_mode & 0o777 == 0o600
    show = "from catalogue.models import Source; print(Source.objects.get().credentials)"
    assert "engine-secret" in run(tmp_path, "manage.py", "shell", "--verbosity=0", "-c", show)


@pytest.mark.django_db
def test_a_new_key_that_cannot_be_written_is_told_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "SECRET_KEY_FILE", tmp_path / "missing" / "secret_key")
    with pytest.raises(CommandError, match=f"{settings.SECRET_KEY_FILE} cannot be written and stays"):
        call_command("rotate_secret_key", "--new")


def test_a_key_from_the_environment_is_changed_by_naming_the_former_one(tmp_path):
    """E6"""
    first, second = {"SECRET_KEY": "a" * 40}, {"SECRET_KEY": "b" * 40}
    copy_migrated(tmp_path / "catalogue.sqlite3")
    credentials = ("--config", '{"base_url": "http://127.0.0.1:9"}', "--secret-env", "api_key=ENGINE_KEY")
    added = first | {"ENGINE_KEY": "engine-secret"}
    run(tmp_path, "manage.py", "add_source", "erp", "simplified", *credentials, **added)
    with pytest.raises(AssertionError, match="comes from the environment"):
        run(tmp_path, "manage.py", "rotate_secret_key", "--new", **first)
    with pytest.raises(AssertionError, match="encrypted with an unknown key: erp"):
        run(tmp_path, "manage.py", "rotate_secret_key", **second)
    both = second | {"SECRET_KEY_FALLBACKS": "c" * 40 + ", " + "a" * 40}
    assert "remove SECRET_KEY_FALLBACKS" in run(tmp_path, "manage.py", "rotate_secret_key", **both)
    show = "from catalogue.models import Source; print(Source.objects.get().credentials)"
    assert "engine-secret" in run(tmp_path, "manage.py", "shell", "--verbosity=0", "-c", show, **second)
    assert not (tmp_path / "secret_key").exists()


def test_a_folder_of_whatever_name_has_the_database_in_it(tmp_path):
    """E6: the address of the database is made of the name, and would end at `#`."""
    folder = tmp_path / "50%20of my #data?"
    run(folder, "-c", USE, DJANGO_SETTINGS_MODULE="config.settings", DATABASE_URL="")
    assert (folder / "catalogue.sqlite3").exists()
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
