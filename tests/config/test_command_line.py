"""What `manage.py` and `workflow-catalogue` say of themselves."""

import re
import subprocess
import sys
from pathlib import Path

import django
import pytest

import manage
from tests.processes import ROOT

VERSION = Path(ROOT, "VERSION").read_text().strip()
DEVELOPERS = {"startapp", "startproject", "makemigrations", "dumpdata", "inspectdb", "runserver", "test"}


def told(*words: str) -> str:
    command = [sys.executable, "manage.py", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_our_commands_are_listed_by_purpose_apart_from_those_of_django(monkeypatch, capsys):
    """N5: all of ours, few of the others, and a word on where the rest is."""

    def told(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["manage.py", *words])
        manage.main()
        return capsys.readouterr().out

    shown = told("help")
    *_, of_django, more = shown.strip().split("\n\n")
    ours = {file.stem for file in ROOT.glob("*/management/commands/*.py")} - {"__init__"}

    listed = re.findall(r"^    (\w+)$", shown, re.MULTILINE)
    assert set(re.findall(r"^    (\w+)$", of_django, re.MULTILINE)) == set(listed) - ours
    assert len(listed) == len(set(listed)) and ours < set(listed)
    assert len(re.findall(r"^\S.*\n    ", shown, re.MULTILINE)) <= 6, "few groups"
    assert not DEVELOPERS & set(listed)
    assert told() == shown
    assert "help --commands" in more and set(told("help", "--commands").split()) >= DEVELOPERS


@pytest.mark.parametrize("words", ["--version", "version", "quickstart --version", "migrate --version"])
def test_the_version_is_the_product_s(words):
    """N5: with Django's beside it."""
    assert told(*words.split()).split() == [
        "Workflow",
        "Catalogue",
        VERSION,
        "(Django",
        f"{django.__version__})",
    ]


def test_the_help_of_quickstart_names_its_port():
    assert "PORT=8001" in told("quickstart", "--help")
