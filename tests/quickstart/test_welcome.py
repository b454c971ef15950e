"""What the first start adds, what later ones leave alone, and what the banner says."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth import authenticate

from catalogue.exposure import load_exposed_catalogue
from catalogue.models import Source, Workflow
from config.environment import COMMAND
from config.management.commands.quickstart import (
    ELSEWHERE,
    ExampleEngine,
    Welcome,
    banner,
    connect_engine,
    is_first_start,
    quickstart_token,
    welcome,
)
from identity.models import AccessToken
from tests.factories import make_workflow
from tests.processes import ROOT, free_port
from tests.processes import ExampleEngine as RunningEngine

NOBODY_THERE = ExampleEngine(port=9, api_key="a-key-that-nobody-asks-for")
WELCOME = Welcome(address="http://localhost:8000", password="first-password", token="wfc_token", tools=8)


@pytest.fixture
def engine(example_engine: RunningEngine) -> ExampleEngine:
    return ExampleEngine(port=int(example_engine.base_url.rpartition(":")[2]), api_key=example_engine.api_key)


@pytest.mark.django_db(transaction=True)
def test_first_start_connects_the_engine_and_enables_what_it_lists(engine):
    connect_engine(engine, before=None, first=True)
    assert len(load_exposed_catalogue().workflows) == Workflow.objects.count() >= 6
    assert Source.objects.get().health_state == Source.HealthState.OK


@pytest.mark.django_db(transaction=True)
def test_engine_that_cannot_be_listed_stays_connected_for_later():
    connect_engine(NOBODY_THERE, before=None, first=True)
    assert Source.objects.get().health_state == Source.HealthState.FAILING


@pytest.mark.django_db
def test_later_start_follows_the_engine_to_another_port():
    connect_engine(NOBODY_THERE, before=None, first=True)
    moved = replace(NOBODY_THERE, port=free_port())
    connect_engine(moved, before=NOBODY_THERE, first=False)
    assert Source.objects.get().config["base_url"] == moved.base_url


@pytest.mark.django_db
def test_later_start_leaves_a_source_alone_that_was_pointed_elsewhere():
    connect_engine(NOBODY_THERE, before=None, first=True)
    elsewhere = "http://127.0.0.1:1234"
    Source.objects.update(config={"base_url": elsewhere})
    connect_engine(NOBODY_THERE, before=NOBODY_THERE, first=False)
    assert Source.objects.get().config == {"base_url": elsewhere}


@pytest.mark.django_db
def test_later_start_does_not_bring_back_a_source_that_was_deleted():
    connect_engine(NOBODY_THERE, before=NOBODY_THERE, first=False)
    assert not Source.objects.filter(name=settings.DEMO_SOURCE).exists()


@pytest.mark.django_db
def test_later_start_repairs_credentials_that_another_secret_key_encrypted():
    connect_engine(NOBODY_THERE, before=None, first=True)
    Source.objects.update(encrypted_credentials="written with another key")
    connect_engine(NOBODY_THERE, before=NOBODY_THERE, first=False)
    assert Source.objects.get().credentials == {"api_key": NOBODY_THERE.api_key}


@pytest.mark.django_db
def test_admin_ends_the_first_start_and_can_log_in(tmp_path):
    assert is_first_start()
    password = welcome(tmp_path).password
    assert not is_first_start()
    assert authenticate(username="admin", password=password)


@pytest.mark.django_db
def test_token_is_shown_again_until_it_is_revoked(tmp_path):
    token = quickstart_token(tmp_path, first=True)
    assert token
    assert quickstart_token(tmp_path, first=False) == token
    assert (tmp_path / "quickstart-token").stat().st_mode & 0o077 == 0
    AccessToken.objects.get().revoke()
    assert quickstart_token(tmp_path, first=False) is None


@pytest.mark.django_db
def test_token_of_another_database_is_not_shown(tmp_path):
    (tmp_path / "quickstart-token").write_text("wfc_of-another-database", encoding="utf-8")
    assert quickstart_token(tmp_path, first=False) is None
    assert quickstart_token(tmp_path, first=True) != "wfc_of-another-database"


@pytest.mark.django_db
def test_tools_are_counted_as_agents_see_them():
    make_workflow()
    make_workflow(enabled=False)
    assert len(load_exposed_catalogue().workflows) == 1


def test_banner_shows_what_to_do_next_with_lines_that_can_be_pasted():
    """The addresses come first: a call, a client, an engine of one's own, the demo and the documentation."""
    shown = banner(WELCOME)
    lines = shown.splitlines()
    assert lines.index("  MCP     http://localhost:8000/mcp") < 6 and len(lines) <= 24
    (line,) = re.findall(r"^claude mcp add .*$", shown, re.MULTILINE)
    assert shlex.split(line)[-3:] == [
        *("http://localhost:8000/mcp", "--header", "Authorization: Bearer wfc_token"),
    ]
    (call,) = [shlex.split(line) for line in lines if "call_tool" in line]
    assert json.loads(call[-1]) == {"text": "Hello, catalogue."}
    assert "add_source" in shown and f"{settings.DEMO_SOURCE} is a demo" in shown
    (index,) = re.findall(r"/.*index\.md$", shown, re.MULTILINE)
    assert Path(index).is_file()


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({"PORT": "8650"}, "http://localhost:8650/mcp"),
        (
            {"PORT": "8650", "CATALOGUE_PUBLIC_URL": "https://tools.example.com"},
            "https://tools.example.com/mcp",
        ),
        ({"CATALOGUE_SETTINGS_DIR": "."}, "http://localhost:8651/mcp"),
        ({}, "http://localhost:8000/mcp"),
    ],
)
def test_commands_of_the_banner_are_about_this_installation(monkeypatch, tmp_path, variables, address):
    """N3: in another terminal, in another folder, and with what its shell does not have."""
    folder = tmp_path / "My data (ü)"
    folder.mkdir()
    (folder / "PORT").write_text("8651")
    monkeypatch.chdir(folder)
    for name in (*ELSEWHERE, "DATABASE_URL", "CELERY_BROKER_URL"):
        monkeypatch.delenv(name, raising=False)
    elsewhere = dict(os.environ)
    for name, value in (variables | {"CATALOGUE_DATA_DIR": "data"}).items():
        monkeypatch.setenv(name, value)

    (line,) = [line for line in banner(replace(WELCOME, token=None)).splitlines() if "client_config" in line]

    command = line.partition(" [")[0].replace(COMMAND, shlex.join([sys.executable, str(ROOT / "manage.py")]))
    told = subprocess.run(
        f"{command} --client claude-code",
        shell=True,
        env=elsewhere,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert address in told.stdout.split(), told.stderr
    assert (folder / "data" / "catalogue.sqlite3").exists()


def test_banner_shows_the_password_once_and_then_how_to_set_another():
    assert "admin / first-password" in banner(WELCOME)
    assert "manage.py changepassword admin" in banner(replace(WELCOME, password=None))


def test_banner_without_a_token_says_how_to_make_one():
    assert "manage.py create_mcp_token NAME" in banner(replace(WELCOME, token=None))
