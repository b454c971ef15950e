"""What a process says that cannot start, or that starts without what it needs."""

import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from catalogue.database_problems import describe_problem
from connectors.testing import free_port
from tests.migrated import copy_migrated
from tests.processes import ROOT

COMMANDS = ("quickstart", "serve", "worker", "beat", "migrate")
WITHOUT_CAPABILITIES = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
"""Root may otherwise write what nobody may write."""
AWAY = {"CELERY_BROKER_URL": "filesystem://", "DATABASE_URL": ""}


def command(name: str) -> list[str]:
    as_usual = WITHOUT_CAPABILITIES if os.geteuid() == 0 and shutil.which("setpriv") else []
    return [*as_usual, sys.executable, "manage.py", name]


def environment(folder: Path, **variables: str) -> dict[str, str]:
    return os.environ | AWAY | {"CATALOGUE_DATA_DIR": str(folder), "PORT": str(free_port())} | variables


def a_file_in_its_place(folder: Path) -> None:
    folder.rmdir()
    folder.touch()


def nothing_may_be_written(folder: Path) -> None:
    folder.chmod(0o500)


def nothing_may_be_read(folder: Path) -> None:
    folder.chmod(0o300)


def a_read_only_database(folder: Path) -> None:
    copy_migrated(folder / "catalogue.sqlite3")
    (folder / "catalogue.sqlite3").chmod(0o400)


def a_folder_for_the_database(folder: Path) -> None:
    (folder / "catalogue.sqlite3").mkdir()


def a_file_for_the_broker(folder: Path) -> None:
    (folder / "broker").touch()


def a_broker_that_may_not_be_written(folder: Path) -> None:
    (folder / "broker").mkdir(mode=0o500)


def a_file_for_static_files(folder: Path) -> None:
    (folder / "static").touch()


def a_key_that_may_not_be_read(folder: Path) -> None:
    (folder / "secret_key").write_text("k" * 50)
    (folder / "secret_key").chmod(0)


SPOILT = [
    a_file_in_its_place,
    nothing_may_be_written,
    nothing_may_be_read,
    a_read_only_database,
    a_folder_for_the_database,
    a_file_for_the_broker,
    a_broker_that_may_not_be_written,
    a_file_for_static_files,
    a_key_that_may_not_be_read,
]


@pytest.mark.e2e
@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__)
def test_a_data_folder_that_cannot_be_used_ends_each_start_with_a_sentence_that_names_it(tmp_path, spoil):
    """O4, B4: no traceback."""
    folder = tmp_path / "data"
    folder.mkdir()
    spoil(folder)
    # What is found as the settings are read, each finds.
    names = COMMANDS if spoil is nothing_may_be_written else ("quickstart", "serve")
    ended = [
        subprocess.Popen(
            command(name), cwd=ROOT, env=environment(folder), stderr=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for name in names
    ]
    for name, process in zip(names, ended, strict=True):
        told = process.communicate(timeout=60)[1].decode()
        assert process.returncode == 1, (name, told)
        assert str(folder) in told and "Traceback" not in told, (name, told)


@pytest.mark.e2e
def test_a_full_disk_ends_a_start_with_a_sentence(tmp_path):
    """O4: no file may grow, as on a disk without space."""
    limited = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *command("migrate")]
    ended = subprocess.run(limited, cwd=ROOT, env=environment(tmp_path), capture_output=True, text=True)
    assert ended.returncode == 1
    assert str(tmp_path) in ended.stderr and "Traceback" not in ended.stderr


ENCRYPTED = (struct.pack("!i", 80877103), struct.pack("!i", 80877104))
"""Requests to begin with TLS or GSSAPI."""


def refuse(listener: socket.socket, words: str) -> None:
    """As PostgreSQL refuses a connection."""
    fields = b"SFATAL\0C28000\0M" + words.encode() + b"\0\0"
    with suppress(OSError):
        while True:
            with listener.accept()[0] as client:
                while client.recv(1000)[4:8] in ENCRYPTED:
                    client.sendall(b"N")
                client.sendall(b"E" + struct.pack("!i", len(fields) + 4) + fields)


@contextmanager
def refusing_server(words: str) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=refuse, args=(listener, words), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


SERVERS = {
    "missing": ('database "orders" does not exist', "the server does not have it"),
    "password": ('password authentication failed for user "ada"', "the user or its password is wrong"),
    "unlisted": ('no pg_hba.conf entry for user "ada"', "the server does not admit this user"),
    "other": ("Datenbank existiert nicht", "Datenbank existiert nicht"),
}


def told_by(url: str, *words: str) -> str:
    """The first line on standard error with one of these words. The process is killed then."""
    started = subprocess.Popen(
        [sys.executable, "manage.py", *words],
        cwd=ROOT,
        env=os.environ | {"DATABASE_URL": url, "SECRET_KEY": "k" * 40, "PORT": str(free_port())},
        stderr=subprocess.PIPE,
        text=True,
    )
    with started:
        assert started.stderr is not None
        try:
            return next(line for line in started.stderr if "database cannot be used" in line)
        finally:
            started.kill()


@pytest.mark.e2e
@pytest.mark.parametrize("kind", SERVERS)
def test_a_command_says_why_its_database_server_does_not_let_it_in(kind):
    """O3: with the database, host and port, without the password."""
    words, cause = SERVERS[kind]
    with refusing_server(words) as port:
        told = told_by(f"postgres://ada:not-to-be-shown@127.0.0.1:{port}/orders", "migrate")
    assert cause in told and f"orders at 127.0.0.1:{port}" in told and words in told
    assert "not-to-be-shown" not in told


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["serve", "worker", "beat"])
@pytest.mark.parametrize(
    ("server", "cause"),
    [("127.0.0.1:9", "the connection was refused"), ("nowhere.invalid:5432", "the host is unknown")],
)
def test_a_process_whose_database_server_is_away_says_so_at_its_start(name, server, cause):
    """O3: it goes on, as the server may come."""
    told = told_by(f"postgres://ada@{server}/orders", name)
    assert cause in told and f"orders at {server}" in told


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("database or disk is full", "the disk is full"),
        ("disk I/O error", "the disk is full or broken"),
        ("attempt to write a readonly database", "it is read-only"),
        ("file is not a database", "file is not a database"),
    ],
)
def test_a_problem_with_a_file_is_told_with_what_helps(words, cause):
    """O4"""
    told = describe_problem(Exception(words))
    assert cause in told and told.startswith("The database cannot be used: ")
